//! `RandomErasing`: a random rectangle is painted over.

use serde_json::{Map, Value, json};

use super::lanes::lanes;
use super::{ImageShape, Transform, straight};
use crate::error::{Fault, SpecError};
use crate::image::{Image, PixelType, Region, View};
use crate::random::Draws;
use crate::sample::DType;
use crate::spec::Table;

#[derive(Debug)]
pub(super) struct RandomErasing {
    p: f64,
    scale: [f64; 2],
    ratio: [f64; 2],
    /// For each channel; `None` paints with noise.
    value: Option<Vec<f64>>,
}

impl RandomErasing {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        let p = table.number("p", 0.0, 1.0)?.unwrap_or(0.5);
        let scale = match table.numbers("scale")?.as_deref() {
            None => [0.02, 0.33],
            Some(&[low, high]) if 0.0 <= low && low <= high && high <= 1.0 => [low, high],
            Some(other) => {
                return Err(table
                    .error("scale", "is not allowed")
                    .value(json!(other))
                    .allowed("[low, high] with 0 <= low <= high <= 1"));
            }
        };
        let ratio = super::parameters::range(table, "ratio", [0.3, 3.3])?;
        let value = match table.take("value") {
            None => Some(vec![0.0]),
            Some(Value::String(text)) if text == "random" => None,
            Some(given) => {
                let numbers = match &given {
                    Value::Array(items) => items.iter().map(Value::as_f64).collect(),
                    single => single.as_f64().map(|x| vec![x]),
                };
                let numbers = numbers.filter(|values: &Vec<f64>| matches!(values.len(), 1..=4));
                Some(numbers.ok_or_else(|| {
                    table
                        .error("value", "is not allowed")
                        .value(&given)
                        .allowed("a number, one for each channel, or \"random\"")
                })?)
            }
        };
        Ok(Box::new(RandomErasing { p, scale, ratio, value }))
    }

    /// The rectangle, if one is found in ten tries.
    fn draw(&self, input: ImageShape, draws: &mut Draws) -> Option<Region> {
        let area = (input.height * input.width) as f64;
        let [low, high] = self.ratio.map(f64::ln);
        for _ in 0..10 {
            let erased = area * draws.uniform(self.scale[0], self.scale[1]);
            let aspect = draws.uniform(low, high).exp();
            let height = (erased * aspect).sqrt().round_ties_even();
            let width = (erased / aspect).sqrt().round_ties_even();
            if height >= input.height as f64 || width >= input.width as f64 {
                continue;
            }
            let (height, width) = (height as usize, width as usize);
            let top = draws.below((input.height - height) as u64 + 1) as usize;
            let left = draws.below((input.width - width) as u64 + 1) as usize;
            return Some(Region { top, left, height, width });
        }
        None
    }
}

/// Normal numbers, so many at once.
const NOISE: usize = 64;

struct Normal<'a> {
    draws: &'a mut Draws,
    block: [f32; 2 * NOISE],
    used: usize,
}

impl Normal<'_> {
    fn next(&mut self) -> f32 {
        if self.used == self.block.len() {
            let mut bits = [0; 2 * NOISE];
            bits.iter_mut().for_each(|bits| *bits = self.draws.bits());
            normal_numbers(&bits, &mut self.block);
            self.used = 0;
        }
        self.used += 1;
        self.block[self.used - 1]
    }
}

lanes! {
    /// Normal numbers of random bits, in pairs by Box and Muller. Logarithm, sine and cosine are
    /// polynomials here, good to 24 bits, since those of the system come one at a time.
    fn normal_numbers(bits: &[u32; 2 * NOISE], out: &mut [f32; 2 * NOISE]) {
        let (lengths, turns) = bits.split_at(NOISE);
        let (first, second) = out.split_at_mut(NOISE);
        for i in 0..NOISE {
            // Above 0 and up to 1.
            let unit = ((lengths[i] >> 8) as i32 + 1) as f32 * (1.0 / 16_777_216.0);
            let bits = unit.to_bits();
            let exponent = (bits >> 23) as i32 - 127;
            let fraction = f32::from_bits(bits & 0x007f_ffff | 0x3f80_0000);
            let high = fraction > std::f32::consts::SQRT_2;
            let fraction = if high { fraction * 0.5 } else { fraction };
            let exponent = if high { exponent + 1 } else { exponent };
            let t = (fraction - 1.0) / (fraction + 1.0);
            let t2 = t * t;
            let series = (((t2 * (1.0 / 9.0) + 1.0 / 7.0) * t2 + 1.0 / 5.0) * t2 + 1.0 / 3.0) * t2 + 1.0;
            let logarithm = exponent as f32 * std::f32::consts::LN_2 + 2.0 * t * series;
            let length = (-2.0 * logarithm).max(0.0).sqrt();
            // A quarter of the circle and an angle of up to an eighth on either side of it.
            let turn = (turns[i] >> 8) as i32;
            let quarter = (turn + (1 << 21)) >> 22;
            let angle = (turn - (quarter << 22)) as f32 * (std::f32::consts::FRAC_PI_2 / 4_194_304.0);
            let a2 = angle * angle;
            let sine = angle * (((a2 * (-1.0 / 5040.0) + 1.0 / 120.0) * a2 - 1.0 / 6.0) * a2 + 1.0);
            let cosine =
                (((a2 * (1.0 / 40320.0) - 1.0 / 720.0) * a2 + 1.0 / 24.0) * a2 - 0.5) * a2 + 1.0;
            let odd = quarter & 1 == 1;
            let (x, y) = if odd { (-sine, cosine) } else { (cosine, sine) };
            let sign = if quarter & 2 == 2 { -length } else { length };
            first[i] = sign * x;
            second[i] = sign * y;
        }
    }
}

/// Writes `value(channel)` to every element of a part.
fn paint<T: bytemuck::Pod>(
    elements: &mut [T],
    view: View,
    part: Region,
    mut value: impl FnMut(usize) -> T,
) {
    for c in 0..view.channels {
        for y in part.top..part.top + part.height {
            let mut at = view.at(y, part.left, c) as isize;
            for _ in 0..part.width {
                elements[at as usize] = value(c);
                at += view.column;
            }
        }
    }
}

/// Writes a pixel to every place of a part.
fn paint_even<T: bytemuck::Pod>(elements: &mut [T], view: View, part: Region, pixel: [T; 4]) {
    if view.channel == 1 && view.channels == 3 && view.column.abs() == 3 && part.width > 0 {
        for y in part.top..part.top + part.height {
            let ends = [part.left, part.left + part.width - 1].map(|x| view.at(y, x, 0));
            let run = ends[0].min(ends[1])..ends[0].max(ends[1]) + 3;
            let (pixels, _) = elements[run].as_chunks_mut::<3>();
            pixels.fill([pixel[0], pixel[1], pixel[2]]);
        }
        return;
    }
    paint(elements, view, part, |c| pixel[c & 3]);
}

impl Transform for RandomErasing {
    fn name(&self) -> &'static str {
        "RandomErasing"
    }

    fn parameters(&self) -> Map<String, Value> {
        let RandomErasing { p, scale, ratio, value } = self;
        let value = value.as_ref().map_or(json!("random"), |value| json!(value));
        Map::from_iter([
            ("p".to_owned(), json!(p)),
            ("scale".to_owned(), json!(scale)),
            ("ratio".to_owned(), json!(ratio)),
            ("value".to_owned(), value),
        ])
    }

    fn is_random(&self) -> bool {
        true
    }

    fn acts(&self, draws: &mut Draws) -> bool {
        draws.chance(self.p)
    }

    fn check(&self, channels: usize, _: DType) -> Result<(), SpecError> {
        match &self.value {
            Some(value) if value.len() > 1 && channels > 0 && value.len() != channels => {
                Err(SpecError::new("value", format!("does not fit {channels} channels"))
                    .value(json!(value))
                    .allowed("a number, one for each channel, or \"random\""))
            }
            _ => Ok(()),
        }
    }

    fn makes_pixels(&self, _: ImageShape) -> bool {
        true
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        input.elements().saturating_mul(2 * pixel.size())
    }

    fn drawn(&self, input: ImageShape, draws: &mut Draws) -> Value {
        if !self.acts(draws) {
            return json!({"acts": false});
        }
        match self.draw(input, draws) {
            None => json!({"acts": false}),
            Some(Region { top, left, height, width }) => {
                json!({"acts": true, "i": top, "j": left, "h": height, "w": width})
            }
        }
    }

    fn apply(&self, image: &mut Image<'_>, draws: &mut Draws) -> Result<(), Fault> {
        self.acts(draws);
        let Some(part) = self.draw(ImageShape::of(image.view()), draws) else { return Ok(()) };
        let value = self.value.as_ref().map(|value| [0, 1, 2, 3].map(|c| value[c % value.len()]));
        straight::edit(image, |bytes, pixel, view| {
            let mut noise = Normal { draws, block: [0.0; 2 * NOISE], used: 2 * NOISE };
            match (pixel, value) {
                // torch cuts floats to whole numbers, and those to their lowest byte.
                (PixelType::U8, Some(value)) => {
                    paint_even(bytes, view, part, value.map(|x| x as i64 as u8));
                }
                (PixelType::U8, None) => paint(bytes, view, part, |_| noise.next() as i64 as u8),
                (PixelType::F32, value) => {
                    let whole = bytes.len() / 4 * 4;
                    let Ok(floats) = bytemuck::try_cast_slice_mut(&mut bytes[..whole]) else {
                        return;
                    };
                    match value {
                        Some(value) => paint_even(floats, view, part, value.map(|x| x as f32)),
                        None => paint(floats, view, part, |_| noise.next()),
                    }
                }
            }
        })
    }
}
