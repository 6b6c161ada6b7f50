//! Asks for the memory that a sample takes, and gives it back.

use std::time::Instant;

use super::{Trouble, Worker};
use crate::buffer::Slab;
use crate::engine::flow::{Grant, Slice};
use crate::observe::{Activity, Span};

/// Bytes that one sample takes.
#[derive(Default)]
pub(super) struct Need {
    /// Of the worker's own slab, for encoded bytes.
    pub(super) encoded: usize,
    /// For decoding, pixels included.
    pub(super) decoded: usize,
    /// For what is made of the pixels.
    pub(super) rest: usize,
}

impl Worker {
    /// Has all the memory granted that a sample takes, beside what is kept from earlier ones in
    /// the slab for encoded bytes and in the scratch.
    pub(super) fn reserve(&mut self, need: Need, slab: usize) -> Result<(), Trouble> {
        // Whether a sample can be had must depend neither on those before it nor on what is free.
        let alone = need.encoded.saturating_add(need.decoded).saturating_add(need.rest) as u64;
        if alone > self.shared.plan.sample_memory {
            return Err(Trouble::TooLarge(alone));
        }
        self.alone = self.alone.max(alone);
        let scratch = self.scratch.held_after(need.decoded, need.rest);
        let with_kept = slab.max(need.encoded).saturating_add(scratch) as u64;
        match self.shared.flow.grow(self.granted, with_kept) {
            Grant::Granted => {
                self.granted = self.granted.max(with_kept);
                Ok(())
            }
            Grant::Cancelled => Err(Trouble::Cancelled),
            // What is kept is given back before waiting, so the sample alone counts there.
            _ => Err(Trouble::Memory(alone)),
        }
    }

    pub(super) fn wait_for_memory(&mut self, slice: &Slice, row: usize, need: u64) -> Grant {
        let began = Instant::now();
        self.give_scratch_back();
        let grant = self.shared.flow.wait_for_scratch(slice, row as u64, need);
        if grant == Grant::Granted {
            self.granted = need;
        }
        let ended = Instant::now();
        self.shared.counters[self.number].waited_for_memory(ended - began);
        if let Some(timeline) = self.shared.timeline.get() {
            let (begin, end) = (timeline.at(began), timeline.at(ended));
            let span = Span { activity: Activity::Memory, begin, end, batch: slice.batch };
            timeline.worker(self.number).into_iter().for_each(|lane| lane.push(span));
        }
        grant
    }

    pub(in crate::engine) fn give_scratch_back(&mut self) {
        self.encoded = Slab::default();
        self.scratch.release();
        self.shared.flow.shrink(std::mem::take(&mut self.granted));
    }
}
