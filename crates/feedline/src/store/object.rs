//! What is open: bytes at places, which many threads read at once.

use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use super::Store;
use crate::error::Fault;
use crate::sample::{Location, Room};

/// Something that is open.
pub type Handle = Arc<dyn Object>;

/// What shows whether an index still belongs to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revision {
    /// Bytes.
    pub len: u64,
    /// Seconds and nanoseconds of the last change of its contents. A store without such a time has
    /// any two numbers that change with the contents.
    pub modified: (i64, i64),
    /// When anything about it was changed, where that is known.
    pub touched: Option<(i64, i64)>,
}

/// An open file: a local one, or ranges of something elsewhere.
pub trait Object: Send + Sync {
    /// Bytes when it was opened.
    fn len(&self) -> u64;

    /// True when there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Distinguishes it from another that is put in its place.
    fn stamp(&self) -> u64;

    /// What it is now: a file may be written to while it is open.
    fn revision(&self) -> std::io::Result<Revision>;

    /// Bytes from `at` on; fewer than fit in any case, none only at the end.
    fn read_at(&self, out: &mut [u8], at: u64) -> std::io::Result<usize>;

    /// All of `out` from `at` on.
    fn read_exact_at(&self, mut out: &mut [u8], mut at: u64) -> std::io::Result<()> {
        while !out.is_empty() {
            match self.read_at(out, at) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    out = &mut out[read..];
                    at += read as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

struct Wrapped<F> {
    inner: Handle,
    read: F,
}

impl<F> Object for Wrapped<F>
where
    F: Fn(&dyn Object, &mut [u8], u64) -> std::io::Result<usize> + Send + Sync,
{
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn stamp(&self) -> u64 {
        self.inner.stamp()
    }

    fn revision(&self) -> std::io::Result<Revision> {
        self.inner.revision()
    }

    fn read_at(&self, out: &mut [u8], at: u64) -> std::io::Result<usize> {
        (self.read)(&*self.inner, out, at)
    }
}

/// The same object with other reads: what a wrapper of a store opens.
pub fn wrapped(
    inner: Handle,
    read: impl Fn(&dyn Object, &mut [u8], u64) -> std::io::Result<usize> + Send + Sync + 'static,
) -> Handle {
    Arc::new(Wrapped { inner, read })
}

/// The fault of a file that is not what was opened.
#[must_use]
pub fn changed() -> Fault {
    Fault::corrupt("file", "has changed since the data set was opened: open it again")
}

/// The fault of a part that is not in its file.
pub(super) fn beyond_end(error: std::io::Error, (start, length): (u64, u64)) -> Fault {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            Fault::corrupt("file", format!("ends before byte {}", start.saturating_add(length)))
        }
        _ => Fault::Io(error),
    }
}

/// [`Store::read`] for stores that have no shorter way.
pub(super) fn read(
    store: &(impl Store + ?Sized),
    location: &Location<'_>,
    room: &mut dyn Room,
) -> Result<(), Fault> {
    let path = location.root.join(location.path);
    let object = match location.stamp {
        Some(stamp) => store.reopen(&path, stamp)?,
        None => store.open(&path)?,
    };
    let (start, length) = location.range.unwrap_or((0, object.len()));
    if start.checked_add(length).is_none_or(|end| end > object.len()) {
        return Err(beyond_end(std::io::ErrorKind::UnexpectedEof.into(), (start, length)));
    }
    object
        .read_exact_at(room.make(length)?, start)
        .map_err(|error| beyond_end(error, (start, length)))
}

/// Reads an object from one place to the next.
pub struct Reader {
    object: Handle,
    at: u64,
}

impl Reader {
    /// From the start on.
    #[must_use]
    pub fn new(object: Handle) -> Reader {
        Reader::from(object, 0)
    }

    /// From a place on.
    #[must_use]
    pub fn from(object: Handle, at: u64) -> Reader {
        Reader { object, at }
    }
}

impl Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let read = self.object.read_at(out, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.object.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(std::io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
