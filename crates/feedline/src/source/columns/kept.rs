//! A column that is decoded when its table is opened and stays in memory: each distinct value once,
//! however many rows have it, so that a dictionary costs what its file holds of it.

use std::collections::HashMap;

use arrow_array::Array;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::values::{Sort, bytes_of, is_missing, number_bytes, write_row};
use crate::buffer;
use crate::error::Fault;
use crate::sample::{FieldKind, Room};
use crate::spec::read::show_bytes;

/// So many distinct values are looked for again; further ones are stored as they come.
const MOST_KNOWN: usize = 1 << 16;
/// The number of a value that is not there.
const NOTHING: u32 = u32::MAX;

/// Values of a column, by rows.
pub(in crate::source) struct KeptColumn {
    rows: Rows,
    /// Bytes of the distinct values, or of all rows where these have one width.
    bytes: Vec<u8>,
    /// Bytes of all rows as if each had its own.
    unfolded: u64,
}

enum Rows {
    /// Values of one width, one after the other.
    Even {
        width: usize,
        /// Rows so far.
        count: u64,
        /// A bit for each row without a value, up to the last of those.
        missing: Vec<u8>,
    },
    /// Where each distinct value ends, and which of them a row has.
    Folded { ends: Vec<u32>, numbers: Vec<u32> },
}

/// What is needed while values are added.
#[derive(Default)]
pub(in crate::source) struct Folding {
    /// Numbers of values by their hashes.
    known: HashMap<u64, u32>,
    value: RowRoom,
}

/// A [`Room`] for one value at a time.
#[derive(Default)]
pub(in crate::source) struct RowRoom(pub Vec<u8>);

impl Room for RowRoom {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        self.0.clear();
        buffer::extend_zeroed(&mut self.0, bytes)?;
        Ok(&mut self.0)
    }
}

impl KeptColumn {
    /// Bytes that `rows` values take at least.
    pub(in crate::source) fn least(sort: &Sort, rows: u64) -> u64 {
        rows.saturating_mul(width_of(sort).map_or(4, |width| width as u64))
    }

    /// Room for a column of `rows` values.
    pub(in crate::source) fn new(sort: &Sort, rows: u64) -> Result<KeptColumn, Fault> {
        let (mut bytes, mut numbers) = (Vec::new(), Vec::new());
        let rows = match width_of(sort) {
            Some(width) => {
                buffer::reserve(&mut bytes, Self::least(sort, rows))?;
                Rows::Even { width, count: 0, missing: Vec::new() }
            }
            None => {
                buffer::reserve(&mut numbers, rows)?;
                Rows::Folded { ends: Vec::new(), numbers }
            }
        };
        Ok(KeptColumn { rows, bytes, unfolded: 0 })
    }

    /// Bytes that it takes.
    pub(in crate::source) fn held(&self) -> u64 {
        let rows = match &self.rows {
            Rows::Even { missing, .. } => missing.capacity(),
            Rows::Folded { ends, numbers } => 4 * (ends.capacity() + numbers.capacity()),
        };
        (self.bytes.capacity() + rows) as u64
    }

    /// Adds all rows of an array; `false` if all rows would then take more than `most` bytes, which
    /// is known before anything is unfolded. What is kept of them takes no more than `room`.
    pub(in crate::source) fn append(
        &mut self,
        array: &dyn Array,
        sort: &Sort,
        folding: &mut Folding,
        most: u64,
        room: u64,
    ) -> Result<bool, Fault> {
        let KeptColumn { rows, bytes, unfolded } = self;
        match rows {
            Rows::Even { width, count, missing } => {
                let plain = number_bytes(array)
                    .filter(|all| array.null_count() == 0 && all.len() == array.len() * *width);
                if let Some(all) = plain {
                    make_room(bytes, all.len(), room)?;
                    bytes.extend_from_slice(all);
                    *count += array.len() as u64;
                    *unfolded = bytes.len() as u64;
                    return Ok(*unfolded <= most);
                }
                for row in 0..array.len() {
                    let begin = bytes.len();
                    if is_missing(array, row) {
                        make_room(bytes, *width, room)?;
                        buffer::extend_zeroed(bytes, *width as u64)?;
                        set_bit(missing, *count)?;
                    } else {
                        write_row(array, row, sort, &mut folding.value)?;
                        let value = &folding.value.0;
                        if value.len() != *width {
                            return Err(Fault::Shape(format!(
                                "has a value of {} bytes, where others have {width}",
                                value.len()
                            )));
                        }
                        make_room(bytes, value.len(), room)?;
                        bytes.extend_from_slice(value);
                    }
                    *count += 1;
                    *unfolded += (bytes.len() - begin) as u64;
                    if *unfolded > most {
                        return Ok(false);
                    }
                }
            }
            Rows::Folded { ends, numbers } => {
                let in_lists = matches!(sort, Sort::Plain(FieldKind::Ragged { .. }));
                buffer::reserve(numbers, array.len() as u64)?;
                for row in 0..array.len() {
                    if is_missing(array, row) {
                        numbers.push(NOTHING);
                        continue;
                    }
                    let value = match in_lists {
                        true => {
                            write_row(array, row, sort, &mut folding.value)?;
                            &folding.value.0
                        }
                        false => bytes_of(array, row)?,
                    };
                    *unfolded += value.len() as u64;
                    if *unfolded > most.min(u64::from(u32::MAX)) {
                        return Ok(false);
                    }
                    let room = room.saturating_sub(4 * (numbers.len() + ends.len()) as u64);
                    numbers.push(fold(value, bytes, ends, &mut folding.known, room)?);
                }
            }
        }
        Ok(true)
    }

    /// The value of a row, if it has one.
    pub(in crate::source) fn get(&self, row: u64) -> Option<&[u8]> {
        match &self.rows {
            Rows::Even { width, missing, .. } => {
                if missing.get((row / 8) as usize).is_some_and(|byte| byte >> (row % 8) & 1 == 1) {
                    return None;
                }
                let begin = usize::try_from(row).ok()?.checked_mul(*width)?;
                self.bytes.get(begin..begin + width)
            }
            Rows::Folded { ends, numbers } => {
                let number = *numbers.get(usize::try_from(row).ok()?)?;
                match number == NOTHING {
                    true => None,
                    false => Some(distinct(&self.bytes, ends, number)),
                }
            }
        }
    }

    /// A hash of all rows, as if each had its own bytes.
    pub(in crate::source) fn fingerprint(&self, seed: u64) -> u64 {
        let mut hash = Xxh3::with_seed(seed);
        match &self.rows {
            Rows::Even { .. } => hash.update(&self.bytes),
            Rows::Folded { ends, numbers } => numbers
                .iter()
                .filter(|number| **number != NOTHING)
                .for_each(|number| hash.update(distinct(&self.bytes, ends, *number))),
        }
        hash.digest()
    }

    /// Gives back what was reserved and not needed.
    pub(in crate::source) fn settle(&mut self) {
        self.bytes.shrink_to_fit();
        match &mut self.rows {
            Rows::Even { missing, .. } => missing.shrink_to_fit(),
            Rows::Folded { ends, numbers } => {
                ends.shrink_to_fit();
                numbers.shrink_to_fit();
            }
        }
    }
}

/// Bytes of a value, if all have the same.
fn width_of(sort: &Sort) -> Option<usize> {
    match sort.kind() {
        FieldKind::Array { dtype, shape } => {
            Some(shape.iter().fold(dtype.size(), |size, axis| size.saturating_mul(*axis)))
        }
        _ => None,
    }
}

/// Value number `number`.
fn distinct<'a>(bytes: &'a [u8], ends: &[u32], number: u32) -> &'a [u8] {
    let at = number as usize;
    let begin = if at == 0 { 0 } else { ends.get(at - 1).map_or(0, |end| *end as usize) };
    let end = ends.get(at).map_or(begin, |end| *end as usize);
    bytes.get(begin..end).unwrap_or_default()
}

/// Makes room for more bytes, of `room` in all: twice what there is, as far as that goes.
fn make_room(bytes: &mut Vec<u8>, more: usize, room: u64) -> Result<(), Fault> {
    let length = bytes.len() as u64;
    if length.saturating_add(more as u64) > room {
        return Err(Fault::TooLarge(format!(
            "has columns that are kept in memory and take more than the {} that are left: give more memory, or choose fewer columns with fields",
            show_bytes(room)
        )));
    }
    match bytes.capacity() - bytes.len() >= more {
        true => Ok(()),
        false => buffer::reserve(bytes, length.clamp(more as u64, room - length)),
    }
}

/// The number of a value, which is added if it is new.
fn fold(
    value: &[u8],
    bytes: &mut Vec<u8>,
    ends: &mut Vec<u32>,
    known: &mut HashMap<u64, u32>,
    room: u64,
) -> Result<u32, Fault> {
    let hash = xxh3_64(value);
    // Another value of the same hash is stored as it comes.
    if let Some(number) = known.get(&hash).filter(|at| distinct(bytes, ends, **at) == value) {
        return Ok(*number);
    }
    let number = ends.len() as u32;
    make_room(bytes, value.len(), room)?;
    bytes.extend_from_slice(value);
    buffer::grow(ends, 1)?;
    ends.push(bytes.len() as u32);
    if known.len() < MOST_KNOWN {
        known.insert(hash, number);
    }
    Ok(number)
}

fn set_bit(bits: &mut Vec<u8>, at: u64) -> Result<(), Fault> {
    let byte = (at / 8) as usize;
    if byte >= bits.len() {
        buffer::grow(bits, byte + 1 - bits.len())?;
        bits.resize(byte + 1, 0);
    }
    bits[byte] |= 1 << (at % 8);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{BooleanArray, DictionaryArray, Int32Array, StringArray};

    use super::*;

    fn text() -> Sort {
        Sort::Plain(FieldKind::Text)
    }

    #[test]
    fn equal_texts_are_kept_once_and_hash_as_if_each_were_there() {
        let long = "x".repeat(1000);
        let texts = [Some("a"), None, Some(&*long), Some(""), Some("a"), Some(&*long)];
        let mut column = KeptColumn::new(&text(), 600).unwrap();
        let mut folding = Folding::default();
        let array = StringArray::from(texts.to_vec());
        for _ in 0..100 {
            assert!(column.append(&array, &text(), &mut folding, 1 << 20, u64::MAX).unwrap());
        }
        column.settle();
        assert!(column.held() < 4000, "{}", column.held());
        for row in 0..600 {
            let value = texts[row as usize % 6].map(str::as_bytes);
            assert_eq!(column.get(row), value, "row {row}");
        }
        assert_eq!(column.get(600), None);
        let all: String = (0..100).flat_map(|_| texts.into_iter().flatten()).collect();
        let plain = xxhash_rust::xxh3::xxh3_64_with_seed(all.as_bytes(), 7);
        assert_eq!(column.fingerprint(7), plain);
    }

    #[test]
    fn a_column_that_would_unfold_to_too_much_ends_before_it_does() {
        let long = "x".repeat(1 << 20);
        let values = Arc::new(StringArray::from(vec![long]));
        let keys = Int32Array::from(vec![0; 20_000]);
        let array = DictionaryArray::<Int32Type>::new(keys, values);
        let mut column = KeptColumn::new(&text(), 20_000).unwrap();
        let mut folding = Folding::default();
        let kept = column.append(&array, &text(), &mut folding, 1 << 27, u64::MAX).unwrap();
        assert!(!kept && column.held() < 4 << 20, "{}", column.held());
    }

    #[test]
    fn rows_of_one_width_know_which_are_missing() {
        let sort = Sort::Plain(FieldKind::scalar(crate::sample::DType::Bool));
        let mut column = KeptColumn::new(&sort, 20).unwrap();
        let array = BooleanArray::from(
            (0..20).map(|row| (row % 5 != 3).then_some(row % 2 == 0)).collect::<Vec<_>>(),
        );
        assert!(column.append(&array, &sort, &mut Folding::default(), 100, 100).unwrap());
        for row in 0..20 {
            let value = [u8::from(row % 2 == 0)];
            assert_eq!(column.get(row), (row % 5 != 3).then_some(&value[..]), "row {row}");
        }
        assert_eq!(KeptColumn::least(&sort, 101), 101);
    }
}
