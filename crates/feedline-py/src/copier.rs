//! Copies rows into batches behind the back of the thread that makes samples.

#![allow(unsafe_code)]

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// So many copies may wait; then the caller copies for itself.
const MOST: usize = 32;

/// Below this a copy takes less time than waking a thread does.
const SMALL: usize = 64 * 1024;

struct Copy {
    from: usize,
    to: usize,
    bytes: usize,
}

impl Copy {
    /// # Safety
    /// Both ranges exist, do not overlap, nobody writes to the first or uses the second.
    unsafe fn run(&self) {
        // SAFETY: by the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(self.from as *const u8, self.to as *mut u8, self.bytes);
        }
    }
}

/// Copies that were handed over and are not done.
#[derive(Default)]
struct Open {
    count: Mutex<usize>,
    none: Condvar,
}

impl Open {
    fn change(&self, by: isize) {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *count = count.saturating_add_signed(by);
        if *count == 0 {
            self.none.notify_all();
        }
    }
}

/// A thread that copies memory while Python goes on to the next sample. Whoever hands a copy over
/// keeps both ends alive and unchanged until `wait` has returned.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Copier {
    queue: Mutex<Option<SyncSender<Copy>>>,
    open: Arc<Open>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

fn copy_all(queue: &Receiver<Copy>, open: &Open) {
    while let Ok(copy) = queue.recv() {
        // SAFETY: `Copier::copy` checked nothing more than its caller promised: both ends stay.
        unsafe { copy.run() };
        open.change(-1);
    }
}

#[pymethods]
impl Copier {
    #[new]
    fn new() -> PyResult<Self> {
        let (sender, receiver) = sync_channel(MOST);
        let open = Arc::new(Open::default());
        let theirs = open.clone();
        let thread = std::thread::Builder::new()
            .name("feedline-copy".to_owned())
            .spawn(move || copy_all(&receiver, &theirs))
            .map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
        Ok(Copier { queue: Mutex::new(Some(sender)), open, thread: Mutex::new(Some(thread)) })
    }

    /// Copies `bytes` from one address to another, now or soon. True if it is done already.
    fn copy(&self, py: Python<'_>, to: usize, source: usize, bytes: usize) -> PyResult<bool> {
        if bytes > 0 && (to == 0 || source == 0) {
            return Err(PyValueError::new_err("a copy needs two addresses"));
        }
        let copy = Copy { from: source, to, bytes };
        if bytes < SMALL {
            // SAFETY: the caller holds both ends, as the class demands.
            unsafe { copy.run() };
            return Ok(true);
        }
        self.open.change(1);
        let refused = {
            let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            match queue.as_ref().map(|queue| queue.try_send(copy)) {
                Some(Ok(())) => None,
                Some(Err(TrySendError::Full(copy) | TrySendError::Disconnected(copy))) => {
                    Some(copy)
                }
                None => Some(Copy { from: source, to, bytes }),
            }
        };
        let Some(copy) = refused else { return Ok(false) };
        // SAFETY: as above.
        py.detach(|| unsafe { copy.run() });
        self.open.change(-1);
        Ok(true)
    }

    /// Waits until everything that was handed over is copied.
    fn wait(&self, py: Python<'_>) {
        py.detach(|| {
            let mut count = self.open.count.lock().unwrap_or_else(PoisonError::into_inner);
            while *count > 0 {
                count = self.open.none.wait(count).unwrap_or_else(PoisonError::into_inner);
            }
        });
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // What is in the queue is copied first: its memory must not go before that.
            let _ = thread.join();
        }
    }
}
