//! Arrays of a Python program as a source, read where they lie.

#![allow(unsafe_code)]

use feedline::Array;
use feedline::internals::dlpack;
use feedline::sample::DType;
use feedline::source::{ArrayData, Column};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Memory of a Python object, and the object, so that it stays.
struct Borrowed {
    address: usize,
    bytes: usize,
    _owner: Py<PyAny>,
}

impl ArrayData for Borrowed {
    fn bytes(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the object's `__array_interface__` says that so many bytes are there, and the
        // object lives as long as this. The program must not write to arrays that a loader
        // reads; if it does, a sample may mix old and new bytes, all of which are valid elements
        // of every type but bool, which nothing here reads as a Rust bool.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }
}

/// A column over `array`, an object with `__array_interface__` in C order. `dtype` names the
/// elements' type where NumPy has no name for it.
pub(crate) fn column(
    name: &str,
    dtype: Option<&str>,
    array: &Bound<'_, PyAny>,
) -> PyResult<Column> {
    let (dtype, shape, data) = elements(name, dtype, array)?;
    Ok(Column::new(name, dtype, &shape, data))
}

fn elements(
    name: &str,
    dtype: Option<&str>,
    array: &Bound<'_, PyAny>,
) -> PyResult<(DType, Vec<usize>, Borrowed)> {
    let wrong = |what: &str| PyTypeError::new_err(format!("array {name:?}: {what}"));
    let interface = array.getattr("__array_interface__")?;
    let interface = interface.cast::<PyDict>()?;
    let item = |key: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
        Ok(interface.get_item(key)?.filter(|value| !value.is_none()))
    };
    if item("strides")?.is_some() {
        return Err(wrong("is not in C order"));
    }
    let typestr: String = item("typestr")?.ok_or_else(|| wrong("has no typestr"))?.extract()?;
    let shape: Vec<usize> = item("shape")?.ok_or_else(|| wrong("has no shape"))?.extract()?;
    let (address, _read_only): (usize, bool) =
        item("data")?.ok_or_else(|| wrong("has no data"))?.extract()?;
    let dtype = dtype
        .and_then(DType::from_name)
        .or_else(|| from_typestr(&typestr))
        .ok_or_else(|| wrong(&format!("has elements of type {typestr:?}")))?;
    let bytes = shape
        .iter()
        .try_fold(dtype.size(), |bytes, n| bytes.checked_mul(*n))
        .filter(|bytes| *bytes <= isize::MAX as usize)
        .ok_or_else(|| wrong("is larger than memory can be"))?;
    if bytes > 0 && address == 0 {
        return Err(wrong("has no memory"));
    }
    let data = Borrowed { address, bytes, _owner: array.clone().unbind() };
    Ok((dtype, shape, data))
}

/// The hash that a native batch of these arrays would have: each is its name, the name of its
/// elements' type, the shape of a row, and an array in C order.
#[pyfunction]
pub(crate) fn hash_arrays(
    py: Python<'_>,
    arrays: Vec<(String, String, Vec<usize>, Bound<'_, PyAny>)>,
) -> PyResult<u64> {
    let mut lent = Vec::with_capacity(arrays.len());
    for (name, dtype, _, array) in &arrays {
        lent.push(elements(name, Some(dtype), array)?);
    }
    let names = arrays.into_iter().map(|(name, _, row_shape, _)| (name, row_shape));
    let parts: Vec<_> = names.zip(lent).collect();
    Ok(py.detach(|| {
        dlpack::hash_arrays(parts.iter().map(|((name, row_shape), (dtype, shape, data))| Array {
            name,
            dtype: *dtype,
            rows: shape.first().copied().unwrap_or(0),
            row_shape,
            row_strides: &[],
            bytes: data.bytes(),
        }))
    }))
}

fn from_typestr(text: &str) -> Option<DType> {
    let (order, kind) = text.split_at_checked(1)?;
    let native = if cfg!(target_endian = "little") { "<" } else { ">" };
    if order != native && order != "|" && order != "=" {
        return None;
    }
    DType::ALL.into_iter().find(|dtype| typestr(*dtype)[1..] == *kind && *dtype != DType::BF16)
}

/// A name of NumPy's with this machine's byte order.
macro_rules! native {
    ($kind:literal) => {
        if cfg!(target_endian = "little") { concat!("<", $kind) } else { concat!(">", $kind) }
    };
}

/// NumPy's name of a type. It has none for bfloat16: two bytes that mean nothing to it.
pub(crate) fn typestr(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "|b1",
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::U16 => native!("u2"),
        DType::I16 => native!("i2"),
        DType::U32 => native!("u4"),
        DType::I32 => native!("i4"),
        DType::U64 => native!("u8"),
        DType::I64 => native!("i8"),
        DType::F16 => native!("f2"),
        DType::F32 => native!("f4"),
        DType::F64 => native!("f8"),
        _ => "|V2",
    }
}
