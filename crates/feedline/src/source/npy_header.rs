//! The header of NumPy's .npy: a dictionary as Python writes it, before the elements.
//!
//! Only what `numpy.save` writes is understood. Objects are refused: they are pickled, and reading
//! a pickle runs code.

use crate::error::Fault;
use crate::sample::DType;

const MAGIC: &[u8] = b"\x93NUMPY";
/// NumPy itself refuses longer ones.
const LONGEST: usize = 10_000;
/// NumPy has no more.
const MOST_AXES: usize = 64;

/// What the header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NpyHeader {
    pub(super) dtype: DType,
    /// True if elements have their most significant byte first.
    pub(super) big_endian: bool,
    /// True if the first axis is the one that changes fastest.
    pub(super) fortran: bool,
    pub(super) shape: Vec<usize>,
    /// Bytes before the elements.
    pub(super) start: usize,
}

fn corrupt(reason: impl Into<String>) -> Fault {
    Fault::corrupt("npy", reason)
}

impl NpyHeader {
    /// How long the header is, told by its first 12 bytes (10 in the oldest version).
    pub(super) fn length(bytes: &[u8]) -> Result<usize, Fault> {
        let head = bytes.strip_prefix(MAGIC).ok_or_else(|| corrupt("is no .npy file"))?;
        let (length, before) = match head {
            [1, _, a, b, ..] => (u32::from(u16::from_le_bytes([*a, *b])), 10),
            [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]), 12),
            [1..=3, ..] => return Err(corrupt("ends in its header")),
            _ => return Err(Fault::Unsupported("npy: has an unknown version".to_owned())),
        };
        if length as usize > LONGEST {
            return Err(Fault::TooLarge(format!("npy: declares a header of {length} bytes")));
        }
        Ok(length as usize + before)
    }

    /// Reads the header at the start of `bytes`.
    pub(super) fn read(bytes: &[u8]) -> Result<NpyHeader, Fault> {
        let start = NpyHeader::length(bytes)?;
        let before = if bytes[6] == 1 { 10 } else { 12 };
        let text = bytes.get(before..start).ok_or_else(|| corrupt("ends in its header"))?;
        // Version 3 is UTF-8, the others Latin-1; what is understood is ASCII in all of them.
        let text =
            std::str::from_utf8(text).map_err(|_| corrupt("has a header that is no text"))?;
        let mut scan = Scan { text, at: 0 };
        scan.dictionary(start)
    }

    /// Elements of the array, and their bytes; `None` if no machine holds them.
    pub(super) fn bytes(&self) -> Option<u64> {
        super::part::array_bytes(self.dtype, &self.shape)
    }

    /// True if the elements can be used as they lie there.
    pub(super) fn is_plain(&self) -> bool {
        let one = self.dtype.size() == 1;
        let flat = self.shape.iter().filter(|axis| **axis > 1).count() <= 1;
        (!self.big_endian || one) && (!self.fortran || flat)
    }

    /// Writes the elements that follow the header into `out`, in C order and this machine's byte
    /// order. Both have exactly the array's length.
    pub(super) fn write(&self, elements: &[u8], out: &mut [u8]) {
        let size = self.dtype.size();
        if self.fortran && self.shape.len() > 1 {
            copy_transposed(elements, &self.shape, size, out);
        } else {
            out.copy_from_slice(elements);
        }
        if self.big_endian && size > 1 {
            out.chunks_exact_mut(size).for_each(<[u8]>::reverse);
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

struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Goes past `what`, after blanks; false if something else is there.
    fn take(&mut self, what: char) -> bool {
        let rest = self.rest();
        let blanks = rest.len() - rest.trim_start_matches([' ', '\n', '\t']).len();
        self.at += blanks;
        let there = self.rest().starts_with(what);
        self.at += if there { what.len_utf8() } else { 0 };
        there
    }

    fn demand(&mut self, what: char) -> Result<(), Fault> {
        match self.take(what) {
            true => Ok(()),
            false => Err(corrupt(format!("has a header without {what:?} where it belongs"))),
        }
    }

    fn quoted(&mut self) -> Result<&'a str, Fault> {
        let quote = if self.take('\'') { '\'' } else { '"' };
        if quote == '"' {
            self.demand('"')?;
        }
        let rest = self.rest();
        let end = rest.find(quote).ok_or_else(|| corrupt("has an open quote in its header"))?;
        self.at += end + 1;
        Ok(&rest[..end])
    }

    fn word(&mut self) -> &'a str {
        self.take('\0');
        let rest = self.rest();
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn shape(&mut self) -> Result<Vec<usize>, Fault> {
        let mut shape = Vec::new();
        self.demand('(')?;
        while !self.take(')') {
            // Python 2 wrote numbers as 3L.
            let number = self.word().trim_end_matches('L');
            let axis = number.parse().map_err(|_| corrupt("has a shape that is no numbers"))?;
            shape.push(axis);
            if shape.len() > MOST_AXES {
                return Err(corrupt("has more than 64 axes"));
            }
            if !self.take(',') {
                self.demand(')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn dictionary(&mut self, start: usize) -> Result<NpyHeader, Fault> {
        let (mut descr, mut fortran, mut shape) = (None, None, None);
        self.demand('{')?;
        while !self.take('}') {
            let key = self.quoted()?;
            self.demand(':')?;
            match key {
                "descr" if self.take('[') => {
                    return Err(Fault::Unsupported(
                        "npy: has elements of several fields, which is no tensor".to_owned(),
                    ));
                }
                "descr" => descr = Some(self.quoted()?),
                "fortran_order" => {
                    fortran = Some(match self.word() {
                        "True" => true,
                        "False" => false,
                        _ => return Err(corrupt("has a fortran_order that is no truth value")),
                    });
                }
                "shape" => shape = Some(self.shape()?),
                _ => return Err(corrupt("has an unknown key in its header")),
            }
            if !self.take(',') {
                self.demand('}')?;
                break;
            }
        }
        let (Some(descr), Some(fortran), Some(shape)) = (descr, fortran, shape) else {
            return Err(corrupt("has a header without descr, fortran_order and shape"));
        };
        let (dtype, big_endian) = element(descr)?;
        Ok(NpyHeader { dtype, big_endian, fortran, shape, start })
    }
}

fn element(descr: &str) -> Result<(DType, bool), Fault> {
    let (order, code) = match descr.chars().next() {
        Some(order @ ('<' | '>' | '|' | '=')) => (order, &descr[1..]),
        _ => ('=', descr),
    };
    let dtype = match code {
        "b1" | "?" => DType::Bool,
        "u1" => DType::U8,
        "i1" => DType::I8,
        "u2" => DType::U16,
        "i2" => DType::I16,
        "u4" => DType::U32,
        "i4" => DType::I32,
        "u8" => DType::U64,
        "i8" => DType::I64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        code if code.starts_with('O') => {
            return Err(Fault::Unsupported(
                "npy: holds Python objects, which are pickled: reading a pickle runs code, so it \
                 is refused"
                    .to_owned(),
            ));
        }
        _ => {
            return Err(Fault::Unsupported(format!(
                "npy: has elements of type {descr:?}, which is no tensor's"
            )));
        }
    };
    Ok((dtype, order == '>'))
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
        let header = NpyHeader::read(&npy("<f4", "False", "(2, 3)", &[])).unwrap();
        assert_eq!((header.dtype, header.shape.clone()), (DType::F32, vec![2, 3]));
        assert!(header.is_plain() && header.start.is_multiple_of(64) && header.bytes() == Some(24));
        let header = NpyHeader::read(&npy(">i2", "True", "(2, 3)", &[])).unwrap();
        assert!(!header.is_plain() && header.big_endian && header.fortran);
        let elements: Vec<u8> =
            [0u16, 3, 1, 4, 2, 5].iter().flat_map(|x| x.to_be_bytes()).collect();
        let mut out = vec![0; 12];
        header.write(&elements, &mut out);
        let expected: Vec<u8> = (0u16..6).flat_map(u16::to_le_bytes).collect();
        assert_eq!(out, expected);
        assert!(NpyHeader::read(&npy("|b1", "False", "()", &[])).unwrap().shape.is_empty());
        assert_eq!(NpyHeader::read(&npy("<i8", "False", "(7,)", &[])).unwrap().shape, [7]);
    }

    #[test]
    fn what_is_no_tensor_is_refused_and_nothing_panics() {
        let message = |bytes: &[u8]| NpyHeader::read(bytes).unwrap_err().to_string();
        assert!(message(&npy("|O", "False", "(1,)", &[])).contains("runs code"));
        assert!(message(&npy("<U5", "False", "(1,)", &[])).contains("no tensor"));
        assert!(message(&npy("<f4", "Maybe", "(1,)", &[])).contains("truth"));
        let whole = npy("<f4", "False", "(2, 3)", &[]);
        for end in 0..whole.len() {
            assert!(NpyHeader::read(&whole[..end]).is_err());
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut changed = whole.clone();
                changed[at] ^= 1 << bit;
                let _ = NpyHeader::read(&changed);
            }
        }
        let huge = npy("<f8", "False", "(4294967295, 4294967295, 4294967295)", &[]);
        assert_eq!(NpyHeader::read(&huge).unwrap().bytes(), None);
    }
}
