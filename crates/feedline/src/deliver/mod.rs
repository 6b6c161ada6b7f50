//! The consumer's side: what a program gets and how long it may keep it.

mod batch;
pub mod dlpack;

pub use batch::{Array, Batch, Element, Home};
