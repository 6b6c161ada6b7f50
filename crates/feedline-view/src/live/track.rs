//! One loader as it is followed from second to second.

use std::collections::VecDeque;

use feedline::internals::tune::{Evidence, Verdict, judge};
use feedline::stats::Stats;
use serde_json::Value;

use super::board::{About, Look};
use super::history::{History, Point, STAGES};
use super::reading::Reading;
use super::snapshot::{LoaderNow, Memory, Quarantined, Queue, Stage};

/// Rates are over so many seconds, or as many more as lie between two batches.
const RATE_WINDOW: f64 = 5.0;

/// Moments at which batches came that are kept: more than there are looks in the window.
const ARRIVALS: usize = 16;

/// A verdict is over so many seconds.
const VERDICT_WINDOW: f64 = 30.0;

/// Numbers of earlier loaders that are kept: more than end between two looks of a page.
const EARLIER: usize = 16;

/// Silence for so many seconds is worth a word.
const SILENCE: f64 = 10.0;

/// A loader's figures at one moment.
struct Moment {
    /// Seconds since sampling began.
    at: f64,
    reading: Reading,
    stats: Option<Stats>,
}

/// When batches were first seen, and what was known then.
struct Arrival {
    at: f64,
    reading: Reading,
}

/// Before the first batch.
fn never() -> Moment {
    Moment { at: 0.0, reading: Reading::default(), stats: Some(Stats::default()) }
}

/// What is known of the process in this second.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Second {
    pub(super) tick: u64,
    /// Seconds since sampling began.
    pub(super) at: f64,
    /// Seconds since 1970.
    pub(super) time: f64,
    pub(super) process_memory: u64,
}

/// A loader's last half minute, its hour and its verdict.
pub(super) struct Track {
    pub(super) id: u64,
    /// Those whose history this one goes on with, the latest last.
    earlier: Vec<u64>,
    about: About,
    recent: VecDeque<Moment>,
    arrivals: VecDeque<Arrival>,
    pub(super) history: History,
    pub(super) stage_names: Vec<String>,
    /// When the last batch was seen.
    handed_over: f64,
    /// Seconds that the program waited, the most that was seen since counting began: a wait that
    /// goes on is counted before it is in the loader's own figures, and a counter must not fall
    /// between the two.
    waited: f64,
    now: Option<LoaderNow>,
    verdict: Option<Verdict>,
}

impl Track {
    pub(super) fn new(id: u64, about: About) -> Self {
        Track {
            id,
            earlier: Vec::new(),
            about,
            recent: VecDeque::new(),
            arrivals: VecDeque::new(),
            history: History::new(),
            stage_names: Vec::new(),
            handed_over: 0.0,
            waited: 0.0,
            now: None,
            verdict: None,
        }
    }

    pub(super) fn now(&self) -> Option<&LoaderNow> {
        self.now.as_ref()
    }

    /// It has handed over nothing yet.
    pub(super) fn is_unused(&self) -> bool {
        self.now.as_ref().is_none_or(|now| now.batches == 0)
    }

    /// Goes on with the history of a loader that is closed.
    pub(super) fn inherit(&mut self, old: Track) {
        (self.history, self.stage_names) = (old.history, old.stage_names);
        self.earlier = old.earlier;
        self.earlier.push(old.id);
        self.earlier.drain(..self.earlier.len().saturating_sub(EARLIER));
    }

    /// How well a loader that says this of itself could go on with this one's work: `None` if it
    /// reads something else, 1 if it makes other batches of it.
    pub(super) fn distance(&self, about: &About) -> Option<u8> {
        let other = u8::from(self.about.batch_size != about.batch_size);
        (self.about.name == about.name).then_some(other)
    }

    /// Takes in what a look showed. `age` are the seconds since the loader was made, which rates
    /// are over before there is an earlier look.
    pub(super) fn add(&mut self, second: Second, look: Look, age: f64, bad: Vec<Quarantined>) {
        let (reading, stats) = match &look {
            Look::Engine(_, stats) => (Reading::of_engine(stats), Some((**stats).clone())),
            Look::Pushed(value, waiting) => {
                let mut reading = Reading::of_value(value);
                reading.goes_on_waiting(*waiting);
                if value["samples"].is_null() {
                    reading.samples = reading.batches.saturating_mul(self.about.batch_size);
                }
                (reading, None)
            }
        };
        // A loader may count from zero again, as with each epoch of torch's.
        if self.recent.back().is_some_and(|last| last.reading.batches > reading.batches) {
            let at = self.recent.back().map_or(second.at, |last| last.at);
            self.recent.clear();
            self.recent.push_back(Moment { at, ..never() });
            self.arrivals = [Arrival { at, reading: Reading::default() }].into();
            self.waited = 0.0;
        }
        self.waited = self.waited.max(reading.wait_seconds);
        if self.arrivals.back().is_none_or(|last| last.reading.batches != reading.batches) {
            if self.arrivals.len() == ARRIVALS {
                self.arrivals.pop_front();
            }
            self.arrivals.push_back(Arrival { at: second.at, reading: reading.clone() });
            self.handed_over = second.at;
        }
        let silent = second.at - self.handed_over;
        let born = Moment { at: second.at - age.max(0.001), ..never() };
        let rated = self.since(second.at - RATE_WINDOW).unwrap_or(&born);
        let passed = (second.at - rated.at).max(0.001);
        let bytes_per_second = reading
            .bytes_read
            .map(|all| all.saturating_sub(rated.reading.bytes_read.unwrap_or(0)) as f64 / passed);
        let counted = self.counted_from(second.at - RATE_WINDOW, &reading);
        let counted = counted.map_or((born.at, &born.reading), |first| (first.at, &first.reading));
        let samples_per_second = self.rate_since(counted.0, counted.1, second.at, &reading);
        // Of a long silence nothing is known, unless the wait that goes on is.
        let moves = silent < SILENCE || reading.wait_share_since(&rated.reading).is_some();
        let wait_share = reading.wait_share_since(counted.1).filter(|_| moves);
        let stages = reading.stages_since(&rated.reading);

        let judged = self.since(second.at - VERDICT_WINDOW).unwrap_or(&born);
        if let Some(verdict) = verdict(&look, &reading, judged, self.about.batch_size) {
            self.verdict = Some(verdict);
        }
        for (name, _) in &stages {
            if !self.stage_names.contains(name) && self.stage_names.len() < STAGES {
                self.stage_names.push(name.clone());
            }
        }
        let mut times = [f32::NAN; STAGES];
        for (time, name) in times.iter_mut().zip(&self.stage_names) {
            let stage = stages.iter().find(|(other, _)| other == name);
            *time = stage.map_or(f32::NAN, |(_, seconds)| *seconds as f32);
        }
        let (ready, most) = reading
            .queue
            .map_or((f32::NAN, f32::NAN), |(ready, _, most)| (ready as f32, most as f32));
        // A limit of zero is none.
        let (used, limit) = reading.memory.map_or((f32::NAN, f32::NAN), |(used, limit)| {
            (used as f32, if limit == 0 { f32::NAN } else { limit as f32 })
        });
        self.history.push(Point {
            tick: second.tick,
            time: second.time,
            samples_per_second: samples_per_second as f32,
            wait_share: wait_share.map_or(f32::NAN, |share| share as f32),
            ready,
            most,
            bytes_per_second: bytes_per_second.map_or(f32::NAN, |rate| rate as f32),
            memory_used: used,
            memory_limit: limit,
            process_memory: second.process_memory as f32,
            stages: times,
        });
        let workers = match &look {
            Look::Engine(monitor, _) => monitor.workers(),
            Look::Pushed(..) => reading.workers.unwrap_or(0),
        };
        self.now = Some(LoaderNow {
            id: self.id,
            earlier: self.earlier.clone(),
            name: self.about.name.clone(),
            executor: reading.executor.clone(),
            workers,
            batch_size: self.about.batch_size,
            batches: reading.batches,
            samples: reading.samples,
            samples_per_second,
            bytes_per_second,
            bytes_read: reading.bytes_read,
            wait_share,
            wait_seconds: self.waited,
            step_seconds: reading.step_seconds,
            wait_p50_seconds: reading.wait_p50_seconds,
            wait_p99_seconds: reading.wait_p99_seconds,
            waiting_seconds: reading.waiting_seconds,
            longest_wait_seconds: reading.longest_wait_seconds,
            silent_seconds: (silent >= SILENCE).then_some(silent),
            queue: reading.queue.map(|(ready, open, most)| Queue { ready, open, most }),
            memory: reading.memory.map(|(used, limit)| Memory { used, limit }),
            stages: stages.into_iter().map(|(name, seconds)| Stage { name, seconds }).collect(),
            failed: reading.failed,
            quarantined: bad,
            verdict: self.verdict.clone(),
            numbers: reading.numbers.clone(),
        });
        self.recent.push_back(Moment { at: second.at, reading, stats });
        while self.recent.front().is_some_and(|oldest| oldest.at < second.at - VERDICT_WINDOW - 2.0)
        {
            self.recent.pop_front();
        }
    }

    /// Where the counting of what `reading` has more begins: with the latest batch that came not
    /// after `at`, or with the first one that is known. From batch to batch, a rate does not depend
    /// on how many of them happen to fall into the window.
    fn counted_from(&self, at: f64, reading: &Reading) -> Option<&Arrival> {
        let earlier = |arrival: &&Arrival| arrival.reading.batches < reading.batches;
        let before = self.arrivals.iter().rev().find(|a| a.at <= at && earlier(a));
        before.or_else(|| self.arrivals.front().filter(earlier))
    }

    /// Samples a second from `since` to the last batch. Once the next batch is later than the ones
    /// before it were, the time until `now` counts too.
    fn rate_since(&self, since: f64, first: &Reading, now: f64, reading: &Reading) -> f64 {
        let batches = reading.batches.saturating_sub(first.batches);
        if batches == 0 {
            return 0.0;
        }
        let length = (self.handed_over - since).max(0.001);
        let late = (now - self.handed_over - length / batches as f64).max(0.0);
        reading.samples.saturating_sub(first.samples) as f64 / (length + late)
    }

    /// The latest moment that is not after `at`, or the oldest there is.
    fn since(&self, at: f64) -> Option<&Moment> {
        self.recent.iter().rev().find(|moment| moment.at <= at).or_else(|| self.recent.front())
    }
}

/// Of a stretch in which batches came; otherwise what was said before stands.
fn verdict(look: &Look, reading: &Reading, before: &Moment, batch_size: u64) -> Option<Verdict> {
    let evidence = match look {
        Look::Engine(monitor, _) => monitor.evidence_since(before.stats.as_ref()?),
        Look::Pushed(value, _) => {
            if let Some(verdict) = given(&value["verdict"]) {
                return Some(verdict);
            }
            let given: Option<Evidence> = given(&value["evidence"]);
            given.unwrap_or_else(|| reading.evidence_since(&before.reading, batch_size))
        }
    };
    (evidence.batches > 0).then(|| judge(&evidence))
}

/// What the program said itself, if it said it.
fn given<T: serde::de::DeserializeOwned>(value: &Value) -> Option<T> {
    if value.is_object() { serde_json::from_value(value.clone()).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn about() -> About {
        About { name: "photos".to_owned(), batch_size: 10, quarantine: None }
    }

    fn look(batches: u64, wait: f64, step: f64) -> Look {
        let stats = json!({
            "batches": batches, "samples": batches * 10, "wait_seconds": wait, "step_seconds": step,
            "executor": {"name": "threads"}, "workers": {"number": 3},
            "seconds_per_sample": {"decode": 0.01},
        });
        Look::Pushed(stats, None)
    }

    fn second(tick: u64) -> Second {
        Second { tick, at: tick as f64, time: 1.7e9 + tick as f64, process_memory: 1 << 30 }
    }

    #[test]
    fn the_first_look_tells_of_the_whole_life() {
        let mut track = Track::new(3, about());
        track.add(second(0), look(20, 1.0, 3.0), 4.0, Vec::new());
        let now = track.now().unwrap();
        assert_eq!((now.id, now.batches, now.workers), (3, 20, 3));
        assert!((now.samples_per_second - 50.0).abs() < 1e-6);
        assert_eq!(now.wait_share, Some(0.25));
        assert!(now.verdict.is_some());
    }

    #[test]
    fn what_is_not_known_is_not_zero() {
        let columns = |more: Value| {
            let mut track = Track::new(0, about());
            let Look::Pushed(mut stats, _) = look(20, 1.0, 3.0) else { panic!("it is pushed") };
            more.as_object().into_iter().flatten().for_each(|(k, v)| stats[k] = v.clone());
            track.add(second(0), Look::Pushed(stats, None), 4.0, Vec::new());
            let all = track.history.columns(None, &[]);
            let last = |key: &str| all[key].as_array().unwrap().last().unwrap().clone();
            (track.now().unwrap().bytes_per_second, last("bytes_per_second"), last("memory_limit"))
        };
        let unlimited = json!({"memory": {"used": 5, "limit": 0}});
        assert_eq!(columns(unlimited), (None, Value::Null, Value::Null));
        let known = json!({"read_bytes": 400, "memory": {"used": 5, "limit": 9}});
        assert_eq!(columns(known).1, 100.0);
    }

    #[test]
    fn rates_are_of_the_last_seconds() {
        let mut track = Track::new(0, about());
        // A hundred a second, then ten a second with much waiting.
        for tick in 0..60 {
            track.add(second(tick), look(tick * 10, 0.0, tick as f64), 1.0, Vec::new());
        }
        for tick in 60..80 {
            let (batches, wait) = (590 + (tick - 59), (tick - 59) as f64);
            track.add(second(tick), look(batches, wait, 59.0), 1.0, Vec::new());
        }
        let now = track.now().unwrap();
        assert!((now.samples_per_second - 10.0).abs() < 1e-6, "{}", now.samples_per_second);
        assert_eq!(now.wait_share, Some(1.0));
        assert_eq!(now.silent_seconds, None);
        assert_eq!(track.history.len(), 80);
        assert!(track.recent.len() < 40);
    }

    #[test]
    fn counting_from_zero_again_is_no_flood() {
        let mut track = Track::new(0, about());
        (0..20).for_each(|tick| track.add(second(tick), look(tick, 0.0, 1.0), 1.0, Vec::new()));
        (20..23)
            .for_each(|tick| track.add(second(tick), look(tick - 19, 0.0, 1.0), 1e6, Vec::new()));
        let now = track.now().unwrap();
        assert!((now.samples_per_second - 10.0).abs() < 1e-6, "{}", now.samples_per_second);
    }

    #[test]
    fn silence_is_reported_and_the_verdict_stands() {
        let mut track = Track::new(0, about());
        for tick in 0..100 {
            track.add(second(tick), look(tick.min(20), tick.min(20) as f64, 1.0), 1.0, Vec::new());
        }
        let now = track.now().unwrap();
        assert!(now.samples_per_second < 0.2, "{}", now.samples_per_second);
        assert_eq!(now.wait_share, None);
        assert_eq!(now.silent_seconds, Some(79.0));
        assert!(now.verdict.as_ref().unwrap().wait_share > 0.5);
    }

    #[test]
    fn slow_batches_have_a_steady_rate() {
        for every in [3, 4, 7, 9, 45] {
            let mut track = Track::new(0, about());
            for tick in 0..200 {
                let batches = tick / every;
                let (wait, step) = (batches as f64, (batches * (every - 1)) as f64);
                track.add(second(tick), look(batches, wait, step), 1.0, Vec::new());
                if tick >= 3 * every {
                    let now = track.now().unwrap();
                    let expected = 10.0 / every as f64;
                    assert!(
                        (now.samples_per_second - expected).abs() < 1e-6,
                        "a batch in {every} s, second {tick}: {}",
                        now.samples_per_second
                    );
                    let share = now.wait_share.filter(|_| tick % every < 10);
                    assert!(
                        share.is_none_or(|share| (share - 1.0 / every as f64).abs() < 1e-6),
                        "{share:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_count_of_waits_never_falls() {
        let mut track = Track::new(0, about());
        let mut counted = |tick, batches, wait, waiting| {
            let Look::Pushed(stats, _) = look(batches, wait, 1.0) else { panic!("it is pushed") };
            track.add(second(tick), Look::Pushed(stats, waiting), 1.0, Vec::new());
            track.now().unwrap().wait_seconds
        };
        // The wait of nine seconds is over, and what is pushed last does not have it yet.
        let (during, after) = (counted(0, 5, 1.0, Some(9.0)), counted(1, 5, 1.0, None));
        assert_eq!((during, after, counted(2, 7, 10.5, None)), (10.0, 10.0, 10.5));
        assert_eq!(counted(3, 1, 0.2, None), 0.2, "counting began anew");
    }

    #[test]
    fn a_wait_that_goes_on_is_no_silence() {
        let mut track = Track::new(0, about());
        for tick in 0..100u64 {
            // Twenty batches, and then the trainer waits: the loader pushes nothing any more.
            let Look::Pushed(stats, _) = look(tick.min(20), 0.0, tick.min(20) as f64) else {
                panic!("it is pushed");
            };
            let waiting = (tick > 20).then(|| (tick - 20) as f64);
            track.add(second(tick), Look::Pushed(stats, waiting), 1.0, Vec::new());
        }
        let now = track.now().unwrap();
        assert!(now.wait_share.unwrap() > 0.95, "{:?}", now.wait_share);
        assert_eq!((now.waiting_seconds, now.longest_wait_seconds), (Some(79.0), 79.0));
    }
}
