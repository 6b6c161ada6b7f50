//! The folder that a data set is packed into: written under another name, renamed when whole.
//!
//! `DST.partial` holds the work and a note of what it is (`feedline-job.json`). Ended at any
//! point, the same job goes on in it, and another job clears it; `DST` itself appears at the end,
//! with its description inside. A folder that is not ours is never written to or removed.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::catalog::Catalog;
use crate::error::{Error, Result};

/// The note that marks unfinished work as ours.
const JOB: &str = "feedline-job.json";

/// A folder in the making.
#[derive(Debug)]
pub struct Destination {
    path: PathBuf,
    partial: PathBuf,
    /// Work of the same job was there.
    resumed: bool,
}

/// What was found at the destination.
#[derive(Debug)]
pub enum Claim {
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

/// True for a folder that holds anything, or for what is no folder.
fn is_occupied(path: &Path) -> Result<bool> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed("cannot list", path)(error)),
    }
}

impl Destination {
    /// Makes `path` ours for `job`, or says why not.
    pub fn claim(path: &Path, job: &Value) -> Result<Claim> {
        if let Some(catalog) = Catalog::read(path)? {
            return match catalog.job == *job {
                true => Ok(Claim::Whole(Box::new(catalog))),
                false => Err(refused(
                    path,
                    "holds a set that was packed from other data or with other options: remove it or choose another folder",
                )),
            };
        }
        if is_occupied(path)? {
            return Err(refused(path, "holds other files: choose a new or empty folder"));
        }
        let mut name: OsString = path.file_name().map(ToOwned::to_owned).ok_or_else(|| {
            refused(path, "is no name for a folder: choose a new or empty folder")
        })?;
        name.push(".partial");
        let partial = path.with_file_name(name);
        let mut resumed = false;
        if is_occupied(&partial)? {
            let note = fs::read_to_string(partial.join(JOB));
            let note: Option<Value> = note.ok().and_then(|text| serde_json::from_str(&text).ok());
            match note {
                Some(note) if note == *job => resumed = true,
                Some(note) if note.get("feedline_pack").is_some() => {
                    fs::remove_dir_all(&partial).map_err(failed("cannot remove", &partial))?;
                }
                _ => {
                    return Err(refused(
                        &partial,
                        "is needed for the work in progress and holds other files: remove it",
                    ));
                }
            }
        }
        fs::create_dir_all(&partial).map_err(failed("cannot create the folder", &partial))?;
        if !resumed {
            let note = partial.join(JOB);
            // Renamed, so that a note is whole: without one the folder is not ours to clear.
            let written = partial.join(format!(".{JOB}.partial"));
            fs::write(&written, job.to_string())
                .and_then(|()| fs::rename(&written, &note))
                .map_err(failed("cannot write", &note))?;
        }
        Ok(Claim::Free(Destination { path: path.to_owned(), partial, resumed }))
    }

    /// Where the work goes.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.partial
    }

    /// True when unfinished work of the same job was there.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Throws away what was found of earlier work.
    pub fn clear(&self) -> Result<()> {
        let entries = fs::read_dir(&self.partial).map_err(failed("cannot list", &self.partial))?;
        for entry in entries {
            let entry = entry.map_err(failed("cannot list", &self.partial))?;
            let path = entry.path();
            if entry.file_name() == JOB {
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
    pub fn commit(self, catalog: &Catalog, leftovers: &[&str]) -> Result<()> {
        for name in leftovers.iter().chain([&JOB]) {
            match fs::remove_file(self.partial.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("cannot remove", &self.partial.join(name))(error));
                }
                _ => {}
            }
        }
        catalog.write(&self.partial)?;
        fs::rename(&self.partial, &self.path).map_err(failed("cannot rename to", &self.path))
    }
}
