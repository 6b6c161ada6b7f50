//! A file for Perfetto (<https://ui.perfetto.dev>) and chrome://tracing: the Trace Event Format.
//!
//! Each run is a process, each lane a thread of it, each span a complete event ("X"); memory is a
//! counter ("C"). Times are whole microseconds, cut off and not rounded, so that neighbours never
//! overlap: of two events of a thread that overlap without one holding the other, viewers drop one.

use std::io::{self, Write};

use feedline::internals::tune::Run;
use feedline::stats::Span;
use serde::Serialize;
use serde_json::{Value, json};

use crate::findings::{ACTIVITIES, activity_number, lane_name, run_began};
use crate::report::Report;

impl Report<'_> {
    /// Writes the timelines of all runs that have one.
    pub fn write_trace(&self, to: impl Write) -> io::Result<()> {
        let runs = self.findings.recorded();
        write(runs.iter().map(|recorded| (recorded.name, recorded.run)), to)
    }

    /// Some run has a timeline, so that a trace would not be empty.
    #[must_use]
    pub fn has_trace(&self) -> bool {
        !self.findings.recorded().is_empty()
    }
}

/// Writes the trace of one run.
pub fn write_run(name: &str, run: &Run, to: impl Write) -> io::Result<()> {
    write(std::iter::once((name, run)), to)
}

/// A complete event.
#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    cat: &'a str,
    ph: &'a str,
    ts: u64,
    dur: u64,
    pid: usize,
    tid: usize,
    args: Value,
}

fn write<'a>(runs: impl Iterator<Item = (&'a str, &'a Run)>, mut to: impl Write) -> io::Result<()> {
    to.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
    let mut events = Events { to, first: true };
    // Process 0 is the system's idle process in some viewers; a process's main thread, which comes
    // first, is the one of its own number.
    let mut next = 1;
    for (name, run) in runs {
        let pid = next;
        next += run.timeline.len().max(1);
        let named = |kind: &str, tid: usize, args: Value| json!({"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args});
        events.add(&named("process_name", pid, json!({"name": name})))?;
        for (lane, spans) in run.timeline.iter().enumerate() {
            let tid = pid + lane;
            events.add(&named("thread_name", tid, json!({"name": lane_name(run, lane)})))?;
            events.add(&named("thread_sort_index", tid, json!({"sort_index": lane})))?;
            for (span, begin, end) in untangled(spans) {
                let (_, name) = ACTIVITIES[activity_number(span.activity)];
                let cat = if lane == 0 { "trainer" } else { "worker" };
                let args = json!({"batch": span.batch});
                events.add(&Event {
                    name,
                    cat,
                    ph: "X",
                    ts: begin,
                    dur: end - begin,
                    pid,
                    tid,
                    args,
                })?;
            }
        }
        let began = run_began(run) as f64 / 1000.0;
        for (seconds, bytes) in &run.memory {
            let ts = (began + seconds * 1e6).max(0.0) as u64;
            events.add(&json!({"name": "memory", "ph": "C", "ts": ts, "pid": pid, "args": {"bytes": bytes}}))?;
        }
    }
    events.to.write_all(b"\n]}\n")?;
    events.to.flush()
}

struct Events<W> {
    to: W,
    first: bool,
}

impl<W: Write> Events<W> {
    fn add(&mut self, event: &impl Serialize) -> io::Result<()> {
        self.to.write_all(if self.first { b"\n" } else { b",\n" })?;
        self.first = false;
        serde_json::to_writer(&mut self.to, event).map_err(io::Error::from)
    }
}

/// Spans in the order of time with their begins and ends in microseconds, such that of any two
/// either one holds the other or they do not meet.
fn untangled(spans: &[Span]) -> Vec<(Span, u64, u64)> {
    let mut sorted = spans.to_vec();
    let micros = |span: &Span| (span.begin / 1000, span.end.max(span.begin) / 1000);
    // Of those that begin together, one of no length comes before and the longest holds the rest.
    sorted.sort_by_key(|span| {
        let (begin, end) = micros(span);
        (begin, end > begin, std::cmp::Reverse(end))
    });
    let mut open: Vec<u64> = Vec::new();
    let mut clear = Vec::with_capacity(sorted.len());
    for span in sorted {
        let (mut begin, end) = micros(&span);
        while let Some(until) = open.last() {
            if *until <= begin {
                open.pop();
            } else if *until < end {
                // It goes on after what it began in: only the rest is shown.
                begin = *until;
            } else {
                break;
            }
        }
        open.push(end);
        clear.push((span, begin, end));
    }
    clear
}

#[cfg(test)]
mod tests {
    use feedline::stats::Activity;

    use super::*;

    #[test]
    fn spans_hold_each_other_or_do_not_meet() {
        let span = |begin: u64, end: u64| Span {
            activity: Activity::Read,
            begin: begin * 1000,
            end: end * 1000 + 999,
            batch: 0,
        };
        let spans = [span(20, 30), span(0, 10), span(8, 15), span(21, 22), span(30, 31)];
        let clear = untangled(&spans);
        let clear: Vec<_> = clear.iter().map(|(_, begin, end)| (*begin, *end)).collect();
        assert_eq!(clear, [(0, 10), (10, 15), (20, 30), (21, 22), (30, 31)]);
    }
}
