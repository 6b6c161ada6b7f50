//! Files on this machine.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::{Room, Store};
use crate::error::Fault;
use crate::sample::Location;

/// Files on this machine, read in four system calls each: open, fstat, read, close.
#[derive(Debug, Default, Clone, Copy)]
pub struct Local;

thread_local! {
    /// Joining root and name here spares an allocation for each sample.
    static PATH: RefCell<PathBuf> = RefCell::new(PathBuf::new());
}

fn open(location: &Location<'_>) -> Result<(File, u64), Fault> {
    let file = PATH.with_borrow_mut(|path| {
        path.clear();
        path.push(location.root);
        path.push(location.path);
        // Without O_NONBLOCK, a pipe in the place of an image would wait for a writer for ever.
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(&*path)
    })?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(Fault::Unsupported("is a folder, not a file".to_owned()));
    }
    if !metadata.is_file() {
        return Err(Fault::Unsupported(
            "is not a regular file (a pipe, socket or device)".to_owned(),
        ));
    }
    Ok((file, metadata.len()))
}

impl Store for Local {
    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        let (mut file, size) = open(location)?;
        let (start, length) = location.range.unwrap_or((0, size));
        if start.checked_add(length).is_none_or(|end| end > size) {
            return Err(Fault::corrupt(
                "file",
                format!("ends at byte {size}, before {length} bytes from {start}"),
            ));
        }
        if start > 0 {
            file.seek(SeekFrom::Start(start))?;
        }
        let out = room.make(length)?;
        file.read_exact(out).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Fault::corrupt("file", "became shorter while it was read"),
            _ => Fault::Io(error),
        })
    }

    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        match location.range {
            Some((_, length)) => Ok(length),
            None => Ok(open(location)?.1),
        }
    }
}
