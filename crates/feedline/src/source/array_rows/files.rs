//! The files that arrays lie in.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::buffer;
use crate::catalog;
use crate::error::{Error, Fault, Result};
use crate::handles::OpenFiles;
use crate::source::shards;

/// One file of a data set, and what is known of it.
struct Known {
    path: PathBuf,
    bytes: u64,
    stamp: u64,
}

/// Files by their numbers.
#[derive(Default)]
pub(in crate::source) struct Files {
    known: Vec<Known>,
    open: OpenFiles,
}

impl Files {
    /// Adds a file after a look at its size.
    pub(in crate::source) fn add(&mut self, path: &Path) -> Result<u32> {
        let failed = |source| Error::Io { what: "cannot open", path: path.to_owned(), source };
        let file = catalog::open(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let stamp = catalog::stamp(&file).map_err(failed)?;
        self.known.push(Known { path: shards::fixed(path.to_owned()), bytes, stamp });
        Ok(self.known.len() as u32 - 1)
    }

    /// Where file number `file` is.
    pub(in crate::source) fn path(&self, file: u32) -> &Path {
        self.known.get(file as usize).map_or(Path::new(""), |known| &known.path)
    }

    /// Its stamp when it was opened.
    pub(in crate::source) fn stamp(&self, file: u32) -> Option<u64> {
        self.known.get(file as usize).map(|known| known.stamp)
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
        let Some(known) = self.known.get(file as usize) else {
            return Err(Fault::Unsupported("there is no such file".to_owned()));
        };
        let Known { path, stamp, .. } = known;
        let open = || Ok((catalog::reopen(path, *stamp)?, *stamp));
        self.open.get(path, Some(*stamp), open)?.read_exact_at(out, offset)?;
        Ok(())
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
