//! What is at a path: by names first, then by the first bytes.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::source::images::manifest;
use crate::source::spans::tfrecord;
use crate::source::{Opening, kind_of, may_be_file, problem, shards, walk};
use crate::spec::SourceFormat;
use crate::store::{EntryKind, Reader, Store};

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::source) enum Found {
    /// A folder whose subfolders are classes of images.
    Classes,
    /// A folder of images.
    Flat,
    /// A table of paths of images.
    Manifest,
    /// Something in a format of its own.
    Format(SourceFormat),
}

/// An index of MosaicML or LitData: larger ones list millions of files.
const LARGEST_JSON: u64 = 256 << 20;

pub(in crate::source) fn by_name(path: &Path) -> Option<SourceFormat> {
    let name = path.file_name()?.as_bytes().to_ascii_lowercase();
    SourceFormat::of_file_name(&name)
        .or_else(|| tfrecord::is_name(&name).then_some(SourceFormat::Tfrecord))
}

/// What the first bytes of a file say.
fn by_magic(start: &[u8]) -> Option<SourceFormat> {
    SourceFormat::of_first_bytes(start)
        .or_else(|| tfrecord::is_tfrecord(start).then_some(SourceFormat::Tfrecord))
}

fn unknown(path: &Path) -> Error {
    let formats = SourceFormat::names(SourceFormat::all());
    problem(
        path,
        format!(
            "is not a data set that feedline knows: expected a folder of images, a packed set, a manifest, or one of the formats {formats}; name the format with kind if the file's name does not"
        ),
    )
}

/// Finds out what is at a path, or what a pattern stands for.
pub(in crate::source) fn detect(path: &Path, with: &Opening<'_>) -> Result<Found> {
    let store = &**with.store;
    if shards::is_pattern(path, store) {
        let files = shards::expand(path, &[], store)?;
        let first = files.first().ok_or_else(|| unknown(path))?;
        return match detect_one(first, with)? {
            // Several files of paths are a table in several files.
            Found::Manifest => by_name(first).map(Found::Format).ok_or_else(|| unknown(path)),
            Found::Classes | Found::Flat => {
                Err(problem(path, "stands for folders or images: name one folder, or a manifest"))
            }
            found => Ok(found),
        };
    }
    detect_one(path, with)
}

fn detect_one(path: &Path, with: &Opening<'_>) -> Result<Found> {
    let failed = |source| Error::Io { what: "cannot open", path: path.to_owned(), source };
    let store = &**with.store;
    if store.find(path).map_err(failed)?.kind == EntryKind::Folder {
        return detect_folder(path, with);
    }
    let file = store.open(path).map_err(failed)?;
    if let Some(format) = by_name(path) {
        let table = matches!(format, SourceFormat::Csv | SourceFormat::Jsonl);
        if table && manifest::looks_like_one(path, with).map_err(failed)? {
            return Ok(Found::Manifest);
        }
        return Ok(Found::Format(format));
    }
    let mut start = Vec::new();
    Reader::new(file).take(512).read_to_end(&mut start).map_err(failed)?;
    by_magic(&start).map(Found::Format).ok_or_else(|| unknown(path))
}

fn detect_folder(path: &Path, with: &Opening<'_>) -> Result<Found> {
    let store = &**with.store;
    let there = |name: &str| Ok::<_, Error>(kind_of(&path.join(name), store)?.is_some());
    if there("data.mdb")? {
        return Ok(Found::Format(SourceFormat::Lmdb));
    }
    for name in [".zarray", ".zgroup", "zarr.json", ".zmetadata"] {
        if there(name)? {
            return Ok(Found::Format(SourceFormat::Zarr));
        }
    }
    if let Some(format) = by_index(&path.join("index.json"), store)? {
        return Ok(Found::Format(format));
    }
    let subfolders = walk::subfolders(path, store)?;
    // Images directly in the folder make it a flat one, as nobody keeps them beside classes.
    if walk::has_images(path, with.image_extensions, store)? {
        return Ok(Found::Flat);
    }
    // What lies beside classes of images is what they came from, or describes them.
    for folder in subfolders.iter().take(LOOKED_INTO) {
        if walk::has_images(folder, with.image_extensions, store)? {
            return Ok(Found::Classes);
        }
    }
    let zarr = |folder: &PathBuf| folder.extension().is_some_and(|ending| ending == "zarr");
    if !subfolders.is_empty() && subfolders.iter().all(zarr) {
        return Ok(Found::Format(SourceFormat::Zarr));
    }
    if let Some(format) =
        of_files(path, &shards::list(path, store)?, !subfolders.is_empty(), store)?
    {
        return Ok(Found::Format(format));
    }
    Ok(if subfolders.is_empty() { Found::Flat } else { Found::Classes })
}

/// Classes have images; a few folders show it.
const LOOKED_INTO: usize = 3;

/// The one format that files of a folder have. Beside subfolders, only what nobody keeps beside
/// classes of images counts: a table or an array there describes them.
fn of_files(
    folder: &Path,
    files: &[PathBuf],
    has_subfolders: bool,
    store: &dyn Store,
) -> Result<Option<SourceFormat>> {
    use SourceFormat::{Arrow, Mds, Parquet, Tar, Tfrecord};
    let mut found: Vec<SourceFormat> = Vec::new();
    for file in files {
        let Some(format) = by_name(file) else { continue };
        let counts = !has_subfolders || matches!(format, Tar | Tfrecord | Parquet | Arrow | Mds);
        if counts && !found.contains(&format) && may_be_file(file, store) {
            found.push(format);
        }
    }
    match found[..] {
        [] => Ok(None),
        [format] => Ok(Some(format)),
        _ => Err(problem(
            folder,
            format!(
                "has files of several formats ({}): name the one that is meant, as {}",
                found.iter().map(|format| format.name()).collect::<Vec<_>>().join(", "),
                folder.join(format!("*.{}", found[0].name())).display()
            ),
        )),
    }
}

/// The formats that keep a list of their shards in `index.json`.
fn by_index(path: &Path, store: &dyn Store) -> Result<Option<SourceFormat>> {
    if kind_of(path, store)? != Some(EntryKind::File) {
        return Ok(None);
    }
    let failed = |source| Error::Io { what: "cannot read", path: path.to_owned(), source };
    let file = store.open(path).map_err(failed)?;
    if file.len() > LARGEST_JSON {
        return Ok(None);
    }
    let reader = std::io::BufReader::with_capacity(1 << 17, Reader::new(file));
    let value: Value = match serde_json::from_reader(reader) {
        Ok(value) => value,
        Err(error) if error.is_io() => return Err(failed(error.into())),
        Err(_) => return Ok(None),
    };
    Ok(match (value.get("shards"), value.get("chunks")) {
        (Some(Value::Array(_)), _) => Some(SourceFormat::Mds),
        (_, Some(Value::Array(_))) => Some(SourceFormat::Litdata),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with() -> Opening<'static> {
        Opening {
            store: crate::source::arrays::npy::tests::local(),
            image_extensions: &["jpg"],
            block_memory: 0,
            memory: 0,
            is_image: |_| false,
        }
    }

    #[test]
    fn what_is_there_is_found() {
        let top = std::env::temp_dir().join(format!("feedline-detect-{}", std::process::id()));
        let write = |name: &str, bytes: &[u8]| {
            let path = top.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        let mut record = 5u64.to_le_bytes().to_vec();
        let crc = crc32c::crc32c(&record);
        record.extend(crc.rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes());
        for (name, bytes) in [
            ("f/a.bin", &b"\x93NUMPY..."[..]),
            ("f/b.bin", b"PAR1"),
            ("f/c-00000-of-00001", &record),
            ("f/d.TAR.GZ", b""),
            ("f/e.csv", b"path,label\nx.jpg,1\n"),
            ("f/f.csv", b"a,b\n1,2\n"),
            ("f/g.jsonl", b"{\"file\": \"x.jpg\"}\n"),
            ("f/h.jsonl", b"{\"text\": \"x\"}\n"),
            ("f/i.csv", b"path,words\nx.wav,1\n"),
            ("f/unknown", b"?"),
            ("lmdb/data.mdb", b""),
            ("zarr/zarr.json", b"{}"),
            ("zarrs/a.zarr/zarr.json", b"{}"),
            ("zarrs/b.zarr/zarr.json", b"{}"),
            ("mds/index.json", b"{\"shards\": [], \"version\": 2}"),
            ("lit/index.json", b"{\"chunks\": [], \"config\": {}}"),
            ("tars/a-0.tar", b""),
            ("tars/a-1.tar", b""),
            ("tars/sub/x.txt", b""),
            ("mixed/a.tar", b""),
            ("mixed/a.parquet", b""),
            ("classes/cat/1.jpg", b""),
            ("classes/labels.csv", b"a,b\n"),
            ("classes/old.tar", b""),
            ("flat/1.jpg", b""),
            ("flat/x.tar", b""),
        ] {
            write(name, bytes);
        }
        let found = |name: &str| detect(&top.join(name), &with());
        for (name, expected) in [
            ("f/a.bin", Found::Format(SourceFormat::Npy)),
            ("f/b.bin", Found::Format(SourceFormat::Parquet)),
            ("f/c-00000-of-00001", Found::Format(SourceFormat::Tfrecord)),
            ("f/d.TAR.GZ", Found::Format(SourceFormat::Tar)),
            ("f/e.csv", Found::Manifest),
            ("f/f.csv", Found::Format(SourceFormat::Csv)),
            ("f/g.jsonl", Found::Manifest),
            ("f/h.jsonl", Found::Format(SourceFormat::Jsonl)),
            ("f/i.csv", Found::Format(SourceFormat::Csv)),
            ("f/[ef].csv", Found::Format(SourceFormat::Csv)),
            ("lmdb", Found::Format(SourceFormat::Lmdb)),
            ("zarr", Found::Format(SourceFormat::Zarr)),
            ("zarrs", Found::Format(SourceFormat::Zarr)),
            ("mds", Found::Format(SourceFormat::Mds)),
            ("lit", Found::Format(SourceFormat::Litdata)),
            ("tars", Found::Format(SourceFormat::Tar)),
            ("tars/a-{0..1}.tar", Found::Format(SourceFormat::Tar)),
            ("tars/*.tar", Found::Format(SourceFormat::Tar)),
            ("classes", Found::Classes),
            ("flat", Found::Flat),
        ] {
            assert_eq!(found(name).unwrap(), expected, "{name}");
        }
        for (name, message) in [
            ("f/unknown", "is not a data set that feedline knows"),
            ("mixed", "several formats (parquet, tar)"),
            ("nowhere", "No such file"),
            ("x*.tar", "matches no file"),
            ("clas*", "stands for folders"),
        ] {
            let error = found(name).unwrap_err().to_string();
            assert!(error.contains(message), "{name}: {error}");
        }
        std::fs::remove_dir_all(&top).unwrap();
    }
}
