//! Memory that the threads of a packing run share.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::pack::raw::OVER;

/// Bytes that are given out in the order of the samples. A thread that waits for its turn to write
/// holds memory, and those before it must not wait for that: so nobody overtakes.
pub(super) struct Room {
    limit: u64,
    state: Mutex<RoomState>,
    changed: Condvar,
}

#[derive(Default)]
struct RoomState {
    next: u64,
    used: u64,
    closed: bool,
}

impl Room {
    /// The first number to ask is `first`.
    pub(super) fn new(limit: u64, first: u64) -> Room {
        let state = RoomState { next: first, ..RoomState::default() };
        Room { limit, state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    fn lock(&self) -> MutexGuard<'_, RoomState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all samples before `number` have what they asked for and `bytes` are free. Every
    /// number asks once, with 0 if it needs nothing.
    pub(super) fn take(&self, number: u64, bytes: u64) -> Result<()> {
        let mut state = self.lock();
        // With nothing in use, all of it is to be had: a sample above the limit is never asked for.
        while !state.closed
            && (state.next != number || state.used > 0 && state.used + bytes > self.limit)
        {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return Err(Error::System(OVER.to_owned()));
        }
        state.next += 1;
        state.used += bytes;
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.lock().used -= bytes;
        self.changed.notify_all();
    }

    /// Lets nobody wait any more.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}
