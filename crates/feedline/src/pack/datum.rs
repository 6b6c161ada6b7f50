//! One field of a sample that a program hands over, and how it is stored.

use std::borrow::Cow;

use crate::sample::{DType, FieldKind};

/// One field of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Datum<'a> {
    /// An encoded image: the bytes of a JPEG, PNG, WebP ...
    Image(&'a [u8]),
    /// Bytes as they are.
    Bytes(&'a [u8]),
    /// Text.
    Text(&'a str),
    /// A whole number; int64 unless declared otherwise.
    Int(i64),
    /// A number; float32 unless declared otherwise.
    Float(f64),
    /// An array: the type of its elements, its shape, and the elements in C order and this
    /// machine's byte order.
    Array(DType, &'a [usize], &'a [u8]),
}

/// Bytes and shape as a record holds them.
type RecordValue<'a> = (Cow<'a, [u8]>, &'a [usize]);

impl<'a> Datum<'a> {
    /// The field that it is taken for when nothing was declared.
    #[must_use]
    pub fn kind(&self) -> FieldKind {
        match self {
            Datum::Image(_) => FieldKind::EncodedImage,
            Datum::Bytes(_) => FieldKind::Bytes,
            Datum::Text(_) => FieldKind::Text,
            Datum::Int(_) => FieldKind::scalar(DType::I64),
            Datum::Float(_) => FieldKind::scalar(DType::F32),
            Datum::Array(dtype, shape, _) => {
                FieldKind::Array { dtype: *dtype, shape: shape.to_vec() }
            }
        }
    }

    /// The bytes for a field of that kind, or why it is none.
    pub(super) fn stored_as(&self, kind: &FieldKind) -> Result<RecordValue<'a>, String> {
        let wrong = || Err(format!("is {}, where {} was declared", self.name(), show(kind)));
        match (*self, kind) {
            (Datum::Image(bytes) | Datum::Bytes(bytes), FieldKind::EncodedImage) => {
                match bytes.is_empty() {
                    true => Err("is an image without any bytes".to_owned()),
                    false => Ok((bytes.into(), &[])),
                }
            }
            (Datum::Image(bytes) | Datum::Bytes(bytes), FieldKind::Bytes) => {
                Ok((bytes.into(), &[]))
            }
            (Datum::Text(text), FieldKind::Text | FieldKind::Bytes) => {
                Ok((text.as_bytes().into(), &[]))
            }
            (Datum::Int(_) | Datum::Float(_), FieldKind::Array { dtype, shape })
                if shape.is_empty() =>
            {
                Ok((self.number(*dtype)?.into(), &[]))
            }
            (
                Datum::Array(dtype, shape, bytes),
                FieldKind::Array { dtype: declared, shape: wanted },
            ) => {
                if dtype != *declared || shape != wanted {
                    return wrong();
                }
                whole(dtype, shape, bytes)
            }
            (Datum::Array(dtype, shape, bytes), FieldKind::Ragged { dtype: declared, axes }) => {
                if dtype != *declared || shape.len() != *axes {
                    return wrong();
                }
                whole(dtype, shape, bytes)
            }
            _ => wrong(),
        }
    }

    /// A number as an element of that type, if it holds it.
    fn number(&self, dtype: DType) -> Result<Vec<u8>, String> {
        let whole = match self {
            Datum::Int(number) => Some(*number),
            _ => None,
        };
        let real = match self {
            Datum::Int(number) => *number as f64,
            Datum::Float(number) => *number,
            _ => 0.0,
        };
        let bytes = match dtype {
            DType::Bool => {
                whole.and_then(|n| u8::try_from(n).ok()).filter(|n| *n < 2).map(|n| vec![n])
            }
            DType::U8 => whole.and_then(|n| u8::try_from(n).ok()).map(|n| n.to_ne_bytes().into()),
            DType::I8 => whole.and_then(|n| i8::try_from(n).ok()).map(|n| n.to_ne_bytes().into()),
            DType::U16 => whole.and_then(|n| u16::try_from(n).ok()).map(|n| n.to_ne_bytes().into()),
            DType::I16 => whole.and_then(|n| i16::try_from(n).ok()).map(|n| n.to_ne_bytes().into()),
            DType::U32 => whole.and_then(|n| u32::try_from(n).ok()).map(|n| n.to_ne_bytes().into()),
            DType::I32 => whole.and_then(|n| i32::try_from(n).ok()).map(|n| n.to_ne_bytes().into()),
            DType::U64 => whole.and_then(|n| u64::try_from(n).ok()).map(|n| n.to_ne_bytes().into()),
            DType::I64 => whole.map(|n| n.to_ne_bytes().into()),
            DType::F16 => Some(half::f16::from_f64(real))
                .filter(|n| n.is_finite() || !real.is_finite())
                .map(|n| n.to_ne_bytes().into()),
            DType::BF16 => Some(half::bf16::from_f64(real))
                .filter(|n| n.is_finite() || !real.is_finite())
                .map(|n| n.to_ne_bytes().into()),
            DType::F32 => Some(real as f32)
                .filter(|n| n.is_finite() || !real.is_finite())
                .map(|n| n.to_ne_bytes().into()),
            DType::F64 => Some(real.to_ne_bytes().into()),
        };
        bytes.ok_or_else(|| format!("is {real}, which is no {dtype}"))
    }

    fn name(&self) -> String {
        match self {
            Datum::Int(_) => "a whole number".to_owned(),
            Datum::Float(_) => "a number".to_owned(),
            other => show(&other.kind()),
        }
    }
}

/// The elements, if there are as many as the shape has.
fn whole<'a>(dtype: DType, shape: &'a [usize], bytes: &'a [u8]) -> Result<RecordValue<'a>, String> {
    let count = shape.iter().try_fold(dtype.size(), |count, side| count.checked_mul(*side));
    match count == Some(bytes.len()) {
        true => Ok((bytes.into(), shape)),
        false => Err(format!("has {} bytes, which are no {dtype} of shape {shape:?}", bytes.len())),
    }
}

/// A field's kind in words.
fn show(kind: &FieldKind) -> String {
    match kind {
        FieldKind::EncodedImage => "an encoded image".to_owned(),
        FieldKind::Pixels { channels } => format!("pixels of {channels} channels"),
        FieldKind::Array { dtype, shape } if shape.is_empty() => format!("a {dtype}"),
        FieldKind::Array { dtype, shape } => format!("an array of {dtype} of shape {shape:?}"),
        FieldKind::Ragged { dtype, axes } => format!("an array of {dtype} with {axes} axes"),
        FieldKind::Bytes => "bytes".to_owned(),
        FieldKind::Text => "text".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_stored_as_declared_or_refused() {
        let scalar = FieldKind::scalar;
        let stored = |datum: Datum<'static>, dtype| {
            datum.stored_as(&scalar(dtype)).map(|(bytes, _)| bytes.into_owned())
        };
        assert_eq!(stored(Datum::Int(-3), DType::I16).unwrap(), (-3i16).to_ne_bytes());
        assert_eq!(stored(Datum::Int(3), DType::F32).unwrap(), 3f32.to_ne_bytes());
        assert_eq!(stored(Datum::Float(0.5), DType::F64).unwrap(), 0.5f64.to_ne_bytes());
        assert!(stored(Datum::Int(256), DType::U8).unwrap_err().contains("no uint8"));
        assert!(stored(Datum::Float(1.5), DType::I64).is_err());
        assert!(stored(Datum::Int(2), DType::Bool).is_err());
        for (number, dtype) in [(1e5, DType::F16), (1e300, DType::F32), (-1e39, DType::BF16)] {
            assert!(stored(Datum::Float(number), dtype).is_err(), "{number} has no {dtype}");
            assert!(stored(Datum::Float(f64::INFINITY), dtype).is_ok());
            assert!(stored(Datum::Float(f64::NAN), dtype).is_ok());
        }
        assert!(stored(Datum::Int(70_000), DType::F16).is_err());
    }

    #[test]
    fn arrays_have_their_shape() {
        let bytes = [0; 24];
        let array = Datum::Array(DType::F32, &[2, 3], &bytes);
        let kind = |shape: &[usize]| FieldKind::Array { dtype: DType::F32, shape: shape.to_vec() };
        assert!(array.stored_as(&kind(&[2, 3])).is_ok());
        let wrong = array.stored_as(&kind(&[3, 2])).unwrap_err();
        assert_eq!(
            wrong,
            "is an array of float32 of shape [2, 3], where an array of float32 of shape [3, 2] was declared"
        );
        assert!(array.stored_as(&FieldKind::Ragged { dtype: DType::F32, axes: 2 }).is_ok());
        let short = Datum::Array(DType::F32, &[2, 3], &bytes[1..]);
        assert!(short.stored_as(&kind(&[2, 3])).unwrap_err().contains("23 bytes"));
        assert!(Datum::Text("x").stored_as(&FieldKind::EncodedImage).is_err());
    }
}
