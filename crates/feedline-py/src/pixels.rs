//! The pixel stages by themselves, so that they can be compared with Pillow and torchvision.

use feedline::internals::decode::{self, ColorMode, DecodeOptions};
use feedline::internals::image::{
    Image, Layout, PixelType, Pixels, Pointwise, Scratch, View, convert,
};
use feedline::internals::random;
use feedline::internals::transform::{Chain, ImageShape, Mix, Output};
use feedline::sample::DType;
use feedline::spec::OpSpec;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

fn invalid(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Decodes one image to interleaved pixels and their (height, width, channels).
#[pyfunction]
#[pyo3(signature = (data, mode="rgb", exif_orientation=false, max_pixels=None, allow_truncated=false, allow_damaged=false))]
pub(crate) fn decode_image<'py>(
    py: Python<'py>,
    data: &[u8],
    mode: &str,
    exif_orientation: bool,
    max_pixels: Option<u64>,
    allow_truncated: bool,
    allow_damaged: bool,
) -> PyResult<(Bound<'py, PyBytes>, (usize, usize, usize))> {
    let mode = match mode {
        "rgb" => ColorMode::Rgb,
        "gray" => ColorMode::Gray,
        other => {
            return Err(invalid(format!(
                "mode = {other:?}: is not allowed; allowed: \"rgb\", \"gray\""
            )));
        }
    };
    let max_pixels = max_pixels.unwrap_or(DecodeOptions::default().max_pixels);
    let options = DecodeOptions {
        mode,
        exif_orientation,
        max_pixels,
        allow_truncated,
        allow_damaged,
        exact: false,
    };
    let (pixels, shape) = py
        .detach(|| {
            let header = decode::probe(data, &options)?;
            let mut scratch = Scratch::default();
            let image = decode::Decoder::new().decode(data, &header, &options, &mut scratch)?;
            let view = image.view();
            let mut pixels = vec![0; view.elements()];
            convert(image.pixels(), view, &Pointwise::cast(DType::U8), Layout::Hwc, &mut pixels)?;
            Ok::<_, feedline::Fault>((pixels, (view.height, view.width, view.channels)))
        })
        .map_err(invalid)?;
    Ok((PyBytes::new(py, &pixels), shape))
}

/// Runs a chain of ops on one image: its elements, shape and type.
#[pyfunction]
#[pyo3(signature = (ops_json, layout, pixels, height, width, channels, planar, dtype, seed=0, epoch=0, position=0))]
#[allow(clippy::too_many_arguments)]
pub(crate) fn apply_transforms<'py>(
    py: Python<'py>,
    ops_json: &str,
    layout: &str,
    pixels: &[u8],
    height: usize,
    width: usize,
    channels: usize,
    planar: bool,
    dtype: &str,
    seed: u64,
    epoch: u64,
    position: u64,
) -> PyResult<(Bound<'py, PyBytes>, Vec<usize>, &'static str)> {
    let layout = match layout {
        "chw" => Layout::Chw,
        "hwc" => Layout::Hwc,
        "channels_last" => Layout::ChannelsLast,
        other => return Err(invalid(format!("layout = {other:?}: is not allowed"))),
    };
    let elements = height.checked_mul(width).and_then(|n| n.checked_mul(channels));
    let size = if dtype == "float32" { 4 } else { 1 };
    if elements.and_then(|n| n.checked_mul(size)) != Some(pixels.len())
        || !(1..=4).contains(&channels)
    {
        return Err(invalid(
            "pixels do not have the size that height, width, channels and dtype give",
        ));
    }
    let view = if planar {
        View::planar(height, width, channels)
    } else {
        View::interleaved(height, width, channels)
    };
    // Python's bytes need not lie at a multiple of 4.
    let floats: Vec<f32> = match dtype {
        "float32" => {
            pixels.chunks_exact(4).map(|x| f32::from_ne_bytes([x[0], x[1], x[2], x[3]])).collect()
        }
        "uint8" => Vec::new(),
        other => return Err(invalid(format!("dtype = {other:?}: is not allowed"))),
    };
    let (elements, pixel_type) = match dtype {
        "float32" => (Pixels::F32(&floats), PixelType::F32),
        _ => (Pixels::U8(pixels), PixelType::U8),
    };
    let chain = Chain::build(&ops(ops_json)?, layout).map_err(invalid)?;
    chain.check(channels, pixel_type).map_err(invalid)?;
    let (out, output) = py
        .detach(|| {
            let output = chain.output(ImageShape { height, width, channels }, pixel_type)?;
            let mut out = vec![0; output.bytes()];
            let mut scratch = Scratch::default();
            let mut image = Image::borrowed(&mut scratch, elements, view)?;
            chain.run(&mut image, random::key(seed, epoch, 0), position, &mut out)?;
            Ok::<_, feedline::Fault>((out, output))
        })
        .map_err(invalid)?;
    Ok((PyBytes::new(py, &out), output.shape, output.dtype.name()))
}

/// What each op draws for an image of a given size, as a JSON list.
#[pyfunction]
#[pyo3(signature = (ops_json, height, width, channels, seed=0, epoch=0, position=0))]
pub(crate) fn drawn_transforms(
    ops_json: &str,
    height: usize,
    width: usize,
    channels: usize,
    seed: u64,
    epoch: u64,
    position: u64,
) -> PyResult<String> {
    let chain = Chain::build(&ops(ops_json)?, Layout::Chw).map_err(invalid)?;
    let shape = ImageShape { height, width, channels };
    let drawn = chain.drawn(shape, random::key(seed, epoch, 0), position);
    serde_json::to_string(&drawn).map_err(invalid)
}

/// What happens to the rows of a batch of such images, as JSON: the share that each keeps of
/// itself, and for CutMix the rectangle x1, y1, x2, y2 that it takes from the row before.
#[pyfunction]
#[pyo3(signature = (ops_json, height, width, seed=0, epoch=0, batch=0))]
pub(crate) fn drawn_mix(
    ops_json: &str,
    height: usize,
    width: usize,
    seed: u64,
    epoch: u64,
    batch: u64,
) -> PyResult<String> {
    let ops = ops(ops_json)?;
    let (_, mix) = Mix::split(&ops).map_err(invalid)?;
    let mix = mix.ok_or_else(|| invalid("the transforms do not end with MixUp or CutMix"))?;
    if height == 0 || width == 0 {
        return Err(invalid("an image without pixels has nothing to mix"));
    }
    let output = Output { shape: vec![1, height, width], dtype: DType::F32, layout: Layout::Chw };
    let drawn = mix.draw(seed, epoch, batch, &output);
    let part = drawn
        .part
        .map(|part| [part.left, part.top, part.left + part.width, part.top + part.height]);
    serde_json::to_string(&serde_json::json!({"lam": drawn.own, "box": part})).map_err(invalid)
}

/// `[{"op": "Resize", "size": 224}, ...]`.
fn ops(json: &str) -> PyResult<Vec<OpSpec>> {
    let list: Vec<serde_json::Value> = serde_json::from_str(json).map_err(invalid)?;
    list.into_iter().map(|op| OpSpec::from_value(op).map_err(invalid)).collect()
}
