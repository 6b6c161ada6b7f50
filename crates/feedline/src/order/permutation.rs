//! A keyed permutation of `0..n` that is computed, not stored.
//!
//! A Feistel network over the smallest power of two that holds n, walked until the result lies
//! below n (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). The halves differ
//! by at most one bit, so the domain is below 2n and a lookup takes under two passes on average.

use crate::random::key;

/// Enough for a domain of 16 bits and more; see `rounds_for`.
const ROUNDS: usize = 8;
const MOST_ROUNDS: usize = 24;

/// A permutation of `0..n`.
///
/// ```
/// use feedline::internals::order::Permutation;
/// let shuffle = Permutation::new(1_000_000_000_000, 7);
/// assert!(shuffle.apply(3) < 1_000_000_000_000);
/// ```
#[derive(Debug, Clone)]
pub struct Permutation {
    n: u64,
    low_bits: u32,
    low_mask: u64,
    high_mask: u64,
    rounds: usize,
    keys: [u64; MOST_ROUNDS],
}

/// Narrow halves mix less in a round, and lookups in small sets are cheap anyway.
fn rounds_for(bits: u32) -> usize {
    match bits {
        0..=7 => MOST_ROUNDS,
        8..=15 => 2 * ROUNDS,
        _ => ROUNDS,
    }
}

fn mix(value: u64, key: u64) -> u64 {
    let x = (value ^ key).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let x = (x ^ (x >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 29)
}

impl Permutation {
    /// The permutation of `0..n` for `seed`.
    #[must_use]
    pub fn new(n: u64, seed: u64) -> Self {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        let low_bits = bits / 2;
        let rounds = rounds_for(bits);
        let mut keys = [0; MOST_ROUNDS];
        for (round, slot) in keys[..rounds].iter_mut().enumerate() {
            *slot = key(seed, round as u64, 0);
        }
        let mask = |bits: u32| 1u64.checked_shl(bits).map_or(u64::MAX, |x| x - 1);
        Permutation {
            n,
            low_bits,
            low_mask: mask(low_bits),
            high_mask: mask(bits - low_bits),
            rounds,
            keys,
        }
    }

    /// Where `position` goes. Positions at or beyond n stay where they are.
    #[must_use]
    pub fn apply(&self, position: u64) -> u64 {
        if position >= self.n || self.n < 2 {
            return position;
        }
        let mut x = position;
        loop {
            let mut low = x & self.low_mask;
            let mut high = x >> self.low_bits;
            for pair in self.keys[..self.rounds].chunks_exact(2) {
                high ^= mix(low, pair[0]) & self.high_mask;
                low ^= mix(high, pair[1]) & self.low_mask;
            }
            x = high << self.low_bits | low;
            if x < self.n {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bijection_for_odd_sizes() {
        let mut sizes = vec![0u64, 1, 2, 3, 4, 5, 6, 7, 11, 13, 97, 101, 997, 7919, 65537, 100_003];
        sizes.extend((3..=17).flat_map(|k| [(1 << k) - 1, 1 << k, (1 << k) + 1]));
        for n in sizes {
            let permutation = Permutation::new(n, n ^ 5);
            let mut seen = vec![false; n as usize];
            for position in 0..n {
                let to = permutation.apply(position);
                assert!(!std::mem::replace(&mut seen[to as usize], true), "n = {n}: {to} twice");
            }
        }
    }

    #[test]
    fn large_sizes_stay_inside_and_apart() {
        for n in [1_000_000_000_000u64, u64::MAX, 1 << 63, (1 << 40) + 1] {
            let permutation = Permutation::new(n, 3);
            let mut seen = std::collections::HashSet::new();
            for position in (0..50_000).chain(n - 50_000..n) {
                let to = permutation.apply(position);
                assert!(to < n && seen.insert(to), "n = {n}");
            }
        }
    }

    /// Chi-square over cells that are equally likely; the bound is 5 sigma.
    fn check_uniform(counts: &[u64], what: &str) {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        let chi: f64 = counts.iter().map(|c| (*c as f64 - expected).powi(2) / expected).sum();
        let freedom = (counts.len() - 1) as f64;
        assert!(
            (chi - freedom) / (2.0 * freedom).sqrt() < 5.0,
            "{what}: chi-square {chi:.1} for {freedom}"
        );
    }

    #[test]
    fn every_order_of_a_few_is_equally_likely() {
        for n in [3u64, 4, 5] {
            let mut counts = std::collections::HashMap::new();
            for seed in 0..60_000 {
                let permutation = Permutation::new(n, seed);
                let code = (0..n).fold(0, |code, i| code * n + permutation.apply(i));
                *counts.entry(code).or_insert(0u64) += 1;
            }
            assert_eq!(counts.len() as u64, (1..=n).product::<u64>());
            check_uniform(&counts.into_values().collect::<Vec<_>>(), &format!("orders of {n}"));
        }
    }

    #[test]
    fn every_place_and_every_neighbour_is_equally_likely() {
        for n in [10u64, 31, 64, 100, 300] {
            let mut places = vec![0u64; (n * n) as usize];
            let mut steps = vec![0u64; n as usize - 1];
            for seed in 0..20_000 {
                let permutation = Permutation::new(n, seed);
                for i in [0, 1, n / 2, n - 1] {
                    places[(i * n + permutation.apply(i)) as usize] += 1;
                }
                let step = (permutation.apply(1) + n - permutation.apply(0)) % n;
                steps[step as usize - 1] += 1;
            }
            for i in [0, 1, n / 2, n - 1] {
                check_uniform(
                    &places[(i * n) as usize..((i + 1) * n) as usize],
                    &format!("place of {i} in {n}"),
                );
            }
            check_uniform(&steps, &format!("distance of neighbours in {n}"));
        }
    }

    #[test]
    fn one_large_shuffle_looks_random() {
        // Mean distance of neighbours is n/3 and the correlation of place and value is nil.
        let n = 1_000_003u64;
        let permutation = Permutation::new(n, 11);
        let values: Vec<f64> = (0..n).map(|i| permutation.apply(i) as f64 / n as f64).collect();
        let distance = values.windows(2).map(|w| (w[0] - w[1]).abs()).sum::<f64>() / n as f64;
        assert!((distance - 1.0 / 3.0).abs() < 0.002, "{distance}");
        let mean: f64 = values
            .iter()
            .enumerate()
            .map(|(i, v)| (i as f64 / n as f64 - 0.5) * (v - 0.5))
            .sum::<f64>();
        assert!((mean / n as f64 * 12.0).abs() < 0.005, "{mean}");
    }
}
