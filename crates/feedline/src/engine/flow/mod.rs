//! The hand-over: which rows are made by whom, in which memory, and which batch is next.
//!
//! One lock guards a short queue of open batches. Workers take slices of rows from it and report
//! them done; the consumer takes the oldest batch when all its rows are done. A slice is about a
//! millisecond of work, so the lock is taken rarely, and no work is done under it.
//!
//! Memory: `used` counts batches (open, free, in the user's hands) and the workers' scratch, and
//! never passes `limit`. A worker that needs more scratch than is left gives back all it has and
//! waits in line holding nothing, so workers cannot wait for each other in a circle. The row of
//! the oldest batch is first in line. If even that row cannot be served once all others hold
//! nothing, the newest batches are thrown away and made again later: they are pure functions, so
//! this costs time and nothing else.
//!
//! `workers` hands rows out and takes them back, `memory` grants bytes, `consumer` hands batches over,
//! `slice` is what one worker has in hand. `model.rs` explores the schedules of all of it with shuttle.

mod consumer;
mod memory;
mod slice;
mod workers;

pub(crate) use consumer::{Done, held_message};
pub(crate) use memory::{Grant, tail_for};
pub(crate) use slice::{Failure, Outcome, Slice};
pub(crate) use workers::Next;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slice::Tail;

use super::ahead::RowPosition;
use super::sync::{Condvar, Mutex, lock, wait, wait_for};
use crate::buffer::BatchMemory;
use crate::layout::BatchLayout;
use crate::order::Batches;

/// How long the loader waits for the program to drop a batch when they hold all the memory.
/// Another thread may be about to; the thread that asks for the next one cannot.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the stream of batches goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(crate) epoch: u64,
    pub(crate) batch: u64,
    /// Batches to leave out, and the epoch they are in: they were handed over already.
    pub(crate) skip: (u64, Vec<u64>),
}

impl Cursor {
    pub(crate) fn at(epoch: u64, batch: u64) -> Self {
        Cursor { epoch, batch, skip: (epoch, Vec::new()) }
    }

    /// The batch at the cursor, which then moves on.
    fn advance(&mut self, count: u64) -> (u64, u64) {
        loop {
            let here = (self.epoch, self.batch);
            self.batch += 1;
            if self.batch >= count {
                (self.epoch, self.batch) = (self.epoch + 1, 0);
            }
            if here.0 != self.skip.0 || !self.skip.1.contains(&here.1) {
                return here;
            }
        }
    }
}

struct Slot {
    id: u64,
    epoch: u64,
    batch: u64,
    rows: u64,
    /// The first row that no worker has taken.
    next_row: u64,
    /// Rows that are not done.
    remaining: u64,
    memory: Arc<BatchMemory>,
    outcome: Outcome,
    /// Tails of slices that are done, which have room left.
    tails: Vec<Tail>,
    /// All rows are made, and a worker has them all in hand to mix them.
    closing: bool,
}

/// What is done to a batch when its rows are made, before it is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Nothing.
    Nothing,
    /// One worker gets all rows at once, and one more that nobody sees. `made` says whether that
    /// one is made like the others before.
    Mix { made: bool },
}

impl Closing {
    /// Rows that are made beyond those of the batch.
    fn made(self) -> u64 {
        u64::from(self == Closing::Mix { made: true })
    }
}

struct FlowState {
    stopped: bool,
    /// Workers with a number below this take rows; the others rest.
    active: usize,
    /// Batches that may be open at once.
    ahead: usize,
    cursor: Cursor,
    slots: VecDeque<Slot>,
    next_id: u64,
    free: Vec<BatchMemory>,
    /// Tails that nobody uses.
    free_tails: Vec<Arc<BatchMemory>>,
    /// The most that the tails of a batch took.
    largest_tails: u64,
    used: u64,
    /// Of `used`: workers' scratch.
    scratch: u64,
    /// Of `used`: batches that the program holds.
    held: u64,
    /// The rows that wait for scratch, oldest batch first.
    line: BTreeSet<(u64, u64)>,
    /// Batches thrown away for want of memory.
    remade: u64,
    /// Time that workers had nothing to do because there was no memory for another batch.
    short: Duration,
    /// The system's refusal of memory that the limit allows.
    refused: Option<String>,
    /// A worker died of a mistake in the engine itself.
    broken: Option<String>,
    /// Since when the consumer waits for the next batch, also over several calls.
    hungry: Option<Instant>,
}

/// The hand-over between workers and consumer.
pub(crate) struct Flow {
    layout: Arc<BatchLayout>,
    batches: Batches,
    closing: Closing,
    limit: u64,
    patience: Duration,
    state: Mutex<FlowState>,
    /// Workers wait here for rows, memory, their turn or the end.
    work: Condvar,
    /// Workers that are not wanted now wait here, so that nothing wakes them but a change of that.
    resting: Condvar,
    /// The consumer waits here.
    ready: Condvar,
}

impl Flow {
    pub(crate) fn new(
        layout: Arc<BatchLayout>,
        batches: Batches,
        closing: Closing,
        ahead: usize,
        limit: u64,
        cursor: Cursor,
    ) -> Self {
        let state = FlowState {
            stopped: false,
            active: usize::MAX,
            ahead: ahead.max(1),
            cursor,
            slots: VecDeque::with_capacity(ahead),
            next_id: 0,
            free: Vec::new(),
            free_tails: Vec::new(),
            largest_tails: 0,
            used: 0,
            scratch: 0,
            held: 0,
            line: BTreeSet::new(),
            remade: 0,
            short: Duration::ZERO,
            refused: None,
            broken: None,
            hungry: None,
        };
        Flow {
            layout,
            batches,
            closing,
            limit,
            patience: PATIENCE,
            state: Mutex::new(state),
            work: Condvar::new(),
            resting: Condvar::new(),
            ready: Condvar::new(),
        }
    }

    fn batch_bytes(&self) -> u64 {
        self.layout.bytes() as u64
    }

    /// From now on `active` workers (one at least) take rows, and `ahead` batches (one at least)
    /// may be open. What is open beyond that is finished and handed over as ever.
    pub(crate) fn adjust(&self, active: usize, ahead: usize) {
        let mut state = lock(&self.state);
        (state.active, state.ahead) = (active.max(1), ahead.max(1));
        // Memory beyond what that many batches take in turn is not kept.
        while state.free.len() > state.ahead {
            state.free.pop();
            state.used -= self.batch_bytes();
        }
        self.resting.notify_all();
        self.work.notify_all();
    }

    /// Throws all open batches away and goes on at `cursor`.
    pub(crate) fn seek(&self, cursor: Cursor) {
        let mut state = lock(&self.state);
        state.cursor = cursor;
        while let Some(mut slot) = state.slots.pop_back() {
            slot.tails.clear();
            self.let_go(&mut state, slot.memory);
        }
        self.work.notify_all();
    }

    /// Ends everything: workers stop at their next question.
    pub(crate) fn stop(&self) {
        let mut state = lock(&self.state);
        state.stopped = true;
        while let Some(mut slot) = state.slots.pop_back() {
            slot.tails.clear();
            self.let_go(&mut state, slot.memory);
        }
        self.drop_free(&mut state);
        self.work.notify_all();
        self.resting.notify_all();
        self.ready.notify_all();
    }

    /// Notifies the consumer that it waits in vain.
    pub(crate) fn break_down(&self, reason: String) {
        lock(&self.state).broken = Some(reason);
        self.ready.notify_all();
    }

    /// Whether the next batch to be handed over is that one anyway.
    pub(crate) fn is_at(&self, epoch: u64, batch: u64) -> bool {
        let state = lock(&self.state);
        let next = state
            .slots
            .front()
            .map_or((state.cursor.epoch, state.cursor.batch), |s| (s.epoch, s.batch));
        next == (epoch, batch)
    }

    /// The first row that no worker has taken.
    pub(crate) fn reached(&self) -> RowPosition {
        let state = lock(&self.state);
        let slot = state.slots.iter().find(|slot| slot.next_row < slot.rows);
        slot.map_or(
            RowPosition { epoch: state.cursor.epoch, batch: state.cursor.batch, row: 0 },
            |slot| RowPosition { epoch: slot.epoch, batch: slot.batch, row: slot.next_row },
        )
    }

    /// Figures for people.
    pub(crate) fn figures(&self) -> FlowStats {
        let state = lock(&self.state);
        FlowStats {
            limit: self.limit,
            used: state.used,
            scratch: state.scratch,
            held: state.held,
            ready: state.slots.iter().filter(|slot| slot.remaining == 0).count() as u64,
            open: state.slots.len() as u64,
            ahead: state.ahead as u64,
            workers: state.active as u64,
            waiting_for_memory: state.line.len() as u64,
            remade: state.remade,
            short_of_memory: state.short,
        }
    }
}

/// How the queue and the memory stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FlowStats {
    /// Bytes that may be held.
    pub limit: u64,
    /// Bytes that are held: batches and scratch.
    pub used: u64,
    /// Of these, workers' scratch.
    pub scratch: u64,
    /// Of these, batches that the program holds.
    pub held: u64,
    /// Batches that are done and wait for the program.
    pub ready: u64,
    /// Batches that are done or in the making.
    pub open: u64,
    /// Batches that may be open.
    pub ahead: u64,
    /// Workers that may take rows.
    pub workers: u64,
    /// Rows that wait for memory.
    pub waiting_for_memory: u64,
    /// Batches thrown away for want of memory and made again.
    pub remade: u64,
    /// Time that workers had nothing to do because there was no memory for another batch, all
    /// together.
    pub short_of_memory: Duration,
}
