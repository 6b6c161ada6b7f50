//! `feedline bench`: configurations in processes of their own, ranked; results as data; mistakes.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::command_line::{HANG, command, complaint, feedline, fresh, json, photos, text};
use serde_json::Value;

/// Runs that are over at once: what they say is no matter here.
const TINY: [&str; 6] = ["--epochs", "2", "--batch-size", "16", "--repeats", "2"];

fn bench<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["bench", photos()], &TINY[..], more].concat()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn the_preset_goes_from_no_workers_to_the_defaults() {
    let result = json(&bench(&["--train-step", "2ms"]), 0);
    assert_eq!((&result["command"], &result["baseline"]), (&"bench".into(), &0.into()));
    assert_eq!(result["interrupted"], false);
    let list = result["configurations"].as_array().unwrap();
    assert_eq!(list[0]["name"], "no workers");
    let names: Vec<&str> = list.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"defaults") && names.contains(&"defaults, decoded cache"), "{names:?}");
    for one in list {
        assert_eq!(one["runs"].as_array().unwrap().len(), 2, "{one}");
        let summary = &one["summary"];
        for key in ["samples_per_second", "busy_share", "wait_share", "first_batch_seconds"] {
            let (low, mean) = (number(&summary[key]["low"]), number(&summary[key]["mean"]));
            assert!(low <= mean && mean <= number(&summary[key]["high"]), "{key}: {summary}");
        }
        for key in ["mean", "p50", "p99"] {
            assert!(number(&summary["wait"][key]) >= 0.0, "{summary}");
        }
        assert!(number(&summary["turnover_seconds"]["mean"]) >= 0.0, "{summary}");
        assert!(number(&summary["cpu_seconds_per_sample"]) >= 0.0);
        assert!(number(&summary["peak_memory"]) > 1e6);
        let run = &one["runs"][0];
        assert_eq!((&run["batches"], &run["samples"]), (&6.into(), &80.into()), "{run}");
        assert!(run["steps"].as_array().unwrap().iter().all(|step| number(step) >= 0.002));
    }
    // The system counts in hundredths of a second, of which one run may have none.
    assert!(list.iter().any(|one| number(&one["summary"]["cpu_seconds_per_sample"]) > 0.0));
    assert_eq!(list[0]["runs"][0]["evidence"]["workers"], 0);
    assert_eq!(result["ranking"].as_array().unwrap().len(), list.len());
    let best = usize::try_from(result["ranking"][0].as_u64().unwrap()).unwrap();
    assert_eq!(result["best"], list[best]["name"]);
    assert!(result["verdict"]["sentence"].as_str().is_some_and(|text| text.len() > 10));
    assert!(number(&result["machine"]["cores"]) >= 1.0);
    let kinds: Vec<&str> = result["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w["kind"].as_str().unwrap())
        .collect();
    assert!(kinds.contains(&"too_short"), "six batches are not conclusive: {kinds:?}");
}

#[test]
fn a_step_that_does_not_grow_with_the_batch_is_reported() {
    let reported = |step: &str| {
        let grid = ["--workers", "1", "--batch-sizes", "8,16", "--repeats", "1"];
        let length = ["--epochs", "1", "--train-step", step];
        let result = json(&[&["bench", photos()], &grid[..], &length].concat(), 0);
        let steps = |place: usize| number(&result["configurations"][place]["runs"][0]["steps"][0]);
        let warnings = result["warnings"].as_array().unwrap();
        let same = warnings.iter().find(|one| one["kind"] == "same_step");
        (same.map(|one| one["text"].to_string()), steps(0), steps(1))
    };
    let (same, ..) = reported("2ms");
    let same = same.unwrap();
    assert!(same.contains("(8, 16)") && same.contains("--train-step 1ms/sample"), "{same}");
    let (same, small, large) = reported("5ms/sample");
    assert_eq!(same, None);
    assert!(small >= 0.04 && large >= 0.08, "{small} {large}");
    let wrong = complaint(&["bench", photos(), "--train-step", "5ms/batch"], 2);
    assert!(wrong.contains("1ms/sample"), "{wrong}");
}

#[test]
fn a_grid_as_text_csv_and_markdown() {
    let folder = fresh("bench-files");
    let (csv, markdown) = (folder.join("a.csv"), folder.join("a.md"));
    let files = ["--csv", csv.to_str().unwrap(), "--markdown", markdown.to_str().unwrap()];
    let grid = ["--workers", "0,1", "--prefetch", "1,2", "--batches", "2"];
    let run = feedline(&bench(&[&grid[..], &files].concat()));
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let shown = text(&run.stdout);
    for expected in
        ["workers=0", "workers=1 prefetch=2", "samples/s", "busy", "Best: ", "feedline run"]
    {
        assert!(shown.contains(expected), "{expected} in {shown}");
    }
    let table: Vec<&str> = shown.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(table.len(), 4, "three configurations under a heading: {shown}");
    assert!(table.iter().all(|line| line.chars().count() <= 100), "{shown}");
    let csv = fs::read_to_string(csv).unwrap();
    assert_eq!(csv.lines().count(), 4);
    assert!(csv.starts_with("rank,configuration,samples_per_second,"), "{csv}");
    let columns = csv.lines().next().unwrap().split(',').count();
    let settings = csv.lines().nth(1).unwrap();
    assert!(settings.contains("\"{\"\"num_workers\"\":0}\""), "{settings}");
    assert_eq!(settings.split(',').count(), columns);
    let markdown = fs::read_to_string(markdown).unwrap();
    assert_eq!(markdown.lines().filter(|line| line.starts_with('|')).count(), 5, "{markdown}");

    let alone = feedline(&bench(&["--config", "workers=1", "--markdown", "-"]));
    let shown = text(&alone.stdout);
    assert!(shown.starts_with("| configuration |") && shown.contains("**workers=1**"), "{shown}");
    assert!(!shown.contains("feedline run"), "nothing but the table: {shown}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn pictures_of_the_result() {
    let folder = fresh("bench-pictures");
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (report, trace, svg, png) = (at("a.html"), at("a.json"), at("svg"), at("png"));
    let files = ["--report", &report, "--trace", &trace, "--svg", &svg, "--png", &png];
    let run = feedline(&bench(&[&["--workers", "0,1"], &files[..]].concat()));
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let page = fs::read_to_string(&report).unwrap();
    assert!(page.starts_with("<!") && page.contains("workers=1"), "{}", &page[..200]);
    let trace: Value = serde_json::from_slice(&fs::read(&trace).unwrap()).unwrap();
    assert!(trace.to_string().contains("decode"), "spans of a worker");
    let names = |folder: &str| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        entries.map(|name| name.into_string().unwrap()).collect::<Vec<_>>()
    };
    let svgs = names(&svg);
    assert!(svgs.contains(&"configurations.svg".to_owned()), "{svgs:?}");
    assert_eq!(names(&png).len(), svgs.len());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn one_that_fails_does_not_stop_the_others() {
    let grid = ["--config", "workers=1", "--config", "workers=1,memory=1kB"];
    let result = json(&bench(&grid), 0);
    let list = result["configurations"].as_array().unwrap();
    assert_eq!((list.len(), &list[0]["error"]), (2, &Value::Null));
    assert!(list[1]["error"].as_str().unwrap().contains("memory"), "{}", list[1]["error"]);
    assert_eq!((&list[1]["summary"], &result["ranking"]), (&Value::Null, &serde_json::json!([0])));

    // Without a GPU, what needs one is refused with the reason.
    let pinned = ["--workers", "1", "--pinned"];
    let result = json(&bench(&pinned), 0);
    assert_eq!(result["configurations"][0]["error"], Value::Null);
    if let Some(error) = result["configurations"][1]["error"].as_str() {
        assert!(error.contains("CUDA") || error.contains("cuda"), "{error}");
    }
    let none = feedline(&bench(&["--config", "memory=1kB"]));
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stdout).contains("failed: memory=1kB"), "{}", text(&none.stdout));
}

/// With a driver over the host's memory: whether memory is page-locked or not, batches are copied.
#[test]
fn plain_and_pinned_memory_do_the_same_work() {
    let folder = fresh("bench-pinned");
    let driver = folder.join("libcuda-mock.so");
    let source =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/python/cuda/driver.c").to_owned();
    let flags = ["-shared", "-fPIC", "-o", driver.to_str().unwrap(), &source, "-lpthread"];
    assert!(Command::new("cc").args(flags).status().unwrap().success());
    let trace = folder.join("trace.json");
    let run = |failing: &str| {
        let more = ["--workers", "1", "--pinned", "--json", "--trace", trace.to_str().unwrap()];
        let run = command(&bench(&more))
            .env("FEEDLINE_CUDA_LIBRARY", &driver)
            .env("FEEDLINE_MOCK_FAIL", failing)
            .output()
            .unwrap();
        let result: Value = serde_json::from_slice(&run.stdout).unwrap();
        let errors: Vec<String> = result["configurations"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["error"].as_str().unwrap_or("none").to_owned())
            .collect();
        (errors, result)
    };
    let (errors, result) = run("nothing");
    assert_eq!(errors, ["none", "none"]);
    assert_eq!(result["machine"]["device"], "cuda");
    let reported = result["use"].as_array().unwrap().last().unwrap().to_string();
    assert!(reported.contains("device=") && reported.contains("pin_memory="), "{reported}");
    // Such runs have a timeline, too.
    let trace: Value = serde_json::from_slice(&fs::read(&trace).unwrap()).unwrap();
    assert!(trace.to_string().contains("decode"), "spans of a worker");
    let (errors, _) = run("cuMemAlloc_v2");
    assert!(errors.iter().all(|error| error.contains("cuMemAlloc_v2")), "{errors:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn formats_are_packed_first() {
    let folder = fresh("bench-packed");
    let keep = ["--formats", "folder,tar,crop-index", "--keep", folder.to_str().unwrap()];
    let result = json(&bench(&keep), 0);
    let list = result["configurations"].as_array().unwrap();
    assert_eq!(list.len(), 3);
    assert!(list.iter().all(|one| one["error"].is_null()), "{list:?}");
    assert!(folder.join("tar").join("feedline.json").exists());
    assert!(folder.join("crop-index").join("feedline.json").exists());
    let again = feedline(&bench(&keep));
    assert!(text(&again.stderr).contains("was there already"), "{}", text(&again.stderr));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_spec_with_flags_over_it() {
    let folder = fresh("bench-spec");
    let spec = folder.join("p.toml");
    let lines = format!(
        "source = {:?}\nbatch_size = 8\n[[transforms]]\nop = \"CenterCrop\"\nsize = 16\n",
        photos()
    );
    fs::write(&spec, lines).unwrap();
    let name = spec.to_str().unwrap();
    let more = ["--config", "workers=1", "--epochs", "1", "--repeats", "1"];
    let run = |extra: &[&str]| {
        let result = json(&[&["bench", name], &more[..], extra].concat(), 0);
        result["configurations"][0]["runs"][0]["batches"].clone()
    };
    assert_eq!(run(&[]), 5);
    assert_eq!(run(&["--batch-size", "20"]), 2);
    assert_eq!(run(&["--set", "subset=':16'"]), 2);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn time_alone_ends_a_run_and_a_trial_finds_the_epochs() {
    let more = ["--seconds", "0.3", "--repeats", "1", "--workers", "1", "--train-step", "5ms"];
    let result = json(&[&["bench", photos(), "--batch-size", "2"], &more[..]].concat(), 0);
    let run = &result["configurations"][0]["runs"][0];
    assert!((0.2..5.0).contains(&number(&run["seconds"])), "{}", run["seconds"]);
    assert!(number(&run["batches"]) > 3.0 && !run["turnovers"].as_array().unwrap().is_empty());
}

#[test]
fn runs_over_a_part_of_the_data_say_so() {
    let of = |more: &[&str]| {
        let plain = ["bench", photos(), "--batch-size", "4", "--repeats", "1", "--workers", "1"];
        json(&[&plain[..], more].concat(), 0)["configurations"][0]["runs"][0]["part"].clone()
    };
    let part = of(&["--batches", "2", "--epochs", "2"]);
    assert_eq!((&part["samples"], &part["of"]), (&8.into(), &40.into()), "{part}");
    assert!(of(&["--epochs", "2"]).is_null());
}

#[test]
fn mistakes_are_named() {
    let cases: [(&[&str], &str); 18] = [
        (&["bench"], "required"),
        (&["bench", photos(), "--workers", "1,two"], "--workers: \"two\""),
        (&["bench", photos(), "--prefetch", "0"], "--prefetch: \"0\""),
        (&["bench", photos(), "--caches", "some"], "none, encoded, decoded"),
        (&["bench", photos(), "--formats", "floppy"], "parquet"),
        (&["bench", photos(), "--config", "wrkers=1"], "\"wrkers\""),
        (&["bench", photos(), "--train-step", "soon"], "--train-step"),
        (&["bench", photos(), "--train-step", "1ms", "--measure-step"], "--measure-step"),
        (&["bench", photos(), "--train-step", "train:step"], "a step in Python"),
        (&["bench", photos(), "--executors", "threads"], "--executors"),
        (&["bench", photos(), "--csv", "-", "--markdown", "-"], "standard output"),
        (&["bench", photos(), "--csv", "no/such/folder/a.csv"], "no/such/folder"),
        (&["bench", photos(), "--report", "no/such/a.html"], "no/such"),
        (&["bench", photos(), "--repeats", "0"], "--repeats"),
        (&["bench", photos(), "--rounds", "3"], "--rounds"),
        (&["bench", "train:make_dataset", "--device", "cuda"], "--device is for specs and paths"),
        (&["bench", photos(), "--csv", "no-x", "--markdown", "no-x"], "--csv and --markdown name"),
        (&["bench", photos(), "--csv", "./no-x", "--trace", "no-x"], "--trace and --csv name"),
    ];
    for (arguments, expected) in cases {
        let said = complaint(arguments, 2);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    let missing = complaint(&["bench", "no-such-photos"], 1);
    assert!(missing.contains("no-such-photos"), "{missing}");
    let python = complaint(&["bench", "train:make_dataset"], 1);
    assert!(python.contains("without Python") && python.contains("pip install"), "{python}");
    assert!(complaint(&["measure", "x"], 2).contains("started by feedline bench"));
}

#[test]
fn the_copies_to_a_gpu_are_still_there() {
    let copies = feedline(&["bench", "--device", "cuda", "--rounds", "1", "--json"]);
    let result: Value = serde_json::from_slice(&copies.stdout).unwrap();
    // With a GPU they are measured, without one the reason is reported.
    assert!(result["verified"].is_boolean() || result["error"]["kind"] == "device", "{result}");
    assert!(complaint(&["bench", "--device", "tape"], 1).contains("tape"));
}

/// The processes that a process has started.
fn children(id: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[test]
fn ctrl_c_between_runs_tells_of_those_that_are_over() {
    let endless = ["--workers", "0,1", "--epochs", "1", "--batch-size", "8", "--repeats", "1000"];
    let child = command(&[&["bench", photos(), "--json", "--quiet"], &endless[..]].concat())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut seen = Vec::new();
    let deadline = Instant::now() + HANG;
    // The third run begins when two are over.
    while seen.len() < 3 && Instant::now() < deadline {
        seen.extend(children(child.id()));
        seen.dedup();
        std::thread::sleep(Duration::from_millis(1));
    }
    let signalled = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(signalled.success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    let result: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!((&result["command"], &result["interrupted"]), (&"bench".into(), &true.into()));
    assert!(!result["configurations"][0]["runs"].as_array().unwrap().is_empty());
}

#[test]
fn ctrl_c_before_each_had_a_run_names_no_best() {
    let folder = fresh("interrupted");
    let (csv, markdown) = (folder.join("table.csv"), folder.join("table.md"));
    // The second run lasts twenty times as long as the first.
    let arguments = ["--train-step", "500ms/sample", "--batches", "2", "--epochs", "1"];
    let compared = ["--config", "batch_size=1", "--config", "batch_size=20", "--repeats", "1"];
    let written = ["--csv", csv.to_str().unwrap(), "--markdown", markdown.to_str().unwrap()];
    let bench = ["bench", photos(), "--json", "--quiet"];
    let mut child = command(&[&bench, &arguments[..], &compared, &written].concat())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut seen = Vec::new();
    while seen.len() < 2 && child.try_wait().unwrap().is_none() {
        for run in children(child.id()) {
            if !seen.contains(&run) {
                seen.push(run);
            }
        }
    }
    // As a terminal does, also to the run, whose end is no failure of its own.
    let group = format!("-{}", child.id());
    assert!(Command::new("kill").args(["-INT", "--", &group]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    let result: Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(result["configurations"][0]["runs"].as_array().unwrap().len(), 1);
    let missing = &result["configurations"][1];
    assert_eq!(
        (&missing["error"], &missing["interrupted"]),
        (&Value::Null, &"0 of 1 runs over".into())
    );
    assert_eq!(result["missing"], serde_json::json!(["batch=20"]));
    assert_eq!((&result["best"], &result["verdict"]), (&Value::Null, &Value::Null));
    assert_eq!(
        (&result["ranking"], &result["use"]),
        (&serde_json::json!([]), &serde_json::json!([]))
    );
    let csv = fs::read_to_string(csv).unwrap();
    assert!(csv.lines().skip(1).all(|line| line.starts_with(",batch=")), "{csv}");
    assert!(csv.contains("interrupted: 0 of 1 runs over") && !csv.contains("failed"), "{csv}");
    let markdown = fs::read_to_string(markdown).unwrap();
    assert!(markdown.contains("| batch=20 | interrupted |"), "{markdown}");
    assert!(markdown.contains("No best is named: interrupted before batch=20 had a run."));
    assert!(!markdown.contains("Best:") && !markdown.contains("failed"), "{markdown}");
}

#[test]
fn ctrl_c_ends_the_runs_and_tells_what_there_is() {
    let arguments =
        ["--workers", "0,1", "--seconds", "30", "--repeats", "5", "--train-step", "1ms"];
    let mut child = command(&[&["bench", photos(), "--json"], &arguments[..]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id();
    let started = Instant::now();
    while children(id).is_empty() && started.elapsed() < HANG {
        std::thread::sleep(Duration::from_millis(20));
    }
    let started_runs = children(id);
    assert!(!started_runs.is_empty(), "a run is a process of its own");
    let signalled = Command::new("kill").args(["-INT", &id.to_string()]).status().unwrap();
    assert!(signalled.success());
    // Not after the five minutes that the runs would take.
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let reported: Value = serde_json::from_reader(child.stdout.take().unwrap()).unwrap();
    let expected = serde_json::json!({"command": "bench", "target": photos(), "interrupted": true});
    assert_eq!(reported, expected);
    for run in started_runs {
        assert!(!std::path::Path::new(&format!("/proc/{run}")).exists(), "{run} lives on");
    }
}

#[test]
fn a_run_ends_with_the_command_that_started_it() {
    let arguments = ["--config", "workers=1", "--seconds", "60", "--repeats", "1"];
    let mut child = command(&[&["bench", photos(), "--quiet"], &arguments[..]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let id = child.id();
    let listed =
        || fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    let deadline = Instant::now() + HANG;
    while listed().trim().is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let run = listed().split_whitespace().next().unwrap().to_owned();
    child.kill().unwrap();
    child.wait().unwrap();
    let alive = || {
        // A process that ended and whose new parent has not looked yet is no process any more.
        let status = fs::read_to_string(format!("/proc/{run}/stat")).unwrap_or_default();
        !status.is_empty() && !status.contains(") Z ")
    };
    let deadline = Instant::now() + HANG;
    while alive() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!alive(), "run {run} lives on without anybody to tell");
}
