//! Texts and lists of different lengths: a row holds a reference into a heap of the file.

use std::sync::Arc;

use crate::error::Fault;
use crate::sample::{DType, Room};
use crate::source::arrays::{Files, Resolve, swap_bytes};

/// Bytes that are looked at at once: a heap of small things has 4096.
const WINDOW: u64 = 4096;

/// Finds what references of one file mean.
pub(super) struct Heap {
    /// The files.
    pub files: Arc<Files>,
    /// Which of them.
    pub file: u32,
    /// Where addresses are counted from.
    pub base: u64,
    /// Bytes of an address.
    pub offset_size: u8,
    /// Bytes of a length.
    pub length_size: u8,
    /// The type of the elements; `None` for text.
    pub dtype: Option<DType>,
    /// True when their bytes are in the other order.
    pub swap: bool,
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn corrupt(reason: impl Into<String>) -> Fault {
    Fault::corrupt("hdf5", reason)
}

impl Heap {
    /// Place and length of an object of the collection at `address`.
    fn find(&self, address: u64, index: u64) -> Result<(u64, u64), Fault> {
        let length_size = usize::from(self.length_size);
        let end = self.files.bytes(self.file);
        let mut window = Vec::new();
        let mut window_start = 0;
        // Bytes at a place, by way of the window.
        let mut at = |place: u64, count: usize| -> Result<Vec<u8>, Fault> {
            let inside = place
                .checked_sub(window_start)
                .filter(|start| start.saturating_add(count as u64) <= window.len() as u64);
            let start = match inside {
                Some(start) => start as usize,
                None => {
                    window_start = place;
                    window =
                        self.files.take(self.file, place, WINDOW.min(end.saturating_sub(place)))?;
                    0
                }
            };
            let bytes = window.get(start..start + count);
            bytes.map(<[u8]>::to_vec).ok_or_else(|| corrupt("a heap is cut short"))
        };
        let start = address.checked_add(self.base).ok_or_else(|| corrupt("a heap lies nowhere"))?;
        let head = at(start, 8 + length_size)?;
        if head[..4] != *b"GCOL" || head[4] != 1 {
            return Err(corrupt("a reference does not lead to a heap"));
        }
        let heap_end = start.checked_add(number(&head[8..])).filter(|last| *last <= end);
        let heap_end = heap_end.ok_or_else(|| corrupt("a heap is larger than the file"))?;
        let mut place = start + 8 + length_size as u64;
        let object = 8 + length_size;
        // An index has two bytes: no heap has more objects.
        for _ in 0..=u16::MAX {
            if place + object as u64 > heap_end {
                break;
            }
            let head = at(place, object)?;
            let length = number(&head[8..]);
            let data = place + object as u64;
            let after = length.checked_next_multiple_of(8).and_then(|all| data.checked_add(all));
            let found = number(&head[..2]);
            if found == index {
                return match data.checked_add(length) {
                    Some(last) if last <= heap_end => Ok((data, length)),
                    _ => Err(corrupt("an object is larger than its heap")),
                };
            }
            match after {
                // The free space has number 0 and is the last.
                Some(after) if found != 0 => place = after,
                _ => break,
            }
        }
        Err(corrupt(format!("a heap has no object {index}")))
    }
}

impl Resolve for Heap {
    fn resolve(&self, reference: &[u8], text: bool, room: &mut dyn Room) -> Result<(), Fault> {
        let offset_size = usize::from(self.offset_size);
        let Some(index) = reference.get(4 + offset_size..8 + offset_size) else {
            return Err(corrupt("a reference is too short"));
        };
        let count = number(&reference[..4]);
        let address = number(&reference[4..4 + offset_size]);
        let bytes = count * self.dtype.map_or(1, DType::size) as u64;
        // Nothing is stored for what is empty or was never written.
        if bytes == 0 || address == 0 {
            room.make(0)?;
            return Ok(());
        }
        let (place, length) = self.find(address, number(index))?;
        if bytes > length {
            return Err(corrupt("an object is shorter than its reference says"));
        }
        let out = room.make(bytes)?;
        self.files.read(self.file, place, out)?;
        match self.dtype {
            Some(dtype) if self.swap => swap_bytes(out, dtype.size()),
            _ if text && std::str::from_utf8(out).is_err() => {
                return Err(Fault::corrupt("text", "is not UTF-8"));
            }
            _ => {}
        }
        Ok(())
    }
}
