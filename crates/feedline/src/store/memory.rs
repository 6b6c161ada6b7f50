//! Files in memory.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::{Entry, EntryKind, Handle, Metadata, Object, Revision, Store};

/// Files in memory, for data that a program makes and for tests.
///
/// ```
/// use std::{path::Path, sync::Arc};
/// use feedline::{Loader, store::Memory};
/// let memory = Memory::default();
/// memory.put(Path::new("/data/numbers.csv"), &b"x,y\n1,2\n"[..]);
/// let builder = Loader::builder("/data/numbers.csv").store(Arc::new(memory));
/// # drop(builder);
/// ```
#[derive(Debug, Default)]
pub struct Memory {
    files: RwLock<BTreeMap<PathBuf, Arc<MemoryFile>>>,
    /// Counts what was put, so that each has a stamp of its own.
    count: AtomicU64,
}

#[derive(Debug)]
struct MemoryFile {
    bytes: Box<[u8]>,
    number: u64,
}

/// The path from the root on, as sources ask for it.
fn fixed(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

impl Memory {
    /// Puts a file at a path, in the place of one that was there.
    pub fn put(&self, path: &Path, bytes: impl Into<Box<[u8]>>) {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let kept = Arc::new(MemoryFile { bytes: bytes.into(), number });
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        files.insert(fixed(path), kept);
    }

    /// Removes a file; false if there was none.
    pub fn remove(&self, path: &Path) -> bool {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        files.remove(&fixed(path)).is_some()
    }

    fn file(&self, path: &Path) -> Option<Arc<MemoryFile>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).get(path).cloned()
    }

    /// The error of a path that is no file.
    fn missing(&self, path: &Path) -> std::io::Error {
        let below_file = path.ancestors().skip(1).any(|above| self.file(above).is_some());
        if below_file { ErrorKind::NotADirectory.into() } else { ErrorKind::NotFound.into() }
    }

    fn is_folder_at(&self, path: &Path) -> bool {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        let mut after = files.range::<Path, _>((Bound::Excluded(path), Bound::Unbounded));
        after.next().is_some_and(|(next, _)| next.starts_with(path))
    }
}

impl Object for MemoryFile {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn stamp(&self) -> u64 {
        self.number
    }

    fn revision(&self) -> std::io::Result<Revision> {
        Ok(Revision { len: self.len(), modified: (self.number as i64, 0), touched: None })
    }

    fn read_at(&self, out: &mut [u8], at: u64) -> std::io::Result<usize> {
        let from = usize::try_from(at).ok().and_then(|at| self.bytes.get(at..)).unwrap_or_default();
        let length = from.len().min(out.len());
        out[..length].copy_from_slice(&from[..length]);
        Ok(length)
    }
}

impl Store for Memory {
    fn open(&self, path: &Path) -> std::io::Result<Handle> {
        let path = fixed(path);
        match self.file(&path) {
            Some(kept) => Ok(kept),
            None if self.is_folder_at(&path) => Err(std::io::Error::other("is not a regular file")),
            None => Err(self.missing(&path)),
        }
    }

    fn list(
        &self,
        folder: &Path,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> std::io::Result<()> {
        let folder = fixed(folder);
        if self.file(&folder).is_some() {
            return Err(ErrorKind::NotADirectory.into());
        }
        if !self.is_folder_at(&folder) {
            return Err(self.missing(&folder));
        }
        let mut entries: Vec<Entry> = Vec::new();
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        let after = files.range::<Path, _>((Bound::Excluded(&*folder), Bound::Unbounded));
        for (path, _) in after.take_while(|(path, _)| path.starts_with(&folder)) {
            let Ok(inside) = path.strip_prefix(&folder) else { continue };
            let mut parts = inside.components();
            let Some(name) = parts.next().map(|part| part.as_os_str().to_owned()) else { continue };
            let kind = if parts.next().is_some() { EntryKind::Folder } else { EntryKind::File };
            // Paths are sorted by their parts, so that those of a folder follow each other.
            if entries.last().is_none_or(|last| last.name != name) {
                entries.push(Entry { name, kind });
            }
        }
        drop(files);
        entries.into_iter().find_map(|entry| each(entry).break_value());
        Ok(())
    }

    fn find(&self, path: &Path) -> std::io::Result<Metadata> {
        let path = fixed(path);
        match self.file(&path) {
            Some(kept) => Ok(Metadata { kind: EntryKind::File, len: kept.len(), identity: None }),
            None if self.is_folder_at(&path) => {
                Ok(Metadata { kind: EntryKind::Folder, len: 0, identity: None })
            }
            None => Err(self.missing(&path)),
        }
    }
}
