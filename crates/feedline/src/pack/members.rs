//! A sample's fields as files of a kind: what the name of each ends in, and its bytes.

use std::borrow::Cow;
use std::path::Path;

use super::npy;
use super::record::Record;
use crate::error::{Error, Result};
use crate::sample::{DType, Field, FieldKind, ImageFormat};

/// One field of a sample.
pub(super) struct Member<'a> {
    /// What the name ends in, without the first dot.
    pub(super) extension: String,
    pub(super) bytes: Cow<'a, [u8]>,
}

/// How a field's bytes are written.
enum Form {
    /// An encoded image: the extension follows from its bytes.
    Image,
    /// As they are.
    Plain(String),
    /// A whole number in decimal.
    Number(String),
    /// With NumPy's header.
    Npy(DType, String),
}

/// The fields of all samples.
pub(super) struct Members {
    fields: Vec<(String, Form)>,
}

impl Members {
    /// Says what the fields' names end in, or which of them cannot be written.
    pub(super) fn new(path: &Path, fields: &[Field]) -> Result<Members> {
        let form = |field: &Field| {
            let name = &field.name;
            let npy =
                |dtype: DType| npy::descr(dtype).map(|_| Form::Npy(dtype, format!("{name}.npy")));
            let form = match &field.kind {
                FieldKind::EncodedImage => Some(Form::Image),
                FieldKind::Text => Some(Form::Plain(format!("{name}.txt"))),
                FieldKind::Bytes => Some(Form::Plain(format!("{name}.bin"))),
                FieldKind::Array { dtype: DType::I64, shape } if shape.is_empty() => {
                    let extension =
                        if name == "label" { "cls".into() } else { format!("{name}.cls") };
                    Some(Form::Number(extension))
                }
                FieldKind::Array { dtype, .. } | FieldKind::Ragged { dtype, .. } => npy(*dtype),
                FieldKind::Pixels { .. } => npy(DType::U8),
            };
            form.map(|form| (name.clone(), form)).ok_or_else(|| Error::Source {
                what: path.display().to_string(),
                problem: format!("cannot hold {name:?}: NumPy has no bfloat16"),
            })
        };
        Ok(Members { fields: fields.iter().map(form).collect::<Result<_>>()? })
    }

    /// The fields of one sample.
    pub(super) fn of<'a>(&self, record: &Record<'a>) -> Result<Vec<Member<'a>>> {
        let member = |(given, (name, form)): (&super::record::Given<'a>, &(String, Form))| {
            let (extension, bytes) = match form {
                Form::Image => {
                    let kind = image_extension(given.bytes);
                    let extension = match name.as_str() {
                        "image" => kind.to_owned(),
                        _ => format!("{name}.{kind}"),
                    };
                    (extension, Cow::Borrowed(given.bytes))
                }
                Form::Plain(extension) => (extension.clone(), Cow::Borrowed(given.bytes)),
                Form::Number(extension) => {
                    let number = given.bytes.first_chunk().map_or(0, |b| i64::from_ne_bytes(*b));
                    (extension.clone(), Cow::Owned(number.to_string().into_bytes()))
                }
                Form::Npy(dtype, extension) => {
                    let mut bytes = npy::header(*dtype, given.shape, 0).unwrap_or_default();
                    bytes.extend_from_slice(given.bytes);
                    (extension.clone(), Cow::Owned(bytes))
                }
            };
            Member { extension, bytes }
        };
        Ok(record.values.iter().zip(&self.fields).map(member).collect())
    }
}

/// What the name of an image with these bytes ends in.
fn image_extension(bytes: &[u8]) -> &'static str {
    ImageFormat::sniff(bytes).unwrap_or(ImageFormat::Jpeg).extension()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::record::Given;

    #[test]
    fn a_packed_image_is_named_after_its_bytes() {
        let fields = [Field { name: "image".to_owned(), kind: FieldKind::EncodedImage }];
        let members = Members::new(Path::new("x.tar"), &fields).unwrap();
        for (bytes, expected) in [
            (&b"\xff\xd8\xff\xe0"[..], "jpg"),
            (b"\x89PNG\r\n", "png"),
            (b"II\x2a\0\x08\0\0\0", "tif"),
            (b"II\x2b\0\x08\0\0\0", "tif"),
            (b"MM\0\x2b\0\x08\0\0", "tif"),
            (b"P6 1 1 255 abc", "ppm"),
        ] {
            let values = [Given { bytes, shape: &[] }];
            let found = members.of(&Record { key: "a", values: &values }).unwrap();
            assert_eq!(found[0].extension, expected, "{bytes:?}");
        }
    }
}
