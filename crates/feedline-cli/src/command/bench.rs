//! `feedline bench`: which settings are fastest, and do they keep the trainer busy?

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use feedline::internals::device::cuda;
use feedline::internals::spec::parse_duration;
use feedline::internals::tune::{Machine, TrainStep, Workload};
use feedline_view::Report;
use feedline_view::benchmark::{Benchmark, Configuration};
use serde_json::{Value, json};

use super::copies::{Copies, batch_bytes};
use crate::bench::children::{Surroundings, Trouble};
use crate::bench::configurations::{
    Candidate, Settings, Subject, grid, preset, read_settings, read_value,
};
use crate::bench::contest::{Contest, Contestant, Length, conclude};
use crate::bench::job::{Answer, Job, Task};
use crate::bench::known::{Known, Stop};
use crate::bench::packing::{Shelf, contestants, read_format};
use crate::bench::recipe::Recipe;
use crate::bench::show;
use crate::host::{Host, is_python};
use crate::output::{Failure, Outcome, Output};
use crate::pictures::{Pictures, SPANS};
use crate::pipeline::{self, Keys};
use crate::signals::Signals;
use crate::terminal::{show_number, show_seconds};

const EXAMPLES: &str = "\
Examples:
  feedline bench photos                                from no workers to our defaults
  feedline bench photos --train-step 100ms             would a step of 100 ms wait?
  feedline bench photos --train-step 'normal(100ms, 10ms)'
  feedline bench photos --batch-sizes 32,64 --train-step 1ms/sample
  feedline bench pipeline.toml --workers 1,2,4,8 --prefetch 1,2,4
  feedline bench photos --formats folder,tar,crop-index --keep packed
  feedline bench photos --config workers=2,prefetch=2 --config workers=4,cache=decoded
  feedline bench train.py:make_dataset                 a Python data set: torch's loader and ours
  feedline bench train:make_loader                     torch's DataLoader as it is, and ours
  feedline bench train:make_dataset --train-step train:step --measure-step
  feedline bench photos --workers 1,2,4 --report bench.html --trace bench.json --svg plots
  feedline bench photos --csv bench.csv --markdown -
  feedline bench --device cuda                         do copies to a GPU work, and how fast?
  feedline bench --device cuda:1 --batch 4MB --rounds 100

Each run is a process of its own, and the configurations take turns. Without --epochs and \
--batches a run lasts some seconds, with epochs of about half of that; a first run that does not \
count finds out how many batches that is.

module:name and file.py:name are a data set, a loader, or a function without arguments that \
returns one; the current folder is looked into. A training step in Python is called with each batch.

Exit code 1 if no configuration works; with --device alone, if a byte differs.";

/// Flags of copies stand together in the help.
const COPIES: &str = "Copies to a GPU";

/// Compare settings of a loader against a training step, and name the best.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bench {
    /// A spec (.toml, .json), data, or Python code as module:name or file.py:name.
    #[arg(value_name = "SPEC|PATH|MODULE:NAME", required_unless_present = "device")]
    target: Option<OsString>,

    /// The step after each batch: 100ms, uniform(80ms, 120ms), normal(100ms, 10ms), 1ms/sample (it
    /// grows with the batch), or Python code as module:name [default: none, as fast as it can].
    #[arg(long, value_name = "STEP")]
    train_step: Option<String>,

    /// Time the Python step first, then stand for it by a wait of that length.
    #[arg(long, requires = "train_step")]
    measure_step: bool,

    /// Numbers of workers to try.
    #[arg(long, value_name = "N,..", value_delimiter = ',', help_heading = "Grid")]
    workers: Vec<String>,

    /// Batches in the making per worker to try.
    #[arg(long, value_name = "N,..", value_delimiter = ',', help_heading = "Grid")]
    prefetch: Vec<String>,

    /// Batch sizes to try.
    #[arg(long, value_name = "N,..", value_delimiter = ',', help_heading = "Grid")]
    batch_sizes: Vec<String>,

    /// Executors of Python data sets to try: threads, processes, inline, auto.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', help_heading = "Grid")]
    executors: Vec<String>,

    /// Caches to try: none, encoded, decoded.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', help_heading = "Grid")]
    caches: Vec<String>,

    /// Formats to try: folder (the data as it is), crop-index, raw, tar, parquet, ... The data is
    /// packed first.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = read_format)]
    #[arg(help_heading = "Grid")]
    formats: Vec<String>,

    /// Loaders of Python data sets to try: torch, feedline.torch, feedline.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', help_heading = "Grid")]
    loaders: Vec<String>,

    /// Batches that are copied to a GPU (--device, else cuda), from plain and from page-locked memory.
    #[arg(long, help_heading = "Grid")]
    pinned: bool,

    /// One configuration, such as workers=4,prefetch=2; may be repeated, and is no part of a grid.
    #[arg(long, value_name = "KEY=VALUE,..", value_parser = read_settings, help_heading = "Grid")]
    config: Vec<Settings>,

    /// Also the preset list: from the unoptimised baseline to our defaults [default: if there is
    /// neither a grid nor --config].
    #[arg(long, help_heading = "Grid")]
    preset: bool,

    /// Keep packed data in this folder, and use what is there [default: a temporary one].
    #[arg(long, value_name = "DIR", help_heading = "Grid")]
    keep: Option<PathBuf>,

    /// Epochs of a run.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,

    /// Batches of an epoch.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,

    /// No batch is asked for after so many seconds of a run.
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    seconds: Option<Duration>,

    /// Runs of each configuration, each a process of its own.
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1000))]
    repeats: u64,

    /// A configuration that makes no batch for so long is ended.
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = some_time)]
    timeout: Duration,

    /// Samples of a batch [default: the spec's or the loader's, else 64].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: Option<u64>,

    /// A new order in each epoch.
    #[arg(long)]
    shuffle: bool,

    /// An op of the chain, such as 'CenterCrop(size=224)'; may be repeated, replaces the spec's.
    #[arg(long, value_name = "OP", value_parser = pipeline::read_transform)]
    transform: Vec<Value>,

    /// Set any key of the spec, in TOML's syntax; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Write the result as CSV; - is standard output.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    csv: Option<PathBuf>,

    /// Write the result as a Markdown table; - is standard output.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    markdown: Option<PathBuf>,

    #[command(flatten)]
    pictures: Pictures,

    /// Let the runs print to standard error.
    #[arg(long, help_heading = "Results")]
    show_output: bool,

    /// The GPU that batches are copied to: cuda, cuda:1, ... Without a target, copies alone are
    /// checked and measured.
    #[arg(long, help_heading = COPIES)]
    device: Option<String>,

    /// Bytes of a batch of the copies alone.
    #[arg(long, default_value = "38MB", value_parser = batch_bytes, conflicts_with = "target")]
    #[arg(help_heading = COPIES)]
    batch: u64,

    /// Copies of each kind; the median counts.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    #[arg(conflicts_with = "target", help_heading = COPIES)]
    rounds: u64,
}

/// The step, and the Python code that is it.
type Step = (TrainStep, Option<String>);

impl Bench {
    pub(crate) fn run(mut self, output: &mut Output, host: &dyn Host) -> Result<Outcome, Failure> {
        let Some(target) = self.target.clone() else {
            let device = self.device.unwrap_or_default();
            return Copies { device, batch: self.batch, rounds: self.rounds }.run(output);
        };
        let python = target.to_str().is_some_and(is_python);
        self.check(python, output)?;
        if self.pinned && !python && self.device.is_none() && cuda::problem(0).is_none() {
            // Both sides copy their batches: memory alone is compared.
            self.device = Some("cuda".to_owned());
        }
        let signals = Signals::watch();
        let (timeout, show_output) = (self.timeout, self.show_output);
        let surroundings = Surroundings { host, signals: &signals, timeout, show_output };
        let asked = self.step(python)?;
        let mut job = self.job(python, asked.1.clone());
        let base = self.asked();
        let known = match Known::of(&target, &job, &base, &surroundings) {
            Ok(known) => known,
            Err(Stop::Interrupted(code)) => return interrupted(&target, code, output),
            Err(Stop::Failure(failure)) => return Err(failure),
        };
        if known.spec.as_ref().is_some_and(|spec| spec.transforms.is_empty()) {
            // The data has no pictures: nobody has to look again.
            job.defaults.remove("transforms");
        }
        let candidates = self.candidates(&known)?;
        let shelf = Shelf::for_these(&candidates, self.keep.as_deref())?;
        let count = show_number(candidates.len() as u64, "configuration");
        output.note(&format!("{}: {count}", known.heading));
        let mut step = asked.0;
        if self.measure_step {
            step = match self.time_step(&target, &job, &known, &surroundings, output) {
                Ok(step) => step,
                Err(Stop::Interrupted(code)) => return interrupted(&target, code, output),
                Err(Stop::Failure(failure)) => return Err(failure),
            };
            job.step = None;
        }
        let spec = known.spec.as_ref();
        let contestants = contestants(candidates, shelf.as_ref(), spec, &signals, output);
        if let Some(code) = signals.received() {
            return interrupted(&target, code, output);
        }
        let contest = Contest {
            surroundings: &surroundings,
            target: &target,
            job,
            base: known.base.clone(),
            repeats: self.repeats,
            spans: self.pictures.want_timeline().then_some(SPANS),
        };
        let Some((workload, configurations, ended)) =
            self.measure(&contest, &contestants, step, output)
        else {
            return interrupted(&target, signals.received().unwrap_or(130), output);
        };
        if ended.is_some() {
            output.note("interrupted: the figures are of the runs that were over by then");
        }
        let machine = Machine { device: self.device.clone(), ..Machine::here() };
        let name = target.to_string_lossy().into_owned();
        let benchmark = conclude(name, machine, workload, configurations);
        let base = if python { &known.base } else { &base };
        let (job, spec, keep) = (&contest.job, known.spec.as_ref(), self.keep.as_deref());
        let (target, subject) = (&benchmark.target, known.subject);
        let recipe = Recipe { target, subject, job, base, spec, keep };
        let best = benchmark.ranking.first().map(|best| &benchmark.configurations[*best]);
        let lines = best.map_or_else(Vec::new, |best| recipe.lines(&best.settings));
        self.report(&benchmark, &lines, ended.is_some(), output)?;
        Ok(match ended {
            Some(code) => Outcome::Interrupted(code),
            None if benchmark.ranking.is_empty() => Outcome::BadSamples,
            None => Outcome::Success,
        })
    }

    /// Mistakes that need no look at the target.
    fn check(&self, python: bool, output: &Output) -> Result<(), Failure> {
        let wrong = |text: &str| Err(Failure::Usage(text.to_owned()));
        let to_output =
            [&self.csv, &self.markdown].into_iter().flatten().filter(|path| is_dash(path)).count();
        if to_output + usize::from(output.is_json()) > 1 {
            return wrong("standard output takes one of --json, --csv - and --markdown -");
        }
        if python {
            if !self.transform.is_empty() || !self.set.is_empty() {
                return wrong(
                    "--transform and --set are for specs and paths; Python code has its own",
                );
            }
            if !self.formats.is_empty() || !self.caches.is_empty() {
                return wrong(
                    "--formats and --caches are for specs and paths, not for Python code",
                );
            }
            if self.device.is_some() {
                return wrong(
                    "--device is for specs and paths: name a function that returns feedline.Loader(..., device=\"cuda\")",
                );
            }
        } else if !self.executors.is_empty() || !self.loaders.is_empty() {
            return wrong("--executors and --loaders are for Python data sets: give module:name");
        }
        let tables = [("--csv", &self.csv), ("--markdown", &self.markdown)];
        let tables = tables.into_iter().filter_map(|(flag, path)| Some((flag, path.as_deref()?)));
        self.pictures.check(&tables.filter(|(_, path)| !is_dash(path)).collect::<Vec<_>>())
    }

    /// Settings that flags ask for.
    fn asked(&self) -> Settings {
        let mut asked = Settings::new();
        asked.extend(self.batch_size.map(|size| ("batch_size".to_owned(), size.into())));
        asked.extend(self.device.clone().map(|device| ("device".to_owned(), device.into())));
        asked
    }

    fn step(&self, python: bool) -> Result<Step, Failure> {
        let Some(text) = &self.train_step else { return Ok((TrainStep::None, None)) };
        if !is_python(text) {
            if self.measure_step {
                let text =
                    format!("--measure-step: {text:?} is no Python code that could be timed");
                return Err(Failure::Usage(text));
            }
            let step = TrainStep::parse(text)
                .map_err(|error| Failure::Usage(format!("--train-step: {error}")))?;
            return Ok((step, None));
        }
        if !python {
            return Err(Failure::Usage(format!(
                "--train-step {text}: a step in Python gets its batches from Python: name a function that returns feedline.Loader(...) as the target"
            )));
        }
        Ok((TrainStep::Own, Some(text.clone())))
    }

    fn job(&self, python: bool, step: Option<String>) -> Job {
        let mut flags = Keys::new();
        if self.shuffle {
            flags.insert("shuffle".to_owned(), true.into());
        }
        if !self.transform.is_empty() {
            flags.insert("transforms".to_owned(), Value::Array(self.transform.clone()));
        }
        Job {
            task: Task::Look,
            python,
            defaults: pipeline::bare_defaults(),
            flags,
            sets: self.set.clone(),
            settings: Settings::new(),
            step,
            samples: None,
            spans: None,
        }
    }

    fn candidates(&self, known: &Known) -> Result<Vec<Candidate>, Failure> {
        let flags = [
            ("loader", "--loaders", &self.loaders),
            ("executor", "--executors", &self.executors),
            ("cache", "--caches", &self.caches),
            ("batch_size", "--batch-sizes", &self.batch_sizes),
            ("num_workers", "--workers", &self.workers),
            ("prefetch_factor", "--prefetch", &self.prefetch),
        ];
        let mut axes: Vec<(&str, Vec<Value>)> = Vec::new();
        if !self.formats.is_empty() {
            axes.push(("format", self.formats.iter().cloned().map(Value::from).collect()));
        }
        for (argument, flag, texts) in flags {
            let read = |text: &String| {
                read_value(argument, text.trim())
                    .map_err(|error| Failure::Usage(format!("{flag}: {error}")))
            };
            let values = texts.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            if !values.is_empty() {
                axes.push((argument, values));
            }
        }
        if self.pinned {
            axes.push(("pin_memory", vec![false.into(), true.into()]));
        }
        let mut all = Vec::new();
        if self.preset || (axes.is_empty() && self.config.is_empty()) {
            all.extend(preset(known.subject, feedline::internals::tune::cores() as u64));
        }
        if !axes.is_empty() {
            let grid = grid(&axes).map_err(Failure::Usage)?;
            all.extend(grid.into_iter().map(Candidate::of));
        }
        all.extend(self.config.iter().cloned().map(Candidate::of));
        Ok(all)
    }

    fn time_step(
        &self,
        target: &OsStr,
        job: &Job,
        known: &Known,
        surroundings: &Surroundings<'_>,
        output: &Output,
    ) -> Result<TrainStep, Stop> {
        let mut settings = known.base.clone();
        if matches!(known.subject, Subject::Dataset { .. }) {
            settings.insert("num_workers".to_owned(), 0.into());
        }
        let job = Job { task: Task::TimeStep, settings, ..job.clone() };
        match surroundings.ask(target, &job, &mut |_| {})? {
            Answer::Step(spread) => {
                output.note(&format!(
                    "the training step takes {} (p99 {}); runs wait that long instead",
                    show_seconds(spread.mean),
                    show_seconds(spread.p99)
                ));
                Ok(TrainStep::Fixed(spread.mean))
            }
            _ => Err(Stop::from(Trouble::Failed("no answer".to_owned()))),
        }
    }

    /// The trial and all runs; nothing if a signal came before there was anything to report.
    fn measure(
        &self,
        contest: &Contest<'_>,
        contestants: &[Contestant],
        step: TrainStep,
        output: &Output,
    ) -> Option<(Workload, Vec<Configuration>, Option<i32>)> {
        let seconds = self.seconds.map(|time| time.as_secs_f64());
        let length = Length { epochs: self.epochs, batches: self.batches, seconds };
        let runs = self.repeats * contestants.len() as u64;
        let trial = match length.limit(step, runs).filter(|_| length.is_open()) {
            Some(seconds) => {
                output.remark("a first run finds out how many batches there are to a second");
                contest.trial(contestants, step, seconds).ok()?
            }
            None => None,
        };
        let workload = length.workload(step, runs, trial.as_ref());
        let (configurations, interrupted) = contest.hold(contestants, &workload, output);
        let nothing = configurations.iter().all(|one| one.runs.is_empty());
        if interrupted.is_some() && nothing {
            return None;
        }
        Some((workload, configurations, interrupted))
    }

    /// The result first: no file that cannot be written takes it away.
    fn report(
        &self,
        benchmark: &Benchmark,
        recipe: &[String],
        interrupted: bool,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let tables =
            [(&self.csv, show::csv as fn(&Benchmark) -> String), (&self.markdown, show::markdown)];
        let printed = tables.iter().find(|(path, _)| path.as_deref().is_some_and(is_dash));
        if output.is_json() {
            let mut value = json!(benchmark);
            value["command"] = "bench".into();
            value["interrupted"] = interrupted.into();
            value["missing"] = json!(show::missing(benchmark));
            let best = benchmark.ranking.first().map(|best| &benchmark.configurations[*best]);
            value["best"] = json!(best.map(|best| best.name.clone()));
            value["use"] = json!(recipe);
            output.json(&value)?;
        } else if let Some((_, make)) = printed {
            output.line(make(benchmark).trim_end())?;
        } else {
            show::text(benchmark, recipe, output)?;
        }
        output.flush()?;
        let title = format!("feedline bench {}", benchmark.target);
        let drawn = self.pictures.write(&Report::of_benchmark(&title, benchmark), output);
        let write = |(path, make): &(&Option<PathBuf>, fn(&Benchmark) -> String)| match path {
            Some(path) if !is_dash(path) => pipeline::write_whole(path, make(benchmark).as_bytes()),
            _ => Ok(()),
        };
        let written = tables.each_ref().map(write);
        written.into_iter().chain([drawn]).collect()
    }
}

/// Nothing can be said before the first run is over.
fn interrupted(target: &OsStr, code: i32, output: &mut Output) -> Result<Outcome, Failure> {
    output.note("interrupted: nothing was measured");
    if output.is_json() {
        let target = target.to_string_lossy();
        output.json(&json!({"command": "bench", "target": target, "interrupted": true}))?;
    }
    Ok(Outcome::Interrupted(code))
}

/// Reads a time that is longer than none.
fn some_time(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        time if time.is_zero() => Err("expected more than 0".to_owned()),
        time => Ok(time),
    }
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}
