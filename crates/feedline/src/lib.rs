//! feedline keeps a GPU fed.

pub mod buffer;
pub mod decode;
pub mod error;
pub mod image;
pub mod random;
pub mod sample;
pub mod spec;
pub mod transform;

pub use error::{Error, Fault, Result, SampleError, SpecError};
