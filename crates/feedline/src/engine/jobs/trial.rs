//! How fast a pipeline is, from a short run of it.

use std::time::{Duration, Instant};

use crate::engine::Loader;
use crate::error::Result;
use crate::spec::{OpSpec, Spec};

/// What a loader usually does with photos: the work that figures are given for.
pub(super) fn usual_transforms() -> Vec<OpSpec> {
    vec![
        OpSpec::new("RandomResizedCrop").with("size", 224),
        OpSpec::new("RandomHorizontalFlip"),
        OpSpec::new("ToDtype").with("dtype", "float32").with("scale", true),
    ]
}

/// What a run was like.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rate {
    /// Samples a second.
    pub samples: f64,
    /// Bytes read a second.
    pub bytes: f64,
}

/// Runs epochs of `spec` until `time` is over; `None` if it makes no batches. The first batch does
/// not count: threads start with it, and the page cache fills.
pub(super) fn rate(spec: Spec, time: Duration) -> Result<Option<Rate>> {
    let mut loader = Loader::from_spec(spec)?;
    let mut samples = 0;
    let mut began: Option<(Instant, u64)> = None;
    while !loader.is_empty() {
        loader.begin_epoch();
        while let Some(batch) = loader.next_batch() {
            let rows = batch?.rows();
            let Some((start, before)) = began else {
                began = Some((Instant::now(), loader.stats().work.bytes_read));
                continue;
            };
            samples += rows;
            if start.elapsed() >= time {
                let seconds = start.elapsed().as_secs_f64();
                let bytes = loader.stats().work.bytes_read.saturating_sub(before);
                let samples = samples as f64 / seconds;
                return Ok(Some(Rate { samples, bytes: bytes as f64 / seconds }));
            }
        }
    }
    Ok(None)
}
