//! Batches in a device's memory: page-locked host memory, copies on a stream of their own, and
//! events that say when memory may be used again.
//!
//! [`Device`] is the little that is asked of a device; `cuda` is the CUDA driver, loaded when a
//! program asks for it. [`Prefetcher`] copies host batches ahead of the program. Three rules keep
//! bytes from being overwritten while somebody reads them:
//!
//! - a host batch is kept until the event behind its copy has passed;
//! - a device batch's memory is used again when its last array is gone, and the copy into it waits
//!   on the device for what the program's streams still have to do;
//! - a page-locked host batch that the program copied by itself goes back when all that the device
//!   was given until then is done ([`Returning`]).
//!
//! What a program drops touches no driver: streams and events are looked at when it asks for the
//! next batch. So arrays may be dropped in any thread, by a garbage collector, after a fork or
//! while a graph is being captured.

#![allow(unsafe_code)]

mod batch;
pub(crate) mod cuda;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod measure;
mod prefetch;
mod returning;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use batch::DeviceBatch;
pub use prefetch::PrefetchStats;
pub(crate) use prefetch::Prefetcher;
pub(crate) use returning::Returning;

use crate::buffer::BatchMemory;
use crate::error::DeviceError;

/// What a device calls a piece of its memory, a stream or an event.
pub type Handle = u64;

/// The stream that CUDA programs use if they choose none.
pub(crate) const LEGACY_STREAM: Handle = 1;

/// The default stream of the calling thread.
pub(crate) const THREAD_STREAM: Handle = 2;

type Result<T, E = DeviceError> = std::result::Result<T, E>;

/// What is asked of a device. Its calls may come from any thread.
pub trait Device: Send + Sync {
    /// What people call it.
    fn name(&self) -> &str;

    /// Its number among its kind.
    fn number(&self) -> i32;

    /// Page-locks host memory, so that copies from it run beside the program.
    ///
    /// # Safety
    /// The range is mapped, and stays so until it is unlocked.
    unsafe fn lock(&self, address: *mut u8, bytes: usize) -> Result<()>;

    /// Undoes `lock`.
    ///
    /// # Safety
    /// The address was locked and is unlocked once.
    unsafe fn unlock(&self, address: *mut u8) -> Result<()>;

    /// Device memory, aligned to 256 bytes.
    fn allocate(&self, bytes: usize) -> Result<Handle>;

    /// Frees it.
    ///
    /// # Safety
    /// It came from `allocate`, is freed once, and nothing on the device uses it any more.
    unsafe fn free(&self, memory: Handle) -> Result<()>;

    /// A stream that waits for no other.
    fn create_stream(&self) -> Result<Handle>;

    /// Ends a stream, after what it has to do.
    ///
    /// # Safety
    /// It came from `create_stream` and is ended once.
    unsafe fn destroy_stream(&self, stream: Handle) -> Result<()>;

    /// Queues a copy of host memory to the device.
    ///
    /// # Safety
    /// Both ranges are valid, and the source is not written, until the stream has done it.
    unsafe fn copy_in(
        &self,
        to: Handle,
        from: *const u8,
        bytes: usize,
        stream: Handle,
    ) -> Result<()>;

    /// Queues a copy of device memory to the host.
    ///
    /// # Safety
    /// Both ranges are valid, and nobody else uses the target, until the stream has done it.
    unsafe fn copy_out(
        &self,
        to: *mut u8,
        from: Handle,
        bytes: usize,
        stream: Handle,
    ) -> Result<()>;

    /// A mark that can be set in streams.
    fn create_event(&self) -> Result<Handle>;

    /// Forgets an event.
    ///
    /// # Safety
    /// It came from `create_event` and is destroyed once.
    unsafe fn destroy_event(&self, event: Handle) -> Result<()>;

    /// Sets the mark behind all that the stream was given so far.
    ///
    /// # Safety
    /// Event and stream exist.
    unsafe fn record(&self, event: Handle, stream: Handle) -> Result<()>;

    /// Sets the mark behind all that the device was given so far in this process, on any stream.
    ///
    /// # Safety
    /// The event exists.
    unsafe fn record_all(&self, event: Handle) -> Result<()>;

    /// Whether what was before the mark is done.
    ///
    /// # Safety
    /// The event exists.
    unsafe fn has_passed(&self, event: Handle) -> Result<bool>;

    /// Waits until what was before the mark is done.
    ///
    /// # Safety
    /// The event exists.
    unsafe fn wait(&self, event: Handle) -> Result<()>;

    /// Lets what the stream is given from now on wait for the mark; the caller does not wait.
    ///
    /// # Safety
    /// Stream and event exist.
    unsafe fn make_wait(&self, stream: Handle, event: Handle) -> Result<()>;

    /// Waits until everything that the device was given in this process is done.
    fn settle(&self) -> Result<()>;
}

/// The device of that name: `"cuda"`, `"cuda:1"`.
pub fn open(name: &str) -> Result<Arc<dyn Device>> {
    Ok(cuda::Cuda::open(number(name)?)?)
}

/// The number in a device's name.
fn number(name: &str) -> Result<i32> {
    let wrong = || DeviceError::Name(name.to_owned());
    match name.strip_prefix("cuda").ok_or_else(wrong)? {
        "" => Ok(0),
        rest => match rest.strip_prefix(':').map(str::parse::<u16>) {
            Some(Ok(number)) => Ok(number.into()),
            _ => Err(wrong()),
        },
    }
}

/// A stream, ended when dropped.
pub struct Stream {
    device: Arc<dyn Device>,
    handle: Handle,
}

impl Stream {
    /// A stream that waits for no other.
    pub fn new(device: &Arc<dyn Device>) -> Result<Stream> {
        Ok(Stream { device: device.clone(), handle: device.create_stream()? })
    }

    /// What the device calls it.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Lets what it is given from now on wait for `event`.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        // SAFETY: both exist as long as their owners do.
        unsafe { self.device.make_wait(self.handle, event.handle) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made in `new`, ended here only. A driver that refuses has no use for it either.
        let _ = unsafe { self.device.destroy_stream(self.handle) };
    }
}

/// An event, forgotten when dropped.
pub struct Event {
    device: Arc<dyn Device>,
    handle: Handle,
}

impl Event {
    /// An event that is set nowhere: it has passed.
    pub fn new(device: &Arc<dyn Device>) -> Result<Event> {
        Ok(Event { device: device.clone(), handle: device.create_event()? })
    }

    /// Sets it behind all that the stream was given so far.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both exist as long as their owners do.
        unsafe { self.device.record(self.handle, stream.handle) }
    }

    /// Sets it behind all that the device was given so far.
    pub fn record_all(&self) -> Result<()> {
        // SAFETY: it exists as long as this does.
        unsafe { self.device.record_all(self.handle) }
    }

    /// Whether what was before it is done.
    pub fn has_passed(&self) -> Result<bool> {
        // SAFETY: as above.
        unsafe { self.device.has_passed(self.handle) }
    }

    /// Waits until what was before it is done.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.device.wait(self.handle) }
    }

    /// Sets it behind all that a stream of the program's was given so far.
    fn record_in(&self, stream: Handle) -> Result<()> {
        // SAFETY: DLPack's consumers keep a stream as long as arrays that they took for it, and a
        // driver that does not know a stream says so.
        unsafe { self.device.record(self.handle, stream) }
    }

    /// Lets what a stream of the program's is given from now on wait for it.
    fn hold(&self, stream: Handle) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.device.make_wait(stream, self.handle) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed here only.
        let _ = unsafe { self.device.destroy_event(self.handle) };
    }
}

/// A piece of the device's memory, freed when dropped: what uses it must be done by then.
pub(crate) struct DeviceMemory {
    device: Arc<dyn Device>,
    address: Handle,
    bytes: usize,
}

impl DeviceMemory {
    /// So many bytes, with anything in them.
    pub(crate) fn new(device: &Arc<dyn Device>, bytes: usize) -> Result<DeviceMemory> {
        let bytes = bytes.max(1);
        Ok(DeviceMemory { device: device.clone(), address: device.allocate(bytes)?, bytes })
    }

    /// Where it is.
    #[must_use]
    pub(crate) fn address(&self) -> Handle {
        self.address
    }

    /// Queues a copy of `from` to `offset`.
    ///
    /// # Safety
    /// `from` is not written or freed, and this not dropped, before the stream has done it.
    ///
    /// # Panics
    /// If it does not fit.
    pub(crate) unsafe fn copy_in(&self, offset: usize, from: &[u8], stream: &Stream) -> Result<()> {
        assert!(offset.checked_add(from.len()).is_some_and(|end| end <= self.bytes));
        if from.is_empty() {
            return Ok(());
        }
        let to = self.address + offset as u64;
        // SAFETY: inside the memory by the check above; the rest is the caller's promise.
        unsafe { self.device.copy_in(to, from.as_ptr(), from.len(), stream.handle) }
    }

    /// Queues a copy from `offset` to `to`.
    ///
    /// # Safety
    /// `to` is not used, and this not dropped, before the stream has done it.
    ///
    /// # Panics
    /// If there are not so many bytes.
    pub(crate) unsafe fn copy_out(
        &self,
        offset: usize,
        to: &mut [u8],
        stream: &Stream,
    ) -> Result<()> {
        assert!(offset.checked_add(to.len()).is_some_and(|end| end <= self.bytes));
        if to.is_empty() {
            return Ok(());
        }
        let from = self.address + offset as u64;
        // SAFETY: inside the memory by the check above; the rest is the caller's promise.
        unsafe { self.device.copy_out(to.as_mut_ptr(), from, to.len(), stream.handle) }
    }

    /// Copies from `offset` to `to` and waits for it, also for what the stream had to do before.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8], stream: &Stream) -> Result<()> {
        let done = Event::new(&self.device)?;
        // The copy writes to memory of its own: if the device cannot say whether it is done,
        // that is left behind.
        let mut bytes = vec![0u8; to.len()];
        // SAFETY: the bytes are looked at, or freed, behind the event only.
        let queued = unsafe { self.copy_out(offset, &mut bytes, stream) };
        let read = queued.and_then(|()| done.record(stream)).and_then(|()| done.wait());
        match read {
            Ok(()) => to.copy_from_slice(&bytes),
            Err(_) if self.device.settle().is_err() => std::mem::forget(bytes),
            Err(_) => {}
        }
        read
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: made in `new`, freed here only; users are done by the type's contract.
        let _ = unsafe { self.device.free(self.address) };
    }
}

/// Host memory that is page-locked until this is dropped.
pub struct PageLock {
    device: Arc<dyn Device>,
    address: *mut u8,
}

// SAFETY: the address is only handed back to the device, whose calls may come from any thread.
unsafe impl Send for PageLock {}
// SAFETY: as above; nothing is done through a shared reference.
unsafe impl Sync for PageLock {}

impl PageLock {
    /// Page-locks a range.
    ///
    /// # Safety
    /// The range is mapped, and stays so until this is dropped.
    pub unsafe fn new(device: &Arc<dyn Device>, address: *mut u8, bytes: usize) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { device.lock(address, bytes)? };
        Ok(PageLock { device: device.clone(), address })
    }

    /// Page-locks a batch's memory once, until it is freed.
    pub fn of_batch(device: &Arc<dyn Device>, memory: &BatchMemory) -> Result<()> {
        memory.keep(|| {
            // SAFETY: `BatchMemory` drops what it keeps before its mapping.
            let lock = unsafe { PageLock::new(device, memory.as_ptr(), memory.len().max(1)) }?;
            Ok(Box::new(lock) as Box<_>)
        })
    }
}

impl Drop for PageLock {
    fn drop(&mut self) {
        // SAFETY: locked in `new`, unlocked here only.
        let _ = unsafe { self.device.unlock(self.address) };
    }
}
