//! One worker: the whole chain of a sample, from its bytes to its row of the batch.
//!
//! `row` makes one row, `read` gets a sample's bytes, `image` makes them pixels of the row, `mix`
//! mixes the rows of a whole batch, `memory` asks for what all of it takes.

mod image;
mod memory;
mod mix;
mod read;
mod row;

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::ahead::{Ahead, Reads};
use super::flow::{Flow, Next, Outcome, Slice};
use super::plan::Plan;
use super::sync::Mutex;
use crate::buffer::Slab;
use crate::decode::Decoder;
use crate::error::{Fault, Stage};
use crate::image::Scratch;
use crate::observe::{
    ConsumerCounters, Look, Pace, SlowPlaces, Timeline, Times, WorkerCounters, thread_cpu,
};
use crate::store::Cache;
use crate::tune::Tuning;

/// What a slice should take: long enough to make the lock cheap, short enough to share.
const SLICE: Duration = Duration::from_millis(1);

/// One of so many small samples is timed part by part; samples above 50 µs are all timed.
const TIMED: u64 = 16;

/// Of one in so many of those it is asked whether reading waited or worked.
const ON_CORE: u64 = 8;

/// What the workers of an engine share.
pub(super) struct Shared {
    pub(super) plan: Arc<Plan>,
    pub(super) flow: Arc<Flow>,
    /// One for each source, if samples are kept.
    pub(super) caches: Vec<Cache>,
    pub(super) counters: Vec<WorkerCounters>,
    pub(super) consumer: ConsumerCounters,
    /// Whether workers time what they do; off only to measure what that costs.
    pub(super) observed: AtomicBool,
    /// Set if what happens when is to be kept.
    pub(super) timeline: OnceLock<Timeline>,
    pub(super) ahead: Arc<Ahead>,
    pub(super) slow_places: SlowPlaces,
    /// What was changed while it runs.
    pub(super) tuning: Mutex<Tuning>,
}

/// A worker's own memory.
pub(super) struct Worker {
    shared: Arc<Shared>,
    number: usize,
    decoder: Decoder,
    encoded: Slab,
    scratch: Scratch,
    /// Bytes that the flow granted for `encoded`, `scratch` and what libraries allocate.
    granted: u64,
    /// What decoding and transforming takes of the sample that is being made, whatever is kept of
    /// those before it.
    alone: u64,
    /// Mean time of a sample, to size slices by.
    mean: Duration,
    reads: Reads,
    pace: Pace,
}

/// Why a row was not made.
enum Trouble {
    Fault(Stage, Fault),
    /// So many bytes of scratch are needed, more than are granted.
    Memory(u64),
    /// So many bytes are needed, more than any sample may take.
    TooLarge(u64),
    Cancelled,
    /// The cache was demanded and is full.
    CacheFull(String),
}

fn in_read(fault: Fault) -> Trouble {
    Trouble::Fault(Stage::Read, fault)
}

fn in_decode(fault: Fault) -> Trouble {
    Trouble::Fault(Stage::Decode, fault)
}

fn in_transform(fault: Fault) -> Trouble {
    Trouble::Fault(Stage::Transform, fault)
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, number: usize) -> Self {
        Worker {
            shared,
            number,
            decoder: Decoder::new(),
            encoded: Slab::default(),
            scratch: Scratch::default(),
            granted: 0,
            alone: 0,
            mean: Duration::from_micros(100),
            reads: Reads::default(),
            pace: Pace::default(),
        }
    }

    /// Works until the flow stops.
    pub(super) fn run(mut self) {
        let shared = self.shared.clone();
        loop {
            let began = Instant::now();
            let next = shared.flow.take(self.number, self.granted, self.slice_rows(), true);
            shared.counters[self.number].idle(began.elapsed());
            match next {
                Next::Work(slice) => self.make(slice),
                Next::Shrink => self.give_scratch_back(),
                Next::Idle => {}
                Next::Rest => {
                    self.give_scratch_back();
                    shared.flow.rest(self.number);
                }
                Next::Stop => return self.give_scratch_back(),
            }
        }
    }

    /// Does one slice if there is one to do.
    pub(super) fn help(&mut self) -> bool {
        match self.shared.flow.take(self.number, self.granted, self.slice_rows(), false) {
            Next::Work(slice) => {
                self.make(slice);
                true
            }
            Next::Shrink => {
                self.give_scratch_back();
                true
            }
            Next::Idle | Next::Rest | Next::Stop => false,
        }
    }

    fn slice_rows(&self) -> u64 {
        (SLICE.as_nanos() / self.mean.as_nanos().max(1)).clamp(1, 1 << 20) as u64
    }

    fn make(&mut self, mut slice: Slice) {
        let shared = self.shared.clone();
        let observed = shared.observed.load(Ordering::Relaxed);
        let (began, cpu) = (Instant::now(), observed.then(thread_cpu));
        let order = shared.plan.order.epoch(slice.epoch);
        let draws = crate::random::key(shared.plan.spec.seed, slice.epoch, 0);
        let rows = slice.writer.rows();
        let mut outcome = Outcome::default();
        let every = if self.mean > Duration::from_micros(50) { 1 } else { TIMED };
        for row in rows.clone() {
            let look = match (row as u64).is_multiple_of(every) {
                _ if !observed => Look::Away,
                true if every == 1 && (row as u64).is_multiple_of(ON_CORE) => Look::Cores,
                true => Look::Times,
                false => Look::Away,
            };
            match self.make_row(&shared.plan, &order, draws, &mut slice, row, look, &mut outcome) {
                Ok(()) => {}
                Err(Some(error)) => {
                    outcome.error.get_or_insert((row as u64, error));
                }
                Err(None) => break,
            }
        }
        let time = began.elapsed();
        let cpu = cpu.map_or(Duration::ZERO, |before| thread_cpu().saturating_sub(before));
        let times = Times { wall: time, cpu };
        // A mean that follows within a few slices and is not thrown by one.
        self.mean = (self.mean * 3 + time / (rows.len().max(1) as u32)) / 4;
        shared.counters[self.number].finished(rows.len() as u64, times);
        if let Some(mut whole) = shared.flow.finish(slice, outcome) {
            self.mix(&mut whole, every);
            // All rows were in hand, so there is nothing more to close.
            let _ = shared.flow.finish(whole, Outcome::default());
        }
    }
}

/// What a panic said.
pub(super) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown".to_owned())
}
