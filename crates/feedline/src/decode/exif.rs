//! The one thing that decoding wants from EXIF: which way is up.

/// The orientation (1 to 8) in a TIFF structure, as APP1 segments and eXIf chunks hold it.
///
/// Only the first directory is read, whose entries are at most 65535 of 12 bytes each, all
/// inside `tiff`: no offset is followed but the first.
pub(super) fn orientation(tiff: &[u8]) -> Option<u8> {
    let little = match tiff.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let short = |at: usize| -> Option<u16> {
        let pair: [u8; 2] = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(pair) } else { u16::from_be_bytes(pair) })
    };
    let offset: [u8; 4] = tiff.get(4..8)?.try_into().ok()?;
    let offset =
        if little { u32::from_le_bytes(offset) } else { u32::from_be_bytes(offset) } as usize;
    for i in 0..usize::from(short(offset)?) {
        let entry = offset.checked_add(2 + 12 * i)?;
        if short(entry)? == 0x0112 {
            let value = short(entry + 8)?;
            return (1..=8).contains(&value).then_some(value as u8);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_byte_orders_and_broken_ones() {
        let little = b"II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let big = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0";
        assert_eq!(orientation(little), Some(6));
        assert_eq!(orientation(big), Some(8));
        for cut in 0..little.len() - 2 {
            assert_eq!(orientation(&little[..cut]), None);
        }
        assert_eq!(orientation(b"II\x2a\0\xff\xff\xff\xff"), None);
        assert_eq!(
            orientation(b"II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x09\0\0\0"),
            None
        );
    }
}
