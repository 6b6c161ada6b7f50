//! How fields that are not decoded come into a batch: straight into their row, or behind the rows
//! where they have no length in common.

use super::flow::{Flow, Slice, tail_for};
use super::plan::Plan;
use crate::error::{Fault, Stage};
use crate::layout::{BatchField, Variable};
use crate::order::Pick;
use crate::sample::{Room, Value};

/// Why a field was not written.
pub(super) enum Hindrance {
    Fault(Stage, Fault),
    /// So many bytes are needed, more than there are now.
    Memory(u64),
    Cancelled,
}

impl From<Fault> for Hindrance {
    fn from(fault: Fault) -> Self {
        Hindrance::Fault(Stage::Read, fault)
    }
}

/// A row of one size, into which bytes are read directly.
struct Row<'a>(&'a mut [u8]);

impl Room for Row<'_> {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        if bytes != self.0.len() as u64 {
            return Err(Fault::Shape(format!(
                "has {bytes} bytes, a row of the batch has {}",
                self.0.len()
            )));
        }
        Ok(self.0)
    }
}

/// Room behind the rows of a batch.
struct Behind<'a> {
    flow: &'a Flow,
    slice: &'a mut Slice,
    /// Scratch that the worker has and does not use.
    granted: &'a mut u64,
    /// What the row may take at most.
    most: u64,
    length: usize,
    shape: Vec<usize>,
    short_of: Option<Hindrance>,
}

impl Room for Behind<'_> {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        let too_large = || Fault::TooLarge(format!("has {bytes} bytes"));
        let length = usize::try_from(bytes).ok().filter(|length| *length < usize::MAX / 4);
        let length = length.ok_or_else(too_large)?;
        self.length = length;
        // The same for every row, whatever room happens to be left.
        if tail_for(length) as u64 > self.most {
            self.short_of = Some(Hindrance::Memory(tail_for(length) as u64));
            return Err(Fault::Cancelled);
        }
        if self.slice.room_left() < length
            && let Err(need) = self.flow.tail(self.slice, length, self.granted)
        {
            self.short_of = Some(need.map_or(Hindrance::Cancelled, Hindrance::Memory));
            return Err(Fault::Cancelled);
        }
        Ok(self.slice.room(length).unwrap_or_default())
    }

    fn shape(&mut self, shape: &[usize]) {
        self.shape.clear();
        self.shape.extend_from_slice(shape);
    }

    fn at_hand(&mut self) -> &mut [u8] {
        let left = self.slice.room_left().min(usize::try_from(self.most).unwrap_or(usize::MAX));
        self.slice.room(left).unwrap_or_default()
    }

    fn keep(&mut self, bytes: usize) {
        self.length = bytes;
    }
}

/// Has the bytes of a field written into `room`.
fn fill(
    plan: &Plan,
    pick: Pick,
    field: usize,
    value: &Value<'_>,
    room: &mut dyn Room,
) -> Result<(), Fault> {
    let mut copy = |bytes: &[u8]| {
        room.make(bytes.len() as u64)?.copy_from_slice(bytes);
        Ok(())
    };
    match value {
        Value::Bytes(bytes) => copy(bytes),
        Value::Int(number) => copy(&number.to_ne_bytes()),
        Value::Float(number) => copy(&number.to_ne_bytes()),
        Value::File(location) | Value::Pixels { location, .. } => plan.store.read(location, room),
        Value::Made => plan.sources[pick.source].read(pick.index, field, room),
    }
}

/// Writes field number `field` of `pick` into `row`, which may take `most` bytes; gives the bytes
/// that were read for it. `granted` is scratch that the worker has and does not use.
pub(super) fn write(
    plan: &Plan,
    flow: &Flow,
    pick: Pick,
    field: usize,
    slice: &mut Slice,
    row: usize,
    (granted, most): (&mut u64, u64),
) -> Result<usize, Hindrance> {
    let value = plan.sources[pick.source].value(pick.index, field)?;
    let BatchField { variable, row_bytes, dtype, .. } = &plan.layout.fields()[field];
    let Some(variable) = *variable else {
        fill(plan, pick, field, &value, &mut Row(slice.writer.row(field, row)))?;
        return Ok(*row_bytes);
    };
    let axes = variable.axes();
    let shape = Vec::new();
    let mut room = Behind { flow, slice, granted, most, length: 0, shape, short_of: None };
    let filled = fill(plan, pick, field, &value, &mut room);
    let Behind { length, short_of, mut shape, .. } = room;
    if let Some(short_of) = short_of {
        return Err(short_of);
    }
    filled?;
    match variable {
        Variable::Text => {
            let text = slice.room(length).unwrap_or_default();
            if std::str::from_utf8(text).is_err() {
                return Err(Fault::corrupt("text", "is not UTF-8").into());
            }
        }
        Variable::Bytes => shape.clear(),
        Variable::Array { .. } => {
            let size = dtype.size();
            if shape.is_empty() && axes == 1 {
                shape.push(length / size);
            }
            let elements = shape.iter().try_fold(size, |bytes, n| bytes.checked_mul(*n));
            if shape.len() != axes || elements != Some(length) {
                let text = format!("has {length} bytes for the shape {shape:?} of {dtype}");
                return Err(Fault::Shape(text).into());
            }
        }
    }
    let entry = slice.keep(length);
    slice.writer.write_entry(field, row, entry, &shape)?;
    Ok(length)
}
