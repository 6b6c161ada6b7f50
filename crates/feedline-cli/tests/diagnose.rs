//! `feedline diagnose`: a sentence, a bar, a table, and what to try.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use crate::command_line::{command, complaint, feedline, fresh, interrupt, json, photos, text};
use feedline::internals::tune::{Advice, Cause, Evidence, StageCost, WorkerTime, judge};

#[test]
fn it_says_why_the_trainer_waits_and_what_to_try() {
    let arguments =
        ["diagnose", photos(), "--train-step", "0.1ms", "--seconds", "1", "--batch-size", "8"];
    let found = feedline(&arguments);
    let shown = text(&found.stdout);
    assert_eq!(found.status.code(), Some(0), "{}", text(&found.stderr));
    assert!(shown.starts_with("The trainer waited "), "{shown}");
    for expected in [
        "The trainer's time",
        "waits for preparing",
        "if free /s",
        "decode",
        "at its limit",
        "What to try",
        "1. ",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    assert!(!shown.contains('\u{1b}') && !shown.contains("NaN") && !shown.contains("inf"));

    let found = json(&arguments, 0);
    assert_eq!(found["command"], "diagnose");
    assert!(found["verdict"]["cause"].is_string() && found["verdict"]["sentence"].is_string());
    assert!(found["ceilings"]["real"].as_f64().unwrap() > 0.0);
    assert!(found["ceilings"]["prepared"].as_f64().unwrap() > 0.0);
    assert!(found["ceilings"]["replayed"].as_f64().unwrap() > 0.0);
    let names: Vec<_> = found["stages"].as_array().unwrap().iter().map(|s| &s["name"]).collect();
    assert_eq!(names[..3], ["read", "decode", "transform"]);
    assert!(found["stages"][2]["measured_if_free"].as_f64().unwrap() > 0.0);
    assert!(!found["run"]["timeline"].as_array().unwrap().is_empty());
}

#[test]
#[ignore = "live: make soak SOAK=diagnose"]
fn a_slow_trainer_has_nothing_to_gain() {
    let step = ["--train-step", "150ms", "--seconds", "3", "--batch-size", "4"];
    let found = json(&[&["diagnose", photos()], &step[..]].concat(), 0);
    assert_eq!(found["verdict"]["cause"], "trainer", "{:#}", found["verdict"]);
    let sentence = found["verdict"]["sentence"].as_str().unwrap();
    assert!(sentence.contains("Nothing to gain here"), "{sentence}");
}

#[test]
fn without_a_step_the_loader_itself_is_judged() {
    let found = feedline(&["diagnose", photos(), "--seconds", "1"]);
    assert!(text(&found.stderr).contains("no --train-step"), "{}", text(&found.stderr));
    let shown = text(&found.stdout);
    assert!(shown.starts_with("Without a training step the loader gives"), "{shown}");
}

#[test]
fn wrong_flags_are_explained() {
    for (arguments, code, words) in [
        (&["--train-step", "soon"][..], 2, "--train-step"),
        (&["--train-step", "train.py:step"], 2, "Python code"),
        (&["--seconds", "0"], 2, "0.5 to 3600"),
        (&["--batches", "0"], 2, "--batches"),
        (&["--timeout", "0s"], 2, "more than 0"),
        (&["--train-step", "5s", "--timeout", "1s"], 1, "no batch for 1 s, from the beginning"),
        (&["--set", "workers=3"], 2, "workers"),
    ] {
        let output = complaint(&[&["diagnose", photos()], arguments].concat(), code);
        assert!(output.contains(words), "{arguments:?}: {output}");
    }
    assert!(complaint(&["diagnose", "no-such-folder"], 1).contains("no-such-folder"));
    let python = complaint(&["diagnose", "train:make_loader"], 1);
    assert!(python.contains("pip install feedline"), "{python}");
}

#[test]
fn few_batches_are_remarked_on() {
    let step = ["--train-step", "200ms", "--seconds", "0.5", "--batch-size", "4"];
    let found = json(&[&["diagnose", photos()], &step[..]].concat(), 0);
    assert!(found["evidence"]["batches"].as_u64().unwrap() > 0, "{:#}", found["evidence"]);
    let remarks = found["evidence"]["remarks"].to_string();
    assert!(remarks.contains("Too short to tell: ") && remarks.contains("--seconds "), "{remarks}");
}

#[test]
fn an_interrupt_ends_it_with_what_is_known() {
    let arguments = ["diagnose", photos(), "--train-step", "5ms", "--seconds", "60", "--json"];
    let mut child = command(&arguments)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    interrupt(&child);
    let mut shown = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut shown).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let found: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert!(found["evidence"]["not_measured"].to_string().contains("ended early"), "{found}");
}

/// Runs a line in a shell in `folder`, where `feedline` is the built command.
fn paste(line: &str, folder: &Path) -> std::process::Output {
    let script = format!("feedline() {{ '{}' \"$@\"; }}\n{line}", env!("CARGO_BIN_EXE_feedline"));
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).current_dir(folder).env("LC_ALL", "C.UTF-8").output().unwrap()
}

/// Photos and a spec in a fresh folder, both with names that a shell would take apart.
fn data_to_pack(name: &str) -> std::path::PathBuf {
    let folder = fresh(name);
    let photos = folder.join("my photos");
    let size = ["--count", "12", "--classes", "3", "--width", "96", "--height", "64"];
    let made = feedline(&[&["sample-data", photos.to_str().unwrap()], &size[..]].concat());
    assert!(made.status.success(), "{}", text(&made.stderr));
    std::fs::create_dir(folder.join("sub")).unwrap();
    let spec = "source = \"../my photos\"\nbatch_size = 2\nmemory = \"2MB\"\n[[transforms]]\nop = \"CenterCrop\"\nsize = 32\n";
    std::fs::write(folder.join("sub/my spec.toml"), spec).unwrap();
    folder
}

/// Pastes the commands of feedline's own among what is advised, and says how many there were.
#[track_caller]
fn paste_all(advice: &[Advice], folder: &Path, photos: &Path) -> usize {
    let ours = |one: &&Advice| one.command.as_deref().is_some_and(|c| c.starts_with("feedline "));
    let mut pasted = 0;
    for advice in advice.iter().filter(ours) {
        let command = advice.command.as_deref().unwrap();
        // What it brings is measured for seconds, which nobody waits for here.
        let trial = if command.starts_with("feedline pack") { " --no-trial" } else { "" };
        let output = paste(&format!("{command}{trial}"), folder);
        assert_eq!(output.status.code(), Some(0), "{command}: {}", text(&output.stderr));
        let data = json(&["inspect", photos.to_str().unwrap()], 0);
        assert_eq!(data["samples"], 12, "{command} wrote into the data");
        pasted += 1;
    }
    pasted
}

/// What is advised can be pasted into a shell, wherever the data lies, and leaves it as it was.
#[test]
fn advised_commands_are_accepted() {
    let stage = |name: &str, seconds: f64, cpu_seconds: f64| StageCost {
        name: name.to_owned(),
        seconds,
        cpu_seconds,
    };
    let decoding = Evidence {
        batch_size: 64.0,
        workers: 8,
        cores: 8.0,
        batches: 100,
        samples: 6400,
        wait_seconds: 5.0,
        step_seconds: 5.0,
        stages: vec![stage("read", 0.0002, 0.0002), stage("decode", 0.0024, 0.0024)],
        worker_time: WorkerTime { busy: 79.0, cpu: 78.5, idle: 1.0, memory: 0.0 },
        memory_limit: 2_000_000,
        encoding: "JPEG".to_owned(),
        pipeline: "'sub/my spec.toml' --set batch_size=3".to_owned(),
        loose: true,
        crops: true,
        stored_side: Some(32),
        ..Evidence::default()
    };
    type Change = fn(&mut Evidence);
    let stages: [(Cause, Change); 5] = [
        (Cause::Decode, |_| ()),
        (Cause::Transform, |e| e.stages[1].name = "transform".to_owned()),
        // Who waits for bytes leaves the cores idle.
        (Cause::ReadLatency, |e| (e.stages[0].seconds, e.worker_time.cpu) = (0.5, 0.4)),
        (Cause::ReadBandwidth, |e| {
            (e.stages[0].seconds, e.worker_time.cpu) = (0.5, 0.4);
            e.read_bytes_per_sample = 1e7;
        }),
        (Cause::Memory, |e| e.worker_time.memory = 100.0),
    ];
    for (number, (cause, change)) in stages.into_iter().enumerate() {
        for (place, source) in [("", "my photos/"), ("my photos", ".")] {
            let folder = data_to_pack(&format!("advised-{number}-{}", source.len()));
            let mut evidence = Evidence { source: source.to_owned(), ..decoding.clone() };
            change(&mut evidence);
            if cause == Cause::Memory && source == "." {
                evidence.pipeline = evidence.pipeline.replace("sub/", "../sub/");
            }
            let verdict = judge(&evidence);
            assert_eq!(verdict.cause, cause, "{verdict:#?}");
            let photos = folder.join("my photos");
            let pasted = paste_all(&verdict.advice, &folder.join(place), &photos);
            assert!(pasted > 0, "{verdict:#?}");
        }
    }
    // Settings are those of a spec.
    let mut seen = Vec::new();
    let changes: [Change; 3] = [
        |e| e.worker_time.memory = 100.0,
        |e| e.workers = 1,
        |e| {
            e.ceilings.real = Some(9000.0);
            e.workers = 2;
        },
    ];
    for change in changes {
        let mut evidence = decoding.clone();
        change(&mut evidence);
        for code in judge(&evidence).advice.iter().filter_map(|advice| advice.code.as_deref()) {
            let key = code.split('=').next().unwrap_or_default();
            if ["num_workers", "memory", "prefetch_factor"].contains(&key) {
                json(&["run", photos(), "--batches", "2", "--batch-size", "4", "--set", code], 0);
                seen.push(key.to_owned());
            }
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["memory", "num_workers", "prefetch_factor"]);
}

/// The same with what a diagnosis really says, of a folder named as a shell completes it.
#[test]
fn what_a_diagnosis_advises_is_accepted() {
    let folder = data_to_pack("advised");
    let flags = ["--train-step", "0.1ms", "--seconds", "1", "--batch-size", "4", "--json"];
    for (place, target) in [("", "my photos/"), ("my photos", "."), ("", "sub/my spec.toml")] {
        let place = folder.join(place);
        let mut command = command(&[&["diagnose", target], &flags[..]].concat());
        let found = command.current_dir(&place).output().unwrap();
        assert_eq!(found.status.code(), Some(0), "{}", text(&found.stderr));
        let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
        let evidence: Evidence = serde_json::from_value(found["evidence"].clone()).unwrap();
        assert_eq!(evidence.batch_size, 4.0);
        assert!(evidence.pipeline.ends_with(" --set batch_size=4"), "{}", evidence.pipeline);
        assert!(evidence.crops, "{target}: a crop is used");
        let advice: Vec<Advice> =
            serde_json::from_value(found["verdict"]["advice"].clone()).unwrap();
        paste_all(&advice, &place, &folder.join("my photos"));
        let line = format!("feedline run {} --batches 1", evidence.pipeline);
        let output = paste(&line, &place);
        assert_eq!(output.status.code(), Some(0), "{line}: {}", text(&output.stderr));
    }
    // Packed already: nobody says to pack it again.
    let packed = folder.join("my photos-again");
    let (from, to) = (folder.join("my photos"), packed.to_str().unwrap());
    let flags = ["--crop-index", "--no-trial"];
    json(&[&["pack", from.to_str().unwrap(), to], &flags[..]].concat(), 0);
    for (target, crops) in [(to, true), (from.to_str().unwrap(), false)] {
        let resize =
            ["--transform", if crops { "CenterCrop(size=32)" } else { "Resize(size=[32,32])" }];
        let found = json(&[&["diagnose", target, "--seconds", "1"], &resize[..]].concat(), 0);
        let evidence = &found["evidence"];
        assert_eq!((&evidence["crop_index"], &evidence["crops"]), (&crops.into(), &crops.into()));
        let advice = found["verdict"]["advice"].to_string();
        assert!(!advice.contains("--crop-index"), "{advice}");
    }
}

#[test]
fn what_only_measures_lists_no_bad_samples() {
    let folder = fresh("measured");
    let (data, list) = (folder.join("data"), folder.join("bad.jsonl"));
    std::fs::create_dir_all(data.join("class")).unwrap();
    for entry in std::fs::read_dir(photos()).unwrap().flatten() {
        for photo in std::fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            let bytes = std::fs::read(photo.path()).unwrap();
            std::fs::write(data.join("class").join(photo.file_name()), bytes).unwrap();
        }
    }
    std::fs::write(data.join("class/torn.jpg"), b"no image").unwrap();
    let spec = folder.join("pipeline.toml");
    let crop = "[[transforms]]\nop = \"CenterCrop\"\nsize = 16\n";
    let text = format!(
        "source = {data:?}\nbatch_size = 4\non_error = \"skip\"\nquarantine = {list:?}\n{crop}"
    );
    std::fs::write(&spec, text).unwrap();
    let name = spec.to_str().unwrap();
    json(&["diagnose", name, "--seconds", "1", "--train-step", "1ms"], 0);
    let short = ["--config", "workers=1", "--epochs", "1", "--repeats", "1"];
    json(&[&["bench", name], &short[..]].concat(), 0);
    json(&["tune", name, "--train-step", "30ms", "--seconds", "0.1"], 0);
    json(&["plan", name, "--step", "30ms"], 0);
    let listed = std::fs::read_to_string(&list).unwrap_or_default();
    assert_eq!(listed, "");
    json(&["run", name], 0);
    assert_eq!(std::fs::read_to_string(&list).unwrap().lines().count(), 1);
    std::fs::remove_dir_all(folder).unwrap();
}
