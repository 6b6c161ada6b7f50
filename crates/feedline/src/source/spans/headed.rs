//! Arrays that carry their type and shape in a few bytes before their elements, as MosaicML's
//! streaming and LitData write them.

use serde::{Deserialize, Serialize};

use crate::error::Fault;
use crate::sample::DType;

/// Whose header it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::source) enum Header {
    /// MDS: the type in a byte, unless the column says it; how many axes and how long their
    /// lengths are in another; the lengths.
    Mds {
        /// The header begins with the type.
        says_type: bool,
    },
    /// LitData's tensor: type, number of axes and lengths, each in four bytes, the highest first.
    Tensor,
    /// LitData's numpy: the same, the lowest first.
    Numpy,
}

/// NumPy has no more axes.
const MOST_AXES: usize = 64;

/// Bytes of the longest header.
pub(in crate::source) const LONGEST: u64 = 2 + 8 * MOST_AXES as u64;

/// What a header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::source) struct Array {
    /// The type; `None` where the column says it.
    pub(in crate::source) dtype: Option<DType>,
    pub(in crate::source) shape: Vec<usize>,
    /// Where the elements begin.
    pub(in crate::source) start: usize,
}

/// MDS's number of a type.
fn mds_type(number: u8) -> Option<DType> {
    Some(match number {
        8 => DType::U8,
        9 => DType::I8,
        16 => DType::U16,
        17 => DType::I16,
        18 => DType::F16,
        32 => DType::U32,
        33 => DType::I32,
        34 => DType::F32,
        64 => DType::U64,
        65 => DType::I64,
        66 => DType::F64,
        _ => return None,
    })
}

/// LitData's number of a torch type.
pub(in crate::source) fn torch_type(number: u64) -> Option<DType> {
    Some(match number {
        0 | 1 => DType::F32,
        2 | 3 => DType::F64,
        8 | 9 => DType::F16,
        10 => DType::BF16,
        11 => DType::U8,
        12 => DType::I8,
        13 | 14 => DType::I16,
        15 | 16 => DType::I32,
        17 | 18 => DType::I64,
        19 => DType::Bool,
        20 => DType::U16,
        _ => return None,
    })
}

/// LitData's number of a NumPy type.
pub(in crate::source) fn numpy_type(number: u64) -> Option<DType> {
    Some(match number {
        0 => DType::I8,
        1 => DType::I16,
        2 => DType::I32,
        3 => DType::I64,
        4 => DType::U8,
        5 => DType::U16,
        6 => DType::U32,
        7 => DType::U64,
        8 => DType::F16,
        9 => DType::F32,
        10 => DType::F64,
        13 => DType::Bool,
        _ => return None,
    })
}

impl Header {
    /// Reads a header from the beginning of an array.
    pub(in crate::source) fn read(self, bytes: &[u8]) -> Result<Array, Fault> {
        let short = || Fault::corrupt("array", "is shorter than its header");
        let unknown = || Fault::corrupt("array", "has elements of a type that is not known");
        let (dtype, axes, size, start) = match self {
            Header::Mds { says_type } => {
                let mut start = 0;
                let mut byte = || {
                    start += 1;
                    bytes.get(start - 1).copied().ok_or_else(short)
                };
                let dtype = match says_type {
                    true => Some(mds_type(byte()?).ok_or_else(unknown)?),
                    false => None,
                };
                let axes = byte()?;
                (dtype, usize::from(axes >> 2), 1 << (axes & 3), start)
            }
            Header::Tensor | Header::Numpy => {
                let number = self.number(bytes.get(0..4).ok_or_else(short)?);
                let dtype = match self {
                    Header::Tensor => torch_type(number),
                    _ => numpy_type(number),
                };
                let axes = self.number(bytes.get(4..8).ok_or_else(short)?);
                let axes = usize::try_from(axes).ok().filter(|axes| *axes <= MOST_AXES);
                let axes = axes.ok_or_else(|| Fault::corrupt("array", "has too many axes"))?;
                (Some(dtype.ok_or_else(unknown)?), axes, 4, 8)
            }
        };
        let end = start + axes * size;
        let lengths = bytes.get(start..end).ok_or_else(short)?.chunks_exact(size);
        let shape = lengths.map(|length| usize::try_from(self.number(length)));
        let shape = shape.collect::<Result<Vec<_>, _>>().map_err(|_| short())?;
        Ok(Array { dtype, shape, start: end })
    }

    fn number(self, bytes: &[u8]) -> u64 {
        let join = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        match self {
            Header::Tensor => bytes.iter().fold(0, join),
            _ => bytes.iter().rev().fold(0, join),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read() {
        let with_type = Header::Mds { says_type: true };
        let array = with_type.read(&[34, 2 << 2 | 1, 3, 1, 4, 0, 9]).unwrap();
        assert_eq!(array, Array { dtype: Some(DType::F32), shape: vec![259, 4], start: 6 });
        let array = Header::Mds { says_type: false }.read(&[1 << 2, 7]).unwrap();
        assert_eq!(array, Array { dtype: None, shape: vec![7], start: 2 });
        let array = Header::Tensor.read(&[0, 0, 0, 18, 0, 0, 0, 1, 0, 0, 1, 0]).unwrap();
        assert_eq!(array, Array { dtype: Some(DType::I64), shape: vec![256], start: 12 });
        let array = Header::Numpy.read(&[10, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!(array, Array { dtype: Some(DType::F64), shape: vec![], start: 8 });
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let whole = [0, 0, 0, 18, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 1];
        for end in 0..whole.len() {
            assert!(Header::Tensor.read(&whole[..end]).is_err());
        }
        assert!(Header::Tensor.read(&[0, 0, 0, 4, 0, 0, 0, 0]).is_err(), "complex");
        assert!(Header::Numpy.read(&[10, 0, 0, 0, 255, 255, 255, 255]).is_err());
        assert!(Header::Mds { says_type: true }.read(&[7, 4, 1]).is_err());
        assert!(Header::Mds { says_type: true }.read(&[8, 63 << 2 | 3, 1]).is_err());
    }
}
