//! `RandomCrop`: a part of the image, padded first where asked.

use serde_json::{Map, Value, json};

use super::pad::{self, Beyond};
use super::{ImageShape, Placement, Transform, parameters};
use crate::error::{Fault, SpecError};
use crate::image::{Image, PixelType, Region};
use crate::random::Draws;
use crate::spec::Table;

#[derive(Debug)]
pub(super) struct RandomCrop {
    height: usize,
    width: usize,
    /// Left, top, right, bottom.
    padding: Option<[usize; 4]>,
    pad_if_needed: bool,
    fill: Vec<f64>,
    beyond: Beyond,
}

impl RandomCrop {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        let (height, width) = parameters::size(table)?;
        let padding = pad::read_padding(table)?;
        let pad_if_needed = table.boolean("pad_if_needed")?.unwrap_or(false);
        let fill = table.numbers("fill")?.unwrap_or_else(|| vec![0.0]);
        if fill.is_empty() || fill.len() > 4 {
            return Err(table
                .error("fill", "is not allowed")
                .value(json!(fill))
                .allowed("a number, or one per channel"));
        }
        let beyond = table.choice("padding_mode", Beyond::NAMES)?.unwrap_or_default();
        Ok(Box::new(RandomCrop { height, width, padding, pad_if_needed, fill, beyond }))
    }

    /// Left and top padding, and the padded height and width.
    fn padded(&self, input: ImageShape) -> Result<([usize; 2], [usize; 2]), Fault> {
        let [left, top, right, bottom] = self.padding.unwrap_or_default();
        let mut before = [left, top];
        let mut padded = [input.height + top + bottom, input.width + left + right];
        if self.pad_if_needed {
            // On both sides, each time the whole difference, as torchvision does.
            let missing =
                [self.height.saturating_sub(padded[0]), self.width.saturating_sub(padded[1])];
            before = [before[0] + missing[1], before[1] + missing[0]];
            padded = [padded[0] + 2 * missing[0], padded[1] + 2 * missing[1]];
        }
        if padded[0] < self.height || padded[1] < self.width {
            return Err(Fault::Shape(format!(
                "RandomCrop of {} x {} (height x width) is larger than the {}image of {} x {}",
                self.height,
                self.width,
                if self.padding.is_some() { "padded " } else { "" },
                padded[0],
                padded[1]
            )));
        }
        Ok((before, padded))
    }

    /// Where the crop begins in the unpadded image.
    fn origin(&self, input: ImageShape, draws: &mut Draws) -> Result<(isize, isize), Fault> {
        let ([left, top], [height, width]) = self.padded(input)?;
        let y = draws.below((height - self.height) as u64 + 1) as isize - top as isize;
        let x = draws.below((width - self.width) as u64 + 1) as isize - left as isize;
        Ok((y, x))
    }
}

impl Transform for RandomCrop {
    fn name(&self) -> &'static str {
        "RandomCrop"
    }

    fn parameters(&self) -> Map<String, Value> {
        let RandomCrop { height, width, padding, pad_if_needed, fill, beyond } = self;
        Map::from_iter([
            ("size".to_owned(), json!([height, width])),
            ("padding".to_owned(), json!(padding)),
            ("pad_if_needed".to_owned(), json!(pad_if_needed)),
            ("fill".to_owned(), json!(fill)),
            ("padding_mode".to_owned(), json!(beyond.name())),
        ])
    }

    fn is_random(&self) -> bool {
        true
    }

    fn shape(&self, input: ImageShape) -> Result<ImageShape, Fault> {
        self.padded(input).map(|_| input.sized((self.height, self.width)))
    }

    fn fixed_size(&self) -> Option<(usize, usize)> {
        Some((self.height, self.width))
    }

    fn makes_pixels(&self, input: ImageShape) -> bool {
        self.padded(input).is_ok_and(|(_, padded)| padded != [input.height, input.width])
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        input.sized((self.height, self.width)).elements().saturating_mul(pixel.size())
    }

    fn place(&self, placement: &mut Placement, draws: &mut Draws) -> Option<Result<(), Fault>> {
        let input = placement.shape(1);
        if self.makes_pixels(input) {
            return None;
        }
        Some(self.origin(input, draws).map(|(y, x)| {
            let (top, left) = (y as usize, x as usize);
            placement.crop(Region { top, left, height: self.height, width: self.width });
        }))
    }

    fn apply(&self, image: &mut Image<'_>, draws: &mut Draws) -> Result<(), Fault> {
        let origin = self.origin(ImageShape::of(image.view()), draws)?;
        pad::window(image, origin, (self.height, self.width), self.beyond, &self.fill)
    }
}
