//! A training step that is stood for: how long it takes, batch by batch.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::random::Draws;
use crate::spec::read::parse_duration;

/// How long a simulated training step takes. Draws are a function of the step's number, so every
/// configuration meets the same steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainStep {
    /// No step: the feed runs as fast as it can.
    None,
    /// Always the same, in seconds.
    Fixed(f64),
    /// Between two bounds, all alike.
    Uniform(f64, f64),
    /// About a mean with a standard deviation, never below zero.
    Normal(f64, f64),
    /// So many seconds for each sample of the batch.
    PerSample(f64),
    /// The program's own step, which the feed runs.
    Own,
}

/// Separates the draws of steps from all others.
const PURPOSE: u64 = 0x7374_6570;

impl TrainStep {
    /// The length of the step with this number, over a batch of so many samples.
    #[must_use]
    pub fn length(self, number: u64, samples: u64) -> Duration {
        let mut draws = Draws::with_key(PURPOSE, number, 0);
        let seconds = match self {
            TrainStep::None | TrainStep::Own => 0.0,
            TrainStep::Fixed(seconds) => seconds,
            TrainStep::PerSample(seconds) => seconds * samples as f64,
            TrainStep::Uniform(low, high) => low + draws.uniform(0.0, 1.0) * (high - low),
            TrainStep::Normal(mean, deviation) => {
                // Box and Muller's two uniform draws; 1 - u is never zero.
                let (u, v) = (draws.uniform(0.0, 1.0), draws.uniform(0.0, 1.0));
                let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
                mean + deviation * normal
            }
        };
        Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
    }

    /// Its mean in seconds over batches of so many samples, if it is known beforehand.
    #[must_use]
    pub fn mean(self, samples: f64) -> Option<f64> {
        match self {
            TrainStep::None => Some(0.0),
            TrainStep::Fixed(seconds) => Some(seconds),
            TrainStep::Uniform(low, high) => Some((low + high) / 2.0),
            TrainStep::Normal(mean, _) => Some(mean),
            TrainStep::PerSample(seconds) => Some(seconds * samples),
            TrainStep::Own => None,
        }
    }

    /// Whether it is a wait that takes as long for a large batch as for a small one.
    #[must_use]
    pub fn ignores_batch_size(self) -> bool {
        match self {
            TrainStep::None | TrainStep::Own | TrainStep::PerSample(_) => false,
            TrainStep::Fixed(_) | TrainStep::Uniform(..) | TrainStep::Normal(..) => true,
        }
    }

    /// Reads `100ms`, `0.1`, `uniform(80ms, 120ms)`, `normal(100ms, 10ms)` or `1ms/sample`.
    pub fn parse(text: &str) -> Result<TrainStep, String> {
        let text = text.trim();
        if let Some((each, unit)) = text.split_once('/') {
            return match unit.trim() {
                "sample" => Ok(TrainStep::PerSample(seconds(each)?)),
                _ => Err(format!(
                    "{text:?}: a step takes its time for a batch (100ms) or for each sample (1ms/sample)"
                )),
            };
        }
        let Some((name, rest)) = text.split_once('(') else {
            return Ok(TrainStep::Fixed(seconds(text)?));
        };
        let bounds = rest.strip_suffix(')').and_then(|inside| inside.split_once(','));
        let Some((a, b)) = bounds else {
            return Err(format!("{text:?}: expected two durations in parentheses"));
        };
        let (a, b) = (seconds(a)?, seconds(b)?);
        match name.trim() {
            "uniform" if a <= b => Ok(TrainStep::Uniform(a, b)),
            "uniform" => Err(format!("{text:?}: the first bound is above the second")),
            "normal" => Ok(TrainStep::Normal(a, b)),
            other => Err(format!("{other:?} is no distribution; allowed: uniform, normal")),
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    Ok(parse_duration(text)?.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_and_drawn_alike_each_time() {
        assert_eq!(TrainStep::parse("100ms"), Ok(TrainStep::Fixed(0.1)));
        assert_eq!(TrainStep::parse("uniform(80ms, 0.12)"), Ok(TrainStep::Uniform(0.08, 0.12)));
        let normal = TrainStep::parse("normal(100ms,10ms)").unwrap();
        let lengths: Vec<f64> = (0..4000).map(|n| normal.length(n, 8).as_secs_f64()).collect();
        let mean = lengths.iter().sum::<f64>() / 4000.0;
        let variance = lengths.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 4000.0;
        assert!((mean - 0.1).abs() < 0.001 && (variance.sqrt() - 0.01).abs() < 0.001);
        assert_eq!(normal.length(7, 8), normal.length(7, 16));
        let grows = TrainStep::parse("2ms/sample").unwrap();
        assert_eq!(grows, TrainStep::PerSample(0.002));
        assert_eq!(grows.length(0, 16), Duration::from_millis(32));
        assert_eq!((grows.mean(100.0), normal.mean(100.0)), (Some(0.2), Some(0.1)));
        assert!(normal.ignores_batch_size() && !grows.ignores_batch_size());
        for wrong in [
            "",
            "fast",
            "uniform(2s,1s)",
            "normal(1s)",
            "gamma(1s,1s)",
            "-3ms",
            "1ms/batch",
            "/sample",
        ] {
            assert!(TrainStep::parse(wrong).is_err(), "{wrong}");
        }
    }
}
