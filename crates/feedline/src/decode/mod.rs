//! Encoded bytes to pixels: one file per format.
//!
//! Every file is taken for hostile. [`probe`] reads the header alone and checks the declared size
//! before anything is allocated for it; [`Decoder::decode`] then writes into the worker's scratch
//! memory and refuses what does not hold what the header promised.
//!
//! Pixels agree with Pillow's `Image.open(f).convert("RGB")` or `convert("L")`, with these
//! deliberate differences:
//!
//! * 16-bit grayscale (PNG, TIFF, PNM): Pillow cuts every value above 255 to 255, which leaves
//!   a white image; here the high byte is taken, as Pillow itself does for 16-bit colour.
//! * EXIF orientation is ignored unless asked for, as in torchvision's `ImageFolder`; a TIFF's own is
//!   applied, as Pillow does.
//! * Damage that loses pixels is an error. Pillow shows a JPEG whose data do not decode with grey
//!   or displaced areas; `allow_damaged` does the same. Files whose data end early are accepted
//!   with `allow_truncated`, as with Pillow's `LOAD_TRUNCATED_IMAGES`; what is missing is black,
//!   the palette's first colour, or in a JPEG what libjpeg makes of it. A progressive JPEG shows
//!   the scans that are there, where Pillow often shows black.

mod baseline;
mod bmp;
mod color;
mod exif;
mod fax;
mod gif;
mod jpeg;
mod jpeg_header;
mod png;
mod pnm;
mod tiff;
mod tiff_tags;
#[cfg(feature = "webp")]
mod webp;
#[cfg(feature = "webp")]
mod webp_codes;

use crate::error::Fault;
use crate::guard::guarded;
use crate::image::{Excerpt, Image, Scratch};
pub(crate) use crate::sample::{EXTENSIONS, ImageFormat as Format};

/// What decoded pixels mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ColorMode {
    /// Three channels; transparency is dropped.
    #[default]
    Rgb,
    /// One channel: ITU-R 601 luma, as Pillow's mode "L".
    Gray,
}

impl ColorMode {
    /// Channels of a pixel.
    #[must_use]
    pub fn channels(self) -> usize {
        match self {
            ColorMode::Rgb => 3,
            ColorMode::Gray => 1,
        }
    }
}

/// How images are decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodeOptions {
    /// What the pixels mean.
    pub mode: ColorMode,
    /// Turn the image as its EXIF orientation asks.
    pub exif_orientation: bool,
    /// Declared pixels beyond which an image is refused.
    pub max_pixels: u64,
    /// Accept images whose data end early or are damaged: what Pillow gives where
    /// `LOAD_TRUNCATED_IMAGES` is set.
    pub allow_truncated: bool,
    /// Accept JPEGs whose data are all there and do not all decode: what Pillow gives by default.
    pub allow_damaged: bool,
    /// Decode at full size even where a smaller one would do: the pixels of a crop are then those
    /// of the whole image, to the bit.
    pub exact: bool,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        // Pillow refuses images of more than this many pixels, too: 512 MB of RGB.
        DecodeOptions {
            mode: ColorMode::Rgb,
            exif_orientation: false,
            max_pixels: 178_956_970,
            allow_truncated: false,
            allow_damaged: false,
            exact: false,
        }
    }
}

/// What a file declares, checked against the limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The format, found from the bytes.
    pub format: Format,
    /// Rows of the decoded image, after orientation if that was asked for.
    pub height: usize,
    /// Columns, likewise.
    pub width: usize,
    /// Channels of the decoded image: 3 or 1.
    pub channels: usize,
    /// Bytes that decoding takes at most: the pixels and what the library allocates.
    pub memory: usize,
    /// A JPEG that must be held in memory as coefficients until its last scan.
    pub progressive: bool,
    /// The EXIF orientation that will be applied; 1 changes nothing.
    pub orientation: u8,
    /// Rows and columns as stored.
    stored: (usize, usize),
    /// Bytes that the pixels take before they have their final channels.
    raw: usize,
}

/// Pixels of a side beyond which an image is refused: decoders have work for every row, however
/// short it is (an interlaced PNG of 1 x 178,000,000 took 11 s).
const MAX_SIDE: usize = 1 << 20;

/// What a format's own header reader finds.
struct Declared {
    height: usize,
    width: usize,
    orientation: u8,
    progressive: bool,
    /// Bytes of one pixel as the library writes it.
    pixel: usize,
    /// Bytes that the library allocates beside them.
    extra: usize,
}

/// Reads the header alone, checks the declared size, and allocates nothing of that size.
pub fn probe(bytes: &[u8], options: &DecodeOptions) -> Result<Header, Fault> {
    if bytes.is_empty() {
        return Err(Fault::corrupt("image", "the file is empty"));
    }
    let Some(format) = Format::sniff(bytes) else {
        return Err(Fault::Unsupported(format!(
            "not an image of a known format (JPEG, PNG, WebP, BMP, GIF, TIFF, PNM); it begins with {}",
            beginning(bytes)
        )));
    };
    let mut jpeg = None;
    let declared = contained(format, || match format {
        Format::Jpeg => Ok(jpeg.insert(jpeg_header::read(bytes)?).declared(options.mode)),
        Format::Png => png::probe(bytes, options),
        #[cfg(feature = "webp")]
        Format::WebP => webp::probe(bytes, options),
        #[cfg(not(feature = "webp"))]
        Format::WebP => Err(Fault::Unsupported(
            "WebP: this build of feedline lacks its feature \"webp\"".to_owned(),
        )),
        Format::Gif => gif::probe(bytes),
        Format::Bmp => bmp::probe(bytes, options),
        Format::Tiff => tiff::probe(bytes, options),
        Format::Pnm => pnm::probe(bytes, options),
    })?;
    let (height, width) = (declared.height, declared.width);
    if height == 0 || width == 0 {
        return Err(Fault::corrupt(format.name(), format!("declares {width} x {height} pixels")));
    }
    let pixels = (height as u64).saturating_mul(width as u64);
    if pixels > options.max_pixels {
        return Err(Fault::TooLarge(format!(
            "{format}: declares {width} x {height} = {pixels} pixels, more than max_pixels = {}",
            options.max_pixels
        )));
    }
    if height.max(width) > MAX_SIDE {
        return Err(Fault::TooLarge(format!(
            "{format}: declares {width} x {height} pixels; a side may have {MAX_SIDE} at most"
        )));
    }
    if let Some(jpeg) = jpeg {
        jpeg.visits(bytes)?;
    }
    let channels = options.mode.channels();
    let too_large =
        || Fault::TooLarge(format!("{format}: {width} x {height} pixels do not fit into memory"));
    let raw = usize::try_from(pixels)
        .ok()
        .and_then(|pixels| pixels.checked_mul(declared.pixel.max(channels)))
        .ok_or_else(too_large)?;
    // Pillow turns a TIFF whenever it loads one.
    let turns = options.exif_orientation || format == Format::Tiff;
    let orientation = if turns { declared.orientation } else { 1 };
    let (turned_height, turned_width) =
        if orientation >= 5 { (width, height) } else { (height, width) };
    Ok(Header {
        format,
        height: turned_height,
        width: turned_width,
        channels,
        memory: raw.checked_add(declared.extra).ok_or_else(too_large)?,
        progressive: declared.progressive,
        orientation,
        stored: (height, width),
        raw,
    })
}

/// Runs a format's decoder. A library's panic is a fault of the file that brought it about, and
/// nothing is printed; a panic of this crate is a bug of its own and goes on as one.
fn contained<T>(format: Format, work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    guarded(work).unwrap_or_else(|caught| {
        Err(match caught.own {
            true => Fault::Panic(caught.text),
            false => Fault::corrupt(
                format.name(),
                format!("the library that reads it gave up: {}", caught.text),
            ),
        })
    })
}

/// Turns of an LZW decoder that take and write nothing, beyond which it is stuck: it holds 64
/// bits, and codes among them that clear its table show in neither count.
const IDLE_TURNS: usize = 64;

/// What every format says of data that end early.
fn truncated(format: &'static str) -> Fault {
    Fault::corrupt(
        format,
        "truncated: the file ends before the image does (allow_truncated accepts it)",
    )
}

/// The first bytes, so that an error page saved as an image is recognised at a glance.
fn beginning(bytes: &[u8]) -> String {
    let start = &bytes[..bytes.len().min(16)];
    if start.iter().all(|b| b.is_ascii_graphic() || *b == b' ') {
        format!("{:?}", String::from_utf8_lossy(start))
    } else {
        start.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ")
    }
}

/// Decodes images, one after the other, in one worker.
#[derive(Default)]
pub struct Decoder {
    jpeg: jpeg::Handle,
}

impl Decoder {
    /// A decoder that has done nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Decoder::default()
    }

    /// Decodes `bytes`, whose header [`probe`] found with the same options.
    pub fn decode<'a>(
        &mut self,
        bytes: &[u8],
        header: &Header,
        options: &DecodeOptions,
        scratch: &'a mut Scratch,
    ) -> Result<Image<'a>, Fault> {
        self.decode_part(bytes, header, options, None, scratch)
    }

    /// The same, when only some of the image will be looked at, possibly reduced by 2, 4 or 8. The
    /// image is then that excerpt, or the whole where nothing is to be gained: only baseline JPEGs
    /// save work by it. At full size its pixels are those of a full decode, to the bit.
    pub fn decode_part<'a>(
        &mut self,
        bytes: &[u8],
        header: &Header,
        options: &DecodeOptions,
        wanted: Option<Excerpt>,
        scratch: &'a mut Scratch,
    ) -> Result<Image<'a>, Fault> {
        let (height, width) = header.stored;
        let out = scratch.decoded(header.raw)?;
        if options.allow_truncated || options.allow_damaged {
            // What a damaged file leaves unwritten must not show an earlier image.
            out.fill(0);
        }
        let format = header.format;
        match format {
            Format::Jpeg => {
                // A turned image has other coordinates than the file: rare, so decoded whole.
                let wanted = wanted
                    .filter(|wanted| header.orientation == 1 && wanted.lies_in(height, width))
                    .unwrap_or(Excerpt::whole(height, width));
                let excerpt = self.jpeg.decode(bytes, header, options, wanted, out)?;
                if !excerpt.is_whole() {
                    return Ok(Image::decoded_excerpt(scratch, excerpt, header.channels));
                }
            }
            _ => contained(format, || match format {
                Format::Jpeg => Ok(()),
                Format::Png => png::decode(bytes, header, options, out),
                #[cfg(feature = "webp")]
                Format::WebP => webp::decode(bytes, header, options, out),
                #[cfg(not(feature = "webp"))]
                Format::WebP => Ok(()),
                Format::Gif => gif::decode(bytes, header, options, out),
                Format::Bmp => bmp::decode(bytes, header, options, out),
                Format::Tiff => tiff::decode(bytes, header, options, &mut self.jpeg, out),
                Format::Pnm => pnm::decode(bytes, header, options, out),
            })?,
        }
        let mut image = Image::decoded(scratch, height, width, header.channels);
        image.view_mut().orient(header.orientation);
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_decide_not_names() {
        assert_eq!(Format::sniff(b"\xff\xd8\xff\xe0"), Some(Format::Jpeg));
        assert_eq!(Format::sniff(b"P6 2 2 255\n"), Some(Format::Pnm));
        assert_eq!(Format::sniff(b"PK\x03\x04"), None);
        assert!(EXTENSIONS.iter().all(|e| Format::from_extension(e).is_some()));
        assert_eq!(Format::from_extension("JPEG"), Some(Format::Jpeg));
        assert_eq!(Format::from_extension("txt"), None);
    }

    #[test]
    fn what_is_no_image_is_named() {
        let options = DecodeOptions::default();
        assert!(matches!(probe(b"", &options), Err(Fault::Corrupt { .. })));
        let error = probe(b"<!DOCTYPE html><html>", &options).unwrap_err();
        assert!(matches!(error, Fault::Unsupported(_)));
        assert!(error.to_string().contains("<!DOCTYPE html>"), "{error}");
    }

    #[test]
    fn a_huge_declared_size_is_refused_from_the_header() {
        let jpeg = [
            &b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01"[..],
            &b"\xff\xda\x00\x0c\x03\x01\x00\x02\x11\x03\x11\x00\x3f\x00"[..],
        ]
        .concat();
        let bmp = [
            &b"BM\x00\x00\x00\x00\x00\x00\x00\x00\x36\x00\x00\x00\x28\x00\x00\x00"[..],
            &65535u32.to_le_bytes(),
            &65535u32.to_le_bytes(),
            &b"\x01\x00\x18\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"[..],
        ]
        .concat();
        let gif =
            b"GIF89a\xff\xff\xff\xff\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x00";
        for bytes in [&jpeg[..], &bmp, gif, b"P6 65535 65535 255\n"] {
            let error = probe(bytes, &DecodeOptions::default()).unwrap_err();
            assert!(matches!(error, Fault::TooLarge(_)), "{error:?}");
            assert!(error.to_string().contains("65535 x 65535"), "{error}");
            assert!(error.to_string().contains("178956970"), "{error}");
        }
    }
}
