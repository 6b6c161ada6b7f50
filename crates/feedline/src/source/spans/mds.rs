//! MosaicML's streaming shards (MDS): `index.json` and the shards that it lists.
//!
//! Shards may be compressed as a whole with zstd or gzip. Checksums of shards are not compared.

use std::path::Path;

use serde::Deserialize;

use super::Spans;
use super::headed::Header;
use super::look::PICKLE;
use super::part::Content;
use super::row_shards::{self, RowColumn, RowKind, RowShard, folder_of, inside, read_index};
use crate::error::{Error, Result};
use crate::sample::DType;
use crate::source::{Opening, problem};
use crate::spec::FieldChoice;
use crate::store::Store;

#[derive(Deserialize)]
struct Index {
    version: u64,
    shards: Vec<ShardNote>,
}

#[derive(Deserialize)]
struct ShardNote {
    format: String,
    column_names: Vec<String>,
    column_encodings: Vec<String>,
    column_sizes: Vec<Option<u64>>,
    compression: Option<String>,
    raw_data: FileNote,
    zip_data: Option<FileNote>,
    samples: u64,
}

#[derive(Deserialize)]
struct FileNote {
    basename: String,
}

/// Opens a folder.
pub(in crate::source) fn open(
    path: &Path,
    fields: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<Spans> {
    let folder = folder_of(path);
    row_shards::open("mds", folder, shards(folder, &**with.store)?, fields, with)
}

/// The shards that a folder's index lists.
fn shards(folder: &Path, store: &dyn Store) -> Result<Vec<RowShard>> {
    let index: Index = read_index(folder, store, "MDS shards")?;
    let problem = |why: String| problem(folder.join(row_shards::INDEX), why);
    if index.version != 2 {
        return Err(problem(format!("is of version {}; 2 is known", index.version)));
    }
    index.shards.iter().map(|shard| shard.open(folder, store, &problem)).collect()
}

impl ShardNote {
    fn open(
        &self,
        folder: &Path,
        store: &dyn Store,
        problem: &dyn Fn(String) -> Error,
    ) -> Result<RowShard> {
        let name = &self.raw_data.basename;
        if self.format != "mds" {
            return Err(problem(format!(
                "lists {name:?} of the format {:?}; only \"mds\" is read",
                self.format
            )));
        }
        let columns = self.column_names.len();
        if self.column_encodings.len() != columns || self.column_sizes.len() != columns {
            return Err(problem(format!("says different numbers of columns for {name:?}")));
        }
        let raw = inside(folder, name)?;
        let path = match &self.zip_data {
            Some(zip) if matches!(store.kind(&raw), Ok(None)) => {
                let packing = self.compression.as_deref().unwrap_or_default();
                let packing = packing.split(':').next().unwrap_or_default();
                if !matches!(packing, "zstd" | "gz") {
                    return Err(problem(format!(
                        "lists {:?}, compressed with {packing:?}: only zstd and gz are read",
                        zip.basename
                    )));
                }
                inside(folder, &zip.basename)?
            }
            _ => raw,
        };
        let notes = self.column_names.iter().zip(&self.column_encodings).zip(&self.column_sizes);
        let columns = notes.map(|((name, encoding), size)| RowColumn {
            name: name.clone(),
            // Zero stands for none, as in the library itself.
            size: size.filter(|size| *size > 0),
            kind: kind_of(encoding),
        });
        Ok(RowShard { path, columns: columns.collect(), samples: self.samples })
    }
}

/// What an encoding's name says.
fn kind_of(encoding: &str) -> RowKind {
    let (name, details) = encoding.split_once(':').unwrap_or((encoding, ""));
    match name {
        "bytes" => RowKind::Bytes,
        "str" | "json" | "str_int" | "str_float" | "str_decimal" => RowKind::Known(Content::Text),
        "jpeg" | "png" => RowKind::Known(Content::Image),
        "int" | "int64" => RowKind::Int,
        "float32" => RowKind::Float,
        "ndarray" => array_kind(details),
        "pkl" => RowKind::refused(PICKLE),
        "pil" => {
            RowKind::refused("is of the encoding \"pil\", raw pixels: write it as jpeg or png")
        }
        "jpeg_array" | "jpegarray" | "list[jpeg]" | "list[png]" | "list[pil]" => {
            RowKind::refused("holds several images in a sample, which no field can")
        }
        _ => match DType::from_name(name) {
            Some(dtype) => RowKind::Known(Content::Array { dtype, shape: Vec::new() }),
            None => {
                RowKind::refused(format!("is of the encoding {encoding:?}, which is not known"))
            }
        },
    }
}

/// `ndarray`, `ndarray:dtype` or `ndarray:dtype:shape`.
fn array_kind(details: &str) -> RowKind {
    if details.is_empty() {
        return RowKind::Headed(Header::Mds { says_type: true }, None);
    }
    let (dtype, shape) = details.split_once(':').unwrap_or((details, ""));
    let Some(dtype) = DType::from_name(dtype) else {
        return RowKind::refused(format!("holds arrays of the type {dtype:?}, which is not known"));
    };
    if shape.is_empty() {
        return RowKind::Headed(Header::Mds { says_type: false }, Some(dtype));
    }
    let axes: Option<Vec<usize>> = shape.split(',').map(|axis| axis.trim().parse().ok()).collect();
    match axes {
        Some(shape) => RowKind::Known(Content::Array { dtype, shape }),
        None => RowKind::refused(format!("holds arrays of the shape {shape:?}, which is none")),
    }
}
