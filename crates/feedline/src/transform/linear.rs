//! What pointwise ops (`ToDtype`, `Normalize`) do, gathered into one.

use crate::image::{PixelType, Pointwise};
use crate::sample::DType;

/// `x * scale[c] + bias[c]`, to be rounded to `dtype`; in double precision while it is composed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Linear {
    pub(super) scale: [f64; 4],
    pub(super) bias: [f64; 4],
    pub(super) dtype: DType,
}

impl Linear {
    pub(super) fn cast(dtype: DType) -> Self {
        Linear { scale: [1.0; 4], bias: [0.0; 4], dtype }
    }

    pub(super) fn is_cast(&self) -> bool {
        self.scale == [1.0; 4] && self.bias == [0.0; 4]
    }

    /// True when elements of this type stay as they are.
    pub(super) fn keeps(&self, pixel: PixelType) -> bool {
        self.is_cast() && held(self.dtype) == pixel
    }

    pub(super) fn then(&self, next: &Linear) -> Linear {
        let mut both = *next;
        for c in 0..4 {
            both.scale[c] = self.scale[c] * next.scale[c];
            both.bias[c] = self.bias[c] * next.scale[c] + next.bias[c];
        }
        both
    }

    pub(super) fn pointwise(&self, dtype: DType) -> Pointwise {
        Pointwise { scale: self.scale.map(|x| x as f32), bias: self.bias.map(|x| x as f32), dtype }
    }
}

/// The type that elements have between ops.
pub(super) fn held(dtype: DType) -> PixelType {
    if dtype == DType::U8 { PixelType::U8 } else { PixelType::F32 }
}

pub(super) fn element(pixel: PixelType) -> DType {
    match pixel {
        PixelType::U8 => DType::U8,
        PixelType::F32 => DType::F32,
    }
}
