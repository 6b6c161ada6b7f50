//! Protocol buffers as they lie in memory: which field is where. Nothing is copied.

use std::ops::Range;

/// How deep groups may lie in each other; nobody writes them at all.
const DEEPEST: u32 = 32;

/// A field's value, with its place in the bytes that the walk began with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::source) enum Raw {
    /// A number of variable length.
    Varint(u64),
    /// Eight bytes.
    Fixed64(Range<usize>),
    /// Four bytes.
    Fixed32(Range<usize>),
    /// A message, a string, or numbers that were packed.
    Bytes(Range<usize>),
}

/// Walks the fields of one message.
#[derive(Debug, Clone)]
pub(in crate::source) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

/// The bytes are not what protocol buffers are.
pub(in crate::source) type Bad = &'static str;

const SHORT: Bad = "a field reaches beyond the end of its message";

impl<'a> Fields<'a> {
    /// The message at `place` of `bytes`.
    pub(in crate::source) fn new(bytes: &'a [u8], place: Range<usize>) -> Fields<'a> {
        let end = place.end.min(bytes.len());
        Fields { bytes, at: place.start.min(end), end }
    }

    /// The next field's number and value; `None` at the end. Groups are passed over.
    pub(in crate::source) fn next(&mut self) -> Result<Option<(u64, Raw)>, Bad> {
        let mut depth = 0u32;
        loop {
            if self.at >= self.end {
                return if depth == 0 { Ok(None) } else { Err("a group has no end") };
            }
            let tag = self.varint()?;
            let number = tag >> 3;
            if number == 0 {
                return Err("a field has the number 0");
            }
            let value = match tag & 7 {
                0 => Raw::Varint(self.varint()?),
                1 => Raw::Fixed64(self.take(8)?),
                2 => {
                    let length = self.varint()?;
                    Raw::Bytes(self.take(length)?)
                }
                3 => {
                    depth += 1;
                    if depth > DEEPEST {
                        return Err("groups lie too deep in each other");
                    }
                    continue;
                }
                4 => {
                    depth = depth.checked_sub(1).ok_or("a group ends that did not begin")?;
                    continue;
                }
                5 => Raw::Fixed32(self.take(4)?),
                _ => return Err("a field's type is not known"),
            };
            if depth == 0 {
                return Ok(Some((number, value)));
            }
        }
    }

    /// The number of variable length that comes next.
    pub(in crate::source) fn varint(&mut self) -> Result<u64, Bad> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = *self.bytes[..self.end].get(self.at).ok_or(SHORT)?;
            self.at += 1;
            // What is shifted out of the tenth byte is dropped, as everybody does.
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number is longer than ten bytes")
    }

    /// True when nothing is left.
    pub(in crate::source) fn is_done(&self) -> bool {
        self.at >= self.end
    }

    fn take(&mut self, length: u64) -> Result<Range<usize>, Bad> {
        let length = usize::try_from(length).map_err(|_| SHORT)?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.end).ok_or(SHORT)?;
        let place = self.at..end;
        self.at = end;
        Ok(place)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<Vec<(u64, Raw)>, Bad> {
        let mut fields = Fields::new(bytes, 0..bytes.len());
        let mut found = Vec::new();
        while let Some(field) = fields.next()? {
            found.push(field);
        }
        Ok(found)
    }

    #[test]
    fn fields_are_found_with_their_places() {
        let bytes =
            [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8];
        let expected = vec![
            (1, Raw::Varint(150)),
            (2, Raw::Bytes(5..7)),
            (3, Raw::Fixed32(8..12)),
            (4, Raw::Fixed64(13..21)),
        ];
        assert_eq!(all(&bytes).unwrap(), expected);
        for end in 0..bytes.len() {
            let _ = all(&bytes[..end]);
        }
    }

    #[test]
    fn groups_are_passed_over_and_bad_ones_refused() {
        assert_eq!(all(&[0x0b, 0x10, 5, 0x0c, 0x18, 7]).unwrap(), vec![(3, Raw::Varint(7))]);
        assert!(all(&[0x0b, 0x10, 5]).is_err());
        assert!(all(&[0x0c]).is_err());
        assert!(all(&[0x0b; 64]).is_err());
        assert!(
            all(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).is_err()
        );
        assert!(all(&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).is_err());
        assert!(all(&[0x0f]).is_err());
        assert!(all(&[0x02, 0]).is_err());
        let minus = [0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(all(&minus).unwrap(), vec![(1, Raw::Varint(u64::MAX))]);
    }
}
