//! Files that a run writes: never through a link that somebody put in their place, and where that
//! matters never seen half written.
//!
//! A link at the path is refused rather than followed: whoever may write to a folder could lead a
//! run to any file of its user. Links that lead to no file (`/dev/stderr`, one to `/dev/null`) have
//! nothing that could be lost.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Names that are tried before it is given up.
const ATTEMPTS: usize = 16;

/// Where the system alone makes links.
const SYSTEM: [&str; 2] = ["/dev", "/proc"];

/// A number that nobody can guess.
pub(crate) fn unguessable() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Opens a file to add to its end; makes it if it is not there. A pipe without a reader is refused
/// instead of waited for.
pub fn append(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().append(true).create(true)).and_then(blocking)
}

/// Opens a file to write it anew. Pipes are as in [`append`].
pub fn create(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().write(true).create(true).truncate(true)).and_then(blocking)
}

/// Writes to a pipe or a terminal wait again: only the opening must not.
fn blocking(file: File) -> io::Result<File> {
    if !file.metadata()?.is_file() {
        // SAFETY: takes plain numbers; the descriptor is open for as long as `file` lives.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        let without = flags & !libc::O_NONBLOCK;
        // SAFETY: as above.
        if flags < 0 || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, without) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(file)
}

fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = libc::O_NONBLOCK;
    let opened = options.custom_flags(flags | libc::O_NOFOLLOW).open(path);
    match &opened {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {}
        _ => return opened,
    }
    if SYSTEM.iter().any(|folder| path.starts_with(folder)) {
        return options.custom_flags(flags).open(path);
    }
    let leads_to_file = io::Error::other(
        "is a link, and nothing is written through links: name the file that it leads to",
    );
    if fs::metadata(path).map_or(true, |found| found.is_file() || found.is_dir()) {
        return Err(leads_to_file);
    }
    // Neither made nor emptied: what the link leads to may have changed since the look at it.
    let device = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
    match device.metadata()?.is_file() {
        true => Err(leads_to_file),
        false => Ok(device),
    }
}

/// A file in the making that takes the place of another when it is whole; removed if it is dropped
/// before.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    partial: PathBuf,
    path: PathBuf,
}

impl Replacement {
    /// Begins a file beside `path`: hidden, new, and of a name that nobody can guess.
    pub fn begin(path: &Path) -> io::Result<Replacement> {
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..ATTEMPTS {
            let partial = beside(path, unguessable());
            match File::create_new(&partial) {
                Ok(file) => return Ok(Replacement { file, partial, path: path.to_owned() }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// What is written to.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name: a link that is there is replaced, and what it led to stays as it is.
    pub fn finish(self) -> io::Result<()> {
        fs::rename(&self.partial, &self.path)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        // Gone under this name when it was finished.
        let _ = fs::remove_file(&self.partial);
    }
}

/// Writes a file so that it is never seen half written.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let replacement = Replacement::begin(path)?;
    replacement.file().write_all(bytes)?;
    replacement.finish()
}

/// `.NAME.NUMBER.partial`, in the same folder.
pub(crate) fn beside(path: &Path, number: u64) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{number:016x}.partial"));
    path.with_file_name(name)
}

/// Makes a pipe. Not by a command: its process would hold the locks of other tests for a moment.
#[cfg(test)]
pub(crate) fn make_pipe(path: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::CString::new(path.as_os_str().as_bytes());
    // SAFETY: the name ends with a zero and lives for the call.
    assert!(name.is_ok_and(|name| unsafe { libc::mkfifo(name.as_ptr(), 0o600) } == 0));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder with a file, a link to it and one to nothing.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("feedline-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("precious"), "precious").unwrap();
        symlink(folder.join("precious"), folder.join("link")).unwrap();
        symlink(folder.join("nothing"), folder.join("dangling")).unwrap();
        folder
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let folder = folder("through-link");
        for open in [append, create] {
            for name in ["link", "dangling"] {
                let error = open(&folder.join(name)).unwrap_err().to_string();
                assert!(error.contains("is a link"), "{error}");
            }
            open(&folder.join("own")).unwrap().write_all(b"text").unwrap();
        }
        assert_eq!(fs::read_to_string(folder.join("own")).unwrap(), "text");
        assert_eq!(fs::read_to_string(folder.join("precious")).unwrap(), "precious");
        assert!(!folder.join("nothing").exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_pipe_without_a_reader_is_not_waited_for() {
        let folder = folder("pipe");
        let pipe = folder.join("pipe");
        make_pipe(&pipe);
        for open in [append, create] {
            assert_eq!(open(&pipe).unwrap_err().raw_os_error(), Some(libc::ENXIO));
        }
        // One with a reader is written to as any file: more than it takes at once waits.
        let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe);
        let reader = blocking(reader.unwrap()).unwrap();
        for open in [append, create] {
            let mut writer = open(&pipe).unwrap();
            let mut reader = reader.try_clone().unwrap();
            let text = vec![7; 1 << 20];
            std::thread::scope(|scope| {
                let read = scope.spawn(move || {
                    let mut bytes = vec![0; 1 << 20];
                    std::io::Read::read_exact(&mut reader, &mut bytes).map(|()| bytes)
                });
                writer.write_all(&text).unwrap();
                assert!(read.join().unwrap().unwrap() == text);
            });
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_link_to_a_device_leads_there() {
        let folder = folder("device-link");
        symlink("/dev/null", folder.join("null")).unwrap();
        symlink("/dev/full", folder.join("full")).unwrap();
        for open in [append, create] {
            assert!(open(&folder.join("null")).unwrap().write_all(b"text").is_ok());
            assert!(open(&folder.join("full")).unwrap().write_all(b"text").is_err());
            assert!(open(Path::new("/dev/stderr")).is_ok());
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_replacement_leaves_what_a_link_leads_to_and_nothing_half_written() {
        let folder = folder("replacement");
        let link = folder.join("link");
        let replacement = Replacement::begin(&link).unwrap();
        replacement.file().write_all(b"half").unwrap();
        drop(replacement);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
        replace(&link, b"whole").unwrap();
        assert_eq!(fs::read_to_string(&link).unwrap(), "whole");
        assert!(!fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(folder.join("precious")).unwrap(), "precious");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
        fs::remove_dir_all(folder).unwrap();
    }
}
