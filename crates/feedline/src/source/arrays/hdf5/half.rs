//! Which number of two bytes is meant: the reader of the structure does not distinguish float16 from
//! bfloat16, so the description of the type is looked at here.

use hdf5_reader::messages::datatype::Datatype;

use crate::sample::DType;

/// The message that describes a type.
const DATATYPE: u16 = 3;

/// Size, first bit, bits, place and bits of the exponent and of the mantissa, and its bias.
const FLOAT16: [u8; 16] = [2, 0, 0, 0, 0, 0, 16, 0, 10, 5, 0, 10, 15, 0, 0, 0];
const BFLOAT16: [u8; 16] = [2, 0, 0, 0, 0, 0, 16, 0, 7, 8, 0, 7, 127, 0, 0, 0];

/// Bytes before the messages, at most.
pub(super) const PREFIX: u64 = 40;

/// True if there are floating-point numbers of two bytes in it.
pub(super) fn is_in(datatype: &Datatype) -> bool {
    match datatype {
        Datatype::FloatingPoint { size, .. } => *size == 2,
        Datatype::Compound { fields, .. } => fields.iter().any(|field| is_in(&field.datatype)),
        Datatype::Array { base, .. } | Datatype::VarLen { base, .. } => is_in(base),
        _ => false,
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Where the messages of an object's header begin and end in it.
pub(super) fn messages(start: &[u8]) -> Option<(usize, usize)> {
    if start.starts_with(b"OHDR") {
        let flags = *start.get(5)?;
        let times = if flags & 0x20 != 0 { 16 } else { 0 };
        let limits = if flags & 0x10 != 0 { 4 } else { 0 };
        let (at, width) = (6 + times + limits, 1 << (flags & 3));
        let length = usize::try_from(number(start.get(at..at + width)?)).ok()?;
        return Some((at + width, (at + width).checked_add(length)?));
    }
    Some((16, 16 + number(start.get(8..12)?) as usize))
}

/// The type that the header's own description of it says; `None` if it has none, or several.
pub(super) fn declared_type(header: &[u8]) -> Option<DType> {
    let (mut at, end) = messages(header)?;
    let end = end.min(header.len());
    let newer = header.starts_with(b"OHDR");
    let ordered = newer && header.get(5)? & 4 != 0;
    while at < end {
        let (kind, size, flags, head) = match newer {
            true => {
                let head = header.get(at..at + 4)?;
                let more = if ordered { 6 } else { 4 };
                (u16::from(head[0]), number(&head[1..3]), head[3], more)
            }
            false => {
                let head = header.get(at..at + 8)?;
                (number(&head[..2]) as u16, number(&head[2..4]), head[4], 8)
            }
        };
        let body = at + head..at + head + size as usize;
        // A shared one is described elsewhere.
        if kind == DATATYPE && flags & 2 == 0 {
            let body = header.get(body)?;
            let has = |wanted: &[u8; 16]| body.windows(16).any(|window| window == wanted);
            return match (has(&FLOAT16), has(&BFLOAT16)) {
                (true, false) => Some(DType::F16),
                (false, true) => Some(DType::BF16),
                _ => None,
            };
        }
        at = body.end;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_two_bytes_are_distinguished() {
        for (kind, expected) in [(FLOAT16, DType::F16), (BFLOAT16, DType::BF16)] {
            let mut older = vec![1, 0, 2, 0, 1, 0, 0, 0, 40, 0, 0, 0, 0, 0, 0, 0];
            older.extend([1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 24, 0, 1, 0, 0, 0, 0x11, 0x20, 15, 0]);
            older.extend(kind);
            older.extend([0; 4]);
            assert_eq!(declared_type(&older), Some(expected));
            for cut in 0..older.len() - 4 {
                assert_eq!(declared_type(&older[..cut]), None, "{cut}");
            }
            let mut newer = b"OHDR\x02\x2412345678901234560".to_vec();
            newer.truncate(22);
            newer.extend([30, 3, 20, 0, 0, 9, 9, 0x11, 0x20, 15, 0]);
            newer.extend(kind);
            assert_eq!(declared_type(&newer), Some(expected));
            newer[26] = 2;
            assert_eq!(declared_type(&newer), None);
        }
    }
}
