//! The pipeline as plain data.

pub mod read;
pub use read::Table;

/// One op of the transform chain as plain data: its name and its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct OpSpec {
    /// The op's name, as in torchvision.
    pub op: String,
    /// Its parameters by name.
    pub params: serde_json::Map<String, serde_json::Value>,
}
