//! Configurations take turns: one run of each, then another of each, so that whatever the machine
//! does meanwhile meets them all alike.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use feedline::internals::tune::{
    Advice, Evidence, Machine, Run, TrainStep, Workload, judge_beside,
};
use feedline_view::benchmark::{Benchmark, Configuration};

use super::caveats::warnings;
use super::children::{Surroundings, Trouble};
use super::configurations::{Candidate, Settings};
use super::job::{Answer, Job, Task};
use super::joined::joined;
use super::ranking::{ranking, summary};
use crate::output::Output;
use crate::pipeline;
use crate::terminal::show_count;

/// What all runs have in common.
pub(crate) struct Contest<'a> {
    pub(crate) surroundings: &'a Surroundings<'a>,
    pub(crate) target: &'a OsStr,
    /// A job whose task, settings and spans are filled in for each run.
    pub(crate) job: Job,
    /// Settings that every configuration starts from.
    pub(crate) base: Settings,
    pub(crate) repeats: u64,
    /// Spans to keep of the last run of each, for a timeline.
    pub(crate) spans: Option<usize>,
}

/// Who takes part, and where its data is.
pub(crate) struct Contestant {
    pub(crate) candidate: Candidate,
    /// The data that it reads instead of the target's, if that was packed.
    pub(crate) source: Option<PathBuf>,
    /// Why it cannot be run at all.
    pub(crate) refused: Option<String>,
}

/// How long a run is, as the flags say; what they leave open is found by a trial.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Length {
    pub(crate) epochs: Option<u64>,
    pub(crate) batches: Option<u64>,
    pub(crate) seconds: Option<f64>,
}

/// A minute's worth of runs, all together.
const BUDGET: f64 = 45.0;
/// Steps that a run should have at least, however long they take.
const STEPS: f64 = 30.0;
/// Samples of a batch whose step is asked for before the sizes of all batches are known.
const USUAL_BATCH: f64 = 64.0;
/// More epochs than anybody waits for: the time ends the run.
const ENDLESS: u64 = 1 << 32;

impl Length {
    /// Whether a trial has to find out how long an epoch is.
    pub(crate) fn is_open(&self) -> bool {
        self.epochs.is_none() && self.batches.is_none()
    }

    /// Seconds of a run, if time ends it.
    pub(crate) fn limit(&self, step: TrainStep, runs: u64) -> Option<f64> {
        if self.seconds.is_some() || !self.is_open() {
            return self.seconds;
        }
        let share = (BUDGET / runs.max(1) as f64).clamp(1.0, 4.0);
        let mean = step.mean(USUAL_BATCH).unwrap_or(0.0);
        Some(share.max((STEPS * mean).min(20.0)))
    }

    /// The workload. If nothing is said of epochs, the fastest has about two in a run.
    pub(crate) fn workload(&self, step: TrainStep, runs: u64, trial: Option<&Run>) -> Workload {
        let seconds = self.limit(step, runs);
        let epochs = self.epochs.unwrap_or(if self.is_open() { ENDLESS } else { 2 });
        let batches = match (self.batches, trial, seconds) {
            (Some(batches), ..) => Some(batches),
            (None, Some(trial), Some(seconds)) if self.is_open() && trial.seconds > 0.0 => {
                let each = trial.seconds / trial.batches.max(1) as f64;
                Some(((seconds / 2.0 / each) as u64).max(4))
            }
            _ => None,
        };
        Workload { step, epochs, batches, seconds }
    }
}

impl Contest<'_> {
    fn settings(&self, candidate: &Candidate) -> Settings {
        let mut settings = self.base.clone();
        for (key, value) in &candidate.settings {
            if key != "format" {
                settings.insert(key.clone(), value.clone());
            }
        }
        settings
    }

    fn run(
        &self,
        contestant: &Contestant,
        workload: &Workload,
        spans: Option<usize>,
        heard: &mut dyn FnMut(&Answer),
    ) -> Result<Run, Trouble> {
        let settings = self.settings(&contestant.candidate);
        let mut job = Job { settings, spans, ..self.job.clone() };
        // Epochs of fewer samples end by themselves and turn over as real ones do; where that
        // cannot be, they are cut.
        let size = job.settings.get("batch_size").and_then(serde_json::Value::as_u64);
        job.samples =
            workload.batches.zip(size).map(|(batches, size)| batches.saturating_mul(size));
        job.task = Task::Run(*workload);
        let target = match &contestant.source {
            Some(source) if pipeline::is_spec_file(Path::new(self.target)) => {
                job.flags.insert("source".to_owned(), pipeline::shown(source).into());
                self.target
            }
            Some(source) => source.as_os_str(),
            None => self.target,
        };
        match self.surroundings.ask(target, &job, heard)? {
            Answer::Run(run) => Ok(*run),
            _ => Err(Trouble::Failed("its process answered something else".to_owned())),
        }
    }

    /// A first run of the last one that works, to know how fast it is; its data is warm then.
    pub(crate) fn trial(
        &self,
        contestants: &[Contestant],
        step: TrainStep,
        seconds: f64,
    ) -> Result<Option<Run>, i32> {
        let workload = Workload { step, epochs: 1, batches: None, seconds: Some(seconds) };
        for contestant in contestants.iter().rev().filter(|one| one.refused.is_none()) {
            match self.run(contestant, &workload, None, &mut |_| {}) {
                Ok(run) => return Ok(Some(run)),
                Err(Trouble::Interrupted(code)) => return Err(code),
                // It fails again in its turn, and is reported then.
                Err(Trouble::Failed(_)) => {}
            }
        }
        Ok(None)
    }

    /// All runs. A signal ends them; what was measured by then is returned with its exit code.
    pub(crate) fn hold(
        &self,
        contestants: &[Contestant],
        workload: &Workload,
        output: &Output,
    ) -> (Vec<Configuration>, Option<i32>) {
        let pace = Pace::of(workload);
        let progress =
            output.progress(pace.at(self.repeats * contestants.len() as u64, 0, 0.0), pace.unit);
        let mut configurations: Vec<Configuration> = contestants
            .iter()
            .map(|one| Configuration {
                name: one.candidate.name.clone(),
                settings: one.candidate.settings.clone(),
                error: one.refused.clone(),
                ..Configuration::default()
            })
            .collect();
        let (mut done, mut interrupted) = (0, None);
        'rounds: for round in 0..self.repeats {
            for (contestant, configuration) in contestants.iter().zip(&mut configurations) {
                if configuration.error.is_none() {
                    let spans = self.spans.filter(|_| round + 1 == self.repeats);
                    let mut share = |answer: &Answer| {
                        if let Answer::Progress(batches, seconds) = answer {
                            progress.set(pace.at(done, *batches, *seconds));
                        }
                    };
                    match self.run(contestant, workload, spans, &mut share) {
                        Ok(run) if !run.is_conclusive() => {
                            configuration.error = Some(TOO_SHORT.to_owned());
                            configuration.runs.push(run);
                        }
                        Ok(run) => {
                            let rate = show_count(run.samples_per_second.round() as u64);
                            let name = &configuration.name;
                            let text = format!("{name}: {rate} samples/s");
                            progress.aside(|| output.remark(&text));
                            configuration.runs.push(run);
                        }
                        Err(Trouble::Interrupted(code)) => {
                            interrupted = Some(code);
                            break 'rounds;
                        }
                        Err(Trouble::Failed(reason)) => {
                            if !contestant.candidate.optional {
                                let text = format!("{}: {reason}", configuration.name);
                                progress.aside(|| output.remark(&text));
                            }
                            configuration.error =
                                Some(failed_run(reason, configuration.runs.len(), self.repeats));
                        }
                    }
                }
                done += 1;
                progress.set(pace.at(done, 0, 0.0));
            }
        }
        progress.finish();
        for configuration in &mut configurations {
            if configuration.error.is_none() {
                configuration.summary = summary(&configuration.runs);
                let (done, all) = (configuration.runs.len(), self.repeats);
                configuration.interrupted = (interrupted.is_some() && (done as u64) < all)
                    .then(|| format!("{done} of {all} runs over"));
            }
        }
        let requested = |(one, of): (&Contestant, &Configuration)| {
            !(one.candidate.optional && of.error.is_some())
        };
        let kept: Vec<bool> = contestants.iter().zip(&configurations).map(requested).collect();
        let mut kept = kept.into_iter();
        configurations.retain(|_| kept.next().unwrap_or(true));
        (configurations, interrupted)
    }
}

/// What is said of a run that is not conclusive.
const TOO_SHORT: &str = "a run had one batch, which says nothing of those after it; raise --seconds, --batches or --epochs";

/// Why a configuration is left out, and after how many runs.
fn failed_run(reason: String, done: usize, repeats: u64) -> String {
    match done {
        0 => reason,
        done => format!("run {} of {repeats} failed: {reason}", done + 1),
    }
}

/// How far a contest is: in seconds if time ends the runs, in batches if their number does, else in
/// runs.
struct Pace {
    each: f64,
    unit: &'static str,
}

impl Pace {
    fn of(workload: &Workload) -> Pace {
        match (workload.seconds, workload.batches) {
            (Some(seconds), _) => Pace { each: seconds, unit: "s of runs" },
            (None, Some(batches)) => {
                Pace { each: batches.saturating_mul(workload.epochs) as f64, unit: "batches" }
            }
            (None, None) => Pace { each: 1.0, unit: "runs" },
        }
    }

    /// So many runs are done, and one has come so far.
    fn at(&self, runs: u64, batches: u64, seconds: f64) -> u64 {
        let part = match self.unit {
            "batches" => batches as f64,
            "runs" => 0.0,
            _ => seconds,
        };
        (runs as f64 * self.each + part.min(self.each)) as u64
    }
}

/// Ranks, warns and judges.
pub(crate) fn conclude(
    target: String,
    machine: Machine,
    workload: Workload,
    configurations: Vec<Configuration>,
) -> Benchmark {
    let ranking = ranking(&configurations);
    let warnings = warnings(&configurations, &machine, workload.step);
    let best = ranking.first().map(|best| &configurations[*best]);
    let verdict = best.and_then(|best| {
        let runs: Vec<&Evidence> = best.runs.iter().map(|run| &run.evidence).collect();
        let tried = |advice: &Advice| was_tried(advice, best, &configurations);
        Some(judge_beside(&joined(&runs)?, &tried))
    });
    let baseline =
        configurations.iter().position(|one| one.summary.is_some()).filter(|at| *at == 0);
    Benchmark { target, machine, workload, configurations, ranking, baseline, warnings, verdict }
}

/// Settings that advice may be about.
const ADVISED: [&str; 5] =
    ["num_workers", "executor", "persistent_workers", "prefetch_factor", "cache"];

/// Whether advice is about something that this comparison was about, or that the best one was given:
/// then its figures stand in the table.
fn was_tried(advice: &Advice, best: &Configuration, all: &[Configuration]) -> bool {
    let Some(code) = &advice.code else { return false };
    ADVISED.iter().filter(|key| code.contains(&format!("{key}="))).any(|key| {
        let values = all.iter().map(|one| one.settings.get(*key));
        let differs = values.clone().any(|value| value != best.settings.get(*key));
        differs || *key == "persistent_workers" && best.settings.contains_key(*key)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const OPEN: Length = Length { epochs: None, batches: None, seconds: None };

    #[test]
    fn a_plain_comparison_takes_about_a_minute() {
        let seconds = OPEN.limit(TrainStep::None, 12).unwrap();
        assert!((30.0..60.0).contains(&(12.0 * seconds)), "{seconds}");
        assert_eq!(OPEN.limit(TrainStep::None, 1000), Some(1.0));
        assert_eq!(OPEN.limit(TrainStep::Fixed(0.2), 12), Some(6.0), "30 steps");
    }

    #[test]
    fn epochs_are_as_long_as_half_a_run() {
        let trial = Run { batches: 40, seconds: 2.0, ..Run::default() };
        let workload = OPEN.workload(TrainStep::None, 12, Some(&trial));
        assert_eq!((workload.batches, workload.seconds), (Some(37), Some(3.75)));
        assert!(workload.epochs > 1000);
        let slow = Run { batches: 1, seconds: 2.0, ..Run::default() };
        assert_eq!(OPEN.workload(TrainStep::None, 12, Some(&slow)).batches, Some(4));
        let exact = Length { batches: Some(10), ..OPEN };
        let workload = exact.workload(TrainStep::None, 12, None);
        assert_eq!((workload.epochs, workload.batches, workload.seconds), (2, Some(10), None));
        let whole = Length { epochs: Some(3), ..OPEN };
        let workload = whole.workload(TrainStep::None, 12, None);
        assert_eq!((workload.epochs, workload.batches, workload.seconds), (3, None, None));
    }

    #[test]
    fn what_was_compared_is_not_advised() {
        let one = |settings: serde_json::Value| Configuration {
            settings: settings.as_object().cloned().unwrap_or_default(),
            ..Configuration::default()
        };
        let advice = |code: &str| Advice { code: Some(code.to_owned()), ..Advice::default() };
        let compared = [one(json!({"num_workers": 1})), one(json!({"num_workers": 2}))];
        assert!(was_tried(&advice("num_workers=3"), &compared[0], &compared));
        assert!(!was_tried(&advice("cache=\"memory\""), &compared[0], &compared));
        assert!(!was_tried(&advice("num_workers=3"), &compared[0], &compared[..1]));
        assert!(!was_tried(&Advice::default(), &compared[0], &compared));
        let kept = [one(json!({"persistent_workers": true}))];
        assert!(was_tried(&advice("persistent_workers=True"), &kept[0], &kept));
    }

    #[test]
    fn a_failure_tells_in_which_run_it_came() {
        let reason = || "out of luck".to_owned();
        assert_eq!(failed_run(reason(), 0, 3), "out of luck");
        assert_eq!(failed_run(reason(), 2, 3), "run 3 of 3 failed: out of luck");
    }

    #[test]
    fn progress_is_in_what_ends_the_runs() {
        let workload =
            Workload { step: TrainStep::None, epochs: 2, batches: Some(50), seconds: None };
        let pace = Pace::of(&workload);
        assert_eq!([pace.at(0, 30, 9.0), pace.at(1, 0, 0.0), pace.at(1, 999, 9.0)], [30, 100, 200]);
        let pace = Pace::of(&Workload { seconds: Some(4.0), ..workload });
        assert_eq!([pace.at(0, 30, 1.0), pace.at(2, 0, 0.0), pace.at(2, 0, 9.0)], [1, 8, 12]);
        let pace = Pace::of(&Workload { batches: None, ..workload });
        assert_eq!((pace.at(3, 7, 7.0), pace.unit), (3, "runs"));
    }
}
