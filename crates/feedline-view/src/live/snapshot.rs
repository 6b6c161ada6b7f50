//! What is known of a process and its loaders at one moment: what a page, `feedline watch` and
//! Prometheus show.

use std::collections::BTreeMap;

use feedline::internals::tune::Verdict;
use serde::{Deserialize, Serialize};

/// A process with loaders.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its number.
    pub pid: u32,
    /// What was started.
    pub program: String,
    /// Distinguishes one run of a program from the next one that has its number.
    pub session: String,
    /// The number of the second, counted since sampling began.
    pub tick: u64,
    /// Seconds since 1970.
    pub time: f64,
    /// Bytes of the process and its children.
    pub memory: u64,
    /// Cores that the process and its children kept busy lately.
    pub cores_busy: Option<f64>,
    /// Cores that it may use.
    pub cores: u64,
    /// Its open loaders, oldest first.
    pub loaders: Vec<LoaderNow>,
    /// Open loaders that are not shown: those used last are.
    #[serde(default)]
    pub hidden: u64,
}

impl Snapshot {
    /// The loader that hands over the most samples lately; the first one of several.
    #[must_use]
    pub fn busiest(&self) -> Option<&LoaderNow> {
        let all = self.loaders.iter();
        all.reduce(
            |best, one| {
                if one.samples_per_second > best.samples_per_second { one } else { best }
            },
        )
    }

    /// The loader with this number, or the one that came after it.
    #[must_use]
    pub fn successor(&self, id: u64) -> Option<&LoaderNow> {
        let own = self.loaders.iter().find(|loader| loader.id == id);
        own.or_else(|| self.loaders.iter().find(|loader| loader.earlier.contains(&id)))
    }
}

/// A loader. Rates are of the last seconds, counts since it began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoaderNow {
    /// Its number in the process.
    pub id: u64,
    /// The numbers of closed loaders of the same name, whose history it goes on with.
    #[serde(default)]
    pub earlier: Vec<u64>,
    /// What it reads.
    pub name: String,
    /// Who makes the batches, if Python code does: threads, processes, inline.
    pub executor: Option<String>,
    /// Workers.
    pub workers: u64,
    /// Samples of a batch.
    pub batch_size: u64,
    /// Batches handed over.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Samples handed over in a second.
    pub samples_per_second: f64,
    /// Bytes read in a second, if the loader knows what it reads.
    pub bytes_per_second: Option<f64>,
    /// Bytes read.
    pub bytes_read: Option<u64>,
    /// The share of the time that the program waited lately, if it asked for a batch.
    pub wait_share: Option<f64>,
    /// Seconds that it waited.
    pub wait_seconds: f64,
    /// Seconds that it used batches.
    pub step_seconds: f64,
    /// Half of the waits were shorter.
    pub wait_p50_seconds: Option<f64>,
    /// One wait in a hundred was longer.
    pub wait_p99_seconds: Option<f64>,
    /// The longest wait.
    pub longest_wait_seconds: f64,
    /// Seconds of the wait that goes on, if the program waits and the loader reports it.
    #[serde(default)]
    pub waiting_seconds: Option<f64>,
    /// Seconds since a batch was handed over, if that is long ago.
    pub silent_seconds: Option<f64>,
    /// The queue of finished batches, if it is known.
    pub queue: Option<Queue>,
    /// Memory against its budget, if there is one.
    pub memory: Option<Memory>,
    /// What a sample costs lately, in the order of its life.
    pub stages: Vec<Stage>,
    /// Distinct samples that failed and were replaced.
    pub failed: u64,
    /// The latest of them, newest first, if there is a file that lists them.
    pub quarantined: Vec<Quarantined>,
    /// Why the trainer waits.
    pub verdict: Option<Verdict>,
    /// Every number of `Loader.stats()` by its key, so that a new one is there at once.
    #[serde(default)]
    pub numbers: BTreeMap<String, f64>,
}

/// Batches between the workers and the program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Done, waiting for the program.
    pub ready: u64,
    /// Done or in the making.
    pub open: u64,
    /// How many may be open.
    pub most: u64,
}

/// Bytes of a loader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Held.
    pub used: u64,
    /// May be held.
    pub limit: u64,
}

/// A stage of a sample's life.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Its name.
    pub name: String,
    /// Seconds of a sample.
    pub seconds: f64,
}

/// A sample that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// Which one.
    pub name: String,
    /// Why.
    pub reason: String,
}
