//! RGB bytes to JPEG, through libjpeg-turbo.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};

use turbojpeg_sys as turbo;

use super::{MAX_SIDE, Subsampling};
use crate::error::{Error, Result};

/// A JPEG encoder that keeps its handle and its output buffer from image to image.
///
/// ```
/// use feedline::internals::pack::{Encoder, Subsampling};
/// let mut encoder = Encoder::new(90, Subsampling::Half, false)?;
/// let bytes = encoder.encode(&[128; 16 * 8 * 3], 16, 8)?;
/// assert_eq!(bytes[..2], [0xff, 0xd8]);
/// # Ok::<(), feedline::Error>(())
/// ```
#[derive(Debug)]
pub struct Encoder {
    handle: turbo::tjhandle,
    subsampling: turbo::TJSAMP,
    output: Vec<u8>,
}

// SAFETY: a TurboJPEG handle has no ties to the thread that made it; it only must not be used by
// two at once, and every use goes through `&mut self`.
unsafe impl Send for Encoder {}

impl Encoder {
    /// An encoder for `quality` 1 to 100.
    pub fn new(quality: u8, subsampling: Subsampling, progressive: bool) -> Result<Self> {
        // SAFETY: takes a plain number; a null result is checked below.
        let handle = unsafe { turbo::tj3Init(turbo::TJINIT_TJINIT_COMPRESS as c_int) };
        if handle.is_null() {
            return Err(Error::System("no memory for a JPEG encoder".to_owned()));
        }
        let subsampling = match subsampling {
            Subsampling::Half => turbo::TJSAMP_TJSAMP_420,
            Subsampling::Horizontal => turbo::TJSAMP_TJSAMP_422,
            Subsampling::Vertical => turbo::TJSAMP_TJSAMP_440,
            Subsampling::Full => turbo::TJSAMP_TJSAMP_444,
            Subsampling::Gray => turbo::TJSAMP_TJSAMP_GRAY,
        };
        let mut encoder = Encoder { handle, subsampling, output: Vec::new() };
        encoder.set(turbo::TJPARAM_TJPARAM_QUALITY, c_int::from(quality))?;
        encoder.set(turbo::TJPARAM_TJPARAM_SUBSAMP, subsampling)?;
        encoder.set(turbo::TJPARAM_TJPARAM_PROGRESSIVE, c_int::from(progressive))?;
        // The output buffer is ours: the library must fail rather than replace it.
        encoder.set(turbo::TJPARAM_TJPARAM_NOREALLOC, 1)?;
        Ok(encoder)
    }

    /// Writes a restart marker after every so many units (MCUs); 0 writes none.
    pub fn restart_interval(&mut self, units: u16) -> Result<()> {
        self.set(turbo::TJPARAM_TJPARAM_RESTARTBLOCKS, c_int::from(units))
    }

    /// The JPEG of `pixels`: `height` rows of `width` red, green, blue bytes. The bytes stay
    /// until the next call.
    pub fn encode(&mut self, pixels: &[u8], width: usize, height: usize) -> Result<&[u8]> {
        let sides = 1..=MAX_SIDE;
        if !sides.contains(&width) || !sides.contains(&height) {
            return Err(Error::System(format!(
                "a JPEG cannot be {width}x{height}: sides are 1 to {MAX_SIDE}"
            )));
        }
        // Cannot overflow: both factors are at most 65500.
        let expected = width as u64 * height as u64 * 3;
        if pixels.len() as u64 != expected {
            return Err(Error::System(format!(
                "{width}x{height} RGB pixels are {expected} bytes, not {}",
                pixels.len()
            )));
        }
        let (columns, rows) = (width as c_int, height as c_int);
        // SAFETY: takes plain numbers; 0 means that the size is not representable.
        let worst = unsafe { turbo::tj3JPEGBufSize(columns, rows, self.subsampling) };
        if worst == 0 {
            return Err(Error::System(format!(
                "a JPEG of {width}x{height} pixels may be too large"
            )));
        }
        let worst = worst as usize;
        if self.output.len() < worst {
            self.output.resize(worst, 0);
        }
        let mut buffer = self.output.as_mut_ptr();
        let mut size = self.output.len() as turbo::size_t;
        // SAFETY: `pixels` holds height * width * 3 bytes with rows `width * 3` apart (pitch 0), as
        // checked above. `buffer` points to `size` writable bytes, at least tj3JPEGBufSize, and
        // NOREALLOC keeps the library from freeing or replacing it. The handle is live and `&mut`.
        let status = unsafe {
            turbo::tj3Compress8(
                self.handle,
                pixels.as_ptr(),
                columns,
                0,
                rows,
                turbo::TJPF_TJPF_RGB,
                &mut buffer,
                &mut size,
            )
        };
        if status != 0 {
            return Err(self.failure());
        }
        let size = size as usize;
        self.output
            .get(..size)
            .ok_or_else(|| Error::System("the JPEG encoder overran its buffer".to_owned()))
    }

    fn set(&mut self, parameter: turbo::TJPARAM, value: c_int) -> Result<()> {
        // SAFETY: the handle is live; wrong values are answered with an error code.
        match unsafe { turbo::tj3Set(self.handle, parameter as c_int, value) } {
            0 => Ok(()),
            _ => Err(self.failure()),
        }
    }

    fn failure(&self) -> Error {
        // SAFETY: the handle is live; the text is a NUL-terminated string inside it and is copied
        // before any other call could change it.
        let reason = unsafe { CStr::from_ptr(turbo::tj3GetErrorStr(self.handle)) };
        Error::System(format!("cannot encode a JPEG: {}", reason.to_string_lossy()))
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        // SAFETY: the handle came from tj3Init and nobody uses it after this.
        unsafe { turbo::tj3Destroy(self.handle) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffer_is_reused_and_sizes_are_checked() -> Result<()> {
        let mut encoder = Encoder::new(95, Subsampling::Full, true)?;
        let large = encoder.encode(&vec![7; 64 * 48 * 3], 64, 48)?.to_vec();
        let small = encoder.encode(&[200; 3], 1, 1)?.to_vec();
        assert!(small.len() < large.len());
        assert!(large.ends_with(&[0xff, 0xd9]) && small.ends_with(&[0xff, 0xd9]));
        assert_eq!(encoder.encode(&vec![7; 64 * 48 * 3], 64, 48)?, large);
        assert!(encoder.encode(&[0; 5], 2, 1).is_err());
        assert!(encoder.encode(&[], 0, 1).is_err());
        assert!(encoder.encode(&[], MAX_SIDE + 1, 1).is_err());
        assert!(Encoder::new(0, Subsampling::Half, false).is_err());
        Ok(())
    }
}
