//! Pixels on their way through a worker: a strided view over bytes that are copied late.
//!
//! A crop or a flip only changes the view. Pixels move when an op needs new ones (resize,
//! padding) and once at the end, when [`convert`] writes them into the batch.

mod convert;
mod resize;

pub use convert::{Layout, Pointwise, convert};
pub(crate) use resize::{Axis, Target, Workspace, resize};

use crate::buffer::Slab;
use crate::error::Fault;

/// A rectangle of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// The first row.
    pub top: usize,
    /// The first column.
    pub left: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// Which pixels of a whole image are at hand, and at what size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excerpt {
    /// Rows of the whole image.
    pub height: usize,
    /// Columns of the whole image.
    pub width: usize,
    /// One pixel at hand stands for so many of the whole image, across and down.
    pub reduction: usize,
    /// Where they lie in the reduced image.
    pub part: Region,
}

impl Excerpt {
    /// All of an image, at its own size.
    #[must_use]
    pub fn whole(height: usize, width: usize) -> Self {
        Excerpt { height, width, reduction: 1, part: Region { top: 0, left: 0, height, width } }
    }

    /// True if all of the image is at hand.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        *self == Excerpt::whole(self.height, self.width)
    }

    /// True if it is of an image of this size, has pixels, and none beyond the image.
    #[must_use]
    pub(crate) fn lies_in(&self, height: usize, width: usize) -> bool {
        let Region { top, left, height: rows, width: columns } = self.part;
        matches!(self.reduction, 1 | 2 | 4 | 8)
            && (self.height, self.width) == (height, width)
            && (rows > 0 && top + rows <= height.div_ceil(self.reduction))
            && (columns > 0 && left + columns <= width.div_ceil(self.reduction))
    }

    /// What lies around `part` of the whole image, reduced.
    #[must_use]
    pub fn around(height: usize, width: usize, part: Region, reduction: usize) -> Self {
        let range = |start: usize, length: usize| {
            let first = start / reduction;
            (first, (start + length).div_ceil(reduction) - first)
        };
        let ((top, rows), (left, columns)) =
            (range(part.top, part.height), range(part.left, part.width));
        Excerpt {
            height,
            width,
            reduction,
            part: Region { top, left, height: rows, width: columns },
        }
    }
}

/// Where pixels lie in a slice of elements. Strides may be negative: a flip is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Channels of a pixel.
    pub channels: usize,
    /// The element of row 0, column 0, channel 0.
    pub start: usize,
    /// Elements from a row to the next.
    pub row: isize,
    /// Elements from a column to the next.
    pub column: isize,
    /// Elements from a channel to the next.
    pub channel: isize,
}

impl View {
    /// Height, width, channels in C order, as decoders write.
    #[must_use]
    pub fn interleaved(height: usize, width: usize, channels: usize) -> Self {
        View {
            height,
            width,
            channels,
            start: 0,
            row: (width * channels) as isize,
            column: channels as isize,
            channel: 1,
        }
    }

    /// Channels, height, width in C order, as torch keeps images.
    #[must_use]
    pub fn planar(height: usize, width: usize, channels: usize) -> Self {
        View {
            height,
            width,
            channels,
            start: 0,
            row: width as isize,
            column: 1,
            channel: (height * width) as isize,
        }
    }

    /// An array of this shape as an image: [height, width], [channels, height, width] or [height,
    /// width, channels], with 1, 3 or 4 channels. Where both could be meant, `channels_last`
    /// decides. `None` for any other shape.
    #[must_use]
    pub fn of_shape(shape: &[usize], channels_last: bool) -> Option<Self> {
        let is_channels = |n: usize| matches!(n, 1 | 3 | 4);
        match *shape {
            [height, width] => Some(View::interleaved(height, width, 1)),
            [height, width, channels]
                if is_channels(channels) && (channels_last || !is_channels(height)) =>
            {
                Some(View::interleaved(height, width, channels))
            }
            [channels, height, width] if is_channels(channels) => {
                Some(View::planar(height, width, channels))
            }
            _ => None,
        }
    }

    /// Elements of the image.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.height * self.width * self.channels
    }

    /// The element at (`row`, `column`, `channel`).
    #[must_use]
    pub fn at(&self, row: usize, column: usize, channel: usize) -> usize {
        (self.start as isize
            + row as isize * self.row
            + column as isize * self.column
            + channel as isize * self.channel) as usize
    }

    /// Keeps `height` x `width` pixels from (`top`, `left`); the caller stays inside the image.
    pub fn crop(&mut self, top: usize, left: usize, height: usize, width: usize) {
        debug_assert!(top + height <= self.height && left + width <= self.width);
        self.start = self.at(top, left, 0);
        self.height = height;
        self.width = width;
    }

    /// Mirrors left and right.
    pub(crate) fn flip_horizontal(&mut self) {
        self.start = self.at(0, self.width.saturating_sub(1), 0);
        self.column = -self.column;
    }

    /// Mirrors top and bottom.
    pub(crate) fn flip_vertical(&mut self) {
        self.start = self.at(self.height.saturating_sub(1), 0, 0);
        self.row = -self.row;
    }

    /// Swaps rows and columns.
    pub fn transpose(&mut self) {
        std::mem::swap(&mut self.height, &mut self.width);
        std::mem::swap(&mut self.row, &mut self.column);
    }

    /// Turns the image as an EXIF orientation (1 to 8) asks; other values leave it as it is.
    pub(crate) fn orient(&mut self, orientation: u8) {
        if matches!(orientation, 5..=8) {
            self.transpose();
        }
        if matches!(orientation, 2 | 3 | 6 | 7) {
            self.flip_horizontal();
        }
        if matches!(orientation, 3 | 4 | 7 | 8) {
            self.flip_vertical();
        }
    }

    /// True when rows lie one after the other with interleaved pixels, left to right.
    #[must_use]
    pub(crate) fn is_interleaved(&self) -> bool {
        self.channel == 1 && self.column == self.channels as isize && self.row > 0
    }

    /// The first and one past the last element that the view touches.
    #[must_use]
    pub fn bounds(&self) -> (usize, usize) {
        if self.elements() == 0 {
            return (self.start, self.start);
        }
        let mut low = self.start as isize;
        let mut high = low;
        for (stride, n) in
            [(self.row, self.height), (self.column, self.width), (self.channel, self.channels)]
        {
            let reach = stride * (n as isize - 1);
            if reach < 0 { low += reach } else { high += reach }
        }
        (low as usize, high as usize + 1)
    }
}

/// The types that pixels have between stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PixelType {
    /// As decoded.
    U8,
    /// After a pointwise op that another op must see applied.
    F32,
}

impl PixelType {
    /// Bytes of one element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            PixelType::U8 => 1,
            PixelType::F32 => 4,
        }
    }
}

/// Elements of an image, to be read through a [`View`].
#[derive(Debug, Clone, Copy)]
pub enum Pixels<'a> {
    /// 8 bit elements.
    U8(&'a [u8]),
    /// Single precision elements.
    F32(&'a [f32]),
}

impl<'a> Pixels<'a> {
    /// The elements that `bytes` are.
    pub fn from_bytes(bytes: &'a [u8], pixel_type: PixelType) -> Result<Self, Fault> {
        match pixel_type {
            PixelType::U8 => Ok(Pixels::U8(bytes)),
            PixelType::F32 => bytemuck::try_cast_slice(bytes).map(Pixels::F32).map_err(|error| {
                Fault::Shape(format!("float32 elements cannot lie there: {error}"))
            }),
        }
    }

    /// The type of the elements.
    #[must_use]
    pub fn pixel_type(&self) -> PixelType {
        match self {
            Pixels::U8(_) => PixelType::U8,
            Pixels::F32(_) => PixelType::F32,
        }
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Pixels::U8(x) => x.len(),
            Pixels::F32(x) => x.len(),
        }
    }

    /// True when there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A worker's memory for pixels, reused from sample to sample.
#[derive(Default)]
pub struct Scratch {
    slabs: [Slab; 2],
    /// Keeps the buffers of its passes.
    resizer: feedline_resample::Resampler,
    workspace: Workspace,
}

impl Scratch {
    /// Bytes held for reuse.
    #[must_use]
    pub fn held(&self) -> usize {
        self.slabs[0].len() + self.slabs[1].len() + self.resizer.held() + self.workspace.held()
    }

    /// Bytes held at most after a sample that takes `decoded` for its pixels and `rest` for what
    /// is made of them: each piece of memory stays as large as its largest user.
    #[must_use]
    pub(crate) fn held_after(&self, decoded: usize, rest: usize) -> usize {
        let first = self.slabs[0].len();
        first.max(decoded).saturating_add(rest.max(self.held() - first))
    }

    /// Gives everything back to the system.
    pub fn release(&mut self) {
        *self = Scratch::default();
    }

    /// Room for `bytes` of decoded pixels; [`Image::decoded`] then takes them up.
    pub fn decoded(&mut self, bytes: usize) -> Result<&mut [u8], Fault> {
        self.slabs[0].at_least(bytes)
    }
}

/// What a worker resizes with; both keep their memory from image to image.
pub struct Tools<'a> {
    /// For any filter and element.
    pub resizer: &'a mut feedline_resample::Resampler,
    /// For [`resize`].
    pub workspace: &'a mut Workspace,
}

enum Backing<'a> {
    Borrowed(Pixels<'a>),
    Slab(usize),
}

/// An image in a worker's hands.
pub struct Image<'a> {
    view: View,
    excerpt: Option<Excerpt>,
    pixel_type: PixelType,
    backing: Backing<'a>,
    scratch: &'a mut Scratch,
}

impl<'a> Image<'a> {
    /// The pixels that were just written to [`Scratch::decoded`], interleaved.
    pub fn decoded(scratch: &'a mut Scratch, height: usize, width: usize, channels: usize) -> Self {
        Image {
            view: View::interleaved(height, width, channels),
            excerpt: None,
            pixel_type: PixelType::U8,
            backing: Backing::Slab(0),
            scratch,
        }
    }

    /// The same, when only an excerpt was written.
    pub(crate) fn decoded_excerpt(
        scratch: &'a mut Scratch,
        excerpt: Excerpt,
        channels: usize,
    ) -> Self {
        let Region { height, width, .. } = excerpt.part;
        let mut image = Image::decoded(scratch, height, width, channels);
        image.excerpt = Some(excerpt);
        image
    }

    /// Which pixels of the whole image the view sees.
    #[must_use]
    pub fn excerpt(&self) -> Excerpt {
        self.excerpt.unwrap_or_else(|| Excerpt::whole(self.view.height, self.view.width))
    }

    /// Pixels that lie elsewhere (an array in memory, a cache): not copied.
    pub fn borrowed(
        scratch: &'a mut Scratch,
        pixels: Pixels<'a>,
        view: View,
    ) -> Result<Self, Fault> {
        if view.bounds().1 > pixels.len() {
            return Err(Fault::Shape(format!(
                "{} elements are too few for {view:?}",
                pixels.len()
            )));
        }
        let pixel_type = match pixels {
            Pixels::U8(_) => PixelType::U8,
            Pixels::F32(_) => PixelType::F32,
        };
        Ok(Image { view, excerpt: None, pixel_type, backing: Backing::Borrowed(pixels), scratch })
    }

    /// The same pixels as an excerpt of an image.
    #[must_use]
    pub(crate) fn with_excerpt(mut self, excerpt: Excerpt) -> Self {
        self.excerpt = Some(excerpt).filter(|excerpt| !excerpt.is_whole());
        self
    }

    /// What the view sees is from now on the whole image.
    pub(crate) fn set_whole(&mut self) {
        self.excerpt = None;
    }

    /// The current shape and strides.
    #[must_use]
    pub fn view(&self) -> View {
        self.view
    }

    /// The view, to crop or flip it.
    pub(crate) fn view_mut(&mut self) -> &mut View {
        &mut self.view
    }

    /// The type of the elements.
    #[must_use]
    pub fn pixel_type(&self) -> PixelType {
        self.pixel_type
    }

    /// The elements that [`Image::view`] looks at.
    #[must_use]
    pub fn pixels(&self) -> Pixels<'_> {
        match self.backing {
            Backing::Borrowed(pixels) => pixels,
            Backing::Slab(at) => self.scratch.slabs[at].pixels(self.pixel_type),
        }
    }

    /// Lends the present elements and the worker's memory for resizing, to write elsewhere.
    pub(crate) fn with_workspace<T>(
        &mut self,
        use_it: impl FnOnce(Pixels<'_>, &mut Workspace) -> T,
    ) -> T {
        let Scratch { slabs, workspace, .. } = &mut *self.scratch;
        let pixels = match self.backing {
            Backing::Borrowed(pixels) => pixels,
            Backing::Slab(at) => slabs[at].pixels(self.pixel_type),
        };
        use_it(pixels, workspace)
    }

    /// The bytes that [`Image::view`] looks at, to be changed where they lie; `None` when they
    /// belong to somebody else.
    pub(crate) fn own_bytes(&mut self) -> Option<&mut [u8]> {
        match self.backing {
            Backing::Borrowed(_) => None,
            Backing::Slab(at) => {
                let slab = &mut self.scratch.slabs[at];
                let bytes = slab.len();
                slab.at_least(bytes).ok()
            }
        }
    }

    /// Makes new pixels from the present ones.
    ///
    /// `view` says where the new ones will lie. `make` gets the present elements with their view,
    /// the new elements' bytes (stale: every one must be written), and the worker's tools. The new
    /// pixels are then the image.
    pub fn replace(
        &mut self,
        view: View,
        pixel_type: PixelType,
        make: impl FnOnce(Pixels<'_>, View, &mut [u8], Tools<'_>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let bytes = view.bounds().1 * pixel_type.size();
        let Scratch { slabs, resizer, workspace } = &mut *self.scratch;
        let (low, high) = slabs.split_at_mut(1);
        let (next, old, new) = match self.backing {
            Backing::Slab(0) => (1, low[0].pixels(self.pixel_type), &mut high[0]),
            Backing::Slab(_) => (0, high[0].pixels(self.pixel_type), &mut low[0]),
            Backing::Borrowed(pixels) => (0, pixels, &mut low[0]),
        };
        make(old, self.view, new.at_least(bytes)?, Tools { resizer, workspace })?;
        self.view = view;
        self.excerpt = None;
        self.pixel_type = pixel_type;
        self.backing = Backing::Slab(next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn see(view: View, elements: &[u8]) -> Vec<Vec<u8>> {
        (0..view.height)
            .map(|y| (0..view.width).map(|x| elements[view.at(y, x, 0)]).collect())
            .collect()
    }

    #[test]
    fn crops_and_flips_move_no_pixel() {
        let elements: Vec<u8> = (0..12).collect();
        let mut view = View::interleaved(3, 4, 1);
        view.crop(1, 1, 2, 3);
        assert_eq!(see(view, &elements), [[5, 6, 7], [9, 10, 11]]);
        view.flip_horizontal();
        assert_eq!(see(view, &elements), [[7, 6, 5], [11, 10, 9]]);
        view.flip_vertical();
        assert_eq!(see(view, &elements), [[11, 10, 9], [7, 6, 5]]);
        assert_eq!(view.bounds(), (5, 12));
        view.crop(0, 2, 2, 1);
        assert_eq!(see(view, &elements), [[9], [5]]);
    }

    #[test]
    fn orientations_as_exif_means_them() {
        // What a viewer shows for the stored image 0 1 2 / 3 4 5.
        let wanted: [&[&[u8]]; 8] = [
            &[&[0, 1, 2], &[3, 4, 5]],
            &[&[2, 1, 0], &[5, 4, 3]],
            &[&[5, 4, 3], &[2, 1, 0]],
            &[&[3, 4, 5], &[0, 1, 2]],
            &[&[0, 3], &[1, 4], &[2, 5]],
            &[&[3, 0], &[4, 1], &[5, 2]],
            &[&[5, 2], &[4, 1], &[3, 0]],
            &[&[2, 5], &[1, 4], &[0, 3]],
        ];
        for (orientation, wanted) in (1..).zip(wanted) {
            let mut view = View::interleaved(2, 3, 1);
            view.orient(orientation);
            assert_eq!(see(view, &[0, 1, 2, 3, 4, 5]), wanted, "orientation {orientation}");
        }
    }

    #[test]
    fn shapes_as_images() {
        let planar = View::planar(5, 6, 3);
        assert_eq!(View::of_shape(&[3, 5, 6], false), Some(planar));
        assert_eq!(View::of_shape(&[3, 5, 6], true), Some(planar));
        assert_eq!(View::of_shape(&[5, 6, 3], false), Some(View::interleaved(5, 6, 3)));
        assert_eq!(View::of_shape(&[4, 6, 3], true), Some(View::interleaved(4, 6, 3)));
        assert_eq!(View::of_shape(&[4, 6, 3], false), Some(View::planar(6, 3, 4)));
        assert_eq!(View::of_shape(&[5, 6], false), Some(View::interleaved(5, 6, 1)));
        assert_eq!(View::of_shape(&[5, 6, 2], true), None);
        assert_eq!(View::of_shape(&[5], true), None);
    }

    #[test]
    fn a_view_beyond_its_elements_is_refused() {
        let mut scratch = Scratch::default();
        let view = View::planar(2, 2, 3);
        assert!(Image::borrowed(&mut scratch, Pixels::U8(&[0; 11]), view).is_err());
        assert!(Image::borrowed(&mut scratch, Pixels::U8(&[0; 12]), view).is_ok());
    }
}
