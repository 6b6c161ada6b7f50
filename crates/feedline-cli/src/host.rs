//! What the command runs inside: its own binary, or a Python interpreter, which can open data sets
//! and training steps that are Python code.

use std::ffi::OsString;
use std::path::Path;

use feedline::internals::tune::{Feed, Spread};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A feed of Python objects that is to be opened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenFeed {
    /// Where it is: `module:name` or `file.py:name`, a data set, a loader, or a function that
    /// returns one.
    pub target: String,
    /// Settings of the loader, such as num_workers, batch_size, executor; and `loader`: "feedline",
    /// "feedline.torch" or "torch", where the target is a data set or torch's DataLoader. Without
    /// `loader`, a loader is taken as it is and a data set goes into feedline's.
    pub settings: serde_json::Map<String, Value>,
    /// The training step, `module:name` or `file.py:name`, if it is the program's own.
    pub step: Option<String>,
    /// Spans to keep of each lane for a timeline, if any.
    pub spans: Option<usize>,
    /// Samples of an epoch: fewer than a data set has, if given. Loaders are taken as they are.
    pub samples: Option<u64>,
}

/// What a Python object is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    /// Has `__len__` and `__getitem__`, or is an iterable data set of torch's.
    #[default]
    Dataset,
    /// torch's DataLoader, or feedline's that takes its place.
    TorchLoader,
    /// Anything else that gives batches.
    Loader,
}

/// What is known of a Python object before it is run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectFacts {
    /// What it is.
    pub kind: ObjectKind,
    /// What its class is called.
    pub name: String,
    /// Samples of an epoch, if it reports them.
    pub samples: Option<u64>,
    /// Samples of a batch, if it is a loader and reports them.
    pub batch_size: Option<u64>,
    /// Workers, if it is a loader and reports them.
    pub workers: Option<u64>,
    /// Whether torch is installed.
    pub torch: bool,
}

/// What only the surroundings can do.
pub trait Host: Sync {
    /// The command line that starts this same command again, to which arguments are added.
    fn command(&self) -> Vec<OsString>;

    /// Opens a feed of Python objects; the message says what is wrong.
    fn open(&self, feed: &OpenFeed) -> Result<Box<dyn Feed>, String>;

    /// Looks at a Python object, `module:name` or `file.py:name`.
    fn look(&self, target: &str) -> Result<ObjectFacts, String>;

    /// Times the program's own training step alone, over one batch again and again.
    fn time_step(&self, feed: &OpenFeed) -> Result<Spread, String>;

    /// Writes out what user code has printed so far and is still held back.
    fn flush_printed(&self) {}
}

/// The command's own binary: there is no Python in it.
pub struct Binary;

fn needs_python<T>(target: &str) -> Result<T, String> {
    Err(format!(
        "{target:?} is Python code, and this is the command without Python: use the one that `pip install feedline` brings, or `python -m feedline`"
    ))
}

impl Host for Binary {
    fn command(&self) -> Vec<OsString> {
        std::env::current_exe().map_or_else(|_| vec!["feedline".into()], |path| vec![path.into()])
    }

    fn open(&self, feed: &OpenFeed) -> Result<Box<dyn Feed>, String> {
        needs_python(&feed.target)
    }

    fn look(&self, target: &str) -> Result<ObjectFacts, String> {
        needs_python(target)
    }

    fn time_step(&self, feed: &OpenFeed) -> Result<Spread, String> {
        needs_python(feed.step.as_deref().unwrap_or(&feed.target))
    }
}

/// True for `module:name`, `package.module:name.of.it` and `folder/file.py:name`. A file or folder
/// that is called so is what it is.
#[must_use]
pub fn is_python(target: &str) -> bool {
    let Some((place, name)) = target.rsplit_once(':') else { return false };
    let is_name = |text: &str| {
        let mut symbols = text.chars();
        symbols.next().is_some_and(|c| c.is_alphabetic() || c == '_')
            && symbols.all(|c| c.is_alphanumeric() || c == '_')
    };
    let dotted = |text: &str| text.split('.').all(is_name);
    dotted(name) && (place.ends_with(".py") || dotted(place)) && !Path::new(target).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_objects_are_distinguished_from_paths() {
        for yes in ["train:make_dataset", "my.package:Set", "a/b-c/train.py:make", "m:a.b", "_m:_n"]
        {
            assert!(is_python(yes), "{yes}");
        }
        for no in
            ["photos", "s3://bucket/x", "http://host:80", "a/b:c", ":name", "m:", "m:1", "1:m"]
        {
            assert!(!is_python(no), "{no}");
        }
    }
}
