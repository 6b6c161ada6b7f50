//! Counters that the stages bump and people read.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::clock::thread_cpu;
use super::histogram::{Histogram, Quantiles};
use super::timeline::{Activity, Lane, Span, Timeline};

/// What a worker spends its time on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkPart {
    /// Getting bytes.
    Read = 0,
    /// Bytes to pixels.
    Decode = 1,
    /// Pixels to the batch.
    Transform = 2,
    /// Fields that are copied as they are.
    Copy = 3,
}

impl WorkPart {
    /// All of them with their names.
    pub(crate) const ALL: [(WorkPart, &'static str); 4] = [
        (WorkPart::Read, "read"),
        (WorkPart::Decode, "decode"),
        (WorkPart::Transform, "transform"),
        (WorkPart::Copy, "copy"),
    ];

    fn activity(self) -> Activity {
        match self {
            WorkPart::Read => Activity::Read,
            WorkPart::Decode => Activity::Decode,
            WorkPart::Transform => Activity::Transform,
            WorkPart::Copy => Activity::Copy,
        }
    }
}

/// Time that passed, and how much of it the thread had a core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// Time that passed.
    pub wall: Duration,
    /// Time on a core.
    pub cpu: Duration,
}

/// Counters of one worker, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct WorkerCounters {
    samples: AtomicU64,
    bytes_read: AtomicU64,
    cache_hits: AtomicU64,
    busy: AtomicU64,
    cpu: AtomicU64,
    idle: AtomicU64,
    memory_wait: AtomicU64,
    part_time: [AtomicU64; 4],
    timed: AtomicU64,
    read_cpu: AtomicU64,
    read_cpu_of: AtomicU64,
    reads: Histogram,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl WorkerCounters {
    /// Counts finished samples and the time they took together.
    pub(crate) fn finished(&self, samples: u64, times: Times) {
        self.samples.fetch_add(samples, Relaxed);
        self.busy.fetch_add(nanos(times.wall), Relaxed);
        self.cpu.fetch_add(nanos(times.cpu), Relaxed);
    }

    /// Counts bytes that came from a store.
    pub(crate) fn read(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Relaxed);
    }

    /// Counts a sample that came from the cache.
    pub(crate) fn cache_hit(&self) {
        self.cache_hits.fetch_add(1, Relaxed);
    }

    /// Counts time without work.
    pub(crate) fn idle(&self, time: Duration) {
        self.idle.fetch_add(nanos(time), Relaxed);
    }

    /// Counts time in line for memory.
    pub(crate) fn waited_for_memory(&self, time: Duration) {
        self.memory_wait.fetch_add(nanos(time), Relaxed);
    }

    /// Counts the time of a part of samples that are timed.
    pub(crate) fn part(&self, part: WorkPart, time: Duration) {
        self.part_time[part as usize].fetch_add(nanos(time), Relaxed);
    }
}

/// How closely a sample is looked at. Reading the clock four times takes longer than a small array
/// does, and asking for a thread's processor time is a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Not at all.
    Away,
    /// The time of each part.
    Times,
    /// Also how much of the reading was spent on a core.
    Cores,
}

/// Times the parts of one sample.
pub(crate) struct Stopwatch<'a> {
    counters: &'a WorkerCounters,
    last: Option<Instant>,
    cpu: Option<Duration>,
    recorder: Option<(&'a Timeline, &'a Lane, u64)>,
}

impl<'a> Stopwatch<'a> {
    /// Starts. A timeline's spans are of the worker `lane` and of the batch with this number.
    #[must_use]
    pub(crate) fn start(
        counters: &'a WorkerCounters,
        look: Look,
        recorder: Option<(&'a Timeline, &'a Lane, u64)>,
    ) -> Self {
        let timed = look != Look::Away || recorder.is_some();
        Stopwatch {
            counters,
            last: timed.then(Instant::now),
            cpu: (look == Look::Cores).then(thread_cpu),
            recorder,
        }
    }

    /// What passed since the last lap was spent on `part`; that time, if this sample is timed.
    pub(crate) fn lap(&mut self, part: WorkPart) -> Option<Duration> {
        let last = self.last?;
        let now = Instant::now();
        let time = now - last;
        self.counters.part(part, time);
        if part == WorkPart::Read {
            self.counters.reads.add(time);
            if let Some(before) = self.cpu.take() {
                let cpu = thread_cpu().saturating_sub(before);
                self.counters.read_cpu.fetch_add(nanos(cpu), Relaxed);
                self.counters.read_cpu_of.fetch_add(nanos(time), Relaxed);
            }
        }
        if let Some((timeline, lane, batch)) = self.recorder {
            let (begin, end) = (timeline.at(last), timeline.at(now));
            lane.push(Span { activity: part.activity(), begin, end, batch });
        }
        self.last = Some(now);
        Some(time)
    }

    /// The sample is made. A part may have had several laps, one for each field, or none, as with
    /// what is kept in memory: its time is of a sample all the same.
    pub(crate) fn finished(&self) {
        if self.last.is_some() {
            self.counters.timed.fetch_add(1, Relaxed);
        }
    }

    /// The counters behind it.
    #[must_use]
    pub(crate) fn counters(&self) -> &'a WorkerCounters {
        self.counters
    }
}

/// Counters of the consumer.
#[derive(Debug, Default)]
pub(crate) struct ConsumerCounters {
    batches: AtomicU64,
    samples: AtomicU64,
    wait: AtomicU64,
    longest_wait: AtomicU64,
    first_batch: AtomicU64,
    step: AtomicU64,
    used: AtomicU64,
    epochs: AtomicU64,
    turnover: AtomicU64,
    failed: AtomicU64,
    /// When the program began to wait for the batch that it waits for now; 0 if it does not.
    asked: AtomicU64,
    /// How long it has waited for it in calls that were called off, if it does not wait now.
    called_off: AtomicU64,
    waits: Histogram,
}

/// Nanoseconds since long before the first time that this was asked for.
fn clock() -> u64 {
    static BEGINNING: OnceLock<Instant> = OnceLock::new();
    nanos(BEGINNING.get_or_init(Instant::now).elapsed()).saturating_add(1 << 62)
}

impl ConsumerCounters {
    /// The program begins to wait for a batch, after it has waited for so long in calls that were
    /// called off.
    pub(crate) fn asks(&self, waited: Duration) {
        self.asked.store(clock().saturating_sub(nanos(waited)).max(1), Relaxed);
    }

    /// The program does not wait any more, for now; it has waited for so long.
    pub(crate) fn stops_asking(&self, waited: Duration) {
        self.called_off.store(nanos(waited), Relaxed);
        self.asked.store(0, Relaxed);
    }

    /// How long the program has been waiting for the next batch, if it does or did.
    fn waiting(&self) -> Option<Duration> {
        let waited = match self.asked.load(Relaxed) {
            0 => self.called_off.load(Relaxed),
            asked => clock().saturating_sub(asked),
        };
        (waited > 0).then(|| Duration::from_nanos(waited))
    }

    /// Counts a batch and how long the program waited for it. `begins` an epoch: the wait for such
    /// a batch is also counted on its own, the very first one apart from those that follow.
    pub(crate) fn delivered(&self, samples: u64, wait: Duration, begins: bool) {
        self.stops_asking(Duration::ZERO);
        let first = self.batches.fetch_add(1, Relaxed) == 0;
        self.samples.fetch_add(samples, Relaxed);
        self.wait.fetch_add(nanos(wait), Relaxed);
        self.longest_wait.fetch_max(nanos(wait), Relaxed);
        self.waits.add(wait);
        if first {
            self.first_batch.store(nanos(wait).max(1), Relaxed);
        } else if begins {
            self.epochs.fetch_add(1, Relaxed);
            self.turnover.fetch_add(nanos(wait), Relaxed);
        }
    }

    /// So many distinct samples have failed by now.
    pub(crate) fn failed(&self, samples: u64) {
        self.failed.store(samples, Relaxed);
    }

    /// Counts the time that the program used a batch of so many samples.
    pub(crate) fn stepped(&self, samples: u64, time: Duration) {
        self.used.fetch_add(samples, Relaxed);
        self.step.fetch_add(nanos(time), Relaxed);
    }
}

/// The mean time of one part of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PartStats {
    /// Its name.
    pub name: &'static str,
    /// Seconds per sample, from the samples that were timed.
    pub seconds: f64,
}

/// All counters, added up.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct WorkStats {
    /// Batches handed over.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Seconds that the program waited for batches, with the wait that goes on.
    pub wait_seconds: f64,
    /// Seconds of the wait that goes on.
    pub waiting_seconds: Option<f64>,
    /// The longest of these waits.
    pub longest_wait_seconds: f64,
    /// Distinct samples that failed.
    pub failed: u64,
    /// How long the waits for a batch were.
    pub waits: Quantiles,
    /// The wait for the very first batch.
    pub first_batch_seconds: Option<f64>,
    /// Seconds that the program used batches, from each one until it asked for more.
    pub step_seconds: f64,
    /// Samples in these batches.
    pub used: u64,
    /// Later epochs that began, and the seconds that the program waited for their first batches.
    pub turnovers: (u64, f64),
    /// Samples made, also those that were not handed over yet.
    pub samples_made: u64,
    /// Bytes that came from stores.
    pub bytes_read: u64,
    /// Samples that came from the cache.
    pub cache_hits: u64,
    /// Seconds that workers worked, all together.
    pub busy_seconds: f64,
    /// Of these, seconds on a core.
    pub cpu_seconds: f64,
    /// Of some reads: the seconds that they spent on a core, and that they took.
    pub read_cpu: (f64, f64),
    /// How long the reads of samples took, as counts of a [`Histogram`].
    pub reads: Vec<u64>,
    /// Seconds that workers had nothing to do, all together.
    pub idle_seconds: f64,
    /// Seconds that workers stood in line for memory, all together.
    pub memory_wait_seconds: f64,
    /// Samples whose parts were timed.
    pub timed: u64,
    /// Mean times of a sample's parts.
    pub parts: Vec<PartStats>,
}

/// Adds the counters up.
#[must_use]
pub(crate) fn figures(consumer: &ConsumerCounters, workers: &[WorkerCounters]) -> WorkStats {
    let seconds = |n: u64| n as f64 * 1e-9;
    let sum = |f: &dyn Fn(&WorkerCounters) -> &AtomicU64| {
        workers.iter().map(|w| f(w).load(Relaxed)).sum::<u64>()
    };
    let mut reads = vec![0; 0];
    for worker in workers {
        let counts = worker.reads.counts();
        reads.resize(counts.len(), 0);
        reads.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let (read_cpu, read_cpu_of) = (sum(&|w| &w.read_cpu), sum(&|w| &w.read_cpu_of));
    let first = consumer.first_batch.load(Relaxed);
    let waiting = consumer.waiting().map(|time| time.as_secs_f64());
    let longest = seconds(consumer.longest_wait.load(Relaxed));
    let timed = sum(&|w| &w.timed);
    let parts = WorkPart::ALL.into_iter().filter_map(|(part, name)| {
        let total = sum(&|w| &w.part_time[part as usize]);
        let known = timed > 0 && total > 0;
        known.then(|| PartStats { name, seconds: seconds(total) / timed as f64 })
    });
    WorkStats {
        batches: consumer.batches.load(Relaxed),
        samples: consumer.samples.load(Relaxed),
        wait_seconds: seconds(consumer.wait.load(Relaxed)) + waiting.unwrap_or(0.0),
        waiting_seconds: waiting,
        longest_wait_seconds: longest.max(waiting.unwrap_or(0.0)),
        failed: consumer.failed.load(Relaxed),
        waits: consumer.waits.quantiles_since(&[]).at_most(longest),
        first_batch_seconds: (first > 0).then(|| seconds(first)),
        step_seconds: seconds(consumer.step.load(Relaxed)),
        used: consumer.used.load(Relaxed),
        turnovers: (consumer.epochs.load(Relaxed), seconds(consumer.turnover.load(Relaxed))),
        samples_made: sum(&|w| &w.samples),
        bytes_read: sum(&|w| &w.bytes_read),
        cache_hits: sum(&|w| &w.cache_hits),
        busy_seconds: seconds(sum(&|w| &w.busy)),
        cpu_seconds: seconds(sum(&|w| &w.cpu)),
        read_cpu: (seconds(read_cpu), seconds(read_cpu_of)),
        reads,
        idle_seconds: seconds(sum(&|w| &w.idle)),
        memory_wait_seconds: seconds(sum(&|w| &w.memory_wait)),
        timed,
        parts: parts.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_of_a_sample_however_often_it_is_met() {
        let worker = WorkerCounters::default();
        for read in [20, 0] {
            worker.part(WorkPart::Read, Duration::from_millis(read));
            (0..9).for_each(|_| worker.part(WorkPart::Copy, Duration::from_millis(1)));
            Stopwatch::start(&worker, Look::Times, None).finished();
        }
        Stopwatch::start(&worker, Look::Away, None).finished();
        let found = figures(&ConsumerCounters::default(), &[worker]);
        assert_eq!(found.timed, 2);
        let of = |name| found.parts.iter().find(|part| part.name == name).unwrap().seconds;
        // All fields of a sample; and one of two was read.
        assert!((of("copy") - 0.009).abs() < 1e-9, "{found:?}");
        assert!((of("read") - 0.01).abs() < 1e-9, "{found:?}");
        assert_eq!(found.parts.len(), 2);
    }

    #[test]
    fn a_wait_counts_while_it_goes_on() {
        let consumer = ConsumerCounters::default();
        assert_eq!(figures(&consumer, &[]).waiting_seconds, None);
        consumer.asks(Duration::from_secs(100));
        let during = figures(&consumer, &[]);
        assert!(during.wait_seconds >= 100.0 && during.longest_wait_seconds >= 100.0);
        assert_eq!((during.waiting_seconds, during.batches), (Some(during.wait_seconds), 0));
        consumer.delivered(4, Duration::from_secs(101), true);
        let after = figures(&consumer, &[]);
        assert_eq!((after.wait_seconds, after.waiting_seconds), (101.0, None));
        consumer.asks(Duration::ZERO);
        consumer.stops_asking(Duration::from_secs(2));
        assert_eq!(figures(&consumer, &[]).wait_seconds, 103.0, "called off, and not lost");
        consumer.stops_asking(Duration::ZERO);
        assert_eq!(figures(&consumer, &[]), after);
    }
}
