//! A JPEG's markers up to its first scan, without the library and without memory.

use super::color::Raw;
use super::{ColorMode, Declared, exif};
use crate::error::Fault;

/// Component of a JPEG: how often it is sampled in a unit.
#[derive(Debug, Clone, Copy, Default)]
struct Sampling {
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
    orientation: u8,
    /// Where the first scan's header begins.
    pub(super) scan: usize,
}

fn corrupt(reason: impl Into<String>, offset: usize) -> Fault {
    Fault::Corrupt { format: "JPEG", reason: reason.into(), offset: Some(offset as u64) }
}

/// Reads markers up to the first scan.
pub(super) fn read(bytes: &[u8]) -> Result<JpegHeader, Fault> {
    let mut header: Option<JpegHeader> = None;
    let mut orientation = 1;
    let mut at = 2;
    loop {
        // As libjpeg does, skip what is no marker.
        let Some(skipped) = bytes.get(at..).and_then(|rest| rest.iter().position(|b| *b == 0xff))
        else {
            return Err(corrupt("the file ends inside its header", bytes.len()));
        };
        at += skipped + 1;
        let Some(&marker) = bytes.get(at) else {
            return Err(corrupt("the file ends inside its header", bytes.len()));
        };
        match marker {
            // Fill bytes and stuffed zeros; the next round looks at them again.
            0xff | 0x00 => continue,
            // Markers without a body.
            0x01 | 0xd0..=0xd8 => {
                at += 1;
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
                return Ok(header);
            }
            _ => {}
        }
        at += 3 + body.len();
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
    for (sampling, [_, factors, _]) in
        sampling.iter_mut().zip(entries).take(usize::from(components))
    {
        *sampling =
            Sampling { horizontal: usize::from(factors >> 4), vertical: usize::from(factors & 15) };
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
        orientation: 1,
        scan: 0,
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

    pub(super) fn declared(&self, mode: ColorMode) -> Declared {
        let most =
            |of: fn(&Sampling) -> usize| self.sampling.iter().map(of).max().unwrap_or(1).max(1);
        let (across, down) = (most(|s| s.horizontal), most(|s| s.vertical));
        let units_wide = self.width.div_ceil(8 * across);
        let units_high = self.height.div_ceil(8 * down);
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

    /// False when the data that follow the first scan's header have no end marker.
    pub(super) fn is_ended(&self, bytes: &[u8]) -> bool {
        bytes
            .get(self.scan..)
            .is_some_and(|rest| rest.windows(2).rev().any(|pair| pair == [0xff, 0xd9]))
    }
}
