//! Arrays to arrays: one file per op, named and parametrised as in torchvision v2.
//!
//! A [`Chain`] is checked once and then run for every sample. Crops and flips only change the
//! image's view; pointwise ops (`ToDtype`, `Normalize`) are gathered and done in the one pass that
//! writes the batch, unless an op that makes new pixels comes after them.

mod augment;
mod center_crop;
mod color;
mod color_jitter;
mod exact;
mod gaussian_blur;
mod grayscale;
mod lanes;
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

pub use mix::{Mix, Mixed};

use serde_json::{Map, Value};

use placement::Placement;

use crate::error::{Fault, SpecError};
use crate::image::{Excerpt, Image, Layout, PixelType, Pointwise, View, convert};
use crate::random::Draws;
use crate::sample::DType;
use crate::spec::{OpSpec, Table};

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

/// `x * scale[c] + bias[c]`, to be rounded to `dtype`; in double precision while it is composed.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Linear {
    scale: [f64; 4],
    bias: [f64; 4],
    dtype: DType,
}

impl Linear {
    fn cast(dtype: DType) -> Self {
        Linear { scale: [1.0; 4], bias: [0.0; 4], dtype }
    }

    fn is_cast(&self) -> bool {
        self.scale == [1.0; 4] && self.bias == [0.0; 4]
    }

    /// True when elements of this type stay as they are.
    fn keeps(&self, pixel: PixelType) -> bool {
        self.is_cast() && held(self.dtype) == pixel
    }

    fn then(&self, next: &Linear) -> Linear {
        let mut both = *next;
        for c in 0..4 {
            both.scale[c] = self.scale[c] * next.scale[c];
            both.bias[c] = self.bias[c] * next.scale[c] + next.bias[c];
        }
        both
    }

    fn pointwise(&self, dtype: DType) -> Pointwise {
        Pointwise { scale: self.scale.map(|x| x as f32), bias: self.bias.map(|x| x as f32), dtype }
    }
}

/// The type that elements have between ops.
fn held(dtype: DType) -> PixelType {
    if dtype == DType::U8 { PixelType::U8 } else { PixelType::F32 }
}

fn element(pixel: PixelType) -> DType {
    match pixel {
        PixelType::U8 => DType::U8,
        PixelType::F32 => DType::F32,
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

/// Ops, one after the other, and the layout of what they write.
#[derive(Debug)]
pub struct Chain {
    ops: Vec<Box<dyn Transform>>,
    layout: Layout,
    /// The number of the first op.
    first: usize,
}

impl Chain {
    /// Checks the ops' names and parameters. Mistakes are named as `transforms[1].size`.
    ///
    /// What depends on the images, [`Chain::check`] tells.
    pub fn build(ops: &[OpSpec], layout: Layout) -> Result<Chain, SpecError> {
        Chain::build_from(0, ops, layout)
    }

    /// A chain that stands after `first` other ops: its own are numbered from there, in messages
    /// and in what they draw.
    pub fn build_from(first: usize, ops: &[OpSpec], layout: Layout) -> Result<Chain, SpecError> {
        let mut built = Vec::with_capacity(ops.len());
        for (i, spec) in ops.iter().enumerate() {
            let path = format!("transforms[{}]", first + i);
            if mix::is_batch_op(&spec.op) {
                return Err(SpecError::new(
                    format!("{path}.op"),
                    "works on batches, not on images",
                )
                .value(format!("{:?}", spec.op))
                .allowed("at the end of a loader's transforms, once"));
            }
            let Some((_, read)) = OPS.iter().find(|(name, _)| *name == spec.op) else {
                let names: Vec<&str> = OPS.iter().map(|(name, _)| *name).collect();
                let mut error = SpecError::new(format!("{path}.op"), "unknown op")
                    .value(format!("{:?}", spec.op))
                    .allowed(names.join(", "));
                error.nearest = crate::spec::read::nearest(&spec.op, &names).map(str::to_owned);
                return Err(error);
            };
            let mut table = Table::new(path, Value::Object(spec.params.clone()))?;
            built.push(read(&mut table)?);
            table.finish()?;
        }
        for (i, op) in built.iter().enumerate() {
            let sized = built[i + 1..].iter().any(|later| later.fixed_size().is_some());
            if let Some(name) = op.varies().filter(|_| !sized) {
                return Err(SpecError::new(
                    format!("transforms[{}].{name}", first + i),
                    "makes images of different sizes, which have no place in a batch",
                )
                .allowed("with a Resize to [height, width] or a crop after it"));
            }
        }
        let chain = Chain { ops: built, layout, first };
        // Mistakes that are mistakes for every input: normalising after a cast to integers.
        chain.check_types(None, DType::F32).map(|_| chain)
    }

    /// Checks the chain against what it will get: `Normalize` needs floats, and as many means as
    /// there are channels.
    pub fn check(&self, channels: usize, input_type: PixelType) -> Result<(), SpecError> {
        self.check_types(Some(channels), element(input_type)).map(|_| ())
    }

    /// The type of the elements that are written for float32 images; `None` if they cannot be.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        self.check_types(None, DType::F32).ok()
    }

    fn check_types(
        &self,
        mut channels: Option<usize>,
        mut dtype: DType,
    ) -> Result<DType, SpecError> {
        for (i, op) in self.ops.iter().enumerate() {
            if let Some(count) = channels {
                op.check(count, dtype).map_err(|error| error.within(&self.name(i)))?;
                channels = Some(op.channels(count));
            }
            // Without a count, any that the op accepts will do: 0 stands for it.
            if let Some(map) = op.map(dtype, channels.unwrap_or(0)) {
                dtype = map.map_err(|error| error.within(&self.name(i)))?.dtype;
            }
        }
        Ok(dtype)
    }

    /// What op `i` is called in messages.
    fn name(&self, i: usize) -> String {
        format!("transforms[{}]", self.first + i)
    }

    /// What op `i` draws from.
    fn draws(&self, epoch_key: u64, position: u64, i: usize) -> Draws {
        Draws::with_key(epoch_key, position, (self.first + i) as u32)
    }

    /// Every op with all its parameters in one spelling, so that equal chains compare equal.
    #[must_use]
    pub fn canonical(&self) -> Vec<OpSpec> {
        self.ops
            .iter()
            .map(|op| OpSpec { op: op.name().to_owned(), params: op.parameters() })
            .collect()
    }

    /// How many ops there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// True when only the layout may change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// True when the result depends on the epoch and the position.
    #[must_use]
    pub fn is_random(&self) -> bool {
        self.ops.iter().any(|op| op.is_random())
    }

    /// The layout of what is written.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    fn written(&self, shape: ImageShape, dtype: DType) -> Output {
        let ImageShape { height, width, channels } = shape;
        let shape = match self.layout {
            Layout::Chw | Layout::ChannelsLast => vec![channels, height, width],
            Layout::Hwc => vec![height, width, channels],
        };
        Output { shape, dtype, layout: self.layout }
    }

    /// What is written for an image of a given size.
    pub fn output(&self, input: ImageShape, input_type: PixelType) -> Result<Output, Fault> {
        let dtype = self.check_types(Some(input.channels), element(input_type)).map_err(unfit)?;
        let shape = self.ops.iter().try_fold(input, |shape, op| op.shape(shape))?;
        Ok(self.written(shape, dtype))
    }

    /// What is written for any image, when that does not depend on the image's size.
    #[must_use]
    pub fn fixed_output(&self, channels: usize, input_type: PixelType) -> Option<Output> {
        let dtype = self.check_types(Some(channels), element(input_type)).ok()?;
        let mut known: Option<ImageShape> = None;
        let mut channels = channels;
        for op in &self.ops {
            channels = op.channels(channels);
            known = match (op.fixed_size(), known) {
                (Some((height, width)), _) => Some(ImageShape { height, width, channels }),
                (None, Some(shape)) => Some(op.shape(shape).ok()?),
                (None, None) => None,
            };
        }
        known.map(|shape| self.written(shape, dtype))
    }

    /// Bytes that the chain's own buffers take at most for an image of a given size, beyond the
    /// pixels that it starts from.
    #[must_use]
    pub fn scratch(&self, input: ImageShape, input_type: PixelType) -> usize {
        let mut shape = input;
        let mut dtype = element(input_type);
        let mut pending = false;
        let mut bytes = 0usize;
        for op in &self.ops {
            if let Some(map) = op.map(dtype, shape.channels) {
                let Ok(map) = map else { return bytes };
                if pending && dtype == DType::U8 {
                    bytes = bytes.saturating_add(shape.elements());
                }
                dtype = map.dtype;
                pending = true;
                continue;
            }
            if op.makes_pixels(shape) {
                if pending {
                    bytes =
                        bytes.saturating_add(shape.elements().saturating_mul(held(dtype).size()));
                    pending = false;
                }
                bytes = bytes.saturating_add(op.scratch(shape, held(dtype)));
            }
            match op.shape(shape) {
                Ok(next) => shape = next,
                // The sample will fail before it takes more.
                Err(_) => return bytes,
            }
        }
        bytes
    }

    /// What [`Chain::run`] will look at of an image of a given size: what lies around it need not
    /// be decoded. Unless `exact`, it may be reduced where little of its detail will be seen.
    #[must_use]
    pub fn excerpt(
        &self,
        input: ImageShape,
        epoch_key: u64,
        position: u64,
        exact: bool,
    ) -> Excerpt {
        let mut placement = Placement::of(input.height, input.width);
        let mut pointwise = false;
        for (i, op) in self.ops.iter().enumerate() {
            if op.map(DType::F32, input.channels).is_some() {
                pointwise = true;
                continue;
            }
            let draws = || self.draws(epoch_key, position, i);
            if !op.acts(&mut draws()) {
                continue;
            }
            let resizes = op.makes_pixels(placement.shape(input.channels));
            let placed = |placement: &mut Placement| op.place(placement, &mut draws());
            if resizes && pointwise || !matches!(placed(&mut placement), Some(Ok(()))) {
                break;
            }
        }
        placement.excerpt(input, exact)
    }

    /// Runs the ops on `image` and writes the result to `out`, which has exactly its size.
    ///
    /// Op number i draws from (`epoch_key`, `position`, i) alone; see [`Chain::build_from`].
    pub fn run(
        &self,
        image: &mut Image<'_>,
        epoch_key: u64,
        position: u64,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        let mut pending = Linear::cast(element(image.pixel_type()));
        let whole = image.excerpt();
        let mut placement = Placement::of(whole.height, whole.width);
        for (i, op) in self.ops.iter().enumerate() {
            let channels = image.view().channels;
            if let Some(map) = op.map(pending.dtype, channels) {
                let map = map.map_err(|error| unfit(error.within(&self.name(i))))?;
                // Integers are cut off, so what follows cannot be folded into what came before.
                if pending.dtype == DType::U8 && image.pixel_type() != PixelType::U8 {
                    resample::settle(image, &mut placement)?;
                    materialise(image, &mut pending)?;
                }
                pending = pending.then(&map);
                continue;
            }
            if !op.acts(&mut self.draws(epoch_key, position, i)) {
                continue;
            }
            if op.makes_pixels(placement.shape(channels)) && !pending.keeps(image.pixel_type()) {
                resample::settle(image, &mut placement)?;
                materialise(image, &mut pending)?;
            }
            let mut draws = self.draws(epoch_key, position, i);
            if let Some(placed) = op.place(&mut placement, &mut draws) {
                placed?;
                continue;
            }
            // What needs pixels, or comes after a resize that must be done first.
            resample::settle(image, &mut placement)?;
            match op.place(&mut placement, &mut draws) {
                Some(placed) => placed?,
                None => {
                    op.apply(image, &mut draws)?;
                    placement = Placement::of(image.view().height, image.view().width);
                }
            }
        }
        let map = pending.pointwise(pending.dtype);
        if resample::write(image, &placement, &map, self.layout, out)? {
            return Ok(());
        }
        resample::settle(image, &mut placement)?;
        convert(image.pixels(), image.view(), &map, self.layout, out)
    }
}

impl Chain {
    /// What each op draws for the image of a given size at a position: `null` for ops that draw
    /// nothing worth telling. Sizes that vary count as the largest.
    #[must_use]
    pub fn drawn(&self, input: ImageShape, epoch_key: u64, position: u64) -> Vec<Value> {
        let mut shape = input;
        let mut told = Vec::with_capacity(self.ops.len());
        for (i, op) in self.ops.iter().enumerate() {
            told.push(op.drawn(shape, &mut self.draws(epoch_key, position, i)));
            shape = op.shape(shape).unwrap_or(shape);
        }
        told
    }
}

fn unfit(error: SpecError) -> Fault {
    Fault::Shape(error.to_string())
}

/// Does what pointwise ops have gathered, so that the next op sees it.
fn materialise(image: &mut Image<'_>, pending: &mut Linear) -> Result<(), Fault> {
    let pixel = held(pending.dtype);
    if pending.keeps(image.pixel_type()) {
        return Ok(());
    }
    let view = image.view();
    let planar = view.channel != 1 && view.channels > 1;
    let (new, layout) = if planar {
        (View::planar(view.height, view.width, view.channels), Layout::Chw)
    } else {
        (View::interleaved(view.height, view.width, view.channels), Layout::Hwc)
    };
    let map = pending.pointwise(element(pixel));
    image.replace(new, pixel, |pixels, view, out, _| convert(pixels, view, &map, layout, out))?;
    *pending = Linear::cast(pending.dtype);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Pixels, Scratch};
    use serde_json::json;

    fn ops(list: Value) -> Vec<OpSpec> {
        let Value::Array(list) = list else { panic!("a list of ops") };
        list.into_iter()
            .map(|op| {
                let Value::Object(mut params) = op else { panic!("an op") };
                let op = params.shift_remove("op").unwrap().as_str().unwrap().to_owned();
                OpSpec { op, params }
            })
            .collect()
    }

    fn chain(list: Value) -> Chain {
        Chain::build(&ops(list), Layout::Chw).unwrap()
    }

    fn run(chain: &Chain, pixels: Pixels<'_>, view: View) -> Vec<u8> {
        let pixel_type = match pixels {
            Pixels::U8(_) => PixelType::U8,
            Pixels::F32(_) => PixelType::F32,
        };
        let mut out = vec![0; chain.output(ImageShape::of(view), pixel_type).unwrap().bytes()];
        let mut scratch = Scratch::default();
        let mut image = Image::borrowed(&mut scratch, pixels, view).unwrap();
        chain.run(&mut image, 7, 3, &mut out).unwrap();
        let bound = chain.scratch(ImageShape::of(view), pixel_type);
        // Slabs are whole pages.
        assert!(scratch.held() <= bound + 2 * 4096, "{} held, {bound} announced", scratch.held());
        out
    }

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytemuck::pod_collect_to_vec(bytes)
    }

    #[test]
    fn mistakes_are_named() {
        let build = |list| Chain::build(&ops(list), Layout::Chw).unwrap_err().to_string();
        let error = build(json!([{"op": "ToDtype"}, {"op": "centercrop", "size": 3}]));
        assert!(error.starts_with("transforms[1].op = \"centercrop\": unknown op"), "{error}");
        assert!(error.ends_with("did you mean CenterCrop?"), "{error}");
        let error = build(json!([{"op": "Resize", "size": "big"}]));
        assert!(error.starts_with("transforms[0].size = \"big\""), "{error}");
        let error = build(json!([{"op": "Resize", "size": 3, "interpolate": "nearest"}]));
        assert!(error.contains("did you mean interpolation?"), "{error}");
        let error = build(json!([{"op": "CenterCrop"}]));
        assert!(error.starts_with("transforms[0].size: is missing"), "{error}");
        let error = build(json!([{"op": "CenterCrop", "sice": 3}]));
        assert_eq!(error, "transforms[0].sice = 3: unknown key; did you mean size?");
        for wrong in [
            json!({"op": "RandomCrop", "size": 0}),
            json!({"op": "RandomCrop", "size": [1, 2, 3]}),
            json!({"op": "RandomCrop", "size": 4, "padding": [1, 2, 3]}),
            json!({"op": "RandomHorizontalFlip", "p": 1.5}),
            json!({"op": "RandomResizedCrop", "size": 4, "scale": [0.5]}),
            json!({"op": "RandomResizedCrop", "size": 4, "ratio": [2.0, 1.0]}),
            json!({"op": "Resize", "size": 4, "max_size": 4}),
            json!({"op": "Resize", "size": 4, "interpolation": "lanczos", "antialias": false}),
            json!({"op": "Normalize", "mean": [0.0], "std": [0.0]}),
            json!({"op": "Normalize", "mean": [0.0, 1.0, 2.0], "std": [1.0, 1.0]}),
            json!({"op": "ToDtype", "dtype": "int64"}),
        ] {
            assert!(Chain::build(&ops(json!([wrong])), Layout::Chw).is_err(), "{wrong}");
        }
    }

    #[test]
    fn normalising_integers_is_refused_with_advice() {
        let normalize = json!({"op": "Normalize", "mean": [0.5], "std": [0.5]});
        let chain = chain(json!([normalize]));
        assert!(chain.check(3, PixelType::F32).is_ok());
        let error = chain.check(3, PixelType::U8).unwrap_err().to_string();
        assert!(
            error.starts_with("transforms[0]")
                && error.contains("ToDtype(\"float32\", scale=True)"),
            "{error}"
        );
        let later = json!([{"op": "ToDtype", "dtype": "uint8"}, normalize]);
        assert!(Chain::build(&ops(later), Layout::Chw).is_err());
    }

    #[test]
    fn the_manual_names_every_op() {
        let manual = include_str!("../lib.rs");
        for (name, _) in OPS {
            assert!(manual.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn two_spellings_of_a_chain_are_equal() {
        let short = chain(json!([
            {"op": "CenterCrop", "size": 224},
            {"op": "RandomCrop", "size": [8], "padding": 2},
            {"op": "Resize", "size": 5},
            {"op": "ToDtype"},
            {"op": "Normalize", "mean": 1, "std": 2},
        ]));
        let long = chain(json!([
            {"op": "CenterCrop", "size": [224, 224]},
            {"op": "RandomCrop", "size": [8, 8], "padding": [2, 2, 2, 2], "fill": 0.0, "padding_mode": "constant"},
            {"op": "Resize", "size": [5], "antialias": true, "interpolation": "bilinear", "max_size": null},
            {"op": "ToDtype", "dtype": "float32", "scale": false},
            {"op": "Normalize", "mean": [1.0], "std": [2.0]},
        ]));
        assert_eq!(short.canonical(), long.canonical());
        let again = Chain::build(&short.canonical(), Layout::Chw).unwrap();
        assert_eq!(again.canonical(), short.canonical());
    }

    #[test]
    fn the_size_is_known_before_running() {
        let shape = ImageShape { height: 375, width: 500, channels: 3 };
        let fixed = chain(
            json!([{"op": "Resize", "size": 256}, {"op": "CenterCrop", "size": [224, 200]}, {"op": "ToDtype"}]),
        );
        let output = fixed.fixed_output(3, PixelType::U8).unwrap();
        assert_eq!((output.shape.clone(), output.dtype), (vec![3, 224, 200], DType::F32));
        assert_eq!(fixed.output(shape, PixelType::U8).unwrap(), output);
        let open = chain(json!([{"op": "Resize", "size": 256}]));
        assert_eq!(open.fixed_output(3, PixelType::U8), None);
        assert_eq!(open.output(shape, PixelType::U8).unwrap().shape, [3, 256, 341]);
        let small = chain(json!([{"op": "RandomCrop", "size": 400}]));
        assert!(matches!(small.output(shape, PixelType::U8), Err(Fault::Shape(_))));
    }

    #[test]
    fn fused_equals_stepwise() {
        let elements: Vec<u8> = (0..5 * 7 * 3).map(|i| (i * 37 % 256) as u8).collect();
        let normalize =
            json!({"op": "Normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]});
        let fused = chain(json!([{"op": "ToDtype", "dtype": "float32", "scale": true}, normalize]));
        for view in [View::interleaved(5, 7, 3), View::planar(5, 7, 3)] {
            let got = floats(&run(&fused, Pixels::U8(&elements), view));
            let mut wanted = Vec::new();
            for c in 0..3 {
                for y in 0..5 {
                    for x in 0..7 {
                        let scaled = f32::from(elements[view.at(y, x, c)]) * (1.0 / 255.0);
                        let (mean, std) =
                            ([0.485f32, 0.456, 0.406][c], [0.229f32, 0.224, 0.225][c]);
                        wanted.push((scaled - mean) / std);
                    }
                }
            }
            assert!(
                got.iter().zip(&wanted).all(|(a, b)| (a - b).abs() < 1e-6),
                "{got:?} {wanted:?}"
            );
        }
    }

    #[test]
    fn pointwise_then_geometric_then_pointwise() {
        let elements = [10u8, 20, 30, 40];
        // Padding after scaling must be 0, not a scaled 0.
        let list = json!([
            {"op": "ToDtype", "dtype": "float32"},
            {"op": "Normalize", "mean": [10.0], "std": [10.0]},
            {"op": "CenterCrop", "size": 4},
            {"op": "Normalize", "mean": [-1.0], "std": [1.0]},
        ]);
        let got = floats(&run(&chain(list), Pixels::U8(&elements), View::interleaved(2, 2, 1)));
        assert_eq!(got, [1., 1., 1., 1., 1., 1., 2., 1., 1., 3., 4., 1., 1., 1., 1., 1.]);
        // Cut to integers in between: 0.9 becomes 0.
        let list =
            json!([{"op": "ToDtype", "dtype": "uint8"}, {"op": "ToDtype", "dtype": "float32"}]);
        assert_eq!(
            floats(&run(&chain(list), Pixels::F32(&[0.9, 1.9]), View::interleaved(1, 2, 1))),
            [0.0, 1.0]
        );
    }

    #[test]
    fn a_flip_after_scaling_moves_no_pixel() {
        let list = json!([{"op": "ToDtype"}, {"op": "RandomHorizontalFlip", "p": 1.0}, {"op": "RandomVerticalFlip", "p": 1.0}]);
        let chain = chain(list);
        assert_eq!(
            chain.scratch(ImageShape { height: 2, width: 2, channels: 1 }, PixelType::U8),
            0
        );
        assert_eq!(
            floats(&run(&chain, Pixels::U8(&[1, 2, 3, 4]), View::planar(2, 2, 1))),
            [4., 3., 2., 1.]
        );
    }

    #[test]
    fn a_resize_of_any_view_is_the_resize_of_its_copy() {
        let (height, width) = (23, 31);
        for channels in [1, 3, 4] {
            let elements: Vec<u8> =
                (0..height * width * channels).map(|i| (i * i % 251) as u8).collect();
            for turn in 0..16 {
                let mut view = match turn & 1 {
                    0 => View::interleaved(height, width, channels),
                    _ => View::planar(height, width, channels),
                };
                view.crop(2, 3, 17, 21);
                if turn & 2 != 0 {
                    view.flip_horizontal()
                }
                if turn & 4 != 0 {
                    view.flip_vertical()
                }
                if turn & 8 != 0 {
                    view.transpose()
                }
                let mut copy = vec![0; view.elements()];
                convert(
                    Pixels::U8(&elements),
                    view,
                    &Pointwise::cast(DType::U8),
                    Layout::Hwc,
                    &mut copy,
                )
                .unwrap();
                let plain = View::interleaved(view.height, view.width, channels);
                for interpolation in ["nearest", "bilinear", "bicubic"] {
                    for first in
                        [json!({"op": "RandomVerticalFlip", "p": 0}), json!({"op": "ToDtype"})]
                    {
                        let chain = chain(
                            json!([first, {"op": "Resize", "size": [9, 40], "interpolation": interpolation}, {"op": "ToDtype"}]),
                        );
                        let a = floats(&run(&chain, Pixels::U8(&elements), view));
                        let b = floats(&run(&chain, Pixels::U8(&copy), plain));
                        // A mirrored pass rounds its coefficients the other way round.
                        assert!(
                            a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1.0),
                            "{channels} {turn} {interpolation}"
                        );
                    }
                }
            }
        }
    }

    /// What each op makes of a picture, by the code for any processor and by the wide one.
    #[test]
    fn golden_hashes_of_both_paths() {
        let (height, width) = (70, 93);
        let mut draws = Draws::new(1, 2, 3, 4);
        let bytes: Vec<u8> = (0..height * width * 3)
            .map(|i| ((i / 3 % width * 2 + i / 3 / width) as u64 + draws.below(90)).min(255) as u8)
            .collect();
        let scaled: Vec<f32> = bytes.iter().map(|x| f32::from(*x) / 255.0).collect();
        let golden: &[(Value, u64)] = &[
            (
                json!({"op": "ColorJitter", "brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}),
                0xfc20_b23c_e1f4_2fda,
            ),
            (json!({"op": "ColorJitter", "hue": [0.3, 0.3]}), 0x1270_3974_7d3e_8ad2),
            (json!({"op": "Grayscale"}), 0x8855_4563_5584_0976),
            (json!({"op": "RandomGrayscale", "p": 1}), 0x3e83_84bb_2498_587b),
            (
                json!({"op": "GaussianBlur", "kernel_size": [5, 9], "sigma": 1.5}),
                0x8a46_7432_013d_ddfa,
            ),
            (json!({"op": "RandomErasing", "p": 1, "value": [1, 2, 3]}), 0x00ef_3ee0_6e06_93db),
            (json!({"op": "RandomErasing", "p": 1, "value": "random"}), 0xd091_8ffe_803b_e84d),
            (
                json!({"op": "RandomRotation", "degrees": [17, 17], "fill": [9, 8, 7]}),
                0x785f_d307_bf2a_d227,
            ),
            (
                json!({"op": "RandomRotation", "degrees": [17, 17], "interpolation": "bilinear", "expand": true}),
                0x742e_19f6_9572_5f52,
            ),
            (
                json!({"op": "RandomAffine", "degrees": 30, "translate": [0.1, 0.2], "scale": [0.7, 1.4], "shear": 10, "interpolation": "bilinear", "fill": 3}),
                0xf6e9_29e2_528f_0177,
            ),
            (
                json!({"op": "Pad", "padding": [1, 2, 3, 4], "padding_mode": "reflect"}),
                0x2615_6bc8_1741_333d,
            ),
            (json!({"op": "RandAugment", "num_ops": 30, "magnitude": 5}), 0x72ce_4551_3e42_24ae),
            (
                json!({"op": "RandAugment", "num_ops": 30, "magnitude": 5, "interpolation": "bilinear"}),
                0xf6d8_120d_c38c_2911,
            ),
            (json!({"op": "TrivialAugmentWide"}), 0x68c8_6827_d1e8_3489),
        ];
        let mut found = Vec::new();
        for (op, wanted) in golden {
            let chain = chain(json!([op]));
            let hash = |narrow: bool| {
                lanes::NARROW.set(narrow);
                let mut hash = 0;
                let (whole, planar) =
                    (View::interleaved(height, width, 3), View::planar(height, width, 3));
                let mut flipped = whole;
                flipped.flip_horizontal();
                let mut turned = planar;
                turned.transpose();
                for view in [whole, planar, flipped, turned] {
                    let made = run(&chain, Pixels::U8(&bytes), view);
                    hash = xxhash_rust::xxh3::xxh3_64_with_seed(&made, hash);
                    if chain.check(3, PixelType::F32).is_ok() {
                        let made = run(&chain, Pixels::F32(&scaled), view);
                        hash = xxhash_rust::xxh3::xxh3_64_with_seed(&made, hash);
                    }
                }
                lanes::NARROW.set(false);
                hash
            };
            let (wide, narrow) = (hash(false), hash(true));
            assert_eq!(wide, narrow, "{op}");
            found.push((op.clone(), *wanted, wide));
        }
        let changed: Vec<_> = found.iter().filter(|(_, wanted, got)| wanted != got).collect();
        assert!(changed.is_empty(), "{changed:#x?}");
    }

    #[test]
    fn new_mistakes_are_named() {
        for wrong in [
            json!({"op": "RandomRotation", "degrees": 30, "expand": true}),
            json!({"op": "GaussianBlur", "kernel_size": 2}),
            json!({"op": "RandAugment", "num_ops": 1_000_000}),
            json!({"op": "CutMix"}),
        ] {
            assert!(Chain::build(&ops(json!([wrong])), Layout::Chw).is_err(), "{wrong}");
        }
        let expands = json!([{"op": "RandomRotation", "degrees": 30, "expand": true}, {"op": "CenterCrop", "size": 20}]);
        let chain = chain(expands);
        assert_eq!(chain.fixed_output(3, PixelType::U8).unwrap().shape, [3, 20, 20]);
        let gray = Chain::build(
            &ops(json!([{"op": "CenterCrop", "size": 4}, {"op": "Grayscale"}, {"op": "ToDtype"}, {"op": "Normalize", "mean": [0.5], "std": [0.5]}])),
            Layout::Chw,
        )
        .unwrap();
        assert_eq!(gray.fixed_output(3, PixelType::U8).unwrap().shape, [1, 4, 4]);
    }
}
