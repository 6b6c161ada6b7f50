//! Which field the transforms work on, and what they make of it.

use std::sync::Arc;

use super::sample_error;
use crate::buffer;
use crate::decode::{self, DecodeOptions};
use crate::error::{Error, Fault, Result, SpecError, Stage};
use crate::image::{Layout, PixelType, View};
use crate::order::Pick;
use crate::sample::{DType, Field, FieldKind, Room, Value};
use crate::source::Source;
use crate::spec::read::show_bytes;
use crate::spec::{OnError, Spec};
use crate::store::Store;
use crate::transform::{Chain, ImageShape, Output};

/// How the image field of a sample becomes a row of the batch.
pub(crate) enum Pixels {
    /// Encoded bytes are decoded first; pixels that a source lends have their size with them.
    Encoded,
    /// An array of one shape that is in memory already.
    Array { view: View, pixel_type: PixelType },
}

/// The field that the transforms work on.
pub(crate) struct ImageField {
    pub(crate) field: usize,
    pub(crate) pixels: Pixels,
    pub(crate) output: Output,
}

pub(super) fn image_field(
    spec: &Spec,
    fields: &[Field],
    chain: &Chain,
    plain: bool,
    sources: &[Arc<dyn Source>],
    store: &dyn Store,
    decode: &DecodeOptions,
) -> Result<Option<ImageField>> {
    let encoded = fields.iter().position(|field| field.kind == FieldKind::EncodedImage);
    if spec.decode.bytes {
        return match (encoded, plain) {
            (Some(_), true) => Ok(None),
            (Some(_), false) => Err(SpecError::new("transforms", "have no pixels to work on")
                .allowed("none with decode.mode = \"bytes\"")
                .into()),
            (None, _) => Err(SpecError::new("decode.mode", "has no encoded image to leave alone")
                .value("\"bytes\"")
                .allowed("\"rgb\" or \"gray\"")
                .into()),
        };
    }
    if let Some(field) = encoded {
        let channels = if spec.decode.gray { 1 } else { 3 };
        chain.check(channels, PixelType::U8)?;
        let output = match chain.fixed_output(channels, PixelType::U8) {
            Some(output) => output,
            None => output_of_first(spec, field, chain, sources, store, decode)?,
        };
        return Ok(Some(ImageField { field, pixels: Pixels::Encoded, output }));
    }
    let lent = |field: &Field| match field.kind {
        FieldKind::Pixels { channels } => Some(channels),
        _ => None,
    };
    if let Some((field, channels)) =
        fields.iter().enumerate().find_map(|(number, field)| Some((number, lent(field)?)))
    {
        if spec.decode.gray && channels != 1 {
            return Err(SpecError::new("decode.mode", "comes too late: the pixels are packed")
                .value("\"gray\"")
                .allowed("\"rgb\", or a set that was packed as grayscale")
                .into());
        }
        chain.check(channels, PixelType::U8)?;
        let output = match chain.fixed_output(channels, PixelType::U8) {
            Some(output) => output,
            None => output_of_first(spec, field, chain, sources, store, decode)?,
        };
        return Ok(Some(ImageField { field, pixels: Pixels::Encoded, output }));
    }
    if plain {
        // Arrays without transforms pass as they are, whatever they hold.
        return Ok(None);
    }
    let wrong = |problem: String| {
        Error::from(SpecError::new("transforms", problem).allowed(
            "uint8 or float32 arrays of shape [samples, height, width], [samples, channels, height, width] or [samples, height, width, channels], with 1, 3 or 4 channels, as the first field",
        ))
    };
    let Some(FieldKind::Array { dtype, shape }) = fields.first().map(|field| &field.kind) else {
        return Err(wrong("need an image".to_owned()));
    };
    let pixel_type = match dtype {
        DType::U8 => PixelType::U8,
        DType::F32 => PixelType::F32,
        other => {
            return Err(wrong(format!("cannot work on {other} elements of {:?}", fields[0].name)));
        }
    };
    let view = View::of_shape(shape, false).ok_or_else(|| {
        wrong(format!("cannot work on samples of shape {shape:?} in {:?}", fields[0].name))
    })?;
    if view.elements() == 0 {
        return Err(wrong(format!("cannot work on images without pixels, {shape:?}")));
    }
    chain.check(view.channels, pixel_type)?;
    let input = ImageShape { height: view.height, width: view.width, channels: view.channels };
    let output = chain.output(input, pixel_type).map_err(|fault| wrong(fault.to_string()))?;
    Ok(Some(ImageField { field: 0, pixels: Pixels::Array { view, pixel_type }, output }))
}

/// An image that takes no room in a batch.
pub(super) fn unwritten_image(fields: &[Field]) -> Option<ImageField> {
    let is_image =
        |field: &Field| matches!(field.kind, FieldKind::EncodedImage | FieldKind::Pixels { .. });
    let field = fields.iter().position(is_image)?;
    let output = Output { shape: vec![0], dtype: DType::U8, layout: Layout::Chw };
    Some(ImageField { field, pixels: Pixels::Encoded, output })
}

/// Memory for a look at one file before anything runs.
pub(super) struct Fresh(pub(super) Vec<u8>);

impl Room for Fresh {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        // A photo is far below this.
        if bytes > 64 << 20 {
            return Err(Fault::TooLarge(format!(
                "has {}, too much to take the size of all images from it: add a Resize or a crop",
                show_bytes(bytes)
            )));
        }
        self.0.clear();
        buffer::extend_zeroed(&mut self.0, bytes)?;
        Ok(&mut self.0)
    }
}

/// Without a transform that fixes the size, the first readable image sets it for all.
fn output_of_first(
    spec: &Spec,
    field: usize,
    chain: &Chain,
    sources: &[Arc<dyn Source>],
    store: &dyn Store,
    decode: &DecodeOptions,
) -> Result<Output> {
    let source = &sources[0];
    let look = |bytes: &[u8]| {
        let header = decode::probe(bytes, decode).map_err(|fault| (Stage::Decode, fault))?;
        let shape =
            ImageShape { height: header.height, width: header.width, channels: header.channels };
        chain.output(shape, PixelType::U8).map_err(|fault| (Stage::Transform, fault))
    };
    let tries = if spec.on_error == OnError::Skip { source.len().min(1000) } else { 1 };
    let mut first = None;
    for index in 0..tries {
        let looked = match source.value(index, field) {
            Ok(Value::Bytes(bytes)) => look(bytes),
            Ok(value @ (Value::File(_) | Value::Made)) => {
                let mut bytes = Fresh(Vec::new());
                let read = match value {
                    Value::File(location) => store.read(&location, &mut bytes),
                    _ => source.read(index, field, &mut bytes),
                };
                read.map_err(|fault| (Stage::Read, fault)).and_then(|()| look(&bytes.0))
            }
            Ok(Value::Pixels { height, width, channels, .. }) => {
                let shape = ImageShape { height, width, channels };
                chain.output(shape, PixelType::U8).map_err(|fault| (Stage::Transform, fault))
            }
            _ => continue,
        };
        match looked {
            Ok(output) => return Ok(output),
            Err((stage, fault)) => {
                first.get_or_insert(sample_error(sources, Pick { source: 0, index }, stage, fault));
            }
        }
    }
    Err(match first {
        Some(error) => Error::Sample(Box::new(error)),
        None => Error::Source {
            what: source.name(),
            problem: "has no image to take the size from".to_owned(),
        },
    })
}
