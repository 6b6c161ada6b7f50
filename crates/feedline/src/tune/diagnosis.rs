//! A diagnosis of any feed: what can be found out from outside.

use super::evidence::Ceilings;
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

/// As fast as it goes.
pub(crate) const FREE: Workload =
    Workload { step: TrainStep::None, epochs: u64::MAX, batches: None, seconds: None };

/// Runs with a time of their own, told of to whoever watches.
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

    /// Runs `feed` for a share of the time.
    pub(crate) fn run(
        &mut self,
        name: &str,
        feed: &mut dyn Feed,
        work: &Workload,
        share: f64,
    ) -> Result<Run> {
        let limit = self.seconds * share;
        let (done, all) = (self.done, self.seconds);
        let (mut stopped, going_on) = (false, &mut *self.going_on);
        let run = measure(feed, work, &mut |batches, seconds| {
            let spent = (seconds / limit.max(1e-9)).min(1.0) * limit;
            stopped = !going_on(name, ((done + spent) / all).min(1.0));
            let more = seconds < limit || batches < LEAST_BATCHES && seconds < PATIENCE * limit;
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
    let mut not_measured =
        vec!["Encoded samples in memory: the program's own code reads them.".to_owned()];
    if workload.step != TrainStep::None {
        let free = watched.run("everything real, without the step", feed, &FREE, 0.25)?;
        ceilings.real = Some(free.samples_per_second);
    }
    let run = match watched.stopped {
        false => watched.run("everything real", feed, &workload, 0.5)?,
        true => Run::default(),
    };
    if workload.step == TrainStep::None && run.batches > 1 {
        ceilings.real = Some(run.samples_per_second);
    }
    if workload.step == TrainStep::Own && !watched.stopped {
        feed.begin()?;
        if let Some(rows) = feed.next()? {
            let once = Workload { batches: None, ..workload };
            let run = watched.run("the step alone", &mut Holding { feed, rows }, &once, 0.1)?;
            ceilings.step = Some(run.samples_per_second);
        }
    }
    if watched.stopped {
        not_measured.push("It was ended early.".to_owned());
    }
    let mut evidence = run.evidence.clone();
    evidence.ceilings = ceilings;
    evidence.not_measured = not_measured;
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
    use crate::tune::{Evidence, StageCost};

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
    fn the_step_alone_is_no_run_without_it() {
        let workload = Workload { step: TrainStep::Own, ..FREE };
        let machine = Machine::default();
        let mut going_on = |_: &str, _: f64| true;
        let found =
            diagnose_feed("code", machine, &mut SlowStep, workload, 0.4, &mut going_on).unwrap();
        let Ceilings { real, step, replayed, .. } = found.ceilings;
        assert_eq!(replayed, None);
        let (real, step) = (real.unwrap(), step.unwrap());
        assert!(step < 400.0 && step < real, "the step takes 10 ms of 4 samples: {step} {real}");
        // A stage can be faster than the step.
        assert!(found.stages[0].ceiling.unwrap() >= 0.99 * real, "{:?}", found.stages);
    }
}
