//! The result of a scan, kept so that a file is scanned once: `NAME.feedline-index` beside it, or
//! in the user's cache folder where that cannot be written.
//!
//! It belongs to the file while size, time of change, and pieces of the contents agree; one in the
//! cache folder, which is not copied with its file, while the inode was not changed either. One
//! that is damaged, stale or of another version is made anew without a word. Columns are
//! little-endian numbers in one piece, so that a million samples load in a few milliseconds.

use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::encoding::Encoding;
use super::input::Compression;
use super::part::{ByteSpan, Content, ShardPart, SpanColumn, Values};
use crate::buffer;
use crate::source::names::Names;
use crate::store::{Object, Reader, Revision, Sidecar, Store};

/// How an index's name ends.
pub(in crate::source) const ENDING: &str = ".feedline-index";

const MAGIC: &[u8; 16] = b"feedline index 2";

/// Pieces of a file that are compared, and their length: all of a file that is not larger than
/// these together, and the ends of any.
const PIECES: u64 = 16;
const PIECE: usize = 16 << 10;

/// No index has a larger head: 4096 columns with names of 1 kB take half of it.
const LARGEST_HEAD: u64 = 8 << 20;

/// What an index may take beside this many times its file: the most that a record of 30 bytes gets,
/// one of 64 features of which each has a number and a place for every record. Whoever declares
/// more has a hole instead of it.
const MOST_TIMES: u64 = 64;
const LARGEST_OF_SMALL: u64 = 16 << 20;

/// What an index belongs to: a file as it was, and what it was scanned as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::source) struct Identity {
    format: String,
    version: u64,
    size: u64,
    seconds: i64,
    nanoseconds: i64,
    /// xxh3 of pieces all over the file.
    pieces: u64,
    /// When the inode was changed; `None` in an index that may be copied with its file.
    inode_change: Option<(i64, i64)>,
}

impl Identity {
    pub(in crate::source) fn of(
        file: &dyn Object,
        format: &str,
        version: u64,
    ) -> std::io::Result<Identity> {
        let Revision { len: size, modified, touched } = file.revision()?;
        let mut hash = Xxh3::new();
        let mut piece = [0; PIECE];
        let last = size.saturating_sub(PIECE as u64);
        for number in 0..PIECES {
            let at = u128::from(last) * u128::from(number) / u128::from(PIECES - 1);
            let read = file.read_at(&mut piece, at as u64)?;
            hash.update(&piece[..read]);
        }
        Ok(Identity {
            format: format.to_owned(),
            version,
            size,
            seconds: modified.0,
            nanoseconds: modified.1,
            pieces: hash.digest(),
            inode_change: touched,
        })
    }

    /// What is compared of an index that may be copied with its file.
    fn portable(&self) -> Identity {
        Identity { inode_change: None, ..self.clone() }
    }

    /// Bytes of the file.
    pub(in crate::source) fn size(&self) -> u64 {
        self.size
    }
}

/// A scan's result.
pub(in crate::source) struct Scanned {
    pub(in crate::source) part: ShardPart,
    pub(in crate::source) compression: Compression,
    /// Bytes of the file once it is unpacked.
    pub(in crate::source) length: u64,
}

#[derive(Serialize, Deserialize)]
struct Head {
    identity: Identity,
    compression: Compression,
    length: u64,
    samples: usize,
    text: usize,
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
    values: ValueKind,
    extra: bool,
}

#[derive(Serialize, Deserialize)]
enum ValueKind {
    None,
    Int,
    Float,
}

/// Where the index of the file at `path` is, for messages.
pub(in crate::source) fn place(store: &dyn Store, path: &Path) -> PathBuf {
    let beside = store.open_sidecar(path, ENDING, Sidecar::Beside).map(|_| Sidecar::Beside);
    let place = beside.unwrap_or(Sidecar::InCache);
    store.sidecar(path, ENDING, place).unwrap_or_else(|| path.to_owned())
}

/// The index that was kept for the file at `path`, if it still belongs to it and fits into
/// `memory`.
pub(in crate::source) fn load(
    store: &dyn Store,
    path: &Path,
    identity: &Identity,
    memory: u64,
) -> Option<Scanned> {
    let most = identity.size.saturating_mul(MOST_TIMES).saturating_add(LARGEST_OF_SMALL);
    let read = |place: Sidecar, identity: &Identity| {
        let file = store.open_sidecar(path, ENDING, place)?;
        let length = file.len();
        if length > memory.min(most) {
            return None;
        }
        parse(BufReader::with_capacity(1 << 17, Reader::new(file)), length, identity)
    };
    read(Sidecar::Beside, &identity.portable()).or_else(|| read(Sidecar::InCache, identity))
}

/// Keeps a scan's result. If that is not possible, the next start scans again.
pub(in crate::source) fn save(
    store: &dyn Store,
    path: &Path,
    identity: &Identity,
    scanned: &Scanned,
) {
    let keep = |place: Sidecar, identity: &Identity| {
        store.write_sidecar(path, ENDING, place, &mut |to| write(to, identity, scanned))
    };
    let _ = keep(Sidecar::Beside, &identity.portable()) || keep(Sidecar::InCache, identity);
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

fn write(to: &mut dyn Write, identity: &Identity, scanned: &Scanned) -> std::io::Result<()> {
    let part = &scanned.part;
    let (text, ends) = part.names.parts();
    let head = Head {
        identity: identity.clone(),
        compression: scanned.compression,
        length: scanned.length,
        samples: ends.len(),
        text: text.len(),
        columns: part.columns.iter().map(column_head).collect(),
    };
    let head = serde_json::to_vec(&head)?;
    let mut out = Hashed { to, hash: Xxh3::new() };
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
    out.put(&sum.to_le_bytes())
}

fn column_head(column: &SpanColumn) -> ColumnHead {
    ColumnHead {
        name: column.name.clone(),
        field: column.field.clone(),
        hidden: column.hidden,
        content: column.content.clone(),
        encoding: column.encoding,
        places: !column.places.is_empty(),
        values: match column.values {
            Values::None => ValueKind::None,
            Values::Int(_) => ValueKind::Int,
            Values::Float(_) => ValueKind::Float,
        },
        extra: !column.extra.is_empty(),
    }
}

/// Reads and hashes.
struct HashedReader<R> {
    from: R,
    hash: Xxh3,
}

impl<R: Read> HashedReader<R> {
    fn fill(&mut self, room: &mut [u8]) -> Option<()> {
        self.from.read_exact(room).ok()?;
        self.hash.update(room);
        Some(())
    }

    /// The next `count` numbers; `None` if there are not so many, or no room for them.
    fn numbers<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
        &mut self,
        count: usize,
    ) -> Option<Vec<T>> {
        let mut numbers = Vec::new();
        buffer::reserve(&mut numbers, count as u64).ok()?;
        numbers.resize(count, T::zeroed());
        self.fill(bytemuck::cast_slice_mut(&mut numbers))?;
        Some(numbers)
    }
}

impl Head {
    /// Bytes of what follows the head, up to the checksum.
    fn body(&self) -> Option<u64> {
        let column = |column: &ColumnHead| {
            let values = match column.values {
                ValueKind::None => 0,
                ValueKind::Int => size_of::<i64>(),
                ValueKind::Float => size_of::<f32>(),
            };
            let there = |there: bool, size: usize| if there { size } else { 0 };
            there(column.places, size_of::<ByteSpan>())
                + values
                + there(column.extra, size_of::<u64>())
        };
        let each = size_of::<u64>() + self.columns.iter().map(column).sum::<usize>();
        self.samples.checked_mul(each)?.checked_add(self.text)?.try_into().ok()
    }
}

/// Reads an index of `length` bytes. No more is read than belongs to this file and its head says.
fn parse(from: impl Read, length: u64, identity: &Identity) -> Option<Scanned> {
    let mut from = HashedReader { from, hash: Xxh3::new() };
    let mut start = [0; 24];
    from.fill(&mut start)?;
    let (magic, head_length) = start.split_last_chunk::<8>()?;
    let head_length = u64::from_le_bytes(*head_length);
    if magic != MAGIC || head_length > LARGEST_HEAD.min(length) {
        return None;
    }
    // Whose it is stands first: the rest of one that belongs to another file is not looked at.
    let own = format!("{{\"identity\":{},", serde_json::to_string(identity).ok()?);
    let mut head = vec![0; own.len()];
    from.fill(&mut head)?;
    if head != own.as_bytes() {
        return None;
    }
    let rest = from.numbers::<u8>((head_length as usize).checked_sub(own.len())?)?;
    head.extend_from_slice(&rest);
    let head: Head = serde_json::from_slice(&head).ok()?;
    let body = head.body()?;
    let sum = size_of::<u64>() as u64;
    let whole = body.checked_add(start.len() as u64 + head_length + sum)?;
    // A sample takes at least a byte.
    if head.identity != *identity || whole != length || head.samples as u64 > identity.size {
        return None;
    }
    let ends = from.numbers(head.samples)?;
    let mut columns = Vec::new();
    for column in head.columns {
        let count = |there: bool| if there { head.samples } else { 0 };
        columns.push(SpanColumn {
            name: column.name,
            field: column.field,
            hidden: column.hidden,
            content: column.content,
            encoding: column.encoding,
            places: from.numbers(count(column.places))?,
            values: match column.values {
                ValueKind::None => Values::None,
                ValueKind::Int => Values::Int(from.numbers(head.samples)?),
                ValueKind::Float => Values::Float(from.numbers(head.samples)?),
            },
            extra: from.numbers(count(column.extra))?,
        });
    }
    let text = from.numbers(head.text)?;
    let expected = from.hash.digest();
    let mut sum = [0; 8];
    from.fill(&mut sum)?;
    if u64::from_le_bytes(sum) != expected {
        return None;
    }
    let part = ShardPart { names: Names::from_parts(text, ends)?, columns, classes: Vec::new() };
    Some(Scanned { part, compression: head.compression, length: head.length })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::Local;

    fn beside(path: &Path) -> PathBuf {
        Local.sidecar(path, ENDING, Sidecar::Beside).unwrap()
    }

    fn scanned() -> Scanned {
        let mut names = Names::default();
        ["a", "bc", "ü"].iter().for_each(|name| names.push(name.as_bytes()));
        let mut image = SpanColumn::new("jpg", Content::Image);
        image.places = vec![[0, 5], crate::source::spans::part::ABSENT, [7, 1]];
        let mut label = SpanColumn::new("cls", Content::Number);
        label.values = Values::Int(vec![1, -2, i64::MAX]);
        label.field = "label".to_owned();
        let part = ShardPart { names, columns: vec![image, label], ..ShardPart::default() };
        Scanned { part, compression: Compression::Gzip, length: 99 }
    }

    #[test]
    fn an_index_is_read_back_while_its_file_stays_the_same() {
        let folder = std::env::temp_dir().join(format!("feedline-index-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("some.tar");
        fs::write(&path, b"the content").unwrap();
        let identity = || Identity::of(&*Local.open(&path).unwrap(), "tar", 1).unwrap();
        assert!(load(&Local, &path, &identity(), u64::MAX).is_none());
        save(&Local, &path, &identity(), &scanned());
        let again = load(&Local, &path, &identity(), u64::MAX).unwrap();
        let before = scanned();
        assert_eq!(again.part.columns, before.part.columns);
        assert_eq!(again.part.names.parts(), before.part.names.parts());
        assert_eq!((again.length, again.compression), (99, Compression::Gzip));
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        let other = Identity::of(&*Local.open(&path).unwrap(), "tar", 2).unwrap();
        assert!(load(&Local, &path, &other, u64::MAX).is_none(), "another version");
        fs::write(&path, b"changed").unwrap();
        assert!(load(&Local, &path, &identity(), u64::MAX).is_none(), "the file has changed");
        // Every flipped bit and every cut is noticed.
        save(&Local, &path, &identity(), &scanned());
        let whole = fs::read(beside(&path)).unwrap();
        let parse = |bytes: &[u8]| parse(bytes, bytes.len() as u64, &identity().portable());
        assert!(parse(&whole).is_some());
        for at in 0..whole.len() {
            assert!(parse(&whole[..at]).is_none());
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(parse(&changed).is_none(), "byte {at}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    fn folder(name: &str) -> PathBuf {
        let folder = format!("feedline-index-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_change_amid_a_file_is_seen_though_size_and_time_are_kept() {
        let folder = folder("stale");
        let path = folder.join("some.tar");
        let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
        let identity_of = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            fs::File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
            Identity::of(&*Local.open(&path).unwrap(), "tar", 1).unwrap()
        };
        // A small file is compared as a whole, a large one at pieces between its ends.
        for (size, changed) in [(200_000, 100_001), (256 << 10, 99), (5_000_000, 2_326_000)] {
            let mut bytes = vec![0; size];
            let before = identity_of(&bytes);
            let again = identity_of(&bytes);
            assert_eq!(before.portable(), again.portable());
            assert_ne!(before, again, "in the cache folder the inode's time counts");
            bytes[changed] = 1;
            assert_ne!(before.portable(), identity_of(&bytes).portable(), "{size}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    /// Counts what is read of endless zeros after some bytes.
    struct Sparse<'a>(&'a [u8], &'a std::cell::Cell<u64>);

    impl Read for Sparse<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            self.1.set(self.1.get() + out.len() as u64);
            match self.0.read(out)? {
                0 => out.fill(0),
                read => return Ok(read),
            }
            Ok(out.len())
        }
    }

    #[test]
    fn of_an_index_no_more_is_read_than_its_head_tells() {
        let folder = folder("sparse");
        let path = folder.join("some.tar");
        fs::write(&path, b"content").unwrap();
        let identity = Identity::of(&*Local.open(&path).unwrap(), "tar", 1).unwrap();
        save(&Local, &path, &identity, &scanned());
        let whole = fs::read(beside(&path)).unwrap();
        let mut long_head = whole.clone();
        long_head[16..24].copy_from_slice(&(3u64 << 30).to_le_bytes());
        for bytes in [&[][..], &MAGIC[..], &whole, &long_head] {
            let read = std::cell::Cell::new(0);
            assert!(parse(Sparse(bytes, &read), 3 << 30, &identity.portable()).is_none());
            assert!(read.get() <= 4 * whole.len() as u64, "{} bytes", read.get());
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
