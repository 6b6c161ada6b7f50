//! A Zarr 3 group with an array for each field.
//!
//! A field of different lengths is one long array, with its offsets (and shapes) in others that
//! its attribute `feedline` names; any reader of Zarr sees them as arrays.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::record::{Record, RecordWriter, WriteOptions};
use super::stretch::{FieldLayout, check, layouts, rows_of_block, shape_bytes};
use crate::error::{Error, Result};
use crate::sample::{DType, Field};

/// Bytes of a chunk where nothing is said.
const CHUNK: usize = 1 << 20;

/// Rows of a chunk at most where nothing is said.
const MOST_ROWS: usize = 1 << 16;

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what: "cannot write", path, source }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create_new(path).map_err(failed(path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed(path))
}

/// How chunks are compressed.
#[derive(Clone, Copy)]
enum Compression {
    None,
    Zstd(i32),
    Gzip(u32),
}

impl Compression {
    fn choose(path: &Path, options: &WriteOptions) -> Result<Compression> {
        match options.compression.as_deref() {
            Some("none") => Ok(Compression::None),
            None | Some("zstd") => Ok(Compression::Zstd(options.level.unwrap_or(3))),
            Some("gzip") => {
                Ok(Compression::Gzip(options.level.map_or(5, |level| level.clamp(0, 9) as u32)))
            }
            Some(other) => Err(Error::Source {
                what: path.display().to_string(),
                problem: format!(
                    "cannot be compressed with {other:?}: zstd, gzip and none are known"
                ),
            }),
        }
    }

    fn pack(self, chunk: Vec<u8>) -> std::io::Result<Vec<u8>> {
        match self {
            Compression::None => Ok(chunk),
            Compression::Zstd(level) => zstd::bulk::compress(&chunk, level),
            Compression::Gzip(level) => {
                let level = flate2::Compression::new(level);
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
                encoder.write_all(&chunk)?;
                encoder.finish()
            }
        }
    }

    fn codec(self) -> Option<Value> {
        match self {
            Compression::None => None,
            Compression::Zstd(level) => {
                Some(json!({"name": "zstd", "configuration": {"level": level, "checksum": false}}))
            }
            Compression::Gzip(level) => {
                Some(json!({"name": "gzip", "configuration": {"level": level}}))
            }
        }
    }
}

/// One array whose first axis grows, chunk by chunk.
struct Growing {
    folder: PathBuf,
    dtype: DType,
    shape: Vec<usize>,
    each: usize,
    chunk: Vec<u8>,
    chunks: u64,
    bytes: u64,
    compression: Compression,
}

impl Growing {
    fn new(
        folder: PathBuf,
        dtype: DType,
        shape: &[usize],
        each: Option<u64>,
        compression: Compression,
    ) -> Result<Box<Growing>> {
        let row = shape.iter().product::<usize>() * dtype.size();
        let usual = (CHUNK / row.max(1)).clamp(1, MOST_ROWS);
        let each = rows_of_block(&folder, each, row)?.unwrap_or(usual);
        fs::create_dir(&folder).map_err(failed(&folder))?;
        let (chunk, shape) = (Vec::new(), shape.to_vec());
        let chunks = 0;
        Ok(Box::new(Growing { folder, dtype, shape, each, chunk, chunks, bytes: 0, compression }))
    }

    fn row_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        let whole = self.each * self.row_bytes();
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(whole - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            bytes = later;
            if self.chunk.len() == whole {
                self.write_chunk()?;
            }
        }
        Ok(())
    }

    fn write_chunk(&mut self) -> Result<()> {
        let mut path = self.folder.join("c").join(self.chunks.to_string());
        path.extend(self.shape.iter().map(|_| "0"));
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed(parent))?;
        }
        let chunk = std::mem::take(&mut self.chunk);
        write(&path, &self.compression.pack(chunk).map_err(failed(&path))?)?;
        self.chunks += 1;
        Ok(())
    }

    fn finish(mut self, samples: u64, attributes: &Value) -> Result<()> {
        let row = self.row_bytes();
        let rows = self.bytes.checked_div(row as u64).unwrap_or(samples);
        if !self.chunk.is_empty() {
            // A chunk alone need not be larger than what there is.
            if self.chunks == 0 {
                self.each = self.each.min(rows as usize);
            }
            // Every chunk is whole; what is beyond the array's end does not count.
            self.chunk.resize(self.each * row, 0);
            self.write_chunk()?;
        }
        let axes = |first: u64| -> Vec<u64> {
            let rest = self.shape.iter().map(|axis| *axis as u64);
            std::iter::once(first).chain(rest).collect()
        };
        // An axis of no length still has chunks of some.
        let chunk: Vec<u64> = axes(self.each as u64).iter().map(|axis| (*axis).max(1)).collect();
        let endian = if cfg!(target_endian = "little") { "little" } else { "big" };
        let bytes = match self.dtype.size() {
            1 => json!({"name": "bytes"}),
            _ => json!({"name": "bytes", "configuration": {"endian": endian}}),
        };
        let codecs: Vec<Value> = std::iter::once(bytes).chain(self.compression.codec()).collect();
        let fill = match self.dtype {
            DType::Bool => json!(false),
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => json!(0.0),
            _ => json!(0),
        };
        let metadata = json!({
            "zarr_format": 3,
            "node_type": "array",
            "shape": axes(rows),
            "data_type": self.dtype.name(),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": fill,
            "codecs": codecs,
            "attributes": attributes,
        });
        write(&self.folder.join("zarr.json"), metadata.to_string().as_bytes())
    }
}

/// One field.
enum ZarrColumn {
    Rows(Box<Growing>),
    Stretches {
        data: Box<Growing>,
        offsets: Box<Growing>,
        shapes: Option<Box<Growing>>,
        end: i64,
        name: String,
        text: bool,
    },
}

/// Writes a group.
pub(crate) struct ZarrWriter {
    path: PathBuf,
    layouts: Vec<FieldLayout>,
    columns: Vec<ZarrColumn>,
    samples: u64,
    bytes: u64,
}

impl ZarrWriter {
    /// Begins a group in a folder that must not be there. Chunks are compressed with zstd unless
    /// "gzip" or "none" is said, and have about 1 MiB unless their rows are said.
    pub(crate) fn create(
        path: &Path,
        fields: &[Field],
        options: &WriteOptions,
    ) -> Result<ZarrWriter> {
        let compression = Compression::choose(path, options)?;
        let layouts = layouts(path, fields)?;
        let is_unknown = |layout: &FieldLayout| layout.dtype() == DType::BF16;
        if let Some(at) = layouts.iter().position(is_unknown) {
            return Err(Error::Source {
                what: path.display().to_string(),
                problem: format!(
                    "cannot hold {} of {:?}: convert it",
                    DType::BF16,
                    fields[at].name
                ),
            });
        }
        fs::create_dir(path).map_err(failed(path))?;
        let mut columns = Vec::new();
        for (field, layout) in fields.iter().zip(&layouts) {
            let new = |part: &str, dtype, shape: &[usize], each| {
                let folder = path.join(format!("{}{part}", field.name));
                Growing::new(folder, dtype, shape, each, compression)
            };
            columns.push(match layout {
                FieldLayout::Rows { dtype, shape } => {
                    ZarrColumn::Rows(new("", *dtype, shape, options.block_samples)?)
                }
                FieldLayout::Stretches { dtype, axes, text } => {
                    let mut offsets = new("_offsets", DType::I64, &[], None)?;
                    offsets.push(&0i64.to_ne_bytes())?;
                    let shapes = axes.map(|axes| new("_shapes", DType::I64, &[axes], None));
                    ZarrColumn::Stretches {
                        data: new("", *dtype, &[], Some((CHUNK / dtype.size()) as u64))?,
                        offsets,
                        shapes: shapes.transpose()?,
                        end: 0,
                        name: field.name.clone(),
                        text: *text,
                    }
                }
            });
        }
        Ok(ZarrWriter { path: path.to_owned(), layouts, columns, samples: 0, bytes: 0 })
    }
}

impl RecordWriter for ZarrWriter {
    fn put(&mut self, record: &Record<'_>) -> Result<()> {
        check(&self.path, &self.layouts, record)?;
        for (column, given) in self.columns.iter_mut().zip(record.values) {
            self.bytes += given.bytes.len() as u64;
            match column {
                ZarrColumn::Rows(rows) => rows.push(given.bytes)?,
                ZarrColumn::Stretches { data, offsets, shapes, end, .. } => {
                    data.push(given.bytes)?;
                    *end += (given.bytes.len() / data.row_bytes()) as i64;
                    offsets.push(&end.to_ne_bytes())?;
                    if let Some(shapes) = shapes {
                        shapes.push(&shape_bytes(given.shape))?;
                    }
                }
            }
        }
        self.samples += 1;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let (samples, nothing) = (self.samples, json!({}));
        for column in self.columns {
            match column {
                ZarrColumn::Rows(rows) => rows.finish(samples, &nothing)?,
                ZarrColumn::Stretches { data, offsets, shapes, name, text, .. } => {
                    let kind = if text { "text" } else { "bytes" };
                    let mut said = json!({"offsets": format!("{name}_offsets"), "kind": kind});
                    if let Some(shapes) = shapes {
                        said["shapes"] = json!(format!("{name}_shapes"));
                        said["kind"] = json!("ragged");
                        shapes.finish(samples, &nothing)?;
                    }
                    data.finish(0, &json!({"feedline": said}))?;
                    offsets.finish(samples + 1, &nothing)?;
                }
            }
        }
        let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {}});
        // The group is written last: without it, the folder is no Zarr.
        write(&self.path.join("zarr.json"), group.to_string().as_bytes())
    }
}
