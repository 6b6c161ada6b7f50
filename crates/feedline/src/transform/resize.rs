//! `Resize`: the shorter side, or both, at a given length.

use serde_json::{Map, Value, json};

use super::placement::Resized;
use super::resample::{self, Interpolation};
use super::{ImageShape, Placement, Transform, parameters};
use crate::error::{Fault, SpecError};
use crate::image::PixelType;
use crate::random::Draws;
use crate::spec::Table;

/// A 1 x 100000 image whose shorter side becomes 224 would have 5 billion pixels: such results
/// are refused at the size at which decoding refuses images by default.
const MAX_PIXELS: f64 = 178_956_970.0;

#[derive(Debug)]
enum Target {
    /// The shorter side.
    Shorter(usize),
    /// Height and width.
    Both(usize, usize),
    /// The longer side is `max_size`.
    Longer,
}

#[derive(Debug)]
pub(super) struct Resize {
    target: Target,
    max_size: Option<usize>,
    interpolation: Interpolation,
    antialias: bool,
}

impl Resize {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        let target = match parameters::sides(table, "size")?.as_deref() {
            Some(&[side]) => Target::Shorter(side),
            Some(&[height, width]) => Target::Both(height, width),
            _ => Target::Longer,
        };
        let max_size = table.whole("max_size", 1)?.map(|side| side.min(1 << 20) as usize);
        match (&target, max_size) {
            (Target::Longer, None) => {
                return Err(table.missing("size", "a whole number or [height, width]"));
            }
            (Target::Shorter(side), Some(longest)) if longest <= *side => {
                return Err(table
                    .error("max_size", "must be greater than size")
                    .value(longest)
                    .allowed(format!("a whole number above {side}")));
            }
            (Target::Both(..), Some(longest)) => {
                return Err(table
                    .error("max_size", "cannot go with a size of two numbers")
                    .value(longest));
            }
            _ => {}
        }
        let (interpolation, antialias) = parameters::interpolation(table)?;
        Ok(Box::new(Resize { target, max_size, interpolation, antialias }))
    }

    /// torchvision's arithmetic, quotients cut off.
    fn size(&self, input: ImageShape) -> Result<(usize, usize), Fault> {
        let (short, long) = (input.height.min(input.width), input.height.max(input.width));
        if short == 0 {
            return Err(Fault::Shape("an image without pixels cannot be resized".into()));
        }
        let quotient = |a: f64, b: usize, c: usize| (a * b as f64 / c as f64).floor();
        let (new_short, new_long) = match (&self.target, self.max_size) {
            (Target::Both(height, width), _) => return Ok((*height, *width)),
            (Target::Longer, longest) => {
                let longest = longest.unwrap_or(1);
                (quotient(longest as f64, short, long), longest as f64)
            }
            (Target::Shorter(side), longest) => {
                let new_long = quotient(*side as f64, long, short);
                match longest {
                    Some(longest) if new_long > longest as f64 => {
                        ((longest as f64 * *side as f64 / new_long).floor(), longest as f64)
                    }
                    _ => (*side as f64, new_long),
                }
            }
        };
        let new_short = new_short.max(1.0);
        if new_short * new_long > MAX_PIXELS {
            return Err(Fault::TooLarge(format!(
                "Resize would make {new_short} x {new_long} pixels of {} x {}",
                input.height, input.width
            )));
        }
        let (new_short, new_long) = (new_short as usize, new_long as usize);
        Ok(if input.width <= input.height { (new_long, new_short) } else { (new_short, new_long) })
    }
}

impl Transform for Resize {
    fn name(&self) -> &'static str {
        "Resize"
    }

    fn parameters(&self) -> Map<String, Value> {
        let Resize { target, max_size, interpolation, antialias } = self;
        let size = match target {
            Target::Shorter(side) => json!([side]),
            Target::Both(height, width) => json!([height, width]),
            Target::Longer => Value::Null,
        };
        Map::from_iter([
            ("size".to_owned(), size),
            ("interpolation".to_owned(), json!(interpolation.name())),
            ("max_size".to_owned(), json!(max_size)),
            ("antialias".to_owned(), json!(antialias)),
        ])
    }

    fn shape(&self, input: ImageShape) -> Result<ImageShape, Fault> {
        self.size(input).map(|size| input.sized(size))
    }

    fn fixed_size(&self) -> Option<(usize, usize)> {
        match self.target {
            Target::Both(height, width) => Some((height, width)),
            _ => None,
        }
    }

    fn makes_pixels(&self, input: ImageShape) -> bool {
        self.size(input).is_ok_and(|size| size != (input.height, input.width))
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        self.size(input).map_or(0, |size| resample::scratch(input, size, pixel, self.interpolation))
    }

    fn place(&self, placement: &mut Placement, _: &mut Draws) -> Option<Result<(), Fault>> {
        if placement.resized.is_some() {
            return None;
        }
        Some(self.size(placement.shape(1)).map(|(height, width)| {
            placement.resize(Resized {
                height,
                width,
                interpolation: self.interpolation,
                antialias: self.antialias,
            });
        }))
    }
}
