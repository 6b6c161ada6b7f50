//! JPEG through TurboJPEG, with Pillow's settings: accurate DCT and smooth upsampling.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use turbojpeg_sys as tj;

use super::color::{self, Raw};
use super::{DecodeOptions, Header, jpeg_header};
use crate::error::Fault;

/// Scans of a progressive file beyond which it is taken for an attack: encoders write about 10.
const MAX_SCANS: c_int = 100;

/// A TurboJPEG instance, made when first needed and kept from image to image.
#[derive(Default)]
pub(super) struct Handle {
    instance: Option<Instance>,
}

struct Instance(NonNull<c_void>);

// SAFETY: an instance has no ties to the thread that made it; `&mut` keeps it to one at a time.
unsafe impl Send for Instance {}

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

    fn is_warning(&self) -> bool {
        // SAFETY: the instance is alive.
        (unsafe { tj::tj3GetErrorCode(self.0.as_ptr()) }) == tj::TJERR_TJERR_WARNING as c_int
    }

    /// `Ok(Some(_))` is a warning: everything was done, but the data were not all right.
    fn outcome(&self, status: c_int) -> Result<Option<String>, Fault> {
        match status {
            0 => Ok(None),
            _ if self.is_warning() => Ok(Some(self.message())),
            _ => Err(Fault::corrupt("JPEG", self.message())),
        }
    }

    fn read_header(&mut self, bytes: &[u8]) -> Result<Option<String>, Fault> {
        // SAFETY: `bytes` outlives the call, which reads no more than its length.
        let status = unsafe {
            tj::tj3DecompressHeader(self.0.as_ptr(), bytes.as_ptr(), bytes.len() as tj::size_t)
        };
        self.outcome(status)
    }

    /// Writes pixels of `format`, `size` bytes each; the size is the one that the header gave.
    fn decompress(
        &mut self,
        bytes: &[u8],
        (height, width): (usize, usize),
        (format, size): (tj::TJPF, usize),
        out: &mut [u8],
    ) -> Result<Option<String>, Fault> {
        let declared =
            (self.get(tj::TJPARAM_TJPARAM_JPEGHEIGHT), self.get(tj::TJPARAM_TJPARAM_JPEGWIDTH));
        let fits =
            usize::try_from(declared.0) == Ok(height) && usize::try_from(declared.1) == Ok(width);
        if !fits || out.len() < height * width * size {
            return Err(Fault::corrupt("JPEG", "contradictory frame headers"));
        }
        // SAFETY: `bytes` and `out` outlive the call. The library writes `height` rows of `width`
        // pixels of `size` bytes, without gaps (pitch 0), for which `out` has room as checked.
        let status = unsafe {
            tj::tj3Decompress8(
                self.0.as_ptr(),
                bytes.as_ptr(),
                bytes.len() as tj::size_t,
                out.as_mut_ptr(),
                0,
                format as c_int,
            )
        };
        self.outcome(status)
    }
}

impl Handle {
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        header: &Header,
        options: &DecodeOptions,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        let markers = jpeg_header::read(bytes)?;
        let raw = markers.raw(options.mode);
        let mut instance = match self.instance.take() {
            Some(instance) => instance,
            None => Instance::new()?,
        };
        // A fatal error poisons the instance for every later image: it is put back only when
        // none came up.
        let warning = decompress(&mut instance, bytes, header, options, raw, out)?;
        self.instance = Some(instance);
        if let Some(warning) = warning
            && !options.allow_truncated
        {
            if !markers.is_ended(bytes) {
                return Err(Fault::Corrupt {
                    format: "JPEG",
                    reason: format!("truncated: the data end before the image does ({warning})"),
                    offset: Some(bytes.len() as u64),
                });
            }
            if loses_pixels(&warning) {
                return Err(Fault::corrupt("JPEG", warning));
            }
        }
        color::reduce(out, header.height * header.width, raw, options.mode);
        Ok(())
    }
}

fn decompress(
    instance: &mut Instance,
    bytes: &[u8],
    header: &Header,
    options: &DecodeOptions,
    raw: Raw,
    out: &mut [u8],
) -> Result<Option<String>, Fault> {
    instance.set(tj::TJPARAM_TJPARAM_SCANLIMIT, MAX_SCANS)?;
    instance
        .set(tj::TJPARAM_TJPARAM_MAXPIXELS, options.max_pixels.min(i32::MAX as u64) as c_int)?;
    instance.set(
        tj::TJPARAM_TJPARAM_MAXMEMORY,
        (header.memory / (1 << 20) + 1).min(i32::MAX as usize) as c_int,
    )?;
    let first = instance.read_header(bytes)?;
    let format = match raw {
        Raw::L8 => tj::TJPF_TJPF_GRAY,
        Raw::InvertedCmyk => tj::TJPF_TJPF_CMYK,
        _ => tj::TJPF_TJPF_RGB,
    };
    let second = instance.decompress(bytes, header.stored, (format, raw.size()), out)?;
    Ok(second.or(first))
}

/// Warnings after which the picture is whole; libjpeg has no others that leave it so. Pillow
/// shows none at all, and photos with stray bytes between segments are common.
fn loses_pixels(warning: &str) -> bool {
    const HARMLESS: [&str; 5] = [
        "extraneous bytes",
        "Unknown Adobe color transform",
        "JFIF",
        "ICC",
        "Invalid SOS parameters",
    ];
    !HARMLESS.iter().any(|text| warning.contains(text))
}
