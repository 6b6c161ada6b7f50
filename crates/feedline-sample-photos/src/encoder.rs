//! RGB bytes to JPEG with one colour sample for 2x2 pixels, through libjpeg-turbo.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};

use turbojpeg_sys as turbo;

use crate::Error;

/// The largest side that JPEG's 16-bit size fields and libjpeg-turbo allow.
const MAX_SIDE: usize = 65500;

/// How densely colour is kept.
const SUBSAMPLING: turbo::TJSAMP = turbo::TJSAMP_TJSAMP_420;

/// An encoder that keeps its handle and its output buffer from photo to photo.
#[derive(Debug)]
pub(crate) struct Encoder {
    handle: turbo::tjhandle,
    output: Vec<u8>,
}

impl Encoder {
    /// An encoder for `quality` 1 to 100.
    pub(crate) fn new(quality: u8) -> Result<Self, Error> {
        // SAFETY: takes a plain number; a null result is checked below.
        let handle = unsafe { turbo::tj3Init(turbo::TJINIT_TJINIT_COMPRESS as c_int) };
        if handle.is_null() {
            return Err(Error::Encoder("no memory for it".to_owned()));
        }
        let mut encoder = Encoder { handle, output: Vec::new() };
        encoder.set(turbo::TJPARAM_TJPARAM_QUALITY, c_int::from(quality))?;
        encoder.set(turbo::TJPARAM_TJPARAM_SUBSAMP, SUBSAMPLING)?;
        // The output buffer is ours: the library must fail rather than replace it.
        encoder.set(turbo::TJPARAM_TJPARAM_NOREALLOC, 1)?;
        Ok(encoder)
    }

    /// The JPEG of `pixels`: `height` rows of `width` red, green, blue bytes. The bytes stay
    /// until the next call.
    pub(crate) fn encode(
        &mut self,
        pixels: &[u8],
        width: usize,
        height: usize,
    ) -> Result<&[u8], Error> {
        let sides = 1..=MAX_SIDE;
        // Cannot overflow once both factors are at most 65500.
        let is_whole = sides.contains(&width)
            && sides.contains(&height)
            && pixels.len() as u64 == width as u64 * height as u64 * 3;
        if !is_whole {
            return Err(Error::Encoder(format!(
                "{} bytes are no RGB image of {width}x{height} pixels",
                pixels.len()
            )));
        }
        let (columns, rows) = (width as c_int, height as c_int);
        // SAFETY: takes plain numbers; 0 means that the size is not representable.
        let worst = unsafe { turbo::tj3JPEGBufSize(columns, rows, SUBSAMPLING) };
        if worst == 0 {
            return Err(Error::Encoder(format!("{width}x{height} pixels may be too many")));
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
        let made = self.output.get(..size as usize);
        made.ok_or_else(|| Error::Encoder("it overran its buffer".to_owned()))
    }

    fn set(&mut self, parameter: turbo::TJPARAM, value: c_int) -> Result<(), Error> {
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
        Error::Encoder(reason.to_string_lossy().into_owned())
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
    fn the_buffer_is_reused_and_sizes_are_checked() -> Result<(), Error> {
        let mut encoder = Encoder::new(95)?;
        let large = encoder.encode(&vec![7; 64 * 48 * 3], 64, 48)?.to_vec();
        let small = encoder.encode(&[200; 3], 1, 1)?.to_vec();
        assert!(small.len() < large.len());
        assert!(large.ends_with(&[0xff, 0xd9]) && small.ends_with(&[0xff, 0xd9]));
        assert_eq!(encoder.encode(&vec![7; 64 * 48 * 3], 64, 48)?, large);
        assert!(encoder.encode(&[0; 5], 2, 1).is_err());
        assert!(encoder.encode(&[], 0, 1).is_err());
        assert!(encoder.encode(&[], MAX_SIDE + 1, 1).is_err());
        assert!(Encoder::new(0).is_err());
        Ok(())
    }
}
