//! TFRecord files of tf.train.Example.
//!
//! A feature has its field's own name. Images, text and bytes are a bytes_list of one value,
//! int64 and float32 are an int64_list and a float_list, and arrays of other types their raw bytes.
//! What that does not say is said by two more features: NAME/dtype and NAME/shape. Only NAME/dtype
//! means that each sample has its own length; if it has its own shape, its bytes are those of a
//! .npy file.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};

use super::npy;
use super::record::{Given, Record, RecordWriter, WriteOptions};
use crate::error::{Error, Result};
use crate::sample::{DType, Field, FieldKind};

/// How a field's value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As it is, in a bytes_list.
    Raw,
    /// The bytes of a .npy file, in a bytes_list.
    Npy(DType),
    Ints,
    Floats,
}

/// The features of one field.
struct Plan {
    name: String,
    form: Form,
    /// NAME/dtype and NAME/shape as they are in every record.
    notes: Vec<u8>,
}

enum Output {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
    Zlib(ZlibEncoder<BufWriter<File>>),
}

/// Writes one file.
pub(crate) struct TfrecordWriter {
    path: PathBuf,
    output: Output,
    plans: Vec<Plan>,
    bytes: u64,
    record: Vec<u8>,
    features: Vec<u8>,
    value: Vec<u8>,
}

/// TensorFlow's checksum: CRC-32C, turned so that it may be stored beside what it is of.
fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes that the number takes.
fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// The head of a field of so many bytes.
fn put_head(out: &mut Vec<u8>, number: u8, length: usize) {
    out.push(number << 3 | 2);
    put_varint(out, length as u64);
}

/// The bytes of such a field with its head.
fn field_len(length: usize) -> usize {
    1 + varint_len(length as u64) + length
}

/// Appends a feature: its name, the number of its kind of list, and the list's elements, which
/// `parts` are together.
fn put_feature(out: &mut Vec<u8>, name: &str, list: u8, parts: &[&[u8]]) {
    let value: usize = parts.iter().map(|part| part.len()).sum();
    // An empty list of numbers has no elements; empty bytes are one element.
    let list_length = if value == 0 && list != BYTES { 0 } else { field_len(value) };
    let feature = field_len(list_length);
    put_head(out, 1, field_len(name.len()) + field_len(feature));
    put_head(out, 1, name.len());
    out.extend_from_slice(name.as_bytes());
    put_head(out, 2, feature);
    put_head(out, list, list_length);
    if list_length > 0 {
        put_head(out, 1, value);
        parts.iter().for_each(|part| out.extend_from_slice(part));
    }
}

const BYTES: u8 = 1;
const FLOATS: u8 = 2;
const INTS: u8 = 3;

fn plan(field: &Field) -> Option<Plan> {
    let mut notes = Vec::new();
    let name = field.name.clone();
    let form = match &field.kind {
        FieldKind::EncodedImage | FieldKind::Bytes | FieldKind::Text => Form::Raw,
        FieldKind::Array { dtype, shape } => {
            let form = match dtype {
                // Without elements a list would not show its type.
                _ if shape.contains(&0) => Form::Raw,
                DType::I64 => Form::Ints,
                DType::F32 => Form::Floats,
                _ => Form::Raw,
            };
            let is_plain = form != Form::Raw
                && (shape.is_empty() || matches!(shape[..], [length] if length > 1));
            if !is_plain {
                put_dtype(&mut notes, &name, *dtype);
                put_shape(&mut notes, &name, shape);
            }
            form
        }
        FieldKind::Ragged { dtype, axes: 1 } => {
            put_dtype(&mut notes, &name, *dtype);
            match dtype {
                DType::I64 => Form::Ints,
                DType::F32 => Form::Floats,
                _ => Form::Raw,
            }
        }
        FieldKind::Ragged { dtype, .. } => {
            npy::descr(*dtype)?;
            put_dtype(&mut notes, &name, *dtype);
            Form::Npy(*dtype)
        }
        FieldKind::Pixels { .. } => {
            put_dtype(&mut notes, &name, DType::U8);
            Form::Npy(DType::U8)
        }
    };
    Some(Plan { name, form, notes })
}

fn put_dtype(notes: &mut Vec<u8>, name: &str, dtype: DType) {
    put_feature(notes, &format!("{name}/dtype"), BYTES, &[dtype.name().as_bytes()]);
}

fn put_shape(notes: &mut Vec<u8>, name: &str, shape: &[usize]) {
    let mut axes = Vec::new();
    shape.iter().for_each(|axis| put_varint(&mut axes, *axis as u64));
    put_feature(notes, &format!("{name}/shape"), INTS, &[&axes]);
}

impl TfrecordWriter {
    /// Begins the file.
    pub(crate) fn create(
        path: &Path,
        fields: &[Field],
        options: &WriteOptions,
    ) -> Result<TfrecordWriter> {
        let problem = |problem: String| Error::Source { what: path.display().to_string(), problem };
        let plans = fields.iter().map(|field| {
            plan(field).ok_or_else(|| {
                problem(format!(
                    "cannot hold {:?}: arrays of bfloat16 with several axes",
                    field.name
                ))
            })
        });
        let plans = plans.collect::<Result<_>>()?;
        let level = options.level.and_then(|level| u32::try_from(level).ok()).unwrap_or(6).min(9);
        let level = Compression::new(level);
        let compression = options.compression.as_deref();
        if !matches!(compression, None | Some("none" | "gzip" | "zlib")) {
            return Err(problem(format!(
                "cannot be compressed with {:?}; TFRecord has gzip and zlib",
                compression.unwrap_or_default()
            )));
        }
        let file = File::create_new(path).map_err(failed(path))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        let output = match compression {
            Some("gzip") => Output::Gzip(GzEncoder::new(file, level)),
            Some("zlib") => Output::Zlib(ZlibEncoder::new(file, level)),
            _ => Output::Plain(file),
        };
        Ok(TfrecordWriter {
            path: path.to_owned(),
            output,
            plans,
            bytes: 0,
            record: Vec::new(),
            features: Vec::new(),
            value: Vec::new(),
        })
    }

    fn put_value(&mut self, number: usize, given: &Given<'_>) -> Result<()> {
        let plan = &self.plans[number];
        let out = &mut self.features;
        match plan.form {
            Form::Raw => put_feature(out, &plan.name, BYTES, &[given.bytes]),
            Form::Floats => put_feature(out, &plan.name, FLOATS, &[given.bytes]),
            Form::Ints => {
                self.value.clear();
                for element in given.bytes.as_chunks::<8>().0 {
                    put_varint(&mut self.value, u64::from_ne_bytes(*element));
                }
                put_feature(out, &plan.name, INTS, &[&self.value]);
            }
            Form::Npy(dtype) => {
                let header = npy::header(dtype, given.shape, 0).unwrap_or_default();
                put_feature(out, &plan.name, BYTES, &[&header, given.bytes]);
            }
        }
        out.extend_from_slice(&plan.notes);
        Ok(())
    }
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what: "cannot write", path, source }
}

impl RecordWriter for TfrecordWriter {
    fn put(&mut self, record: &Record<'_>) -> Result<()> {
        self.features.clear();
        for (number, given) in record.values.iter().enumerate().take(self.plans.len()) {
            self.put_value(number, given)?;
        }
        // The head of the record, and the message's only field around all features.
        let length = field_len(self.features.len()) as u64;
        self.record.clear();
        self.record.extend(length.to_le_bytes());
        self.record.extend(masked_crc(&length.to_le_bytes()));
        put_head(&mut self.record, 1, self.features.len());
        self.record.extend_from_slice(&self.features);
        let crc = masked_crc(&self.record[12..]);
        self.record.extend(crc);
        let written = match &mut self.output {
            Output::Plain(output) => output.write_all(&self.record),
            Output::Gzip(output) => output.write_all(&self.record),
            Output::Zlib(output) => output.write_all(&self.record),
        };
        written.map_err(failed(&self.path))?;
        self.bytes += self.record.len() as u64;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        match &self.output {
            Output::Plain(_) => self.bytes,
            Output::Gzip(output) => file_bytes(output.get_ref(), self.bytes),
            Output::Zlib(output) => file_bytes(output.get_ref(), self.bytes),
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let TfrecordWriter { path, output, .. } = *self;
        let file = match output {
            Output::Plain(output) => Ok(output),
            Output::Gzip(output) => output.finish(),
            Output::Zlib(output) => output.finish(),
        };
        file.and_then(|file| file.into_inner().map_err(std::io::IntoInnerError::into_error))
            .and_then(|file| file.sync_all())
            .map_err(failed(&path))
    }
}

/// Bytes that a compressed file has so far, about.
fn file_bytes(output: &BufWriter<File>, most: u64) -> u64 {
    let written = output.get_ref().metadata().map_or(most, |metadata| metadata.len());
    written + output.buffer().len() as u64
}
