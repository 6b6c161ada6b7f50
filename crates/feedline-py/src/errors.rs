//! The engine's errors as the exceptions of `feedline`.

use std::path::Path;

use feedline::{Error, SampleError, SpecError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The exception for `error`.
pub(crate) fn raise(py: Python<'_>, error: Error) -> PyErr {
    build(py, error).unwrap_or_else(|failure| failure)
}

fn build(py: Python<'_>, error: Error) -> PyResult<PyErr> {
    let text = error.to_string();
    let details = PyDict::new(py);
    let class = match &error {
        Error::Spec(spec) => {
            spec_details(&details, spec)?;
            "SpecError"
        }
        Error::Sample(sample) => {
            sample_details(&details, sample)?;
            "SampleError"
        }
        Error::TooManyFailures { failed, allowed, last } => {
            sample_details(&details, last)?;
            details.set_item("failed", failed)?;
            details.set_item("allowed", allowed)?;
            "TooManyFailuresError"
        }
        Error::Io { what, path, source } => {
            details.set_item("what", what)?;
            details.set_item("errno", source.raw_os_error())?;
            details.set_item("reason", source.to_string())?;
            details.set_item("filename", os_text(path))?;
            "FileError"
        }
        Error::Source { .. } => "SourceError",
        Error::State(_) => "StateError",
        Error::Memory(_) => "MemoryLimitError",
        Error::Cache(_) => "CacheError",
        Error::Stale => "StaleIteratorError",
        Error::Device(device) => {
            details.set_item("code", device.code())?;
            "DeviceError"
        }
        _ => "EngineError",
    };
    from_python(py, class, &text, &details)
}

/// An exception of `feedline._errors`, which knows how each is put together.
fn from_python(
    py: Python<'_>,
    class: &str,
    text: &str,
    details: &Bound<'_, PyDict>,
) -> PyResult<PyErr> {
    let made = py.import("feedline._errors")?.getattr("make")?.call1((class, text, details))?;
    Ok(PyErr::from_value(made))
}

/// A mistake in a description.
pub(crate) fn raise_spec(py: Python<'_>, error: SpecError) -> PyErr {
    raise(py, Error::Spec(error))
}

/// Anything else that has no details.
pub(crate) fn raise_plain(py: Python<'_>, class: &str, text: &str) -> PyErr {
    from_python(py, class, text, &PyDict::new(py)).unwrap_or_else(|failure| failure)
}

/// What cannot happen unless the native part and the package are of different versions.
pub(crate) fn mismatch(what: &str) -> PyErr {
    PyRuntimeError::new_err(format!("the parts of feedline do not fit together: {what}"))
}

fn spec_details(details: &Bound<'_, PyDict>, error: &SpecError) -> PyResult<()> {
    details.set_item("key", &error.key)?;
    details.set_item("value", &error.value)?;
    details.set_item("problem", &error.problem)?;
    details.set_item("allowed", &error.allowed)?;
    details.set_item("nearest", &error.nearest)
}

fn sample_details(details: &Bound<'_, PyDict>, error: &SampleError) -> PyResult<()> {
    details.set_item("index", error.index)?;
    details.set_item("source", error.source_number)?;
    details.set_item("path", error.path.as_deref().map(os_text))?;
    details.set_item("offset", error.offset)?;
    details.set_item("stage", error.stage.to_string())?;
    details.set_item("reason", error.fault.to_string())
}

/// Text as `os.fsdecode` makes it: bytes that are no UTF-8 survive as surrogates.
fn os_text(path: &Path) -> &std::ffi::OsStr {
    path.as_os_str()
}
