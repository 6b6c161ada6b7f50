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
    ConsumerCounters, Figures, Look, Part, PartFigures, Stopwatch, Times, WorkerCounters, figures,
};
pub use histogram::{Histogram, Quantiles};
pub use places::{Pace, PlaceFigures, SlowPlaces};
pub use timeline::{Activity, Lane, Span, Timeline};
pub use usage::{PeakMemory, Usage, machine_busy};
