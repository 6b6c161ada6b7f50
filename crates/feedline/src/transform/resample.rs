//! New pixels at another size, through any view, without copying the old ones first.

use feedline_resample::{Element, Filter, Planes};

use super::placement::Placement;
use super::{ImageShape, exact};
use crate::error::Fault;
use crate::image::{
    Axis, Image, Layout, PixelType, Pixels, Pointwise, Target, View, Workspace, convert, resize,
};
use crate::sample::DType;

/// How pixels between pixels are made up; names as in torchvision.
///
/// Both nearest modes take the pixel whose centre is nearest, as Pillow does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Interpolation {
    Nearest,
    NearestExact,
    #[default]
    Bilinear,
    Bicubic,
    Lanczos,
}

impl Interpolation {
    pub(super) const NAMES: &[(&str, Interpolation)] = &[
        ("nearest", Interpolation::Nearest),
        ("nearest-exact", Interpolation::NearestExact),
        ("bilinear", Interpolation::Bilinear),
        ("bicubic", Interpolation::Bicubic),
        ("lanczos", Interpolation::Lanczos),
    ];

    pub(super) fn name(self) -> &'static str {
        Interpolation::NAMES.iter().find(|(_, value)| *value == self).map_or("", |(name, _)| name)
    }

    pub(super) fn needs_antialias(self) -> bool {
        self == Interpolation::Lanczos
    }

    /// Pixels that the filter reaches to each side; `None` for nearest.
    pub(super) fn reach(self) -> Option<usize> {
        self.filter().map(|(_, reach)| reach)
    }

    /// The filter that needs more precision than the resizer has.
    fn exact(self) -> Option<exact::Filter> {
        match self {
            Interpolation::Bicubic => Some(exact::Filter::Cubic),
            Interpolation::Lanczos => Some(exact::Filter::Lanczos),
            _ => None,
        }
    }

    /// The filter and the pixels that it reaches to each side; `None` for nearest.
    fn filter(self) -> Option<(Filter, usize)> {
        match self {
            Interpolation::Nearest | Interpolation::NearestExact => None,
            Interpolation::Bilinear => Some((Filter::Bilinear, 1)),
            Interpolation::Bicubic => Some((Filter::Bicubic, 2)),
            Interpolation::Lanczos => Some((Filter::Lanczos, 3)),
        }
    }
}

/// A view with its turns taken off, so that its rows run forwards through memory.
struct Untwisted {
    view: View,
    transposed: bool,
    horizontal: bool,
    vertical: bool,
}

impl Untwisted {
    fn of(mut view: View) -> Self {
        let transposed = view.column.abs() > view.row.abs();
        if transposed {
            view.transpose();
        }
        let horizontal = view.column < 0;
        if horizontal {
            view.flip_horizontal();
        }
        let vertical = view.row < 0;
        if vertical {
            view.flip_vertical();
        }
        Untwisted { view, transposed, horizontal, vertical }
    }

    /// Turns a view of the result as the original was turned.
    fn twist(&self, view: &mut View) {
        if self.horizontal {
            view.flip_horizontal();
        }
        if self.vertical {
            view.flip_vertical();
        }
        if self.transposed {
            view.transpose();
        }
    }
}

/// The two directions of a resize that [`resize`] can do: 8-bit pixels as decoders write them, a
/// smooth filter without lobes.
fn axes(image: &Image<'_>, placement: &Placement) -> Option<[Axis; 2]> {
    let to = placement.resized?;
    let (view, excerpt) = (image.view(), image.excerpt());
    let can = to.is_one_pass()
        && image.pixel_type() == PixelType::U8
        && view.is_interleaved()
        && (view.height, view.width) == (excerpt.part.height, excerpt.part.width);
    if !can {
        return None;
    }
    let reduction = excerpt.reduction;
    let (part, window) = (placement.part, placement.window);
    let axis = |start: usize, length: usize, origin: usize, at_hand: usize| Axis {
        start: start as f64 / reduction as f64,
        length: length as f64 / reduction as f64,
        outputs: 0,
        first: 0,
        count: 0,
        // A window needs less than all of the part: no more than that is at hand.
        limits: (
            (start / reduction).max(origin),
            (start + length).div_ceil(reduction).min(origin + at_hand),
        ),
        origin,
        mirrored: false,
    };
    let rows = axis(part.top, part.height, excerpt.part.top, view.height);
    let columns = axis(part.left, part.width, excerpt.part.left, view.width);
    Some([
        Axis {
            outputs: to.height,
            first: window.top,
            count: window.height,
            mirrored: placement.vertical,
            ..rows
        },
        Axis {
            outputs: to.width,
            first: window.left,
            count: window.width,
            mirrored: placement.horizontal,
            ..columns
        },
    ])
}

/// Resizes straight into a batch, if that can be done in one pass; false if it cannot.
pub(super) fn write(
    image: &mut Image<'_>,
    placement: &Placement,
    map: &Pointwise,
    layout: Layout,
    out: &mut [u8],
) -> Result<bool, Fault> {
    let view = image.view();
    let planar = layout == Layout::Chw || view.channels == 1;
    let Some([rows, columns]) = axes(image, placement).filter(|_| planar) else {
        return Ok(false);
    };
    let target = match map.dtype {
        DType::F32 => match bytemuck::try_cast_slice_mut(out) {
            Ok(out) => Target::Floats { out, scale: map.scale, bias: map.bias },
            Err(_) => return Ok(false),
        },
        DType::U8 if map.is_cast() => Target::Planes(out),
        _ => return Ok(false),
    };
    image.with_workspace(|pixels, workspace| match pixels {
        Pixels::U8(from) => resize(from, view, [&rows, &columns], workspace, target).map(|()| true),
        Pixels::F32(_) => Ok(false),
    })
}

/// Makes `image` what its placement says, which then says nothing more.
pub(super) fn settle(image: &mut Image<'_>, placement: &mut Placement) -> Result<(), Fault> {
    let done = *placement;
    let (excerpt, channels) = (image.excerpt(), image.view().channels);
    let (height, width) = (done.window.height, done.window.width);
    *placement = Placement::of(height, width);
    if done == Placement::of(excerpt.height, excerpt.width) && excerpt.is_whole() {
        return Ok(());
    }
    if let Some([rows, columns]) = axes(image, &done) {
        let new = View::interleaved(height, width, channels);
        return image.replace(new, PixelType::U8, |pixels, view, out, tools| match pixels {
            Pixels::U8(from) => {
                resize(from, view, [&rows, &columns], tools.workspace, Target::Pixels(out))
            }
            Pixels::F32(_) => Err(Fault::Shape("bytes were expected".to_owned())),
        });
    }
    let (part, at_hand) = (done.part, excerpt.part);
    let inside = excerpt.reduction == 1
        && part.top >= at_hand.top
        && part.left >= at_hand.left
        && part.top + part.height <= at_hand.top + at_hand.height
        && part.left + part.width <= at_hand.left + at_hand.width;
    if !inside {
        return Err(Fault::Shape(format!("{part:?} is not in {excerpt:?}")));
    }
    let (top, left) = (part.top - at_hand.top, part.left - at_hand.left);
    image.view_mut().crop(top, left, part.height, part.width);
    if let Some(to) = done.resized {
        resample(image, (to.height, to.width), to.interpolation, to.antialias)?;
        let window = done.window;
        image.view_mut().crop(window.top, window.left, window.height, window.width);
    }
    if done.horizontal {
        image.view_mut().flip_horizontal();
    }
    if done.vertical {
        image.view_mut().flip_vertical();
    }
    image.set_whole();
    Ok(())
}

/// Makes `image` `height` x `width` pixels large.
pub(super) fn resample(
    image: &mut Image<'_>,
    (height, width): (usize, usize),
    interpolation: Interpolation,
    antialias: bool,
) -> Result<(), Fault> {
    let view = image.view();
    if (view.height, view.width) == (height, width) {
        return Ok(());
    }
    if view.elements() == 0 {
        return Err(Fault::Shape(format!(
            "an image of {} x {} pixels cannot be resized",
            view.width, view.height
        )));
    }
    let Some((filter, _)) = interpolation.filter() else {
        return nearest(image, height, width);
    };
    let untwisted = Untwisted::of(view);
    let straight = untwisted.view;
    // 8-bit pixels are rounded after each pass, so that the passes' order shows. Pillow takes the
    // rows first, unless the height shrinks by more than twice what the width does; the resizer,
    // left alone, takes the columns as they lie in memory: one element in five would differ.
    let bytes = image.pixel_type() == PixelType::U8;
    let exact = interpolation.exact().filter(|_| bytes && antialias);
    let shrink = |from: usize, to: usize| from as isize - to as isize;
    let (lower, narrower) = (shrink(view.height, height), shrink(view.width, width));
    let columns_first = lower > 0 && lower > 2 * narrower;
    if lower != 0
        && narrower != 0
        && bytes
        && (exact.is_some() || columns_first == untwisted.transposed)
    {
        let between = if columns_first { (height, view.width) } else { (view.height, width) };
        resample(image, between, interpolation, antialias)?;
        return resample(image, (height, width), interpolation, antialias);
    }
    // A filter is symmetric, so that turning the result equals turning what it is made from.
    let (height, width) = if untwisted.transposed { (width, height) } else { (height, width) };
    let interleaved = straight.channel == 1 && straight.column == straight.channels as isize;
    let planar = straight.column == 1;
    if !interleaved && !planar || interleaved && straight.row % straight.column != 0 {
        compact(image)?;
        return resample(
            image,
            if untwisted.transposed { (width, height) } else { (height, width) },
            interpolation,
            antialias,
        );
    }
    let pixel = image.pixel_type();
    let mut new = if interleaved {
        View::interleaved(height, width, view.channels)
    } else {
        View::planar(height, width, view.channels)
    };
    untwisted.twist(&mut new);
    image.replace(new, pixel, |pixels, _, out, tools| {
        if let (Some(filter), Pixels::U8(from)) = (exact, pixels) {
            if width == straight.width {
                exact::columns(from, straight, !interleaved, height, filter, out);
            } else {
                exact::rows(from, straight, !interleaved, width, filter, out);
            }
            return Ok(());
        }
        let (bytes, element) = match pixels {
            Pixels::U8(from) => (from, Element::U8),
            Pixels::F32(from) => (bytemuck::cast_slice(from), Element::F32),
        };
        let from = Planes {
            bytes,
            element,
            components: if interleaved { straight.channels } else { 1 },
            start: straight.start,
            plane: straight.channel,
            row: straight.row,
            height: straight.height,
            width: straight.width,
        };
        tools
            .resizer
            .resize(from, (height, width), filter, antialias, out)
            .map_err(|error| Fault::Shape(format!("cannot resize: {error}")))
    })
}

/// Copies the pixels into plain interleaved order.
fn compact(image: &mut Image<'_>) -> Result<(), Fault> {
    let (view, pixel) = (image.view(), image.pixel_type());
    let new = View::interleaved(view.height, view.width, view.channels);
    let map = Pointwise::cast(super::linear::element(pixel));
    image.replace(new, pixel, |pixels, view, out, _| convert(pixels, view, &map, Layout::Hwc, out))
}

/// Centres as Pillow computes them, by repeated addition, so that ties fall alike.
fn centres(from: usize, to: usize) -> impl Iterator<Item = usize> + Clone {
    let step = from as f64 / to as f64;
    let mut next = step * 0.5;
    (0..to).map(move |_| {
        let at = next as usize;
        next += step;
        at.min(from - 1)
    })
}

fn nearest(image: &mut Image<'_>, height: usize, width: usize) -> Result<(), Fault> {
    fn pick<T: Copy>(from: &[T], view: View, (height, width): (usize, usize), out: &mut [T]) {
        let mut to = out.iter_mut();
        for y in centres(view.height, height) {
            for x in centres(view.width, width) {
                let mut at = view.at(y, x, 0) as isize;
                for to in to.by_ref().take(view.channels) {
                    *to = from[at as usize];
                    at += view.channel;
                }
            }
        }
    }
    let new = View::interleaved(height, width, image.view().channels);
    image.replace(new, image.pixel_type(), |pixels, view, out, _| {
        match pixels {
            Pixels::U8(from) => pick(from, view, (height, width), out),
            Pixels::F32(from) => pick(from, view, (height, width), bytemuck::cast_slice_mut(out)),
        }
        Ok(())
    })
}

/// Bytes that [`resample`] takes at most: the result, a copy of a view that is neither planar nor
/// interleaved (never the case for decoded images), the intermediate pass, one component of all
/// pixels, and the coefficients.
pub(super) fn scratch(
    input: ImageShape,
    (height, width): (usize, usize),
    pixel: PixelType,
    interpolation: Interpolation,
) -> usize {
    let element = input.channels.saturating_mul(pixel.size());
    let result = height.saturating_mul(width).saturating_mul(element);
    let Some((_, reach)) = interpolation.filter() else { return result };
    // Either pass may come first; the buffer doubles when it grows.
    let between = (height.saturating_mul(input.width)).max(input.height.saturating_mul(width));
    let taps = 2 * reach * (input.height + input.width) + (2 * reach + 3) * (height + width);
    let component = if matches!(input.channels, 2 | 4) {
        (input.height.saturating_mul(input.width)).saturating_add(height.saturating_mul(width))
    } else {
        0
    };
    result
        .saturating_add(component)
        .saturating_add(between.saturating_mul(2 * element))
        .saturating_add(taps.saturating_mul(16))
        .saturating_add(Workspace::bound((input.height, input.width), (height, width)))
        .saturating_add(4096)
}
