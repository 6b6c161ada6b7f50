//! What is known of a run, for those who judge it.

use serde::{Deserialize, Serialize};

/// Who makes the batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Executor {
    /// Threads of the engine, without Python.
    #[default]
    Native,
    /// The program's own thread.
    Inline,
    /// Threads that run Python.
    Threads,
    /// Processes that run Python.
    Processes,
    /// torch's own DataLoader.
    Torch,
}

/// What one stage of a sample costs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageCost {
    /// Its name: read, decode, transform, copy; of Python code what the code is called.
    pub name: String,
    /// Seconds that pass per sample.
    pub seconds: f64,
    /// Of these, seconds on a core.
    pub cpu_seconds: f64,
}

impl StageCost {
    /// Seconds that it waits for something else than a core: bytes, or what the program's own code
    /// waits for. The engine's other work only ever lacks a core, which others have.
    #[must_use]
    pub fn waiting(&self) -> f64 {
        let works = ["decode", "transform", "copy", "collate", "pickle", "hand over"];
        match works.contains(&self.name.as_str()) {
            true => 0.0,
            false => (self.seconds - self.cpu_seconds).max(0.0),
        }
    }
}

/// What workers did, in seconds, all workers added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerTime {
    /// Making samples, waits for bytes included.
    pub busy: f64,
    /// Of these, on a core.
    pub cpu: f64,
    /// Without anything to do.
    pub idle: f64,
    /// Waiting for memory, to make a sample or to begin a batch. Neither busy nor idle.
    pub memory: f64,
}

impl WorkerTime {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.busy + self.idle + self.memory
    }
}

/// Reads of samples, one at a time and several at once. They distinguish a store
/// whose requests take long (several at once take no longer than one) from one that gives few bytes
/// a second (several at once take longer).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadProbe {
    /// Seconds of a read while there is no other.
    pub alone: f64,
    /// Seconds of a read while `readers` read.
    pub together: f64,
    /// How many read at once.
    pub readers: u64,
}

/// Samples a second when parts are taken out of the way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Final batches handed over again: as fast as the trainer could be fed at all.
    pub replayed: Option<f64>,
    /// Encoded samples in memory: preparing only.
    pub prepared: Option<f64>,
    /// Everything real.
    pub real: Option<f64>,
    /// The program's own step, over a batch in hand again and again: what it could use. The only one
    /// with a step.
    pub step: Option<f64>,
}

/// A file, shard or folder whose reads take much longer than those of others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SlowPlace {
    /// Its path.
    pub name: String,
    /// Slow reads of it.
    pub reads: u64,
    /// Other reads of it since the first slow one.
    pub other_reads: u64,
    /// Seconds of one.
    pub seconds: f64,
    /// Seconds of one elsewhere.
    pub elsewhere: f64,
}

/// All that is known of a stretch of a run. What is not known is zero, empty or `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    /// Who makes the batches.
    pub executor: Executor,
    /// Samples of a batch.
    pub batch_size: f64,
    /// Workers; 0 if the program's own thread makes the batches.
    pub workers: u64,
    /// Cores that the process may use.
    pub cores: f64,
    /// Batches that are made ahead of the trainer at most; 0 if that is not known.
    pub ahead: u64,
    /// Batches handed over.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Seconds that the trainer waited for them.
    pub wait_seconds: f64,
    /// Seconds that the trainer used them.
    pub step_seconds: f64,
    /// There is no trainer: batches were asked for as fast as they came.
    pub without_step: bool,
    /// The wait for the very first batch, if it was in this stretch.
    pub first_batch_seconds: Option<f64>,
    /// The mean wait for the first batch of later epochs.
    pub turnover_seconds: Option<f64>,
    /// Later epochs that began.
    pub turnovers: u64,
    /// What a sample costs, in the order of its life.
    pub stages: Vec<StageCost>,
    /// What workers did.
    pub worker_time: WorkerTime,
    /// Bytes read for a sample.
    pub read_bytes_per_sample: f64,
    /// Half of the reads were shorter.
    pub read_p50_seconds: f64,
    /// One read in a hundred was longer.
    pub read_p99_seconds: f64,
    /// How reads do one at a time and several at once, if that was measured.
    pub read_probe: Option<ReadProbe>,
    /// Places that are slow to read, the slowest first.
    pub slow_places: Vec<SlowPlace>,
    /// The share of the time that Python's interpreter lock was held while samples were made.
    pub interpreter_lock: Option<f64>,
    /// Cores of the whole machine that were busy, whoever used them.
    pub machine_cores_busy: Option<f64>,
    /// Cores of the whole machine.
    pub machine_cores: Option<f64>,
    /// Cores that the process and its children kept busy, with the training step.
    pub process_cores: Option<f64>,
    /// Bytes that the loader may hold.
    pub memory_limit: u64,
    /// The same with those that are set aside for caches and for blocks of the data; 0 if that is
    /// not known.
    pub memory_given: u64,
    /// Bytes that it held at the end.
    pub memory_used: u64,
    /// Batches that were thrown away for want of memory and made again.
    pub batches_remade: u64,
    /// Bytes that the process usually had while it was measured; 0 if that is not known.
    pub usual_memory: u64,
    /// The most that it had.
    pub peak_memory: u64,
    /// What images are encoded as: "JPEG", "PNG". Empty if that is not known.
    pub encoding: String,
    /// The path that samples come from; empty if there is none.
    pub source: String,
    /// The pipeline as it was named on the command line, with the flags that change it, to be used in
    /// a command again; empty if it was not.
    pub pipeline: String,
    /// Samples are loose files or rows of a manifest, which `feedline pack` would put together.
    pub loose: bool,
    /// They were packed with a crop index.
    pub crop_index: bool,
    /// The transforms use a part of each image only.
    pub crops: bool,
    /// The shorter side of images, in pixels, that leaves the transforms enough to work on; `None`
    /// if they use images as they are.
    pub stored_side: Option<u32>,
    /// Samples a second with parts out of the way, if that was measured.
    pub ceilings: Ceilings,
    /// Samples a second with decoded images in memory, if that was measured.
    pub without_decoding: Option<f64>,
    /// Samples a second after `feedline pack --crop-index`, if that was measured.
    pub packed: Option<f64>,
    /// What to know of what was measured.
    pub remarks: Vec<String>,
    /// What could not be measured, and why.
    pub not_measured: Vec<String>,
}

impl Evidence {
    /// The share of the time that the trainer waited; 0 if it did nothing yet.
    #[must_use]
    pub fn wait_share(&self) -> f64 {
        let total = self.wait_seconds + self.step_seconds;
        if total > 0.0 { self.wait_seconds / total } else { 0.0 }
    }

    /// Samples a second that the trainer got.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let total = self.wait_seconds + self.step_seconds;
        if total > 0.0 { self.samples as f64 / total } else { 0.0 }
    }

    /// Samples a second that the trainer could use.
    #[must_use]
    pub fn wanted(&self) -> f64 {
        if self.step_seconds > 0.0 {
            self.samples as f64 / self.step_seconds
        } else {
            f64::INFINITY
        }
    }

    /// Cores that other programs kept busy, if that was measured.
    #[must_use]
    pub fn cores_of_others(&self) -> Option<f64> {
        Some((self.machine_cores_busy? - self.process_cores?).max(0.0))
    }

    /// Cores of the process that other programs leave to it, if that was measured; else all of them.
    #[must_use]
    pub(crate) fn cores_left(&self) -> f64 {
        let machine = self.machine_cores.unwrap_or(self.cores).max(self.cores);
        let left = machine - self.cores_of_others().unwrap_or(0.0);
        left.min(self.cores).max(0.0)
    }

    /// Processor time of a sample, all stages together.
    #[must_use]
    pub(crate) fn cpu_of_a_sample(&self) -> f64 {
        self.stages.iter().map(|stage| stage.cpu_seconds).sum()
    }

    /// Packing with a crop index could spare work: of loose JPEGs without one, of which a part is
    /// used.
    #[must_use]
    pub(crate) fn wants_crop_index(&self) -> bool {
        let jpeg = self.encoding.is_empty() || self.encoding == "JPEG";
        self.loose && jpeg && self.crops && !self.crop_index
    }

    /// The stage with the most processor time of a sample, and its share of all.
    #[must_use]
    pub fn heaviest(&self) -> Option<(&StageCost, f64)> {
        let total: f64 = self.stages.iter().map(|stage| stage.cpu_seconds).sum();
        let heaviest = self.stages.iter().max_by(|a, b| a.cpu_seconds.total_cmp(&b.cpu_seconds))?;
        (total > 0.0).then(|| (heaviest, heaviest.cpu_seconds / total))
    }

    /// The stage with the most time of a sample, waits included.
    #[must_use]
    pub(crate) fn heaviest_by_time(&self) -> Option<&StageCost> {
        self.stages.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }
}
