//! `Pad`, and windows onto an image that reach beyond its edges.

use bytemuck::Pod;
use serde_json::{Map, Value, json};

use super::{ImageShape, Transform, warp};
use crate::error::{Fault, SpecError};
use crate::image::{Image, PixelType, Pixels, View};
use crate::random::Draws;
use crate::spec::Table;

/// Padding beyond this is a mistake.
const MOST_PADDING: u64 = 1 << 16;

/// Left, top, right, bottom; one number is all of them, two are the sides and top and bottom.
pub(super) fn read_padding(table: &mut Table) -> Result<Option<[usize; 4]>, SpecError> {
    let Some(given) = table.wholes("padding")? else { return Ok(None) };
    let side = |i: usize| given[i] as usize;
    let padding = match given.len() {
        _ if given.iter().any(|side| *side > MOST_PADDING) => None,
        1 => Some([side(0); 4]),
        2 => Some([side(0), side(1), side(0), side(1)]),
        4 => Some([side(0), side(1), side(2), side(3)]),
        _ => None,
    };
    padding.map(Some).ok_or_else(|| {
        table.error("padding", "is not allowed").value(json!(given)).allowed(format!(
            "a whole number, [left and right, top and bottom] or [left, top, right, bottom], up to {MOST_PADDING}"
        ))
    })
}

#[derive(Debug)]
pub(super) struct Pad {
    /// Left, top, right, bottom.
    padding: [usize; 4],
    fill: Vec<f64>,
    beyond: Beyond,
}

impl Pad {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        let allowed = "a whole number, or two or four of them";
        let padding = read_padding(table)?.ok_or_else(|| table.missing("padding", allowed))?;
        let fill = warp::read_fill(table)?.unwrap_or_else(|| vec![0.0]);
        let beyond = table.choice("padding_mode", Beyond::NAMES)?.unwrap_or_default();
        if fill.len() > 1 && beyond != Beyond::Constant {
            return Err(table
                .error("fill", format!("has a colour, which \"{}\" does not use", beyond.name()))
                .value(json!(fill))
                .allowed("a number, or padding_mode = \"constant\""));
        }
        Ok(Box::new(Pad { padding, fill, beyond }))
    }
}

impl Transform for Pad {
    fn name(&self) -> &'static str {
        "Pad"
    }

    fn parameters(&self) -> Map<String, Value> {
        let Pad { padding, fill, beyond } = self;
        Map::from_iter([
            ("padding".to_owned(), json!(padding)),
            ("fill".to_owned(), json!(fill)),
            ("padding_mode".to_owned(), json!(beyond.name())),
        ])
    }

    fn shape(&self, input: ImageShape) -> Result<ImageShape, Fault> {
        let [left, top, right, bottom] = self.padding;
        Ok(input.sized((input.height + top + bottom, input.width + left + right)))
    }

    fn makes_pixels(&self, _: ImageShape) -> bool {
        self.padding != [0; 4]
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        self.shape(input).map_or(0, |shape| shape.elements().saturating_mul(pixel.size()))
    }

    fn apply(&self, image: &mut Image<'_>, _: &mut Draws) -> Result<(), Fault> {
        let [left, top, right, bottom] = self.padding;
        let View { height, width, .. } = image.view();
        let size = (height + top + bottom, width + left + right);
        window(image, (-(top as isize), -(left as isize)), size, self.beyond, &self.fill)
    }
}

/// What lies beyond the edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Beyond {
    /// The fill value.
    #[default]
    Constant,
    /// The pixel at the edge.
    Edge,
    /// The image mirrored at the edge's pixel.
    Reflect,
    /// The image mirrored at the edge.
    Symmetric,
}

impl Beyond {
    pub(super) const NAMES: &[(&str, Beyond)] = &[
        ("constant", Beyond::Constant),
        ("edge", Beyond::Edge),
        ("reflect", Beyond::Reflect),
        ("symmetric", Beyond::Symmetric),
    ];

    pub(super) fn name(self) -> &'static str {
        Beyond::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }

    /// The place inside `0..length` that `at` shows; `None` shows the fill value.
    fn place(self, at: isize, length: usize) -> Option<usize> {
        let last = length as isize - 1;
        if (0..=last).contains(&at) {
            return Some(at as usize);
        }
        match self {
            Beyond::Constant => None,
            Beyond::Edge => Some(at.clamp(0, last) as usize),
            Beyond::Reflect if last == 0 => Some(0),
            Beyond::Reflect => {
                let at = at.rem_euclid(2 * last);
                Some(at.min(2 * last - at) as usize)
            }
            Beyond::Symmetric => {
                let at = at.rem_euclid(2 * last + 2);
                Some(at.min(2 * last + 1 - at) as usize)
            }
        }
    }
}

/// Makes the image the window of `height` x `width` pixels whose first is at (`top`, `left`).
pub(super) fn window(
    image: &mut Image<'_>,
    (top, left): (isize, isize),
    (height, width): (usize, usize),
    beyond: Beyond,
    fill: &[f64],
) -> Result<(), Fault> {
    let view = image.view();
    if top >= 0
        && left >= 0
        && top as usize + height <= view.height
        && left as usize + width <= view.width
    {
        image.view_mut().crop(top as usize, left as usize, height, width);
        return Ok(());
    }
    if view.elements() == 0 && beyond != Beyond::Constant {
        return Err(Fault::Shape("an image without pixels cannot be mirrored".into()));
    }
    if fill.len() != 1 && fill.len() != view.channels {
        return Err(Fault::Shape(format!(
            "fill has {} values for {} channels",
            fill.len(),
            view.channels
        )));
    }
    let planar = view.channel != 1 && view.channels > 1;
    let new = if planar {
        View::planar(height, width, view.channels)
    } else {
        View::interleaved(height, width, view.channels)
    };
    let origin = (top, left);
    let pixel = image.pixel_type();
    let fill = |c: usize| fill[c % fill.len()];
    image.replace(new, pixel, |pixels, view, out, _| {
        match (pixels, pixel) {
            (Pixels::U8(from), _) => copy(from, view, new, origin, beyond, |c| fill(c) as u8, out),
            (Pixels::F32(from), PixelType::F32 | PixelType::U8) => {
                copy(
                    from,
                    view,
                    new,
                    origin,
                    beyond,
                    |c| fill(c) as f32,
                    bytemuck::cast_slice_mut(out),
                );
            }
        }
        Ok(())
    })
}

fn copy<T: Pod>(
    from: &[T],
    view: View,
    new: View,
    (top, left): (isize, isize),
    beyond: Beyond,
    fill: impl Fn(usize) -> T,
    out: &mut [T],
) {
    // A line is a row of one plane, or of whole pixels.
    let (planes, channels) = if new.channel == 1 { (1, new.channels) } else { (new.channels, 1) };
    // The columns that lie inside the image.
    let first = (-left).clamp(0, new.width as isize) as usize;
    let end = (view.width as isize - left).clamp(first as isize, new.width as isize) as usize;
    let lines = out.chunks_exact_mut(new.width * channels);
    for (line, to) in lines.enumerate() {
        let (plane, y) = (line / new.height, line % new.height);
        debug_assert!(plane < planes);
        let row = beyond.place(top + y as isize, view.height);
        let pixel = |x: usize, c: usize| match (row, beyond.place(left + x as isize, view.width)) {
            (Some(y), Some(x)) => from[view.at(y, x, plane + c)],
            _ => fill(plane + c),
        };
        let run = view.column == channels as isize && (channels == 1 || view.channel == 1);
        let inside = match row {
            Some(y) if run && first < end => {
                let start = view.at(y, (left + first as isize) as usize, plane);
                to[first * channels..end * channels]
                    .copy_from_slice(&from[start..][..(end - first) * channels]);
                first..end
            }
            _ => 0..0,
        };
        if beyond == Beyond::Constant && (run || row.is_none()) {
            // Nothing but the fill is left.
            let (before, rest) = to.split_at_mut(inside.start * channels);
            let after = &mut rest[(inside.end - inside.start) * channels..];
            for pixel in before.chunks_exact_mut(channels).chain(after.chunks_exact_mut(channels)) {
                pixel.iter_mut().enumerate().for_each(|(c, to)| *to = fill(plane + c));
            }
            continue;
        }
        for x in (0..inside.start).chain(inside.end..new.width) {
            for c in 0..channels {
                to[x * channels + c] = pixel(x, c);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_edges() {
        let show = |beyond: Beyond| {
            (-4..8).map(|at| beyond.place(at, 4).map_or(9, |x| x)).collect::<Vec<_>>()
        };
        assert_eq!(show(Beyond::Constant), [9, 9, 9, 9, 0, 1, 2, 3, 9, 9, 9, 9]);
        assert_eq!(show(Beyond::Edge), [0, 0, 0, 0, 0, 1, 2, 3, 3, 3, 3, 3]);
        assert_eq!(show(Beyond::Reflect), [2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1]);
        assert_eq!(show(Beyond::Symmetric), [3, 2, 1, 0, 0, 1, 2, 3, 3, 2, 1, 0]);
        assert_eq!(Beyond::Reflect.place(-5, 1), Some(0));
        assert_eq!(Beyond::Symmetric.place(-5, 1), Some(0));
    }
}
