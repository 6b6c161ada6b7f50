//! Crops, one resize and flips, gathered so that one pass does them all, and so that only what
//! they look at is decoded.

use super::ImageShape;
use super::resample::Interpolation;
use crate::image::{Excerpt, Region};

/// The size that something is brought to, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Resized {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) interpolation: Interpolation,
    pub(super) antialias: bool,
}

impl Resized {
    /// True for what the last pass does from a part of the image. Other filters get all of it.
    pub(super) fn is_one_pass(&self) -> bool {
        self.antialias && self.interpolation == Interpolation::Bilinear
    }
}

/// What an image becomes: a part of it, brought to another size, of which a window is kept and
/// perhaps mirrored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Placement {
    pub(super) part: Region,
    pub(super) resized: Option<Resized>,
    /// In the resized part.
    pub(super) window: Region,
    pub(super) horizontal: bool,
    pub(super) vertical: bool,
}

fn all(height: usize, width: usize) -> Region {
    Region { top: 0, left: 0, height, width }
}

impl Placement {
    /// An image of this size as it is.
    pub(super) fn of(height: usize, width: usize) -> Self {
        Placement {
            part: all(height, width),
            resized: None,
            window: all(height, width),
            horizontal: false,
            vertical: false,
        }
    }

    /// The size of the result.
    pub(super) fn shape(&self, channels: usize) -> ImageShape {
        ImageShape { height: self.window.height, width: self.window.width, channels }
    }

    pub(super) fn crop(&mut self, crop: Region) {
        let Region { mut top, mut left, height, width } = crop;
        debug_assert!(top + height <= self.window.height && left + width <= self.window.width);
        if self.vertical {
            top = self.window.height - top - height;
        }
        if self.horizontal {
            left = self.window.width - left - width;
        }
        if self.resized.is_some() {
            top += self.window.top;
            left += self.window.left;
            self.window = Region { top, left, height, width };
        } else {
            self.part.top += top;
            self.part.left += left;
            (self.part.height, self.part.width) = (height, width);
            self.window = all(height, width);
        }
    }

    pub(super) fn flip(&mut self, vertical: bool) {
        match vertical {
            true => self.vertical = !self.vertical,
            false => self.horizontal = !self.horizontal,
        }
    }

    /// Filters are symmetric: what was mirrored may as well be mirrored afterwards. The caller
    /// sees to it that nothing was resized before.
    pub(super) fn resize(&mut self, to: Resized) {
        debug_assert!(self.resized.is_none());
        if (to.height, to.width) != (self.part.height, self.part.width) {
            self.resized = Some(to);
            self.window = all(to.height, to.width);
        }
    }

    /// How much smaller an image may be decoded: where the result has at most half the part's
    /// height and width, the means of 2 x 2 pixels hold all that a smooth filter will see.
    fn reduction(&self) -> usize {
        let Some(to) = self.resized.filter(Resized::is_one_pass) else { return 1 };
        let fits = |n: &usize| self.part.height >= to.height * n && self.part.width >= to.width * n;
        [8, 4, 2].into_iter().find(fits).unwrap_or(1)
    }

    /// What will be looked at of an image of this size. With `exact` its pixels are not reduced.
    pub(super) fn excerpt(&self, image: ImageShape, exact: bool) -> Excerpt {
        let reduction = if exact { 1 } else { self.reduction() };
        let mut part = self.part;
        if let Some(to) = self.resized.filter(Resized::is_one_pass) {
            let reach = to.interpolation.reach().unwrap_or(1) as f64;
            let span = |length: usize, outputs: usize, first: usize, count: usize| {
                let scale = length as f64 / outputs as f64;
                // One pixel more than the filter reaches, for rounding.
                let reach = reach * scale.max(reduction as f64) + 1.0 + reduction as f64;
                let low = (first as f64 * scale - reach).floor().max(0.0) as usize;
                let high = ((first + count) as f64 * scale + reach).ceil() as usize;
                (low, high.min(length) - low)
            };
            let (top, height) = span(part.height, to.height, self.window.top, self.window.height);
            let (left, width) = span(part.width, to.width, self.window.left, self.window.width);
            part = Region { top: part.top + top, left: part.left + left, height, width };
        }
        Excerpt::around(image.height, image.width, part, reduction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resized(height: usize, width: usize, antialias: bool) -> Resized {
        Resized { height, width, interpolation: Interpolation::Bilinear, antialias }
    }

    #[test]
    fn crops_after_flips_and_resizes_land_where_they_show() {
        let mut placement = Placement::of(100, 200);
        placement.flip(false);
        placement.crop(Region { top: 10, left: 20, height: 50, width: 60 });
        assert_eq!(placement.part, Region { top: 10, left: 120, height: 50, width: 60 });
        placement.resize(resized(25, 30, true));
        placement.flip(true);
        placement.crop(Region { top: 5, left: 3, height: 10, width: 20 });
        assert_eq!(placement.window, Region { top: 10, left: 7, height: 10, width: 20 });
        assert!(placement.horizontal && placement.vertical);
    }

    #[test]
    fn a_filter_that_needs_all_of_the_part_gets_it() {
        let image = ImageShape { height: 100, width: 200, channels: 3 };
        let looked_at = |interpolation, antialias| {
            let mut placement = Placement::of(100, 200);
            placement.resize(Resized { height: 50, width: 100, interpolation, antialias });
            placement.crop(Region { top: 20, left: 40, height: 10, width: 10 });
            placement.excerpt(image, false).part
        };
        for (_, interpolation) in Interpolation::NAMES {
            let one_pass = *interpolation == Interpolation::Bilinear;
            assert_eq!(looked_at(*interpolation, true) != all(100, 200), one_pass);
        }
        assert_eq!(looked_at(Interpolation::Bilinear, false), all(100, 200));
    }

    #[test]
    fn only_a_smooth_shrinking_by_half_reduces() {
        let image = ImageShape { height: 1600, width: 2000, channels: 3 };
        let reduction = |height, width, antialias, exact| {
            let mut placement = Placement::of(1600, 2000);
            placement.resize(resized(height, width, antialias));
            placement.excerpt(image, exact).reduction
        };
        assert_eq!(reduction(224, 224, true, false), 4);
        assert_eq!(reduction(200, 200, true, false), 8);
        assert_eq!(reduction(800, 224, true, false), 2);
        assert_eq!(reduction(801, 224, true, false), 1);
        assert_eq!(reduction(224, 224, false, false), 1);
        assert_eq!(reduction(224, 224, true, true), 1);
    }
}
