//! A JPEG's markers up to its first scan, without the library and without memory.

use super::color::Raw;
use super::{ColorMode, Declared, exif};
use crate::error::Fault;

/// Scans beyond which a file is taken for an attack: encoders write at most 17.
pub(super) const MAX_SCANS: u64 = 100;

/// Visits of blocks beyond which a file is taken for an attack. Every scan visits each block of
/// its components, though a few bytes may say that none of them changes. The largest image that
/// `max_pixels` admits by default needs 39 million with libjpeg's own scans (68 million as CMYK).
pub(super) const MAX_VISITS: u64 = 1 << 27;

/// What a visit costs where coefficients are coded arithmetically, in visits of Huffman's kind: up
/// to 6 µs, also behind the end of the data, where libjpeg goes on with zeros and without a word.
const ARITHMETIC: u64 = 128;

/// Component of a JPEG: how often it is sampled in a unit.
#[derive(Debug, Clone, Copy, Default)]
struct Sampling {
    id: u8,
    horizontal: usize,
    vertical: usize,
}

/// What the markers say.
#[derive(Debug, Clone)]
pub(super) struct JpegHeader {
    height: usize,
    width: usize,
    components: usize,
    sampling: [Sampling; 4],
    /// The whole image is held as coefficients until the last scan.
    buffered: bool,
    progressive: bool,
    arithmetic: bool,
    orientation: u8,
    /// Where the first scan's header begins.
    scan: usize,
    /// Where its data begin.
    data: usize,
}

fn corrupt(reason: impl Into<String>, offset: usize) -> Fault {
    Fault::Corrupt { format: "JPEG", reason: reason.into(), offset: Some(offset as u64) }
}

/// A marker of the header with its body.
struct Segment<'a> {
    marker: u8,
    body: &'a [u8],
    /// Where the marker's second byte lies.
    at: usize,
}

/// Finds markers one after the other, as libjpeg does: what is no marker is passed over.
struct Segments<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Segments<'a> {
    fn next(&mut self) -> Result<Segment<'a>, Fault> {
        let bytes = self.bytes;
        loop {
            let rest = bytes.get(self.at..).unwrap_or_default();
            let Some(skipped) = rest.iter().position(|b| *b == 0xff) else {
                return Err(corrupt("the file ends inside its header", bytes.len()));
            };
            self.at += skipped + 1;
            let at = self.at;
            let Some(&marker) = bytes.get(at) else {
                return Err(corrupt("the file ends inside its header", bytes.len()));
            };
            match marker {
                // Fill bytes and stuffed zeros; the next round looks at them again.
                0xff | 0x00 => continue,
                // Markers without a body.
                0x01 | 0xd0..=0xd8 => {
                    self.at += 1;
                    continue;
                }
                0xd9 => return Err(corrupt("the file holds no image data", at)),
                _ => {}
            }
            let body = bytes
                .get(at + 1..at + 3)
                .map(|length| usize::from(u16::from_be_bytes([length[0], length[1]])))
                .filter(|length| *length >= 2)
                .and_then(|length| bytes.get(at + 3..at + 1 + length));
            let Some(body) = body else {
                return Err(corrupt("the file ends inside its header", at));
            };
            self.at += 3 + body.len();
            return Ok(Segment { marker, body, at });
        }
    }
}

/// The file with a header that libjpeg has nothing to say of: no bytes between segments, no unknown
/// revision or colour transform, the parameters of its scan as they are taken. libjpeg reports only
/// its first warning, and one of these would hide that data are missing.
pub(super) fn without_oddities(bytes: &[u8]) -> Result<Vec<u8>, Fault> {
    let mut clean = Vec::new();
    clean.try_reserve_exact(bytes.len()).map_err(|_| {
        Fault::TooLarge(format!("JPEG: {} bytes do not fit into memory", bytes.len()))
    })?;
    clean.extend_from_slice(&[0xff, 0xd8]);
    let mut segments = Segments { bytes, at: 2 };
    let mut sequential = true;
    loop {
        let Segment { marker, body, at } = segments.next()?;
        clean.push(0xff);
        let copied = clean.len();
        clean.extend_from_slice(&bytes[at..at + 3 + body.len()]);
        let body = &mut clean[copied + 3..];
        match marker {
            0xc2 | 0xca => sequential = false,
            0xe0 if body.len() >= 14 && body.starts_with(b"JFIF\0") => body[5] = 1,
            // What libjpeg takes an unknown transform for.
            0xee if body.len() >= 12 && body.starts_with(b"Adobe") && body[11] > 2 => body[11] = 1,
            0xda => {
                let listed = 1 + 2 * usize::from(body.first().copied().unwrap_or(0));
                if let Some([start, end, shift, ..]) = body.get_mut(listed..)
                    && sequential
                {
                    (*start, *end, *shift) = (0, 63, 0);
                }
                clean.extend_from_slice(&bytes[segments.at..]);
                return Ok(clean);
            }
            _ => {}
        }
    }
}

/// Reads markers up to the first scan.
pub(super) fn read(bytes: &[u8]) -> Result<JpegHeader, Fault> {
    let mut header: Option<JpegHeader> = None;
    let mut orientation = 1;
    let mut segments = Segments { bytes, at: 2 };
    loop {
        let Segment { marker, body, at } = segments.next()?;
        match marker {
            // 0xc4, 0xc8 and 0xcc are tables, not frames.
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                if header.is_some() {
                    return Err(corrupt("two frame headers", at));
                }
                header = Some(frame(marker, body, at)?);
            }
            0xe1 => {
                if let Some(tiff) = body.strip_prefix(b"Exif\0\0") {
                    orientation = exif::orientation(tiff).unwrap_or(orientation);
                }
            }
            0xda => {
                let Some(mut header) = header else {
                    return Err(corrupt("image data before its size", at));
                };
                let in_scan = body.first().map_or(0, |n| usize::from(*n));
                header.buffered = header.progressive || in_scan < header.components;
                header.orientation = orientation;
                header.scan = at;
                header.data = segments.at;
                return Ok(header);
            }
            _ => {}
        }
    }
}

fn frame(marker: u8, body: &[u8], at: usize) -> Result<JpegHeader, Fault> {
    // 3: lossless; 5 to 7 and 13 to 15: hierarchical; 11: lossless with arithmetic coding.
    if !matches!(marker, 0xc0 | 0xc1 | 0xc2 | 0xc3 | 0xc9 | 0xca) {
        return Err(Fault::Unsupported(format!(
            "JPEG: coding process {marker:#04x} is not supported"
        )));
    }
    let (&[precision, h1, h0, w1, w0, components], rest) =
        body.split_first_chunk().ok_or_else(|| corrupt("frame header too short", at))?;
    if precision != 8 {
        return Err(Fault::Unsupported(format!(
            "JPEG: {precision} bits per sample are not supported, only 8"
        )));
    }
    if !matches!(components, 1 | 3 | 4) {
        return Err(Fault::Unsupported(format!("JPEG: {components} components are not supported")));
    }
    let mut sampling = [Sampling::default(); 4];
    let (entries, _) = rest.as_chunks::<3>();
    if entries.len() < usize::from(components) {
        return Err(corrupt("frame header too short", at));
    }
    for (sampling, &[id, factors, _]) in
        sampling.iter_mut().zip(entries).take(usize::from(components))
    {
        let (horizontal, vertical) = (usize::from(factors >> 4), usize::from(factors & 15));
        *sampling = Sampling { id, horizontal, vertical };
        if !(1..=4).contains(&sampling.horizontal) || !(1..=4).contains(&sampling.vertical) {
            return Err(corrupt("impossible sampling factors", at));
        }
    }
    Ok(JpegHeader {
        height: usize::from(u16::from_be_bytes([h1, h0])),
        width: usize::from(u16::from_be_bytes([w1, w0])),
        components: usize::from(components),
        sampling,
        buffered: false,
        progressive: matches!(marker, 0xc2 | 0xca),
        arithmetic: matches!(marker, 0xc9 | 0xca),
        orientation: 1,
        scan: 0,
        data: 0,
    })
}

impl JpegHeader {
    /// What the library is asked to write for a pixel.
    pub(super) fn raw(&self, mode: ColorMode) -> Raw {
        match (self.components, mode) {
            (1, ColorMode::Gray) => Raw::L8,
            (4, _) => Raw::InvertedCmyk,
            _ => Raw::Rgb8,
        }
    }

    /// Samples of a unit across and down, and units of the image across and down.
    fn units(&self) -> ((usize, usize), (usize, usize)) {
        let most =
            |of: fn(&Sampling) -> usize| self.sampling.iter().map(of).max().unwrap_or(1).max(1);
        let (across, down) = (most(|s| s.horizontal), most(|s| s.vertical));
        ((across, down), (self.width.div_ceil(8 * across), self.height.div_ceil(8 * down)))
    }

    /// How often the scans of a file visit a block, where there can be several or a visit can be
    /// dear; refused is more than any encoder asks for. The scans are found as libjpeg finds them,
    /// marker by marker, without decoding anything.
    pub(super) fn visits(&self, bytes: &[u8]) -> Result<u64, Fault> {
        if !self.buffered && !self.arithmetic {
            return Ok(0);
        }
        let (_, (units_wide, units_high)) = self.units();
        let (mut scans, mut visits) = (0u64, 0u64);
        let mut at = self.scan;
        // `at` is a marker's second byte.
        while let Some(&marker) = bytes.get(at) {
            let length = match marker {
                0xd9 => break,
                // Stuffed zeros, fill bytes, restarts and what libjpeg passes over have no body.
                0x00..=0xbf | 0xd0..=0xd8 | 0xff => 0,
                _ => {
                    let Some(&length) = bytes.get(at + 1..).and_then(|rest| rest.first_chunk())
                    else {
                        break;
                    };
                    usize::from(u16::from_be_bytes(length))
                }
            };
            if marker == 0xda {
                let listed = bytes.get(at + 3..).and_then(|body| body.split_first());
                let listed = listed.map_or(&[][..], |(count, body)| {
                    body.get(..2 * usize::from(*count).min(4)).unwrap_or(body)
                });
                for [id, _] in listed.as_chunks::<2>().0 {
                    let blocks = self.sampling[..self.components]
                        .iter()
                        .filter(|component| component.id == *id)
                        .map(|component| component.horizontal * component.vertical)
                        .max();
                    visits += (units_wide * units_high * blocks.unwrap_or(0)) as u64
                        * if self.arithmetic { ARITHMETIC } else { 1 };
                }
                scans += 1;
            }
            if scans > MAX_SCANS {
                return Err(corrupt(
                    format!("has more than {MAX_SCANS} scans; encoders write at most 17"),
                    at - 1,
                ));
            }
            if visits > MAX_VISITS {
                return Err(Fault::TooLarge(format!(
                    "JPEG: {} x {} pixels in {scans} or more scans are more work than any encoder asks for ({visits} visits of blocks, at most {MAX_VISITS}; arithmetic coding counts {ARITHMETIC}-fold)",
                    self.width, self.height
                )));
            }
            // A fill byte may itself begin the marker.
            at += if marker == 0xff { 0 } else { 1 + length };
            match bytes.get(at..).and_then(|rest| memchr::memchr(0xff, rest)) {
                Some(skipped) => at += skipped + 1,
                None => break,
            }
        }
        Ok(visits)
    }

    pub(super) fn declared(&self, mode: ColorMode) -> Declared {
        let ((across, down), (units_wide, units_high)) = self.units();
        let coefficients: usize = self.sampling[..self.components]
            .iter()
            .map(|s| units_wide * s.horizontal * units_high * s.vertical * 64 * size_of::<i16>())
            .sum();
        // The library's row buffers: up to five groups of rows for each component, at full width
        // where upsampled, beside 256 kB of tables and pools (measured: 110 kB at 500 x 375).
        let rows = units_wide * 8 * across * self.components * 8 * down * 5;
        Declared {
            height: self.height,
            width: self.width,
            orientation: self.orientation,
            progressive: self.buffered,
            pixel: self.raw(mode).size(),
            extra: rows
                + 256 * 1024
                + if self.buffered { coefficients + coefficients / 8 } else { 0 },
        }
    }

    /// How many restart markers there are, if the first scan's data are followed by the end of the
    /// image and nothing else: what else can be there (another scan, tables, a second image) is the
    /// library's to judge.
    pub(super) fn restarts_before_end(&self, bytes: &[u8]) -> Option<usize> {
        let mut rest = bytes.get(self.data..)?;
        let mut restarts = 0;
        loop {
            let at = memchr::memchr(0xff, rest)?;
            match rest.get(at + 1)? {
                0x00 => rest = &rest[at + 2..],
                0xd0..=0xd7 => {
                    restarts += 1;
                    rest = &rest[at + 2..];
                }
                0xff => rest = &rest[at + 1..],
                0xd9 => return Some(restarts),
                _ => return None,
            }
        }
    }

    /// False when the data that follow the first scan's header have no end marker.
    pub(super) fn is_ended(&self, bytes: &[u8]) -> bool {
        bytes
            .get(self.scan..)
            .is_some_and(|rest| rest.windows(2).rev().any(|pair| pair == [0xff, 0xd9]))
    }
}
