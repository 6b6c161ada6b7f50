//! Packed samples as files in folders, which any other program reads.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::destination::{Destination, JOURNAL};
use crate::catalog::{self, ListedFile};
use crate::error::{Error, Result};

/// A file that is in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Done {
    /// The sample's number.
    pub sample: u64,
    /// Bytes of the file; `None` if the sample was left out.
    pub bytes: Option<u64>,
    /// xxh3 of the file.
    pub xxh3: u64,
    /// Bytes before it was packed.
    pub before: u64,
    /// Why it is as it was, or was left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Writes files, from many threads in any order.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    folder: &'a Path,
    state: Mutex<FilesState>,
}

#[derive(Debug)]
struct FilesState {
    journal: File,
    /// Folders that are there.
    folders: HashSet<PathBuf>,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

impl<'a> Files<'a> {
    /// Opens the journal, and gives what earlier work left of the same job: files that are there
    /// with the length that was noted.
    pub(crate) fn open(
        destination: &'a Destination,
        name_of: &dyn Fn(u64) -> Option<PathBuf>,
    ) -> Result<(Files<'a>, Vec<Done>)> {
        let folder = destination.folder();
        let path = folder.join(JOURNAL);
        let mut done = Vec::new();
        if let Ok(lines) = catalog::lines(&path) {
            for line in lines {
                // The last line may be cut: its file is written again.
                let Some(entry) =
                    line.ok().and_then(|line| serde_json::from_str::<Done>(&line).ok())
                else {
                    break;
                };
                let length = name_of(entry.sample)
                    .and_then(|name| fs::metadata(folder.join(name)).ok())
                    .map(|metadata| metadata.len());
                if entry.bytes.is_none() || length == entry.bytes {
                    done.push(entry);
                }
            }
        }
        // What is trusted is written anew, so that a cut line is not in the way.
        let failed = failed("cannot write", &path);
        let journal = (|| {
            let mut file = File::create(&path)?;
            let mut text = String::new();
            for entry in &done {
                text += &serde_json::to_string(entry)?;
                text.push('\n');
            }
            file.write_all(text.as_bytes())?;
            drop(file);
            OpenOptions::new().append(true).open(&path)
        })()
        .map_err(failed)?;
        let state = Mutex::new(FilesState { journal, folders: HashSet::new() });
        Ok((Files { folder, state }, done))
    }

    /// Writes a file and notes it.
    pub(crate) fn put(&self, name: &Path, bytes: &[u8], before: u64, sample: u64) -> Result<Done> {
        let path = self.folder.join(name);
        if let Some(parent) = path.parent() {
            let known = self.lock().folders.contains(parent);
            if !known {
                fs::create_dir_all(parent).map_err(failed("cannot create the folder", parent))?;
                self.lock().folders.insert(parent.to_owned());
            }
        }
        fs::write(&path, bytes).map_err(failed("cannot write", &path))?;
        let xxh3 = xxhash_rust::xxh3::xxh3_64(bytes);
        Ok(Done { sample, bytes: Some(bytes.len() as u64), xxh3, before, reason: None })
    }

    /// Notes that a sample is dealt with; what comes before it in time is in place.
    pub(crate) fn note(&self, done: &Done) -> Result<()> {
        let mut line =
            serde_json::to_string(done).map_err(|error| Error::System(error.to_string()))?;
        line.push('\n');
        let path = self.folder.join(JOURNAL);
        self.lock().journal.write_all(line.as_bytes()).map_err(failed("cannot write", &path))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FilesState> {
        // A panic elsewhere leaves the journal with whole lines.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Files in `folder` and below whose names end in one of the extensions and that are not `known`:
/// paths from `top`, sorted. Links to folders are not followed, so that none leads in a circle.
fn unknown(top: &Path, known: &HashSet<PathBuf>, extensions: &[&str]) -> Result<Vec<PathBuf>> {
    let mut folders = vec![top.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(failed("cannot list", &folder))? {
            let entry = entry.map_err(failed("cannot list", &folder))?;
            let path = entry.path();
            if entry.file_type().map_err(failed("cannot list", &folder))?.is_dir() {
                folders.push(path);
                continue;
            }
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or("");
            if extensions.iter().any(|extension| ending.eq_ignore_ascii_case(extension))
                && let Ok(name) = path.strip_prefix(top)
                && !known.contains(name)
            {
                found.push(name.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Compares every file of a packed set with its checksum, and its description with its own; in a
/// set of image files, finds those of `image_extensions` that are not in its list. `bad` gets path
/// and reason; `progress` hears how many files were compared.
pub fn check(
    folder: &Path,
    packed: &catalog::Catalog,
    image_extensions: &[&str],
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
    bad: &mut dyn FnMut(&Path, String),
) -> Result<(u64, u64)> {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
    let mut entries = Vec::new();
    packed.files(folder, &mut |entry| entries.push(entry))?;
    let (next, done, bytes) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let found = Mutex::new(Vec::new());
    let compare = |entry: &ListedFile| {
        let (length, xxh3) = match catalog::checksum(&folder.join(entry.path())) {
            Ok(found) => found,
            Err(error) => return Some(error.to_string()),
        };
        bytes.fetch_add(length, Relaxed);
        if length != entry.bytes {
            return Some(format!("has {length} bytes, {} were written", entry.bytes));
        }
        let now = catalog::show_checksum(xxh3);
        (now != entry.xxh3)
            .then(|| format!("has changed: its checksum is {now}, {} was written", entry.xxh3))
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, 256) {
            scope.spawn(|| {
                while let Some((number, entry)) =
                    Some(next.fetch_add(1, Relaxed)).and_then(|n| Some((n, entries.get(n)?)))
                {
                    if let Some(reason) = compare(entry) {
                        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                        found.push((number, reason));
                    }
                    progress(done.fetch_add(1, Relaxed) + 1);
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort();
    for (number, reason) in found {
        bad(&entries[number].path(), reason);
    }
    if let Some(reason) = catalog::Catalog::check_description(folder)? {
        bad(Path::new(catalog::FILE), reason);
    }
    if packed.kind == catalog::PackedKind::Images {
        let known = entries.iter().map(ListedFile::path).collect();
        for path in unknown(folder, &known, image_extensions)? {
            bad(&path, "was added: it is not in the list of the packed set".to_owned());
        }
    }
    Ok((entries.len() as u64, bytes.into_inner()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Catalog, FILE, PackedKind};

    #[test]
    fn added_images_and_a_changed_description_are_found() {
        let top = std::env::temp_dir().join(format!("feedline-check-{}", std::process::id()));
        fs::create_dir_all(top.join("cat")).unwrap();
        fs::write(top.join("cat/1.jpg"), b"one").unwrap();
        let one = ListedFile::new(Path::new("cat/1.jpg"), 3, xxhash_rust::xxh3::xxh3_64(b"one"));
        let (list, bytes) = catalog::write_list(&top, &mut [one].into_iter()).unwrap();
        let packed = Catalog {
            feedline_pack: catalog::VERSION,
            kind: PackedKind::Images,
            samples: 1,
            classes: vec!["cat".to_owned()],
            labels: Vec::new(),
            table: false,
            fields: Vec::new(),
            shards: Vec::new(),
            job: serde_json::json!({"options": {"x": 0.1, "y": 1e-300}}),
            bytes,
            list,
        };
        packed.write(&top).unwrap();
        let check = || {
            let read = Catalog::read(&top).unwrap().unwrap();
            let mut bad = Vec::new();
            let mut note = |path: &Path, reason: String| bad.push((path.to_owned(), reason));
            check(&top, &read, &["jpg"], 1, &|_| (), &mut note).unwrap();
            bad
        };
        assert_eq!(Catalog::read(&top).unwrap().unwrap(), packed);
        assert_eq!(check(), []);
        fs::write(top.join("cat/notes.txt"), b"no image").unwrap();
        assert_eq!(check(), []);
        fs::write(top.join("cat/2.JPG"), b"two").unwrap();
        let found = check();
        assert_eq!(found.len(), 1);
        assert!(found[0].0 == Path::new("cat/2.JPG") && found[0].1.contains("added"), "{found:?}");
        fs::remove_file(top.join("cat/2.JPG")).unwrap();
        let text = fs::read_to_string(top.join(FILE)).unwrap();
        fs::write(top.join(FILE), text.replace("\"cat\"", "\"dog\"")).unwrap();
        let found = check();
        assert_eq!(found.len(), 1);
        assert!(found[0].0 == Path::new(FILE) && found[0].1.contains("changed"), "{found:?}");
        // As earlier versions wrote it.
        fs::write(top.join(FILE), serde_json::to_string(&packed).unwrap()).unwrap();
        assert_eq!(check(), []);
        fs::remove_dir_all(top).unwrap();
    }
}
