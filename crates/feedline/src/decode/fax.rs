//! CCITT fax coding of TIFF files: modified Huffman, group 3 in one and two dimensions, group 4.

use std::convert::Infallible;

use fax::maps::{Mode, black, mode, white};
use fax::{BitReader, Bits};

/// Which of the codings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fax {
    /// Runs only; each row begins with a new byte.
    ModifiedHuffman,
    /// Rows end with a mark; with `two_dimensional` a bit says how the next row is coded.
    Group3 {
        /// Rows may refer to the row before.
        two_dimensional: bool,
    },
    /// Every row refers to the row before.
    Group4,
}

/// Bits of a slice, high bits first; behind its end they are zero.
struct BitSlice<'a> {
    bytes: &'a [u8],
    /// In bits.
    at: usize,
}

impl BitSlice<'_> {
    fn is_over(&self) -> bool {
        self.at >= self.bytes.len() * 8
    }

    fn bits(&self, count: u8) -> u16 {
        let byte = |i: usize| u32::from(self.bytes.get(self.at / 8 + i).copied().unwrap_or(0));
        let window = byte(0) << 16 | byte(1) << 8 | byte(2);
        let shifted = window >> (24 - self.at % 8 - usize::from(count));
        (shifted & ((1u32 << count) - 1)) as u16
    }

    /// Passes over the zeros and the one of an end-of-row mark, if one comes next.
    fn skip_mark(&mut self) -> bool {
        if self.bits(11) != 0 || self.is_over() {
            return false;
        }
        while !self.is_over() && self.bits(1) == 0 {
            self.at += 1;
        }
        self.at += 1;
        true
    }
}

impl BitReader for BitSlice<'_> {
    type Error = Infallible;

    fn peek(&self, bits: u8) -> Option<u16> {
        (bits <= 16).then(|| self.bits(bits))
    }

    fn consume(&mut self, bits: u8) -> Result<(), Infallible> {
        self.at += usize::from(bits);
        Ok(())
    }

    fn expect(&mut self, bits: Bits) -> Result<(), Option<Bits>> {
        let data = self.bits(bits.len);
        if data == bits.data { Ok(()) } else { Err(Some(Bits { data, len: bits.len })) }
    }

    fn bits_to_byte_boundary(&self) -> u8 {
        ((8 - self.at % 8) % 8) as u8
    }
}

/// The length of a run: any number of codes of 64 and more, then one below.
fn run(bits: &mut BitSlice<'_>, is_black: bool, most: usize) -> Option<usize> {
    let mut length = 0;
    loop {
        let code = if is_black { black::decode(bits) } else { white::decode(bits) };
        let code = usize::from(code?);
        length += code;
        if code < 64 {
            return (bits.at <= bits.bytes.len() * 8).then_some(length);
        }
        if length > most {
            return None;
        }
    }
}

/// Changes of colour in a row, beyond which runs of no length are taken for an attack.
fn most_changes(width: usize) -> usize {
    2 * width + 2
}

/// A row coded by itself: where its colour changes, from white to black first.
fn plain_row(bits: &mut BitSlice<'_>, width: usize, changes: &mut Vec<usize>) -> Option<()> {
    let (mut at, mut is_black) = (0, false);
    while at < width {
        if changes.len() > most_changes(width) {
            return None;
        }
        at += run(bits, is_black, width)?;
        changes.push(at.min(width));
        is_black = !is_black;
    }
    Some(())
}

/// A row coded by its differences from `above`.
fn referring_row(
    bits: &mut BitSlice<'_>,
    width: usize,
    above: &[usize],
    changes: &mut Vec<usize>,
) -> Option<()> {
    // -1 as it were: the first change above may lie at column 0.
    let mut at: Option<usize> = None;
    let mut is_black = false;
    let mut next = 0;
    while at.unwrap_or(0) < width {
        if changes.len() > most_changes(width) {
            return None;
        }
        // The first change above that lies behind `at` and is to the other colour.
        while next > 0 && above.get(next - 1).is_some_and(|x| at.is_none_or(|at| *x > at)) {
            next -= 1;
        }
        while above.get(next).is_some_and(|x| at.is_some_and(|at| *x <= at)) {
            next += 1;
        }
        if (next % 2 == 1) != is_black {
            next += 1;
        }
        let of = |i: usize| above.get(i).copied().unwrap_or(width);
        match mode::decode(bits)? {
            Mode::Pass => at = Some(of(next + 1)),
            Mode::Horizontal => {
                let mut end = at.unwrap_or(0);
                for color in [is_black, !is_black] {
                    end += run(bits, color, width)?;
                    changes.push(end.min(width));
                }
                at = Some(end);
            }
            Mode::Vertical(delta) => {
                let to = of(next).checked_add_signed(isize::from(delta))?;
                // A row does not run backwards; that it goes on is what ends it.
                if at.is_some_and(|at| to < at) || to > width {
                    return None;
                }
                changes.push(to);
                at = Some(to);
                is_black = !is_black;
            }
            Mode::Extension | Mode::EOF => return None,
        }
        if bits.is_over() && at.unwrap_or(0) < width {
            return None;
        }
    }
    Some(())
}

/// Decodes rows of `width` bits, 1 for black, to `out`, whose rows are whole bytes. False if not
/// all could be decoded; the others are as they were.
pub(super) fn unpack(fax: Fax, bytes: &[u8], width: usize, out: &mut [u8]) -> bool {
    let stride = width.div_ceil(8);
    let mut bits = BitSlice { bytes, at: 0 };
    // They grow to two entries a pixel at most, which the header's need has room for.
    let (mut above, mut changes) = (Vec::new(), Vec::new());
    for row in out.chunks_exact_mut(stride) {
        changes.clear();
        let mut refers = fax == Fax::Group4;
        if let Fax::Group3 { two_dimensional } = fax {
            // Files without marks exist, and files that begin without one.
            while bits.skip_mark() {
                if two_dimensional {
                    refers = bits.bits(1) == 0;
                    bits.at += 1;
                }
            }
        }
        let decoded = if refers {
            referring_row(&mut bits, width, &above, &mut changes)
        } else {
            plain_row(&mut bits, width, &mut changes)
        };
        if decoded.is_none() {
            return false;
        }
        if fax == Fax::ModifiedHuffman {
            bits.at = bits.at.next_multiple_of(8);
        }
        row.fill(0);
        for pair in changes.chunks(2) {
            fill(row, pair[0], pair.get(1).copied().unwrap_or(width));
        }
        std::mem::swap(&mut above, &mut changes);
    }
    true
}

/// Sets the bits from `start` to before `end`.
fn fill(row: &mut [u8], start: usize, end: usize) {
    for at in start..end {
        if at.is_multiple_of(8) && end - at >= 8 {
            row[at / 8] = 0xff;
        } else {
            row[at / 8] |= 0x80 >> (at % 8);
        }
    }
}
