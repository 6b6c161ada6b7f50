//! Samples kept in memory: one copy for the whole process, within a limit.
//!
//! What came first stays. In a shuffled order every part of the set is as good as any other to
//! keep, so evicting would only cost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Bytes of one sample, with the image's size when they are pixels.
pub(crate) struct Cached {
    /// Encoded bytes, or interleaved pixels.
    pub bytes: Box<[u8]>,
    /// Height, width and channels of pixels; zeros for encoded bytes.
    pub shape: [u32; 3],
    /// Bytes that it took to read and decode it.
    pub need: u64,
}

/// A place for each sample of a source.
pub(crate) struct Cache {
    /// `None` where there was no room, which there never will be again.
    places: Vec<OnceLock<Option<Cached>>>,
    limit: u64,
    /// Shared with the caches of the other sources.
    used: Arc<AtomicU64>,
}

impl Cache {
    /// A cache for each source of so many samples; all together take at most `limit` bytes.
    #[must_use]
    pub(crate) fn sharing(samples: impl Iterator<Item = u64>, limit: u64) -> Vec<Cache> {
        let used = Arc::new(AtomicU64::new(0));
        samples
            .map(|samples| {
                let mut places = Vec::new();
                places.resize_with(samples as usize, OnceLock::new);
                Cache { places, limit, used: used.clone() }
            })
            .collect()
    }

    /// The sample, if it is kept.
    #[must_use]
    pub(crate) fn get(&self, index: u64) -> Option<&Cached> {
        self.places.get(index as usize)?.get()?.as_ref()
    }

    /// Keeps a copy if there is room; false if there is none.
    pub(crate) fn put(&self, index: u64, bytes: &[u8], shape: [u32; 3], need: u64) -> bool {
        let Some(place) = self.places.get(index as usize) else { return false };
        // A second worker with the same sample waits for the first one's copy, so that it is not
        // counted twice for a moment.
        let kept = place.get_or_init(|| {
            let size = bytes.len() as u64;
            // The room is taken before the copy is made, so that the limit holds at every moment.
            let taken = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(size).filter(|sum| *sum <= self.limit)
            });
            taken.ok().map(|_| Cached { bytes: bytes.into(), shape, need })
        });
        kept.is_some()
    }

    /// Bytes kept, in all caches that share the limit.
    #[must_use]
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Bytes allowed.
    #[must_use]
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_and_the_first_stays() {
        let caches = Cache::sharing([3, 1].into_iter(), 10);
        let cache = &caches[0];
        assert!(cache.put(0, b"123456", [0; 3], 0));
        assert!(!cache.put(1, b"12345", [0; 3], 0));
        assert!(cache.put(2, b"1234", [0; 3], 0));
        assert!(cache.put(0, b"other", [0; 3], 0));
        assert_eq!((&*cache.get(0).unwrap().bytes, cache.used()), (&b"123456"[..], 10));
        assert!(
            cache.get(1).is_none() && cache.get(99).is_none() && !cache.put(99, b"", [0; 3], 0)
        );
        assert!(!caches[1].put(0, b"1", [0; 3], 0), "the limit is shared");
    }
}
