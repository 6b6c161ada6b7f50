//! Ops, one after the other: checked once, run for every sample.

#[cfg(test)]
mod tests;

use serde_json::Value;

use super::linear::{Linear, element, held};
use super::placement::Placement;
use super::{ImageShape, OPS, Output, Transform, mix, resample};
use crate::error::{Fault, SpecError};
use crate::image::{Excerpt, Image, Layout, PixelType, View, convert};
use crate::random::Draws;
use crate::sample::DType;
use crate::spec::{OpSpec, Table};

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
    /// What depends on the images, [`Chain::check`] checks.
    pub fn build(ops: &[OpSpec], layout: Layout) -> Result<Chain, SpecError> {
        Chain::build_from(0, ops, layout)
    }

    /// A chain that stands after `first` other ops: its own are numbered from there, in messages
    /// and in what they draw.
    pub fn build_from(first: usize, ops: &[OpSpec], layout: Layout) -> Result<Chain, SpecError> {
        let built = Chain::read(first, ops)?;
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

    /// Whether there is an op of this name that works on images.
    pub(crate) fn knows(op: &str) -> bool {
        OPS.iter().any(|(name, _)| *name == op)
    }

    /// Whether an op by itself makes images of different sizes.
    pub(crate) fn varies(number: usize, op: &OpSpec) -> Result<bool, SpecError> {
        Ok(Chain::read(number, std::slice::from_ref(op))?.iter().any(|op| op.varies().is_some()))
    }

    fn read(first: usize, ops: &[OpSpec]) -> Result<Vec<Box<dyn Transform>>, SpecError> {
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
        Ok(built)
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

    /// What each op draws for the image of a given size at a position: `null` for ops that draw
    /// nothing worth reporting. Sizes that vary count as the largest.
    #[must_use]
    pub fn drawn(&self, input: ImageShape, epoch_key: u64, position: u64) -> Vec<Value> {
        let mut shape = input;
        let mut drawn_by_op = Vec::with_capacity(self.ops.len());
        for (i, op) in self.ops.iter().enumerate() {
            drawn_by_op.push(op.drawn(shape, &mut self.draws(epoch_key, position, i)));
            shape = op.shape(shape).unwrap_or(shape);
        }
        drawn_by_op
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
