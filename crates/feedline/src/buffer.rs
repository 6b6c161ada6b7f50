//! Memory that is given back when it is let go.
//!
//! Everything large is an anonymous mapping, not a piece of the heap: freeing it lowers the
//! process's memory at once, which is what makes a byte budget mean something.

#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use memmap2::MmapMut;

use crate::error::Fault;
use crate::image::{PixelType, Pixels};

/// Every field of a batch starts at a multiple of this: a cache line, and what JAX asks for
/// before it takes memory over without a copy.
pub(crate) const ALIGNMENT: usize = 64;

fn map(bytes: usize) -> std::io::Result<MmapMut> {
    MmapMut::map_anon(bytes.max(1))
}

fn refused(error: std::collections::TryReserveError) -> Fault {
    Fault::TooLarge(format!("needs more memory than there is: {error}"))
}

/// Room for `more` elements that a file asks for; what cannot be had is the file's fault.
pub(crate) fn reserve<T>(to: &mut Vec<T>, more: u64) -> Result<(), Fault> {
    to.try_reserve_exact(usize::try_from(more).unwrap_or(usize::MAX)).map_err(refused)
}

/// Room for a few more elements of many, so that adding all of them is cheap.
pub(crate) fn grow<T>(to: &mut Vec<T>, more: usize) -> Result<(), Fault> {
    to.try_reserve(more).map_err(refused)
}

/// Adds `more` zeros.
pub(crate) fn extend_zeroed(to: &mut Vec<u8>, more: u64) -> Result<(), Fault> {
    grow(to, usize::try_from(more).unwrap_or(usize::MAX))?;
    to.resize(to.len() + more as usize, 0);
    Ok(())
}

/// `bytes` zeros, as many as a file asks for.
pub(crate) fn zeroed(bytes: u64) -> Result<Vec<u8>, Fault> {
    let mut out = Vec::new();
    reserve(&mut out, bytes)?;
    out.resize(bytes as usize, 0);
    Ok(out)
}

/// Scratch memory of one worker. It grows to the largest sample and keeps that size.
#[derive(Default)]
pub(crate) struct Slab {
    map: Option<MmapMut>,
}

impl Slab {
    /// Bytes held.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.map.as_ref().map_or(0, |map| map.len())
    }

    /// The first `bytes` bytes, after growing if need be. What was there before may be gone.
    pub(crate) fn at_least(&mut self, bytes: usize) -> Result<&mut [u8], Fault> {
        if self.len() < bytes {
            // The old mapping goes first, so that both never exist at once.
            self.map = None;
            self.map = Some(map(bytes)?);
        }
        match &mut self.map {
            Some(map) => Ok(&mut map[..bytes]),
            None => Ok(&mut []),
        }
    }

    /// All bytes as elements of `pixel_type`.
    #[must_use]
    pub(crate) fn pixels(&self, pixel_type: PixelType) -> Pixels<'_> {
        let bytes: &[u8] = self.map.as_deref().unwrap_or(&[]);
        match pixel_type {
            PixelType::U8 => Pixels::U8(bytes),
            // A mapping starts at a page, so only its tail can be uneven.
            PixelType::F32 => Pixels::F32(bytemuck::cast_slice(&bytes[..bytes.len() / 4 * 4])),
        }
    }
}

/// The memory of one batch, which several workers fill at once, each its own rows.
pub struct BatchMemory {
    /// Dropped before the mapping, as fields are in their order.
    lock: OnceLock<Box<dyn Any + Send + Sync>>,
    map: UnsafeCell<MmapMut>,
    bytes: usize,
    /// Where rows of no fixed length lie.
    tails: Mutex<Vec<Arc<BatchMemory>>>,
}

// SAFETY: shared access hands out only disjoint ranges for writing (see `range_mut`) and whole
// slices for reading once no writer is left (see `bytes`); both are unsafe to call.
unsafe impl Sync for BatchMemory {}

impl BatchMemory {
    /// `bytes` zeroed bytes.
    pub fn new(bytes: usize) -> std::io::Result<Self> {
        let map = map(bytes)?;
        // Batches are tens of megabytes and written from end to end: huge pages save most of
        // the page faults. A kernel that refuses is no reason to fail.
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(BatchMemory {
            lock: OnceLock::new(),
            map: UnsafeCell::new(map),
            bytes,
            tails: Mutex::default(),
        })
    }

    /// Bytes held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// True for a batch of nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Keeps what `make` gives until just before the memory goes: a page lock, made once however
    /// often the memory is used again.
    pub fn keep<E>(
        &self,
        make: impl FnOnce() -> Result<Box<dyn Any + Send + Sync>, E>,
    ) -> Result<(), E> {
        if self.lock.get().is_none() {
            let _ = self.lock.set(make()?);
        }
        Ok(())
    }

    /// Adds memory for rows of no fixed length, and gives its number.
    pub(crate) fn add_tail(&self, tail: Arc<BatchMemory>) -> u64 {
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        tails.push(tail);
        tails.len() as u64 - 1
    }

    /// The memory that was added.
    #[must_use]
    pub fn tails(&self) -> Vec<Arc<BatchMemory>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes out the memory that was added.
    pub(crate) fn take_tails(&mut self) -> Vec<Arc<BatchMemory>> {
        std::mem::take(self.tails.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    /// How many pieces of memory were added.
    #[must_use]
    pub(crate) fn tail_count(&self) -> usize {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Bytes of the memory that was added.
    #[must_use]
    pub(crate) fn tail_bytes(&self) -> u64 {
        let tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        tails.iter().map(|tail| tail.len() as u64).sum()
    }

    /// The address of the first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: only the address is read; the mapping itself is never replaced.
        unsafe { (*self.map.get()).as_ptr().cast_mut() }
    }

    /// `len` bytes from `start`, for writing.
    ///
    /// # Safety
    /// While the slice lives, nobody else reads or writes any byte of the range. The engine
    /// keeps this by handing each row of a batch to exactly one worker.
    ///
    /// # Panics
    /// If the range does not lie inside the memory.
    #[allow(clippy::mut_from_ref)]
    #[must_use]
    pub(crate) unsafe fn range_mut(&self, start: usize, len: usize) -> &mut [u8] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.bytes));
        // SAFETY: inside the mapping by the check above; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr().add(start), len) }
    }

    /// `len` bytes from `start`, for reading.
    ///
    /// # Safety
    /// No byte of the range is written while the slice lives.
    ///
    /// # Panics
    /// If the range does not lie inside the memory.
    #[must_use]
    pub unsafe fn range(&self, start: usize, len: usize) -> &[u8] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.bytes));
        // SAFETY: inside the mapping by the check above; no writer by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.as_ptr().add(start), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slab_grows_and_never_shrinks() {
        let mut slab = Slab::default();
        assert_eq!(slab.len(), 0);
        assert_eq!(slab.at_least(10).unwrap().len(), 10);
        assert_eq!(slab.at_least(5000).unwrap().len(), 5000);
        assert_eq!(slab.at_least(7).unwrap().len(), 7);
        assert!(slab.len() >= 5000);
    }

    #[test]
    fn disjoint_rows_are_written_from_two_threads() {
        let memory = BatchMemory::new(128).unwrap();
        std::thread::scope(|scope| {
            for half in 0..2 {
                let memory = &memory;
                // SAFETY: the halves do not overlap.
                scope
                    .spawn(move || unsafe { memory.range_mut(half * 64, 64) }.fill(half as u8 + 1));
            }
        });
        // SAFETY: the writers are gone.
        let all = unsafe { memory.range(0, 128) };
        assert!(all[..64].iter().all(|x| *x == 1) && all[64..].iter().all(|x| *x == 2));
    }
}
