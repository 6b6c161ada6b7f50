//! Bilinear, antialiased resizing of 8-bit pixels that writes its result where it belongs: each
//! element once, mirrored, scaled and converted on the way.
//!
//! Rows are resampled one at a time into a few lines that stay in the nearest cache, with six bits
//! after the point; a row of the result is made of those as soon as they are there. Both passes
//! are exact integers, so that every path gives the same bytes. The result is within one level
//! of Pillow's, which rounds to whole levels between its passes.

#![allow(unsafe_code)]

use super::View;
use crate::error::Fault;

/// Bits after the point of a weight: 1 is 2^14, so that it fits into 16 bits.
const WEIGHT_BITS: u32 = 14;
/// Bits after the point between the passes.
const LINE_BITS: u32 = 6;

/// One direction of a resize.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Axis {
    /// Where the resized stretch begins, in pixels.
    pub start: f64,
    /// How long it is.
    pub length: f64,
    /// The pixels that it becomes.
    pub outputs: usize,
    /// The first of them that is made.
    pub first: usize,
    /// How many are made.
    pub count: usize,
    /// First and one past the last pixel that may be looked at.
    pub limits: (usize, usize),
    /// The pixel that the view begins with: so many lie before it.
    pub origin: usize,
    /// The result is turned round.
    pub mirrored: bool,
}

impl Axis {
    fn is_valid(&self, length: usize) -> bool {
        self.origin <= self.limits.0
            && self.limits.0 < self.limits.1
            && self.limits.1 <= self.origin + length
            && self.first + self.count <= self.outputs
            && self.count > 0
            && self.length > 0.0
    }
}

/// Which pixels make a pixel, and how much each counts.
#[derive(Default)]
struct Weights {
    starts: Vec<u32>,
    /// Those of a pixel are `stride` apart, filled up with zeros.
    taps: Vec<i16>,
    stride: usize,
    /// The last of the starts.
    furthest: usize,
}

/// Weights are taken four at a time.
const STEP: usize = 4;

impl Weights {
    /// The last output first if `reversed`.
    fn set(&mut self, axis: &Axis, reversed: bool) {
        let scale = axis.length / axis.outputs as f64;
        let stretch = scale.max(1.0);
        // As many pixels as can lie in twice the filter's reach.
        let most = (stretch * 2.0) as usize + 1;
        self.stride = most.next_multiple_of(STEP);
        self.starts.clear();
        self.taps.clear();
        self.taps.resize(self.stride * axis.count, 0);
        let one = f64::from(1 << WEIGHT_BITS);
        let (slope, low, high) = (1.0 / stretch, axis.limits.0 as f64, axis.limits.1 as f64);
        for (i, taps) in self.taps.chunks_exact_mut(self.stride).enumerate() {
            let i = if reversed { axis.count - 1 - i } else { i };
            let centre = axis.start + ((axis.first + i) as f64 + 0.5) * scale;
            // At least one pixel, wherever the stretch lies.
            let start = (centre - stretch + 0.5).clamp(low, high - 1.0) as usize;
            let end = ((centre + stretch + 0.5).min(high) as usize).max(start + 1);
            let weight = |at: usize| (1.0 - ((at as f64 - centre + 0.5) * slope).abs()).max(0.0);
            let sum: f64 = (start..end).map(weight).sum();
            let factor = if sum > 0.0 { one / sum } else { 0.0 };
            let mut rest = 1 << WEIGHT_BITS;
            let mut largest = 0;
            for (k, at) in (start..end).enumerate() {
                taps[k] = (weight(at) * factor).round() as i16;
                rest -= i32::from(taps[k]);
                if taps[k] > taps[largest] {
                    largest = k;
                }
            }
            // They sum up to one, so that a flat area stays what it is.
            taps[largest] = (i32::from(taps[largest]) + rest) as i16;
            self.starts.push((start - axis.origin) as u32);
        }
        self.furthest = self.starts.iter().max().map_or(0, |start| *start as usize);
    }

    fn of(&self, output: usize) -> (usize, &[i16]) {
        let taps = &self.taps[output * self.stride..][..self.stride];
        (self.starts[output] as usize, taps)
    }
}

/// A worker's memory for resizing, kept from image to image.
#[derive(Default)]
pub struct Workspace {
    columns: Weights,
    rows: Weights,
    /// Resampled rows, each as planes.
    lines: Vec<i16>,
    line: Vec<u8>,
}

impl Workspace {
    /// Bytes held for reuse.
    #[must_use]
    pub fn held(&self) -> usize {
        let weights = |w: &Weights| w.starts.capacity() * 4 + w.taps.capacity() * 2;
        weights(&self.columns)
            + weights(&self.rows)
            + self.lines.capacity() * 2
            + self.line.capacity()
    }

    /// Bytes held at most after a resize from a height and width to another, of 4 channels or
    /// fewer.
    #[must_use]
    pub fn bound(from: (usize, usize), to: (usize, usize)) -> usize {
        let stride = |from: usize, to: usize| from.div_ceil(to.max(1)).max(1) * 2 + 1 + STEP;
        let (rows, columns) = (stride(from.0, to.0), stride(from.1, to.1));
        let weights = to.0 * (4 + 2 * rows) + to.1 * (4 + 2 * columns);
        // What grows may take twice what it needs.
        2 * (weights + to.1 * 4 * 2 * rows + to.1 * 4) + 4096
    }
}

/// Where the result goes: `rows.count` x `columns.count` pixels.
pub(crate) enum Target<'a> {
    /// Planes of `x * scale[c] + bias[c]`.
    Floats {
        /// Exactly the result's elements.
        out: &'a mut [f32],
        /// Factor of each channel.
        scale: [f32; 4],
        /// Summand of each channel.
        bias: [f32; 4],
    },
    /// Planes of bytes.
    Planes(&'a mut [u8]),
    /// Interleaved bytes.
    Pixels(&'a mut [u8]),
}

impl Target<'_> {
    fn len(&self) -> usize {
        match self {
            Target::Floats { out, .. } => out.len(),
            Target::Planes(out) | Target::Pixels(out) => out.len(),
        }
    }
}

/// Resizes what `view` sees of interleaved bytes.
pub(crate) fn resize(
    from: &[u8],
    view: View,
    [rows, columns]: [&Axis; 2],
    workspace: &mut Workspace,
    target: Target<'_>,
) -> Result<(), Fault> {
    let fits = view.is_interleaved()
        && view.bounds().1 <= from.len()
        && (1..=4).contains(&view.channels)
        && rows.is_valid(view.height)
        && columns.is_valid(view.width)
        && target.len() == rows.count * columns.count * view.channels;
    if !fits {
        return Err(Fault::Shape(format!("{rows:?} and {columns:?} do not fit {view:?}")));
    }
    workspace.rows.set(rows, false);
    workspace.columns.set(columns, columns.mirrored);
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function is compiled for.
        unsafe { run_avx2(from, view, rows.mirrored, workspace, target) };
        return Ok(());
    }
    run::<Plain>(from, view, rows.mirrored, workspace, target);
    Ok(())
}

/// The inner loops, once for every kind of processor.
trait Kernel {
    /// Resamples one row of interleaved pixels into planes.
    fn line(row: &[u8], channels: usize, weights: &Weights, out: &mut [i16]);

    /// Makes floats of a row of the result.
    fn floats(near: &Near<'_>, from: usize, out: &mut [f32], scale: f32, bias: f32);

    /// Makes bytes of a row of the result.
    fn bytes(near: &Near<'_>, from: usize, out: &mut [u8]);
}

#[inline(always)]
fn run<K: Kernel>(
    from: &[u8],
    view: View,
    up: bool,
    workspace: &mut Workspace,
    mut target: Target<'_>,
) {
    let Workspace { columns, rows, lines, line } = workspace;
    let (height, width, channels) = (rows.starts.len(), columns.starts.len(), view.channels);
    let length = width * channels;
    let ring = rows.stride;
    // A last look may pass the end of the last line.
    lines.resize(ring * length + LANES, 0);
    line.resize(length, 0);
    let mut next = 0;
    for y in 0..height {
        let (start, taps) = rows.of(y);
        let count = taps.iter().rposition(|tap| *tap != 0).map_or(1, |last| last + 1);
        next = next.max(start);
        while next < start + count {
            let row = &from[view.at(next, 0, 0)..];
            K::line(row, channels, columns, &mut lines[next % ring * length..][..length]);
            next += 1;
        }
        let to = if up { height - 1 - y } else { y };
        // Weights go in pairs: behind the last there is one of zero.
        let taps = &taps[..count.next_multiple_of(2)];
        let near = Near { lines, start, taps, ring, length };
        match &mut target {
            Target::Floats { out, scale, bias } => {
                for c in 0..channels {
                    let out = &mut out[(c * height + to) * width..][..width];
                    K::floats(&near, c * width, out, scale[c], bias[c]);
                }
            }
            Target::Planes(out) => {
                for c in 0..channels {
                    K::bytes(&near, c * width, &mut out[(c * height + to) * width..][..width]);
                }
            }
            Target::Pixels(out) => {
                K::bytes(&near, 0, line);
                let out = &mut out[to * length..][..length];
                for (c, plane) in line.chunks_exact(width).enumerate() {
                    for (to, x) in out[c..].iter_mut().step_by(channels).zip(plane) {
                        *to = *x;
                    }
                }
            }
        }
    }
}

/// The lines that a row of the result is made of.
struct Near<'a> {
    lines: &'a [i16],
    start: usize,
    /// An even number.
    taps: &'a [i16],
    ring: usize,
    length: usize,
}

impl Near<'_> {
    /// Where the line of a tap begins, and the tap.
    #[inline(always)]
    fn taps(&self) -> impl Iterator<Item = (usize, i16)> {
        let at = |i: usize| (self.start + i) % self.ring * self.length;
        self.taps.iter().enumerate().map(move |(i, tap)| (at(i), *tap))
    }
}

/// Elements that are made at once.
const LANES: usize = 16;
const LINE_SHIFT: u32 = WEIGHT_BITS - LINE_BITS;
const ROW_SHIFT: u32 = WEIGHT_BITS + LINE_BITS;

/// What every processor can do; compilers for NEON make it wide by themselves.
struct Plain;

impl Plain {
    #[inline(always)]
    fn mix<T: Copy>(near: &Near<'_>, from: usize, out: &mut [T], finish: impl Fn(i32) -> T) {
        for (at, to) in out.chunks_mut(LANES).enumerate() {
            let mut sums = [1i32 << (ROW_SHIFT - 1); LANES];
            for (line, tap) in near.taps() {
                let run = &near.lines[line + from + at * LANES..][..LANES];
                for (sum, x) in sums.iter_mut().zip(run) {
                    *sum += i32::from(*x) * i32::from(tap);
                }
            }
            to.iter_mut().zip(sums).for_each(|(to, sum)| *to = finish(sum >> ROW_SHIFT));
        }
    }
}

impl Kernel for Plain {
    fn line(row: &[u8], channels: usize, weights: &Weights, out: &mut [i16]) {
        let width = weights.starts.len();
        for x in 0..width {
            let (start, taps) = weights.of(x);
            for c in 0..channels {
                let mut sum = 1 << (LINE_SHIFT - 1);
                for (k, tap) in taps.iter().enumerate().filter(|(_, tap)| **tap != 0) {
                    sum += i32::from(row[(start + k) * channels + c]) * i32::from(*tap);
                }
                out[c * width + x] = (sum >> LINE_SHIFT) as i16;
            }
        }
    }

    fn floats(near: &Near<'_>, from: usize, out: &mut [f32], scale: f32, bias: f32) {
        Plain::mix(near, from, out, |x| x as f32 * scale + bias);
    }

    fn bytes(near: &Near<'_>, from: usize, out: &mut [u8]) {
        Plain::mix(near, from, out, |x| x as u8);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn run_avx2(from: &[u8], view: View, up: bool, workspace: &mut Workspace, target: Target<'_>) {
    run::<avx2::Avx2>(from, view, up, workspace, target);
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::*;

    /// Used only where the processor was asked for AVX2.
    pub(super) struct Avx2;

    impl Kernel for Avx2 {
        #[inline(always)]
        fn line(row: &[u8], channels: usize, weights: &Weights, out: &mut [i16]) {
            // Sixteen bytes are read for four pixels of twelve: not at the very end of the image.
            if channels == 3 && row.len() >= (weights.furthest + weights.stride) * 3 + 4 {
                // SAFETY: the processor has the feature; every look was just checked to end
                // inside the row.
                unsafe { line(row, weights, out) }
            } else {
                Plain::line(row, channels, weights, out);
            }
        }

        #[inline(always)]
        fn floats(near: &Near<'_>, from: usize, out: &mut [f32], scale: f32, bias: f32) {
            // SAFETY: the processor has the feature.
            unsafe { floats(near, from, out, scale, bias) }
        }

        #[inline(always)]
        fn bytes(near: &Near<'_>, from: usize, out: &mut [u8]) {
            // SAFETY: the processor has the feature.
            unsafe { bytes(near, from, out) }
        }
    }

    /// Four pixels of the row at a time, and four of the result.
    ///
    /// # Safety
    /// Four bytes must follow the last pixel of the row that a weight, be it zero, stands for.
    #[target_feature(enable = "avx2")]
    unsafe fn line(row: &[u8], weights: &Weights, out: &mut [i16]) {
        let width = weights.starts.len();
        // Two pixels in each half, as pairs of the same channel.
        let pairs = _mm256_setr_epi8(
            0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, //
            6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,
        );
        // The first two weights for the one half, the last two for the other.
        let spread = _mm256_setr_epi8(
            0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, //
            4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7,
        );
        let half = _mm_set1_epi32(1 << (LINE_SHIFT - 1));
        let steps = weights.stride / STEP;
        let pixel = |x: usize| {
            let mut sum = _mm256_setzero_si256();
            for step in 0..steps {
                // SAFETY: there are `steps` times four weights for each pixel of the result, and
                // sixteen bytes from the first pixel of each four by the caller's promise.
                let (four, taps) = unsafe {
                    let start = *weights.starts.get_unchecked(x) as usize;
                    let taps = weights.taps.as_ptr().add((x * steps + step) * STEP);
                    let four = row.as_ptr().add((start + step * STEP) * 3);
                    (_mm_loadu_si128(four.cast()), taps.cast::<i64>().read_unaligned())
                };
                let four = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(four), pairs);
                let taps = _mm256_shuffle_epi8(_mm256_set1_epi64x(taps), spread);
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(four, taps));
            }
            let low = _mm256_castsi256_si128(sum);
            let sum = _mm_add_epi32(low, _mm256_extracti128_si256::<1>(sum));
            _mm_srai_epi32::<{ LINE_SHIFT as i32 }>(_mm_add_epi32(sum, half))
        };
        let mut x = 0;
        while x + 4 <= width {
            let a = _mm_packs_epi32(pixel(x), pixel(x + 1));
            let b = _mm_packs_epi32(pixel(x + 2), pixel(x + 3));
            let (low, high) = (_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b));
            let (first, last) = (_mm_unpacklo_epi16(low, high), _mm_unpackhi_epi16(low, high));
            let planes = [first, _mm_srli_si128::<8>(first), last];
            for (c, four) in planes.into_iter().enumerate() {
                let to = &mut out[c * width + x..][..4];
                // SAFETY: the slice has four elements of two bytes.
                unsafe { _mm_storel_epi64(to.as_mut_ptr().cast(), four) };
            }
            x += 4;
        }
        for x in x..width {
            let sums = pixel(x);
            out[x] = _mm_extract_epi32::<0>(sums) as i16;
            out[width + x] = _mm_extract_epi32::<1>(sums) as i16;
            out[2 * width + x] = _mm_extract_epi32::<2>(sums) as i16;
        }
    }

    /// Two lines, each from its first element that is wanted on, and their weights.
    type Pair<'a> = (&'a [i16], &'a [i16], __m256i);

    /// The pair of lines number `number`, of `length` elements from `from` on and a few more.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn pair<'a>(near: &Near<'a>, number: usize, from: usize, length: usize) -> Pair<'a> {
        let line = |i: usize| {
            let start = (near.start + number * 2 + i) % near.ring * near.length + from;
            &near.lines[start..][..length.next_multiple_of(LANES)]
        };
        let taps = [near.taps[number * 2], near.taps[number * 2 + 1]];
        (line(0), line(1), _mm256_set1_epi32(bytemuck::cast(taps)))
    }

    /// Sixteen levels from element `at` of the lines: those of the first and third quarter, and
    /// those of the others.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn mix(pairs: &[Pair<'_>], at: usize) -> (__m256i, __m256i) {
        let half = _mm256_set1_epi32(1 << (ROW_SHIFT - 1));
        let (mut low, mut high) = (half, half);
        let load = |line: &[i16]| {
            let run = &line[at..][..LANES];
            // SAFETY: the slice has sixteen elements of two bytes.
            unsafe { _mm256_loadu_si256(run.as_ptr().cast()) }
        };
        for (a, b, taps) in pairs {
            let (a, b) = (load(a), load(b));
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), *taps));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), *taps));
        }
        (
            _mm256_srai_epi32::<{ ROW_SHIFT as i32 }>(low),
            _mm256_srai_epi32::<{ ROW_SHIFT as i32 }>(high),
        )
    }

    /// Makes a row, sixteen elements at a time: `write` gets their place and their levels.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn row(
        near: &Near<'_>,
        from: usize,
        length: usize,
        mut write: impl FnMut(usize, __m256i, __m256i),
    ) {
        let mut each = |pairs: &[Pair<'_>]| {
            for at in (0..length).step_by(LANES) {
                let (low, high) = mix(pairs, at);
                write(at, low, high);
            }
        };
        // Up to four lines, the usual number, without an allocation and with known bounds.
        match near.taps.len() / 2 {
            1 => each(&[pair(near, 0, from, length)]),
            2 => each(&[pair(near, 0, from, length), pair(near, 1, from, length)]),
            count => {
                for at in (0..length).step_by(LANES) {
                    let half = _mm256_set1_epi32(1 << (ROW_SHIFT - 1));
                    let (mut first, mut second) = (half, half);
                    for number in 0..count {
                        let (a, b, taps) = pair(near, number, from + at, LANES);
                        // SAFETY: both slices have sixteen elements of two bytes.
                        let (a, b) = unsafe {
                            (
                                _mm256_loadu_si256(a.as_ptr().cast()),
                                _mm256_loadu_si256(b.as_ptr().cast()),
                            )
                        };
                        let (low, high) =
                            (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
                        first = _mm256_add_epi32(first, _mm256_madd_epi16(low, taps));
                        second = _mm256_add_epi32(second, _mm256_madd_epi16(high, taps));
                    }
                    write(
                        at,
                        _mm256_srai_epi32::<{ ROW_SHIFT as i32 }>(first),
                        _mm256_srai_epi32::<{ ROW_SHIFT as i32 }>(second),
                    );
                }
            }
        }
    }

    #[target_feature(enable = "avx2")]
    fn floats(near: &Near<'_>, from: usize, out: &mut [f32], scale: f32, bias: f32) {
        let (scale, bias) = (_mm256_set1_ps(scale), _mm256_set1_ps(bias));
        // A product rounded before the sum, as everywhere else.
        let finish = |x| _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(x), scale), bias);
        row(near, from, out.len(), |at, low, high| {
            let first = finish(_mm256_permute2x128_si256::<0x20>(low, high));
            let second = finish(_mm256_permute2x128_si256::<0x31>(low, high));
            let store = |to: &mut [f32; LANES]| {
                // SAFETY: there is room for sixteen.
                unsafe {
                    _mm256_storeu_ps(to.as_mut_ptr(), first);
                    _mm256_storeu_ps(to.as_mut_ptr().add(8), second);
                }
            };
            match out[at..].first_chunk_mut() {
                Some(to) => store(to),
                None => {
                    let mut last = [0.0; LANES];
                    store(&mut last);
                    let rest = &mut out[at..];
                    rest.copy_from_slice(&last[..rest.len()]);
                }
            }
        });
    }

    #[target_feature(enable = "avx2")]
    fn bytes(near: &Near<'_>, from: usize, out: &mut [u8]) {
        row(near, from, out.len(), |at, low, high| {
            let words = _mm256_packs_epi32(low, high);
            let halves = _mm256_castsi256_si128(words);
            let both = _mm_packus_epi16(halves, _mm256_extracti128_si256::<1>(words));
            let mut sixteen = [0; LANES];
            // SAFETY: there is room for sixteen.
            unsafe { _mm_storeu_si128(sixteen.as_mut_ptr().cast(), both) };
            let rest = &mut out[at..];
            let count = rest.len().min(LANES);
            rest[..count].copy_from_slice(&sixteen[..count]);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Draws;

    fn axis(draws: &mut Draws, length: usize) -> Axis {
        let start = draws.uniform(0.0, length as f64 / 2.0);
        let stretch = draws.uniform(0.5, length as f64 - start);
        let outputs = 1 + draws.below(60) as usize;
        let first = draws.below(outputs as u64) as usize;
        Axis {
            start,
            length: stretch,
            outputs,
            first,
            count: 1 + draws.below((outputs - first) as u64) as usize,
            limits: (start as usize, ((start + stretch).ceil() as usize).min(length)),
            origin: 0,
            mirrored: draws.chance(0.5),
        }
    }

    /// The definition in floating point, one element at a time, without rounding in between.
    fn plain(from: &[u8], view: View, rows: &Axis, columns: &Axis, c: usize) -> Vec<f64> {
        let weights = |axis: &Axis, i: usize| {
            let scale = axis.length / axis.outputs as f64;
            let stretch = scale.max(1.0);
            let i = if axis.mirrored { axis.count - 1 - i } else { i };
            let centre = axis.start + ((axis.first + i) as f64 + 0.5) * scale;
            let all: Vec<(usize, f64)> = (axis.limits.0..axis.limits.1)
                .map(|x| (x, (1.0 - ((x as f64 + 0.5 - centre) / stretch).abs()).max(0.0)))
                .collect();
            let sum: f64 = all.iter().map(|(_, weight)| weight).sum();
            // The nearest pixel, if the filter reaches none.
            match sum > 0.0 {
                true => all.into_iter().map(|(x, weight)| (x, weight / sum)).collect(),
                false => vec![((centre as usize).clamp(axis.limits.0, axis.limits.1 - 1), 1.0)],
            }
        };
        let mut out = Vec::new();
        for y in 0..rows.count {
            let down = weights(rows, y);
            for x in 0..columns.count {
                let across = weights(columns, x);
                let level = |y: usize, x: usize| f64::from(from[view.at(y, x, c)]);
                out.push(
                    down.iter()
                        .map(|(y, v)| {
                            v * across.iter().map(|(x, w)| w * level(*y, *x)).sum::<f64>()
                        })
                        .sum(),
                );
            }
        }
        out
    }

    fn sizes(draws: &mut Draws) -> (View, Vec<u8>) {
        let (height, width) = (1 + draws.below(90) as usize, 1 + draws.below(90) as usize);
        let view = View::interleaved(height, width, 1 + draws.below(4) as usize);
        let from = (0..view.elements()).map(|_| draws.below(256) as u8).collect();
        (view, from)
    }

    #[test]
    fn within_a_level_of_the_definition_and_all_targets_agree() {
        let mut workspace = Workspace::default();
        for number in 0..300 {
            let draws = &mut Draws::new(5, 0, number, 0);
            let (view, from) = sizes(draws);
            let (rows, columns) = (axis(draws, view.height), axis(draws, view.width));
            let (height, width, channels) = (rows.count, columns.count, view.channels);
            let mut planes = vec![0; height * width * channels];
            let mut pixels = planes.clone();
            let mut floats = vec![0.0; planes.len()];
            let mut into = |target| resize(&from, view, [&rows, &columns], &mut workspace, target);
            into(Target::Planes(&mut planes)).unwrap();
            into(Target::Pixels(&mut pixels)).unwrap();
            let (scale, bias) = ([0.5, 2.0, 1.0, 3.0], [1.0, -3.0, 0.25, 0.0]);
            into(Target::Floats { out: &mut floats, scale, bias }).unwrap();
            for c in 0..channels {
                let wanted = plain(&from, view, &rows, &columns, c);
                for (i, wanted) in wanted.iter().enumerate() {
                    let got = planes[c * height * width + i];
                    // A filter that reaches no pixel takes the nearest, in either way.
                    let close = (f64::from(got) - wanted).abs() < 0.53;
                    assert!(close, "{number}: {got} for {wanted}, {rows:?} {columns:?}");
                    assert_eq!(got, pixels[i * channels + c]);
                    let float = f32::from(got) * scale[c] + bias[c];
                    assert_eq!(float, floats[c * height * width + i]);
                }
            }
        }
    }

    #[test]
    fn the_plain_path_gives_the_same_bytes() {
        let (mut one, mut other) = (Workspace::default(), Workspace::default());
        for number in 0..300 {
            let draws = &mut Draws::new(6, 0, number, 0);
            let (view, from) = sizes(draws);
            let (rows, columns) = (axis(draws, view.height), axis(draws, view.width));
            let mut fast = vec![0.0; rows.count * columns.count * view.channels];
            let mut slow = fast.clone();
            let (scale, bias) = ([0.1; 4], [0.7; 4]);
            let target = Target::Floats { out: &mut fast, scale, bias };
            resize(&from, view, [&rows, &columns], &mut one, target).unwrap();
            other.rows.set(&rows, false);
            other.columns.set(&columns, columns.mirrored);
            let target = Target::Floats { out: &mut slow, scale, bias };
            run::<Plain>(&from, view, rows.mirrored, &mut other, target);
            assert!(fast == slow, "{number}");
        }
    }

    /// The result is part of what a batch is: it must not change from one machine to another.
    #[test]
    fn a_known_result_stays_what_it_is() {
        let view = View::interleaved(61, 83, 3);
        let from: Vec<u8> = (0..view.elements()).map(|i| (i * i / 7 % 256) as u8).collect();
        let axis = |outputs, length| Axis {
            start: 1.25,
            length,
            outputs,
            first: 1,
            count: outputs - 2,
            limits: (1, 60),
            origin: 0,
            mirrored: true,
        };
        let mut out = vec![0; 30 * 22 * 3];
        let axes = [&axis(32, 55.5), &axis(24, 58.75)];
        resize(&from, view, axes, &mut Workspace::default(), Target::Planes(&mut out)).unwrap();
        assert_eq!(xxhash_rust::xxh3::xxh3_64(&out), 1_365_172_375_433_262_491);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let view = View::interleaved(4, 4, 3);
        let axis = Axis {
            start: 0.0,
            length: 4.0,
            outputs: 2,
            first: 0,
            count: 2,
            limits: (0, 4),
            origin: 0,
            mirrored: false,
        };
        let far = Axis { limits: (0, 5), ..axis };
        let many = Axis { count: 3, ..axis };
        let mut workspace = Workspace::default();
        let mut room = [0; 12];
        for (rows, columns, room) in
            [(far, axis, &mut room[..]), (axis, many, &mut [0; 18]), (axis, axis, &mut [0; 11])]
        {
            let target = Target::Planes(room);
            assert!(resize(&[9; 48], view, [&rows, &columns], &mut workspace, target).is_err());
        }
        let target = Target::Planes(&mut room);
        assert!(resize(&[9; 48], view, [&axis, &axis], &mut workspace, target).is_ok());
        assert_eq!(room, [9; 12]);
    }
}
