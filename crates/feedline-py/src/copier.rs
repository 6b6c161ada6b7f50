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

/// How many copies are done; they are done in the order in which they were handed over.
#[derive(Default)]
struct Done {
    count: Mutex<u64>,
    more: Condvar,
}

/// The way to the thread: copies are numbered from 1 on.
struct Queue {
    sender: SyncSender<Copy>,
    handed: u64,
}

/// A thread that copies memory while Python goes on to the next sample. Whoever hands a copy over
/// keeps both ends alive and unchanged until `wait` has returned.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Copier {
    queue: Mutex<Option<Queue>>,
    done: Arc<Done>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The process that has the thread.
    owner: u32,
}

fn copy_all(queue: &Receiver<Copy>, done: &Done) {
    while let Ok(copy) = queue.recv() {
        // SAFETY: whoever handed it over keeps both ends until it is done.
        unsafe { copy.run() };
        *done.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        done.more.notify_all();
    }
}

#[pymethods]
impl Copier {
    #[new]
    fn new() -> PyResult<Self> {
        let (sender, receiver) = sync_channel(MOST);
        let done = Arc::new(Done::default());
        let theirs = done.clone();
        let thread = std::thread::Builder::new()
            .name("feedline-copy".to_owned())
            .spawn(move || copy_all(&receiver, &theirs))
            .map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
        let queue = Queue { sender, handed: 0 };
        let owner = std::process::id();
        Ok(Copier { queue: Mutex::new(Some(queue)), done, thread: Mutex::new(Some(thread)), owner })
    }

    /// Copies `bytes` from one address to another: now, which gives 0, or soon, which gives the
    /// number to `wait` for.
    fn copy(&self, py: Python<'_>, to: usize, source: usize, bytes: usize) -> PyResult<u64> {
        if bytes > 0 && (to == 0 || source == 0) {
            return Err(PyValueError::new_err("a copy needs two addresses"));
        }
        let copy = Copy { from: source, to, bytes };
        if bytes < SMALL {
            // SAFETY: the caller holds both ends, as the class demands.
            unsafe { copy.run() };
            return Ok(0);
        }
        let copy = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            match queue.as_mut().map(|queue| (queue.sender.try_send(copy), &mut queue.handed)) {
                Some((Ok(()), handed)) => {
                    *handed += 1;
                    return Ok(*handed);
                }
                Some((Err(TrySendError::Full(copy) | TrySendError::Disconnected(copy)), _)) => copy,
                None => Copy { from: source, to, bytes },
            }
        };
        // SAFETY: as above.
        py.detach(|| unsafe { copy.run() });
        Ok(0)
    }

    /// Waits until the copy of that number, and all before it, are done.
    fn wait(&self, py: Python<'_>, number: u64) {
        py.detach(|| {
            let mut count = self.done.count.lock().unwrap_or_else(PoisonError::into_inner);
            while *count < number {
                count = self.done.more.wait(count).unwrap_or_else(PoisonError::into_inner);
            }
        });
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        if std::process::id() != self.owner {
            // After a fork the thread is not here: joining it panics, and whatever lock it held when
            // the fork happened stays taken. A few hundred bytes of the child are left behind.
            std::mem::forget(self.queue.get_mut().map(Option::take));
            std::mem::forget(self.thread.get_mut().map(Option::take));
            return;
        }
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // What is in the queue is copied first: its memory must not go before that.
            let _ = thread.join();
        }
    }
}
