//! Moves samples through the stages: the only code that knows them all.
//!
//! [`Loader`] is the public face. `plan` makes a spec ready, `flow` hands rows to workers and
//! batches to the program, `work` is one worker.

mod flow;
mod loader;
#[cfg(all(test, feature = "model-check"))]
mod model;
mod plan;
mod rank;
mod run;
mod sync;
mod work;

pub use flow::Figures as FlowFigures;
pub use loader::{Builder, Epoch, Loader, Stats};
