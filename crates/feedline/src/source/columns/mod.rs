//! Columns of many files as one source: what Parquet and Arrow have in common.
//!
//! A column is kept in one of three ways. Small ones (labels) are decoded when the table is
//! opened. Of those whose values lie plainly in the files, only the places are known. All others
//! are decoded block by block as they are asked for.

pub(in crate::source) mod arrow;
mod choice;
mod kept;
pub(in crate::source) mod parquet;
mod values;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_schema::SchemaRef;

use crate::buffer;
use crate::error::{Error, Fault, Result};
use crate::sample::{DType, Field, FieldKind, Location, Room, Value};
use crate::source::{BlockCache, Blocks, Needs, Opening, Source, described, problem};
use crate::spec::FieldChoice;
use crate::spec::read::{show_bytes, show_count};
use crate::store::Store;
use choice::{Chosen, choose};
use kept::{Folding, KeptColumn, RowRoom};
use values::{Sort, write_row};

/// Columns that take less than this in all are decoded at once and kept. It does not follow the
/// memory that is given, since samples of kept columns are shuffled without blocks.
const HELD: u64 = 64 << 20;
/// A column is kept up to this, if it turns out to be larger.
const HELD_AT_MOST: u64 = 2 * HELD;
/// What may be decoded at once however little memory is given.
const SMALL_BLOCK: u64 = 64 << 20;
/// So many rows show whether bytes are images.
const LOOK: u64 = 4;
/// Bytes that a value's place takes.
const PLACE: u64 = 12;
/// The length that stands for a value that is not there.
pub(in crate::source) const MISSING: u32 = u32::MAX;

/// Where the values of one column lie in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::source) enum Places {
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
    /// Bytes that it takes.
    fn held(&self) -> u64 {
        match self {
            Places::Each { begins, lengths } => 8 * begins.len() as u64 + 4 * lengths.len() as u64,
            Places::Runs { runs, .. } => 16 * runs.len() as u64,
        }
    }

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
pub(in crate::source) struct Unit {
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
pub(in crate::source) trait Files: Send + Sync {
    /// Path, rows and schema of each file.
    fn list(&self) -> Vec<(&Path, u64, SchemaRef)>;

    /// The stamp of a file when it was opened.
    fn stamp(&self, file: usize) -> u64;

    /// Bytes that a column takes when it is decoded, or `None` if that cannot be said.
    fn size(&self, file: usize, column: usize) -> Option<u64>;

    /// Where the values of these columns lie, of those that lie plainly in the file. Places take
    /// from `room`.
    fn places(
        &self,
        file: usize,
        columns: &[(usize, &Sort)],
        room: &mut u64,
    ) -> Result<Vec<Option<Arc<Places>>>>;

    /// How the rows of a file are decoded if these columns are wanted, in units of about `limit`
    /// bytes at most; so many units as `most` says at most.
    fn units(&self, file: usize, columns: &[usize], limit: u64, most: u64) -> Result<Vec<Unit>>;

    /// Bytes that decoding these columns of a unit takes, as far as the file says it without being
    /// decoded.
    fn need(&self, unit: &Unit, columns: &[usize]) -> Result<u64, Fault>;

    /// Decodes these columns of a unit. What takes more than `most` bytes is refused, if it must
    /// be while it is decoded.
    fn decode(&self, unit: &Unit, columns: &[usize], most: u64) -> Result<Vec<ArrayRef>, Fault>;

    /// Calls `each` with the places that [`Files::decode`] reads: where they begin and how long
    /// they are.
    fn needs(&self, unit: &Unit, columns: &[usize], each: &mut dyn FnMut(u64, u64));

    /// Bytes that are kept of a file.
    fn held(&self) -> u64;
}

enum ColumnData {
    Kept(KeptColumn),
    /// For each file the places, or `None` where blocks have to be decoded.
    Placed(Vec<Option<Arc<Places>>>),
}

struct TableColumn {
    sort: Sort,
    /// Its name in the files.
    name: String,
    /// Its number in each file.
    numbers: Vec<usize>,
    stored: ColumnData,
    /// Its number among those that are decoded in blocks.
    in_block: Option<usize>,
}

/// Rows of many files.
pub(in crate::source) struct Table {
    files: Box<dyn Files>,
    what: String,
    paths: Vec<PathBuf>,
    /// Where each file ends, in rows.
    ends: Vec<u64>,
    fields: Vec<Field>,
    columns: Vec<TableColumn>,
    classes: Vec<String>,
    units: Vec<Unit>,
    blocks: Option<Blocks>,
    cache: BlockCache<Vec<ArrayRef>>,
    /// What decoding a block may take.
    largest_block: u64,
}

impl Table {
    /// The chosen columns of these files.
    pub(in crate::source) fn open(
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
            largest_block: with.block_memory.max(SMALL_BLOCK),
            files,
        };
        let mut schemas = Vec::new();
        for (path, rows, schema) in table.files.list() {
            table.paths.push(path.to_owned());
            let rows = table.ends.last().unwrap_or(&0).checked_add(rows);
            let too_many = || problem(path, "has more rows than can be counted");
            table.ends.push(rows.ok_or_else(too_many)?);
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
        crate::source::columns::choice::usual_names(&mut table.fields, &chosen);
        Ok(table)
    }

    fn problem(&self, why: impl Into<String>) -> Error {
        problem(&self.what, why.into())
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
        let mut stored: Vec<Option<ColumnData>> = Vec::new();
        let mut keep: Vec<usize> = Vec::new();
        let mut place: Vec<usize> = Vec::new();
        for (at, column) in chosen.iter().enumerate() {
            if let Some(size) = small(column, left).filter(|_| column.is_scalar()) {
                left -= size;
                keep.push(at);
                stored.push(None);
                continue;
            }
            place.push(at);
            stored.push(Some(ColumnData::Placed(Vec::new())));
        }
        // The places of all columns and files share what memory leaves.
        let mut room = with.memory.max(SMALL_BLOCK).saturating_sub(self.files.held());
        for file in 0..files {
            let columns = place.iter().map(|at| (chosen[*at].numbers[file], &chosen[*at].sort));
            let columns: Vec<(usize, &Sort)> = columns.collect();
            let found = self.files.places(file, &columns, &mut room)?;
            for (at, found) in place.iter().zip(found) {
                if let Some(ColumnData::Placed(places)) = &mut stored[*at] {
                    places.push(found);
                }
            }
        }
        let in_blocks = |stored: &Option<ColumnData>| match stored {
            Some(ColumnData::Placed(places)) => places.iter().any(Option::is_none),
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
        let mut kept = self.keep(chosen, &keep, with)?;
        for (at, _) in keep.iter().zip(&kept).filter(|(_, kept)| kept.is_none()) {
            stored[*at] = Some(ColumnData::Placed(vec![None; files]));
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
                    ColumnData::Kept(kept.ok_or_else(|| self.problem("a column was forgotten"))?)
                }
            };
            self.columns.push(TableColumn {
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
        let most = with.memory.max(SMALL_BLOCK) / size_of::<Unit>() as u64;
        for file in 0..self.paths.len() {
            let left = most.saturating_sub(self.units.len() as u64);
            let units = self.files.units(file, &self.block_columns(file), limit, left)?;
            for unit in units.iter().filter(|unit| unit.rows > 0) {
                if unit.bytes > self.largest_block {
                    let fault = too_large(unit.bytes, self.largest_block);
                    return Err(self.bad(file, fault));
                }
                row += unit.rows;
                let grown =
                    buffer::grow(&mut ends, 1).and_then(|()| buffer::grow(&mut self.units, 1));
                grown.map_err(|fault| self.bad(file, fault))?;
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

    /// What is wrong with a file.
    fn bad(&self, file: usize, fault: Fault) -> Error {
        problem(&self.paths[file], fault)
    }

    /// Decodes small columns as a whole; those that turn out to be large are `None`.
    fn keep(
        &self,
        chosen: &[Chosen],
        keep: &[usize],
        with: &Opening<'_>,
    ) -> Result<Vec<Option<KeptColumn>>> {
        let rows = self.ends.last().copied().unwrap_or(0);
        let most = with.memory.max(SMALL_BLOCK);
        let mut all = Vec::new();
        let mut least = 0;
        for at in keep {
            let sort = &chosen[*at].sort;
            let bytes = KeptColumn::least(sort, rows);
            if bytes > HELD_AT_MOST {
                all.push(None);
                continue;
            }
            least += bytes;
            if least > most {
                return Err(Error::Memory(format!(
                    "{} has columns that take {} at least, memory is {}: raise memory, or choose fewer columns with fields",
                    self.what,
                    show_bytes(least),
                    show_bytes(with.memory)
                )));
            }
            let column =
                KeptColumn::new(sort, rows).map_err(|fault| self.problem(fault.to_string()))?;
            all.push(Some((column, Folding::default())));
        }
        for file in 0..self.paths.len() {
            let bad = |fault: Fault| self.bad(file, fault);
            let columns: Vec<usize> = keep.iter().map(|at| chosen[*at].numbers[file]).collect();
            if keep.is_empty() {
                break;
            }
            let units = most / size_of::<Unit>() as u64;
            for unit in self.files.units(file, &columns, HELD / 4, units)? {
                let mut left: Vec<_> =
                    all.iter_mut().zip(keep).filter(|(column, _)| column.is_some()).collect();
                if left.is_empty() {
                    break;
                }
                let held =
                    left.iter().flat_map(|(column, _)| &**column).map(|(kept, _)| kept.held());
                let room = most.saturating_sub(held.sum());
                let columns: Vec<usize> =
                    left.iter().map(|(_, at)| chosen[**at].numbers[file]).collect();
                let need = self.files.need(&unit, &columns).map_err(bad)?;
                if need > room {
                    return Err(bad(too_large(need, room)));
                }
                let arrays = self.files.decode(&unit, &columns, room).map_err(bad)?;
                let held = |column: &Option<(KeptColumn, Folding)>| {
                    column.as_ref().map_or(0, |(kept, _)| kept.held())
                };
                let mut all: u64 = left.iter().map(|(column, _)| held(column)).sum();
                for (array, (column, at)) in arrays.iter().zip(&mut left) {
                    all -= held(column);
                    let Some((kept, folding)) = column else { continue };
                    let sort = &chosen[**at].sort;
                    // Whether it is kept does not depend on the memory; whether there is room does.
                    let room = most.saturating_sub(all);
                    if !kept.append(&**array, sort, folding, HELD_AT_MOST, room).map_err(bad)? {
                        **column = None;
                    }
                    all += held(column);
                }
            }
        }
        Ok(all
            .into_iter()
            .map(|column| {
                let (mut kept, _) = column?;
                kept.settle();
                Some(kept)
            })
            .collect())
    }

    /// Which columns of bytes are images, where nothing is said.
    fn find_images(&mut self, chosen: &[Chosen], with: &Opening<'_>) -> Result<()> {
        for (at, column) in chosen.iter().enumerate() {
            if column.sort != Sort::Binary || column.role.is_some() || column.is_image {
                continue;
            }
            let mut is_image = false;
            for row in 0..self.len().min(LOOK) {
                match self.first_bytes(&**with.store, row, at) {
                    Ok(bytes) => is_image |= (with.is_image)(&bytes),
                    Err(Fault::Io(source)) if source.raw_os_error().is_some() => {
                        let path = PathBuf::from(&self.what);
                        return Err(Error::Io { what: "cannot read", path, source });
                    }
                    // What is damaged is reported when it is asked for.
                    Err(_) => {}
                }
            }
            if is_image {
                self.fields[at].kind = FieldKind::EncodedImage;
            }
        }
        Ok(())
    }

    fn first_bytes(&self, store: &dyn Store, row: u64, field: usize) -> Result<Vec<u8>, Fault> {
        match self.value(row, field)? {
            Value::File(place) => {
                let (begin, length) = place.range.unwrap_or_default();
                let mut bytes = vec![0; length.min(64) as usize];
                store.open(&place.root.join(place.path))?.read_exact_at(&mut bytes, begin)?;
                Ok(bytes)
            }
            Value::Bytes(bytes) => Ok(bytes.to_owned()),
            Value::Made => {
                let mut room = RowRoom::default();
                self.read(row, field, &mut room)?;
                Ok(room.0)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Block `number`, which takes what its pages say rather than what the file says of it.
    fn decode(&self, number: u64, unit: &Unit) -> Result<Arc<Vec<ArrayRef>>, Fault> {
        let columns = self.block_columns(unit.file);
        let need = self.files.need(unit, &columns)?;
        if need > self.largest_block {
            return Err(too_large(need, self.largest_block));
        }
        let expected = need.max(unit.bytes);
        self.cache.get(number, expected, || {
            let arrays = self.files.decode(unit, &columns, self.largest_block)?;
            let bytes = arrays.iter().map(|array| array.get_array_memory_size() as u64).sum();
            // Arrays that share memory count it each.
            Ok((arrays, expected.min(bytes)))
        })
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
            ColumnData::Kept(kept) => {
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
            ColumnData::Placed(parts) => {
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
        let arrays = match self.cache.kept(number as u64) {
            Some(arrays) => arrays,
            None => {
                self.decode(number as u64, unit).map_err(|fault| self.about(index, field, fault))?
            }
        };
        let array = arrays.get(at).ok_or_else(|| self.missing(index, field))?;
        write_row(&**array, (index - before) as usize, &column.sort, room)
            .map_err(|fault| self.about(index, field, fault))
    }

    fn needs(&self, index: u64, field: usize, each: &mut Needs<'_>) {
        match self.value(index, field) {
            Ok(Value::Made) => {}
            Ok(value) => return value.location().iter().for_each(each),
            Err(_) => return,
        }
        let ends = self.blocks.as_ref().map_or(&[][..], |blocks| &blocks.ends);
        let Some(unit) = self.units.get(ends.partition_point(|end| *end <= index)) else { return };
        let (path, stamp) = (&self.paths[unit.file], self.files.stamp(unit.file));
        self.files.needs(unit, &self.block_columns(unit.file), &mut |begin, length| {
            let range = Some((begin, length));
            each(&Location { root: Path::new(""), path, range, stamp: Some(stamp) });
        });
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
        let start = described(&self.paths, &self.ends, &self.fields, &self.classes);
        self.columns.iter().fold(start, |hash, column| match &column.stored {
            ColumnData::Kept(kept) => kept.fingerprint(hash),
            ColumnData::Placed(_) => hash,
        })
    }

    fn name(&self) -> String {
        self.what.clone()
    }

    fn held(&self) -> u64 {
        let columns = self.columns.iter().map(|column| match &column.stored {
            ColumnData::Kept(kept) => kept.held(),
            ColumnData::Placed(parts) => parts.iter().flatten().map(|places| places.held()).sum(),
        });
        let units = (self.units.len() * size_of::<Unit>()) as u64;
        columns.sum::<u64>() + units + self.files.held()
    }
}

/// Takes the places of a column of `rows` rows from `room`.
pub(in crate::source) fn take_places(path: &Path, rows: u64, room: &mut u64) -> Result<()> {
    let bytes = rows.saturating_mul(PLACE);
    *room = room.checked_sub(bytes).ok_or_else(|| {
        Error::Memory(format!(
            "{} has {} rows, whose places take {} in a column, memory leaves {}: raise memory, or choose fewer columns with fields",
            path.display(),
            show_count(rows),
            show_bytes(bytes),
            show_bytes(*room)
        ))
    })?;
    Ok(())
}

/// The fault of a block that takes more than there is room for.
fn too_large(need: u64, most: u64) -> Fault {
    Fault::TooLarge(format!(
        "has blocks of rows that take {} to decode, of which {} may be taken: give more memory, or write it with smaller row groups or batches",
        show_bytes(need),
        show_bytes(most)
    ))
}
