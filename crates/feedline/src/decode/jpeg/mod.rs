//! JPEGs: plain ones by the decoder of our own, all others by a library. With the feature
//! `libjpeg-turbo` that is libjpeg-turbo, otherwise a decoder in Rust whose pixels are the same,
//! which takes no files that have a flaw.

#[cfg(not(feature = "libjpeg-turbo"))]
mod pure;
#[cfg(feature = "libjpeg-turbo")]
mod turbo;

#[cfg(not(feature = "libjpeg-turbo"))]
use pure as library;
#[cfg(feature = "libjpeg-turbo")]
use turbo as library;

use super::baseline::Baseline;
use super::{DecodeOptions, Header, color, jpeg_header};
use crate::error::Fault;
use crate::image::Excerpt;

/// What libjpeg says of data that are not all right.
struct Warning {
    text: String,
    /// Decoding ended there, after an earlier warning; what follows is missing.
    is_end: bool,
}

/// A worker's decoder of plain files, kept from image to image.
#[derive(Default)]
pub(super) struct Handle {
    baseline: Baseline,
}

impl Handle {
    /// Writes `wanted`, or the whole image, and says which.
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        options: &DecodeOptions,
        wanted: Excerpt,
        out: &mut [u8],
    ) -> Result<Excerpt, Fault> {
        let markers = jpeg_header::read(bytes)?;
        let raw = markers.raw(options.mode);
        // What is held as coefficients is decoded whole anyway, and so is what changes colours
        // afterwards. A file with anything but an end behind its scan is looked at as a whole, so
        // that it is refused whichever part is asked for.
        let channels = options.mode.channels();
        let restarts = (raw.size() == channels && !header.progressive)
            .then(|| markers.restarts_before_end(bytes))
            .flatten();
        let plain = restarts.is_some();
        if let Some(restarts) = restarts
            && self.baseline.decode(bytes, restarts, &wanted, channels, out).is_some()
        {
            return Ok(wanted);
        }
        if plain && options.allow_truncated {
            // What was decoded up to the flaw is not what the library makes of it.
            out.fill(0);
        }
        let whole = Excerpt::whole(wanted.height, wanted.width);
        let part = (plain && wanted.reduction == 1 && wanted != whole).then_some(wanted.part);
        let mut warning = library::decompress(bytes, header, options, raw, part, out)?;
        let strict = !options.allow_truncated && !options.allow_damaged;
        if strict && warning.as_ref().is_some_and(|warning| !warning.loses_pixels()) {
            // It may hide another one.
            let clean = jpeg_header::without_oddities(bytes)?;
            warning = library::decompress(&clean, header, options, raw, part, out)?;
            if let Some(other) = warning.as_ref().filter(|other| other.may_hide_another()) {
                return Err(Fault::corrupt(
                    "JPEG",
                    format!(
                        "{}, so that it cannot be known whether all data are there (allow_damaged accepts it, as Pillow does)",
                        other.text
                    ),
                ));
            }
        }
        if let Some(found) = warning
            && !options.allow_truncated
        {
            let warning = &found.text;
            if !markers.is_ended(bytes) {
                return Err(Fault::Corrupt {
                    format: "JPEG",
                    reason: format!(
                        "truncated: the data end before the image does ({warning}; allow_truncated accepts it)"
                    ),
                    offset: Some(bytes.len() as u64),
                });
            }
            if found.is_end {
                return Err(Fault::corrupt("JPEG", warning));
            }
            if found.loses_pixels() && !options.allow_damaged {
                return Err(Fault::corrupt(
                    "JPEG",
                    format!("{warning} (allow_damaged accepts it, as Pillow does)"),
                ));
            }
        }
        color::reduce(out, header.height * header.width, raw, options.mode);
        Ok(whole)
    }
}

impl Warning {
    /// False for those after which the picture is whole; libjpeg has no others that leave it so.
    /// Pillow shows none at all, and photos with stray bytes between segments are common.
    fn loses_pixels(&self) -> bool {
        const HARMLESS: [&str; 5] = [
            "extraneous bytes",
            "Unknown Adobe color transform",
            "JFIF",
            "ICC",
            "Invalid SOS parameters",
        ];
        self.is_end || !HARMLESS.iter().any(|part| self.text.contains(part))
    }

    /// Whether it is harmless and something that matters can follow it: not of bytes between the
    /// last scan and the end of the image.
    fn may_hide_another(&self) -> bool {
        !self.loses_pixels() && !self.text.contains("before marker 0xd9")
    }
}
