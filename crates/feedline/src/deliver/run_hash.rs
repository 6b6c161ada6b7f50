//! One number for a whole run.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The hashes of batches, joined in their order: two runs with the same batches have the same
/// one, on any machine and with any number of workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunHash(u64);

impl RunHash {
    /// Takes the next batch's [`Batch::hash`](super::Batch::hash).
    pub fn add(&mut self, batch: u64) {
        self.0 = xxh3_64_with_seed(&batch.to_le_bytes(), self.0);
    }

    /// The hash of all batches so far; 0 before the first.
    #[must_use]
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_counts() {
        let hash = |batches: &[u64]| {
            let mut hash = RunHash::default();
            batches.iter().for_each(|batch| hash.add(*batch));
            hash.value()
        };
        assert_eq!(hash(&[1, 2]), hash(&[1, 2]));
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
        assert_ne!(hash(&[1, 2]), hash(&[1]));
    }
}
