//! What pictures are drawn from: a benchmark or a diagnosis, put into the rows, lines and lanes that
//! the page and the plots share.

use crate::benchmark::{Benchmark, Interval};
use feedline::internals::tune::{Diagnosis, Machine, Run, TrainStep, Verdict, Workload};
use feedline::stats::{Activity, Span};
use serde::Serialize;
use serde_json::Value;

/// Points of a line of memory over time: more cannot be distinguished on a page.
const MEMORY_POINTS: usize = 400;

/// What was found, by a benchmark or by a diagnosis.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Findings<'a> {
    /// Of `feedline bench`.
    Benchmark(&'a Benchmark),
    /// Of `feedline diagnose`.
    Diagnosis(&'a Diagnosis),
}

/// A configuration among others.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Compared<'a> {
    pub name: &'a str,
    pub summary: Option<&'a crate::benchmark::Summary>,
    pub error: Option<&'a str>,
    pub settings: &'a serde_json::Map<String, Value>,
    pub best: bool,
    pub baseline: bool,
    /// How many times as fast as the baseline.
    pub speedup: Option<f64>,
}

/// A number of workers and what it brought.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Point {
    pub workers: u64,
    pub rate: Interval,
    pub wait: Interval,
}

/// Configurations that differ in the number of workers only.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Scaling {
    pub name: String,
    /// From the fewest workers to the most.
    pub points: Vec<Point>,
    /// Samples a second of one worker, by the point with the fewest, if there is another one.
    pub of_one: Option<f64>,
    /// Samples a second that the trainer could use.
    pub wanted: Option<f64>,
}

/// Memory over time.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct MemoryLine<'a> {
    pub name: &'a str,
    pub seconds: Vec<f64>,
    pub bytes: Vec<u64>,
}

/// A run with a timeline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recorded<'a> {
    pub name: &'a str,
    pub run: &'a Run,
}

/// The activities in the order of their numbers in a page's data.
pub(crate) const ACTIVITIES: [(Activity, &str); 8] = [
    (Activity::Wait, "wait"),
    (Activity::Step, "step"),
    (Activity::Read, "read"),
    (Activity::Decode, "decode"),
    (Activity::Transform, "transform"),
    (Activity::Copy, "copy"),
    (Activity::Code, "code"),
    (Activity::Memory, "memory"),
];

/// The number of an activity in [`ACTIVITIES`].
pub(crate) fn activity_number(activity: Activity) -> usize {
    ACTIVITIES.iter().position(|(known, _)| *known == activity).unwrap_or(0)
}

/// The name of a lane: the trainer's is the first.
pub(crate) fn lane_name(run: &Run, lane: usize) -> String {
    match lane {
        0 => "trainer".to_owned(),
        _ if run.evidence.workers == 0 => "loading".to_owned(),
        _ => format!("worker {}", lane - 1),
    }
}

/// The moment on the timeline at which the run began, in nanoseconds: memory is timed from there.
pub(crate) fn run_began(run: &Run) -> u64 {
    let trainer = run.timeline.first().map_or(&[][..], Vec::as_slice);
    match (trainer.first(), trainer.last()) {
        (Some(first), _) if first.activity == Activity::Wait && first.batch == 0 => first.begin,
        // The oldest spans gave way, so the end is what both have in common.
        (_, Some(last)) => last.end.saturating_sub((run.seconds * 1e9) as u64),
        _ => 0,
    }
}

impl<'a> Findings<'a> {
    /// The spec, path or Python object.
    pub(crate) fn target(&self) -> &'a str {
        match self {
            Findings::Benchmark(found) => &found.target,
            Findings::Diagnosis(found) => &found.target,
        }
    }

    pub(crate) fn machine(&self) -> &'a Machine {
        match self {
            Findings::Benchmark(found) => &found.machine,
            Findings::Diagnosis(found) => &found.machine,
        }
    }

    pub(crate) fn workload(&self) -> &'a Workload {
        match self {
            Findings::Benchmark(found) => &found.workload,
            Findings::Diagnosis(found) => &found.workload,
        }
    }

    /// Whether there is a trainer that could wait.
    pub(crate) fn has_step(&self) -> bool {
        self.workload().step != TrainStep::None
    }

    pub(crate) fn verdict(&self) -> Option<&'a Verdict> {
        match self {
            Findings::Benchmark(found) => found.verdict.as_ref(),
            Findings::Diagnosis(found) => Some(&found.verdict),
        }
    }

    /// The configurations, the best first, then those that failed.
    pub(crate) fn compared(&self) -> Vec<Compared<'a>> {
        let Findings::Benchmark(found) = *self else { return Vec::new() };
        let all = &found.configurations;
        let rest = (0..all.len()).filter(|place| !found.ranking.contains(place));
        let order = found.ranking.iter().copied().filter(|place| *place < all.len()).chain(rest);
        let rate = |place: usize| {
            all.get(place)?.summary.as_ref().map(|summary| summary.samples_per_second.mean)
        };
        let base = found.baseline.and_then(rate).filter(|rate| *rate > 0.0);
        order
            .map(|place| Compared {
                name: &all[place].name,
                summary: all[place].summary.as_ref(),
                error: match &all[place] {
                    one if one.is_missing() => Some("interrupted before it had a run"),
                    one => one.error.as_deref(),
                },
                settings: &all[place].settings,
                best: found.ranking.first() == Some(&place),
                baseline: found.baseline == Some(place),
                speedup: base.and_then(|base| Some(rate(place)? / base)),
            })
            .collect()
    }

    /// Lines against the number of workers, where several numbers were tried.
    pub(crate) fn scaling(&self) -> Vec<Scaling> {
        let Findings::Benchmark(found) = *self else { return Vec::new() };
        let mut groups: Vec<(Vec<(String, String)>, Scaling)> = Vec::new();
        for configuration in &found.configurations {
            let (Some(summary), Some(run)) = (&configuration.summary, configuration.runs.first())
            else {
                continue;
            };
            let is_workers = |key: &str| matches!(key, "num_workers" | "workers");
            let (workers, others): (Vec<_>, Vec<_>) =
                configuration.settings.iter().partition(|(key, _)| is_workers(key));
            let asked = workers.first().and_then(|(_, value)| value.as_u64());
            let key: Vec<_> =
                others.iter().map(|(key, value)| ((*key).clone(), shown(value))).collect();
            let drawn = (drawable(summary.samples_per_second), drawable(summary.wait_share));
            let (Some(rate), Some(wait)) = drawn else { continue };
            let point = Point { workers: asked.unwrap_or(run.evidence.workers), rate, wait };
            let place = groups.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
                let wanted = Some(run.evidence.wanted()).filter(|wanted| wanted.is_finite());
                let line =
                    Scaling { name: String::new(), points: Vec::new(), of_one: None, wanted };
                groups.push((key, line));
                groups.len() - 1
            });
            let points = &mut groups[place].1.points;
            if points.iter().all(|known| known.workers != point.workers) {
                points.push(point);
            }
        }
        groups.retain(|(_, line)| line.points.len() > 1);
        let keys: Vec<_> = groups.iter().map(|(key, _)| key.clone()).collect();
        for (key, line) in &mut groups {
            let distinct = key.iter().filter(|pair| !keys.iter().all(|other| other.contains(pair)));
            let names: Vec<_> = distinct.map(|(key, value)| format!("{key}={value}")).collect();
            line.name = if names.is_empty() { "measured".to_owned() } else { names.join(", ") };
            line.points.sort_by_key(|point| point.workers);
            let mut with_workers = line.points.iter().filter(|point| point.workers > 0);
            let fewest = with_workers.next();
            // A single number of workers is as good as itself.
            let fewest = fewest.filter(|_| with_workers.next().is_some());
            line.of_one = fewest.map(|point| point.rate.mean / point.workers as f64);
        }
        groups.into_iter().map(|(_, line)| line).collect()
    }

    /// Memory over time, of each configuration's run with the most.
    pub(crate) fn memory(&self) -> Vec<MemoryLine<'a>> {
        let runs: Vec<(&'a str, &'a Run)> = match *self {
            Findings::Benchmark(found) => {
                let all = found.configurations.iter();
                all.filter_map(|one| {
                    let most = one.runs.iter().max_by_key(|run| run.peak_memory)?;
                    Some((one.name.as_str(), most))
                })
                .collect()
            }
            Findings::Diagnosis(found) => vec![("everything real", &found.run)],
        };
        let timed = |run: &Run| run.memory.iter().all(|(at, _)| (0.0..1e9).contains(at));
        let drawn = runs.into_iter().filter(|(_, run)| run.memory.len() > 1 && timed(run));
        drawn
            .map(|(name, run)| {
                let each = run.memory.len().div_ceil(MEMORY_POINTS).max(1);
                // The largest of each stretch: a spike is what people look for.
                let kept = run
                    .memory
                    .chunks(each)
                    .filter_map(|part| part.iter().copied().max_by_key(|(_, bytes)| *bytes));
                let (seconds, bytes) = kept.unzip();
                MemoryLine { name, seconds, bytes }
            })
            .collect()
    }

    /// Runs with a timeline, the best configuration's first.
    pub(crate) fn recorded(&self) -> Vec<Recorded<'a>> {
        match *self {
            Findings::Benchmark(found) => {
                let all = &found.configurations;
                let rest = (0..all.len()).filter(|place| !found.ranking.contains(place));
                let order = found.ranking.iter().copied().chain(rest);
                let ordered = order.filter_map(|place| all.get(place));
                ordered
                    .filter_map(|one| {
                        let run = one.runs.iter().find(|run| has_spans(run))?;
                        Some(Recorded { name: &one.name, run })
                    })
                    .collect()
            }
            Findings::Diagnosis(found) if has_spans(&found.run) => {
                vec![Recorded { name: "everything real", run: &found.run }]
            }
            Findings::Diagnosis(_) => Vec::new(),
        }
    }
}

fn has_spans(run: &Run) -> bool {
    run.timeline.iter().any(|lane| !lane.is_empty())
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The newest spans of all lanes, at most so many, each lane in order of time; and how many were
/// left out.
pub(crate) fn newest(timeline: &[Vec<Span>], most: usize) -> (Vec<Vec<Span>>, usize) {
    let total: usize = timeline.iter().map(Vec::len).sum();
    let since = (total > most).then(|| {
        let mut begins: Vec<u64> = timeline.iter().flatten().map(|span| span.begin).collect();
        begins.sort_unstable();
        // What is going on at that moment is kept too, one span of each lane at most.
        begins[total - most.saturating_sub(timeline.len()).max(1)]
    });
    let lanes: Vec<Vec<Span>> = timeline
        .iter()
        .map(|lane| {
            let kept = lane.iter().filter(|span| since.is_none_or(|since| span.end > since));
            let mut kept: Vec<Span> = kept.copied().collect();
            kept.sort_by_key(|span| span.begin);
            kept
        })
        .collect();
    let kept: usize = lanes.iter().map(Vec::len).sum();
    (lanes, total - kept)
}

/// Where an axis ends on which these are drawn, `least` or more: at the highest end of an interval,
/// but not so far away that one run's spread would leave the bars and lines no room.
pub(crate) fn axis_end(intervals: impl Iterator<Item = Interval>, least: f64) -> f64 {
    let (mut mean, mut high) = (least, least);
    for interval in intervals {
        mean = mean.max(interval.mean);
        high = high.max(interval.high);
    }
    high.clamp(mean, mean * 1.3)
}

/// Samples a second that the trainer could use, if that is about the same for all lines: a step of
/// a fixed time takes more of them in larger batches.
pub(crate) fn wanted_by_all(lines: &[Scaling]) -> Option<f64> {
    let wanted: Vec<f64> = lines.iter().map(|line| line.wanted).collect::<Option<_>>()?;
    let low = wanted.iter().copied().fold(f64::INFINITY, f64::min);
    let high = wanted.iter().copied().fold(0.0, f64::max);
    (high > 0.0 && high <= low * 1.1).then_some(high)
}

/// An interval that can be drawn: `None` without a mean, and only the mean without ends. Axes to
/// infinity never end, and begin at zero.
pub(crate) fn drawable(interval: Interval) -> Option<Interval> {
    let sane = |value: f64| value.is_finite() && value.abs() < 1e15;
    let Interval { mean, low, high } = interval;
    let ends = if sane(low) && sane(high) { (low, high) } else { (mean, mean) };
    sane(mean).then_some(Interval { mean, low: ends.0.max(0.0), high: ends.1 })
}

/// A workload in a few words.
pub(crate) fn workload_text(workload: &Workload) -> String {
    let time = |seconds: f64| match seconds {
        seconds if seconds >= 1.0 => format!("{seconds:.2} s"),
        seconds => format!("{:.3} ms", seconds * 1000.0).replace(".000 ", " "),
    };
    let step = match workload.step {
        TrainStep::None => "no training step".to_owned(),
        TrainStep::Fixed(seconds) => format!("a training step of {}", time(seconds)),
        TrainStep::Uniform(low, high) => {
            format!("a training step of {} to {}", time(low), time(high))
        }
        TrainStep::Normal(mean, deviation) => {
            format!("a training step of {} ± {}", time(mean), time(deviation))
        }
        TrainStep::PerSample(seconds) => {
            format!("a training step of {} a sample", time(seconds))
        }
        TrainStep::Own => "the program's own training step".to_owned(),
    };
    let epochs = match workload.epochs {
        1 => ", 1 epoch".to_owned(),
        // Who gives a time instead asks for more than anybody could run.
        epochs if epochs >= 1 << 32 && workload.batches.is_none() => String::new(),
        epochs if epochs >= 1 << 32 => ", epochs".to_owned(),
        epochs => format!(", {epochs} epochs"),
    };
    let batches =
        workload.batches.map_or_else(String::new, |batches| format!(" of {batches} batches"));
    let seconds = workload
        .seconds
        .map_or_else(String::new, |seconds| format!(", at most {} a run", time(seconds)));
    format!("{step}{epochs}{batches}{seconds}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_in_words() {
        let mut workload =
            Workload { step: TrainStep::Fixed(0.02), epochs: 3, batches: Some(50), seconds: None };
        let text = "a training step of 20 ms, 3 epochs of 50 batches";
        assert_eq!(workload_text(&workload), text);
        (workload.epochs, workload.seconds) = (u64::MAX, Some(2.0));
        let text = "a training step of 20 ms, epochs of 50 batches, at most 2.00 s a run";
        assert_eq!(workload_text(&workload), text);
        (workload.batches, workload.seconds) = (None, None);
        assert_eq!(workload_text(&workload), "a training step of 20 ms");
    }

    #[test]
    fn the_newest_spans_have_what_was_going_on() {
        let span = |begin, end| Span { activity: Activity::Step, begin, end, batch: 0 };
        let worker: Vec<Span> = (0..100).map(|at| span(at, at + 1)).collect();
        let timeline = [vec![span(0, 40), span(40, 200)], worker];
        let (lanes, left_out) = newest(&timeline, 10);
        assert_eq!(lanes[0], [span(40, 200)], "a long step");
        assert!(lanes[1].len() == 8 && left_out == 93, "{left_out}");
        let (lanes, left_out) = newest(&[vec![span(0, 0)]], 10);
        assert_eq!((lanes[0].len(), left_out), (1, 0));
        assert_eq!(newest(&timeline, 1).0[0].len(), 1);
    }

    #[test]
    fn one_wide_interval_does_not_squeeze_the_rest() {
        let interval = |mean: f64, high: f64| Interval { mean, low: 0.0, high };
        let end = |high| axis_end([interval(100.0, 104.0), interval(90.0, high)].into_iter(), 1.0);
        assert_eq!((end(110.0), end(900.0)), (110.0, 130.0));
        assert_eq!(axis_end(std::iter::empty(), 0.5), 0.5);
    }

    #[test]
    fn trainers_that_want_different_rates_have_no_line_in_common() {
        let line =
            |wanted| Scaling { name: String::new(), points: Vec::new(), of_one: None, wanted };
        assert_eq!(wanted_by_all(&[line(Some(100.0)), line(Some(104.0))]), Some(104.0));
        assert_eq!(wanted_by_all(&[line(Some(100.0)), line(Some(400.0))]), None);
        assert_eq!(wanted_by_all(&[line(Some(100.0)), line(None)]), None);
        assert_eq!(wanted_by_all(&[]), None);
    }

    #[test]
    fn intervals_stay_where_values_can_be() {
        let wide = Interval { mean: 1156.0, low: -1086.0, high: 3398.0 };
        let drawn = drawable(wide).unwrap();
        assert_eq!((drawn.low, drawn.mean, drawn.high), (0.0, 1156.0, 3398.0));
    }
}
