//! Stores that are slower than they are: to see how a pipeline does on a slow disk or an object
//! store before it is there.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Entry, Handle, Hint, Metadata, Sidecar, Store, wrapped};
use crate::error::Fault;
use crate::sample::{Location, Room};

/// Hands the bytes of another store over at so many a second, over all readers.
///
/// ```
/// use std::sync::Arc;
/// use feedline::{Loader, store::{Files, Throttled}};
/// let slow = Throttled::new(Arc::new(Files::default()), 100_000_000);
/// let builder = Loader::builder("photos").store(Arc::new(slow));
/// # drop(builder);
/// ```
pub struct Throttled {
    inner: Arc<dyn Store>,
    line: Arc<Line>,
}

/// A line that all readers share.
struct Line {
    bytes_per_second: u64,
    /// When all that was asked for so far will be through.
    through: Mutex<Instant>,
}

impl Line {
    /// Waits until so many bytes that were asked for at `began` would be through.
    fn pass(&self, bytes: u64, began: Instant) {
        let takes = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        let mut through = self.through.lock().unwrap_or_else(PoisonError::into_inner);
        let done = began.max(*through) + takes;
        *through = done;
        drop(through);
        std::thread::sleep(done.saturating_duration_since(Instant::now()));
    }
}

impl Throttled {
    /// Over `inner`. A rate of 0 counts as 1.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, bytes_per_second: u64) -> Self {
        let (bytes_per_second, through) = (bytes_per_second.max(1), Mutex::new(Instant::now()));
        Throttled { inner, line: Arc::new(Line { bytes_per_second, through }) }
    }

    fn wrap(&self, inner: Handle) -> Handle {
        let line = self.line.clone();
        wrapped(inner, move |inner, out, at| {
            let began = Instant::now();
            let read = inner.read_at(out, at)?;
            line.pass(read as u64, began);
            Ok(read)
        })
    }
}

/// A room that knows how much was written into it.
struct Counted<'a> {
    room: &'a mut dyn Room,
    bytes: u64,
}

impl Room for Counted<'_> {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        self.bytes = bytes;
        self.room.make(bytes)
    }

    fn at_hand(&mut self) -> &mut [u8] {
        self.room.at_hand()
    }

    fn shape(&mut self, shape: &[usize]) {
        self.room.shape(shape);
    }

    fn keep(&mut self, bytes: usize) {
        self.bytes = bytes as u64;
        self.room.keep(bytes);
    }
}

impl Store for Throttled {
    fn open(&self, path: &Path) -> std::io::Result<Handle> {
        Ok(self.wrap(self.inner.open(path)?))
    }

    fn list(
        &self,
        folder: &Path,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> std::io::Result<()> {
        self.inner.list(folder, each)
    }

    fn find(&self, path: &Path) -> std::io::Result<Metadata> {
        self.inner.find(path)
    }

    fn reopen(&self, path: &Path, stamp: u64) -> Result<Handle, Fault> {
        Ok(self.wrap(self.inner.reopen(path, stamp)?))
    }

    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        let began = Instant::now();
        let mut room = Counted { room, bytes: 0 };
        self.inner.read(location, &mut room)?;
        self.line.pass(room.bytes, began);
        Ok(())
    }

    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        self.inner.size(location)
    }

    fn hint(&self, _location: &Location<'_>) -> Hint {
        // Fetching early would be a way round the limit.
        Hint::Unused
    }

    fn sidecar(&self, path: &Path, ending: &str, place: Sidecar) -> Option<PathBuf> {
        self.inner.sidecar(path, ending, place)
    }
}

/// Adds a latency to what is asked of another store, listings and openings among it: to all, or to
/// what concerns some paths.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use feedline::store::{Delayed, Files};
/// let like_object_storage = Delayed::new(Arc::new(Files::default()), Duration::from_millis(30));
/// let one_bad_disk = Delayed::new(Arc::new(Files::default()), Duration::from_millis(200))
///     .only("shard-000007");
/// # drop((like_object_storage, one_bad_disk));
/// ```
pub struct Delayed {
    inner: Arc<dyn Store>,
    latency: Duration,
    only: Option<String>,
}

impl Delayed {
    /// Every listing, opening and read of `inner` takes so much longer.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, latency: Duration) -> Self {
        Delayed { inner, latency, only: None }
    }

    /// Delays only what concerns files whose path contains `text`.
    #[must_use]
    pub fn only(mut self, text: impl Into<String>) -> Self {
        self.only = Some(text.into());
        self
    }

    fn is_meant(&self, paths: &[&Path]) -> bool {
        self.only
            .as_ref()
            .is_none_or(|text| paths.iter().any(|path| path.to_string_lossy().contains(text)))
    }

    fn wait(&self, paths: &[&Path]) {
        if self.is_meant(paths) {
            std::thread::sleep(self.latency);
        }
    }

    fn wrap(&self, path: &Path, inner: Handle) -> Handle {
        if !self.is_meant(&[path]) {
            return inner;
        }
        let latency = self.latency;
        wrapped(inner, move |inner, out, at| {
            std::thread::sleep(latency);
            inner.read_at(out, at)
        })
    }
}

impl Store for Delayed {
    fn open(&self, path: &Path) -> std::io::Result<Handle> {
        self.wait(&[path]);
        Ok(self.wrap(path, self.inner.open(path)?))
    }

    fn list(
        &self,
        folder: &Path,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> std::io::Result<()> {
        self.wait(&[folder]);
        self.inner.list(folder, each)
    }

    fn find(&self, path: &Path) -> std::io::Result<Metadata> {
        self.inner.find(path)
    }

    fn reopen(&self, path: &Path, stamp: u64) -> Result<Handle, Fault> {
        Ok(self.wrap(path, self.inner.reopen(path, stamp)?))
    }

    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        self.wait(&[location.root, location.path]);
        self.inner.read(location, room)
    }

    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        self.inner.size(location)
    }

    fn hint(&self, location: &Location<'_>) -> Hint {
        match self.is_meant(&[location.root, location.path]) {
            true => Hint::Unused,
            false => self.inner.hint(location),
        }
    }

    fn sidecar(&self, path: &Path, ending: &str, place: Sidecar) -> Option<PathBuf> {
        self.inner.sidecar(path, ending, place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Grown;
    use crate::store::Local;

    fn read(store: &dyn Store, path: &Path) -> Duration {
        let location = Location { root: Path::new(""), path, range: None, stamp: None };
        let (mut room, began) = (Grown::default(), Instant::now());
        store.read(&location, &mut room).unwrap();
        assert_eq!(room.bytes.len(), 5000);
        began.elapsed()
    }

    #[test]
    fn bytes_and_requests_take_the_time_they_should() {
        let name = format!("feedline-rehearsal-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, [1; 5000]).unwrap();
        // Two readers share the rate: 10,000 bytes at 50,000 a second.
        let slow = Arc::new(Throttled::new(Arc::new(Local), 50_000));
        let began = Instant::now();
        std::thread::scope(|scope| {
            (0..2).for_each(|_| drop(scope.spawn(|| read(&*slow, &path))));
        });
        assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
        let late = Delayed::new(Arc::new(Local), Duration::from_millis(100));
        assert!(read(&late, &path) >= Duration::from_millis(100));
        // A day, which nobody waits for here.
        let never = Delayed::new(Arc::new(Local), Duration::from_secs(86_400)).only("elsewhere");
        read(&never, &path);
        let late = Delayed::new(Arc::new(Local), Duration::from_millis(100)).only("rehearsal");
        assert!(read(&late, &path) >= Duration::from_millis(100));
        std::fs::remove_file(&path).unwrap();
    }
}
