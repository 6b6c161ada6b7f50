//! Writes pixels into a batch: type, scale, layout and flip in one pass.

#![allow(unsafe_code)]

use bytemuck::Pod;
use half::{bf16, f16};

use super::{Pixels, View};
use crate::error::Fault;
use crate::sample::DType;

/// How the pixels of a batch lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Layout {
    /// Channels, height, width.
    #[default]
    Chw,
    /// Height, width, channels.
    Hwc,
    /// Shape as `Chw`, memory as `Hwc`: torch's channels_last.
    ChannelsLast,
}

/// A map from element to element: `x * scale[c] + bias[c]`, computed in single precision, then
/// rounded to a float `dtype`, or cut towards zero and kept in range for an integer one.
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

    /// True when nothing but the type changes.
    #[must_use]
    pub(crate) fn is_cast(&self) -> bool {
        self.scale == [1.0; 4] && self.bias == [0.0; 4]
    }
}

/// Writes the pixels that `view` sees to `out`, which holds exactly the image in `layout`.
///
/// Images have up to 4 channels; results are `uint8`, `float16`, `bfloat16` or `float32`.
pub fn convert(
    pixels: Pixels<'_>,
    view: View,
    map: &Pointwise,
    layout: Layout,
    out: &mut [u8],
) -> Result<(), Fault> {
    let bytes = view.elements() * map.dtype.size();
    if out.len() != bytes || view.channels > 4 || view.bounds().1 > pixels.len() {
        return Err(Fault::Shape(format!(
            "{} x {} pixels of {} channels as {} take {bytes} bytes; there is room for {}",
            view.height,
            view.width,
            view.channels,
            map.dtype,
            out.len()
        )));
    }
    let (scale, bias) = (map.scale, map.bias);
    let planar = layout == Layout::Chw && view.channels > 1;
    match (pixels, map.dtype) {
        (Pixels::U8(from), DType::U8) if map.is_cast() && !planar && view.is_interleaved() => {
            let length = view.width * view.channels;
            for (y, row) in out.chunks_exact_mut(length.max(1)).enumerate() {
                row.copy_from_slice(&from[view.at(y, 0, 0)..][..length]);
            }
        }
        (Pixels::U8(from), DType::U8) if map.is_cast() => write(from, view, planar, out, |_, x| x),
        (Pixels::F32(from), DType::F32) if map.is_cast() => {
            typed(from, view, planar, out, |_, x| x)
        }
        (Pixels::U8(from), DType::F32) => typed_rgb(from, view, planar, out, scale, bias),
        // 256 values per channel: a table spares the costly narrowing of each pixel.
        (Pixels::U8(from), DType::U8) => {
            let table = Table::new(map, view.channels, |x| x as u8);
            write(from, view, planar, out, |c, x| table.0[c][usize::from(x)]);
        }
        (Pixels::U8(from), DType::F16) => {
            let table = Table::new(map, view.channels, f16::from_f32);
            typed(from, view, planar, out, |c, x| table.0[c][usize::from(x)]);
        }
        (Pixels::U8(from), DType::BF16) => {
            let table = Table::new(map, view.channels, bf16::from_f32);
            typed(from, view, planar, out, |c, x| table.0[c][usize::from(x)]);
        }
        (Pixels::F32(from), DType::U8) => {
            write(from, view, planar, out, |c, x| (x * scale[c] + bias[c]) as u8);
        }
        (Pixels::F32(from), DType::F16) => {
            typed(from, view, planar, out, |c, x| f16::from_f32(x * scale[c] + bias[c]));
        }
        (Pixels::F32(from), DType::BF16) => {
            typed(from, view, planar, out, |c, x| bf16::from_f32(x * scale[c] + bias[c]));
        }
        (Pixels::F32(from), DType::F32) => {
            typed(from, view, planar, out, |c, x| x * scale[c] + bias[c]);
        }
        (_, other) => {
            return Err(Fault::Unsupported(format!("pixels cannot be written as {other}")));
        }
    }
    Ok(())
}

/// What each of the 256 values becomes, for each channel.
struct Table<T>([[T; 256]; 4]);

impl<T: Copy + Default> Table<T> {
    fn new(map: &Pointwise, channels: usize, narrow: impl Fn(f32) -> T) -> Self {
        let mut table = [[T::default(); 256]; 4];
        for (c, entries) in table.iter_mut().enumerate().take(channels) {
            for (value, entry) in entries.iter_mut().enumerate() {
                *entry = narrow(value as f32 * map.scale[c] + map.bias[c]);
            }
        }
        Table(table)
    }
}

/// `bytes` as elements, through a copy if they are not aligned (batches always are).
fn with_elements<T: Pod>(bytes: &mut [u8], write: impl FnOnce(&mut [T])) {
    if let Ok(elements) = bytemuck::try_cast_slice_mut(bytes) {
        write(elements);
    } else {
        let mut elements = vec![T::zeroed(); bytes.len() / size_of::<T>()];
        write(&mut elements);
        bytes.copy_from_slice(bytemuck::cast_slice(&elements));
    }
}

fn typed<S: Copy, T: Pod>(
    from: &[S],
    view: View,
    planar: bool,
    out: &mut [u8],
    map: impl Fn(usize, S) -> T + Copy,
) {
    with_elements(out, |out| write(from, view, planar, out, map));
}

fn typed_rgb(
    from: &[u8],
    view: View,
    planar: bool,
    out: &mut [u8],
    scale: [f32; 4],
    bias: [f32; 4],
) {
    with_elements(out, |out: &mut [f32]| {
        if planar && view.channels == 3 && view.channel == 1 && view.column.abs() == 3 {
            deinterleave_rgb(from, view, out, scale, bias);
        } else {
            write(from, view, planar, out, |c, x| f32::from(x) * scale[c] + bias[c]);
        }
    });
}

fn write<S: Copy, T: Copy>(
    from: &[S],
    view: View,
    planar: bool,
    out: &mut [T],
    map: impl Fn(usize, S) -> T + Copy,
) {
    if view.elements() == 0 {
        return;
    }
    if planar || view.channels == 1 {
        write_planar(from, view, out, map);
    } else {
        write_interleaved(from, view, out, map);
    }
}

fn write_planar<S: Copy, T: Copy>(
    from: &[S],
    view: View,
    out: &mut [T],
    map: impl Fn(usize, S) -> T + Copy,
) {
    let (height, width) = (view.height, view.width);
    for (c, plane) in out.chunks_exact_mut(height * width).enumerate() {
        if view.column == 1 && view.row == width as isize {
            // One run for the whole plane: the loop that arrays in memory live in.
            let start = view.at(0, 0, c);
            for (to, x) in plane.iter_mut().zip(&from[start..start + height * width]) {
                *to = map(c, *x);
            }
            continue;
        }
        for (y, row) in plane.chunks_exact_mut(width).enumerate() {
            let start = view.at(y, 0, c);
            match view.column {
                1 => row
                    .iter_mut()
                    .zip(&from[start..start + width])
                    .for_each(|(to, x)| *to = map(c, *x)),
                -1 => {
                    let run = &from[start + 1 - width..=start];
                    row.iter_mut().zip(run.iter().rev()).for_each(|(to, x)| *to = map(c, *x));
                }
                step => {
                    let mut at = start as isize;
                    for to in row {
                        *to = map(c, from[at as usize]);
                        at += step;
                    }
                }
            }
        }
    }
}

fn write_interleaved<S: Copy, T: Copy>(
    from: &[S],
    view: View,
    out: &mut [T],
    map: impl Fn(usize, S) -> T + Copy,
) {
    let (width, channels) = (view.width, view.channels);
    for (y, row) in out.chunks_exact_mut(width * channels).enumerate() {
        let start = view.at(y, 0, 0);
        if view.channel == 1 && view.column == channels as isize {
            let run = &from[start..start + width * channels];
            // The channel count as a constant lets the compiler unroll the pixel.
            match channels {
                3 => pixels_of::<3, S, T>(run, row, map),
                4 => pixels_of::<4, S, T>(run, row, map),
                _ => pixels_of::<2, S, T>(run, row, map),
            }
            continue;
        }
        for (x, pixel) in row.chunks_exact_mut(channels).enumerate() {
            for (c, to) in pixel.iter_mut().enumerate() {
                *to = map(c, from[view.at(y, x, c)]);
            }
        }
    }
}

fn pixels_of<const N: usize, S: Copy, T: Copy>(
    from: &[S],
    to: &mut [T],
    map: impl Fn(usize, S) -> T,
) {
    let (from, _) = from.as_chunks::<N>();
    let (to, _) = to.as_chunks_mut::<N>();
    for (from, to) in from.iter().zip(to) {
        for c in 0..N {
            to[c] = map(c, from[c]);
        }
    }
}

/// Pixels that one step of [`deinterleave_rgb`] takes: enough to amortise the turn, few enough
/// to stay in the nearest cache.
const LANES: usize = 64;

/// Interleaved bytes to three planes of floats.
fn deinterleave_rgb(from: &[u8], view: View, out: &mut [f32], scale: [f32; 4], bias: [f32; 4]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function is compiled for.
        unsafe { deinterleave_rgb_avx2(from, view, out, scale, bias) };
        return;
    }
    deinterleave_rgb_by(from, view, out, scale, bias);
}

/// The same code, compiled for lanes twice as wide.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn deinterleave_rgb_avx2(
    from: &[u8],
    view: View,
    out: &mut [f32],
    scale: [f32; 4],
    bias: [f32; 4],
) {
    deinterleave_rgb_by(from, view, out, scale, bias);
}

/// A pixel is loaded as one 32-bit word with its successor's first byte on top, so that the
/// channels come apart by shifts, which vectorise; byte loads with a stride of 3 do not.
#[inline(always)]
fn deinterleave_rgb_by(from: &[u8], view: View, out: &mut [f32], scale: [f32; 4], bias: [f32; 4]) {
    let (height, width) = (view.height, view.width);
    if height == 0 || width == 0 {
        return;
    }
    let flipped = view.column < 0;
    let (red, rest) = out.split_at_mut(height * width);
    let (green, blue) = rest.split_at_mut(height * width);
    for y in 0..height {
        // The row's bytes from left to right in memory.
        let low = if flipped { view.at(y, width - 1, 0) } else { view.at(y, 0, 0) };
        let row = &from[low..low + width * 3];
        let mut words = [0u32; LANES];
        for x in (0..width).step_by(LANES) {
            let count = LANES.min(width - x);
            let run = &row[x * 3..(x + count) * 3];
            // All but the last are read as words without leaving the run.
            let (last, wide) = (&run[(count - 1) * 3..], run.windows(4).step_by(3));
            for (word, bytes) in words.iter_mut().zip(wide) {
                *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
            words[count - 1] = u32::from_le_bytes([last[0], last[1], last[2], 0]);
            let mut at = y * width + x;
            if flipped {
                words[..count].reverse();
                at = (y + 1) * width - x - count;
            }
            for (c, plane) in [&mut *red, &mut *green, &mut *blue].into_iter().enumerate() {
                let to = &mut plane[at..at + count];
                for (to, word) in to.iter_mut().zip(&words) {
                    *to = (*word >> (8 * c) & 0xff) as i32 as f32 * scale[c] + bias[c];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, one element at a time.
    fn plain(from: &[u8], view: View, map: &Pointwise, planar: bool) -> Vec<f32> {
        let mut out = vec![0.0; view.elements()];
        for y in 0..view.height {
            for x in 0..view.width {
                for c in 0..view.channels {
                    let at = if planar {
                        (c * view.height + y) * view.width + x
                    } else {
                        (y * view.width + x) * view.channels + c
                    };
                    out[at] = f32::from(from[view.at(y, x, c)]) * map.scale[c] + map.bias[c];
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn any_view_equals_the_definition(
            height in 1usize..20,
            width in 1usize..40,
            channels in 1usize..=4,
            planar_in: bool,
            planar_out: bool,
            transpose: bool,
            flips in 0u8..4,
            crop in (0usize..20, 0usize..40, 1usize..20, 1usize..40),
            dtype in prop::sample::select(vec![DType::U8, DType::F16, DType::BF16, DType::F32]),
            float_in: bool,
        ) {
            let elements: Vec<u8> = (0..height * width * channels).map(|i| (i * 89 % 251) as u8).collect();
            let mut view = if planar_in { View::planar(height, width, channels) } else { View::interleaved(height, width, channels) };
            if transpose { view.transpose(); }
            if flips & 1 == 1 { view.flip_horizontal(); }
            let (top, left) = (crop.0 % view.height, crop.1 % view.width);
            view.crop(top, left, crop.2.min(view.height - top), crop.3.min(view.width - left));
            if flips & 2 == 2 { view.flip_vertical(); }

            let map = Pointwise { scale: [0.5, 1.25, 0.01, 3.0], bias: [3.0, -20.0, 0.5, 0.0], dtype };
            let layout = if planar_out { Layout::Chw } else { Layout::Hwc };
            let mut out = vec![0u8; view.elements() * dtype.size()];
            let floats: Vec<f32> = elements.iter().map(|x| f32::from(*x)).collect();
            let pixels = if float_in { Pixels::F32(&floats) } else { Pixels::U8(&elements) };
            convert(pixels, view, &map, layout, &mut out).unwrap();

            for (i, wanted) in plain(&elements, view, &map, planar_out).into_iter().enumerate() {
                let bytes = &out[i * dtype.size()..][..dtype.size()];
                let (got, wanted) = match dtype {
                    DType::U8 => (f32::from(bytes[0]), f32::from(wanted as u8)),
                    DType::F16 => (f16::from_ne_bytes([bytes[0], bytes[1]]).to_f32(), f16::from_f32(wanted).to_f32()),
                    DType::BF16 => (bf16::from_ne_bytes([bytes[0], bytes[1]]).to_f32(), bf16::from_f32(wanted).to_f32()),
                    _ => (f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]), wanted),
                };
                prop_assert_eq!(got, wanted);
            }
        }
    }

    #[test]
    fn the_room_must_fit() {
        let view = View::interleaved(2, 2, 3);
        let map = Pointwise::cast(DType::U8);
        assert!(convert(Pixels::U8(&[0; 12]), view, &map, Layout::Hwc, &mut [0; 11]).is_err());
        assert!(convert(Pixels::U8(&[0; 11]), view, &map, Layout::Hwc, &mut [0; 12]).is_err());
        assert!(convert(Pixels::U8(&[0; 12]), view, &map, Layout::Hwc, &mut [0; 12]).is_ok());
    }
}
