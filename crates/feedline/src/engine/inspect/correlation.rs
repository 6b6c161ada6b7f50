//! How alike the labels within a block are, and what that does to batches of a block shuffle.
//!
//! A block shuffle draws a batch from a few open blocks. If blocks are sorted by class, so are its
//! batches, more or less: the share of a class varies more from batch to batch than it would with
//! samples drawn from everywhere.

use std::collections::BTreeMap;

/// Above this, batches differ so much that training may suffer.
pub const MOST_INFLATION: f64 = 1.25;

/// Counts labels, block by block.
#[derive(Debug, Default)]
pub(super) struct Counter {
    block: BTreeMap<i64, u64>,
    all: BTreeMap<i64, u64>,
    blocks: u64,
    samples: u64,
    /// Sum over blocks of the squared counts of its labels, divided by its samples.
    alike: f64,
    /// Sum over blocks of their samples, squared.
    squares: f64,
}

impl Counter {
    /// One sample of the block that is being counted.
    pub(super) fn add(&mut self, label: i64) {
        *self.block.entry(label).or_default() += 1;
    }

    /// The block is over.
    pub(super) fn end_block(&mut self) {
        let samples: u64 = self.block.values().sum();
        if samples == 0 {
            return;
        }
        let size = samples as f64;
        self.alike += self.block.values().map(|n| (*n as f64).powi(2)).sum::<f64>() / size;
        self.squares += size * size;
        self.samples += samples;
        self.blocks += 1;
        for (label, count) in std::mem::take(&mut self.block) {
            *self.all.entry(label).or_default() += count;
        }
    }

    /// The correlation of two samples of one block in being of a class, over all classes: 0 if
    /// blocks are like draws from everywhere, 1 if each holds a single class. The estimate of an
    /// analysis of variance, whose sums are taken over the classes. `None` for fewer than two
    /// blocks or classes.
    pub(super) fn correlation(&self) -> Option<f64> {
        if self.blocks < 2 || self.all.len() < 2 || self.samples <= self.blocks {
            return None;
        }
        let (samples, blocks) = (self.samples as f64, self.blocks as f64);
        let shares = self.all.values().map(|n| (*n as f64).powi(2)).sum::<f64>() / samples;
        let (total, within) = (samples - shares, samples - self.alike);
        let between = (total - within) / (blocks - 1.0);
        let within = within / (samples - blocks);
        // The mean size of a block, as unequal ones count.
        let size = (samples - self.squares / samples) / (blocks - 1.0);
        let whole = between + (size - 1.0) * within;
        (whole > 0.0).then(|| ((between - within) / whole).clamp(-1.0, 1.0))
    }
}

/// How much more a class's share varies between batches than with samples from everywhere, when
/// batches of `batch` are drawn from `open` of `blocks` blocks.
pub(super) fn inflation(correlation: f64, batch: u64, open: u64, blocks: u64) -> f64 {
    if open >= blocks {
        return 1.0;
    }
    // Samples of its own block that a sample of a batch meets, itself included.
    let mates = 1.0 + batch.saturating_sub(1) as f64 / open.max(1) as f64;
    1.0 + (mates - 1.0) * correlation.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Permutation;

    /// Labels of 10 classes in blocks of 100.
    fn correlation(label: impl Fn(u64) -> i64) -> f64 {
        let mut counter = Counter::default();
        for sample in 0..10_000 {
            counter.add(label(sample));
            if sample % 100 == 99 {
                counter.end_block();
            }
        }
        counter.correlation().unwrap()
    }

    #[test]
    fn sorted_by_class_is_one_and_shuffled_is_none() {
        let sorted = correlation(|sample| (sample / 1000) as i64);
        assert!((sorted - 1.0).abs() < 1e-9, "{sorted}");
        let all = Permutation::new(10_000, 3);
        let shuffled = correlation(|sample| (all.apply(sample) % 10) as i64);
        assert!(shuffled.abs() < 0.005, "{shuffled}");
        let even = correlation(|sample| (sample % 10) as i64);
        assert!(even < 0.0, "evener than chance: {even}");
    }

    #[test]
    fn half_sorted_lies_between_as_it_should() {
        // Half of each block is of one class, the rest of all: two samples of a block are both of
        // the first half with a chance of 1/4, and then alike.
        let all = Permutation::new(10_000, 5);
        let half = correlation(|sample| match sample % 2 {
            0 => (sample / 1000) as i64,
            _ => (all.apply(sample) % 10) as i64,
        });
        assert!((half - 0.25).abs() < 0.02, "{half}");
    }

    #[test]
    fn what_it_does_to_batches() {
        assert_eq!(inflation(1.0, 101, 10, 100), 11.0);
        assert_eq!(inflation(1.0, 101, 100, 100), 1.0, "all blocks open: as good as any shuffle");
        assert_eq!(inflation(-0.01, 64, 1, 100), 1.0);
        assert!(inflation(0.02, 64, 2, 100) > MOST_INFLATION);
    }

    #[test]
    fn what_cannot_be_told() {
        let mut counter = Counter::default();
        assert_eq!(counter.correlation(), None);
        counter.add(1);
        counter.add(2);
        counter.end_block();
        assert_eq!(counter.correlation(), None);
    }

    #[test]
    fn simulated_batches_vary_as_foretold() {
        // Blocks of one class each of four; batches of 33 from 4 of 400 blocks.
        let (blocks, open, batch) = (400u64, 4u64, 33u64);
        let mut draws = 0;
        let mut draw = |n: u64| {
            draws += 1;
            crate::random::key(1, draws, 0) % n
        };
        let (mut sum, mut squares, rounds) = (0.0, 0.0, 20_000);
        for _ in 0..rounds {
            let pool: Vec<u64> = (0..open).map(|_| draw(blocks)).collect();
            let hits =
                (0..batch).filter(|_| pool[draw(open) as usize].is_multiple_of(4)).count() as f64;
            sum += hits;
            squares += hits * hits;
        }
        let mean = sum / f64::from(rounds);
        let variance = squares / f64::from(rounds) - mean * mean;
        let plain = batch as f64 * 0.25 * 0.75;
        let foretold = inflation(1.0, batch, open, blocks);
        assert!(
            (variance / plain / foretold - 1.0).abs() < 0.05,
            "{} {foretold}",
            variance / plain
        );
    }
}
