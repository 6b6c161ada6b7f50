//! The command's surroundings when Python runs it: data sets, loaders and training steps of a
//! program, opened by `feedline.bench`.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::time::Instant;

use feedline::internals::tune::{Evidence, Feed, Spread};
use feedline::stats::{Activity, Span};
use feedline::{Error, Result};
use feedline_cli::{Host, ObjectFacts, OpenFeed};
use pyo3::prelude::*;

/// The running interpreter.
pub(crate) struct Interpreter;

impl Host for Interpreter {
    fn command(&self) -> Vec<OsString> {
        let executable = Python::attach(|py| {
            let path = py.import("sys")?.getattr("executable")?;
            path.extract::<OsString>()
        });
        let executable = executable.unwrap_or_else(|_| "python3".into());
        vec![executable, "-m".into(), "feedline".into()]
    }

    fn open(&self, feed: &OpenFeed) -> Result<Box<dyn Feed>, String> {
        let opened = Python::attach(|py| {
            let begin = || {
                let opened = open(py, feed)?;
                if let Some(most) = feed.spans {
                    opened.bind(py).call_method1("record", (most,))?;
                }
                Ok(opened)
            };
            begin().map_err(|error| describe(py, &error))
        })?;
        let lane = feed.spans.map(|most| Lane::new(most.max(2)));
        Ok(Box::new(PythonFeed { feed: opened, lane }))
    }

    fn look(&self, target: &str) -> Result<ObjectFacts, String> {
        let answer = Python::attach(|py| {
            let look = || bench(py)?.call_method1("look", (target,))?.extract::<String>();
            look().map_err(|error| describe(py, &error))
        })?;
        serde_json::from_str(&answer).map_err(|error| format!("{target:?}: {error}"))
    }

    fn time_step(&self, feed: &OpenFeed) -> Result<Spread, String> {
        let times = Python::attach(|py| {
            let time = || open(py, feed)?.bind(py).call_method0("time_step")?.extract::<Vec<f64>>();
            time().map_err(|error| describe(py, &error))
        })?;
        Ok(Spread::of(&times))
    }

    fn flush_printed(&self) {
        // A program may have put anything there; what cannot be flushed is its own affair.
        let _ = Python::attach(|py| {
            py.import("sys")?.getattr("stdout")?.call_method0("flush").map(|_| ())
        });
    }
}

fn bench(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("feedline.bench")
}

fn open(py: Python<'_>, feed: &OpenFeed) -> PyResult<Py<PyAny>> {
    let settings = serde_json::Value::Object(feed.settings.clone()).to_string();
    let arguments = (feed.target.as_str(), settings, feed.step.as_deref(), feed.samples);
    Ok(bench(py)?.call_method1("open_feed", arguments)?.unbind())
}

/// What an exception says, with its place in the program.
fn describe(py: Python<'_>, error: &PyErr) -> String {
    let answer = bench(py)
        .and_then(|bench| bench.call_method1("describe", (error.clone_ref(py).into_value(py),)))
        .and_then(|answer| answer.extract::<String>());
    answer.unwrap_or_else(|_| error.to_string())
}

/// What the program did when, as it is seen from outside.
struct Lane {
    began: Instant,
    spans: VecDeque<Span>,
    most: usize,
    /// The end of the last wait, and the number of its batch.
    handed: Option<(Instant, u64)>,
}

impl Lane {
    fn new(most: usize) -> Self {
        Lane { began: Instant::now(), spans: VecDeque::new(), most, handed: None }
    }

    fn push(&mut self, activity: Activity, from: Instant, to: Instant, batch: u64) {
        let at = |moment: Instant| {
            let since = moment.saturating_duration_since(self.began);
            u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
        };
        let span = Span { activity, begin: at(from), end: at(to), batch };
        if self.spans.len() >= self.most {
            self.spans.pop_front();
        }
        self.spans.push_back(span);
    }

    /// A batch was asked for and came, or the epoch's end did.
    fn waited(&mut self, asked: Instant, came: bool) {
        let now = Instant::now();
        let number = match self.handed.take() {
            Some((since, number)) => {
                self.push(Activity::Step, since, asked, number);
                number + 1
            }
            None => 0,
        };
        if came {
            self.push(Activity::Wait, asked, now, number);
            self.handed = Some((now, number));
        }
    }
}

/// A feed of `feedline.bench`. The interpreter's lock is held inside of its calls only.
struct PythonFeed {
    feed: Py<PyAny>,
    lane: Option<Lane>,
}

impl PythonFeed {
    fn call<T>(&self, method: &str) -> Result<T>
    where
        T: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr>,
    {
        Python::attach(|py| {
            let made = self.feed.bind(py).call_method0(method);
            made.and_then(|made| made.extract::<T>())
                .map_err(|error| Error::System(describe(py, &error)))
        })
    }
}

impl Feed for PythonFeed {
    fn begin(&mut self) -> Result<()> {
        if let Some(lane) = &mut self.lane {
            lane.handed = None;
        }
        self.call::<Option<u64>>("begin").map(|_| ())
    }

    fn next(&mut self) -> Result<Option<u64>> {
        let asked = Instant::now();
        let rows = self.call::<Option<u64>>("next")?;
        if let Some(lane) = &mut self.lane {
            lane.waited(asked, rows.is_some());
        }
        Ok(rows)
    }

    fn train(&mut self) -> Result<()> {
        self.call::<Option<u64>>("train").map(|_| ())
    }

    fn evidence(&mut self) -> Evidence {
        // What cannot be found out is not known; the run stands.
        let answer = self.call::<String>("evidence").unwrap_or_default();
        serde_json::from_str(&answer).unwrap_or_default()
    }

    fn timeline(&mut self) -> Vec<Vec<Span>> {
        let Some(lane) = &self.lane else { return Vec::new() };
        // Workers of which nothing is known are not shown.
        let answer = self.call::<String>("timeline").unwrap_or_default();
        let mut lanes: Vec<Vec<Span>> = serde_json::from_str(&answer).unwrap_or_default();
        lanes.resize(lanes.len().max(1), Vec::new());
        if lanes[0].is_empty() {
            lanes[0] = lane.spans.iter().copied().collect();
        }
        lanes
    }
}
