//! How often something took how long, in constant memory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets for each doubling: a value is known to a sixteenth.
const STEPS: usize = 16;
/// From 1 µs (below it nothing is distinguished) to 2^36 µs, about 19 hours.
const DOUBLINGS: usize = 36;
const BUCKETS: usize = STEPS * (DOUBLINGS + 1);

/// Durations, each known to about 6 %. Adding is one atomic addition; readers see them at once.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: Box<[AtomicU64]>,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }
}

/// Some quantiles of a histogram, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Quantiles {
    /// Half were shorter.
    pub p50: f64,
    /// One in a hundred was longer.
    pub p99: f64,
}

impl Quantiles {
    /// The middle of a bucket may lie above the longest time in it.
    #[must_use]
    pub(crate) fn at_most(self, longest: f64) -> Self {
        Quantiles { p50: self.p50.min(longest), p99: self.p99.min(longest) }
    }
}

fn bucket(time: Duration) -> usize {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    if micros < STEPS as u64 {
        return micros as usize;
    }
    let doubling = micros.ilog2() as usize;
    let step = (micros >> (doubling - 4)) as usize & (STEPS - 1);
    (STEPS + (doubling - 4) * STEPS + step).min(BUCKETS - 1)
}

/// The middle of a bucket, in seconds.
fn middle(bucket: usize) -> f64 {
    if bucket < STEPS {
        return bucket as f64 * 1e-6;
    }
    let (doubling, step) = (4 + (bucket - STEPS) / STEPS, bucket % STEPS);
    let size = (1u64 << (doubling - 4)) as f64;
    ((STEPS + step) as f64 + 0.5) * size * 1e-6
}

impl Histogram {
    /// Counts one.
    pub(crate) fn add(&self, time: Duration) {
        self.counts[bucket(time)].fetch_add(1, Relaxed);
    }

    /// What was counted since `before` was taken from the same histogram; of everything if that is
    /// empty.
    #[must_use]
    pub(crate) fn quantiles_since(&self, before: &[u64]) -> Quantiles {
        Histogram::quantiles_of(&self.counts(), before)
    }

    /// The same of counts that were added up.
    #[must_use]
    pub(crate) fn quantiles_of(counts: &[u64], before: &[u64]) -> Quantiles {
        quantiles(counts, before)
    }

    /// All counts, for a later comparison.
    #[must_use]
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Relaxed)).collect()
    }
}

fn quantiles(counts: &[u64], before: &[u64]) -> Quantiles {
    let new = |at: usize| counts[at].saturating_sub(before.get(at).copied().unwrap_or(0));
    let total: u64 = (0..counts.len()).map(new).sum();
    let at = |share: f64| {
        let wanted = (total as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        for place in 0..counts.len() {
            seen += new(place);
            if seen >= wanted {
                return middle(place);
            }
        }
        0.0
    };
    Quantiles { p50: at(0.5), p99: at(0.99) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_is_known_to_a_sixteenth() {
        for micros in (0..70_000).chain((0..40).map(|n| 97_003u64 << (n % 20))) {
            let reported = middle(bucket(Duration::from_micros(micros))) * 1e6;
            let allowed = (micros as f64 / 16.0).max(0.5);
            assert!(
                (reported - micros as f64).abs() <= allowed,
                "{micros} µs was reported as {reported}"
            );
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_of_all_and_of_what_is_new() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantiles_since(&[]), Quantiles::default());
        (1..=1000).for_each(|ms| histogram.add(Duration::from_millis(ms)));
        let all = histogram.quantiles_since(&[]);
        assert!((all.p50 - 0.5).abs() < 0.04 && (all.p99 - 0.99).abs() < 0.07, "{all:?}");
        let before = histogram.counts();
        (0..10).for_each(|_| histogram.add(Duration::from_micros(40)));
        let new = histogram.quantiles_since(&before);
        assert!((new.p99 - 40e-6).abs() < 4e-6, "{new:?}");
    }
}
