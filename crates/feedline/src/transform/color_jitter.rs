//! `ColorJitter`: brightness, contrast, saturation and hue, in random order.

use serde_json::{Map, Value, json};

use super::color::{self, Step};
use super::{ImageShape, Transform, parameters};
use crate::error::{Fault, SpecError};
use crate::image::{Image, PixelType};
use crate::random::Draws;
use crate::sample::DType;
use crate::spec::Table;

const NAMES: [&str; 4] = ["brightness", "contrast", "saturation", "hue"];

#[derive(Debug)]
pub(super) struct ColorJitter {
    /// The range of each factor, in the order of `NAMES`; `None` leaves the image as it is.
    ranges: [Option<[f64; 2]>; 4],
}

impl ColorJitter {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        let mut ranges = [None; 4];
        for (name, range) in NAMES.into_iter().zip(&mut ranges) {
            *range = read_range(table, name)?;
        }
        Ok(Box::new(ColorJitter { ranges }))
    }

    fn draw(&self, draws: &mut Draws) -> ([Option<f64>; 4], [usize; 4]) {
        // Every order equally often: Fisher and Yates.
        let mut order = [0, 1, 2, 3];
        for i in (1..4).rev() {
            order.swap(i, draws.below(i as u64 + 1) as usize);
        }
        (self.ranges.map(|range| range.map(|[low, high]| draws.uniform(low, high))), order)
    }
}

fn read_range(table: &mut Table, name: &'static str) -> Result<Option<[f64; 2]>, SpecError> {
    let hue = name == "hue";
    let (middle, low, high) = if hue { (0.0, -0.5, 0.5) } else { (1.0, 0.0, f64::INFINITY) };
    let given = table.numbers(name)?;
    let range = match given.as_deref() {
        None => return Ok(None),
        Some(&[by]) if by >= 0.0 => [if hue { -by } else { (middle - by).max(0.0) }, middle + by],
        Some(&[from, to]) => [from, to],
        Some(other) => [f64::NAN, other.first().copied().unwrap_or(f64::NAN)],
    };
    if !(low <= range[0] && range[0] <= range[1] && range[1] <= high) {
        return Err(table.error(name, "is not allowed").value(json!(given)).allowed(if hue {
            "a number from 0 to 0.5, or [lowest, highest] from -0.5 to 0.5"
        } else {
            "a number of at least 0, or [lowest, highest], both at least 0"
        }));
    }
    Ok((range != [middle; 2]).then_some(range))
}

impl Transform for ColorJitter {
    fn name(&self) -> &'static str {
        "ColorJitter"
    }

    fn parameters(&self) -> Map<String, Value> {
        let ColorJitter { ranges } = self;
        NAMES.iter().zip(ranges).map(|(name, range)| ((*name).to_owned(), json!(range))).collect()
    }

    fn is_random(&self) -> bool {
        true
    }

    fn check(&self, channels: usize, _: DType) -> Result<(), SpecError> {
        parameters::one_or_three(channels)
    }

    fn makes_pixels(&self, _: ImageShape) -> bool {
        self.ranges.iter().any(Option::is_some)
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        // Passes go to and fro between two pieces of memory.
        input.elements().saturating_mul(pixel.size()).saturating_mul(2)
    }

    fn drawn(&self, _: ImageShape, draws: &mut Draws) -> Value {
        let (factors, order) = self.draw(draws);
        let mut drawn: Map<String, Value> = NAMES
            .iter()
            .zip(factors)
            .map(|(name, factor)| (format!("{name}_factor"), json!(factor)))
            .collect();
        drawn.insert("fn_idx".to_owned(), json!(order));
        Value::Object(drawn)
    }

    fn apply(&self, image: &mut Image<'_>, draws: &mut Draws) -> Result<(), Fault> {
        let (factors, order) = self.draw(draws);
        let mut steps = [Step::Gray; 4];
        let mut count = 0;
        for which in order {
            let Some(factor) = factors[which] else { continue };
            let kinds = [Step::Brightness, Step::Contrast, Step::Saturation, Step::Hue];
            steps[count] = kinds[which](factor);
            count += 1;
        }
        color::adjust(image, &steps[..count])
    }
}
