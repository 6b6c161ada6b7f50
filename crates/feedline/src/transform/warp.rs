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
        let (a, c) = ((turn - shear_y).cos() / shear_y.cos(), (turn - shear_y).sin() / shear_y.cos());
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
            let column = first + i as f32;
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
    fn wide(self) -> f32;
    fn narrow(x: f32) -> Self;
}

impl Texel for u8 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from(self)
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        (x.max(0.0).min(255.0) + 8_388_608.0).to_bits() as u8
    }
}

impl Texel for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
}

lanes! {
    fn sample_nearest[T: Texel](from: &[T], view: View, grid: &Grid, fill: [T; 4], out: &mut [T], size: (usize, usize)) {
        let (wide, high) = (view.width as f32, view.height as f32);
        let mut places = Places { x: [0.0; RUN], y: [0.0; RUN] };
        let mut starts = [0isize; RUN];
        let (channels, width) = (view.channels, size.1);
        for y in 0..size.0 {
            for x in (0..width).step_by(RUN) {
                grid.places(x, y, &mut places);
                for i in 0..RUN {
                    let (px, py) = (nearest(places.x[i]), nearest(places.y[i]));
                    let inside = px >= 0.0 && px < wide && py >= 0.0 && py < high;
                    // A place beyond the image may be too far for a number of elements.
                    let (px, py) = if inside { (px, py) } else { (0.0, 0.0) };
                    let at = view.start as isize
                        + px as i32 as isize * view.column
                        + py as i32 as isize * view.row;
                    starts[i] = if inside { at } else { -1 };
                }
                let count = RUN.min(width - x);
                let line = &mut out[(y * width + x) * channels..][..count * channels];
                if channels == 3 && view.channel == 1 {
                    let (pixels, _) = line.as_chunks_mut::<3>();
                    for (pixel, start) in pixels.iter_mut().zip(&starts) {
                        *pixel = match from.get(*start as usize..).and_then(|x| x.first_chunk::<3>()) {
                            Some(found) => *found,
                            None => [fill[0], fill[1], fill[2]],
                        };
                    }
                } else {
                    for (pixel, start) in line.chunks_exact_mut(channels).zip(&starts) {
                        for (c, to) in pixel.iter_mut().enumerate() {
                            *to = if *start < 0 {
                                fill[c & 3]
                            } else {
                                from[(*start + c as isize * view.channel) as usize]
                            };
                        }
                    }
                }
            }
        }
    }

    fn sample_bilinear[T: Texel](from: &[T], view: View, grid: &Grid, fill: Option<[f32; 4]>, whole: bool, out: &mut [T], size: (usize, usize)) {
        let (wide, high) = (view.width as f32, view.height as f32);
        let mut places = Places { x: [0.0; RUN], y: [0.0; RUN] };
        let (channels, width) = (view.channels, size.1);
        let empty = fill.unwrap_or([0.0; 4]).map(|x| T::narrow(if whole { nearest(x) } else { x }));
        let pixels_of_three = channels == 3 && view.channel == 1;
        for y in 0..size.0 {
            for x in (0..width).step_by(RUN) {
                grid.places(x, y, &mut places);
                let count = RUN.min(width - x);
                let line = &mut out[(y * width + x) * channels..][..count * channels];
                for (i, pixel) in line.chunks_exact_mut(channels).enumerate() {
                    let (px, py) = (places.x[i], places.y[i]);
                    // Also false for what is no number.
                    let touches = px > -1.0 && px < wide && py > -1.0 && py < high;
                    if !touches {
                        pixel.iter_mut().zip(&empty).for_each(|(to, x)| *to = *x);
                        continue;
                    }
                    // Truncation after a shift is a floor for all that touches.
                    let (left, top) = ((px + 1.0) as i32 - 1, (py + 1.0) as i32 - 1);
                    let (fx, fy) = (left as f32, top as f32);
                    // As torch has it: the distance to the far corner is the near one's weight.
                    let (east, south) = (px - fx, py - fy);
                    let (west, north) = ((fx + 1.0) - px, (fy + 1.0) - py);
                    let weights = [west * north, east * north, west * south, east * south];
                    let inside = left >= 0 && top >= 0 && fx < wide - 1.0 && fy < high - 1.0;
                    let start = view.start as isize + left as isize * view.column + top as isize * view.row;
                    if inside && pixels_of_three {
                        let corners = [
                            start,
                            start + view.column,
                            start + view.row,
                            start + view.row + view.column,
                        ];
                        let mut sums = [0.0f32; 3];
                        for (corner, weight) in corners.into_iter().zip(weights) {
                            let Some(found) = from.get(corner as usize..).and_then(|x| x.first_chunk::<3>()) else { continue };
                            for c in 0..3 {
                                sums[c] = found[c].wide().mul_add(weight, sums[c]);
                            }
                        }
                        for (to, sum) in pixel.iter_mut().zip(sums) {
                            *to = T::narrow(if whole { nearest(sum) } else { sum });
                        }
                        continue;
                    }
                    let mut sums = [0.0f32; 4];
                    let mut mask = 0.0f32;
                    for (corner, weight) in weights.into_iter().enumerate() {
                        let (cx, cy) = (left + (corner & 1) as i32, top + (corner >> 1) as i32);
                        if cx < 0 || cy < 0 || cx as usize >= view.width || cy as usize >= view.height {
                            continue;
                        }
                        mask += weight;
                        for (c, sum) in sums.iter_mut().enumerate().take(channels) {
                            *sum = from[view.at(cy as usize, cx as usize, c)].wide().mul_add(weight, *sum);
                        }
                    }
                    for (c, to) in pixel.iter_mut().enumerate() {
                        // What is beyond the image fades the sum once by itself and once by the mask.
                        let sum = match &fill {
                            Some(fill) => (sums[c] - fill[c]) * mask + fill[c],
                            None => sums[c],
                        };
                        *to = T::narrow(if whole { nearest(sum) } else { sum });
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
                sample_bilinear(from, view, &grid, fill, true, out, size);
            }
            (Pixels::F32(from), sampling) => {
                let out = bytemuck::try_cast_slice_mut(out)
                    .map_err(|error| Fault::Shape(format!("elements cannot lie there: {error}")))?;
                if sampling == Sampling::Nearest {
                    sample_nearest(from, view, &grid, fill.unwrap_or_default(), out, size);
                } else {
                    sample_bilinear(from, view, &grid, fill, false, out, size);
                }
            }
        }
        Ok(())
    })
}
