//! Copies batches to a device ahead of the program.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;

use super::batch::{Pool, Slot, offsets};
use super::{Device, DeviceBatch, Event, Result, Stream};
use crate::deliver::Batch;
use crate::error::{DeviceError, Error};
use crate::layout::BatchLayout;

/// Copies batches to a device on a stream of its own, a few ahead of the program. `T` is what the
/// caller wants to know of a batch when it comes out again.
///
/// It has no thread: copies run on the device while the program works, and the next ones are
/// queued when it asks for a batch.
pub(crate) struct Prefetcher<T> {
    queue: VecDeque<(DeviceBatch, T)>,
    /// Host batches whose copy may be under way, oldest first.
    copying: VecDeque<(Batch, Arc<Event>)>,
    /// Memory for the next batch.
    reserved: Option<Slot>,
    offsets: Arc<[usize]>,
    pool: Arc<Pool>,
    side: Stream,
    device: Arc<dyn Device>,
    ahead: usize,
    process: u32,
    batches: u64,
    bytes: u64,
}

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefetchStats {
    /// Batches that were copied.
    pub batches: u64,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Batches that wait on the device for the program.
    pub ready: u64,
    /// Batches that the device's memory was taken for: waiting, in the program's hands, or free.
    pub slots: u64,
}

impl<T> Prefetcher<T> {
    /// For batches of `layout`, of which up to `ahead` wait on the device for the program.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        layout: &BatchLayout,
        ahead: usize,
    ) -> Result<Self, Error> {
        let (offsets, bytes) = offsets(layout)
            .ok_or_else(|| Error::Memory("a batch is larger than memory can be".to_owned()))?;
        let side = Stream::new(&device)?;
        Ok(Prefetcher {
            queue: VecDeque::with_capacity(ahead + 1),
            copying: VecDeque::with_capacity(ahead + 2),
            reserved: None,
            offsets,
            pool: Arc::new(Pool::new(device.clone(), bytes)),
            side,
            device,
            ahead,
            process: std::process::id(),
            batches: 0,
            bytes: 0,
        })
    }

    /// Whether there is room and device memory for one more batch. If the device has no memory
    /// left, that is an error only when nothing waits for the program.
    pub(crate) fn reserve(&mut self) -> Result<bool> {
        if self.queue.len() > self.ahead {
            return Ok(false);
        }
        if self.reserved.is_none() {
            match self.pool.take(&self.side) {
                Ok(slot) => self.reserved = Some(slot),
                Err(error) if error.is_out_of_memory() && !self.queue.is_empty() => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Queues the copy of a batch. It is kept until the copy is done.
    pub(crate) fn submit(&mut self, batch: Batch, about: T) -> Result<()> {
        if self.process != std::process::id() {
            return Err(DeviceError::Forked);
        }
        let slot = match self.reserved.take() {
            Some(slot) => slot,
            None => self.pool.take(&self.side)?,
        };
        let mut bytes = 0;
        let mut queued = Ok(());
        for (number, offset) in self.offsets.iter().enumerate() {
            let Some(array) = batch.array(number) else { continue };
            bytes += array.bytes.len() as u64;
            // SAFETY: the batch goes to `copying`, where it stays until the event behind the copy
            // has passed; the slot's memory is freed only behind that event too.
            queued = queued
                .and_then(|()| unsafe { slot.memory.copy_in(*offset, array.bytes, &self.side) });
        }
        if let Err(error) = queued.and_then(|()| slot.copied.record(&self.side)) {
            // Part of it may be queued, with no event that says when it is done.
            if self.device.settle().is_err() {
                std::mem::forget((batch, slot));
            } else {
                self.pool.give_back(slot);
            }
            return Err(error);
        }
        self.batches += 1;
        self.bytes += bytes;
        let copied = slot.copied.clone();
        let ready = DeviceBatch::new(&batch, self.offsets.clone(), slot, self.pool.clone());
        self.copying.push_back((batch, copied));
        self.queue.push_back((ready, about));
        Ok(())
    }

    /// The oldest batch. Its copy may be under way: whoever takes its arrays waits for it on the
    /// device.
    pub(crate) fn take(&mut self) -> Option<(DeviceBatch, T)> {
        self.queue.pop_front()
    }

    /// Lets host batches go whose copies are done; true if some are still under way.
    pub(crate) fn release(&mut self) -> Result<bool> {
        if self.process != std::process::id() {
            return Err(DeviceError::Forked);
        }
        while let Some((_, copied)) = self.copying.front() {
            if !copied.has_passed()? {
                return Ok(true);
            }
            self.copying.pop_front();
        }
        // Memory that the program gave back, beyond what a loop needs: those ahead and the one
        // that it lets go while it asks for the next.
        self.pool.trim(self.ahead + 2);
        Ok(false)
    }

    /// Forgets the batches that wait for the program.
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    /// What was copied so far.
    #[must_use]
    pub(crate) fn figures(&self) -> PrefetchStats {
        PrefetchStats {
            batches: self.batches,
            bytes: self.bytes,
            ready: self.queue.len() as u64,
            slots: self.pool.slots() as u64,
        }
    }
}

impl<T> Drop for Prefetcher<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The device does not exist here, and locks may be held by threads that do not.
            std::mem::forget((std::mem::take(&mut self.copying), std::mem::take(&mut self.queue)));
            std::mem::forget((self.reserved.take(), self.pool.clone()));
            return;
        }
        self.queue.clear();
        while let Some((batch, copied)) = self.copying.pop_front() {
            if copied.wait().is_err() && self.device.settle().is_err() {
                // A copy that cannot be shown to be done may still read these bytes.
                std::mem::forget(batch);
            }
        }
        if let Some(slot) = self.reserved.take() {
            self.pool.give_back(slot);
        }
        self.pool.close();
    }
}
