//! Tuning while it runs, for loaders whose threads run Python.

use feedline::internals::tune::{self, Budget, Reading};
use feedline::stats::Tuning;
use pyo3::prelude::*;
use serde_json::json;

/// Decides how many threads make batches.
#[pyclass(module = "feedline._native")]
pub(crate) struct Controller {
    most: u64,
    prefetch: u64,
    inside: Option<tune::Controller>,
    tuning: Tuning,
}

#[pymethods]
impl Controller {
    /// Begins with `workers`, which are also the most.
    #[new]
    fn new(workers: u64, prefetch: u64) -> Self {
        let tuning = Tuning::begun(workers, prefetch);
        Controller { most: workers, prefetch, inside: None, tuning }
    }

    /// Given what happened since the start, says how many workers are wanted and when to ask again.
    /// `seconds` are since the first batch, and all that is made counts when it is handed over.
    fn look(
        &mut self,
        seconds: f64,
        batches: u64,
        samples: u64,
        wait: f64,
        step: f64,
        busy: f64,
    ) -> (u64, f64) {
        let made = samples;
        let reading =
            Reading { seconds, batches, samples, made, wait, step, busy, ..Reading::default() };
        let budget = Budget { workers: self.most, prefetch: self.prefetch, memory: 0 };
        let inside = self.inside.get_or_insert_with(|| {
            tune::Controller::new(self.most, self.prefetch, budget, reading)
        });
        if let Some(decision) = inside.decide(&reading) {
            self.tuning.note(decision);
            self.tuning.num_workers = inside.workers();
        }
        (inside.workers(), inside.due())
    }

    /// What was decided, as JSON.
    fn tuning(&self) -> String {
        json!(self.tuning).to_string()
    }

    /// How many decisions there were so far, and as JSON those after the first `seen`.
    fn decisions(&self, seen: u64) -> (u64, String) {
        since(&self.tuning, seen)
    }
}

/// How many decisions there were so far, and as JSON those after the first `seen`.
pub(crate) fn since(tuning: &Tuning, seen: u64) -> (u64, String) {
    let (dropped, kept) = (tuning.decisions_left_out, tuning.decisions.len() as u64);
    let from = seen.saturating_sub(dropped).min(kept) as usize;
    (dropped + kept, json!(tuning.decisions[from..]).to_string())
}
