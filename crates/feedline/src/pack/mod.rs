//! Writes data sets: what `feedline` itself makes, and checks after making it.

pub mod jpeg;
pub mod sample_photos;

pub use sample_photos::{SamplePhotos, Summary};
