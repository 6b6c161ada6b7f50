//! Moves samples through the stages: the only code that knows them all.
//!
//! [`Loader`] is the public face. `plan` makes a spec ready, `flow` hands rows to workers and
//! batches to the program, `work` is one worker. `device` hands them over on a GPU. `jobs`
//! are the other ends of a pipeline: inspect, pack, verify, diagnose. `schedule` (the order alone)
//! and `single` (decoding and transforms of one sample) are for programs that make batches of their
//! own samples.

mod ahead;
mod device;
mod evidence;
mod fields;
mod flow;
mod identity;
mod jobs;
mod loader;
#[cfg(test)]
mod model;
mod monitor;
mod online;
mod plan;
mod rank;
mod recorded;
mod run;
mod schedule;
mod single;
mod sync;
mod work;

use std::sync as primitives;

pub use device::DeviceLoader;
pub use flow::FlowStats;
pub use jobs::diagnose::Diagnose;
pub use jobs::feeding::LoaderFeed;
pub use jobs::inspect::{
    FieldFacts, Inspect, Inspection, MOST_INFLATION, Mixing, Seen, SourceFacts,
};
pub use jobs::pack::{Expectation, Gain, Pack, PackOptions, Packed, transforms_until};
pub use jobs::trial::Rate;
pub use jobs::verify::Verify;
pub use loader::{Builder, Epoch, Loader};
pub use monitor::{Monitor, Stats};
pub use plan::opening;
pub use rank::auto_workers;
pub use schedule::Schedule;
pub use single::{Given, Ready, Stages, Workbench};
