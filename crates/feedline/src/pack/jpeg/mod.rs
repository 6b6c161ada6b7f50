//! RGB bytes to JPEG.

#[cfg(not(feature = "libjpeg-turbo"))]
pub(super) mod absent;
#[cfg(feature = "libjpeg-turbo")]
mod encoder;

#[cfg(not(feature = "libjpeg-turbo"))]
pub use absent::Encoder;
#[cfg(feature = "libjpeg-turbo")]
pub use encoder::Encoder;

/// How densely colour is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Subsampling {
    /// One colour sample for 2x2 pixels, as cameras and the web write.
    #[default]
    Half,
    /// One colour sample for 2x1 pixels (4:2:2), as many cameras write.
    Horizontal,
    /// One colour sample for 1x2 pixels (4:4:0): a 4:2:2 photo that was turned.
    Vertical,
    /// A colour sample for every pixel (4:4:4).
    Full,
    /// No colour: one component.
    Gray,
}

/// The largest side that JPEG's 16-bit size fields and libjpeg-turbo allow.
pub(crate) const MAX_SIDE: usize = 65500;
