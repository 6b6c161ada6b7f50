//! What `feedline diagnose` found: what it prints as JSON, and what reports and plots are made of. Times
//! are seconds, sizes bytes, rates samples a second.

use serde::{Deserialize, Serialize};

use super::evidence::{Ceilings, Evidence};
use super::measure::{Run, Workload};
use super::verdict::Verdict;

/// The machine that something was measured on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name, if the system reports it.
    pub processor: String,
    /// Cores that the process may use.
    pub cores: u64,
    /// Cores of the machine.
    pub machine_cores: u64,
    /// Bytes that the process may still take.
    pub memory_available: Option<u64>,
    /// The GPU's name, if one was used.
    pub device: Option<String>,
}

/// One stage in a diagnosis.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageRow {
    /// Its name.
    pub name: String,
    /// Time of a sample.
    pub seconds: f64,
    /// Processor time of a sample.
    pub cpu_seconds: f64,
    /// The share of a sample's processor time.
    pub share: f64,
    /// Samples a second if only it ran.
    pub ceiling: Option<f64>,
    /// Samples a second if it were free, as the model says.
    pub predicted_if_free: Option<f64>,
    /// The same, measured by replaying what it made.
    pub measured_if_free: Option<f64>,
}

/// What `feedline diagnose` found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// The spec, path or Python object.
    pub target: String,
    /// Where.
    pub machine: Machine,
    /// What it was run against.
    pub workload: Workload,
    /// The answer.
    pub verdict: Verdict,
    /// Stage by stage.
    pub stages: Vec<StageRow>,
    /// Samples a second with parts out of the way.
    pub ceilings: Ceilings,
    /// What was judged.
    pub evidence: Evidence,
    /// The run with everything real, with its timeline.
    pub run: Run,
}
