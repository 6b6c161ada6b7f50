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

/// A column over `array`, an object with `__array_interface__` whose rows are in C order. `dtype`
/// names the elements' type where NumPy has no name for it.
pub(crate) fn column(
    name: &str,
    dtype: Option<&str>,
    array: &Bound<'_, PyAny>,
) -> PyResult<Column> {
    let Elements { dtype, shape, step, data } = elements(name, dtype, array)?;
    Ok(match step {
        None => Column::new(name, dtype, &shape, data),
        Some(step) => Column::windows(name, dtype, &shape, step, data),
    })
}

/// What an array says of its memory.
struct Elements {
    dtype: DType,
    shape: Vec<usize>,
    /// Bytes from one row to the next, if rows do not follow each other.
    step: Option<usize>,
    data: Borrowed,
}

fn elements(name: &str, dtype: Option<&str>, array: &Bound<'_, PyAny>) -> PyResult<Elements> {
    let wrong = |what: &str| PyTypeError::new_err(format!("array {name:?}: {what}"));
    let interface = array.getattr("__array_interface__")?;
    let interface = interface.cast::<PyDict>()?;
    let item = |key: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
        Ok(interface.get_item(key)?.filter(|value| !value.is_none()))
    };
    let typestr: String = item("typestr")?.ok_or_else(|| wrong("has no typestr"))?.extract()?;
    let shape: Vec<usize> = item("shape")?.ok_or_else(|| wrong("has no shape"))?.extract()?;
    let (address, _read_only): (usize, bool) =
        item("data")?.ok_or_else(|| wrong("has no data"))?.extract()?;
    let dtype = dtype
        .and_then(DType::from_name)
        .or_else(|| from_typestr(&typestr))
        .ok_or_else(|| wrong(&format!("has elements of type {typestr:?}")))?;
    let strides: Option<Vec<isize>> =
        item("strides")?.map(|strides| strides.extract()).transpose()?;
    let step = match &strides {
        None => None,
        Some(strides) => Some(
            step(dtype, &shape, strides)
                .ok_or_else(|| wrong("has rows that are not in C order"))?,
        ),
    };
    let large = || wrong("is larger than memory can be");
    let (len, inner) = shape.split_first().map_or((1, &shape[..]), |(len, inner)| (*len, inner));
    let row =
        inner.iter().try_fold(dtype.size(), |bytes, n| bytes.checked_mul(*n)).ok_or_else(large)?;
    let bytes = match len.checked_sub(1) {
        None => Some(0),
        Some(steps) => steps.checked_mul(step.unwrap_or(row)).and_then(|to| to.checked_add(row)),
    };
    let bytes = bytes.filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(large)?;
    if bytes > 0 && address == 0 {
        return Err(wrong("has no memory"));
    }
    let data = Borrowed { address, bytes, _owner: array.clone().unbind() };
    Ok(Elements { dtype, shape, step, data })
}

/// The bytes from one row to the next, if each row by itself is in C order.
fn step(dtype: DType, shape: &[usize], strides: &[isize]) -> Option<usize> {
    let (len, inner) = shape.split_first()?;
    let (step, strides) = strides.split_first()?;
    if inner.len() != strides.len() {
        return None;
    }
    let mut expected = dtype.size();
    for (n, stride) in inner.iter().zip(strides).rev() {
        if *n > 1 && usize::try_from(*stride) != Ok(expected) {
            return None;
        }
        expected = expected.checked_mul(*n)?;
    }
    match len {
        0 | 1 => Some(expected),
        _ => usize::try_from(*step).ok(),
    }
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
        let lent_array = elements(name, Some(dtype), array)?;
        if lent_array.step.is_some() {
            return Err(PyTypeError::new_err(format!("array {name:?}: is not in C order")));
        }
        lent.push(lent_array);
    }
    let names = arrays.into_iter().map(|(name, _, row_shape, _)| (name, row_shape));
    let parts: Vec<_> = names.zip(lent).collect();
    Ok(py.detach(|| {
        dlpack::hash_arrays(parts.iter().map(|((name, row_shape), lent)| Array {
            name,
            dtype: lent.dtype,
            rows: lent.shape.first().copied().unwrap_or(0),
            row_shape,
            row_strides: &[],
            bytes: lent.data.bytes(),
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
