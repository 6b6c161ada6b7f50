//! Where the parts of a record batch lie, by the rules of Arrow's columnar format.

use arrow_schema::{DataType, Field, UnionMode};

use crate::buffer;
use crate::error::Fault;
use crate::source::columns::MISSING;
use crate::store::Object;

/// Types may lie in each other so many times.
const DEEPEST: usize = 64;

pub(super) fn corrupt(reason: &str) -> Fault {
    Fault::corrupt("arrow", reason)
}

/// What a record batch's message says, compared with the file.
#[derive(Debug, Default)]
pub(super) struct BatchMessage {
    /// Rows and rows without a value, for each array.
    pub nodes: Vec<(u64, u64)>,
    /// Place and length of each buffer in the file.
    pub buffers: Vec<(u64, u64)>,
    /// How many data buffers each view has.
    pub variadic: Vec<u64>,
}

/// How far a walk over the columns has come.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cursor {
    node: usize,
    buffer: usize,
    variadic: usize,
    depth: usize,
}

impl BatchMessage {
    /// The cursors at which the columns begin, and the one behind the last.
    pub(super) fn columns<'a>(
        &self,
        fields: impl Iterator<Item = &'a Field>,
    ) -> Option<Vec<Cursor>> {
        let mut cursor = Cursor::default();
        let mut all = vec![cursor];
        for field in fields {
            self.pass(field.data_type(), &mut cursor)?;
            all.push(cursor);
        }
        (cursor.node <= self.nodes.len() && cursor.buffer <= self.buffers.len()).then_some(all)
    }

    /// Moves over an array of that type.
    fn pass(&self, data_type: &DataType, cursor: &mut Cursor) -> Option<()> {
        use DataType as D;
        cursor.depth += 1;
        if cursor.depth > DEEPEST {
            return None;
        }
        cursor.node += 1;
        cursor.buffer += match data_type {
            D::Null | D::RunEndEncoded(..) => 0,
            D::Struct(_) | D::FixedSizeList(..) | D::Union(_, UnionMode::Sparse) => 1,
            D::Utf8 | D::LargeUtf8 | D::Binary | D::LargeBinary => 3,
            D::ListView(_) | D::LargeListView(_) => 3,
            D::Utf8View | D::BinaryView => {
                let more = usize::try_from(*self.variadic.get(cursor.variadic)?).ok()?;
                cursor.variadic += 1;
                more.checked_add(2).filter(|count| *count <= self.buffers.len())?
            }
            _ => 2,
        };
        match data_type {
            D::List(child)
            | D::LargeList(child)
            | D::ListView(child)
            | D::LargeListView(child)
            | D::FixedSizeList(child, _)
            | D::Map(child, _) => self.pass(child.data_type(), cursor)?,
            D::Struct(children) => {
                children.iter().try_for_each(|child| self.pass(child.data_type(), cursor))?
            }
            D::Union(children, _) => {
                children.iter().try_for_each(|(_, child)| self.pass(child.data_type(), cursor))?
            }
            D::RunEndEncoded(ends, values) => {
                self.pass(ends.data_type(), cursor)?;
                self.pass(values.data_type(), cursor)?;
            }
            _ => {}
        }
        cursor.depth -= 1;
        Some(())
    }

    /// The buffers between two cursors.
    pub(super) fn between(&self, from: &Cursor, to: &Cursor) -> &[(u64, u64)] {
        self.buffers.get(from.buffer..to.buffer).unwrap_or_default()
    }

    /// The rows that a column has.
    pub(super) fn rows(&self, at: &Cursor) -> Option<u64> {
        self.nodes.get(at.node).map(|node| node.0)
    }
}

/// Places of one batch's values, noted for a whole file.
pub(super) struct Noted {
    pub begins: Vec<u64>,
    pub lengths: Vec<u32>,
    pub runs: Vec<(u64, u64)>,
    pub width: u64,
    /// Rows so far.
    pub rows: u64,
}

/// A walk over one column of one batch.
pub(super) struct ColumnWalk<'a> {
    pub file: &'a dyn Object,
    pub layout: &'a BatchMessage,
    pub at: Cursor,
}

impl ColumnWalk<'_> {
    fn node(&mut self) -> Option<(u64, u64)> {
        self.at.node += 1;
        self.layout.nodes.get(self.at.node - 1).copied()
    }

    fn buffer(&mut self) -> Option<(u64, u64)> {
        self.at.buffer += 1;
        self.layout.buffers.get(self.at.buffer - 1).copied()
    }

    /// The first `length` bytes of a buffer.
    fn read(&self, (begin, have): (u64, u64), length: Option<u64>) -> Result<Vec<u8>, Fault> {
        let length = length.filter(|length| *length <= have);
        let length = length.ok_or_else(|| corrupt("a buffer is too short"))?;
        let mut bytes = buffer::zeroed(length)?;
        self.file.read_exact_at(&mut bytes, begin)?;
        Ok(bytes)
    }

    /// Marks rows that have no value.
    fn mark(
        &self,
        (rows, missing): (u64, u64),
        buffer: (u64, u64),
        lengths: &mut [u32],
    ) -> Result<(), Fault> {
        if missing == 0 || buffer.1 == 0 {
            return Ok(());
        }
        let bits = self.read(buffer, Some(rows.div_ceil(8)))?;
        for (row, length) in lengths.iter_mut().enumerate() {
            if bits[row / 8] >> (row % 8) & 1 == 0 {
                *length = MISSING;
            }
        }
        Ok(())
    }

    /// Adds the places of a column's values; `None` if they do not lie in the file as they are
    /// wanted.
    pub(super) fn note(
        &mut self,
        data_type: &DataType,
        rows: u64,
        noted: &mut Noted,
    ) -> Result<Option<()>, Fault> {
        use DataType as D;
        let short = || corrupt("a batch has fewer arrays than its schema");
        if let Some(width) = fixed_width(data_type) {
            return self.note_fixed(data_type, width, rows, noted);
        }
        let count = rows_of(rows, self.layout)?;
        let (mut lengths, mut begins) = (Vec::new(), Vec::new());
        buffer::reserve(&mut lengths, count as u64)?;
        buffer::reserve(&mut begins, count as u64)?;
        lengths.resize(count, 0);
        begins.resize(count, 0);
        let mut leaf = data_type;
        if let D::Struct(children) = leaf {
            let (node, buffer) = (self.node().ok_or_else(short)?, self.buffer().ok_or_else(short)?);
            self.mark(node, buffer, &mut lengths)?;
            for child in children {
                if child.name() == "bytes" {
                    leaf = child.data_type();
                    break;
                }
                self.layout.pass(child.data_type(), &mut self.at).ok_or_else(short)?;
            }
        }
        let node = self.node().ok_or_else(short)?;
        if node.0 != rows {
            return Err(corrupt("a column has another number of rows than its batch"));
        }
        let validity = self.buffer().ok_or_else(short)?;
        self.mark(node, validity, &mut lengths)?;
        match leaf {
            D::Utf8 | D::Binary => self.offsets(4, 1, &mut begins, &mut lengths)?,
            D::LargeUtf8 | D::LargeBinary => self.offsets(8, 1, &mut begins, &mut lengths)?,
            D::Utf8View | D::BinaryView => self.views(&mut begins, &mut lengths)?,
            D::List(child) | D::LargeList(child) => {
                let wide = if matches!(leaf, D::List(_)) { 4 } else { 8 };
                let Some(width) =
                    fixed_width(child.data_type()).filter(|_| !child.data_type().is_nested())
                else {
                    return Ok(None);
                };
                let offsets = self.at.buffer;
                self.at.buffer += 1;
                let child = self.node().ok_or_else(short)?;
                self.buffer().ok_or_else(short)?;
                if child.1 > 0 {
                    return Ok(None);
                }
                // The values lie behind the child's own validity.
                let values = self.at.buffer;
                self.offsets_at(offsets, values, wide, width, &mut begins, &mut lengths)?;
            }
            _ => return Ok(None),
        }
        buffer::grow(&mut noted.begins, begins.len())?;
        buffer::grow(&mut noted.lengths, lengths.len())?;
        noted.begins.append(&mut begins);
        noted.lengths.append(&mut lengths);
        noted.rows += rows;
        Ok(Some(()))
    }

    /// Values of one width, without any that are missing.
    fn note_fixed(
        &mut self,
        data_type: &DataType,
        width: u64,
        rows: u64,
        noted: &mut Noted,
    ) -> Result<Option<()>, Fault> {
        let short = || corrupt("a batch has fewer arrays than its schema");
        let mut inner = data_type;
        let mut expected = rows;
        loop {
            let (length, missing) = self.node().ok_or_else(short)?;
            self.buffer().ok_or_else(short)?;
            if length != expected {
                return Err(corrupt("a column has another number of rows than its batch"));
            }
            if missing > 0 {
                return Ok(None);
            }
            let DataType::FixedSizeList(child, size) = inner else { break };
            expected = expected.checked_mul(*size as u64).ok_or_else(short)?;
            inner = child.data_type();
        }
        let (begin, have) = self.buffer().ok_or_else(short)?;
        if rows.checked_mul(width).is_none_or(|bytes| bytes > have) {
            return Err(corrupt("a buffer is too short"));
        }
        noted.width = width;
        noted.rows += rows;
        noted.runs.push((noted.rows, begin));
        Ok(Some(()))
    }

    fn offsets(
        &mut self,
        wide: u64,
        width: u64,
        begins: &mut [u64],
        lengths: &mut [u32],
    ) -> Result<(), Fault> {
        let offsets = self.at.buffer;
        self.at.buffer += 2;
        self.offsets_at(offsets, offsets + 1, wide, width, begins, lengths)
    }

    /// Places between offsets of `wide` bytes that count values of `width` bytes.
    fn offsets_at(
        &self,
        offsets: usize,
        values: usize,
        wide: u64,
        width: u64,
        begins: &mut [u64],
        lengths: &mut [u32],
    ) -> Result<(), Fault> {
        let buffers = &self.layout.buffers;
        let (Some(offsets), Some(values)) = (buffers.get(offsets), buffers.get(values)) else {
            return Err(corrupt("a batch has fewer arrays than its schema"));
        };
        if begins.is_empty() {
            return Ok(());
        }
        let bytes = self.read(*offsets, (begins.len() as u64 + 1).checked_mul(wide))?;
        let at = |row: usize| -> u64 {
            let from = row * wide as usize;
            let bytes = &bytes[from..from + wide as usize];
            // A negative offset becomes a large one, beyond any buffer.
            bytes.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
        };
        for row in 0..begins.len() {
            if lengths[row] == MISSING {
                continue;
            }
            let (from, to) = (at(row).checked_mul(width), at(row + 1).checked_mul(width));
            let place = from.zip(to).filter(|(from, to)| from <= to && *to <= values.1);
            let (from, to) = place.ok_or_else(|| corrupt("a value lies outside its buffer"))?;
            begins[row] = values.0 + from;
            lengths[row] = length_of(to - from)?;
        }
        Ok(())
    }

    /// Places of views: short values lie in the view itself.
    fn views(&mut self, begins: &mut [u64], lengths: &mut [u32]) -> Result<(), Fault> {
        let short = || corrupt("a batch has fewer arrays than its schema");
        let views = self.buffer().ok_or_else(short)?;
        let first = self.at.buffer;
        let count = *self.layout.variadic.get(self.at.variadic).ok_or_else(short)? as usize;
        let data = self.layout.buffers.get(first..first.saturating_add(count)).ok_or_else(short)?;
        let bytes = self.read(views, (begins.len() as u64).checked_mul(16))?;
        for (row, view) in bytes.chunks_exact(16).enumerate() {
            if lengths[row] == MISSING {
                continue;
            }
            let number = |at: usize| {
                u64::from(u32::from_le_bytes([view[at], view[at + 1], view[at + 2], view[at + 3]]))
            };
            let length = number(0);
            begins[row] = if length <= 12 {
                views.0 + row as u64 * 16 + 4
            } else {
                let (begin, have) = data.get(number(8) as usize).ok_or_else(short)?;
                if number(12) + length > *have {
                    return Err(corrupt("a value lies outside its buffer"));
                }
                begin + number(12)
            };
            lengths[row] = length_of(length)?;
        }
        Ok(())
    }
}

fn length_of(bytes: u64) -> Result<u32, Fault> {
    let length = u32::try_from(bytes).ok().filter(|length| *length != MISSING);
    length.ok_or_else(|| Fault::TooLarge("has a value of more than 4 GB".to_owned()))
}

/// Rows that some buffer could hold: every row takes a bit at least somewhere in the file.
fn rows_of(rows: u64, layout: &BatchMessage) -> Result<usize, Fault> {
    let largest = layout.buffers.iter().map(|buffer| buffer.1).max().unwrap_or(0);
    match rows <= largest {
        true => Ok(rows as usize),
        false => Err(corrupt("a batch has more rows than its buffers hold")),
    }
}

/// Bytes of a value of one width that is kept as it is.
pub(super) fn fixed_width(data_type: &DataType) -> Option<u64> {
    match data_type {
        DataType::FixedSizeBinary(width) => u64::try_from(*width).ok(),
        DataType::FixedSizeList(child, length) => {
            fixed_width(child.data_type())?.checked_mul(u64::try_from(*length).ok()?)
        }
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..)
        | DataType::Interval(_) => None,
        other => other.primitive_width().map(|width| width as u64),
    }
}
