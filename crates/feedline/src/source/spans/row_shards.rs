//! Shards that MosaicML's streaming and LitData share but for details: how many samples there are,
//! where each begins, and each with the sizes of its columns and then their bytes.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::encoding::Encoding;
use super::headed::{self, Header};
use super::input::{Compression, Input};
use super::look::Look;
use super::part::{ByteSpan, Content, ShardPart, SpanColumn, Values, array_bytes};
use super::{Claim, Peek, Scanner, Spans};
use crate::catalog;
use crate::error::{Error, Result};
use crate::sample::DType;
use crate::source::names::Names;
use crate::source::{Opening, problem};
use crate::spec::FieldChoice;
use crate::store::{Reader, Store};

/// The list of shards beside them.
pub(in crate::source) const INDEX: &str = "index.json";

/// No list of shards is larger.
const LARGEST_INDEX: u64 = 256 << 20;

/// A column of all samples of a shard.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::source) struct RowColumn {
    pub(in crate::source) name: String,
    /// Bytes of each value, where all have as many; otherwise each sample says it.
    pub(in crate::source) size: Option<u64>,
    pub(in crate::source) kind: RowKind,
}

/// What a column's values are.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::source) enum RowKind {
    /// What the format says they are.
    Known(Content),
    /// Bytes that may be an image.
    Bytes,
    /// Whole numbers of 64 bits.
    Int,
    /// Numbers of 32 bits.
    Float,
    /// Arrays of one axis without a header.
    Flat(DType),
    /// Arrays with a header; the type is given where it does not say it.
    Headed(Header, Option<DType>),
}

impl RowKind {
    /// Values that are not read, for a reason.
    pub(in crate::source) fn refused(reason: impl Into<String>) -> RowKind {
        RowKind::Known(Content::Refused(reason.into()))
    }
}

/// What is found of a column on the way.
struct Finding<'a> {
    column: &'a RowColumn,
    places: Vec<ByteSpan>,
    values: Values,
    look: Look,
    arrays: Arrays,
}

/// Headers of arrays.
#[derive(Default)]
struct Arrays {
    dtype: Option<DType>,
    shape: Vec<usize>,
    same_shape: bool,
    same_axes: bool,
    same_type: bool,
    /// Bytes of each header.
    starts: Vec<u16>,
}

/// Finds the columns of all samples of a shard that has `samples` of them.
fn scan(
    input: &mut Input<'_>,
    columns: &[RowColumn],
    samples: u64,
    is_image: fn(&[u8]) -> bool,
) -> Result<ShardPart> {
    let offsets = offsets(input, samples)?;
    let mut findings: Vec<Finding<'_>> =
        columns.iter().map(|column| Finding::new(column, is_image)).collect();
    let mut names = Names::default();
    let variable = columns.iter().filter(|column| column.size.is_none()).count() as u64;
    for (number, ends) in offsets.windows(2).enumerate() {
        if number.is_multiple_of(1024) {
            // A place, a number and a header's length of every column.
            let cells = (number * columns.len()) as u64;
            input.hold(4 * samples + names.held() + 26 * cells)?;
        }
        let (begin, end) = (u64::from(ends[0]), u64::from(ends[1]));
        let problem = |input: &Input<'_>, problem: &str| {
            input.problem(format!("sample {number} at byte {begin} {problem}"))
        };
        if begin == end && variable > 0 {
            return Err(problem(
                input,
                "is empty: LitData keeps rows of plain values as an Arrow table behind the samples, which is not read. Write them with a tensor or a torch type among the values, or to another format",
            ));
        }
        if variable * 4 > end - begin {
            return Err(problem(input, "is shorter than the sizes of its columns"));
        }
        let sizes = input.bytes(begin, variable * 4)?.to_vec();
        let mut sizes = sizes.chunks_exact(4);
        let mut at = begin + variable * 4;
        for finding in &mut findings {
            let said = || sizes.next().map_or(0, |four| u64::from(number_of(four)));
            let size = finding.column.size.unwrap_or_else(said);
            if size > end - at {
                return Err(problem(input, "is shorter than its columns"));
            }
            finding.add(input, [at, size])?;
            at += size;
        }
        if at != end {
            return Err(problem(input, "is longer than its columns"));
        }
        names.push(number.to_string().as_bytes());
    }
    let columns = findings.into_iter().map(Finding::finish).collect();
    Ok(ShardPart { names, columns, ..ShardPart::default() })
}

/// Whether the columns are those of the shard's list: each with what its values are.
fn is_sound(shard: &RowShard, part: &ShardPart) -> bool {
    let fits = |(column, found): (&RowColumn, &SpanColumn)| {
        let content = match (&column.kind, &found.content) {
            (RowKind::Known(content), found) => content == found,
            (RowKind::Int, Content::Number) => matches!(found.values, Values::Int(_)),
            (RowKind::Float, Content::Number) => matches!(found.values, Values::Float(_)),
            (RowKind::Flat(own) | RowKind::Headed(_, Some(own)), content) => match content {
                Content::Array { dtype, .. } | Content::Ragged { dtype, .. } => own == dtype,
                content => matches!(content, Content::Refused(_)),
            },
            (RowKind::Headed(_, None), content) => !matches!(content, Content::Number),
            (RowKind::Bytes, content) => !matches!(content, Content::Number | Content::Text),
            _ => false,
        };
        let is_number = matches!(column.kind, RowKind::Int | RowKind::Float);
        content
            && !found.hidden
            && (found.values.len() > 0) == is_number
            && found.name == column.name
            && found.field == column.name
    };
    shard.columns.len() == part.columns.len()
        && shard.columns.iter().zip(&part.columns).all(fits)
        && part.names.len() == shard.samples
}

/// Compares the place of a value, and a number, with what the shard itself says.
fn check(shard: &RowShard, peek: &Peek<'_>, claim: &Claim<'_>) -> Option<()> {
    let Claim { part, column, at, .. } = *claim;
    let number = |at: u64| peek(at, 4).map(|four| u64::from(number_of(&four)));
    let entry = 4 + 4 * at as u64;
    let (begin, end) = (number(entry)?, number(entry + 4)?);
    if number(0)? != part.names.len() {
        return None;
    }
    let variable = shard.columns.iter().filter(|column| column.size.is_none()).count() as u64;
    let (mut size_at, mut place_at) = (begin, begin + 4 * variable);
    for (row, found) in shard.columns.iter().zip(&part.columns) {
        let size = match row.size {
            Some(size) => size,
            None => {
                size_at += 4;
                number(size_at - 4)?
            }
        };
        let [start, length] = *found.places.get(at)?;
        // A header may lie before what is wanted.
        let place_end = place_at.checked_add(size).filter(|place_end| *place_end <= end)?;
        let headed = matches!(row.kind, RowKind::Headed(..)) && start > place_at;
        let fits = start.checked_add(length) == Some(place_end) && (start == place_at || headed);
        if std::ptr::eq(found, column) {
            return (fits
                && is_value(row, found, at, &peek(place_at, size.min(headed::LONGEST))?)?)
            .then_some(());
        }
        place_at = place_end;
    }
    None
}

/// Whether the beginning of a value is what is said of it.
fn is_value(row: &RowColumn, column: &SpanColumn, at: usize, bytes: &[u8]) -> Option<bool> {
    Some(match (&row.kind, &column.values, &column.content) {
        (RowKind::Int, Values::Int(values), _) => bytes == values.get(at)?.to_le_bytes(),
        (RowKind::Float, Values::Float(values), _) => {
            bytes == values.get(at)?.to_bits().to_le_bytes()
        }
        (RowKind::Headed(header, given), _, Content::Array { dtype, shape }) => {
            let array = header.read(bytes).ok()?;
            array.dtype.or(*given) == Some(*dtype)
                && array.shape == *shape
                && Some(column.places.get(at)?[1]) == array_bytes(*dtype, shape)
        }
        (RowKind::Headed(header, given), _, Content::Ragged { dtype, .. }) => {
            header.read(bytes).ok()?.dtype.or(*given) == Some(*dtype)
        }
        _ => true,
    })
}

fn number_of(four: &[u8]) -> u32 {
    four.iter().rev().fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// Where each sample begins, and where the last one ends.
fn offsets(input: &mut Input<'_>, samples: u64) -> Result<Vec<u32>> {
    let found = u64::from(number_of(input.bytes(0, 4)?));
    if found != samples {
        return Err(input.problem(format!(
            "holds {found} samples, not the {samples} that {INDEX} says: it is damaged or of another set"
        )));
    }
    let table = (found + 1) * 4;
    input.hold(2 * table)?;
    let offsets: Vec<u32> = input.bytes(4, table)?.chunks_exact(4).map(number_of).collect();
    let begins = offsets.first().is_some_and(|first| u64::from(*first) >= 4 + table);
    if !begins || !offsets.is_sorted() {
        return Err(input.problem("is damaged: its list of samples is not in order"));
    }
    Ok(offsets)
}

impl Finding<'_> {
    fn new(column: &RowColumn, is_image: fn(&[u8]) -> bool) -> Finding<'_> {
        let values = match column.kind {
            RowKind::Int => Values::Int(Vec::new()),
            RowKind::Float => Values::Float(Vec::new()),
            _ => Values::None,
        };
        let arrays =
            Arrays { same_shape: true, same_axes: true, same_type: true, ..Arrays::default() };
        Finding { column, places: Vec::new(), values, look: Look::new(is_image), arrays }
    }

    fn add(&mut self, input: &mut Input<'_>, place: ByteSpan) -> Result<()> {
        let [at, size] = place;
        let wrong = |input: &Input<'_>, problem: &str| {
            input.problem(format!("the value of {:?} at byte {at} {problem}", self.column.name))
        };
        let mut place = place;
        match (&self.column.kind, &mut self.values) {
            (RowKind::Int, Values::Int(values)) => match input.bytes(at, size)?.first_chunk() {
                Some(bytes) if size == 8 => values.push(i64::from_le_bytes(*bytes)),
                _ => return Err(wrong(input, "is no number of 64 bits")),
            },
            (RowKind::Float, Values::Float(values)) => match input.bytes(at, size)?.first_chunk() {
                Some(bytes) if size == 4 => values.push(f32::from_le_bytes(*bytes)),
                _ => return Err(wrong(input, "is no number of 32 bits")),
            },
            (RowKind::Bytes, _) if !self.look.is_enough() => {
                self.look.see(input.bytes(at, size.min(4096))?, size);
            }
            (RowKind::Known(Content::Array { dtype, shape }), _)
                if array_bytes(*dtype, shape) != Some(size) =>
            {
                return Err(wrong(input, "has another size than its array"));
            }
            (RowKind::Flat(dtype), _) => {
                let shape = [(size / dtype.size() as u64) as usize];
                if size % dtype.size() as u64 != 0 {
                    return Err(wrong(input, "is not a whole number of elements"));
                }
                self.arrays.add(self.places.is_empty(), Some(*dtype), &shape, 0);
            }
            (RowKind::Headed(header, given), _) => {
                let bytes = input.bytes(at, size.min(headed::LONGEST))?;
                let array = match header.read(bytes) {
                    Ok(array) => array,
                    Err(fault) => return Err(wrong(input, &fault.to_string())),
                };
                let dtype = array.dtype.or(*given);
                let length = dtype.and_then(|dtype| array_bytes(dtype, &array.shape));
                if length != size.checked_sub(array.start as u64) {
                    return Err(wrong(input, "has another size than its array"));
                }
                self.arrays.add(self.places.is_empty(), dtype, &array.shape, array.start);
                place = [at + array.start as u64, size - array.start as u64];
            }
            _ => {}
        }
        self.places.push(place);
        Ok(())
    }

    fn finish(self) -> SpanColumn {
        let (content, encoding) = match &self.column.kind {
            RowKind::Known(content) => (content.clone(), Encoding::Plain),
            RowKind::Bytes => match self.look.content() {
                // Bytes that happen to be text are still what they were written as.
                (Content::Text, _) => (Content::Bytes, Encoding::Plain),
                found => found,
            },
            RowKind::Int | RowKind::Float => (Content::Number, Encoding::Plain),
            RowKind::Flat(_) | RowKind::Headed(..) => self.arrays.content(&self.column.kind),
        };
        let mut column = SpanColumn::new(&self.column.name, content);
        // Those of numbers are for whoever compares an index with the shard.
        column.places = self.places;
        // The header is needed again where it says the shape of each.
        if let Encoding::Headed(_) = encoding {
            for (place, start) in column.places.iter_mut().zip(&self.arrays.starts) {
                *place = [place[0] - u64::from(*start), place[1] + u64::from(*start)];
            }
        }
        column.encoding = encoding;
        column.values = self.values;
        column
    }
}

impl Arrays {
    fn add(&mut self, is_first: bool, dtype: Option<DType>, shape: &[usize], start: usize) {
        if is_first {
            (self.dtype, self.shape) = (dtype, shape.to_vec());
        }
        self.same_type &= self.dtype == dtype;
        self.same_axes &= self.shape.len() == shape.len();
        self.same_shape &= self.shape == shape;
        self.starts.push(start as u16);
    }

    fn content(&self, kind: &RowKind) -> (Content, Encoding) {
        let axes = self.shape.len();
        let content = match self.dtype {
            Some(dtype) if self.same_type && self.same_shape => {
                Content::Array { dtype, shape: self.shape.clone() }
            }
            Some(dtype) if self.same_type && self.same_axes => Content::Ragged { dtype, axes },
            _ => Content::Refused(
                "holds arrays of different types or with different numbers of axes".to_owned(),
            ),
        };
        let encoding = match (&content, kind) {
            (Content::Ragged { axes: 2.., .. }, RowKind::Headed(header, _)) => {
                Encoding::Headed(*header)
            }
            _ => Encoding::Plain,
        };
        (content, encoding)
    }
}

/// A shard that an index lists.
pub(in crate::source) struct RowShard {
    pub(in crate::source) path: PathBuf,
    pub(in crate::source) columns: Vec<RowColumn>,
    pub(in crate::source) samples: u64,
}

/// Opens the shards of a folder. Those without samples need not be there.
pub(in crate::source) fn open(
    format: &'static str,
    folder: &Path,
    mut list: Vec<RowShard>,
    fields: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<Spans> {
    list.retain(|shard| shard.samples > 0);
    let files = list.iter().map(|shard| shard.path.clone()).collect();
    let version = list.iter().fold(1, |hash, shard| {
        let text = format!("{:?} {}", shard.columns, shard.samples);
        xxhash_rust::xxh3::xxh3_64_with_seed(text.as_bytes(), hash)
    });
    let by_path: HashMap<PathBuf, RowShard> =
        list.into_iter().map(|shard| (shard.path.clone(), shard)).collect();
    let by_path = Arc::new(by_path);
    let shards = by_path.clone();
    let scan = move |input: &mut Input<'_>, with: &Opening<'_>| match shards.get(input.path()) {
        Some(shard) => scan(input, &shard.columns, shard.samples, with.is_image),
        None => Err(input.problem("is not in the list of shards")),
    };
    let scanner = Scanner {
        format,
        version,
        compression: Compression::by_magic,
        scan: Arc::new(scan),
        admit: &|path, part, _| is_sound(by_path.get(path)?, part).then_some(()),
        check: &|peek, claim| check(by_path.get(claim.path)?, peek, claim),
    };
    Spans::open(folder, &scanner, files, fields, with)
}

/// The folder of a list: `path` itself, or the one that the list at `path` lies in.
pub(in crate::source) fn folder_of(path: &Path) -> &Path {
    match path.file_name().is_some_and(|name| name == INDEX) {
        true => path.parent().unwrap_or(Path::new("")),
        false => path,
    }
}

/// Reads the list of shards in a folder; `what` it is for messages.
pub(in crate::source) fn read_index<T: DeserializeOwned>(
    folder: &Path,
    store: &dyn Store,
    what: &str,
) -> Result<T> {
    let path = folder.join(INDEX);
    let failed = |source| Error::Io { what: "cannot read", path: path.clone(), source };
    let file = Reader::new(store.open(&path).map_err(failed)?);
    let mut text = Vec::new();
    file.take(LARGEST_INDEX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > LARGEST_INDEX {
        return Err(problem(path, "is larger than 256 MB"));
    }
    let parsed = serde_json::from_slice(&text);
    parsed.map_err(|error| problem(path, format!("is no list of {what}: {error}")))
}

/// The path of a file that a list names: inside the folder, whatever the list says.
pub(in crate::source) fn inside(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    match catalog::is_inside(path) {
        true => Ok(folder.join(path)),
        false => Err(problem(
            folder.join(INDEX),
            format!("names the file {name:?}, which is not in its folder"),
        )),
    }
}
