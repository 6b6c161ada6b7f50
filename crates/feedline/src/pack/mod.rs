//! Writes data sets: what `feedline` itself makes, and checks after making it.
//!
//! A set that is packed from another goes through a [`destination`]; `engine::Pack` reads and
//! converts the samples, and hands them to the writer of a format: [`files`] or [`raw`].

pub mod destination;
pub mod files;
pub mod jpeg;
pub mod raw;
pub mod record;
pub mod recut;
pub mod sample_photos;

pub use sample_photos::{SamplePhotos, Summary};
