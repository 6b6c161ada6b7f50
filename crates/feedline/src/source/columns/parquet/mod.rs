//! Parquet files: columns to fields, row groups to blocks.
//!
//! Bytes and text that lie uncompressed in their pages are read from there, without the library:
//! the pages are walked over once and the places of all values noted. Everything else is decoded
//! by the `parquet` crate, after every page header was compared with the file.

mod careful;
mod pages;
mod places;
mod thrift;

use std::collections::{BTreeSet, HashMap};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, RowSelection, RowSelector,
};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::{Compression, Type};
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
    ParquetStatisticsPolicy,
};
use parquet::file::reader::{ChunkReader, Length};

use super::values::Sort;
use super::{Files, Places, Table, Unit, take_places};
use crate::buffer;
use crate::error::{Fault, Result};
use crate::sample::FieldKind;
use crate::source::{Opening, problem};
use crate::spec::FieldChoice;
use crate::spec::read::show_bytes;
use crate::store::{Handle, Object, Reader, Store};

/// No footer of a sound file is larger.
const LARGEST_FOOTER: u64 = 512 << 20;
/// Rows that are decoded at once where little may become much.
const CAREFUL: u64 = 32 << 20;
/// What the levels of a value and its bit of validity take while it is decoded.
const LEVELS: u64 = 4;
/// What footers may take, however little memory is given.
const LEAST_ROOM: u64 = 32 << 20;
/// So many pages are known.
const MOST_PAGES: usize = 1 << 18;

/// Opens Parquet files.
pub(in crate::source) fn open(
    what: &Path,
    fields: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<Table> {
    let paths = crate::source::shards::expand(what, &[".parquet", ".pq"], &**with.store)?;
    let mut room = with.memory.max(LEAST_ROOM);
    let mut files = Vec::new();
    for path in paths {
        let file = ParquetFile::open(&**with.store, &path, &mut room)
            .map_err(|fault| problem(&path, fault))?;
        files.push(file);
    }
    Table::open(
        Box::new(Parquet { store: with.store.clone(), files, checked: Mutex::default() }),
        what,
        fields,
        with,
    )
}

/// Runs what may panic on damaged data.
pub(in crate::source) fn guard<T>(
    format: &'static str,
    work: impl FnOnce() -> Result<T, Fault>,
) -> Result<T, Fault> {
    crate::guard::guarded(work)
        .unwrap_or_else(|_| Err(Fault::corrupt(format, "is damaged: its decoder gave up")))
}

/// Errors of our own page reader come back as the library's text of them, within others.
fn failed(error: parquet::errors::ParquetError) -> Fault {
    if error.to_string().contains(careful::GROWN) {
        return Fault::TooLarge(careful::GROWN.to_owned());
    }
    Fault::corrupt("parquet", error.to_string())
}

fn arrow_failed(error: ArrowError) -> Fault {
    if error.to_string().contains(careful::GROWN) {
        return Fault::TooLarge(careful::GROWN.to_owned());
    }
    Fault::corrupt("parquet", error.to_string())
}

/// Reads at places, so that many threads may share a file.
struct Chunks {
    file: Handle,
    length: u64,
    /// The system's number of a read that it refused: the library makes a text of it.
    refused: Arc<AtomicI32>,
}

/// Reads on from a place.
struct From {
    reader: Reader,
    refused: Arc<AtomicI32>,
}

impl std::io::Read for From {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.reader.read(out).inspect_err(|error| note(error, &self.refused))
    }
}

fn note(error: &std::io::Error, refused: &AtomicI32) {
    if let Some(number) = error.raw_os_error() {
        refused.store(number, Relaxed);
    }
}

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Chunks {
    type T = BufReader<From>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::with_capacity(
            1 << 10,
            From { reader: Reader::from(self.file.clone(), start), refused: self.refused.clone() },
        ))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<bytes::Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return Err(parquet::errors::ParquetError::EOF(
                "beyond the end of the file".to_owned(),
            ));
        }
        let refused = |fault: Fault| parquet::errors::ParquetError::General(fault.to_string());
        let mut bytes = buffer::zeroed(length as u64).map_err(refused)?;
        let read = self.file.read_exact_at(&mut bytes, start);
        read.inspect_err(|error| note(error, &self.refused))?;
        Ok(bytes.into())
    }
}

struct ParquetFile {
    path: PathBuf,
    length: u64,
    stamp: u64,
    rows: u64,
    metadata: ArrowReaderMetadata,
    /// The schema as the file has it; decoding makes views of text and bytes.
    schema: SchemaRef,
}

impl ParquetFile {
    /// Reads the footer, if it takes no more than `room` bytes, of which it takes its part.
    fn open(store: &dyn Store, path: &Path, room: &mut u64) -> Result<ParquetFile, Fault> {
        let file = store.open(path)?;
        let (length, stamp) = (file.len(), file.stamp());
        let footer = read_footer(&*file, length, room)?;
        let (metadata, schema) = guard("parquet", || {
            let options = ParquetMetaDataOptions::new()
                .with_column_stats_policy(ParquetStatisticsPolicy::SkipAll)
                .with_size_stats_policy(ParquetStatisticsPolicy::SkipAll);
            let metadata =
                ParquetMetaDataReader::decode_metadata_with_options(&footer, Some(&options))
                    .map_err(failed)?;
            understand(Arc::new(metadata))
        })?;
        let rows = check_groups(metadata.metadata(), length)?;
        Ok(ParquetFile { path: path.to_owned(), length, stamp, rows, metadata, schema })
    }

    fn groups(&self) -> &ParquetMetaData {
        self.metadata.metadata()
    }

    /// The leaves under a column; of an image's struct, only its bytes.
    fn leaves(&self, column: usize) -> Vec<usize> {
        let schema = self.groups().file_metadata().schema_descr();
        let of_image = matches!(self.schema.field(column).data_type(), DataType::Struct(_));
        let wanted = |leaf: &usize| {
            schema.get_column_root_idx(*leaf) == column
                && (!of_image || schema.column(*leaf).name() == "bytes")
        };
        (0..schema.num_columns()).filter(wanted).collect()
    }

    fn chunks(&self, leaf: usize) -> impl Iterator<Item = &ColumnChunkMetaData> {
        self.groups().row_groups().iter().map(move |group| group.column(leaf))
    }
}

fn read_footer(file: &dyn Object, length: u64, room: &mut u64) -> Result<Vec<u8>, Fault> {
    let corrupt = |reason: &str| Fault::corrupt("parquet", reason);
    if length < 12 {
        return Err(corrupt("is too short for a Parquet file"));
    }
    let mut tail = [0; 8];
    file.read_exact_at(&mut tail, length - 8)?;
    match &tail[4..] {
        b"PAR1" => {}
        b"PARE" => return Err(Fault::Unsupported("is encrypted: decrypt it first".to_owned())),
        _ => {
            return Err(corrupt(
                "does not end as a Parquet file does: it was cut short, or is something else",
            ));
        }
    }
    let footer = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    if footer > (length - 12).min(LARGEST_FOOTER) {
        return Err(corrupt("has a footer that is longer than the file"));
    }
    let mut bytes = buffer::zeroed(footer)?;
    file.read_exact_at(&mut bytes, length - 8 - footer)?;
    let memory = thrift::footer_memory(&bytes).ok_or_else(|| corrupt("has a damaged footer"))?;
    *room = room.checked_sub(memory).ok_or_else(|| {
        Fault::TooLarge(format!(
            "has a footer that takes {}, of which {} are left: give more memory",
            show_bytes(memory),
            show_bytes(*room)
        ))
    })?;
    Ok(bytes)
}

/// The schema as it is, and as it is decoded: text and bytes become views, which never copy a
/// value out of a dictionary for each of its rows.
fn understand(metadata: Arc<ParquetMetaData>) -> Result<(ArrowReaderMetadata, SchemaRef), Fault> {
    let options = ArrowReaderOptions::new;
    let plain = ArrowReaderMetadata::try_new(metadata.clone(), options()).or_else(|_| {
        // The schema that Arrow embeds may be damaged, or newer than this library.
        ArrowReaderMetadata::try_new(metadata.clone(), options().with_skip_arrow_metadata(true))
    });
    let schema = plain.map_err(failed)?.schema().clone();
    let fields = schema.fields().iter().map(|field| viewed(field)).collect::<Vec<_>>();
    let views = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
    let viewed = ArrowReaderMetadata::try_new(metadata, options().with_schema(views));
    Ok((viewed.map_err(failed)?, schema))
}

fn viewed(field: &Field) -> Field {
    let data_type = match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Dictionary(_, values) => match &**values {
            DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
            DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
            other => other.clone(),
        },
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(|field| viewed(field)).collect())
        }
        other => other.clone(),
    };
    field.clone().with_data_type(data_type)
}

/// Compares what the row groups say with the file and each other; gives the rows of all.
fn check_groups(metadata: &ParquetMetaData, length: u64) -> Result<u64, Fault> {
    let corrupt = |reason: &str| Fault::corrupt("parquet", reason);
    let leaves = metadata.file_metadata().schema_descr().num_columns();
    let mut rows = 0_u64;
    for group in metadata.row_groups() {
        let here = u64::try_from(group.num_rows()).map_err(|_| corrupt("has negative rows"))?;
        rows = rows.checked_add(here).ok_or_else(|| corrupt("has too many rows"))?;
        if group.num_columns() != leaves {
            return Err(corrupt("has a row group without some of the columns"));
        }
        for chunk in group.columns() {
            if chunk.file_path().is_some() {
                let problem = "keeps columns in other files, which is not supported";
                return Err(Fault::Unsupported(problem.to_owned()));
            }
            let codec = match chunk.compression() {
                Compression::BROTLI(_) => Some("brotli"),
                Compression::LZO => Some("lzo"),
                _ => None,
            };
            if let Some(codec) = codec {
                return Err(Fault::Unsupported(format!(
                    "is compressed with {codec}, which is not read: write it with zstd, snappy, lz4 or gzip"
                )));
            }
            if here == 0 && chunk.num_values() == 0 {
                continue;
            }
            let (begin, end) = pages::range(chunk, length)?;
            let values = chunk.num_values() as u64;
            // A page has 16 million values at most, and takes some bytes.
            let most = ((end - begin) / 8 + 1).saturating_mul(1 << 24);
            if values > most || (chunk.column_descr().max_rep_level() == 0 && values != here) {
                return Err(corrupt("has a column with another number of rows"));
            }
            // A row without a value, or with an empty list, has a level that says so.
            if values < here {
                return Err(corrupt("has a column with fewer values than rows"));
            }
        }
        if leaves == 0 && here > 0 {
            return Err(corrupt("has rows without columns"));
        }
    }
    Ok(rows)
}

/// Bytes that a value takes when it is decoded.
fn width(chunk: &ColumnChunkMetaData) -> u64 {
    match chunk.column_type() {
        Type::BOOLEAN => 1,
        Type::INT32 | Type::FLOAT => 4,
        Type::INT64 | Type::DOUBLE => 8,
        Type::INT96 | Type::BYTE_ARRAY => 16,
        Type::FIXED_LEN_BYTE_ARRAY => {
            u64::try_from(chunk.column_descr().type_length()).unwrap_or(16)
        }
    }
}

fn decoded(chunk: &ColumnChunkMetaData) -> u64 {
    let values = u64::try_from(chunk.num_values()).unwrap_or(u64::MAX);
    // No more than its codec can make of what is there, whatever the footer says.
    let most = pages::unpacked(chunk.compression(), chunk.compressed_size().max(0) as u64);
    let most = most.max(pages::SMALL_PAGE);
    let stored = u64::try_from(chunk.uncompressed_size()).unwrap_or(u64::MAX).min(most);
    values.saturating_mul(width(chunk)).saturating_add(match chunk.column_type() {
        Type::BYTE_ARRAY => stored,
        _ => 0,
    })
}

/// What the pages of column chunks hold, by file, row group and leaf.
#[derive(Default)]
struct Checked {
    chunks: HashMap<(usize, usize, usize), Arc<pages::Facts>>,
    /// Pages of all of them.
    pages: usize,
}

struct Parquet {
    store: Arc<dyn Store>,
    files: Vec<ParquetFile>,
    /// Column chunks whose pages were looked at.
    checked: Mutex<Checked>,
}

impl Parquet {
    /// Looks at a chunk's pages once.
    fn check(
        &self,
        opened: &dyn Object,
        key: (usize, usize, usize),
    ) -> Result<Arc<pages::Facts>, Fault> {
        let lock = || self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().chunks.get(&key) {
            return Ok(known.clone());
        }
        let file = &self.files[key.0];
        let facts =
            pages::check(opened, file.length, file.groups().row_group(key.1).column(key.2))?;
        let facts = Arc::new(facts);
        let mut checked = lock();
        // What is not kept is looked at again.
        if checked.pages > MOST_PAGES || checked.chunks.len() > MOST_PAGES {
            *checked = Checked::default();
        }
        checked.pages += facts.data.len();
        checked.chunks.insert(key, facts.clone());
        Ok(facts)
    }

    /// The leaves of columns of a unit's row group, with what their pages hold.
    fn facts(
        &self,
        opened: &dyn Object,
        unit: &Unit,
        columns: &[usize],
    ) -> Result<Vec<(usize, Arc<pages::Facts>)>, Fault> {
        let file = &self.files[unit.file];
        let leaves: BTreeSet<usize> = columns.iter().flat_map(|c| file.leaves(*c)).collect();
        let check = |leaf| Ok((leaf, self.check(opened, (unit.file, unit.group, leaf))?));
        leaves.into_iter().map(check).collect()
    }
}

impl Files for Parquet {
    fn list(&self) -> Vec<(&Path, u64, SchemaRef)> {
        self.files.iter().map(|file| (&*file.path, file.rows, file.schema.clone())).collect()
    }

    fn stamp(&self, file: usize) -> u64 {
        self.files[file].stamp
    }

    fn size(&self, file: usize, column: usize) -> Option<u64> {
        let file = &self.files[file];
        let leaves = file.leaves(column);
        let sizes = leaves.iter().flat_map(|leaf| file.chunks(*leaf)).map(decoded);
        sizes.reduce(u64::saturating_add).or(Some(0)).map(|size| size.max(file.rows))
    }

    fn places(
        &self,
        file: usize,
        columns: &[(usize, &Sort)],
        room: &mut u64,
    ) -> Result<Vec<Option<Arc<Places>>>> {
        let file = &self.files[file];
        let leaf = |(column, sort): &(usize, &Sort)| {
            let bytes =
                matches!(sort, Sort::Binary | Sort::ImageStruct | Sort::Plain(FieldKind::Text));
            let &[leaf] = &file.leaves(*column)[..] else { return None };
            (bytes && places::is_plain(file, leaf)).then_some(leaf)
        };
        let leaves: Vec<Option<usize>> = columns.iter().map(leaf).collect();
        let mut asked: Vec<usize> = leaves.iter().flatten().copied().collect();
        asked.sort_unstable();
        asked.dedup();
        for _ in &asked {
            take_places(&file.path, file.rows, room)?;
        }
        let found = places::find(&*self.store, file, &asked, *room)
            .map_err(|fault| problem(&file.path, fault))?;
        let place = |leaf: &Option<usize>| {
            let at = found.iter().position(|(each, _)| Some(*each) == *leaf);
            at.map(|at| found[at].1.clone())
        };
        Ok(leaves.iter().map(place).collect())
    }

    fn units(&self, number: usize, columns: &[usize], limit: u64, most: u64) -> Result<Vec<Unit>> {
        let file = &self.files[number];
        let leaves: BTreeSet<usize> = columns.iter().flat_map(|c| file.leaves(*c)).collect();
        let mut units = Vec::new();
        for (at, group) in file.groups().row_groups().iter().enumerate() {
            let rows = group.num_rows() as u64;
            let sizes = leaves.iter().map(|leaf| decoded(group.column(*leaf)));
            let bytes = sizes.reduce(u64::saturating_add).unwrap_or(0);
            let parts = bytes.div_ceil(limit.max(1)).clamp(1, rows.max(1));
            let each = rows.div_ceil(parts).max(1);
            let count = rows.div_ceil(each);
            let reserved = match count.saturating_add(units.len() as u64) > most {
                true => Err(Fault::TooLarge(
                    "is read in more blocks of rows than there is memory for: give more memory"
                        .to_owned(),
                )),
                false => buffer::reserve(&mut units, count),
            };
            reserved.map_err(|fault| problem(&file.path, fault))?;
            let mut first = 0;
            while first < rows {
                let rows = each.min(rows - first);
                let bytes = bytes / parts + 1;
                units.push(Unit { file: number, group: at, first, rows, bytes });
                first += rows;
            }
        }
        Ok(units)
    }

    fn need(&self, unit: &Unit, columns: &[usize]) -> Result<u64, Fault> {
        let file = &self.files[unit.file];
        let opened = self.store.reopen(&file.path, file.stamp)?;
        let group = file.groups().row_group(unit.group);
        let need = self.facts(&*opened, unit, columns)?.into_iter().map(|(leaf, facts)| {
            let chunk = group.column(leaf);
            // Where rows are lists, which pages hold them is not known before they are decoded.
            let pages = match chunk.column_descr().max_rep_level() {
                0 => facts.bytes(unit.first, unit.first + unit.rows).max(facts.largest),
                _ => facts.dictionary + facts.largest,
            };
            pages.saturating_add(unit.rows.saturating_mul(width(chunk) + LEVELS))
        });
        Ok(need.fold(0, u64::saturating_add))
    }

    fn needs(&self, unit: &Unit, columns: &[usize], each: &mut dyn FnMut(u64, u64)) {
        let file = &self.files[unit.file];
        let group = file.groups().row_group(unit.group);
        for leaf in columns.iter().flat_map(|column| file.leaves(*column)) {
            // Compared with the file's length when it was opened.
            let (begin, length) = group.column(leaf).byte_range();
            each(begin, length);
        }
    }

    fn held(&self) -> u64 {
        self.files.iter().map(|file| file.groups().memory_size() as u64).sum()
    }

    fn decode(&self, unit: &Unit, columns: &[usize], most: u64) -> Result<Vec<ArrayRef>, Fault> {
        let file = &self.files[unit.file];
        let opened = self.store.reopen(&file.path, file.stamp)?;
        let facts = self.facts(&*opened, unit, columns)?;
        let mut step = unit.rows;
        for (_, facts) in facts.iter().filter(|(_, facts)| facts.grows) {
            step = step.min((CAREFUL.min(most) / facts.largest.max(1)).max(1));
        }
        let leaves: BTreeSet<usize> = facts.into_iter().map(|(leaf, _)| leaf).collect();
        let refused = Arc::new(AtomicI32::new(0));
        let batches = guard("parquet", || {
            let refused = refused.clone();
            let chunks = Arc::new(Chunks { file: opened, length: file.length, refused });
            let (metadata, fields) = (file.groups(), file.metadata.schema().fields());
            let schema = metadata.file_metadata().schema_descr();
            let mask = ProjectionMask::leaves(schema, leaves);
            let levels =
                parquet_to_arrow_field_levels(schema, mask, Some(fields)).map_err(failed)?;
            let all = metadata.row_group(unit.group).num_rows() as u64;
            let selectors = [
                RowSelector::skip(unit.first as usize),
                RowSelector::select(unit.rows as usize),
                RowSelector::skip((all - unit.first - unit.rows) as usize),
            ];
            let some = selectors.into_iter().filter(|part| part.row_count > 0).collect::<Vec<_>>();
            let some = (unit.rows < all).then(|| RowSelection::from(some));
            let rows = unit.first..unit.first + unit.rows;
            let group = careful::Group { chunks, metadata, number: unit.group, rows, most };
            let reader = ParquetRecordBatchReader::try_new_with_row_groups(
                &levels,
                &group,
                step as usize,
                some,
            );
            let mut batches: Vec<RecordBatch> = Vec::new();
            let mut bytes = 0;
            for batch in reader.map_err(failed)? {
                let batch = batch.map_err(arrow_failed)?;
                bytes += batch.get_array_memory_size() as u64;
                // They are joined in the end, which takes as much again.
                if step < unit.rows && bytes > most / 2 {
                    return Err(Fault::TooLarge(careful::GROWN.to_owned()));
                }
                batches.push(batch);
            }
            Ok(batches)
        });
        let batches = batches.map_err(|fault| match refused.load(Relaxed) {
            0 => fault,
            number => Fault::Io(std::io::Error::from_raw_os_error(number)),
        })?;
        let sorted: BTreeSet<usize> = columns.iter().copied().collect();
        let pick = |column: &usize| {
            let at = sorted.range(..column).count();
            let arrays: Vec<ArrayRef> =
                batches.iter().map(|batch| batch.column(at).clone()).collect();
            let array = match &arrays[..] {
                [one] => one.clone(),
                many => {
                    let many: Vec<_> = many.iter().map(|array| &**array).collect();
                    arrow_select::concat::concat(&many).map_err(arrow_failed)?
                }
            };
            match array.len() as u64 == unit.rows {
                true => Ok(array),
                false => Err(Fault::corrupt("parquet", "has fewer rows than it says")),
            }
        };
        guard("parquet", || columns.iter().map(pick).collect())
    }
}
