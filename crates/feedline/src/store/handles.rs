//! Files that stay open to be read again: as many as the process may have, and fewer when it has
//! no more to give.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use super::local::LocalFile;
use super::object::Object;
use crate::error::Fault;

/// More are not worth it, whatever the process may have.
const MOST: usize = 256;
/// The system's usual limit, where it does not say its own.
const USUAL_LIMIT: usize = 1024;

/// A process without files to give may get some back: others read one and close it. So often it is
/// tried again, and waited for so long each time; a second in all.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// How many files all sets of a process keep open: a quarter of what it may have, since the program
/// has files too.
pub(super) fn most_open() -> usize {
    static KNOWN: OnceLock<usize> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
        share_of(&text)
    })
}

/// The share of the limit that `/proc/self/limits` names.
fn share_of(limits: &str) -> usize {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    let limit = match soft {
        Some("unlimited") => usize::MAX,
        soft => soft.and_then(|number| number.parse().ok()).unwrap_or(USUAL_LIMIT),
    };
    (limit / 4).clamp(1, MOST)
}

struct Handle {
    file: Arc<LocalFile>,
    /// When it was last asked for.
    used: AtomicU64,
}

/// How many handles all sets have.
static KEPT: AtomicUsize = AtomicUsize::new(0);

impl Handle {
    fn new(file: Arc<LocalFile>) -> Handle {
        KEPT.fetch_add(1, Relaxed);
        Handle { file, used: AtomicU64::new(CLOCK.fetch_add(1, Relaxed)) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        KEPT.fetch_sub(1, Relaxed);
    }
}

/// One clock for all sets, so that the file which was used longest ago is known among all.
static CLOCK: AtomicU64 = AtomicU64::new(0);
static SETS: Mutex<Vec<Weak<Handles>>> = Mutex::new(Vec::new());

type Handles = RwLock<HashMap<PathBuf, Handle>>;

/// Open files, those used last.
pub(super) struct OpenFiles {
    open: Arc<Handles>,
}

impl Default for OpenFiles {
    fn default() -> Self {
        let open = Arc::default();
        let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
        sets.retain(|set| set.strong_count() > 0);
        sets.push(Arc::downgrade(&open));
        OpenFiles { open }
    }
}

impl std::fmt::Debug for OpenFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} open files", self.len())
    }
}

impl OpenFiles {
    /// How many are open.
    pub(super) fn len(&self) -> usize {
        self.open.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The file at `path` whose stamp is `stamp`, if one is given: the one that is open, or the one
    /// that `open` opens.
    pub(super) fn get(
        &self,
        path: &Path,
        stamp: Option<u64>,
        open: impl FnOnce() -> Result<LocalFile, Fault>,
    ) -> Result<Arc<LocalFile>, Fault> {
        let handles = self.open.read().unwrap_or_else(PoisonError::into_inner);
        // One of another stamp was opened for another source, before it was replaced.
        let is_meant = |handle: &&Handle| stamp.is_none_or(|stamp| stamp == handle.file.stamp());
        if let Some(handle) = handles.get(path).filter(is_meant) {
            handle.used.store(CLOCK.fetch_add(1, Relaxed), Relaxed);
            return Ok(handle.file.clone());
        }
        drop(handles);
        let file = Arc::new(open()?);
        let handle = Handle::new(file.clone());
        let mut handles = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let before = handles.insert(path.to_owned(), handle);
        drop(handles);
        // Closed without the lock.
        drop(before);
        while KEPT.load(Relaxed) > most_open() && close_oldest() {}
        Ok(file)
    }
}

fn take_oldest(handles: &mut HashMap<PathBuf, Handle>) -> Option<Handle> {
    let oldest = handles.iter().min_by_key(|(_, handle)| handle.used.load(Relaxed));
    let path = oldest.map(|(path, _)| path.clone())?;
    handles.remove(&path)
}

/// Closes the file that was used longest ago among those of all sets; false if none is open.
fn close_oldest() -> bool {
    let sets: Vec<_> = {
        let sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
        sets.iter().filter_map(Weak::upgrade).collect()
    };
    let oldest = sets
        .iter()
        .filter_map(|set| {
            let handles = set.read().unwrap_or_else(PoisonError::into_inner);
            Some((handles.values().map(|handle| handle.used.load(Relaxed)).min()?, set))
        })
        .min_by_key(|(used, _)| *used);
    let Some((_, set)) = oldest else { return false };
    let mut handles = set.write().unwrap_or_else(PoisonError::into_inner);
    let handle = take_oldest(&mut handles);
    drop(handles);
    handle.is_some()
}

/// Opens something; if the process has too many open files, those that are kept to be read again
/// are closed one by one, as far as that helps, and those that others read just now waited for.
pub(super) fn retrying<T>(open: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    let mut tries = 0;
    retrying_with(open, || {
        close_oldest() || {
            tries += 1;
            std::thread::sleep(PAUSE);
            tries <= TRIES
        }
    })
}

/// True for the error of a process that has no more files to give: no fault of the one that it did
/// not open.
#[must_use]
pub(crate) fn is_exhausted(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

fn retrying_with<T>(
    mut open: impl FnMut() -> std::io::Result<T>,
    mut close: impl FnMut() -> bool,
) -> std::io::Result<T> {
    loop {
        match open() {
            Err(error) if is_exhausted(&error) && close() => {}
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn the_number_of_open_files_follows_the_limit() {
        let limits = |number: &str| {
            format!("Limit  Soft  Hard\nMax open files            {number}      4096     files\n")
        };
        for (number, most) in [("40", 10), ("3", 1), ("1024", 256), ("unlimited", 256)] {
            assert_eq!(share_of(&limits(number)), most, "{number}");
        }
        assert_eq!(share_of(""), 256);
    }

    /// Tests that fill what all sets of the process may keep open take turns.
    pub(crate) static TURN: Mutex<()> = Mutex::new(());

    #[test]
    fn the_file_used_longest_ago_makes_room() {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let path = std::env::temp_dir().join(format!("feedline-handles-{}", std::process::id()));
        std::fs::write(&path, b"x").unwrap();
        // Two sets have together what one may have; other tests keep a few files too.
        let (files, others) = (OpenFiles::default(), OpenFiles::default());
        let get = |files: &OpenFiles, name: &str, may_open: bool| {
            files.get(Path::new(name), None, || match may_open {
                true => LocalFile::open(&path),
                false => Err(Fault::Cancelled),
            })
        };
        for number in 0..most_open() + 3 {
            for set in [&files, &others] {
                get(set, &number.to_string(), true).unwrap();
            }
            get(&files, "0", true).unwrap();
            let open = files.len() + others.len();
            assert!(open <= most_open(), "{open} are open");
        }
        assert!(files.len() + others.len() > most_open() / 2);
        assert!(get(&files, "0", false).is_ok() && get(&files, "1", false).is_err());
        // A process without files to give closes its own, until it can go on.
        let (before, mut left) = (files.len(), 3);
        let close = || take_oldest(&mut files.open.write().unwrap()).is_some();
        let opened = retrying_with(
            || match left {
                0 => Ok(()),
                _ => {
                    left -= 1;
                    Err(std::io::Error::from_raw_os_error(libc::EMFILE))
                }
            },
            close,
        );
        assert!(opened.is_ok() && files.len() <= before - 3 && get(&files, "0", false).is_ok());
        let refused = || Err::<(), _>(std::io::Error::from_raw_os_error(libc::EMFILE));
        let error =
            retrying_with(refused, || take_oldest(&mut files.open.write().unwrap()).is_some());
        assert_eq!((error.unwrap_err().raw_os_error(), files.len()), (Some(libc::EMFILE), 0));
        std::fs::remove_file(&path).unwrap();
    }
}
