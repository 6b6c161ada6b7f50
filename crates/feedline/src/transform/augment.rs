//! `RandAugment` and `TrivialAugmentWide`: ops of random kind and strength, on `uint8` images.

use serde_json::{Map, Value, json};

use super::color::{self, Step};
use super::random_rotation::rotate;
use super::sharpen::sharpen;
use super::warp::{self, Affine, Sampling};
use super::{ImageShape, Transform, parameters, table};
use crate::error::{Fault, SpecError};
use crate::image::{Image, PixelType};
use crate::random::Draws;
use crate::sample::DType;
use crate::spec::Table;

/// The kinds, as often as each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AugmentOp {
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
}

const KINDS: [(AugmentOp, &str); 14] = [
    (AugmentOp::Identity, "Identity"),
    (AugmentOp::ShearX, "ShearX"),
    (AugmentOp::ShearY, "ShearY"),
    (AugmentOp::TranslateX, "TranslateX"),
    (AugmentOp::TranslateY, "TranslateY"),
    (AugmentOp::Rotate, "Rotate"),
    (AugmentOp::Brightness, "Brightness"),
    (AugmentOp::Color, "Color"),
    (AugmentOp::Contrast, "Contrast"),
    (AugmentOp::Sharpness, "Sharpness"),
    (AugmentOp::Posterize, "Posterize"),
    (AugmentOp::Solarize, "Solarize"),
    (AugmentOp::AutoContrast, "AutoContrast"),
    (AugmentOp::Equalize, "Equalize"),
];

impl AugmentOp {
    /// True when the magnitude goes both ways.
    fn signed(self) -> bool {
        !matches!(
            self,
            AugmentOp::Identity
                | AugmentOp::Posterize
                | AugmentOp::Solarize
                | AugmentOp::AutoContrast
                | AugmentOp::Equalize
        )
    }
}

/// One of the ops that an image gets.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Draw {
    kind: AugmentOp,
    name: &'static str,
    magnitude: f64,
}

/// Number `at` of `bins` evenly spaced numbers, in torch's single precision. It matters: 15 of 30
/// steps to 32 pixels come out below 16, and are cut to 15.
fn linspace(from: f32, to: f32, bins: u64, at: u64) -> f64 {
    let step = (to - from) / (bins - 1) as f32;
    f64::from(if at < bins / 2 {
        step.mul_add(at as f32, from)
    } else {
        (-step).mul_add((bins - at - 1) as f32, to)
    })
}

/// How strong each kind is at most.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Space {
    shear: f32,
    /// In pixels, or as part of the side.
    translate: Result<f32, f64>,
    rotate: f32,
    factor: f32,
    /// Bits that posterize takes away at most.
    bits: f32,
}

/// The space of RandAugment.
const RANDOM: Space =
    Space { shear: 0.3, translate: Err(150.0 / 331.0), rotate: 30.0, factor: 0.9, bits: 4.0 };

/// The space of TrivialAugmentWide.
const WIDE: Space =
    Space { shear: 0.99, translate: Ok(32.0), rotate: 135.0, factor: 0.99, bits: 6.0 };

impl Space {
    /// The magnitude in bin `at`, without its sign.
    fn magnitude(&self, kind: AugmentOp, input: ImageShape, bins: u64, at: u64) -> f64 {
        let translate = |side: usize| match self.translate {
            Ok(pixels) => pixels,
            Err(part) => (part * side as f64) as f32,
        };
        match kind {
            AugmentOp::Identity | AugmentOp::AutoContrast | AugmentOp::Equalize => 0.0,
            AugmentOp::ShearX | AugmentOp::ShearY => linspace(0.0, self.shear, bins, at),
            AugmentOp::TranslateX => linspace(0.0, translate(input.width), bins, at),
            AugmentOp::TranslateY => linspace(0.0, translate(input.height), bins, at),
            AugmentOp::Rotate => linspace(0.0, self.rotate, bins, at),
            AugmentOp::Brightness
            | AugmentOp::Color
            | AugmentOp::Contrast
            | AugmentOp::Sharpness => linspace(0.0, self.factor, bins, at),
            AugmentOp::Posterize => {
                let taken = at as f32 / ((bins - 1) as f32 / self.bits);
                f64::from((8.0 - taken).round_ties_even())
            }
            AugmentOp::Solarize => linspace(1.0, 0.0, bins, at),
        }
    }
}

/// More ops in a row are a mistake.
const MOST_OPS: u64 = 1000;

/// What both ops share.
#[derive(Debug)]
struct Way {
    space: Space,
    bins: u64,
    sampling: Sampling,
    fill: Option<Vec<f64>>,
}

impl Way {
    fn read(table: &mut Table, space: Space) -> Result<Way, SpecError> {
        let bins = table.whole("num_magnitude_bins", 2)?.unwrap_or(31).min(1 << 20);
        Ok(Way { space, bins, sampling: Sampling::read(table)?, fill: warp::read_fill(table)? })
    }

    fn parameters(&self, more: &[(&str, u64)]) -> Map<String, Value> {
        // The ops' names say which space it is.
        let Way { space: _, bins, sampling, fill } = self;
        let mut parameters: Map<String, Value> =
            more.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        parameters.insert("num_magnitude_bins".to_owned(), json!(bins));
        parameters.insert("interpolation".to_owned(), json!(sampling.name()));
        parameters.insert("fill".to_owned(), json!(fill));
        parameters
    }

    /// A kind, its magnitude in bin `at` or a random one, and its sign.
    fn draw(&self, input: ImageShape, at: Option<u64>, draws: &mut Draws) -> Draw {
        let (kind, name) = KINDS[draws.below(KINDS.len() as u64) as usize];
        let at = at.unwrap_or_else(|| draws.below(self.bins));
        let magnitude = self.space.magnitude(kind, input, self.bins, at);
        let negative = draws.chance(0.5) && kind.signed();
        Draw { kind, name, magnitude: if negative { -magnitude } else { magnitude } }
    }

    fn apply(&self, image: &mut Image<'_>, draw: Draw) -> Result<(), Fault> {
        if image.pixel_type() != PixelType::U8 {
            return Err(Fault::Shape("has other elements than uint8".to_owned()));
        }
        let view = image.view();
        let size = (view.height, view.width);
        let fill = self.fill.as_deref();
        let magnitude = draw.magnitude;
        let mut affine = |shear: [f64; 2], translate: [f64; 2], corner: bool| {
            let map = Affine { angle: 0.0, translate, scale: 1.0, shear };
            let center = if corner { Some([0.0; 2]) } else { None };
            let map = map.inverse(warp::from_middle(center, view));
            warp::warp(image, map, size, self.sampling, fill)
        };
        match draw.kind {
            AugmentOp::Identity => Ok(()),
            AugmentOp::ShearX => affine([magnitude.atan().to_degrees(), 0.0], [0.0; 2], true),
            AugmentOp::ShearY => affine([0.0, magnitude.atan().to_degrees()], [0.0; 2], true),
            AugmentOp::TranslateX => affine([0.0; 2], [magnitude.trunc(), 0.0], false),
            AugmentOp::TranslateY => affine([0.0; 2], [0.0, magnitude.trunc()], false),
            AugmentOp::Rotate => rotate(image, magnitude, size, None, self.sampling, fill),
            AugmentOp::Brightness => color::adjust(image, &[Step::Brightness(1.0 + magnitude)]),
            AugmentOp::Color => color::adjust(image, &[Step::Saturation(1.0 + magnitude)]),
            AugmentOp::Contrast => color::adjust(image, &[Step::Contrast(1.0 + magnitude)]),
            AugmentOp::Sharpness => sharpen(image, 1.0 + magnitude),
            AugmentOp::Posterize => table::posterize(image, magnitude as u32),
            AugmentOp::Solarize => table::solarize(image, (255.0 * magnitude) as f32),
            AugmentOp::AutoContrast => table::autocontrast(image),
            AugmentOp::Equalize => table::equalize(image),
        }
    }

    fn check(&self, channels: usize, dtype: DType) -> Result<(), SpecError> {
        parameters::one_or_three(channels)?;
        if dtype != DType::U8 {
            return Err(SpecError::new("", format!("cannot work on {dtype} elements"))
                .allowed("uint8 images: put it before ToDtype"));
        }
        match &self.fill {
            Some(fill) if fill.len() > 1 && fill.len() != channels => {
                Err(SpecError::new("fill", format!("does not fit {channels} channels"))
                    .value(json!(fill))
                    .allowed("a number, or one per channel"))
            }
            _ => Ok(()),
        }
    }

    fn description(draw: Draw) -> Value {
        json!({"transform_id": draw.name, "magnitude": draw.magnitude})
    }
}

#[derive(Debug)]
pub(super) struct RandAugment {
    num_ops: u64,
    magnitude: u64,
    way: Way,
}

impl RandAugment {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        let num_ops = table.whole("num_ops", 0)?.unwrap_or(2);
        if num_ops > MOST_OPS {
            return Err(table
                .error("num_ops", "is not allowed")
                .value(num_ops)
                .allowed(format!("a whole number up to {MOST_OPS}")));
        }
        let magnitude = table.whole("magnitude", 0)?.unwrap_or(9);
        let way = Way::read(table, RANDOM)?;
        if magnitude >= way.bins {
            return Err(table
                .error("magnitude", "is beyond num_magnitude_bins")
                .value(magnitude)
                .allowed(format!("a whole number from 0 to {}", way.bins - 1)));
        }
        Ok(Box::new(RandAugment { num_ops, magnitude, way }))
    }
}

#[derive(Debug)]
pub(super) struct TrivialAugmentWide {
    way: Way,
}

impl TrivialAugmentWide {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        Ok(Box::new(TrivialAugmentWide { way: Way::read(table, WIDE)? }))
    }
}

impl Transform for RandAugment {
    fn name(&self) -> &'static str {
        "RandAugment"
    }

    fn parameters(&self) -> Map<String, Value> {
        let RandAugment { way, num_ops, magnitude } = self;
        way.parameters(&[("num_ops", *num_ops), ("magnitude", *magnitude)])
    }

    fn is_random(&self) -> bool {
        true
    }

    fn check(&self, channels: usize, dtype: DType) -> Result<(), SpecError> {
        self.way.check(channels, dtype)
    }

    fn makes_pixels(&self, _: ImageShape) -> bool {
        true
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        // Ops go to and fro between two pieces of memory.
        input.elements().saturating_mul(2 * pixel.size())
    }

    fn drawn(&self, input: ImageShape, draws: &mut Draws) -> Value {
        (0..self.num_ops)
            .map(|_| Way::description(self.way.draw(input, Some(self.magnitude), draws)))
            .collect()
    }

    fn apply(&self, image: &mut Image<'_>, draws: &mut Draws) -> Result<(), Fault> {
        let shape = ImageShape::of(image.view());
        for _ in 0..self.num_ops {
            let draw = self.way.draw(shape, Some(self.magnitude), draws);
            self.way.apply(image, draw)?;
        }
        Ok(())
    }
}

impl Transform for TrivialAugmentWide {
    fn name(&self) -> &'static str {
        "TrivialAugmentWide"
    }

    fn parameters(&self) -> Map<String, Value> {
        let TrivialAugmentWide { way } = self;
        way.parameters(&[])
    }

    fn is_random(&self) -> bool {
        true
    }

    fn check(&self, channels: usize, dtype: DType) -> Result<(), SpecError> {
        self.way.check(channels, dtype)
    }

    fn makes_pixels(&self, _: ImageShape) -> bool {
        true
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        input.elements().saturating_mul(2 * pixel.size())
    }

    fn drawn(&self, input: ImageShape, draws: &mut Draws) -> Value {
        Way::description(self.way.draw(input, None, draws))
    }

    fn apply(&self, image: &mut Image<'_>, draws: &mut Draws) -> Result<(), Fault> {
        let draw = self.way.draw(ImageShape::of(image.view()), None, draws);
        self.way.apply(image, draw)
    }
}
