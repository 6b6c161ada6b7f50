//! `Normalize`: minus the mean, over the standard deviation, per channel.

use serde_json::{Map, Value, json};

use super::{Linear, Transform};
use crate::error::SpecError;
use crate::sample::DType;
use crate::spec::Table;

#[derive(Debug)]
pub(super) struct Normalize {
    mean: Vec<f64>,
    std: Vec<f64>,
}

impl Normalize {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        let mut values = |name: &'static str| match table.numbers(name)? {
            Some(values) if (1..=4).contains(&values.len()) => Ok(values),
            Some(values) => Err(table
                .error(name, "is not allowed")
                .value(json!(values))
                .allowed("a number, or one per channel")),
            None => Err(table.missing(name, "a number, or one per channel")),
        };
        let (mean, std) = (values("mean")?, values("std")?);
        if std.contains(&0.0) {
            return Err(table.error("std", "must not be zero").value(json!(std)));
        }
        if mean.len() != std.len() && mean.len() != 1 && std.len() != 1 {
            return Err(table
                .error("std", format!("has {} values, but mean has {}", std.len(), mean.len()))
                .value(json!(std)));
        }
        Ok(Box::new(Normalize { mean, std }))
    }
}

impl Transform for Normalize {
    fn name(&self) -> &'static str {
        "Normalize"
    }

    fn parameters(&self) -> Map<String, Value> {
        let Normalize { mean, std } = self;
        Map::from_iter([("mean".to_owned(), json!(mean)), ("std".to_owned(), json!(std))])
    }

    fn map(&self, dtype: DType, channels: usize) -> Option<Result<Linear, SpecError>> {
        if dtype == DType::U8 {
            return Some(Err(SpecError::new(
                "",
                "Normalize needs floats and would get uint8; put ToDtype(\"float32\", scale=True) before it",
            )));
        }
        let most = self.mean.len().max(self.std.len());
        if most > 1 && channels != 0 && channels != most {
            return Some(Err(SpecError::new(
                "mean",
                format!("has {most} values, but images have {channels} channels"),
            )
            .value(json!(self.mean))));
        }
        let mut map = Linear::cast(dtype);
        for c in 0..4 {
            let std = self.std[c.min(self.std.len() - 1)];
            map.scale[c] = 1.0 / std;
            map.bias[c] = -self.mean[c.min(self.mean.len() - 1)] / std;
        }
        Some(Ok(map))
    }
}
