//! How a batch lies in memory.

use super::image::ImageField;
use super::labels::Mixing;
use crate::error::{Error, Result, SpecError};
use crate::image::Layout;
use crate::layout::{BatchLayout, Variable};
use crate::sample::{DType, Field, FieldKind};
use crate::spec::Spec;

pub(super) fn batch_layout(
    spec: &Spec,
    fields: &[Field],
    image: Option<&ImageField>,
    mixing: Option<&Mixing>,
    rows: u64,
) -> Result<BatchLayout> {
    let too_large = || {
        SpecError::new("batch_size", "makes a batch larger than memory can be")
            .value(spec.batch_size)
    };
    // Mixing needs one row more, which nobody sees: the one before the first.
    let rows = rows + u64::from(mixing.is_some());
    let mut layout = BatchLayout::new(usize::try_from(rows).map_err(|_| too_large())?);
    for (number, field) in fields.iter().enumerate() {
        let pushed = match (image.filter(|image| image.field == number), &field.kind) {
            (Some(image), _) => {
                let (shape, dtype) = (&image.output.shape, image.output.dtype);
                match (spec.layout, shape.as_slice()) {
                    // The shape says channels first, the memory has them last.
                    (Layout::ChannelsLast, [channels, _, width]) => layout.push_strided(
                        &field.name,
                        dtype,
                        shape,
                        vec![1, channels * width, *channels],
                    ),
                    _ => layout.push(&field.name, dtype, shape),
                }
            }
            (None, FieldKind::Array { .. }) if mixing.is_some_and(|m| m.label == number) => {
                let classes = mixing.map_or(1, |mixing| mixing.classes);
                layout.push(&field.name, DType::F32, &[classes])
            }
            (None, FieldKind::Array { dtype, shape }) => layout.push(&field.name, *dtype, shape),
            (None, FieldKind::Ragged { dtype, axes }) => {
                layout.push_variable(&field.name, *dtype, Variable::Array { axes: *axes })
            }
            (None, FieldKind::Text) => layout.push_variable(&field.name, DType::U8, Variable::Text),
            // An image that is not decoded: as is asked for, or as it is not the sample's first.
            (None, FieldKind::Bytes | FieldKind::EncodedImage) => {
                layout.push_variable(&field.name, DType::U8, Variable::Bytes)
            }
            (None, FieldKind::Pixels { .. }) => {
                return Err(Error::Source {
                    what: format!("field {:?}", field.name),
                    problem: "is a second image of pixels; a sample can have one".to_owned(),
                });
            }
        };
        pushed.ok_or_else(too_large)?;
    }
    Ok(layout)
}
