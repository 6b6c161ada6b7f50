//! Several sources in one endless stream, each with its share, in constant time.
//!
//! The first source takes place P of the stream when its share's running total, P x share,
//! passes a whole number there; that total is also the number of its samples before P. What it
//! leaves over is a stream for the others, split in the same way. So no running count is kept,
//! every prefix of the stream has the shares right to within one sample, and a source gives all
//! its samples before it gives one again.

use super::{MIX, Permutation, Pick};
use crate::random::key;

/// With shuffling, places are permuted within blocks of so many: long enough to hide the regular
/// pattern of the split, short enough that every batch has the shares nearly right.
const BLOCK: u64 = 256;

/// Shares are fractions of 2^32.
const ONE: f64 = 4_294_967_296.0;

/// A source whose share is too small to ever have a turn.
pub(super) fn without_a_place(shares: &[f64]) -> Option<usize> {
    let largest = shares.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let total: f64 = shares.iter().map(|share| share / largest).sum();
    shares.iter().position(|share| share / largest / total * ONE < 1.0)
}

pub(super) struct Mix {
    /// Each source's share of what the sources before it leave over.
    shares: Vec<u128>,
    sizes: Vec<u64>,
    shuffle: bool,
}

impl Mix {
    pub(super) fn new(shares: &[f64], sizes: &[u64], shuffle: bool) -> Self {
        let largest = shares.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let shares: Vec<f64> = shares.iter().map(|share| share / largest).collect();
        let of_rest =
            |at: usize| (shares[at] / shares[at..].iter().sum::<f64>() * ONE).round() as u128;
        Mix { shares: (0..shares.len()).map(of_rest).collect(), sizes: sizes.to_vec(), shuffle }
    }

    pub(super) fn pick(&self, seed: u64, place: u128) -> Pick {
        let mut place = place;
        if self.shuffle {
            let block = place / u128::from(BLOCK);
            let inside = (place % u128::from(BLOCK)) as u64;
            let moved = Permutation::new(BLOCK, key(seed, block as u64, MIX)).apply(inside);
            place = block * u128::from(BLOCK) + u128::from(moved);
        }
        let last = self.shares.len() - 1;
        let mut source = 0;
        let number = loop {
            let before = (place * self.shares[source]) >> 32;
            let after = ((place + 1) * self.shares[source]) >> 32;
            if source == last {
                break place;
            }
            if after > before {
                break before;
            }
            place -= before;
            source += 1;
        };
        let size = self.sizes[source].max(1);
        let round = (number / u128::from(size)) as u64;
        let index = (number % u128::from(size)) as u64;
        let index = if self.shuffle {
            Permutation::new(size, key(seed ^ (source as u64 + 1), round, MIX)).apply(index)
        } else {
            index
        };
        Pick { source, index }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_have_the_shares_and_sources_keep_their_order() {
        let mix = Mix::new(&[0.5, 0.2, 0.3], &[1000, 1000, 1000], false);
        let mut counts = [0u64; 3];
        for place in 0..2000u64 {
            let pick = mix.pick(0, u128::from(place));
            assert_eq!(pick.index, counts[pick.source] % 1000);
            counts[pick.source] += 1;
            for (count, share) in counts.iter().zip([0.5, 0.2, 0.3]) {
                assert!(
                    (*count as f64 - share * (place + 1) as f64).abs() < 2.0,
                    "{counts:?} after {place}"
                );
            }
        }
    }

    #[test]
    fn a_tiny_share_still_has_its_turn() {
        let mix = Mix::new(&[1.0, 1e-6], &[10, 10], true);
        let rare =
            (0..4_000_000u64).filter(|place| mix.pick(1, u128::from(*place)).source == 1).count();
        assert!((3..=5).contains(&rare), "{rare}");
    }
}
