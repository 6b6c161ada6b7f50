//! Gets a sample's bytes.

use std::time::Duration;

use super::memory::Need;
use super::{Trouble, Worker};
use crate::buffer::Slab;
use crate::engine::plan::Plan;
use crate::error::{Fault, Stage};
use crate::order::Pick;
use crate::sample::{Room, Value};

impl Worker {
    /// Reads an image's bytes into `encoded`; the memory for it is granted first.
    pub(super) fn read(
        &mut self,
        plan: &Plan,
        pick: Pick,
        value: &Value<'_>,
        encoded: &mut Slab,
    ) -> Result<usize, Trouble> {
        struct Encoded<'a> {
            worker: &'a mut Worker,
            slab: &'a mut Slab,
            length: usize,
            short_of: Option<Trouble>,
        }
        impl Room for Encoded<'_> {
            fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
                let length = usize::try_from(bytes)
                    .map_err(|_| Fault::TooLarge(format!("has {bytes} bytes")))?;
                if length == 0 {
                    return Err(Fault::corrupt("image", "the file is empty"));
                }
                let need = Need { encoded: room_for(length), ..Need::default() };
                if let Err(trouble) = self.worker.reserve(need, self.slab.len()) {
                    self.short_of = Some(trouble);
                    return Err(Fault::Cancelled);
                }
                self.length = length;
                Ok(&mut self.slab.at_least(room_for(length))?[..length])
            }

            fn at_hand(&mut self) -> &mut [u8] {
                // Granted when it was made.
                self.slab.at_least(self.slab.len()).unwrap_or_default()
            }

            fn keep(&mut self, bytes: usize) {
                self.length = bytes;
            }
        }
        let mut room = Encoded { worker: self, slab: encoded, length: 0, short_of: None };
        let read = match (value, &plan.image) {
            (Value::File(location), _) => plan.store.read(location, &mut room),
            (_, Some(image)) => plan.sources[pick.source].read(pick.index, image.field, &mut room),
            _ => Ok(()),
        };
        match (read, room.short_of) {
            (_, Some(trouble)) => Err(trouble),
            (Err(fault), None) => Err(Trouble::Fault(Stage::Read, fault)),
            (Ok(()), None) => Ok(room.length),
        }
    }

    /// Slow reads make the engine look ahead, and the places of the slowest are kept.
    pub(super) fn note_read(
        &mut self,
        plan: &Plan,
        (pick, field): (Pick, usize),
        time: Option<Duration>,
        length: usize,
    ) {
        let shared = self.shared.clone();
        let places = &shared.slow_places;
        if let Some(time) = time {
            let slow = self.pace.note(time);
            if (slow || places.any())
                && let Ok(value) = plan.sources[pick.source].value(pick.index, field)
                && let Some(location) = value.location()
            {
                match slow {
                    true => places.slow(&location, time, &self.pace),
                    false => places.other(&location),
                }
            }
        }
        if time.is_some_and(|time| self.reads.note(time, length)) {
            shared.ahead.begin(&shared, length);
        }
        shared.ahead.moved_on(length);
    }
}

/// Room for a file: a byte more, so that the next one of the same size is seen to end in it.
pub(super) fn room_for(length: usize) -> usize {
    length.saturating_add(1)
}
