//! A loader's figures at one moment, whoever makes its batches.

use std::collections::BTreeMap;

use feedline::internals::tune::{Evidence, Executor, StageCost};
use feedline::stats::Stats;
use serde_json::Value;

/// Counters and levels of a loader.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Reading {
    pub(super) batches: u64,
    pub(super) samples: u64,
    pub(super) failed: u64,
    pub(super) wait_seconds: f64,
    pub(super) step_seconds: f64,
    /// Code of the program reads what it likes: nobody counts it.
    pub(super) bytes_read: Option<u64>,
    pub(super) first_batch_seconds: Option<f64>,
    pub(super) waiting_seconds: Option<f64>,
    pub(super) longest_wait_seconds: f64,
    pub(super) wait_p50_seconds: Option<f64>,
    pub(super) wait_p99_seconds: Option<f64>,
    pub(super) stages: Vec<StageTime>,
    /// Samples that these are of.
    pub(super) timed: f64,
    /// Ready, open, most.
    pub(super) queue: Option<(u64, u64, u64)>,
    /// Used, limit.
    pub(super) memory: Option<(u64, u64)>,
    pub(super) workers: Option<u64>,
    pub(super) executor: Option<String>,
    /// Every number of `Loader.stats()` by its key.
    pub(super) numbers: BTreeMap<String, f64>,
}

/// What a stage took so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StageTime {
    pub(super) name: String,
    /// Of all samples that were timed.
    pub(super) seconds: f64,
}

/// Numbers that are shown of one loader at most: a program may push any.
const NUMBERS: usize = 64;

fn numbers(stats: &Value) -> BTreeMap<String, f64> {
    let entries = stats.as_object().into_iter().flatten();
    let known =
        entries.filter_map(|(key, value)| Some((key.chars().take(40).collect(), value.as_f64()?)));
    known.take(NUMBERS).collect()
}

impl Reading {
    /// Of the engine's own loader.
    pub(super) fn of_engine(stats: &Stats) -> Self {
        let (work, flow) = (&stats.work, &stats.flow);
        let stages = work.parts.iter().map(|part| StageTime {
            name: part.name.to_owned(),
            seconds: part.seconds * work.timed as f64,
        });
        Reading {
            batches: work.batches,
            samples: work.samples,
            failed: work.failed,
            wait_seconds: work.wait_seconds,
            step_seconds: work.step_seconds,
            bytes_read: Some(work.bytes_read),
            first_batch_seconds: work.first_batch_seconds,
            waiting_seconds: work.waiting_seconds,
            longest_wait_seconds: work.longest_wait_seconds,
            wait_p50_seconds: Some(work.waits.p50),
            wait_p99_seconds: Some(work.waits.p99),
            stages: stages.collect(),
            timed: work.timed as f64,
            queue: Some((flow.ready, flow.open, flow.ahead)),
            memory: Some((flow.used, flow.limit)),
            workers: None,
            executor: None,
            numbers: numbers(&stats.to_value()),
        }
    }

    /// Of figures that a program pushed: the keys of `Loader.stats()`, any of which may be missing
    /// or of another type.
    pub(super) fn of_value(value: &Value) -> Self {
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        let seconds = |key: &str| value[key].as_f64().filter(|seconds| seconds.is_finite());
        let samples = count(&value["samples"]);
        let parts = value["seconds_per_sample"].as_object();
        let stages = parts.into_iter().flatten().filter_map(|(name, mean)| {
            let mean = mean.as_f64().filter(|mean| mean.is_finite() && *mean >= 0.0)?;
            let name = name.chars().take(40).collect();
            Some(StageTime { name, seconds: mean * samples as f64 })
        });
        let (queue, memory) = (&value["queue"], &value["memory"]);
        let workers = &value["workers"];
        Reading {
            batches: count(&value["batches"]),
            samples,
            failed: count(&value["failed_samples"]),
            wait_seconds: seconds("wait_seconds").unwrap_or(0.0),
            step_seconds: seconds("step_seconds").unwrap_or(0.0),
            bytes_read: value["read_bytes"].as_u64(),
            first_batch_seconds: seconds("first_batch_seconds"),
            waiting_seconds: None,
            longest_wait_seconds: seconds("longest_wait_seconds").unwrap_or(0.0),
            wait_p50_seconds: seconds("wait_p50_seconds"),
            wait_p99_seconds: seconds("wait_p99_seconds"),
            stages: stages.take(super::history::STAGES).collect(),
            timed: samples as f64,
            queue: queue.is_object().then(|| {
                let at = |key: &str| count(&queue[key]);
                (at("ready"), at("open"), at("most"))
            }),
            memory: memory.is_object().then(|| (count(&memory["used"]), count(&memory["limit"]))),
            workers: workers.as_u64().or_else(|| workers["number"].as_u64()),
            executor: value["executor"]["name"]
                .as_str()
                .map(|name| name.chars().take(40).collect()),
            numbers: numbers(value),
        }
    }

    /// Adds a wait that the figures do not have yet.
    pub(super) fn goes_on_waiting(&mut self, seconds: Option<f64>) {
        self.waiting_seconds = seconds;
        self.wait_seconds += seconds.unwrap_or(0.0);
        self.longest_wait_seconds = self.longest_wait_seconds.max(seconds.unwrap_or(0.0));
    }

    /// Seconds of a sample in each stage since `before`; since the beginning if none was timed.
    pub(super) fn stages_since(&self, before: &Reading) -> Vec<(String, f64)> {
        let timed = self.timed - before.timed;
        let since = self.stages.iter().map(|stage| {
            let old = before.stages.iter().find(|old| old.name == stage.name);
            let mean = if timed > 0.0 {
                (stage.seconds - old.map_or(0.0, |old| old.seconds)).max(0.0) / timed
            } else {
                stage.seconds / self.timed.max(1.0)
            };
            (stage.name.clone(), mean)
        });
        since.collect()
    }

    /// The share of the time that the program waited since `before`, if it did anything.
    pub(super) fn wait_share_since(&self, before: &Reading) -> Option<f64> {
        let wait = (self.wait_seconds - before.wait_seconds).max(0.0);
        let step = (self.step_seconds - before.step_seconds).max(0.0);
        (wait + step > 0.0).then(|| wait / (wait + step))
    }

    /// What is known for a judgement, of a loader that is no engine's.
    pub(super) fn evidence_since(&self, before: &Reading, batch_size: u64) -> Evidence {
        let cost = |(name, seconds)| StageCost { name, seconds, cpu_seconds: seconds };
        let (used, limit) = self.memory.unwrap_or((0, 0));
        Evidence {
            executor: match self.executor.as_deref() {
                Some("processes") => Executor::Processes,
                Some("threads") => Executor::Threads,
                Some("torch") => Executor::Torch,
                _ => Executor::Inline,
            },
            batch_size: batch_size as f64,
            workers: self.workers.unwrap_or(0),
            cores: feedline::internals::tune::cores() as f64,
            batches: self.batches.saturating_sub(before.batches),
            samples: self.samples.saturating_sub(before.samples),
            wait_seconds: (self.wait_seconds - before.wait_seconds).max(0.0),
            step_seconds: (self.step_seconds - before.step_seconds).max(0.0),
            first_batch_seconds: self.first_batch_seconds.filter(|_| before.batches == 0),
            stages: self.stages_since(before).into_iter().map(cost).collect(),
            memory_limit: limit,
            memory_used: used,
            ..Evidence::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pushed_figures_may_be_anything() {
        for text in ["null", "3", "[]", "{\"batches\": \"many\", \"queue\": 7, \"workers\": null}"]
        {
            let mut reading = Reading::of_value(&serde_json::from_str(text).unwrap());
            reading.numbers.clear();
            assert_eq!(reading, Reading::default(), "{text}");
        }
        let reading = Reading::of_value(&json!({
            "batches": 3, "samples": 30, "wait_seconds": 1.5, "executor": {"name": "processes"},
            "seconds_per_sample": {"your code": 0.01, "bad": -1.0}, "workers": {"number": 2},
            "queue": {"ready": 1, "open": 2, "most": 4},
        }));
        assert_eq!(reading.bytes_read, None, "unknown is no zero");
        let shown = [("batches", 3.0), ("samples", 30.0), ("wait_seconds", 1.5)];
        assert_eq!(reading.numbers, shown.map(|(key, value)| (key.to_owned(), value)).into());
        assert_eq!(
            (reading.batches, reading.workers, reading.queue),
            (3, Some(2), Some((1, 2, 4)))
        );
        assert_eq!(reading.stages.len(), 1);
    }

    #[test]
    fn a_window_is_the_difference_of_two_readings() {
        let reading = |samples: f64, mean: f64, wait: f64, step: f64| {
            Reading::of_value(&json!({
                "samples": samples as u64, "seconds_per_sample": {"decode": mean},
                "wait_seconds": wait, "step_seconds": step,
            }))
        };
        let (before, after) = (reading(100.0, 0.001, 1.0, 9.0), reading(200.0, 0.002, 4.0, 10.0));
        let stages = after.stages_since(&before);
        assert!((stages[0].1 - 0.003).abs() < 1e-9, "{stages:?}");
        assert_eq!(after.wait_share_since(&before), Some(0.75));
        assert_eq!(after.wait_share_since(&after), None);
        assert_eq!(after.stages_since(&after)[0].1, 0.002);
        let evidence = after.evidence_since(&before, 10);
        assert_eq!((evidence.samples, evidence.wait_seconds), (100, 3.0));
    }
}
