//! feedline keeps a GPU fed.

pub mod buffer;
pub mod collate;
pub mod decode;
pub mod deliver;
pub mod engine;
pub mod error;
pub mod image;
pub mod layout;
pub mod observe;
pub mod order;
pub mod pack;
pub mod random;
pub mod sample;
pub mod source;
pub mod spec;
pub mod store;
pub mod transform;
pub mod tune;

pub use deliver::Batch;
pub use engine::{Builder, Loader};
pub use error::{Error, Fault, Result, SampleError, SpecError};
pub use order::State;
pub use spec::Spec;
