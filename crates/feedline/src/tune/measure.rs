//! Runs a feed against a training step and keeps what happened.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::evidence::Evidence;
use super::result::Machine;
use super::step::TrainStep;
use crate::error::{Error, Result};
use crate::observe::{PeakMemory, Span, Usage, machine_busy};

/// Something that gives batches: a loader of the engine, a Python data set, torch's DataLoader.
pub trait Feed {
    /// Begins the next epoch.
    fn begin(&mut self) -> Result<()>;

    /// The next batch of the epoch: how many samples it has, or `None` at the epoch's end. The feed
    /// holds the batch until it is asked again, as a training step does.
    fn next(&mut self) -> Result<Option<u64>>;

    /// Runs the program's own step over the batch in hand ([`TrainStep::Own`]).
    fn train(&mut self) -> Result<()> {
        Ok(())
    }

    /// What is known of the stages since the feed was made; waits and steps are filled in by
    /// [`measure`], which asks after the run: what is found out by trying must not warm it up.
    fn evidence(&mut self) -> Evidence {
        Evidence::default()
    }

    /// What happened when, lane by lane, the trainer's first; empty if it was not kept.
    fn timeline(&mut self) -> Vec<Vec<Span>> {
        Vec::new()
    }
}

/// What is run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// The step after each batch.
    pub step: TrainStep,
    /// Epochs.
    pub epochs: u64,
    /// Batches of each epoch that are used; all if `None`.
    pub batches: Option<u64>,
    /// No epoch begins and no batch is asked for after this time.
    pub seconds: Option<f64>,
}

/// How values are spread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Their mean.
    pub mean: f64,
    /// Half are smaller.
    pub p50: f64,
    /// One in a hundred is larger.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of these values; zeros if there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = ((sorted.len() as f64 * share).ceil() as usize).saturating_sub(1);
            sorted.get(place).copied().unwrap_or(0.0)
        };
        let mean = sorted.iter().sum::<f64>() / sorted.len().max(1) as f64;
        Spread { mean, p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

/// A part of a data set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredPart {
    /// Samples of it.
    pub samples: u64,
    /// Samples of the whole.
    pub of: u64,
}

/// What one run of a workload was like. Times are seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Samples handed over.
    pub samples: u64,
    /// Batches.
    pub batches: u64,
    /// From the first request to the end of the last step.
    pub seconds: f64,
    /// Samples a second after the first batch, which starts the workers.
    pub samples_per_second: f64,
    /// The wait for the first batch.
    pub first_batch_seconds: f64,
    /// The waits for the first batches of later epochs, the end of the epoch before included.
    pub turnovers: Vec<f64>,
    /// The wait before each batch but the first, in order.
    pub waits: Vec<f64>,
    /// The steps.
    pub steps: Vec<f64>,
    /// Processor time of the process and its children.
    pub cpu_seconds: f64,
    /// The most memory that the process and its children had.
    pub peak_memory: u64,
    /// Seconds since the start, and bytes.
    pub memory: Vec<(f64, u64)>,
    /// What is known of the stages.
    pub evidence: Evidence,
    /// The part of the data set that its epochs are made of; `None` if that is all of it.
    pub part: Option<MeasuredPart>,
    /// What happened when, lane by lane, the trainer's first; empty unless it was kept.
    pub timeline: Vec<Vec<Span>>,
}

impl Run {
    /// Whether it shows how fast batches come: the first one starts everything.
    #[must_use]
    pub fn is_conclusive(&self) -> bool {
        self.batches > 1
    }

    /// The share of the time after the first batch that the trainer was busy.
    #[must_use]
    pub fn busy_share(&self) -> f64 {
        // The first batch starts everything: neither its wait nor its step counts.
        let (waits, steps) =
            (self.waits.iter().sum::<f64>(), self.steps.iter().skip(1).sum::<f64>());
        if waits + steps > 0.0 { steps / (waits + steps) } else { 0.0 }
    }

    /// Cores that other programs used meanwhile: the machine's were busier than this run made them.
    /// `None` if that is not known, or the run was too short to tell.
    #[must_use]
    pub fn others(&self) -> Option<f64> {
        self.evidence.cores_of_others().filter(|_| self.seconds > TELLS_OTHERS)
    }
}

/// Seconds of a run that shows what other programs do: the system counts in hundredths.
const TELLS_OTHERS: f64 = 0.2;

/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Looks at the memory of this process and its children from time to time.
struct MemoryWatch {
    stop: Sender<()>,
    thread: Option<JoinHandle<Vec<(f64, u64)>>>,
}

impl MemoryWatch {
    fn begin() -> MemoryWatch {
        let (stop, stopped) = channel::<()>();
        let began = Instant::now();
        let thread =
            std::thread::Builder::new().name("feedline-memory".to_owned()).spawn(move || {
                let mut seen = Vec::new();
                loop {
                    seen.push((began.elapsed().as_secs_f64(), Usage::now().memory));
                    match stopped.recv_timeout(LOOK) {
                        Err(RecvTimeoutError::Timeout) => {}
                        _ => return seen,
                    }
                }
            });
        // Without the thread the memory is not known, and everything else is.
        MemoryWatch { stop, thread: thread.ok() }
    }

    fn end(mut self) -> Vec<(f64, u64)> {
        // It may have ended by itself.
        let _ = self.stop.send(());
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

/// Runs `workload` over `feed`. `going_on` hears of every batch (how many there were, and the
/// seconds since the start) and ends the run by answering false.
pub fn measure(
    feed: &mut dyn Feed,
    workload: &Workload,
    going_on: &mut dyn FnMut(u64, f64) -> bool,
) -> Result<Run> {
    let (memory, peak) = (MemoryWatch::begin(), PeakMemory::begin());
    let (usage, machine, began) = (Usage::now(), machine_busy(), Instant::now());
    let mut run = Run::default();
    let mut largest = 0;
    let made = run_batches(feed, workload, going_on, &mut run, &mut largest);
    let (passed, machine_after) = (began.elapsed().as_secs_f64(), machine_busy());
    run.cpu_seconds = (Usage::now().cpu_seconds - usage.cpu_seconds).max(0.0);
    (run.memory, run.peak_memory) = (memory.end(), peak.most().unwrap_or(0));
    let counted = run.turnovers.len() as u64;
    if made? {
        // The time was over before an epoch was: the next one is begun for this figure alone.
        let asked = Instant::now();
        feed.begin()?;
        if feed.next()?.is_some() {
            run.turnovers.push(asked.elapsed().as_secs_f64());
        }
    }
    // The process's own moments are known to the system, those of its children only to who looks.
    let seen = run.memory.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    run.peak_memory = run.peak_memory.max(seen);
    run.evidence = feed.evidence();
    let evidence = &mut run.evidence;
    (evidence.batches, evidence.samples) = (run.waits.len() as u64, 0);
    let mean = run.samples as f64 / run.batches.max(1) as f64;
    evidence.batch_size = largest as f64;
    evidence.samples = (mean * run.waits.len() as f64).round() as u64;
    if evidence.worker_time.cpu == 0.0 {
        // Not known of Python's workers: then what the process and its children took.
        evidence.worker_time.cpu = run.cpu_seconds;
    }
    evidence.without_step = workload.step == TrainStep::None;
    evidence.wait_seconds = run.waits.iter().sum();
    evidence.step_seconds = run.steps.iter().skip(1).sum();
    evidence.first_batch_seconds = Some(run.first_batch_seconds);
    let turnovers = Spread::of(&run.turnovers);
    evidence.turnover_seconds = (!run.turnovers.is_empty()).then_some(turnovers.mean);
    // One that was begun for its figure alone is no wait of the trainer's.
    evidence.turnovers = counted;
    let memory: Vec<f64> = run.memory.iter().map(|(_, bytes)| *bytes as f64).collect();
    (evidence.usual_memory, evidence.peak_memory) =
        (Spread::of(&memory).p50 as u64, run.peak_memory);
    if evidence.cores == 0.0 {
        evidence.cores = super::cores() as f64;
    }
    if let (Some(before), Some(after)) = (machine, machine_after) {
        let cores = Machine::here().machine_cores as f64;
        evidence.machine_cores = Some(cores);
        if passed > 0.0 {
            evidence.process_cores = Some(run.cpu_seconds / passed);
            // Ticks are counted in hundredths of a second.
            evidence.machine_cores_busy = Some(((after.0 - before.0) / passed).clamp(0.0, cores));
        }
    }
    run.timeline = feed.timeline();
    Ok(run)
}

/// Runs the batches; true if the time was over before an epoch was. `largest` becomes the samples of
/// the largest batch.
fn run_batches(
    feed: &mut dyn Feed,
    workload: &Workload,
    going_on: &mut dyn FnMut(u64, f64) -> bool,
    run: &mut Run,
    largest: &mut u64,
) -> Result<bool> {
    let began = Instant::now();
    let most = workload.batches.unwrap_or(u64::MAX);
    let late =
        |now: Instant| workload.seconds.is_some_and(|limit| (now - began).as_secs_f64() >= limit);
    let mut first: Option<(Instant, u64)> = None;
    let mut over: Option<Instant> = None;
    let mut cut = false;
    'epochs: for epoch in 0..workload.epochs {
        // Ending and beginning are part of the wait for an epoch's first batch: there torch ends
        // its workers and starts others.
        let began_epoch = over.take().unwrap_or_else(Instant::now);
        if epoch > 0 && late(Instant::now()) {
            cut = true;
            break;
        }
        feed.begin()?;
        let mut number = 0;
        while number < most {
            let asked = if number == 0 { began_epoch } else { Instant::now() };
            if number > 0 && late(asked) {
                cut = true;
                break 'epochs;
            }
            let Some(rows) = feed.next()? else {
                over = Some(asked);
                break;
            };
            let wait = asked.elapsed().as_secs_f64();
            match first {
                None => run.first_batch_seconds = wait,
                Some(_) => run.waits.push(wait),
            }
            if number == 0 && epoch > 0 {
                run.turnovers.push(wait);
            }
            let step = Instant::now();
            match workload.step {
                TrainStep::Own => feed.train()?,
                step => std::thread::sleep(step.length(run.batches, rows)),
            }
            run.steps.push(step.elapsed().as_secs_f64());
            number += 1;
            run.batches += 1;
            run.samples += rows;
            *largest = rows.max(*largest);
            first.get_or_insert((Instant::now(), rows));
            run.seconds = began.elapsed().as_secs_f64();
            if !going_on(run.batches, run.seconds) {
                break 'epochs;
            }
        }
        if number == 0 {
            // An epoch without a batch would be followed by others like it, for ever.
            if run.batches == 0 {
                return Err(Error::System(
                    "there was no batch: the data set is empty, or has fewer samples than a batch and drop_last leaves them out".to_owned(),
                ));
            }
            break;
        }
    }
    if let Some((since, rows)) = first {
        let seconds = (began + Duration::from_secs_f64(run.seconds)) - since;
        run.samples_per_second = (run.samples - rows) as f64 / seconds.as_secs_f64().max(1e-9);
    }
    Ok(cut && workload.epochs > 1 && run.turnovers.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counting(u64);

    impl Feed for Counting {
        fn begin(&mut self) -> Result<()> {
            self.0 = 0;
            Ok(())
        }

        fn next(&mut self) -> Result<Option<u64>> {
            std::thread::sleep(Duration::from_millis(2));
            self.0 += 1;
            Ok((self.0 <= 5).then_some(4))
        }
    }

    #[test]
    fn waits_and_steps_are_distinguished() {
        let step = TrainStep::Fixed(0.003);
        let mut workload = Workload { step, epochs: 2, batches: None, seconds: None };
        let run = measure(&mut Counting(0), &workload, &mut |_, _| true).unwrap();
        assert_eq!((run.batches, run.samples), (10, 40));
        assert_eq!((run.waits.len(), run.steps.len(), run.turnovers.len()), (9, 10, 1));
        assert_eq!((run.evidence.batch_size, run.evidence.turnovers), (4.0, 1));
        assert!(run.waits.iter().all(|wait| *wait >= 0.002));
        assert!(run.steps.iter().all(|step| *step >= 0.003));
        assert!(run.peak_memory > 0 && run.first_batch_seconds >= 0.002);
        assert!(!run.evidence.without_step);
        workload.batches = Some(2);
        assert_eq!(measure(&mut Counting(0), &workload, &mut |_, _| true).unwrap().batches, 4);
        let run = measure(&mut Counting(0), &workload, &mut |done, _| done < 3).unwrap();
        assert_eq!(run.batches, 3);
        workload.seconds = Some(0.0);
        let run = measure(&mut Counting(0), &workload, &mut |_, _| true).unwrap();
        assert_eq!((run.batches, run.waits.len(), run.turnovers.len()), (1, 0, 1));
        assert_eq!(run.evidence.turnovers, 0, "nobody waited for it");
        assert!(!run.is_conclusive());
        workload = Workload { step: TrainStep::None, seconds: None, ..workload };
        let run = measure(&mut Counting(0), &workload, &mut |_, _| true).unwrap();
        assert!(run.evidence.without_step && run.is_conclusive());
    }

    struct Empty;

    impl Feed for Empty {
        fn begin(&mut self) -> Result<()> {
            Ok(())
        }

        fn next(&mut self) -> Result<Option<u64>> {
            Ok(None)
        }
    }

    #[test]
    fn a_feed_without_a_batch_is_an_error_and_no_endless_loop() {
        let workload =
            Workload { step: TrainStep::None, epochs: u64::MAX, batches: None, seconds: None };
        let error = measure(&mut Empty, &workload, &mut |_, _| true).unwrap_err();
        assert!(error.to_string().contains("there was no batch"), "{error}");
    }

    #[test]
    fn spreads() {
        assert_eq!(Spread::of(&[]), Spread::default());
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(Spread::of(&values), Spread { mean: 100.5, p50: 100.0, p99: 198.0, max: 200.0 });
    }
}
