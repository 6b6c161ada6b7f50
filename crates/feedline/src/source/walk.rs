//! Lists files below a folder, in a stated order, without being caught in a loop of links.

use std::fs::{self, DirEntry, FileType, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::handles;

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::Io { what: "cannot list", path: path.to_owned(), source }
}

fn entries(path: &Path) -> Result<Vec<(DirEntry, FileType)>> {
    let mut listed = Vec::new();
    for entry in handles::retrying(|| fs::read_dir(path)).map_err(|e| failed(path, e))? {
        let entry = entry.map_err(|e| failed(path, e))?;
        let kind = entry.file_type().map_err(|e| failed(path, e))?;
        listed.push((entry, kind));
    }
    Ok(listed)
}

/// What an entry is once links are followed; `None` for a link that leads nowhere.
fn followed(entry: &DirEntry, kind: FileType) -> Option<Metadata> {
    if kind.is_symlink() { fs::metadata(entry.path()).ok() } else { entry.metadata().ok() }
}

fn is_folder(entry: &DirEntry, kind: FileType) -> bool {
    kind.is_dir() || kind.is_symlink() && followed(entry, kind).is_some_and(|m| m.is_dir())
}

/// True if the name ends in one of the extensions, whatever its case.
pub(super) fn is_image(name: &Path, extensions: &[&str]) -> bool {
    name.extension()
        .and_then(|e| e.to_str())
        .is_some_and(|e| extensions.iter().any(|x| e.eq_ignore_ascii_case(x)))
}

pub(super) fn has_images(path: &Path, extensions: &[&str]) -> Result<bool> {
    Ok(entries(path)?
        .iter()
        .any(|(entry, kind)| !is_folder(entry, *kind) && is_image(&entry.path(), extensions)))
}

/// The folders directly inside `path`, links included, sorted by name as bytes.
pub(super) fn subfolders(path: &Path) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = entries(path)?
        .into_iter()
        .filter(|(entry, kind)| is_folder(entry, *kind))
        .map(|(e, _)| e.path())
        .collect();
    found.sort();
    Ok(found)
}

/// All images at any depth below `top`: folders sorted by their path, then files by name, both
/// as bytes. That is the order of `sorted(os.walk(top, followlinks=True))`, so of ImageFolder.
pub(super) fn images(
    top: &Path,
    extensions: &[&str],
    found: &mut dyn FnMut(&Path) -> Result<()>,
) -> Result<()> {
    let mut walk = Walk::default();
    walk.add(top, false)?;
    let mut folders = walk.found;
    // "a/b" and "a-b" compare as text here, not part by part.
    folders.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    for folder in folders {
        let mut files: Vec<PathBuf> = entries(&folder)?
            .into_iter()
            // Only a regular file can be an image: opening a pipe would wait for a writer.
            .filter(|(entry, kind)| {
                kind.is_file()
                    || kind.is_symlink() && followed(entry, *kind).is_none_or(|m| m.is_file())
            })
            .map(|(entry, _)| entry.path())
            .filter(|path| is_image(path, extensions))
            .collect();
        files.sort();
        files.iter().try_for_each(|file| found(file))?;
    }
    Ok(())
}

/// Links can lead to the same folder again and again, so that a few of them make millions of
/// folders.
const MOST_LINKED: u64 = 100_000;

/// Folders found on a walk.
#[derive(Default)]
struct Walk {
    found: Vec<PathBuf>,
    /// The folders that lead to the present one.
    ancestors: Vec<(u64, u64)>,
    /// How many were found through links.
    linked: u64,
}

impl Walk {
    /// Adds `folder` and all folders below it. One that is its own ancestor is a loop of links.
    fn add(&mut self, folder: &Path, through_link: bool) -> Result<()> {
        let metadata = fs::metadata(folder).map_err(|e| failed(folder, e))?;
        let identity = (metadata.dev(), metadata.ino());
        let problem = |problem: &str| Error::Source {
            what: folder.display().to_string(),
            problem: problem.to_owned(),
        };
        if self.ancestors.contains(&identity) {
            return Err(problem("is a link to a folder that contains it: remove the link"));
        }
        let is_link = || fs::symlink_metadata(folder).is_ok_and(|m| m.is_symlink());
        let through_link = through_link || is_link();
        self.linked += u64::from(through_link);
        if self.linked > MOST_LINKED {
            return Err(problem(
                "is reached through links, as are 100,000 others: remove the links",
            ));
        }
        self.ancestors.push(identity);
        self.found.push(folder.to_owned());
        for inner in subfolders(folder)? {
            self.add(&inner, through_link)?;
        }
        self.ancestors.pop();
        Ok(())
    }
}
