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
//! `model.rs` explores the schedules of this file with shuttle.

#![allow(unsafe_code)]

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ahead::Place;
use super::sync::{Condvar, Mutex, lock, wait, wait_for};
use crate::buffer::BatchMemory;
use crate::collate::RowWriter;
use crate::error::{Error, SampleError};
use crate::layout::{BatchLayout, Entry};
use crate::order::{Batches, Pick};
use crate::spec::read::show_bytes;

/// How long the loader waits for the program to drop a batch when they hold all the memory.
/// Another thread may be about to; the thread that asks for the next one cannot.
const PATIENCE: Duration = Duration::from_secs(10);

/// Rows of no fixed length lie in pieces. A batch's first one is small, as batches of short text
/// are; each further one is four times as large, up to the largest.
const SMALLEST_TAIL: usize = 64 << 10;
const LARGEST_TAIL: usize = SMALLEST_TAIL << 6;

/// Pieces that are kept for the next batches.
const FREE_TAILS: usize = 64;

/// How often a waiting consumer is asked whether it still wants to: Ctrl-C feels instant.
const ASKING: Duration = Duration::from_millis(50);

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

/// Rows of a batch that one worker makes.
pub(crate) struct Slice {
    id: u64,
    pub(crate) epoch: u64,
    pub(crate) batch: u64,
    pub(crate) writer: RowWriter,
    /// Where rows of no fixed length go, with what is written of it.
    tail: Option<Tail>,
}

/// Memory for rows of no fixed length.
struct Tail {
    number: u64,
    memory: Arc<BatchMemory>,
    used: usize,
}

impl Slice {
    /// Room for `bytes` in the tail at hand, if it has them.
    pub(crate) fn room(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let Tail { memory, used, .. } = self.tail.as_ref()?;
        // SAFETY: what lies behind `used` is this slice's alone: a tail is with one slice at a
        // time, and nobody reads a batch before its last slice is done.
        (bytes <= memory.len() - used).then(|| unsafe { memory.range_mut(*used, bytes) })
    }

    /// What is left of the tail at hand.
    pub(crate) fn room_left(&self) -> usize {
        self.tail.as_ref().map_or(0, |tail| tail.memory.len() - tail.used)
    }

    /// Where the room at hand begins, to begin there again.
    pub(crate) fn mark(&self) -> (Option<u64>, usize) {
        self.tail.as_ref().map_or((None, 0), |tail| (Some(tail.number), tail.used))
    }

    /// Forgets what was written since `mark`: a row that is made again takes its room again.
    pub(crate) fn rewind(&mut self, mark: (Option<u64>, usize)) {
        if let Some(tail) = &mut self.tail {
            tail.used = if Some(tail.number) == mark.0 { mark.1 } else { 0 };
        }
    }

    /// The first `bytes` of the room belong to a row, whose place this is.
    pub(crate) fn keep(&mut self, bytes: usize) -> Entry {
        let Some(tail) = &mut self.tail else { return Entry::default() };
        let entry = Entry { tail: tail.number, start: tail.used as u64, length: bytes as u64 };
        // The next array begins where its elements are aligned.
        tail.used = (tail.used + bytes).next_multiple_of(16).min(tail.memory.len());
        entry
    }
}

/// A sample that failed, in the row it was for.
pub(crate) struct Failure {
    pub(crate) row: u64,
    pub(crate) pick: Pick,
    pub(crate) error: SampleError,
}

/// What became of a slice.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Samples that others stand in for.
    pub(crate) failures: Vec<Failure>,
    /// The first row that could not be made.
    pub(crate) error: Option<(u64, Error)>,
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

struct State {
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

/// A batch that is done.
pub(crate) struct Done {
    pub(crate) epoch: u64,
    pub(crate) batch: u64,
    pub(crate) rows: u64,
    pub(crate) memory: Arc<BatchMemory>,
    pub(crate) outcome: Outcome,
}

/// What a worker should do next.
pub(crate) enum Next {
    Work(Slice),
    /// Give all scratch back and ask again: somebody waits for it.
    Shrink,
    /// Nothing to do now (only when asked not to wait).
    Idle,
    /// Give all scratch back and [`Flow::rest`]: fewer workers are wanted.
    Rest,
    Stop,
}

/// The answer to a worker that needs scratch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    Granted,
    /// Give back everything and wait in line.
    Wait,
    /// The slice is not wanted any more.
    Cancelled,
    /// More than can ever be had: so many bytes.
    Never(u64),
    /// The program holds so many bytes in batches and does not drop them.
    Held(u64),
}

/// The hand-over between workers and consumer.
pub(crate) struct Flow {
    layout: Arc<BatchLayout>,
    batches: Batches,
    closing: Closing,
    limit: u64,
    patience: Duration,
    state: Mutex<State>,
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
        let state = State {
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

    /// Waits until `worker`, which holds no scratch, is wanted again or everything ends.
    pub(crate) fn rest(&self, worker: usize) {
        let mut state = lock(&self.state);
        while !state.stopped && worker >= state.active {
            state = wait(&self.resting, state);
        }
    }

    /// The next rows for `worker`, which holds `scratch` bytes; at most `rows` of them.
    pub(crate) fn take(&self, worker: usize, scratch: u64, rows: u64, may_wait: bool) -> Next {
        let mut state = lock(&self.state);
        loop {
            if state.stopped {
                return Next::Stop;
            }
            if worker >= state.active {
                return Next::Rest;
            }
            if scratch > 0 && !state.line.is_empty() {
                return Next::Shrink;
            }
            if let Some(slice) = self.assign(&mut state, rows) {
                return Next::Work(slice);
            }
            if self.open(&mut state) {
                // More rows than this worker takes: the others may help.
                self.work.notify_all();
                continue;
            }
            // Scratch that is kept for later must not stand in the way of the next batch.
            let starved = state.slots.len() < state.ahead.min(2) && state.line.is_empty();
            if scratch > 0 && starved && state.used + self.batch_bytes() > self.limit {
                return Next::Shrink;
            }
            if !may_wait {
                return Next::Idle;
            }
            // While the oldest batch is there to be taken, nobody waits for memory but for the program.
            let hungry = state.slots.front().is_none_or(|slot| slot.remaining > 0);
            let short = hungry
                && state.slots.len() < state.ahead
                && (!state.line.is_empty() || state.used + self.batch_bytes() > self.limit);
            let began = short.then(Instant::now);
            state = wait(&self.work, state);
            state.short += began.map_or(Duration::ZERO, |began| began.elapsed());
        }
    }

    fn assign(&self, state: &mut State, rows: u64) -> Option<Slice> {
        let slot = state.slots.iter_mut().find(|slot| slot.next_row < slot.rows)?;
        let start = slot.next_row;
        let end = slot.rows.min(start + rows.max(1));
        slot.next_row = end;
        let range = start as usize..end as usize;
        Some(Slice {
            id: slot.id,
            epoch: slot.epoch,
            batch: slot.batch,
            // SAFETY: `next_row` only grows, so no row of this slot is handed out twice, and the
            // consumer gets the slot only when every row is done. A slot that is thrown away
            // keeps its memory out of use until the last writer lets go of it (`let_go`).
            writer: unsafe { RowWriter::new(slot.memory.clone(), self.layout.clone(), range) },
            tail: slot.tails.pop(),
        })
    }

    /// Opens the batch at the cursor, if the queue and the memory have room for it.
    fn open(&self, state: &mut State) -> bool {
        // While somebody waits for scratch, memory goes there first.
        if state.slots.len() >= state.ahead || !state.line.is_empty() || self.batches.count() == 0 {
            return false;
        }
        // A batch that cannot be finished would have to be thrown away again.
        let tails = if state.slots.is_empty() { 0 } else { state.largest_tails };
        if tails > 0 && state.used + self.batch_bytes() + tails > self.limit + free_bytes(state) {
            return false;
        }
        let memory = match state.free.pop() {
            Some(memory) => memory,
            None if state.used + self.batch_bytes() <= self.limit => {
                match BatchMemory::new(self.layout.bytes()) {
                    Ok(memory) => {
                        state.used += self.batch_bytes();
                        memory
                    }
                    Err(error) => {
                        state.refused = Some(error.to_string());
                        self.ready.notify_all();
                        return false;
                    }
                }
            }
            None => return false,
        };
        let (epoch, batch) = state.cursor.advance(self.batches.count());
        let rows = self.batches.rows(batch) + self.closing.made();
        let id = state.next_id;
        state.next_id += 1;
        state.slots.push_back(Slot {
            id,
            epoch,
            batch,
            rows,
            next_row: 0,
            remaining: rows,
            memory: Arc::new(memory),
            outcome: Outcome::default(),
            tails: Vec::new(),
            closing: false,
        });
        true
    }

    /// Reports a slice done. If it was the last one of a batch that is to be mixed, the caller
    /// gets all rows to do that, and reports them done in turn.
    #[must_use]
    pub(crate) fn finish(&self, slice: Slice, outcome: Outcome) -> Option<Slice> {
        let rows = slice.writer.rows().len() as u64;
        let memory = slice.writer.into_memory();
        let mut state = lock(&self.state);
        match state.slots.iter_mut().find(|slot| slot.id == slice.id) {
            None => {
                drop(slice.tail);
                self.let_go(&mut state, memory);
                None
            }
            Some(slot) => {
                drop(memory);
                slot.tails.extend(slice.tail.filter(|tail| tail.used < tail.memory.len()));
                slot.remaining -= rows;
                slot.outcome.failures.extend(outcome.failures);
                if let Some((row, error)) = outcome.error
                    && slot.outcome.error.as_ref().is_none_or(|(first, _)| row < *first)
                {
                    slot.outcome.error = Some((row, error));
                }
                if slot.remaining > 0 {
                    return None;
                }
                let mixes = self.closing != Closing::Nothing && !slot.closing;
                if !mixes || slot.outcome.error.is_some() {
                    self.ready.notify_all();
                    return None;
                }
                slot.closing = true;
                let all = self.batches.rows(slot.batch) + 1;
                slot.remaining = all;
                let (layout, range) = (self.layout.clone(), 0..all as usize);
                Some(Slice {
                    id: slot.id,
                    epoch: slot.epoch,
                    batch: slot.batch,
                    // SAFETY: every row is done, so no writer is left; none comes, since all rows
                    // were handed out; and the consumer gets the slot only when this one is done.
                    writer: unsafe { RowWriter::new(slot.memory.clone(), layout, range) },
                    tail: None,
                })
            }
        }
    }

    /// Keeps a batch's memory for the next one, once nobody uses it.
    fn let_go(&self, state: &mut State, memory: Arc<BatchMemory>) {
        let Ok(mut memory) = Arc::try_unwrap(memory) else { return };
        let keep = !state.stopped && state.line.is_empty();
        for tail in memory.take_tails() {
            let spare = state.free_tails.len() < FREE_TAILS && tail.len() <= LARGEST_TAIL;
            if keep && spare && Arc::strong_count(&tail) == 1 {
                state.free_tails.push(tail);
            } else {
                state.used -= tail.len() as u64;
            }
        }
        if state.stopped || !state.line.is_empty() || state.free.len() >= state.ahead {
            drop(memory);
            state.used -= self.batch_bytes();
        } else {
            state.free.push(memory);
        }
        self.work.notify_all();
    }

    /// Asks for `need` bytes of scratch in all, of which the worker has `has`.
    pub(crate) fn grow(&self, has: u64, need: u64) -> Grant {
        if need <= has {
            return Grant::Granted;
        }
        let mut state = lock(&self.state);
        if state.stopped {
            return Grant::Cancelled;
        }
        if !state.line.is_empty() {
            return Grant::Wait;
        }
        if state.used + (need - has) > self.limit {
            self.drop_free(&mut state);
        }
        if state.used + (need - has) > self.limit {
            return Grant::Wait;
        }
        state.used += need - has;
        state.scratch += need - has;
        Grant::Granted
    }

    /// Gives scratch back.
    pub(crate) fn shrink(&self, bytes: u64) {
        if bytes > 0 {
            let mut state = lock(&self.state);
            state.used -= bytes;
            state.scratch -= bytes;
            self.work.notify_all();
        }
    }

    fn drop_free(&self, state: &mut State) {
        state.used -= self.batch_bytes() * state.free.len() as u64 + free_bytes(state);
        state.free.clear();
        state.free_tails.clear();
    }

    /// Gets `slice` memory for a row of `bytes`. `has` is scratch that the worker has for it: it may
    /// become the tail. If there is not enough, how much is needed; nothing if the slice is not
    /// wanted any more.
    pub(crate) fn tail(
        &self,
        slice: &mut Slice,
        bytes: usize,
        has: &mut u64,
    ) -> Result<(), Option<u64>> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        let Some(at) = state.slots.iter().position(|slot| slot.id == slice.id) else {
            return Err(None);
        };
        // A batch's first piece is small; where memory is short, so are the others.
        let least = tail_for(bytes);
        let usual = SMALLEST_TAIL << (2 * state.slots[at].memory.tail_count().min(3));
        let usual = usual.max(least);
        let fits = |state: &State, size: usize| state.used + size as u64 <= self.limit;
        let kept = state.free_tails.iter().position(|tail| tail.len() == usual);
        let tail = match kept {
            Some(at) => state.free_tails.swap_remove(at),
            None => {
                let size = if *has >= least as u64 {
                    *has -= least as u64;
                    state.scratch -= least as u64;
                    state.used -= least as u64;
                    least
                } else if !state.line.is_empty() {
                    return Err(Some(least as u64));
                } else {
                    if !fits(state, usual) {
                        self.drop_free(state);
                    }
                    if fits(state, usual) { usual } else { least }
                };
                if !fits(state, size) {
                    return Err(Some(size as u64));
                }
                match BatchMemory::new(size) {
                    Ok(tail) => {
                        state.used += size as u64;
                        Arc::new(tail)
                    }
                    Err(error) => {
                        state.refused = Some(error.to_string());
                        self.ready.notify_all();
                        return Err(None);
                    }
                }
            }
        };
        let slot = &mut state.slots[at];
        let number = slot.memory.add_tail(tail.clone());
        let before = slice.tail.replace(Tail { number, memory: tail, used: 0 });
        // What a large row leaves may do for smaller ones.
        slot.tails.extend(before.filter(|tail| tail.memory.len() - tail.used >= SMALLEST_TAIL));
        Ok(())
    }

    /// Waits in line, holding no scratch, until `need` bytes are there for this row.
    pub(crate) fn wait_for_scratch(&self, slice: &Slice, row: u64, need: u64) -> Grant {
        // The program may hold a batch while it asks for the next one: any loop does.
        let most = self.limit.saturating_sub(2 * self.batch_bytes());
        if need > most {
            return Grant::Never(most);
        }
        let place = (slice.id, row);
        let mut state = lock(&self.state);
        state.line.insert(place);
        // Workers that sleep on scratch they keep for later must give it back now.
        self.work.notify_all();
        let began = Instant::now();
        let answer = loop {
            if state.stopped || !state.slots.iter().any(|slot| slot.id == slice.id) {
                break Grant::Cancelled;
            }
            if state.line.first() == Some(&place) {
                self.drop_free(&mut state);
                if state.used + need <= self.limit {
                    state.used += need;
                    state.scratch += need;
                    break Grant::Granted;
                }
                let newest = state.slots.back().is_some_and(|slot| slot.id > slice.id);
                if state.scratch == 0 && newest {
                    self.throw_newest_away(&mut state);
                    continue;
                }
                // All that is held is this batch: there is nothing to wait for.
                let own = state.slots.iter().find(|slot| slot.id == slice.id);
                let own = own.map_or(0, |slot| self.batch_bytes() + slot.memory.tail_bytes());
                if state.used == own {
                    break Grant::Never(self.limit.saturating_sub(own));
                }
                if began.elapsed() >= self.patience && state.held > 0 && state.scratch == 0 {
                    break Grant::Held(state.held);
                }
            }
            state = wait_for(&self.work, state, self.patience);
        };
        state.line.remove(&place);
        // The next in line, or the workers that stood back for it.
        self.work.notify_all();
        answer
    }

    fn throw_newest_away(&self, state: &mut State) {
        if let Some(mut slot) = state.slots.pop_back() {
            slot.tails.clear();
            (state.cursor.epoch, state.cursor.batch) = (slot.epoch, slot.batch);
            state.remade += 1;
            self.let_go(state, slot.memory);
            // Whoever waits in line for one of its rows still holds on to its memory.
            self.work.notify_all();
        }
    }

    /// The next batch that is done. With `in_order` that is the oldest, otherwise any of its
    /// epoch. `help` is called, without the lock, when there is none: it may do some work and
    /// return true, or return false to let the caller wait. `interrupted` is asked now and then,
    /// also without the lock, and ends the wait.
    pub(crate) fn next(
        &self,
        in_order: bool,
        help: &mut dyn FnMut() -> bool,
        mut interrupted: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Done, Error> {
        let began = Instant::now();
        let mut asked = began;
        let pause = if interrupted.is_some() { ASKING } else { self.patience };
        let mut state = lock(&self.state);
        loop {
            if let Some(slot) = done_at(&state, in_order).and_then(|at| state.slots.remove(at)) {
                let tails = slot.memory.tail_bytes();
                state.largest_tails = state.largest_tails.max(tails);
                state.held += self.batch_bytes() + tails;
                state.hungry = None;
                self.work.notify_all();
                drop(slot.tails);
                return Ok(Done {
                    epoch: slot.epoch,
                    batch: slot.batch,
                    rows: slot.rows - self.closing.made(),
                    memory: slot.memory,
                    outcome: slot.outcome,
                });
            }
            drop(state);
            let helped = help();
            if let Some(interrupted) = &mut interrupted
                && asked.elapsed() >= ASKING
            {
                asked = Instant::now();
                if interrupted() {
                    return Err(Error::Interrupted);
                }
            }
            state = lock(&self.state);
            if helped || done_at(&state, in_order).is_some() {
                continue;
            }
            if let Some(reason) = &state.broken {
                return Err(Error::System(format!(
                    "a worker ended with an internal error: {reason} (please report this)"
                )));
            }
            if let Some(reason) = state.refused.take() {
                return Err(Error::System(format!(
                    "the system refuses {} for a batch: {reason}; lower memory or batch_size",
                    show_bytes(self.batch_bytes())
                )));
            }
            // Nothing is open and nothing can be opened: only the program can free memory.
            let hungry = state.hungry.get_or_insert(began).elapsed() >= self.patience;
            if state.slots.is_empty() && state.held > 0 && hungry {
                state.hungry = None;
                return Err(Error::Memory(held_message(state.held, self.limit)));
            }
            state = wait_for(&self.ready, state, pause.min(self.patience));
        }
    }

    /// Takes back the memory of a batch that the program dropped.
    pub(crate) fn give_back(&self, memory: Arc<BatchMemory>) {
        let mut state = lock(&self.state);
        state.held -= self.batch_bytes() + memory.tail_bytes();
        self.let_go(&mut state, memory);
        self.ready.notify_all();
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

    /// Tells the consumer that it waits in vain.
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

    /// Whether a batch can be handed over at once.
    pub(crate) fn is_ready(&self, in_order: bool) -> bool {
        done_at(&lock(&self.state), in_order).is_some()
    }

    /// Whether a batch can be made without waiting for the program to drop one.
    pub(crate) fn has_room(&self) -> bool {
        self.has_spare() || !lock(&self.state).slots.is_empty()
    }

    /// Whether there is memory for one more batch.
    pub(crate) fn has_spare(&self) -> bool {
        let state = lock(&self.state);
        state.used + self.batch_bytes() <= self.limit || !state.free.is_empty()
    }

    /// The first row that no worker has taken.
    pub(crate) fn reached(&self) -> Place {
        let state = lock(&self.state);
        let slot = state.slots.iter().find(|slot| slot.next_row < slot.rows);
        slot.map_or(
            Place { epoch: state.cursor.epoch, batch: state.cursor.batch, row: 0 },
            |slot| Place { epoch: slot.epoch, batch: slot.batch, row: slot.next_row },
        )
    }

    /// Figures for people.
    pub(crate) fn figures(&self) -> Figures {
        let state = lock(&self.state);
        Figures {
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

/// What a row of `bytes` takes at least where it has no fixed length.
pub(crate) fn tail_for(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(SMALLEST_TAIL)
}

/// Bytes of the tails that nobody uses.
fn free_bytes(state: &State) -> u64 {
    state.free_tails.iter().map(|tail| tail.len() as u64).sum()
}

fn done_at(state: &State, in_order: bool) -> Option<usize> {
    let epoch = state.slots.front()?.epoch;
    let look = if in_order { 1 } else { state.slots.len() };
    state.slots.iter().take(look).position(|slot| slot.remaining == 0 && slot.epoch == epoch)
}

/// What to tell a program that keeps all the memory in batches.
pub(crate) fn held_message(held: u64, limit: u64) -> String {
    format!(
        "the program holds {} in batches, and memory = {} has no room for more; drop batches sooner, copy what you keep, or raise memory",
        show_bytes(held),
        show_bytes(limit),
    )
}

/// How the queue and the memory stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
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
