//! Reading ahead when the page cache is cold: the order is known, so the store is notified early.
//!
//! Workers watch how long their reads take. While they are slow, a few threads walk ahead of them
//! in the epochs' order and give the store hints. A hint changes no result and reports no error.
//! With a warm cache there are no threads, and a sample costs one comparison.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::sync::{Condvar, Mutex, lock, wait_for};
use super::work::Shared;
use crate::order::Batches;
use crate::sample::Location;
use crate::store::Hint;

/// A warm read of a photo takes 20 µs; a disk takes at least a few hundred.
const SLOW: Duration = Duration::from_micros(300);

/// So many slow reads of a worker's last 32 mean a cold cache. One alone may be a worker that lost
/// its core for a moment.
const SLOW_READS: u32 = 4;

/// Disks answer several questions at once.
const THREADS: usize = 4;

/// How far the walk is ahead: four batches, but at least this many samples.
const WINDOW: u64 = 256;

/// The most bytes that the walk is ahead: the page cache serves others, too.
const WINDOW_BYTES: u64 = 64 << 20;

/// After so many hints in a row that found the bytes near, the cache counts as warm.
const NEAR_HINTS: u32 = 512;

/// Threads with nothing to do end after this time.
const IDLE: Duration = Duration::from_secs(1);

/// When all bytes were near although reads are slow, hints do not help: not asked again so long.
const PAUSE: Duration = Duration::from_secs(10);

/// A row of a batch of an epoch, in the order in which they are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RowPosition {
    pub(crate) epoch: u64,
    pub(crate) batch: u64,
    pub(crate) row: u64,
}

impl RowPosition {
    fn number(self, batches: &Batches) -> u128 {
        let batch = u128::from(self.epoch) * u128::from(batches.count()) + u128::from(self.batch);
        batch * u128::from(batches.rows(0)) + u128::from(self.row)
    }

    fn after(self, batches: &Batches) -> RowPosition {
        let RowPosition { epoch, batch, row } = self;
        if row + 1 < batches.rows(batch) {
            RowPosition { row: row + 1, ..self }
        } else if batch + 1 < batches.count() {
            RowPosition { epoch, batch: batch + 1, row: 0 }
        } else {
            RowPosition { epoch: epoch + 1, batch: 0, row: 0 }
        }
    }
}

/// What one worker has seen of its last reads.
#[derive(Default)]
pub(super) struct Reads(u32);

impl Reads {
    /// Notes a read of `bytes`; true if the cache counts as cold.
    pub(super) fn note(&mut self, time: Duration, bytes: usize) -> bool {
        // Copying out of the page cache takes at most a nanosecond a byte.
        let slow = time > SLOW + Duration::from_nanos(bytes as u64);
        self.0 = self.0 << 1 | u32::from(slow);
        self.0.count_ones() >= SLOW_READS
    }
}

struct AheadState {
    stopped: bool,
    threads: usize,
    /// The next row to give a hint for.
    next: RowPosition,
    /// Hints to give until the cache counts as warm.
    left: u32,
    /// Some hint since the walk began fetched something.
    of_use: bool,
    /// Slow reads start nothing before this time.
    not_before: Option<Instant>,
    /// Mean bytes of a file.
    bytes: u64,
}

/// The parts that a thread gave hints for last: the samples of a block need the same ones.
struct Recent {
    parts: [u64; 64],
    next: usize,
}

impl Recent {
    fn new() -> Recent {
        Recent { parts: [0; 64], next: 0 }
    }

    /// False if the part is among the last ones.
    fn add(&mut self, location: &Location<'_>) -> bool {
        let range = location.range.map_or([u64::MAX; 2], |(start, length)| [start, length]);
        let path = location.path.as_os_str().as_encoded_bytes();
        let seed = xxhash_rust::xxh3::xxh3_64(bytemuck::cast_slice(&range));
        // Zero stands for none.
        let part = xxhash_rust::xxh3::xxh3_64_with_seed(path, seed).max(1);
        if self.parts.contains(&part) {
            return false;
        }
        self.parts[self.next] = part;
        self.next = (self.next + 1) % self.parts.len();
        true
    }
}

/// The walk ahead of an engine's workers.
pub(super) struct Ahead {
    state: Mutex<AheadState>,
    /// Threads wait here for the workers to move on.
    moved: Condvar,
    /// The end waits here for threads.
    ended: Condvar,
    /// There are threads.
    walking: AtomicBool,
    hints: AtomicU64,
}

impl Ahead {
    pub(super) fn new() -> Self {
        let state = AheadState {
            stopped: false,
            threads: 0,
            next: RowPosition::default(),
            left: 0,
            of_use: false,
            not_before: None,
            bytes: 0,
        };
        Ahead {
            state: Mutex::new(state),
            moved: Condvar::new(),
            ended: Condvar::new(),
            walking: AtomicBool::new(false),
            hints: AtomicU64::new(0),
        }
    }

    /// Hints that were given.
    pub(super) fn hints(&self) -> u64 {
        self.hints.load(Relaxed)
    }

    /// A worker has read a file of `bytes`. Costs a comparison while nobody walks.
    pub(super) fn moved_on(&self, bytes: usize) {
        if self.walking.load(Relaxed) {
            let mut state = lock(&self.state);
            state.bytes = (state.bytes * 15 + bytes as u64) / 16;
            drop(state);
            self.moved.notify_one();
        }
    }

    /// Reads are slow: begins to walk, or goes on.
    pub(super) fn begin(self: &Arc<Self>, shared: &Arc<Shared>, bytes: usize) {
        let mut state = lock(&self.state);
        if state.stopped || state.not_before.is_some_and(|time| Instant::now() < time) {
            return;
        }
        state.left = NEAR_HINTS;
        let missing = THREADS.saturating_sub(state.threads);
        if missing == THREADS {
            (state.bytes, state.of_use, state.not_before) = (bytes as u64, false, None);
        }
        state.threads += missing;
        self.walking.store(true, Relaxed);
        drop(state);
        for _ in 0..missing {
            let (ahead, shared) = (self.clone(), shared.clone());
            let walk = move || {
                // The store and the source are the program's: a panic there shows in the read.
                let _ = catch_unwind(AssertUnwindSafe(|| ahead.walk(&shared)));
                // Whoever waits for the thread may rely on it holding nothing.
                drop(shared);
                ahead.thread_ended();
            };
            let name = "feedline-ahead".to_owned();
            if std::thread::Builder::new().name(name).spawn(walk).is_err() {
                self.thread_ended();
            }
        }
    }

    fn thread_ended(&self) {
        let mut state = lock(&self.state);
        state.threads -= 1;
        self.walking.store(state.threads > 0, Relaxed);
        self.ended.notify_all();
    }

    /// Ends the walk; threads that hang in a hint are left behind after `deadline`.
    pub(super) fn stop(&self, deadline: Instant) {
        let mut state = lock(&self.state);
        state.stopped = true;
        self.moved.notify_all();
        while state.threads > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = wait_for(&self.ended, state, left);
        }
    }

    fn walk(&self, shared: &Shared) {
        let plan = &shared.plan;
        let Some(field) = plan.read_field else { return };
        let (mut epoch, mut recent) = (None, Recent::new());
        while let Some(place) = self.next(shared) {
            let order = match epoch.take() {
                Some((number, order)) if number == place.epoch => order,
                _ => plan.order.epoch(place.epoch),
            };
            let pick = order.pick(plan.batches.row(place.batch, place.row).position);
            epoch = Some((place.epoch, order));
            let kept = shared.caches.get(pick.source).and_then(|cache| cache.get(pick.index));
            let mut hint = Hint::Near;
            if kept.is_none() {
                plan.sources[pick.source].needs(pick.index, field, &mut |location| {
                    if recent.add(location) {
                        self.hints.fetch_add(1, Relaxed);
                        hint = hint.or(plan.store.hint(location));
                    }
                });
            }
            self.note(hint);
        }
    }

    fn note(&self, hint: Hint) {
        let mut state = lock(&self.state);
        match hint {
            Hint::Fetching => (state.left, state.of_use) = (NEAR_HINTS, true),
            Hint::Near => state.left = state.left.saturating_sub(1),
            Hint::Unused => state.left = 0,
        }
        if state.left == 0 && !state.of_use {
            state.not_before = Some(Instant::now() + PAUSE);
        }
    }

    /// The next row to give a hint for; `None` when it is time to end.
    fn next(&self, shared: &Shared) -> Option<RowPosition> {
        let batches = &shared.plan.batches;
        let idle = Instant::now() + IDLE;
        loop {
            // The flow's lock is not taken under this one.
            let reached = shared.flow.reached();
            let mut state = lock(&self.state);
            if state.stopped {
                return None;
            }
            if state.left > 0 {
                let window =
                    (4 * batches.rows(0)).max(WINDOW).min(WINDOW_BYTES / state.bytes.max(1)).max(1);
                let first = reached.number(batches);
                let end = first + u128::from(window);
                // Before it, or far beyond it: the program has gone somewhere else. One window of
                // slack, for rows that are taken back for want of memory.
                let number = state.next.number(batches);
                if number < first || number > end + u128::from(window) {
                    state.next = reached;
                }
                if state.next.number(batches) < end {
                    let place = state.next;
                    state.next = place.after(batches);
                    return Some(place);
                }
            }
            let left = idle.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            drop(wait_for(&self.moved, state, left));
        }
    }
}
