//! The figures as Prometheus reads them: its text format, version 0.0.4.

use std::fmt::{Display, Write};

use super::snapshot::{LoaderNow, Snapshot};

/// The content type of the format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A number of a loader, if it is known.
type Get = fn(&LoaderNow) -> Option<f64>;

/// Name, type, help, value.
const METRICS: &[(&str, &str, &str, Get)] = &[
    ("batches_total", "counter", "Batches handed over.", |now| Some(now.batches as f64)),
    ("samples_total", "counter", "Samples handed over.", |now| Some(now.samples as f64)),
    ("wait_seconds_total", "counter", "Seconds that the program waited for batches.", |now| {
        Some(now.wait_seconds)
    }),
    ("step_seconds_total", "counter", "Seconds that the program used batches.", |now| {
        Some(now.step_seconds)
    }),
    ("read_bytes_total", "counter", "Bytes that came from stores.", |now| {
        Some(now.bytes_read? as f64)
    }),
    ("failed_samples", "gauge", "Distinct samples that failed and were replaced.", |now| {
        Some(now.failed as f64)
    }),
    ("workers", "gauge", "Workers that make batches.", |now| Some(now.workers as f64)),
    ("samples_per_second", "gauge", "Samples handed over in a second, lately.", |now| {
        Some(now.samples_per_second)
    }),
    ("wait_share", "gauge", "Share of the time that the program waited, lately.", |now| {
        now.wait_share
    }),
    ("wait_p50_seconds", "gauge", "Half of the waits for a batch were shorter.", |now| {
        now.wait_p50_seconds
    }),
    ("wait_p99_seconds", "gauge", "One wait for a batch in a hundred was longer.", |now| {
        now.wait_p99_seconds
    }),
    ("queue_ready_batches", "gauge", "Batches that are done and wait for the program.", |now| {
        Some(now.queue?.ready as f64)
    }),
    ("queue_open_batches", "gauge", "Batches that are done or in the making.", |now| {
        Some(now.queue?.open as f64)
    }),
    ("queue_limit_batches", "gauge", "Batches that may be done or in the making.", |now| {
        Some(now.queue?.most as f64)
    }),
    ("memory_used_bytes", "gauge", "Bytes that the loader holds.", |now| {
        Some(now.memory?.used as f64)
    }),
    ("memory_limit_bytes", "gauge", "Bytes that the loader may hold.", |now| {
        Some(now.memory?.limit as f64)
    }),
];

/// All figures.
pub(super) fn text(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    for (name, kind, help, get) in METRICS {
        let values = snapshot.loaders.iter().filter_map(|now| Some((now, get(now)?)));
        let lines = values.map(|(now, value)| (labels(now, &[]), value));
        family(&mut text, name, kind, help, lines);
    }
    let stages = snapshot.loaders.iter().flat_map(|now| {
        now.stages.iter().map(move |stage| (labels(now, &[("stage", &stage.name)]), stage.seconds))
    });
    family(&mut text, "stage_seconds", "gauge", "Seconds of a sample in a stage, lately.", stages);
    let verdicts = snapshot.loaders.iter().filter_map(|now| {
        let verdict = now.verdict.as_ref()?;
        let cause = serde_json::to_value(verdict.cause).ok()?;
        Some((labels(now, &[("cause", cause.as_str().unwrap_or("unknown"))]), 1.0))
    });
    family(&mut text, "verdict", "gauge", "What holds the trainer up: 1 for the cause.", verdicts);
    let names = snapshot.loaders.iter().map(|now| (labels(now, &[("name", &now.name)]), 1.0));
    family(&mut text, "loader_info", "gauge", "What a loader reads.", names);
    let process = [
        ("process_memory_bytes", "Bytes of the process and its children.", snapshot.memory as f64),
        ("loaders", "Loaders that are open.", snapshot.loaders.len() as f64),
        ("cores", "Cores that the process may use.", snapshot.cores as f64),
    ];
    for (name, help, value) in process {
        family(&mut text, name, "gauge", help, [(String::new(), value)]);
    }
    text
}

/// A metric with all its lines; without any it is left out.
fn family(
    text: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    lines: impl IntoIterator<Item = (String, f64)>,
) {
    let mut lines = lines.into_iter().peekable();
    if lines.peek().is_none() {
        return;
    }
    put(text, format_args!("# HELP feedline_{name} {help}\n# TYPE feedline_{name} {kind}\n"));
    for (labels, value) in lines {
        put(text, format_args!("feedline_{name}{labels} {value}\n"));
    }
}

fn labels(now: &LoaderNow, more: &[(&str, &str)]) -> String {
    let mut text = format!("{{loader=\"{}\"", now.id);
    for (name, value) in more {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        put(&mut text, format_args!(",{name}=\"{value}\""));
    }
    text + "}"
}

fn put(text: &mut String, more: impl Display) {
    // Writing to a string does not fail.
    let _ = write!(text, "{more}");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::live::board::{About, Board};

    /// Reads the format strictly: every line is a comment of a known kind or a sample.
    fn parse(text: &str) -> Vec<(String, String, f64)> {
        let mut samples = Vec::new();
        let mut typed = String::new();
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(["counter", "gauge"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                typed = name.to_owned();
                continue;
            }
            if line.starts_with("# HELP ") {
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            assert_eq!(name, typed, "a sample without its type: {line}");
            assert!(labels.ends_with('}'), "{line}");
            assert!(
                name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit())
            );
            samples.push((name.to_owned(), labels.to_owned(), value.parse().unwrap()));
        }
        samples
    }

    #[test]
    fn every_line_is_of_the_format() {
        let board = Arc::new(Board::new());
        let about = About { name: "a \"folder\"\\\nx".to_owned(), batch_size: 2, quarantine: None };
        let watched = board.watch_pushed(about.clone());
        let _other = board.watch_pushed(about);
        watched.push(json!({
            "batches": 3, "samples": 6, "wait_seconds": 0.5, "step_seconds": 1.5,
            "seconds_per_sample": {"decode": 1e-7, "your \"code\"": 0.25},
            "queue": {"ready": 1, "open": 2, "most": 4}, "memory": {"used": 5, "limit": 1u64 << 40},
        }));
        board.look();
        let samples = parse(&text(&board.snapshot()));
        let value = |name: &str, labels: &str| {
            let found = samples.iter().find(|(n, l, _)| n == name && l == labels);
            found.map(|(_, _, value)| *value)
        };
        assert_eq!(value("feedline_samples_total", "loader=\"0\"}"), Some(6.0));
        assert_eq!(value("feedline_samples_total", "loader=\"1\"}"), Some(0.0));
        assert_eq!(
            value("feedline_memory_limit_bytes", "loader=\"0\"}"),
            Some((1u64 << 40) as f64)
        );
        assert_eq!(value("feedline_memory_limit_bytes", "loader=\"1\"}"), None);
        let stage = "loader=\"0\",stage=\"your \\\"code\\\"\"}";
        assert_eq!(value("feedline_stage_seconds", stage), Some(0.25));
        let info = "loader=\"0\",name=\"a \\\"folder\\\"\\\\\\nx\"}";
        assert_eq!(value("feedline_loader_info", info), Some(1.0));
        assert_eq!(value("feedline_loaders", "}"), Some(2.0));
    }

    #[test]
    fn without_a_loader_there_are_only_figures_of_the_process() {
        let samples = parse(&text(&Board::new().snapshot()));
        assert!(samples.iter().all(|(_, labels, _)| labels == "}"), "{samples:?}");
    }
}
