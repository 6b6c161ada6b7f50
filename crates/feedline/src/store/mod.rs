//! Where bytes live: what is there, and what lies at places of it.
//!
//! Every source lists and opens through a [`Store`], and samples that lie in files are read through
//! it. A store of another kind is a file here that implements the trait; [`conformance`] says
//! whether it keeps what the others promise.

mod cache;
pub mod conformance;
mod faults;
mod files;
mod handles;
mod local;
mod memory;
mod object;
mod rehearsal;
mod sidecar;

pub(crate) use cache::Cache;
pub use faults::{Faults, Operation};
pub use files::Files;
pub(crate) use handles::is_exhausted;
pub use local::Local;
pub use memory::Memory;
pub use object::{Handle, Object, Reader, Revision, changed, wrapped};
pub use rehearsal::{Delayed, Throttled};

use std::ffi::OsString;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::error::Fault;
use crate::sample::{Location, Room};

/// What became of a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// The store makes nothing of hints: spare it more of them.
    Unused,
    /// The bytes are near already, or there are none.
    Near,
    /// They are on their way.
    Fetching,
}

impl Hint {
    /// What became of two hints for one sample.
    #[must_use]
    pub fn or(self, other: Hint) -> Hint {
        match (self, other) {
            (Hint::Fetching, _) | (_, Hint::Fetching) => Hint::Fetching,
            (Hint::Unused, _) | (_, Hint::Unused) => Hint::Unused,
            (Hint::Near, Hint::Near) => Hint::Near,
        }
    }
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// Something that can be opened.
    File,
    /// Something that can be listed.
    Folder,
    /// A link, as a listing shows it; [`Store::find`] follows it.
    Link,
    /// A pipe, a socket, a device.
    Other,
}

/// One name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name in the folder.
    pub name: OsString,
    /// What it is.
    pub kind: EntryKind,
}

/// What is at a path once links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// Never a link.
    pub kind: EntryKind,
    /// Bytes of a file.
    pub len: u64,
    /// Distinguishes a folder from others, where several paths may lead to one.
    pub identity: Option<(u64, u64)>,
}

/// Where something that belongs to a file is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sidecar {
    /// Beside it, so that it may be copied with it.
    Beside,
    /// In the user's cache folder on this machine.
    InCache,
}

/// A place that bytes are read from. Wrappers add behaviour: they hand all methods on, and wrap
/// what is opened.
///
/// Paths are as the program gave them; a store that is not a file system takes them as names with
/// parts between slashes.
pub trait Store: Send + Sync {
    /// Opens the file at `path`. Anything but a file is refused, without waiting for a writer.
    fn open(&self, path: &Path) -> std::io::Result<Handle>;

    /// What is directly in a folder, in any order and without "." and "..", until `each` breaks.
    fn list(
        &self,
        folder: &Path,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> std::io::Result<()>;

    /// What is at a path, with links followed.
    fn find(&self, path: &Path) -> std::io::Result<Metadata>;

    /// Opens the file again that had this stamp. One that is open already may be given.
    fn reopen(&self, path: &Path, stamp: u64) -> Result<Handle, Fault> {
        let handle = self.open(path)?;
        match handle.stamp() == stamp {
            true => Ok(handle),
            false => Err(changed()),
        }
    }

    /// Asks `room` for the length, fills what it gives, and fails if there is less.
    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        object::read(self, location, room)
    }

    /// How many bytes there are, without reading them.
    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        match location.range {
            Some((_, length)) => Ok(length),
            None => Ok(self.open(&location.root.join(location.path))?.len()),
        }
    }

    /// These bytes will be read soon. Changes no result, and leaves errors to the read.
    fn hint(&self, _location: &Location<'_>) -> Hint {
        Hint::Unused
    }

    /// Where the sidecar with this ending is kept for the file at `path`, as a path of this
    /// machine; `None` where nothing can be kept.
    fn sidecar(&self, _path: &Path, _ending: &str, _place: Sidecar) -> Option<PathBuf> {
        None
    }

    /// Opens a sidecar.
    fn open_sidecar(&self, path: &Path, ending: &str, place: Sidecar) -> Option<Handle> {
        Local.open(&self.sidecar(path, ending, place)?).ok()
    }

    /// Writes a sidecar, so that it is seen whole or not at all; false if that is not possible.
    fn write_sidecar(
        &self,
        path: &Path,
        ending: &str,
        place: Sidecar,
        write: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>,
    ) -> bool {
        let Some(at) = self.sidecar(path, ending, place) else { return false };
        let made = match place {
            Sidecar::Beside => Ok(()),
            Sidecar::InCache => at.parent().map_or(Ok(()), std::fs::create_dir_all),
        };
        made.is_ok() && sidecar::write_whole(&at, write).is_ok()
    }

    /// What is at a path, with links followed; `None` if nothing is. An error says that this is not
    /// known.
    fn kind(&self, path: &Path) -> std::io::Result<Option<EntryKind>> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        match self.find(path) {
            Ok(found) => Ok(Some(found.kind)),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
