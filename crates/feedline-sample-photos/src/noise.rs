//! A periodic field whose amplitude falls as 1/f, like that of photographs.
//!
//! Only +, -, *, / and square roots are used, which IEEE 754 fixes to the last bit, so the field
//! is the same on every machine.

use crate::draws::Draws;

/// A square field that repeats in both directions, with mean 0 and standard deviation 1.
#[derive(Debug, Default)]
pub(super) struct Field {
    side: usize,
    texels: Vec<f32>,
    spare: Vec<f32>,
    row: Vec<f32>,
}

/// Side of the first, smoothest layer.
const FIRST_LAYER: usize = 4;

/// Amplitude of a layer over that of the one before.
const GROWTH: f32 = 1.28;

impl Field {
    /// Draws a new field with `side` texels (a power of two, at least 4).
    ///
    /// A power of 1/f^2 over the plane is equal energy in every octave, so every octave adds a
    /// layer of nearly the same variance: [`GROWTH`] makes up for what the interpolations between
    /// layers and between texels smooth away. Each layer is carried up to the next by cubic
    /// B-spline subdivision, so that all layers together cost 4/3 of the last one.
    pub(super) fn fill(&mut self, side: usize, draws: &mut Draws) {
        self.side = FIRST_LAYER;
        self.texels.clear();
        self.texels.resize(FIRST_LAYER * FIRST_LAYER, 0.0);
        let mut amplitude = 1.0;
        self.add_layer(amplitude, draws);
        while self.side < side {
            amplitude *= GROWTH;
            self.subdivide();
            self.add_layer(amplitude, draws);
        }
        self.standardise();
    }

    /// The field between texels, bilinear, at coordinates with 16 fractional bits.
    #[inline(always)]
    pub(super) fn at(&self, x: i32, y: i32) -> f32 {
        let mask = self.side - 1;
        let (left, top) = ((x >> 16) as usize & mask, (y >> 16) as usize & mask);
        let (right, bottom) = ((left + 1) & mask, (top + 1) & mask);
        let along = (x & 0xffff) as f32 * (1.0 / 65536.0);
        let down = (y & 0xffff) as f32 * (1.0 / 65536.0);
        let upper = &self.texels[top * self.side..][..self.side];
        let lower = &self.texels[bottom * self.side..][..self.side];
        let first = upper[left] + (upper[right] - upper[left]) * along;
        let second = lower[left] + (lower[right] - lower[left]) * along;
        first + (second - first) * down
    }

    fn add_layer(&mut self, amplitude: f32, draws: &mut Draws) {
        for texels in self.texels.chunks_mut(4) {
            for (texel, byte) in texels.iter_mut().zip(draws.bits().to_le_bytes()) {
                *texel += (f32::from(byte) - 127.5) * amplitude;
            }
        }
    }

    /// Doubles the side: the weights (1, 6, 1) / 8 and (4, 4) / 8 of the cubic B-spline.
    fn subdivide(&mut self) {
        let (old, new) = (self.side, self.side * 2);
        self.spare.resize(new * new, 0.0);
        self.row.resize(old, 0.0);
        for y in 0..new {
            let line = |row: usize| &self.texels[(row % old) * old..][..old];
            let (middle, next) = (line(y / 2), line(y / 2 + 1));
            if y % 2 == 0 {
                let previous = line(y / 2 + old - 1);
                for x in 0..old {
                    self.row[x] = (previous[x] + next[x]) * 0.125 + middle[x] * 0.75;
                }
            } else {
                for x in 0..old {
                    self.row[x] = (middle[x] + next[x]) * 0.5;
                }
            }
            let out = &mut self.spare[y * new..][..new];
            for (x, pair) in out.chunks_exact_mut(2).enumerate() {
                let (left, here, right) =
                    (self.row[(x + old - 1) % old], self.row[x], self.row[(x + 1) % old]);
                pair[0] = (left + right) * 0.125 + here * 0.75;
                pair[1] = (here + right) * 0.5;
            }
        }
        std::mem::swap(&mut self.texels, &mut self.spare);
        self.side = new;
    }

    fn standardise(&mut self) {
        let count = self.texels.len() as f64;
        let mean = self.texels.iter().map(|&texel| f64::from(texel)).sum::<f64>() / count;
        let square =
            self.texels.iter().map(|&texel| f64::from(texel) * f64::from(texel)).sum::<f64>()
                / count;
        let scale = (1.0 / (square - mean * mean).max(1e-12).sqrt()) as f32;
        let mean = mean as f32;
        for texel in &mut self.texels {
            *texel = (*texel - mean) * scale;
        }
    }
}

/// The sine of `turns` full turns, to 0.001: a corrected parabola, without the platform's libm.
#[inline(always)]
pub(super) fn wave(turns: f32) -> f32 {
    let turns = turns - (turns + 0.5).floor();
    let parabola = 8.0 * turns - 16.0 * turns * turns.abs();
    parabola + 0.225 * (parabola * parabola.abs() - parabola)
}

/// The direction after `turns` full turns: cosine and sine.
pub(super) fn direction(turns: f32) -> (f32, f32) {
    (wave(turns + 0.25), wave(turns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_periodic_and_has_unit_variance() {
        let mut field = Field::default();
        field.fill(64, &mut Draws::new(1, 0, 0));
        assert_eq!(field.at(5 << 16, 9 << 16), field.at((5 + 64) << 16, (9 - 64) << 16));
        let square = field.texels.iter().map(|texel| texel * texel).sum::<f32>() / 4096.0;
        assert!((square - 1.0).abs() < 1e-3, "{square}");
    }

    #[test]
    fn the_wave_is_a_sine() {
        for step in -300..300 {
            let turns = step as f32 / 100.0;
            let exact = (f64::from(turns) * std::f64::consts::TAU).sin();
            assert!((f64::from(wave(turns)) - exact).abs() < 2e-3, "{turns}");
        }
    }
}
