//! Folders for a while.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::output_file::unguessable;

/// Names that are tried before it is given up.
const ATTEMPTS: usize = 16;

/// A folder in the system's place for such things. It was not there before, nobody else may look
/// into it, and it goes with this, with all that is in it.
#[derive(Debug)]
pub struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    /// Makes one whose name says what it is for.
    pub fn new(purpose: &str) -> Result<Self> {
        let within = std::env::temp_dir();
        let made = fresh(&within, purpose, unguessable);
        made.map(TemporaryFolder).map_err(|source| Error::Io {
            what: "cannot make a folder in",
            path: within,
            source,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // What cannot be removed is where such things are removed from time to time.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes the folder. What others put in its place is never used.
fn fresh(within: &Path, purpose: &str, mut number: impl FnMut() -> u64) -> io::Result<PathBuf> {
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for _ in 0..ATTEMPTS {
        let folder = within.join(format!("feedline-{purpose}-{:016x}", number()));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_temporary_folder_is_fresh_and_private_and_goes() {
        let folder = TemporaryFolder::new("test").unwrap();
        let top = folder.path().to_owned();
        let mode = std::fs::metadata(&top).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert_ne!(TemporaryFolder::new("test").unwrap().path(), top);
        // What is there already, be it a link, is not taken.
        let mut numbers = 0..;
        std::fs::create_dir(top.join("feedline-x-0000000000000000")).unwrap();
        symlink("nowhere", top.join("feedline-x-0000000000000001")).unwrap();
        let made = fresh(&top, "x", || numbers.next().unwrap()).unwrap();
        assert_eq!(made, top.join("feedline-x-0000000000000002"));
        let refused = fresh(&top, "x", || 0).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        drop(folder);
        assert!(!top.exists());
    }
}
