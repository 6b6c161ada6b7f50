//! The program's side: batches are handed over and given back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Flow, FlowState, Outcome, lock, wait_for};
use crate::buffer::BatchMemory;
use crate::error::Error;
use crate::spec::read::show_bytes;

/// How often a waiting consumer is asked whether it still wants to: Ctrl-C feels instant.
const ASKING: Duration = Duration::from_millis(50);

/// A batch that is done.
pub(crate) struct Done {
    pub(crate) epoch: u64,
    pub(crate) batch: u64,
    pub(crate) rows: u64,
    pub(crate) memory: Arc<BatchMemory>,
    pub(crate) outcome: Outcome,
}

impl Flow {
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

    /// Whether a batch can be handed over at once.
    pub(crate) fn is_ready(&self, in_order: bool) -> bool {
        done_at(&lock(&self.state), in_order).is_some()
    }

    /// Takes back the memory of a batch that the program dropped.
    pub(crate) fn give_back(&self, memory: Arc<BatchMemory>) {
        let mut state = lock(&self.state);
        state.held -= self.batch_bytes() + memory.tail_bytes();
        self.let_go(&mut state, memory);
        self.ready.notify_all();
    }
}

fn done_at(state: &FlowState, in_order: bool) -> Option<usize> {
    let epoch = state.slots.front()?.epoch;
    let look = if in_order { 1 } else { state.slots.len() };
    state.slots.iter().take(look).position(|slot| slot.remaining == 0 && slot.epoch == epoch)
}

/// What to report to a program that keeps all the memory in batches.
pub(crate) fn held_message(held: u64, limit: u64) -> String {
    format!(
        "the program holds {} in batches, and memory = {} has no room for more; drop batches sooner, copy what you keep, or raise memory",
        show_bytes(held),
        show_bytes(limit),
    )
}
