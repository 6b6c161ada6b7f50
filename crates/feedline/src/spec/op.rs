//! One op of the transform chain as plain data.

use serde_json::{Map, Value};

use super::Table;
use crate::error::SpecError;

/// One op of the transform chain as plain data: its name and its parameters.
///
/// ```
/// use feedline::spec::OpSpec;
/// let op = OpSpec::new("RandomResizedCrop").with("size", 224).with("scale", vec![0.5, 1.0]);
/// assert_eq!(op.op, "RandomResizedCrop");
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OpSpec {
    /// The op's name, as in torchvision.
    pub op: String,
    /// Its parameters by name.
    pub params: Map<String, Value>,
}

impl OpSpec {
    /// An op with all its parameters at their defaults.
    #[must_use]
    pub fn new(op: impl Into<String>) -> Self {
        OpSpec { op: op.into(), params: Map::new() }
    }

    /// Sets a parameter.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.params.insert(name.to_owned(), value.into());
        self
    }

    /// Reads an op's name, or a table with the key `op`, as [`OpSpec::to_value`] gives it.
    pub fn from_value(value: Value) -> Result<OpSpec, SpecError> {
        read_op("op", value)
    }

    /// As a table with the key `op`.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut table = Map::new();
        table.insert("op".to_owned(), self.op.clone().into());
        table.extend(self.params.clone());
        Value::Object(table)
    }
}

/// What an op may be written as.
const ALLOWED: &str = "a list of tables with op = \"...\"";

fn read_op(key: &str, value: Value) -> Result<OpSpec, SpecError> {
    match value {
        Value::String(op) => Ok(OpSpec::new(op)),
        Value::Object(mut params) => match params.shift_remove("op") {
            Some(Value::String(op)) => Ok(OpSpec { op, params }),
            Some(other) => Err(SpecError::new(format!("{key}.op"), "is not allowed")
                .value(other)
                .allowed("an op's name")),
            None => Err(SpecError::new(key, "has no op").allowed(ALLOWED)),
        },
        other => Err(SpecError::new(key, "is not allowed").value(other).allowed(ALLOWED)),
    }
}

pub(super) fn read_ops(table: &mut Table) -> Result<Vec<OpSpec>, SpecError> {
    match table.take("transforms") {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) => items
            .into_iter()
            .enumerate()
            .map(|(at, item)| read_op(&format!("{}[{at}]", table.key("transforms")), item))
            .collect(),
        Some(other) => {
            Err(table.error("transforms", "is not allowed").value(other).allowed(ALLOWED))
        }
    }
}
