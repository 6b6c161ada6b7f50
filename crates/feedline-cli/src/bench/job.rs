//! What the command and the process that runs batches say to each other, a line of JSON each.

use feedline::internals::tune::{Run, Spread, Workload};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::configurations::Settings;
use crate::host::ObjectFacts;
use crate::pipeline::Keys;

/// What a process is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    /// Say what the target is (Python only).
    Look,
    /// Time the program's own training step.
    TimeStep,
    /// Run batches.
    Run(Workload),
}

/// One process's work. The target is an argument of the process, as names of files need no UTF-8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// What to do.
    pub(crate) task: Task,
    /// The target is Python code.
    pub(crate) python: bool,
    /// Keys of a spec that a bare path gets, those of flags, and `KEY=VALUE`s, as for `run`.
    pub(crate) defaults: Keys,
    pub(crate) flags: Keys,
    pub(crate) sets: Vec<String>,
    /// What this configuration sets.
    pub(crate) settings: Settings,
    /// The program's own step, if that is run.
    pub(crate) step: Option<String>,
    /// Samples of an epoch, if not all.
    pub(crate) samples: Option<u64>,
    /// Spans of a timeline to keep.
    pub(crate) spans: Option<usize>,
}

impl Job {
    /// The keys of a spec that the flags and this configuration set. What is of no spec is left out.
    pub(crate) fn keys(&self) -> Keys {
        let mut keys = self.flags.clone();
        for (key, value) in &self.settings {
            match key.as_str() {
                "device" | "pin_memory" | "format" | "loader" | "persistent_workers" => {}
                "cache" if value == "none" => {
                    keys.remove("cache");
                }
                "cache" => {
                    keys.insert(key.clone(), json!({"hold": value}));
                }
                _ => {
                    keys.insert(key.clone(), value.clone());
                }
            }
        }
        keys
    }

    /// Without a cache, even if the file has one.
    pub(crate) fn is_uncached(&self) -> bool {
        self.settings.get("cache").is_some_and(|cache| cache == "none")
    }
}

/// What a process answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The data is open; batches follow.
    Opened,
    /// So many batches were made in so many seconds.
    Progress(u64, f64),
    /// What the target is.
    Facts(ObjectFacts),
    /// How long a step takes.
    Step(Spread),
    /// The run is over.
    Run(Box<Run>),
    /// It could not be done; why.
    Failed(String),
}
