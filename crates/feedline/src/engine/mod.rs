//! Moves samples through the stages: the only code that knows them all.
//!
//! [`Loader`] is the public face. `plan` makes a spec ready, `flow` hands rows to workers and
//! batches to the program, `work` is one worker. `device` hands them over on a GPU. `inspect` and
//! `verify` look at a data set without making batches; `pack` makes another set of it. `schedule`
//! (the order alone) and `single` (decoding and transforms of one sample) are for programs that make
//! batches of their own samples.

mod ahead;
mod device;
mod diagnose;
mod evidence;
mod feeding;
mod fields;
mod flow;
mod identity;
mod inspect;
mod loader;
#[cfg(test)]
mod model;
mod monitor;
mod online;
mod pack;
mod plan;
mod rank;
mod recorded;
mod run;
mod schedule;
mod single;
mod sync;
mod trial;
mod verify;
mod work;

use std::sync as primitives;

pub use device::DeviceLoader;
pub use diagnose::Diagnose;
pub use feeding::LoaderFeed;
pub use flow::Figures as FlowFigures;
pub use inspect::{
    FieldFacts, FileFacts, Inspect, Inspection, MOST_INFLATION, Mixing, Seen, SourceFacts,
};
pub use loader::{Builder, Epoch, Loader};
pub use monitor::{Monitor, Stats};
pub use pack::{Expectation, Gain, Pack, PackOptions, Packed, PackedPart, transforms_until};
pub use plan::opening;
pub use rank::auto_workers;
pub use schedule::{Due, Schedule};
pub use single::{Given, Ready, Stages, Workbench};
pub use trial::Rate;
pub use verify::{Verified, Verify};
