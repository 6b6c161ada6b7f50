//! `GaussianBlur`: a Gaussian of random width, along rows and then along columns.
//!
//! torchvision's kernel is the product of two lines, so two passes give the same up to the
//! rounding of single precision: within one level for `uint8`.

use bytemuck::Pod;
use serde_json::{Map, Value, json};

use super::lanes::lanes;
use super::straight::{self, Lines};
use super::{ImageShape, Transform, parameters};
use crate::error::{Fault, SpecError};
use crate::image::{Image, PixelType, Pixels};
use crate::random::Draws;
use crate::spec::Table;

/// Larger kernels are refused: their weights would not fit on the stack.
const MOST: usize = 511;

#[derive(Debug)]
pub(super) struct GaussianBlur {
    /// Along x and y.
    kernel: [usize; 2],
    sigma: [f64; 2],
}

impl GaussianBlur {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        let allowed = format!("an odd number up to {MOST}, or [along x, along y]");
        let kernel = match parameters::sides(table, "kernel_size")?.as_deref() {
            Some(&[side]) => [side; 2],
            Some(&[x, y]) => [x, y],
            _ => return Err(table.missing("kernel_size", &allowed)),
        };
        if kernel.iter().any(|side| side % 2 == 0 || *side > MOST) {
            return Err(table
                .error("kernel_size", "is not allowed")
                .value(json!(kernel))
                .allowed(allowed));
        }
        let sigma = match table.numbers("sigma")?.as_deref() {
            None => [0.1, 2.0],
            Some(&[sigma]) if sigma > 0.0 => [sigma; 2],
            Some(&[low, high]) if low > 0.0 && low <= high => [low, high],
            Some(other) => {
                return Err(table
                    .error("sigma", "is not allowed")
                    .value(json!(other))
                    .allowed("a number above 0, or [low, high] with 0 < low <= high"));
            }
        };
        Ok(Box::new(GaussianBlur { kernel, sigma }))
    }
}

/// The weights of one pass.
struct Kernel {
    weights: [f32; MOST + 1],
    length: usize,
}

impl Kernel {
    fn new(length: usize, sigma: f64) -> Kernel {
        let mut exact = [0.0f64; MOST + 1];
        let middle = (length / 2) as f64;
        for (at, weight) in exact.iter_mut().enumerate().take(length) {
            *weight = (-0.5 * ((at as f64 - middle) / sigma).powi(2)).exp();
        }
        let sum: f64 = exact.iter().sum();
        Kernel { weights: exact.map(|weight| (weight / sum) as f32), length }
    }

    fn weights(&self) -> &[f32] {
        &self.weights[..self.length]
    }

    fn reach(&self) -> usize {
        self.length / 2
    }
}

/// An element as it is summed up.
trait Sample: Pod {
    fn wide(self) -> f32;
    fn narrow(x: f32) -> Self;
}

impl Sample for u8 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from(self)
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        // Adding 2^23 rounds to whole numbers, halves to even ones, and leaves them in the bits.
        (x.clamp(0.0, 255.0) + 8_388_608.0).to_bits() as u8
    }
}

impl Sample for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
}

/// Sums that are kept in registers: four of eight lanes.
const CHUNK: usize = 32;

lanes! {
    /// A line as floats, mirrored beyond its ends at the last pixel.
    fn widen[T: Sample](from: &[T], step: usize, reach: usize, line: &mut [f32]) {
        let width = from.len() / step;
        let (before, rest) = line.split_at_mut(reach * step);
        let (inside, after) = rest.split_at_mut(from.len());
        inside.iter_mut().zip(from).for_each(|(to, x)| *to = x.wide());
        for (i, pixel) in before.chunks_exact_mut(step).enumerate() {
            let at = (reach - i) * step;
            pixel.iter_mut().zip(&from[at..]).for_each(|(to, x)| *to = x.wide());
        }
        for (i, pixel) in after.chunks_exact_mut(step).enumerate().take(reach) {
            let at = (width - 2 - i) * step;
            pixel.iter_mut().zip(&from[at..]).for_each(|(to, x)| *to = x.wide());
        }
    }

    /// The pass along a line: `line` has the reach of the kernel more at both ends.
    fn along(line: &[f32], step: usize, weights: &[f32], out: &mut [f32]) {
        let (chunks, rest) = out.as_chunks_mut::<CHUNK>();
        let whole = chunks.len() * CHUNK;
        for (at, chunk) in chunks.iter_mut().enumerate() {
            let mut sums = [0.0f32; CHUNK];
            for (tap, weight) in weights.iter().enumerate() {
                let from = &line[at * CHUNK + tap * step..][..CHUNK];
                for i in 0..CHUNK {
                    sums[i] = from[i].mul_add(*weight, sums[i]);
                }
            }
            *chunk = sums;
        }
        for (i, to) in rest.iter_mut().enumerate() {
            let mut sum = 0.0f32;
            for (tap, weight) in weights.iter().enumerate() {
                sum = line[whole + i + tap * step].mul_add(*weight, sum);
            }
            *to = sum;
        }
    }

    /// The pass across lines: `ring` holds the last lines, of which `rows` are to be summed up.
    fn across[T: Sample](ring: &[f32], length: usize, rows: &[u16], weights: &[f32], out: &mut [T]) {
        let (chunks, rest) = out.as_chunks_mut::<CHUNK>();
        let whole = chunks.len() * CHUNK;
        for (at, chunk) in chunks.iter_mut().enumerate() {
            let mut sums = [0.0f32; CHUNK];
            for (row, weight) in rows.iter().zip(weights) {
                let from = &ring[usize::from(*row) * length + at * CHUNK..][..CHUNK];
                for i in 0..CHUNK {
                    sums[i] = from[i].mul_add(*weight, sums[i]);
                }
            }
            for i in 0..CHUNK {
                chunk[i] = T::narrow(sums[i]);
            }
        }
        for (i, to) in rest.iter_mut().enumerate() {
            let mut sum = 0.0f32;
            for (row, weight) in rows.iter().zip(weights) {
                sum = ring[usize::from(*row) * length + whole + i].mul_add(*weight, sum);
            }
            *to = T::narrow(sum);
        }
    }
}

/// Floats that the passes need beside the result: a line with its ends, and a ring of lines.
fn room(length: usize, step: usize, along: usize, across: usize) -> usize {
    length + (along - 1) * step + across * length
}

/// Mirrored at the first and the last line.
fn mirrored(at: isize, height: usize) -> usize {
    let last = height as isize - 1;
    (if at < 0 {
        -at
    } else if at > last {
        2 * last - at
    } else {
        at
    }) as usize
}

fn blur<T: Sample>(
    from: &[T],
    lines: Lines,
    (room, out): (&mut [f32], &mut [T]),
    (new, start): (Lines, usize),
    (x, y): (&Kernel, &Kernel),
) {
    let (length, step) = (lines.length(), lines.step());
    let (line, ring) = room.split_at_mut(length + (x.length - 1) * step);
    let (height, reach) = (lines.height(), y.reach());
    let mut rows = [0u16; MOST + 1];
    for plane in 0..lines.planes() {
        let mut done = 0;
        for at in 0..height {
            // The lines up to the kernel's reach; the ring then holds all that is needed.
            while done < height.min(at + reach + 1) {
                widen(&from[lines.range(plane, done)], step, x.reach(), line);
                along(line, step, x.weights(), &mut ring[done % y.length * length..][..length]);
                done += 1;
            }
            for (tap, row) in rows.iter_mut().enumerate().take(y.length) {
                let source = mirrored((at + tap) as isize - reach as isize, height);
                *row = (source % y.length) as u16;
            }
            let to = new.range(plane, at);
            let to = &mut out[to.start - start..to.end - start];
            across(ring, length, &rows[..y.length], y.weights(), to);
        }
    }
}

impl Transform for GaussianBlur {
    fn name(&self) -> &'static str {
        "GaussianBlur"
    }

    fn parameters(&self) -> Map<String, Value> {
        let GaussianBlur { kernel, sigma } = self;
        Map::from_iter([
            ("kernel_size".to_owned(), json!(kernel)),
            ("sigma".to_owned(), json!(sigma)),
        ])
    }

    fn is_random(&self) -> bool {
        true
    }

    fn shape(&self, input: ImageShape) -> Result<ImageShape, Fault> {
        if self.kernel[0] / 2 >= input.width || self.kernel[1] / 2 >= input.height {
            return Err(Fault::Shape(format!(
                "GaussianBlur with a kernel of {} x {} (along x, along y) needs a larger image than {} x {}",
                self.kernel[0], self.kernel[1], input.width, input.height
            )));
        }
        Ok(input)
    }

    fn makes_pixels(&self, _: ImageShape) -> bool {
        true
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        let longest = input.width.max(input.height) * input.channels;
        let most = self.kernel[0].max(self.kernel[1]);
        let room = room(longest, input.channels, most, most).saturating_mul(4);
        input.elements().saturating_mul(2 * pixel.size()).saturating_add(room)
    }

    fn drawn(&self, _: ImageShape, draws: &mut Draws) -> Value {
        json!({"sigma": draws.uniform(self.sigma[0], self.sigma[1])})
    }

    fn apply(&self, image: &mut Image<'_>, draws: &mut Draws) -> Result<(), Fault> {
        self.shape(ImageShape::of(image.view()))?;
        let sigma = draws.uniform(self.sigma[0], self.sigma[1]);
        let [x, y] = self.kernel.map(|length| Kernel::new(length, sigma));
        let lines = straight::lines(image)?;
        let (x, y) = if lines.transposed { (y, x) } else { (x, y) };
        let channels = lines.channels();
        let floats = room(lines.length(), lines.step(), x.length, y.length);
        match image.pixels() {
            Pixels::U8(_) => {
                let bytes = floats * 4;
                straight::redraw(
                    image,
                    bytes,
                    channels,
                    straight::bytes,
                    |from, lines, out, new| {
                        let (room, out) = out.split_at_mut(bytes);
                        if let Ok(room) = bytemuck::try_cast_slice_mut(room) {
                            blur(from, lines, (room, out), (new, bytes), (&x, &y));
                        }
                    },
                )
            }
            Pixels::F32(_) => straight::redraw(
                image,
                floats,
                channels,
                straight::floats,
                |from, lines, out, new| {
                    let (room, out) = out.split_at_mut(floats);
                    blur(from, lines, (room, out), (new, floats), (&x, &y));
                },
            ),
        }
    }
}
