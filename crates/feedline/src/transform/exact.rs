//! Resampling of 8-bit pixels along one axis, to the bit as Pillow does it.
//!
//! The SIMD resizer keeps its weights in 16 bits. That is within one level of Pillow for one
//! pass, but filters with negative lobes amplify the first pass's error in the second. These
//! passes keep 22 bits after the point, as Pillow does.

#![allow(unsafe_code)]

use std::f64::consts::PI;

use crate::image::View;

/// Bits after the point: 8 for the pixel and 2 for overshoot leave 22 of 32.
const PRECISION: u32 = 22;

/// A filter with negative lobes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    /// Keys' cubic with a = -0.5.
    Cubic,
    /// The sinc windowed by its own main lobe, three times as wide.
    Lanczos,
}

impl Filter {
    fn support(self) -> f64 {
        match self {
            Filter::Cubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let sinc = |x: f64| if x == 0.0 { 1.0 } else { (x * PI).sin() / (x * PI) };
        match self {
            Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Filter::Lanczos => 0.0,
            Filter::Cubic => match x.abs() {
                x if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
                x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5,
                _ => 0.0,
            },
        }
    }
}

/// Which inputs make an output, and how much each counts.
struct Weights {
    /// First input and number of inputs of each output.
    spans: Vec<(usize, usize)>,
    /// Weights of all outputs, `stride` apart.
    taps: Vec<i32>,
    stride: usize,
}

impl Weights {
    fn new(from: usize, to: usize, filter: Filter) -> Self {
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let reach = filter.support() * stretch;
        let stride = reach.ceil() as usize * 2 + 1;
        let mut spans = Vec::with_capacity(to);
        let mut taps = vec![0; stride * to];
        let mut exact = Vec::with_capacity(stride);
        for (i, taps) in taps.chunks_exact_mut(stride).enumerate() {
            let centre = (i as f64 + 0.5) * scale;
            let start = ((centre - reach + 0.5) as isize).max(0) as usize;
            let end = ((centre + reach + 0.5) as usize).min(from);
            exact.clear();
            let place = |x: usize| (x as f64 - centre + 0.5) * (1.0 / stretch);
            exact.extend((start..end).map(|x| filter.weight(place(x))));
            let sum: f64 = exact.iter().sum();
            for (tap, weight) in taps.iter_mut().zip(&exact) {
                let weight = if sum == 0.0 { *weight } else { weight / sum };
                *tap = (weight * f64::from(1 << PRECISION)).round() as i32;
            }
            spans.push((start, end - start));
        }
        Weights { spans, taps, stride }
    }

    fn outputs(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let taps = self.taps.chunks_exact(self.stride);
        self.spans.iter().zip(taps).map(|((start, count), taps)| (*start, &taps[..*count]))
    }
}

fn narrow(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

const HALF: i32 = 1 << (PRECISION - 1);

/// What `view` sees, with `width` columns: planar if it is, else interleaved.
pub(super) fn rows(
    from: &[u8],
    view: View,
    planar: bool,
    width: usize,
    filter: Filter,
    out: &mut [u8],
) {
    let weights = Weights::new(view.width, width, filter);
    for_lines(view, planar, |line, start, channels| {
        let to = &mut out[line * width * channels..][..width * channels];
        let run = &from[start..start + view.width * channels];
        match channels {
            1 => line_of::<1>(run, &weights, to),
            2 => line_of::<2>(run, &weights, to),
            3 => line_of::<3>(run, &weights, to),
            _ => line_of::<4>(run, &weights, to),
        }
    });
}

fn line_of<const N: usize>(run: &[u8], weights: &Weights, to: &mut [u8]) {
    let (run, _) = run.as_chunks::<N>();
    let (to, _) = to.as_chunks_mut::<N>();
    for (to, (start, taps)) in to.iter_mut().zip(weights.outputs()) {
        let mut sums = [HALF; N];
        for (pixel, tap) in run[start..start + taps.len()].iter().zip(taps) {
            for c in 0..N {
                sums[c] += i32::from(pixel[c]) * tap;
            }
        }
        *to = sums.map(narrow);
    }
}

/// What `view` sees, with `height` rows: planar if it is, else interleaved.
pub(super) fn columns(
    from: &[u8],
    view: View,
    planar: bool,
    height: usize,
    filter: Filter,
    out: &mut [u8],
) {
    let weights = Weights::new(view.height, height, filter);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function is compiled for.
        unsafe { columns_avx2(from, view, planar, &weights, out) };
        return;
    }
    columns_by(from, view, planar, &weights, out);
}

/// The same code with multiplications of eight 32-bit lanes, which the baseline lacks.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn columns_avx2(from: &[u8], view: View, planar: bool, weights: &Weights, out: &mut [u8]) {
    columns_by(from, view, planar, weights, out);
}

/// Elements that are summed at once: their sums stay in registers.
const LANES: usize = 32;

#[inline(always)]
fn columns_by(from: &[u8], view: View, planar: bool, weights: &Weights, out: &mut [u8]) {
    let (planes, length) =
        if planar { (view.channels, view.width) } else { (1, view.width * view.channels) };
    let mut lines = out.chunks_exact_mut(length);
    for plane in 0..planes {
        for ((start, taps), to) in weights.outputs().zip(lines.by_ref()) {
            for (at, to) in to.chunks_mut(LANES).enumerate() {
                let mut sums = [HALF; LANES];
                for (i, tap) in taps.iter().enumerate() {
                    let run = &from[view.at(start + i, 0, plane) + at * LANES..][..to.len()];
                    if let Some(run) = run.first_chunk::<LANES>() {
                        for (sum, x) in sums.iter_mut().zip(run) {
                            *sum += i32::from(*x) * tap;
                        }
                    } else {
                        for (sum, x) in sums.iter_mut().zip(run) {
                            *sum += i32::from(*x) * tap;
                        }
                    }
                }
                to.iter_mut().zip(sums).for_each(|(to, sum)| *to = narrow(sum));
            }
        }
    }
}

/// Every row of every plane: its number, its first element, and the elements of a pixel in it.
fn for_lines(view: View, planar: bool, mut visit: impl FnMut(usize, usize, usize)) {
    let (planes, channels) = if planar { (view.channels, 1) } else { (1, view.channels) };
    for plane in 0..planes {
        for y in 0..view.height {
            visit(plane * view.height + y, view.at(y, 0, plane), channels);
        }
    }
}
