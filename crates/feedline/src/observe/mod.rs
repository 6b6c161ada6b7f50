//! Counters that the stages bump and people read. They never block the flow.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What a worker spends its time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Getting bytes.
    Read = 0,
    /// Bytes to pixels.
    Decode = 1,
    /// Pixels to the batch.
    Transform = 2,
    /// Fields that are copied as they are.
    Copy = 3,
}

impl Part {
    /// All of them with their names.
    pub const ALL: [(Part, &'static str); 4] = [
        (Part::Read, "read"),
        (Part::Decode, "decode"),
        (Part::Transform, "transform"),
        (Part::Copy, "copy"),
    ];
}

/// Counters of one worker, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct WorkerCounters {
    samples: AtomicU64,
    bytes_read: AtomicU64,
    cache_hits: AtomicU64,
    busy: AtomicU64,
    idle: AtomicU64,
    memory_wait: AtomicU64,
    part_time: [AtomicU64; 4],
    part_count: [AtomicU64; 4],
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl WorkerCounters {
    /// Counts finished samples and the time they took together.
    pub fn finished(&self, samples: u64, time: Duration) {
        self.samples.fetch_add(samples, Relaxed);
        self.busy.fetch_add(nanos(time), Relaxed);
    }

    /// Counts bytes that came from a store.
    pub fn read(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Relaxed);
    }

    /// Counts a sample that came from the cache.
    pub fn cache_hit(&self) {
        self.cache_hits.fetch_add(1, Relaxed);
    }

    /// Counts time without work.
    pub fn idle(&self, time: Duration) {
        self.idle.fetch_add(nanos(time), Relaxed);
    }

    /// Counts time in line for memory.
    pub fn waited_for_memory(&self, time: Duration) {
        self.memory_wait.fetch_add(nanos(time), Relaxed);
    }

    fn part(&self, part: Part, time: Duration) {
        self.part_time[part as usize].fetch_add(nanos(time), Relaxed);
        self.part_count[part as usize].fetch_add(1, Relaxed);
    }
}

/// Times the parts of one sample, or nothing at all: reading the clock four times takes longer
/// than a small array does, so only some samples are timed.
pub struct Stopwatch<'a> {
    counters: &'a WorkerCounters,
    last: Option<Instant>,
}

impl<'a> Stopwatch<'a> {
    /// Starts, if this sample is to be timed.
    #[must_use]
    pub fn start(counters: &'a WorkerCounters, timed: bool) -> Self {
        Stopwatch { counters, last: timed.then(Instant::now) }
    }

    /// What passed since the last lap was spent on `part`; that time, if this sample is timed.
    pub fn lap(&mut self, part: Part) -> Option<Duration> {
        let last = self.last?;
        let now = Instant::now();
        self.counters.part(part, now - last);
        self.last = Some(now);
        Some(now - last)
    }

    /// The counters behind it.
    #[must_use]
    pub fn counters(&self) -> &'a WorkerCounters {
        self.counters
    }
}

/// Counters of the consumer.
#[derive(Debug, Default)]
pub struct ConsumerCounters {
    batches: AtomicU64,
    samples: AtomicU64,
    wait: AtomicU64,
    longest_wait: AtomicU64,
}

impl ConsumerCounters {
    /// Counts a batch and how long the program waited for it.
    pub fn delivered(&self, samples: u64, wait: Duration) {
        self.batches.fetch_add(1, Relaxed);
        self.samples.fetch_add(samples, Relaxed);
        self.wait.fetch_add(nanos(wait), Relaxed);
        self.longest_wait.fetch_max(nanos(wait), Relaxed);
    }
}

/// The mean time of one part of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartFigures {
    /// Its name.
    pub name: &'static str,
    /// Seconds per sample, from the samples that were timed.
    pub seconds: f64,
    /// How many were timed.
    pub timed: u64,
}

/// All counters, added up.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// Batches handed over.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Seconds that the program waited for batches.
    pub wait_seconds: f64,
    /// The longest of these waits.
    pub longest_wait_seconds: f64,
    /// Samples made, also those that were not handed over yet.
    pub samples_made: u64,
    /// Bytes that came from stores.
    pub bytes_read: u64,
    /// Samples that came from the cache.
    pub cache_hits: u64,
    /// Seconds that workers worked, all together.
    pub busy_seconds: f64,
    /// Seconds that workers had nothing to do, all together.
    pub idle_seconds: f64,
    /// Seconds that workers stood in line for memory, all together.
    pub memory_wait_seconds: f64,
    /// Mean times of a sample's parts.
    pub parts: Vec<PartFigures>,
}

/// Adds the counters up.
#[must_use]
pub fn figures(consumer: &ConsumerCounters, workers: &[WorkerCounters]) -> Figures {
    let seconds = |n: u64| n as f64 * 1e-9;
    let sum = |f: &dyn Fn(&WorkerCounters) -> &AtomicU64| {
        workers.iter().map(|w| f(w).load(Relaxed)).sum::<u64>()
    };
    let parts = Part::ALL.into_iter().filter_map(|(part, name)| {
        let timed = sum(&|w| &w.part_count[part as usize]);
        let total = sum(&|w| &w.part_time[part as usize]);
        (timed > 0).then(|| PartFigures { name, seconds: seconds(total) / timed as f64, timed })
    });
    Figures {
        batches: consumer.batches.load(Relaxed),
        samples: consumer.samples.load(Relaxed),
        wait_seconds: seconds(consumer.wait.load(Relaxed)),
        longest_wait_seconds: seconds(consumer.longest_wait.load(Relaxed)),
        samples_made: sum(&|w| &w.samples),
        bytes_read: sum(&|w| &w.bytes_read),
        cache_hits: sum(&|w| &w.cache_hits),
        busy_seconds: seconds(sum(&|w| &w.busy)),
        idle_seconds: seconds(sum(&|w| &w.idle)),
        memory_wait_seconds: seconds(sum(&|w| &w.memory_wait)),
        parts: parts.collect(),
    }
}
