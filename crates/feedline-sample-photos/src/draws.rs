//! Random numbers that depend on the seed and the photo alone.

use rand_philox::{philox4x32_10, splitmix64};

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What is drawn for one purpose of one photo, through Philox 4x32-10.
#[derive(Debug, Clone)]
pub(crate) struct Draws {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    used: usize,
}

impl Draws {
    pub(crate) fn new(seed: u64, photo: u64, purpose: u32) -> Self {
        let mixed = splitmix64(seed.wrapping_add(GOLDEN));
        let mixed = splitmix64(mixed ^ GOLDEN);
        let key = splitmix64(mixed ^ GOLDEN);
        Draws {
            key: [key as u32, (key >> 32) as u32],
            counter: [photo as u32, (photo >> 32) as u32, purpose, 0],
            block: [0; 4],
            used: 4,
        }
    }

    /// 32 random bits.
    pub(crate) fn bits(&mut self) -> u32 {
        if self.used == 4 {
            self.block = philox4x32_10(self.counter, self.key);
            self.counter[3] = self.counter[3].wrapping_add(1);
            self.used = 0;
        }
        let bits = self.block[self.used];
        self.used += 1;
        bits
    }

    fn wide(&mut self) -> u64 {
        u64::from(self.bits()) << 32 | u64::from(self.bits())
    }

    /// Uniform in `low..high` with 53 bits.
    pub(crate) fn uniform(&mut self, low: f64, high: f64) -> f64 {
        let unit = (self.wide() >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
        low + (high - low) * unit
    }

    /// Uniform in `0..n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.wide()) * u128::from(n)) >> 64) as u64
    }

    /// True with probability `p`.
    pub(crate) fn chance(&mut self, p: f64) -> bool {
        self.uniform(0.0, 1.0) < p
    }
}
