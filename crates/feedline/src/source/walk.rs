//! Lists files below a folder, in a stated order, without being caught in a loop of links.

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::source::problem;
use crate::store::{EntryKind, Store};

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::Io { what: "cannot list", path: path.to_owned(), source }
}

struct Listed {
    path: PathBuf,
    /// With links followed; one that leads nowhere stays a link.
    kind: EntryKind,
    is_link: bool,
}

fn entries(path: &Path, store: &dyn Store) -> Result<Vec<Listed>> {
    let mut listed = Vec::new();
    let outcome = store.list(path, &mut |entry| {
        let is_link = entry.kind == EntryKind::Link;
        listed.push(Listed { path: path.join(entry.name), kind: entry.kind, is_link });
        ControlFlow::Continue(())
    });
    outcome.map_err(|error| failed(path, error))?;
    for link in listed.iter_mut().filter(|entry| entry.is_link) {
        let kind = store.kind(&link.path).or_else(|error| match error.raw_os_error() {
            // A link to itself leads nowhere.
            Some(libc::ELOOP) => Ok(None),
            _ => Err(failed(&link.path, error)),
        })?;
        link.kind = kind.unwrap_or(EntryKind::Link);
    }
    Ok(listed)
}

/// True if the name ends in one of the extensions, whatever its case.
pub(in crate::source) fn is_image(name: &Path, extensions: &[&str]) -> bool {
    name.extension()
        .and_then(|e| e.to_str())
        .is_some_and(|e| extensions.iter().any(|x| e.eq_ignore_ascii_case(x)))
}

pub(in crate::source) fn has_images(
    path: &Path,
    extensions: &[&str],
    store: &dyn Store,
) -> Result<bool> {
    Ok(entries(path, store)?
        .iter()
        .any(|entry| entry.kind != EntryKind::Folder && is_image(&entry.path, extensions)))
}

/// The folders directly inside `path`, links included, sorted by name as bytes.
pub(in crate::source) fn subfolders(path: &Path, store: &dyn Store) -> Result<Vec<PathBuf>> {
    Ok(folders(path, store)?.into_iter().map(|(path, _)| path).collect())
}

/// The same, each with whether it is a link.
fn folders(path: &Path, store: &dyn Store) -> Result<Vec<(PathBuf, bool)>> {
    let mut found: Vec<(PathBuf, bool)> = entries(path, store)?
        .into_iter()
        .filter(|entry| entry.kind == EntryKind::Folder)
        .map(|entry| (entry.path, entry.is_link))
        .collect();
    found.sort();
    Ok(found)
}

/// All images at any depth below `top`: folders sorted by their path, then files by name, both
/// as bytes. That is the order of `sorted(os.walk(top, followlinks=True))`, so of ImageFolder.
pub(in crate::source) fn images(
    top: &Path,
    extensions: &[&str],
    store: &dyn Store,
    found: &mut dyn FnMut(&Path) -> Result<()>,
) -> Result<()> {
    let mut walk = FolderWalk { store, found: Vec::new(), ancestors: Vec::new(), linked: 0 };
    walk.add(top, false)?;
    let mut folders = walk.found;
    // "a/b" and "a-b" compare as text here, not part by part.
    folders.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    for folder in folders {
        let mut files: Vec<PathBuf> = entries(&folder, store)?
            .into_iter()
            // Only a regular file can be an image; a link that leads nowhere fails when it is read.
            .filter(|entry| matches!(entry.kind, EntryKind::File | EntryKind::Link))
            .map(|entry| entry.path)
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
struct FolderWalk<'a> {
    store: &'a dyn Store,
    found: Vec<PathBuf>,
    /// The folders that lead to the present one.
    ancestors: Vec<(u64, u64)>,
    /// How many were found through links.
    linked: u64,
}

impl FolderWalk<'_> {
    /// Adds `folder` and all folders below it. One that is its own ancestor is a loop of links.
    fn add(&mut self, folder: &Path, through_link: bool) -> Result<()> {
        let identity = self.store.find(folder).map_err(|e| failed(folder, e))?.identity;
        if identity.is_some_and(|identity| self.ancestors.contains(&identity)) {
            return Err(problem(folder, "is a link to a folder that contains it: remove the link"));
        }
        self.linked += u64::from(through_link);
        if self.linked > MOST_LINKED {
            return Err(problem(
                folder,
                "is reached through links, as are 100,000 others: remove the links",
            ));
        }
        let above = self.ancestors.len();
        self.ancestors.extend(identity);
        self.found.push(folder.to_owned());
        for (inner, is_link) in folders(folder, self.store)? {
            self.add(&inner, through_link || is_link)?;
        }
        self.ancestors.truncate(above);
        Ok(())
    }
}
