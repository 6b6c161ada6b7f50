//! Why the program waits, for loaders that Python code makes.

use feedline::internals::tune::{self, Evidence, next_limit};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::errors::mismatch;

/// What is reported of a stretch of a run.
pub(crate) fn judged(evidence: &Evidence) -> Value {
    json!({
        "batches": evidence.batches,
        "samples": evidence.samples,
        "samples_per_second": evidence.rate(),
        "seconds": evidence.wait_seconds + evidence.step_seconds,
        "wait_share": evidence.wait_share(),
        "next_limit": next_limit(evidence),
        "verdict": tune::judge(evidence),
    })
}

/// Cores that this process may use.
#[pyfunction]
pub(crate) fn cores() -> usize {
    tune::cores()
}

/// What `num_workers="auto"` begins with: this process's share of the cores.
#[pyfunction]
pub(crate) fn auto_workers() -> usize {
    feedline::internals::engine::auto_workers()
}

/// Judges evidence (JSON, all keys optional) and returns what it means, as JSON.
#[pyfunction]
pub(crate) fn judge(evidence: &str) -> PyResult<String> {
    let evidence: Evidence = serde_json::from_str(evidence)
        .map_err(|error| mismatch(&format!("this is no evidence: {error}")))?;
    Ok(judged(&evidence).to_string())
}
