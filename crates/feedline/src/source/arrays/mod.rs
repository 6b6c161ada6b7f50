//! Arrays in files, the first axis of each being the samples: what .npy, HDF5 and Zarr share.
//!
//! A format finds the arrays of each of its files; here they are chosen, checked against each
//! other, put one after the other where there are several files, and read.

mod choose;
mod element;
mod files;
mod grid;
#[cfg(feature = "hdf5")]
pub(in crate::source) mod hdf5;
pub(in crate::source) mod memory;
pub(in crate::source) mod npy;
mod spread;
mod unpack;
pub(in crate::source) mod zarr;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(in crate::source) use element::{Element, Resolve, from_numpy, number, swap_bytes};
pub(in crate::source) use files::Files;
pub(in crate::source) use grid::{Grid, filled};
pub(in crate::source) use spread::{join, spread};
pub(in crate::source) use unpack::{grown, unshuffle, zlib, zstd};

use crate::buffer;
use crate::error::{Error, Fault, Result};
use crate::sample::{Field, FieldKind, Room, Value};
use crate::source::{BlockCache, Blocks, Needs, Source, described};

/// A block may always be so large, however few bytes it is made of.
const MODEST_BLOCK: u64 = 64 << 20;

/// No format packs better than this, but for blocks of a single value.
const LARGEST_RATIO: u64 = 1024;

/// Blocks that the order is given, at most.
const MOST_BLOCKS: u64 = 4 << 20;

/// Samples that a set may have: more than any has, and few enough to number blocks by them.
const MOST_SAMPLES: u64 = 1 << 40;

/// Numbers of makers are below this: with a block's number they are one of 64 bits.
const MOST_MAKERS: u64 = 1 << 24;

/// Arrays that one set may have: nobody has more, and nobody waits for more to be looked at.
pub(in crate::source) const MOST_ARRAYS: usize = 10_000;

/// Axes that an array may have, as in NumPy.
pub(in crate::source) const MOST_AXES: usize = 64;

/// Makes blocks of rows that do not lie in a file as they are.
pub(in crate::source) trait Maker: Send + Sync {
    /// The rows of block `block`, one after the other: `bytes` of them.
    fn make(&self, block: u64, bytes: u64) -> Result<Vec<u8>, Fault>;

    /// Calls `each` with the parts of files that [`Maker::make`] reads for a block.
    fn needs(&self, _block: u64, _each: &mut Needs<'_>) {}

    /// Bytes that it keeps in memory as long as it lives.
    fn held(&self) -> u64 {
        0
    }
}

/// Where an array's rows are.
#[derive(Clone)]
pub(in crate::source) enum Data {
    /// One after the other in a file.
    File {
        /// Which.
        file: u32,
        /// Where the first is.
        offset: u64,
    },
    /// In pieces of `each` rows that lie in files as they are.
    Pieces {
        /// Rows of a piece; the last may have fewer.
        each: u64,
        /// File and offset of each.
        places: Arc<Vec<(u32, u64)>>,
    },
    /// In blocks of `each` rows that have to be made.
    Made {
        /// Rows of a block; the last may have fewer.
        each: u64,
        /// Who makes them.
        maker: Arc<dyn Maker>,
    },
}

/// Rows of different lengths: each is a part of one long array.
#[derive(Clone)]
pub(in crate::source) struct Spread {
    /// Where each row starts in it, and the last ends: int64.
    pub offsets: Box<Array>,
    /// The shape of each row: int64.
    pub shapes: Option<Box<Array>>,
    /// What a row is.
    pub kind: FieldKind,
}

/// An array as it is stored.
#[derive(Clone)]
pub(in crate::source) struct Array {
    /// What the data calls it.
    pub name: String,
    /// How many rows it has.
    pub rows: u64,
    /// The shape of a row.
    pub shape: Vec<usize>,
    /// What it consists of.
    pub element: Element,
    /// Bytes from one row to the next: more than a row has where it is one part of a record.
    pub stride: u64,
    /// Bytes of a record before this part.
    pub skip: u64,
    /// Where the rows are.
    pub data: Data,
    /// Set if a sample is a stretch of rows rather than one.
    pub spread: Option<Spread>,
    /// The number of its blocks' maker, for the cache.
    pub maker: u64,
}

/// Elements of a shape, if they can be counted.
pub(in crate::source) fn elements(shape: &[usize]) -> Option<u64> {
    shape.iter().try_fold(1u64, |all, axis| all.checked_mul(*axis as u64))
}

/// Bytes that may be taken for a block which is made of `stored` bytes.
pub(in crate::source) fn largest_block(block_memory: u64, stored: u64) -> u64 {
    block_memory.min(MODEST_BLOCK.max(stored.saturating_mul(LARGEST_RATIO)))
}

/// The fault of a block that would be larger.
pub(in crate::source) fn check_block(
    bytes: u64,
    block_memory: u64,
    stored: u64,
) -> Result<(), Fault> {
    let largest = largest_block(block_memory, stored);
    if bytes <= largest {
        return Ok(());
    }
    Err(Fault::TooLarge(format!(
        "a block of rows takes {bytes} bytes in memory, {largest} are allowed: write it with fewer rows in a chunk, or raise the memory limit"
    )))
}

impl Array {
    /// An array of whole rows, without a place yet.
    pub(in crate::source) fn new(
        name: String,
        rows: u64,
        shape: Vec<usize>,
        element: Element,
        data: Data,
    ) -> std::result::Result<Array, String> {
        let stride = elements(&shape).and_then(|all| all.checked_mul(element.width() as u64));
        let stride = stride.filter(|stride| stride.checked_mul(rows).is_some());
        let stride = stride.ok_or_else(|| format!("has rows of an impossible shape {shape:?}"))?;
        Ok(Array { name, rows, shape, element, stride, skip: 0, data, spread: None, maker: 0 })
    }

    /// Bytes of one row.
    fn row_bytes(&self) -> u64 {
        elements(&self.shape).unwrap_or(0).saturating_mul(self.element.width() as u64)
    }

    /// The largest number of a maker that it needs.
    fn largest_maker(&self) -> u64 {
        let others = self.spread.iter().flat_map(|spread| {
            [Some(&spread.offsets), spread.shapes.as_ref()].into_iter().flatten()
        });
        others.map(|array| array.maker).fold(self.maker, u64::max)
    }

    /// How many samples it has.
    pub(in crate::source) fn samples(&self) -> u64 {
        match &self.spread {
            Some(spread) => spread.offsets.rows.saturating_sub(1),
            None => self.rows,
        }
    }

    /// What a sample is.
    fn kind(&self) -> std::result::Result<FieldKind, String> {
        match &self.spread {
            Some(spread) => Ok(spread.kind.clone()),
            None => self.element.kind(&self.shape),
        }
    }

    /// Samples and bytes of a block, if its rows are made in blocks.
    fn block(&self) -> Option<(u64, u64)> {
        match &self.data {
            Data::Made { each, .. } => Some(match &self.spread {
                // How many samples a stretch has is not known; any block is one for the order.
                Some(_) => {
                    let samples = self.samples().max(1);
                    let blocks = self.rows.div_ceil((*each).max(1)).max(1);
                    (samples.div_ceil(blocks), each.saturating_mul(self.stride))
                }
                None => (*each, each.saturating_mul(self.stride)),
            }),
            _ => None,
        }
    }
}

/// The arrays of one file or folder.
pub(in crate::source) struct ArrayGroup {
    /// What it is called in messages.
    pub what: String,
    /// What was found in it.
    pub arrays: Vec<Array>,
    /// What was found and cannot be read: its name, how many rows it has if that is known, and
    /// why.
    pub refused: Vec<(String, Option<u64>, String)>,
}

/// One field over all stores.
struct ArrayColumn {
    parts: Vec<Array>,
}

/// Samples whose fields are rows of arrays in files.
pub(in crate::source) struct Rows {
    format: &'static str,
    what: String,
    /// What each store is called.
    stores: Vec<String>,
    files: Arc<Files>,
    columns: Vec<ArrayColumn>,
    fields: Vec<Field>,
    /// Where the samples of each store end.
    ends: Vec<u64>,
    blocks: Option<Blocks>,
    cache: BlockCache<Vec<u8>>,
    fingerprint: u64,
}

impl Rows {
    fn problem(&self, problem: String) -> Error {
        Error::Source { what: self.what.clone(), problem }
    }

    /// Puts the chosen columns together.
    fn assemble(&mut self, block_memory: u64) -> Result<()> {
        let Some(first) = self.columns.first() else {
            return Err(self.problem("has no arrays".to_owned()));
        };
        let mut total = 0u64;
        self.ends = Vec::with_capacity(first.parts.len());
        for part in &first.parts {
            total = total.saturating_add(part.samples());
            self.ends.push(total);
        }
        if total == 0 {
            return Err(self.problem("has no samples".to_owned()));
        }
        if total > MOST_SAMPLES {
            return Err(self.problem(format!("has {total} samples, {MOST_SAMPLES} are allowed")));
        }
        let parts = || self.columns.iter().flat_map(|column| &column.parts);
        if parts().any(|part| part.largest_maker() >= MOST_MAKERS) {
            return Err(self.problem(format!(
                "has more than {MOST_MAKERS} arrays in all its files: pack it, or write fewer files"
            )));
        }
        let blocks = self.find_blocks(total);
        if let Some(blocks) = &blocks
            && blocks.bytes > block_memory
        {
            return Err(self.problem(format!(
                "has to be read in blocks of {} bytes, {block_memory} are allowed: write it with fewer rows in a chunk, or raise the memory limit",
                blocks.bytes
            )));
        }
        self.blocks = blocks;
        let mut text = String::new();
        for (field, column) in self.fields.iter().zip(&self.columns) {
            let about = described(&[], &[], std::slice::from_ref(field), &[]);
            text += &format!("{about:016x}");
            for part in &column.parts {
                text += &format!(" {} {}", part.name, part.samples());
                if let Data::File { file, .. } = &part.data {
                    let path = self.files.path(*file);
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    text += &format!(" {name} {}", self.files.bytes(*file));
                }
            }
        }
        self.fingerprint = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
        Ok(())
    }

    /// Blocks of the field that has the largest; all fields' blocks count, as a sample needs one
    /// of each.
    fn find_blocks(&self, total: u64) -> Option<Blocks> {
        let largest = |column: &ArrayColumn| {
            column.parts.iter().filter_map(Array::block).map(|(_, bytes)| bytes).max()
        };
        let bytes: u64 = self.columns.iter().filter_map(largest).fold(0, u64::saturating_add);
        let leading = self.columns.iter().max_by_key(|column| largest(column))?;
        largest(leading)?;
        let mut ends = Vec::new();
        let mut start = 0;
        for (part, end) in leading.parts.iter().zip(&self.ends) {
            let each = part.block().map_or(total, |(samples, _)| samples);
            // Several blocks count as one where there are too many of them to be listed.
            let each = each.max(1).saturating_mul(1 + (total / each.max(1)) / MOST_BLOCKS);
            while start < *end {
                start = start.saturating_add(each).min(*end);
                ends.push(start);
            }
        }
        Some(Blocks { ends, bytes })
    }

    /// The store and the row in it of a sample.
    fn part(&self, index: u64) -> Result<(usize, u64), Fault> {
        let part = self.ends.partition_point(|end| *end <= index);
        if part >= self.ends.len() {
            return Err(Fault::Unsupported(format!("there is no sample {index}")));
        }
        let start = if part == 0 { 0 } else { self.ends[part - 1] };
        Ok((part, index - start))
    }

    fn array(&self, index: u64, field: usize) -> Result<(&Array, u64), Fault> {
        let (part, row) = self.part(index)?;
        let array = self.columns.get(field).and_then(|column| column.parts.get(part));
        array
            .map(|array| (array, row))
            .ok_or_else(|| Fault::Unsupported(format!("there is no field {field}")))
    }

    /// The place of row `row`, if it lies in a file.
    fn place(&self, array: &Array, row: u64) -> Option<(u32, u64)> {
        match &array.data {
            Data::File { file, offset } => Some((*file, offset + row * array.stride + array.skip)),
            Data::Pieces { each, places } => {
                let (file, offset) = places.get((row / each) as usize)?;
                Some((*file, offset + row % each * array.stride + array.skip))
            }
            Data::Made { .. } => None,
        }
    }

    /// Fills `out` with the stored bytes of the rows from `first` on.
    fn span(&self, array: &Array, first: u64, out: &mut [u8]) -> Result<(), Fault> {
        let row_bytes = array.row_bytes().max(1);
        let mut row = first;
        let mut left = out;
        while !left.is_empty() {
            if row >= array.rows {
                return Err(Fault::corrupt(self.format, "a row is beyond the array's end"));
            }
            let until = match &array.data {
                Data::File { .. } => array.rows,
                Data::Pieces { each, .. } | Data::Made { each, .. } => {
                    (row / each + 1).saturating_mul(*each).min(array.rows)
                }
            };
            let whole = array.stride == row_bytes;
            let rows = if whole { until - row } else { 1 };
            let bytes = rows.saturating_mul(row_bytes).min(left.len() as u64) as usize;
            let (now, later) = left.split_at_mut(bytes);
            match (&array.data, self.place(array, row)) {
                (Data::Made { each, maker }, _) => {
                    let block = self.made(array, maker.as_ref(), row / each, *each)?;
                    let start = (row % each * array.stride + array.skip) as usize;
                    let stored = block.get(start..start + bytes);
                    now.copy_from_slice(stored.ok_or_else(|| {
                        Fault::corrupt(self.format, "a block has fewer rows than it should")
                    })?);
                }
                (_, Some((file, offset))) => self.files.read(file, offset, now)?,
                _ => return Err(Fault::corrupt(self.format, "a row lies nowhere")),
            }
            left = later;
            row += rows;
        }
        Ok(())
    }

    fn made(
        &self,
        array: &Array,
        maker: &dyn Maker,
        block: u64,
        each: u64,
    ) -> Result<Arc<Vec<u8>>, Fault> {
        let rows = each.min(array.rows - block * each);
        let bytes = rows * array.stride;
        self.cache.get(array.maker << 40 | block, bytes, || {
            let made = maker.make(block, bytes)?;
            Ok((made, bytes))
        })
    }

    /// Numbers of an array that says where others lie.
    fn numbers(&self, array: &Array, row: u64, count: usize) -> Result<Vec<u64>, Fault> {
        let mut stored = vec![0; count * 8];
        self.span(array, row, &mut stored)?;
        let swap = matches!(array.element, Element::Number { swap: true, .. });
        let numbers = stored.chunks_exact(8).map(|eight| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(eight);
            let number = u64::from_ne_bytes(bytes);
            if swap { number.swap_bytes() } else { number }
        });
        Ok(numbers.collect())
    }

    /// First row and number of rows of a sample's stretch.
    fn stretch(&self, array: &Array, spread: &Spread, row: u64) -> Result<(u64, u64), Fault> {
        let ends = self.numbers(&spread.offsets, row, 2)?;
        match ends[1].checked_sub(ends[0]) {
            Some(length) if ends[1] <= array.rows => Ok((ends[0], length)),
            _ => Err(Fault::corrupt(
                self.format,
                format!("{} runs from {} to {} of {}", array.name, ends[0], ends[1], array.rows),
            )),
        }
    }

    fn read_spread(
        &self,
        array: &Array,
        spread: &Spread,
        row: u64,
        room: &mut dyn Room,
    ) -> Result<(), Fault> {
        let (first, length) = self.stretch(array, spread, row)?;
        if let (Some(shapes), FieldKind::Ragged { axes, .. }) = (&spread.shapes, &spread.kind) {
            let shape: Vec<usize> =
                self.numbers(shapes, row, *axes)?.into_iter().map(|axis| axis as usize).collect();
            if elements(&shape) != Some(length) {
                return Err(Fault::corrupt(
                    self.format,
                    format!("{} has {length} elements, which is not {shape:?}", array.name),
                ));
            }
            room.shape(&shape);
        }
        let out = room.make(length * array.stride)?;
        self.span(array, first, out)?;
        if let Element::Number { dtype, swap: true } = &array.element {
            swap_bytes(out, dtype.size());
        }
        if spread.kind == FieldKind::Text && std::str::from_utf8(out).is_err() {
            return Err(Fault::corrupt(self.format, format!("{} is not UTF-8", array.name)));
        }
        Ok(())
    }

    fn location(&self, file: u32, offset: u64, length: u64) -> Value<'_> {
        Value::File(self.files.location(file, (offset, length)))
    }
}

impl Source for Rows {
    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn value(&self, index: u64, field: usize) -> Result<Value<'_>, Fault> {
        let (array, row) = self.array(index, field)?;
        if !array.element.is_plain() {
            return Ok(Value::Made);
        }
        if let Some(spread) = &array.spread {
            // Text is looked at, and a shape is passed on, while it is read.
            let plain = matches!(spread.kind, FieldKind::Bytes | FieldKind::EncodedImage);
            if !plain || !matches!(array.data, Data::File { .. }) {
                return Ok(Value::Made);
            }
            let (first, length) = self.stretch(array, spread, row)?;
            return Ok(match self.place(array, first) {
                Some((file, offset)) => self.location(file, offset, length * array.stride),
                None => Value::Made,
            });
        }
        Ok(match self.place(array, row) {
            Some((file, offset)) => self.location(file, offset, array.row_bytes()),
            None => Value::Made,
        })
    }

    fn read(&self, index: u64, field: usize, room: &mut dyn Room) -> Result<(), Fault> {
        let (array, row) = self.array(index, field)?;
        if let Some(spread) = &array.spread {
            return self.read_spread(array, spread, row, room);
        }
        let bytes = array.row_bytes();
        if let (Element::Number { dtype, swap }, true) = (&array.element, bytes > 0) {
            let out = room.make(bytes)?;
            self.span(array, row, out)?;
            if *swap {
                swap_bytes(out, dtype.size());
            }
            return Ok(());
        }
        if bytes > self.cache.limit().max(MODEST_BLOCK) {
            return Err(Fault::TooLarge(format!("has rows of {bytes} bytes: give more memory")));
        }
        let mut stored = buffer::zeroed(bytes)?;
        self.span(array, row, &mut stored)?;
        array.element.convert(&stored, room)
    }

    fn needs(&self, index: u64, field: usize, each: &mut Needs<'_>) {
        match self.value(index, field) {
            Ok(Value::Made) => {}
            Ok(value) => return value.location().iter().for_each(each),
            Err(_) => return,
        }
        let Ok((array, row)) = self.array(index, field) else { return };
        let (first, rows) = match &array.spread {
            Some(spread) => self.stretch(array, spread, row).unwrap_or_default(),
            None => (row, 1),
        };
        match &array.data {
            Data::Made { each: rows_of_block, maker } if rows > 0 && *rows_of_block > 0 => {
                let last = (first + rows - 1) / rows_of_block;
                (first / rows_of_block..=last).for_each(|block| maker.needs(block, each));
            }
            _ => {
                if let Some((file, offset)) = self.place(array, first) {
                    let value = self.location(file, offset, rows.saturating_mul(array.stride));
                    value.location().iter().for_each(each);
                }
            }
        }
    }

    fn blocks(&self) -> Option<&Blocks> {
        self.blocks.as_ref()
    }

    fn origin(&self, index: u64) -> Option<PathBuf> {
        let (part, row) = self.part(index).ok()?;
        let array = self.columns.first()?.parts.get(part)?;
        Some(match &array.data {
            Data::File { file, .. } => self.files.path(*file).join(format!("row {row}")),
            _ => Path::new(self.stores.get(part)?).join(format!("row {row}")),
        })
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn name(&self) -> String {
        self.what.clone()
    }

    fn held(&self) -> u64 {
        let mut seen = HashSet::new();
        let parts = self.columns.iter().flat_map(|column| &column.parts);
        // Parts of one record share their places.
        let parts = parts.filter(|part| seen.insert(part.maker)).map(|part| match &part.data {
            Data::File { .. } => 0,
            Data::Pieces { places, .. } => (places.len() * size_of::<(u32, u64)>()) as u64,
            Data::Made { maker, .. } => maker.held(),
        });
        let blocks = self.blocks.as_ref().map_or(0, |blocks| 8 * blocks.ends.len() as u64);
        parts.fold(blocks, u64::saturating_add)
    }
}
