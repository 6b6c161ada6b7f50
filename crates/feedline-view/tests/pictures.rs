//! Pages, plots and traces of made-up results.

#![allow(clippy::unwrap_used)]

mod made_up;

use feedline::internals::observe::Timeline;
use feedline::internals::tune::{Diagnosis, TrainStep};
use feedline_view::benchmark::Benchmark;
use feedline_view::{Format, Picture, Report, trace};
use serde_json::Value;

fn trace_of(report: &Report<'_>) -> Value {
    let mut bytes = Vec::new();
    report.write_trace(&mut bytes).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn names(pictures: &[Picture]) -> Vec<&str> {
    pictures.iter().map(|picture| picture.name.as_str()).collect()
}

fn data(page: &str) -> Value {
    let rest = page.split_once("id=\"data\">").unwrap().1;
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn a_page_needs_nothing_else() {
    let found = made_up::benchmark();
    let page = Report::of_benchmark("Benchmark", &found).html().unwrap();
    for tag in ["<link", "<img", "<iframe", "src=\"", "@import", "url("] {
        assert!(!page.contains(tag), "{tag}");
    }
    assert!(page.contains("default-src 'none'") && page.contains("connect-src 'none'"));
    assert!(!page.contains("unsafe-inline") && !page.contains("unsafe-eval"));
    assert!(page.contains("Copyright (c) 2022 Leon Sorokin"), "uPlot's licence goes with it");
}

#[test]
fn a_page_holds_what_was_found() {
    let found = made_up::benchmark();
    let data = data(&Report::of_benchmark("Benchmark", &found).html().unwrap());
    let rows = data["configurations"].as_array().unwrap();
    assert_eq!(rows.len(), found.configurations.len());
    assert_eq!((&rows[0]["best"], &rows[5]["baseline"]), (&Value::Bool(true), &Value::Bool(true)));
    assert_eq!(rows[5]["speedup"], 1.0);
    assert!(rows[6]["summary"].is_null() && rows[6]["error"].is_string());
    let scaling = data["scaling"].as_array().unwrap();
    assert_eq!(scaling.len(), 1, "torch has one point and is no line");
    let workers: Vec<_> =
        scaling[0]["points"].as_array().unwrap().iter().map(|point| &point["workers"]).collect();
    assert_eq!(workers, [1, 2, 4, 6, 8]);
    assert_eq!(data["memory"].as_array().unwrap().len(), 6);
    assert_eq!(data["timelines"].as_array().unwrap().len(), 5);
    assert_eq!(data["timelines"][0]["lanes"].as_array().unwrap().len(), 9);
}

#[test]
fn hostile_texts_stay_texts() {
    let found = made_up::hostile();
    let report = Report::of_benchmark(made_up::HOSTILE, &found);
    let page = report.html().unwrap();
    assert_eq!(page.matches("<script").count(), 2, "the data and the page's own");
    assert_eq!(page.matches("</script").count(), 2);
    assert!(!page.contains("<img"));
    assert_eq!(data(&page)["target"], made_up::HOSTILE);
    for picture in report.pictures(Format::Svg).unwrap() {
        let text = String::from_utf8(picture.content).unwrap();
        assert!(!text.contains("<script") && !text.contains("<img"), "{}", picture.name);
    }
    assert!(trace_of(&report)["traceEvents"].is_array());
}

#[test]
fn a_long_timeline_is_cut_and_says_so() {
    let found = made_up::large();
    let total: usize = found.run.timeline.iter().map(Vec::len).sum();
    assert!(total > 100_000);
    let data = data(&Report::of_diagnosis("Large", &found).html().unwrap());
    let timeline = &data["timelines"][0];
    let lanes = timeline["lanes"].as_array().unwrap();
    let kept: usize = lanes.iter().map(|lane| lane["spans"].as_array().unwrap().len() / 4).sum();
    assert!(kept <= 60_001 && kept > 50_000, "{kept}");
    assert_eq!(timeline["left_out"], total - kept);
}

#[test]
fn pictures_are_what_their_names_say() {
    let (benchmark, diagnosis) = (made_up::benchmark(), made_up::diagnosis());
    let report = Report::of_benchmark("Benchmark", &benchmark);
    let drawn = report.pictures(Format::Svg).unwrap();
    let all = ["configurations", "stall", "throughput", "wait", "memory", "timeline"];
    assert_eq!(names(&drawn), all.map(|name| format!("{name}.svg")));
    let text = |picture: &Picture| String::from_utf8(picture.content.clone()).unwrap();
    assert!(text(&drawn[0]).contains("workers=4") && text(&drawn[0]).contains("<text"));
    assert!(text(&drawn[1]).contains("23 %") && text(&drawn[5]).contains("worker 7"));
    let drawn = report.pictures(Format::Png).unwrap();
    for picture in &drawn {
        assert!(picture.content.starts_with(b"\x89PNG\r\n"), "{}", picture.name);
        assert!(ink(&picture.content) > 0.01, "{} is empty", picture.name);
    }
    let drawn = Report::of_diagnosis("Diagnosis", &diagnosis).pictures(Format::Svg).unwrap();
    assert_eq!(names(&drawn), ["stall.svg", "memory.svg", "timeline.svg"]);
}

fn svg(report: &Report<'_>, name: &str) -> String {
    let mut drawn = report.pictures(Format::Svg).unwrap().into_iter();
    let picture = drawn.find(|picture| picture.name == name).unwrap();
    String::from_utf8(picture.content).unwrap()
}

#[test]
fn without_a_step_nobody_waits() {
    let mut found = made_up::diagnosis();
    assert!(svg(&Report::of_diagnosis("Step", &found), "stall.svg").contains("waiting: reading"));
    found.workload.step = TrainStep::None;
    let text = svg(&Report::of_diagnosis("No step", &found), "stall.svg");
    assert!(!text.contains("waiting") && text.contains("between batches"), "{text}");
}

#[test]
fn workers_that_do_not_fit_on_paper_are_reported() {
    let mut found = made_up::diagnosis();
    found.run.timeline = made_up::timeline(20, 100, 1.5, 0.1);
    let text = svg(&Report::of_diagnosis("Many", &found), "timeline.svg");
    assert!(text.contains("worker 15") && !text.contains("worker 16"), "{text}");
    assert!(text.contains("4 more workers are not shown"), "{text}");
    found.run.timeline.truncate(17);
    assert!(!svg(&Report::of_diagnosis("16", &found), "timeline.svg").contains("not shown"));
}

/// A worker's lane overflows long before the trainer's.
#[test]
fn a_timeline_begins_where_its_workers_are_known() {
    let mut found = made_up::diagnosis();
    let kept = Timeline::new(2, 2_000);
    for (lane, spans) in made_up::timeline(2, 800, 0.15, 0.1).into_iter().enumerate() {
        let to = lane.checked_sub(1).map_or(Some(kept.program()), |worker| kept.worker(worker));
        spans.into_iter().for_each(|span| to.unwrap().push(span));
    }
    found.run.timeline = kept.spans();
    assert!(found.run.timeline[0].len() < 1_600, "the trainer's first steps are gone");
    let text = svg(&Report::of_diagnosis("Long", &found), "timeline.svg");
    for row in ["worker 0: decode", "worker 1: decode"] {
        assert!(text.contains(row), "{text}");
    }
    // Eight batches or more of four decoded parts each.
    assert!(text.matches("#028AED").count() > 32, "{text}");
}

/// The share of pixels that are not white.
fn ink(content: &[u8]) -> f64 {
    let mut reader = png::Decoder::new(std::io::Cursor::new(content)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    let dark = pixels.chunks(3).filter(|pixel| *pixel != [255, 255, 255]).count();
    dark as f64 / (pixels.len() / 3) as f64
}

#[test]
fn nothing_measured_is_no_failure() {
    let found = made_up::empty();
    let report = Report::of_benchmark("", &found);
    assert!(report.html().is_ok() && !report.has_trace());
    assert!(report.pictures(Format::Png).unwrap().is_empty());
    assert_eq!(trace_of(&report)["traceEvents"], serde_json::json!([]));
}

#[test]
fn figures_that_are_none_are_no_failure() {
    let mut found = made_up::benchmark();
    for one in &mut found.configurations {
        if let Some(summary) = &mut one.summary {
            summary.samples_per_second.mean = f64::NAN;
            summary.samples_per_second.high = f64::INFINITY;
            summary.wait_share.mean = f64::NAN;
        }
    }
    // Places that do not exist, as an edited file could have them.
    found.ranking.push(99);
    found.baseline = Some(77);
    let report = Report::of_benchmark("Strange", &found);
    assert!(report.html().is_ok());
    for format in [Format::Svg, Format::Png] {
        assert!(report.pictures(format).is_ok());
    }
}

/// What the Trace Event Format demands of the events that are written, field by field.
#[test]
fn a_trace_is_what_viewers_expect() {
    let found = made_up::benchmark();
    let trace = trace_of(&Report::of_benchmark("Benchmark", &found));
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |kind: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["ph"] == kind).collect::<Vec<_>>()
    };
    assert_eq!(of("X").len() + of("M").len() + of("C").len(), events.len());
    let spans: usize = found
        .configurations
        .iter()
        .flat_map(|one| &one.runs)
        .flat_map(|run| &run.timeline)
        .map(Vec::len)
        .sum();
    assert_eq!(of("X").len(), spans);
    for event in events {
        assert!(event["pid"].as_u64().is_some_and(|pid| pid > 0) && event["name"].is_string());
    }
    for event in of("X") {
        assert!(event["ts"].is_u64() && event["dur"].is_u64() && event["tid"].is_u64());
        assert!(event["cat"].is_string() && event["args"]["batch"].is_u64());
    }
    for event in of("C") {
        assert!(event["ts"].is_u64() && event["args"]["bytes"].is_u64());
    }
    let threads: Vec<_> = of("M")
        .iter()
        .filter(|event| event["name"] == "thread_name" && event["pid"] == 1)
        .map(|event| event["args"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(threads[..3], ["trainer", "worker 0", "worker 1"]);
    // Events of a thread hold each other or do not meet, or viewers drop them.
    let mut ends = std::collections::HashMap::new();
    for event in of("X") {
        let place = (event["pid"].as_u64(), event["tid"].as_u64());
        let begin = event["ts"].as_u64().unwrap();
        let end = ends.entry(place).or_insert(0);
        assert!(begin >= *end, "{event}");
        *end = begin + event["dur"].as_u64().unwrap();
    }
}

#[test]
fn a_run_has_a_trace_of_its_own() {
    let mut bytes = Vec::new();
    trace::write_run("run", &made_up::run(2, 100.0, true), &mut bytes).unwrap();
    let trace: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(trace["traceEvents"][0]["args"]["name"], "run");
}

/// What commands print as JSON can be drawn later.
#[test]
fn results_survive_their_json() {
    let (benchmark, diagnosis) = (made_up::benchmark(), made_up::diagnosis());
    let text = serde_json::to_string(&benchmark).unwrap();
    let back: Benchmark = serde_json::from_str(&text).unwrap();
    assert_eq!(back.configurations.len(), benchmark.configurations.len());
    assert!(Report::of_benchmark("Again", &back).html().is_ok());
    let text = serde_json::to_string(&diagnosis).unwrap();
    let back: Diagnosis = serde_json::from_str(&text).unwrap();
    assert!(Report::of_diagnosis("Again", &back).html().is_ok());
}
