//! Arrays in memory, the first axis of each being the samples. Nothing is copied.

use std::sync::Arc;

use crate::canonical;
use crate::error::{Fault, Result};
use crate::sample::{DType, Field, FieldKind, Value};
use crate::source::{Source, problem};

/// Memory that holds an array's elements in C order: a `Vec`, a mapped file, a NumPy array.
pub trait ArrayData: Send + Sync {
    /// The bytes of all elements.
    fn bytes(&self) -> &[u8];
}

impl<T: bytemuck::NoUninit + Send + Sync> ArrayData for Vec<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

impl<T: bytemuck::NoUninit + Send + Sync> ArrayData for &'static [T] {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

impl<T: bytemuck::NoUninit + Send + Sync> ArrayData for Arc<[T]> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }
}

/// One array with its name.
pub struct Column {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    /// Bytes from one row's start to the next one's, if that is not the length of a row.
    step: Option<usize>,
    data: Box<dyn ArrayData>,
}

impl Column {
    /// An array of `shape`, whose first axis counts the samples.
    pub fn new(
        name: impl Into<String>,
        dtype: DType,
        shape: &[usize],
        data: impl ArrayData + 'static,
    ) -> Self {
        Column { name: name.into(), dtype, shape: shape.to_vec(), step: None, data: Box::new(data) }
    }

    /// An array of `shape` whose rows begin every `step` bytes and may overlap: the windows of a
    /// long file of tokens, or some of its columns. Its data ends with the last row.
    pub fn windows(
        name: impl Into<String>,
        dtype: DType,
        shape: &[usize],
        step: usize,
        data: impl ArrayData + 'static,
    ) -> Self {
        Column { step: Some(step), ..Column::new(name, dtype, shape, data) }
    }
}

/// Arrays of equal length.
pub struct Arrays {
    columns: Vec<Column>,
    /// Of each column, the bytes of a row and from one to the next.
    rows: Vec<(usize, usize)>,
    fields: Vec<Field>,
    len: u64,
    fingerprint: u64,
}

impl Arrays {
    /// Checks that the arrays fit together.
    pub fn new(columns: Vec<Column>) -> Result<Arrays> {
        let wrong = |what: &str, why: String| problem(format!("array {what:?}"), why);
        let Some(first) = columns.first() else {
            return Err(problem("arrays", "there are none"));
        };
        let len = first.shape.first().copied().unwrap_or(0);
        let mut rows = Vec::new();
        let mut fields = Vec::new();
        for column in &columns {
            let Some((samples, shape)) = column.shape.split_first() else {
                return Err(wrong(
                    &column.name,
                    "has no axis; the first axis counts the samples".to_owned(),
                ));
            };
            if *samples != len {
                return Err(wrong(
                    &column.name,
                    format!("has {samples} samples, array {:?} has {len}", first.name),
                ));
            }
            let row = shape.iter().try_fold(column.dtype.size(), |bytes, n| bytes.checked_mul(*n));
            let step = column.step.or(row);
            let whole = row.zip(step).and_then(|(row, step)| match len.checked_sub(1) {
                None => Some(0),
                Some(steps) => steps.checked_mul(step)?.checked_add(row),
            });
            if whole != Some(column.data.bytes().len()) {
                return Err(wrong(
                    &column.name,
                    format!(
                        "has {} bytes, which is not {:?} of {}",
                        column.data.bytes().len(),
                        column.shape,
                        column.dtype
                    ),
                ));
            }
            if fields.iter().any(|field: &Field| field.name == column.name) {
                return Err(wrong(&column.name, "has the same name as another".to_owned()));
            }
            rows.push((row.unwrap_or(0), step.unwrap_or(0)));
            let kind = FieldKind::Array { dtype: column.dtype, shape: shape.to_vec() };
            fields.push(Field { name: column.name.clone(), kind });
        }
        if len == 0 {
            return Err(wrong(&first.name, "has no samples".to_owned()));
        }
        let fingerprint = fingerprint(&columns, &rows);
        Ok(Arrays { columns, rows, fields, len: len as u64, fingerprint })
    }
}

/// Hashes types, shapes and elements. xxh3 runs at the speed of memory: all of 1 GB takes a tenth
/// of a second. Of a larger array, 16,384 rows spread over it are looked at.
fn fingerprint(columns: &[Column], rows: &[(usize, usize)]) -> u64 {
    let mut hash = 0;
    for (column, (row, step)) in columns.iter().zip(rows) {
        let (dtype, shape) = (column.dtype.name(), &column.shape);
        let about = match column.step {
            None => serde_json::json!([column.name, dtype, shape]),
            Some(step) => serde_json::json!([column.name, dtype, shape, step]),
        };
        let about = canonical::hash("array", &about);
        hash = xxhash_rust::xxh3::xxh3_64_with_seed(about.as_bytes(), hash);
        let bytes = column.data.bytes();
        if bytes.len() <= 1 << 30 {
            hash = xxhash_rust::xxh3::xxh3_64_with_seed(bytes, hash);
            continue;
        }
        let len = column.shape[0];
        let looked = len.min(16_384);
        for i in 0..looked {
            let at = i * (len - 1) / (looked - 1).max(1) * step;
            let end = (at + row).min(at + 65_536);
            hash = xxhash_rust::xxh3::xxh3_64_with_seed(&bytes[at..end], hash);
        }
    }
    hash
}

impl Source for Arrays {
    fn len(&self) -> u64 {
        self.len
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn value(&self, index: u64, field: usize) -> Result<Value<'_>, Fault> {
        let (row, step) = self.rows[field];
        let start = index as usize * step;
        Ok(Value::Bytes(&self.columns[field].data.bytes()[start..start + row]))
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn name(&self) -> String {
        let names: Vec<&str> = self.fields.iter().map(|field| field.name.as_str()).collect();
        format!("arrays {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_may_overlap_but_end_with_their_data() {
        let windows = |len, step, bytes: usize| {
            let data: Vec<u8> = (0..bytes).map(|byte| byte as u8).collect();
            Arrays::new(vec![Column::windows("x", DType::U8, &[len, 4], step, data)])
        };
        let row = |arrays: &Arrays, index| match arrays.value(index, 0) {
            Ok(Value::Bytes(bytes)) => bytes.to_vec(),
            _ => panic!("no bytes"),
        };
        for (len, step) in [(1, 0), (7, 1), (3, 4), (3, 9), (5, 0)] {
            let bytes = (len - 1) * step + 4;
            let arrays = windows(len, step, bytes).unwrap();
            for index in 0..len {
                let start = index * step;
                let expected: Vec<u8> = (start..start + 4).map(|byte| byte as u8).collect();
                assert_eq!(row(&arrays, index as u64), expected, "row {index} of {len}, {step}");
            }
            assert!(
                windows(len, step, bytes - 1).is_err() && windows(len, step, bytes + 1).is_err()
            );
        }
        assert!(windows(3, usize::MAX, 4).is_err(), "beyond all memory");
        let fingerprints: Vec<u64> = [(4, 4), (13, 1)]
            .map(|(len, step)| windows(len, step, 16).unwrap().fingerprint())
            .into();
        assert_ne!(fingerprints[0], fingerprints[1]);
    }
}
