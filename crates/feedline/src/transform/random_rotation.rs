//! `RandomRotation`: turned by a random angle.

use serde_json::{Map, Value, json};

use super::warp::{self, Affine, Sampling};
use super::{ImageShape, Transform};
use crate::error::{Fault, SpecError};
use crate::image::{Image, PixelType};
use crate::random::Draws;
use crate::spec::Table;

#[derive(Debug)]
pub(super) struct RandomRotation {
    degrees: [f64; 2],
    sampling: Sampling,
    expand: bool,
    center: Option<[f64; 2]>,
    fill: Vec<f64>,
}

impl RandomRotation {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        let allowed = "a number of degrees, at least 0, or [lowest, highest]";
        let degrees = warp::read_degrees(table, "degrees", &[2])?
            .ok_or_else(|| table.missing("degrees", allowed))?;
        let sampling = Sampling::read(table)?;
        let expand = table.boolean("expand")?.unwrap_or(false);
        let center = warp::read_center(table)?;
        let fill = warp::read_fill(table)?.unwrap_or_else(|| vec![0.0]);
        let degrees = [degrees[0], degrees[1]];
        Ok(Box::new(RandomRotation { degrees, sampling, expand, center, fill }))
    }

    /// The size at an angle: torchvision's arithmetic, in single precision as there.
    fn size(&self, input: ImageShape, angle: f64) -> (usize, usize) {
        let ImageShape { height, width, .. } = input;
        match quarter(angle).filter(|_| self.center.is_none()) {
            _ if !self.expand => (height, width),
            Some(0 | 2) => (height, width),
            Some(_) => (width, height),
            None => {
                let center = self
                    .center
                    .map_or([0.0; 2], |[x, y]| [x - width as f64 * 0.5, y - height as f64 * 0.5]);
                let map = rotation(angle).inverse(center).map(|x| x as f32);
                let half = [width as f32 * 0.5, height as f32 * 0.5];
                let side = |row: &[f32], half_side: f32| {
                    let corners = [(-1.0, -1.0), (-1.0, 1.0), (1.0, 1.0), (1.0, -1.0)]
                        .map(|(x, y)| (x * half[0] * row[0] + y * half[1] * row[1]) + row[2]);
                    let low = corners.into_iter().fold(f32::INFINITY, f32::min) + half_side;
                    let high = corners.into_iter().fold(f32::NEG_INFINITY, f32::max) + half_side;
                    // Cut to four digits, so that noise does not make a pixel.
                    let cut = |x: f32| (x * (1.0 / 1e-4) as f32).trunc() * 1e-4f32;
                    (cut(high).ceil() - cut(low).floor()) as usize
                };
                (side(&map[3..], half[1]), side(&map[..3], half[0]))
            }
        }
    }
}

/// torchvision turns the other way than its affine map does.
fn rotation(angle: f64) -> Affine {
    Affine { angle: -angle, translate: [0.0; 2], scale: 1.0, shear: [0.0; 2] }
}

/// How many quarter turns an angle is, if it is some.
fn quarter(angle: f64) -> Option<u32> {
    let angle = angle.rem_euclid(360.0);
    [0.0, 90.0, 180.0, 270.0].iter().position(|x| *x == angle).map(|n| n as u32)
}

/// Turns the image by `angle` degrees against the clock; quarter turns only change the view.
pub(super) fn rotate(
    image: &mut Image<'_>,
    angle: f64,
    size: (usize, usize),
    center: Option<[f64; 2]>,
    sampling: Sampling,
    fill: Option<&[f64]>,
) -> Result<(), Fault> {
    let view = image.view();
    let same = size == (view.height, view.width);
    let turned = size == (view.width, view.height);
    match quarter(angle).filter(|_| center.is_none()) {
        Some(0) if same => return Ok(()),
        Some(2) if same => {
            image.view_mut().flip_horizontal();
            image.view_mut().flip_vertical();
            return Ok(());
        }
        Some(n @ (1 | 3)) if turned => {
            let view = image.view_mut();
            view.transpose();
            if n == 1 {
                view.flip_vertical()
            } else {
                view.flip_horizontal()
            }
            return Ok(());
        }
        _ => {}
    }
    let map = rotation(angle.rem_euclid(360.0)).inverse(warp::from_middle(center, view));
    warp::warp(image, map, size, sampling, fill)
}

impl Transform for RandomRotation {
    fn name(&self) -> &'static str {
        "RandomRotation"
    }

    fn parameters(&self) -> Map<String, Value> {
        let RandomRotation { degrees, sampling, expand, center, fill } = self;
        Map::from_iter([
            ("degrees".to_owned(), json!(degrees)),
            ("interpolation".to_owned(), json!(sampling.name())),
            ("expand".to_owned(), json!(expand)),
            ("center".to_owned(), json!(center)),
            ("fill".to_owned(), json!(fill)),
        ])
    }

    fn is_random(&self) -> bool {
        true
    }

    fn varies(&self) -> Option<&'static str> {
        (self.expand && self.degrees[0] < self.degrees[1]).then_some("expand")
    }

    fn shape(&self, input: ImageShape) -> Result<ImageShape, Fault> {
        if self.varies().is_none() {
            return Ok(input.sized(self.size(input, self.degrees[0])));
        }
        // The most that any angle takes: the diagonal, either way, and a pixel for rounding.
        let side = (input.height as f64).hypot(input.width as f64).ceil() as usize + 2;
        Ok(input.sized((side, side)))
    }

    fn makes_pixels(&self, _: ImageShape) -> bool {
        true
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        self.shape(input).map_or(0, |shape| shape.elements().saturating_mul(pixel.size()))
    }

    fn drawn(&self, _: ImageShape, draws: &mut Draws) -> Value {
        json!({"angle": draws.uniform(self.degrees[0], self.degrees[1])})
    }

    fn apply(&self, image: &mut Image<'_>, draws: &mut Draws) -> Result<(), Fault> {
        let angle = draws.uniform(self.degrees[0], self.degrees[1]);
        let size = self.size(ImageShape::of(image.view()), angle);
        rotate(image, angle, size, self.center, self.sampling, Some(&self.fill))
    }
}
