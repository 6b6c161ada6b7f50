//! The consumer's side: what a program gets and how long it may keep it; batches on a device.

mod batch;
pub mod device;
pub mod dlpack;
mod run_hash;

pub use batch::{Array, Batch, Element, Home, Ragged, hash_arrays};
pub use run_hash::RunHash;
