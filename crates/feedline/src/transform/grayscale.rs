//! `Grayscale` and `RandomGrayscale`: without colours.

use serde_json::{Map, Value, json};

use super::color::{self, Step};
use super::{ImageShape, Transform, parameters};
use crate::error::{Fault, SpecError};
use crate::image::{Image, PixelType};
use crate::random::Draws;
use crate::sample::DType;
use crate::spec::Table;

#[derive(Debug)]
pub(super) struct Grayscale {
    num_output_channels: usize,
}

impl Grayscale {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        let num_output_channels = match table.whole("num_output_channels", 0)? {
            None | Some(1) => 1,
            Some(3) => 3,
            Some(other) => {
                return Err(table
                    .error("num_output_channels", "is not allowed")
                    .value(other)
                    .allowed("1 or 3"));
            }
        };
        Ok(Box::new(Grayscale { num_output_channels }))
    }
}

impl Transform for Grayscale {
    fn name(&self) -> &'static str {
        "Grayscale"
    }

    fn parameters(&self) -> Map<String, Value> {
        let Grayscale { num_output_channels } = self;
        Map::from_iter([("num_output_channels".to_owned(), json!(num_output_channels))])
    }

    fn check(&self, channels: usize, _: DType) -> Result<(), SpecError> {
        parameters::one_or_three(channels)
    }

    fn channels(&self, _: usize) -> usize {
        self.num_output_channels
    }

    fn shape(&self, input: ImageShape) -> Result<ImageShape, Fault> {
        Ok(ImageShape { channels: self.num_output_channels, ..input })
    }

    fn makes_pixels(&self, input: ImageShape) -> bool {
        input.channels == 3 || self.num_output_channels == 3
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        input.elements().saturating_mul(pixel.size())
    }

    fn apply(&self, image: &mut Image<'_>, _: &mut Draws) -> Result<(), Fault> {
        match (image.view().channels, self.num_output_channels) {
            (3, 1) => color::to_gray(image),
            (3, _) => color::adjust(image, &[Step::Gray]),
            (1, 3) => {
                // The one channel seen three times: nothing is copied.
                let view = image.view_mut();
                (view.channels, view.channel) = (3, 0);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
pub(super) struct RandomGrayscale {
    p: f64,
}

impl RandomGrayscale {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        Ok(Box::new(RandomGrayscale { p: table.number("p", 0.0, 1.0)?.unwrap_or(0.1) }))
    }
}

impl Transform for RandomGrayscale {
    fn name(&self) -> &'static str {
        "RandomGrayscale"
    }

    fn parameters(&self) -> Map<String, Value> {
        let RandomGrayscale { p } = self;
        Map::from_iter([("p".to_owned(), json!(p))])
    }

    fn is_random(&self) -> bool {
        true
    }

    fn acts(&self, draws: &mut Draws) -> bool {
        draws.chance(self.p)
    }

    fn check(&self, channels: usize, _: DType) -> Result<(), SpecError> {
        parameters::one_or_three(channels)
    }

    fn makes_pixels(&self, input: ImageShape) -> bool {
        input.channels == 3
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        input.elements().saturating_mul(pixel.size())
    }

    fn drawn(&self, _: ImageShape, draws: &mut Draws) -> Value {
        json!({"acts": self.acts(draws)})
    }

    fn apply(&self, image: &mut Image<'_>, _: &mut Draws) -> Result<(), Fault> {
        color::adjust(image, &[Step::Gray])
    }
}
