//! Where a loader stands, and how it goes elsewhere.

use std::collections::BTreeSet;

use super::Loader;
use crate::engine::flow::Cursor;
use crate::engine::run::Engine;
use crate::error::{Error, Result};
use crate::order::{Pick, State};

impl Loader {
    /// The epoch and the number of the next batch.
    #[must_use]
    pub fn position(&self) -> (u64, u64) {
        self.position
    }

    /// Where the run stands: after the last batch that was handed over.
    #[must_use]
    pub fn state(&self) -> State {
        let failed = self.failed.iter().copied();
        let mut state =
            State::new(self.position.0, self.position.1, self.plan.identity.clone(), failed);
        state.delivered_ahead = self.ahead.clone();
        state.delivered_ahead.sort_unstable();
        state
    }

    /// Goes on where `state` was taken; the next epoch begins there.
    pub fn resume(&mut self, state: &State) -> Result<()> {
        state.check(&self.plan.identity, self.len()).map_err(Error::State)?;
        let mut failed = BTreeSet::new();
        for (source, index) in &state.skipped {
            let known =
                self.plan.sources.get(*source as usize).is_some_and(|source| *index < source.len());
            if !known {
                return Err(Error::State(format!(
                    "it lists sample {index} of source {source} as skipped, which there is not"
                )));
            }
            failed.insert(Pick { source: *source as usize, index: *index });
        }
        self.leave_parent();
        self.failed = failed;
        self.engine.note_failed(self.failed.len() as u64);
        self.go_to(state.epoch, state.batch, state.delivered_ahead.clone());
        self.placed = true;
        Ok(())
    }

    /// Goes to the beginning of `epoch`: the next iteration is that one.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.place_at(epoch, 0);
    }

    /// Goes to a batch: the next iteration begins there.
    pub(in crate::engine) fn place_at(&mut self, epoch: u64, batch: u64) {
        self.leave_parent();
        self.go_to(epoch, batch, Vec::new());
        self.placed = true;
    }

    pub(super) fn go_to(&mut self, epoch: u64, batch: u64, ahead: Vec<u64>) {
        self.position = (epoch, batch);
        self.at_end = false;
        // What is being made already need not be thrown away.
        if !(ahead.is_empty() && self.ahead.is_empty() && self.engine.is_at(epoch, batch)) {
            self.engine.seek(Cursor { epoch, batch, skip: (epoch, ahead.clone()) });
        }
        self.ahead = ahead;
    }

    /// In a child process made by fork, the engine's threads are gone: a fresh one takes over.
    pub(super) fn leave_parent(&mut self) {
        if self.engine.is_foreign() {
            let cursor = Cursor {
                epoch: self.position.0,
                batch: self.position.1,
                skip: (self.position.0, self.ahead.clone()),
            };
            let fresh = Engine::new(self.plan.clone(), cursor);
            // A device does not survive a fork, and what was on its way back is the parent's.
            self.pinning = None;
            fresh.note_failed(self.failed.len() as u64);
            // The old one is let go without touching its locks.
            drop(std::mem::replace(&mut self.engine, fresh));
        }
    }
}
