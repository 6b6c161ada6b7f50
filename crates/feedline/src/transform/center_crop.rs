//! `CenterCrop`: the middle of the image, with zeros around where it is too small.

use serde_json::{Map, Value, json};

use super::pad::{self, Beyond};
use super::{ImageShape, Placement, Transform, parameters};
use crate::error::{Fault, SpecError};
use crate::image::{Image, PixelType, Region};
use crate::random::Draws;
use crate::spec::Table;

#[derive(Debug)]
pub(super) struct CenterCrop {
    height: usize,
    width: usize,
}

impl CenterCrop {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        let (height, width) = parameters::size(table)?;
        Ok(Box::new(CenterCrop { height, width }))
    }
}

/// Where a crop begins: torchvision rounds halves to the even pixel when it cuts, and puts the
/// odd pixel of padding at the far side.
fn start(image: usize, crop: usize) -> isize {
    if crop > image {
        -(((crop - image) / 2) as isize)
    } else {
        ((image - crop) as f64 / 2.0).round_ties_even() as isize
    }
}

impl Transform for CenterCrop {
    fn name(&self) -> &'static str {
        "CenterCrop"
    }

    fn parameters(&self) -> Map<String, Value> {
        let CenterCrop { height, width } = self;
        Map::from_iter([("size".to_owned(), json!([height, width]))])
    }

    fn shape(&self, input: ImageShape) -> Result<ImageShape, Fault> {
        Ok(input.sized((self.height, self.width)))
    }

    fn fixed_size(&self) -> Option<(usize, usize)> {
        Some((self.height, self.width))
    }

    fn makes_pixels(&self, input: ImageShape) -> bool {
        self.height > input.height || self.width > input.width
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        input.sized((self.height, self.width)).elements().saturating_mul(pixel.size())
    }

    fn place(&self, placement: &mut Placement, _: &mut Draws) -> Option<Result<(), Fault>> {
        let input = placement.shape(1);
        if self.makes_pixels(input) {
            return None;
        }
        let (top, left) = (start(input.height, self.height), start(input.width, self.width));
        let (top, left) = (top as usize, left as usize);
        placement.crop(Region { top, left, height: self.height, width: self.width });
        Some(Ok(()))
    }

    fn apply(&self, image: &mut Image<'_>, _: &mut Draws) -> Result<(), Fault> {
        let view = image.view();
        let origin = (start(view.height, self.height), start(view.width, self.width));
        pad::window(image, origin, (self.height, self.width), Beyond::Constant, &[0.0])
    }
}
