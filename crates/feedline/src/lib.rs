//! feedline keeps a GPU fed: it reads, decodes, augments, batches and prefetches training data.
//!
//! This page is the manual of the Rust crate. The Python package and the command are thin faces
//! of the same engine and use the same names.
//!
//! # A loop
//!
//! ```
//! use feedline::{Loader, spec::OpSpec};
//! # let photos = std::env::temp_dir().join(format!("feedline-manual-{}", std::process::id()));
//! # feedline_sample_photos::SamplePhotos { count: 12, classes: 3, mean_width: 64, mean_height: 48, ..Default::default() }
//! #     .write(&photos, &|_| ()).unwrap();
//! let mut loader = Loader::builder(&photos)
//!     .transform(OpSpec::new("RandomResizedCrop").with("size", 32))
//!     .transform(OpSpec::new("RandomHorizontalFlip"))
//!     .transform(OpSpec::new("ToDtype").with("dtype", "float32").with("scale", true))
//!     .batch_size(4)
//!     .shuffle(true)
//!     .seed(7)
//!     .num_workers(2)
//!     .build()?;
//!
//! for _ in 0..2 {
//!     // Each call is the next epoch: a new order, new augmentation.
//!     for batch in loader.epoch() {
//!         let batch = batch?;
//!         let images: &[f32] = batch.get("image").unwrap().as_slice().unwrap();
//!         let labels: &[i64] = batch.get("label").unwrap().as_slice().unwrap();
//!         assert_eq!(images.len(), labels.len() * 3 * 32 * 32);
//!     }
//! }
//!
//! // Where the run stands, to go on from there in another process.
//! let state = serde_json::to_string(&loader.state()).unwrap();
//! loader.resume(&serde_json::from_str(&state).unwrap())?;
//! # std::fs::remove_dir_all(&photos).unwrap();
//! # Ok::<(), feedline::Error>(())
//! ```
//!
//! # What decides a batch
//!
//! A batch is a pure function of ([`Spec`], seed, epoch, batch number). Threads, ranks, restarts
//! and time are no inputs. So there is no generator to save: a [`State`] is a position.
//!
//! # The parts
//!
//! | to | use |
//! |---|---|
//! | describe a pipeline | [`Builder`], or a [`Spec`] from TOML or JSON and [`Loader::from_spec`] |
//! | load arrays in memory | [`source::Arrays`] and [`Loader::over`] |
//! | load something else | implement [`source::Source`], hand it to [`Loader::over`] |
//! | read from elsewhere | implement [`store::Store`], hand it to [`Builder::store`] |
//! | iterate | [`Loader::epoch`], or [`Loader::begin_epoch`] and [`Loader::next_batch`] |
//! | go to an epoch | [`Loader::set_epoch`] |
//! | save and resume | [`Loader::state`], [`Loader::resume`] |
//! | read a batch | [`Batch::get`], [`Array::as_slice`] |
//! | get batches on a GPU | [`device::open`] and [`DeviceLoader::new`] |
//! | see what is slow | [`Loader::stats`] |
//!
//! # Transforms
//!
//! [`spec::OpSpec`] names an op as torchvision does, with its parameters and defaults: `Resize`,
//! `CenterCrop`, `RandomCrop`, `RandomResizedCrop`, `Pad`, `RandomHorizontalFlip`,
//! `RandomVerticalFlip`, `RandomRotation`, `RandomAffine`, `ColorJitter`, `Grayscale`,
//! `RandomGrayscale`, `GaussianBlur`, `RandomErasing`, `RandAugment`, `TrivialAugmentWide`,
//! `ToDtype`, `Normalize`, and at the end of the list `MixUp`, `CutMix` or a `RandomChoice` of them.
//! Mistakes are found by [`Builder::build`] and name the parameter.
//!
//! # Memory
//!
//! A [`Batch`] owns its memory until it is dropped, also after the loader is gone. All that a
//! loader holds stays below [`Builder::memory`]; a program that keeps all of it in batches gets
//! [`Error::Memory`] instead of a hang.
//!
//! # Errors
//!
//! Everything that can fail returns [`Error`], which names what it concerns. A bad sample is an
//! [`Error::Sample`] with its path, offset and reason, or with [`spec::OnError::Skip`] another
//! sample in its place.

// What only the formats use that a build leaves out.
#![cfg_attr(not(feature = "full"), allow(dead_code, unused_imports))]

#[cfg(not(any(feature = "libjpeg-turbo", feature = "rust-jpeg")))]
compile_error!("JPEGs need one of the features rust-jpeg (a default) and libjpeg-turbo");

mod buffer;
mod canonical;
mod catalog;
mod collate;
mod decode;
mod deliver;
mod engine;
pub mod error;
mod guard;
mod image;
#[doc(hidden)]
pub mod internals;
mod layout;
mod observe;
mod order;
mod output_file;
pub mod pack;
mod random;
pub mod sample;
pub mod source;
pub mod spec;
pub mod store;
mod transform;
mod tune;

pub use deliver::{Array, Batch, Element, Ragged, RunHash};
pub use engine::{Builder, DeviceLoader, Epoch, Loader};
pub use error::{DeviceError, Error, Fault, Result, SampleError, SpecError};
pub use layout::{BatchField, Variable};
pub use order::State;
pub use spec::Spec;

/// Batches in a device's memory, for [`DeviceLoader`].
pub mod device {
    pub use crate::deliver::device::{Device, DeviceBatch, Handle, PrefetchStats, open};
}

/// What [`Loader::stats`] and [`Loader::monitor`] report.
pub mod stats {
    pub use crate::engine::{FlowStats, Monitor, Stats};
    pub use crate::observe::{Activity, PartStats, PlaceStats, Quantiles, Span, WorkStats};
    pub use crate::tune::{Decision, Knob, Tuning};
}

/// The README's Rust code, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
