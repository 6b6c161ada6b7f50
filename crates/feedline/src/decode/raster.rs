//! BMP, TIFF and PNM through the `image` crate.

use std::io::Cursor;

use image::codecs::{bmp::BmpDecoder, pnm::PnmDecoder, tiff::TiffDecoder};
use image::error::{ImageError, LimitErrorKind};
use image::{ColorType, ImageDecoder, Limits};

use super::color::{self, Raw};
use super::{Declared, DecodeOptions, Format, Header};
use crate::error::Fault;

fn fault(format: Format, error: ImageError) -> Fault {
    match error {
        ImageError::Unsupported(error) => Fault::Unsupported(format!("{format}: {error}")),
        ImageError::Limits(error) => match error.kind() {
            LimitErrorKind::Unsupported { .. } => Fault::Unsupported(format!("{format}: {error}")),
            _ => Fault::TooLarge(format!("{format}: {error}")),
        },
        ImageError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            Fault::corrupt(format.name(), "truncated: the file ends before the image does")
        }
        other => Fault::corrupt(format.name(), other.to_string()),
    }
}

/// Calls `$then` with the format's decoder, which has read its header.
macro_rules! with_decoder {
    ($format:expr, $bytes:expr, |$decoder:ident| $then:expr) => {{
        let cursor = Cursor::new($bytes);
        match $format {
            Format::Bmp => BmpDecoder::new(cursor)
                .map_err(|e| fault($format, e))
                .and_then(|mut $decoder| $then),
            Format::Tiff => TiffDecoder::new(cursor)
                .map_err(|e| fault($format, e))
                .and_then(|mut $decoder| $then),
            _ => PnmDecoder::new(cursor)
                .map_err(|e| fault($format, e))
                .and_then(|mut $decoder| $then),
        }
    }};
}

fn raw(format: Format, color: ColorType) -> Result<Raw, Fault> {
    match color {
        ColorType::L8 => Ok(Raw::L8),
        ColorType::La8 => Ok(Raw::La8),
        ColorType::Rgb8 => Ok(Raw::Rgb8),
        ColorType::Rgba8 => Ok(Raw::Rgba8),
        ColorType::L16 => Ok(Raw::L16),
        ColorType::La16 => Ok(Raw::La16),
        ColorType::Rgb16 => Ok(Raw::Rgb16),
        ColorType::Rgba16 => Ok(Raw::Rgba16),
        other => {
            Err(Fault::Unsupported(format!("{format}: pixels of type {other:?} are not supported")))
        }
    }
}

pub(super) fn probe(
    format: Format,
    bytes: &[u8],
    options: &DecodeOptions,
) -> Result<Declared, Fault> {
    with_decoder!(format, bytes, |decoder| {
        let raw = raw(format, decoder.color_type())?;
        let (width, height) = decoder.dimensions();
        let pixels = (height as usize).saturating_mul(width as usize);
        let extra = match format {
            // The TIFF reader holds the image once more (CMYK: in 4 channels), and a strip.
            Format::Tiff => {
                pixels.saturating_mul(raw.size() * 7 / 3).saturating_add(bytes.len() + (1 << 20))
            }
            _ => (width as usize).saturating_mul(8) + 256 * 1024,
        };
        let orientation = match options.exif_orientation {
            true => decoder.orientation().map_or(1, image::metadata::Orientation::to_exif),
            false => 1,
        };
        Ok(Declared {
            height: height as usize,
            width: width as usize,
            orientation,
            progressive: false,
            pixel: raw.size(),
            extra,
        })
    })
}

pub(super) fn decode(
    file: &[u8],
    header: &Header,
    options: &DecodeOptions,
    out: &mut [u8],
) -> Result<(), Fault> {
    let format = header.format;
    let pixels = header.height * header.width;
    with_decoder!(format, file, |decoder| {
        let raw = raw(format, decoder.color_type())?;
        let bytes = pixels * raw.size();
        if decoder.total_bytes() != bytes as u64 || out.len() < bytes {
            return Err(Fault::corrupt(format.name(), "contradictory sizes"));
        }
        let mut limits = Limits::no_limits();
        limits.max_alloc = Some(header.memory as u64);
        decoder.set_limits(limits).map_err(|e| fault(format, e))?;
        match decoder.read_image(&mut out[..bytes]) {
            Err(error) if !options.allow_truncated => return Err(fault(format, error)),
            _ => {}
        }
        if format == Format::Bmp {
            cut_off_rounding(file, raw, &mut out[..bytes]);
        }
        color::reduce(out, pixels, raw, options.mode);
        Ok(())
    })
}

/// Pixels of 16 bits have channels of 5 or 6 bits, which the `image` crate rounds to 8 bits and
/// Pillow cuts off. The rounded values still tell which ones they were.
fn cut_off_rounding(file: &[u8], raw: Raw, pixels: &mut [u8]) {
    let word = |at: usize| {
        file.get(at..at + 4).and_then(|x| x.first_chunk()).map(|x| u32::from_le_bytes(*x))
    };
    // In the 40-byte header and its successors: bits per pixel at 28, compression at 30, masks at 54.
    let (Some(40..), Some(bits), Some(compression)) = (word(14), word(28), word(30)) else {
        return;
    };
    if bits & 0xffff != 16 || !matches!(raw, Raw::Rgb8 | Raw::Rgba8) {
        return;
    }
    let depths = match compression {
        0 => [5; 3],
        3 => [54, 58, 62].map(|at| word(at).map_or(0, u32::count_ones)),
        _ => return,
    };
    for (channel, depth) in depths.into_iter().enumerate() {
        if depth != 5 && depth != 6 {
            continue;
        }
        let most = (1u32 << depth) - 1;
        let mut table: [u8; 256] = std::array::from_fn(|x| x as u8);
        for value in 0..=most {
            table[((value * 255 + most / 2) / most) as usize] = (value * 255 / most) as u8;
        }
        for pixel in pixels.chunks_exact_mut(raw.size()) {
            pixel[channel] = table[usize::from(pixel[channel])];
        }
    }
}
