//! Arrays to arrays: one file per op, named and parametrised as in torchvision v2.
//!
//! A [`Chain`] is checked once and then run for every sample. Crops and flips only change the
//! image's view; pointwise ops (`ToDtype`, `Normalize`) are gathered and done in the one pass that
//! writes the batch, unless an op that makes new pixels comes after them.

mod augment;
mod center_crop;
mod chain;
mod color;
mod color_jitter;
mod exact;
mod gaussian_blur;
mod grayscale;
mod lanes;
mod linear;
mod mix;
mod normalize;
mod pad;
mod parameters;
mod placement;
mod random_affine;
mod random_crop;
mod random_erasing;
mod random_flip;
mod random_resized_crop;
mod random_rotation;
mod resample;
mod resize;
mod sharpen;
mod straight;
mod table;
mod to_dtype;
mod warp;

pub use chain::Chain;
pub use mix::Mix;

use serde_json::{Map, Value};

use linear::Linear;
use placement::Placement;

use crate::error::{Fault, SpecError};
use crate::image::{Image, Layout, PixelType, View};
use crate::random::Draws;
use crate::sample::DType;
use crate::spec::Table;

/// The size of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageShape {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Channels of a pixel.
    pub channels: usize,
}

impl ImageShape {
    fn of(view: View) -> Self {
        ImageShape { height: view.height, width: view.width, channels: view.channels }
    }

    /// Elements of the image.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.height * self.width * self.channels
    }

    fn sized(self, (height, width): (usize, usize)) -> Self {
        ImageShape { height, width, ..self }
    }
}

/// What a chain writes for a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// In the layout's order: channels first for `Chw` and `ChannelsLast`, last for `Hwc`.
    pub shape: Vec<usize>,
    /// The type of the elements.
    pub dtype: DType,
    /// How they lie in memory.
    pub layout: Layout,
}

impl Output {
    /// Bytes of one sample.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }
}

/// One op. It states its output's size before it runs.
trait Transform: Send + Sync + std::fmt::Debug {
    /// Its name in torchvision.
    fn name(&self) -> &'static str;

    /// All its parameters, defaults filled in, each in one spelling: states are compared by them.
    /// The op is taken apart without a rest, so that a new field cannot be forgotten; a parameter
    /// that is new goes in only where it is not at its default, so that older states stay good.
    fn parameters(&self) -> Map<String, Value>;

    /// True when it draws random numbers.
    fn is_random(&self) -> bool {
        false
    }

    /// Whether it can work on such images; 0 channels stand for any number.
    fn check(&self, _channels: usize, _dtype: DType) -> Result<(), SpecError> {
        Ok(())
    }

    /// Channels of the result.
    fn channels(&self, input: usize) -> usize {
        input
    }

    /// The parameter that makes the size of the result depend on what is drawn.
    /// [`Transform::shape`] is then the largest.
    fn varies(&self) -> Option<&'static str> {
        None
    }

    /// False when it will leave the image as it is, for the same draws.
    fn acts(&self, _draws: &mut Draws) -> bool {
        true
    }

    /// What it draws for an image of a given size, in torchvision's words.
    fn drawn(&self, _input: ImageShape, _draws: &mut Draws) -> Value {
        Value::Null
    }

    /// The size of the result for an image of a given size.
    fn shape(&self, input: ImageShape) -> Result<ImageShape, Fault> {
        Ok(input)
    }

    /// The size of the result where it is the same for every image.
    fn fixed_size(&self) -> Option<(usize, usize)> {
        None
    }

    /// True when it may write new pixels, which pointwise ops before it must not wait for.
    fn makes_pixels(&self, _input: ImageShape) -> bool {
        false
    }

    /// Bytes that it takes at most for an image of a given size.
    fn scratch(&self, _input: ImageShape, _pixel: PixelType) -> usize {
        0
    }

    /// What a pointwise op does to an element of type `dtype`; `None` for other ops.
    fn map(&self, _dtype: DType, _channels: usize) -> Option<Result<Linear, SpecError>> {
        None
    }

    /// Does it by moving what is looked at; `None`, before anything is drawn, if it needs pixels.
    fn place(&self, _at: &mut Placement, _draws: &mut Draws) -> Option<Result<(), Fault>> {
        None
    }

    /// Does it, for ops that are neither pointwise nor placed.
    fn apply(&self, _image: &mut Image<'_>, _draws: &mut Draws) -> Result<(), Fault> {
        Ok(())
    }
}

type Reader = fn(&mut Table) -> Result<Box<dyn Transform>, SpecError>;

/// Every op by its name.
const OPS: &[(&str, Reader)] = &[
    ("Resize", resize::Resize::read),
    ("CenterCrop", center_crop::CenterCrop::read),
    ("RandomCrop", random_crop::RandomCrop::read),
    ("RandomResizedCrop", random_resized_crop::RandomResizedCrop::read),
    ("RandomHorizontalFlip", random_flip::RandomFlip::read_horizontal),
    ("RandomVerticalFlip", random_flip::RandomFlip::read_vertical),
    ("Normalize", normalize::Normalize::read),
    ("ToDtype", to_dtype::ToDtype::read),
    ("Pad", pad::Pad::read),
    ("ColorJitter", color_jitter::ColorJitter::read),
    ("Grayscale", grayscale::Grayscale::read),
    ("RandomGrayscale", grayscale::RandomGrayscale::read),
    ("GaussianBlur", gaussian_blur::GaussianBlur::read),
    ("RandomErasing", random_erasing::RandomErasing::read),
    ("RandomRotation", random_rotation::RandomRotation::read),
    ("RandomAffine", random_affine::RandomAffine::read),
    ("RandAugment", augment::RandAugment::read),
    ("TrivialAugmentWide", augment::TrivialAugmentWide::read),
];
