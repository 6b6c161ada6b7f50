//! An HDF5 file with a dataset for each field.
//!
//! Bytes, images and texts are of variable length, as h5py's special types; arrays of different
//! shapes are one long dataset `NAME.data` with `NAME.offsets` and `NAME.shapes`.
//!
//! After a call that failed, as on a full disk, the library crashes when datasets or the file are
//! closed: they are closed only when all is written, and otherwise left open.

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use hdf5_metno::types::{VarLenArray, VarLenUnicode};
use hdf5_metno::{Dataset, Extent, File, H5Type, Hyperslab, SimpleExtents, SliceOrIndex};
use ndarray::ArrayViewD;

use super::record::{Record, RecordWriter, WriteOptions};
use super::stretch::{Layout, check, layouts, rows_of_block, shape_bytes};
use crate::error::{Error, Result};
use crate::sample::{DType, Field};

/// Bytes of a chunk where nothing is said.
const CHUNK: usize = 1 << 20;

/// Rows of a chunk at most where nothing is said.
const MOST_ROWS: usize = 1 << 16;

/// Values of variable length that are written at once: a reference has 16 bytes.
const REFERENCES: usize = 256;

/// Bytes of such values that wait to be written.
const WAITING: usize = 16 << 20;

fn problem(path: &Path, problem: impl std::fmt::Display) -> Error {
    Error::Source { what: path.display().to_string(), problem: problem.to_string() }
}

fn failed(path: &Path) -> impl Fn(hdf5_metno::Error) -> Error + '_ {
    move |error| problem(path, format!("cannot be written: {error}"))
}

/// What is done to chunks: the level of gzip.
type Compression = Option<u8>;

/// A dataset whose first axis grows.
struct Growing {
    dataset: ManuallyDrop<Dataset>,
    dtype: DType,
    shape: Vec<usize>,
    each: usize,
    chunk: Vec<u8>,
    rows: usize,
}

/// A dataset of `T` without rows.
fn dataset<T: H5Type>(
    file: &File,
    name: &str,
    shape: &[usize],
    each: usize,
    compression: Compression,
) -> hdf5_metno::Result<Dataset> {
    let extents: Vec<Extent> = std::iter::once(Extent::resizable(0))
        .chain(shape.iter().map(|axis| Extent::fixed(*axis)))
        .collect();
    // An axis of no length still has chunks of some.
    let chunk: Vec<usize> =
        std::iter::once(each).chain(shape.iter().map(|axis| (*axis).max(1))).collect();
    let mut builder = file.new_dataset::<T>().chunk(chunk);
    if let Some(level) = compression {
        builder = builder.shuffle().deflate(level);
    }
    builder.shape(SimpleExtents::from_vec(extents)).create(name)
}

/// Appends rows to a dataset.
fn append<T: H5Type>(
    dataset: &Dataset,
    before: usize,
    rows: usize,
    shape: &[usize],
    values: &[T],
) -> hdf5_metno::Result<()> {
    let all: Vec<usize> = std::iter::once(before + rows).chain(shape.iter().copied()).collect();
    dataset.resize(all)?;
    let whole: Vec<usize> = std::iter::once(rows).chain(shape.iter().copied()).collect();
    let view = ArrayViewD::from_shape(whole, values)
        .map_err(|error| hdf5_metno::Error::Internal(error.to_string()))?;
    let slices: Vec<SliceOrIndex> = std::iter::once((before..before + rows).into())
        .chain(shape.iter().map(|axis| (0..*axis).into()))
        .collect();
    dataset.write_slice(view, Hyperslab::from(slices))
}

/// Calls a function for the element type, or refuses a type that HDF5 does not have.
macro_rules! for_type {
    ($dtype:expr, $call:ident) => {
        match $dtype {
            DType::U8 => Some($call!(u8)),
            DType::I8 => Some($call!(i8)),
            DType::U16 => Some($call!(u16)),
            DType::I16 => Some($call!(i16)),
            DType::U32 => Some($call!(u32)),
            DType::I32 => Some($call!(i32)),
            DType::U64 => Some($call!(u64)),
            DType::I64 => Some($call!(i64)),
            DType::F16 => Some($call!(half::f16)),
            DType::F32 => Some($call!(f32)),
            DType::F64 => Some($call!(f64)),
            DType::Bool | DType::BF16 => None,
        }
    };
}

impl Growing {
    fn new(
        path: &Path,
        file: &File,
        name: &str,
        (dtype, shape): (DType, &[usize]),
        each: Option<u64>,
        compression: Compression,
    ) -> Result<Growing> {
        let row = shape.iter().product::<usize>() * dtype.size();
        let usual = (CHUNK / row.max(1)).clamp(1, MOST_ROWS);
        let each = rows_of_block(path, each, row)?.unwrap_or(usual);
        macro_rules! make {
            ($type:ty) => {
                dataset::<$type>(file, name, shape, each, compression)
            };
        }
        let made = match (dtype, for_type!(dtype, make)) {
            (DType::Bool, _) => dataset::<bool>(file, name, shape, each, compression),
            (_, Some(made)) => made,
            (_, None) => {
                return Err(problem(path, format!("cannot hold {dtype} of {name:?}: convert it")));
            }
        };
        let dataset = ManuallyDrop::new(made.map_err(failed(path))?);
        let (chunk, shape) = (Vec::new(), shape.to_vec());
        Ok(Growing { dataset, dtype, shape, each, chunk, rows: 0 })
    }

    fn row_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    fn push(&mut self, path: &Path, mut bytes: &[u8]) -> Result<()> {
        let whole = self.each * self.row_bytes();
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(whole - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            bytes = later;
            if self.chunk.len() == whole {
                self.write(path)?;
            }
        }
        Ok(())
    }

    fn write(&mut self, path: &Path) -> Result<()> {
        let rows = self.chunk.len().checked_div(self.row_bytes()).unwrap_or(0);
        if rows == 0 {
            return Ok(());
        }
        macro_rules! write {
            ($type:ty) => {
                append::<$type>(
                    &self.dataset,
                    self.rows,
                    rows,
                    &self.shape,
                    &bytemuck::pod_collect_to_vec(&self.chunk),
                )
            };
        }
        let written = match for_type!(self.dtype, write) {
            Some(written) => written,
            None => {
                let values: Vec<bool> = self.chunk.iter().map(|byte| *byte != 0).collect();
                append(&self.dataset, self.rows, rows, &self.shape, &values)
            }
        };
        written.map_err(failed(path))?;
        self.rows += rows;
        self.chunk.clear();
        Ok(())
    }

    /// Writes the rest. Rows of no bytes are counted by `samples`.
    fn finish(&mut self, path: &Path, samples: u64) -> Result<()> {
        self.write(path)?;
        if self.row_bytes() == 0 {
            let all: Vec<usize> =
                std::iter::once(samples as usize).chain(self.shape.iter().copied()).collect();
            self.dataset.resize(all).map_err(failed(path))?;
        }
        Ok(())
    }
}

/// Values of variable length.
struct Values<T> {
    dataset: ManuallyDrop<Dataset>,
    waiting: Vec<T>,
    bytes: usize,
    rows: usize,
}

impl<T: H5Type> Values<T> {
    fn push(&mut self, path: &Path, value: T, bytes: usize) -> Result<()> {
        self.waiting.push(value);
        self.bytes += bytes;
        match self.waiting.len() >= REFERENCES || self.bytes >= WAITING {
            true => self.write(path),
            false => Ok(()),
        }
    }

    fn write(&mut self, path: &Path) -> Result<()> {
        if !self.waiting.is_empty() {
            append(&self.dataset, self.rows, self.waiting.len(), &[], &self.waiting)
                .map_err(failed(path))?;
        }
        self.rows += self.waiting.len();
        self.waiting.clear();
        self.bytes = 0;
        Ok(())
    }
}

/// One field.
enum Column {
    Rows(Growing),
    Bytes(Values<VarLenArray<u8>>),
    Text(Values<VarLenUnicode>),
    Stretches { data: Growing, offsets: Growing, shapes: Growing, end: i64 },
}

impl Column {
    /// Closes its datasets, of which all is written.
    fn close(self) {
        let close = |dataset| drop(ManuallyDrop::into_inner(dataset));
        match self {
            Column::Rows(rows) => close(rows.dataset),
            Column::Bytes(values) => close(values.dataset),
            Column::Text(values) => close(values.dataset),
            Column::Stretches { data, offsets, shapes, .. } => {
                [data, offsets, shapes].into_iter().for_each(|part| close(part.dataset));
            }
        }
    }
}

/// Writes a file.
pub struct Writer {
    path: PathBuf,
    file: ManuallyDrop<File>,
    /// A call has failed: none is made after it.
    broken: bool,
    layouts: Vec<Layout>,
    columns: Vec<Column>,
    samples: u64,
    bytes: u64,
}

impl Writer {
    /// Begins a file, which must not be there. Chunks have about 1 MiB unless their rows are
    /// said; "gzip" compresses them, after shuffling their bytes.
    pub fn create(path: &Path, fields: &[Field], options: &WriteOptions) -> Result<Writer> {
        let compression: Compression = match options.compression.as_deref() {
            None | Some("none") => None,
            Some("gzip") => Some(options.level.map_or(4, |level| level.clamp(0, 9) as u8)),
            Some(other) => {
                let why = format!("cannot be compressed with {other:?}: gzip and none are known");
                return Err(problem(path, why));
            }
        };
        let layouts = layouts(path, fields)?;
        // The root group would hold when it was made, and the same data give the same bytes.
        let created =
            File::with_options().with_fcpl(|p| p.obj_track_times(false)).create_excl(path);
        let file = ManuallyDrop::new(created.map_err(failed(path))?);
        let mut columns = Vec::new();
        for (field, layout) in fields.iter().zip(&layouts) {
            let name = &field.name;
            let new = |part: &str, kind, each| {
                Growing::new(path, &file, &format!("{name}{part}"), kind, each, compression)
            };
            columns.push(match layout {
                Layout::Rows { dtype, shape } => {
                    Column::Rows(new("", (*dtype, shape), options.block_samples)?)
                }
                Layout::Stretches { axes: Some(axes), dtype, .. } => {
                    let mut offsets = new(".offsets", (DType::I64, &[]), None)?;
                    offsets.push(path, &0i64.to_ne_bytes())?;
                    Column::Stretches {
                        data: new(".data", (*dtype, &[]), Some((CHUNK / dtype.size()) as u64))?,
                        offsets,
                        shapes: new(".shapes", (DType::I64, &[*axes]), None)?,
                        end: 0,
                    }
                }
                // References do not get smaller, and what they mean is not compressed.
                Layout::Stretches { axes: None, text: true, .. } => {
                    let made = dataset::<VarLenUnicode>(&file, name, &[], REFERENCES, None);
                    let dataset = ManuallyDrop::new(made.map_err(failed(path))?);
                    Column::Text(Values { dataset, waiting: Vec::new(), bytes: 0, rows: 0 })
                }
                Layout::Stretches { axes: None, text: false, .. } => {
                    let made = dataset::<VarLenArray<u8>>(&file, name, &[], REFERENCES, None);
                    let dataset = ManuallyDrop::new(made.map_err(failed(path))?);
                    Column::Bytes(Values { dataset, waiting: Vec::new(), bytes: 0, rows: 0 })
                }
            });
        }
        let (path, broken) = (path.to_owned(), false);
        Ok(Writer { path, file, broken, layouts, columns, samples: 0, bytes: 0 })
    }

    /// Refuses to go on after a call that failed.
    fn check_whole(&self) -> Result<()> {
        match self.broken {
            true => Err(problem(&self.path, "could not be written: write it anew")),
            false => Ok(()),
        }
    }

    fn append(&mut self, record: &Record<'_>) -> Result<()> {
        let path = &self.path;
        for (column, given) in self.columns.iter_mut().zip(record.values) {
            self.bytes += given.bytes.len() as u64;
            match column {
                Column::Rows(rows) => rows.push(path, given.bytes)?,
                Column::Bytes(values) => {
                    let value = VarLenArray::from_slice(given.bytes);
                    values.push(path, value, given.bytes.len())?;
                }
                Column::Text(values) => {
                    let text = std::str::from_utf8(given.bytes).ok();
                    let value = text.and_then(|text| text.parse::<VarLenUnicode>().ok());
                    let value = value.ok_or_else(|| {
                        let key = record.key;
                        problem(path, format!("sample {key:?} has a text with a zero or not UTF-8"))
                    })?;
                    values.push(path, value, given.bytes.len())?;
                }
                Column::Stretches { data, offsets, shapes, end } => {
                    data.push(path, given.bytes)?;
                    *end += (given.bytes.len() / data.row_bytes()) as i64;
                    offsets.push(path, &end.to_ne_bytes())?;
                    shapes.push(path, &shape_bytes(given.shape))?;
                }
            }
        }
        self.samples += 1;
        Ok(())
    }
}

impl RecordWriter for Writer {
    fn put(&mut self, record: &Record<'_>) -> Result<()> {
        self.check_whole()?;
        check(&self.path, &self.layouts, record)?;
        let appended = self.append(record);
        self.broken = appended.is_err();
        appended
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.check_whole()?;
        let Writer { path, file, mut columns, samples, .. } = *self;
        for column in &mut columns {
            match column {
                Column::Rows(rows) => rows.finish(&path, samples)?,
                Column::Bytes(values) => values.write(&path)?,
                Column::Text(values) => values.write(&path)?,
                Column::Stretches { data, offsets, shapes, .. } => {
                    data.finish(&path, 0)?;
                    offsets.finish(&path, samples + 1)?;
                    shapes.finish(&path, samples)?;
                }
            }
        }
        // What is left to write fails here, where nothing is closed yet.
        file.flush().map_err(failed(&path))?;
        columns.into_iter().for_each(Column::close);
        ManuallyDrop::into_inner(file).close().map_err(failed(&path))?;
        let synced = std::fs::File::open(&path).and_then(|file| file.sync_all());
        synced.map_err(|source| Error::Io { what: "cannot write", path, source })
    }
}
