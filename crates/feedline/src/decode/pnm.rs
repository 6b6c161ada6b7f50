//! PBM, PGM and PPM, as text and as bytes, with Pillow's pixels (16-bit gray apart, see the stage's
//! page).

use super::color::put;
use super::{Declared, DecodeOptions, Header};
use crate::error::Fault;

fn corrupt(reason: impl Into<String>) -> Fault {
    Fault::corrupt("PNM", reason)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// Words of a file: what lies between white space and comments.
struct Words<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Words<'a> {
    /// Passes over white space, and over comments up to the end of their line.
    fn skip(&mut self) {
        while let Some(byte) = self.file.get(self.at) {
            if *byte == b'#' {
                let rest = &self.file[self.at..];
                self.at += memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
            } else if is_space(*byte) {
                self.at += 1;
            } else {
                break;
            }
        }
    }

    /// The next word, of `most` bytes at most; `None` at the end of the file.
    fn next(&mut self, most: usize) -> Option<Result<&'a [u8], Fault>> {
        self.skip();
        let rest = self.file.get(self.at..).filter(|rest| !rest.is_empty())?;
        let end = rest.iter().position(|byte| is_space(*byte) || *byte == b'#');
        let word = &rest[..end.unwrap_or(rest.len())];
        if word.len() > most {
            return Some(Err(corrupt(format!("a number of more than {most} digits"))));
        }
        self.at += word.len();
        Some(Ok(word))
    }

    fn number(&mut self, most: usize) -> Option<Result<u64, Fault>> {
        let word = match self.next(most)? {
            Ok(word) => word,
            Err(fault) => return Some(Err(fault)),
        };
        let digits = word.iter().all(u8::is_ascii_digit);
        let value = digits.then(|| word.iter().fold(0, |sum, d| sum * 10 + u64::from(d - b'0')));
        Some(value.ok_or_else(|| corrupt("something other than a number among its numbers")))
    }
}

/// What the header says.
struct PnmHeader {
    /// The digit of its first two bytes: 1 to 3 as text, 4 to 6 as bytes; bits, gray, colour.
    kind: u8,
    height: usize,
    width: usize,
    /// The largest value; 1 for bits.
    most: u64,
    /// Where the pixels begin.
    start: usize,
}

impl PnmHeader {
    fn read(file: &[u8]) -> Result<PnmHeader, Fault> {
        let kind = file.get(1).map_or(0, |digit| digit.wrapping_sub(b'0'));
        let mut words = Words { file, at: 2 };
        let mut number = |name: &str| {
            words.number(10).unwrap_or_else(|| {
                Err(corrupt(format!("truncated: the file ends before its {name}")))
            })
        };
        let (width, height) = (number("width")?, number("height")?);
        let most = if matches!(kind, 1 | 4) { 1 } else { number("largest value")? };
        if !(1..=65535).contains(&most) {
            return Err(corrupt(format!("{most} as its largest value; allowed: 1 to 65535")));
        }
        let side = |x: u64| u32::try_from(x).map(|x| x as usize);
        let (Ok(height), Ok(width)) = (side(height), side(width)) else {
            return Err(corrupt("declares an impossible size"));
        };
        // One byte of white space stands before the pixels.
        let start = words.at + 1;
        Ok(PnmHeader { kind, height, width, most, start })
    }

    fn samples(&self) -> usize {
        if matches!(self.kind, 3 | 6) { 3 } else { 1 }
    }

    /// A value as a byte: rounded as Pillow does, and of 16-bit gray the high half.
    fn shade(&self, value: u64) -> u8 {
        let scaled = |most: f64| (value as f64 / self.most as f64 * most).round_ties_even();
        match self.samples() == 1 && self.most > 255 {
            true => (scaled(65535.0).min(65535.0) as u16 >> 8) as u8,
            false => scaled(255.0).min(255.0) as u8,
        }
    }

    /// Every value that a byte can have, as a byte.
    fn shades(&self) -> [u8; 256] {
        std::array::from_fn(|value| match self.most {
            255 => value as u8,
            _ => self.shade(value as u64),
        })
    }
}

pub(super) fn probe(file: &[u8], options: &DecodeOptions) -> Result<Declared, Fault> {
    let layout = PnmHeader::read(file)?;
    Ok(Declared {
        height: layout.height,
        width: layout.width,
        orientation: 1,
        progressive: false,
        pixel: options.mode.channels(),
        extra: layout.width.saturating_mul(3).saturating_add(64 * 1024),
    })
}

pub(super) fn decode(
    file: &[u8],
    header: &Header,
    options: &DecodeOptions,
    out: &mut [u8],
) -> Result<(), Fault> {
    let layout = PnmHeader::read(file)?;
    let (height, width) = header.stored;
    let channels = options.mode.channels();
    if (layout.height, layout.width) != (height, width) || out.len() < height * width * channels {
        return Err(corrupt("contradictory sizes"));
    }
    let samples = layout.samples();
    let shades = layout.shades();
    let mut rows = Rows { layout: &layout, shades: &shades, file, at: layout.start };
    let mut row = vec![0; width * samples];
    for to in out.chunks_exact_mut(width * channels).take(height) {
        row.fill(0);
        let outcome = rows.read(&mut row);
        match samples {
            3 => put(to, options.mode, row.as_chunks::<3>().0.iter().copied()),
            _ => put(to, options.mode, row.iter().map(|shade| [*shade; 3])),
        }
        match outcome {
            Ok(()) => {}
            // What is missing is black; what follows has nothing to be found by.
            Err(_) if options.allow_truncated => break,
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}

/// Reads rows one after the other.
struct Rows<'a> {
    layout: &'a PnmHeader,
    shades: &'a [u8; 256],
    file: &'a [u8],
    at: usize,
}

impl Rows<'_> {
    /// Fills a row of samples; one that the file ends in keeps its rest.
    fn read(&mut self, row: &mut [u8]) -> Result<(), Fault> {
        let length = match (self.layout.kind, self.layout.most) {
            (1, _) => return self.bits_as_text(row),
            (2 | 3, _) => return self.numbers(row),
            (4, _) => row.len().div_ceil(8),
            (_, ..=255) => row.len(),
            _ => row.len() * 2,
        };
        let rest = self.file.get(self.at..).unwrap_or_default();
        let stored = &rest[..rest.len().min(length)];
        self.at += stored.len();
        match (self.layout.kind, self.layout.most) {
            (4, _) => {
                let bits = stored.iter().flat_map(|byte| (0..8).map(move |i| byte << i & 0x80));
                row.iter_mut().zip(bits).for_each(|(to, bit)| *to = if bit == 0 { 255 } else { 0 });
            }
            (_, ..=255) => {
                row.iter_mut().zip(stored).for_each(|(to, x)| *to = self.shades[usize::from(*x)]);
            }
            _ => {
                for (to, pair) in row.iter_mut().zip(stored.as_chunks::<2>().0) {
                    *to = self.layout.shade(u64::from(u16::from_be_bytes(*pair)));
                }
            }
        }
        if stored.len() == length { Ok(()) } else { Err(super::truncated("PNM")) }
    }

    /// Bits need no white space between them.
    fn bits_as_text(&mut self, row: &mut [u8]) -> Result<(), Fault> {
        let mut words = Words { file: self.file, at: self.at };
        for to in row {
            words.skip();
            *to = match self.file.get(words.at) {
                Some(b'0') => 255,
                Some(b'1') => 0,
                Some(_) => return Err(corrupt("something other than 0 and 1 among its bits")),
                None => return Err(super::truncated("PNM")),
            };
            words.at += 1;
        }
        self.at = words.at;
        Ok(())
    }

    fn numbers(&mut self, row: &mut [u8]) -> Result<(), Fault> {
        let mut words = Words { file: self.file, at: self.at };
        let most = self.layout.most;
        let digits = most.ilog10() as usize + 1;
        for to in row {
            let value = words.number(digits).unwrap_or_else(|| Err(super::truncated("PNM")))?;
            if value > most {
                return Err(corrupt(format!("a value of {value}, above its largest, {most}")));
            }
            *to = match value {
                ..=255 => self.shades[value as usize],
                _ => self.layout.shade(value),
            };
        }
        self.at = words.at;
        Ok(())
    }
}
