//! A diagnosis of any feed: what can be found out from outside.

use super::evidence::{Ceilings, Evidence};
use super::measure::{Feed, Run, Workload, measure};
use super::result::{Diagnosis, Machine};
use super::stages::stage_rows;
use super::step::TrainStep;
use super::verdict::judge;
use crate::error::Result;

/// Hears what is done and which share of it; ends the work by answering false.
pub type GoingOn<'a> = dyn FnMut(&str, f64) -> bool + 'a;

/// Batches of a run, however long they take, up to [`PATIENCE`] times the time that it has.
pub(crate) const LEAST_BATCHES: u64 = 4;
const PATIENCE: f64 = 6.0;

/// The run that is judged has so many, however long that takes: of one batch, which starts
/// everything, nothing is known.
const JUDGED_BATCHES: u64 = 2;

/// Of fewer than this, one batch that takes twice as long as others changes the answer.
const ENOUGH_BATCHES: u64 = 10;

/// The longest time that a diagnosis is advised to take.
const MOST_SECONDS: f64 = 3600.0;

/// A batch that is waited for less than this was ready.
const READY: f64 = 0.0002;

/// What to know of a run that had `share` of the time, if it was too short to tell.
pub(crate) fn too_short(run: &Run, share: f64) -> Option<String> {
    if run.batches == 0 || run.batches >= ENOUGH_BATCHES {
        return None;
    }
    let needed = run.seconds / run.batches as f64 * ENOUGH_BATCHES as f64 / share;
    // In round numbers, upwards: it is an estimate.
    let unit = if needed > 20.0 { 10.0 } else { 1.0 };
    let seconds = ((needed / unit).ceil() * unit).min(MOST_SECONDS);
    let s = if run.batches == 1 { "" } else { "es" };
    Some(format!("Too short to tell: {} batch{s}; --seconds {seconds} would do.", run.batches))
}

/// Takes the batches out of `evidence` that were ready before the first step, at most as many as
/// are made ahead: who waited for the first one waited for them. Enough must be left to judge.
pub(crate) fn leave_out_ready(run: &Run, ahead: u64, evidence: &mut Evidence) {
    let most = ahead.min((run.waits.len() as u64).saturating_sub(LEAST_BATCHES)) as usize;
    let ready = run.waits.iter().take(most).take_while(|wait| **wait < READY).count();
    if ready == 0 || run.steps.len() != run.waits.len() + 1 {
        return;
    }
    let left = run.waits.len() - ready;
    evidence.wait_seconds = run.waits[ready..].iter().sum();
    evidence.step_seconds = run.steps[ready + 1..].iter().sum();
    evidence.batches = left as u64;
    evidence.samples = (run.samples as f64 / run.batches as f64 * left as f64).round() as u64;
    // Workers' time is of all batches, the first included.
    let share = left as f64 / run.batches as f64;
    let time = &mut evidence.worker_time;
    for part in [&mut time.busy, &mut time.cpu, &mut time.idle, &mut time.memory] {
        *part *= share;
    }
}

/// As fast as it goes.
pub(crate) const FREE: Workload =
    Workload { step: TrainStep::None, epochs: u64::MAX, batches: None, seconds: None };

/// Runs with a time of their own, reported to whoever watches.
pub(crate) struct Watched<'a, 'b> {
    going_on: &'a mut GoingOn<'b>,
    /// All of the time, and what is behind by now.
    pub(crate) seconds: f64,
    done: f64,
    pub(crate) stopped: bool,
}

impl<'a, 'b> Watched<'a, 'b> {
    /// All runs together take about `seconds`.
    pub(crate) fn new(going_on: &'a mut GoingOn<'b>, seconds: f64) -> Self {
        Watched { going_on, seconds, done: 0.0, stopped: false }
    }

    /// Runs `feed` for a share of the time, for the run that is judged.
    pub(crate) fn judged(
        &mut self,
        name: &str,
        feed: &mut dyn Feed,
        work: &Workload,
        share: f64,
    ) -> Result<Run> {
        self.run_least(name, feed, work, (share, JUDGED_BATCHES))
    }

    /// Runs `feed` for a share of the time.
    pub(crate) fn run(
        &mut self,
        name: &str,
        feed: &mut dyn Feed,
        work: &Workload,
        share: f64,
    ) -> Result<Run> {
        self.run_least(name, feed, work, (share, 0))
    }

    /// How many samples a second `feed` gives without a step; `None`, with a note, if there was no
    /// time to tell.
    pub(crate) fn rate(
        &mut self,
        name: &str,
        feed: &mut dyn Feed,
        share: f64,
        not_measured: &mut Vec<String>,
    ) -> Result<Option<f64>> {
        let run = self.run(name, feed, &FREE, share)?;
        Ok(self.rate_of(name, &run, not_measured))
    }

    /// The same of a run that was.
    pub(crate) fn rate_of(
        &self,
        name: &str,
        run: &Run,
        not_measured: &mut Vec<String>,
    ) -> Option<f64> {
        if !run.is_conclusive() && !self.stopped {
            let mut letters = name.chars();
            let first = letters.next().map(|first| first.to_uppercase().to_string());
            let name = first.unwrap_or_default() + letters.as_str();
            not_measured.push(format!("{name}: there was time for one batch only."));
        }
        run.is_conclusive().then_some(run.samples_per_second)
    }

    fn run_least(
        &mut self,
        name: &str,
        feed: &mut dyn Feed,
        work: &Workload,
        (share, least): (f64, u64),
    ) -> Result<Run> {
        let limit = self.seconds * share;
        let (done, all) = (self.done, self.seconds);
        let going_on = &mut *self.going_on;
        // Said before it begins: its first batch may take a while.
        let mut stopped = !going_on(name, (done / all).min(1.0));
        let run = measure(feed, work, &mut |batches, seconds| {
            let spent = (seconds / limit.max(1e-9)).min(1.0) * limit;
            stopped |= !going_on(name, ((done + spent) / all).min(1.0));
            let patient = batches < LEAST_BATCHES && seconds < PATIENCE * limit;
            let more = seconds < limit || batches < least || patient;
            more && !stopped
        });
        self.done += limit;
        self.stopped |= stopped;
        run
    }

    /// Something else begins that takes a share of the time; false if it is not wanted any more.
    pub(crate) fn begin(&mut self, name: &str, share: f64) -> bool {
        self.stopped |= !(self.going_on)(name, (self.done / self.seconds).min(1.0));
        self.done += self.seconds * share;
        !self.stopped
    }
}

/// A feed whose batch in hand is the next one, too: nobody waits for it.
struct Holding<'a> {
    feed: &'a mut dyn Feed,
    rows: u64,
}

impl Feed for Holding<'_> {
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    fn next(&mut self) -> Result<Option<u64>> {
        Ok(Some(self.rows))
    }

    fn train(&mut self) -> Result<()> {
        self.feed.train()
    }
}

/// Why the trainer waits for `feed`, of which only the batches are seen: against the step, without
/// it, and the step alone over a batch in hand. It takes about `seconds`.
pub fn diagnose_feed(
    target: &str,
    machine: Machine,
    feed: &mut dyn Feed,
    workload: Workload,
    seconds: f64,
    going_on: &mut GoingOn<'_>,
) -> Result<Diagnosis> {
    let mut watched = Watched::new(going_on, seconds);
    // The stages are looked into at the end of a run, so the free one comes first.
    let mut ceilings = Ceilings::default();
    let mut not_measured = vec![
        "Encoded samples in memory: the program's own code reads them.".to_owned(),
        "Final batches again, and stages if they were free: only batches are seen of the program's own code, not what it makes them of.".to_owned(),
    ];
    if workload.step != TrainStep::None {
        let name = "everything real, without the step";
        ceilings.real = watched.rate(name, feed, 0.25, &mut not_measured)?;
    }
    const JUDGED: f64 = 0.5;
    let run = match watched.stopped {
        false => watched.judged("everything real", feed, &workload, JUDGED)?,
        true => Run::default(),
    };
    if workload.step == TrainStep::None {
        ceilings.real = run.is_conclusive().then_some(run.samples_per_second);
    }
    if workload.step == TrainStep::Own && !watched.stopped {
        feed.begin()?;
        if let Some(rows) = feed.next()? {
            let once = Workload { batches: None, ..workload };
            let run = watched.run("the step alone", &mut Holding { feed, rows }, &once, 0.1)?;
            ceilings.step = watched.rate_of("the step alone", &run, &mut not_measured);
        }
    }
    if watched.stopped {
        not_measured.push("It was ended early.".to_owned());
    }
    let mut evidence = run.evidence.clone();
    evidence.ceilings = ceilings;
    evidence.not_measured = not_measured;
    if !watched.stopped {
        evidence.remarks.extend(too_short(&run, JUDGED));
    }
    Ok(Diagnosis {
        target: target.to_owned(),
        machine,
        workload,
        verdict: judge(&evidence),
        stages: stage_rows(&evidence),
        ceilings,
        evidence,
        run,
    })
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;
    use crate::tune::StageCost;

    /// Batches that take 1 ms to make and 10 ms to use.
    struct SlowStep;

    impl Feed for SlowStep {
        fn begin(&mut self) -> Result<()> {
            Ok(())
        }

        fn next(&mut self) -> Result<Option<u64>> {
            sleep(Duration::from_millis(1));
            Ok(Some(4))
        }

        fn train(&mut self) -> Result<()> {
            sleep(Duration::from_millis(10));
            Ok(())
        }

        fn evidence(&mut self) -> Evidence {
            let name = "code".to_owned();
            let stages = vec![StageCost { name, seconds: 2e-6, cpu_seconds: 2e-6 }];
            Evidence { stages, ..Evidence::default() }
        }
    }

    #[test]
    fn short_runs_say_how_long_would_do() {
        let run = |batches, seconds| Run { batches, seconds, ..Run::default() };
        assert_eq!(too_short(&run(10, 1.0), 0.35), None);
        assert_eq!(too_short(&run(0, 1.0), 0.35), None, "nothing was measured");
        let said = too_short(&run(4, 0.7), 0.35);
        assert_eq!(said.as_deref(), Some("Too short to tell: 4 batches; --seconds 5 would do."));
        let said = too_short(&run(1, 2.5), 0.35);
        assert_eq!(said.as_deref(), Some("Too short to tell: 1 batch; --seconds 80 would do."));
    }

    #[test]
    fn batches_that_were_ready_are_left_out() {
        let waits = vec![0.0, 0.0001, 0.5, 0.0, 0.5, 0.5, 0.5];
        let run = Run { batches: 8, samples: 32, steps: vec![0.1; 8], waits, ..Run::default() };
        let mut evidence = Evidence { batches: 7, samples: 28, ..Evidence::default() };
        evidence.worker_time.cpu = 8.0;
        let all = evidence.clone();
        leave_out_ready(&run, 0, &mut evidence);
        assert_eq!(evidence, all, "nothing was made ahead");
        leave_out_ready(&run, 8, &mut evidence);
        assert_eq!((evidence.batches, evidence.samples), (5, 20));
        assert!((evidence.wait_seconds - 2.0).abs() < 1e-9, "{evidence:?}");
        assert!((evidence.step_seconds - 0.5).abs() < 1e-9, "{evidence:?}");
        assert_eq!(evidence.worker_time.cpu, 5.0);
        // Too few would be left to judge.
        let short = Run { waits: vec![0.0; 4], steps: vec![0.1; 5], ..run };
        let mut evidence = all.clone();
        leave_out_ready(&short, 8, &mut evidence);
        assert_eq!(evidence, all);
    }

    #[test]
    fn the_step_alone_is_no_run_without_it() {
        let workload = Workload { step: TrainStep::Own, ..FREE };
        let machine = Machine::default();
        let mut going_on = |_: &str, _: f64| true;
        let found =
            diagnose_feed("code", machine, &mut SlowStep, workload, 0.4, &mut going_on).unwrap();
        let Ceilings { real, step, replayed, .. } = found.ceilings;
        assert_eq!(replayed, None);
        let notes = &found.evidence.not_measured;
        assert!(notes.iter().any(|note| note.starts_with("Final batches again")), "{notes:?}");
        let (real, step) = (real.unwrap(), step.unwrap());
        assert!(step < 400.0 && step < real, "the step takes 10 ms of 4 samples: {step} {real}");
        // A stage can be faster than the step.
        assert!(found.stages[0].ceiling.unwrap() >= 0.99 * real, "{:?}", found.stages);
    }
}
