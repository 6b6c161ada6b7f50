//! The files that arrays lie in.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::buffer;
use crate::error::{Error, Fault, Result};
use crate::sample::Location;
use crate::source::shards;
use crate::store::{Handle, Store};

/// One file of a data set, and what is known of it.
struct KnownFile {
    path: PathBuf,
    bytes: u64,
    stamp: u64,
}

/// Files by their numbers.
pub(in crate::source) struct Files {
    store: Arc<dyn Store>,
    known: Vec<KnownFile>,
    /// The first read that the system refused.
    failure: OnceLock<String>,
}

impl Files {
    pub(in crate::source) fn new(store: &Arc<dyn Store>) -> Files {
        Files { store: store.clone(), known: Vec::new(), failure: OnceLock::new() }
    }

    /// Adds a file after a look at its size.
    pub(in crate::source) fn add(&mut self, path: &Path) -> Result<u32> {
        let failed = |source| Error::Io { what: "cannot open", path: path.to_owned(), source };
        let file = self.store.open(path).map_err(failed)?;
        let (bytes, stamp) = (file.len(), file.stamp());
        self.known.push(KnownFile { path: shards::fixed(path.to_owned()), bytes, stamp });
        Ok(self.known.len() as u32 - 1)
    }

    /// Where the files are.
    pub(in crate::source) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Where file number `file` is.
    pub(in crate::source) fn path(&self, file: u32) -> &Path {
        self.known.get(file as usize).map_or(Path::new(""), |known| &known.path)
    }

    /// Its stamp when it was opened.
    pub(in crate::source) fn stamp(&self, file: u32) -> Option<u64> {
        self.known.get(file as usize).map(|known| known.stamp)
    }

    /// A part of it.
    pub(in crate::source) fn location(&self, file: u32, part: (u64, u64)) -> Location<'_> {
        let (path, stamp) = (self.path(file), self.stamp(file));
        Location { root: Path::new(""), path, range: Some(part), stamp }
    }

    /// Its length when it was opened.
    pub(in crate::source) fn bytes(&self, file: u32) -> u64 {
        self.known.get(file as usize).map_or(0, |known| known.bytes)
    }

    /// Fills `out` with what lies at `offset`.
    pub(in crate::source) fn read(
        &self,
        file: u32,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        let read = self.open(file).and_then(|opened| Ok(opened.read_exact_at(out, offset)?));
        if let Err(fault @ Fault::Io(error)) = &read
            && error.raw_os_error().is_some()
        {
            let _ = self.failure.set(fault.to_string());
        }
        read
    }

    /// Why the system refused a read, if it did: what was found without it is not what is there.
    pub(in crate::source) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// The file, if it is still what it was.
    pub(in crate::source) fn open(&self, file: u32) -> Result<Handle, Fault> {
        match self.known.get(file as usize) {
            Some(KnownFile { path, stamp, .. }) => self.store.reopen(path, *stamp),
            None => Err(Fault::Unsupported("there is no such file".to_owned())),
        }
    }

    /// `length` bytes at `offset`, of which the file is known to have so many.
    pub(in crate::source) fn take(
        &self,
        file: u32,
        offset: u64,
        length: u64,
    ) -> Result<Vec<u8>, Fault> {
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > self.bytes(file)) {
            return Err(Fault::corrupt(
                "file",
                format!("{length} bytes at {offset} are not in it: it was cut short"),
            ));
        }
        let mut bytes = buffer::zeroed(length)?;
        self.read(file, offset, &mut bytes)?;
        Ok(bytes)
    }
}
