//! A set that was packed to a format: its files are read as that format's, and its description
//! adds what they cannot say, the fields' order and kinds and the names of the classes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::error::{Fault, Result};
use crate::sample::{Field, FieldKind, Room, Value};
use crate::source::{Blocks, Needs, Source, problem};

/// A packed set.
pub(in crate::source) struct Packed {
    inner: Arc<dyn Source>,
    fields: Vec<Field>,
    /// For each field, its number in `inner`.
    places: Vec<usize>,
    classes: Vec<String>,
    name: String,
}

/// What is opened for a set in `folder`: the only file, or the folder with all of them.
pub(in crate::source) fn files(folder: &Path, packed: &Catalog) -> PathBuf {
    match &packed.shards[..] {
        [one] => folder.join(&one.path),
        _ => folder.to_owned(),
    }
}

impl Packed {
    /// The set in `folder` whose files are `inner`.
    pub(in crate::source) fn new(
        folder: &Path,
        packed: &Catalog,
        inner: Arc<dyn Source>,
    ) -> Result<Packed> {
        let damaged = |why: String| {
            problem(folder, format!("{why}: the packed set is damaged, pack it again"))
        };
        if inner.len() != packed.samples {
            let (found, declared) = (inner.len(), packed.samples);
            return Err(damaged(format!("its files hold {found} samples, {declared} were packed")));
        }
        if packed.fields.is_empty() {
            return Err(damaged("its description names no field".to_owned()));
        }
        let (mut fields, mut places) = (Vec::new(), Vec::new());
        for described in &packed.fields {
            let name = &described.name;
            let declared = described
                .field()
                .ok_or_else(|| damaged(format!("the description of {name:?} makes no sense")))?;
            let place = inner.fields().iter().position(|field| field.name == *name);
            let place =
                place.ok_or_else(|| damaged(format!("its files hold no field {name:?}")))?;
            let found = &inner.fields()[place].kind;
            let kind = if goes_for(found, &declared.kind) { declared.kind } else { found.clone() };
            fields.push(Field { name: declared.name, kind });
            places.push(place);
        }
        Ok(Packed {
            inner,
            fields,
            places,
            classes: packed.classes.clone(),
            name: folder.display().to_string(),
        })
    }
}

/// True when what is found in a file may be called what was packed: the bytes are the same.
fn goes_for(found: &FieldKind, declared: &FieldKind) -> bool {
    use FieldKind::{Array, Bytes, EncodedImage, Ragged, Text};
    let bytes = |kind: &FieldKind| matches!(kind, EncodedImage | Bytes | Text);
    match (found, declared) {
        (Array { dtype, shape }, Array { dtype: declared, shape: other }) => {
            let count = |shape: &[usize]| {
                shape.iter().try_fold(1usize, |count, side| count.checked_mul(*side))
            };
            dtype == declared && count(shape).is_some() && count(shape) == count(other)
        }
        // A file that says nothing of shapes is given them back.
        (Ragged { dtype, .. }, Array { dtype: declared, shape }) => {
            dtype == declared && !shape.is_empty()
        }
        (found, declared) => bytes(found) && bytes(declared),
    }
}

impl Source for Packed {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn value(&self, index: u64, field: usize) -> Result<Value<'_>, Fault> {
        self.inner.value(index, self.places[field])
    }

    fn read(&self, index: u64, field: usize, room: &mut dyn Room) -> Result<(), Fault> {
        self.inner.read(index, self.places[field], room)
    }

    fn needs(&self, index: u64, field: usize, each: &mut Needs<'_>) {
        self.inner.needs(index, self.places[field], each);
    }

    fn blocks(&self) -> Option<&Blocks> {
        self.inner.blocks()
    }

    fn origin(&self, index: u64) -> Option<PathBuf> {
        self.inner.origin(index)
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn held(&self) -> u64 {
        self.inner.held()
    }

    fn fingerprint(&self) -> u64 {
        let mut text = format!("{:016x}", self.inner.fingerprint());
        for class in &self.classes {
            text.push('\n');
            text += class;
        }
        xxhash_rust::xxh3::xxh3_64(text.as_bytes())
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::DType;

    #[test]
    fn only_what_has_the_same_bytes_is_called_otherwise() {
        let array = |dtype, shape: &[usize]| FieldKind::Array { dtype, shape: shape.to_vec() };
        let ragged = |dtype| FieldKind::Ragged { dtype, axes: 1 };
        let flat = array(DType::F32, &[6]);
        assert!(goes_for(&flat, &array(DType::F32, &[2, 3])));
        assert!(!goes_for(&flat, &array(DType::F32, &[2, 2])));
        assert!(!goes_for(&flat, &array(DType::U32, &[6])));
        assert!(goes_for(&ragged(DType::F32), &flat));
        assert!(!goes_for(&ragged(DType::F32), &FieldKind::scalar(DType::F32)));
        assert!(goes_for(&FieldKind::Bytes, &FieldKind::EncodedImage));
        assert!(!goes_for(&FieldKind::Bytes, &flat));
    }
}
