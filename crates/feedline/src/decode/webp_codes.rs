//! How many groups of Huffman codes a lossless WebP has, before libwebp allocates tables for them.
//!
//! A block of 4 x 4 pixels may have a group of its own, and libwebp takes 12 to 20 kB for each: 300
//! kB of a file made for it took 370 MB. The number is only known after the transforms' own images
//! and the image of group numbers were read. Their pixels are never needed, though: copies and the
//! colour cache repeat pixels that stood there before, so that literal pixels have the largest
//! number.

/// Groups beyond which libwebp counts those that are used.
const COUNTED: usize = 1000;

/// Entries of a group's tables, without those of a colour cache of 2^n colours.
const ENTRIES: usize = 630 * 3 + 410 + 652;

/// Bytes that libwebp takes for the codes of a file. What cannot be read here is taken for the worst
/// that so many bytes can hold: five codes of four bits.
pub(super) fn memory(file: &[u8], (height, width): (usize, usize)) -> usize {
    let mut most = 0;
    chunks(file.get(12..).unwrap_or_default(), false, &mut |name, body| {
        let (body, size) = match name {
            b"VP8L" => (body.get(5..).unwrap_or_default(), header(body)),
            // The first byte says how the transparency is packed; 1 is the same as in VP8L.
            b"ALPH" if body.first().is_some_and(|first| first & 3 == 1) => {
                (&body[1..], Some((height, width)))
            }
            _ => return,
        };
        let (height, width) = size.unwrap_or((height, width));
        let worst = || (body.len() * 8 / 20).min(height.div_ceil(4) * width.div_ceil(4)).min(65536);
        let (groups, colors) =
            Reader::new(body).groups(height, width).unwrap_or_else(|| (worst(), 1 << 11));
        most = most.max(groups.saturating_mul((ENTRIES + colors) * 4 + 600));
    });
    most
}

/// Rows and columns of a VP8L chunk.
fn header(body: &[u8]) -> Option<(usize, usize)> {
    let &[0x2f, a, b, c, d] = body.first_chunk()? else { return None };
    let bits = u32::from_le_bytes([a, b, c, d]) as usize;
    Some(((bits >> 14 & 0x3fff) + 1, (bits & 0x3fff) + 1))
}

/// Visits the chunks of a file, and those of its frames (`inside` one, there are no others).
fn chunks<'a>(mut rest: &'a [u8], inside: bool, visit: &mut dyn FnMut(&[u8; 4], &'a [u8])) {
    while let Some((&[a, b, c, d, length @ ..], after)) = rest.split_first_chunk::<8>() {
        let length = u32::from_le_bytes(length) as usize;
        let body = &after[..length.min(after.len())];
        match &[a, b, c, d] {
            // Its place and its duration come first.
            b"ANMF" if !inside => chunks(body.get(16..).unwrap_or_default(), true, visit),
            name => visit(name, body),
        }
        rest = after.get(length.saturating_add(length % 2)..).unwrap_or_default();
    }
}

/// A code: of every length the first code word, how many there are, and where their symbols begin.
struct Code {
    counts: [u16; 16],
    symbols: Vec<u16>,
}

impl Code {
    fn new(lengths: &[u8]) -> Code {
        let mut counts = [0; 16];
        lengths.iter().for_each(|length| counts[usize::from(*length)] += 1);
        counts[0] = 0;
        let mut symbols = Vec::new();
        for length in 1..16 {
            let of = |(symbol, l): (usize, &u8)| (*l == length).then_some(symbol as u16);
            symbols.extend(lengths.iter().enumerate().filter_map(of));
        }
        Code { counts, symbols }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    /// In bits, low ones first.
    at: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, at: 0 }
    }

    fn bit(&mut self) -> Option<u32> {
        let byte = *self.bytes.get(self.at / 8)?;
        let bit = byte >> (self.at % 8) & 1;
        self.at += 1;
        Some(u32::from(bit))
    }

    fn bits(&mut self, count: u32) -> Option<usize> {
        (0..count).try_fold(0, |sum, i| Some(sum | (self.bit()? as usize) << i))
    }

    fn symbol(&mut self, code: &Code) -> Option<usize> {
        // A code of one symbol has no bits.
        if code.symbols.len() <= 1 {
            return Some(usize::from(*code.symbols.first().unwrap_or(&0)));
        }
        let (mut word, mut first, mut index) = (0u32, 0u32, 0u32);
        for count in &code.counts[1..] {
            word = word << 1 | self.bit()?;
            first <<= 1;
            let count = u32::from(*count);
            if word < first + count {
                return code.symbols.get((index + word - first) as usize).map(|x| usize::from(*x));
            }
            index += count;
            first += count;
        }
        None
    }

    fn code(&mut self, symbols: usize) -> Option<Code> {
        let mut lengths = vec![0; symbols];
        if self.bit()? == 1 {
            let two = self.bit()? == 1;
            let width = if self.bit()? == 1 { 8 } else { 1 };
            *lengths.get_mut(self.bits(width)?)? = 1;
            if two {
                *lengths.get_mut(self.bits(8)?)? = 1;
            }
            return Some(Code::new(&lengths));
        }
        const ORDER: [usize; 19] =
            [17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        let mut short = [0; 19];
        for place in ORDER.iter().take(self.bits(4)? + 4) {
            short[*place] = self.bits(3)? as u8;
        }
        let short = Code::new(&short);
        let mut left = symbols;
        if self.bit()? == 1 {
            let width = 2 + 2 * self.bits(3)?;
            left = 2 + self.bits(width as u32)?;
        }
        let (mut at, mut last) = (0, 8);
        while at < symbols && left > 0 {
            left -= 1;
            let (length, times) = match self.symbol(&short)? {
                length @ 0..16 => (length as u8, 1),
                16 => (last, 3 + self.bits(2)?),
                17 => (0, 3 + self.bits(3)?),
                _ => (0, 11 + self.bits(7)?),
            };
            lengths.get_mut(at..at + times)?.fill(length);
            at += times;
            last = if length == 0 { last } else { length };
        }
        Some(Code::new(&lengths))
    }

    /// Reads an image that belongs to a transform, or the one of group numbers: its largest number.
    fn image(&mut self, pixels: usize) -> Option<usize> {
        let colors = if self.bit()? == 1 { 1 << self.bits(4)? } else { 0 };
        let [green, red, blue, alpha] =
            [self.code(256 + 24 + colors)?, self.code(256)?, self.code(256)?, self.code(256)?];
        let distance = self.code(40)?;
        let codes = [&green, &red, &blue, &alpha];
        // Without bits there is nothing that a further pixel could bring.
        if codes.iter().all(|code| code.symbols.len() <= 1) && green.symbols.first() < Some(&256) {
            return Some(self.symbol(&red)? << 8 | self.symbol(&green)?);
        }
        let (mut most, mut done) = (0, 0);
        while done < pixels {
            match self.symbol(&green)? {
                literal @ 0..256 => {
                    most = most.max(self.symbol(&red)? << 8 | literal);
                    self.symbol(&blue)?;
                    self.symbol(&alpha)?;
                    done += 1;
                }
                prefix @ 256..280 => {
                    done += self.prefixed(prefix - 256)?;
                    let prefix = self.symbol(&distance)?;
                    self.prefixed(prefix)?;
                }
                _ => done += 1,
            }
        }
        Some(most)
    }

    /// A length or a distance, of which the symbol says the high bits.
    fn prefixed(&mut self, symbol: usize) -> Option<usize> {
        if symbol < 4 {
            return Some(symbol + 1);
        }
        let extra = (symbol - 2) / 2;
        Some(((2 + symbol % 2) << extra) + self.bits(extra as u32)? + 1)
    }

    /// How many groups the image has, and how many colours its cache.
    fn groups(&mut self, height: usize, mut width: usize) -> Option<(usize, usize)> {
        let mut seen = [false; 4];
        let blocks = |height: usize, width: usize, bits: usize| {
            height.div_ceil(1 << bits) * width.div_ceil(1 << bits)
        };
        while self.bit()? == 1 {
            let kind = self.bits(2)?;
            if std::mem::replace(&mut seen[kind], true) {
                return None;
            }
            match kind {
                0 | 1 => {
                    let bits = self.bits(3)? + 2;
                    self.image(blocks(height, width, bits))?;
                }
                2 => {}
                _ => {
                    let colors = self.bits(8)? + 1;
                    self.image(colors)?;
                    let packed = match colors {
                        17.. => 1,
                        5..=16 => 2,
                        3..=4 => 4,
                        _ => 8,
                    };
                    width = width.div_ceil(packed);
                }
            }
        }
        let colors = if self.bit()? == 1 { 1 << self.bits(4)? } else { 0 };
        if self.bit()? == 0 {
            return Some((1, colors));
        }
        let bits = self.bits(3)? + 2;
        let pixels = blocks(height, width, bits);
        let groups = self.image(pixels)? + 1;
        Some((if groups > COUNTED { groups.min(pixels) } else { groups }, colors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_an_encoder_have_few_groups_and_cut_ones_are_taken_for_the_worst() {
        let file = include_bytes!("../../tests/fixtures/lossless.webp");
        let body = &file[20..];
        let (height, width) = header(body).unwrap();
        assert_eq!((height, width), (34, 41));
        let (groups, colors) = Reader::new(&body[5..]).groups(height, width).unwrap();
        assert!((1..=99).contains(&groups) && colors <= 2048, "{groups} {colors}");
        assert!(memory(file, (34, 41)) <= 99 * 21_000);
        assert!(memory(&file[..24], (34, 41)) <= 99 * 21_000);
        assert_eq!(memory(include_bytes!("../../tests/fixtures/lossy.webp"), (34, 41)), 0);
    }
}
