//! BMP: every header from OS/2 1 to Windows 5, 1 to 32 bits, bit fields and run lengths, with
//! Pillow's pixels.
//!
//! Sizes of the file and of the data that a header states are ignored, as they are often wrong.

use super::color::put;
use super::{ColorMode, Declared, DecodeOptions, Header};
use crate::error::Fault;

fn corrupt(reason: impl Into<String>) -> Fault {
    Fault::corrupt("BMP", reason)
}

/// How the pixels lie in the file.
enum Coding {
    /// Rows of pixels, each padded to 32 bits.
    Rows,
    /// Run lengths of 8-bit indices, or of pairs of 4-bit ones.
    Runs { pairs: bool },
}

/// What the headers say.
struct Bitmap {
    height: usize,
    width: usize,
    top_down: bool,
    bits: usize,
    coding: Coding,
    /// Which bits are red, green and blue, where there is no palette.
    masks: [u32; 3],
    palette: [[u8; 3]; 256],
    /// Where the pixels begin.
    start: usize,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|x| u32::from_le_bytes(*x))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|x| u32::from(u16::from_le_bytes(*x)))
}

/// `None` is a file that ends inside its headers.
fn read(bytes: &[u8]) -> Option<Result<Bitmap, Fault>> {
    let (offset, size) = (word(bytes, 10)? as usize, word(bytes, 14)? as usize);
    if !matches!(size, 12 | 16..=124) {
        return Some(Err(Fault::Unsupported(format!("BMP: a header of {size} bytes is unknown"))));
    }
    let header = bytes.get(14..14 + size)?;
    // A header may leave out its last fields, which are 0 then.
    let field = |at: usize| word(header, at).unwrap_or(0);
    let (width, height, bits, top_down) = if size == 12 {
        (half(header, 4)?, half(header, 6)?, half(header, 10)?, false)
    } else {
        let (height, top_down) = match field(8) {
            height @ 0xff00_0000.. => (height.wrapping_neg(), true),
            height => (height, false),
        };
        (field(4), height, half(header, 14)?, top_down)
    };
    let compression = if size == 12 { 0 } else { field(16) };
    let unsupported = |what: String| Some(Err(Fault::Unsupported(format!("BMP: {what}"))));
    if !matches!(bits, 1 | 4 | 8 | 16 | 24 | 32) {
        return unsupported(format!("{bits} bits per pixel are not supported"));
    }
    let mut end = 14 + size;
    let mut masks = match bits {
        16 => [0x7c00, 0x3e0, 0x1f],
        _ => [0xff_0000, 0xff00, 0xff],
    };
    let coding = match (compression, bits) {
        (0, _) => Coding::Rows,
        (1, 8) => Coding::Runs { pairs: false },
        (2, 4) => Coding::Runs { pairs: true },
        (3 | 6, 16 | 24 | 32) => {
            // The masks are part of longer headers and follow the short one.
            let at = if size >= 52 { 54 } else { end };
            let stated = [word(bytes, at)?, word(bytes, at + 4)?, word(bytes, at + 8)?];
            if stated != [0; 3] {
                if bits == 24 && stated != masks {
                    return unsupported("bit fields of 24 bits in another order".into());
                }
                masks = stated;
            }
            if size < 52 {
                end += if compression == 6 { 16 } else { 12 };
            }
            Coding::Rows
        }
        _ => {
            return unsupported(format!(
                "compression {compression} of {bits} bits per pixel is not supported"
            ));
        }
    };
    let mut palette = [[0; 3]; 256];
    let mut start = offset;
    if bits <= 8 {
        let entry = if size == 12 { 3 } else { 4 };
        let colors = match if size == 12 { 0 } else { field(32) } {
            0 => 1 << bits,
            colors @ 1..=65536 => colors as usize,
            colors => return unsupported(format!("a palette of {colors} colours is too large")),
        };
        let stored = bytes.get(end..).unwrap_or_default();
        let stored = &stored[..stored.len().min(colors * entry)];
        for (to, color) in palette.iter_mut().zip(stored.chunks_exact(entry)) {
            *to = [color[2], color[1], color[0]];
        }
        // Some files say that the pixels begin where the palette does.
        if offset == end {
            start = 0;
        }
        end += colors * entry;
    }
    if start == 0 {
        start = end;
    }
    let (height, width, bits) = (height as usize, width as usize, bits as usize);
    Some(Ok(Bitmap { height, width, top_down, bits, coding, masks, palette, start }))
}

fn headers(bytes: &[u8]) -> Result<Bitmap, Fault> {
    read(bytes).unwrap_or_else(|| Err(corrupt("truncated: the file ends inside its header")))
}

pub(super) fn probe(bytes: &[u8], options: &DecodeOptions) -> Result<Declared, Fault> {
    let bitmap = headers(bytes)?;
    Ok(Declared {
        height: bitmap.height,
        width: bitmap.width,
        orientation: 1,
        progressive: false,
        pixel: options.mode.channels(),
        extra: 64 * 1024,
    })
}

pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    options: &DecodeOptions,
    out: &mut [u8],
) -> Result<(), Fault> {
    let bitmap = headers(bytes)?;
    let (height, width) = header.stored;
    if (bitmap.height, bitmap.width) != (height, width) {
        return Err(corrupt("contradictory sizes"));
    }
    let channels = options.mode.channels();
    let mut canvas = Canvas { rows: out, stride: width * channels, height, bitmap: &bitmap };
    // What is missing has the first colour of the palette, or is black.
    let first = if bitmap.bits <= 8 { bitmap.palette[0] } else { [0; 3] };
    let whole = match bitmap.coding {
        Coding::Rows => rows(bytes, &mut canvas, options.mode, first),
        Coding::Runs { pairs } => runs(bytes, pairs, &mut canvas, options.mode, first),
    };
    if whole || options.allow_truncated { Ok(()) } else { Err(super::truncated("BMP")) }
}

/// The output, in the order of the file's rows.
struct Canvas<'a> {
    rows: &'a mut [u8],
    stride: usize,
    height: usize,
    bitmap: &'a Bitmap,
}

impl Canvas<'_> {
    fn row(&mut self, number: usize) -> &mut [u8] {
        let y = if self.bitmap.top_down { number } else { self.height - 1 - number };
        &mut self.rows[y * self.stride..(y + 1) * self.stride]
    }
}

/// False if rows are missing.
fn rows(bytes: &[u8], canvas: &mut Canvas<'_>, mode: ColorMode, first: [u8; 3]) -> bool {
    let bitmap = canvas.bitmap;
    let used = (bitmap.width * bitmap.bits).div_ceil(8);
    let mut rest = bytes.get(bitmap.start..).unwrap_or_default();
    let mut whole = true;
    for number in 0..bitmap.height {
        let to = canvas.row(number);
        let Some(row) = rest.get(..used) else {
            put(to, mode, std::iter::repeat(first));
            whole = false;
            continue;
        };
        match bitmap.bits {
            24 => put(to, mode, row.as_chunks::<3>().0.iter().map(|&[b, g, r]| [r, g, b])),
            16 => {
                let field = bitmap.masks.map(Field::new);
                let words =
                    row.as_chunks::<2>().0.iter().map(|p| u32::from(u16::from_le_bytes(*p)));
                put(to, mode, words.map(|word| field.each_ref().map(|field| field.of(word))));
            }
            32 => {
                let field = bitmap.masks.map(Field::new);
                let words = row.as_chunks::<4>().0.iter().map(|p| u32::from_le_bytes(*p));
                put(to, mode, words.map(|word| field.each_ref().map(|field| field.of(word))));
            }
            bits => {
                let mask = ((1u16 << bits) - 1) as u8;
                let indices = row.iter().flat_map(|byte| {
                    (0..8 / bits).map(move |i| byte >> (8 - bits * (i + 1)) & mask)
                });
                put(to, mode, indices.map(|index| bitmap.palette[usize::from(index)]));
            }
        }
        rest = rest.get(used.next_multiple_of(4)..).unwrap_or_default();
    }
    whole
}

/// One channel of a pixel with bit fields.
struct Field {
    mask: u32,
    shift: u32,
    most: u32,
}

impl Field {
    fn new(mask: u32) -> Self {
        let shift = mask.trailing_zeros().min(31);
        Field { mask, shift, most: (mask >> shift).max(1) }
    }

    /// The channel in 8 bits, cut off rather than rounded, as Pillow does.
    fn of(&self, word: u32) -> u8 {
        let value = (word & self.mask) >> self.shift;
        (u64::from(value) * 255 / u64::from(self.most)) as u8
    }
}

/// False if the data end before the image does. Pixels are dealt out as Pillow does: what passes
/// the end of a row is cut off in a run and goes on in the next row otherwise.
fn runs(
    bytes: &[u8],
    pairs: bool,
    canvas: &mut Canvas<'_>,
    mode: ColorMode,
    first: [u8; 3],
) -> bool {
    let bitmap = canvas.bitmap;
    let (height, width) = (bitmap.height, bitmap.width);
    for number in 0..height {
        put(canvas.row(number), mode, std::iter::repeat(first));
    }
    let channels = mode.channels();
    let total = height * width;
    let mut place = 0;
    let mut set = |place: usize, index: u8| {
        let (row, column) = (place / width, place % width);
        let to = &mut canvas.row(row)[column * channels..(column + 1) * channels];
        put(to, mode, std::iter::once(bitmap.palette[usize::from(index)]));
    };
    let nibble = |byte: u8, i: usize| if i.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
    let mut at = bitmap.start;
    let mut column = 0;
    while place < total {
        // Every turn takes at least two bytes of the file.
        let Some(&[count, value]) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else {
            return false;
        };
        at += 2;
        match (count, value) {
            (1.., _) => {
                let count = usize::from(count).min(width.saturating_sub(column)).min(total - place);
                for i in 0..count {
                    set(place + i, if pairs { nibble(value, i) } else { value });
                }
                place += count;
                column += count;
            }
            (0, 0) => {
                place = place.next_multiple_of(width);
                column = 0;
            }
            (0, 1) => break,
            (0, 2) => {
                let Some(&[right, down]) = bytes.get(at..).and_then(|rest| rest.first_chunk())
                else {
                    return false;
                };
                at += 2;
                place = total.min(place + usize::from(right) + usize::from(down) * width);
                column = place % width;
            }
            (0, stated) => {
                let count = usize::from(stated).min(total - place);
                let taken = if pairs { count.div_ceil(2) } else { count };
                let Some(literal) = bytes.get(at..at + taken) else { return false };
                for i in 0..count {
                    set(place + i, if pairs { nibble(literal[i / 2], i) } else { literal[i] });
                }
                place += count;
                column += usize::from(stated);
                at = (at + taken).next_multiple_of(2);
            }
        }
    }
    true
}
