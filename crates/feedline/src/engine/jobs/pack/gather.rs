//! All that a sample holds beside its image, read into memory of one's own.

use std::ops::Range;

use crate::error::Fault;
use crate::sample::{Field, FieldKind, Room, Value};
use crate::source::Source;
use crate::spec::read::show_bytes;
use crate::store::Store;

/// Writes any field of a sample into `room`.
pub(super) fn fetch(
    (source, store): (&dyn Source, &dyn Store),
    sample: u64,
    field: usize,
    room: &mut dyn Room,
) -> Result<(), Fault> {
    let mut copy = |bytes: &[u8]| {
        room.make(bytes.len() as u64)?.copy_from_slice(bytes);
        Ok(())
    };
    match source.value(sample, field)? {
        Value::File(location) => store.read(&location, room),
        Value::Made => source.read(sample, field, room),
        Value::Bytes(bytes) => copy(bytes),
        Value::Int(number) => copy(&number.to_ne_bytes()),
        Value::Float(number) => copy(&number.to_ne_bytes()),
        Value::Pixels { location, height, width, channels } => {
            room.shape(&[height, width, channels]);
            store.read(&location, room)
        }
    }
}

/// The fields of one sample, one after the other.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    bytes: Vec<u8>,
    parts: Vec<GatheredPart>,
}

#[derive(Debug, Default)]
struct GatheredPart {
    range: Range<usize>,
    shape: Vec<usize>,
}

/// The end of a buffer, within a limit.
struct End<'a> {
    bytes: &'a mut Vec<u8>,
    start: usize,
    limit: u64,
    shape: Option<Vec<usize>>,
}

impl Room for End<'_> {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        if bytes.saturating_add(self.start as u64) > self.limit {
            return Err(Fault::TooLarge(format!(
                "has {}, more than the {} that a sample may have here",
                show_bytes(bytes),
                show_bytes(self.limit)
            )));
        }
        self.bytes.truncate(self.start);
        self.bytes.resize(self.start + bytes as usize, 0);
        Ok(&mut self.bytes[self.start..])
    }

    fn shape(&mut self, shape: &[usize]) {
        self.shape = Some(shape.to_vec());
    }
}

impl Gathered {
    /// Reads all fields but `image`.
    pub(super) fn read(
        &mut self,
        from: (&dyn Source, &dyn Store),
        sample: u64,
        image: Option<usize>,
        limit: u64,
    ) -> Result<(), Fault> {
        self.bytes.clear();
        self.parts.clear();
        for (number, field) in from.0.fields().iter().enumerate() {
            if Some(number) == image {
                self.parts.push(GatheredPart::default());
                continue;
            }
            let start = self.bytes.len();
            let mut end = End { bytes: &mut self.bytes, start, limit, shape: None };
            fetch(from, sample, number, &mut end)?;
            let given = end.shape.take();
            let range = start..self.bytes.len();
            let shape = shape(field, given, range.len())?;
            self.parts.push(GatheredPart { range, shape });
        }
        Ok(())
    }

    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Gives back what is more than `most`.
    pub(super) fn let_go(&mut self, most: usize) {
        if self.bytes.capacity() > most {
            self.bytes = Vec::new();
        }
    }

    /// Bytes and shape of field `number`.
    pub(super) fn part(&self, number: usize) -> (&[u8], &[usize]) {
        match self.parts.get(number) {
            Some(part) => (&self.bytes[part.range.clone()], &part.shape),
            None => (&[], &[]),
        }
    }
}

/// The shape of what was read, if it goes with the field and the bytes.
fn shape(field: &Field, given: Option<Vec<usize>>, bytes: usize) -> Result<Vec<usize>, Fault> {
    let (dtype, shape) = match (&field.kind, given) {
        (FieldKind::EncodedImage | FieldKind::Bytes | FieldKind::Text, _) => return Ok(Vec::new()),
        (FieldKind::Pixels { .. }, Some(shape)) => (crate::sample::DType::U8, shape),
        (FieldKind::Array { dtype, shape }, _) => (*dtype, shape.clone()),
        (FieldKind::Ragged { dtype, .. }, Some(shape)) => (*dtype, shape),
        (FieldKind::Ragged { dtype, axes: 1 }, None) => (*dtype, vec![bytes / dtype.size()]),
        (FieldKind::Pixels { .. } | FieldKind::Ragged { .. }, None) => {
            return Err(Fault::Shape(format!("{:?} has no shape", field.name)));
        }
    };
    let wanted = shape.iter().try_fold(dtype.size(), |bytes, side| bytes.checked_mul(*side));
    match wanted == Some(bytes) {
        true => Ok(shape),
        false => Err(Fault::Shape(format!(
            "{:?} has {bytes} bytes, which are no {dtype} of shape {shape:?}",
            field.name
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::DType;

    #[test]
    fn shapes_go_with_bytes() {
        let field = |kind| Field { name: "x".to_owned(), kind };
        let array = field(FieldKind::Array { dtype: DType::F32, shape: vec![2, 3] });
        assert_eq!(shape(&array, None, 24).unwrap(), [2, 3]);
        assert!(shape(&array, None, 23).is_err());
        let ragged = field(FieldKind::Ragged { dtype: DType::U16, axes: 1 });
        assert_eq!(shape(&ragged, None, 6).unwrap(), [3]);
        assert!(shape(&ragged, None, 5).is_err());
        let deep = field(FieldKind::Ragged { dtype: DType::U8, axes: 2 });
        assert!(shape(&deep, None, 6).is_err());
        assert_eq!(shape(&deep, Some(vec![2, 3]), 6).unwrap(), [2, 3]);
        assert_eq!(shape(&field(FieldKind::Text), None, 6).unwrap(), [0; 0]);
    }
}
