//! GIF: the first frame on its canvas, as Pillow shows it.
//!
//! Transparent pixels, and the canvas around a smaller frame, have the colour that the palette
//! gives to the transparent index (or to index 0), since transparency is dropped.

use weezl::{BitOrder, LzwStatus, decode::Configuration};

use super::color::luma;
use super::{ColorMode, Declared, DecodeOptions, Header};
use crate::error::Fault;

/// The first image, as the blocks before it describe it.
struct FirstFrame<'a> {
    /// Of the canvas, which grows with a frame that exceeds it.
    height: usize,
    width: usize,
    top: usize,
    left: usize,
    rows: usize,
    columns: usize,
    interlaced: bool,
    /// The palette that holds for it, if any.
    palette: Option<&'a [u8]>,
    transparent: Option<u8>,
    code_size: u8,
    /// Its data: blocks of up to 255 bytes.
    data: &'a [u8],
}

/// The bytes of a file, from the front.
struct Blocks<'a>(&'a [u8]);

impl<'a> Blocks<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    fn half(&mut self) -> Option<usize> {
        self.take(2).map(|taken| usize::from(u16::from_le_bytes([taken[0], taken[1]])))
    }

    /// The next block of a list; `None` at its end, which the file's end is, too.
    fn block(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.byte()?).min(self.0.len());
        if length == 0 { None } else { self.take(length) }
    }

    fn palette(&mut self, flags: u8) -> Option<&'a [u8]> {
        self.take(3 << ((flags & 7) + 1))
    }
}

/// Reads up to the data of the first image. Bytes that begin no block are passed over, and so are
/// extensions of any kind; each byte is looked at once. `None` is a file that ends before that.
fn first_frame(bytes: &[u8]) -> Option<Result<FirstFrame<'_>, Fault>> {
    let mut file = Blocks(bytes.get(6..)?);
    let (mut width, mut height) = (file.half()?, file.half()?);
    let &[flags, _, _] = file.take(3)?.first_chunk()?;
    let mut palette = if flags & 0x80 == 0 { None } else { Some(file.palette(flags)?) };
    let mut transparent = None;
    loop {
        match file.byte()? {
            b'!' => {
                let kind = file.byte()?;
                let Some(block) = file.block() else { continue };
                if let (0xf9, &[flags, _, _, index, ..]) = (kind, block)
                    && flags & 1 != 0
                {
                    transparent = Some(index);
                }
                while file.block().is_some() {}
            }
            b',' => break,
            b';' => return Some(Err(Fault::corrupt("GIF", "holds no frame"))),
            _ => {}
        }
    }
    let (left, top) = (file.half()?, file.half()?);
    let (columns, rows) = (file.half()?, file.half()?);
    let flags = file.byte()?;
    if flags & 0x80 != 0 {
        palette = Some(file.palette(flags)?);
    }
    (width, height) = (width.max(left + columns), height.max(top + rows));
    let interlaced = flags & 0x40 != 0;
    let code_size = file.byte()?;
    let data = file.0;
    Some(Ok(FirstFrame {
        height,
        width,
        top,
        left,
        rows,
        columns,
        interlaced,
        palette,
        transparent,
        code_size,
        data,
    }))
}

fn opened(bytes: &[u8]) -> Result<FirstFrame<'_>, Fault> {
    first_frame(bytes).unwrap_or_else(|| {
        Err(Fault::corrupt("GIF", "truncated: the file ends before its first image"))
    })
}

pub(super) fn probe(bytes: &[u8]) -> Result<Declared, Fault> {
    let frame = opened(bytes)?;
    Ok(Declared {
        height: frame.height,
        width: frame.width,
        orientation: 1,
        progressive: false,
        pixel: 3,
        // One byte a pixel for the frame's indices is taken from the pixels' own memory; beside
        // it there are the 4096 codes of LZW (measured: 330 kB).
        extra: 512 * 1024,
    })
}

pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    options: &DecodeOptions,
    out: &mut [u8],
) -> Result<(), Fault> {
    let frame = opened(bytes)?;
    let (height, width) = header.stored;
    let FirstFrame { top, left, rows, columns, .. } = frame;
    let indices = rows * columns;
    if (frame.height, frame.width) != (height, width) || out.len() < indices {
        return Err(Fault::corrupt("GIF", "contradictory sizes"));
    }
    let background = frame.transparent.unwrap_or(0);
    let mut palette = [[0u8; 3]; 256];
    match frame.palette {
        Some(colors) => {
            palette.iter_mut().zip(colors.as_chunks::<3>().0).for_each(|(to, color)| *to = *color)
        }
        // Without any palette an index is a shade of gray, as in Pillow.
        None => palette.iter_mut().zip(0..=255).for_each(|(to, shade)| *to = [shade; 3]),
    }
    // The indices go to the front of `out`, row by row; then they are spread over the canvas
    // and coloured from the last pixel backwards, which never overtakes what is still unread.
    out[..indices].fill(background);
    match unpack(&frame, &mut out[..indices]) {
        Err(_) if options.allow_truncated => {}
        outcome => outcome?,
    }
    let channels = options.mode.channels();
    for y in (0..height).rev() {
        for x in (0..width).rev() {
            let inside = (top..top + rows).contains(&y) && (left..left + columns).contains(&x);
            let index = if inside { out[(y - top) * columns + (x - left)] } else { background };
            let [red, green, blue] = palette[usize::from(index)];
            let at = (y * width + x) * channels;
            match options.mode {
                ColorMode::Rgb => out[at..at + 3].copy_from_slice(&[red, green, blue]),
                ColorMode::Gray => out[at] = luma(red, green, blue),
            }
        }
    }
    Ok(())
}

/// The rows of an image in the order in which they are stored.
fn row_order(rows: usize, interlaced: bool) -> impl Iterator<Item = usize> {
    let passes: &[(usize, usize)] =
        if interlaced { &[(0, 8), (4, 8), (2, 4), (1, 2)] } else { &[(0, 1)] };
    passes.iter().flat_map(move |&(first, step)| (first..rows).step_by(step))
}

fn unpack(frame: &FirstFrame<'_>, indices: &mut [u8]) -> Result<(), Fault> {
    if frame.code_size > 11 {
        return Err(Fault::corrupt("GIF", format!("codes of {} bits", frame.code_size)));
    }
    let mut decoder =
        Configuration::new(BitOrder::Lsb, frame.code_size).with_yield_on_full_buffer(true).build();
    let mut blocks = Blocks(frame.data);
    let mut input: &[u8] = &[];
    let mut idle = 0;
    for row in row_order(frame.rows, frame.interlaced) {
        let mut to = &mut indices[row * frame.columns..(row + 1) * frame.columns];
        while !to.is_empty() {
            let result = decoder.decode_bytes(input, to);
            input = &input[result.consumed_in..];
            to = &mut to[result.consumed_out..];
            match result.status {
                Err(error) => return Err(Fault::corrupt("GIF", error.to_string())),
                Ok(LzwStatus::Done) if !to.is_empty() => return Err(super::truncated("GIF")),
                Ok(_) => {}
            }
            // Each turn takes bytes, writes pixels, goes on to the next block or counts.
            idle = if result.consumed_in + result.consumed_out == 0 { idle + 1 } else { 0 };
            if idle > 0
                && input.is_empty()
                && let Some(block) = blocks.block()
            {
                (input, idle) = (block, 0);
            }
            if idle > super::IDLE_TURNS {
                return Err(super::truncated("GIF"));
            }
        }
    }
    Ok(())
}
