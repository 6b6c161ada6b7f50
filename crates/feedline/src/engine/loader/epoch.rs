//! Hands batches over.

use std::io::Write;
use std::time::Instant;

use super::Loader;
use crate::deliver::Batch;
use crate::deliver::device::PageLock;
use crate::engine::device::{ASKING, PAUSE};
use crate::engine::flow::{Done, Failure};
use crate::error::{Error, Result};
use crate::order::State;

impl Loader {
    /// Begins the next epoch, or goes on where [`Loader::resume`] or [`Loader::set_epoch`] put it.
    pub fn epoch(&mut self) -> Epoch<'_> {
        self.begin_epoch();
        Epoch { loader: self, over: false }
    }

    /// What [`Loader::epoch`] does, for callers that then use [`Loader::next_batch`].
    pub fn begin_epoch(&mut self) {
        self.leave_parent();
        if !self.placed && (self.position.1 > 0 || !self.ahead.is_empty()) {
            self.go_to(self.position.0 + 1, 0, Vec::new());
        }
        self.placed = false;
        self.at_end = false;
        self.engine.begin_epoch();
    }

    /// The next batch of the epoch; `None` at its end, until [`Loader::begin_epoch`].
    pub fn next_batch(&mut self) -> Option<Result<Batch>> {
        self.next_or_stop(None)
    }

    /// [`Loader::next_batch`] for a program that may be interrupted: `interrupted` is asked about
    /// every 50 ms of waiting, and ends the wait with [`Error::Interrupted`] and nothing lost.
    pub fn next_batch_unless(
        &mut self,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Option<Result<Batch>> {
        self.next_or_stop(Some(interrupted))
    }

    /// The program is done with an epoch's last batch; [`Loader::next_batch`] hears it too when it
    /// is asked for one more. Until then nobody knows how long that step took.
    pub fn end_epoch(&mut self) {
        if !self.engine.is_foreign() {
            self.engine.used(Instant::now());
        }
    }

    /// Whether the next batch can be handed over at once.
    pub(in crate::engine) fn is_ready(&self) -> bool {
        !self.engine.is_foreign() && self.engine.is_ready()
    }

    /// Whether there is memory for one more batch.
    pub(in crate::engine) fn has_spare(&self) -> bool {
        !self.engine.is_foreign() && self.engine.has_spare()
    }

    fn next_or_stop(
        &mut self,
        mut interrupted: Option<&mut dyn FnMut() -> bool>,
    ) -> Option<Result<Batch>> {
        self.leave_parent();
        if self.at_end {
            self.end_epoch();
            return None;
        }
        if let Err(error) = self.take_back(&mut interrupted) {
            return Some(Err(error));
        }
        let done = match self.engine.next(interrupted) {
            Ok(done) => done,
            Err(error) => return Some(Err(error)),
        };
        let mut outcome = done.outcome;
        let done = Done { outcome: Default::default(), ..done };
        if let Some((_, error)) = outcome.error {
            // The batch stays the next one: after the cause is fixed, a resumed run makes it.
            self.engine.discard(done);
            self.go_to(self.position.0, self.position.1, self.ahead.clone());
            return Some(Err(error));
        }
        outcome.failures.sort_by_key(|failure| failure.row);
        for failure in outcome.failures {
            if let Err(error) = self.record(failure) {
                self.engine.discard(done);
                self.go_to(self.position.0, self.position.1, self.ahead.clone());
                return Some(Err(error));
            }
        }
        let mut home = self.engine.home();
        if let Some(pin) = &self.pinning {
            if let Err(error) = PageLock::of_batch(&pin.device, &done.memory) {
                self.engine.discard(done);
                self.go_to(self.position.0, self.position.1, self.ahead.clone());
                return Some(Err(error.into()));
            }
            if let Some(returning) = &pin.returning {
                home = returning.clone();
            }
        }
        let batch = self.engine.batch(&done, home);
        self.move_past(done.batch);
        Some(Ok(batch))
    }

    /// Takes back what the device is done with. As long as no batch is ready, waits for more of
    /// it: it may be the memory that the next batch is to be made in.
    fn take_back(&self, interrupted: &mut Option<&mut dyn FnMut() -> bool>) -> Result<()> {
        let Some(returning) = self.pinning.as_ref().and_then(|pin| pin.returning.as_ref()) else {
            return Ok(());
        };
        let began = Instant::now();
        while returning.collect()? && !self.engine.is_ready() {
            if began.elapsed() >= ASKING && interrupted.as_mut().is_some_and(|ask| ask()) {
                return Err(Error::Interrupted);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn move_past(&mut self, batch: u64) {
        if batch != self.position.1 {
            self.ahead.push(batch);
            return;
        }
        self.position.1 += 1;
        while let Some(at) = self.ahead.iter().position(|ahead| *ahead == self.position.1) {
            self.ahead.swap_remove(at);
            self.position.1 += 1;
        }
        if self.position.1 >= self.len() {
            self.position = (self.position.0 + 1, 0);
            self.at_end = true;
        }
    }

    fn record(&mut self, failure: Failure) -> Result<()> {
        if !self.failed.contains(&failure.pick) {
            if let (Some(file), Some(path)) = (&mut self.quarantine, &self.plan.spec.quarantine) {
                let line = format!("{}\n", failure.error.to_value());
                file.write_all(line.as_bytes()).map_err(|source| Error::Io {
                    what: "cannot write the quarantine file",
                    path: path.clone(),
                    source,
                })?;
            }
            self.failed.insert(failure.pick);
        }
        let failed = self.failed.len() as u64;
        self.engine.note_failed(failed);
        match self.plan.spec.max_failures {
            Some(allowed) if failed > allowed => {
                Err(Error::TooManyFailures { failed, allowed, last: Box::new(failure.error) })
            }
            _ => Ok(()),
        }
    }
}

/// The batches of one epoch.
pub struct Epoch<'a> {
    loader: &'a mut Loader,
    over: bool,
}

impl Epoch<'_> {
    /// Where the run stands; see [`Loader::state`].
    #[must_use]
    pub fn state(&self) -> State {
        self.loader.state()
    }
}

impl Iterator for Epoch<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let item = self.loader.next_batch();
        // After an error this epoch is over.
        self.over = !matches!(item, Some(Ok(_)));
        item
    }
}
