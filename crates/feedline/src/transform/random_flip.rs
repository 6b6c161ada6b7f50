//! `RandomHorizontalFlip` and `RandomVerticalFlip`: mirrored with a given probability.

use serde_json::{Map, Value, json};

use super::{Placement, Transform};
use crate::error::{Fault, SpecError};
use crate::random::Draws;
use crate::spec::Table;

#[derive(Debug)]
pub(super) struct RandomFlip {
    vertical: bool,
    p: f64,
}

impl RandomFlip {
    pub(super) fn read_horizontal(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        RandomFlip::read(table, false)
    }

    pub(super) fn read_vertical(table: &mut Table) -> Result<Box<dyn Transform>, SpecError> {
        RandomFlip::read(table, true)
    }

    fn read(table: &mut Table, vertical: bool) -> Result<Box<dyn Transform>, SpecError> {
        let p = table.number("p", 0.0, 1.0)?.unwrap_or(0.5);
        Ok(Box::new(RandomFlip { vertical, p }))
    }
}

impl Transform for RandomFlip {
    fn name(&self) -> &'static str {
        if self.vertical { "RandomVerticalFlip" } else { "RandomHorizontalFlip" }
    }

    fn parameters(&self) -> Map<String, Value> {
        // Its name says which way.
        let RandomFlip { vertical: _, p } = self;
        Map::from_iter([("p".to_owned(), json!(p))])
    }

    fn is_random(&self) -> bool {
        true
    }

    fn place(&self, placement: &mut Placement, draws: &mut Draws) -> Option<Result<(), Fault>> {
        if draws.chance(self.p) {
            placement.flip(self.vertical);
        }
        Some(Ok(()))
    }
}
