//! Batches on a device, and page-locked memory, as Python holds them.

#![allow(unsafe_code)]

use std::sync::Arc;

use feedline::internals::device::{Event, PageLock, cuda};
use feedline::internals::dlpack::{self, Managed, ManagedVersioned};
use pyo3::exceptions::{PyBufferError, PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use crate::array::capsule;
use crate::column::typestr;
use crate::errors::raise;

/// Why GPU number `device` cannot be used; `None` if it can.
#[pyfunction]
#[pyo3(signature = (device=0))]
pub(crate) fn cuda_problem(py: Python<'_>, device: i32) -> Option<String> {
    py.detach(|| cuda::problem(device)).map(|problem| problem.to_string())
}

/// Samples that were made together, on a device.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct DeviceBatch {
    batch: Arc<feedline::device::DeviceBatch>,
}

impl DeviceBatch {
    pub(crate) fn new(batch: Arc<feedline::device::DeviceBatch>) -> Self {
        DeviceBatch { batch }
    }
}

#[pymethods]
impl DeviceBatch {
    /// All fields in order.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let arrays = (0..self.batch.fields().len())
            .map(|field| Py::new(py, DeviceArray { batch: self.batch.clone(), field }));
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

    /// The hash of the same batch on the host; reads this one back.
    fn hash(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.batch.hash()).map_err(|error| raise(py, error.into()))
    }
}

/// One field of a batch on a device. It lends its memory through DLPack and the CUDA array
/// interface, and keeps the whole batch alive as long as somebody uses it.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct DeviceArray {
    batch: Arc<feedline::device::DeviceBatch>,
    field: usize,
}

impl DeviceArray {
    fn field(&self) -> PyResult<&feedline::BatchField> {
        let field = self.batch.fields().get(self.field);
        field.ok_or_else(|| PyIndexError::new_err("there is no such field"))
    }

    fn all_shape(&self) -> PyResult<Vec<usize>> {
        let row = self.field()?.shape.iter().copied();
        Ok(std::iter::once(self.batch.rows()).chain(row).collect())
    }
}

#[pymethods]
impl DeviceArray {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.all_shape()?)
    }

    #[getter]
    fn dtype(&self) -> PyResult<&'static str> {
        Ok(self.field()?.dtype.name())
    }

    /// Waits for the copy first: the interface has no place for an event.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        py.detach(|| self.batch.hand_to_anybody()).map_err(|error| raise(py, error.into()))?;
        let field = self.field()?;
        let size = field.dtype.size();
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, self.all_shape()?)?)?;
        interface.set_item("typestr", typestr(field.dtype))?;
        interface.set_item("data", (self.batch.address(self.field).unwrap_or(0), false))?;
        let row: usize = field.shape.iter().product();
        let strides = std::iter::once(row).chain(field.strides.iter().copied());
        interface.set_item(
            "strides",
            PyTuple::new(py, strides.map(|n| n * size).collect::<Vec<_>>())?,
        )?;
        interface.set_item("stream", py.None())?;
        Ok(interface)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        if dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err("the array is on a GPU: ask for it there"));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err(
                "no copy is made on a GPU: copy the array yourself",
            ));
        }
        let missing = || PyIndexError::new_err("there is no such field");
        py.detach(|| self.batch.hand_to(stream)).map_err(|error| raise(py, error.into()))?;
        if max_version.is_some_and(|(major, _)| major >= dlpack::VERSION.0) {
            let tensor = dlpack::export_device::<ManagedVersioned>(&self.batch, self.field);
            // SAFETY: exported just now, and nobody else has it.
            unsafe { capsule(py, tensor.ok_or_else(missing)?) }
        } else {
            let tensor = dlpack::export_device::<Managed>(&self.batch, self.field);
            // SAFETY: as above.
            unsafe { capsule(py, tensor.ok_or_else(missing)?) }
        }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CUDA, self.batch.device().number())
    }

    fn __repr__(&self) -> PyResult<String> {
        let field = self.field()?;
        let device = self.batch.device().number();
        let shape = self.all_shape()?;
        Ok(format!("DeviceArray({:?}, {}, {shape:?}, cuda:{device})", field.name, field.dtype))
    }
}

/// Host memory of somebody else's that is page-locked as long as this lives.
///
/// A program may queue copies of it and let it go before they are done. So before the memory is
/// written again: `mark`, and then write when `busy` is false.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct Pin {
    _lock: PageLock,
    used: Event,
}

#[pymethods]
impl Pin {
    /// From now on the memory is busy until the device has done all that it was given so far.
    fn mark(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.used.record_all()).map_err(|error| raise(py, error.into()))
    }

    /// Whether the device may still read the memory.
    fn busy(&self, py: Python<'_>) -> PyResult<bool> {
        let passed = py.detach(|| self.used.has_passed());
        Ok(!passed.map_err(|error| raise(py, error.into()))?)
    }

    /// Waits until it is not busy.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.used.wait()).map_err(|error| raise(py, error.into()))
    }
}

/// Page-locks `bytes` bytes at `address`, which must stay mapped as long as the result lives.
#[pyfunction]
#[pyo3(signature = (address, bytes, device=None))]
pub(crate) fn pin(
    py: Python<'_>,
    address: usize,
    bytes: usize,
    device: Option<i32>,
) -> PyResult<Pin> {
    if address == 0 || bytes == 0 || address.checked_add(bytes).is_none() {
        return Err(PyValueError::new_err("there is no memory at that address"));
    }
    let pinned = py.detach(|| {
        let number = device.map_or_else(cuda::preferred, Ok)?;
        let device: Arc<dyn feedline::device::Device> = cuda::Cuda::open(number)?;
        let used = Event::new(&device)?;
        // SAFETY: the caller's promise; the driver itself refuses what is not mapped.
        let lock = unsafe { PageLock::new(&device, address as *mut u8, bytes)? };
        Ok(Pin { _lock: lock, used })
    });
    pinned.map_err(|error: feedline::DeviceError| raise(py, error.into()))
}
