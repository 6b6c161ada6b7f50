//! feedline keeps a GPU fed.

pub mod buffer;
pub mod error;
pub mod image;
pub mod order;
pub mod pack;
pub mod random;
pub mod sample;
pub mod spec;

pub use error::{Error, Fault, Result, SampleError, SpecError};
pub use spec::Spec;
