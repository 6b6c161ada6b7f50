//! How a field lies in formats of arrays: as rows of one shape, or as stretches of a long array.

use std::path::Path;

use super::record::{Given, Record};
use crate::error::{Error, Result};
use crate::sample::{DType, Field, FieldKind};

/// How a field is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FieldLayout {
    /// An array with a row for each sample.
    Rows {
        /// The type of its elements.
        dtype: DType,
        /// The shape of a row.
        shape: Vec<usize>,
    },
    /// One long array of which each sample is a stretch.
    Stretches {
        /// The type of its elements.
        dtype: DType,
        /// How many axes a sample has; `None` for bytes and text, which have no shape.
        axes: Option<usize>,
        /// True for text.
        text: bool,
    },
}

impl FieldLayout {
    /// The layout of a field.
    pub(super) fn of(field: &Field) -> FieldLayout {
        let stretches = |dtype, axes, text| FieldLayout::Stretches { dtype, axes, text };
        match &field.kind {
            FieldKind::Array { dtype, shape } => {
                FieldLayout::Rows { dtype: *dtype, shape: shape.clone() }
            }
            FieldKind::Ragged { dtype, axes } => stretches(*dtype, Some(*axes), false),
            FieldKind::Pixels { .. } => stretches(DType::U8, Some(3), false),
            FieldKind::Text => stretches(DType::U8, None, true),
            FieldKind::EncodedImage | FieldKind::Bytes => stretches(DType::U8, None, false),
        }
    }

    /// The type of the elements.
    pub(super) fn dtype(&self) -> DType {
        match self {
            FieldLayout::Rows { dtype, .. } | FieldLayout::Stretches { dtype, .. } => *dtype,
        }
    }

    /// Says what is wrong with a value, which is a mistake of the program.
    fn check(&self, given: &Given<'_>) -> std::result::Result<(), String> {
        let shape = match self {
            FieldLayout::Rows { shape, .. } => &shape[..],
            FieldLayout::Stretches { axes: Some(axes), .. } if given.shape.len() == *axes => {
                given.shape
            }
            FieldLayout::Stretches { axes: Some(axes), .. } => {
                return Err(format!("has shape {:?}, not {axes} axes", given.shape));
            }
            FieldLayout::Stretches { axes: None, .. } => return Ok(()),
        };
        let wanted = shape.iter().product::<usize>() * self.dtype().size();
        match wanted == given.bytes.len() {
            true => Ok(()),
            false => Err(format!("has {} bytes, {shape:?} needs {wanted}", given.bytes.len())),
        }
    }
}

/// The layouts of all fields, whose names can be names of files.
pub(super) fn layouts(path: &Path, fields: &[Field]) -> Result<Vec<FieldLayout>> {
    for field in fields {
        let name = &field.name;
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            return Err(Error::Source {
                what: path.display().to_string(),
                problem: format!("cannot have a field called {name:?}: give it another name"),
            });
        }
    }
    Ok(fields.iter().map(FieldLayout::of).collect())
}

/// Bytes of a block at most: it is put together in memory.
const LARGEST_BLOCK: u64 = 256_000_000;

/// The rows of `row` bytes that a block is to have, if they are said.
pub(super) fn rows_of_block(path: &Path, said: Option<u64>, row: usize) -> Result<Option<usize>> {
    let most = (LARGEST_BLOCK / (row as u64).max(1)).max(1);
    match said {
        Some(rows) if rows > most => Err(Error::Source {
            what: path.display().to_string(),
            problem: format!(
                "cannot have {rows} samples of {row} bytes in a block, which is made in memory: block_samples may be {most} at most"
            ),
        }),
        said => Ok(said.map(|rows| rows.max(1) as usize)),
    }
}

/// Checks a sample against the layouts.
pub(super) fn check(path: &Path, layouts: &[FieldLayout], record: &Record<'_>) -> Result<()> {
    let wrong = |problem: String| Error::Source {
        what: path.display().to_string(),
        problem: format!("sample {:?} {problem}", record.key),
    };
    if layouts.len() != record.values.len() {
        return Err(wrong(format!("has {} fields", record.values.len())));
    }
    for (layout, given) in layouts.iter().zip(record.values) {
        layout.check(given).map_err(wrong)?;
    }
    Ok(())
}

/// The shape of a sample as bytes of int64.
pub(super) fn shape_bytes(shape: &[usize]) -> Vec<u8> {
    shape.iter().flat_map(|axis| (*axis as i64).to_ne_bytes()).collect()
}
