//! Conversion between Python and the engine: arguments in, arrays and exceptions out.
//!
//! Everything that can wait runs without the interpreter's lock. Descriptions, states and figures
//! cross as JSON text, which both sides read and write already; arrays cross as addresses.

mod array;
mod chain;
mod column;
mod copier;
mod device;
mod errors;
mod host;
mod live;
mod loader;
mod order;
mod pixels;
mod probe;
mod rows;
mod samples;
mod tuning;
mod verdict;
mod writer;

use std::ffi::OsString;

use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Runs the command with `arguments`, the first of which is its name; returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> i32 {
    py.detach(|| feedline_cli::main_from(arguments, &host::Interpreter))
}

/// The name of the image format whose files begin like this, if there is one.
#[pyfunction]
fn image_format(start: &[u8]) -> Option<&'static str> {
    feedline::internals::decode::ImageFormat::sniff(start).map(|format| format.name())
}

/// The native part of feedline; use the package `feedline`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    let endings = feedline::internals::decode::EXTENSIONS.iter().map(|ending| format!(".{ending}"));
    module.add("IMAGE_ENDINGS", PyTuple::new(module.py(), endings.collect::<Vec<_>>())?)?;
    let endings = feedline::spec::SourceFormat::endings().map(|ending| format!(".{ending}"));
    module.add("SET_ENDINGS", PyTuple::new(module.py(), endings.collect::<Vec<_>>())?)?;
    module.add_function(wrap_pyfunction!(image_format, module)?)?;
    module.add_class::<loader::Loader>()?;
    module.add_class::<array::Batch>()?;
    module.add_class::<array::Array>()?;
    module.add_class::<rows::Rows>()?;
    module.add_class::<rows::Row>()?;
    module.add_class::<chain::Chain>()?;
    module.add_class::<chain::Pending>()?;
    module.add_class::<order::Order>()?;
    module.add_class::<samples::Samples>()?;
    module.add_class::<writer::Writer>()?;
    module.add_class::<device::DeviceBatch>()?;
    module.add_class::<device::DeviceArray>()?;
    module.add_class::<device::Pin>()?;
    module.add_function(wrap_pyfunction!(device::cuda_problem, module)?)?;
    module.add_function(wrap_pyfunction!(device::pin, module)?)?;
    module.add_class::<copier::Copier>()?;
    module.add_class::<probe::LockProbe>()?;
    module.add_class::<live::Watched>()?;
    module.add_function(wrap_pyfunction!(live::dashboard, module)?)?;
    module.add_function(wrap_pyfunction!(live::stop_watching, module)?)?;
    module.add_function(wrap_pyfunction!(live::stay_hidden, module)?)?;
    module.add_function(wrap_pyfunction!(live::watch_complaint, module)?)?;
    module.add_function(wrap_pyfunction!(live::inherited_listeners, module)?)?;
    module.add_class::<tuning::Controller>()?;
    module.add_function(wrap_pyfunction!(loader::open_quarantine, module)?)?;
    module.add_function(wrap_pyfunction!(loader::read_spec, module)?)?;
    module.add_function(wrap_pyfunction!(loader::read_spec_file, module)?)?;
    module.add_function(wrap_pyfunction!(pixels::decode_image, module)?)?;
    module.add_function(wrap_pyfunction!(pixels::apply_transforms, module)?)?;
    module.add_function(wrap_pyfunction!(pixels::drawn_transforms, module)?)?;
    module.add_function(wrap_pyfunction!(pixels::drawn_mix, module)?)?;
    module.add_function(wrap_pyfunction!(column::hash_arrays, module)?)?;
    module.add_function(wrap_pyfunction!(verdict::auto_workers, module)?)?;
    module.add_function(wrap_pyfunction!(verdict::cores, module)?)?;
    module.add_function(wrap_pyfunction!(verdict::judge, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    Ok(())
}
