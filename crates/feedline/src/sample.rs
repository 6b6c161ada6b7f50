//! What flows: element types, fields, and where a sample's bytes lie.

pub(crate) mod image_format;
mod raw_index;

use std::path::Path;

pub(crate) use image_format::{EXTENSIONS, ImageFormat};
pub(crate) use raw_index::{RawIndex, RawRecord};

use crate::error::Fault;

/// The type of an array's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// Boolean, one byte.
    Bool,
    /// Unsigned 8 bits.
    U8,
    /// Signed 8 bits.
    I8,
    /// Unsigned 16 bits.
    U16,
    /// Signed 16 bits.
    I16,
    /// Unsigned 32 bits.
    U32,
    /// Signed 32 bits.
    I32,
    /// Unsigned 64 bits.
    U64,
    /// Signed 64 bits.
    I64,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
}

impl DType {
    /// Every type, for lists of what is allowed.
    pub const ALL: [DType; 13] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::U16,
        DType::I16,
        DType::U32,
        DType::I32,
        DType::U64,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Bytes of one element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::U32 | DType::I32 | DType::F32 => 4,
            DType::U64 | DType::I64 | DType::F64 => 8,
        }
    }

    /// The name that NumPy and torch use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "uint8",
            DType::I8 => "int8",
            DType::U16 => "uint16",
            DType::I16 => "int16",
            DType::U32 => "uint32",
            DType::I32 => "int32",
            DType::U64 => "uint64",
            DType::I64 => "int64",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::F32 => "float32",
            DType::F64 => "float64",
        }
    }

    /// The type of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name)
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// One named part of every sample, as a source holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Its name in a batch.
    pub name: String,
    /// What it is.
    pub kind: FieldKind,
}

/// What a source holds for a field.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldKind {
    /// An encoded image; its size is known only after a look at its header.
    EncodedImage,
    /// Decoded pixels of 8 bits, interleaved; each sample has its own height and width.
    Pixels {
        /// Channels of a pixel.
        channels: usize,
    },
    /// An array of one shape.
    Array {
        /// The type of its elements.
        dtype: DType,
        /// The shape of one sample; empty for a scalar.
        shape: Vec<usize>,
    },
    /// Arrays of which each sample has its own shape.
    Ragged {
        /// The type of their elements.
        dtype: DType,
        /// How many axes they have, at least one.
        axes: usize,
    },
    /// Bytes that mean nothing to the engine, of any length.
    Bytes,
    /// Text in UTF-8, of any length.
    Text,
}

impl FieldKind {
    /// A scalar of that type.
    #[must_use]
    pub fn scalar(dtype: DType) -> FieldKind {
        FieldKind::Array { dtype, shape: Vec::new() }
    }

    /// What its values are, in words; an array's are those of its type.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            FieldKind::EncodedImage => "encoded image",
            FieldKind::Pixels { .. } => "uint8 pixels",
            FieldKind::Array { dtype, .. } | FieldKind::Ragged { dtype, .. } => dtype.name(),
            FieldKind::Bytes => "bytes",
            FieldKind::Text => "text",
        }
    }

    /// True when samples differ in how many bytes they have, and are not decoded to one size.
    #[must_use]
    pub(crate) fn is_variable(&self) -> bool {
        matches!(self, FieldKind::Ragged { .. } | FieldKind::Bytes | FieldKind::Text)
    }
}

/// One field's value in one sample, borrowed from its source.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// Bytes that a store must fetch: an encoded image, an array's elements in C order and this
    /// machine's byte order, text.
    File(Location<'a>),
    /// Bytes that the source has to make, as out of a compressed block: `Source::read` writes them.
    Made,
    /// Such bytes that are in memory already.
    Bytes(&'a [u8]),
    /// Decoded pixels that a store must fetch: `height` rows of `width` interleaved pixels.
    Pixels {
        /// A range of `height * width * channels` bytes.
        location: Location<'a>,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// Channels of a pixel.
        channels: usize,
    },
    /// A scalar of type `I64`.
    Int(i64),
    /// A scalar of type `F32`.
    Float(f32),
}

impl<'a> Value<'a> {
    /// Where a store finds its bytes; `None` if they are lent, made or a number.
    #[must_use]
    pub fn location(&self) -> Option<Location<'a>> {
        match *self {
            Value::File(location) | Value::Pixels { location, .. } => Some(location),
            Value::Made | Value::Bytes(_) | Value::Int(_) | Value::Float(_) => None,
        }
    }
}

/// Where bytes lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location<'a> {
    /// What `path` is relative to; empty for the working directory.
    pub root: &'a Path,
    /// The file.
    pub path: &'a Path,
    /// The part of the file; `None` is all of it.
    pub range: Option<(u64, u64)>,
    /// The file's stamp (see [`Object::stamp`](crate::store::Object::stamp)) when the part was found: another
    /// file in its place is refused. `None` where none was taken.
    pub stamp: Option<u64>,
}

/// Gives room for as many bytes as a field of a sample turns out to have.
pub trait Room {
    /// Room for exactly `bytes`, or a refusal of what is too large.
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault>;

    /// Room that is there already, for those who would have to ask for the length first: what
    /// fits is read at once. Empty if there is none.
    fn at_hand(&mut self) -> &mut [u8] {
        &mut []
    }

    /// The shape of what is written next, given before [`Room::make`] where a field is
    /// [`FieldKind::Ragged`] with other than one axis.
    fn shape(&mut self, _shape: &[usize]) {}

    /// The first `bytes` of [`Room::at_hand`] are the sample, in place of [`Room::make`].
    fn keep(&mut self, _bytes: usize) {}
}

/// Room of its own: as large as it is asked to be, within a limit.
#[derive(Debug)]
pub struct Grown {
    /// What was written.
    pub bytes: Vec<u8>,
    limit: u64,
}

impl Default for Grown {
    fn default() -> Self {
        Grown::at_most(u64::MAX)
    }
}

impl Grown {
    /// More than `limit` bytes are refused.
    #[must_use]
    pub(crate) fn at_most(limit: u64) -> Self {
        Grown { bytes: Vec::new(), limit }
    }
}

impl Room for Grown {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        let length = usize::try_from(bytes).ok().filter(|_| bytes <= self.limit);
        let length = length.ok_or_else(|| Fault::TooLarge(format!("has {bytes} bytes")))?;
        let more = length.saturating_sub(self.bytes.len());
        self.bytes.try_reserve_exact(more).map_err(|error| Fault::TooLarge(error.to_string()))?;
        self.bytes.resize(length, 0);
        Ok(&mut self.bytes)
    }
}
