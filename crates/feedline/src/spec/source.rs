//! Which data a pipeline reads.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::{SourceFormat, Table};
use crate::error::SpecError;

/// One collection of samples.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SourceSpec {
    /// What it is.
    pub kind: SourceKind,
    /// Its share when several sources are mixed.
    pub weight: Option<f64>,
}

/// What a collection of samples is.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum SourceKind {
    /// Whatever is found at the path: a folder of class folders, a flat folder, a manifest.
    Path(PathBuf),
    /// A folder whose subfolders are the classes, as torchvision's ImageFolder.
    ImageFolder(PathBuf),
    /// A folder of images without labels, subfolders included.
    Flat(PathBuf),
    /// A table of paths and labels.
    Manifest {
        /// The CSV, TSV or JSONL file.
        path: PathBuf,
        /// The column with the image's path; looked for by its usual names if not given.
        path_column: Option<String>,
        /// The columns that become fields; "label" or its usual names if not given.
        label_columns: Option<Vec<String>>,
        /// What paths are relative to; the manifest's folder if not given.
        root: Option<PathBuf>,
    },
    /// Samples in a format of their own.
    Format {
        /// Which; [`SourceFormat::Auto`] finds out.
        format: SourceFormat,
        /// A file, a folder, or a pattern of names such as `train-{000..099}.tar` or `*.parquet`.
        path: PathBuf,
        /// Which fields of a sample are wanted, in this order; all of them if empty.
        fields: Vec<FieldChoice>,
    },
    /// Arrays of the running program; they are handed to the builder, not to the spec.
    Arrays,
}

impl SourceKind {
    /// Where it lies; `None` for arrays of the running program.
    #[must_use]
    pub fn path(&self) -> Option<&std::path::Path> {
        match self {
            SourceKind::Path(path)
            | SourceKind::ImageFolder(path)
            | SourceKind::Flat(path)
            | SourceKind::Manifest { path, .. }
            | SourceKind::Format { path, .. } => Some(path),
            SourceKind::Arrays => None,
        }
    }
}

/// A field that is wanted of each sample.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FieldChoice {
    /// Its name in a batch.
    pub name: String,
    /// What the data calls it: an extension in tar, a feature, a column, a dataset. Several that
    /// may stand for each other are separated by ";".
    pub column: String,
    /// What its bytes are, where that is not to be guessed.
    pub role: Option<FieldRole>,
}

impl FieldChoice {
    /// The field that the data calls `column`, as `name`.
    pub fn new(name: impl Into<String>, column: impl Into<String>) -> FieldChoice {
        FieldChoice { name: name.into(), column: column.into(), role: None }
    }

    /// The same, with bytes that are `role`.
    #[must_use]
    pub fn role(mut self, role: FieldRole) -> FieldChoice {
        self.role = Some(role);
        self
    }
}

/// What a field's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldRole {
    /// An encoded image.
    Image,
    /// Text in UTF-8.
    Text,
    /// Bytes as they are.
    Bytes,
}

const ROLES: [(&str, FieldRole); 3] =
    [("image", FieldRole::Image), ("text", FieldRole::Text), ("bytes", FieldRole::Bytes)];

/// Kinds beside the formats.
const KINDS: [&str; 5] = ["image_folder", "flat", "manifest", "arrays", "auto"];

impl From<SourceKind> for SourceSpec {
    fn from(kind: SourceKind) -> Self {
        SourceSpec { kind, weight: None }
    }
}

impl<P: Into<PathBuf>> From<P> for SourceSpec {
    fn from(path: P) -> Self {
        SourceKind::Path(path.into()).into()
    }
}

impl SourceSpec {
    /// The same with a share in the mix.
    #[must_use]
    pub fn weight(mut self, weight: f64) -> Self {
        self.weight = Some(weight);
        self
    }

    pub(super) fn to_value(&self) -> Value {
        let text = |path: &PathBuf| Value::from(path.to_string_lossy().into_owned());
        let mut table = Map::new();
        let mut put = |name: &str, value: Value| {
            table.insert(name.to_owned(), value);
        };
        match &self.kind {
            SourceKind::Path(path) if self.weight.is_none() => return text(path),
            SourceKind::Path(path) => put("path", text(path)),
            SourceKind::ImageFolder(path) => {
                put("kind", "image_folder".into());
                put("path", text(path));
            }
            SourceKind::Flat(path) => {
                put("kind", "flat".into());
                put("path", text(path));
            }
            SourceKind::Manifest { path, path_column, label_columns, root } => {
                put("kind", "manifest".into());
                put("path", text(path));
                if let Some(column) = path_column {
                    put("path_column", column.clone().into());
                }
                if let Some(columns) = label_columns {
                    put("label_columns", columns.clone().into());
                }
                if let Some(root) = root {
                    put("root", text(root));
                }
            }
            SourceKind::Format { format, path, fields } => {
                put("kind", format.name().into());
                put("path", text(path));
                if !fields.is_empty() {
                    put("fields", fields_value(fields));
                }
            }
            SourceKind::Arrays => put("kind", "arrays".into()),
        }
        if let Some(weight) = self.weight {
            put("weight", weight.into());
        }
        Value::Object(table)
    }
}

pub(super) fn read_sources(table: &mut Table) -> Result<Vec<SourceSpec>, SpecError> {
    match table.take("source") {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) => items
            .into_iter()
            .enumerate()
            .map(|(at, item)| read_source(&format!("{}[{at}]", table.key("source")), item))
            .collect(),
        Some(single) => Ok(vec![read_source(&table.key("source"), single)?]),
    }
}

fn read_source(key: &str, value: Value) -> Result<SourceSpec, SpecError> {
    let value = match value {
        Value::String(path) if path.is_empty() => {
            return Err(
                SpecError::new(key, "is empty").allowed("the path of a folder or a manifest")
            );
        }
        Value::String(path) => return Ok(SourceKind::Path(path.into()).into()),
        Value::Object(_) => value,
        other => {
            return Err(SpecError::new(key, "is not allowed")
                .value(other)
                .allowed("a path, or a table with kind and path"));
        }
    };
    let mut table = Table::new(key, value)?;
    let kinds = KINDS.into_iter().chain(SourceFormat::all().map(SourceFormat::name));
    let kind = table.choice("kind", &kinds.map(|kind| (kind, kind)).collect::<Vec<_>>())?;
    let weight = table.number("weight", 0.0, f64::INFINITY)?;
    if weight == Some(0.0) {
        return Err(table.error("weight", "is not allowed").value(0).allowed("a number above 0"));
    }
    if kind == Some("arrays") {
        table.finish()?;
        return Ok(SourceSpec { kind: SourceKind::Arrays, weight });
    }
    let path: PathBuf = match table.text("path")? {
        Some(path) if !path.is_empty() => path.into(),
        _ => return Err(table.missing("path", "the path of a folder or a manifest")),
    };
    let kind = match kind {
        Some("image_folder") => SourceKind::ImageFolder(path),
        Some("flat") => SourceKind::Flat(path),
        Some("manifest") => SourceKind::Manifest {
            path,
            path_column: table.text("path_column")?,
            label_columns: table.texts("label_columns")?,
            root: table.text("root")?.map(PathBuf::from),
        },
        other => {
            let format = other.and_then(SourceFormat::from_name).unwrap_or(SourceFormat::Auto);
            let fields = read_fields(&mut table)?;
            match (other, fields.is_empty()) {
                (None, true) => SourceKind::Path(path),
                _ => SourceKind::Format { format, path, fields },
            }
        }
    };
    table.finish()?;
    Ok(SourceSpec { kind, weight })
}

fn role_name(role: FieldRole) -> &'static str {
    ROLES.iter().find(|(_, each)| *each == role).map_or("", |(name, _)| name)
}

/// A table from names to columns: it keeps the order that it is written in.
fn fields_value(fields: &[FieldChoice]) -> Value {
    let fields = fields.iter().map(|field| {
        let column = match field.role {
            None => Value::from(field.column.clone()),
            Some(role) => {
                let mut table = Map::new();
                table.insert("column".to_owned(), field.column.clone().into());
                table.insert("role".to_owned(), role_name(role).into());
                Value::Object(table)
            }
        };
        (field.name.clone(), column)
    });
    Value::Object(fields.collect())
}

/// `fields` is a list of columns, or a table from names to columns.
fn read_fields(table: &mut Table) -> Result<Vec<FieldChoice>, SpecError> {
    let key = table.key("fields");
    let allowed = "a list of columns, or a table such as { image = \"jpg\", label = \"cls\" }";
    let wrong = |key: &str, value: &Value| {
        SpecError::new(key, "is not allowed").value(value).allowed(allowed)
    };
    let plain = |name: &str, column: &str| FieldChoice {
        name: name.to_owned(),
        column: column.to_owned(),
        role: None,
    };
    let given = match table.take("fields") {
        None => return Ok(Vec::new()),
        Some(Value::Array(columns)) => {
            let column = |value: &Value| Some(plain(value.as_str()?, value.as_str()?));
            let each = columns.iter().map(|value| column(value).ok_or_else(|| wrong(&key, value)));
            each.collect::<Result<Vec<_>, _>>()?
        }
        Some(Value::Object(named)) => {
            let mut fields = Vec::new();
            for (name, value) in named {
                let key = format!("{key}.{name}");
                fields.push(match value {
                    Value::String(column) => plain(&name, &column),
                    Value::Object(_) => {
                        let mut inner = Table::new(&key, value)?;
                        let column = inner.text("column")?.unwrap_or_else(|| name.clone());
                        let role = inner.choice("role", &ROLES)?;
                        inner.finish()?;
                        FieldChoice { name, column, role }
                    }
                    other => return Err(wrong(&key, &other)),
                });
            }
            fields
        }
        Some(other) => return Err(wrong(&key, &other)),
    };
    for (at, field) in given.iter().enumerate() {
        if field.name.is_empty() || field.column.is_empty() {
            return Err(SpecError::new(key, "has a field without a name").allowed(allowed));
        }
        if given[..at].iter().any(|other| other.name == field.name) {
            return Err(SpecError::new(key, format!("names {:?} twice", field.name)));
        }
    }
    Ok(given)
}
