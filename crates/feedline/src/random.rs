//! Randomness without state.
//!
//! Every draw is a function of (seed, epoch, position in the epoch, op number, draw number)
//! through Philox 4x32-10, so it does not matter which thread draws, or when, or how often.

use rand_philox::{philox4x32_10, splitmix64};

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A key for (seed, epoch, purpose): close inputs give unrelated keys.
#[must_use]
pub fn key(seed: u64, epoch: u64, purpose: u64) -> u64 {
    let mixed = splitmix64(seed.wrapping_add(GOLDEN));
    let mixed = splitmix64(mixed ^ epoch.wrapping_mul(GOLDEN).wrapping_add(GOLDEN));
    splitmix64(mixed ^ purpose.wrapping_add(1).wrapping_mul(GOLDEN))
}

/// The draws that one op makes for one sample.
///
/// ```
/// use feedline::internals::random::Draws;
/// let mut a = Draws::new(7, 0, 42, 1);
/// let mut b = Draws::new(7, 0, 42, 1);
/// assert_eq!(a.uniform(0.0, 1.0), b.uniform(0.0, 1.0));
/// assert!(a.below(10) < 10);
/// ```
#[derive(Debug, Clone)]
pub struct Draws {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    used: usize,
}

impl Draws {
    /// The draws for `op` (its place in the chain) on the sample at `position` of `epoch`.
    #[must_use]
    pub fn new(seed: u64, epoch: u64, position: u64, op: u32) -> Self {
        Draws::with_key(key(seed, epoch, 0), position, op)
    }

    /// The same with the (seed, epoch) part of the key mixed once for many samples.
    #[must_use]
    pub fn with_key(key: u64, position: u64, op: u32) -> Self {
        Draws {
            key: [key as u32, (key >> 32) as u32],
            counter: [position as u32, (position >> 32) as u32, op, 0],
            block: [0; 4],
            used: 4,
        }
    }

    /// 32 random bits.
    pub fn bits(&mut self) -> u32 {
        if self.used == 4 {
            self.block = philox4x32_10(self.counter, self.key);
            self.counter[3] = self.counter[3].wrapping_add(1);
            self.used = 0;
        }
        let bits = self.block[self.used];
        self.used += 1;
        bits
    }

    /// 64 random bits.
    pub fn wide(&mut self) -> u64 {
        u64::from(self.bits()) << 32 | u64::from(self.bits())
    }

    /// Uniform in `low..high` with 53 bits.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        let unit = (self.wide() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
        low + (high - low) * unit
    }

    /// Uniform in `0..n`; 0 for `n = 0`. The bias is below n / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.wide()) * u128::from(n)) >> 64) as u64
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.uniform(0.0, 1.0) < p
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_random123_vectors() {
        // From Random123's kat_vectors: philox 4x32 10.
        assert_eq!(
            philox4x32_10([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32_10(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn neighbouring_inputs_are_unrelated() {
        let mean = |f: &dyn Fn(u64) -> Draws| {
            (0..4000).map(|i| f(i).uniform(0.0, 1.0)).sum::<f64>() / 4000.0
        };
        // 4 sigma of the mean of 4000 uniforms is 0.018.
        assert!((mean(&|i| Draws::new(i, 0, 0, 0)) - 0.5).abs() < 0.018);
        assert!((mean(&|i| Draws::new(0, i, 0, 0)) - 0.5).abs() < 0.018);
        assert!((mean(&|i| Draws::new(0, 0, i, 0)) - 0.5).abs() < 0.018);
        assert!((mean(&|i| Draws::new(0, 0, 0, i as u32)) - 0.5).abs() < 0.018);
    }
}
