//! A batch and its arrays, lent to other libraries without a copy.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

use feedline::internals::dlpack::{self, Handed, Managed, ManagedVersioned};
use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::column::typestr;
use crate::rows::Rows;

/// Samples that were made together.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Batch {
    batch: Arc<feedline::Batch>,
}

impl Batch {
    pub(crate) fn new(batch: feedline::Batch) -> Self {
        Batch { batch: Arc::new(batch) }
    }
}

#[pymethods]
impl Batch {
    /// All fields in order.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let arrays = self.batch.fields().iter().enumerate().map(|(field, about)| {
            let batch = self.batch.clone();
            Ok(match about.variable {
                None => Py::new(py, Array { batch, field })?.into_any(),
                Some(_) => Py::new(py, Rows::new(batch, field))?.into_any(),
            })
        });
        PyTuple::new(py, arrays.collect::<PyResult<Vec<_>>>()?)
    }

    #[getter]
    fn rows(&self) -> usize {
        self.batch.rows()
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.batch.epoch()
    }

    #[getter]
    fn number(&self) -> u64 {
        self.batch.number()
    }

    #[getter]
    fn padding(&self) -> usize {
        self.batch.padding()
    }

    /// A hash of all names, types, shapes and elements.
    fn hash(&self, py: Python<'_>) -> u64 {
        py.detach(|| self.batch.hash())
    }
}

/// One field of a batch. It lends its memory through DLPack and NumPy's array interface, and
/// keeps the whole batch alive as long as somebody uses it.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Array {
    batch: Arc<feedline::Batch>,
    field: usize,
}

impl Array {
    fn view(&self) -> PyResult<feedline::Array<'_>> {
        self.batch.array(self.field).ok_or_else(|| PyIndexError::new_err("there is no such field"))
    }
}

#[pymethods]
impl Array {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.view()?.shape())
    }

    #[getter]
    fn dtype(&self) -> PyResult<&'static str> {
        Ok(self.view()?.dtype.name())
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let array = self.view()?;
        let size = array.dtype.size();
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, array.shape())?)?;
        interface.set_item("typestr", typestr(array.dtype))?;
        interface.set_item("data", (self.batch.address(self.field) as usize, false))?;
        let row: usize = array.row_shape.iter().product();
        let strides = std::iter::once(row).chain(array.row_strides.iter().copied());
        interface.set_item(
            "strides",
            PyTuple::new(py, strides.map(|n| n * size).collect::<Vec<_>>())?,
        )?;
        Ok(interface)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("the array is in CPU memory, which has no streams"));
        }
        if dl_device.is_some_and(|device| device != dlpack::CPU) {
            return Err(PyBufferError::new_err("the array is in CPU memory: ask for it there"));
        }
        let copy = copy.unwrap_or(false);
        if max_version.is_some_and(|(major, _)| major >= dlpack::VERSION.0) {
            self.capsule::<ManagedVersioned>(py, copy)
        } else {
            self.capsule::<Managed>(py, copy)
        }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    fn __repr__(&self) -> PyResult<String> {
        let array = self.view()?;
        Ok(format!("Array({:?}, {}, {:?})", array.name, array.dtype, array.shape()))
    }
}

/// A struct with the name that its capsule has until a library takes it over.
pub(crate) trait Named: Handed {
    const NAME: &'static CStr;
}

impl Named for Managed {
    const NAME: &'static CStr = c"dltensor";
}

impl Named for ManagedVersioned {
    const NAME: &'static CStr = c"dltensor_versioned";
}

impl Array {
    fn capsule<'py, T: Named>(
        &self,
        py: Python<'py>,
        copy: bool,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let tensor = dlpack::export::<T>(&self.batch, self.field, copy)?
            .ok_or_else(|| PyIndexError::new_err("there is no such field"))?;
        // SAFETY: the tensor was exported just now, and nobody else has it.
        unsafe { capsule(py, tensor) }
    }
}

/// A capsule with a tensor that was handed out.
///
/// # Safety
/// The tensor came from an export, and nobody else will delete it.
pub(crate) unsafe fn capsule<T: Named>(
    py: Python<'_>,
    tensor: NonNull<T>,
) -> PyResult<Bound<'_, PyCapsule>> {
    // SAFETY: the pointer stays valid until the deleter is called: by the library that takes
    // it over and renames the capsule, or else by `forget`.
    let capsule = unsafe {
        PyCapsule::new_with_pointer_and_destructor(py, tensor.cast(), T::NAME, Some(forget::<T>))
    };
    if capsule.is_err() {
        // SAFETY: no capsule has it, so nobody else will delete it.
        unsafe { T::delete(tensor) };
    }
    capsule
}

/// Deletes a tensor that no library took over.
unsafe extern "C" fn forget<T: Named>(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this once, with the capsule that is going away. Its name says
    // whether the tensor is still ours.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, T::NAME.as_ptr()) == 1 {
            let pointer = ffi::PyCapsule_GetPointer(capsule, T::NAME.as_ptr());
            if let Some(tensor) = NonNull::new(pointer.cast::<T>()) {
                T::delete(tensor);
            }
        }
    }
}
