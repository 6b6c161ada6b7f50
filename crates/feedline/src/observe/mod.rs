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
pub(crate) use counters::{
    ConsumerCounters, Look, Stopwatch, Times, WorkPart, WorkerCounters, figures,
};
pub use counters::{PartStats, WorkStats};
pub(crate) use histogram::Histogram;
pub use histogram::Quantiles;
pub use places::PlaceStats;
pub(crate) use places::{Pace, SlowPlaces};
pub use timeline::{Activity, Span, Timeline};
pub(crate) use usage::PeakMemory;
pub use usage::Usage;
pub(crate) use usage::machine_busy;
