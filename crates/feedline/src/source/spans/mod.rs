//! Samples whose fields are places in files: tar, records, archives, and the like.
//!
//! A scan of each file finds its samples; the result is kept (see [`index`](super::index)). What
//! lies plainly in a file is handed to the store as a range of it. A file that is compressed as a
//! whole is a block: it is unpacked into memory for any of its samples, and kept for a while.

mod encoding;
mod fields;
mod headed;
pub(in crate::source) mod index;
pub(in crate::source) mod input;
pub(in crate::source) mod litdata;
pub(in crate::source) mod lmdb;
mod look;
pub(in crate::source) mod mds;
mod npy;
pub(in crate::source) mod part;
mod row_shards;
pub(in crate::source) mod tar;
pub(in crate::source) mod tfrecord;
pub(in crate::source) mod zip;

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use xxhash_rust::xxh3::xxh3_64_with_seed as xxh3;

use crate::buffer;
use crate::error::{Error, Fault, Result};
use crate::sample::{Field, FieldKind, Location, Room, Value};
use crate::source::names::Names;
use crate::source::{BlockCache, Blocks, Needs, Opening, Source, described, shards};
use crate::spec::FieldChoice;
use crate::store::{Handle, Object, Store, changed};
use fields::{Chosen, choose};
use index::{Identity, Scanned};
use input::{Compression, Held, Input};
use part::{ABSENT, ByteSpan, ShardPart, SpanColumn, Values};

/// A format whose samples are places in files.
#[derive(Clone)]
pub(in crate::source) struct Scanner<'a> {
    /// The format's name.
    pub(in crate::source) format: &'static str,
    /// What the result depends on beside the file: a version, the hash of a schema. An index that
    /// was made with another is made anew.
    pub(in crate::source) version: u64,
    /// How a file with these first bytes is compressed; usually [`Compression::by_magic`].
    pub(in crate::source) compression: fn(&[u8]) -> Compression,
    /// Finds the samples of one file.
    pub(in crate::source) scan: Arc<Scan>,
    /// Whether a scan of some file could find what an index says; adds what no index needs to say.
    pub(in crate::source) admit:
        &'a (dyn Fn(&Path, &mut ShardPart, &Opening<'_>) -> Option<()> + Sync),
    /// Whether the file itself says the same of a sample as an index does.
    pub(in crate::source) check: &'a (dyn Fn(&Peek<'_>, &Claim<'_>) -> Option<()> + Sync),
}

/// Finds the samples of one file.
pub(in crate::source) type Scan =
    dyn Fn(&mut Input<'_>, &Opening<'_>) -> Result<ShardPart> + Send + Sync;

/// Looks at a file: some bytes from a place on.
pub(in crate::source) type Peek<'a> = dyn Fn(u64, u64) -> Option<Vec<u8>> + 'a;

/// What an index says of a column of a sample, to be compared with what stands in the file around
/// its place.
#[derive(Clone, Copy)]
pub(in crate::source) struct Claim<'a> {
    pub(in crate::source) path: &'a Path,
    pub(in crate::source) part: &'a ShardPart,
    pub(in crate::source) column: &'a SpanColumn,
    /// The sample's number.
    pub(in crate::source) at: usize,
}

impl<'a> Claim<'a> {
    /// Where the column lies; `None` if that is not said, as a scan always does. Samples that do
    /// not have it are [`ABSENT`].
    pub(in crate::source) fn place(&self) -> Option<ByteSpan> {
        self.column.places.get(self.at).copied()
    }

    /// The sample's name.
    pub(in crate::source) fn name(&self) -> &'a [u8] {
        self.part.names.get(self.at as u64).as_os_str().as_bytes()
    }
}

/// An index comes from whoever wrote it: so many of its samples are compared with the file.
const COMPARED: u64 = 64;

/// No header, page or number that is compared is longer.
const LONGEST_PEEK: u64 = 1 << 20;

/// A scan that is over in no time is not worth a file of its own.
const SMALLEST_INDEXED: u64 = 64 << 10;

struct Shard {
    path: PathBuf,
    /// If its samples are known from an index that was not compared with the file yet, since it
    /// has to be unpacked for that: the hash of what the index says.
    indexed: Option<u64>,
    /// Whether they were compared since.
    compared: AtomicBool,
    /// What the file was when its samples were found.
    stamp: u64,
    compression: Compression,
    /// Bytes once it is unpacked.
    length: u64,
    names: Names,
    /// One for each field.
    columns: Vec<Option<SpanColumn>>,
}

/// Samples in places of files.
pub(in crate::source) struct Spans {
    what: String,
    format: &'static str,
    scan: Arc<Scan>,
    /// What a scan needs to know again.
    image_extensions: Vec<String>,
    is_image: fn(&[u8]) -> bool,
    shards: Vec<Shard>,
    /// Where each shard ends, in samples.
    ends: Vec<u64>,
    fields: Vec<Field>,
    classes: Vec<String>,
    blocks: Option<Blocks>,
    cache: BlockCache<Vec<u8>>,
    /// For what is not handed to the engine as a place.
    store: Arc<dyn Store>,
    fingerprint: OnceLock<u64>,
}

impl Spans {
    /// Opens `files`, which `what` stands for: their indexes if there are such, or by a scan.
    pub(in crate::source) fn open(
        what: &Path,
        scanner: &Scanner<'_>,
        files: Vec<PathBuf>,
        fields: &[FieldChoice],
        with: &Opening<'_>,
    ) -> Result<Spans> {
        let files: Vec<PathBuf> = files.into_iter().map(shards::fixed).collect();
        let (mut parts, mut shards) = (Vec::new(), Vec::new());
        let held = Held::new(what, with, files.len());
        for (path, scanned) in files.iter().zip(open_all(scanner, &files, with, &held)) {
            let (Scanned { part, compression, length }, stamp, indexed) = scanned?;
            if part.names.len() > 0 {
                let unknown = indexed && compression != Compression::None;
                shards.push(Shard {
                    path: path.clone(),
                    indexed: unknown.then(|| part.digest()),
                    compared: AtomicBool::new(false),
                    stamp,
                    compression,
                    length,
                    names: Names::default(),
                    columns: Vec::new(),
                });
                parts.push(part);
            }
        }
        let what = what.display().to_string();
        if shards.is_empty() {
            return Err(Error::Source { what, problem: "has no samples".to_owned() });
        }
        let classes = unite_classes(&mut parts);
        let Chosen { fields, columns } = choose(&what, &mut parts, fields)?;
        let mut ends = Vec::new();
        for ((shard, part), columns) in shards.iter_mut().zip(parts).zip(columns) {
            shard.names = part.names;
            shard.names.shrink();
            shard.columns = columns;
            shard.columns.iter_mut().flatten().for_each(settle);
            ends.push(ends.last().copied().unwrap_or(0) + shard.names.len());
        }
        let packed = shards.iter().filter(|shard| shard.compression != Compression::None);
        let blocks = packed
            .map(|shard| shard.length)
            .max()
            .map(|bytes| Blocks { ends: ends.clone(), bytes });
        Ok(Spans {
            what,
            format: scanner.format,
            scan: scanner.scan.clone(),
            image_extensions: with.image_extensions.iter().map(|&name| name.to_owned()).collect(),
            is_image: with.is_image,
            shards,
            ends,
            fields,
            classes,
            blocks,
            cache: BlockCache::new(with.block_memory),
            store: with.store.clone(),
            fingerprint: OnceLock::new(),
        })
    }

    /// The names of the classes, where something else than the files knows them.
    #[allow(dead_code)] // for formats that come
    pub(in crate::source) fn set_classes(&mut self, classes: Vec<String>) {
        self.classes = classes;
    }

    /// The shard of a sample, and its number there.
    fn place(&self, index: u64) -> (usize, usize) {
        let shard = self.ends.partition_point(|end| *end <= index);
        let before = if shard == 0 { 0 } else { self.ends[shard - 1] };
        (shard, (index - before) as usize)
    }

    fn column(&self, shard: usize, at: usize, field: usize) -> Result<&SpanColumn, Fault> {
        let column = self.shards[shard].columns[field].as_ref().filter(|column| column.has(at));
        column.ok_or_else(|| {
            let name = self.shards[shard].names.get(at as u64).display().to_string();
            let field = &self.fields[field].name;
            Fault::corrupt(self.format, format!("sample {name:?} has no {field:?}"))
        })
    }

    /// A shard's file, open.
    fn file(&self, shard: usize) -> Result<Handle, Fault> {
        let Shard { path, stamp, .. } = &self.shards[shard];
        self.store.reopen(path, *stamp)
    }

    /// Whether an unpacked shard is what its index said.
    fn is_as_indexed(&self, shard: usize, bytes: &[u8]) -> bool {
        let Shard { path, indexed, compared, .. } = &self.shards[shard];
        let Some(digest) = indexed.filter(|_| !compared.load(Ordering::Acquire)) else {
            return true;
        };
        let image_extensions: Vec<&str> = self.image_extensions.iter().map(|x| &**x).collect();
        let with = Opening {
            store: &self.store,
            image_extensions: &image_extensions,
            block_memory: bytes.len() as u64,
            memory: u64::MAX,
            is_image: self.is_image,
        };
        let found = (self.scan)(&mut Input::memory(path, bytes), &with);
        let same = found.is_ok_and(|part| part.digest() == digest);
        compared.store(same, Ordering::Release);
        same
    }

    /// A compressed shard as a whole.
    fn unpack(&self, shard: usize) -> Result<Arc<Vec<u8>>, Fault> {
        let Shard { path, compression, length, .. } = &self.shards[shard];
        self.cache.get(shard as u64, *length, || {
            let mut bytes = Vec::new();
            let reserved = bytes.try_reserve_exact(*length as usize);
            reserved.map_err(|_| Fault::TooLarge(format!("unpacks to {length} bytes")))?;
            let reader = compression.unpack(self.file(shard)?)?;
            let read = reader.take(*length).read_to_end(&mut bytes);
            match read {
                Ok(read) if read as u64 == *length => {
                    if !self.is_as_indexed(shard, &bytes) {
                        return Err(Fault::corrupt(
                            self.format,
                            format!(
                                "is not what its index says: remove {} and open it again",
                                index::place(&*self.store, path).display()
                            ),
                        ));
                    }
                    Ok((bytes, *length))
                }
                Ok(_) => Err(changed()),
                Err(error) if error.raw_os_error().is_some() => Err(Fault::Io(error)),
                Err(_) => Err(changed()),
            }
        })
    }
}

thread_local! {
    /// Bytes that are read before they are decoded, without an allocation for each sample.
    static SCRATCH: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// More is not kept for the next sample.
const LARGEST_SCRATCH: usize = 16 << 20;

/// What every sample has and is known already needs no places.
fn settle(column: &mut SpanColumn) {
    if column.values.len() > 0 && !column.places.contains(&ABSENT) {
        column.places = Vec::new();
    }
    column.places.shrink_to_fit();
    column.extra.shrink_to_fit();
}

/// The classes of all parts, with the numbers of the parts' labels changed to theirs.
fn unite_classes(parts: &mut [ShardPart]) -> Vec<String> {
    let Some(first) = parts.first().map(|part| part.classes.clone()) else { return Vec::new() };
    if parts.iter().all(|part| part.classes == first) {
        return first;
    }
    let mut all: Vec<String> = parts.iter().flat_map(|part| part.classes.clone()).collect();
    all.sort_unstable();
    all.dedup();
    for part in parts {
        let classes = &part.classes;
        for column in part.columns.iter_mut().filter(|column| column.field == "label") {
            let Values::Int(values) = &mut column.values else { continue };
            for value in values {
                let name = usize::try_from(*value).ok().and_then(|number| classes.get(number));
                if let Some(Ok(number)) = name.map(|name| all.binary_search(name)) {
                    *value = number as i64;
                }
            }
        }
    }
    all
}

/// What was found in a file, the file's stamp, and whether an index said it.
type Found = Result<(Scanned, u64, bool)>;

/// Opens every file, on all cores; the results are in the files' order.
fn open_all(
    scanner: &Scanner<'_>,
    files: &[PathBuf],
    with: &Opening<'_>,
    held: &Held<'_>,
) -> Vec<Found> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = files.get(at) else { return done };
            let result = open_one(scanner, path, with, held);
            // The others need not go on if one cannot be read.
            if result.is_err() {
                next.store(files.len(), Ordering::Relaxed);
            }
            done.push((at, result));
        }
    };
    let mut results = std::thread::scope(|scope| {
        let others: Vec<_> = (1..cores.min(files.len())).map(|_| scope.spawn(work)).collect();
        let mut results = work();
        for other in others {
            results.extend(other.join().unwrap_or_else(|_| {
                let problem = "cannot be scanned: internal error, please report it".to_owned();
                vec![(0, Err(Error::Source { what: scanner.format.to_owned(), problem }))]
            }));
        }
        results
    });
    // The first failure comes first, so that nothing is missing before it.
    results.sort_by_key(|(at, result)| (result.is_ok(), *at));
    results.into_iter().map(|(_, result)| result).collect()
}

fn open_one(scanner: &Scanner<'_>, path: &Path, with: &Opening<'_>, held: &Held<'_>) -> Found {
    let failed = |source| Error::Io { what: "cannot open", path: path.to_owned(), source };
    let file = with.store.open(path).map_err(failed)?;
    let identity = || Identity::of(&*file, scanner.format, scanner.version).map_err(failed);
    let before = identity()?;
    let stamp = file.stamp();
    let mut start = [0; 64];
    let read = file.read_at(&mut start, 0).map_err(failed)?;
    let compression = (scanner.compression)(&start[..read]);
    let fits = |scanned: &Scanned| {
        let samples = scanned.part.names.len() as usize;
        let packed = compression != Compression::None;
        scanned.compression == compression
            && (packed || scanned.length == before.size())
            && scanned.part.columns.iter().all(|column| column.fits(samples, scanned.length))
    };
    if before.size() >= SMALLEST_INDEXED
        && let Some(mut scanned) =
            index::load(&**with.store, path, &before, with.memory).filter(fits)
        && (scanner.admit)(path, &mut scanned.part, with).is_some()
        && match compression {
            Compression::None => is_of(&*file, path, &scanned.part, scanner),
            _ => scanned.length <= with.block_memory,
        }
    {
        held.add(scanned.part.held())?;
        return Ok((scanned, stamp, true));
    }
    let mut input = match compression {
        Compression::None => Input::plain(path, &*file, before.size(), with.memory),
        _ => Input::stream(
            path,
            compression.unpack(file.clone()).map_err(failed)?,
            with.block_memory,
        ),
    }
    .counted(held);
    let part = (scanner.scan)(&mut input, with)?;
    let length = input.length()?;
    // What is known by now is counted as it is.
    input.hold(0)?;
    held.add(part.held())?;
    let scanned = Scanned { part, compression, length };
    if !fits(&scanned) {
        return Err(input.problem("declares parts that lie outside of it: it is damaged"));
    }
    // Not for what was written to meanwhile.
    if before.size() >= SMALLEST_INDEXED && identity()? == before {
        index::save(&**with.store, path, &before, &scanned);
    }
    Ok((scanned, stamp, false))
}

/// Whether a file holds what an index says of it, as far as some samples show. Which they are is
/// not for whoever wrote the index to know.
fn is_of(file: &dyn Object, path: &Path, part: &ShardPart, scanner: &Scanner<'_>) -> bool {
    use std::hash::BuildHasher;
    let samples = part.names.len();
    let peek = |at: u64, length: u64| {
        let mut bytes = buffer::zeroed(length.min(LONGEST_PEEK)).ok()?;
        file.read_exact_at(&mut bytes, at).ok()?;
        (bytes.len() as u64 == length).then_some(bytes)
    };
    let draws = std::hash::RandomState::new();
    let drawn = (0..COMPARED).map(|number| draws.hash_one(number) % samples.max(1));
    let ends = [0, samples.saturating_sub(1)];
    // Of a small file all are compared.
    let some: Vec<u64> = match samples <= COMPARED {
        true => (0..samples).collect(),
        false => ends.into_iter().chain(drawn).collect(),
    };
    part.columns.iter().all(|column| {
        let claim = |at: &u64| Claim { path, part, column, at: *at as usize };
        some.iter().all(|at| (scanner.check)(&peek, &claim(at)).is_some())
    })
}

/// Whether the places of a column follow each other, as they do where samples are found one after
/// the other: then no sample has the place of another.
pub(in crate::source) fn is_in_order(places: &[ByteSpan]) -> bool {
    let mut end = 0;
    places.iter().filter(|place| **place != ABSENT && place[1] > 0).all(|[start, length]| {
        let follows = *start >= end;
        end = start.saturating_add(*length);
        follows
    })
}

impl Source for Spans {
    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn value(&self, index: u64, field: usize) -> Result<Value<'_>, Fault> {
        let (shard, at) = self.place(index);
        let column = self.column(shard, at, field)?;
        let Shard { indexed, compared, .. } = &self.shards[shard];
        // A number that only an index said so far.
        if column.values.len() > 0 && indexed.is_some() && !compared.load(Ordering::Acquire) {
            self.unpack(shard)?;
        }
        match &column.values {
            Values::Int(values) => return Ok(Value::Int(values[at])),
            Values::Float(values) => return Ok(Value::Float(values[at])),
            Values::None => {}
        }
        let shard = &self.shards[shard];
        // The shape has to be given with the bytes.
        let shaped = matches!(self.fields[field].kind, FieldKind::Ragged { axes, .. } if axes != 1);
        let extra = column.extra.get(at).copied().unwrap_or(0);
        match column.encoding.skip_of(extra) {
            Some(skip) if !shaped && shard.compression == Compression::None => {
                let [start, length] = column.places[at];
                let skip = skip.min(length);
                let range = Some((start + skip, length - skip));
                let (path, stamp) = (&shard.path, Some(shard.stamp));
                Ok(Value::File(Location { root: Path::new(""), path, range, stamp }))
            }
            _ => Ok(Value::Made),
        }
    }

    fn read(&self, index: u64, field: usize, room: &mut dyn Room) -> Result<(), Fault> {
        let (number, at) = self.place(index);
        let column = self.column(number, at, field)?;
        let extra = column.extra.get(at).copied().unwrap_or(0);
        let place = column.places.get(at).copied().unwrap_or([0, 0]);
        let mut decode = |bytes| column.encoding.decode(&column.content, bytes, extra, room);
        if self.shards[number].compression != Compression::None {
            let block = self.unpack(number)?;
            let [start, length] = place.map(|number| number as usize);
            // Inside the block: it was compared when the set was opened.
            return decode(block.get(start..start + length).unwrap_or_default());
        }
        // What a file declares may be a hole in it.
        if place[1] > self.cache.limit() {
            return Err(Fault::TooLarge(format!(
                "has {} bytes, more than memory allows",
                place[1]
            )));
        }
        let file = self.file(number)?;
        let mut bytes = SCRATCH.take();
        bytes.clear();
        buffer::extend_zeroed(&mut bytes, place[1])?;
        let outcome = match file.read_exact_at(&mut bytes, place[0]) {
            Ok(()) => decode(&bytes),
            Err(error) => Err(Fault::Io(error)),
        };
        if bytes.capacity() <= LARGEST_SCRATCH {
            SCRATCH.set(bytes);
        }
        outcome
    }

    fn needs(&self, index: u64, field: usize, each: &mut Needs<'_>) {
        let (number, at) = self.place(index);
        let Shard { path, stamp, compression, columns, .. } = &self.shards[number];
        let Some(column) = columns[field].as_ref().filter(|column| column.has(at)) else { return };
        let range = match (compression, column.places.get(at)) {
            // The block of all samples.
            (Compression::Gzip | Compression::Zlib | Compression::Zstd, _) => None,
            (Compression::None, Some([start, length])) => Some((*start, *length)),
            (Compression::None, None) => return,
        };
        each(&Location { root: Path::new(""), path, range, stamp: Some(*stamp) });
    }

    fn blocks(&self) -> Option<&Blocks> {
        self.blocks.as_ref()
    }

    fn origin(&self, index: u64) -> Option<PathBuf> {
        let (shard, at) = self.place(index);
        let Shard { path, names, .. } = &self.shards[shard];
        // Below the shard, even if an archive calls it /x.
        let name = names.get(at as u64);
        Some(path.join(name.strip_prefix("/").unwrap_or(name)))
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn fingerprint(&self) -> u64 {
        *self.fingerprint.get_or_init(|| {
            let mut hash = described(&[], &[], &self.fields, &self.classes);
            for shard in &self.shards {
                hash = shard.names.fingerprint(hash);
                for column in shard.columns.iter().flatten() {
                    hash = match &column.values {
                        Values::Int(values) => xxh3(bytemuck::cast_slice(values), hash),
                        Values::Float(values) => xxh3(bytemuck::cast_slice(values), hash),
                        Values::None => {
                            let lengths: Vec<u64> =
                                column.places.iter().map(|place| place[1]).collect();
                            xxh3(bytemuck::cast_slice(&lengths), hash)
                        }
                    };
                }
            }
            hash
        })
    }

    fn name(&self) -> String {
        self.what.clone()
    }

    fn held(&self) -> u64 {
        let shard = |shard: &Shard| {
            let columns = shard.columns.iter().flatten().map(SpanColumn::held);
            shard.names.held() + columns.sum::<u64>()
        };
        self.shards.iter().map(shard).sum()
    }
}
