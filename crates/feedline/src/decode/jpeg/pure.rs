//! A decoder in Rust whose pixels are libjpeg-turbo's to the bit.
//!
//! What it makes of a damaged file is another matter, so that a flaw is always an error here.

use libjpeg_turbo_rs::{DecodeLimits, Decoder, JpegError, PixelFormat};

use super::Warning;
use crate::decode::color::Raw;
use crate::decode::{DecodeOptions, Header, jpeg_header};
use crate::error::Fault;
use crate::image::Region;

/// Decodes the whole image.
pub(super) fn decompress(
    bytes: &[u8],
    header: &Header,
    options: &DecodeOptions,
    raw: Raw,
    _part: Option<Region>,
    out: &mut [u8],
) -> Result<Option<Warning>, Fault> {
    let (height, width) = header.stored;
    let limits = DecodeLimits {
        max_pixels: options.max_pixels,
        max_scans: jpeg_header::MAX_SCANS as usize,
        max_memory: Some(header.memory as u64 + (height * width * raw.size()) as u64),
        ..DecodeLimits::default()
    };
    let failed = |error: JpegError| {
        let advice = match options.allow_damaged || options.allow_truncated {
            true => " (damaged files need a build with the feature libjpeg-turbo)",
            false => "",
        };
        Fault::corrupt("JPEG", format!("{error}{advice}"))
    };
    let mut decoder = Decoder::new_with_limits(bytes, limits).map_err(failed)?;
    let declared = decoder.header();
    if usize::from(declared.height()) != height || usize::from(declared.width()) != width {
        return Err(Fault::corrupt("JPEG", "contradictory frame headers"));
    }
    decoder.set_output_format(match raw {
        Raw::L8 => PixelFormat::Grayscale,
        Raw::Rgb8 => PixelFormat::Rgb,
        Raw::InvertedCmyk => PixelFormat::Cmyk,
    });
    decoder.decode_image_into(out).map_err(failed)?;
    Ok(None)
}
