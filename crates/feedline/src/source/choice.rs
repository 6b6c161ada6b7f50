//! Which columns of a table become which fields.

use std::path::{Path, PathBuf};

use arrow_schema::{Schema, SchemaRef};
use serde_json::Value;

use super::columns::{Sort, sort_of};
use crate::error::{Error, Result};
use crate::sample::{Field, FieldKind};
use crate::spec::read::nearest;
use crate::spec::{FieldChoice, FieldRole};

/// What our own files say of themselves: their fields have the names that they are to have.
const OURS: &str = "feedline";

/// A column that becomes a field.
pub(super) struct Chosen {
    /// The field's name.
    name: String,
    /// The column's name.
    pub column: String,
    /// Its number in each file.
    pub numbers: Vec<usize>,
    /// What it holds.
    pub sort: Sort,
    /// What its bytes are said to be.
    pub role: Option<FieldRole>,
    /// Whether the file says that it is an image.
    pub is_image: bool,
    /// The names of the classes that it numbers.
    pub classes: Option<Vec<String>>,
    /// Whether its name was given, rather than taken from the file.
    named: bool,
}

impl Chosen {
    /// One number.
    pub(super) fn is_scalar(&self) -> bool {
        matches!(self.sort.kind(), FieldKind::Array { shape, .. } if shape.is_empty())
    }

    /// What may be small enough to be kept: text, and arrays of one shape or one axis.
    pub(super) fn is_short(&self) -> bool {
        match &self.sort {
            Sort::Plain(FieldKind::Ragged { axes, .. }) => *axes == 1,
            Sort::Plain(_) => self.role.is_none(),
            _ => false,
        }
    }

    /// The field.
    pub(super) fn field(&self) -> Field {
        let kind = match self.role {
            Some(FieldRole::Image) => FieldKind::EncodedImage,
            Some(FieldRole::Text) => FieldKind::Text,
            Some(FieldRole::Bytes) => FieldKind::Bytes,
            None if self.is_image => FieldKind::EncodedImage,
            None => self.sort.kind(),
        };
        Field { name: self.name.clone(), kind }
    }
}

/// What Hugging Face's `datasets` wrote about a column.
fn feature<'a>(features: &'a Value, column: &str) -> (Option<&'a str>, Option<Vec<String>>) {
    let feature = &features[column];
    let kind = feature["_type"].as_str();
    let names = feature["names"].as_array().filter(|_| kind == Some("ClassLabel"));
    let names = names.map(|names| {
        names.iter().map(|name| name.as_str().unwrap_or_default().to_owned()).collect()
    });
    (kind, names)
}

/// The features in a schema's own description.
fn features(schema: &Schema) -> Value {
    let text = schema.metadata().get("huggingface");
    let value: Option<Value> = text.and_then(|text| serde_json::from_str(text).ok());
    value.map_or(Value::Null, |mut value| value["info"]["features"].take())
}

/// Chooses columns as the spec says, or all that can be read.
pub(super) fn choose(
    what: &str,
    paths: &[PathBuf],
    schemas: &[SchemaRef],
    fields: &[FieldChoice],
) -> Result<Vec<Chosen>> {
    let problem = |what: &str, problem: String| Error::Source { what: what.to_owned(), problem };
    let Some(first) = schemas.first() else {
        return Err(problem(what, "has no files".to_owned()));
    };
    let features = features(first);
    let known: Vec<&str> = first.fields().iter().map(|field| field.name().as_str()).collect();
    let mut chosen = Vec::new();
    let mut left_out = Vec::new();
    let mut add = |name: &str,
                   column: &str,
                   role: Option<FieldRole>,
                   named: bool|
     -> Result<Option<String>> {
        let number = known.iter().position(|each| *each == column).unwrap_or(0);
        let mut sort = match sort_of(first.field(number).data_type()) {
            Ok(sort) => sort,
            Err(why) => return Ok(Some(format!("column {column:?} {why}"))),
        };
        let bytes = matches!(sort, Sort::Binary | Sort::ImageStruct | Sort::Plain(FieldKind::Text));
        if role.is_some() && !bytes {
            return Ok(Some(format!("column {column:?} holds numbers, no bytes or text")));
        }
        let (kind, classes) = feature(&features, column);
        if classes.is_some() && first.field(number).data_type().is_integer() {
            sort = Sort::Whole;
        }
        let is_image = sort == Sort::ImageStruct || (sort == Sort::Binary && kind == Some("Image"));
        let numbers = numbers(paths, schemas, column, &sort)?;
        let (name, column) = (name.to_owned(), column.to_owned());
        let classes = classes.filter(|_| sort == Sort::Whole);
        let named = named || first.metadata().contains_key(OURS);
        chosen.push(Chosen { name, column, numbers, sort, role, is_image, classes, named });
        Ok(None)
    };
    for field in fields {
        let column = field.column.split(';').find(|name| known.contains(name));
        let Some(column) = column else {
            let hint = nearest(&field.column, &known);
            let hint = hint.map_or(String::new(), |name| format!("; did you mean {name}?"));
            let text = format!("has no column {:?}, only {}{hint}", field.column, known.join(", "));
            return Err(problem(what, text));
        };
        if let Some(why) = add(&field.name, column, field.role, true)? {
            return Err(problem(what, why));
        }
    }
    if fields.is_empty() {
        for (at, column) in known.iter().enumerate() {
            // The second of that name cannot be told from the first; an index is pandas' own.
            if known[..at].contains(column) || column.starts_with("__index_level_") {
                continue;
            }
            left_out.extend(add(column, column, None, false)?);
        }
    }
    if chosen.is_empty() {
        let text = format!("has no column that can be read: {}", left_out.join(", "));
        return Err(problem(what, text));
    }
    Ok(chosen)
}

/// The number of a column in each file, where it must be of one sort.
fn numbers(
    paths: &[PathBuf],
    schemas: &[SchemaRef],
    column: &str,
    sort: &Sort,
) -> Result<Vec<usize>> {
    let find = |(schema, path): (&SchemaRef, &PathBuf)| {
        let at = schema.fields().iter().position(|field| field.name() == column);
        let problem = match at.map(|at| (at, sort_of(schema.field(at).data_type()))) {
            Some((at, Ok(found))) if found.kind() == sort.kind() || *sort == Sort::Whole => {
                return Ok(at);
            }
            Some((at, _)) => {
                let found = schema.field(at).data_type();
                format!("column {column:?} is of type {found}, unlike that of the first file")
            }
            None => format!("has no column {column:?}, unlike the first file"),
        };
        Err(Error::Source { what: Path::display(path).to_string(), problem })
    };
    schemas.iter().zip(paths).map(find).collect()
}

/// Names the main image "image" and the classes "label", where no name was given.
pub(super) fn usual_names(fields: &mut [Field], chosen: &[Chosen]) {
    let image = fields.iter().position(|field| field.kind == FieldKind::EncodedImage);
    let label = chosen.iter().position(|each| each.classes.is_some());
    for (at, name) in [(image, "image"), (label, "label")] {
        let taken = fields.iter().any(|field| field.name == name);
        if let Some(at) = at.filter(|at| !taken && !chosen[*at].named) {
            fields[at].name = name.to_owned();
        }
    }
}
