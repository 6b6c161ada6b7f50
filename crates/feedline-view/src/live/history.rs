//! One hour of a loader, a point a second, in memory that does not grow.

use std::collections::VecDeque;

use serde_json::{Map, Value, json};

/// Points that are kept: an hour of them.
pub const POINTS: usize = 3600;

/// Stages whose times are kept; a loader with more of them loses the last ones.
pub const STAGES: usize = 6;

/// What a loader did in one second. What is not known is not a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The number of the second, counted since sampling began.
    pub tick: u64,
    /// Seconds since 1970, for the axis of a chart.
    pub time: f64,
    /// Samples handed over in a second.
    pub samples_per_second: f32,
    /// The share of the time that the program waited.
    pub wait_share: f32,
    /// Batches that are done and wait for the program.
    pub ready: f32,
    /// Batches that may be done or in the making.
    pub most: f32,
    /// Bytes read from stores in a second.
    pub bytes_per_second: f32,
    /// Bytes that the loader holds.
    pub memory_used: f32,
    /// Bytes that it may hold.
    pub memory_limit: f32,
    /// Bytes of the whole process and its children.
    pub process_memory: f32,
    /// Seconds of a sample in each stage.
    pub stages: [f32; STAGES],
}

/// The newest [`POINTS`] points.
#[derive(Debug, Default)]
pub struct History {
    points: VecDeque<Point>,
}

impl History {
    /// Room for an hour, taken at once.
    #[must_use]
    pub fn new() -> Self {
        History { points: VecDeque::with_capacity(POINTS) }
    }

    /// Adds a point; the oldest goes when the hour is full.
    pub fn push(&mut self, point: Point) {
        if self.points.len() == POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// Points that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Nothing was added yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// Bytes that the points take, also those that are not filled yet.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.points.capacity() * size_of::<Point>()
    }

    /// The points after the second `tick`, oldest first.
    pub fn after(&self, tick: Option<u64>) -> impl Iterator<Item = &Point> + Clone {
        let from = tick.map_or(0, |tick| self.points.partition_point(|point| point.tick <= tick));
        self.points.range(from..)
    }

    /// The points after `tick` as columns, which is what charts draw; `stages` are the names.
    #[must_use]
    pub fn columns(&self, tick: Option<u64>, stages: &[String]) -> Value {
        let points = self.after(tick);
        let column = |get: &dyn Fn(&Point) -> f32| {
            points.clone().map(|p| rounded(get(p))).collect::<Value>()
        };
        let times: Map<String, Value> = stages
            .iter()
            .take(STAGES)
            .enumerate()
            .map(|(at, name)| (name.clone(), column(&|point| point.stages[at])))
            .collect();
        json!({
            "tick": points.clone().map(|point| point.tick).collect::<Vec<_>>(),
            "time": points.clone().map(|point| (point.time * 10.0).round() / 10.0).collect::<Vec<_>>(),
            "samples_per_second": column(&|point| point.samples_per_second),
            "wait_share": column(&|point| point.wait_share),
            "ready": column(&|point| point.ready),
            "most": column(&|point| point.most),
            "bytes_per_second": column(&|point| point.bytes_per_second),
            "memory_used": column(&|point| point.memory_used),
            "memory_limit": column(&|point| point.memory_limit),
            "process_memory": column(&|point| point.process_memory),
            "stages": times,
        })
    }
}

/// Four digits are enough for a chart; what is not a number is null.
fn rounded(value: f32) -> Value {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { 0.into() } else { Value::Null };
    }
    let scale = 10f64.powi(3 - f64::from(value.abs()).log10().floor() as i32);
    let short = (f64::from(value) * scale).round() / scale;
    if short.abs() >= 1000.0 { (short as i64).into() } else { short.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(tick: u64) -> Point {
        Point {
            tick,
            time: 1.7e9 + tick as f64,
            samples_per_second: tick as f32,
            wait_share: f32::NAN,
            ready: 2.0,
            most: 4.0,
            bytes_per_second: 123_456.0,
            memory_used: 1e9,
            memory_limit: 2e9,
            process_memory: 3e9,
            stages: [0.001_234_56; STAGES],
        }
    }

    #[test]
    fn two_hours_take_the_memory_of_one_and_keep_the_newest() {
        let mut history = History::new();
        let memory = history.memory();
        assert!((200_000..600_000).contains(&memory), "{memory} bytes");
        (0..2 * POINTS as u64).for_each(|tick| history.push(point(tick)));
        assert_eq!(history.memory(), memory);
        assert_eq!(history.len(), POINTS);
        let ticks: Vec<u64> = history.after(None).map(|point| point.tick).collect();
        assert_eq!(ticks, (3600..7200).collect::<Vec<_>>());
    }

    #[test]
    fn only_what_is_new_is_sent() {
        let mut history = History::new();
        // Seconds may be missing: a stopped process has none.
        [1, 2, 5, 9].into_iter().for_each(|tick| history.push(point(tick)));
        let after = |tick| history.after(tick).map(|point| point.tick).collect::<Vec<_>>();
        assert_eq!(after(None), [1, 2, 5, 9]);
        assert_eq!(after(Some(3)), [5, 9]);
        assert_eq!(after(Some(9)), [0u64; 0]);
        assert_eq!(after(Some(u64::MAX)), [0u64; 0]);
    }

    #[test]
    fn columns_are_short_and_unknown_is_null() {
        let mut history = History::new();
        history.push(point(7));
        let columns = history.columns(None, &["read".to_owned(), "decode".to_owned()]);
        assert_eq!(columns["wait_share"], json!([null]));
        assert_eq!(columns["bytes_per_second"], json!([123_500]));
        assert_eq!(columns["stages"], json!({"read": [0.001_235], "decode": [0.001_235]}));
        assert_eq!(columns["tick"], json!([7]));
    }
}
