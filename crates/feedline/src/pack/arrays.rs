//! A folder of .npy files, each an array that can be mapped into memory: what
//! `source/npy` reads.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::npy::{PATCHABLE, header};
use super::record::{Record, RecordWriter, WriteOptions};
use super::stretch::{FieldLayout, check, layouts, shape_bytes};
use crate::error::{Error, Result};
use crate::sample::{DType, Field};

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what: "cannot write", path, source }
}

/// One .npy file whose first axis grows.
struct Growing {
    path: PathBuf,
    file: BufWriter<File>,
    dtype: DType,
    shape: Vec<usize>,
    row_bytes: usize,
    bytes: u64,
}

impl Growing {
    fn new(path: PathBuf, dtype: DType, shape: &[usize]) -> Result<Box<Growing>> {
        let row_bytes = shape.iter().product::<usize>() * dtype.size();
        if header(dtype, &[0], PATCHABLE).is_none() {
            return Err(Error::Source {
                what: path.display().to_string(),
                problem: format!("cannot hold {dtype}, which NumPy does not have: convert it"),
            });
        }
        let mut file = BufWriter::new(File::create_new(&path).map_err(failed(&path))?);
        file.write_all(&[0; PATCHABLE]).map_err(failed(&path))?;
        Ok(Box::new(Growing { path, file, dtype, shape: shape.to_vec(), row_bytes, bytes: 0 }))
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(failed(&self.path))
    }

    /// Rows that were pushed. Rows of no bytes are counted by `samples`.
    fn finish(self, samples: u64) -> Result<()> {
        let rows = self.bytes.checked_div(self.row_bytes as u64).unwrap_or(samples);
        let shape = [&[rows as usize][..], &self.shape].concat();
        let path = self.path;
        // Axes of up to 20 digits: a header of many axes is refused rather than cut.
        let head = header(self.dtype, &shape, PATCHABLE).filter(|head| head.len() == PATCHABLE);
        let head = head.ok_or_else(|| Error::Source {
            what: path.display().to_string(),
            problem: format!("has too many axes: {shape:?}"),
        })?;
        let file = self.file.into_inner().map_err(|error| failed(&path)(error.into()))?;
        file.write_all_at(&head, 0).and_then(|()| file.sync_all()).map_err(failed(&path))
    }
}

/// One field.
enum NpyColumn {
    Rows(Box<Growing>),
    Stretches { data: Box<Growing>, offsets: Box<Growing>, shapes: Option<Box<Growing>>, end: i64 },
}

/// Writes a folder of arrays.
pub(crate) struct NpyWriter {
    path: PathBuf,
    layouts: Vec<FieldLayout>,
    columns: Vec<NpyColumn>,
    samples: u64,
    bytes: u64,
}

impl NpyWriter {
    /// Begins a folder, which must not be there. There is nothing to choose: an array that is
    /// mapped is not compressed.
    pub(crate) fn create(
        path: &Path,
        fields: &[Field],
        options: &WriteOptions,
    ) -> Result<NpyWriter> {
        if let Some(name) = options.compression.as_deref().filter(|name| *name != "none") {
            return Err(Error::Source {
                what: path.display().to_string(),
                problem: format!(
                    "cannot be compressed with {name:?}: arrays in .npy are mapped as they are"
                ),
            });
        }
        let layouts = layouts(path, fields)?;
        fs::create_dir(path).map_err(failed(path))?;
        let mut columns = Vec::new();
        for (field, layout) in fields.iter().zip(&layouts) {
            let file = |part: &str| path.join(format!("{}{part}.npy", field.name));
            columns.push(match layout {
                FieldLayout::Rows { dtype, shape } => {
                    NpyColumn::Rows(Growing::new(file(""), *dtype, shape)?)
                }
                FieldLayout::Stretches { dtype, axes, text } => {
                    let part = if *text { ".text" } else { ".data" };
                    let data = Growing::new(file(part), *dtype, &[])?;
                    let mut offsets = Growing::new(file(".offsets"), DType::I64, &[])?;
                    offsets.push(&0i64.to_ne_bytes())?;
                    let shapes =
                        axes.map(|axes| Growing::new(file(".shapes"), DType::I64, &[axes]));
                    NpyColumn::Stretches { data, offsets, shapes: shapes.transpose()?, end: 0 }
                }
            });
        }
        Ok(NpyWriter { path: path.to_owned(), layouts, columns, samples: 0, bytes: 0 })
    }
}

impl RecordWriter for NpyWriter {
    fn put(&mut self, record: &Record<'_>) -> Result<()> {
        check(&self.path, &self.layouts, record)?;
        for (column, given) in self.columns.iter_mut().zip(record.values) {
            self.bytes += given.bytes.len() as u64;
            match column {
                NpyColumn::Rows(rows) => rows.push(given.bytes)?,
                NpyColumn::Stretches { data, offsets, shapes, end } => {
                    data.push(given.bytes)?;
                    *end += (given.bytes.len() / data.row_bytes) as i64;
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
        let samples = self.samples;
        for column in self.columns {
            match column {
                NpyColumn::Rows(rows) => rows.finish(samples)?,
                NpyColumn::Stretches { data, offsets, shapes, .. } => {
                    data.finish(0)?;
                    offsets.finish(samples + 1)?;
                    shapes.map_or(Ok(()), |shapes| shapes.finish(samples))?;
                }
            }
        }
        File::open(&self.path).and_then(|folder| folder.sync_all()).map_err(failed(&self.path))
    }
}
