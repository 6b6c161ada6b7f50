//! The consumer's side: what a program gets and how long it may keep it; batches on a device.

pub(crate) mod batch;
pub(crate) mod device;
pub(crate) mod dlpack;
mod run_hash;

pub(crate) use batch::Home;
pub use batch::{Array, Batch, Element, Ragged};
pub use run_hash::RunHash;
