//! `feedline tune` and `feedline plan`: what they write, what they refuse, which cores they count.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use crate::command_line::{command, complaint, feedline, fresh, interrupt, json, photos, text};

/// A step that is far longer than what a batch of the small photos takes, and short stretches.
const EASY: [&str; 4] = ["--train-step", "30ms", "--seconds", "0.1"];

fn spec() -> String {
    let source = photos();
    format!(
        "# mine\nsource = \"{source}\"  # small\nbatch_size = 4\nnum_workers = 2 # by hand\n\n[[transforms]]\nop = \"CenterCrop\"  # square\nsize = 32\n"
    )
}

#[test]
fn the_spec_gets_settings_and_keeps_its_comments() {
    let folder = fresh("tune");
    let file = folder.join("pipeline.toml");
    fs::write(&file, spec()).unwrap();
    let name = file.to_str().unwrap();
    let hash = |name: &str| json(&["run", name], 0)["hash"].clone();
    let before = hash(name);

    let tried = json(&[&["tune", name, "--dry-run"], &EASY[..]].concat(), 0);
    assert_eq!(fs::read_to_string(&file).unwrap(), spec(), "a dry run writes nothing");
    assert_eq!((&tried["command"], &tried["written"]), (&"tune".into(), &().into()));
    assert!(tried["tried"].as_array().unwrap().len() >= 2, "{tried}");

    let shown = feedline(&[&["tune", name], &EASY[..]].concat());
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
    let out = text(&shown.stdout);
    for expected in ["workers", "waited", "num_workers = ", "written to"] {
        assert!(out.contains(expected), "{expected} in {out}");
    }
    let written = fs::read_to_string(&file).unwrap();
    for kept in ["# mine\n", "  # small\n", "# by hand\n", "op = \"CenterCrop\"  # square\n"] {
        assert!(written.contains(kept), "{kept} in {written}");
    }
    assert!(written.contains("# tuned: "), "{written}");
    assert_eq!(hash(name), before, "no batch changes");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_path_gets_a_whole_spec_and_json_gets_keys() {
    let folder = fresh("tune-out");
    let out = folder.join("made.toml");
    let name = out.to_str().unwrap();
    let path = ["tune", photos(), "--batch-size", "4", "--transform", "CenterCrop(size=32)"];
    let tuned = json(&[&path[..], &["--out", name], &EASY[..]].concat(), 0);
    assert_eq!(tuned["written"], name);
    let written = fs::read_to_string(&out).unwrap();
    assert!(written.contains("# tuned: "), "{written}");
    // Where the machine is busy, less memory may make the trainer wait; then none is written.
    let less = !tuned["choice"]["settings"]["memory"].is_null();
    assert_eq!(written.contains("memory = \"256 MB\""), less, "{written}");
    assert!(written.contains("num_workers = ") && written.contains("CenterCrop"), "{written}");
    assert_eq!(json(&["run", name], 0)["samples"], 40);
    let again = complaint(&[&path[..], &["--out", name], &EASY[..]].concat(), 2);
    assert!(again.contains("exists already"), "{again}");

    let file = folder.join("pipeline.json");
    let transforms = serde_json::json!([{"op": "CenterCrop", "size": 32}]);
    let spec = serde_json::json!({
        "source": photos(), "batch_size": 8, "num_workers": 2, "transforms": transforms,
    });
    fs::write(&file, spec.to_string()).unwrap();
    let tuned = json(&[&["tune", file.to_str().unwrap()], &EASY[..]].concat(), 0);
    let value: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(value["num_workers"], tuned["choice"]["settings"]["num_workers"]);
    assert_eq!(value["batch_size"], 8);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_choice_is_reported_even_if_the_file_fails_at_the_end() {
    let folder = fresh("tune-late");
    for form in ["--json", "--no-json"] {
        let place = folder.join(form);
        fs::create_dir_all(&place).unwrap();
        let out = place.join("made.toml");
        let arguments = ["tune", photos(), "--batch-size", "4", "--out", out.to_str().unwrap()];
        let json = (form == "--json").then_some(form);
        let mut child = command(&[&arguments[..], &EASY[..]].concat())
            .args(json)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Its first words come after the file was tried: then the folder goes.
        let mut said = String::new();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        errors.read_line(&mut said).unwrap();
        fs::remove_dir_all(&place).unwrap();
        errors.read_to_string(&mut said).unwrap();
        let ended = child.wait_with_output().unwrap();
        let shown = text(&ended.stdout);
        assert_eq!(ended.status.code(), Some(1), "{said} {shown}");
        assert!(said.contains("cannot write"), "{said}");
        if json.is_some() {
            let tuned: serde_json::Value = serde_json::from_str(shown).unwrap();
            assert!(tuned["choice"]["settings"].is_object(), "{tuned}");
            assert!(tuned["written"].is_null(), "{tuned}");
        } else {
            assert!(shown.contains("num_workers = "), "{shown}");
            assert!(!shown.contains("written"), "{shown}");
        }
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn too_few_cores_are_said_with_figures() {
    // A step of a tenth of a millisecond is faster than anything decodes 40 photos.
    let arguments = ["--train-step", "100us", "--seconds", "0.2", "--dry-run"];
    let tuned = json(&[&["tune", photos(), "--batch-size", "40"], &arguments[..]].concat(), 0);
    assert_eq!(tuned["choice"]["kept"], false);
    let remark = tuned["choice"]["remarks"][0].as_str().unwrap();
    assert!(remark.contains("cannot keep the wait under 1 %"), "{remark}");
    assert!(tuned["choice"]["wait_share"]["mean"].as_f64().unwrap() > 0.05, "{tuned}");
}

#[test]
fn wrong_input_is_refused_clearly() {
    let folder = fresh("tune-wrong");
    let file = folder.join("pipeline.toml");
    fs::write(&file, spec()).unwrap();
    let (name, none) = (file.to_str().unwrap(), folder.join("none/x.toml"));
    let cases: [(&[&str], i32, &str); 15] = [
        (&["tune", photos()], 2, "add --out"),
        (&["tune", photos(), "--out", "x.yaml"], 2, ".toml or .json"),
        (&["tune", photos(), "--out", none.to_str().unwrap()], 2, "no such folder"),
        // Nobody waits five minutes for this.
        (&["tune", photos(), "--out", "/proc/x.toml", "--seconds", "300"], 1, "cannot write"),
        (&["tune", name, "--batch-size", "3"], 2, "for a PATH"),
        (&["tune", name, "--cpus", "4096"], 2, "feedline plan"),
        (&["tune", name, "--train-step", "0"], 2, "must take some time"),
        (&["tune", name, "--train-step", "soon"], 2, "allowed: us, ms, s, min"),
        (&["tune", name, "--memory", "much"], 2, "2GB"),
        (&["tune", "nowhere.toml"], 1, "nowhere.toml"),
        (&["plan", photos()], 2, "--step"),
        (&["plan", photos(), "--step", "1ms", "--gpus", "0"], 2, "--gpus"),
        (&["plan", "nowhere", "--step", "1ms"], 1, "nowhere"),
        (&["plan", "train.py:make", "--step", "1ms"], 2, "feedline diagnose train.py:make"),
        (&["tune", "train:make", "--dry-run"], 2, "num_workers=\"auto\""),
    ];
    for (arguments, code, expected) in cases {
        let said = complaint(arguments, code);
        assert!(said.contains(expected), "{arguments:?}: {expected} in {said}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_plan_for_another_machine() {
    let arguments = [
        "plan",
        photos(),
        "--gpus",
        "8",
        "--cpus",
        "16000",
        "--memory",
        "1TB",
        "--step",
        "120ms",
        "--batch-size",
        "256",
        "--samples",
        "64",
    ];
    let answer = json(&arguments, 0);
    assert_eq!(answer["command"], "plan");
    assert_eq!((&answer["node"]["gpus"], &answer["node"]["cpus"]), (&8.into(), &16000.into()));
    let plan = &answer["plan"];
    let number = |key: &str| plan[key].as_f64().unwrap();
    assert!((number("samples_per_second") - 256.0 / 0.12).abs() < 1.0, "{plan}");
    assert!(number("cores_per_gpu") >= 2.0 && number("workers_per_rank") >= 1.0, "{plan}");
    assert_eq!(number("node_cores"), 8.0 * number("cores_per_gpu"));
    assert!(number("memory_per_rank") > 3.0 * 256.0 * 224.0 * 224.0 * 3.0, "{plan}");
    assert!(answer["measured"]["cost"]["cpu"].as_f64().unwrap() > 0.0, "{answer}");
    assert!(answer["measured"]["packed"].as_f64().is_some_and(|gain| gain > 0.1), "{answer}");
    let said = plan["sentences"].as_array().unwrap();
    assert!(said.iter().any(|line| line.as_str().unwrap().contains("another machine")), "{plan}");

    let shown = feedline(&["plan", photos(), "--step", "50ms", "--samples", "32", "--no-pack"]);
    let out = text(&shown.stdout);
    for expected in ["cores to reserve", "num_workers", "expected wait", "Each GPU wants"] {
        assert!(out.contains(expected), "{expected} in {out}");
    }
}

#[test]
fn stretches_begin_behind_what_was_read() {
    let arguments = ["--batch-size", "2", "--dry-run"];
    let tuned = json(&[&["tune", photos()], &arguments[..], &EASY[..]].concat(), 0);
    let stretches = tuned["stretches"].as_array().unwrap();
    assert!(stretches.len() >= 4, "{tuned}");
    let mut read = 0;
    for stretch in stretches {
        assert_eq!(stretch["behind"], read, "{stretches:#?}");
        let batches = stretch["batches"].as_u64().unwrap();
        assert!(batches >= 2, "{stretches:#?}");
        read += batches;
    }
    // Batches are as large as they were.
    assert!(tuned["samples_per_second_wanted"].as_f64().unwrap() < 70.0, "{tuned}");
    let small = ["tune", photos(), "--batch-size", "4000", "--train-step", "50ms", "--dry-run"];
    let wanted =
        &json(&[&small[..], &["--seconds", "0.1"]].concat(), 0)["samples_per_second_wanted"];
    assert_eq!(wanted.as_f64().unwrap().round(), 800.0, "40 samples each 50 ms");
}

#[test]
fn settings_are_run_in_turn_and_each_stretch_is_announced() {
    let arguments = ["tune", photos(), "--batch-size", "2", "--dry-run", "--json"];
    let shown = feedline(&[&arguments[..], &EASY[..]].concat());
    let tuned: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let order: Vec<&serde_json::Value> =
        tuned["stretches"].as_array().unwrap().iter().map(|one| &one["settings"]).collect();
    let said = text(&shown.stderr);
    assert_eq!(said.matches(" of at most ").count(), order.len(), "{said}");
    assert!(said.contains("the fewest workers, stretch 1 of at most "), "{said}");
    // What is compared last: all memory, less, all, less. A machine that others keep busy may not
    // come that far; `tuning/tests.rs` has it without a machine.
    let Some(less) = order.iter().position(|one| !one["memory"].is_null()) else { return };
    assert_ne!(order[less - 1], order[less], "{order:#?}");
    assert_eq!(order[less - 1..=less], order[less + 1..=less + 2], "{order:#?}");
}

#[test]
fn memory_that_is_asked_for_goes_over_the_specs() {
    let folder = fresh("tune-memory");
    let file = folder.join("pipeline.toml");
    fs::write(&file, format!("memory = \"300MB\"\n{}", spec())).unwrap();
    let arguments = ["tune", file.to_str().unwrap(), "--memory", "2GB", "--dry-run"];
    let tuned = json(&[&arguments[..], &EASY[..]].concat(), 0);
    assert_eq!(tuned["tried"][0]["memory"], 2_000_000_000_u64, "{tuned}");
    let remarks = tuned["choice"]["remarks"].to_string();
    assert!(remarks.contains("--memory 2.0 GB, in place of the spec's 300 MB"), "{remarks}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn affinity_counts() {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let own = allowed.trim().split([',', '-']).next().unwrap();
    let plan = ["plan", photos(), "--step", "50ms", "--samples", "32", "--no-pack", "--json"];
    let tune = ["tune", photos(), "--batch-size", "4", "--dry-run", "--json"];
    for arguments in [plan.to_vec(), [&tune[..], &EASY[..]].concat()] {
        // Of util-linux, which every Linux has.
        let on_one = Command::new("taskset")
            .args(["-c", own])
            .arg(command(&[]).get_program())
            .args(&arguments)
            .output()
            .unwrap();
        assert!(on_one.status.success(), "{arguments:?}: {}", text(&on_one.stderr));
        let answer: serde_json::Value = serde_json::from_slice(&on_one.stdout).unwrap();
        if arguments[0] == "plan" {
            assert_eq!((&answer["cores_here"], &answer["node"]["cpus"]), (&1.into(), &1.into()));
        } else {
            assert_eq!(answer["cpus"], 1);
        }
    }
}

#[test]
fn ctrl_c_leaves_one_object() {
    // A step of a second makes each stretch twelve seconds long.
    let tune = ["tune", photos(), "--batch-size", "4", "--train-step", "1s", "--dry-run", "--json"];
    let samples = ["--samples", "1000000", "--step", "1ms", "--json", "--no-pack"];
    let plan = [&["plan", photos()], &samples[..]].concat();
    for arguments in [tune.to_vec(), plan] {
        let mut child =
            command(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        interrupt(&child);
        let mut out = String::new();
        child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{out}");
        let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (&answer["command"], &answer["interrupted"]),
            (&arguments[0].into(), &true.into())
        );
    }
}
