//! How a batch lies in memory.

use crate::buffer::ALIGNMENT;
use crate::sample::DType;

/// What a field is whose rows have no length in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variable {
    /// Arrays of so many axes, each with its own shape.
    Array {
        /// How many axes.
        axes: usize,
    },
    /// Bytes that mean nothing here.
    Bytes,
    /// UTF-8.
    Text,
}

impl Variable {
    /// How many lengths a row has.
    #[must_use]
    pub fn axes(self) -> usize {
        match self {
            Variable::Array { axes } => axes,
            Variable::Bytes | Variable::Text => 0,
        }
    }
}

/// Where a row of no fixed length lies: which of the batch's tails, from which byte on, and how
/// many bytes. In the batch's own memory these three numbers stand for it, and its shape after them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TailPlace {
    /// The tail's number.
    pub tail: u64,
    /// The first byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

/// One field of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchField {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// The shape of one row.
    pub shape: Vec<usize>,
    /// Elements from one index of an axis to the next, for one row.
    pub strides: Vec<usize>,
    /// Bytes of one row.
    pub row_bytes: usize,
    /// Where its rows begin in the batch's memory.
    pub offset: usize,
    /// What it is if its rows have no length in common: then a row is a [`TailPlace`] and its shape.
    pub variable: Option<Variable>,
}

/// How a batch lies in memory: field after field, each aligned, each with its rows in a row.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct BatchLayout {
    fields: Vec<BatchField>,
    rows: usize,
    bytes: usize,
}

impl BatchLayout {
    /// An empty layout for batches of up to `rows` rows.
    #[must_use]
    pub(crate) fn new(rows: usize) -> Self {
        BatchLayout { fields: Vec::new(), rows, bytes: 0 }
    }

    /// Adds a field whose rows have `shape` in C order; `None` if the batch would be larger
    /// than memory can be.
    #[must_use]
    pub(crate) fn push(&mut self, name: &str, dtype: DType, shape: &[usize]) -> Option<()> {
        let mut strides = vec![1usize; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis].checked_mul(shape[axis])?;
        }
        self.push_strided(name, dtype, shape, strides)
    }

    /// Adds a field whose rows are dense but lie in another order of axes.
    #[must_use]
    pub(crate) fn push_strided(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
        strides: Vec<usize>,
    ) -> Option<()> {
        let row_bytes = shape.iter().try_fold(dtype.size(), |bytes, n| bytes.checked_mul(*n))?;
        let offset = self.bytes.checked_next_multiple_of(ALIGNMENT)?;
        let bytes = offset.checked_add(row_bytes.checked_mul(self.rows)?)?;
        self.bytes = bytes
            .checked_next_multiple_of(ALIGNMENT)
            .filter(|bytes| *bytes <= isize::MAX as usize)?;
        self.fields.push(BatchField {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            strides,
            row_bytes,
            offset,
            variable: None,
        });
        Some(())
    }

    /// Adds a field whose rows have no length in common.
    #[must_use]
    pub(crate) fn push_variable(
        &mut self,
        name: &str,
        dtype: DType,
        variable: Variable,
    ) -> Option<()> {
        self.push(name, DType::U64, &[3 + variable.axes()])?;
        let field = self.fields.last_mut()?;
        (field.dtype, field.variable) = (dtype, Some(variable));
        (field.shape, field.strides) = (Vec::new(), Vec::new());
        Some(())
    }

    /// The fields in order.
    #[must_use]
    pub(crate) fn fields(&self) -> &[BatchField] {
        &self.fields
    }

    /// Bytes of a full batch.
    #[must_use]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Rows of a full batch.
    #[must_use]
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }
}
