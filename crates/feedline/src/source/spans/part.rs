//! What a scan of one file found: the samples' names, and for each column where its bytes lie.

use serde::{Deserialize, Serialize};

use super::encoding::Encoding;
use crate::sample::{DType, FieldKind};
use crate::source::names::Names;

/// Where a field of a sample lies in its file (in what it unpacks to, if it is compressed): the
/// first byte and how many there are.
pub(in crate::source) type ByteSpan = [u64; 2];

/// The place of a field that a sample does not have.
pub(in crate::source) const ABSENT: ByteSpan = [u64::MAX, 0];

/// What one file holds.
#[derive(Default)]
pub(in crate::source) struct ShardPart {
    /// What the samples are called. One for each.
    pub(in crate::source) names: Names,
    /// Their fields, in the file's own order.
    pub(in crate::source) columns: Vec<SpanColumn>,
    /// What the numbers of the column "label" mean; empty if that is not known.
    pub(in crate::source) classes: Vec<String>,
}

impl ShardPart {
    /// Bytes that it takes.
    pub(in crate::source) fn held(&self) -> u64 {
        self.names.held() + self.columns.iter().map(SpanColumn::held).sum::<u64>()
    }

    /// A hash of everything that a scan finds.
    pub(in crate::source) fn digest(&self) -> u64 {
        let hash = |bytes: &[u8], seed| xxhash_rust::xxh3::xxh3_64_with_seed(bytes, seed);
        let mut digest = self.names.fingerprint(0);
        for column in &self.columns {
            let SpanColumn { name, field, hidden, content, encoding, places, values, extra } =
                column;
            let text = format!("{name:?} {field:?} {hidden} {content:?} {encoding:?}");
            digest = hash(text.as_bytes(), digest);
            digest = hash(bytemuck::cast_slice(places), digest);
            digest = match values {
                Values::None => hash(b"none", digest),
                Values::Int(values) => hash(bytemuck::cast_slice(values), digest),
                Values::Float(values) => hash(bytemuck::cast_slice(values), digest),
            };
            digest = hash(bytemuck::cast_slice(extra), digest);
        }
        digest
    }
}

/// One field of all samples of a file.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::source) struct SpanColumn {
    /// What the data calls it.
    pub(in crate::source) name: String,
    /// What it is called if nobody chose a name. Two columns may want one name: they are one field
    /// if no sample has both.
    pub(in crate::source) field: String,
    /// True if it is given only to those who ask for it.
    pub(in crate::source) hidden: bool,
    /// What it is.
    pub(in crate::source) content: Content,
    /// How its bytes are written.
    pub(in crate::source) encoding: Encoding,
    /// One for each sample, or none at all where `values` says everything and no sample lacks it.
    pub(in crate::source) places: Vec<ByteSpan>,
    /// Numbers that were read during the scan: one for each sample, or none.
    pub(in crate::source) values: Values,
    /// A number for each sample that the encoding needs; see [`Encoding`].
    pub(in crate::source) extra: Vec<u64>,
}

/// Numbers that are kept in memory.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::source) enum Values {
    None,
    Int(Vec<i64>),
    Float(Vec<f32>),
}

impl Values {
    pub(in crate::source) fn len(&self) -> usize {
        match self {
            Values::None => 0,
            Values::Int(values) => values.len(),
            Values::Float(values) => values.len(),
        }
    }
}

/// What the bytes of a column are once they are decoded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::source) enum Content {
    Image,
    Text,
    Bytes,
    /// A scalar whose values are in [`SpanColumn::values`]: int64 or float32.
    Number,
    Array {
        #[serde(with = "dtype_name")]
        dtype: DType,
        shape: Vec<usize>,
    },
    Ragged {
        #[serde(with = "dtype_name")]
        dtype: DType,
        axes: usize,
    },
    /// Nothing that is read here, for this reason. Those who choose other columns do not see it.
    Refused(String),
}

mod dtype_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::sample::DType;

    pub(in crate::source) fn serialize<S: Serializer>(
        dtype: &DType,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(dtype.name())
    }

    pub(in crate::source) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<DType, D::Error> {
        let name = String::deserialize(from)?;
        DType::from_name(&name).ok_or_else(|| D::Error::custom("no type of elements"))
    }
}

impl SpanColumn {
    /// A column of no samples yet, in places that are what they hold.
    pub(in crate::source) fn new(name: &str, content: Content) -> SpanColumn {
        SpanColumn {
            name: name.to_owned(),
            field: name.to_owned(),
            hidden: false,
            content,
            encoding: Encoding::Plain,
            places: Vec::new(),
            values: Values::None,
            extra: Vec::new(),
        }
    }

    /// Makes it `samples` long: those that are missing at the end do not have it.
    pub(in crate::source) fn fill(&mut self, samples: usize) {
        self.places.resize(samples, ABSENT);
        match &mut self.values {
            Values::None => {}
            Values::Int(values) => values.resize(samples, 0),
            Values::Float(values) => values.resize(samples, 0.0),
        }
        if !self.extra.is_empty() {
            self.extra.resize(samples, 0);
        }
    }

    /// Bytes that it takes.
    pub(in crate::source) fn held(&self) -> u64 {
        let values = match &self.values {
            Values::None => 0,
            Values::Int(values) => 8 * values.capacity(),
            Values::Float(values) => 4 * values.capacity(),
        };
        (16 * self.places.capacity() + values + 8 * self.extra.capacity()) as u64
    }

    /// True if sample number `at` of the file has it.
    pub(in crate::source) fn has(&self, at: usize) -> bool {
        self.places.get(at).is_none_or(|place| *place != ABSENT)
    }

    /// The kind of field that it is. `None` for what is refused.
    pub(in crate::source) fn kind(&self) -> Option<FieldKind> {
        Some(match &self.content {
            Content::Image => FieldKind::EncodedImage,
            Content::Text => FieldKind::Text,
            Content::Bytes => FieldKind::Bytes,
            Content::Number => FieldKind::scalar(match self.values {
                Values::Float(_) => DType::F32,
                _ => DType::I64,
            }),
            Content::Array { dtype, shape } => {
                FieldKind::Array { dtype: *dtype, shape: shape.clone() }
            }
            Content::Ragged { dtype, axes } => FieldKind::Ragged { dtype: *dtype, axes: *axes },
            Content::Refused(_) => return None,
        })
    }

    /// Whether it fits `samples` samples whose places lie below `length`: a scan's result may come
    /// from a file that somebody altered.
    pub(in crate::source) fn fits(&self, samples: usize, length: u64) -> bool {
        let whole = |there: usize| there == 0 || there == samples;
        let inside = |place: &ByteSpan| {
            *place == ABSENT || place[0].checked_add(place[1]).is_some_and(|end| end <= length)
        };
        let known = match self.content {
            Content::Number => self.values.len() == samples,
            Content::Refused(_) => true,
            _ => self.places.len() == samples,
        };
        let extra = !self.encoding.needs_extra() || self.extra.len() == samples;
        known
            && extra
            && whole(self.places.len())
            && whole(self.values.len())
            && whole(self.extra.len())
            && self.places.iter().all(inside)
            && self.lengths_fit()
    }

    /// Whether places that are arrays of one shape, as they are, have that many bytes.
    fn lengths_fit(&self) -> bool {
        let (Content::Array { dtype, shape }, Some(skip)) = (&self.content, self.encoding.skip())
        else {
            return true;
        };
        let bytes = array_bytes(*dtype, shape).and_then(|bytes| bytes.checked_add(skip));
        self.places.iter().all(|place| *place == ABSENT || Some(place[1]) == bytes)
    }
}

/// Bytes of an array; `None` if no machine holds it.
pub(in crate::source) fn array_bytes(dtype: DType, shape: &[usize]) -> Option<u64> {
    shape.iter().try_fold(dtype.size() as u64, |bytes, axis| bytes.checked_mul(*axis as u64))
}
