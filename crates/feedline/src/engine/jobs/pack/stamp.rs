//! What shows that a source's files are those of an earlier run: their lengths and times.

use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use crate::sample::Value;
use crate::source::Source;

/// Depth of folders that are looked into.
const DEEPEST: usize = 16;

/// A hash of the lengths and times of change of a source's files: the table or file at `path`, the
/// files that images lie in, or where the source does not say them, all below `path` but hidden
/// ones and indices. A folder below the 16th level and files that cannot be looked at are left out.
pub(super) fn stamp(path: &Path, source: &dyn Source, image: Option<usize>) -> u64 {
    let mut hash = Xxh3::new();
    let mut said = false;
    let mut last = None;
    for sample in 0..source.len() {
        let Some(Ok(Value::File(location))) = image.map(|image| source.value(sample, image)) else {
            break;
        };
        said = true;
        // Samples of a shard lie together.
        if last.replace((location.root, location.path)) != Some((location.root, location.path)) {
            add(&mut hash, &location.root.join(location.path));
        }
    }
    if path.is_file() {
        add(&mut hash, path);
    } else if !said {
        below(&mut hash, path, DEEPEST);
    }
    hash.digest()
}

fn add(hash: &mut Xxh3, path: &Path) {
    if let Ok(metadata) = fs::metadata(path) {
        note(hash, &metadata);
    }
}

fn note(hash: &mut Xxh3, metadata: &Metadata) {
    hash.update(&metadata.len().to_le_bytes());
    hash.update(&metadata.mtime().to_le_bytes());
    hash.update(&metadata.mtime_nsec().to_le_bytes());
}

fn below(hash: &mut Xxh3, folder: &Path, deep: usize) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    for name in names {
        let is_ours = name.as_bytes().ends_with(b".feedline-index") || name == "lock.mdb";
        if is_ours || name.as_bytes().starts_with(b".") {
            continue;
        }
        let path = folder.join(&name);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {
                hash.update(name.as_bytes());
                note(hash, &metadata);
            }
            Ok(metadata) if metadata.is_dir() && deep > 0 => below(hash, &path, deep - 1),
            _ => {}
        }
    }
}
