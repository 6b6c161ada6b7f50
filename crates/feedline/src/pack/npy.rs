//! The header of a .npy file.

use crate::sample::DType;

/// A header is padded to a multiple of this, so that the elements can be mapped.
const ALIGNMENT: usize = 64;

/// Room for the first axis of an array whose length is known only at the end: twenty digits.
pub(crate) const PATCHABLE: usize = 192;

/// NumPy's letters for a type, in this machine's byte order; `None` where it has none.
#[must_use]
pub(crate) fn descr(dtype: DType) -> Option<String> {
    let kind = match dtype {
        DType::Bool => 'b',
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 'u',
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 'i',
        DType::F16 | DType::F32 | DType::F64 => 'f',
        DType::BF16 => return None,
    };
    let order = match (dtype.size(), cfg!(target_endian = "little")) {
        (1, _) => '|',
        (_, true) => '<',
        (_, false) => '>',
    };
    Some(format!("{order}{kind}{}", dtype.size()))
}

/// The bytes before the elements of an array in C order; `at_least` so many.
#[must_use]
pub(crate) fn header(dtype: DType, shape: &[usize], at_least: usize) -> Option<Vec<u8>> {
    let axes: String = shape.iter().map(|axis| format!("{axis}, ")).collect();
    let axes = match shape.len() {
        1 => axes.trim_end(),
        _ => axes.trim_end_matches(", "),
    };
    let descr = descr(dtype)?;
    let dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({axes}), }}");
    // Ten bytes and a newline go with it; a header beyond 64 KiB has two bytes more.
    let whole = (dict.len() + 13).next_multiple_of(ALIGNMENT).max(at_least);
    let mut bytes = b"\x93NUMPY".to_vec();
    match u16::try_from(whole - 10) {
        Ok(length) => {
            bytes.extend([1, 0]);
            bytes.extend(length.to_le_bytes());
        }
        Err(_) => {
            bytes.extend([2, 0]);
            bytes.extend(u32::try_from(whole - 12).ok()?.to_le_bytes());
        }
    }
    bytes.extend(dict.as_bytes());
    bytes.resize(whole - 1, b' ');
    bytes.push(b'\n');
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_numpy_writes_them() {
        let text = |shape: &[usize]| {
            let bytes = header(DType::F32, shape, 0).unwrap();
            assert_eq!(bytes.len() % 64, 0);
            String::from_utf8_lossy(&bytes[10..]).trim_end().to_owned()
        };
        assert!(text(&[]).contains("'shape': (), }"));
        assert!(text(&[3]).contains("'shape': (3,), }"));
        assert!(
            text(&[3, 4]).contains("'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }")
        );
        assert_eq!(header(DType::U8, &[1], PATCHABLE).unwrap().len(), PATCHABLE);
        assert_eq!(descr(DType::U8).unwrap(), "|u1");
        assert!(header(DType::BF16, &[1], 0).is_none());
    }
}
