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

    /// As a table with the key `op`.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut table = Map::new();
        table.insert("op".to_owned(), self.op.clone().into());
        table.extend(self.params.clone());
        Value::Object(table)
    }
}

pub(super) fn read_ops(table: &mut Table) -> Result<Vec<OpSpec>, SpecError> {
    let allowed = "a list of tables with op = \"...\"";
    match table.take("transforms") {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) => items
            .into_iter()
            .enumerate()
            .map(|(at, item)| {
                let key = format!("{}[{at}]", table.key("transforms"));
                match item {
                    Value::String(op) => Ok(OpSpec::new(op)),
                    Value::Object(mut params) => match params.shift_remove("op") {
                        Some(Value::String(op)) => Ok(OpSpec { op, params }),
                        Some(other) => Err(SpecError::new(format!("{key}.op"), "is not allowed")
                            .value(other)
                            .allowed("an op's name")),
                        None => Err(SpecError::new(key, "has no op").allowed(allowed)),
                    },
                    other => {
                        Err(SpecError::new(key, "is not allowed").value(other).allowed(allowed))
                    }
                }
            })
            .collect(),
        Some(other) => {
            Err(table.error("transforms", "is not allowed").value(other).allowed(allowed))
        }
    }
}
