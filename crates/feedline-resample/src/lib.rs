//! Resizes planes of pixels with the kernels of `fast_image_resize`.
//!
//! Those are generic over the type of a pixel and over the precision of its weights, so that they
//! are compiled where they are used: a million lines of LLVM's code, a third of what the engine
//! was. Here they are compiled once, beside the engine's other dependencies, and not again for
//! each build of the engine, its tests and what uses it.

#![allow(unsafe_code)]

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{F32, F32x2, F32x3, F32x4, U8, U8x3};
use fast_image_resize::{
    FilterType, ImageBufferError, ImageView, PixelTrait, ResizeAlg, ResizeError, ResizeOptions,
    Resizer,
};

/// How the pixels around a new one are weighted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// A triangle over one pixel to each side.
    Bilinear,
    /// Catmull and Rom's cubic over two pixels to each side.
    Bicubic,
    /// A windowed sinc over three pixels to each side.
    Lanczos,
}

/// What an element of a pixel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// A byte.
    U8,
    /// A float of four bytes.
    F32,
}

/// Planes of pixels in memory; distances are in elements.
#[derive(Debug, Clone, Copy)]
pub struct Planes<'a> {
    /// The memory that they lie in.
    pub bytes: &'a [u8],
    /// What its elements are.
    pub element: Element,
    /// Elements of a pixel, one to four, which lie beside each other.
    pub components: usize,
    /// Where the first pixel of the first plane lies.
    pub start: usize,
    /// From one plane to the next.
    pub plane: isize,
    /// From one row to the next: a multiple of `components`.
    pub row: isize,
    /// Rows.
    pub height: usize,
    /// Pixels in a row.
    pub width: usize,
}

/// A resize that cannot be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResampleError {
    /// The memory does not hold the pixels that were declared.
    #[error(transparent)]
    Memory(#[from] ImageBufferError),
    /// The sizes cannot be had.
    #[error(transparent)]
    Size(#[from] ResizeError),
    /// There is no memory for a component's own plane.
    #[error(transparent)]
    OutOfMemory(#[from] std::collections::TryReserveError),
}

/// Resizes planes, and keeps the memory of its passes from one to the next.
#[derive(Debug, Default, Clone)]
pub struct Resampler {
    resizer: Resizer,
    /// One component of all pixels, before and after.
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Resampler {
    /// Bytes held for reuse.
    #[must_use]
    pub fn held(&self) -> usize {
        self.resizer.size_of_internal_buffers() + self.before.capacity() + self.after.capacity()
    }

    /// Writes each plane at `height` x `width` pixels to `out`, one after the other.
    ///
    /// With `antialias` the filter grows with the reduction, as in Pillow; without, it looks at the
    /// nearest pixels only, as in OpenCV.
    pub fn resize(
        &mut self,
        from: Planes<'_>,
        (height, width): (usize, usize),
        filter: Filter,
        antialias: bool,
        out: &mut [u8],
    ) -> Result<(), ResampleError> {
        let kernel = match filter {
            Filter::Bilinear => FilterType::Bilinear,
            Filter::Bicubic => FilterType::CatmullRom,
            Filter::Lanczos => FilterType::Lanczos3,
        };
        let algorithm = if antialias {
            ResizeAlg::Convolution(kernel)
        } else {
            ResizeAlg::Interpolation(kernel)
        };
        let options = ResizeOptions::new().resize_alg(algorithm).use_alpha(false);
        let mut pass = Pass { from, height, width, options: &options, resizer: &mut self.resizer };
        match (from.element, from.components) {
            (Element::U8, 1) => pass.run::<U8>(out),
            (Element::U8, 3) => pass.run::<U8x3>(out),
            (Element::U8, _) => pass.by_component(&mut self.before, &mut self.after, out),
            (Element::F32, 1) => pass.run::<F32>(out),
            (Element::F32, 2) => pass.run::<F32x2>(out),
            (Element::F32, 3) => pass.run::<F32x3>(out),
            (Element::F32, _) => pass.run::<F32x4>(out),
        }
    }
}

struct Pass<'a> {
    from: Planes<'a>,
    height: usize,
    width: usize,
    options: &'a ResizeOptions,
    resizer: &'a mut Resizer,
}

impl Pass<'_> {
    /// Bytes with alpha are rare: each component goes through the kernel of single ones, in the same
    /// integers. Kernels of their own would take as long to compile as all the others.
    fn by_component(
        &mut self,
        before: &mut Vec<u8>,
        after: &mut Vec<u8>,
        out: &mut [u8],
    ) -> Result<(), ResampleError> {
        let from = self.from;
        let (size, resized) = (from.height * from.width, self.height * self.width);
        let components = from.components;
        for number in 0..out.len() / (resized * components).max(1) {
            for component in 0..components {
                before.clear();
                before.try_reserve_exact(size)?;
                for y in 0..from.height {
                    let start = from.start as isize
                        + number as isize * from.plane
                        + y as isize * from.row
                        + component as isize;
                    let row = &from.bytes[start as usize..];
                    before.extend(row.iter().step_by(components).take(from.width));
                }
                after.clear();
                after.try_reserve_exact(resized)?;
                after.resize(resized, 0);
                let plane = Planes {
                    bytes: before,
                    components: 1,
                    start: 0,
                    plane: 0,
                    row: from.width as isize,
                    ..from
                };
                Pass { from: plane, resizer: &mut *self.resizer, ..*self }.run::<U8>(after)?;
                let pixels = out[number * resized * components..].iter_mut();
                for (to, value) in pixels.skip(component).step_by(components).zip(&*after) {
                    *to = *value;
                }
            }
        }
        Ok(())
    }

    fn run<P: PixelTrait>(&mut self, out: &mut [u8]) -> Result<(), ResampleError> {
        let from = self.from;
        let elements = P::count_of_components();
        // Interleaved pixels need not start at a multiple of their size.
        let lead = from.start % elements * (P::size() / elements);
        let count = from.bytes.len().saturating_sub(lead) / P::size();
        let bytes = from.bytes.get(lead..lead + count * P::size()).unwrap_or_default();
        let whole = TypedImageRef::<P>::from_buffer(count as u32, 1, bytes)?;
        for (number, out) in
            out.chunks_exact_mut((self.height * self.width * P::size()).max(1)).enumerate()
        {
            let rows = Rows {
                pixels: whole.pixels(),
                start: (from.start as isize + number as isize * from.plane) as usize / elements,
                stride: from.row / elements as isize,
                height: from.height,
                width: from.width,
            };
            let mut to = TypedImage::<P>::from_buffer(self.width as u32, self.height as u32, out)?;
            self.resizer.resize_typed(&rows, &mut to, self.options)?;
        }
        Ok(())
    }
}

/// Rows of pixels that lie `stride` apart, which may be negative.
struct Rows<'a, P> {
    pixels: &'a [P],
    start: usize,
    stride: isize,
    height: usize,
    width: usize,
}

// SAFETY: every row is a slice of exactly `width` pixels.
unsafe impl<P: PixelTrait> ImageView for Rows<'_, P> {
    type Pixel = P;

    fn width(&self) -> u32 {
        self.width as u32
    }

    fn height(&self) -> u32 {
        self.height as u32
    }

    fn iter_rows(&self, start_row: u32) -> impl Iterator<Item = &[P]> {
        (start_row as usize..self.height).map(|y| {
            let start = (self.start as isize + y as isize * self.stride) as usize;
            &self.pixels[start..start + self.width]
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Pixels that look like nothing, the same on every machine.
    fn noise(count: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        std::iter::repeat_with(next).take(count).collect()
    }

    #[test]
    fn every_number_of_components_gives_what_each_component_gives_alone() {
        let (height, width) = (37, 53);
        for components in 1..=4 {
            for (size, filter, antialias) in [
                ((11, 90), Filter::Bilinear, true),
                ((60, 20), Filter::Bicubic, true),
                ((12, 13), Filter::Lanczos, false),
                ((80, 100), Filter::Bilinear, false),
            ] {
                let bytes = noise(height * width * components + 1);
                let from = Planes {
                    bytes: &bytes,
                    element: Element::U8,
                    components,
                    // Upside down, and not at a multiple of a pixel's size.
                    start: (height - 1) * width * components + 1,
                    plane: 1,
                    row: -((width * components) as isize),
                    height,
                    width,
                };
                let mut together = vec![0; size.0 * size.1 * components];
                let mut resampler = Resampler::default();
                resampler.resize(from, size, filter, antialias, &mut together).unwrap();
                for component in 0..components {
                    let pick = |bytes: &[u8]| -> Vec<u8> {
                        bytes.iter().skip(component).step_by(components).copied().collect()
                    };
                    let plane = pick(&bytes[1..]);
                    let single = Planes {
                        bytes: &plane,
                        components: 1,
                        start: (height - 1) * width,
                        plane: 0,
                        row: -(width as isize),
                        ..from
                    };
                    let mut alone = vec![0; size.0 * size.1];
                    resampler.resize(single, size, filter, antialias, &mut alone).unwrap();
                    assert_eq!(pick(&together), alone, "{components} {size:?} {filter:?}");
                }
            }
        }
    }
}
