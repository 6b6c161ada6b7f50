//! `ToDtype`: another element type, with values scaled to its range if asked.

use serde_json::{Map, Value, json};

use super::{Linear, Transform};
use crate::error::SpecError;
use crate::sample::DType;
use crate::spec::Table;

#[derive(Debug)]
pub(super) struct ToDtype {
    dtype: DType,
    scale: bool,
}

impl ToDtype {
    pub(super) fn read(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        const TYPES: [DType; 4] = [DType::U8, DType::F16, DType::BF16, DType::F32];
        let choices = TYPES.map(|dtype| (dtype.name(), dtype));
        let dtype = table.choice("dtype", &choices)?.unwrap_or(DType::F32);
        let scale = table.boolean("scale")?.unwrap_or(false);
        Ok(Box::new(ToDtype { dtype, scale }))
    }
}

impl Transform for ToDtype {
    fn name(&self) -> &'static str {
        "ToDtype"
    }

    fn parameters(&self) -> Map<String, Value> {
        let ToDtype { dtype, scale } = self;
        Map::from_iter([
            ("dtype".to_owned(), json!(dtype.name())),
            ("scale".to_owned(), json!(scale)),
        ])
    }

    fn map(&self, dtype: DType, _: usize) -> Option<Result<Linear, SpecError>> {
        let factor = match (dtype, self.dtype) {
            (DType::U8, DType::U8) => 1.0,
            (DType::U8, _) if self.scale => 1.0 / 255.0,
            // torchvision's factor: with cutting off, it gives every integer an equal share.
            (from, DType::U8) if self.scale && from != DType::U8 => 255.999,
            _ => 1.0,
        };
        Some(Ok(Linear { scale: [factor; 4], ..Linear::cast(self.dtype) }))
    }
}
