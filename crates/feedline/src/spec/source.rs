//! Which data a pipeline reads.

use std::path::PathBuf;

use serde_json::{Map, Value};

use super::Table;
use crate::error::SpecError;

/// One collection of samples.
#[derive(Debug, Clone, PartialEq)]
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
    /// Arrays of the running program; they are handed to the builder, not to the spec.
    Arrays,
}

const KINDS: [(&str, &str); 4] = [
    ("image_folder", "image_folder"),
    ("flat", "flat"),
    ("manifest", "manifest"),
    ("arrays", "arrays"),
];

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
    let kind = table.choice("kind", &KINDS)?;
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
        _ => SourceKind::Path(path),
    };
    table.finish()?;
    Ok(SourceSpec { kind, weight })
}
