//! WebP through libwebp; of an animation the first frame on its canvas, as Pillow shows it.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use libwebp_sys as webp;
use webp::{VP8StatusCode, WEBP_CSP_MODE, WebPData, WebPDemuxState, WebPDemuxer, WebPIterator};

use super::color::{self, Raw};
use super::{Declared, DecodeOptions, Header, exif, webp_codes};
use crate::error::Fault;

fn corrupt(status: VP8StatusCode) -> Fault {
    match status {
        VP8StatusCode::VP8_STATUS_NOT_ENOUGH_DATA | VP8StatusCode::VP8_STATUS_SUSPENDED => {
            super::truncated("WebP")
        }
        VP8StatusCode::VP8_STATUS_UNSUPPORTED_FEATURE => {
            Fault::Unsupported("WebP: unknown feature".into())
        }
        VP8StatusCode::VP8_STATUS_OUT_OF_MEMORY => {
            Fault::Io(std::io::Error::new(std::io::ErrorKind::OutOfMemory, "WebP: out of memory"))
        }
        _ => Fault::corrupt("WebP", "the bitstream is damaged"),
    }
}

/// What a still image or a frame declares.
fn features(bytes: &[u8]) -> Result<webp::WebPBitstreamFeatures, Fault> {
    let mut features = MaybeUninit::<webp::WebPBitstreamFeatures>::zeroed();
    // SAFETY: the call reads `bytes` within its length and writes all of `features`, which is
    // plain data and therefore valid even where it were left zero.
    let (status, features) = unsafe {
        let status = webp::WebPGetFeatures(bytes.as_ptr(), bytes.len(), features.as_mut_ptr());
        (status, features.assume_init())
    };
    match status {
        VP8StatusCode::VP8_STATUS_OK => Ok(features),
        other => Err(corrupt(other)),
    }
}

fn size(features: &webp::WebPBitstreamFeatures) -> (usize, usize) {
    (usize::try_from(features.height).unwrap_or(0), usize::try_from(features.width).unwrap_or(0))
}

pub(super) fn probe(bytes: &[u8], options: &DecodeOptions) -> Result<Declared, Fault> {
    let found = features(bytes)?;
    let (height, width) = size(&found);
    // Lossless pixels are decoded to 32 bits beside the output; lossy ones row by row, with an
    // alpha plane at most.
    let pixels = height.saturating_mul(width).saturating_add(32 * width);
    Ok(Declared {
        height,
        width,
        orientation: if options.exif_orientation { orientation(bytes) } else { 1 },
        progressive: false,
        pixel: Raw::Rgb8.size(),
        extra: pixels
            .saturating_mul(4)
            .saturating_add(512 * 1024)
            .saturating_add(webp_codes::memory(bytes, (height, width))),
    })
}

/// The orientation in an EXIF chunk.
fn orientation(bytes: &[u8]) -> u8 {
    let mut rest = bytes.get(12..).unwrap_or_default();
    while let Some((&[k0, k1, k2, k3, length @ ..], _)) = rest.split_first_chunk::<8>() {
        let length = u32::from_le_bytes(length) as usize;
        if [k0, k1, k2, k3] == *b"EXIF" {
            let body = rest.get(8..length.saturating_add(8)).unwrap_or_default();
            return exif::orientation(body.strip_prefix(b"Exif\0\0").unwrap_or(body)).unwrap_or(1);
        }
        // Chunks are padded to an even length.
        rest = rest.get(length.saturating_add(8 + length % 2)..).unwrap_or_default();
    }
    1
}

pub(super) fn decode(
    bytes: &[u8],
    header: &Header,
    options: &DecodeOptions,
    out: &mut [u8],
) -> Result<(), Fault> {
    let (height, width) = header.stored;
    let stride = width * Raw::Rgb8.size();
    let found = features(bytes)?;
    let outcome = if found.has_animation == 0 {
        write(bytes, (height, width), stride, out)
    } else {
        let animation = Animation::open(bytes)?;
        let frame = animation.first()?;
        let (rows, columns) = frame.size;
        if frame.top + rows > height || frame.left + columns > width {
            return Err(Fault::corrupt("WebP", "the first frame exceeds the canvas"));
        }
        out.fill(0);
        write(frame.bytes, frame.size, stride, &mut out[frame.top * stride + frame.left * 3..])
    };
    match outcome {
        Err(_) if options.allow_truncated => {}
        outcome => outcome?,
    }
    color::reduce(out, height * width, Raw::Rgb8, options.mode);
    Ok(())
}

/// Decodes a still image of the given size into rows that begin `stride` bytes apart.
fn write(
    bytes: &[u8],
    (height, width): (usize, usize),
    stride: usize,
    out: &mut [u8],
) -> Result<(), Fault> {
    let mut config = webp::WebPDecoderConfig::new()
        .map_err(|()| Fault::Unsupported("WebP: library mismatch".into()))?;
    if size(&features(bytes)?) != (height, width) {
        return Err(Fault::corrupt("WebP", "contradictory sizes"));
    }
    if out.len() < (height - 1) * stride + width * 3 || stride < width * 3 {
        return Err(Fault::corrupt("WebP", "the image exceeds the canvas"));
    }
    config.output.colorspace = WEBP_CSP_MODE::MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = webp::WebPRGBABuffer {
        rgba: out.as_mut_ptr(),
        // A row has at most 16383 pixels in WebP, and `max_pixels` rows fit into a slice.
        stride: i32::try_from(stride).map_err(|_| Fault::TooLarge("WebP: rows too long".into()))?,
        size: out.len(),
    };
    // SAFETY: `bytes` is read within its length. The output is ours for the length of the call;
    // libwebp checks `size` against height, width and stride before it writes.
    let status = unsafe { webp::WebPDecode(bytes.as_ptr(), bytes.len(), &mut config) };
    match status {
        VP8StatusCode::VP8_STATUS_OK => Ok(()),
        other => Err(corrupt(other)),
    }
}

/// The container of an animation.
struct Animation<'a> {
    demuxer: *mut WebPDemuxer,
    bytes: &'a [u8],
}

struct Frame<'a> {
    bytes: &'a [u8],
    top: usize,
    left: usize,
    size: (usize, usize),
}

impl<'a> Animation<'a> {
    fn open(bytes: &'a [u8]) -> Result<Self, Fault> {
        let data = WebPData { bytes: bytes.as_ptr(), size: bytes.len() };
        let mut state = WebPDemuxState::WEBP_DEMUX_PARSE_ERROR;
        // Partial containers are allowed: only the first frame must be whole.
        // SAFETY: `data` points to `bytes`, which the demuxer borrows for as long as it lives.
        let demuxer = unsafe {
            webp::WebPDemuxInternal(&data, 1, &mut state, webp::WebPGetDemuxABIVersion())
        };
        if demuxer.is_null() {
            return Err(Fault::corrupt("WebP", "the animation's container is damaged"));
        }
        Ok(Animation { demuxer, bytes })
    }

    fn first(&self) -> Result<Frame<'a>, Fault> {
        let mut iterator = MaybeUninit::<WebPIterator>::zeroed();
        // SAFETY: the demuxer is alive; the call fills the iterator when it returns nonzero,
        // and only then is it read and released.
        let iterator = unsafe {
            if webp::WebPDemuxGetFrame(self.demuxer, 1, iterator.as_mut_ptr()) == 0 {
                return Err(Fault::corrupt("WebP", "the animation has no whole first frame"));
            }
            let mut iterator = iterator.assume_init();
            webp::WebPDemuxReleaseIterator(&mut iterator);
            iterator
        };
        // The fragment is a part of our bytes; taking it as a range of them needs no trust.
        let start = (iterator.fragment.bytes as usize).wrapping_sub(self.bytes.as_ptr() as usize);
        let bytes = start
            .checked_add(iterator.fragment.size)
            .and_then(|end| self.bytes.get(start..end))
            .ok_or_else(|| Fault::corrupt("WebP", "the animation's container is damaged"))?;
        let natural = |x: i32| usize::try_from(x).unwrap_or(usize::MAX / 4);
        Ok(Frame {
            bytes,
            top: natural(iterator.y_offset),
            left: natural(iterator.x_offset),
            size: size(&features(bytes)?),
        })
    }
}

impl Drop for Animation<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `WebPDemuxInternal` and deleted only here.
        unsafe { webp::WebPDemuxDelete(self.demuxer) }
    }
}
