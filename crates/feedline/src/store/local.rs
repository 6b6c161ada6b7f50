//! Files on this machine.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::object::beyond_end;
use super::{
    Entry, EntryKind, Handle, Hint, Metadata, Object, Revision, Sidecar, Store, changed, handles,
    sidecar,
};
use crate::error::Fault;
use crate::sample::{Location, Room};

/// Files on this machine. One that fits into the room at hand takes three system calls: open,
/// read, close. Otherwise its size is asked for in between.
#[derive(Debug, Default, Clone, Copy)]
pub struct Local;

/// Linux reads at most 2 GB at once, so a short read above this need not be the end of the file.
const AT_ONCE: usize = 1 << 30;

const NOT_REGULAR: &str = "is not a regular file (a pipe, socket or device)";

thread_local! {
    /// Joining root and name here spares an allocation for each sample.
    static PATH: RefCell<PathBuf> = RefCell::new(PathBuf::new());
}

/// Does something with the path of a location.
pub(super) fn with_path<T>(location: &Location<'_>, work: impl FnOnce(&Path) -> T) -> T {
    PATH.with_borrow_mut(|path| {
        path.clear();
        path.push(location.root);
        path.push(location.path);
        work(path)
    })
}

/// Opens a file for reading.
fn open_path(path: &Path) -> std::io::Result<File> {
    // Without O_NONBLOCK, a pipe in the place of an image would wait for a writer for ever.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    handles::retrying(|| options.open(path)).map_err(|error| match error.raw_os_error() {
        // A socket, and a device that is not there; the system's words are about addresses.
        Some(libc::ENXIO) => std::io::Error::other(NOT_REGULAR),
        _ => error,
    })
}

fn open(location: &Location<'_>) -> std::io::Result<File> {
    with_path(location, open_path)
}

/// The size of a regular file; anything else is refused.
fn size_of(metadata: &fs::Metadata) -> Result<u64, Fault> {
    if metadata.is_dir() {
        return Err(Fault::Unsupported("is a folder, not a file".to_owned()));
    }
    if !metadata.is_file() {
        return Err(Fault::Unsupported(NOT_REGULAR.to_owned()));
    }
    Ok(metadata.len())
}

/// Reads a whole file into the room at hand; `None` if it does not fit or is no plain file.
fn read_at_once(file: &File, room: &mut dyn Room) -> Option<()> {
    let out = room.at_hand();
    let most = out.len().min(AT_ONCE);
    if most == 0 {
        return None;
    }
    // At an offset, unlike a plain read, because that fails on pipes and terminals instead of
    // taking what is in them. A regular file gives less than asked for only at its end; no bytes,
    // an error and a full room are looked into by the caller.
    let read = file.read_at(&mut out[..most], 0).ok().filter(|read| (1..most).contains(read))?;
    room.keep(read);
    Some(())
}

/// A file that is open.
#[derive(Debug)]
pub(super) struct LocalFile {
    file: File,
    len: u64,
    stamp: u64,
}

impl LocalFile {
    /// Opens a regular file.
    pub(super) fn open(path: &Path) -> Result<LocalFile, Fault> {
        let file = open_path(path)?;
        let metadata = file.metadata()?;
        Ok(LocalFile { len: size_of(&metadata)?, stamp: stamp(&metadata), file })
    }

    /// Whether nothing was written to it since.
    pub(super) fn is_as_opened(&self) -> std::io::Result<bool> {
        Ok(stamp(&self.file.metadata()?) == self.stamp)
    }

    /// Fills `out` with the part of the file.
    pub(super) fn part(&self, out: &mut [u8], part: (u64, u64)) -> Result<(), Fault> {
        self.file.read_exact_at(out, part.0).map_err(|error| beyond_end(error, part))
    }

    /// Asks the system to fetch a part of it.
    pub(super) fn hint(&self, location: &Location<'_>) -> Hint {
        hint(&self.file, location)
    }
}

impl Object for LocalFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn stamp(&self) -> u64 {
        self.stamp
    }

    fn revision(&self) -> std::io::Result<Revision> {
        let metadata = self.file.metadata()?;
        Ok(Revision {
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            touched: Some((metadata.ctime(), metadata.ctime_nsec())),
        })
    }

    fn read_at(&self, out: &mut [u8], at: u64) -> std::io::Result<usize> {
        self.file.read_at(out, at)
    }
}

/// A hash that differs for another file at the same path: of its size, its time of change and,
/// on a disk, its inode. Elsewhere (FUSE) a file may get another inode when it is opened again.
fn stamp(metadata: &fs::Metadata) -> u64 {
    let inode = if libc::major(metadata.dev()) == 0 { 0 } else { metadata.ino() };
    let time = [metadata.mtime(), metadata.mtime_nsec()].map(|number| number as u64);
    let numbers = [metadata.len(), time[0], time[1], inode];
    xxhash_rust::xxh3::xxh3_64(bytemuck::cast_slice(&numbers))
}

fn kind(file_type: fs::FileType) -> EntryKind {
    match () {
        () if file_type.is_file() => EntryKind::File,
        () if file_type.is_dir() => EntryKind::Folder,
        () if file_type.is_symlink() => EntryKind::Link,
        () => EntryKind::Other,
    }
}

impl Store for Local {
    fn open(&self, path: &Path) -> std::io::Result<Handle> {
        match LocalFile::open(path) {
            Ok(file) => Ok(Arc::new(file)),
            Err(Fault::Io(error)) => Err(error),
            Err(_) => Err(std::io::Error::other("is not a regular file")),
        }
    }

    fn list(
        &self,
        folder: &Path,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> std::io::Result<()> {
        // "." for a pattern without a folder.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        for entry in handles::retrying(|| fs::read_dir(folder))? {
            let entry = entry?;
            let kind = kind(entry.file_type()?);
            if each(Entry { name: entry.file_name(), kind }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn find(&self, path: &Path) -> std::io::Result<Metadata> {
        let found = fs::metadata(path)?;
        let identity = Some((found.dev(), found.ino()));
        Ok(Metadata { kind: kind(found.file_type()), len: found.len(), identity })
    }

    fn sidecar(&self, path: &Path, ending: &str, place: Sidecar) -> Option<PathBuf> {
        sidecar::place(path, ending, place)
    }

    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        let file = open(location)?;
        if location.range.is_none()
            && location.stamp.is_none()
            && read_at_once(&file, room).is_some()
        {
            return Ok(());
        }
        let metadata = file.metadata()?;
        let size = size_of(&metadata)?;
        if location.stamp.is_some_and(|then| then != stamp(&metadata)) {
            return Err(changed());
        }
        let (start, length) = location.range.unwrap_or((0, size));
        if start.checked_add(length).is_none_or(|end| end > size) {
            return Err(Fault::corrupt(
                "file",
                format!("ends at byte {size}, before {length} bytes from {start}"),
            ));
        }
        let out = room.make(length)?;
        file.read_exact_at(out, start).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Fault::corrupt("file", "became shorter while it was read"),
            _ => Fault::Io(error),
        })
    }

    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        match location.range {
            Some((_, length)) => Ok(length),
            None => size_of(&open(location)?.metadata()?),
        }
    }

    fn hint(&self, location: &Location<'_>) -> Hint {
        open(location).map_or(Hint::Near, |file| hint(&file, location))
    }
}

/// Asks the system to fetch a part of a file.
fn hint(file: &File, location: &Location<'_>) -> Hint {
    // A length of 0 means to the end of the file.
    let (start, length) = location.range.unwrap_or((0, 0));
    let (Ok(start), Ok(length)) = (start.try_into(), length.try_into()) else {
        return Hint::Near;
    };
    let mut byte = 0u8;
    let part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // SAFETY: the descriptor is open, and `part` is one byte that lives until the call is
    // over. RWF_NOWAIT fails with EAGAIN in place of waiting for the disk.
    let near =
        unsafe { libc::preadv2(file.as_raw_fd(), &raw const part, 1, start, libc::RWF_NOWAIT) };
    let error = std::io::Error::last_os_error().raw_os_error();
    // SAFETY: the descriptor is open; no memory is passed. Refusals change nothing.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), start, length, libc::POSIX_FADV_WILLNEED) };
    // File systems that do not say are taken at their slowest.
    if near < 0 && matches!(error, Some(libc::EAGAIN | libc::EOPNOTSUPP)) {
        Hint::Fetching
    } else {
        Hint::Near
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::io::{Read, Write};

    use super::*;

    /// A room of which `lent` bytes are there from the start.
    #[derive(Default)]
    struct Lent {
        bytes: Vec<u8>,
        asked: Option<u64>,
        kept: usize,
    }

    impl Room for Lent {
        fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
            (self.asked, self.kept) = (Some(bytes), bytes as usize);
            self.bytes = vec![0; bytes as usize];
            Ok(&mut self.bytes)
        }

        fn at_hand(&mut self) -> &mut [u8] {
            &mut self.bytes
        }

        fn keep(&mut self, bytes: usize) {
            self.kept = bytes;
        }
    }

    fn read(path: &Path, lent: usize) -> Result<(Vec<u8>, Option<u64>), String> {
        let mut room = Lent { bytes: vec![7; lent], ..Lent::default() };
        let location = Location { root: Path::new(""), path, range: None, stamp: None };
        Local.read(&location, &mut room).map_err(|fault| fault.to_string())?;
        Ok((room.bytes[..room.kept].to_vec(), room.asked))
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("feedline-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_file_that_fits_is_read_at_once_and_any_other_after_a_look_at_its_size() {
        let folder = folder("at-once");
        let path = folder.join("file");
        let content: Vec<u8> = (0..100_000u32).map(|n| n as u8 ^ (n >> 8) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        for (lent, asked) in [
            (0, Some(100_000)),
            (1, Some(100_000)),
            (99_999, Some(100_000)),
            (100_000, Some(100_000)),
            (100_001, None),
            (200_000, None),
        ] {
            let (bytes, was_asked) = read(&path, lent).unwrap();
            assert!(bytes == content, "{lent}");
            assert_eq!(was_asked, asked, "{lent}");
        }
        std::fs::write(&path, b"").unwrap();
        assert_eq!(read(&path, 10).unwrap(), (Vec::new(), Some(0)), "the room says what 0 means");
        let mut room = Lent { bytes: vec![7; 10], ..Lent::default() };
        std::fs::write(&path, b"abcdef").unwrap();
        let (path, range) = (Path::new("file"), Some((2, 3)));
        let range = Location { root: &folder, path, range, stamp: None };
        Local.read(&range, &mut room).unwrap();
        assert_eq!((&*room.bytes, room.asked), (&b"cde"[..], Some(3)));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_no_file_is_refused_with_and_without_room() {
        let folder = folder("no-file");
        let pipe = folder.join("pipe");
        let name = CString::new(pipe.to_str().unwrap()).unwrap();
        // SAFETY: the name ends with a zero and lives until the call is over.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for lent in [0, 1000] {
            assert!(read(&folder, lent).unwrap_err().contains("is a folder"));
            assert!(read(&pipe, lent).unwrap_err().contains("not a regular file"));
        }
        let socket = folder.join("socket");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        assert!(read(&socket, 1000).unwrap_err().contains("not a regular file"));
        // Nor is anything taken out of a pipe that has something in it.
        let mut both = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        both.write_all(b"hello").unwrap();
        assert!(read(&pipe, 1000).unwrap_err().contains("not a regular file"));
        let mut hello = [0; 5];
        both.read_exact(&mut hello).unwrap();
        assert_eq!(&hello, b"hello");
        for path in [&pipe, &folder, &folder.join("none")] {
            let location = Location { root: Path::new(""), path, range: None, stamp: None };
            assert_ne!(Local.hint(&location), Hint::Unused, "and no error");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    /// From now on this thread's questions for sizes and positions fail.
    fn forbid_all_but_open_read_and_close() {
        let forbidden = [libc::SYS_newfstatat, libc::SYS_fstat, libc::SYS_statx, libc::SYS_lseek];
        let statement =
            |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        // The number of the call is the first word of what a filter looks at.
        let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
        for call in forbidden {
            let equal = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32);
            program.push(libc::sock_filter { jf: 1, ..equal });
            program.push(statement(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
        }
        program.push(statement(libc::BPF_RET, libc::SECCOMP_RET_ALLOW));
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // SAFETY: the program and its length are right and outlive the calls; without
        // SECCOMP_FILTER_FLAG_TSYNC only this thread is bound by it.
        let bound = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
                    == 0
        };
        assert!(bound, "{}", std::io::Error::last_os_error());
    }

    #[test]
    fn a_file_takes_one_read_and_no_question_for_its_size() {
        let folder = folder("calls");
        let path = folder.join("file");
        std::fs::write(&path, [3; 5000]).unwrap();
        let calls = std::thread::spawn(move || {
            let mut room = Lent { bytes: vec![7; 10_000], ..Lent::default() };
            let location = Location { root: Path::new(""), path: &path, range: None, stamp: None };
            let mut counts = File::open("/proc/thread-self/io").unwrap();
            forbid_all_but_open_read_and_close();
            assert!(std::fs::metadata("/").is_err(), "the filter works");
            // The kernel's count of this thread's reads.
            let mut reads = || {
                let mut text = [0; 500];
                let length = counts.read(&mut text).unwrap();
                counts = File::open("/proc/thread-self/io").unwrap();
                let text = String::from_utf8_lossy(&text[..length]).into_owned();
                let line = text.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap();
                line.parse::<u64>().unwrap()
            };
            let before = reads();
            for _ in 0..100 {
                Local.read(&location, &mut room).unwrap();
                assert_eq!(room.kept, 5000);
            }
            // One more is the look at the count.
            reads() - before - 1
        });
        assert_eq!(calls.join().unwrap(), 100);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
