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
}

/// A place that bytes are read from. Wrappers add behaviour.
pub trait Store: Send + Sync {
    /// Asks `room` for the length, fills what it gives, and fails if there is less.
    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault>;

    /// How many bytes there are, without reading them.
    fn size(&self, location: &Location<'_>) -> Result<u64, Fault>;
}
