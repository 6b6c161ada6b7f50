//! Blosc 1, as Zarr's chunks are packed: blocks of shuffled bytes, each compressed on its own.

use crate::error::Fault;
use crate::source::arrays::{unshuffle, zlib, zstd};

const HEADER: usize = 16;
const SHUFFLED: u8 = 1;
const COPIED: u8 = 2;
const BIT_SHUFFLED: u8 = 4;
const NOT_SPLIT: u8 = 16;

/// Types of more bytes were never split, nor were blocks that would have had smaller parts.
const MOST_SPLITS: usize = 16;
const SMALLEST_SPLIT: usize = 128;

fn corrupt(reason: &str) -> Fault {
    Fault::corrupt("blosc", reason)
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    // Lengths are signed: none is negative.
    usize::try_from(i32::from_le_bytes([four[0], four[1], four[2], four[3]])).ok()
}

/// Undoes it; the result has no more than `limit` bytes.
pub(super) fn decompress(data: &[u8], limit: usize) -> Result<Vec<u8>, Fault> {
    let short = || corrupt("is cut short");
    let header = data.get(..HEADER).ok_or_else(short)?;
    let (flags, size) = (header[2], usize::from(header[3]).max(1));
    let bytes = number(header, 4).ok_or_else(short)?;
    let block = number(header, 8).ok_or_else(short)?;
    if bytes > limit {
        return Err(corrupt("unpacks to more than it should"));
    }
    if bytes == 0 {
        return Ok(Vec::new());
    }
    if flags & COPIED != 0 {
        return data.get(HEADER..HEADER + bytes).map(<[u8]>::to_vec).ok_or_else(short);
    }
    if block == 0 {
        return Err(corrupt("has blocks of no length"));
    }
    let mut out = Vec::new();
    for number_of in 0..bytes.div_ceil(block) {
        let length = block.min(bytes - out.len());
        let at = number(data, HEADER + 4 * number_of).ok_or_else(short)?;
        let last = length < block;
        let split = flags & NOT_SPLIT == 0
            && size <= MOST_SPLITS
            && block / size >= SMALLEST_SPLIT
            && !last;
        let made = one_block(data, at, length, if split { size } else { 1 }, flags >> 5)?;
        let count = length / size;
        if flags & SHUFFLED != 0 {
            out.extend(unshuffle(&made, size));
        } else if flags & BIT_SHUFFLED != 0 && count > 0 && count % 8 == 0 {
            out.extend(unshuffle_bits(&made, size));
        } else {
            out.extend(made);
        }
    }
    Ok(out)
}

/// A block that was compressed in `splits` parts.
fn one_block(
    data: &[u8],
    mut at: usize,
    length: usize,
    splits: usize,
    format: u8,
) -> Result<Vec<u8>, Fault> {
    let short = || corrupt("is cut short");
    let part = length / splits;
    let mut out = Vec::new();
    for _ in 0..splits {
        let stored = number(data, at).ok_or_else(short)?;
        at += 4;
        let bytes = at.checked_add(stored).and_then(|end| data.get(at..end)).ok_or_else(short)?;
        at += stored;
        let before = out.len();
        if stored == part {
            out.extend_from_slice(bytes);
            continue;
        }
        let limit = before + part;
        let made = match format {
            0 => blosclz(bytes, &mut out, limit),
            1 => lz4(bytes, &mut out, limit),
            3 => zlib("blosc", bytes, part).ok().map(|made| out.extend(made)),
            4 => zstd("blosc", bytes, part).ok().map(|made| out.extend(made)),
            2 => return Err(Fault::Unsupported("is packed with snappy in blosc, which cannot be undone: blosclz, lz4, zlib and zstd can".to_owned())),
            _ => return Err(corrupt("has an unknown compressor")),
        };
        if made.is_none() || out.len() != limit {
            return Err(corrupt("has a damaged block"));
        }
    }
    Ok(out)
}

/// Bits that were sorted by their place in the element, put back.
fn unshuffle_bits(data: &[u8], size: usize) -> Vec<u8> {
    let count = data.len() / size;
    let row = count / 8;
    let mut out = vec![0; data.len()];
    for byte in 0..size {
        for bit in 0..8 {
            let from = &data[(byte * 8 + bit) * row..][..row];
            for (group, eight) in from.iter().enumerate() {
                for element in 0..8 {
                    let place = (group * 8 + element) * size + byte;
                    out[place] |= (eight >> element & 1) << bit;
                }
            }
        }
    }
    let rest = count * size;
    out[rest..].copy_from_slice(&data[rest..]);
    out
}

/// Copies `length` bytes from `back` bytes before the end, which may be what is just written.
fn again(out: &mut Vec<u8>, back: usize, length: usize, limit: usize) -> Option<()> {
    let start = out.len().checked_sub(back).filter(|_| back > 0)?;
    if length > limit.checked_sub(out.len())? {
        return None;
    }
    if back >= length {
        out.extend_from_within(start..start + length);
    } else {
        for at in start..start + length {
            out.push(out[at]);
        }
    }
    Some(())
}

fn take<'a>(data: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = data.split_at_checked(count)?;
    *data = rest;
    Some(taken)
}

/// Adds bytes of 255 up, and the first that is not.
fn longer(data: &mut &[u8], mut length: usize) -> Option<usize> {
    loop {
        let byte = take(data, 1)?[0];
        length = length.checked_add(usize::from(byte))?;
        if byte != 255 {
            return Some(length);
        }
    }
}

/// Appends what a block of LZ4 means. `None` if it is damaged or gives more than `limit` in all.
pub(super) fn lz4(mut data: &[u8], out: &mut Vec<u8>, limit: usize) -> Option<()> {
    loop {
        let token = usize::from(take(&mut data, 1)?[0]);
        let literals = match token >> 4 {
            15 => longer(&mut data, 15)?,
            length => length,
        };
        if literals > limit.checked_sub(out.len())? {
            return None;
        }
        out.extend_from_slice(take(&mut data, literals)?);
        if data.is_empty() {
            return Some(());
        }
        let back = take(&mut data, 2)?;
        let back = usize::from(u16::from_le_bytes([back[0], back[1]]));
        let length = match token & 15 {
            15 => longer(&mut data, 15)?,
            length => length,
        };
        again(out, back, length + 4, limit)?;
    }
}

/// The same for BloscLZ.
fn blosclz(mut data: &[u8], out: &mut Vec<u8>, limit: usize) -> Option<()> {
    const FAR: usize = 8191;
    let mut control = usize::from(take(&mut data, 1)?[0] & 31);
    loop {
        if control >= 32 {
            let mut length = (control >> 5) - 1;
            let high = (control & 31) << 8;
            if length == 6 {
                length = longer(&mut data, length)?;
            }
            let low = usize::from(take(&mut data, 1)?[0]);
            let mut back = high + low;
            if low == 255 && high == 31 << 8 {
                let far = take(&mut data, 2)?;
                back = (usize::from(far[0]) << 8 | usize::from(far[1])) + FAR;
            }
            again(out, back + 1, length + 3, limit)?;
        } else {
            let literals = take(&mut data, control + 1)?;
            if literals.len() > limit.checked_sub(out.len())? {
                return None;
            }
            out.extend_from_slice(literals);
        }
        if data.is_empty() {
            return Some(());
        }
        control = usize::from(take(&mut data, 1)?[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lz4_of_runs_and_copies() {
        let made = |data: &[u8]| {
            let mut out = Vec::new();
            lz4(data, &mut out, 20).map(|()| out)
        };
        assert_eq!(made(&[0x30, b'a', b'b', b'c']).unwrap(), b"abc");
        assert_eq!(made(&[0x20, b'a', b'b', 2, 0, 0x10, b'z']).unwrap(), b"abababz");
        assert_eq!(made(&[0x20, b'a', b'b', 3, 0, 0x10, b'z']), None, "before the start");
        assert_eq!(made(&[0x20, b'a', b'b', 0, 0, 0x10, b'z']), None, "nowhere");
        assert_eq!(made(&[0x2f, b'a', b'b', 2, 0, 255, 255, 3]), None, "too much");
        assert_eq!(made(&[0xf0, 255]), None, "cut short");
        assert_eq!(made(&[]), None);
    }

    #[test]
    fn bits_go_back() {
        // Eight elements of one byte: 0 to 7. Bit k of all of them is one byte.
        let stored = [0b1010_1010, 0b1100_1100, 0b1111_0000, 0, 0, 0, 0, 0];
        assert_eq!(unshuffle_bits(&stored, 1), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn damage_is_an_error() {
        let mut whole = vec![2, 1, SHUFFLED | 1 << 5 | NOT_SPLIT, 4];
        for length in [8i32, 8, 33] {
            whole.extend(length.to_le_bytes());
        }
        whole.extend(20i32.to_le_bytes());
        whole.extend(9i32.to_le_bytes());
        whole.extend([0x80, 1, 5, 2, 6, 3, 7, 4, 8]);
        assert_eq!(decompress(&whole, 8).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(decompress(&whole, 7).is_err());
        for at in 0..whole.len() {
            assert!(decompress(&whole[..at], 100).is_err());
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                let _ = decompress(&flipped, 100);
            }
        }
    }
}
