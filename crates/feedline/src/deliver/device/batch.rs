//! A batch in a device's memory, and the pool that its memory comes from.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Device, DeviceMemory, Event, Handle, LEGACY_STREAM, Result, Stream, THREAD_STREAM};
use crate::deliver::batch::{Array, Batch, hash_arrays};
use crate::error::DeviceError;
use crate::layout::{BatchField, BatchLayout};

/// Every field starts at a multiple of this in device memory: what the driver aligns allocations
/// to, and what compilers for GPUs assume of arrays.
const ALIGNMENT: usize = 256;

/// Device memory for one batch.
pub(super) struct Slot {
    pub(super) memory: DeviceMemory,
    /// Behind the newest copy into it. Shared with the host batch that waits for it.
    pub(super) copied: Arc<Event>,
    /// Set in a consumer's stream when the memory is to be used again.
    used: Event,
    consumers: Consumers,
}

/// Who may still read a batch on the device.
#[derive(Default)]
struct Consumers {
    streams: Vec<Handle>,
    /// Somebody whose stream is not known.
    unknown: bool,
}

impl Slot {
    fn new(device: &Arc<dyn Device>, bytes: usize) -> Result<Slot> {
        Ok(Slot {
            memory: DeviceMemory::new(device, bytes)?,
            copied: Arc::new(Event::new(device)?),
            used: Event::new(device)?,
            consumers: Consumers::default(),
        })
    }

    /// Lets what `stream` is given from now on wait for all that its last readers were given. They are
    /// forgotten only when it does.
    fn follow_readers(&mut self, stream: &Stream) -> Result<()> {
        let mut unknown = self.consumers.unknown;
        for reader in &self.consumers.streams {
            match self.used.record_in(*reader) {
                Ok(()) => stream.wait_for(&self.used)?,
                // A stream that is gone: then all of them are waited for.
                Err(_) => unknown = true,
            }
        }
        if unknown {
            self.used.record_all()?;
            stream.wait_for(&self.used)?;
        }
        self.consumers.streams.clear();
        self.consumers.unknown = false;
        Ok(())
    }

    /// Frees the memory when its last readers are done.
    fn end(mut self, device: &Arc<dyn Device>) {
        let busy = !self.consumers.streams.is_empty() || self.consumers.unknown;
        let mut done = self.copied.wait();
        if busy && done.is_ok() {
            done = Stream::new(device).and_then(|stream| {
                self.follow_readers(&stream)?;
                self.used.record(&stream)?;
                self.used.wait()
            });
        }
        if done.is_err() && device.settle().is_err() {
            // The device cannot say, so the memory is not given to anybody else.
            std::mem::forget(self.memory);
        }
    }
}

/// Memory of batches that are gone, for those that come.
pub(super) struct Pool {
    device: Arc<dyn Device>,
    bytes: usize,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    free: Vec<Slot>,
    closed: bool,
    /// Slots that exist.
    slots: usize,
}

impl Pool {
    pub(super) fn new(device: Arc<dyn Device>, bytes: usize) -> Self {
        Pool { device, bytes, inside: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory that `stream` may write to from now on.
    pub(super) fn take(&self, stream: &Stream) -> Result<Slot> {
        // The oldest: its readers are the likeliest to be done.
        let free = {
            let mut inside = self.lock();
            (!inside.free.is_empty()).then(|| inside.free.remove(0))
        };
        let Some(mut slot) = free else {
            let slot = Slot::new(&self.device, self.bytes)?;
            self.lock().slots += 1;
            return Ok(slot);
        };
        match slot.follow_readers(stream) {
            Ok(()) => Ok(slot),
            Err(error) => {
                self.end(slot);
                Err(error)
            }
        }
    }

    /// Takes memory back. Touches no driver as long as the pool is open.
    pub(super) fn give_back(&self, slot: Slot) {
        let mut inside = self.lock();
        if !inside.closed {
            inside.free.push(slot);
            return;
        }
        drop(inside);
        self.end(slot);
    }

    fn end(&self, slot: Slot) {
        slot.end(&self.device);
        self.lock().slots -= 1;
    }

    /// Frees all but `keep` of what is free.
    pub(super) fn trim(&self, keep: usize) {
        loop {
            let mut inside = self.lock();
            if inside.free.len() <= keep {
                return;
            }
            let slot = inside.free.remove(0);
            drop(inside);
            self.end(slot);
        }
    }

    /// From now on memory that comes back is freed.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.trim(0);
    }

    /// Slots that exist.
    pub(super) fn slots(&self) -> usize {
        self.lock().slots
    }
}

/// Where the fields of a layout begin in device memory, and how many bytes they take together;
/// `None` if that is more than memory can be.
pub(super) fn offsets(layout: &BatchLayout) -> Option<(Arc<[usize]>, usize)> {
    let mut end = 0usize;
    let mut offsets = Vec::with_capacity(layout.fields().len());
    for field in layout.fields() {
        offsets.push(end);
        let bytes = field.row_bytes.checked_mul(layout.rows())?;
        end = end.checked_add(bytes)?.checked_next_multiple_of(ALIGNMENT)?;
    }
    Some((offsets.into(), end))
}

/// Samples that were made together, in a device's memory.
pub struct DeviceBatch {
    layout: Arc<BatchLayout>,
    offsets: Arc<[usize]>,
    device: Arc<dyn Device>,
    slot: Mutex<Option<Slot>>,
    address: Handle,
    copied: Arc<Event>,
    pool: Arc<Pool>,
    process: u32,
    rows: usize,
    place: (u64, u64),
    padding: usize,
}

impl DeviceBatch {
    /// `batch` as it will be in `slot` once `slot.copied` has passed.
    pub(super) fn new(batch: &Batch, offsets: Arc<[usize]>, slot: Slot, pool: Arc<Pool>) -> Self {
        DeviceBatch {
            layout: batch.layout().clone(),
            offsets,
            device: pool.device.clone(),
            address: slot.memory.address(),
            copied: slot.copied.clone(),
            slot: Mutex::new(Some(slot)),
            pool,
            process: std::process::id(),
            rows: batch.rows(),
            place: (batch.epoch(), batch.number()),
            padding: batch.padding(),
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
        self.place.0
    }

    /// Its number in the epoch.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.place.1
    }

    /// How many of its last rows only fill it up.
    #[must_use]
    pub fn padding(&self) -> usize {
        self.padding
    }

    /// The fields' names, types and row shapes.
    #[must_use]
    pub fn fields(&self) -> &[BatchField] {
        self.layout.fields()
    }

    /// The device that it is on.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Where a field begins in the device's memory.
    #[must_use]
    pub fn address(&self, field: usize) -> Option<Handle> {
        Some(self.address + *self.offsets.get(field)? as u64)
    }

    fn with_consumers(&self, add: impl FnOnce(&mut Consumers)) {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slot.as_mut() {
            add(&mut slot.consumers);
        }
    }

    /// Makes the batch ready for whoever works on `stream`, as DLPack numbers them: `None` and 1
    /// are the default stream, 2 the thread's default stream, -1 asks for nothing to be done, and
    /// others are handles. That stream then waits for the copy, and the memory's next use for it.
    pub fn hand_to(&self, stream: Option<i64>) -> Result<()> {
        let handle = match stream {
            None => LEGACY_STREAM,
            Some(-1) => {
                self.with_consumers(|consumers| consumers.unknown = true);
                return Ok(());
            }
            Some(handle @ 1..) => handle as Handle,
            Some(wrong) => return Err(DeviceError::Stream(wrong)),
        };
        self.with_consumers(|consumers| match handle {
            // Another thread's call for the memory's next use would mean its own stream.
            THREAD_STREAM => consumers.unknown = true,
            _ if consumers.streams.contains(&handle) => {}
            _ => consumers.streams.push(handle),
        });
        self.copied.hold(handle)
    }

    /// Waits for the copy, and for readers on any stream before the memory's next use.
    pub fn hand_to_anybody(&self) -> Result<()> {
        self.with_consumers(|consumers| consumers.unknown = true);
        self.copied.wait()
    }

    /// The elements of all fields, read back from the device.
    pub(crate) fn read_back(&self) -> Result<Vec<Vec<u8>>> {
        let stream = Stream::new(&self.device)?;
        stream.wait_for(&self.copied)?;
        let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fields = Vec::with_capacity(self.layout.fields().len());
        for (field, offset) in self.layout.fields().iter().zip(&*self.offsets) {
            let mut bytes = vec![0u8; self.rows * field.row_bytes];
            if let Some(slot) = slot.as_ref() {
                slot.memory.read(*offset, &mut bytes, &stream)?;
            }
            fields.push(bytes);
        }
        Ok(fields)
    }

    /// The same hash as that of the batch on the host; reads the batch back.
    pub fn hash(&self) -> Result<u64> {
        let bytes = self.read_back()?;
        Ok(hash_arrays(self.layout.fields().iter().zip(&bytes).map(|(field, bytes)| Array {
            name: &field.name,
            dtype: field.dtype,
            rows: self.rows,
            row_shape: &field.shape,
            row_strides: &field.strides,
            bytes,
        })))
    }
}

impl Drop for DeviceBatch {
    fn drop(&mut self) {
        let slot = self.slot.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(slot) = slot {
            if self.process == std::process::id() {
                self.pool.give_back(slot);
            } else {
                std::mem::forget(slot);
            }
        }
    }
}
