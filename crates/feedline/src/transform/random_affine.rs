//! `RandomAffine`: turned, moved, scaled and sheared.

use serde_json::{Map, Value, json};

use super::warp::{self, Affine, Sampling};
use super::{ImageShape, Transform};
use crate::error::{Fault, SpecError};
use crate::image::{Image, PixelType};
use crate::random::Draws;
use crate::spec::Table;

#[derive(Debug)]
pub(super) struct RandomAffine {
    degrees: Vec<f64>,
    translate: Option<[f64; 2]>,
    scale: Option<[f64; 2]>,
    shear: Option<Vec<f64>>,
    sampling: Sampling,
    fill: Vec<f64>,
    center: Option<[f64; 2]>,
}

impl RandomAffine {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        let allowed = "a number of degrees, at least 0, or [lowest, highest]";
        let degrees = warp::read_degrees(table, "degrees", &[2])?
            .ok_or_else(|| table.missing("degrees", allowed))?;
        let translate = pair(table, "translate", "[x, y], each from 0 to 1", |[x, y]| {
            (0.0..=1.0).contains(&x) && (0.0..=1.0).contains(&y)
        })?;
        let scale = pair(table, "scale", "[lowest, highest], both above 0", |[low, high]| {
            low > 0.0 && low <= high
        })?;
        let shear = warp::read_degrees(table, "shear", &[2, 4])?;
        let sampling = Sampling::read(table)?;
        let fill = warp::read_fill(table)?.unwrap_or_else(|| vec![0.0]);
        let center = warp::read_center(table)?;
        Ok(Box::new(RandomAffine { degrees, translate, scale, shear, sampling, fill, center }))
    }

    fn draw(&self, input: ImageShape, draws: &mut Draws) -> Affine {
        let angle = draws.uniform(self.degrees[0], self.degrees[1]);
        let mut along = |part: f64, side: usize| {
            let most = part * side as f64;
            draws.uniform(-most, most).round_ties_even()
        };
        let translate = self
            .translate
            .map_or([0.0; 2], |[x, y]| [along(x, input.width), along(y, input.height)]);
        let scale = self.scale.map_or(1.0, |[low, high]| draws.uniform(low, high));
        let mut shear = [0.0; 2];
        for (shear, range) in shear.iter_mut().zip(self.shear.iter().flat_map(|s| s.chunks(2))) {
            *shear = draws.uniform(range[0], range[1]);
        }
        Affine { angle, translate, scale, shear }
    }
}

fn pair(
    table: &mut Table,
    name: &'static str,
    allowed: &str,
    holds: impl Fn([f64; 2]) -> bool,
) -> Result<Option<[f64; 2]>, SpecError> {
    match table.numbers(name)?.as_deref() {
        None => Ok(None),
        Some(&[a, b]) if holds([a, b]) => Ok(Some([a, b])),
        Some(other) => {
            Err(table.error(name, "is not allowed").value(json!(other)).allowed(allowed))
        }
    }
}

impl Transform for RandomAffine {
    fn name(&self) -> &'static str {
        "RandomAffine"
    }

    fn parameters(&self) -> Map<String, Value> {
        let RandomAffine { degrees, translate, scale, shear, sampling, fill, center } = self;
        Map::from_iter([
            ("degrees".to_owned(), json!(degrees)),
            ("translate".to_owned(), json!(translate)),
            ("scale".to_owned(), json!(scale)),
            ("shear".to_owned(), json!(shear)),
            ("interpolation".to_owned(), json!(sampling.name())),
            ("fill".to_owned(), json!(fill)),
            ("center".to_owned(), json!(center)),
        ])
    }

    fn is_random(&self) -> bool {
        true
    }

    fn makes_pixels(&self, _: ImageShape) -> bool {
        true
    }

    fn scratch(&self, input: ImageShape, pixel: PixelType) -> usize {
        input.elements().saturating_mul(pixel.size())
    }

    fn drawn(&self, input: ImageShape, draws: &mut Draws) -> Value {
        let Affine { angle, translate, scale, shear } = self.draw(input, draws);
        json!({"angle": angle, "translate": translate, "scale": scale, "shear": shear})
    }

    fn apply(&self, image: &mut Image<'_>, draws: &mut Draws) -> Result<(), Fault> {
        let view = image.view();
        let map = self.draw(ImageShape::of(view), draws);
        let map = map.inverse(warp::from_middle(self.center, view));
        warp::warp(image, map, (view.height, view.width), self.sampling, Some(&self.fill))
    }
}
