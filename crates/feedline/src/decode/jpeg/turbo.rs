//! libjpeg-turbo through TurboJPEG, with Pillow's settings: accurate DCT and smooth upsampling.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use turbojpeg_sys as tj;

use super::Warning;
use crate::decode::color::Raw;
use crate::decode::{DecodeOptions, Header, jpeg_header};
use crate::error::Fault;
use crate::image::Region;

/// Pixels around a part that are decoded with it, so that the part itself is exact.
const MARGIN: usize = 2;

/// How libjpeg's warnings begin; whatever else it says ends the decoding.
const WARNINGS: [&str; 7] = [
    "Application transferred too many scanlines",
    "Corrupt JPEG data:",
    "Inconsistent progression sequence",
    "Invalid SOS parameters",
    "Premature end of JPEG file",
    "Unknown Adobe color transform",
    "Warning: unknown JFIF revision",
];

/// What stands in its errors about limits of ours, which no option lifts.
const LIMITS: [&str; 2] = ["emory", "scans"];

/// What TurboJPEG calls the whole image.
const UNCROPPED: Region = Region { top: 0, left: 0, height: 0, width: 0 };

/// TurboJPEG's decoder of one image. It is never used for a second one: libjpeg keeps quantisation
/// and Huffman tables from file to file (for streams whose tables come once), so that a file
/// without them would be decoded with another image's; and a fatal error spoils it for good.
struct Instance(NonNull<c_void>);

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: made by `tj3Init` and destroyed only here.
        unsafe { tj::tj3Destroy(self.0.as_ptr()) }
    }
}

impl Instance {
    fn new() -> Result<Self, Fault> {
        // SAFETY: takes no pointers; null is checked.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        NonNull::new(handle).map(Instance).ok_or_else(|| {
            Fault::Io(std::io::Error::new(
                std::io::ErrorKind::OutOfMemory,
                "TurboJPEG cannot be started",
            ))
        })
    }

    fn set(&mut self, parameter: tj::TJPARAM, value: c_int) -> Result<(), Fault> {
        // SAFETY: the instance is alive.
        match unsafe { tj::tj3Set(self.0.as_ptr(), parameter as c_int, value) } {
            0 => Ok(()),
            _ => Err(Fault::corrupt("JPEG", self.message())),
        }
    }

    fn get(&self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: the instance is alive.
        unsafe { tj::tj3Get(self.0.as_ptr(), parameter as c_int) }
    }

    fn message(&self) -> String {
        // SAFETY: the instance is alive; the text is the instance's own and ends with a zero.
        unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.0.as_ptr())) }
            .to_string_lossy()
            .into_owned()
    }

    fn has_warned(&self) -> bool {
        // SAFETY: the instance is alive.
        (unsafe { tj::tj3GetErrorCode(self.0.as_ptr()) }) == tj::TJERR_TJERR_WARNING as c_int
    }

    /// `Ok(Some(_))` is a warning. TurboJPEG calls an error that follows a warning a warning too; the
    /// text says which of them it is.
    fn outcome(&self, status: c_int) -> Result<Option<Warning>, Fault> {
        let text = if status == 0 { return Ok(None) } else { self.message() };
        let is_limit = LIMITS.iter().any(|part| text.contains(part));
        if WARNINGS.iter().any(|start| text.starts_with(start)) {
            Ok(Some(Warning { text, is_end: false }))
        } else if self.has_warned() && !is_limit {
            Ok(Some(Warning { text, is_end: true }))
        } else {
            Err(Fault::corrupt("JPEG", text))
        }
    }

    fn read_header(&mut self, bytes: &[u8]) -> Result<Option<Warning>, Fault> {
        // SAFETY: `bytes` outlives the call, which reads no more than its length.
        let status = unsafe {
            tj::tj3DecompressHeader(self.0.as_ptr(), bytes.as_ptr(), bytes.len() as tj::size_t)
        };
        self.outcome(status)
    }

    /// The part of the image to decode so that every pixel of `part` is as in a full decode; all
    /// of the image where nothing is to be gained.
    fn widened(&self, part: Region, height: usize, width: usize) -> Option<Region> {
        // Columns can only be left out in whole units of the coarsest component.
        let unit = match self.get(tj::TJPARAM_TJPARAM_SUBSAMP) {
            tj::TJSAMP_TJSAMP_444 | tj::TJSAMP_TJSAMP_GRAY | tj::TJSAMP_TJSAMP_440 => 8,
            tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => 16,
            tj::TJSAMP_TJSAMP_411 => 32,
            _ => return None,
        };
        // Smooth upsampling looks at the neighbouring colour sample, which covers two pixels.
        let left = part.left.saturating_sub(MARGIN) / unit * unit;
        let top = part.top.saturating_sub(MARGIN);
        let right = (part.left + part.width + MARGIN).min(width);
        let bottom = (part.top + part.height + MARGIN).min(height);
        Some(Region { top, left, height: bottom - top, width: right - left })
    }

    fn set_part(&mut self, part: Region) -> Result<(), Fault> {
        let [x, y, w, h] = [part.left, part.top, part.width, part.height].map(|n| n as c_int);
        // SAFETY: the instance is alive and its header was read; the region is a plain value.
        match unsafe { tj::tj3SetCroppingRegion(self.0.as_ptr(), tj::tjregion { x, y, w, h }) } {
            0 => Ok(()),
            _ => Err(Fault::corrupt("JPEG", self.message())),
        }
    }

    /// Writes pixels of `format`, `size` bytes each; the size is the one that the header gave.
    fn decompress(
        &mut self,
        bytes: &[u8],
        (height, width): (usize, usize),
        (format, size): (tj::TJPF, usize),
        part: Option<Region>,
        out: &mut [u8],
    ) -> Result<Option<Warning>, Fault> {
        let declared =
            (self.get(tj::TJPARAM_TJPARAM_JPEGHEIGHT), self.get(tj::TJPARAM_TJPARAM_JPEGWIDTH));
        let fits =
            usize::try_from(declared.0) == Ok(height) && usize::try_from(declared.1) == Ok(width);
        if !fits || out.len() < height * width * size {
            return Err(Fault::corrupt("JPEG", "contradictory frame headers"));
        }
        let whole = Region { top: 0, left: 0, height, width };
        let inside = |part: &Region| {
            part.top + part.height <= height && part.left + part.width <= width && part.height > 0
        };
        let part = part.filter(inside).and_then(|part| self.widened(part, height, width));
        let part = part.unwrap_or(whole);
        self.set_part(if part == whole { UNCROPPED } else { part })?;
        let start = (part.top * width + part.left) * size;
        // SAFETY: `bytes` and `out` outlive the call. The library writes `part.height` rows of
        // `part.width` pixels of `size` bytes, a pitch of `width` pixels apart. From the part's
        // first pixel they all lie inside `height` rows of `width`, which `out` has room for.
        let status = unsafe {
            tj::tj3Decompress8(
                self.0.as_ptr(),
                bytes.as_ptr(),
                bytes.len() as tj::size_t,
                out[start..].as_mut_ptr(),
                (width * size) as c_int,
                format as c_int,
            )
        };
        self.outcome(status)
    }
}

/// Decodes `part`, or the whole image, into its place in `out`.
pub(super) fn decompress(
    bytes: &[u8],
    header: &Header,
    options: &DecodeOptions,
    raw: Raw,
    part: Option<Region>,
    out: &mut [u8],
) -> Result<Option<Warning>, Fault> {
    let mut instance = Instance::new()?;
    instance.set(tj::TJPARAM_TJPARAM_SCANLIMIT, jpeg_header::MAX_SCANS as c_int)?;
    // No profile is looked at, so none is kept in memory.
    instance.set(tj::TJPARAM_TJPARAM_SAVEMARKERS, 0)?;
    instance
        .set(tj::TJPARAM_TJPARAM_MAXPIXELS, options.max_pixels.min(i32::MAX as u64) as c_int)?;
    instance.set(
        tj::TJPARAM_TJPARAM_MAXMEMORY,
        (header.memory / (1 << 20) + 1).min(i32::MAX as usize) as c_int,
    )?;
    let first = instance.read_header(bytes)?;
    if let Some(Warning { text, is_end: true }) = first {
        return Err(Fault::corrupt("JPEG", text));
    }
    let format = match raw {
        Raw::L8 => tj::TJPF_TJPF_GRAY,
        Raw::InvertedCmyk => tj::TJPF_TJPF_CMYK,
        _ => tj::TJPF_TJPF_RGB,
    };
    let second = instance.decompress(bytes, header.stored, (format, raw.size()), part, out)?;
    Ok(second.or(first))
}
