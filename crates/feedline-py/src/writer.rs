//! Files of samples that a Python program makes.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use feedline::internals::catalog::PackedField;
use feedline::internals::decode::ImageFormat;
use feedline::internals::pack::SHARD_BYTES;
use feedline::pack::Limit;
use feedline::pack::WriteOptions;
use feedline::pack::{self, Datum, WriterOptions};
use feedline::sample::DType;
use feedline::spec::SourceFormat;
use feedline::{Error, SpecError};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::errors::{raise, raise_spec};

/// A field's name, what it is, the thing itself, and an array's type and shape.
type WrittenField<'py> = (String, String, Bound<'py, PyAny>, Option<String>, Vec<usize>);

/// Writes samples; `feedline.Writer` describes them.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Writer {
    inner: Mutex<Option<pack::Writer>>,
    /// Samples of a writer that is finished.
    finished: AtomicU64,
}

/// What keeps a sample's bytes alive while they are written.
enum Held<'py> {
    Bytes(Bound<'py, PyBytes>),
    Text(Bound<'py, PyString>),
    Int(i64),
    Float(f64),
}

fn read_fields(text: &str) -> PyResult<Vec<feedline::sample::Field>> {
    let wrong = |what: String| PyValueError::new_err(what);
    let fields: Vec<PackedField> =
        serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let field = |field: &PackedField| {
        field.field().ok_or_else(|| wrong(format!("field {:?} makes no sense", field.name)))
    };
    fields.iter().map(field).collect()
}

#[pymethods]
impl Writer {
    /// `fields` is a list of fields as JSON, as a packed set describes them; they are taken from
    /// the first sample if not given.
    #[new]
    #[pyo3(signature = (path, fields=None, format=None, shard_size=None, shard_samples=None, compression=None, level=None, block_samples=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        path: OsString,
        fields: Option<&str>,
        format: Option<&str>,
        shard_size: Option<u64>,
        shard_samples: Option<u64>,
        compression: Option<String>,
        level: Option<i32>,
        block_samples: Option<u64>,
    ) -> PyResult<Self> {
        let fields = fields.map(read_fields).transpose()?;
        let format = match format {
            None => None,
            Some(name) => Some(SourceFormat::to_write(name).ok_or_else(|| {
                raise_spec(
                    py,
                    SpecError::new("format", "cannot be written")
                        .value(format!("{name:?}"))
                        .allowed(SourceFormat::names(SourceFormat::writable())),
                )
            })?),
        };
        let shard = (shard_size.is_some() || shard_samples.is_some()).then(|| Limit {
            bytes: match (shard_size, shard_samples) {
                (Some(bytes), _) => bytes,
                (None, Some(_)) => u64::MAX,
                (None, None) => SHARD_BYTES,
            },
            samples: shard_samples.unwrap_or(u64::MAX),
        });
        let options = WriterOptions {
            format,
            shard,
            write: WriteOptions { compression, level, block_samples },
        };
        let made = py.detach(|| pack::Writer::create(&PathBuf::from(path), fields, options));
        let inner = Mutex::new(Some(made.map_err(|error| raise(py, error))?));
        Ok(Writer { inner, finished: AtomicU64::new(0) })
    }

    /// Adds a sample. A part is "bytes" or "array" with bytes, "text", "int" or "float".
    #[pyo3(signature = (parts, key=None))]
    fn write(
        &self,
        py: Python<'_>,
        parts: Vec<WrittenField<'_>>,
        key: Option<String>,
    ) -> PyResult<()> {
        let mut held = Vec::with_capacity(parts.len());
        for (_, tag, value, ..) in &parts {
            held.push(match tag.as_str() {
                "bytes" | "array" => Held::Bytes(value.cast::<PyBytes>()?.clone()),
                "text" => Held::Text(value.cast::<PyString>()?.clone()),
                "int" => Held::Int(value.extract()?),
                "float" => Held::Float(value.extract()?),
                other => return Err(PyTypeError::new_err(format!("unknown part {other:?}"))),
            });
        }
        let mut sample = Vec::with_capacity(parts.len());
        for ((name, tag, _, dtype, shape), held) in parts.iter().zip(&held) {
            let datum = match held {
                Held::Bytes(bytes) if tag == "array" => {
                    let dtype = dtype.as_deref().and_then(DType::from_name).ok_or_else(|| {
                        let dtype = dtype.as_deref().unwrap_or("none");
                        PyTypeError::new_err(format!("{name:?} has elements of type {dtype}"))
                    })?;
                    Datum::Array(dtype, shape, bytes.as_bytes())
                }
                Held::Bytes(bytes) => match ImageFormat::sniff(bytes.as_bytes()) {
                    Some(_) => Datum::Image(bytes.as_bytes()),
                    None => Datum::Bytes(bytes.as_bytes()),
                },
                Held::Text(text) => Datum::Text(text.to_str()?),
                Held::Int(number) => Datum::Int(*number),
                Held::Float(number) => Datum::Float(*number),
            };
            sample.push((name.as_str(), datum));
        }
        py.detach(|| {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            match inner.as_mut() {
                Some(writer) => writer.write(key.as_deref(), &sample),
                None => Err(closed()),
            }
        })
        .map_err(|error| raise(py, error))
    }

    /// Samples so far.
    #[getter]
    fn samples(&self, py: Python<'_>) -> u64 {
        py.detach(|| {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.as_ref().map_or_else(|| self.finished.load(Relaxed), pack::Writer::samples)
        })
    }

    /// Finishes the files and gives their paths.
    fn finish(&self, py: Python<'_>) -> PyResult<Vec<OsString>> {
        let written = py.detach(|| match self.take() {
            Some(writer) => writer.finish(),
            None => Err(closed()),
        });
        let written = written.map_err(|error| raise(py, error))?;
        self.finished.store(written.samples, Relaxed);
        Ok(written.files.into_iter().map(PathBuf::into_os_string).collect())
    }

    /// Throws away what was written.
    fn abort(&self, py: Python<'_>) {
        py.detach(|| drop(self.take()));
    }
}

impl Writer {
    fn take(&self) -> Option<pack::Writer> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn closed() -> Error {
    Error::Source { what: "writer".to_owned(), problem: "is closed".to_owned() }
}
