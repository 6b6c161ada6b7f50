//! A look at the first values of a column whose format does not say what they are.

use super::encoding::Encoding;
use super::input::Input;
use super::npy::NpyTensor;
use super::part::{ByteSpan, Content, SpanColumn};
use crate::error::Result;
use crate::sample::DType;

/// How many values are looked at to know an image.
pub(in crate::source) const VALUES: usize = 16;

/// As much of a value as is read to know what it is.
const START: u64 = 4096;

/// Why pickles are not read.
pub(in crate::source) const PICKLE: &str =
    "is a pickle, which runs code when it is read: write it as bytes, text or arrays instead";

/// What the values were so far.
#[derive(Debug, Clone)]
pub(in crate::source) struct Look {
    is_image: fn(&[u8]) -> bool,
    seen: usize,
    images: usize,
    pickles: usize,
    is_text: bool,
    arrays: usize,
    dtype: Option<DType>,
    /// The shape that all have; `None` if they differ.
    shape: Option<Vec<usize>>,
    axes: Option<usize>,
}

impl Look {
    pub(in crate::source) fn new(is_image: fn(&[u8]) -> bool) -> Look {
        Look {
            is_image,
            seen: 0,
            images: 0,
            pickles: 0,
            is_text: true,
            arrays: 0,
            dtype: None,
            shape: None,
            axes: None,
        }
    }

    /// True when more values would show nothing new of images.
    pub(in crate::source) fn is_enough(&self) -> bool {
        self.seen >= VALUES
    }

    /// Looks at a value, or at its beginning if it has more bytes than `bytes`.
    pub(in crate::source) fn see(&mut self, bytes: &[u8], length: u64) {
        if !self.is_enough() {
            self.images += usize::from((self.is_image)(bytes));
            self.pickles += usize::from(matches!(bytes, [0x80, 2..=5, ..]));
        }
        self.is_text = self.is_text && is_text(bytes, (bytes.len() as u64) < length);
        if self.arrays == self.seen && bytes.starts_with(b"\x93NUMPY") {
            self.see_array(bytes);
        }
        self.seen += 1;
    }

    fn see_array(&mut self, bytes: &[u8]) {
        let Ok(header) = NpyTensor::read(bytes) else { return };
        if self.seen == 0 {
            self.dtype = Some(header.dtype);
            self.axes = Some(header.shape.len());
            self.shape = Some(header.shape);
        } else if self.dtype != Some(header.dtype) || self.axes != Some(header.shape.len()) {
            return;
        } else if self.shape.as_deref() != Some(&header.shape) {
            self.shape = None;
        }
        self.arrays += 1;
    }

    /// What the values are.
    pub(in crate::source) fn content(&self) -> (Content, Encoding) {
        let looked_at = self.seen.min(VALUES);
        let content = match (self.dtype, self.axes) {
            _ if self.seen == 0 => Content::Bytes,
            _ if self.images == looked_at => Content::Image,
            _ if self.pickles == looked_at => Content::Refused(PICKLE.to_owned()),
            (Some(dtype), Some(axes)) if self.arrays == self.seen => {
                let content = match &self.shape {
                    Some(shape) => Content::Array { dtype, shape: shape.clone() },
                    None => Content::Ragged { dtype, axes },
                };
                return (content, Encoding::Npy);
            }
            _ if self.is_text => Content::Text,
            _ => Content::Bytes,
        };
        (content, Encoding::Plain)
    }
}

fn is_text(bytes: &[u8], is_cut: bool) -> bool {
    let whole = match std::str::from_utf8(bytes) {
        Ok(_) => true,
        // The last character may be cut in two.
        Err(error) => is_cut && error.error_len().is_none(),
    };
    whole && !bytes.contains(&0)
}

/// Says what a column is by its first values. The file must be one that is read in any order.
pub(in crate::source) fn look_at(
    input: &mut Input<'_>,
    column: &mut SpanColumn,
    is_image: fn(&[u8]) -> bool,
) -> Result<()> {
    let mut look = Look::new(is_image);
    for [at, length] in column.places.iter().filter(|place| is_there(place)).take(VALUES) {
        look.see(input.bytes(*at, (*length).min(START))?, *length);
    }
    (column.content, column.encoding) = look.content();
    Ok(())
}

fn is_there(place: &ByteSpan) -> bool {
    *place != crate::source::spans::part::ABSENT
}
