//! An HDF5 file with a dataset for each field.
//!
//! Bytes, images and texts are of variable length, as h5py's special types; arrays of different
//! shapes are one long dataset `NAME.data` with `NAME.offsets` and `NAME.shapes`.
//!
//! The file is written from its start to its end: chunks and heaps as they fill, then what says
//! where they lie, and at last the superblock. A file that was not finished is no HDF5 file.

mod layout;

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use layout::{Element, SUPERBLOCK, WrittenChunk};

use super::record::{Record, RecordWriter, WriteOptions};
use super::stretch::{FieldLayout, check, layouts, rows_of_block, shape_bytes};
use crate::error::{Error, Result};
use crate::sample::{DType, Field};

/// Bytes of a chunk where nothing is said.
const CHUNK: usize = 1 << 20;

/// Rows of a chunk at most where nothing is said.
const MOST_ROWS: usize = 1 << 16;

/// Values of variable length in a chunk and in a heap.
const REFERENCES: usize = 256;

/// Bytes of such values that wait to be written.
const WAITING: usize = 16 << 20;

/// Axes that HDF5 knows.
const MOST_AXES: usize = 32;

/// The longest name: the link to a dataset has to fit into a message.
const LONGEST_NAME: usize = 60_000;

fn problem(path: &Path, problem: impl std::fmt::Display) -> Error {
    Error::Source { what: path.display().to_string(), problem: problem.to_string() }
}

/// The file so far.
struct Out {
    path: PathBuf,
    file: BufWriter<File>,
    end: u64,
}

impl Out {
    fn failed(&self, source: std::io::Error) -> Error {
        Error::Io { what: "cannot write", path: self.path.clone(), source }
    }

    /// Writes at the next multiple of eight, and says where.
    fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        let at = self.end.next_multiple_of(8);
        let gap = [0; 8];
        let written = self
            .file
            .write_all(&gap[..(at - self.end) as usize])
            .and_then(|()| self.file.write_all(bytes));
        written.map_err(|error| self.failed(error))?;
        self.end = at + bytes.len() as u64;
        Ok(at)
    }
}

/// A dataset whose first axis grows.
struct Growing {
    name: String,
    element: Element,
    shape: Vec<usize>,
    gzip: Option<u8>,
    /// Rows of a chunk.
    each: usize,
    chunk: Vec<u8>,
    rows: u64,
    chunks: Vec<WrittenChunk>,
}

impl Growing {
    fn new(
        path: &Path,
        name: String,
        (element, shape): (Element, &[usize]),
        each: Option<u64>,
        gzip: Option<u8>,
    ) -> Result<Growing> {
        if let (Element::Number(dtype), false) = (element, element.is_known()) {
            return Err(problem(path, format!("cannot hold {dtype} of {name:?}: convert it")));
        }
        if shape.len() >= MOST_AXES {
            let axes = shape.len() + 1;
            return Err(problem(path, format!("cannot hold {name:?} of {axes} axes: {MOST_AXES}")));
        }
        if name.len() > LONGEST_NAME {
            return Err(problem(path, "has a field with a name that is too long"));
        }
        let row = shape.iter().product::<usize>() * element.size();
        let usual = (CHUNK / row.max(1)).clamp(1, MOST_ROWS);
        let each = rows_of_block(path, each, row)?.unwrap_or(usual);
        // Lengths of chunks and of their axes have 32 bits.
        let axes = shape.iter().map(|axis| *axis as u64);
        if axes.chain([each as u64 * row as u64]).any(|length| u32::try_from(length).is_err()) {
            return Err(problem(path, format!("cannot hold {name:?}: a row has 4 GB or more")));
        }
        let (shape, chunk, chunks) = (shape.to_vec(), Vec::new(), Vec::new());
        Ok(Growing { name, element, shape, gzip, each, chunk, rows: 0, chunks })
    }

    fn row_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.element.size()
    }

    fn push(&mut self, out: &mut Out, mut bytes: &[u8]) -> Result<()> {
        let whole = self.each * self.row_bytes();
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(whole - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            bytes = later;
            if self.chunk.len() == whole {
                self.write(out)?;
            }
        }
        Ok(())
    }

    /// Writes a chunk; one that is not full has zeros at its end.
    fn write(&mut self, out: &mut Out) -> Result<()> {
        let row = self.row_bytes();
        let rows = self.chunk.len().checked_div(row).unwrap_or(0);
        if rows == 0 {
            return Ok(());
        }
        self.chunk.resize(self.each * row, 0);
        let packed = match self.gzip {
            None => None,
            Some(level) => Some(
                compressed(&self.chunk, self.element.size(), level)
                    .map_err(|error| out.failed(error))?,
            ),
        };
        let bytes = packed.as_deref().unwrap_or(&self.chunk);
        let address = out.append(bytes)?;
        self.chunks.push(WrittenChunk { address, bytes: bytes.len() as u32 });
        self.rows += rows as u64;
        self.chunk.clear();
        Ok(())
    }

    /// Writes the rest and what describes the dataset; says its name and address. Rows of no bytes
    /// are counted by `samples`.
    fn finish(mut self, out: &mut Out, samples: u64) -> Result<(String, u64)> {
        self.write(out)?;
        let rows = if self.row_bytes() == 0 { samples } else { self.rows };
        let axes = self.shape.len() + 1;
        let (nodes, tree) =
            layout::tree(&self.chunks, self.each as u64, axes, out.end.next_multiple_of(8));
        if !nodes.is_empty() {
            out.append(&nodes)?;
        }
        let rest = || self.shape.iter().map(|axis| *axis as u64);
        let shape: Vec<u64> = std::iter::once(rows).chain(rest()).collect();
        // An axis of no length still has chunks of some.
        let chunk: Vec<u64> =
            std::iter::once(self.each as u64).chain(rest().map(|axis| axis.max(1))).collect();
        let (element, gzip) = (self.element, self.gzip);
        let header = layout::Dataset { element, shape: &shape, chunk: &chunk, gzip, tree }.header();
        Ok((self.name, out.append(&header)?))
    }
}

/// The first bytes of all elements, then the second ones, and so on: they are alike.
fn compressed(chunk: &[u8], size: usize, level: u8) -> std::io::Result<Vec<u8>> {
    let mut shuffled = Vec::with_capacity(chunk.len());
    for byte in 0..size {
        shuffled.extend(chunk.iter().skip(byte).step_by(size));
    }
    let mut out =
        flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(u32::from(level)));
    out.write_all(&shuffled)?;
    out.finish()
}

/// Values of variable length: references to them, and those that wait to be written.
struct Values {
    references: Growing,
    waiting: Vec<Vec<u8>>,
    bytes: usize,
}

impl Values {
    fn push(&mut self, out: &mut Out, value: &[u8]) -> Result<()> {
        if u32::try_from(value.len()).is_err() {
            return Err(problem(&out.path, "cannot hold a value of 4 GB or more"));
        }
        self.waiting.push(value.to_vec());
        self.bytes += value.len();
        match self.waiting.len() >= REFERENCES || self.bytes >= WAITING {
            true => self.write(out),
            false => Ok(()),
        }
    }

    fn write(&mut self, out: &mut Out) -> Result<()> {
        let filled = || self.waiting.iter().filter(|value| !value.is_empty());
        let heap = match filled().next() {
            None => 0,
            Some(_) => out.append(&layout::heap(filled().map(|value| &value[..])))?,
        };
        let mut number = 0;
        for value in &self.waiting {
            number += u32::from(!value.is_empty());
            self.references.push(out, &layout::reference(value.len(), heap, number))?;
        }
        self.waiting.clear();
        self.bytes = 0;
        Ok(())
    }
}

/// One field.
enum Hdf5Column {
    Rows(Growing),
    Values(Values),
    Stretches(Box<Stretches>),
}

impl Hdf5Column {
    /// What its datasets are called.
    fn names(&self) -> Vec<&str> {
        match self {
            Hdf5Column::Rows(rows) => vec![&rows.name],
            Hdf5Column::Values(values) => vec![&values.references.name],
            Hdf5Column::Stretches(parts) => {
                [&parts.data, &parts.offsets, &parts.shapes].map(|part| &*part.name).to_vec()
            }
        }
    }
}

/// Arrays of different shapes.
struct Stretches {
    data: Growing,
    offsets: Growing,
    shapes: Growing,
    end: i64,
}

/// Writes a file.
pub(crate) struct Hdf5Writer {
    out: Out,
    layouts: Vec<FieldLayout>,
    columns: Vec<Hdf5Column>,
    samples: u64,
    bytes: u64,
    /// A call has failed: none is made after it.
    broken: bool,
}

impl Hdf5Writer {
    /// Begins a file, which must not be there. Chunks have about 1 MiB unless their rows are
    /// said; "gzip" compresses them, after shuffling their bytes.
    pub(crate) fn create(
        path: &Path,
        fields: &[Field],
        options: &WriteOptions,
    ) -> Result<Hdf5Writer> {
        let gzip = match options.compression.as_deref() {
            None | Some("none") => None,
            Some("gzip") => Some(options.level.map_or(4, |level| level.clamp(0, 9) as u8)),
            Some(other) => {
                let why = format!("cannot be compressed with {other:?}: gzip and none are known");
                return Err(problem(path, why));
            }
        };
        let layouts = layouts(path, fields)?;
        let mut columns = Vec::new();
        for (field, layout) in fields.iter().zip(&layouts) {
            let new = |part: &str, kind, each| {
                Growing::new(path, format!("{}{part}", field.name), kind, each, gzip)
            };
            let number = |dtype: DType| Element::Number(dtype);
            columns.push(match layout {
                FieldLayout::Rows { dtype, shape } => {
                    Hdf5Column::Rows(new("", (number(*dtype), shape), options.block_samples)?)
                }
                FieldLayout::Stretches { axes: Some(axes), dtype, .. } => {
                    let each = Some((CHUNK / dtype.size()) as u64);
                    Hdf5Column::Stretches(Box::new(Stretches {
                        data: new(".data", (number(*dtype), &[]), each)?,
                        offsets: new(".offsets", (number(DType::I64), &[]), None)?,
                        shapes: new(".shapes", (number(DType::I64), &[*axes]), None)?,
                        end: 0,
                    }))
                }
                // References do not get smaller, and what they mean is not compressed.
                FieldLayout::Stretches { axes: None, text, .. } => {
                    let element = if *text { Element::Text } else { Element::Bytes };
                    let each = Some(REFERENCES as u64);
                    let name = field.name.clone();
                    Hdf5Column::Values(Values {
                        references: Growing::new(path, name, (element, &[]), each, None)?,
                        waiting: Vec::new(),
                        bytes: 0,
                    })
                }
            });
        }
        let mut names: Vec<&str> = columns.iter().flat_map(Hdf5Column::names).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(problem(
                path,
                format!("would have two datasets {:?}: rename a field", twice[0]),
            ));
        }
        let failed = |source| Error::Io { what: "cannot write", path: path.to_owned(), source };
        let file = File::options().write(true).create_new(true).open(path).map_err(failed)?;
        let file = BufWriter::with_capacity(1 << 20, file);
        let mut out = Out { path: path.to_owned(), file, end: 0 };
        out.append(&[0; SUPERBLOCK])?;
        for column in &mut columns {
            if let Hdf5Column::Stretches(parts) = column {
                parts.offsets.push(&mut out, &0i64.to_ne_bytes())?;
            }
        }
        Ok(Hdf5Writer { out, layouts, columns, samples: 0, bytes: 0, broken: false })
    }

    /// Refuses to go on after a call that failed.
    fn check_whole(&self) -> Result<()> {
        match self.broken {
            true => Err(problem(&self.out.path, "could not be written: write it anew")),
            false => Ok(()),
        }
    }

    fn append(&mut self, record: &Record<'_>) -> Result<()> {
        let out = &mut self.out;
        for ((column, layout), given) in
            self.columns.iter_mut().zip(&self.layouts).zip(record.values)
        {
            self.bytes += given.bytes.len() as u64;
            match column {
                Hdf5Column::Rows(rows) => rows.push(out, given.bytes)?,
                Hdf5Column::Values(values) => {
                    let is_text = matches!(layout, FieldLayout::Stretches { text: true, .. });
                    let whole = std::str::from_utf8(given.bytes).is_ok_and(|t| !t.contains('\0'));
                    if is_text && !whole {
                        let key = record.key;
                        let why = format!("sample {key:?} has a text with a zero or not UTF-8");
                        return Err(problem(&out.path, why));
                    }
                    values.push(out, given.bytes)?;
                }
                Hdf5Column::Stretches(parts) => {
                    let Stretches { data, offsets, shapes, end } = &mut **parts;
                    data.push(out, given.bytes)?;
                    *end += (given.bytes.len() / data.row_bytes()) as i64;
                    offsets.push(out, &end.to_ne_bytes())?;
                    shapes.push(out, &shape_bytes(given.shape))?;
                }
            }
        }
        self.samples += 1;
        Ok(())
    }
}

impl RecordWriter for Hdf5Writer {
    fn put(&mut self, record: &Record<'_>) -> Result<()> {
        self.check_whole()?;
        check(&self.out.path, &self.layouts, record)?;
        let appended = self.append(record);
        self.broken = appended.is_err();
        appended
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.check_whole()?;
        let Hdf5Writer { mut out, columns, samples, .. } = *self;
        let mut links = Vec::new();
        for column in columns {
            match column {
                Hdf5Column::Rows(rows) => links.push(rows.finish(&mut out, samples)?),
                Hdf5Column::Values(mut values) => {
                    values.write(&mut out)?;
                    links.push(values.references.finish(&mut out, samples)?);
                }
                Hdf5Column::Stretches(parts) => {
                    let Stretches { data, offsets, shapes, .. } = *parts;
                    links.push(data.finish(&mut out, 0)?);
                    links.push(offsets.finish(&mut out, samples + 1)?);
                    links.push(shapes.finish(&mut out, samples)?);
                }
            }
        }
        let root = out.append(&layout::root(&links))?;
        let first = layout::superblock(out.end, root);
        let done = out
            .file
            .seek(SeekFrom::Start(0))
            .and_then(|_| out.file.write_all(&first))
            .and_then(|()| out.file.flush())
            .and_then(|()| out.file.get_ref().sync_all());
        done.map_err(|error| out.failed(error))
    }
}
