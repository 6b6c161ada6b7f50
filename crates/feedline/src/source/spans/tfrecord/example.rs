//! tf.train.Example and SequenceExample: which feature lies where in a record.

use std::ops::Range;

use super::wire::{Bad, Fields, Raw};

/// What one record holds for a feature.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::source) enum Feature {
    /// It is there, and empty.
    Nothing,
    /// Strings of bytes: how many, and the place of the first.
    Bytes(usize, Range<usize>),
    /// Numbers.
    Numbers(Numbers),
}

/// Whole or floating-point numbers.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::source) struct Numbers {
    /// Floating-point numbers rather than whole ones.
    pub(in crate::source) is_float: bool,
    /// How many there are in all.
    pub(in crate::source) count: usize,
    /// For a list of features: how many there are, one for each step.
    pub(in crate::source) steps: Option<usize>,
    /// All steps have equally many.
    pub(in crate::source) is_even: bool,
    /// The list as it is encoded.
    pub(in crate::source) list: Range<usize>,
    /// Where its elements lie one after the other in the machine's own form.
    pub(in crate::source) plain: Option<Range<usize>>,
    /// The first of them, a floating-point number as its bits.
    pub(in crate::source) first: i64,
}

/// Calls `seen` with each feature of a record. A SequenceExample's lists come as numbers with
/// steps, or as bytes with as many values as all steps have.
pub(in crate::source) fn walk<'a>(
    record: &'a [u8],
    place: Range<usize>,
    seen: &mut dyn FnMut(&'a str, Feature) -> Result<(), Bad>,
) -> Result<(), Bad> {
    let mut fields = Fields::new(record, place);
    while let Some((number, value)) = fields.next()? {
        let Raw::Bytes(place) = value else { continue };
        if number == 1 || number == 2 {
            let mut entries = Fields::new(record, place);
            while let Some((each, value)) = entries.next()? {
                if let (1, Raw::Bytes(entry)) = (each, value) {
                    let (name, value) = entry_of(record, entry)?;
                    let feature = match number {
                        1 => feature_of(record, value)?,
                        _ => feature_list_of(record, value)?,
                    };
                    seen(name, feature)?;
                }
            }
        }
    }
    Ok(())
}

/// A map's entry: its key, and the place of its value.
fn entry_of(record: &[u8], place: Range<usize>) -> Result<(&str, Range<usize>), Bad> {
    let mut fields = Fields::new(record, place);
    let (mut name, mut value) = (0..0, 0..0);
    while let Some(field) = fields.next()? {
        match field {
            (1, Raw::Bytes(place)) => name = place,
            (2, Raw::Bytes(place)) => value = place,
            _ => {}
        }
    }
    let name = std::str::from_utf8(&record[name]).map_err(|_| "a feature's name is not UTF-8")?;
    Ok((name, value))
}

/// The one list of a feature: its number in the message, and its place.
fn list_of(record: &[u8], place: Range<usize>) -> Result<Option<(u64, Range<usize>)>, Bad> {
    let mut fields = Fields::new(record, place);
    let mut list: Option<(u64, Range<usize>)> = None;
    while let Some((number, value)) = fields.next()? {
        let (1..=3, Raw::Bytes(place)) = (number, value) else { continue };
        match &list {
            Some((before, _)) if *before == number => {
                return Err("a feature's list is in two parts, which is not supported");
            }
            _ => list = Some((number, place)),
        }
    }
    Ok(list)
}

fn feature_of(record: &[u8], place: Range<usize>) -> Result<Feature, Bad> {
    Ok(match list_of(record, place)? {
        None => Feature::Nothing,
        Some((1, list)) => {
            let (count, first) = bytes_of(record, list)?;
            if count == 0 { Feature::Nothing } else { Feature::Bytes(count, first) }
        }
        Some((number, list)) => numbers_of(record, list, number == 2)?,
    })
}

/// A part of a list of numbers.
enum Run {
    /// Many, one after the other; those of floating point lie as the machine has them.
    Packed(Range<usize>),
    /// One; a floating-point number as its bits.
    One(i64),
}

fn bits(bytes: &[u8]) -> i64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | i64::from(*byte))
}

/// Calls `seen` with each part of a list of numbers.
fn runs(
    record: &[u8],
    list: Range<usize>,
    is_float: bool,
    seen: &mut dyn FnMut(Run) -> Result<(), Bad>,
) -> Result<(), Bad> {
    let mut fields = Fields::new(record, list);
    while let Some((number, value)) = fields.next()? {
        seen(match (number, value, is_float) {
            (1, Raw::Bytes(place), true) if place.len() % 4 != 0 => {
                return Err("a list of floats is not whole");
            }
            (1, Raw::Bytes(place), _) => Run::Packed(place),
            (1, Raw::Varint(value), false) => Run::One(value as i64),
            (1, Raw::Fixed32(place), true) => Run::One(bits(&record[place])),
            (1, _, _) => return Err("a list's elements are of another type than the list"),
            _ => continue,
        })?;
    }
    Ok(())
}

fn numbers_of(record: &[u8], list: Range<usize>, is_float: bool) -> Result<Feature, Bad> {
    let (mut count, mut first, mut parts, mut plain) = (0, 0, 0, None);
    runs(record, list.clone(), is_float, &mut |run| {
        parts += 1;
        match run {
            Run::One(value) => {
                first = if count == 0 { value } else { first };
                count += 1;
                plain = None;
            }
            Run::Packed(place) if is_float => {
                first = match record.get(place.start..place.start + 4) {
                    Some(bytes) if count == 0 && !place.is_empty() => bits(bytes),
                    _ => first,
                };
                count += place.len() / 4;
                plain = Some(place);
            }
            Run::Packed(place) => {
                let mut values = Fields::new(record, place);
                while !values.is_done() {
                    let value = values.varint()? as i64;
                    first = if count == 0 { value } else { first };
                    count += 1;
                }
            }
        }
        Ok(())
    })?;
    let plain = plain.filter(|_| parts == 1);
    Ok(match count {
        0 => Feature::Nothing,
        _ => Feature::Numbers(Numbers {
            is_float,
            count,
            steps: None,
            is_even: true,
            list,
            plain,
            first,
        }),
    })
}

fn bytes_of(record: &[u8], list: Range<usize>) -> Result<(usize, Range<usize>), Bad> {
    let mut fields = Fields::new(record, list);
    let (mut count, mut first) = (0, 0..0);
    while let Some(field) = fields.next()? {
        if let (1, Raw::Bytes(place)) = field {
            if count == 0 {
                first = place;
            }
            count += 1;
        }
    }
    Ok((count, first))
}

fn feature_list_of(record: &[u8], list: Range<usize>) -> Result<Feature, Bad> {
    let mut features = Fields::new(record, list.clone());
    let (mut steps, mut found, mut each) = (0, None, None);
    let mut is_even = true;
    while let Some((number, value)) = features.next()? {
        let (1, Raw::Bytes(place)) = (number, value) else { continue };
        steps += 1;
        let feature = feature_of(record, place)?;
        let count = match &feature {
            Feature::Nothing => 0,
            Feature::Bytes(count, _) => *count,
            Feature::Numbers(numbers) => numbers.count,
        };
        is_even &= *each.get_or_insert(count) == count;
        match (&mut found, feature) {
            (_, Feature::Nothing) => {}
            (None, first) => found = Some(first),
            (Some(Feature::Bytes(sum, _)), Feature::Bytes(..)) => *sum += count,
            (Some(Feature::Numbers(sum)), Feature::Numbers(next))
                if sum.is_float == next.is_float =>
            {
                sum.count += count;
            }
            _ => return Err("a feature list's steps are of different types"),
        }
    }
    Ok(match found {
        Some(Feature::Numbers(numbers)) => {
            Feature::Numbers(Numbers { steps: Some(steps), is_even, list, plain: None, ..numbers })
        }
        other => other.unwrap_or(Feature::Nothing),
    })
}

/// Writes the numbers of a list, or of a list of features if it `has_steps`, as elements of eight
/// bytes (whole numbers) or four (floating-point ones). There have to be exactly as many as there
/// is room for.
pub(in crate::source) fn write_numbers(
    bytes: &[u8],
    is_float: bool,
    has_steps: bool,
    room: &mut [u8],
) -> Result<(), Bad> {
    let mut at = 0;
    let mut put = |more: &[u8]| {
        let place = room.get_mut(at..at + more.len());
        place.ok_or("there are more numbers than were counted")?.copy_from_slice(more);
        at += more.len();
        Ok(())
    };
    let size = if is_float { 4 } else { 8 };
    let mut write = |list: Range<usize>| {
        runs(bytes, list, is_float, &mut |run| match run {
            Run::One(value) => put(&value.to_le_bytes()[..size]),
            Run::Packed(place) if is_float => put(&bytes[place]),
            Run::Packed(place) => {
                let mut values = Fields::new(bytes, place);
                while !values.is_done() {
                    put(&values.varint()?.to_le_bytes())?;
                }
                Ok(())
            }
        })
    };
    if has_steps {
        let mut features = Fields::new(bytes, 0..bytes.len());
        while let Some((number, value)) = features.next()? {
            let (1, Raw::Bytes(place)) = (number, value) else { continue };
            if let Some((_, list)) = list_of(bytes, place)? {
                write(list)?;
            }
        }
    } else {
        write(0..bytes.len())?;
    }
    match at == room.len() {
        true => Ok(()),
        false => Err("there are fewer numbers than were counted"),
    }
}

/// How many numbers such a list has, and in how many steps.
pub(in crate::source) fn count_numbers(
    bytes: &[u8],
    is_float: bool,
    has_steps: bool,
) -> Result<(usize, usize), Bad> {
    let whole = 0..bytes.len();
    let feature = match has_steps {
        true => feature_list_of(bytes, whole)?,
        false => numbers_of(bytes, whole, is_float)?,
    };
    match feature {
        Feature::Numbers(numbers) if numbers.is_float == is_float => {
            Ok((numbers.count, numbers.steps.unwrap_or(numbers.count)))
        }
        Feature::Nothing => Ok((0, 0)),
        _ => Err("a feature list's steps are of another type than they were"),
    }
}
