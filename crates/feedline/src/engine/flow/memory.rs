//! Who gets bytes: scratch, rows of no fixed length, batches that are used again.

use std::sync::Arc;
use std::time::Instant;

use super::slice::Tail;
use super::{Flow, FlowState, Slice, lock, wait_for};
use crate::buffer::BatchMemory;

/// Rows of no fixed length lie in pieces. A batch's first one is small, as batches of short text
/// are; each further one is four times as large, up to the largest.
const SMALLEST_TAIL: usize = 64 << 10;

const LARGEST_TAIL: usize = SMALLEST_TAIL << 6;

/// Pieces that are kept for the next batches.
const FREE_TAILS: usize = 64;

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

impl Flow {
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

    fn throw_newest_away(&self, state: &mut FlowState) {
        if let Some(mut slot) = state.slots.pop_back() {
            slot.tails.clear();
            (state.cursor.epoch, state.cursor.batch) = (slot.epoch, slot.batch);
            state.remade += 1;
            self.let_go(state, slot.memory);
            // Whoever waits in line for one of its rows still holds on to its memory.
            self.work.notify_all();
        }
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
        let fits = |state: &FlowState, size: usize| state.used + size as u64 <= self.limit;
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

    /// Keeps a batch's memory for the next one, once nobody uses it.
    pub(super) fn let_go(&self, state: &mut FlowState, memory: Arc<BatchMemory>) {
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

    pub(super) fn drop_free(&self, state: &mut FlowState) {
        state.used -= self.batch_bytes() * state.free.len() as u64 + free_bytes(state);
        state.free.clear();
        state.free_tails.clear();
    }

    /// Whether there is memory for one more batch.
    pub(crate) fn has_spare(&self) -> bool {
        let state = lock(&self.state);
        state.used + self.batch_bytes() <= self.limit || !state.free.is_empty()
    }

    /// Whether a batch can be made without waiting for the program to drop one.
    pub(crate) fn has_room(&self) -> bool {
        self.has_spare() || !lock(&self.state).slots.is_empty()
    }
}

/// What a row of `bytes` takes at least where it has no fixed length.
pub(crate) fn tail_for(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(SMALLEST_TAIL)
}

/// Bytes of the tails that nobody uses.
pub(super) fn free_bytes(state: &FlowState) -> u64 {
    state.free_tails.iter().map(|tail| tail.len() as u64).sum()
}
