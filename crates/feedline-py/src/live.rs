//! The live view as Python uses it: loaders on the board, and the page.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, TryLockError};

use feedline_view::live::{self, About, LiveError};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

/// A loader's place on the board of the process that it is used in.
pub(crate) struct BoardEntry {
    about: About,
    /// The process, and the place. None while it is not used.
    kept: Mutex<Option<(u32, live::Watched)>>,
}

impl BoardEntry {
    pub(crate) fn new(about: About) -> Self {
        BoardEntry { about, kept: Mutex::new(None) }
    }

    /// A batch was asked for: from now on others can look. In a forked child, the loader has a place
    /// of its own.
    pub(crate) fn used(&self, put: impl FnOnce(&live::Board, About) -> live::Watched) {
        let here = std::process::id();
        if let Some(mut kept) = self.lock()
            && kept.as_ref().is_none_or(|(process, _)| *process != here)
            && let Some(board) = live::board()
        {
            // The parent's is not dropped here: its locks may be held.
            std::mem::forget(kept.take());
            *kept = Some((here, put(&board, self.about.clone())));
        }
        live::attach();
    }

    /// The loader is closed.
    pub(crate) fn leave(&self) {
        if let Some(mut kept) = self.lock() {
            *kept = None;
        }
    }

    fn with(&self, then: impl FnOnce(&live::Watched)) {
        if let Some((_, watched)) = self.lock().as_deref().and_then(Option::as_ref) {
            then(watched);
        }
    }

    /// A lock that was held when the process forked is not waited for, nor is one that another
    /// thread holds: it does the same.
    fn lock(&self) -> Option<MutexGuard<'_, Option<(u32, live::Watched)>>> {
        match self.kept.try_lock() {
            Ok(kept) => Some(kept),
            Err(TryLockError::Poisoned(kept)) => Some(kept.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A loader whose batches Python code makes. It pushes its figures.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Watched {
    place: BoardEntry,
}

#[pymethods]
impl Watched {
    #[new]
    #[pyo3(signature = (name, batch_size, quarantine=None))]
    fn new(name: String, batch_size: u64, quarantine: Option<PathBuf>) -> Self {
        Watched { place: BoardEntry::new(About { name, batch_size, quarantine }) }
    }

    /// The newest figures, as JSON with the keys of `Loader.stats()`.
    fn push(&self, py: Python<'_>, stats: &str) -> PyResult<()> {
        let stats =
            serde_json::from_str(stats).map_err(|e| PyValueError::new_err(e.to_string()))?;
        py.detach(|| {
            self.place.used(live::Board::watch_pushed);
            self.place.with(|watched| watched.push(stats));
        });
        Ok(())
    }

    /// Whether the program waits for a batch from now on.
    fn waits(&self, waits: bool) {
        self.place.with(|watched| watched.waits(waits));
    }

    /// The loader is closed.
    fn close(&self) {
        self.place.leave();
    }
}

/// Serves the page of this process, at this port or any that is free (0), and returns its address.
#[pyfunction]
pub(crate) fn dashboard(py: Python<'_>, port: u16) -> PyResult<String> {
    py.detach(|| live::serve(&live::board().ok_or(LiveError::Forked)?, port)).map_err(|error| {
        match error {
            LiveError::Token(why) => PyValueError::new_err(why),
            other => PyOSError::new_err(other.to_string()),
        }
    })
}

/// Takes the socket away that others look through: the process ends.
#[pyfunction]
pub(crate) fn stop_watching(py: Python<'_>) {
    py.detach(live::detach);
}

/// This process is somebody's worker: nobody looks at it, but at the one that it works for.
#[pyfunction]
pub(crate) fn stay_hidden() {
    live::stay_hidden();
}

/// What is wrong with FEEDLINE_WATCH, if anything is.
#[pyfunction]
pub(crate) fn watch_complaint() -> Option<String> {
    live::complaint()
}

/// Descriptors that a forked child has from its parent and must close.
#[pyfunction]
pub(crate) fn inherited_listeners() -> Vec<i32> {
    live::inherited().into_iter().flatten().collect()
}
