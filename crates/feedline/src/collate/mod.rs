//! Samples into one contiguous batch, written in place.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::BatchMemory;
use crate::error::Fault;
use crate::layout::BatchLayout;
use crate::sample::Value;

/// The right to write some rows of a batch. The engine makes exactly one for each row.
pub struct RowWriter {
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
    pub unsafe fn new(
        memory: Arc<BatchMemory>,
        layout: Arc<BatchLayout>,
        rows: Range<usize>,
    ) -> Self {
        RowWriter { memory, layout, rows }
    }

    /// The rows.
    #[must_use]
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Gives the memory back; the right ends.
    #[must_use]
    pub fn into_memory(self) -> Arc<BatchMemory> {
        self.memory
    }

    /// The bytes of one field of one row.
    ///
    /// # Panics
    /// If the row is not one of [`RowWriter::rows`].
    pub fn row(&mut self, field: usize, row: usize) -> &mut [u8] {
        assert!(self.rows.contains(&row), "row {row} belongs to another worker");
        let field = &self.layout.fields()[field];
        // SAFETY: the row is ours alone by the contract of `new`, and the slice borrows `self`.
        unsafe { self.memory.range_mut(field.offset + row * field.row_bytes, field.row_bytes) }
    }

    /// Writes a value that needs no decoding.
    pub fn write(&mut self, field: usize, row: usize, value: &Value<'_>) -> Result<(), Fault> {
        let out = self.row(field, row);
        let mut copy = |bytes: &[u8]| {
            if bytes.len() != out.len() {
                return Err(Fault::Shape(format!(
                    "has {} bytes, a row of the batch has {}",
                    bytes.len(),
                    out.len()
                )));
            }
            out.copy_from_slice(bytes);
            Ok(())
        };
        match value {
            Value::Bytes(bytes) => copy(bytes),
            Value::Int(number) => copy(&number.to_ne_bytes()),
            Value::Float(number) => copy(&number.to_ne_bytes()),
            Value::Pixels { bytes, .. } => copy(bytes),
            Value::File(_) => {
                Err(Fault::Unsupported("a file cannot be a plain field of a batch".to_owned()))
            }
        }
    }
}
