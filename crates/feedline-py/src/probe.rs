//! How much of the time the interpreter's lock is held.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Pauses between two looks; uneven, so that they do not fall into step with the work.
const PAUSES: [u64; 5] = [130, 210, 170, 290, 110];

/// The time from one look to the next while the lock is free.
const BETWEEN: Duration = Duration::from_micros(182);

/// A lock that is free is taken faster than this, also when the thread just woke up.
const FREE: Duration = Duration::from_micros(20);

#[derive(Default)]
struct Counts {
    looks: AtomicU64,
    held: AtomicU64,
    stop: AtomicBool,
}

/// A thread that asks for the interpreter's lock at odd moments and notes how often it was held:
/// the share of the time in which other threads could not have run Python.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct LockProbe {
    counts: Arc<Counts>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

fn look(counts: &Counts) {
    for pause in PAUSES.iter().cycle() {
        std::thread::sleep(Duration::from_micros(*pause));
        if counts.stop.load(Ordering::Relaxed) {
            return;
        }
        let before = Instant::now();
        let Some(wait) = Python::try_attach(|_| before.elapsed()) else { return };
        // One that waits stands for those that there was no time for: all would have found the lock
        // held. Else a long stretch would count as little as a short one.
        let stands_for = 1 + (wait.as_micros() / BETWEEN.as_micros()) as u64;
        counts.looks.fetch_add(stands_for, Ordering::Relaxed);
        if wait > FREE {
            counts.held.fetch_add(stands_for, Ordering::Relaxed);
        }
    }
}

#[pymethods]
impl LockProbe {
    /// Begins to look.
    #[new]
    fn new() -> PyResult<Self> {
        let counts = Arc::new(Counts::default());
        let theirs = counts.clone();
        let thread = std::thread::Builder::new()
            .name("feedline-probe".to_owned())
            .spawn(move || look(&theirs))
            .map_err(|error| PyRuntimeError::new_err(format!("cannot start a thread: {error}")))?;
        Ok(LockProbe { counts, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the looking and returns how often it looked and how often the lock was held.
    fn stop(&self, py: Python<'_>) -> (u64, u64) {
        self.counts.stop.store(true, Ordering::Relaxed);
        py.detach(|| {
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(thread) = thread {
                // It needs the interpreter's lock once more at most, which nobody holds here.
                let _ = thread.join();
            }
        });
        (self.counts.looks.load(Ordering::Relaxed), self.counts.held.load(Ordering::Relaxed))
    }
}

impl Drop for LockProbe {
    fn drop(&mut self) {
        self.counts.stop.store(true, Ordering::Relaxed);
    }
}
