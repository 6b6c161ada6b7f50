//! Reports, plots and traces that commands write.
#![allow(clippy::unwrap_used)]

use std::fs;

use crate::command_line::{complaint, fresh, json, photos};
use serde_json::Value;

#[test]
fn a_run_is_traced() {
    let folder = fresh("trace");
    let file = folder.join("trace.json");
    let path = file.to_str().unwrap();
    json(&["run", photos(), "--batch-size", "4", "--num-workers", "2", "--trace", path], 0);
    let trace: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let lanes: Vec<_> = events
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(lanes, ["trainer", "worker 0", "worker 1"]);
    for name in ["wait", "step", "read", "decode"] {
        assert!(events.iter().any(|event| event["name"] == name && event["ph"] == "X"), "{name}");
    }
    let wrong = complaint(&["run", photos(), "--trace", folder.to_str().unwrap()], 2);
    assert!(wrong.contains("name a file"), "{wrong}");
}

#[test]
fn a_diagnosis_is_drawn() {
    let folder = fresh("diagnosis-pictures");
    let place = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (page, trace, plots) = (place("why.html"), place("trace.json"), place("plots"));
    let asked =
        ["diagnose", photos(), "--seconds", "2", "--batch-size", "4", "--train-step", "5ms"];
    let pictures = ["--report", &page, "--trace", &trace, "--svg", &plots, "--png", &plots];
    let found = json(&[&asked[..], &pictures[..]].concat(), 0);
    let page = fs::read_to_string(page).unwrap();
    let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(data["verdict"]["sentence"], found["verdict"]["sentence"]);
    assert!(!data["timelines"][0]["lanes"].as_array().unwrap().is_empty());
    let trace: Value = serde_json::from_slice(&fs::read(trace).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 20);
    for name in ["stall.svg", "stall.png", "timeline.svg", "timeline.png"] {
        assert!(folder.join("plots").join(name).is_file(), "{name}");
    }
    let same = ["--report", "same.html", "--trace", "same.html"];
    let wrong = complaint(&[&asked[..], &same[..]].concat(), 2);
    assert!(wrong.contains("the same file"), "{wrong}");
}
