//! What a state must agree on: every setting that decides what a batch contains.
//!
//! Each struct is taken apart field by field without a rest, so that the compiler asks about a new
//! one. A new setting goes in only where it differs from what was done before there was one: then
//! the states of those who do not use it stay good. Names and values are those of the spec, spelled
//! out here, so that code can be renamed.

use serde_json::{Map, Value, json};

use crate::canonical::CanonicalHash;
use crate::decode::{ColorMode, DecodeOptions};
use crate::image::Layout;
use crate::order::Identity;
use crate::source::Source;
use crate::spec::{LastBatch, OnError, OpSpec, SourceSpec, Spec, Subset, Weights};

/// The samples of the sources, in turn.
pub(super) fn data<'a>(sources: impl Iterator<Item = &'a dyn Source>) -> Value {
    sources
        .map(|source| {
            let fingerprint = format!("{:016x}", source.fingerprint());
            json!({"samples": source.len(), "fingerprint": fingerprint})
        })
        .collect()
}

/// How images become rows of a batch: `ops` with all their parameters.
pub(super) fn pixels(
    options: &DecodeOptions,
    as_bytes: bool,
    ops: &[OpSpec],
    layout: Layout,
) -> Value {
    let ops: Vec<Value> = ops.iter().map(OpSpec::to_value).collect();
    json!({"transforms": ops, "decode": decode(options, as_bytes), "layout": layout_name(layout)})
}

pub(in crate::engine) fn layout_name(layout: Layout) -> &'static str {
    match layout {
        Layout::Chw => "CHW",
        Layout::Hwc => "HWC",
        Layout::ChannelsLast => "channels_last",
    }
}

fn decode(options: &DecodeOptions, as_bytes: bool) -> Value {
    let DecodeOptions { mode, exif_orientation, max_pixels, allow_truncated, allow_damaged, exact } =
        options;
    if as_bytes {
        return json!({"mode": "bytes"});
    }
    let mode = match mode {
        ColorMode::Rgb => "rgb",
        ColorMode::Gray => "gray",
    };
    json!({
        "mode": mode,
        "exif_orientation": exif_orientation,
        "max_pixels": max_pixels,
        "allow_truncated": allow_truncated,
        "allow_damaged": allow_damaged,
        "exact": exact,
    })
}

/// How samples are drawn. `blocks` are those that are open and where all of them end.
fn order(spec: &Spec, blocks: Option<(u64, String)>) -> Value {
    let Spec {
        sources,
        shuffle,
        replacement,
        weights,
        subset,
        num_samples,
        last_batch,
        // Identity has these by themselves.
        seed: _,
        batch_size: _,
        on_error: _,
        // These decide the pixels.
        decode: _,
        transforms: _,
        layout: _,
        // What they come to is in `blocks`.
        open_blocks: _,
        // A decoded cache makes decoding exact; else it changes no batch.
        cache: _,
        // These change no batch, or not which ones there are.
        rank: _,
        world_size: _,
        num_workers: _,
        prefetch_factor: _,
        memory: _,
        max_failures: _,
        quarantine: _,
        in_order: _,
    } = spec;
    let weights = match weights {
        None => Value::Null,
        Some(Weights::Balanced) => "balanced".into(),
        Some(Weights::Each(weights)) => {
            let mut hash = CanonicalHash::new("weights");
            hash.list(weights.len());
            weights.iter().for_each(|weight| hash.float(*weight));
            json!({"samples": weights.len(), "fingerprint": hash.finish()})
        }
    };
    let subset = match subset {
        None => Value::Null,
        Some(Subset::Slice(start, stop, step)) => {
            json!({"start": start, "stop": stop, "step": step})
        }
        Some(Subset::Indices(indices)) => {
            let mut hash = CanonicalHash::new("subset");
            hash.list(indices.len());
            indices.iter().for_each(|index| hash.whole(*index));
            json!({"samples": indices.len(), "fingerprint": hash.finish()})
        }
    };
    let last_batch = match last_batch {
        LastBatch::Short => "short",
        LastBatch::Drop => "drop",
        LastBatch::Pad => "pad",
        LastBatch::Wrap => "wrap",
    };
    // What a source is, its fingerprint says.
    let mix: Option<Vec<f64>> =
        sources.iter().map(|SourceSpec { weight, kind: _ }| *weight).collect();
    let blocks = blocks.map(|(open, ends)| json!({"open": open, "fingerprint": ends}));
    let entries = [
        ("shuffle", json!(shuffle)),
        ("replacement", json!(replacement)),
        ("weights", weights),
        ("subset", subset),
        ("num_samples", json!(num_samples)),
        ("last_batch", json!(last_batch)),
        ("mix", json!(mix)),
        ("blocks", json!(blocks)),
    ];
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>().into()
}

/// The identity of a loader with samples of `data`, of which `pixels` are made.
pub(super) fn identity(
    spec: &Spec,
    data: &Value,
    pixels: &Value,
    global_batch: u64,
    blocks: Option<(u64, String)>,
) -> Identity {
    let on_error = match spec.on_error {
        OnError::Raise => "raise",
        OnError::Skip => "skip",
    };
    Identity::new(data, &order(spec, blocks), pixels, (spec.seed, global_batch), on_error)
}
