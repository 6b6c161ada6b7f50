//! The process that runs batches: reads a job from standard input, which is a socket, and answers
//! there. Standard output is the user's code's, which may print what it likes.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use feedline::device::{self, DeviceBatch};
use feedline::internals::engine::LoaderFeed;
use feedline::internals::tune::{Evidence, Feed, MeasuredPart, Run, Workload, measure};
use feedline::spec::{SourceKind, Subset};
use feedline::stats::Span;
use feedline::{DeviceLoader, Loader, Spec};
use serde_json::Value;

use super::job::{Answer, Job, Task};
use crate::host::{Host, OpenFeed};
use crate::pipeline;

/// Between two lines of progress: often enough for a bar, rarely enough to cost nothing.
const PROGRESS: Duration = Duration::from_millis(100);

/// Batches that wait on a device.
const AHEAD: usize = 2;

/// The connection to the command that started this process.
struct Line(UnixStream);

impl Line {
    fn send(&mut self, answer: &Answer) -> io::Result<()> {
        let mut text = serde_json::to_string(answer)?;
        text.push('\n');
        self.0.write_all(text.as_bytes())
    }
}

/// Does one job; an error is one of the connection, which only a command of ours has.
pub(crate) fn serve(target: &OsStr, host: &dyn Host) -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    let socket = UnixStream::from(socket);
    let mut line = String::new();
    BufReader::new(socket.try_clone()?).read_line(&mut line)?;
    let job: Job = serde_json::from_str(&line)?;
    // The user's code may read from standard input, and must not find this there.
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    end_with_the_command(socket.try_clone()?);
    let mut line = Line(socket);
    let answer = work(target, &job, host, &mut line).unwrap_or_else(Answer::Failed);
    line.send(&answer)
}

/// Ends this process when the command is gone, also while a batch hangs.
fn end_with_the_command(mut socket: UnixStream) {
    let watch = move || {
        // Nothing more is sent: whatever comes is the end. `read_exact` goes on after a signal, of
        // which torch's DataLoader gets one whenever a worker ends.
        let _ = socket.read_exact(&mut [0]);
        // Not the ordinary exit: it tears down libraries that the other threads are still using.
        signal_hook::low_level::exit(1);
    };
    // Without the thread it ends with the next line that nobody takes.
    let _ = std::thread::Builder::new().name("feedline-command".to_owned()).spawn(watch);
}

fn work(target: &OsStr, job: &Job, host: &dyn Host, line: &mut Line) -> Result<Answer, String> {
    let python = || OpenFeed {
        target: target.to_string_lossy().into_owned(),
        settings: job.settings.clone(),
        step: job.step.clone(),
        spans: job.spans,
        samples: job.samples,
    };
    match &job.task {
        Task::Look => Ok(Answer::Facts(host.look(&target.to_string_lossy())?)),
        Task::TimeStep => Ok(Answer::Step(host.time_step(&python())?)),
        Task::Run(workload) => {
            let (feed, length, part) = match job.python {
                true => (host.open(&python())?, None, None),
                false => open(Path::new(target), job)?,
            };
            let (mut feed, workload) = ending(feed, length, workload);
            let mut run = run(&mut *feed, &workload, line)?;
            run.part = part;
            Ok(Answer::Run(Box::new(run)))
        }
    }
}

/// A feed whose epochs have no more batches than the workload asks for, and a workload that asks
/// for the end of those that end by themselves, since real ones turn over so. `length` is how many
/// batches an epoch has, if that is known.
fn ending(
    feed: Box<dyn Feed>,
    length: Option<u64>,
    workload: &Workload,
) -> (Box<dyn Feed>, Workload) {
    let Some(most) = workload.batches else { return (feed, *workload) };
    let asking = Workload { batches: Some(most.saturating_add(1)), ..*workload };
    match length {
        Some(length) if length > most => (feed, *workload),
        Some(_) => (feed, asking),
        None => (Box::new(Cut { feed, most, given: 0, goes_on: false }), asking),
    }
}

/// Epochs of a feed that may be longer than wanted. The first one shows whether it is: it is asked
/// for one batch more, which nobody sees.
struct Cut {
    feed: Box<dyn Feed>,
    most: u64,
    given: u64,
    goes_on: bool,
}

impl Feed for Cut {
    fn begin(&mut self) -> feedline::Result<()> {
        self.given = 0;
        self.feed.begin()
    }

    fn next(&mut self) -> feedline::Result<Option<u64>> {
        let over = self.given >= self.most;
        if over && self.goes_on {
            return Ok(None);
        }
        let next = self.feed.next()?;
        self.given += 1;
        self.goes_on |= over && next.is_some();
        Ok(next.filter(|_| !over))
    }

    fn train(&mut self) -> feedline::Result<()> {
        self.feed.train()
    }

    fn evidence(&mut self) -> Evidence {
        self.feed.evidence()
    }

    fn timeline(&mut self) -> Vec<Vec<Span>> {
        self.feed.timeline()
    }
}

fn run(feed: &mut dyn Feed, workload: &Workload, line: &mut Line) -> Result<Run, String> {
    let mut last = Instant::now();
    line.send(&Answer::Opened).map_err(|error| error.to_string())?;
    let mut going_on = |batches: u64, seconds: f64| {
        if batches > 1 && last.elapsed() < PROGRESS {
            return true;
        }
        last = Instant::now();
        line.send(&Answer::Progress(batches, seconds)).is_ok()
    };
    let run = measure(feed, workload, &mut going_on).map_err(|error| error.to_string())?;
    if run.batches == 0 {
        return Err("there was no batch".to_owned());
    }
    Ok(run)
}

/// The spec that a configuration makes of a target.
pub(crate) fn describe(target: &Path, job: &Job) -> Result<Spec, crate::output::Failure> {
    let mut spec = pipeline::describe(target, job.defaults.clone(), job.keys(), &job.sets)?;
    // The same bad samples are met by every run: the list of them is for real ones.
    spec.quarantine = None;
    if job.is_uncached() {
        spec.cache = None;
    }
    Ok(spec)
}

/// A feed, how many batches an epoch of it has, and the part of the data set that it is made of.
type Opened = (Box<dyn Feed>, Option<u64>, Option<MeasuredPart>);

fn open(target: &Path, job: &Job) -> Result<Opened, String> {
    let text = |error: feedline::Error| error.to_string();
    if let Some(key) = ["executor", "loader", "persistent_workers"]
        .into_iter()
        .find(|key| job.settings.contains_key(*key))
    {
        return Err(format!("{key} is for Python data sets: the engine has threads of its own"));
    }
    let mut spec = describe(target, job).map_err(|failure| failure.message())?;
    let loader = Loader::from_spec(spec.clone()).map_err(text)?;
    let of = loader.samples();
    let (loader, chosen) = match part(&spec, of, job.samples) {
        None => (loader, None),
        Some(subset) => {
            spec.subset = Some(subset);
            drop(loader);
            let loader = Loader::from_spec(spec).map_err(text)?;
            let samples = loader.samples();
            (loader, Some(MeasuredPart { samples, of }))
        }
    };
    let length = Some(loader.len());
    let pinned = job.settings.get("pin_memory").and_then(Value::as_bool);
    let name = job.settings.get("device").and_then(Value::as_str);
    if name.is_none() && pinned != Some(true) {
        return Ok((Box::new(LoaderFeed::new(loader, job.spans)), length, chosen));
    }
    let device = device::open(name.unwrap_or("cuda")).map_err(|error| error.to_string())?;
    if let Some(most) = job.spans {
        loader.record_timeline(most);
    }
    let loader = DeviceLoader::new(loader, device, AHEAD, pinned.unwrap_or(true)).map_err(text)?;
    Ok((Box::new(DeviceFeed { loader, held: None }), length, chosen))
}

/// The part of a data set that makes epochs of about so many samples, if it has more. Samples of
/// all its parts are taken, but of formats that are read a block at a time the first ones.
fn part(spec: &Spec, samples: u64, wanted: Option<u64>) -> Option<Subset> {
    let wanted = wanted.filter(|wanted| *wanted < samples)?;
    let chosen = spec.subset.is_some()
        || spec.num_samples.is_some()
        || spec.weights.is_some()
        || spec.replacement
        || spec.sources.len() != 1;
    if chosen {
        return None;
    }
    let files = matches!(
        &spec.sources[0].kind,
        SourceKind::Path(path) | SourceKind::ImageFolder(path) | SourceKind::Flat(path)
            if path.is_dir() && !path.join("feedline.json").exists()
    );
    let end = i64::try_from(wanted).ok()?;
    let step = i64::try_from(samples / wanted.max(1)).ok()?;
    Some(match files {
        true => Subset::Slice(None, Some(end.saturating_mul(step)), step.max(1)),
        false => Subset::Slice(None, Some(end), 1),
    })
}

/// A loader whose batches are copied to a device.
struct DeviceFeed {
    loader: DeviceLoader,
    held: Option<DeviceBatch>,
}

impl Feed for DeviceFeed {
    fn begin(&mut self) -> feedline::Result<()> {
        self.held = None;
        self.loader.begin_epoch();
        Ok(())
    }

    fn next(&mut self) -> feedline::Result<Option<u64>> {
        self.held = None;
        let Some((batch, _)) = self.loader.next_batch().transpose()? else { return Ok(None) };
        batch.hand_to_anybody()?;
        let rows = batch.rows() as u64;
        self.held = Some(batch);
        Ok(Some(rows))
    }

    fn evidence(&mut self) -> Evidence {
        self.loader.loader().monitor().evidence_since(&feedline::stats::Stats::default())
    }

    fn timeline(&mut self) -> Vec<Vec<Span>> {
        self.loader.loader().monitor().timeline()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use feedline::internals::tune::TrainStep;
    use serde_json::json;

    use super::*;

    /// Epochs of so many batches, and how often it was asked.
    struct Epochs {
        length: u64,
        left: u64,
        asked: Arc<AtomicU64>,
    }

    impl Feed for Epochs {
        fn begin(&mut self) -> feedline::Result<()> {
            self.left = self.length;
            Ok(())
        }

        fn next(&mut self) -> feedline::Result<Option<u64>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let more = self.left > 0;
            self.left = self.left.saturating_sub(1);
            Ok(more.then_some(2))
        }
    }

    #[test]
    fn no_epoch_has_more_batches_than_asked_for() {
        let of_three = |length: u64, known: bool| {
            let asked = Arc::new(AtomicU64::new(0));
            let feed = Box::new(Epochs { length, left: 0, asked: asked.clone() });
            let workload =
                Workload { step: TrainStep::None, epochs: 3, batches: Some(4), seconds: None };
            let (mut feed, workload) = ending(feed, known.then_some(length), &workload);
            let run = measure(&mut *feed, &workload, &mut |_, _| true).unwrap();
            (run.batches, asked.load(Ordering::Relaxed))
        };
        // Those that end by themselves are asked for their end.
        assert_eq!(of_three(4, true), (12, 15));
        assert_eq!(of_three(4, false), (12, 15));
        assert_eq!(of_three(3, true), (9, 12));
        assert_eq!(of_three(3, false), (9, 12));
        // Those that go on are cut; whether they do is tried once if it is not known.
        assert_eq!(of_three(9, true), (12, 12));
        assert_eq!(of_three(9, false), (12, 13));
    }

    #[test]
    fn a_part_of_a_large_set() {
        let spec = Spec::from_value(json!({"source": "set.parquet"})).unwrap();
        assert_eq!(part(&spec, 100, None), None);
        assert_eq!(part(&spec, 100, Some(100)), None);
        assert_eq!(part(&spec, 100, Some(30)), Some(Subset::Slice(None, Some(30), 1)));
        let chosen = Spec::from_value(json!({"source": "set", "num_samples": 90})).unwrap();
        assert_eq!(part(&chosen, 100, Some(30)), None);
        let folder = std::env::temp_dir();
        let spec = Spec::from_value(json!({"source": folder.to_str().unwrap()})).unwrap();
        assert_eq!(part(&spec, 100, Some(30)), Some(Subset::Slice(None, Some(90), 3)));
    }
}
