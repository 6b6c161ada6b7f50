//! What one worker has in hand: rows of a batch, and what became of them.

#![allow(unsafe_code)]

use std::sync::Arc;

use crate::buffer::BatchMemory;
use crate::collate::RowWriter;
use crate::error::{Error, SampleError};
use crate::layout::TailPlace;
use crate::order::Pick;

/// Rows of a batch that one worker makes.
pub(crate) struct Slice {
    pub(super) id: u64,
    pub(crate) epoch: u64,
    pub(crate) batch: u64,
    pub(crate) writer: RowWriter,
    /// Where rows of no fixed length go, with what is written of it.
    pub(super) tail: Option<Tail>,
}

/// Memory for rows of no fixed length.
pub(super) struct Tail {
    pub(super) number: u64,
    pub(super) memory: Arc<BatchMemory>,
    pub(super) used: usize,
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
    pub(crate) fn keep(&mut self, bytes: usize) -> TailPlace {
        let Some(tail) = &mut self.tail else { return TailPlace::default() };
        let entry = TailPlace { tail: tail.number, start: tail.used as u64, length: bytes as u64 };
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
