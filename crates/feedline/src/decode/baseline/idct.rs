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

/// One pass over eight values: the even and odd parts of Loeffler, Ligtenberg and Moschytz.
#[inline(always)]
fn pass(x: [Int; 8], shift: usize) -> [Int; 8] {
    let z1 = (x[2] + x[6]) * Wrapping(F_0_541);
    let even2 = z1 - x[6] * Wrapping(F_1_847);
    let even3 = z1 + x[2] * Wrapping(F_0_765);
    let even0 = (x[0] + x[4]) << CONST_BITS;
    let even1 = (x[0] - x[4]) << CONST_BITS;
    let (a0, a3, a1, a2) = (even0 + even3, even0 - even3, even1 + even2, even1 - even2);
    let (z1, z2, z3, z4) = (x[7] + x[1], x[5] + x[3], x[7] + x[3], x[5] + x[1]);
    let z5 = (z3 + z4) * Wrapping(F_1_175);
    let z1 = -z1 * Wrapping(F_0_899);
    let z2 = -z2 * Wrapping(F_2_562);
    let z3 = z5 - z3 * Wrapping(F_1_961);
    let z4 = z5 - z4 * Wrapping(F_0_390);
    let b0 = x[7] * Wrapping(F_0_298) + z1 + z3;
    let b1 = x[5] * Wrapping(F_2_053) + z2 + z4;
    let b2 = x[3] * Wrapping(F_3_072) + z2 + z3;
    let b3 = x[1] * Wrapping(F_1_501) + z1 + z4;
    [a0 + b3, a1 + b2, a2 + b1, a3 + b0, a3 - b0, a2 - b1, a1 - b2, a0 - b3]
        .map(|value| rounded(value, shift))
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
    for (x, column) in columns.iter_mut().enumerate() {
        let values = std::array::from_fn(|y| dequantised(block, factors, y * 8 + x));
        *column = pass(values, CONST_BITS - PASS_BITS);
    }
    for (y, row) in out.chunks_mut(stride).take(8).enumerate() {
        let values = std::array::from_fn(|x| columns[x][y]);
        let samples = pass(values, CONST_BITS + PASS_BITS + 3).map(sample);
        row[..8].copy_from_slice(&samples);
    }
}

/// Writes `size` x `size` equal samples: the result for a block whose other coefficients are 0.
pub(super) fn flat(first: i16, factor: i16, size: usize, out: &mut [u8], stride: usize) {
    let value = sample(Wrapping((i32::from(first.wrapping_mul(factor)) + 4) >> 3));
    for row in out.chunks_mut(stride).take(size) {
        row[..size].fill(value);
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
    use super::*;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2")]
    fn times(x: __m256i, factor: i32) -> __m256i {
        _mm256_mullo_epi32(x, _mm256_set1_epi32(factor))
    }

    /// [`super::pass`] on eight lanes.
    #[target_feature(enable = "avx2")]
    fn pass<const SHIFT: i32>(x: [__m256i; 8]) -> [__m256i; 8] {
        let add = |a, b| _mm256_add_epi32(a, b);
        let sub = |a, b| _mm256_sub_epi32(a, b);
        let half = _mm256_set1_epi32(1 << (SHIFT - 1));
        let z1 = times(add(x[2], x[6]), F_0_541);
        let even2 = sub(z1, times(x[6], F_1_847));
        let even3 = add(z1, times(x[2], F_0_765));
        // The rounding is added once, where it reaches every sum.
        let even0 = add(_mm256_slli_epi32::<{ CONST_BITS as i32 }>(add(x[0], x[4])), half);
        let even1 = add(_mm256_slli_epi32::<{ CONST_BITS as i32 }>(sub(x[0], x[4])), half);
        let (a0, a3) = (add(even0, even3), sub(even0, even3));
        let (a1, a2) = (add(even1, even2), sub(even1, even2));
        let (z1, z2) = (add(x[7], x[1]), add(x[5], x[3]));
        let (z3, z4) = (add(x[7], x[3]), add(x[5], x[1]));
        let z5 = times(add(z3, z4), F_1_175);
        let z1 = times(z1, F_0_899);
        let z2 = times(z2, F_2_562);
        let z3 = sub(z5, times(z3, F_1_961));
        let z4 = sub(z5, times(z4, F_0_390));
        let b0 = add(sub(times(x[7], F_0_298), z1), z3);
        let b1 = add(sub(times(x[5], F_2_053), z2), z4);
        let b2 = add(sub(times(x[3], F_3_072), z2), z3);
        let b3 = add(sub(times(x[1], F_1_501), z1), z4);
        [
            _mm256_srai_epi32::<SHIFT>(add(a0, b3)),
            _mm256_srai_epi32::<SHIFT>(add(a1, b2)),
            _mm256_srai_epi32::<SHIFT>(add(a2, b1)),
            _mm256_srai_epi32::<SHIFT>(add(a3, b0)),
            _mm256_srai_epi32::<SHIFT>(sub(a3, b0)),
            _mm256_srai_epi32::<SHIFT>(sub(a2, b1)),
            _mm256_srai_epi32::<SHIFT>(sub(a1, b2)),
            _mm256_srai_epi32::<SHIFT>(sub(a0, b3)),
        ]
    }

    /// Rows become columns.
    #[target_feature(enable = "avx2")]
    fn transpose(r: [__m256i; 8]) -> [__m256i; 8] {
        let low = |a, b| _mm256_unpacklo_epi32(a, b);
        let high = |a, b| _mm256_unpackhi_epi32(a, b);
        let t = [
            low(r[0], r[1]),
            high(r[0], r[1]),
            low(r[2], r[3]),
            high(r[2], r[3]),
            low(r[4], r[5]),
            high(r[4], r[5]),
            low(r[6], r[7]),
            high(r[6], r[7]),
        ];
        let low = |a, b| _mm256_unpacklo_epi64(a, b);
        let high = |a, b| _mm256_unpackhi_epi64(a, b);
        let u = [
            low(t[0], t[2]),
            high(t[0], t[2]),
            low(t[1], t[3]),
            high(t[1], t[3]),
            low(t[4], t[6]),
            high(t[4], t[6]),
            low(t[5], t[7]),
            high(t[5], t[7]),
        ];
        let first = |a, b| _mm256_permute2x128_si256::<0x20>(a, b);
        let second = |a, b| _mm256_permute2x128_si256::<0x31>(a, b);
        [
            first(u[0], u[4]),
            first(u[1], u[5]),
            first(u[2], u[6]),
            first(u[3], u[7]),
            second(u[0], u[4]),
            second(u[1], u[5]),
            second(u[2], u[6]),
            second(u[3], u[7]),
        ]
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn full(block: &Block, factors: &[i16; 64], out: &mut [u8], stride: usize) {
        let row = |y: usize| {
            // SAFETY: eight elements from y * 8, y below 8, lie inside 64.
            let (coefficients, factors) = unsafe {
                (
                    _mm_loadu_si128(block.as_ptr().add(y * 8).cast()),
                    _mm_loadu_si128(factors.as_ptr().add(y * 8).cast()),
                )
            };
            _mm256_cvtepi16_epi32(_mm_mullo_epi16(coefficients, factors))
        };
        let rows = [row(0), row(1), row(2), row(3), row(4), row(5), row(6), row(7)];
        let columns = transpose(pass::<{ (CONST_BITS - PASS_BITS) as i32 }>(rows));
        let rows = transpose(pass::<{ (CONST_BITS + PASS_BITS + 3) as i32 }>(columns));
        let centre = _mm256_set1_epi8(-128);
        for (pair, rows) in rows.as_chunks::<4>().0.iter().enumerate() {
            let a = _mm256_packs_epi32(rows[0], rows[1]);
            let b = _mm256_packs_epi32(rows[2], rows[3]);
            // Lanes hold the left halves and the right halves of four rows.
            let four = _mm256_xor_si256(_mm256_packs_epi16(a, b), centre);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let four = _mm256_permutevar8x32_epi32(four, order);
            let mut samples = [0u8; 32];
            // SAFETY: the array has 32 bytes.
            unsafe { _mm256_storeu_si256(samples.as_mut_ptr().cast(), four) };
            for (i, eight) in samples.as_chunks::<8>().0.iter().enumerate() {
                let at = (pair * 4 + i) * stride;
                out[at..at + 8].copy_from_slice(eight);
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
        fn wide_equals_plain(values in prop::collection::vec(-300i16..300, 64), factor in 1i16..20) {
            let mut block: Block = [0; 65];
            block[..64].copy_from_slice(&values);
            let factors = [factor; 64];
            let (mut wide, mut plain) = ([0u8; 8 * 10], [0u8; 8 * 10]);
            full(&block, &factors, &mut wide, 10);
            full_plain(&block, &factors, &mut plain, 10);
            prop_assert_eq!(&wide, &plain);
        }
    }
}
