//! The first directory of a TIFF or BigTIFF file: numbers by tag, read where they lie.
//!
//! No other directory is visited and no list is copied, so nothing in it can loop or grow.

use crate::error::Fault;

/// The tags that decoding looks at.
pub(super) mod tag {
    pub(in super::super) const WIDTH: u16 = 256;
    pub(in super::super) const HEIGHT: u16 = 257;
    pub(in super::super) const BITS: u16 = 258;
    pub(in super::super) const COMPRESSION: u16 = 259;
    pub(in super::super) const PHOTOMETRIC: u16 = 262;
    pub(in super::super) const FILL_ORDER: u16 = 266;
    pub(in super::super) const STRIP_OFFSETS: u16 = 273;
    pub(in super::super) const ORIENTATION: u16 = 274;
    pub(in super::super) const SAMPLES: u16 = 277;
    pub(in super::super) const ROWS_PER_STRIP: u16 = 278;
    pub(in super::super) const STRIP_COUNTS: u16 = 279;
    pub(in super::super) const PLANAR: u16 = 284;
    pub(in super::super) const T4_OPTIONS: u16 = 292;
    pub(in super::super) const PREDICTOR: u16 = 317;
    pub(in super::super) const COLOR_MAP: u16 = 320;
    pub(in super::super) const TILE_WIDTH: u16 = 322;
    pub(in super::super) const TILE_HEIGHT: u16 = 323;
    pub(in super::super) const TILE_OFFSETS: u16 = 324;
    pub(in super::super) const TILE_COUNTS: u16 = 325;
    pub(in super::super) const INK_SET: u16 = 332;
    pub(in super::super) const EXTRA_SAMPLES: u16 = 338;
    pub(in super::super) const SAMPLE_FORMAT: u16 = 339;
    pub(in super::super) const JPEG_TABLES: u16 = 347;
    pub(super) const ALL: [u16; 23] = [
        WIDTH,
        HEIGHT,
        BITS,
        COMPRESSION,
        PHOTOMETRIC,
        FILL_ORDER,
        STRIP_OFFSETS,
        ORIENTATION,
        SAMPLES,
        ROWS_PER_STRIP,
        STRIP_COUNTS,
        PLANAR,
        T4_OPTIONS,
        PREDICTOR,
        COLOR_MAP,
        TILE_WIDTH,
        TILE_HEIGHT,
        TILE_OFFSETS,
        TILE_COUNTS,
        INK_SET,
        EXTRA_SAMPLES,
        SAMPLE_FORMAT,
        JPEG_TABLES,
    ];
}

/// Where the values of a tag lie.
#[derive(Debug, Clone, Copy)]
struct TagValues {
    kind: u16,
    count: usize,
    at: usize,
}

impl TagValues {
    /// Bytes of a value; 0 for kinds that are no whole numbers.
    fn size(&self) -> usize {
        match self.kind {
            1 | 2 | 6 | 7 => 1,
            3 | 8 => 2,
            4 | 9 | 13 => 4,
            16..=18 => 8,
            _ => 0,
        }
    }
}

pub(super) struct Directory<'a> {
    file: &'a [u8],
    pub(super) little: bool,
    entries: [Option<TagValues>; tag::ALL.len()],
}

impl<'a> Directory<'a> {
    pub(super) fn read(file: &'a [u8]) -> Result<Self, Fault> {
        let truncated = || Fault::corrupt("TIFF", "truncated: the file ends inside its directory");
        Self::find(file).ok_or_else(truncated)
    }

    fn find(file: &'a [u8]) -> Option<Self> {
        let little = file.first()? == &b'I';
        let mut found = Directory { file, little, entries: [None; tag::ALL.len()] };
        let big = found.unsigned(2, 2)? == 43;
        // Lengths of a number of entries, of an entry, and of a value inside it.
        let (counted, length, inside) = if big { (8, 20, 8) } else { (2, 12, 4) };
        let start = found.unsigned(if big { 8 } else { 4 }, inside)? as usize;
        let count = found.unsigned(start, counted)?;
        let entries = file.get(start.checked_add(counted)?..)?;
        let count = usize::try_from(count).ok()?.min(entries.len() / length);
        for i in 0..count {
            let at = start + counted + i * length;
            let name = found.unsigned(at, 2)? as u16;
            let Some(place) = tag::ALL.iter().position(|known| *known == name) else { continue };
            let kind = found.unsigned(at + 2, 2)? as u16;
            let values = usize::try_from(found.unsigned(at + 4, inside)?).ok()?;
            let mut entry = TagValues { kind, count: values, at: at + 4 + inside };
            if entry.size().saturating_mul(values) > inside {
                entry.at = usize::try_from(found.unsigned(entry.at, inside)?).ok()?;
            }
            found.entries[place].get_or_insert(entry);
        }
        Some(found)
    }

    /// The number of `size` bytes at `at`.
    fn unsigned(&self, at: usize, size: usize) -> Option<u64> {
        let bytes = self.file.get(at..at.checked_add(size)?)?;
        let shift = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(match self.little {
            true => bytes.iter().rev().fold(0, shift),
            false => bytes.iter().fold(0, shift),
        })
    }

    fn entry(&self, tag: u16) -> Option<TagValues> {
        self.entries[tag::ALL.iter().position(|known| *known == tag)?]
    }

    pub(super) fn has(&self, tag: u16) -> bool {
        self.entry(tag).is_some()
    }

    /// How many values a tag states; they may lie outside the file.
    pub(super) fn count(&self, tag: u16) -> usize {
        self.entry(tag).map_or(0, |entry| entry.count)
    }

    /// Value number `i` of a tag, if it is a whole number and lies inside the file.
    pub(super) fn number(&self, tag: u16, i: usize) -> Option<u64> {
        let entry = self.entry(tag).filter(|entry| i < entry.count && entry.size() > 0)?;
        self.unsigned(entry.at.checked_add(i.checked_mul(entry.size())?)?, entry.size())
    }

    /// All bytes of a tag.
    pub(super) fn bytes(&self, tag: u16) -> Option<&'a [u8]> {
        let entry = self.entry(tag)?;
        let length = entry.count.checked_mul(entry.size())?;
        self.file.get(entry.at..entry.at.checked_add(length)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_both_orders_and_sizes_and_never_outside() {
        let little = b"II\x2a\0\x08\0\0\0\x01\0\x00\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
        let big = b"MM\0\x2b\0\x08\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x01\x01\x01\0\x04\0\0\0\0\0\0\0\x02\0\0\0\x05\0\0\0\x07";
        assert_eq!(Directory::read(little).unwrap().number(tag::WIDTH, 0), Some(6));
        assert_eq!(Directory::read(little).unwrap().number(tag::WIDTH, 1), None);
        let found = Directory::read(big).unwrap();
        assert_eq!(found.number(tag::HEIGHT, 0), Some(5));
        assert_eq!(found.number(tag::HEIGHT, 1), Some(7));
        assert_eq!(found.number(tag::HEIGHT, 2), None);
        for cut in 0..22 {
            if let Ok(found) = Directory::read(&little[..cut]) {
                assert_eq!(found.number(tag::WIDTH, 0), None);
            }
        }
    }
}
