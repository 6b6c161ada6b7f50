//! What `feedline bench` and `feedline diagnose` found: what they print as JSON, and what reports
//! and plots are made of. Times are seconds, sizes bytes, rates samples a second.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::evidence::{Ceilings, Evidence};
use super::measure::{Run, Spread, Workload};
use super::verdict::Verdict;

/// A mean of several runs, and where the true one is with 95 % confidence. With one run, both ends
/// are the mean.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// The machine that something was measured on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name, if the system tells it.
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

/// All runs of one configuration, put together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Samples a second.
    pub samples_per_second: Interval,
    /// The share of the time that the trainer waited.
    pub wait_share: Interval,
    /// The share of the time that the trainer was busy.
    pub busy_share: Interval,
    /// How long the waits before a batch were, of all runs.
    pub wait: Spread,
    /// The wait for the first batch, starting workers included.
    pub first_batch_seconds: Interval,
    /// The wait for the first batch of later epochs.
    pub turnover_seconds: Option<Interval>,
    /// Processor time of a sample.
    pub cpu_seconds_per_sample: f64,
    /// The most memory of all runs.
    pub peak_memory: u64,
}

/// One configuration and how it did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// A short name: "workers=4", "torch, 2 workers".
    pub name: String,
    /// What was set.
    pub settings: Map<String, Value>,
    /// Put together; `None` if a run failed, or if none tells anything.
    pub summary: Option<Summary>,
    /// Each run. Only one of a configuration has a timeline.
    pub runs: Vec<Run>,
    /// Why it could not be run, or not to the end.
    pub error: Option<String>,
    /// How many of its runs were over when the command was interrupted, if not all were.
    #[serde(default)]
    pub interrupted: Option<String>,
}

impl Configuration {
    /// Whether nothing is known of it because the command was interrupted.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.interrupted.is_some() && self.error.is_none() && self.summary.is_none()
    }
}

/// Something to know about a result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// A word for programs: memory_grows, diminishing_returns, oversubscribed, noisy, too_short,
    /// same_step.
    pub kind: String,
    /// The configuration that it is about, by its place in the list.
    pub configuration: Option<usize>,
    /// What it is and what to do.
    pub text: String,
}

/// What `feedline bench` found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Benchmark {
    /// The spec, path or Python object.
    pub target: String,
    /// Where.
    pub machine: Machine,
    /// What each was run against.
    pub workload: Workload,
    /// In the order that they were asked for.
    pub configurations: Vec<Configuration>,
    /// Their places in the list, the best first; those that failed are left out. Empty if the
    /// comparison was interrupted before each had a run.
    pub ranking: Vec<usize>,
    /// The place of what others are compared with: the unoptimised one.
    pub baseline: Option<usize>,
    /// What to know.
    pub warnings: Vec<Warning>,
    /// Of the best one.
    pub verdict: Option<Verdict>,
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
