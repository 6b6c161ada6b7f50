//! LitData's chunks: `index.json` and the chunks that it lists.
//!
//! Read as far as the package describes it: items of a dictionary, a tuple or a single value, in
//! plain chunks or ones that are compressed as a whole with zstd. Chunks of tokens, encrypted ones
//! and those with other compression are refused.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::Spans;
use super::headed::{Header, numpy_type, torch_type};
use super::look::PICKLE;
use super::part::Content;
use super::row_shards::{self, RowColumn, RowKind, RowShard, folder_of, inside, read_index};
use crate::error::Result;
use crate::sample::DType;
use crate::source::{Opening, problem};
use crate::spec::FieldChoice;
use crate::store::Store;

#[derive(Deserialize)]
struct Index {
    chunks: Vec<ChunkNote>,
    config: Config,
}

#[derive(Deserialize)]
struct ChunkNote {
    filename: String,
    chunk_size: u64,
}

#[derive(Deserialize)]
struct Config {
    compression: Option<String>,
    compression_level: Option<String>,
    data_format: Vec<String>,
    data_spec: Option<String>,
    encryption: Option<Value>,
    item_loader: Option<String>,
}

/// Opens a folder.
pub(in crate::source) fn open(
    path: &Path,
    fields: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<Spans> {
    let folder = folder_of(path);
    row_shards::open("litdata", folder, shards(folder, &**with.store)?, fields, with)
}

/// The chunks that a folder's index lists.
fn shards(folder: &Path, store: &dyn Store) -> Result<Vec<RowShard>> {
    let index: Index = read_index(folder, store, "LitData's chunks")?;
    let config = &index.config;
    let problem = |why: String| problem(folder.join(row_shards::INDEX), why);
    if config.encryption.as_ref().is_some_and(|value| !value.is_null()) {
        return Err(problem("lists chunks that are encrypted, which are not read".to_owned()));
    }
    match config.item_loader.as_deref() {
        None | Some("PyTreeLoader") => {}
        Some(other) => {
            return Err(problem(format!(
                "lists chunks for {other}, which are not read: only those for PyTreeLoader are"
            )));
        }
    }
    if let Some(level) = config.compression_level.as_deref().filter(|level| *level != "chunk") {
        return Err(problem(format!(
            "lists chunks with compression_level={level:?}, which are not read: write them with compression_level=\"chunk\" or without compression"
        )));
    }
    if let Some(packing) = &config.compression
        && packing.split(':').next() != Some("zstd")
    {
        return Err(problem(format!(
            "lists chunks compressed with {packing:?}: only zstd is read"
        )));
    }
    let names = names(config).ok_or_else(|| {
        problem("describes items that are no dictionary, tuple or single value".to_owned())
    })?;
    let columns: Vec<RowColumn> = names
        .into_iter()
        .zip(&config.data_format)
        .map(|(name, format)| RowColumn { name, size: None, kind: kind_of(format) })
        .collect();
    let chunk = |note: &ChunkNote| {
        let path = inside(folder, &note.filename)?;
        Ok(RowShard { path, columns: columns.clone(), samples: note.chunk_size })
    };
    index.chunks.iter().map(chunk).collect()
}

/// The names of an item's values, in their order: keys, or numbers where there are none.
fn names(config: &Config) -> Option<Vec<String>> {
    let count = config.data_format.len();
    let mut names = Vec::new();
    match &config.data_spec {
        None => names = (0..count).map(|number| number.to_string()).collect(),
        Some(text) => {
            // Reading JSON limits how deep it goes.
            let spec: Value = serde_json::from_str(text).ok()?;
            collect(spec.get(1)?, "", &mut names)?;
            if let [name] = &mut names[..]
                && name.is_empty()
            {
                *name = "data".to_owned();
            }
        }
    }
    (names.len() == count).then_some(names)
}

fn collect(spec: &Value, prefix: &str, names: &mut Vec<String>) -> Option<()> {
    let children = spec.get("children_spec")?.as_array()?;
    let Some(kind) = spec.get("type")?.as_str() else {
        names.push(prefix.to_owned());
        return Some(());
    };
    let keys: Vec<String> = match kind.rsplit('.').next()? {
        "dict" | "OrderedDict" => {
            let keys: Vec<Value> = serde_json::from_str(spec.get("context")?.as_str()?).ok()?;
            let key = |key: Value| key.as_str().map_or_else(|| key.to_string(), str::to_owned);
            keys.into_iter().map(key).collect()
        }
        "list" | "tuple" => (0..children.len()).map(|number| number.to_string()).collect(),
        _ => return None,
    };
    if keys.len() != children.len() {
        return None;
    }
    for (key, child) in keys.iter().zip(children) {
        let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        collect(child, &name, names)?;
    }
    Some(())
}

/// What a format's name says.
fn kind_of(format: &str) -> RowKind {
    let (name, details) = format.split_once(':').unwrap_or((format, ""));
    let number = details.parse().ok();
    let scalar = |dtype| RowKind::Known(Content::Array { dtype, shape: Vec::new() });
    let flat = |dtype: Option<DType>| match dtype {
        Some(dtype) => RowKind::Flat(dtype),
        None => {
            RowKind::refused(format!("holds arrays of the type {details:?}, which is not known"))
        }
    };
    match name {
        "str" | "string" | "text" => RowKind::Known(Content::Text),
        "jpeg" | "image" | "tiff" | "tifffile" => RowKind::Known(Content::Image),
        "bytes" | "file" => RowKind::Bytes,
        "video" | "audio" | "pdf" | "mesh" | "nifti" => RowKind::Known(Content::Bytes),
        "int" => RowKind::Int,
        "float" => scalar(DType::F64),
        "bool" | "boolean" => scalar(DType::Bool),
        "no_header_tensor" => flat(number.and_then(torch_type)),
        "no_header_numpy" => flat(number.and_then(numpy_type)),
        "tensor" => RowKind::Headed(Header::Tensor, None),
        "numpy" => RowKind::Headed(Header::Numpy, None),
        "pickle" => RowKind::refused(PICKLE),
        "pil" => RowKind::refused("is of the format \"pil\", raw pixels: write it as jpeg or png"),
        "jpeg_array" => RowKind::refused("holds several images in a sample, which no field can"),
        _ => RowKind::refused(format!("is of the format {format:?}, which is not known")),
    }
}
