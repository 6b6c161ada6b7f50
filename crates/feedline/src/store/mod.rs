//! Where bytes live.

mod cache;
mod local;

pub use cache::{Cache, Cached};
pub use local::Local;

use crate::error::Fault;
use crate::sample::Location;

/// Gives room for as many bytes as a sample turns out to have.
pub trait Room {
    /// Room for exactly `bytes`, or a refusal of what is too large.
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault>;

    /// Room that is there already, for a store that would have to ask for the length first: what
    /// fits is read at once. Empty if there is none.
    fn at_hand(&mut self) -> &mut [u8] {
        &mut []
    }

    /// The first `bytes` of [`Room::at_hand`] are the sample, in place of [`Room::make`].
    fn keep(&mut self, _bytes: usize) {}
}

/// What became of a hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// The store makes nothing of hints: spare it more of them.
    Unused,
    /// The bytes are near already, or there are none.
    Near,
    /// They are on their way.
    Fetching,
}

/// A place that bytes are read from. Wrappers add behaviour.
pub trait Store: Send + Sync {
    /// Asks `room` for the length, fills what it gives, and fails if there is less.
    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault>;

    /// How many bytes there are, without reading them.
    fn size(&self, location: &Location<'_>) -> Result<u64, Fault>;

    /// These bytes will be read soon. Changes no result, and leaves errors to the read.
    fn hint(&self, _location: &Location<'_>) -> Hint {
        Hint::Unused
    }
}
