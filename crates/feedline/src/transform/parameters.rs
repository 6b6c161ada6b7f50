//! Parameters that several ops read in the same way.

use serde_json::{Value, json};

use super::resample::Interpolation;
use crate::error::SpecError;
use crate::spec::Table;

/// Sides beyond this are mistakes, and their products would leave a `u64`.
const LONGEST_SIDE: u64 = 1 << 20;

/// A whole number or a list of one or two.
pub(super) fn sides(
    table: &mut Table,
    name: &'static str,
) -> Result<Option<Vec<usize>>, SpecError> {
    let Some(sides) = table.wholes(name)? else { return Ok(None) };
    if !matches!(sides.len(), 1 | 2) || sides.iter().any(|side| !(1..=LONGEST_SIDE).contains(side))
    {
        return Err(table
            .error(name, "is not allowed")
            .value(match sides.as_slice() {
                [single] => Value::from(*single),
                several => Value::from(several),
            })
            .allowed(format!("a whole number or [height, width], each from 1 to {LONGEST_SIDE}")));
    }
    Ok(Some(sides.into_iter().map(|side| side as usize).collect()))
}

/// Height and width; one number is both.
pub(super) fn size(table: &mut Table) -> Result<(usize, usize), SpecError> {
    match sides(table, "size")?.as_deref() {
        Some([side]) => Ok((*side, *side)),
        Some([height, width]) => Ok((*height, *width)),
        _ => Err(table.missing("size", "a whole number or [height, width]")),
    }
}

/// `interpolation` and `antialias`.
pub(super) fn interpolation(table: &mut Table) -> Result<(Interpolation, bool), SpecError> {
    let interpolation = table.choice("interpolation", Interpolation::NAMES)?.unwrap_or_default();
    let antialias = table.boolean("antialias")?.unwrap_or(true);
    if !antialias && interpolation.needs_antialias() {
        return Err(table
            .error("antialias", format!("cannot be off with \"{}\"", interpolation.name()))
            .value(false)
            .allowed("true"));
    }
    Ok((interpolation, antialias))
}

/// Two numbers, the lower one first, both above `low`.
pub(super) fn range(
    table: &mut Table,
    name: &'static str,
    default: [f64; 2],
) -> Result<[f64; 2], SpecError> {
    match table.numbers(name)?.as_deref() {
        None => Ok(default),
        Some(&[low, high]) if low > 0.0 && low <= high => Ok([low, high]),
        Some(other) => Err(table
            .error(name, "is not allowed")
            .value(json!(other))
            .allowed("[low, high] with 0 < low <= high")),
    }
}

/// What torchvision's colour ops ask for; 0 stands for a count that is not known yet.
pub(super) fn one_or_three(channels: usize) -> Result<(), SpecError> {
    if matches!(channels, 0 | 1 | 3) {
        return Ok(());
    }
    Err(SpecError::new("", format!("cannot work on {channels} channels"))
        .allowed("images with 1 or 3 channels"))
}
