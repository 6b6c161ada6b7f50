//! Page-locked host batches on their way back to the loader.
//!
//! A program that copies a page-locked batch to a device by itself (`tensor.to("cuda",
//! non_blocking=True)`) may drop it before the copy is done. The memory must not be written until
//! then, and nobody names the stream the copy is on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Device, Event, Result};
use crate::buffer::BatchMemory;
use crate::deliver::Home;

/// Hands memory back to its home when all that the device was given until then is done.
pub(crate) struct Returning {
    home: Arc<dyn Home>,
    device: Arc<dyn Device>,
    process: u32,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    /// Dropped by the program since the device was last asked.
    dropped: Vec<Arc<BatchMemory>>,
    /// With the event that must pass first, oldest first.
    waiting: VecDeque<(Event, Vec<Arc<BatchMemory>>)>,
    /// Nobody asks any more.
    closed: bool,
}

impl Returning {
    /// On the way to `home`.
    #[must_use]
    pub(crate) fn new(home: Arc<dyn Home>, device: Arc<dyn Device>) -> Self {
        Returning { home, device, process: std::process::id(), inside: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands back what can be; true if some is still on its way.
    pub(crate) fn collect(&self) -> Result<bool> {
        let dropped = std::mem::take(&mut self.lock().dropped);
        if !dropped.is_empty() {
            let marked = Event::new(&self.device).and_then(|event| {
                event.record_all()?;
                Ok(event)
            });
            match marked {
                Ok(event) => self.lock().waiting.push_back((event, dropped)),
                Err(error) => {
                    self.lock().dropped.extend(dropped);
                    return Err(error);
                }
            }
        }
        loop {
            let Some((event, memory)) = self.lock().waiting.pop_front() else { return Ok(false) };
            let passed = event.has_passed();
            if let Ok(true) = passed {
                memory.into_iter().for_each(|memory| self.home.take_back(memory));
                continue;
            }
            self.lock().waiting.push_front((event, memory));
            return passed.map(|_| true);
        }
    }

    /// The loader is gone: memory is handed back as it comes, after waiting for the device.
    pub(crate) fn close(&self) {
        if self.process == std::process::id() {
            self.lock().closed = true;
            self.flush();
        }
    }

    fn flush(&self) {
        let mut inside = self.lock();
        let (dropped, waiting) =
            (std::mem::take(&mut inside.dropped), std::mem::take(&mut inside.waiting));
        drop(inside);
        if dropped.is_empty() && waiting.is_empty() {
            return;
        }
        let settled = self.device.settle().is_ok();
        for memory in waiting.into_iter().flat_map(|(_, memory)| memory).chain(dropped) {
            if settled {
                self.home.take_back(memory);
            } else {
                // A copy that cannot be shown to be done may still read these bytes.
                std::mem::forget(memory);
            }
        }
    }
}

impl Home for Returning {
    fn take_back(&self, memory: Arc<BatchMemory>) {
        let mut inside = self.lock();
        inside.dropped.push(memory);
        let closed = inside.closed;
        drop(inside);
        if closed {
            self.flush();
        }
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        let inside = self.inside.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.process != std::process::id() {
            std::mem::forget(std::mem::take(inside));
            return;
        }
        self.flush();
    }
}
