//! Which field holds classes, and how they are mixed with the images.

use super::image::ImageField;
use crate::error::Result;
use crate::sample::{DType, Field, FieldKind};
use crate::source::Source;
use crate::transform::Mix;

/// How the rows of a batch are mixed with each other.
pub(crate) struct Mixing {
    pub(crate) mix: Mix,
    /// The field whose classes are mixed too.
    pub(crate) label: usize,
    pub(crate) classes: usize,
}

/// What fields of classes are called.
const LABELS: [&str; 5] = ["label", "labels", "target", "class", "cls"];

/// The field that holds classes: a scalar of type int64 that is called so, else the first.
pub(in crate::engine) fn label_field(fields: &[Field]) -> Option<usize> {
    label_field_of(fields, &|dtype| dtype == DType::I64)
}

/// Whether its name says that it holds classes.
pub(in crate::engine) fn is_called_label(field: &Field) -> bool {
    LABELS.contains(&field.name.as_str())
}

/// The field that holds classes, of one of the types that are accepted.
pub(in crate::engine) fn label_field_of(
    fields: &[Field],
    accepted: &dyn Fn(DType) -> bool,
) -> Option<usize> {
    let fits = |field: &Field| match &field.kind {
        FieldKind::Array { dtype, shape } => shape.is_empty() && accepted(*dtype),
        _ => false,
    };
    let called = |name: &&str| fields.iter().position(|field| field.name == **name && fits(field));
    LABELS.iter().find_map(called).or_else(|| fields.iter().position(fits))
}

/// Checks that there is something to mix.
pub(super) fn mixing(
    mix: Mix,
    fields: &[Field],
    image: Option<&ImageField>,
    source: &dyn Source,
) -> Result<Mixing> {
    let labelled = "class folders, a manifest with a column of whole numbers or class names, or arrays with an int64 field of one number per sample";
    let Some(label) = label_field(fields).filter(|field| image.is_some_and(|i| i.field != *field))
    else {
        return Err(mix
            .error("", "needs labels to mix, and the source has none")
            .allowed(labelled)
            .into());
    };
    if let Some(image) = image {
        mix.check(&image.output)?;
    }
    let known = Some(source.classes().len()).filter(|known| *known > 0);
    let classes = match (mix.num_classes(), known) {
        (Some(given), Some(known)) if given < known => {
            return Err(mix
                .error("num_classes", format!("is too few: the source has {known} classes"))
                .value(given)
                .allowed(format!("at least {known}"))
                .into());
        }
        (Some(classes), _) | (None, Some(classes)) => classes,
        (None, None) => {
            return Err(mix
                .error("num_classes", "is missing, and the source does not tell")
                .allowed("a whole number above every label")
                .into());
        }
    };
    Ok(Mixing { mix, label, classes })
}
