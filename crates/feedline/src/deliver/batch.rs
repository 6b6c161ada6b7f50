//! A batch in the program's hands. Its memory goes back to the loader when it is dropped, never
//! before: a batch that is kept keeps its bytes.

#![allow(unsafe_code)]

use std::sync::Arc;

use half::{bf16, f16};
use xxhash_rust::xxh3::Xxh3;

use crate::buffer::BatchMemory;
use crate::layout::{BatchField, BatchLayout, Variable};
use crate::sample::DType;

/// Where a batch's memory goes when the program drops it.
pub(crate) trait Home: Send + Sync {
    /// Takes the memory back.
    fn take_back(&self, memory: Arc<BatchMemory>);
}

/// A type that arrays of a batch can be read as.
pub trait Element: bytemuck::Pod {
    /// Its name in a batch.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}
elements!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64);

/// Samples that were made together.
pub struct Batch {
    layout: Arc<BatchLayout>,
    memory: Option<Arc<BatchMemory>>,
    tails: Vec<Arc<BatchMemory>>,
    home: Arc<dyn Home>,
    /// After a fork the loader's locks may be held by threads that do not exist here.
    process: u32,
    rows: usize,
    epoch: u64,
    number: u64,
    padding: usize,
}

/// One field of a batch whose rows have no length in common.
#[derive(Clone, Copy)]
pub struct Ragged<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements.
    pub dtype: DType,
    /// What its rows are.
    pub variable: Variable,
    /// Rows of the batch.
    pub rows: usize,
    entries: &'a [u8],
    tails: &'a [Arc<BatchMemory>],
}

impl<'a> Ragged<'a> {
    fn number(&self, row: usize, place: usize) -> usize {
        let at = (row * (3 + self.variable.axes()) + place) * 8;
        let bytes = self.entries.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes) as usize
    }

    /// The bytes of a row; empty beyond the last one.
    #[must_use]
    pub fn bytes(&self, row: usize) -> &'a [u8] {
        let [tail, start, length] = [0, 1, 2].map(|place| self.number(row, place));
        if length == 0 {
            return &[];
        }
        // SAFETY: no writer is left, by the contract of `Batch::new`.
        self.tails.get(tail).map_or(&[], |tail| unsafe { tail.range(start, length) })
    }

    /// The shape of a row; empty for bytes and text.
    #[must_use]
    pub fn shape(&self, row: usize) -> Vec<usize> {
        (0..self.variable.axes()).map(|axis| self.number(row, 3 + axis)).collect()
    }
}

/// One field of a batch: all rows of it.
#[derive(Debug, Clone, Copy)]
pub struct Array<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements.
    pub dtype: DType,
    /// Rows of the batch.
    pub rows: usize,
    /// The shape of one row.
    pub row_shape: &'a [usize],
    /// Elements from one index of a row's axis to the next.
    pub row_strides: &'a [usize],
    /// All elements, row after row.
    pub bytes: &'a [u8],
}

impl Batch {
    /// A finished batch of `rows` rows in `memory`.
    ///
    /// # Safety
    /// Nobody writes to the memory while the batch lives.
    #[must_use]
    pub(crate) unsafe fn new(
        layout: Arc<BatchLayout>,
        memory: Arc<BatchMemory>,
        home: Arc<dyn Home>,
        rows: usize,
        (epoch, number): (u64, u64),
        padding: usize,
    ) -> Self {
        Batch {
            layout,
            tails: memory.tails(),
            memory: Some(memory),
            home,
            process: std::process::id(),
            rows,
            epoch,
            number,
            padding,
        }
    }

    /// How many samples it has, padding included.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The epoch that it belongs to.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Its number in the epoch.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// How many of its last rows only fill it up (`last_batch = "pad"` or `"wrap"`).
    #[must_use]
    pub fn padding(&self) -> usize {
        self.padding
    }

    /// The fields' names, types and row shapes.
    #[must_use]
    pub fn fields(&self) -> &[BatchField] {
        self.layout.fields()
    }

    /// The address of a field's first element, for those who hand the memory on.
    #[must_use]
    pub fn address(&self, field: usize) -> *mut u8 {
        let offset = self.layout.fields().get(field).map_or(0, |field| field.offset);
        // SAFETY: every field of the layout lies inside the memory.
        self.memory
            .as_ref()
            .map_or(std::ptr::null_mut(), |memory| unsafe { memory.as_ptr().add(offset) })
    }

    /// Field number `field`, if its rows have no length in common.
    #[must_use]
    pub fn ragged(&self, field: usize) -> Option<Ragged<'_>> {
        let field = self.layout.fields().get(field)?;
        let memory = self.memory.as_ref()?;
        // SAFETY: no writer is left, by the contract of `new`.
        let entries = unsafe { memory.range(field.offset, self.rows * field.row_bytes) };
        Some(Ragged {
            name: &field.name,
            dtype: field.dtype,
            variable: field.variable?,
            rows: self.rows,
            entries,
            tails: &self.tails,
        })
    }

    /// Field number `field`, if its rows are of one shape.
    #[must_use]
    pub fn array(&self, field: usize) -> Option<Array<'_>> {
        let field = self.layout.fields().get(field).filter(|field| field.variable.is_none())?;
        let memory = self.memory.as_ref()?;
        // SAFETY: no writer is left, by the contract of `new`.
        let bytes = unsafe { memory.range(field.offset, self.rows * field.row_bytes) };
        Some(Array {
            name: &field.name,
            dtype: field.dtype,
            rows: self.rows,
            row_shape: &field.shape,
            row_strides: &field.strides,
            bytes,
        })
    }

    /// The field of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Array<'_>> {
        self.array(self.layout.fields().iter().position(|field| field.name == name)?)
    }

    /// A hash of all names, types, shapes and elements: equal batches have equal hashes.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let fields = 0..self.layout.fields().len();
        let fixed = hash_arrays(fields.clone().filter_map(|number| self.array(number)));
        // The arrays' own hash where there is nothing else.
        fields.filter_map(|number| self.ragged(number)).fold(fixed, |seed, field| {
            let mut hash = Xxh3::with_seed(seed);
            hash.update(format!("{} {} {}", field.name, field.dtype, field.rows).as_bytes());
            for row in 0..field.rows {
                let bytes = field.bytes(row);
                hash.update(format!("{:?} {};", field.shape(row), bytes.len()).as_bytes());
                hash.update(bytes);
            }
            hash.digest()
        })
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> Option<&BatchMemory> {
        self.memory.as_deref()
    }

    /// How it lies in memory.
    #[must_use]
    pub(crate) fn layout(&self) -> &Arc<BatchLayout> {
        &self.layout
    }
}

/// The hash of a batch of these arrays.
pub fn hash_arrays<'a>(arrays: impl Iterator<Item = Array<'a>>) -> u64 {
    let mut hash = Xxh3::new();
    for array in arrays {
        let head = format!("{} {} {} {:?};", array.name, array.dtype, array.rows, array.row_shape);
        hash.update(head.as_bytes());
        hash.update(array.bytes);
    }
    hash.digest()
}

impl<'a> Array<'a> {
    /// The elements as `T`; `None` if they have another type.
    ///
    /// For `channels_last` they lie as height, width, channels, whatever the shape says.
    #[must_use]
    pub fn as_slice<T: Element>(&self) -> Option<&'a [T]> {
        (self.dtype == T::DTYPE).then(|| bytemuck::try_cast_slice(self.bytes).ok()).flatten()
    }

    /// The shape with the rows in front.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        std::iter::once(self.rows).chain(self.row_shape.iter().copied()).collect()
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Batch {} of epoch {}:", self.number, self.epoch)?;
        for number in 0..self.layout.fields().len() {
            if let Some(array) = self.array(number) {
                write!(f, " {} {} {:?}", array.name, array.dtype, array.shape())?;
            } else if let Some(field) = self.ragged(number) {
                write!(f, " {} {:?} of {} rows", field.name, field.variable, field.rows)?;
            }
        }
        Ok(())
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.tails.clear();
        if let Some(memory) = self.memory.take()
            && self.process == std::process::id()
        {
            self.home.take_back(memory);
        }
    }
}
