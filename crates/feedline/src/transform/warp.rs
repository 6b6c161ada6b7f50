//! An image seen through an affine map, as torchvision's `grid_sample` sees it.
//!
//! Coordinates are computed in torch's order in single precision, so "nearest" picks the same
//! pixels and "bilinear" has the same weights.

use super::lanes::lanes;
use super::pad::{self, Beyond};
use crate::error::{Fault, SpecError};
use crate::image::{Image, Pixels, View};
use crate::spec::Table;

/// How a pixel is made of those around its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sampling {
    /// The one whose centre is nearest.
    #[default]
    Nearest,
    /// The four around it.
    Bilinear,
}

impl Sampling {
    const NAMES: &[(&str, Sampling)] =
        &[("nearest", Sampling::Nearest), ("bilinear", Sampling::Bilinear)];

    pub(super) fn read(table: &mut Table) -> Result<Sampling, SpecError> {
        Ok(table.choice("interpolation", Sampling::NAMES)?.unwrap_or_default())
    }

    pub(super) fn name(self) -> &'static str {
        if self == Sampling::Nearest { "nearest" } else { "bilinear" }
    }
}

/// A number for all channels, or one for each.
pub(super) fn read_fill(table: &mut Table) -> Result<Option<Vec<f64>>, SpecError> {
    let fill = table.numbers("fill")?;
    match &fill {
        Some(values) if values.is_empty() || values.len() > 4 => Err(table
            .error("fill", "is not allowed")
            .value(serde_json::json!(values))
            .allowed("a number, or one per channel")),
        _ => Ok(fill),
    }
}

/// An angle or a range of them, in degrees: a number is the range of both signs.
pub(super) fn read_degrees(
    table: &mut Table,
    name: &'static str,
    counts: &[usize],
) -> Result<Option<Vec<f64>>, SpecError> {
    let Some(given) = table.numbers(name)? else { return Ok(None) };
    let range = match given.as_slice() {
        [single] if *single >= 0.0 => vec![-single, *single],
        several if counts.contains(&several.len()) => several.to_vec(),
        _ => Vec::new(),
    };
    if range.is_empty() || range.chunks(2).any(|pair| pair[0] > pair[1]) {
        let shown = match given.as_slice() {
            [single] => serde_json::json!(single),
            several => serde_json::json!(several),
        };
        return Err(table.error(name, "is not allowed").value(shown).allowed(if counts.contains(&4) {
            "a number of degrees, at least 0, or [lowest, highest], or two such pairs for x and y"
        } else {
            "a number of degrees, at least 0, or [lowest, highest]"
        }));
    }
    Ok(Some(range))
}

/// x and y of the point that stays where it is.
pub(super) fn read_center(table: &mut Table) -> Result<Option<[f64; 2]>, SpecError> {
    match table.numbers("center")?.as_deref() {
        None => Ok(None),
        Some(&[x, y]) => Ok(Some([x, y])),
        Some(other) => Err(table
            .error("center", "is not allowed")
            .value(serde_json::json!(other))
            .allowed("[x, y] in pixels")),
    }
}

/// An affine map of the plane: what a pixel of the result shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Affine {
    /// In degrees.
    pub(super) angle: f64,
    /// In pixels, x and y.
    pub(super) translate: [f64; 2],
    pub(super) scale: f64,
    /// In degrees, along x and y.
    pub(super) shear: [f64; 2],
}

impl Affine {
    /// The inverse map around `center`, which is given from the image's middle.
    pub(super) fn inverse(&self, center: [f64; 2]) -> [f64; 6] {
        let turn = self.angle.to_radians();
        let [shear_x, shear_y] = self.shear.map(f64::to_radians);
        let (a, c) =
            ((turn - shear_y).cos() / shear_y.cos(), (turn - shear_y).sin() / shear_y.cos());
        let b = -(a * shear_x.tan() + turn.sin());
        let d = turn.cos() - c * shear_x.tan();
        let s = self.scale;
        let mut map = [d / s, -b / s, 0.0, -c / s, a / s, 0.0];
        let moved = [center[0] + self.translate[0], center[1] + self.translate[1]];
        map[2] += center[0] - map[0] * moved[0] - map[1] * moved[1];
        map[5] += center[1] - map[3] * moved[0] - map[4] * moved[1];
        map
    }
}

/// A point that is given in pixels from the corner, seen from the image's middle.
pub(super) fn from_middle(center: Option<[f64; 2]>, view: View) -> [f64; 2] {
    center.map_or([0.0; 2], |[x, y]| [x - view.width as f64 * 0.5, y - view.height as f64 * 0.5])
}

/// What lies beyond the image: nothing at all, or a colour for each channel.
fn colors(fill: Option<&[f64]>, channels: usize) -> Result<Option<[f32; 4]>, Fault> {
    let Some(fill) = fill else { return Ok(None) };
    if fill.len() != 1 && fill.len() != channels {
        return Err(Fault::Shape(format!(
            "fill has {} values for {channels} channels",
            fill.len()
        )));
    }
    Ok(Some([0, 1, 2, 3].map(|c| fill[c % fill.len()] as f32)))
}

/// Pixels whose places are computed together.
const RUN: usize = 64;

/// Places in the source for some pixels of a line of the result.
struct Places {
    x: [f32; RUN],
    y: [f32; RUN],
}

/// The map with everything that does not change along an image.
struct Grid {
    /// For x and y, divided by half of the source's size.
    map: [[f32; 3]; 2],
    half: [f32; 2],
    /// The result's first column and line, from its middle.
    origin: [f32; 2],
}

impl Grid {
    fn new(map: [f64; 6], source: View, (height, width): (usize, usize)) -> Grid {
        let half = [source.width as f32 * 0.5, source.height as f32 * 0.5];
        let row = |at: usize, half: f32| [0, 1, 2].map(|i| map[at + i] as f32 / half);
        Grid {
            map: [row(0, half[0]), row(3, half[1])],
            half,
            origin: [(1.0 - width as f32) * 0.5, (1.0 - height as f32) * 0.5],
        }
    }

    #[inline(always)]
    fn places(&self, x: usize, y: usize, out: &mut Places) {
        let line = self.origin[1] + y as f32;
        let first = self.origin[0] + x as f32;
        for i in 0..RUN {
            let column = first + i as i32 as f32;
            let at = |axis: usize| {
                let map = self.map[axis];
                (((column * map[0] + line * map[1]) + map[2]) + 1.0) * self.half[axis] - 0.5
            };
            (out.x[i], out.y[i]) = (at(0), at(1));
        }
    }
}

/// Rounds to the nearest whole number, halves to the even one; below 2^22.
#[inline(always)]
fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// The result's bytes or floats.
trait Texel: bytemuck::Pod {
    const WHOLE: bool;
    fn wide(self) -> f32;
    fn narrow(x: f32) -> Self;
}

impl Texel for u8 {
    const WHOLE: bool = true;
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from(self)
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        (x.clamp(0.0, 255.0) + 8_388_608.0).to_bits() as u8
    }
}

impl Texel for f32 {
    const WHOLE: bool = false;
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
}

/// What four pixels around a place make of one, some of which may lie beyond the image.
#[inline(always)]
fn blend_corners<T: Texel>(
    from: &[T],
    view: View,
    (x, y): (f32, f32),
    fill: Option<[f32; 4]>,
    pixel: &mut [T],
) {
    let (wide, high) = (view.width as f32, view.height as f32);
    let settle = |sum: f32| T::narrow(if T::WHOLE { nearest(sum) } else { sum });
    // Also true for what is no number.
    if !(x > -1.0 && x < wide && y > -1.0 && y < high) {
        let beyond = fill.unwrap_or_default();
        pixel.iter_mut().zip(beyond).for_each(|(to, x)| *to = settle(x));
        return;
    }
    let (left, top) = (x.floor(), y.floor());
    // As torch has it: the distance to the far corner is the near one's weight.
    let (east, south) = (x - left, y - top);
    let (west, north) = ((left + 1.0) - x, (top + 1.0) - y);
    let weights = [west * north, east * north, west * south, east * south];
    let (mut sums, mut mask) = ([0.0f32; 4], 0.0f32);
    for (corner, weight) in weights.into_iter().enumerate() {
        let (x, y) = (left as i32 + (corner & 1) as i32, top as i32 + (corner >> 1) as i32);
        if x < 0 || y < 0 || x as usize >= view.width || y as usize >= view.height {
            continue;
        }
        mask += weight;
        for (c, sum) in sums.iter_mut().enumerate().take(view.channels) {
            *sum = from[view.at(y as usize, x as usize, c)].wide().mul_add(weight, *sum);
        }
    }
    for (c, to) in pixel.iter_mut().enumerate() {
        // What is beyond the image fades the sum once by itself and once by the mask.
        *to = settle(match &fill {
            Some(fill) => (sums[c] - fill[c]) * mask + fill[c],
            None => sums[c],
        });
    }
}

/// Three bytes and what follows them, if anything does.
#[inline(always)]
fn word(from: &[u8], at: usize) -> u32 {
    match from.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        Some(bytes) => u32::from_le_bytes(*bytes),
        None => from.get(at..at + 3).map_or(0, |x| u32::from_le_bytes([x[0], x[1], x[2], 0])),
    }
}

lanes! {
    fn sample_nearest[T: Texel](from: &[T], view: View, grid: &Grid, fill: [T; 4], out: &mut [T], size: (usize, usize)) {
        let (wide, high) = (view.width as f32, view.height as f32);
        let (start, row, column) = (view.start as i32, view.row as i32, view.column as i32);
        let mut places = Places { x: [0.0; RUN], y: [0.0; RUN] };
        let mut starts = [0i32; RUN];
        let (channels, width) = (view.channels, size.1);
        for y in 0..size.0 {
            for x in (0..width).step_by(RUN) {
                grid.places(x, y, &mut places);
                for i in 0..RUN {
                    let (px, py) = (nearest(places.x[i]), nearest(places.y[i]));
                    let inside = px >= 0.0 && px < wide && py >= 0.0 && py < high;
                    // A place beyond the image may be too far for a number of elements.
                    let (px, py) = if inside { (px, py) } else { (0.0, 0.0) };
                    let at = start + px as i32 * column + py as i32 * row;
                    starts[i] = if inside { at } else { -1 };
                }
                let count = RUN.min(width - x);
                let line = &mut out[(y * width + x) * channels..][..count * channels];
                if channels == 3 && view.channel == 1 {
                    let (pixels, _) = line.as_chunks_mut::<3>();
                    for (pixel, start) in pixels.iter_mut().zip(&starts) {
                        let found = from.get(*start as usize..).and_then(|x| x.first_chunk::<3>());
                        *pixel = found.copied().unwrap_or([fill[0], fill[1], fill[2]]);
                    }
                    continue;
                }
                for (pixel, start) in line.chunks_exact_mut(channels).zip(&starts) {
                    for (c, to) in pixel.iter_mut().enumerate() {
                        *to = if *start < 0 {
                            fill[c & 3]
                        } else {
                            from[(*start as isize + c as isize * view.channel) as usize]
                        };
                    }
                }
            }
        }
    }

    fn sample_bilinear[T: Texel](from: &[T], view: View, grid: &Grid, fill: Option<[f32; 4]>, out: &mut [T], size: (usize, usize)) {
        let mut places = Places { x: [0.0; RUN], y: [0.0; RUN] };
        let (channels, width) = (view.channels, size.1);
        for y in 0..size.0 {
            for x in (0..width).step_by(RUN) {
                grid.places(x, y, &mut places);
                let count = RUN.min(width - x);
                let line = &mut out[(y * width + x) * channels..][..count * channels];
                for (i, pixel) in line.chunks_exact_mut(channels).enumerate() {
                    blend_corners(from, view, (places.x[i], places.y[i]), fill, pixel);
                }
            }
        }
    }

    /// The same for bytes in pixels of three: corners are fetched one by one, as words, and
    /// blended many at once. Pixels at the image's edge are done by themselves.
    fn sample_bilinear_rgb(from: &[u8], view: View, grid: &Grid, fill: Option<[f32; 4]>, out: &mut [u8], size: (usize, usize)) {
        let (wide, high) = (view.width as f32, view.height as f32);
        let (start, row, column) = (view.start as i32, view.row as i32, view.column as i32);
        let mut places = Places { x: [0.0; RUN], y: [0.0; RUN] };
        let (mut starts, mut inside) = ([0i32; RUN], [false; RUN]);
        let (mut weights, mut words) = ([[0.0f32; RUN]; 4], [[0u32; RUN]; 4]);
        let mut done = [[0u8; RUN]; 3];
        let width = size.1;
        for y in 0..size.0 {
            for x in (0..width).step_by(RUN) {
                grid.places(x, y, &mut places);
                for i in 0..RUN {
                    let (px, py) = (places.x[i], places.y[i]);
                    let whole = px >= 0.0 && px < wide - 1.0 && py >= 0.0 && py < high - 1.0;
                    let (px, py) = if whole { (px, py) } else { (0.0, 0.0) };
                    let (left, top) = (px.floor(), py.floor());
                    let (east, south) = (px - left, py - top);
                    let (west, north) = ((left + 1.0) - px, (top + 1.0) - py);
                    weights[0][i] = west * north;
                    weights[1][i] = east * north;
                    weights[2][i] = west * south;
                    weights[3][i] = east * south;
                    starts[i] = start + left as i32 * column + top as i32 * row;
                    inside[i] = whole;
                }
                for i in 0..RUN {
                    // Beyond the image the first pixel stands in, and is not used.
                    words[0][i] = word(from, starts[i] as usize);
                    words[1][i] = word(from, (starts[i] + column) as usize);
                    words[2][i] = word(from, (starts[i] + row) as usize);
                    words[3][i] = word(from, (starts[i] + row + column) as usize);
                }
                for (c, done) in done.iter_mut().enumerate() {
                    for i in 0..RUN {
                        let mut sum = 0.0f32;
                        for k in 0..4 {
                            let level = (words[k][i] >> (8 * c) & 0xff) as i32 as f32;
                            sum = level.mul_add(weights[k][i], sum);
                        }
                        done[i] = u8::narrow(sum);
                    }
                }
                let count = RUN.min(width - x);
                let line = &mut out[(y * width + x) * 3..][..count * 3];
                let (pixels, _) = line.as_chunks_mut::<3>();
                for (i, pixel) in pixels.iter_mut().enumerate() {
                    if inside[i] {
                        *pixel = [done[0][i], done[1][i], done[2][i]];
                    } else {
                        blend_corners(from, view, (places.x[i], places.y[i]), fill, pixel);
                    }
                }
            }
        }
    }
}

/// Makes the image what `map` (from places of the result to places of the image, both from their
/// middles) shows of it, `size` (height, width) large.
pub(super) fn warp(
    image: &mut Image<'_>,
    map: [f64; 6],
    size: (usize, usize),
    sampling: Sampling,
    fill: Option<&[f64]>,
) -> Result<(), Fault> {
    let view = image.view();
    let fill = colors(fill, view.channels)?;
    if view.elements() == 0 {
        return Err(Fault::Shape("an image without pixels cannot be turned".into()));
    }
    // Places are counted in 32 bits and, as in torch, in single precision.
    if view.bounds().1 > i32::MAX as usize || view.height.max(view.width) > 1 << 20 {
        return Err(Fault::TooLarge(format!(
            "{} x {} pixels are too many to turn",
            view.height, view.width
        )));
    }
    let [a, b, x, c, d, y] = map;
    let moved = [a, b, c, d] == [1.0, 0.0, 0.0, 1.0] && x.fract() == 0.0 && y.fract() == 0.0;
    if moved && size == (view.height, view.width) && x.abs() < 1e9 && y.abs() < 1e9 {
        let beyond = fill.unwrap_or_default().map(|x| f64::from(x).round_ties_even());
        let beyond = &beyond[..view.channels];
        return pad::window(image, (y as isize, x as isize), size, Beyond::Constant, beyond);
    }
    let new = View::interleaved(size.0, size.1, view.channels);
    let grid = Grid::new(map, view, size);
    let pixel = image.pixel_type();
    image.replace(new, pixel, |pixels, view, out, _| {
        match (pixels, sampling) {
            (Pixels::U8(from), Sampling::Nearest) => {
                let fill = fill.unwrap_or_default().map(|x| u8::narrow(nearest(x)));
                sample_nearest(from, view, &grid, fill, out, size);
            }
            (Pixels::U8(from), Sampling::Bilinear) => {
                if view.channels == 3 && view.channel == 1 && view.width > 1 && view.height > 1 {
                    sample_bilinear_rgb(from, view, &grid, fill, out, size);
                } else {
                    sample_bilinear(from, view, &grid, fill, out, size);
                }
            }
            (Pixels::F32(from), sampling) => {
                let out = bytemuck::try_cast_slice_mut(out)
                    .map_err(|error| Fault::Shape(format!("elements cannot lie there: {error}")))?;
                if sampling == Sampling::Nearest {
                    sample_nearest(from, view, &grid, fill.unwrap_or_default(), out, size);
                } else {
                    sample_bilinear(from, view, &grid, fill, out, size);
                }
            }
        }
        Ok(())
    })
}
