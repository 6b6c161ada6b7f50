//! What `feedline bench` found: what it prints as JSON, and what reports and plots are made of. Times
//! are seconds, sizes bytes, rates samples a second.

use feedline::internals::tune::{Machine, Run, Spread, Verdict, Workload};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

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

/// One configuration and how it did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// A short name: "workers=4", "torch, 2 workers".
    pub name: String,
    /// What was set.
    pub settings: Map<String, Value>,
    /// Put together; `None` if a run failed, or if none is conclusive.
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

/// Student's t for 95 % confidence on both sides, by degrees of freedom from 1 on.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// The t of so many degrees of freedom; beyond the table the largest of what follows, so that an
/// interval is never too narrow.
fn student(freedom: usize) -> f64 {
    match freedom {
        0 => 0.0,
        1..=30 => STUDENT[freedom - 1],
        31..=60 => 2.042,
        _ => 2.0,
    }
}

/// The mean of values and their standard deviation, which is 0 for one value.
#[must_use]
pub fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>();
    (mean, if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 })
}

impl Interval {
    /// The mean of these values and where the true one is with 95 % confidence, if they are drawn
    /// about it alike. One value does not show its spread: both ends are the value.
    #[must_use]
    pub fn of(values: &[f64]) -> Interval {
        let (mean, deviation) = mean_and_deviation(values);
        let freedom = values.len().saturating_sub(1);
        let half = student(freedom) * deviation / (values.len().max(1) as f64).sqrt();
        Interval { mean, low: mean - half, high: mean + half }
    }

    /// How far the true value may be from the mean. An end that was cut off where values cannot be
    /// does not count.
    #[must_use]
    pub fn half(&self) -> f64 {
        (self.high - self.mean).max(self.mean - self.low)
    }

    /// Whether both may be the same value.
    #[must_use]
    pub fn overlaps(&self, other: &Interval) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_as_in_the_textbook() {
        // t = 4.303 for three values; their deviation is 1, so half is 4.303 / sqrt(3).
        let three = Interval::of(&[9.0, 10.0, 11.0]);
        assert!((three.half() - 2.4843).abs() < 1e-3 && three.mean == 10.0, "{three:?}");
        assert_eq!(Interval::of(&[7.0]), Interval { mean: 7.0, low: 7.0, high: 7.0 });
        assert_eq!(Interval::of(&[]), Interval::default());
        let narrow = Interval::of(&[10.0; 50]);
        assert_eq!((narrow.low, narrow.high), (10.0, 10.0));
        assert!(student(31) >= 2.040 && student(1000) >= 1.962);
    }

    #[test]
    fn intervals_overlap_or_not() {
        let of = |low: f64, high: f64| Interval { mean: (low + high) / 2.0, low, high };
        assert!(of(1.0, 2.0).overlaps(&of(1.5, 3.0)) && of(1.5, 3.0).overlaps(&of(1.0, 2.0)));
        assert!(of(1.0, 4.0).overlaps(&of(2.0, 3.0)) && !of(1.0, 2.0).overlaps(&of(2.1, 3.0)));
    }
}
