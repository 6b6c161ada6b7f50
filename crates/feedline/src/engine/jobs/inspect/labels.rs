//! The values of scalar fields: ranges, classes, and how alike they are within blocks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::correlation::Counter;
use super::{FieldFacts, Inspect};
use crate::engine::plan::{is_called_label, label_field, label_field_of};
use crate::error::Fault;
use crate::sample::{DType, Field, FieldKind, Room, Value};
use crate::source::Source;
use crate::store::{Local, Store};

/// Beyond this many values, whole numbers are identities rather than classes.
const MOST_VALUES: usize = 1 << 16;

/// How long labels are read that are not in memory.
const READING: Duration = Duration::from_secs(3);

/// What was found of the fields.
pub(super) struct Labels {
    pub(super) fields: Vec<FieldFacts>,
    pub(super) classes: Vec<(String, u64)>,
    /// Samples whose labels were counted.
    pub(super) counted: u64,
    /// The correlation of labels within blocks.
    pub(super) correlation: Option<f64>,
}

/// A scalar of 8 bytes at most.
#[derive(Default)]
struct Scalar {
    bytes: [u8; 8],
    length: usize,
}

impl Room for Scalar {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        self.length = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.bytes.get_mut(..self.length).ok_or_else(|| Fault::Shape("is no number".to_owned()))
    }
}

/// A scalar of a type that ranges are given for.
#[derive(Clone, Copy)]
enum Number {
    Int(i64),
    Float(f32),
}

impl Number {
    fn of(bytes: &[u8], dtype: DType) -> Option<Number> {
        macro_rules! whole {
            ($kind:ty) => {
                i64::try_from(<$kind>::from_ne_bytes(bytes.try_into().ok()?)).ok().map(Number::Int)
            };
        }
        match dtype {
            DType::Bool | DType::U8 => whole!(u8),
            DType::I8 => whole!(i8),
            DType::U16 => whole!(u16),
            DType::I16 => whole!(i16),
            DType::U32 => whole!(u32),
            DType::I32 => whole!(i32),
            DType::U64 => whole!(u64),
            DType::I64 => whole!(i64),
            DType::F32 => Some(Number::Float(f32::from_ne_bytes(bytes.try_into().ok()?))),
            DType::F16 | DType::BF16 | DType::F64 => None,
        }
    }

    /// A number that is in memory; `Err` if it has to be read.
    fn at_hand(value: &Value<'_>, dtype: DType) -> Result<Option<Number>, ()> {
        match value {
            Value::Int(value) => Ok(Some(Number::Int(*value))),
            Value::Float(value) => Ok(Some(Number::Float(*value))),
            Value::Bytes(bytes) => Ok(Number::of(bytes, dtype)),
            Value::Pixels { .. } => Ok(None),
            Value::Made | Value::File(_) => Err(()),
        }
    }

    fn read(source: &dyn Source, index: u64, field: usize, dtype: DType) -> Option<Number> {
        let value = source.value(index, field).ok()?;
        if let Ok(number) = Number::at_hand(&value, dtype) {
            return number;
        }
        let mut scalar = Scalar::default();
        match value {
            Value::File(location) => Local.read(&location, &mut scalar),
            _ => source.read(index, field, &mut scalar),
        }
        .ok()?;
        Number::of(&scalar.bytes[..scalar.length], dtype)
    }
}

/// Types of classes.
fn is_whole(dtype: DType) -> bool {
    !matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

/// The field that holds classes: the one that a loader takes, unless a field of another whole
/// type is called so, or is all there is.
fn label(fields: &[Field]) -> Option<usize> {
    let any = label_field_of(fields, &is_whole)?;
    match is_called_label(&fields[any]) {
        true => Some(any),
        false => label_field(fields).or(Some(any)),
    }
}

/// The runs of samples that are looked at: all, or blocks spread over the set until time is up.
fn runs(source: &dyn Source) -> Vec<(u64, u64)> {
    let Some(blocks) = source.blocks() else { return vec![(0, source.len())] };
    let starts = std::iter::once(0).chain(blocks.ends.iter().copied());
    starts.zip(blocks.ends.iter().copied()).collect()
}

impl Inspect {
    /// The fields with the ranges of their values, how many samples each class has, and how alike
    /// the labels of a block are.
    pub(super) fn labels(&self) -> Labels {
        let fields = self.sources[0].fields();
        let label = label(fields);
        let mut found =
            Labels { fields: Vec::new(), classes: Vec::new(), counted: 0, correlation: None };
        for (number, field) in fields.iter().enumerate() {
            let mut facts = FieldFacts {
                name: field.name.clone(),
                kind: field.kind.clone(),
                range: None,
                distinct: None,
            };
            if let FieldKind::Array { dtype, shape } = &field.kind
                && shape.is_empty()
                && (is_whole(*dtype) || *dtype == DType::F32)
            {
                let values = self.values(number, *dtype, label == Some(number), &mut facts);
                if label == Some(number) {
                    found.counted = values.counted;
                    found.correlation = values.blocks.correlation();
                    found.classes = self.classes(values.counts.unwrap_or_default());
                }
            }
            found.fields.push(facts);
        }
        found
    }

    fn classes(&self, counts: BTreeMap<i64, u64>) -> Vec<(String, u64)> {
        let names = self.sources[0].classes();
        if names.is_empty() {
            return counts.iter().map(|(value, count)| (value.to_string(), *count)).collect();
        }
        let count = |number| counts.get(&(number as i64)).copied().unwrap_or(0);
        names.iter().enumerate().map(|(number, name)| (name.clone(), count(number))).collect()
    }

    fn values(&self, field: usize, dtype: DType, label: bool, facts: &mut FieldFacts) -> Values {
        let mut values = Values {
            counts: is_whole(dtype).then(BTreeMap::new),
            blocks: Counter::default(),
            counted: 0,
        };
        let began = Instant::now();
        for source in &self.sources {
            let first = source.value(0, field);
            let at_hand = first.is_ok_and(|value| Number::at_hand(&value, dtype).is_ok());
            if !at_hand && !label {
                // Not worth reading the whole set for.
                continue;
            }
            let runs = runs(&**source);
            // Without a pattern that the set could share.
            let order = crate::order::Permutation::new(runs.len() as u64, 1);
            for place in 0..runs.len() as u64 {
                let place = if at_hand { place } else { order.apply(place) };
                let (start, end) = runs[place as usize];
                for index in start..end {
                    if let Some(value) = Number::read(&**source, index, field, dtype) {
                        values.add(value, label, facts);
                    }
                    if !at_hand && index % 256 == 0 && began.elapsed() > READING {
                        break;
                    }
                }
                values.blocks.end_block();
                if !at_hand && began.elapsed() > READING {
                    break;
                }
            }
        }
        let distinct = values.counts.as_ref().map(|counts| counts.len() as u64);
        facts.distinct = distinct.filter(|_| values.counted > 0);
        values
    }
}

/// The values of one field.
struct Values {
    /// How often each was seen, while they are few.
    counts: Option<BTreeMap<i64, u64>>,
    blocks: Counter,
    counted: u64,
}

impl Values {
    fn add(&mut self, value: Number, label: bool, facts: &mut FieldFacts) {
        self.counted += 1;
        let number = match value {
            Number::Float(value) => f64::from(value),
            Number::Int(value) => {
                if let Some(counts) = &mut self.counts {
                    *counts.entry(value).or_default() += 1;
                    if label {
                        self.blocks.add(value);
                    }
                }
                value as f64
            }
        };
        if self.counts.as_ref().is_some_and(|counts| counts.len() > MOST_VALUES) {
            self.counts = None;
            self.blocks = Counter::default();
        }
        let (low, high) = facts.range.unwrap_or((number, number));
        facts.range = Some((low.min(number), high.max(number)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, dtype: DType) -> Field {
        Field { name: name.to_owned(), kind: FieldKind::scalar(dtype) }
    }

    #[test]
    fn a_field_called_label_is_the_label() {
        let id = || field("id", DType::I64);
        let fields = [id(), field("label", DType::I64), field("class", DType::I64)];
        assert_eq!((label_field(&fields), label(&fields)), (Some(1), Some(1)));
        let fields = [id(), field("class", DType::I64), field("other", DType::I64)];
        assert_eq!((label_field(&fields), label(&fields)), (Some(1), Some(1)));
        let fields = [field("flag", DType::U8), id(), field("label", DType::F32)];
        assert_eq!((label_field(&fields), label(&fields)), (Some(1), Some(1)));
        let fields = [id(), field("label", DType::U8)];
        assert_eq!((label_field(&fields), label(&fields)), (Some(0), Some(1)));
        let fields = [field("x", DType::F32), field("kind", DType::Bool)];
        assert_eq!((label_field(&fields), label(&fields)), (None, Some(1)));
    }

    #[test]
    fn whole_numbers_of_all_types_are_counted() {
        let int = |bytes: &[u8], dtype| match Number::of(bytes, dtype) {
            Some(Number::Int(value)) => Some(value),
            _ => None,
        };
        assert_eq!(int(&[1], DType::Bool), Some(1));
        assert_eq!(int(&[200], DType::U8), Some(200));
        assert_eq!(int(&(-3i8).to_ne_bytes(), DType::I8), Some(-3));
        assert_eq!(int(&60_000u16.to_ne_bytes(), DType::U16), Some(60_000));
        assert_eq!(int(&(-3i16).to_ne_bytes(), DType::I16), Some(-3));
        assert_eq!(int(&u32::MAX.to_ne_bytes(), DType::U32), Some(u32::MAX.into()));
        assert_eq!(int(&(-3i32).to_ne_bytes(), DType::I32), Some(-3));
        assert_eq!(int(&7u64.to_ne_bytes(), DType::U64), Some(7));
        assert_eq!(int(&u64::MAX.to_ne_bytes(), DType::U64), None);
        assert_eq!(int(&[1, 2], DType::I32), None);
    }
}
