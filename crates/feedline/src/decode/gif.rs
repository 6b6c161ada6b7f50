//! GIF: the first frame on its canvas, as Pillow shows it.
//!
//! Transparent pixels, and the canvas around a smaller frame, have the colour that the palette
//! gives to the transparent index (or to index 0), since transparency is dropped.

use std::io::Cursor;

use gif::{ColorOutput, DecodingError, MemoryLimit};

use super::color::luma;
use super::{ColorMode, Declared, DecodeOptions, Header};
use crate::error::Fault;

fn fault(error: DecodingError) -> Fault {
    match error {
        DecodingError::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            Fault::corrupt("GIF", "truncated: the file ends before the image does")
        }
        other => Fault::corrupt("GIF", other.to_string()),
    }
}

/// From the 10 bytes of the screen descriptor.
pub(super) fn probe(bytes: &[u8]) -> Result<Declared, Fault> {
    let Some(&[w0, w1, h0, h1]) = bytes.get(6..10).and_then(|size| size.first_chunk()) else {
        return Err(Fault::corrupt("GIF", "truncated: the file ends inside its header"));
    };
    Ok(Declared {
        height: usize::from(u16::from_le_bytes([h0, h1])),
        width: usize::from(u16::from_le_bytes([w0, w1])),
        orientation: 1,
        progressive: false,
        pixel: 3,
        // One byte a pixel for the frame's indices is taken from the pixels' own memory; beside
        // it there are the 4096 codes of LZW and read buffers (measured: 330 kB).
        extra: 512 * 1024,
    })
}

pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    options: &DecodeOptions,
    out: &mut [u8],
) -> Result<(), Fault> {
    let mut settings = gif::DecodeOptions::new();
    settings.set_color_output(ColorOutput::Indexed);
    settings.set_memory_limit(MemoryLimit::Unlimited);
    let mut decoder = settings.read_info(Cursor::new(bytes)).map_err(fault)?;
    let frame = decoder
        .next_frame_info()
        .map_err(fault)?
        .ok_or_else(|| Fault::corrupt("GIF", "holds no frame"))?;
    let (top, left) = (usize::from(frame.top), usize::from(frame.left));
    let (rows, columns) = (usize::from(frame.height), usize::from(frame.width));
    let background = frame.transparent.unwrap_or(0);
    let (height, width) = header.stored;
    if top + rows > height || left + columns > width {
        return Err(Fault::Unsupported(format!(
            "GIF: the first frame ({columns} x {rows} at {left}, {top}) exceeds the canvas of {width} x {height}"
        )));
    }
    let mut palette = [[0u8; 3]; 256];
    // Without any palette an index is a shade of gray, as in Pillow.
    match decoder.palette() {
        Ok(colors) => {
            palette.iter_mut().zip(colors.as_chunks::<3>().0).for_each(|(to, color)| *to = *color)
        }
        Err(_) => palette.iter_mut().zip(0..=255).for_each(|(to, shade)| *to = [shade; 3]),
    }
    // The indices go to the front of `out`, row by row; then they are spread over the canvas
    // and coloured from the last pixel backwards, which never overtakes what is still unread.
    let indices = rows * columns;
    out[..indices].fill(background);
    match decoder.read_into_buffer(&mut out[..indices]).map_err(fault) {
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
