//! Files that are never seen half written, and never written through a link.

use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Names that are tried before it is given up.
const ATTEMPTS: usize = 16;

/// Writes a new file beside `path`, hidden and of a name that nobody can guess, and gives it its
/// name when it is whole: a link that is there is replaced, and what it led to stays as it is.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (mut file, partial) = begin(path)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        // The first failure says more than one of cleaning up after it.
        let _ = fs::remove_file(&partial);
    }
    written
}

fn begin(path: &Path) -> io::Result<(File, PathBuf)> {
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for _ in 0..ATTEMPTS {
        let number = RandomState::new().build_hasher().finish();
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{number:016x}.partial"));
        let partial = path.with_file_name(name);
        match File::create_new(&partial) {
            Ok(file) => return Ok((file, partial)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_a_link_leads_to_stays_and_nothing_half_written_is_left() {
        let folder =
            std::env::temp_dir().join(format!("feedline-whole-file-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("a folder")).unwrap();
        fs::write(folder.join("precious"), "precious").unwrap();
        let link = folder.join("link");
        symlink(folder.join("precious"), &link).unwrap();
        write(&link, b"whole").unwrap();
        assert_eq!(fs::read_to_string(&link).unwrap(), "whole");
        assert!(!fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(folder.join("precious")).unwrap(), "precious");
        assert!(write(&folder.join("a folder"), b"whole").is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
        fs::remove_dir_all(folder).unwrap();
    }
}
