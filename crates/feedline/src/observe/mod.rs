//! Counters, times and timelines that the stages fill and people read. They never block the flow.
//!
//! [`counters`](WorkerCounters) are always on: additions to atomics, one clock reading for each part
//! of a sample. A [`Timeline`] is on when asked for, and keeps the last spans of each lane.
//! [`usage`](Usage) asks the system what the process and its children use.

mod clock;
mod counters;
mod histogram;
mod places;
mod timeline;
mod usage;

pub use clock::thread_cpu;
pub use counters::{
    ConsumerCounters, Look, PartStats, Stopwatch, Times, WorkPart, WorkStats, WorkerCounters,
    figures,
};
pub use histogram::{Histogram, Quantiles};
pub use places::{Pace, PlaceStats, SlowPlaces};
pub use timeline::{Activity, Lane, Span, Timeline};
pub(crate) use usage::machine_busy;
pub use usage::{PeakMemory, Usage};
