//! Fields of a batch whose rows have no length in common.

use std::sync::Arc;

use feedline::Variable;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use crate::column::typestr;

/// One such field; it keeps its batch alive.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Rows {
    batch: Arc<feedline::Batch>,
    field: usize,
}

impl Rows {
    pub(crate) fn new(batch: Arc<feedline::Batch>, field: usize) -> Self {
        Rows { batch, field }
    }

    fn view(&self) -> PyResult<feedline::Ragged<'_>> {
        self.batch.ragged(self.field).ok_or_else(|| PyIndexError::new_err("there is no such field"))
    }
}

/// What a variable field is called.
pub(crate) fn kind(variable: Variable) -> &'static str {
    match variable {
        Variable::Array { .. } => "array",
        Variable::Bytes => "bytes",
        Variable::Text => "text",
    }
}

#[pymethods]
impl Rows {
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.view()?.rows)
    }

    /// "array", "bytes" or "text".
    #[getter]
    fn kind(&self) -> PyResult<&'static str> {
        Ok(kind(self.view()?.variable))
    }

    #[getter]
    fn dtype(&self) -> PyResult<&'static str> {
        Ok(self.view()?.dtype.name())
    }

    /// Row number `row` without a copy.
    fn row(&self, row: usize) -> PyResult<Row> {
        let rows = self.view()?.rows;
        if row >= rows {
            return Err(PyIndexError::new_err(format!("there are {rows} rows")));
        }
        Ok(Row { batch: self.batch.clone(), field: self.field, row })
    }

    /// All rows as text.
    fn texts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let view = self.view()?;
        let texts = (0..view.rows).map(|row| PyString::from_bytes(py, view.bytes(row)));
        PyList::new(py, texts.collect::<PyResult<Vec<_>>>()?)
    }
}

/// One row, lent through NumPy's array interface.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Row {
    batch: Arc<feedline::Batch>,
    field: usize,
    row: usize,
}

#[pymethods]
impl Row {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let view = self.batch.ragged(self.field);
        let view = view.ok_or_else(|| PyIndexError::new_err("there is no such field"))?;
        let bytes = view.bytes(self.row);
        let shape = match view.variable {
            Variable::Array { .. } => view.shape(self.row),
            Variable::Bytes | Variable::Text => vec![bytes.len()],
        };
        // NumPy wants an address also where there is nothing at it.
        let address = match bytes.len() {
            0 => self.batch.address(self.field) as usize,
            _ => bytes.as_ptr() as usize,
        };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, shape)?)?;
        interface.set_item("typestr", typestr(view.dtype))?;
        interface.set_item("data", (address, false))?;
        Ok(interface)
    }
}
