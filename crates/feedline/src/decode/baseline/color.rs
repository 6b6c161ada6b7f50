//! Samples to pixels: smooth upsampling and colours, to the bit as libjpeg-turbo.

#![allow(unsafe_code)]

/// How the colour components of a row are made as wide and as high as the image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Upsampling {
    /// 1 or 2.
    pub(super) across: usize,
    /// 1 or 2.
    pub(super) down: usize,
}

/// One row of a colour component: its own samples, and those of the row that is next nearest to
/// the output row (the same row if there is no upsampling downwards).
#[derive(Clone, Copy)]
pub(super) struct Near<'a> {
    pub(super) row: &'a [u8],
    pub(super) next: &'a [u8],
    /// True if `next` lies below.
    pub(super) below: bool,
}

/// Room for one row on its way, reused from row to row.
#[derive(Default)]
pub(super) struct Lines {
    sums: Vec<u16>,
    blue: Vec<u8>,
    red: Vec<u8>,
    words: Vec<u32>,
}

impl Lines {
    /// Writes the pixels of a row: `luma` has a sample for each, `blue` and `red` what it takes to
    /// make as many.
    pub(super) fn write(
        &mut self,
        luma: &[u8],
        blue: Near<'_>,
        red: Near<'_>,
        upsampling: Upsampling,
        ends: Ends,
        out: &mut [u8],
    ) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has what the function is compiled for.
            unsafe { self.write_avx2(luma, blue, red, upsampling, ends, out) };
            return;
        }
        self.write_by(luma, blue, red, upsampling, ends);
        pack(&self.words, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn write_avx2(
        &mut self,
        luma: &[u8],
        blue: Near<'_>,
        red: Near<'_>,
        upsampling: Upsampling,
        ends: Ends,
        out: &mut [u8],
    ) {
        self.write_by(luma, blue, red, upsampling, ends);
        pack_avx2(&self.words, out);
    }

    #[inline(always)]
    fn write_by(
        &mut self,
        luma: &[u8],
        blue: Near<'_>,
        red: Near<'_>,
        upsampling: Upsampling,
        ends: Ends,
    ) {
        let Lines { sums, blue: blues, red: reds, words } = self;
        let (blue, red) = if upsampling.across == 1 && upsampling.down == 1 {
            (blue.row, red.row)
        } else {
            upsample(blue, upsampling, ends, sums, blues);
            upsample(red, upsampling, ends, sums, reds);
            (&blues[ends.skip..], &reds[ends.skip..])
        };
        words.resize(luma.len(), 0);
        convert(luma, &blue[..luma.len()], &red[..luma.len()], words);
    }
}

/// Where the samples at hand stop although the image's do not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    /// Entries before the first that is upsampled: 0 at the image's edge, else 1.
    pub(super) before: usize,
    /// Entries that are upsampled.
    pub(super) count: usize,
    /// Samples of the upsampled row before the first that is wanted.
    pub(super) skip: usize,
}

/// Smooth upsampling: three parts of the nearer sample, one of the further. At the image's edges
/// the further one is the nearer itself.
#[inline(always)]
fn upsample(near: Near<'_>, how: Upsampling, ends: Ends, sums: &mut Vec<u16>, out: &mut Vec<u8>) {
    let length = near.row.len();
    let (row, next) = (&near.row[..length], &near.next[..length]);
    if how.across == 1 {
        let bias = if near.below { 2 } else { 1 };
        out.resize(length, 0);
        for ((to, a), b) in out.iter_mut().zip(row).zip(next) {
            *to = ((u16::from(*a) * 3 + u16::from(*b) + bias) >> 2) as u8;
        }
        return;
    }
    // One entry more at both ends, for the neighbours of the first and the last.
    sums.resize(ends.count + 2, 0);
    let from = ends.before;
    let (shift, low, high) = if how.down == 2 {
        let inner = &mut sums[1..=ends.count];
        for ((sum, a), b) in inner.iter_mut().zip(&row[from..]).zip(&next[from..]) {
            *sum = u16::from(*a) * 3 + u16::from(*b);
        }
        (4, 8, 7)
    } else {
        for (sum, a) in sums[1..=ends.count].iter_mut().zip(&row[from..]) {
            *sum = u16::from(*a);
        }
        (2, 1, 2)
    };
    let whole = |at: usize| match how.down {
        2 => u16::from(row[at]) * 3 + u16::from(next[at]),
        _ => u16::from(row[at]),
    };
    sums[0] = whole(0);
    sums[ends.count + 1] = whole((from + ends.count).min(length - 1));
    out.resize(ends.count * 2, 0);
    let (pairs, _) = out.as_chunks_mut::<2>();
    let (before, here, after) = (&sums[..ends.count], &sums[1..=ends.count], &sums[2..]);
    for (((pair, here), before), after) in pairs.iter_mut().zip(here).zip(before).zip(after) {
        let three = here * 3;
        *pair = [((three + before + low) >> shift) as u8, ((three + after + high) >> shift) as u8];
    }
}

/// YCbCr to red, green and blue in the low bytes of words.
#[inline(always)]
fn convert(luma: &[u8], blue: &[u8], red: &[u8], words: &mut [u32]) {
    let half = 1 << 15;
    for (((word, y), cb), cr) in words.iter_mut().zip(luma).zip(blue).zip(red) {
        let (y, cb, cr) = (i32::from(*y), i32::from(*cb) - 128, i32::from(*cr) - 128);
        // Factors of ITU-R 601 with 16 bits after the point.
        let r = (y + ((91881 * cr + half) >> 16)).clamp(0, 255);
        let g = (y + ((-22554 * cb - 46802 * cr + half) >> 16)).clamp(0, 255);
        let b = (y + ((116130 * cb + half) >> 16)).clamp(0, 255);
        *word = (r | g << 8 | b << 16) as u32;
    }
}

/// The low three bytes of each word.
fn pack(words: &[u32], out: &mut [u8]) {
    let (pixels, _) = out.as_chunks_mut::<3>();
    for (pixel, word) in pixels.iter_mut().zip(words) {
        let [r, g, b, _] = word.to_le_bytes();
        *pixel = [r, g, b];
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn pack_avx2(words: &[u32], out: &mut [u8]) {
    use std::arch::x86_64::*;
    let order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    let mut at = 0;
    // Sixteen bytes are written for twelve: the last pixels are left to the plain way.
    while at + 4 <= words.len() && at * 3 + 16 <= out.len() {
        // SAFETY: four words from `at` and sixteen bytes from `at * 3` were just checked to exist.
        unsafe {
            let four = _mm_loadu_si128(words.as_ptr().add(at).cast());
            _mm_storeu_si128(out.as_mut_ptr().add(at * 3).cast(), _mm_shuffle_epi8(four, order));
        }
        at += 4;
    }
    pack(&words[at..], &mut out[at * 3..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Draws;

    #[test]
    fn the_plain_path_gives_the_same_bytes() {
        for number in 0..200 {
            let draws = &mut Draws::new(4, 0, number, 0);
            let width = 1 + draws.below(90) as usize;
            let (across, down) = (1 + draws.below(2) as usize, 1 + draws.below(2) as usize);
            let skip = draws.below(across as u64) as usize;
            let count = (width + skip).div_ceil(across);
            let mut row = |length: usize| -> Vec<u8> {
                (0..length).map(|_| draws.below(256) as u8).collect()
            };
            let (luma, lines) = (row(width), [(); 4].map(|()| row(count)));
            let near =
                |i: usize| Near { row: &lines[i], next: &lines[i + 1], below: number % 2 == 0 };
            let upsampling = Upsampling { across, down };
            let ends = Ends { before: 0, count, skip };
            let (mut fast, mut slow) = (vec![0; width * 3], vec![0; width * 3]);
            let mut state = Lines::default();
            state.write(&luma, near(0), near(2), upsampling, ends, &mut fast);
            state.write_by(&luma, near(0), near(2), upsampling, ends);
            pack(&state.words, &mut slow);
            assert_eq!(fast, slow, "{number}");
        }
    }
}
