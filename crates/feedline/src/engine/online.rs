//! A running loader that adjusts itself: what it reports to the controller in `tune`, and when.

use std::time::{Duration, Instant};

use super::plan::{Plan, Purpose};
use super::work::Shared;
use crate::observe;
use crate::spec::{Spec, Workers};
use crate::tune::{Budget, Controller, Decision, Knob, Reading, Tuning};

/// The most batches that a loader opens by itself.
const MOST_OPEN: u64 = 32;

/// Looks at a loader from time to time.
pub(super) struct Online {
    workers: u64,
    open: u64,
    budget: Budget,
    /// Since the first batch.
    controller: Option<(Instant, Controller)>,
    /// Before this time there is nothing to see.
    due: Option<Instant>,
}

impl Online {
    /// For a loader whose number of workers is "auto".
    pub(super) fn of(plan: &Plan) -> Option<Online> {
        if plan.spec.num_workers != Workers::Auto || plan.purpose != Purpose::Load {
            return None;
        }
        let open = plan.ahead as u64;
        // Some of the memory is for making batches; one batch is with the program.
        let fits = (plan.memory / 4 * 3) / (plan.layout.bytes() as u64).max(1);
        let most = match plan.spec.prefetch_factor {
            Some(_) => open,
            None => fits.saturating_sub(1).clamp(open, MOST_OPEN.max(open)),
        };
        let workers = plan.workers as u64;
        let budget = Budget { workers, prefetch: most, memory: plan.memory };
        Some(Online { workers, open, budget, controller: None, due: None })
    }

    /// Whether it is time for a look: a comparison.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due.is_none_or(|due| now >= due)
    }

    /// What the controller makes of what happened until now.
    pub(super) fn look(&mut self, now: Instant, shared: &Shared) -> Option<Decision> {
        let figures = observe::figures(&shared.consumer, &shared.counters);
        let began = self.controller.as_ref().map_or(now, |(began, _)| *began);
        let first = figures.first_batch_seconds.unwrap_or(0.0);
        let reading = Reading {
            seconds: (now - began).as_secs_f64(),
            batches: figures.batches,
            samples: figures.samples,
            made: figures.samples_made,
            // The beginning of an epoch may be far from what was being made.
            wait: figures.wait_seconds - first - figures.turnovers.1,
            step: figures.step_seconds,
            busy: figures.busy_seconds,
            memory: figures.memory_wait_seconds,
            off_core: off_core(&figures),
        };
        let (_, controller) = self.controller.get_or_insert_with(|| {
            (now, Controller::new(self.workers, self.open, self.budget, reading))
        });
        let decision = controller.decide(&reading);
        self.due = Some(began + Duration::from_secs_f64(controller.due().max(0.0)));
        decision
    }

    /// Workers and open batches that are wanted.
    pub(super) fn wanted(&self) -> (usize, usize) {
        let controller = self.controller.as_ref().map(|(_, controller)| controller);
        controller.map_or((self.workers as usize, self.open as usize), |controller| {
            (controller.workers() as usize, controller.prefetch() as usize)
        })
    }
}

/// Seconds of work without a core, but for those that waited for bytes or memory.
fn off_core(figures: &observe::WorkStats) -> f64 {
    let read = figures.parts.iter().find(|part| part.name == "read");
    let (on_core, looked_at) = figures.read_cpu;
    let waits = if looked_at > 0.0 { (1.0 - on_core / looked_at).clamp(0.0, 1.0) } else { 0.0 };
    let waited = read.map_or(0.0, |read| read.seconds * waits * figures.samples_made as f64);
    let known = figures.cpu_seconds > 0.0;
    let worked = figures.busy_seconds - figures.memory_wait_seconds - figures.cpu_seconds;
    if known { (worked - waited).max(0.0) } else { 0.0 }
}

/// `spec` with the settings that a loader of it has now, and the reason for each.
pub(super) fn frozen(spec: &Spec, tuning: &Tuning) -> (Spec, Vec<(String, String)>) {
    let factor = tuning.prefetch.div_ceil(tuning.num_workers.max(1)).max(1);
    let mut spec = spec.clone();
    spec.num_workers = Workers::Count(tuning.num_workers);
    let why = |knob: Knob, unchanged: &str| match tuning.last(knob) {
        None => unchanged.to_owned(),
        Some(last) => format!("found by num_workers = \"auto\": {}", last.reason),
    };
    let cores = "one for each core: nothing was changed while the loader ran";
    let given = "as it was set";
    let workers = why(Knob::NumWorkers, if tuning.auto { cores } else { given });
    let mut reasons = vec![("num_workers".to_owned(), workers)];
    if tuning.num_workers > 0 {
        spec.prefetch_factor = Some(factor);
        let open = format!("{} batches may be open, for each worker {factor}", tuning.prefetch);
        reasons.push(("prefetch_factor".to_owned(), why(Knob::Prefetch, &open)));
    }
    (spec, reasons)
}
