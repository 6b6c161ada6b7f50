//! The folder that a data set is packed into: written under another name, renamed when whole.
//!
//! `DST.partial` holds the work and a note of what it is (`feedline-job.json`). Ended at any
//! point, the same job goes on in it, and another job clears it; `DST` itself appears at the end,
//! with its description inside. A folder that is not ours is never written to or removed, nor is
//! one written to that a link leads to or that a link lies in: `DST.partial` is easy to guess, and
//! whoever may write beside it could put anything there. A lock on `DST.partial` keeps two
//! processes from working in it at once; it goes with the process.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::catalog::{self, Catalog};
use crate::error::{Error, Result};
use crate::output_file::{self, beside, unguessable};

/// A line for each file that is written, so that a later run goes on from there.
pub(crate) const JOURNAL: &str = "feedline-journal.jsonl";

/// The note that marks unfinished work as ours.
const JOB: &str = "feedline-job.json";

/// A folder in the making.
#[derive(Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    partial: PathBuf,
    /// Open for as long as the folder is ours.
    _lock: File,
}

/// What was found at the destination.
#[derive(Debug)]
pub(crate) enum Claim {
    /// It is free, or holds unfinished work of the same job.
    Free(Destination),
    /// The same set is there already, whole.
    Whole(Box<Catalog>),
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

fn refused(path: &Path, problem: &str) -> Error {
    Error::Source { what: path.display().to_string(), problem: problem.to_owned() }
}

/// A job as it comes out of a file: numbers may differ in their last bit.
fn read_back(job: &Value) -> Value {
    serde_json::from_str(&job.to_string()).unwrap_or_else(|_| job.clone())
}

/// A note that is being written.
fn unfinished() -> String {
    format!(".{JOB}.partial")
}

/// Removes a file that may be there.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("cannot remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// True when all files that a description lists are there with their lengths.
fn is_whole(folder: &Path, catalog: &Catalog) -> bool {
    let mut whole = true;
    let listed = catalog.files(folder, &mut |entry| {
        let found = fs::metadata(folder.join(entry.path()));
        whole &= found.is_ok_and(|metadata| metadata.is_file() && metadata.len() == entry.bytes);
    });
    listed.is_ok() && whole
}

/// True for a folder that holds anything, or for what is no folder.
fn is_occupied(path: &Path) -> Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("cannot list", path)(error)),
    }
}

/// Makes a folder, or takes the one that is there if it is a real one of this user's.
pub(super) fn make_own(folder: &Path) -> Result<()> {
    let cannot = || failed("cannot create the folder", folder);
    if let Some(parent) = folder.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(cannot())?;
    }
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made.map_err(cannot()),
    }
    let found = fs::symlink_metadata(folder).map_err(cannot())?;
    let problem = match () {
        () if found.is_symlink() => "is a link",
        () if !found.is_dir() => "is not a folder",
        () if found.uid() != owner_beside(folder).map_err(cannot())? => "is another user's",
        () => return Ok(()),
    };
    let text = format!("is needed for the work in progress and {problem}: remove it");
    Err(refused(folder, &text))
}

/// Whom new folders belong to here: on some mounts to somebody else than who makes them.
fn owner_beside(folder: &Path) -> io::Result<u32> {
    let made = beside(folder, unguessable());
    fs::create_dir(&made)?;
    let owner = fs::symlink_metadata(&made).map(|made| made.uid());
    fs::remove_dir(&made)?;
    owner
}

/// Something in a folder or below that is neither a file nor a folder, such as a link: what is
/// written here has none.
fn foreign(folder: &Path) -> io::Result<Option<PathBuf>> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if !kind.is_file() {
                return Ok(Some(entry.path()));
            }
        }
    }
    Ok(None)
}

/// Locks a folder; `None` if another process has it, or took it away meanwhile.
pub(super) fn lock(folder: &Path) -> io::Result<Option<File>> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(folder)?;
    // SAFETY: takes plain numbers; the descriptor is open for as long as `file` lives.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            // Some file systems have no locks: then there is no guard, as before.
            _ => Ok(Some(file)),
        };
    }
    let (ours, there) = (file.metadata()?, fs::symlink_metadata(folder)?);
    Ok(((ours.dev(), ours.ino()) == (there.dev(), there.ino())).then_some(file))
}

/// What is at `path` already: the same set, nothing, or a reason to refuse it.
fn look(path: &Path, job: &Value) -> Result<Option<Box<Catalog>>> {
    if let Some(catalog) = Catalog::read(path)? {
        return match catalog.job == *job {
            true => Ok(Some(Box::new(catalog))),
            false => Err(refused(
                path,
                "holds a set that was packed from other data or with other options: remove it or choose another folder",
            )),
        };
    }
    match is_occupied(path)? {
        true => Err(refused(path, "holds other files: choose a new or empty folder")),
        false => Ok(None),
    }
}

impl Destination {
    /// Makes `path` ours for `job`, or says why not.
    pub(crate) fn claim(path: &Path, job: &Value) -> Result<Claim> {
        let asked = job;
        let job = &read_back(job);
        if let Some(catalog) = look(path, job)? {
            return Ok(Claim::Whole(catalog));
        }
        let mut name: OsString = path.file_name().map(ToOwned::to_owned).ok_or_else(|| {
            refused(path, "is no name for a folder: choose a new or empty folder")
        })?;
        name.push(".partial");
        let partial = path.with_file_name(name);
        let busy = "another process is packing into it: wait for it or choose another folder";
        if fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
            return Err(refused(path, "is a link: name the folder that it leads to"));
        }
        make_own(&partial)?;
        let lock = lock(&partial).map_err(failed("cannot lock", &partial))?;
        let lock = lock.ok_or_else(|| refused(path, busy))?;
        // Another process may have finished since the first look.
        if let Some(catalog) = look(path, job)? {
            let _ = fs::remove_dir(&partial);
            return Ok(Claim::Whole(catalog));
        }
        if let Some(path) = foreign(&partial).map_err(failed("cannot list", &partial))? {
            let problem = "lies in unfinished work and is neither a file nor a folder: remove it";
            return Err(refused(&path, problem));
        }
        let destination = Destination { path: path.to_owned(), partial, _lock: lock };
        // Described, so all of it should be there: only the name is missing.
        match Catalog::read(&destination.partial)? {
            Some(catalog) if catalog.job == *job && is_whole(&destination.partial, &catalog) => {
                destination.rename()?;
                return Ok(Claim::Whole(Box::new(catalog)));
            }
            _ => {}
        }
        let destination = destination.mark(asked)?;
        // No description until all is there again.
        remove(&destination.partial.join(catalog::FILE))?;
        Ok(Claim::Free(destination))
    }

    /// Finds out whose work is there, and leaves a note of ours.
    fn mark(self, job: &Value) -> Result<Destination> {
        let unfinished = unfinished();
        let is_note = |entry: io::Result<fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.file_name() == unfinished.as_str())
        };
        let entries = fs::read_dir(&self.partial).map_err(failed("cannot list", &self.partial))?;
        if !entries.into_iter().all(is_note) {
            let note = catalog::read_note(&self.partial.join(JOB));
            let note: Option<Value> = note.ok().and_then(|text| serde_json::from_str(&text).ok());
            match note {
                Some(note) if note == read_back(job) => return Ok(self),
                Some(note) if note.get("feedline_pack").is_some() => self.clear()?,
                None if Catalog::read(&self.partial)?.is_some() => {
                    // The description goes first, and then only the note says that it is ours.
                    self.note(job)?;
                    self.clear()?;
                }
                _ => {
                    return Err(refused(
                        &self.partial,
                        "is needed for the work in progress and holds other files: remove it",
                    ));
                }
            }
        }
        self.note(job)?;
        Ok(self)
    }

    /// Says whose work this is.
    fn note(&self, job: &Value) -> Result<()> {
        let note = self.partial.join(JOB);
        // Renamed, so that a note is whole: without one the folder is not ours to clear.
        let written = self.partial.join(unfinished());
        output_file::create(&written)
            .and_then(|mut file| file.write_all(job.to_string().as_bytes()))
            .and_then(|()| fs::rename(&written, &note))
            .map_err(failed("cannot write", &note))
    }

    /// Where the work goes.
    #[must_use]
    pub(crate) fn folder(&self) -> &Path {
        &self.partial
    }

    /// Throws away what was found of earlier work.
    pub(crate) fn clear(&self) -> Result<()> {
        self.clear_but(&|_| false)
    }

    /// The same, but for the names that are to be kept.
    pub(crate) fn clear_but(&self, keep: &dyn Fn(&OsStr) -> bool) -> Result<()> {
        // Ended in between, what is left must not pass for whole.
        remove(&self.partial.join(catalog::FILE))?;
        let entries = fs::read_dir(&self.partial).map_err(failed("cannot list", &self.partial))?;
        for entry in entries {
            let entry = entry.map_err(failed("cannot list", &self.partial))?;
            let path = entry.path();
            if entry.file_name() == JOB || keep(&entry.file_name()) {
                continue;
            }
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let removed =
                if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(failed("cannot remove", &path))?;
        }
        Ok(())
    }

    /// All is written: the description comes last, then the name.
    pub(crate) fn commit(self, catalog: &Catalog) -> Result<()> {
        catalog.write(&self.partial)?;
        self.rename()
    }

    /// Takes the notes away and gives the folder its name.
    fn rename(self) -> Result<()> {
        for name in [JOURNAL, JOB] {
            remove(&self.partial.join(name))?;
        }
        fs::rename(&self.partial, &self.path).map_err(failed("cannot rename to", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::catalog::{ListedFile, PackedKind};

    /// A folder of its own, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let name = format!("feedline-destination-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn free(path: &Path, job: &Value) -> Destination {
        match Destination::claim(path, job).unwrap() {
            Claim::Free(destination) => destination,
            Claim::Whole(_) => panic!("whole"),
        }
    }

    /// A set of one file, described.
    fn describe(folder: &Path, job: &Value) -> Catalog {
        fs::write(folder.join("a"), b"abc").unwrap();
        let mut entries = [ListedFile::new(Path::new("a"), 3, 0)].into_iter();
        let (list, bytes) = catalog::write_list(folder, &mut entries).unwrap();
        Catalog {
            feedline_pack: catalog::VERSION,
            kind: PackedKind::Images,
            samples: 1,
            classes: Vec::new(),
            labels: Vec::new(),
            table: false,
            fields: Vec::new(),
            shards: Vec::new(),
            job: job.clone(),
            bytes,
            list,
        }
    }

    #[test]
    fn a_number_that_reads_back_otherwise_is_the_same_job() {
        let folder = Folder::new("number");
        let numbers = (1..1_000_000).map(|n| f64::from(n).sqrt() * 1e-30);
        let changed = |number: &f64| read_back(&json!(number)) != json!(number);
        let Some(number) = numbers.into_iter().find(changed) else { return };
        let job = json!({"feedline_pack": 1, "number": number});
        let path = folder.0.join("set");
        let first = free(&path, &job);
        fs::write(first.folder().join("part"), b"done").unwrap();
        drop(first);
        let again = free(&path, &job);
        assert!(again.folder().join("part").exists(), "the work goes on");
        let catalog = describe(again.folder(), &job);
        again.commit(&catalog).unwrap();
        assert!(matches!(Destination::claim(&path, &job).unwrap(), Claim::Whole(_)));
    }

    #[test]
    fn a_pipe_in_the_place_of_a_note_is_not_waited_for() {
        let folder = Folder::new("pipe");
        let job = json!({"feedline_pack": 1});
        let destination = free(&folder.0.join("set"), &job);
        let pipe = |name: &str| {
            let _ = fs::remove_file(destination.folder().join(name));
            let path = destination.folder().join(name);
            output_file::make_pipe(&path);
        };
        // Put there after the look at what lies in the folder.
        pipe(JOB);
        pipe(&unfinished());
        assert!(destination.note(&job).is_err());
        assert!(destination.mark(&job).is_err());
    }

    #[test]
    fn half_a_set_is_never_whole() {
        let folder = Folder::new("half");
        let job = json!({"feedline_pack": 1});
        let path = folder.0.join("set");
        let partial = folder.0.join("set.partial");
        let prepare = || {
            let destination = free(&path, &job);
            describe(destination.folder(), &job).write(destination.folder()).unwrap();
            destination
        };
        // Whoever clears takes the description too.
        prepare().clear().unwrap();
        assert!(!partial.join(catalog::FILE).exists());
        // One that is there without its files counts for nothing, with the note or without it.
        for noted in [true, false] {
            drop(prepare());
            fs::write(partial.join("a"), b"ab").unwrap();
            if !noted {
                fs::remove_file(partial.join(JOB)).unwrap();
            }
            drop(free(&path, &job));
            assert!(!partial.join(catalog::FILE).exists() && partial.join(JOB).exists());
        }
        drop(prepare());
        assert!(matches!(Destination::claim(&path, &job).unwrap(), Claim::Whole(_)));
    }
}
