//! Samples into one contiguous batch, written in place.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::BatchMemory;
use crate::error::Fault;
use crate::layout::{BatchField, BatchLayout, TailPlace};
use crate::sample::Value;

/// The right to write some rows of a batch. The engine makes exactly one for each row.
pub(crate) struct RowWriter {
    memory: Arc<BatchMemory>,
    layout: Arc<BatchLayout>,
    rows: Range<usize>,
}

impl RowWriter {
    /// The right to write `rows` of a batch that lies in `memory`.
    ///
    /// # Safety
    /// While it lives, nobody else reads or writes these rows.
    #[must_use]
    pub(crate) unsafe fn new(
        memory: Arc<BatchMemory>,
        layout: Arc<BatchLayout>,
        rows: Range<usize>,
    ) -> Self {
        RowWriter { memory, layout, rows }
    }

    /// The rows.
    #[must_use]
    pub(crate) fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Gives the memory back; the right ends.
    #[must_use]
    pub(crate) fn into_memory(self) -> Arc<BatchMemory> {
        self.memory
    }

    /// The bytes of one field of one row.
    ///
    /// # Panics
    /// If the row is not one of [`RowWriter::rows`].
    pub(crate) fn row(&mut self, field: usize, row: usize) -> &mut [u8] {
        assert!(self.rows.contains(&row), "row {row} belongs to another worker");
        let field = &self.layout.fields()[field];
        // SAFETY: the row is ours alone by the contract of `new`, and the slice borrows `self`.
        unsafe { self.memory.range_mut(field.offset + row * field.row_bytes, field.row_bytes) }
    }

    /// All rows of a field from the first on, and the bytes of each.
    ///
    /// # Panics
    /// If the rows do not begin with the first.
    pub(crate) fn rows_of(&mut self, field: usize) -> (&mut [u8], usize) {
        assert_eq!(self.rows.start, 0, "the first row belongs to another worker");
        let BatchField { offset, row_bytes, .. } = self.layout.fields()[field];
        // SAFETY: the rows are ours alone by the contract of `new`, and the slice borrows `self`.
        let rows = unsafe { self.memory.range_mut(offset, self.rows.end * row_bytes) };
        (rows, row_bytes)
    }

    /// Writes a class as a probability for each one: 1 for itself, 0 for the others.
    pub(crate) fn write_class(
        &mut self,
        field: usize,
        row: usize,
        value: &Value<'_>,
    ) -> Result<(), Fault> {
        let class = match value {
            Value::Int(class) => *class,
            Value::Bytes(bytes) => (*bytes)
                .try_into()
                .map(i64::from_ne_bytes)
                .map_err(|_| Fault::Shape("has a label that is not one int64".to_owned()))?,
            _ => return Err(Fault::Shape("has a label that is not a whole number".to_owned())),
        };
        let out = self.row(field, row);
        let classes = out.len() / 4;
        let place = usize::try_from(class).ok().filter(|class| *class < classes);
        let Some(place) = place else {
            return Err(Fault::Shape(format!(
                "has the label {class}, which is not one of {classes} classes: raise num_classes, or fix the label"
            )));
        };
        out.fill(0);
        out[place * 4..place * 4 + 4].copy_from_slice(&1.0f32.to_ne_bytes());
        Ok(())
    }

    /// Writes where a row of no fixed length lies, and its shape.
    pub(crate) fn write_entry(
        &mut self,
        field: usize,
        row: usize,
        entry: TailPlace,
        shape: &[usize],
    ) -> Result<(), Fault> {
        let axes = self.layout.fields()[field].variable.map_or(0, |variable| variable.axes());
        if shape.len() != axes {
            return Err(Fault::Shape(format!("has {} axes, not {axes}", shape.len())));
        }
        let numbers = [entry.tail, entry.start, entry.length];
        let numbers = numbers.into_iter().chain(shape.iter().map(|n| *n as u64));
        for (place, number) in self.row(field, row).chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        Ok(())
    }
}
