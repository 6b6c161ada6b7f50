//! Samples gathered as Arrow columns: what the writers of Parquet and Arrow have in common.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, ListArray, PrimitiveArray,
    RecordBatch, StringArray, StructArray,
};
use arrow_buffer::{BooleanBuffer, Buffer, MutableBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field as ArrowField, Fields, Schema, SchemaRef};

use super::record::{Given, Record};
use crate::error::{Error, Result};
use crate::sample::{DType, Field, FieldKind};

/// Offsets in an array are 32 bits wide.
const LARGEST: usize = i32::MAX as usize;

/// What a field's values are gathered as.
enum Gathered {
    /// An image's struct, with the sample's name as its path.
    Image,
    Bytes,
    Text,
    Array(DType, Vec<usize>),
    Ragged(DType, usize),
}

struct ArrowColumn {
    what: Gathered,
    data: MutableBuffer,
    /// Where each value ends, in bytes; of ragged arrays the offsets of each axis.
    ends: Vec<Vec<i32>>,
}

/// Samples that wait to be written.
pub(super) struct Batch {
    path: String,
    schema: SchemaRef,
    columns: Vec<ArrowColumn>,
    names: ArrowColumn,
    rows: usize,
    bytes: u64,
}

fn column(what: Gathered) -> ArrowColumn {
    let axes = match &what {
        Gathered::Ragged(_, axes) => *axes,
        _ => 1,
    };
    ArrowColumn { what, data: MutableBuffer::new(0), ends: vec![vec![0]; axes] }
}

fn element(dtype: DType) -> Option<DataType> {
    Some(match dtype {
        DType::Bool => DataType::Boolean,
        DType::U8 => DataType::UInt8,
        DType::I8 => DataType::Int8,
        DType::U16 => DataType::UInt16,
        DType::I16 => DataType::Int16,
        DType::U32 => DataType::UInt32,
        DType::I32 => DataType::Int32,
        DType::U64 => DataType::UInt64,
        DType::I64 => DataType::Int64,
        DType::F16 => DataType::Float16,
        DType::F32 => DataType::Float32,
        DType::F64 => DataType::Float64,
        DType::BF16 => return None,
    })
}

fn item(data_type: DataType) -> Arc<ArrowField> {
    Arc::new(ArrowField::new("item", data_type, true))
}

fn image_fields() -> Fields {
    vec![
        ArrowField::new("bytes", DataType::Binary, true),
        ArrowField::new("path", DataType::Utf8, true),
    ]
    .into()
}

impl Gathered {
    fn data_type(&self) -> Option<DataType> {
        Some(match self {
            Gathered::Image => DataType::Struct(image_fields()),
            Gathered::Bytes => DataType::Binary,
            Gathered::Text => DataType::Utf8,
            Gathered::Array(dtype, shape) => {
                shape.iter().rev().try_fold(element(*dtype)?, |inner, axis| {
                    Some(DataType::FixedSizeList(item(inner), i32::try_from(*axis).ok()?))
                })?
            }
            Gathered::Ragged(dtype, axes) => {
                (0..*axes).fold(element(*dtype)?, |inner, _| DataType::List(item(inner)))
            }
        })
    }
}

impl Batch {
    /// An empty one for these fields.
    pub(super) fn new(path: &std::path::Path, fields: &[Field]) -> Result<Batch> {
        let what = path.display().to_string();
        let mut columns = Vec::new();
        let mut described = Vec::new();
        let mut features = serde_json::Map::new();
        for field in fields {
            let gathered = match &field.kind {
                FieldKind::EncodedImage => Gathered::Image,
                FieldKind::Pixels { .. } => Gathered::Ragged(DType::U8, 3),
                FieldKind::Bytes => Gathered::Bytes,
                FieldKind::Text => Gathered::Text,
                FieldKind::Array { dtype, shape } => Gathered::Array(*dtype, shape.clone()),
                FieldKind::Ragged { dtype, axes } => Gathered::Ragged(*dtype, (*axes).max(1)),
            };
            let data_type = gathered.data_type().ok_or_else(|| Error::Source {
                what: what.clone(),
                problem: format!(
                    "field {:?} cannot be written: Arrow has no such type ({:?}); convert it to float32",
                    field.name, field.kind
                ),
            })?;
            if field.kind == FieldKind::EncodedImage {
                features.insert(field.name.clone(), serde_json::json!({ "_type": "Image" }));
            }
            described.push(ArrowField::new(&field.name, data_type, true));
            columns.push(column(gathered));
        }
        // Says that the columns' names are those of the fields.
        let mut metadata = HashMap::from([("feedline".to_owned(), "1".to_owned())]);
        if !features.is_empty() {
            let text = serde_json::json!({ "info": { "features": features } }).to_string();
            metadata.insert("huggingface".to_owned(), text);
        }
        let schema = Arc::new(Schema::new_with_metadata(described, metadata));
        let names = column(Gathered::Text);
        Ok(Batch { path: what, schema, columns, names, rows: 0, bytes: 0 })
    }

    /// What is written.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Samples that wait.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Their bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a sample of so many bytes has no place here any more.
    pub(super) fn is_full(&self, record: &Record<'_>, rows: u64, bytes: u64) -> bool {
        let more: u64 = record.values.iter().map(|value| value.bytes.len() as u64).sum();
        self.rows > 0
            && (self.rows as u64 >= rows || self.bytes + more > bytes.min(LARGEST as u64 / 2))
    }

    fn problem(&self, problem: String) -> Error {
        Error::Source { what: self.path.clone(), problem }
    }

    /// Adds a sample.
    pub(super) fn put(&mut self, record: &Record<'_>) -> Result<()> {
        if record.values.len() != self.columns.len() {
            return Err(self.problem(format!("sample {:?} has other fields", record.key)));
        }
        for (at, value) in record.values.iter().enumerate() {
            if let Some(problem) = unfit(&self.columns[at].what, value) {
                let name = self.schema.field(at).name();
                let text = format!("sample {:?}, field {name:?}: {problem}", record.key);
                return Err(self.problem(text));
            }
        }
        for (column, value) in self.columns.iter_mut().zip(record.values) {
            column.put(value.bytes, value.shape);
            self.bytes += value.bytes.len() as u64;
        }
        self.names.put(record.key.as_bytes(), &[]);
        self.rows += 1;
        Ok(())
    }

    /// What was gathered; it is empty then.
    pub(super) fn take(&mut self) -> Result<RecordBatch> {
        let names = self.names.take(&None);
        let make = || -> Result<RecordBatch, ArrowError> {
            let names = names?;
            let columns = self.columns.iter_mut().map(|column| column.take(&Some(names.clone())));
            RecordBatch::try_new(self.schema.clone(), columns.collect::<Result<_, _>>()?)
        };
        let batch = make();
        (self.rows, self.bytes) = (0, 0);
        batch.map_err(|error| self.problem(error.to_string()))
    }
}

/// Why a value is not what its column holds.
fn unfit(what: &Gathered, value: &Given<'_>) -> Option<String> {
    let bytes = value.bytes.len();
    let fits = |shape: &[usize], dtype: &DType| {
        shape.iter().try_fold(dtype.size(), |size, axis| size.checked_mul(*axis)) == Some(bytes)
    };
    match what {
        _ if bytes > LARGEST / 2 => Some("has more than 1 GB".to_owned()),
        Gathered::Text => std::str::from_utf8(value.bytes).is_err().then(|| "is not UTF-8".into()),
        Gathered::Array(dtype, shape) if value.shape != shape || !fits(shape, dtype) => {
            Some(format!("has the shape {:?} and {bytes} bytes, not {shape:?}", value.shape))
        }
        Gathered::Ragged(dtype, axes)
            if value.shape.len() != *axes || !fits(value.shape, dtype) =>
        {
            Some(format!("has the shape {:?} and {bytes} bytes, not {axes} axes", value.shape))
        }
        _ => None,
    }
}

impl ArrowColumn {
    fn put(&mut self, bytes: &[u8], shape: &[usize]) {
        self.data.extend_from_slice(bytes);
        let ragged = matches!(self.what, Gathered::Ragged(..));
        let mut lists = 1;
        for (axis, ends) in self.ends.iter_mut().enumerate() {
            // The first axis has one list, the next as many as that one has elements.
            let length = if ragged { shape[axis] } else { bytes.len() };
            for _ in 0..lists {
                let end = ends.last().copied().unwrap_or(0) + length as i32;
                ends.push(end);
            }
            lists *= length;
        }
    }

    fn take(&mut self, names: &Option<ArrayRef>) -> Result<ArrayRef, ArrowError> {
        let data: Buffer = std::mem::replace(&mut self.data, MutableBuffer::new(0)).into();
        let ends = self.ends.iter_mut().map(|ends| std::mem::replace(ends, vec![0]));
        let mut ends = ends.map(|ends| OffsetBuffer::new(ScalarBuffer::from(ends)));
        let mut first = || ends.next().unwrap_or_else(OffsetBuffer::new_empty);
        Ok(match &self.what {
            Gathered::Bytes => Arc::new(BinaryArray::try_new(first(), data, None)?),
            Gathered::Text => Arc::new(StringArray::try_new(first(), data, None)?),
            Gathered::Image => {
                let bytes: ArrayRef = Arc::new(BinaryArray::try_new(first(), data, None)?);
                let names = names.clone().ok_or_else(|| {
                    ArrowError::InvalidArgumentError("an image has no name".to_owned())
                })?;
                Arc::new(StructArray::try_new(image_fields(), vec![bytes, names], None)?)
            }
            Gathered::Array(dtype, shape) => {
                let elements: usize = shape.iter().product();
                if elements == 0 {
                    return empty(*dtype, shape, first().len() - 1);
                }
                let mut array = numbers(*dtype, data)?;
                for axis in shape.iter().rev() {
                    let item = item(array.data_type().clone());
                    array = Arc::new(FixedSizeListArray::try_new(item, *axis as i32, array, None)?);
                }
                array
            }
            Gathered::Ragged(dtype, _) => {
                let mut array = numbers(*dtype, data)?;
                let all: Vec<_> = ends.collect();
                for offsets in all.into_iter().rev() {
                    let item = item(array.data_type().clone());
                    array = Arc::new(ListArray::try_new(item, offsets, array, None)?);
                }
                array
            }
        })
    }
}

/// Arrays without elements, whose number only their count gives.
fn empty(dtype: DType, shape: &[usize], rows: usize) -> Result<ArrayRef, ArrowError> {
    let mut lengths = vec![rows];
    shape.iter().for_each(|axis| lengths.push(lengths.last().unwrap_or(&0) * axis));
    let mut array = numbers(dtype, MutableBuffer::new(0).into())?;
    for (axis, length) in shape.iter().zip(lengths).rev() {
        let item = item(array.data_type().clone());
        let list =
            FixedSizeListArray::try_new_with_length(item, *axis as i32, array, None, length)?;
        array = Arc::new(list);
    }
    Ok(array)
}

fn primitive<T: ArrowPrimitiveType>(data: Buffer) -> Result<ArrayRef, ArrowError> {
    let length = data.len() / size_of::<T::Native>();
    let values = ScalarBuffer::<T::Native>::new(data, 0, length);
    Ok(Arc::new(PrimitiveArray::<T>::try_new(values, None)?))
}

fn numbers(dtype: DType, data: Buffer) -> Result<ArrayRef, ArrowError> {
    match dtype {
        DType::Bool => {
            let bits = BooleanBuffer::collect_bool(data.len(), |at| data[at] != 0);
            Ok(Arc::new(BooleanArray::new(bits, None)))
        }
        DType::U8 => primitive::<UInt8Type>(data),
        DType::I8 => primitive::<Int8Type>(data),
        DType::U16 => primitive::<UInt16Type>(data),
        DType::I16 => primitive::<Int16Type>(data),
        DType::U32 => primitive::<UInt32Type>(data),
        DType::I32 => primitive::<Int32Type>(data),
        DType::U64 => primitive::<UInt64Type>(data),
        DType::I64 => primitive::<Int64Type>(data),
        DType::F16 => primitive::<Float16Type>(data),
        DType::F32 => primitive::<Float32Type>(data),
        DType::F64 => primitive::<Float64Type>(data),
        DType::BF16 => Err(ArrowError::InvalidArgumentError("there is no bfloat16".to_owned())),
    }
}

/// An error in writing a file.
pub(super) fn failed(path: &std::path::Path, error: impl std::fmt::Display) -> Error {
    Error::Source {
        what: path.display().to_string(),
        problem: format!("cannot be written: {error}"),
    }
}

/// A new file.
pub(super) fn create(path: &std::path::Path) -> Result<std::fs::File> {
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|source| Error::Io { what: "cannot create", path: path.to_owned(), source })
}

/// An option that a format does not know.
pub(super) fn unknown_compression(path: &std::path::Path, name: &str, known: &str) -> Error {
    Error::Source {
        what: path.display().to_string(),
        problem: format!("compression {name:?} is not known; allowed: {known}"),
    }
}
