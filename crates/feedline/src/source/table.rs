//! Columns of many files as one source: what Parquet and Arrow have in common.
//!
//! A column is kept in one of three ways. Small ones (labels) are decoded when the table is
//! opened. Of those whose values lie plainly in the files, only the places are known. All others
//! are decoded block by block as they are asked for.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_schema::SchemaRef;

use super::choice::{Chosen, choose};
use super::columns::{Sort, append_rows, write_row};
use super::{BlockCache, Blocks, Opening, Source};
use crate::catalog;
use crate::error::{Error, Fault, Result};
use crate::sample::{DType, Field, FieldKind, Location, Room, Value};
use crate::spec::FieldChoice;

/// Columns that take less than this in all are decoded at once and kept.
const HELD: u64 = 64 << 20;
/// So many rows tell whether bytes are images.
const LOOK: u64 = 4;
/// The length that stands for a value that is not there.
pub(super) const MISSING: u32 = u32::MAX;

/// Where the values of one column lie in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Places {
    /// Each value by itself; [`MISSING`] is the length of what is not there.
    Each {
        /// Where it begins.
        begins: Vec<u64>,
        /// Its bytes.
        lengths: Vec<u32>,
    },
    /// Values of one width, in runs.
    Runs {
        /// Where a run ends, in rows, and where it begins, in bytes.
        runs: Vec<(u64, u64)>,
        /// Bytes of a value.
        width: u64,
    },
}

impl Places {
    /// The place of `row`, if it has a value.
    fn get(&self, row: u64) -> Option<(u64, u64)> {
        match self {
            Places::Each { begins, lengths } => {
                let length = *lengths.get(row as usize)?;
                (length != MISSING).then_some((*begins.get(row as usize)?, u64::from(length)))
            }
            Places::Runs { runs, width } => {
                let at = runs.partition_point(|(end, _)| *end <= row);
                let before = if at == 0 { 0 } else { runs[at - 1].0 };
                let (_, begin) = runs.get(at)?;
                Some((begin + (row - before) * width, *width))
            }
        }
    }
}

/// Rows that are decoded together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    /// The file's number.
    pub file: usize,
    /// The row group or record batch in it.
    pub group: usize,
    /// The first row, counted in the group.
    pub first: u64,
    /// How many rows.
    pub rows: u64,
    /// What they take in memory.
    pub bytes: u64,
}

/// Files of a format that holds columns. Columns are numbered as in each file's schema.
pub(super) trait Files: Send + Sync {
    /// Path, rows and schema of each file.
    fn list(&self) -> Vec<(&Path, u64, SchemaRef)>;

    /// The stamp of a file when it was opened.
    fn stamp(&self, file: usize) -> u64;

    /// Bytes that a column takes when it is decoded, or `None` if that cannot be said.
    fn size(&self, file: usize, column: usize) -> Option<u64>;

    /// Where a column's values lie, if they lie plainly in the file.
    fn places(&self, file: usize, column: usize, sort: &Sort) -> Result<Option<Arc<Places>>>;

    /// How the rows of a file are decoded if these columns are wanted, in units of about `limit`
    /// bytes at most.
    fn units(&self, file: usize, columns: &[usize], limit: u64) -> Result<Vec<Unit>>;

    /// Decodes these columns of a unit.
    fn decode(&self, unit: &Unit, columns: &[usize]) -> Result<Vec<ArrayRef>, Fault>;
}

/// A column that was decoded when the table was opened.
struct Kept {
    bytes: Vec<u8>,
    /// Where each value ends, if they are of several lengths.
    ends: Option<Vec<u64>>,
    /// Bytes of a value otherwise.
    width: usize,
    /// Rows without a value, rising.
    missing: Vec<u64>,
}

impl Kept {
    fn get(&self, row: u64) -> Option<&[u8]> {
        if self.missing.binary_search(&row).is_ok() {
            return None;
        }
        let row = row as usize;
        match &self.ends {
            Some(ends) => {
                let begin = if row == 0 { 0 } else { *ends.get(row - 1)? };
                self.bytes.get(begin as usize..*ends.get(row)? as usize)
            }
            None => self.bytes.get(row * self.width..(row + 1) * self.width),
        }
    }
}

enum Stored {
    Kept(Kept),
    /// For each file the places, or `None` where blocks have to be decoded.
    Placed(Vec<Option<Arc<Places>>>),
}

struct Column {
    sort: Sort,
    /// Its name in the files.
    name: String,
    /// Its number in each file.
    numbers: Vec<usize>,
    stored: Stored,
    /// Its number among those that are decoded in blocks.
    in_block: Option<usize>,
}

/// Rows of many files.
pub(super) struct Table {
    files: Box<dyn Files>,
    what: String,
    paths: Vec<PathBuf>,
    /// Where each file ends, in rows.
    ends: Vec<u64>,
    fields: Vec<Field>,
    columns: Vec<Column>,
    classes: Vec<String>,
    units: Vec<Unit>,
    blocks: Option<Blocks>,
    cache: BlockCache<Vec<ArrayRef>>,
}

/// A [`Room`] in memory.
pub(super) struct Memory(pub Vec<u8>);

impl Room for Memory {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        let begin = self.0.len();
        let end = begin + bytes as usize;
        self.0.resize(end, 0);
        Ok(&mut self.0[begin..])
    }
}

impl Table {
    /// The chosen columns of these files.
    pub(super) fn open(
        files: Box<dyn Files>,
        what: &Path,
        fields: &[FieldChoice],
        with: &Opening<'_>,
    ) -> Result<Table> {
        let mut table = Table {
            what: what.display().to_string(),
            paths: Vec::new(),
            ends: Vec::new(),
            fields: Vec::new(),
            columns: Vec::new(),
            classes: Vec::new(),
            units: Vec::new(),
            blocks: None,
            cache: BlockCache::new(with.block_memory),
            files,
        };
        let mut schemas = Vec::new();
        for (path, rows, schema) in table.files.list() {
            table.paths.push(path.to_owned());
            table.ends.push(table.ends.last().unwrap_or(&0) + rows);
            schemas.push(schema);
        }
        let chosen = choose(&table.what, &table.paths, &schemas, fields)?;
        if table.ends.last().is_none_or(|rows| *rows == 0) {
            return Err(table.problem("has no rows"));
        }
        table.decide(&chosen, with)?;
        table.classes = chosen.iter().find_map(|each| each.classes.clone()).unwrap_or_default();
        table.fields = chosen.iter().map(|each| each.field()).collect();
        table.find_images(&chosen, with)?;
        super::choice::usual_names(&mut table.fields, &chosen);
        Ok(table)
    }

    fn problem(&self, problem: impl Into<String>) -> Error {
        Error::Source { what: self.what.clone(), problem: problem.into() }
    }

    /// Decides how each column is kept, and does what is to be done at once.
    fn decide(&mut self, chosen: &[Chosen], with: &Opening<'_>) -> Result<()> {
        let files = self.paths.len();
        let size = |column: &Chosen| {
            (0..files).try_fold(0_u64, |sum, file| {
                sum.checked_add(self.files.size(file, column.numbers[file])?)
            })
        };
        let small = |column: &Chosen, left: u64| size(column).filter(|size| *size <= left);
        let mut left = HELD;
        let mut stored: Vec<Option<Stored>> = Vec::new();
        let mut keep: Vec<usize> = Vec::new();
        for (at, column) in chosen.iter().enumerate() {
            if let Some(size) = small(column, left).filter(|_| column.is_scalar()) {
                left -= size;
                keep.push(at);
                stored.push(None);
                continue;
            }
            let places = (0..files)
                .map(|file| self.files.places(file, column.numbers[file], &column.sort))
                .collect::<Result<Vec<_>>>()?;
            stored.push(Some(Stored::Placed(places)));
        }
        let in_blocks = |stored: &Option<Stored>| match stored {
            Some(Stored::Placed(places)) => places.iter().any(Option::is_none),
            _ => false,
        };
        // Short texts are kept if all else lies plainly in the files: then nothing is in blocks.
        let texts: Vec<usize> = (0..chosen.len()).filter(|at| in_blocks(&stored[*at])).collect();
        let all = texts.iter().try_fold(left, |left, at| {
            let size = small(&chosen[*at], left).filter(|_| chosen[*at].is_short())?;
            Some(left - size)
        });
        if all.is_some() {
            keep.extend(&texts);
            texts.iter().for_each(|at| stored[*at] = None);
        }
        let mut kept = self.keep(chosen, &keep)?;
        for (at, _) in keep.iter().zip(&kept).filter(|(_, kept)| kept.is_none()) {
            stored[*at] = Some(Stored::Placed(vec![None; files]));
        }
        let mut number = 0;
        for (at, (column, stored)) in chosen.iter().zip(stored).enumerate() {
            let in_block = in_blocks(&stored).then(|| {
                number += 1;
                number - 1
            });
            let stored = match (stored, keep.iter().position(|each| *each == at)) {
                (Some(stored), _) => stored,
                (None, at) => {
                    let kept = at.and_then(|at| kept[at].take());
                    Stored::Kept(kept.ok_or_else(|| self.problem("a column was forgotten"))?)
                }
            };
            self.columns.push(Column {
                sort: column.sort.clone(),
                name: column.column.clone(),
                numbers: column.numbers.clone(),
                stored,
                in_block,
            });
        }
        if number > 0 {
            self.divide(with)?;
        }
        Ok(())
    }

    /// Divides the rows into blocks.
    fn divide(&mut self, with: &Opening<'_>) -> Result<()> {
        let limit = (with.block_memory / 4).max(1 << 20);
        let mut ends = Vec::new();
        let mut row = 0;
        for file in 0..self.paths.len() {
            let units = self.files.units(file, &self.block_columns(file), limit)?;
            for unit in units.iter().filter(|unit| unit.rows > 0) {
                if unit.bytes > with.block_memory.max(256 << 20) {
                    return Err(Error::Source {
                        what: self.paths[file].display().to_string(),
                        problem: format!(
                            "has blocks of {} MB, more than the {} MB that blocks may take: write it with smaller row groups or batches, or give more memory",
                            unit.bytes >> 20,
                            with.block_memory >> 20
                        ),
                    });
                }
                row += unit.rows;
                ends.push(row);
                self.units.push(*unit);
            }
        }
        if self.ends.last() != Some(&row) {
            return Err(self.problem("has other rows in its blocks than in all"));
        }
        let bytes = self.units.iter().map(|unit| unit.bytes).max().unwrap_or(0);
        self.blocks = Some(Blocks { ends, bytes });
        Ok(())
    }

    fn block_columns(&self, file: usize) -> Vec<usize> {
        let in_block = self.columns.iter().filter(|column| column.in_block.is_some());
        in_block.map(|column| column.numbers[file]).collect()
    }

    /// Decodes small columns as a whole; those that turn out to be large are `None`.
    fn keep(&self, chosen: &[Chosen], keep: &[usize]) -> Result<Vec<Option<Kept>>> {
        let mut all: Vec<Option<Kept>> = Vec::new();
        for at in keep {
            let width = match chosen[*at].sort.kind() {
                FieldKind::Array { dtype, shape } => {
                    Some(shape.iter().fold(dtype.size(), |size, axis| size.saturating_mul(*axis)))
                }
                _ => None,
            };
            let ends = width.is_none().then(Vec::new);
            let width = width.unwrap_or(0);
            all.push(Some(Kept { bytes: Vec::new(), ends, width, missing: Vec::new() }));
        }
        let mut row = 0;
        for file in 0..if keep.is_empty() { 0 } else { self.paths.len() } {
            let columns: Vec<usize> = keep.iter().map(|at| chosen[*at].numbers[file]).collect();
            let bad = |fault: Fault| Error::Source {
                what: self.paths[file].display().to_string(),
                problem: fault.to_string(),
            };
            for unit in self.files.units(file, &columns, HELD / 4)? {
                let arrays = self.files.decode(&unit, &columns).map_err(bad)?;
                for ((array, kept), at) in arrays.iter().zip(&mut all).zip(keep) {
                    let Some(Kept { bytes, ends, width, missing }) = kept else { continue };
                    let sort = &chosen[*at].sort;
                    append_rows(&**array, sort, *width, bytes, ends.as_mut(), &mut |at| {
                        missing.push(row + at)
                    })
                    .map_err(bad)?;
                    if bytes.len() as u64 > 2 * HELD {
                        *kept = None;
                    }
                }
                row += unit.rows;
            }
        }
        Ok(all)
    }

    /// Which columns of bytes are images, where nothing is said.
    fn find_images(&mut self, chosen: &[Chosen], with: &Opening<'_>) -> Result<()> {
        for (at, column) in chosen.iter().enumerate() {
            if column.sort != Sort::Binary || column.role.is_some() || column.is_image {
                continue;
            }
            let is_image = (0..self.len().min(LOOK)).any(|row| {
                // What cannot be read is told when it is asked for.
                self.first_bytes(row, at).is_ok_and(|bytes| (with.is_image)(&bytes))
            });
            if is_image {
                self.fields[at].kind = FieldKind::EncodedImage;
            }
        }
        Ok(())
    }

    fn first_bytes(&self, row: u64, field: usize) -> Result<Vec<u8>, Fault> {
        match self.value(row, field)? {
            Value::File(place) => {
                let (begin, length) = place.range.unwrap_or_default();
                let mut bytes = vec![0; length.min(64) as usize];
                catalog::open(place.path)?.read_exact_at(&mut bytes, begin)?;
                Ok(bytes)
            }
            Value::Bytes(bytes) => Ok(bytes.to_owned()),
            Value::Made => {
                let mut room = Memory(Vec::new());
                self.read(row, field, &mut room)?;
                Ok(room.0)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The file that holds a row, and the row in it.
    fn find(&self, index: u64) -> (usize, u64) {
        let file = self.ends.partition_point(|end| *end <= index);
        (file, index - if file == 0 { 0 } else { self.ends[file - 1] })
    }

    /// Adds to a fault what it concerns.
    fn about(&self, index: u64, field: usize, fault: Fault) -> Fault {
        let (file, row) = self.find(index);
        let file = self.paths.get(file).map(|path| path.display().to_string()).unwrap_or_default();
        let place = format!("column {:?}, row {row} of {file}", self.columns[field].name);
        match fault {
            Fault::Unsupported(text) => Fault::Unsupported(format!("{place}: {text}")),
            Fault::Shape(text) => Fault::Shape(format!("{place}: {text}")),
            Fault::Corrupt { format, reason, offset } => {
                Fault::Corrupt { format, reason: format!("{place}: {reason}"), offset }
            }
            other => other,
        }
    }

    fn missing(&self, index: u64, field: usize) -> Fault {
        self.about(index, field, Fault::Unsupported("has no value here (null)".to_owned()))
    }
}

impl Source for Table {
    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn value(&self, index: u64, field: usize) -> Result<Value<'_>, Fault> {
        let column = &self.columns[field];
        match &column.stored {
            Stored::Kept(kept) => {
                let bytes = kept.get(index).ok_or_else(|| self.missing(index, field))?;
                Ok(match (&self.fields[field].kind, bytes) {
                    (FieldKind::Array { dtype: DType::I64, shape }, &[a, b, c, d, e, f, g, h])
                        if shape.is_empty() =>
                    {
                        Value::Int(i64::from_ne_bytes([a, b, c, d, e, f, g, h]))
                    }
                    (FieldKind::Array { dtype: DType::F32, shape }, &[a, b, c, d])
                        if shape.is_empty() =>
                    {
                        Value::Float(f32::from_ne_bytes([a, b, c, d]))
                    }
                    _ => Value::Bytes(bytes),
                })
            }
            Stored::Placed(parts) => {
                let (file, row) = self.find(index);
                let Some(Some(places)) = parts.get(file) else { return Ok(Value::Made) };
                let (begin, length) = places.get(row).ok_or_else(|| self.missing(index, field))?;
                Ok(Value::File(Location {
                    root: Path::new(""),
                    path: &self.paths[file],
                    range: Some((begin, length)),
                    stamp: Some(self.files.stamp(file)),
                }))
            }
        }
    }

    fn read(&self, index: u64, field: usize, room: &mut dyn Room) -> Result<(), Fault> {
        let column = &self.columns[field];
        let (Some(blocks), Some(at)) = (&self.blocks, column.in_block) else {
            return Err(Fault::Unsupported("is not made".to_owned()));
        };
        let number = blocks.ends.partition_point(|end| *end <= index);
        let unit = self.units.get(number).ok_or_else(|| self.missing(index, field))?;
        let before = if number == 0 { 0 } else { blocks.ends[number - 1] };
        let arrays = self
            .cache
            .get(number as u64, || {
                let arrays = self.files.decode(unit, &self.block_columns(unit.file))?;
                let bytes = arrays.iter().map(|array| array.get_array_memory_size() as u64).sum();
                Ok((arrays, bytes))
            })
            .map_err(|fault| self.about(index, field, fault))?;
        let array = arrays.get(at).ok_or_else(|| self.missing(index, field))?;
        write_row(&**array, (index - before) as usize, &column.sort, room)
            .map_err(|fault| self.about(index, field, fault))
    }

    fn blocks(&self) -> Option<&Blocks> {
        self.blocks.as_ref()
    }

    fn origin(&self, index: u64) -> Option<PathBuf> {
        let (file, row) = self.find(index);
        Some(PathBuf::from(format!("{}#{row}", self.paths.get(file)?.display())))
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn fingerprint(&self) -> u64 {
        let names: Vec<_> = self.paths.iter().map(|path| path.file_name()).collect();
        let text = format!("{names:?} {:?} {:?} {:?}", self.ends, self.fields, self.classes);
        let start = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
        self.columns.iter().fold(start, |hash, column| match &column.stored {
            Stored::Kept(kept) => xxhash_rust::xxh3::xxh3_64_with_seed(&kept.bytes, hash),
            Stored::Placed(_) => hash,
        })
    }

    fn name(&self) -> String {
        self.what.clone()
    }
}
