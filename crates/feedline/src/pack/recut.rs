//! Puts restart markers into a JPEG without touching its pixels or its metadata.
//!
//! The coefficients are coded anew, with a fresh start every few units, by libjpeg-turbo's
//! lossless transformation. Everything else (EXIF, ICC, comments, quantisation, what follows the
//! end) is taken from the file as it is, so the result differs from it in the coded data alone.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};

use turbojpeg_sys as turbo;

use crate::error::{Error, Fault, Result};

/// Segments that a row of units (MCUs) is cut into, about, when nothing else is asked for: each is
/// two units of a photo 500 pixels wide. There, segments of 1, 2, 4 and 8 units take 91.6, 91.5,
/// 92.1 and 94.0 % of the instructions of an uncut file for RandomResizedCrop(224), and 3.3, 1.8,
/// 1.0 and 0.4 % more bytes; at 1900 pixels 4 and 8 units serve equally, 1 is worse.
const COLUMNS: usize = 16;

/// Scans of a progressive file beyond which it is taken for an attack: encoders write about 10.
const MAX_SCANS: c_int = 100;

/// Rewrites JPEGs, one after the other, and keeps its memory from file to file.
///
/// ```
/// use feedline::internals::pack::{Encoder, Recutter, Subsampling};
/// let mut encoder = Encoder::new(90, Subsampling::Half, false)?;
/// let photo = encoder.encode(&[128; 64 * 48 * 3], 64, 48)?;
/// let cut = Recutter::new()?.recut(photo, Some(2))?.to_vec();
/// assert!(cut.windows(2).any(|pair| pair == [0xff, 0xd0]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Recutter {
    handle: turbo::tjhandle,
    /// What the library writes.
    coded: Vec<u8>,
    output: Vec<u8>,
}

// SAFETY: a TurboJPEG handle has no ties to the thread that made it; it only must not be used by
// two at once, and every use goes through `&mut self`.
unsafe impl Send for Recutter {}

impl Recutter {
    /// A rewriter that has done nothing yet.
    pub fn new() -> Result<Self> {
        Ok(Recutter { handle: start()?, coded: Vec::new(), output: Vec::new() })
    }

    /// The same image with a restart marker after every `segment` units (by default as many as
    /// serve its width), or as many as come nearest among those that divide a row of units. A progressive file becomes a
    /// baseline one. The bytes stay until the next call.
    ///
    /// [`Fault::Unsupported`] says why a whole file cannot be rewritten, [`Fault::Corrupt`] what is
    /// wrong with a damaged one.
    pub fn recut(&mut self, bytes: &[u8], segment: Option<u16>) -> Result<&[u8], Fault> {
        let frame = Frame::read(bytes)?;
        let interval = frame.interval(segment.map(usize::from));
        if let Err(fault) = self.transform(bytes, &frame, interval) {
            // A fatal error poisons the handle for every later file.
            // SAFETY: the handle came from tj3Init and is replaced at once.
            unsafe { turbo::tj3Destroy(self.handle) };
            self.handle = std::ptr::null_mut();
            self.handle = start().map_err(|error| Fault::Io(std::io::Error::other(error)))?;
            return Err(fault);
        }
        self.assemble(bytes, &frame)?;
        Ok(&self.output)
    }

    /// What the last call that succeeded gave.
    #[must_use]
    pub fn last(&self) -> &[u8] {
        &self.output
    }

    /// Bytes that a rewrite of an image takes at most, the encoded bytes themselves not counted:
    /// two bytes for each coefficient, and what is written.
    pub fn memory(bytes: &[u8]) -> usize {
        match Frame::read(bytes) {
            // Padded to whole units of at most 32 x 16; three components at full size at most.
            Ok(frame) => {
                let pixels = (frame.width + 32).saturating_mul(frame.height + 32);
                pixels.saturating_mul(frame.components * 4).saturating_add(bytes.len() * 3)
            }
            Err(_) => 0,
        }
    }

    /// Has the library code the coefficients into `self.coded`.
    fn transform(&mut self, bytes: &[u8], frame: &Frame, interval: usize) -> Result<(), Fault> {
        let limit = Recutter::memory(bytes) / (1 << 20) + 1;
        for (parameter, value) in [
            (turbo::TJPARAM_TJPARAM_SCANLIMIT, MAX_SCANS),
            (turbo::TJPARAM_TJPARAM_MAXMEMORY, limit.min(i32::MAX as usize) as c_int),
            (turbo::TJPARAM_TJPARAM_RESTARTBLOCKS, interval as c_int),
            // The standard's codes rather than ones that fit the file: those save 4 % of the bytes,
            // and a decoder would have to build tables for each file, which takes back most of what
            // is gained (5 % of all instructions at 500 x 375).
            (turbo::TJPARAM_TJPARAM_OPTIMIZE, 0),
            // The output buffer is ours: the library must fail rather than replace it.
            (turbo::TJPARAM_TJPARAM_NOREALLOC, 1),
        ] {
            // SAFETY: the handle is live; wrong values are answered with an error code.
            if unsafe { turbo::tj3Set(self.handle, parameter as c_int, value) } != 0 {
                return Err(self.failure());
            }
        }
        // SAFETY: takes plain numbers; 0 means that the size is not representable.
        let worst = unsafe {
            turbo::tj3JPEGBufSize(
                frame.width as c_int,
                frame.height as c_int,
                turbo::TJSAMP_TJSAMP_444,
            )
        } as usize;
        // Beyond a usual file: a marker and padding for each segment, all of 8 x 8 pixels.
        let worst = worst + (frame.width / 8 + 1) * (frame.height / 8 + 1) * 4;
        if self.coded.len() < worst {
            self.coded.resize(worst, 0);
        }
        let mut buffer = self.coded.as_mut_ptr();
        let mut size = self.coded.len() as turbo::size_t;
        let transform = turbo::tjtransform {
            r: turbo::tjregion { x: 0, y: 0, w: 0, h: 0 },
            op: turbo::TJXOP_TJXOP_NONE as c_int,
            options: turbo::TJXOPT_COPYNONE as c_int,
            data: std::ptr::null_mut(),
            customFilter: None,
        };
        // SAFETY: `bytes` outlives the call, which reads no more than its length. `buffer` points
        // to `size` writable bytes, and NOREALLOC keeps the library from freeing or replacing it.
        // The one transform lives until the call is over. The handle is live and `&mut`.
        let status = unsafe {
            turbo::tj3Transform(
                self.handle,
                bytes.as_ptr(),
                bytes.len() as turbo::size_t,
                1,
                &mut buffer,
                &mut size,
                &transform,
            )
        };
        if status != 0 {
            return Err(self.failure());
        }
        self.coded.truncate(size as usize);
        Ok(())
    }

    /// The file's own header with the tables and the data that the library wrote.
    fn assemble(&mut self, bytes: &[u8], frame: &Frame) -> Result<(), Fault> {
        let odd = || Fault::corrupt("JPEG", "was rewritten into something that is no JPEG");
        let output = &mut self.output;
        output.clear();
        output.extend_from_slice(&bytes[..2]);
        let new = segments(&self.coded)?;
        let find = |marker: u8| new.headers.iter().filter(move |(found, _)| *found == marker);
        for (marker, range) in &segments(bytes)?.headers {
            match marker {
                // The file's own tables do not fit the new data.
                0xc4 | 0xdd => {}
                0xc0..=0xc2 if frame.progressive => {
                    let found = find(0xc0).chain(find(0xc1)).next().ok_or_else(odd)?;
                    output.extend_from_slice(&self.coded[found.1.clone()]);
                }
                0xda => {}
                _ => output.extend_from_slice(&bytes[range.clone()]),
            }
        }
        for (_, range) in find(0xc4).chain(find(0xdd)).chain(find(0xda)) {
            output.extend_from_slice(&self.coded[range.clone()]);
        }
        output.extend_from_slice(self.coded.get(new.data..).ok_or_else(odd)?);
        output.extend_from_slice(&bytes[frame.end..]);
        Ok(())
    }

    fn failure(&self) -> Fault {
        // SAFETY: the handle is live; the text is a NUL-terminated string inside it and is copied
        // before any other call could change it.
        let reason = unsafe { CStr::from_ptr(turbo::tj3GetErrorStr(self.handle)) };
        Fault::corrupt("JPEG", reason.to_string_lossy())
    }
}

impl Drop for Recutter {
    fn drop(&mut self) {
        // SAFETY: the handle came from tj3Init, or is null, which the library ignores; nobody uses
        // it after this.
        unsafe { turbo::tj3Destroy(self.handle) }
    }
}

fn start() -> Result<turbo::tjhandle> {
    // SAFETY: takes a plain number; a null result is checked below.
    let handle = unsafe { turbo::tj3Init(turbo::TJINIT_TJINIT_TRANSFORM as c_int) };
    if handle.is_null() {
        return Err(Error::System("no memory for a JPEG transformation".to_owned()));
    }
    Ok(handle)
}

/// What matters of a file's frame.
struct Frame {
    width: usize,
    height: usize,
    components: usize,
    unit_width: usize,
    progressive: bool,
    /// One past the end marker.
    end: usize,
}

impl Frame {
    /// Reads the frame, and refuses what cannot be cut or gains nothing by it.
    fn read(bytes: &[u8]) -> Result<Frame, Fault> {
        let unsupported = |reason: &str| Err(Fault::Unsupported(reason.to_owned()));
        if !bytes.starts_with(&[0xff, 0xd8, 0xff]) {
            return unsupported("not a JPEG");
        }
        let read = segments(bytes)?;
        let is_frame =
            |marker: u8| (0xc0..=0xcf).contains(&marker) && !matches!(marker, 0xc4 | 0xc8 | 0xcc);
        let mut frames = read.headers.iter().filter(|(marker, _)| is_frame(*marker));
        let (Some((marker, range)), None) = (frames.next(), frames.next()) else {
            return Err(Fault::corrupt("JPEG", "no frame header, or several"));
        };
        match marker {
            0xc0..=0xc2 => {}
            0xc3 => return unsupported("lossless JPEG"),
            0xc9..=0xcb => return unsupported("arithmetic coding"),
            _ => return unsupported("hierarchical JPEG"),
        }
        let body = &bytes[range.clone()][4..];
        let Some((&[precision, h1, h0, w1, w0, components], rest)) = body.split_first_chunk()
        else {
            return Err(Fault::corrupt("JPEG", "frame header too short"));
        };
        if precision != 8 {
            return unsupported("12 bits per sample");
        }
        let (entries, _) = rest.as_chunks::<3>();
        let factors: Vec<u8> = entries.iter().map(|entry| entry[1]).collect();
        // One after the other as (across, down): 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1.
        let unit_width = match (components, factors.as_slice()) {
            (1, [_]) => 8,
            (3, [first @ (0x11 | 0x21 | 0x22 | 0x12 | 0x41), 0x11, 0x11]) => {
                8 * usize::from(first >> 4)
            }
            (4, _) => return unsupported("four components (CMYK)"),
            _ => return unsupported("odd sampling of the components"),
        };
        let side = |high, low| usize::from(u16::from_be_bytes([high, low]));
        let (height, width) = (side(h1, h0), side(w1, w0));
        if height == 0 || width == 0 {
            return unsupported("a size that is only known at the end");
        }
        Ok(Frame {
            width,
            height,
            components: usize::from(components),
            unit_width,
            progressive: *marker == 0xc2 || read.scans > 1,
            end: read.end,
        })
    }

    /// The number of units that divides a row and comes nearest to `wanted`, by their ratio.
    fn interval(&self, wanted: Option<usize>) -> usize {
        let units = self.width.div_ceil(self.unit_width);
        let wanted = wanted.unwrap_or((units + COLUMNS / 2) / COLUMNS).max(1);
        let ratio = |n: usize| n.max(wanted) as f64 / n.min(wanted) as f64;
        let divisors = (1..=units).filter(|n| units.is_multiple_of(*n));
        divisors.min_by(|a, b| ratio(*a).total_cmp(&ratio(*b))).unwrap_or(units)
    }
}

/// The parts of a file: what lies before the first scan's data, and where it all ends.
struct Segments {
    /// Marker and range of bytes, the first scan's header being the last.
    headers: Vec<(u8, std::ops::Range<usize>)>,
    /// Where the first scan's data begin.
    data: usize,
    scans: usize,
    /// One past the end marker.
    end: usize,
}

fn segments(bytes: &[u8]) -> Result<Segments, Fault> {
    let corrupt = |reason: &str, at: usize| Fault::Corrupt {
        format: "JPEG",
        reason: reason.to_owned(),
        offset: Some(at as u64),
    };
    let mut found = Segments { headers: Vec::new(), data: 0, scans: 0, end: 0 };
    let mut at = 2;
    loop {
        let Some(&[0xff, marker]) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else {
            return Err(corrupt("no marker where one should be", at));
        };
        if marker == 0xd9 {
            if found.scans == 0 {
                return Err(corrupt("the file holds no image data", at));
            }
            found.end = at + 2;
            return Ok(found);
        }
        let length =
            bytes.get(at + 2..at + 4).map(|b| usize::from(u16::from_be_bytes([b[0], b[1]])));
        let end = length.filter(|length| *length >= 2).map(|length| at + 2 + length);
        let Some(end) = end.filter(|end| *end <= bytes.len() && marker >= 0xc0) else {
            return Err(corrupt("the file ends inside its header", at));
        };
        if found.scans == 0 {
            found.headers.push((marker, at..end));
        } else if !matches!(marker, 0xc4 | 0xda | 0xdd) {
            // Between scans, where it would be lost.
            return Err(Fault::Unsupported("metadata between scans".to_owned()));
        }
        at = end;
        if marker == 0xda {
            if found.scans == 0 {
                found.data = end;
            }
            found.scans += 1;
            at = end_of_scan(bytes, end).ok_or_else(|| corrupt("truncated", bytes.len()))?;
        }
    }
}

/// Where the first marker after a scan's data lies.
fn end_of_scan(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += memchr::memchr(0xff, bytes.get(at..)?)?;
        match *bytes.get(at + 1)? {
            0 | 0xd0..=0xd7 => at += 2,
            0xff => at += 1,
            _ => return Some(at),
        }
    }
}
