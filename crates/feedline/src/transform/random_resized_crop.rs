//! `RandomResizedCrop`: a part of random area and aspect ratio, at a given size.

use serde_json::{Map, Value, json};

use super::placement::Resized;
use super::resample::{self, Interpolation};
use super::{ImageShape, Placement, Transform, parameters};
use crate::error::{Fault, SpecError};
use crate::image::{PixelType, Region};
use crate::random::Draws;
use crate::spec::Table;

#[derive(Debug)]
pub(super) struct RandomResizedCrop {
    height: usize,
    width: usize,
    scale: [f64; 2],
    ratio: [f64; 2],
    interpolation: Interpolation,
    antialias: bool,
}

impl RandomResizedCrop {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        let (height, width) = parameters::size(table)?;
        let scale = parameters::range(table, "scale", [0.08, 1.0])?;
        let ratio = parameters::range(table, "ratio", [3.0 / 4.0, 4.0 / 3.0])?;
        let (interpolation, antialias) = parameters::interpolation(table)?;
        Ok(Box::new(RandomResizedCrop { height, width, scale, ratio, interpolation, antialias }))
    }

    /// Top, left, height and width of the part, by torchvision's sampling: ten attempts, then
    /// the largest middle part whose ratio is allowed.
    fn draw(&self, image: ImageShape, draws: &mut Draws) -> Region {
        let (height, width) = (image.height as f64, image.width as f64);
        let [low, high] = self.ratio.map(f64::ln);
        for _ in 0..10 {
            let area = height * width * draws.uniform(self.scale[0], self.scale[1]);
            let aspect = draws.uniform(low, high).exp();
            let w = (area * aspect).sqrt().round_ties_even();
            let h = (area / aspect).sqrt().round_ties_even();
            if w > 0.0 && w <= width && h > 0.0 && h <= height {
                let (h, w) = (h as usize, w as usize);
                let top = draws.below((image.height - h) as u64 + 1) as usize;
                let left = draws.below((image.width - w) as u64 + 1) as usize;
                return Region { top, left, height: h, width: w };
            }
        }
        let [low, high] = self.ratio;
        let aspect = width / height;
        let (h, w) = if aspect < low {
            ((width / low).round_ties_even(), width)
        } else if aspect > high {
            (height, (height * high).round_ties_even())
        } else {
            (height, width)
        };
        // Rounding may reach 0 or pass the edge by a pixel for images of a few pixels.
        let h = (h as usize).clamp(1, image.height);
        let w = (w as usize).clamp(1, image.width);
        Region { top: (image.height - h) / 2, left: (image.width - w) / 2, height: h, width: w }
    }
}

impl Transform for RandomResizedCrop {
    fn name(&self) -> &'static str {
        "RandomResizedCrop"
    }

    fn parameters(&self) -> Map<String, Value> {
        let RandomResizedCrop { height, width, scale, ratio, interpolation, antialias } = self;
        Map::from_iter([
            ("size".to_owned(), json!([height, width])),
            ("scale".to_owned(), json!(scale)),
            ("ratio".to_owned(), json!(ratio)),
            ("interpolation".to_owned(), json!(interpolation.name())),
            ("antialias".to_owned(), json!(antialias)),
        ])
    }

    fn is_random(&self) -> bool {
        true
    }

    fn shape(&self, input: ImageShape) -> Result<ImageShape, Fault> {
        if input.height == 0 || input.width == 0 {
            return Err(Fault::Shape("an image without pixels cannot be cropped".into()));
        }
        Ok(input.sized((self.height, self.width)))
    }

    fn fixed_size(&self) -> Option<(usize, usize)> {
        Some((self.height, self.width))
    }

    fn makes_pixels(&self, _: ImageShape) -> bool {
        true
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        resample::scratch(input, (self.height, self.width), pixel, self.interpolation)
    }

    fn place(&self, placement: &mut Placement, draws: &mut Draws) -> Option<Result<(), Fault>> {
        if placement.resized.is_some() {
            return None;
        }
        let input = placement.shape(1);
        Some(self.shape(input).map(|_| {
            placement.crop(self.draw(input, draws));
            placement.resize(Resized {
                height: self.height,
                width: self.width,
                interpolation: self.interpolation,
                antialias: self.antialias,
            });
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_inside_and_extremes_fall_back_to_the_middle() {
        let op = RandomResizedCrop {
            height: 8,
            width: 8,
            scale: [0.08, 1.0],
            ratio: [0.75, 4.0 / 3.0],
            interpolation: Interpolation::Bilinear,
            antialias: true,
        };
        for (height, width) in [(1, 1), (1, 500), (500, 1), (2, 3), (375, 500)] {
            for position in 0..200 {
                let image = ImageShape { height, width, channels: 3 };
                let part = op.draw(image, &mut Draws::new(1, 2, position, 0));
                assert!(part.height >= 1 && part.top + part.height <= height);
                assert!(part.width >= 1 && part.left + part.width <= width);
            }
        }
        // No part of 8 % or more of a 10 x 1000 image has an allowed ratio: the middle 10 x 13.
        let image = ImageShape { height: 10, width: 1000, channels: 3 };
        let middle = Region { top: 0, left: 493, height: 10, width: 13 };
        assert_eq!(op.draw(image, &mut Draws::new(1, 2, 3, 4)), middle);
    }
}
