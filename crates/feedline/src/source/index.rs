//! The result of a scan, kept so that a file is scanned once: `NAME.feedline-index` beside it, or
//! in the user's cache folder where that cannot be written.
//!
//! It belongs to the file while size, time of change, and first and last bytes agree. One that is
//! damaged, stale or of another version is made anew without a word. Columns are little-endian
//! numbers in one piece, so that a million samples load in a few milliseconds.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::encoding::Encoding;
use super::input::Compression;
use super::names::Names;
use super::part::{Column, Content, Part, Values};
use crate::catalog;

/// How an index's name ends.
pub(super) const ENDING: &str = ".feedline-index";

const MAGIC: &[u8; 16] = b"feedline index 1";

/// What an index belongs to: a file as it was, and what it was scanned as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    format: String,
    version: u64,
    size: u64,
    seconds: i64,
    nanoseconds: i64,
    /// xxh3 of the first and the last bytes.
    ends: u64,
}

impl Identity {
    pub(super) fn of(file: &File, format: &str, version: u64) -> std::io::Result<Identity> {
        let metadata = file.metadata()?;
        let size = metadata.len();
        let mut hash = Xxh3::new();
        let mut piece = [0; 4096];
        for at in [0, size.saturating_sub(piece.len() as u64)] {
            let read = file.read_at(&mut piece, at)?;
            hash.update(&piece[..read]);
        }
        Ok(Identity {
            format: format.to_owned(),
            version,
            size,
            seconds: metadata.mtime(),
            nanoseconds: metadata.mtime_nsec(),
            ends: hash.digest(),
        })
    }

    /// Bytes of the file.
    pub(super) fn size(&self) -> u64 {
        self.size
    }
}

/// A scan's result.
pub(super) struct Scanned {
    pub(super) part: Part,
    pub(super) compression: Compression,
    /// Bytes of the file once it is unpacked.
    pub(super) length: u64,
}

#[derive(Serialize, Deserialize)]
struct Head {
    identity: Identity,
    compression: Compression,
    length: u64,
    samples: usize,
    text: usize,
    classes: Vec<String>,
    columns: Vec<ColumnHead>,
}

#[derive(Serialize, Deserialize)]
struct ColumnHead {
    name: String,
    field: String,
    hidden: bool,
    content: Content,
    encoding: Encoding,
    places: bool,
    values: Kept,
    extra: bool,
}

#[derive(Serialize, Deserialize)]
enum Kept {
    None,
    Int,
    Float,
}

fn beside(path: &Path) -> Option<PathBuf> {
    let mut name = path.file_name()?.to_owned();
    name.push(ENDING);
    Some(path.with_file_name(name))
}

fn in_cache(path: &Path) -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    let full = fs::canonicalize(path).ok()?;
    let name = format!("{:016x}{ENDING}", xxh3_64(full.as_os_str().as_bytes()));
    Some(cache.join("feedline/index").join(name))
}

/// The index that was kept for the file at `path`, if it still belongs to it.
pub(super) fn load(path: &Path, identity: &Identity) -> Option<Scanned> {
    let read = |at: PathBuf| {
        let mut file = catalog::open(&at).ok()?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(file.metadata().ok()?.len() as usize).ok()?;
        file.read_to_end(&mut bytes).ok()?;
        parse(&bytes, identity)
    };
    beside(path).and_then(read).or_else(|| in_cache(path).and_then(read))
}

/// Keeps a scan's result. If that is not possible, the next start scans again.
pub(super) fn save(path: &Path, identity: &Identity, scanned: &Scanned) {
    let write = |at: PathBuf| write_whole(&at, identity, scanned);
    if beside(path).is_some_and(|at| write(at).is_ok()) {
        return;
    }
    if let Some(at) = in_cache(path) {
        let _ = at.parent().is_some_and(|folder| fs::create_dir_all(folder).is_ok())
            && write(at).is_ok();
    }
}

/// Writes under another name first, so that the index is seen whole or not at all.
fn write_whole(at: &Path, identity: &Identity, scanned: &Scanned) -> std::io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = std::ffi::OsString::from(".");
    name.push(at.file_name().unwrap_or_default());
    name.push(format!(".{}-{number}.partial", std::process::id()));
    let partial = at.with_file_name(name);
    let written = File::create(&partial)
        .and_then(|file| write(file, identity, scanned))
        .and_then(|()| fs::rename(&partial, at));
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written
}

/// Writes and hashes.
struct Hashed<W> {
    to: W,
    hash: Xxh3,
}

impl<W: Write> Hashed<W> {
    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hash.update(bytes);
        self.to.write_all(bytes)
    }
}

fn write(file: File, identity: &Identity, scanned: &Scanned) -> std::io::Result<()> {
    let part = &scanned.part;
    let (text, ends) = part.names.parts();
    let head = Head {
        identity: identity.clone(),
        compression: scanned.compression,
        length: scanned.length,
        samples: ends.len(),
        text: text.len(),
        classes: part.classes.clone(),
        columns: part.columns.iter().map(column_head).collect(),
    };
    let head = serde_json::to_vec(&head)?;
    let mut out = Hashed { to: BufWriter::with_capacity(1 << 17, file), hash: Xxh3::new() };
    out.put(MAGIC)?;
    out.put(&(head.len() as u64).to_le_bytes())?;
    out.put(&head)?;
    out.put(bytemuck::cast_slice(ends))?;
    for column in &part.columns {
        out.put(bytemuck::cast_slice(&column.places))?;
        match &column.values {
            Values::None => {}
            Values::Int(values) => out.put(bytemuck::cast_slice(values))?,
            Values::Float(values) => out.put(bytemuck::cast_slice(values))?,
        }
        out.put(bytemuck::cast_slice(&column.extra))?;
    }
    out.put(text)?;
    let sum = out.hash.digest();
    out.put(&sum.to_le_bytes())?;
    out.to.flush()
}

fn column_head(column: &Column) -> ColumnHead {
    ColumnHead {
        name: column.name.clone(),
        field: column.field.clone(),
        hidden: column.hidden,
        content: column.content.clone(),
        encoding: column.encoding,
        places: !column.places.is_empty(),
        values: match column.values {
            Values::None => Kept::None,
            Values::Int(_) => Kept::Int,
            Values::Float(_) => Kept::Float,
        },
        extra: !column.extra.is_empty(),
    }
}

/// Takes numbers from the front of `bytes`; `None` if there are not so many.
fn numbers<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
    bytes: &mut &[u8],
    count: usize,
) -> Option<Vec<T>> {
    let (taken, rest) = bytes.split_at_checked(count.checked_mul(size_of::<T>())?)?;
    *bytes = rest;
    let mut numbers = vec![T::zeroed(); count];
    bytemuck::cast_slice_mut::<T, u8>(&mut numbers).copy_from_slice(taken);
    Some(numbers)
}

fn parse(bytes: &[u8], identity: &Identity) -> Option<Scanned> {
    let (body, sum) = bytes.split_last_chunk::<8>()?;
    let mut rest = body.strip_prefix(MAGIC)?;
    let length = u64::from_le_bytes(numbers::<u8>(&mut rest, 8)?.try_into().ok()?);
    let head = numbers::<u8>(&mut rest, length.try_into().ok()?)?;
    let head: Head = serde_json::from_slice(&head).ok()?;
    // The hash takes longest, so what is not meant is told apart first.
    if head.identity != *identity || xxh3_64(body) != u64::from_le_bytes(*sum) {
        return None;
    }
    let ends = numbers(&mut rest, head.samples)?;
    let mut columns = Vec::new();
    for column in head.columns {
        let count = |there: bool| if there { head.samples } else { 0 };
        columns.push(Column {
            name: column.name,
            field: column.field,
            hidden: column.hidden,
            content: column.content,
            encoding: column.encoding,
            places: numbers(&mut rest, count(column.places))?,
            values: match column.values {
                Kept::None => Values::None,
                Kept::Int => Values::Int(numbers(&mut rest, head.samples)?),
                Kept::Float => Values::Float(numbers(&mut rest, head.samples)?),
            },
            extra: numbers(&mut rest, count(column.extra))?,
        });
    }
    let names = Names::from_parts(numbers(&mut rest, head.text)?, ends)?;
    let part = Part { names, columns, classes: head.classes };
    rest.is_empty().then_some(Scanned { part, compression: head.compression, length: head.length })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scanned() -> Scanned {
        let mut names = Names::default();
        ["a", "bc", "ü"].iter().for_each(|name| names.push(name.as_bytes()));
        let mut image = Column::new("jpg", Content::Image);
        image.places = vec![[0, 5], super::super::part::ABSENT, [7, 1]];
        let mut label = Column::new("cls", Content::Number);
        label.values = Values::Int(vec![1, -2, i64::MAX]);
        label.field = "label".to_owned();
        let part = Part { names, columns: vec![image, label], classes: vec!["x".to_owned()] };
        Scanned { part, compression: Compression::Gzip, length: 99 }
    }

    #[test]
    fn an_index_is_read_back_while_its_file_stays_the_same() {
        let folder = std::env::temp_dir().join(format!("feedline-index-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("some.tar");
        fs::write(&path, b"content").unwrap();
        let identity = || Identity::of(&File::open(&path).unwrap(), "tar", 1).unwrap();
        assert!(load(&path, &identity()).is_none());
        save(&path, &identity(), &scanned());
        let again = load(&path, &identity()).unwrap();
        let before = scanned();
        assert_eq!(again.part.columns, before.part.columns);
        assert_eq!(again.part.names.parts(), before.part.names.parts());
        assert_eq!((again.length, again.compression), (99, Compression::Gzip));
        assert_eq!(again.part.classes, ["x"]);
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        let other = Identity::of(&File::open(&path).unwrap(), "tar", 2).unwrap();
        assert!(load(&path, &other).is_none(), "another version");
        fs::write(&path, b"changed").unwrap();
        assert!(load(&path, &identity()).is_none(), "the file has changed");
        // Every flipped bit and every cut is noticed.
        save(&path, &identity(), &scanned());
        let whole = fs::read(beside(&path).unwrap()).unwrap();
        assert!(parse(&whole, &identity()).is_some());
        for at in 0..whole.len() {
            assert!(parse(&whole[..at], &identity()).is_none());
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(parse(&changed, &identity()).is_none(), "byte {at}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
