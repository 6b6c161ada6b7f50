//! Rows of different lengths: one long array, and another that says where each row starts.

use super::{Array, Element, MOST_AXES, Spread};
use crate::sample::{DType, FieldKind};

/// Makes one array of those that belong together: `NAME.data` or `NAME.text` with `NAME.offsets`.
pub(in crate::source) fn join(mut arrays: Vec<Array>) -> Result<Vec<Array>, String> {
    let names: Vec<String> = arrays
        .iter()
        .filter_map(|array| array.name.strip_suffix(".offsets").map(str::to_owned))
        .collect();
    let take = |arrays: &mut Vec<Array>, name: String| {
        let at = arrays.iter().position(|array| array.name == name)?;
        Some(arrays.remove(at))
    };
    for name in names {
        let data = take(&mut arrays, format!("{name}.data")).map(|array| (array, false));
        let data =
            data.or_else(|| take(&mut arrays, format!("{name}.text")).map(|array| (array, true)));
        // An array that only happens to be called so stays one.
        let Some((data, text)) = data else { continue };
        let Some(offsets) = take(&mut arrays, format!("{name}.offsets")) else { continue };
        let shapes = take(&mut arrays, format!("{name}.shapes"));
        arrays.push(spread(name, data, offsets, shapes, text)?);
    }
    Ok(arrays)
}

/// One array whose samples are stretches of `data`.
pub(in crate::source) fn spread(
    name: String,
    data: Array,
    offsets: Array,
    shapes: Option<Array>,
    text: bool,
) -> Result<Array, String> {
    let whole = |array: &Array| {
        matches!(array.element, Element::Number { dtype: DType::I64 | DType::U64, .. })
    };
    let Element::Number { dtype, .. } = data.element else {
        return Err(format!("has no numbers in {:?}", data.name));
    };
    if !data.shape.is_empty() || data.skip != 0 || (text && dtype != DType::U8) {
        return Err(format!("has {:?} as something else than one row of numbers", data.name));
    }
    if !whole(&offsets) || !offsets.shape.is_empty() || offsets.rows == 0 {
        return Err(format!("has {:?} as something else than one row of int64", offsets.name));
    }
    let kind = match &shapes {
        Some(shapes) => {
            let axes = match shapes.shape[..] {
                [axes] if axes > 0 && axes <= MOST_AXES => axes,
                _ => 0,
            };
            if axes == 0 || !whole(shapes) || shapes.rows != offsets.rows - 1 {
                return Err(format!("has {:?} that do not fit {:?}", shapes.name, offsets.name));
            }
            FieldKind::Ragged { dtype, axes }
        }
        None if text => FieldKind::Text,
        None if dtype == DType::U8 => FieldKind::Bytes,
        None => FieldKind::Ragged { dtype, axes: 1 },
    };
    let spread = Spread { offsets: Box::new(offsets), shapes: shapes.map(Box::new), kind };
    Ok(Array { name, spread: Some(spread), ..data })
}
