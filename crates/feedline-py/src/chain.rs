//! Decoding and transforms of one sample, written where Python says.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use feedline::error::Stage;
use feedline::internals::engine::{Given, Ready, Stages, Workbench};
use feedline::internals::image::{PixelType, Pixels, View};
use feedline::sample::DType;
use feedline::spec::OpSpec;
use feedline::{Error, Fault, SampleError, Spec, SpecError};
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyTuple};
use serde_json::{Map, Value as Json};

use crate::errors::{raise, raise_spec};

thread_local! {
    /// What this thread decodes and transforms with.
    static BENCH: RefCell<Workbench> = RefCell::default();
}

/// The arguments that a chain was made from.
type Arguments = (String, String, String, usize);

/// Decoding and transforms, for one sample at a time.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Chain {
    pub(crate) stages: Arc<Stages>,
    made_from: Arguments,
}

#[pymethods]
impl Chain {
    /// The ops, the layout and how images are decoded, as a description holds them (the first and
    /// the last as JSON). `first` transforms come before these elsewhere.
    #[new]
    #[pyo3(signature = (ops_json, layout="CHW", decode_json="{}", first=0))]
    fn new(
        py: Python<'_>,
        ops_json: &str,
        layout: &str,
        decode_json: &str,
        first: usize,
    ) -> PyResult<Self> {
        let stages =
            build(ops_json, layout, decode_json, first).map_err(|error| raise_spec(py, error))?;
        let made_from = (ops_json.to_owned(), layout.to_owned(), decode_json.to_owned(), first);
        Ok(Chain { stages: Arc::new(stages), made_from })
    }

    /// All stages with every parameter, as JSON, to compare.
    #[getter]
    fn settings(&self) -> String {
        self.stages.settings().to_string()
    }

    /// Whether the elements that are written are bfloat16.
    #[getter]
    fn bfloat16(&self) -> bool {
        self.stages.dtype() == Some(DType::BF16)
    }

    /// Checks that the ops can work on images of so many channels of "uint8" or "float32".
    fn check(&self, py: Python<'_>, channels: usize, dtype: &str) -> PyResult<()> {
        let pixel_type = match dtype {
            "uint8" => PixelType::U8,
            "float32" => PixelType::F32,
            other => return Err(PyValueError::new_err(format!("dtype = {other:?}"))),
        };
        self.stages.check(channels, pixel_type).map_err(|error| raise_spec(py, error))
    }

    /// Looks at a sample: the bytes of an image file, or an array in C order. `channels_last` says
    /// how an array is meant that could be meant in two ways. `index`, `source` and `path` name
    /// the sample in errors.
    #[pyo3(signature = (sample, seed=0, epoch=0, position=0, *, channels_last=false, index=0, source=0, path=None))]
    #[allow(clippy::too_many_arguments)]
    fn prepare(
        &self,
        py: Python<'_>,
        sample: &Bound<'_, PyAny>,
        seed: u64,
        epoch: u64,
        position: u64,
        channels_last: bool,
        index: u64,
        source: usize,
        path: Option<PathBuf>,
    ) -> PyResult<Pending> {
        let name = Name { index, source, path };
        let input = match sample.cast::<PyBytes>() {
            Ok(bytes) => {
                let (address, length) =
                    (bytes.as_bytes().as_ptr() as usize, bytes.as_bytes().len());
                Input::Encoded { address, length, _owner: sample.clone().unbind() }
            }
            Err(_) => array(sample, channels_last).map_err(|refusal| match refusal {
                Refusal::Python(error) => error,
                Refusal::Sample(fault) => name.raise(py, Stage::Transform, fault),
            })?,
        };
        Pending::new(py, self.stages.clone(), input, (seed, epoch, position), name)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Arguments)> {
        Ok((slf.get_type().into_any(), slf.get().made_from.clone()))
    }
}

fn build(
    ops_json: &str,
    layout: &str,
    decode_json: &str,
    first: usize,
) -> Result<Stages, SpecError> {
    let json = |key: &str, text: &str| -> Result<Json, SpecError> {
        serde_json::from_str(text)
            .map_err(|error| SpecError::new(key, format!("is not valid JSON: {error}")))
    };
    // Read as a description is, so that mistakes are named alike.
    let mut described = Map::new();
    described.insert("source".to_owned(), serde_json::json!({"kind": "arrays"}));
    described.insert("layout".to_owned(), layout.into());
    described.insert("decode".to_owned(), json("decode", decode_json)?);
    let mut spec = Spec::from_value(Json::Object(described))?;
    let Json::Array(ops) = json("transforms", ops_json)? else {
        return Err(SpecError::new("transforms", "is not a list"));
    };
    for (at, op) in ops.into_iter().enumerate() {
        let wrong = |_| SpecError::new(format!("transforms[{}]", first + at), "is no op");
        spec.transforms.push(OpSpec::from_value(op).map_err(wrong)?);
    }
    Stages::new(&spec, first)
}

/// What a sample is called in errors.
#[derive(Clone)]
pub(crate) struct Name {
    pub(crate) index: u64,
    pub(crate) source: usize,
    pub(crate) path: Option<PathBuf>,
}

impl Name {
    pub(crate) fn raise(&self, py: Python<'_>, stage: Stage, fault: Fault) -> PyErr {
        let offset = match &fault {
            Fault::Corrupt { offset, .. } => *offset,
            _ => None,
        };
        let mut error = SampleError::new(self.index, stage, fault);
        error.source_number = self.source;
        error.path.clone_from(&self.path);
        error.offset = offset.filter(|_| self.path.is_some());
        raise(py, Error::Sample(Box::new(error)))
    }
}

/// The image that a sample is made from.
pub(crate) enum Input {
    /// A Python object's bytes, and the object, so that they stay.
    Encoded { address: usize, length: usize, _owner: Py<PyAny> },
    /// A Python object's elements, and the object.
    Elements { address: usize, length: usize, pixel_type: PixelType, view: View, _owner: Py<PyAny> },
    /// What was read from a file.
    Read(Vec<u8>),
    /// Pixels that were read from a file, interleaved.
    Pixels(Vec<u8>, View),
}

impl Input {
    fn given(&self) -> Result<Given<'_>, Fault> {
        Ok(match self {
            Input::Read(bytes) => Given::Encoded(bytes),
            Input::Pixels(bytes, view) => Given::Pixels(Pixels::U8(bytes), *view),
            Input::Encoded { address, length, .. } => Given::Encoded(lent(*address, *length)),
            Input::Elements { address, length, pixel_type, view, .. } => {
                Given::Pixels(Pixels::from_bytes(lent(*address, *length), *pixel_type)?, *view)
            }
        })
    }
}

/// Memory that belongs to the object beside its address.
fn lent<'a>(address: usize, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: Python said that the object has so many bytes there (its `__array_interface__`, or
    // as it is `bytes`), and `Input` keeps the object for as long as it lends them. A program that
    // writes to an array meanwhile gets a mixture of old and new elements, all of them valid.
    unsafe { std::slice::from_raw_parts(address as *const u8, length) }
}

enum Refusal {
    Python(PyErr),
    Sample(Fault),
}

impl<T: Into<PyErr>> From<T> for Refusal {
    fn from(error: T) -> Self {
        Refusal::Python(error.into())
    }
}

/// An array as an image.
fn array(sample: &Bound<'_, PyAny>, channels_last: bool) -> Result<Input, Refusal> {
    let refuse = |what: String| Refusal::Sample(Fault::Shape(what));
    let Ok(interface) = sample.getattr("__array_interface__") else {
        let kind = sample.get_type().name()?.to_string();
        return Err(refuse(format!(
            "needs the bytes of an image file, or an array of uint8 or float32 pixels, and got {kind}"
        )));
    };
    let interface = interface.cast::<PyDict>().map_err(PyErr::from)?;
    let item = |key: &str| -> PyResult<Bound<'_, PyAny>> {
        interface.get_item(key)?.ok_or_else(|| PyTypeError::new_err(format!("no {key}")))
    };
    if interface.get_item("strides")?.is_some_and(|strides| !strides.is_none()) {
        return Err(refuse("needs an array in C order".to_owned()));
    }
    let typestr: String = item("typestr")?.extract()?;
    let shape: Vec<usize> = item("shape")?.extract()?;
    let (address, _read_only): (usize, bool) = item("data")?.extract()?;
    let native = if cfg!(target_endian = "little") { "<f4" } else { ">f4" };
    let pixel_type = match typestr.as_str() {
        "|u1" => PixelType::U8,
        text if text == native => PixelType::F32,
        other => {
            return Err(refuse(format!(
                "needs elements of uint8 or float32, and got {other:?}: convert them in the data set or with a callable before this op"
            )));
        }
    };
    let view = View::of_shape(&shape, channels_last).ok_or_else(|| {
        refuse(format!(
            "needs an image of shape [height, width], [height, width, channels] or [channels, height, width] with 1, 3 or 4 channels, and got {shape:?}"
        ))
    })?;
    let length = shape
        .iter()
        .try_fold(pixel_type.size(), |bytes, n| bytes.checked_mul(*n))
        .filter(|bytes| *bytes <= isize::MAX as usize)
        .ok_or_else(|| refuse("is larger than memory can be".to_owned()))?;
    if length > 0 && address == 0 {
        return Err(refuse("has no memory".to_owned()));
    }
    let _owner = sample.clone().unbind();
    Ok(Input::Elements { address, length, pixel_type, view, _owner })
}

/// A sample that is ready to be written: its shape and type are known, its pixels are made when
/// they are written to their place in a batch.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Pending {
    stages: Arc<Stages>,
    input: Input,
    ready: Ready,
    draws: (u64, u64, u64),
    name: Name,
}

impl Pending {
    pub(crate) fn new(
        py: Python<'_>,
        stages: Arc<Stages>,
        input: Input,
        draws: (u64, u64, u64),
        name: Name,
    ) -> PyResult<Self> {
        let ready = input
            .given()
            .map_err(|fault| (Stage::Transform, fault))
            .and_then(|given| stages.prepare(given))
            .map_err(|(stage, fault)| name.raise(py, stage, fault))?;
        Ok(Pending { stages, input, ready, draws, name })
    }

    fn make(&self, out: &mut [u8]) -> Result<(), (Stage, Fault)> {
        let given = self.input.given().map_err(|fault| (Stage::Transform, fault))?;
        BENCH.with(|bench| match bench.try_borrow_mut() {
            Ok(mut bench) => self.stages.write(given, &self.ready, self.draws, &mut bench, out),
            // Nothing here calls back into Python, so this cannot happen; a fresh one would do.
            Err(_) => {
                self.stages.write(given, &self.ready, self.draws, &mut Workbench::default(), out)
            }
        })
    }
}

#[pymethods]
impl Pending {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.ready.output.shape)
    }

    /// NumPy's name of the elements' type. It has none for bfloat16, whose bits are uint16 here.
    #[getter]
    fn dtype(&self) -> &'static str {
        match self.ready.output.dtype {
            DType::BF16 => DType::U16.name(),
            other => other.name(),
        }
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.ready.output.bytes()
    }

    /// Writes the elements in C order to `address`, where there is room for `bytes` bytes: exactly
    /// as many as they take. The interpreter is free meanwhile.
    fn write(&self, py: Python<'_>, address: usize, bytes: usize) -> PyResult<()> {
        if bytes != self.ready.output.bytes() || address == 0 {
            return Err(PyValueError::new_err(format!(
                "the sample takes {} bytes, and there is room for {bytes}",
                self.ready.output.bytes()
            )));
        }
        py.detach(|| {
            // SAFETY: the caller owns so many bytes at the address, and nobody else uses them
            // until this returns: the contract of this method.
            let out = unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) };
            self.make(out)
        })
        .map_err(|(stage, fault)| self.name.raise(py, stage, fault))
    }

    /// The elements in memory of their own, in C order.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyByteArray>> {
        let length = self.ready.output.bytes();
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(length)
            .map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        bytes.resize(length, 0);
        py.detach(|| self.make(&mut bytes))
            .map_err(|(stage, fault)| self.name.raise(py, stage, fault))?;
        Ok(PyByteArray::new(py, &bytes))
    }

    /// A NumPy array of its own; `numpy.asarray` calls this.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(false) {
            return Err(PyValueError::new_err("the elements are made when they are asked for"));
        }
        let numpy = py.import("numpy")?;
        let made = numpy.call_method1("empty", (self.shape(py)?, self.dtype()))?;
        let interface = made.getattr("__array_interface__")?;
        let (address, _): (usize, bool) = interface.get_item("data")?.extract()?;
        self.write(py, address, self.ready.output.bytes())?;
        match dtype {
            None => Ok(made),
            Some(dtype) => made.call_method1("astype", (dtype,)),
        }
    }

    fn __repr__(&self) -> String {
        let output = &self.ready.output;
        format!("Pending({}, {:?})", output.dtype, output.shape)
    }
}
