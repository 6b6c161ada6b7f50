//! Values of tables of text: what a column of them holds, and how one is written as a field.

use std::borrow::Cow;

use serde_json::Value as Json;

use crate::error::Fault;
use crate::sample::{DType, FieldKind, Room};

/// Lists lie in each other no deeper.
const DEEPEST: usize = 8;

/// One value of a row.
pub(in crate::source) enum Cell<'a> {
    /// There is none.
    Missing,
    /// Written without saying what it is.
    Word(Cow<'a, str>),
    /// Written as JSON.
    Json(&'a Json),
}

/// What a column was seen to hold.
#[derive(Default, Clone, PartialEq)]
pub(in crate::source) struct Seen {
    whole: bool,
    number: bool,
    /// Some number would be another one as float32.
    wide: bool,
    truth: bool,
    text: bool,
    /// Written as JSON text, rather than as a word of unknown type.
    quoted: bool,
    odd: bool,
    /// Axes of lists, and their shape while all have the same.
    list: Option<(usize, Option<Vec<usize>>)>,
}

fn truth(word: &str) -> Option<bool> {
    match word {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// Whether float32 does not hold a number: large whole ones are to be exact, and none may become
/// infinite or nothing.
fn is_wide(number: f64) -> bool {
    let error = (f64::from(number as f32) - number).abs();
    let exact = number.fract() == 0.0 && number.abs() > f64::from(1 << 24);
    number.is_finite() && (error > number.abs() / f64::from(1 << 23) || (exact && error > 0.0))
}

impl Seen {
    /// Takes note of a value.
    pub(in crate::source) fn see(&mut self, cell: &Cell<'_>) {
        match cell {
            Cell::Missing => {}
            Cell::Word(word) => {
                let word = word.trim();
                if word.is_empty() {
                } else if let Ok(whole) = word.parse::<i64>() {
                    self.whole = true;
                    self.wide |= is_wide(whole as f64);
                } else if let Ok(number) = word.parse::<f64>() {
                    self.number = true;
                    let digits = word.trim_start_matches(['+', '-']);
                    // It is a whole number too large for int64.
                    let large = digits.bytes().all(|digit| digit.is_ascii_digit());
                    self.wide |= large || is_wide(number);
                } else if truth(word).is_some() {
                    self.truth = true;
                } else {
                    self.text = true;
                }
            }
            Cell::Json(Json::Null) => {}
            Cell::Json(Json::String(_)) => (self.text, self.quoted) = (true, true),
            Cell::Json(Json::Object(_)) => self.odd = true,
            Cell::Json(Json::Array(_)) => {
                let Cell::Json(list) = cell else { return };
                let mut shape = Vec::new();
                let mut each = |number: &Json| self.see(&Cell::Json(number));
                let even = walk(list, 0, &mut shape, &mut each);
                match &mut self.list {
                    _ if even.is_none() => self.odd = true,
                    None => self.list = Some((shape.len(), Some(shape))),
                    // A list without elements may have any more axes.
                    Some((axes, known)) if shape.len() < *axes && shape.contains(&0) => {
                        *known = None;
                    }
                    Some((axes, Some(known))) if *axes < shape.len() && known.contains(&0) => {
                        self.list = Some((shape.len(), None));
                    }
                    Some((axes, _)) if *axes != shape.len() => self.odd = true,
                    Some((_, known)) if known.as_ref() != Some(&shape) => *known = None,
                    Some(_) => {}
                }
            }
            Cell::Json(Json::Bool(_)) => self.truth = true,
            Cell::Json(Json::Number(number)) => match number.as_i64() {
                Some(whole) => {
                    self.whole = true;
                    self.wide |= is_wide(whole as f64);
                }
                None => {
                    self.number = true;
                    self.wide |= number.is_u64() || number.as_f64().is_some_and(is_wide);
                }
            },
        }
    }

    /// What the column is; `None` if it is several things.
    pub(in crate::source) fn kind(&self) -> Option<FieldKind> {
        let numbers = self.whole || self.number;
        let dtype = match (self.truth, numbers, self.number) {
            (true, false, _) => Some(DType::Bool),
            (false, true, false) => Some(DType::I64),
            (false, true, true) if self.wide => Some(DType::F64),
            (false, true, true) => Some(DType::F32),
            _ => None,
        };
        if self.odd || (self.quoted && (numbers || self.truth || self.list.is_some())) {
            return None;
        }
        match &self.list {
            None if self.text || dtype.is_none() => Some(FieldKind::Text),
            None => dtype.map(FieldKind::scalar),
            Some(_) if self.text => None,
            // Lists that are all empty are lists of numbers.
            Some((_, Some(shape))) => {
                let (dtype, shape) = (dtype.unwrap_or(DType::F32), shape.clone());
                Some(FieldKind::Array { dtype, shape })
            }
            Some((axes, None)) => {
                Some(FieldKind::Ragged { dtype: dtype.unwrap_or(DType::F32), axes: *axes })
            }
        }
    }
}

/// Walks over nested lists, all of one length on each axis; `None` if they are not.
fn walk(
    list: &Json,
    depth: usize,
    shape: &mut Vec<usize>,
    each: &mut dyn FnMut(&Json),
) -> Option<()> {
    let Json::Array(items) = list else {
        each(list);
        return (depth == shape.len() && !list.is_null()).then_some(());
    };
    match shape.get(depth) {
        None if depth < DEEPEST => shape.push(items.len()),
        Some(length) if *length == items.len() => {}
        _ => return None,
    }
    items.iter().try_for_each(|item| walk(item, depth + 1, shape, each))
}

/// The number in a cell.
pub(in crate::source) fn number_in(cell: &Cell<'_>) -> Option<f64> {
    match cell {
        Cell::Missing => None,
        Cell::Word(word) => word.trim().parse().ok(),
        Cell::Json(value) => value.as_f64(),
    }
}

/// The number in a cell as float32.
pub(in crate::source) fn single_in(cell: &Cell<'_>) -> Option<f32> {
    match cell {
        // Rounded once: by way of f64 it would be twice.
        Cell::Word(word) => word.trim().parse().ok(),
        cell => number_in(cell).map(|number| number as f32),
    }
}

/// The truth in a cell.
pub(in crate::source) fn truth_in(cell: &Cell<'_>) -> Option<bool> {
    match cell {
        Cell::Missing => None,
        Cell::Word(word) => truth(word.trim()),
        Cell::Json(value) => value.as_bool(),
    }
}

/// The whole number in a cell.
pub(in crate::source) fn whole_in(cell: &Cell<'_>) -> Option<i64> {
    match cell {
        Cell::Missing => None,
        Cell::Word(word) => word.trim().parse().ok(),
        Cell::Json(value) => value.as_i64(),
    }
}

/// Writes a cell as a field of that kind.
pub(in crate::source) fn write(
    cell: &Cell<'_>,
    kind: &FieldKind,
    room: &mut dyn Room,
) -> Result<bool, Fault> {
    let (dtype, list) = match (kind, cell) {
        (_, Cell::Missing | Cell::Json(Json::Null)) => return Ok(false),
        (FieldKind::Text | FieldKind::Bytes, Cell::Word(word)) => {
            room.make(word.len() as u64)?.copy_from_slice(word.as_bytes());
            return Ok(true);
        }
        (FieldKind::Text | FieldKind::Bytes, Cell::Json(value)) => {
            let text = match value {
                Json::String(text) => Cow::Borrowed(text.as_str()),
                other => Cow::Owned(other.to_string()),
            };
            room.make(text.len() as u64)?.copy_from_slice(text.as_bytes());
            return Ok(true);
        }
        (FieldKind::Array { dtype, .. } | FieldKind::Ragged { dtype, .. }, Cell::Json(list)) => {
            (*dtype, list)
        }
        _ => return Ok(false),
    };
    let mut shape = Vec::new();
    let mut bytes: Vec<u8> = Vec::new();
    let mut sound = true;
    let even = walk(list, 0, &mut shape, &mut |item| {
        let item = Cell::Json(item);
        match dtype {
            DType::Bool => match truth_in(&item) {
                Some(truth) => bytes.push(u8::from(truth)),
                None => sound = false,
            },
            DType::I64 => match whole_in(&item) {
                Some(whole) => bytes.extend(whole.to_ne_bytes()),
                None => sound = false,
            },
            DType::F64 => match number_in(&item) {
                Some(number) => bytes.extend(number.to_ne_bytes()),
                None => sound = false,
            },
            _ => match single_in(&item) {
                Some(number) => bytes.extend(number.to_ne_bytes()),
                None => sound = false,
            },
        }
    });
    if even.is_none() || !sound {
        return Err(Fault::Shape("has lists of several lengths, or other than numbers".to_owned()));
    }
    match kind {
        FieldKind::Ragged { axes, .. } if *axes != 1 => {
            shape.resize(*axes, 0);
            room.shape(&shape);
        }
        FieldKind::Array { shape: wanted, .. } if *wanted != shape => {
            return Err(Fault::Shape(format!("has the shape {shape:?} instead of {wanted:?}")));
        }
        _ => {}
    }
    room.make(bytes.len() as u64)?.copy_from_slice(&bytes);
    Ok(true)
}
