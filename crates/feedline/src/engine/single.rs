//! Decoding and transforms for samples that a program brings one at a time.

use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;

use super::identity;
use super::plan::decode_options;
use super::work::panic_text;
use crate::decode::{self, DecodeOptions, Decoder, Header};
use crate::error::{Fault, SpecError, Stage};
use crate::image::{Image, PixelType, Pixels, Scratch, View};
use crate::random;
use crate::sample::DType;
use crate::spec::Spec;
use crate::transform::{Chain, ImageShape, Output};

/// More than that is given back after a sample: one huge image must not stay with every thread.
const KEPT: usize = 256 << 20;

/// An image as the program has it.
#[derive(Debug, Clone, Copy)]
pub enum Given<'a> {
    /// The bytes of a file.
    Encoded(&'a [u8]),
    /// Elements, and how they lie.
    Pixels(Pixels<'a>, View),
}

/// What is known of an image before anything is decoded.
#[derive(Debug, Clone)]
pub struct Ready {
    /// What will be written for it.
    pub output: Output,
    header: Option<Header>,
}

/// One thread's memory, kept from sample to sample.
#[derive(Default)]
pub struct Workbench {
    decoder: Decoder,
    scratch: Scratch,
}

/// The stages from an image to its row of a batch, by themselves: the same pixels that a
/// [`super::Loader`] makes at the same place of the same epoch.
#[derive(Debug)]
pub struct Stages {
    chain: Chain,
    decode: DecodeOptions,
}

impl Stages {
    /// The `decode`, `transforms` and `layout` of `spec`. `first` transforms come before them
    /// elsewhere, so the numbering begins there.
    pub fn new(spec: &Spec, first: usize) -> Result<Stages, SpecError> {
        let chain = Chain::build_from(first, &spec.transforms, spec.layout)?;
        Ok(Stages { chain, decode: decode_options(spec) })
    }

    /// All of them as plain data with every parameter, to compare.
    #[must_use]
    pub fn settings(&self) -> Value {
        let chain = &self.chain;
        identity::pixels(&self.decode, false, &chain.canonical(), chain.layout())
    }

    /// The type of the elements that are written for float32 images; `None` if they cannot be.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        self.chain.dtype()
    }

    /// Checks that the transforms can work on such images.
    pub fn check(&self, channels: usize, pixel_type: PixelType) -> Result<(), SpecError> {
        self.chain.check(channels, pixel_type)
    }

    /// Looks at the image's size and says what will be written.
    pub fn prepare(&self, given: Given<'_>) -> Result<Ready, (Stage, Fault)> {
        let (header, shape, pixel_type) = match given {
            Given::Encoded(bytes) => {
                let header =
                    decode::probe(bytes, &self.decode).map_err(|fault| (Stage::Decode, fault))?;
                let shape = shape_of(&header);
                (Some(header), shape, PixelType::U8)
            }
            Given::Pixels(pixels, view) => {
                let View { height, width, channels, .. } = view;
                (None, ImageShape { height, width, channels }, pixels.pixel_type())
            }
        };
        if shape.elements() == 0 {
            let fault = Fault::Shape(format!("has no pixels: it is {shape:?}"));
            return Err((Stage::Transform, fault));
        }
        let output =
            self.chain.output(shape, pixel_type).map_err(|fault| (Stage::Transform, fault))?;
        Ok(Ready { output, header })
    }

    /// Writes the image's row: `out` has exactly the bytes of `ready`'s output, and `ready` was
    /// made of the same image. Random ops draw what belongs to `position` of `epoch`.
    pub fn write(
        &self,
        given: Given<'_>,
        ready: &Ready,
        (seed, epoch, position): (u64, u64, u64),
        bench: &mut Workbench,
        out: &mut [u8],
    ) -> Result<(), (Stage, Fault)> {
        let key = random::key(seed, epoch, 0);
        // A panic in a decoder is that sample's error. What it left behind is thrown away.
        let made = catch_unwind(AssertUnwindSafe(|| {
            self.write_with(given, ready, (key, position), bench, out)
        }));
        if bench.scratch.held() > KEPT {
            bench.scratch.release();
        }
        made.unwrap_or_else(|payload| {
            *bench = Workbench::default();
            Err((Stage::Decode, Fault::Panic(panic_text(&*payload))))
        })
    }

    fn write_with(
        &self,
        given: Given<'_>,
        ready: &Ready,
        (key, position): (u64, u64),
        Workbench { decoder, scratch }: &mut Workbench,
        out: &mut [u8],
    ) -> Result<(), (Stage, Fault)> {
        let mut image = match (given, &ready.header) {
            (Given::Encoded(bytes), Some(header)) => {
                let wanted = self.chain.excerpt(shape_of(header), key, position, self.decode.exact);
                decoder
                    .decode_part(bytes, header, &self.decode, Some(wanted), scratch)
                    .map_err(|fault| (Stage::Decode, fault))?
            }
            (Given::Pixels(pixels, view), None) => {
                Image::borrowed(scratch, pixels, view).map_err(|fault| (Stage::Transform, fault))?
            }
            _ => {
                let fault = Fault::Shape("is not the image that was looked at".to_owned());
                return Err((Stage::Transform, fault));
            }
        };
        self.chain.run(&mut image, key, position, out).map_err(|fault| (Stage::Transform, fault))
    }
}

fn shape_of(header: &Header) -> ImageShape {
    ImageShape { height: header.height, width: header.width, channels: header.channels }
}
