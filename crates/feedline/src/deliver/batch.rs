//! A batch in the program's hands. Its memory goes back to the loader when it is dropped, never
//! before: a batch that is kept keeps its bytes.

#![allow(unsafe_code)]

use std::sync::Arc;

use half::{bf16, f16};
use xxhash_rust::xxh3::Xxh3;

use crate::buffer::BatchMemory;
use crate::layout::{BatchField, BatchLayout};
use crate::sample::DType;

/// Where a batch's memory goes when the program drops it.
pub trait Home: Send + Sync {
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
    home: Arc<dyn Home>,
    /// After a fork the loader's locks may be held by threads that do not exist here.
    process: u32,
    rows: usize,
    epoch: u64,
    number: u64,
    padding: usize,
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
    pub unsafe fn new(
        layout: Arc<BatchLayout>,
        memory: Arc<BatchMemory>,
        home: Arc<dyn Home>,
        rows: usize,
        (epoch, number): (u64, u64),
        padding: usize,
    ) -> Self {
        Batch {
            layout,
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

    /// Field number `field`.
    #[must_use]
    pub fn array(&self, field: usize) -> Option<Array<'_>> {
        let field = self.layout.fields().get(field)?;
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
        hash_arrays((0..self.layout.fields().len()).filter_map(|number| self.array(number)))
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> Option<&BatchMemory> {
        self.memory.as_deref()
    }

    /// How it lies in memory.
    #[must_use]
    pub fn layout(&self) -> &Arc<BatchLayout> {
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
            }
        }
        Ok(())
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take()
            && self.process == std::process::id()
        {
            self.home.take_back(memory);
        }
    }
}
