//! The threads of a packing run: each takes the next sample, converts it and has it written.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::convert::{Converter, Made, Trouble};
use super::records::Noted;
use super::room::Room;
use super::{Pack, Packed};
use crate::error::{Error, Result, SampleError};
use crate::order::Order;
use crate::pack::raw;
use crate::spec::read::show_bytes;

/// What the workers of one run share.
pub(super) struct Work<'a> {
    pack: &'a Pack,
    pub(super) some: Option<&'a [u64]>,
    pub(super) count: u64,
    /// The order of writing.
    order: Order,
    room: Room,
    next: AtomicU64,
    done: AtomicU64,
    failed: AtomicBool,
    failure: Mutex<Option<Error>>,
    notes: Mutex<Noted>,
    progress: &'a (dyn Fn(u64) + Sync),
    stop: &'a (dyn Fn() -> bool + Sync),
}

/// Writes what was made of a sample, or deals with one that cannot be: then the reason comes back.
pub(super) type Put<'a> =
    dyn Fn(u64, u64, Result<Made<'_>, SampleError>) -> Result<Option<String>> + Sync + 'a;

/// What earlier work knows of a sample: left out, bytes before, reason.
pub(super) type EarlierWork<'a> = dyn Fn(u64) -> Option<(bool, u64, Option<String>)> + Sync + 'a;

/// True for what those say who were called off because another failed.
fn is_over(error: &Error) -> bool {
    matches!(error, Error::System(text) if text == raw::OVER)
}

impl<'a> Work<'a> {
    pub(super) fn new(
        pack: &'a Pack,
        some: Option<&'a [u64]>,
        progress: &'a (dyn Fn(u64) + Sync),
        stop: &'a (dyn Fn() -> bool + Sync),
    ) -> Result<Work<'a>> {
        let order = pack.order(some)?.0;
        Ok(Work {
            pack,
            some,
            count: order.samples(),
            order,
            // The other half is for what threads keep from sample to sample.
            room: Room::new(pack.memory / 2, 0),
            next: AtomicU64::new(0),
            done: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            notes: Mutex::new(Noted::default()),
            progress,
            stop,
        })
    }

    /// Begins with the sample that is the `first` to be written; those before it are noted.
    pub(super) fn begin_at(&mut self, first: u64, noted: Noted) {
        self.room = Room::new(self.pack.memory / 2, first);
        self.next = AtomicU64::new(first);
        self.done = AtomicU64::new(first);
        self.notes = Mutex::new(noted);
        (self.progress)(first);
    }

    /// The sample that is written at place `number`.
    fn sample(&self, number: u64) -> u64 {
        self.order.epoch(0).pick(number).index
    }

    /// What a sample is called in its source.
    pub(super) fn name(&self, sample: u64) -> PathBuf {
        self.pack.targets.origin(&*self.pack.source, self.pack.image, sample)
    }

    pub(super) fn run(&self, put: &Put<'_>, abort: &(dyn Fn() + Sync)) -> Result<()> {
        self.run_unless(&|_| None, put, abort)
    }

    pub(super) fn run_unless(
        &self,
        known: &EarlierWork<'_>,
        put: &Put<'_>,
        abort: &(dyn Fn() + Sync),
    ) -> Result<()> {
        let fail = |error: Error| {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            // That another failed is no cause: who did may come later.
            match &*failure {
                Some(first) if !is_over(first) => {}
                _ => *failure = Some(error),
            }
            drop(failure);
            self.failed.store(true, Relaxed);
            self.room.close();
            abort();
        };
        std::thread::scope(|scope| {
            for _ in 0..self.pack.workers.min(self.count.max(1) as usize) {
                scope.spawn(|| {
                    // A panic of one would leave the others waiting for its turn.
                    let worked = catch_unwind(AssertUnwindSafe(|| self.work(known, put)));
                    match worked {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => fail(error),
                        Err(_) => fail(Error::System("a packing thread panicked".to_owned())),
                    }
                });
            }
        });
        match self.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn work(&self, known: &EarlierWork<'_>, put: &Put<'_>) -> Result<()> {
        let mut converter = Converter::new(self.pack, &self.room)?;
        while !self.failed.load(Relaxed) {
            if (self.stop)() {
                return Err(Error::Interrupted);
            }
            let number = self.next.fetch_add(1, Relaxed);
            if number >= self.count {
                break;
            }
            let sample = self.sample(number);
            self.one(number, sample, &mut converter, known, put)?;
            (self.progress)(self.done.fetch_add(1, Relaxed) + 1);
        }
        Ok(())
    }

    fn one(
        &self,
        number: u64,
        sample: u64,
        converter: &mut Converter<'_>,
        known: &EarlierWork<'_>,
        put: &Put<'_>,
    ) -> Result<()> {
        let note = |before: u64, unchanged: Option<String>, bad: Option<String>| {
            let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
            notes.before += before;
            if let Some(reason) = unchanged {
                notes.unchanged(reason, 1, self.name(sample));
            }
            if let Some(reason) = bad {
                notes.left_out(sample, self.name(sample), reason);
            }
        };
        let is_first = self.pack.targets.first(sample) == sample;
        if !is_first {
            // Listed twice: the file is there once.
            self.room.take(number, 0)?;
            return Ok(());
        }
        if let Some((left_out, before, reason)) = known(sample) {
            self.room.take(number, 0)?;
            if left_out {
                note(before, None, reason)
            } else {
                note(before, reason, None)
            }
            return Ok(());
        }
        let (made, taken) = converter.make(number, sample);
        let outcome = match made {
            Ok(made) => {
                let (before, reason) = (made.before, made.reason.clone());
                put(number, sample, Ok(made)).map(|_| note(before, reason, None))
            }
            Err(Trouble::Over) => Err(Error::System(raw::OVER.to_owned())),
            // Not a bad sample: what is left out must not depend on the memory.
            Err(Trouble::Memory(stage, fault)) => {
                let error = self.pack.error(sample, stage, fault);
                Err(Error::Memory(format!(
                    "{error}: raise memory (--memory), of which {} are given",
                    show_bytes(self.pack.largest.saturating_mul(2))
                )))
            }
            Err(Trouble::Fault(stage, fault)) => {
                let error = self.pack.error(sample, stage, fault);
                if self.pack.options.skip_bad {
                    put(number, sample, Err(error)).map(|reason| note(0, None, reason))
                } else {
                    Err(Error::Sample(Box::new(error)))
                }
            }
        };
        self.room.give_back(taken);
        outcome
    }

    pub(super) fn packed(&self, samples: u64, resumed: u64) -> Packed {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let notes = std::mem::take(&mut *notes);
        let mut unchanged: Vec<(String, u64, PathBuf)> =
            notes.unchanged.into_iter().map(|(reason, (n, path))| (reason, n, path)).collect();
        unchanged.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
        Packed {
            samples,
            before: notes.before,
            after: 0,
            unchanged,
            left_out: notes.left_out,
            bad: notes.bad.into_values().collect(),
            kept: false,
            resumed,
        }
    }
}
