//! How one element of a stored array becomes what a batch wants.

use std::sync::Arc;

use crate::error::Fault;
use crate::sample::{DType, FieldKind, Room};

/// Makes bytes out of a reference that a row holds in place of them.
pub(in crate::source) trait Resolve: Send + Sync {
    /// Writes what the reference means; as text it must be UTF-8.
    fn resolve(&self, reference: &[u8], text: bool, room: &mut dyn Room) -> Result<(), Fault>;
}

/// One element as it is stored.
#[derive(Clone)]
pub(in crate::source) enum Element {
    /// A number, in this machine's byte order or the other.
    Number {
        /// Its type.
        dtype: DType,
        /// True when its bytes are in the other order.
        swap: bool,
    },
    /// Text in UTF-8 or ASCII, padded with zeros or spaces to `width` bytes.
    Chars {
        /// Bytes of the longest.
        width: usize,
        /// What it is padded with.
        pad: u8,
    },
    /// Text of up to `width` code points of four bytes each.
    Wide {
        /// Code points of the longest.
        width: usize,
        /// True when their bytes are in the other order.
        swap: bool,
    },
    /// A reference to bytes elsewhere.
    Reference {
        /// Bytes of the reference.
        width: usize,
        /// What the bytes are.
        kind: FieldKind,
        /// Who finds them.
        resolve: Arc<dyn Resolve>,
    },
}

impl Element {
    /// Bytes as stored.
    pub(in crate::source) fn width(&self) -> usize {
        match self {
            Element::Number { dtype, .. } => dtype.size(),
            Element::Chars { width, .. } | Element::Reference { width, .. } => *width,
            Element::Wide { width, .. } => width.saturating_mul(4),
        }
    }

    /// What a row of such elements is; an explanation if it is nothing that a batch can hold.
    pub(in crate::source) fn kind(&self, shape: &[usize]) -> Result<FieldKind, String> {
        match self {
            Element::Number { dtype, .. } => {
                Ok(FieldKind::Array { dtype: *dtype, shape: shape.to_vec() })
            }
            _ if !shape.is_empty() => Err(format!(
                "holds texts or references in rows of shape {shape:?}: only one of them a sample can be read"
            )),
            Element::Chars { .. } | Element::Wide { .. } => Ok(FieldKind::Text),
            Element::Reference { kind, .. } => Ok(kind.clone()),
        }
    }

    /// True when the stored bytes are what a batch wants.
    pub(in crate::source) fn is_plain(&self) -> bool {
        matches!(self, Element::Number { swap: false, .. })
    }

    /// Writes what the stored bytes mean.
    pub(in crate::source) fn convert(
        &self,
        stored: &[u8],
        room: &mut dyn Room,
    ) -> Result<(), Fault> {
        match self {
            Element::Number { dtype, swap } => {
                let out = room.make(stored.len() as u64)?;
                out.copy_from_slice(stored);
                if *swap {
                    swap_bytes(out, dtype.size());
                }
                Ok(())
            }
            Element::Chars { pad, .. } => {
                let end = stored.iter().rposition(|byte| *byte != *pad && *byte != 0);
                let text = &stored[..end.map_or(0, |end| end + 1)];
                if std::str::from_utf8(text).is_err() {
                    return Err(Fault::corrupt("text", "is not UTF-8"));
                }
                room.make(text.len() as u64)?.copy_from_slice(text);
                Ok(())
            }
            Element::Wide { swap, .. } => {
                let mut text = String::new();
                let end = stored.chunks_exact(4).rposition(|unit| unit != [0; 4]);
                for unit in stored.chunks_exact(4).take(end.map_or(0, |end| end + 1)) {
                    let mut four = [0; 4];
                    four.copy_from_slice(unit);
                    let code = u32::from_ne_bytes(four);
                    let code = if *swap { code.swap_bytes() } else { code };
                    match char::from_u32(code) {
                        Some(char) => text.push(char),
                        None => {
                            return Err(Fault::corrupt(
                                "text",
                                format!("{code:#x} is no character"),
                            ));
                        }
                    }
                }
                room.make(text.len() as u64)?.copy_from_slice(text.as_bytes());
                Ok(())
            }
            Element::Reference { resolve, kind, .. } => {
                resolve.resolve(stored, *kind == FieldKind::Text, room)
            }
        }
    }
}

/// Turns the bytes of each element around.
pub(in crate::source) fn swap_bytes(bytes: &mut [u8], size: usize) {
    if size > 1 {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
}

/// The type of a number of that kind and size, as NumPy letters them.
pub(in crate::source) fn number(kind: u8, size: usize) -> Option<DType> {
    Some(match (kind, size) {
        (b'b', 1) => DType::Bool,
        (b'u', 1) => DType::U8,
        (b'i', 1) => DType::I8,
        (b'u', 2) => DType::U16,
        (b'i', 2) => DType::I16,
        (b'u', 4) => DType::U32,
        (b'i', 4) => DType::I32,
        (b'u', 8) => DType::U64,
        (b'i', 8) => DType::I64,
        (b'f', 2) => DType::F16,
        (b'f', 4) => DType::F32,
        (b'f', 8) => DType::F64,
        _ => return None,
    })
}

/// The element that NumPy writes as `text`, such as `<f4` or `|S10`.
pub(in crate::source) fn from_numpy(text: &str) -> Result<Element, String> {
    let refused = || {
        format!(
            "has elements of type {text:?}, which cannot be in a batch: numbers, booleans and texts can"
        )
    };
    if text.contains('O') {
        return Err("holds Python objects, which are stored as pickle: reading a pickle runs code, so write them as arrays".to_owned());
    }
    let mut letters = text.chars();
    let order = letters.next().ok_or_else(refused)?;
    let kind = letters.next().ok_or_else(refused)?;
    let digits = letters.as_str();
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err(refused());
    }
    let size: usize = digits.parse().map_err(|_| refused())?;
    let swap = match order {
        '<' => cfg!(target_endian = "big"),
        '>' => cfg!(target_endian = "little"),
        '|' | '=' => false,
        _ => return Err(refused()),
    };
    match kind {
        'S' | 'a' => Ok(Element::Chars { width: size, pad: 0 }),
        'U' => Ok(Element::Wide { width: size, swap }),
        kind => match number(kind as u8, size) {
            Some(dtype) if kind.is_ascii() => {
                Ok(Element::Number { dtype, swap: swap && dtype.size() > 1 })
            }
            _ => Err(refused()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Grown;

    fn made(element: &Element, stored: &[u8]) -> Result<Vec<u8>, Fault> {
        let mut kept = Grown::default();
        element.convert(stored, &mut kept).map(|()| kept.bytes)
    }

    #[test]
    fn numbers_and_texts_of_numpy() {
        let plain =
            |text: &str| from_numpy(text).map(|element| (element.width(), element.is_plain()));
        assert_eq!(plain("<f4"), Ok((4, true)));
        assert_eq!(plain(">f4"), Ok((4, false)));
        assert_eq!(plain("|b1"), Ok((1, true)));
        assert_eq!(plain(">u1"), Ok((1, true)));
        assert_eq!(plain("<U3"), Ok((12, false)));
        for wrong in ["", "<", "f4", "<f3", "<c16", "<M8", "<M8[ns]", "|V4", "<f", "<fé", "<f-4"] {
            assert!(plain(wrong).unwrap_err().contains("cannot be in a batch"), "{wrong}");
        }
        assert!(plain("|O").unwrap_err().contains("pickle"));
        assert_eq!(made(&from_numpy(">i2").unwrap(), &[1, 2, 3, 4]).unwrap(), [2, 1, 4, 3]);
        assert_eq!(made(&from_numpy("|S4").unwrap(), b"ab\0\0").unwrap(), b"ab");
        assert_eq!(made(&from_numpy("|S4").unwrap(), b"a\0b\0").unwrap(), b"a\0b");
        assert!(made(&from_numpy("|S2").unwrap(), b"\xff\xfe").is_err());
        let wide = from_numpy("<U2").unwrap();
        assert_eq!(made(&wide, &[0xe9, 0, 0, 0, 0, 0, 0, 0]).unwrap(), "é".as_bytes());
        assert!(made(&wide, &[0, 0xd8, 0, 0, 0, 0, 0, 0]).is_err());
    }
}
