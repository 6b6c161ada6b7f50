//! Draws in proportion to weights, in constant time (Walker's alias method, as built by Vose).

use crate::random::Draws;

/// 12 bytes a sample.
pub(super) struct Alias {
    /// The chance, out of 2^32, to keep the column that was drawn.
    keep: Vec<u32>,
    other: Vec<u64>,
}

impl Alias {
    /// `weights` are finite, not negative and not all zero.
    pub(super) fn new(weights: &[f64]) -> Self {
        let n = weights.len();
        // Dividing by the largest first keeps the sum of huge weights finite.
        let largest = weights.iter().copied().fold(0.0, f64::max);
        let total: f64 = weights.iter().map(|w| w / largest).sum();
        let mut scaled: Vec<f64> = weights.iter().map(|w| w / largest / total * n as f64).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..n).partition(|i| scaled[*i] < 1.0);
        let mut keep = vec![u32::MAX; n];
        let mut other: Vec<u64> = (0..n as u64).collect();
        while let (Some(low), Some(high)) = (small.pop(), large.last().copied()) {
            keep[low] = (scaled[low] * 4_294_967_296.0) as u32;
            other[low] = high as u64;
            scaled[high] -= 1.0 - scaled[low];
            if scaled[high] < 1.0 {
                large.pop();
                small.push(high);
            }
        }
        // Rounding may leave columns of weight 0 over: they must never be drawn.
        if let Some(heavy) = weights.iter().position(|w| *w == largest) {
            for at in small.into_iter().filter(|at| weights[*at] == 0.0) {
                keep[at] = 0;
                other[at] = heavy as u64;
            }
        }
        Alias { keep, other }
    }

    pub(super) fn pick(&self, draws: &mut Draws) -> u64 {
        let column = draws.below(self.keep.len() as u64);
        let keep = self.keep[column as usize];
        if keep == u32::MAX || draws.bits() < keep { column } else { self.other[column as usize] }
    }
}
