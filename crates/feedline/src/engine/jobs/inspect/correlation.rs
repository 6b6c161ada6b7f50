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
/// batches of `batch` are drawn from `open` of `blocks` blocks with `samples` in all.
pub(super) fn inflation(correlation: f64, batch: u64, open: u64, blocks: u64, samples: u64) -> f64 {
    let open = open.max(1);
    if open >= blocks {
        return 1.0;
    }
    let (batch, open, blocks) = (batch as f64, open as f64, blocks as f64);
    let size = samples as f64 / blocks;
    let pool = open * size;
    if pool <= 1.0 {
        return 1.0;
    }
    // Other samples of its own block that a sample of a batch meets.
    let mates = (batch.min(pool) - 1.0).max(0.0) * (size - 1.0) / (pool - 1.0);
    // No block comes twice, so those that a batch is drawn from stand for the rest as well.
    let drawn_from = open.max(batch / size).min(blocks);
    1.0 + correlation.max(0.0) * mates * (blocks - drawn_from) / (blocks - 1.0)
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
        assert_eq!(inflation(1.0, 101, 100, 100, 10_000), 1.0, "all open: as good as any shuffle");
        assert_eq!(inflation(1.0, 101, 1, 1, 100), 1.0);
        assert_eq!(inflation(1.0, 64, 4, 100, 100), 1.0, "blocks of a sample each");
        assert_eq!(inflation(1.0, 400, 1, 4, 400), 1.0, "batches of all samples");
        assert_eq!(inflation(-0.01, 64, 1, 100, 10_000), 1.0);
        assert!(inflation(0.02, 64, 2, 100, 10_000) > MOST_INFLATION);
        assert_eq!(inflation(1.0, 0, 0, 0, 0), 1.0);
    }

    #[test]
    fn what_cannot_be_known() {
        let mut counter = Counter::default();
        assert_eq!(counter.correlation(), None);
        counter.add(1);
        counter.add(2);
        counter.end_block();
        assert_eq!(counter.correlation(), None);
    }

    /// How much more the share of one of four classes varies in simulated batches from blocks of
    /// one class each. Neither blocks nor samples come twice.
    fn simulated(blocks: u64, size: u64, open: u64, batch: u64) -> f64 {
        let (mut sum, mut squares, rounds) = (0.0, 0.0, 4_000);
        for round in 0..rounds {
            let blocks = Permutation::new(blocks, 2 * round);
            let (mut hits, mut left, mut first) = (0u64, batch, 0);
            // A batch that is larger than a pool goes on with the next one.
            while left > 0 {
                let pool = Permutation::new(open * size, 2 * round + 1);
                let class = |sample| blocks.apply(first + pool.apply(sample) / size) % 4;
                let taken = left.min(open * size);
                hits += (0..taken).filter(|sample| class(*sample) == 0).count() as u64;
                (left, first) = (left - taken, first + open);
            }
            sum += hits as f64;
            squares += (hits * hits) as f64;
        }
        let mean = sum / rounds as f64;
        let variance = squares / rounds as f64 - mean * mean;
        variance / (batch as f64 * 0.25 * 0.75)
    }

    #[test]
    fn simulated_batches_vary_as_predicted() {
        for (blocks, size, open, batch, low, high) in [
            (400, 100, 4, 33, 8.0, 9.5),
            (20, 1000, 10, 64, 3.5, 4.4),
            (20, 1000, 5, 64, 9.3, 11.0),
            (200, 100, 1, 256, 89.0, 100.0),
            (200, 100, 4, 64, 15.0, 17.0),
        ] {
            let predicted = inflation(1.0, batch, open, blocks, blocks * size);
            assert!((low..high).contains(&predicted), "{predicted} of {low} to {high}");
            let measured = simulated(blocks, size, open, batch);
            // Batches larger than a pool end in a part of one, which the formula takes for whole.
            assert!((measured / predicted - 1.0).abs() < 0.12, "{measured} {predicted}");
        }
    }
}
