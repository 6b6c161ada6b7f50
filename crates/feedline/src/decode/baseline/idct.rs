//! The inverse cosine transform, to the bit as libjpeg-turbo's accurate one, and its reductions to
//! 4 x 4, 2 x 2 and 1 x 1, which are the means of the full result's pixels.

#![allow(unsafe_code)]

use std::num::Wrapping;

use super::huffman::Block;

/// Bits after the point of the factors, and bits kept between the passes.
const CONST_BITS: usize = 13;
const PASS_BITS: usize = 2;

const F_0_298: i32 = 2446;
const F_0_390: i32 = 3196;
const F_0_541: i32 = 4433;
const F_0_765: i32 = 6270;
const F_0_899: i32 = 7373;
const F_1_175: i32 = 9633;
const F_1_501: i32 = 12299;
const F_1_847: i32 = 15137;
const F_1_961: i32 = 16069;
const F_2_053: i32 = 16819;
const F_2_562: i32 = 20995;
const F_3_072: i32 = 25172;

/// Hostile coefficients may overflow; libjpeg-turbo's do as well.
type Int = Wrapping<i32>;

fn sample(value: Int) -> u8 {
    (value.0.saturating_add(128)).clamp(0, 255) as u8
}

fn rounded(value: Int, shift: usize) -> Int {
    (value + Wrapping(1 << (shift - 1))) >> shift
}

/// In 16 bits, as the library keeps sums.
fn short(value: Int) -> Int {
    Wrapping(i32::from(value.0 as i16))
}

/// One pass over eight values: the even and odd parts of Loeffler, Ligtenberg and Moschytz.
/// Hostile values overflow just where the library's do.
#[inline(always)]
fn pass(x: [Int; 8], shift: usize) -> [Int; 8] {
    let [f_0_298, f_0_390, f_0_541, f_0_765, f_0_899, f_1_175] =
        [F_0_298, F_0_390, F_0_541, F_0_765, F_0_899, F_1_175].map(Wrapping);
    let [f_1_501, f_1_847, f_1_961, f_2_053, f_2_562, f_3_072] =
        [F_1_501, F_1_847, F_1_961, F_2_053, F_2_562, F_3_072].map(Wrapping);
    let even2 = x[2] * f_0_541 + x[6] * (f_0_541 - f_1_847);
    let even3 = x[2] * (f_0_541 + f_0_765) + x[6] * f_0_541;
    let even0 = short(x[0] + x[4]) << CONST_BITS;
    let even1 = short(x[0] - x[4]) << CONST_BITS;
    let (a0, a3, a1, a2) = (even0 + even3, even0 - even3, even1 + even2, even1 - even2);
    let (z3, z4) = (short(x[7] + x[3]), short(x[5] + x[1]));
    let odd3 = z3 * (f_1_175 - f_1_961) + z4 * f_1_175;
    let odd4 = z3 * f_1_175 + z4 * (f_1_175 - f_0_390);
    let b0 = x[7] * (f_0_298 - f_0_899) - x[1] * f_0_899 + odd3;
    let b3 = x[1] * (f_1_501 - f_0_899) - x[7] * f_0_899 + odd4;
    let b1 = x[5] * (f_2_053 - f_2_562) - x[3] * f_2_562 + odd4;
    let b2 = x[3] * (f_3_072 - f_2_562) - x[5] * f_2_562 + odd3;
    [a0 + b3, a1 + b2, a2 + b1, a3 + b0, a3 - b0, a2 - b1, a1 - b2, a0 - b3].map(|value| {
        let rounded = rounded(value, shift);
        Wrapping(rounded.0.clamp(i16::MIN.into(), i16::MAX.into()))
    })
}

/// Products as the library keeps them, in 16 bits.
#[inline(always)]
fn dequantised(block: &Block, factors: &[i16; 64], at: usize) -> Int {
    Wrapping(i32::from(block[at].wrapping_mul(factors[at])))
}

/// Writes 8 x 8 samples, `stride` apart from row to row.
pub(super) fn full(block: &Block, factors: &[i16; 64], out: &mut [u8], stride: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has what the function is compiled for.
        unsafe { avx2::full(block, factors, out, stride) };
        return;
    }
    full_plain(block, factors, out, stride);
}

fn full_plain(block: &Block, factors: &[i16; 64], out: &mut [u8], stride: usize) {
    let mut columns = [[Wrapping(0); 8]; 8];
    let one_row = block[8..64].iter().all(|coefficient| *coefficient == 0);
    for (x, column) in columns.iter_mut().enumerate() {
        if one_row {
            // The library's shortcut, which overflows elsewhere.
            *column = [short(dequantised(block, factors, x) << PASS_BITS); 8];
            continue;
        }
        let values = std::array::from_fn(|y| dequantised(block, factors, y * 8 + x));
        *column = pass(values, CONST_BITS - PASS_BITS);
    }
    for (y, row) in out.chunks_mut(stride).take(8).enumerate() {
        let values = std::array::from_fn(|x| columns[x][y]);
        let samples = pass(values, CONST_BITS + PASS_BITS + 3).map(sample);
        row[..8].copy_from_slice(&samples);
    }
}

/// Writes `across` x `down` equal samples: the result for a block whose other coefficients are 0.
pub(super) fn flat(
    first: i16,
    factor: i16,
    (across, down): (usize, usize),
    out: &mut [u8],
    stride: usize,
) {
    let between = first.wrapping_mul(factor) << PASS_BITS;
    let value = sample(rounded(Wrapping(between.into()), PASS_BITS + 3));
    for row in out.chunks_mut(stride).take(down) {
        row[..across].fill(value);
    }
}

/// Writes `across` x `down` samples, of which one is twice the other: means of pairs.
pub(super) fn oblong(
    block: &Block,
    factors: &[i16; 64],
    (across, down): (usize, usize),
    out: &mut [u8],
    stride: usize,
) {
    let mut square = [0; 64];
    let size = across.max(down);
    match size {
        8 => full(block, factors, &mut square, 8),
        4 => half(block, factors, &mut square, 4),
        _ => quarter(block, factors, &mut square, 2),
    }
    // The second of a pair lies below or to the right.
    let (step_x, step_y, second) = if across > down { (1, 2 * size, size) } else { (2, size, 1) };
    for (y, row) in out.chunks_mut(stride).take(down).enumerate() {
        for (x, to) in row[..across].iter_mut().enumerate() {
            let at = y * step_y + x * step_x;
            *to = ((u16::from(square[at]) + u16::from(square[at + second]) + 1) >> 1) as u8;
        }
    }
}

/// Writes 4 x 4 samples, the means of 2 x 2 of the full result.
pub(super) fn half(block: &Block, factors: &[i16; 64], out: &mut [u8], stride: usize) {
    // Factors of the odd coefficients: sums of cosines, with 13 bits after the point.
    fn pass(x: [Int; 8], shift: usize) -> [Int; 4] {
        let [seventh, fifth, third, first] = [x[7], x[5], x[3], x[1]];
        let even = x[0] << (CONST_BITS + 1);
        let second = x[2] * Wrapping(F_1_847) - x[6] * Wrapping(F_0_765);
        let inner = fifth * Wrapping(11893) - seventh * Wrapping(1730) - third * Wrapping(17799)
            + first * Wrapping(8697);
        let outer = third * Wrapping(F_0_899) - seventh * Wrapping(4176) - fifth * Wrapping(4926)
            + first * Wrapping(F_2_562);
        let (a, b) = (even + second, even - second);
        [a + outer, b + inner, b - inner, a - outer].map(|value| rounded(value, shift))
    }
    let mut columns = [[Wrapping(0); 4]; 8];
    for (x, column) in columns.iter_mut().enumerate() {
        if x != 4 {
            let values = std::array::from_fn(|y| dequantised(block, factors, y * 8 + x));
            *column = pass(values, CONST_BITS - PASS_BITS + 1);
        }
    }
    for (y, row) in out.chunks_mut(stride).take(4).enumerate() {
        let values = std::array::from_fn(|x| columns[x][y]);
        let samples = pass(values, CONST_BITS + PASS_BITS + 3 + 1).map(sample);
        row[..4].copy_from_slice(&samples);
    }
}

/// Writes 2 x 2 samples, the means of 4 x 4 of the full result.
pub(super) fn quarter(block: &Block, factors: &[i16; 64], out: &mut [u8], stride: usize) {
    fn pass(x: [Int; 8], shift: usize) -> [Int; 2] {
        let even = x[0] << (CONST_BITS + 2);
        let odd = x[5] * Wrapping(6967) - x[7] * Wrapping(5906) - x[3] * Wrapping(10426)
            + x[1] * Wrapping(29692);
        [even + odd, even - odd].map(|value| rounded(value, shift))
    }
    let mut columns = [[Wrapping(0); 2]; 8];
    for x in [0, 1, 3, 5, 7] {
        let values = std::array::from_fn(|y| dequantised(block, factors, y * 8 + x));
        columns[x] = pass(values, CONST_BITS - PASS_BITS + 2);
    }
    for (y, row) in out.chunks_mut(stride).take(2).enumerate() {
        let values = std::array::from_fn(|x| columns[x][y]);
        let samples = pass(values, CONST_BITS + PASS_BITS + 3 + 2).map(sample);
        row[..2].copy_from_slice(&samples);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::*;

    /// Elements of `a` and `b` by turns.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn pairs(a: __m128i, b: __m128i) -> __m256i {
        _mm256_set_m128i(_mm_unpackhi_epi16(a, b), _mm_unpacklo_epi16(a, b))
    }

    /// Sums of pairs, each times its factor.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn times(pairs: __m256i, first: i32, second: i32) -> __m256i {
        _mm256_madd_epi16(pairs, _mm256_set1_epi32(first & 0xffff | second << 16))
    }

    /// [`super::pass`] on eight lanes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn pass<const SHIFT: i32>(x: [__m128i; 8]) -> [__m128i; 8] {
        let add = |a, b| _mm256_add_epi32(a, b);
        let sub = |a, b| _mm256_sub_epi32(a, b);
        let scaled = |x| _mm256_slli_epi32::<{ CONST_BITS as i32 }>(_mm256_cvtepi16_epi32(x));
        // The rounding is added once, where it reaches every sum.
        let half = _mm256_set1_epi32(1 << (SHIFT - 1));
        let even = pairs(x[2], x[6]);
        let even2 = times(even, F_0_541, F_0_541 - F_1_847);
        let even3 = times(even, F_0_541 + F_0_765, F_0_541);
        let even0 = add(scaled(_mm_add_epi16(x[0], x[4])), half);
        let even1 = add(scaled(_mm_sub_epi16(x[0], x[4])), half);
        let (a0, a3) = (add(even0, even3), sub(even0, even3));
        let (a1, a2) = (add(even1, even2), sub(even1, even2));
        let odd = pairs(_mm_add_epi16(x[7], x[3]), _mm_add_epi16(x[5], x[1]));
        let odd3 = times(odd, F_1_175 - F_1_961, F_1_175);
        let odd4 = times(odd, F_1_175, F_1_175 - F_0_390);
        let outer = pairs(x[7], x[1]);
        let b0 = add(times(outer, F_0_298 - F_0_899, -F_0_899), odd3);
        let b3 = add(times(outer, -F_0_899, F_1_501 - F_0_899), odd4);
        let inner = pairs(x[5], x[3]);
        let b1 = add(times(inner, F_2_053 - F_2_562, -F_2_562), odd4);
        let b2 = add(times(inner, -F_2_562, F_3_072 - F_2_562), odd3);
        let narrow = |x| {
            let x = _mm256_srai_epi32::<SHIFT>(x);
            _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x))
        };
        [
            narrow(add(a0, b3)),
            narrow(add(a1, b2)),
            narrow(add(a2, b1)),
            narrow(add(a3, b0)),
            narrow(sub(a3, b0)),
            narrow(sub(a2, b1)),
            narrow(sub(a1, b2)),
            narrow(sub(a0, b3)),
        ]
    }

    /// Rows become columns.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn transpose(r: [__m128i; 8]) -> [__m128i; 8] {
        let low = |a, b| _mm_unpacklo_epi16(a, b);
        let high = |a, b| _mm_unpackhi_epi16(a, b);
        // Each time the eight are shuffled like cards, a row's number moves into its column's.
        let shuffle = |r: [__m128i; 8]| {
            [
                low(r[0], r[4]),
                high(r[0], r[4]),
                low(r[1], r[5]),
                high(r[1], r[5]),
                low(r[2], r[6]),
                high(r[2], r[6]),
                low(r[3], r[7]),
                high(r[3], r[7]),
            ]
        };
        shuffle(shuffle(shuffle(r)))
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn full(block: &Block, factors: &[i16; 64], out: &mut [u8], stride: usize) {
        let load = |from: &[i16], y: usize| {
            let row = &from[y * 8..][..8];
            // SAFETY: the slice has eight elements of two bytes.
            unsafe { _mm_loadu_si128(row.as_ptr().cast()) }
        };
        let raw = std::array::from_fn::<_, 8, _>(|y| load(block, y));
        let some = |a, b| _mm_or_si128(a, b);
        let below = some(
            some(some(raw[1], raw[2]), some(raw[3], raw[4])),
            some(some(raw[5], raw[6]), raw[7]),
        );
        let rows = std::array::from_fn::<_, 8, _>(|y| _mm_mullo_epi16(raw[y], load(factors, y)));
        let columns = if _mm_test_all_zeros(below, below) == 1 {
            // The library's shortcut, which overflows elsewhere.
            transpose([_mm_slli_epi16::<{ PASS_BITS as i32 }>(rows[0]); 8])
        } else {
            transpose(pass::<{ (CONST_BITS - PASS_BITS) as i32 }>(rows))
        };
        let rows = transpose(pass::<{ (CONST_BITS + PASS_BITS + 3) as i32 }>(columns));
        let centre = _mm_set1_epi8(-128);
        for (y, pair) in rows.as_chunks::<2>().0.iter().enumerate() {
            let both = _mm_xor_si128(_mm_packs_epi16(pair[0], pair[1]), centre);
            let halves = [_mm_cvtsi128_si64(both), _mm_extract_epi64::<1>(both)];
            for (i, half) in halves.into_iter().enumerate() {
                let at = (y * 2 + i) * stride;
                out[at..at + 8].copy_from_slice(&half.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn wide_equals_plain(
            values in prop::collection::vec(prop_oneof![-300i16..300, any::<i16>(), Just(0)], 64),
            factor in 1i16..256,
            one_row: bool,
        ) {
            let mut block: Block = [0; 65];
            block[..64].copy_from_slice(&values);
            if one_row {
                block[8..].fill(0);
            }
            let factors = [factor; 64];
            let (mut wide, mut plain) = ([0u8; 8 * 10], [0u8; 8 * 10]);
            full(&block, &factors, &mut wide, 10);
            full_plain(&block, &factors, &mut plain, 10);
            prop_assert_eq!(&wide, &plain);
        }
    }
}
