//! A native source as Python reads it, sample by sample.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

use feedline::error::Stage;
use feedline::internals::engine::opening;
use feedline::internals::image::View;
use feedline::sample::{FieldKind, Room, Value};
use feedline::source::{self, Source};
use feedline::store::{Files, Store};
use feedline::{Error, Fault, Spec};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyString, PyTuple};
use serde_json::json;

use crate::chain::{Chain, Input, Name, Pending};
use crate::errors::{raise, raise_spec};
use crate::loader::put_paths;

/// The arguments that samples are opened with again.
type Arguments<'py> = (String, Vec<Bound<'py, PyBytes>>, (u64, u64));

/// The samples of a source, in any format that is read.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Samples {
    store: Arc<dyn Store>,
    source: Arc<dyn Source>,
    described: String,
    paths: Vec<Vec<u8>>,
}

#[pymethods]
impl Samples {
    /// `described` is one source as a description holds it, as JSON; `paths` as a loader takes
    /// them. `expected` is the length and the fingerprint that it must have.
    #[new]
    #[pyo3(signature = (described, paths, expected=None))]
    fn new(
        py: Python<'_>,
        described: &str,
        paths: Vec<Vec<u8>>,
        expected: Option<(u64, u64)>,
    ) -> PyResult<Self> {
        let mut spec = Spec::from_json(&format!("{{\"source\": {described}}}"))
            .map_err(|error| raise_spec(py, error))?;
        let real: Vec<PathBuf> =
            paths.iter().map(|path| OsString::from_vec(path.clone()).into()).collect();
        put_paths(&mut spec, &real);
        let store: Arc<dyn Store> = Arc::new(Files::default());
        let opened = py.detach(|| {
            let [named] = &spec.sources[..] else {
                return Err(Error::System("one source at a time can be read".to_owned()));
            };
            let source = source::open(&named.kind, &opening(&spec, &store))?;
            match expected {
                Some(same) if same != (source.len(), source.fingerprint()) => Err(Error::Source {
                    what: source.name(),
                    problem: "has changed since the loader was made: make a new one".to_owned(),
                }),
                _ => Ok(source),
            }
        });
        let source = opened.map_err(|error| raise(py, error))?;
        Ok(Samples { store, source, described: described.to_owned(), paths })
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.source.len()).unwrap_or(usize::MAX)
    }

    /// Fields, classes, name and fingerprint, as JSON.
    #[getter]
    fn about(&self) -> String {
        let fields: Vec<_> = self
            .source
            .fields()
            .iter()
            .map(|field| match &field.kind {
                FieldKind::EncodedImage => json!({"name": field.name, "kind": "encoded"}),
                FieldKind::Pixels { channels } => {
                    json!({"name": field.name, "kind": "pixels", "channels": channels})
                }
                FieldKind::Array { dtype, shape } => json!({
                    "name": field.name, "kind": "array", "dtype": dtype.name(), "shape": shape,
                }),
                FieldKind::Ragged { dtype, .. } => {
                    json!({"name": field.name, "kind": "ragged", "dtype": dtype.name()})
                }
                // Bytes and text.
                other => json!({"name": field.name, "kind": other.name()}),
            })
            .collect();
        json!({
            "fields": fields,
            "classes": self.source.classes(),
            "name": self.source.name(),
            "unused_columns": self.source.unused_columns(),
            "fingerprint": self.source.fingerprint(),
        })
        .to_string()
    }

    /// Field number `field` of a sample: the encoded bytes of an image, (pixels, (height, width,
    /// channels)), a number, or the bytes of an array. `source` names it in errors.
    #[pyo3(signature = (index, field, source=0))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        index: u64,
        field: usize,
        source: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let name = self.name(index, source)?;
        match self.value(py, &name, field)? {
            value @ (Value::File(_) | Value::Made) => {
                let Fresh { bytes, shape, .. } = self.fetch(py, &name, field, &value)?;
                if self.source.fields()[field].kind == FieldKind::Text {
                    return Ok(PyString::from_bytes(py, &bytes)?.into_any());
                }
                let bytes = PyBytes::new(py, &bytes).into_any();
                match shape {
                    None => Ok(bytes),
                    Some(shape) => {
                        let shape = PyTuple::new(py, shape)?.into_any();
                        Ok(PyTuple::new(py, [bytes, shape])?.into_any())
                    }
                }
            }
            Value::Bytes(bytes) if self.source.fields()[field].kind == FieldKind::Text => {
                Ok(PyString::from_bytes(py, bytes)?.into_any())
            }
            Value::Bytes(bytes) => Ok(PyBytes::new(py, bytes).into_any()),
            value @ Value::Pixels { height, width, channels, .. } => {
                let Fresh { bytes, .. } = self.fetch(py, &name, field, &value)?;
                let pixels = PyByteArray::new(py, &bytes).into_any();
                let shape = (height, width, channels).into_pyobject(py)?.into_any();
                Ok(PyTuple::new(py, [pixels, shape])?.into_any())
            }
            Value::Int(number) => Ok(number.into_pyobject(py)?.into_any()),
            Value::Float(number) => Ok(number.into_pyobject(py)?.into_any()),
        }
    }

    /// The image in field number `field` of a sample, read and ready for `chain`'s stages.
    #[pyo3(signature = (index, field, chain, seed=0, epoch=0, position=0, source=0))]
    #[allow(clippy::too_many_arguments)]
    fn prepare(
        &self,
        py: Python<'_>,
        index: u64,
        field: usize,
        chain: &Chain,
        seed: u64,
        epoch: u64,
        position: u64,
        source: usize,
    ) -> PyResult<Pending> {
        let mut name = self.name(index, source)?;
        let input = match self.value(py, &name, field)? {
            value @ (Value::File(_) | Value::Made) => {
                if let Value::File(location) = value {
                    name.path = Some(location.root.join(location.path));
                }
                Input::Read(self.fetch(py, &name, field, &value)?.bytes)
            }
            Value::Bytes(bytes) => Input::Read(bytes.to_vec()),
            value @ Value::Pixels { height, width, channels, .. } => {
                let Fresh { bytes, .. } = self.fetch(py, &name, field, &value)?;
                Input::Pixels(bytes, View::interleaved(height, width, channels))
            }
            _ => {
                let fault = Fault::Shape("is not an image".to_owned());
                return Err(name.raise(py, Stage::Read, fault));
            }
        };
        Pending::new(py, chain.stages.clone(), input, (seed, epoch, position), name)
    }

    /// The file that a sample lies in, or what it was called before it was packed.
    fn path(&self, index: u64) -> PyResult<Option<OsString>> {
        Ok(self.name(index, 0)?.path.map(PathBuf::into_os_string))
    }

    /// The classes of all samples, if there is a field with them.
    fn labels(&self, py: Python<'_>) -> Option<Vec<i64>> {
        let fields = self.source.fields();
        let is_label = |kind: &FieldKind| matches!(kind, FieldKind::Array { dtype: feedline::sample::DType::I64, shape } if shape.is_empty());
        let field = fields.iter().position(|field| is_label(&field.kind))?;
        py.detach(|| {
            (0..self.source.len())
                .map(|index| match self.source.value(index, field) {
                    Ok(Value::Int(label)) => Some(label),
                    Ok(Value::Bytes(bytes)) => bytes.try_into().ok().map(i64::from_ne_bytes),
                    _ => None,
                })
                .collect()
        })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Arguments<'py>)> {
        let own = slf.get();
        let paths = own.paths.iter().map(|path| PyBytes::new(slf.py(), path)).collect();
        let expected = (own.source.len(), own.source.fingerprint());
        Ok((slf.get_type().into_any(), (own.described.clone(), paths, expected)))
    }
}

impl Samples {
    fn name(&self, index: u64, source: usize) -> PyResult<Name> {
        if index >= self.source.len() {
            return Err(PyIndexError::new_err(format!("there are {} samples", self.source.len())));
        }
        let own = &self.source;
        let file = (0..own.fields().len()).find_map(|field| match own.value(index, field) {
            Ok(Value::File(location)) => Some(location.root.join(location.path)),
            _ => None,
        });
        Ok(Name { index, source, path: file.or_else(|| own.origin(index)) })
    }

    fn value(&self, py: Python<'_>, name: &Name, field: usize) -> PyResult<Value<'_>> {
        if field >= self.source.fields().len() {
            return Err(PyIndexError::new_err("there is no such field"));
        }
        self.source.value(name.index, field).map_err(|fault| name.raise(py, Stage::Read, fault))
    }

    fn fetch(
        &self,
        py: Python<'_>,
        name: &Name,
        field: usize,
        value: &Value<'_>,
    ) -> PyResult<Fresh> {
        let is_image = self.source.fields()[field].kind == FieldKind::EncodedImage;
        py.detach(|| {
            let mut room = Fresh { is_image, ..Fresh::default() };
            match value.location() {
                Some(location) => self.store.read(&location, &mut room),
                None => self.source.read(name.index, field, &mut room),
            }
            .map(|()| room)
        })
        .map_err(|fault| {
            // What cannot be read is the file's fault, whatever the image was called.
            let file = value.location().map(|location| location.root.join(location.path));
            let path = file.or_else(|| name.path.clone());
            Name { path, ..name.clone() }.raise(py, Stage::Read, fault)
        })
    }
}

/// Memory for one field.
#[derive(Default)]
struct Fresh {
    bytes: Vec<u8>,
    shape: Option<Vec<usize>>,
    is_image: bool,
}

impl Room for Fresh {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        let too_large = || Fault::TooLarge(format!("has {bytes} bytes, more than memory has"));
        let length = usize::try_from(bytes).map_err(|_| too_large())?;
        if length == 0 && self.is_image {
            return Err(Fault::corrupt("image", "the file is empty"));
        }
        self.bytes.try_reserve_exact(length).map_err(|_| too_large())?;
        self.bytes.resize(length, 0);
        Ok(&mut self.bytes)
    }

    fn shape(&mut self, shape: &[usize]) {
        self.shape = Some(shape.to_vec());
    }
}
