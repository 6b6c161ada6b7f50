//! Blocks that are read as a whole, as a compressed chunk or shard is, and kept for a while.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Fault;

/// How the samples of a source lie in blocks: block `b` holds those from `ends[b - 1]` up to
/// `ends[b]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blocks {
    /// Where each block ends, in samples. Rising; the last is the number of samples.
    pub ends: Vec<u64>,
    /// Bytes of the largest block in memory.
    pub bytes: u64,
}

impl Blocks {
    /// Blocks of `each` samples; the last may have fewer.
    #[must_use]
    pub fn even(samples: u64, each: u64, bytes: u64) -> Blocks {
        let each = each.max(1);
        let ends = (1..=samples.div_ceil(each)).map(|block| (block * each).min(samples)).collect();
        Blocks { ends, bytes }
    }
}

enum BlockSlot<T> {
    /// Some thread makes it; the others wait.
    Making,
    Ready {
        block: Arc<T>,
        bytes: u64,
        /// When it was last asked for.
        used: u64,
    },
}

struct BlockCacheState<T> {
    places: HashMap<u64, BlockSlot<T>>,
    bytes: u64,
    /// What those that are being made will take.
    making: u64,
    clock: u64,
}

/// The blocks used last, within a limit that counts those in the making as well. One block alone
/// may be larger; what a sample is being copied from stays alive beyond it.
pub struct BlockCache<T> {
    limit: u64,
    state: Mutex<BlockCacheState<T>>,
    made: Condvar,
}

/// Takes the note back that a block is being made, if making it fails or panics.
struct Making<'a, T> {
    cache: &'a BlockCache<T>,
    number: u64,
    expected: u64,
}

impl<T> Drop for Making<'_, T> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        state.making -= self.expected;
        if matches!(state.places.get(&self.number), Some(BlockSlot::Making)) {
            state.places.remove(&self.number);
        }
        drop(state);
        self.cache.made.notify_all();
    }
}

impl<T> BlockCache<T> {
    /// Keeps up to `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let state = BlockCacheState { places: HashMap::new(), bytes: 0, making: 0, clock: 0 };
        BlockCache { limit, state: Mutex::new(state), made: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BlockCacheState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that may be kept.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Block `number`, if it is there.
    #[must_use]
    pub fn kept(&self, number: u64) -> Option<Arc<T>> {
        let mut state = self.lock();
        state.clock += 1;
        let now = state.clock;
        match state.places.get_mut(&number)? {
            BlockSlot::Ready { block, used, .. } => {
                *used = now;
                Some(block.clone())
            }
            BlockSlot::Making => None,
        }
    }

    /// Block `number`. If it is not there, `make` makes it and says how many bytes it takes,
    /// `expected` at most; other threads that want it wait for that, and no lock is held meanwhile.
    /// A failure is not kept.
    pub fn get(
        &self,
        number: u64,
        expected: u64,
        make: impl FnOnce() -> Result<(T, u64), Fault>,
    ) -> Result<Arc<T>, Fault> {
        let mut state = self.lock();
        loop {
            state.clock += 1;
            let now = state.clock;
            let fits = state.making == 0 || state.making.saturating_add(expected) <= self.limit;
            match state.places.get_mut(&number) {
                Some(BlockSlot::Ready { block, used, .. }) => {
                    *used = now;
                    return Ok(block.clone());
                }
                Some(BlockSlot::Making) => {}
                // Threads that need other blocks take turns where these do not fit side by side.
                None if fits => break,
                None => {}
            }
            state = self.made.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut dropped = Vec::new();
        state.places.insert(number, BlockSlot::Making);
        state.making = state.making.saturating_add(expected);
        let making = Making { cache: self, number, expected };
        let room = self.limit.saturating_sub(state.making);
        state.shrink(room, &mut dropped);
        drop(state);
        dropped.clear();
        let (block, bytes) = make()?;
        let block = Arc::new(block);
        let mut state = self.lock();
        state.clock += 1;
        let used = state.clock;
        state.places.insert(number, BlockSlot::Ready { block: block.clone(), bytes, used });
        state.bytes = state.bytes.saturating_add(bytes);
        state.shrink(self.limit, &mut dropped);
        drop(state);
        drop(making);
        Ok(block)
    }
}

impl<T> BlockCacheState<T> {
    /// Takes out the blocks that were used longest ago until `limit` holds.
    fn shrink(&mut self, limit: u64, dropped: &mut Vec<Arc<T>>) {
        while self.bytes > limit {
            // Few blocks are open at a time, so a look at all of them is cheap.
            let oldest = self
                .places
                .iter()
                .filter_map(|(at, place)| match place {
                    BlockSlot::Ready { used, .. } => Some((*used, *at)),
                    BlockSlot::Making => None,
                })
                .min();
            let Some((_, at)) = oldest else { break };
            if let Some(BlockSlot::Ready { block, bytes, .. }) = self.places.remove(&at) {
                self.bytes -= bytes;
                dropped.push(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[test]
    fn the_oldest_goes_and_the_limit_holds() {
        let cache = BlockCache::new(10);
        let made = AtomicUsize::new(0);
        let get = |number: u64| {
            let make = || {
                made.fetch_add(1, Relaxed);
                Ok((number, 4))
            };
            *cache.get(number, 4, make).unwrap()
        };
        assert_eq!([get(1), get(2), get(1), get(3)], [1, 2, 1, 3]);
        assert_eq!((made.load(Relaxed), cache.bytes()), (3, 8), "2 went");
        assert_eq!([get(1), get(3)], [1, 3]);
        assert_eq!(made.load(Relaxed), 3);
        assert_eq!(get(2), 2);
        assert_eq!(made.load(Relaxed), 4);
    }

    #[test]
    fn a_block_larger_than_the_limit_is_given_and_not_kept() {
        let cache = BlockCache::new(10);
        assert_eq!(*cache.get(0, 11, || Ok((7, 11))).unwrap(), 7);
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn many_threads_make_a_block_once_and_a_failure_or_panic_again() {
        let cache = BlockCache::new(100);
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let block = cache.get(5, 1, || {
                        made.fetch_add(1, Relaxed);
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        Ok((9, 1))
                    });
                    assert_eq!(*block.unwrap(), 9);
                });
            }
        });
        assert_eq!(made.load(Relaxed), 1);
        assert!(cache.get(6, 1, || Err(Fault::Cancelled)).is_err());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = cache.get(6, 1, || panic!("no"));
        }));
        assert!(panicked.is_err());
        assert_eq!(*cache.get(6, 1, || Ok((1, 1))).unwrap(), 1);
    }

    #[test]
    fn blocks_in_the_making_count_and_wait_for_each_other() {
        let cache = BlockCache::new(10);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (cache, now, most) = (&cache, &now, &most);
                scope.spawn(move || {
                    for round in 0..50 {
                        let make = || {
                            let bytes = now.fetch_add(4, Relaxed) + 4;
                            most.fetch_max(bytes + cache.bytes() as usize, Relaxed);
                            std::thread::yield_now();
                            now.fetch_sub(4, Relaxed);
                            Ok(((), 4))
                        };
                        cache.get(number * 100 + round, 4, make).unwrap();
                    }
                });
            }
        });
        // One that is done may be counted with the next before it leaves the making.
        assert!(most.load(Relaxed) <= 14, "{most:?}");
        let make = || Ok(((), 1));
        cache.get(0, 1 << 40, make).unwrap();
    }

    #[test]
    fn even_blocks_end_with_the_samples() {
        assert_eq!(Blocks::even(10, 4, 1).ends, [4, 8, 10]);
        assert_eq!(Blocks::even(8, 4, 1).ends, [4, 8]);
        assert!(Blocks::even(0, 4, 1).ends.is_empty());
    }
}
