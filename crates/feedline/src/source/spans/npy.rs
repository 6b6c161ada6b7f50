//! A .npy file as one field of a sample: a single tensor of numbers.

use crate::error::Fault;
use crate::sample::DType;
use crate::source::arrays::npy::header::Header;
use crate::source::arrays::{Element, swap_bytes};

/// What the header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::source) struct NpyTensor {
    pub(in crate::source) dtype: DType,
    /// True if the elements have the byte order that this machine does not have.
    pub(in crate::source) swap: bool,
    /// True if the first axis is the one that changes fastest.
    pub(in crate::source) fortran: bool,
    pub(in crate::source) shape: Vec<usize>,
    /// Bytes before the elements.
    pub(in crate::source) start: usize,
}

fn cut_short() -> Fault {
    Fault::corrupt("npy", "ends in its header")
}

impl NpyTensor {
    /// How long the header is, as its first 12 bytes say (10 in the oldest version).
    pub(in crate::source) fn length(bytes: &[u8]) -> Result<usize, Fault> {
        Header::length(bytes)?.ok_or_else(cut_short)
    }

    /// Reads the header at the start of `bytes`.
    pub(in crate::source) fn read(bytes: &[u8]) -> Result<NpyTensor, Fault> {
        let header = Header::parse(bytes)?.ok_or_else(cut_short)?;
        let refuse = |what: &str| {
            Err(Fault::Unsupported(format!("npy: has elements of {what}, which is no tensor")))
        };
        match &header.parts[..] {
            [only] if only.name.is_empty() => match only.element {
                Element::Number { dtype, swap } => Ok(NpyTensor {
                    dtype,
                    swap,
                    fortran: header.fortran,
                    shape: header.shape,
                    start: header.bytes,
                }),
                _ => refuse("text"),
            },
            _ => refuse("several fields"),
        }
    }

    /// Bytes of the elements; `None` if no machine holds them.
    pub(in crate::source) fn bytes(&self) -> Option<u64> {
        crate::source::spans::part::array_bytes(self.dtype, &self.shape)
    }

    /// True if the elements can be used as they lie there.
    pub(in crate::source) fn is_plain(&self) -> bool {
        let flat = self.shape.iter().filter(|axis| **axis > 1).count() <= 1;
        !self.swap && (!self.fortran || flat)
    }

    /// Writes the elements that follow the header into `out`, in C order and this machine's byte
    /// order. Both have exactly the array's length.
    pub(in crate::source) fn write(&self, elements: &[u8], out: &mut [u8]) {
        let size = self.dtype.size();
        if self.fortran && self.shape.len() > 1 {
            copy_transposed(elements, &self.shape, size, out);
        } else {
            out.copy_from_slice(elements);
        }
        if self.swap {
            swap_bytes(out, size);
        }
    }
}

/// Copies what lies in Fortran order to C order.
fn copy_transposed(from: &[u8], shape: &[usize], size: usize, to: &mut [u8]) {
    let mut steps = Vec::with_capacity(shape.len());
    let mut step = size;
    for axis in shape {
        steps.push(step);
        step = step.saturating_mul(*axis);
    }
    let mut index = vec![0; shape.len()];
    let mut at = 0;
    for element in to.chunks_exact_mut(size) {
        element.copy_from_slice(&from[at..at + size]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            at += steps[axis];
            if index[axis] < shape[axis] {
                break;
            }
            at -= steps[axis] * shape[axis];
            index[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let mut text =
            format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
        while !(text.len() + 11).is_multiple_of(64) {
            text.push(' ');
        }
        text.push('\n');
        let mut out = b"\x93NUMPY\x01\x00".to_vec();
        out.extend((text.len() as u16).to_le_bytes());
        out.extend(text.as_bytes());
        out.extend(data);
        out
    }

    #[test]
    fn headers_of_numpy_are_read() {
        let header = NpyTensor::read(&npy("<f4", "False", "(2, 3)", &[])).unwrap();
        assert_eq!((header.dtype, header.shape.clone()), (DType::F32, vec![2, 3]));
        assert!(header.is_plain() && header.start.is_multiple_of(64) && header.bytes() == Some(24));
        let header = NpyTensor::read(&npy(">i2", "True", "(2, 3)", &[])).unwrap();
        assert!(!header.is_plain() && header.swap && header.fortran);
        let elements: Vec<u8> =
            [0u16, 3, 1, 4, 2, 5].iter().flat_map(|x| x.to_be_bytes()).collect();
        let mut out = vec![0; 12];
        header.write(&elements, &mut out);
        let expected: Vec<u8> = (0u16..6).flat_map(u16::to_le_bytes).collect();
        assert_eq!(out, expected);
        assert!(NpyTensor::read(&npy("|b1", "False", "()", &[])).unwrap().shape.is_empty());
        assert_eq!(NpyTensor::read(&npy("<i8", "False", "(7,)", &[])).unwrap().shape, [7]);
    }

    #[test]
    fn what_is_no_tensor_is_refused_and_nothing_panics() {
        let message = |bytes: &[u8]| NpyTensor::read(bytes).unwrap_err().to_string();
        assert!(message(&npy("|O", "False", "(1,)", &[])).contains("runs code"));
        assert!(message(&npy("<U5", "False", "(1,)", &[])).contains("no tensor"));
        assert!(message(&npy("<f4", "Maybe", "(1,)", &[])).contains("unknown"));
        let whole = npy("<f4", "False", "(2, 3)", &[]);
        for end in 0..whole.len() {
            assert!(NpyTensor::read(&whole[..end]).is_err());
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                let _ = NpyTensor::read(&changed);
            }
        }
        let huge = npy("<f8", "False", "(4294967295, 4294967295, 4294967295)", &[]);
        assert_eq!(NpyTensor::read(&huge).unwrap().bytes(), None);
    }
}
