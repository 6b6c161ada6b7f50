//! Images line by line, for ops that do not care which way round the image lies.
//!
//! A flip before such an op stays what it is, a view: the op works on the lines as they lie in
//! memory, left to right and top to bottom, and the flip is laid over its result.

use bytemuck::Pod;

use crate::error::Fault;
use crate::image::{Image, Layout, PixelType, Pixels, Pointwise, View, convert};
use crate::sample::DType;

/// How an image lies, compared with its lines in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    horizontal: bool,
    vertical: bool,
    transposed: bool,
}

impl Turn {
    /// The same pixels with all strides forward, and how the image is turned against them.
    fn undo(mut view: View) -> (View, Turn) {
        let (vertical, horizontal) = (view.row < 0, view.column < 0);
        if vertical {
            view.flip_vertical();
        }
        if horizontal {
            view.flip_horizontal();
        }
        let transposed = view.column > view.row;
        if transposed {
            view.transpose();
        }
        (view, Turn { horizontal, vertical, transposed })
    }

    fn redo(self, view: &mut View) {
        if self.transposed {
            view.transpose();
        }
        if self.horizontal {
            view.flip_horizontal();
        }
        if self.vertical {
            view.flip_vertical();
        }
    }
}

/// Where the lines of an image lie: rows of whole pixels, or of one channel each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lines {
    view: View,
    /// True when a line has one channel.
    pub(super) planar: bool,
    /// True when what is a column of the image is a line here.
    pub(super) transposed: bool,
}

impl Lines {
    fn of(view: View) -> Option<(Lines, Turn)> {
        let (view, turn) = Turn::undo(view);
        let planar = view.channels == 1 || view.channel != 1;
        let step = if planar { 1 } else { view.channels as isize };
        // Columns next to each other, in every image that decoders and arrays give.
        let dense = view.column == step || view.width <= 1;
        // One channel seen several times must not be changed several times.
        let dense = dense && (view.channels == 1 || view.channel != 0);
        dense.then_some((Lines { view, planar, transposed: turn.transposed }, turn))
    }

    /// The lines of a new image of the same size and kind, its pixels without gaps from `start`.
    fn new_like(self, start: usize, channels: usize) -> Lines {
        let View { height, width, .. } = self.view;
        let planar = self.planar || channels == 1;
        let mut view = if planar {
            View::planar(height, width, channels)
        } else {
            View::interleaved(height, width, channels)
        };
        view.start = start;
        Lines { view, planar, ..self }
    }

    /// Planes of lines: the channels, or 1 for whole pixels.
    pub(super) fn planes(self) -> usize {
        if self.planar { self.view.channels } else { 1 }
    }

    /// Lines of a plane.
    pub(super) fn height(self) -> usize {
        self.view.height
    }

    /// Pixels of a line.
    pub(super) fn width(self) -> usize {
        self.view.width
    }

    /// Channels of the image.
    pub(super) fn channels(self) -> usize {
        self.view.channels
    }

    /// Elements from a pixel of a line to the next.
    pub(super) fn step(self) -> usize {
        if self.planar { 1 } else { self.view.channels }
    }

    /// Elements of a line.
    pub(super) fn length(self) -> usize {
        self.view.width * self.step()
    }

    /// Where a line begins and ends.
    pub(super) fn range(self, plane: usize, y: usize) -> std::ops::Range<usize> {
        let start = self.view.at(y, 0, plane);
        start..start + self.length()
    }
}

/// Makes new pixels from the present ones, line by line.
///
/// `make` gets the present elements with their lines, and the new elements with theirs. In front
/// of the new ones lie `room` elements for the op's own use. The result has so many `channels`
/// and is turned as the image is.
pub(super) fn redraw<T: Pod>(
    image: &mut Image<'_>,
    room: usize,
    channels: usize,
    pick: impl for<'p> Fn(Pixels<'p>) -> Option<&'p [T]>,
    make: impl FnOnce(&[T], Lines, &mut [T], Lines),
) -> Result<(), Fault> {
    let (lines, turn) = lines_of(image)?;
    let (pixel, new) = (image.pixel_type(), lines.new_like(room, channels));
    image.replace(new.view, pixel, |pixels, _, out, _| {
        let from = pick(pixels).ok_or_else(|| Fault::Shape("has other elements".to_owned()))?;
        let out = bytemuck::try_cast_slice_mut(out)
            .map_err(|error| Fault::Shape(format!("elements cannot lie there: {error}")))?;
        make(from, lines, out, new);
        Ok(())
    })?;
    turn.redo(image.view_mut());
    Ok(())
}

/// Changes pixels where they lie if they are the worker's own, else in a copy.
pub(super) fn edit(
    image: &mut Image<'_>,
    change: impl FnOnce(&mut [u8], PixelType, View),
) -> Result<(), Fault> {
    lines_of(image)?;
    if image.own_bytes().is_none() {
        let channels = image.view().channels;
        match image.pixel_type() {
            PixelType::U8 => redraw(image, 0, channels, bytes, copy)?,
            PixelType::F32 => redraw(image, 0, channels, floats, copy)?,
        }
    }
    let (view, pixel) = (image.view(), image.pixel_type());
    if let Some(own) = image.own_bytes() {
        change(own, pixel, view);
    }
    Ok(())
}

/// The lines of an image. One whose pixels lie in some other way is copied first.
pub(super) fn lines(image: &mut Image<'_>) -> Result<Lines, Fault> {
    lines_of(image).map(|(lines, _)| lines)
}

fn lines_of(image: &mut Image<'_>) -> Result<(Lines, Turn), Fault> {
    if let Some(found) = Lines::of(image.view()) {
        return Ok(found);
    }
    let view = image.view();
    let new = View::interleaved(view.height, view.width, view.channels);
    let pixel = image.pixel_type();
    let dtype = if pixel == PixelType::U8 { DType::U8 } else { DType::F32 };
    image.replace(new, pixel, |pixels, view, out, _| {
        convert(pixels, view, &Pointwise::cast(dtype), Layout::Hwc, out)
    })?;
    Lines::of(new).ok_or_else(|| Fault::Shape("has no lines".to_owned()))
}

fn copy<T: Pod>(from: &[T], lines: Lines, out: &mut [T], new: Lines) {
    for plane in 0..lines.planes() {
        for y in 0..lines.height() {
            out[new.range(plane, y)].copy_from_slice(&from[lines.range(plane, y)]);
        }
    }
}

/// The elements if they are bytes.
pub(super) fn bytes(pixels: Pixels<'_>) -> Option<&[u8]> {
    match pixels {
        Pixels::U8(elements) => Some(elements),
        Pixels::F32(_) => None,
    }
}

/// The elements if they are floats.
pub(super) fn floats(pixels: Pixels<'_>) -> Option<&[f32]> {
    match pixels {
        Pixels::F32(elements) => Some(elements),
        Pixels::U8(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_undone_and_redone() {
        for turn in 0..8 {
            let mut view = View::interleaved(3, 5, 3);
            if turn & 1 == 1 {
                view.flip_horizontal();
            }
            if turn & 2 == 2 {
                view.transpose();
            }
            if turn & 4 == 4 {
                view.flip_vertical();
            }
            let (straight, turned) = Turn::undo(view);
            assert_eq!(straight, View::interleaved(3, 5, 3), "{turn}");
            let mut again = straight;
            turned.redo(&mut again);
            assert_eq!(again, view, "{turn}");
        }
    }
}
