//! The loader as Python holds it.

use std::ffi::OsString;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use feedline::device;
use feedline::internals::device::cuda;
use feedline::internals::output_file;
use feedline::source::Arrays;
use feedline::spec::SourceKind;
use feedline::stats::Stats;
use feedline::{Error, Spec};
use feedline_view::live::About;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::{Value, json};

use crate::array::Batch;
use crate::column::column;
use crate::device::DeviceBatch;
use crate::errors::{mismatch, raise, raise_plain, raise_spec};
use crate::live::BoardEntry;
use crate::verdict::judged;
use crate::{rows, tuning};

/// Reads a description in TOML (or JSON) and returns it as JSON in its canonical form.
#[pyfunction]
pub(crate) fn read_spec(py: Python<'_>, text: &str, toml: bool) -> PyResult<String> {
    let spec = if toml { Spec::from_toml(text) } else { Spec::from_json(text) };
    Ok(spec.map_err(|error| raise_spec(py, error))?.to_value().to_string())
}

/// Reads a description from a file, whose relative paths are relative to its folder.
#[pyfunction]
pub(crate) fn read_spec_file(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let spec = py.detach(|| Spec::from_file(&path)).map_err(|error| raise(py, error))?;
    Ok(spec.to_value().to_string())
}

/// Opens a quarantine file to add to it: its descriptor, which is then Python's.
#[pyfunction]
pub(crate) fn open_quarantine(py: Python<'_>, path: Vec<u8>) -> PyResult<i32> {
    let path = PathBuf::from(OsString::from_vec(path));
    let what = "cannot write the quarantine file";
    match output_file::append(&path) {
        Ok(file) => Ok(file.into_raw_fd()),
        Err(source) => Err(raise(py, Error::Io { what, path, source })),
    }
}

/// What makes the batches: on the host, or on a device.
enum Running {
    Host(Box<feedline::Loader>),
    Device(Box<feedline::DeviceLoader>),
}

enum Made {
    Host(feedline::Batch),
    Device(Arc<device::DeviceBatch>),
}

/// Calls the same method of either.
macro_rules! either {
    ($running:expr, $loader:ident => $call:expr) => {
        match $running {
            Running::Host($loader) => $call,
            Running::Device($loader) => $call,
        }
    };
}

impl Running {
    fn over(
        mut loader: feedline::Loader,
        device: Option<&str>,
        ahead: usize,
        pin: bool,
    ) -> Result<Running, Error> {
        if let Some(name) = device {
            let device = device::open(name)?;
            let loader = feedline::DeviceLoader::new(loader, device, ahead, pin)?;
            return Ok(Running::Device(Box::new(loader)));
        }
        if pin {
            let number = cuda::preferred()?;
            loader.pin(cuda::Cuda::open(number)?);
        }
        Ok(Running::Host(Box::new(loader)))
    }

    fn next_unless(
        &mut self,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Option<Result<Made, Error>> {
        Some(match self {
            Running::Host(loader) => loader.next_batch_unless(interrupted)?.map(Made::Host),
            Running::Device(loader) => loader
                .next_batch_unless(interrupted)?
                .map(|(batch, _)| Made::Device(Arc::new(batch))),
        })
    }

    /// The loader that makes the batches.
    fn host(&self) -> &feedline::Loader {
        match self {
            Running::Host(loader) => loader,
            Running::Device(loader) => loader.loader(),
        }
    }

    fn stats(&self) -> Value {
        match self {
            Running::Host(loader) => loader.stats().to_value(),
            Running::Device(loader) => {
                let (host, copied) = loader.stats();
                let mut value = host.to_value();
                value["device"] = json!({
                    "batches": copied.batches,
                    "bytes": copied.bytes,
                    "ready": copied.ready,
                    "slots": copied.slots,
                });
                value
            }
        }
    }
}

/// The answer to a wait for a batch.
enum Next {
    /// A batch, and whether it is its epoch's last.
    Made(Made, bool),
    NotYet,
    Over,
}

/// What changes while a loader is used.
struct Inside {
    /// `None` once closed.
    loader: Option<Running>,
    /// Counts iterators, seeks and resumes: an iterator with an older number is over.
    generation: u64,
    /// The epoch of the newest iterator.
    epoch: u64,
    /// How things stood when it began.
    before: Stats,
    /// How things stood when evidence was last asked for.
    reported: Stats,
}

/// A loader. Iterators are numbers: `begin` gives one, `next` takes it.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Loader {
    inside: Mutex<Inside>,
    /// The process that may hold the lock.
    process: AtomicU32,
    /// Calls that wait for the lock.
    waiting: AtomicU32,
    spec: String,
    about: String,
    /// Where others look at it.
    place: BoardEntry,
}

/// One array source: name, type if NumPy has no name for it, array.
type Columns<'py> = Vec<(String, Option<String>, Bound<'py, PyAny>)>;

#[pymethods]
impl Loader {
    /// `spec` is JSON. `arrays` are the program's own, for the sources of kind "arrays". A path
    /// that is no UTF-8 stands in `spec` as "\0" and its number in `paths`: no real path has a
    /// zero byte. `device` is where batches are handed over, `device_prefetch` how many are copied
    /// ahead, and `pin_memory` page-locks them on the host.
    #[new]
    #[pyo3(signature = (spec, arrays, paths, device=None, device_prefetch=2, pin_memory=false))]
    fn new<'py>(
        py: Python<'py>,
        spec: &str,
        arrays: Vec<Columns<'py>>,
        paths: Vec<Bound<'py, PyBytes>>,
        device: Option<&str>,
        device_prefetch: usize,
        pin_memory: bool,
    ) -> PyResult<Self> {
        let mut spec = Spec::from_json(spec).map_err(|error| raise_spec(py, error))?;
        let canonical = spec.to_value().to_string();
        let paths: Vec<PathBuf> =
            paths.iter().map(|path| OsString::from_vec(path.as_bytes().to_vec()).into()).collect();
        put_paths(&mut spec, &paths);
        let mut sources = Vec::with_capacity(arrays.len());
        for columns in arrays {
            let columns = columns
                .iter()
                .map(|(name, dtype, array)| column(name, dtype.as_deref(), array))
                .collect::<PyResult<Vec<_>>>()?;
            sources.push(Arrays::new(columns).map_err(|error| raise(py, error))?);
        }
        let loader = py
            .detach(|| feedline::Loader::from_spec_over(spec, sources))
            .map_err(|error| raise(py, error))?;
        let about = about(&loader).to_string();
        let place = BoardEntry::new(About {
            name: loader.source_names().join(" + "),
            batch_size: loader.spec().batch_size,
            quarantine: loader.spec().quarantine.clone(),
        });
        let loader = py
            .detach(|| Running::over(loader, device, device_prefetch, pin_memory))
            .map_err(|error| raise(py, error))?;
        Ok(Loader {
            inside: Mutex::new(Inside {
                loader: Some(loader),
                generation: 0,
                epoch: 0,
                before: Stats::default(),
                reported: Stats::default(),
            }),
            process: AtomicU32::new(std::process::id()),
            waiting: AtomicU32::new(0),
            spec: canonical,
            about,
            place,
        })
    }

    /// The description in its canonical form, as JSON.
    #[getter]
    fn spec(&self) -> &str {
        &self.spec
    }

    /// What does not change: fields, sizes, classes, workers, as JSON.
    #[getter]
    fn about(&self) -> &str {
        &self.about
    }

    /// Begins the next epoch and returns its iterator's number.
    fn begin(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |inside, loader| {
            either!(loader, loader => loader.begin_epoch());
            inside.generation += 1;
            inside.epoch = either!(loader, loader => loader.position().0);
            inside.before = loader.host().stats();
            Ok(inside.generation)
        })
    }

    /// The next batch, and whether it is its epoch's last; `None` if there is none left, as when
    /// several threads share the iterator.
    fn next(&self, py: Python<'_>, iterator: u64) -> PyResult<Option<(Py<PyAny>, bool)>> {
        loop {
            let made = self.with(py, |inside, loader| {
                if inside.generation != iterator {
                    return Err(Error::Stale);
                }
                if inside.epoch != either!(loader, loader => loader.position().0) {
                    either!(loader, loader => loader.end_epoch());
                    return Ok(Next::Over);
                }
                // After some waiting the lock is let go, so that a signal's handler and other
                // threads can use the loader meanwhile. Nothing is lost by asking again.
                self.place.used(|board, about| board.watch(about, loader.host().monitor()));
                let batch = match loader.next_unless(&mut || true) {
                    Some(Err(Error::Interrupted)) => return Ok(Next::NotYet),
                    None => return Ok(Next::Over),
                    Some(batch) => batch?,
                };
                let last = inside.epoch != either!(loader, loader => loader.position().0);
                Ok(Next::Made(batch, last))
            })?;
            match made {
                Next::Made(Made::Host(batch), last) => {
                    return Ok(Some((Py::new(py, Batch::new(batch))?.into_any(), last)));
                }
                Next::Made(Made::Device(batch), last) => {
                    return Ok(Some((Py::new(py, DeviceBatch::new(batch))?.into_any(), last)));
                }
                Next::Over => return Ok(None),
                Next::NotYet => {
                    py.check_signals()?;
                    if self.waiting.load(Ordering::Relaxed) > 0 {
                        // The lock is not fair: whoever waits for it needs a moment to get it.
                        py.detach(|| std::thread::sleep(Duration::from_millis(1)));
                    }
                }
            }
        }
    }

    /// The program asks for more after its epoch's last batch, and so is done with it.
    fn ended(&self, py: Python<'_>, iterator: u64) -> PyResult<()> {
        self.with(py, |inside, loader| {
            if inside.generation == iterator {
                either!(loader, loader => loader.end_epoch());
            }
            Ok(())
        })
    }

    /// Goes to the beginning of an epoch.
    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        if epoch > feedline::internals::order::MOST_EPOCHS {
            return Err(mismatch(&format!("epoch {epoch} is beyond any real run")));
        }
        self.with(py, |inside, loader| {
            either!(loader, loader => loader.set_epoch(epoch));
            inside.generation += 1;
            Ok(())
        })
    }

    /// The epoch and the number of the next batch.
    fn position(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.with(py, |_, loader| Ok(either!(loader, loader => loader.position())))
    }

    /// Where the run stands, as JSON.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        let state = self.with(py, |_, loader| Ok(either!(loader, loader => loader.state())))?;
        serde_json::to_string(&state).map_err(|error| mismatch(&error.to_string()))
    }

    /// Goes on where the state was taken.
    fn resume(&self, py: Python<'_>, state: &str) -> PyResult<()> {
        self.with(py, |inside, loader| {
            let state = feedline::State::from_json(state)?;
            either!(loader, loader => loader.resume(&state)?);
            inside.generation += 1;
            Ok(())
        })
    }

    /// What happened so far, as JSON.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.with(py, |_, loader| Ok(loader.stats()))?.to_string())
    }

    /// Keeps the last `most` spans of the program and of each worker from now on.
    fn record_timeline(&self, py: Python<'_>, most: usize) -> PyResult<()> {
        self.with(py, |_, loader| {
            loader.host().record_timeline(most);
            Ok(())
        })
    }

    /// What the program and each worker did when, as JSON.
    fn timeline(&self, py: Python<'_>) -> PyResult<String> {
        // Tens of thousands of spans: also their text is made without the interpreter's lock.
        let text = self
            .with(py, |_, loader| Ok(serde_json::to_string(&loader.host().monitor().timeline())))?;
        text.map_err(|error| mismatch(&error.to_string()))
    }

    /// What its stages and workers did since this was last asked for, as JSON.
    fn evidence(&self, py: Python<'_>) -> PyResult<String> {
        let evidence = self.with(py, |inside, loader| {
            let evidence = loader.host().monitor().evidence_since(&inside.reported);
            inside.reported = loader.host().stats();
            Ok(evidence)
        })?;
        serde_json::to_string(&evidence).map_err(|error| mismatch(&error.to_string()))
    }

    /// How the epoch of the newest iterator went so far, and why the program waited, as JSON.
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        let report = self.with(py, |inside, loader| {
            let evidence = loader.host().monitor().evidence_since(&inside.before);
            let mut report = judged(&evidence);
            report["epoch"] = inside.epoch.into();
            // All of them, also those of the very first batch, which is left out of the rate.
            let handed = loader.host().stats().work.samples;
            report["samples"] = handed.saturating_sub(inside.before.work.samples).into();
            Ok(report)
        })?;
        Ok(report.to_string())
    }

    /// Workers that make batches now.
    #[getter]
    fn workers(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |_, loader| Ok(loader.host().num_workers()))
    }

    /// How many decisions there were so far, and as JSON those after the first `seen`.
    fn decisions(&self, py: Python<'_>, seen: u64) -> PyResult<(u64, String)> {
        self.with(py, |_, loader| Ok(tuning::since(&loader.host().stats().tuning, seen)))
    }

    /// Writes the spec with the present settings.
    fn freeze(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |_, loader| loader.host().freeze(&path))
    }

    /// Ends the threads. Batches that the program has stay valid.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            self.lock().map(|mut inside| {
                inside.generation += 1;
                inside.loader = None;
                self.place.leave();
            })
        })
        .map_err(|error| raise(py, error))
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.lock().map(|inside| inside.loader.is_none()))
            .map_err(|error| raise(py, error))
    }
}

impl Loader {
    /// The inside, unless a thread that does not exist in this process holds it.
    fn lock(&self) -> Result<MutexGuard<'_, Inside>, Error> {
        let here = std::process::id();
        if self.process.load(Ordering::Relaxed) == here {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Ok(inside);
        }
        match self.inside.try_lock() {
            Err(TryLockError::WouldBlock) => Err(Error::System(
                "another thread was using this loader when the process forked: make a new loader in the child".to_owned(),
            )),
            Ok(inside) => {
                self.process.store(here, Ordering::Relaxed);
                Ok(inside)
            }
            Err(TryLockError::Poisoned(inside)) => Ok(inside.into_inner()),
        }
    }

    /// Does something with the loader, without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Inside, &mut Running) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| {
            let mut inside = self.lock()?;
            let Some(mut loader) = inside.loader.take() else { return Ok(None) };
            let done = work(&mut inside, &mut loader);
            inside.loader = Some(loader);
            done.map(Some)
        });
        match done {
            Ok(Some(done)) => Ok(done),
            Ok(None) => Err(raise_plain(py, "ClosedError", "the loader is closed: make a new one")),
            Err(error) => Err(raise(py, error)),
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let inside = self.inside.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(loader) = inside.loader.take() {
            // Ending the threads may take a moment in which others can run, and so may freeing what
            // they shared, which the place on the board holds too.
            let (mut loader, place) = (Some(loader), &self.place);
            Python::try_attach(|py| {
                py.detach(|| {
                    drop(loader.take());
                    place.leave();
                });
            });
        }
    }
}

/// Puts the paths back that JSON cannot hold.
pub(crate) fn put_paths(spec: &mut Spec, paths: &[PathBuf]) {
    let put = |path: &mut PathBuf| {
        let number = path.to_str().and_then(|text| text.strip_prefix('\0')?.parse().ok());
        if let Some(real) = number.and_then(|number: usize| paths.get(number)) {
            path.clone_from(real);
        }
    };
    for source in &mut spec.sources {
        match &mut source.kind {
            SourceKind::Path(path)
            | SourceKind::ImageFolder(path)
            | SourceKind::Flat(path)
            | SourceKind::Format { path, .. } => {
                put(path);
            }
            SourceKind::Manifest { path, root, .. } => {
                put(path);
                root.iter_mut().for_each(put);
            }
            _ => {}
        }
    }
    spec.quarantine.iter_mut().for_each(put);
}

fn about(loader: &feedline::Loader) -> Value {
    let fields: Vec<Value> = loader
        .fields()
        .iter()
        .map(|field| match field.variable {
            None => json!({"name": field.name, "dtype": field.dtype.name(), "shape": field.shape}),
            Some(variable) => json!({
                "name": field.name, "dtype": field.dtype.name(), "shape": null,
                "variable": rows::kind(variable),
            }),
        })
        .collect();
    let (rank, world_size) = loader.rank();
    json!({
        "fields": fields,
        "batches": loader.len(),
        "samples": loader.samples(),
        "classes": loader.classes(),
        "sources": loader.source_names(),
        "unused_columns": loader.unused_columns(),
        "rank": rank,
        "world_size": world_size,
        "workers": loader.num_workers(),
    })
}
