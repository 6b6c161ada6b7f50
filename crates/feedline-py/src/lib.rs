//! Conversion between Python and the engine.

mod pixels;

use pyo3::prelude::*;

/// The native part of `feedline`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pixels::decode_image, module)?)?;
    module.add_function(wrap_pyfunction!(pixels::apply_transforms, module)?)?;
    Ok(())
}
