//! The features of many records as columns.

use std::collections::HashMap;

use super::example::{Feature, Numbers, walk};
use super::wire::{Bad, Fields, Raw};
use crate::sample::DType;
use crate::source::spans::encoding::Encoding;
use crate::source::spans::look::Look;
use crate::source::spans::part::{ABSENT, ByteSpan, Content, SpanColumn, Values, array_bytes};

/// More features than this are no data set.
const MOST_COLUMNS: usize = 4096;

/// What one record holds for one feature.
struct RecordFeature {
    sample: u32,
    /// How many numbers, or strings of bytes.
    count: u32,
    steps: u32,
    place: ByteSpan,
    /// Where the elements begin in the place, if they lie there plainly up to its end.
    skip: u8,
    /// The first number.
    first: i64,
}

/// No elements lie plainly in the place.
const NOT_PLAIN: u8 = u8::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum FeatureType {
    Bytes,
    Numbers { is_float: bool, has_steps: bool },
}

/// Text or numbers that are the same in all records so far.
enum Same {
    Unknown,
    Text(Vec<u8>),
    Shape(Vec<usize>),
    Differs,
}

struct Gathered {
    name: String,
    kind: Option<FeatureType>,
    mixed: bool,
    uneven: bool,
    look: Look,
    same: Same,
    entries: Vec<RecordFeature>,
}

/// Collects the features of one record after the other.
pub(in crate::source) struct Columns {
    is_image: fn(&[u8]) -> bool,
    numbers: HashMap<String, usize>,
    columns: Vec<Gathered>,
    samples: u32,
    entries: u64,
}

impl Columns {
    pub(in crate::source) fn new(is_image: fn(&[u8]) -> bool) -> Columns {
        Columns { is_image, numbers: HashMap::new(), columns: Vec::new(), samples: 0, entries: 0 }
    }

    /// Adds a record that begins at byte `start` of its file.
    pub(in crate::source) fn add(&mut self, record: &[u8], start: u64) -> Result<(), Bad> {
        let sample = self.samples;
        self.samples = sample.checked_add(1).ok_or("there are too many records in one file")?;
        walk(record, 0..record.len(), &mut |name, feature| {
            let number = match self.numbers.get(name) {
                Some(number) => *number,
                None if self.columns.len() >= MOST_COLUMNS => {
                    return Err("there are more than 4096 different features");
                }
                None => {
                    self.numbers.insert(name.to_owned(), self.columns.len());
                    self.columns.push(Gathered::new(name, self.is_image));
                    self.columns.len() - 1
                }
            };
            let column = &mut self.columns[number];
            // Of a name that comes twice in a record the last one counts.
            if column.entries.last().is_some_and(|entry| entry.sample == sample) {
                column.entries.pop();
            } else {
                self.entries += 1;
            }
            column.add(record, start, sample, feature);
            Ok(())
        })
    }

    /// Bytes that are kept, with the columns that will be made of them: each takes a place and
    /// maybe a number for every record.
    pub(in crate::source) fn held(&self) -> u64 {
        let columns = self.columns.len() as u64;
        let cells = u64::from(self.samples).saturating_mul(columns);
        let entries = self.entries.saturating_mul(size_of::<RecordFeature>() as u64);
        cells.saturating_mul(24).saturating_add(entries).saturating_add(512 * columns)
    }

    /// How many records were added.
    pub(in crate::source) fn samples(&self) -> usize {
        self.samples as usize
    }

    /// All features, in the order of their names.
    pub(in crate::source) fn finish(mut self) -> Result<Vec<SpanColumn>, Bad> {
        let cells = u64::from(self.samples) * self.columns.len() as u64;
        if cells > (self.entries * 64).max(1 << 20) {
            return Err("the records have hardly a feature in common");
        }
        self.columns.sort_by(|a, b| a.name.cmp(&b.name));
        let samples = self.samples as usize;
        let same = self.columns.iter_mut().map(|column| {
            let same = std::mem::replace(&mut column.same, Same::Unknown);
            (column.name.clone(), same)
        });
        let same: HashMap<String, Same> = same.collect();
        let mut columns: Vec<SpanColumn> =
            self.columns.into_iter().filter_map(|column| column.finish(samples, &same)).collect();
        let mut described = Vec::new();
        for column in &mut columns {
            if apply_notes(column, &same) {
                described.push(column.name.clone());
            }
        }
        // What only describes another column is not a field of its own.
        for column in &mut columns {
            let about = column.name.strip_suffix("/shape").or(column.name.strip_suffix("/dtype"));
            column.hidden = about.is_some_and(|about| described.iter().any(|name| name == about));
        }
        name_fields(&mut columns);
        Ok(columns)
    }
}

impl Gathered {
    fn new(name: &str, is_image: fn(&[u8]) -> bool) -> Gathered {
        Gathered {
            name: name.to_owned(),
            kind: None,
            mixed: false,
            uneven: false,
            look: Look::new(is_image),
            same: Same::Unknown,
            entries: Vec::new(),
        }
    }

    fn add(&mut self, record: &[u8], start: u64, sample: u32, feature: Feature) {
        let mut entry = RecordFeature {
            sample,
            count: 0,
            steps: 0,
            place: [start, 0],
            skip: NOT_PLAIN,
            first: 0,
        };
        let kind = match feature {
            Feature::Nothing => {
                if self.name.ends_with("/shape") {
                    self.same.shape(Some(Vec::new()));
                }
                self.entries.push(entry);
                return;
            }
            Feature::Bytes(count, place) => {
                let bytes = &record[place.clone()];
                self.look.see(bytes, bytes.len() as u64);
                if self.name.ends_with("/dtype") {
                    self.same.text(bytes);
                }
                entry.count = short(count);
                entry.place = [start + place.start as u64, place.len() as u64];
                FeatureType::Bytes
            }
            Feature::Numbers(numbers) => {
                if self.name.ends_with("/shape") {
                    self.same.shape(axes_of(record, &numbers));
                }
                self.uneven |= !numbers.is_even;
                entry.count = short(numbers.count);
                entry.steps = short(numbers.steps.unwrap_or(0));
                entry.place = [start + numbers.list.start as u64, numbers.list.len() as u64];
                entry.first = numbers.first;
                if let Some(plain) = numbers.plain.filter(|plain| plain.end == numbers.list.end) {
                    let skip = plain.start - numbers.list.start;
                    entry.skip = u8::try_from(skip).unwrap_or(NOT_PLAIN);
                }
                FeatureType::Numbers {
                    is_float: numbers.is_float,
                    has_steps: numbers.steps.is_some(),
                }
            }
        };
        self.mixed |= self.kind.is_some_and(|before| before != kind);
        self.kind = Some(kind);
        self.entries.push(entry);
    }

    /// The column; `None` if it has no value in any record.
    fn finish(self, samples: usize, same: &HashMap<String, Same>) -> Option<SpanColumn> {
        let is_noted = same.contains_key(&format!("{}/dtype", self.name));
        let mut column = SpanColumn::new(&self.name, Content::Bytes);
        let refuse = |column: &mut SpanColumn, reason: &str| {
            column.content = Content::Refused(reason.to_owned());
            column.fill(samples);
        };
        let counts = |wanted: u32| self.entries.iter().all(|entry| entry.count == wanted);
        match self.kind {
            _ if self.mixed => refuse(&mut column, "is of different types in different records"),
            None => return None,
            Some(FeatureType::Bytes) if self.entries.iter().any(|entry| entry.count > 1) => {
                refuse(
                    &mut column,
                    "holds several strings of bytes in a record, which no field can",
                );
            }
            Some(FeatureType::Bytes) => {
                (column.content, column.encoding) = self.look.content();
                self.put_places(&mut column, samples, false);
            }
            Some(FeatureType::Numbers { has_steps: true, .. }) if self.uneven => {
                refuse(
                    &mut column,
                    "has steps with different numbers of values, which no array has",
                );
            }
            Some(FeatureType::Numbers { is_float, has_steps: true }) => {
                self.finish_steps(&mut column, is_float);
                self.put_places(&mut column, samples, false);
            }
            Some(FeatureType::Numbers { is_float, .. })
                if !is_noted && self.entries.iter().all(|entry| entry.count <= 1) =>
            {
                self.put_values(&mut column, samples, is_float);
            }
            Some(FeatureType::Numbers { is_float, .. }) => {
                let dtype = if is_float { DType::F32 } else { DType::I64 };
                let first = self.entries.first().map_or(0, |entry| entry.count);
                column.content = match counts(first) {
                    true => Content::Array { dtype, shape: vec![first as usize] },
                    false => Content::Ragged { dtype, axes: 1 },
                };
                let plain =
                    self.entries.iter().all(|entry| entry.skip != NOT_PLAIN || entry.count == 0);
                if !plain {
                    column.encoding = Encoding::Numbers { is_float, has_steps: false };
                }
                self.put_places(&mut column, samples, plain);
            }
        }
        Some(column)
    }

    /// One axis for the steps, and one for the values of each if there are several.
    fn finish_steps(&self, column: &mut SpanColumn, is_float: bool) {
        let dtype = if is_float { DType::F32 } else { DType::I64 };
        let each = |entry: &RecordFeature| entry.count / entry.steps.max(1);
        let mut filled = self.entries.iter().filter(|entry| entry.count > 0);
        let first = filled.next();
        let (steps, values) = first.map_or((0, 1), |entry| (entry.steps, each(entry)));
        let same_values = filled.clone().all(|entry| each(entry) == values);
        let same_steps = self.entries.iter().all(|entry| entry.steps == steps);
        column.encoding = Encoding::Numbers { is_float, has_steps: true };
        column.content = match (same_steps && same_values, same_values && values == 1) {
            (true, true) => Content::Array { dtype, shape: vec![steps as usize] },
            (true, false) => Content::Array { dtype, shape: vec![steps as usize, values as usize] },
            (false, one) => Content::Ragged { dtype, axes: if one { 1 } else { 2 } },
        };
    }

    fn put_places(&self, column: &mut SpanColumn, samples: usize, plain: bool) {
        column.places = vec![ABSENT; samples];
        for entry in &self.entries {
            let skip = if plain && entry.count > 0 { u64::from(entry.skip) } else { 0 };
            let [start, length] = entry.place;
            column.places[entry.sample as usize] = [start + skip, length.saturating_sub(skip)];
        }
    }

    fn put_values(&self, column: &mut SpanColumn, samples: usize, is_float: bool) {
        column.content = Content::Number;
        // The places are of use if other files have several values here.
        column.encoding = Encoding::Numbers { is_float, has_steps: false };
        self.put_places(column, samples, false);
        let filled = self.entries.iter().filter(|entry| entry.count == 1);
        for entry in self.entries.iter().filter(|entry| entry.count == 0) {
            column.places[entry.sample as usize] = ABSENT;
        }
        column.values = if is_float {
            let mut values = vec![0.0; samples];
            for entry in filled {
                values[entry.sample as usize] = f32::from_bits(entry.first as u32);
            }
            Values::Float(values)
        } else {
            let mut values = vec![0; samples];
            for entry in filled {
                values[entry.sample as usize] = entry.first;
            }
            Values::Int(values)
        };
    }
}

/// A count as it is kept; no list that is longer fits into memory anyway.
fn short(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Same {
    fn text(&mut self, bytes: &[u8]) {
        *self = match std::mem::replace(self, Same::Differs) {
            Same::Unknown if bytes.len() <= 16 => Same::Text(bytes.to_vec()),
            Same::Text(before) if before == bytes => Same::Text(before),
            _ => Same::Differs,
        };
    }

    fn shape(&mut self, axes: Option<Vec<usize>>) {
        *self = match (std::mem::replace(self, Same::Differs), axes) {
            (Same::Unknown, Some(axes)) => Same::Shape(axes),
            (Same::Shape(before), Some(axes)) if before == axes => Same::Shape(before),
            _ => Same::Differs,
        };
    }
}

/// The numbers of a list as a shape.
fn axes_of(record: &[u8], numbers: &Numbers) -> Option<Vec<usize>> {
    if numbers.is_float || numbers.steps.is_some() || numbers.count > 16 {
        return None;
    }
    let mut axes = vec![0; numbers.count * 8];
    super::example::write_numbers(&record[numbers.list.clone()], false, false, &mut axes).ok()?;
    let axis = |bytes: &[u8]| {
        let axis = i64::from_le_bytes(bytes.try_into().ok()?);
        usize::try_from(axis).ok()
    };
    axes.chunks_exact(8).map(axis).collect()
}

/// Makes a column what `NAME/dtype` and `NAME/shape` say that it is; false if they say nothing of
/// it. The type alone stands for arrays of one axis, or of .npy files, each of its own length.
fn apply_notes(column: &mut SpanColumn, same: &HashMap<String, Same>) -> bool {
    let Some(Same::Text(name)) = same.get(&format!("{}/dtype", column.name)) else { return false };
    let dtype = std::str::from_utf8(name).ok().and_then(DType::from_name);
    let Some(dtype) = dtype else { return false };
    let (numbers, own) = match (&column.content, &column.values) {
        (Content::Number, Values::Float(_)) => (true, DType::F32),
        (Content::Number, _) => (true, DType::I64),
        (Content::Array { dtype, .. } | Content::Ragged { dtype, .. }, _) => (true, *dtype),
        (Content::Bytes | Content::Text | Content::Image, _) => (false, dtype),
        (Content::Refused(_), _) => return false,
    };
    if own != dtype {
        return false;
    }
    let shape = match same.get(&format!("{}/shape", column.name)) {
        Some(Same::Shape(shape)) => Some(shape.clone()),
        Some(_) => return false,
        None => None,
    };
    let sizes_fit = |fits: &dyn Fn(u64) -> bool| {
        column.places.iter().all(|place| *place == ABSENT || fits(place[1]))
    };
    let content = match (shape, numbers) {
        (Some(shape), true) => {
            let there = match &column.content {
                Content::Array { shape, .. } => array_bytes(dtype, shape),
                _ => array_bytes(dtype, &[1]),
            };
            match array_bytes(dtype, &shape) == there {
                true => Content::Array { dtype, shape },
                false => return false,
            }
        }
        (Some(shape), false) if sizes_fit(&|size| Some(size) == array_bytes(dtype, &shape)) => {
            Content::Array { dtype, shape }
        }
        (None, true) => match &column.content {
            Content::Array { shape, .. } => Content::Ragged { dtype, axes: shape.len().max(1) },
            Content::Ragged { axes, .. } => Content::Ragged { dtype, axes: *axes },
            _ => Content::Ragged { dtype, axes: 1 },
        },
        (None, false)
            if column.content != Content::Image
                && sizes_fit(&|size| size % dtype.size() as u64 == 0) =>
        {
            Content::Ragged { dtype, axes: 1 }
        }
        _ => return false,
    };
    column.content = content;
    column.values = Values::None;
    true
}

/// What the usual names of TensorFlow's image sets become.
const USUAL: [(&str, &str); 2] = [("image/encoded", "image"), ("image/class/label", "label")];

/// Whether a feature is called what it may be called.
pub(in crate::source) fn is_named(column: &SpanColumn) -> bool {
    column.field == column.name || USUAL.contains(&(&*column.name, &*column.field))
}

/// The usual names of TensorFlow's image sets become those that everybody uses.
fn name_fields(columns: &mut [SpanColumn]) {
    for (name, field) in USUAL {
        if columns.iter().any(|column| column.name == field) {
            continue;
        }
        if let Some(column) = columns.iter_mut().find(|column| column.name == name) {
            column.field = field.to_owned();
        }
    }
}

/// True if the bytes are an Example or a SequenceExample with at least one feature, and nothing else.
pub(in crate::source) fn is_example(bytes: &[u8]) -> bool {
    let mut fields = Fields::new(bytes, 0..bytes.len());
    loop {
        match fields.next() {
            Ok(Some((1 | 2, Raw::Bytes(_)))) => {}
            Ok(None) => break,
            _ => return false,
        }
    }
    let mut features = 0;
    walk(bytes, 0..bytes.len(), &mut |name, _| {
        features += usize::from(!name.is_empty());
        Ok(())
    })
    .is_ok()
        && features > 0
}
