//! What stages made before, handed over again in their place, to see what a loader does without them.

use crate::image::{Excerpt, View};

/// Output of stages. What is recorded of one takes its place.
#[derive(Default)]
pub(crate) struct Recorded {
    /// Rows of images as they were transformed.
    pub(crate) rows: Vec<Box<[u8]>>,
    /// Images as they were decoded.
    pub(crate) images: Vec<DecodedImage>,
}

/// What decoding gave: of many images no more than the transforms look at.
pub(crate) struct DecodedImage {
    pub(crate) pixels: Box<[u8]>,
    pub(crate) view: View,
    pub(crate) excerpt: Excerpt,
    /// What the transforms drew when they said what they look at, so that they look at it again.
    pub(crate) draws: (u64, u64),
}

impl Recorded {
    /// The image that stands for the one at `position`: all have their turn, however few they are.
    pub(super) fn image(&self, position: u64) -> Option<&DecodedImage> {
        in_turn(&self.images, position)
    }

    /// The row that stands for the one at `position`.
    pub(super) fn row(&self, position: u64) -> Option<&[u8]> {
        in_turn(&self.rows, position).map(|row| &**row)
    }
}

fn in_turn<T>(all: &[T], position: u64) -> Option<&T> {
    all.get(position.checked_rem(all.len() as u64)? as usize)
}
