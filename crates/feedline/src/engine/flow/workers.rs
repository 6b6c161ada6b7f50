//! The workers' side: rows are handed out and reported done.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::memory::free_bytes;
use super::{Closing, Flow, FlowState, Outcome, Slice, Slot, lock, wait};
use crate::buffer::BatchMemory;
use crate::collate::RowWriter;

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

impl Flow {
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

    /// Waits until `worker`, which holds no scratch, is wanted again or everything ends.
    pub(crate) fn rest(&self, worker: usize) {
        let mut state = lock(&self.state);
        while !state.stopped && worker >= state.active {
            state = wait(&self.resting, state);
        }
    }

    fn assign(&self, state: &mut FlowState, rows: u64) -> Option<Slice> {
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
    fn open(&self, state: &mut FlowState) -> bool {
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
}
