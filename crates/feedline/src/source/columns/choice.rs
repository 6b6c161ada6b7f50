//! Which columns of a table become which fields.

use std::path::PathBuf;

use arrow_schema::{DataType, Schema, SchemaRef};
use serde_json::Value;

use super::values::{Sort, sort_of};
use crate::error::Result;
use crate::sample::{Field, FieldKind};
use crate::source::{field_names, problem};
use crate::spec::{FieldChoice, FieldRole};

/// What our own files say of themselves: their fields have the names that they are to have.
const OURS: &str = "feedline";

/// A column that becomes a field.
pub(in crate::source) struct Chosen {
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
    pub(in crate::source) fn is_scalar(&self) -> bool {
        matches!(self.sort.kind(), FieldKind::Array { shape, .. } if shape.is_empty())
    }

    /// What may be small enough to be kept: text, and arrays of one shape or one axis.
    pub(in crate::source) fn is_short(&self) -> bool {
        match &self.sort {
            Sort::Plain(FieldKind::Ragged { axes, .. }) => *axes == 1,
            Sort::Plain(_) => self.role.is_none(),
            _ => false,
        }
    }

    /// The field.
    pub(in crate::source) fn field(&self) -> Field {
        let kind = match self.role {
            Some(role) => field_names::kind_of(role),
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
pub(in crate::source) fn choose(
    what: &str,
    paths: &[PathBuf],
    schemas: &[SchemaRef],
    fields: &[FieldChoice],
) -> Result<Vec<Chosen>> {
    let Some(first) = schemas.first() else {
        return Err(problem(what, "has no files"));
    };
    let all_features: Vec<Value> = schemas.iter().map(|schema| features(schema)).collect();
    let features = &all_features[0];
    let known: Vec<&str> = first.fields().iter().map(|field| field.name().as_str()).collect();
    let mut chosen = Vec::new();
    let mut left_out = Vec::new();
    let mut add = |name: &str,
                   number: usize,
                   role: Option<FieldRole>,
                   named: bool|
     -> Result<Option<String>> {
        let column = known[number];
        let mut sort = match sort_of(first.field(number).data_type()) {
            Ok(sort) => sort,
            Err(why) => return Ok(Some(format!("column {column:?} {why}"))),
        };
        let bytes = matches!(sort, Sort::Binary | Sort::ImageStruct | Sort::Plain(FieldKind::Text));
        if role.is_some() && !bytes {
            return Ok(Some(format!("column {column:?} holds numbers, no bytes or text")));
        }
        let (kind, classes) = feature(features, column);
        if classes.is_some() && first.field(number).data_type().is_integer() {
            sort = Sort::Whole;
        }
        let is_image = sort == Sort::ImageStruct || (sort == Sort::Binary && kind == Some("Image"));
        let numbers = numbers(paths, schemas, column, (first.field(number).data_type(), &sort))?;
        if classes.is_some() && sort == Sort::Whole {
            same_classes(paths, &all_features, column)?;
        }
        let (name, column) = (name.to_owned(), column.to_owned());
        let classes = classes.filter(|_| sort == Sort::Whole);
        let named = named || first.metadata().contains_key(OURS);
        chosen.push(Chosen { name, column, numbers, sort, role, is_image, classes, named });
        Ok(None)
    };
    for field in fields {
        let number = field_names::find("column", &field.column, &known)
            .map_err(|missing| problem(what, missing))?;
        if let Some(why) = add(&field.name, number, field.role, true)? {
            return Err(problem(what, why));
        }
    }
    if fields.is_empty() {
        for (at, column) in known.iter().enumerate() {
            // The second of that name cannot be distinguished from the first; an index is pandas' own.
            if known[..at].contains(column) || column.starts_with("__index_level_") {
                continue;
            }
            left_out.extend(add(column, at, None, false)?);
        }
    }
    if chosen.is_empty() {
        let text = format!("has no column that can be read: {}", left_out.join(", "));
        return Err(problem(what, text));
    }
    // What cannot be read is not left out in silence.
    if let Some(why) = left_out.first() {
        return Err(problem(what, format!("{why}; choose the other fields with fields")));
    }
    Ok(chosen)
}

/// The number of a column in each file, where it must be of one sort.
fn numbers(
    paths: &[PathBuf],
    schemas: &[SchemaRef],
    column: &str,
    (first, sort): (&DataType, &Sort),
) -> Result<Vec<usize>> {
    // Whole numbers are taken as they are: a time in other units would be another one.
    let alike = |found: &DataType| match sort {
        Sort::Whole => found == first || (found.is_integer() && first.is_integer()),
        sort => sort_of(found).as_ref() == Ok(sort),
    };
    let find = |(schema, path): (&SchemaRef, &PathBuf)| {
        let at = schema.fields().iter().position(|field| field.name() == column);
        let why = match at.map(|at| (at, schema.field(at).data_type())) {
            Some((at, found)) if alike(found) => return Ok(at),
            Some((_, found)) => format!(
                "column {column:?} is of type {found}, but of type {first} in {}: write both with one type",
                paths[0].display()
            ),
            None => format!("has no column {column:?}, unlike the first file"),
        };
        Err(problem(path, why))
    };
    schemas.iter().zip(paths).map(find).collect()
}

/// Files that number classes must number the same ones.
fn same_classes(paths: &[PathBuf], features: &[Value], column: &str) -> Result<()> {
    let (_, first) = feature(&features[0], column);
    for (features, path) in features.iter().zip(paths).skip(1) {
        let (_, names) = feature(features, column);
        // A file that says nothing of classes is taken to mean the same.
        if names.is_some() && names != first {
            let why = format!(
                "column {column:?} numbers the classes {:?}, but {:?} in {}: write both with the same classes",
                names.unwrap_or_default(),
                first.unwrap_or_default(),
                paths[0].display()
            );
            return Err(problem(path, why));
        }
    }
    Ok(())
}

/// Names the main image "image" and the classes "label", where no name was given.
pub(in crate::source) fn usual_names(fields: &mut [Field], chosen: &[Chosen]) {
    let image = field_names::first_image(fields);
    let label = chosen.iter().position(|each| each.classes.is_some());
    for (at, name) in [(image, "image"), (label, "label")] {
        field_names::rename(fields, at.filter(|at| !chosen[*at].named), name);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::{Field as Column, TimeUnit};

    use super::*;

    fn chosen(types: &[DataType], classes: &[&str]) -> std::result::Result<usize, String> {
        let paths: Vec<PathBuf> = (0..types.len()).map(|n| format!("{n}.arrow").into()).collect();
        let schemas: Vec<SchemaRef> = types
            .iter()
            .enumerate()
            .map(|(at, kind)| {
                let schema = Schema::new(vec![Column::new("x", kind.clone(), false)]);
                let said = classes.get(at).map(|names| {
                    let features = format!(
                        r#"{{"info": {{"features": {{"x": {{"_type": "ClassLabel", "names": {names}}}}}}}}}"#
                    );
                    ("huggingface".to_owned(), features)
                });
                Arc::new(schema.with_metadata(said.into_iter().collect::<std::collections::HashMap<_, _>>()))
            })
            .collect();
        let found = choose("set", &paths, &schemas, &[]);
        found.map(|found| found.len()).map_err(|error| error.to_string())
    }

    #[test]
    fn columns_of_several_files_are_of_one_type() {
        let time = |unit| DataType::Timestamp(unit, None);
        let (milli, nano) = (time(TimeUnit::Millisecond), time(TimeUnit::Nanosecond));
        assert_eq!(chosen(&[nano.clone(), nano.clone()], &[]), Ok(1));
        assert_eq!(chosen(&[DataType::Utf8, DataType::LargeUtf8], &[]), Ok(1));
        for (first, second) in [
            (&milli, &nano),
            (&milli, &DataType::Int64),
            (&DataType::Int64, &nano),
            (&DataType::Date32, &DataType::Date64),
            (&DataType::Int64, &DataType::Float64),
            (&nano, &DataType::Float64),
            (&DataType::Int64, &DataType::Int32),
        ] {
            let error = chosen(&[first.clone(), second.clone()], &[]).unwrap_err();
            let message = format!("is of type {second}, but of type {first} in 0.arrow");
            assert!(error.contains(&message) && error.contains("1.arrow"), "{error}");
        }
    }

    #[test]
    fn classes_of_several_files_are_the_same() {
        let (int, long) = (DataType::Int32, DataType::Int64);
        let both = [long.clone(), int.clone()];
        assert_eq!(chosen(&both, &[r#"["a", "b"]"#, r#"["a", "b"]"#]), Ok(1));
        assert_eq!(chosen(&both, &[r#"["a", "b"]"#]), Ok(1));
        let error = chosen(&both, &[r#"["a", "b"]"#, r#"["b", "a"]"#]).unwrap_err();
        assert!(error.contains("numbers the classes"), "{error}");
        let mixed = [long, DataType::Float64];
        let error = chosen(&mixed, &[r#"["a", "b"]"#]).unwrap_err();
        assert!(error.contains("but of type Int64"), "{error}");
    }

    #[test]
    fn no_column_is_left_out_in_silence() {
        let schema = Schema::new(vec![
            Column::new("x", DataType::Int64, false),
            Column::new("y", DataType::Decimal128(9, 2), false),
        ]);
        let (paths, schemas) = ([PathBuf::from("a")], [Arc::new(schema)]);
        let error = choose("set", &paths, &schemas, &[]).err().unwrap().to_string();
        assert!(error.contains("\"y\"") && error.contains("with fields"), "{error}");
    }
}
