//! Where bytes live.

mod cache;
mod files;
mod local;
mod rehearsal;

pub use cache::{Cache, Cached};
pub use files::Files;
pub use local::Local;
pub use rehearsal::{Delayed, Throttled};

use crate::error::Fault;
use crate::sample::{Location, Room};

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
