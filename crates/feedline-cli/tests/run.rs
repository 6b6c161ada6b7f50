//! `feedline run`: figures, hashes, resuming, mistakes.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::command_line::{command, complaint, feedline, fresh, json, photos, text};

#[test]
fn a_bare_folder_runs() {
    let run = feedline(&["run", photos(), "--batch-size", "16", "--epochs", "2"]);
    assert_eq!(run.status.code(), Some(0), "{}", text(&run.stderr));
    let shown = text(&run.stdout);
    for expected in ["40 images in 4 classes", "uint8 [16, 3, 224, 224]", "images/s", "first batch"]
    {
        assert!(shown.contains(expected), "{expected} in {shown}");
    }
    assert!(shown.contains("RandomResizedCrop(size=224)"), "the default is stated: {shown}");
    assert!(!run.stdout.contains(&0x1b) && run.stderr.is_empty(), "plain in a pipe");
}

#[test]
fn the_figures_as_json() {
    let run =
        json(&["run", photos(), "--batch-size", "16", "--epochs", "3", "--train-step", "5ms"], 0);
    assert_eq!((&run["command"], &run["unit"]), (&"run".into(), &"images".into()));
    assert_eq!((&run["batches"], &run["samples"]), (&9.into(), &120.into()));
    assert_eq!(run["batches_per_epoch"], 3);
    let epochs = run["epochs"].as_array().unwrap();
    assert_eq!(epochs.len(), 3);
    assert!(epochs.iter().all(|epoch| epoch["samples"] == 40 && epoch["batches"] == 3));
    let number = |key: &str| run[key].as_f64().unwrap();
    assert!(number("seconds") >= 0.045 && number("train_step_seconds") == 0.005);
    let rate = number("samples") / number("seconds");
    assert!((number("samples_per_second") / rate - 1.0).abs() < 1e-6);
    assert!((0.0..=1.0).contains(&number("wait_share")));
    assert!(number("peak_memory_bytes") > 1e6 && number("first_batch_seconds") > 0.0);
    assert_eq!(run["next"], serde_json::json!({"epoch": 3, "batch": 0}));
    assert_eq!(run["spec"]["batch_size"], 16);
}

#[test]
fn the_hash_is_the_same_for_any_number_of_workers() {
    let run = |workers: &str, seed: &str| {
        let arguments = [
            "run",
            photos(),
            "--batch-size",
            "7",
            "--shuffle",
            "--epochs",
            "2",
            "--memory",
            "64MB",
        ];
        let varied = ["--num-workers", workers, "--seed", seed];
        json(&[&arguments[..], &varied].concat(), 0)["hash"].clone()
    };
    let hash = run("0", "3");
    assert_eq!(hash.as_str().unwrap().len(), 16);
    assert_eq!((&run("1", "3"), &run("4", "3")), (&hash, &hash));
    assert_ne!(run("1", "4"), hash);
}

#[test]
fn a_resumed_run_goes_on_exactly() {
    let folder = fresh("resume");
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let base = ["run", photos(), "--batch-size", "6", "--shuffle", "--epochs", "2"];
    let run = |more: &[&str]| json(&[&base[..], more].concat(), 0);
    run(&["--hashes", &at("whole")]);
    let first = run(&["--batches", "9", "--hashes", &at("first"), "--state", &at("state")]);
    assert_eq!(first["next"], serde_json::json!({"epoch": 1, "batch": 2}));
    let second = run(&["--resume", &at("state"), "--hashes", &at("second"), "--state", &at("end")]);
    assert_eq!(second["batches"], 5);
    let read = |name: &str| fs::read_to_string(at(name)).unwrap();
    assert_eq!(read("whole").lines().count(), 14);
    assert_eq!(read("whole"), read("first") + &read("second"));
    assert!(read("whole").starts_with("0 0 6 "));

    let done = run(&["--resume", &at("end")]);
    assert_eq!((&done["batches"], &done["next"]["epoch"]), (&0.into(), &2.into()));
    assert!(
        text(&feedline(&[&base[..], &["--resume", &at("end")]].concat()).stdout)
            .contains("nothing left")
    );

    let other = complaint(&[&base[..], &["--seed", "5", "--resume", &at("state")]].concat(), 1);
    assert!(other.contains("seed = 0") && other.contains("seed = 5"), "{other}");
    fs::write(at("broken"), "{}").unwrap();
    assert!(complaint(&["run", photos(), "--resume", &at("broken")], 1).contains("is no state"));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_spec_file_is_read_from_its_folder_and_changed_by_flags() {
    let folder = fresh("specs");
    std::os::unix::fs::symlink(photos(), folder.join("data")).unwrap();
    let toml = folder.join("pipeline.toml");
    fs::write(
        &toml,
        "source = \"data\"\nbatch_size = 8\n[[transforms]]\nop = \"CenterCrop\"\nsize = 32\n",
    )
    .unwrap();
    let same = folder.join("pipeline.json");
    fs::write(
        &same,
        r#"{"source": "data", "batch_size": 8, "transforms": [{"op": "CenterCrop", "size": 32}]}"#,
    )
    .unwrap();
    let (toml, same) = (toml.to_str().unwrap(), same.to_str().unwrap());
    let run = json(&["run", toml], 0);
    assert_eq!(run["fields"][0]["shape"], serde_json::json!([3, 32, 32]));
    assert_eq!(json(&["run", same], 0)["hash"], run["hash"]);

    let changed = ["run", toml, "--set", "layout=HWC", "--set", "decode.mode=\"gray\""];
    let changed = json(&[&changed[..], &["--set", "num_samples=10"]].concat(), 0);
    assert_eq!(changed["fields"][0]["shape"], serde_json::json!([32, 32, 1]));
    assert_eq!(changed["samples"], 10);
    let other = json(&["run", toml, "--set", &format!("source = \"{}\"", photos())], 0);
    assert_eq!(other["hash"], run["hash"]);
    let flat = json(&["run", toml, "--set", "source.kind=flat"], 0);
    assert_eq!(flat["fields"].as_array().unwrap().len(), 1, "no labels");
    let cropped = ["run", photos(), "--batch-size", "8", "--transform", "CenterCrop(size=32)"];
    assert_eq!(json(&cropped, 0)["hash"], run["hash"]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn mistakes_are_named_with_the_nearest_right_thing() {
    let folder = fresh("mistakes");
    let spec = folder.join("wrong.toml");
    fs::write(&spec, "source = 'photos'\nbatchsize = 3").unwrap();
    let name = spec.to_str().unwrap();
    let said = complaint(&["run", name], 2);
    assert!(said.contains("wrong.toml: batchsize = 3: unknown key"), "{said}");
    assert!(said.contains("did you mean batch_size?"), "{said}");
    fs::write(&spec, "source = ").unwrap();
    assert!(complaint(&["run", name], 2).contains("not valid TOML"));
    fs::remove_dir_all(&folder).unwrap();
    assert!(complaint(&["run", name], 1).contains("cannot read the spec"));

    let cases: [(&[&str], &str); 9] = [
        (&["--bach-size", "3"], "--batch-size"),
        (&["--set", "shufle=true"], "did you mean shuffle?"),
        (&["--set", "shuffle"], "expected KEY=VALUE"),
        (&["--set", "last_batch=dropp"], "did you mean \"drop\"?"),
        (&["--transform", "CentreCrop(size=3)"], "did you mean CenterCrop"),
        (&["--transform", "CenterCrop(3)"], "name the parameters"),
        (&["--train-step", "20 parsecs"], "allowed: us, ms, s, min"),
        (&["--num-workers", "many"], "auto or a whole number"),
        (&["--memory", "lots"], "is not a size"),
    ];
    for (flags, expected) in cases {
        let said = complaint(&[&["run", photos()], flags].concat(), 2);
        assert!(said.contains(expected), "{flags:?}: {said}");
    }
    assert!(complaint(&["rum", photos()], 2).contains("'run'"));
    assert!(complaint(&["run", "/no/such/folder"], 1).contains("/no/such/folder"));
}

#[test]
fn bad_samples_stop_the_run_or_are_counted() {
    let folder = fresh("skip");
    let data = folder.join("data");
    fs::create_dir(&data).unwrap();
    for number in 0..12 {
        fs::write(data.join(format!("{number:02}.jpg")), crate::command_line::a_photo()).unwrap();
    }
    fs::write(data.join("05.jpg"), "no photo").unwrap();
    let (data, list) = (data.to_str().unwrap(), folder.join("bad.jsonl"));
    let state = folder.join("state");
    let base = ["run", data, "--batch-size", "4"];
    let said = complaint(&[&base[..], &["--state", state.to_str().unwrap()]].concat(), 1);
    assert!(said.contains("05.jpg") && said.contains("state saved"), "{said}");
    let saved: serde_json::Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
    assert_eq!((&saved["epoch"], &saved["batch"]), (&0.into(), &1.into()));

    let skip = ["--set", "on_error=skip", "--set", &format!("quarantine=\"{}\"", list.display())];
    let run = json(&[&base[..], &skip].concat(), 0);
    assert_eq!((&run["failed"], &run["samples"]), (&1.into(), &12.into()));
    assert!(fs::read_to_string(&list).unwrap().contains("05.jpg"));
    let shown = feedline(&[&base[..], &skip].concat());
    assert!(text(&shown.stdout).contains("1 samples, listed in"), "{}", text(&shown.stdout));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_signal_saves_the_state_and_ends_with_its_code() {
    let folder = fresh("signal");
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let state = folder.join(signal);
        let hashes = folder.join(format!("{signal}-hashes"));
        let mut child = command(&["run", photos(), "--epochs", "1000000", "--train-step", "10ms"])
            .args(["--json", "--state", state.to_str().unwrap()])
            .args(["--hashes", hashes.to_str().unwrap()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // With the first batch, signals are watched for.
        let deadline = Instant::now() + Duration::from_secs(300);
        while fs::metadata(&hashes).map_or(0, |file| file.len()) == 0 {
            assert!(Instant::now() < deadline, "the run does not begin");
            std::thread::sleep(Duration::from_millis(20));
        }
        let kill = std::process::Command::new("kill")
            .args([&format!("-{signal}"), &child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        let mut shown = String::new();
        child.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(code));
        let run: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(run["interrupted"], true);
        let saved: serde_json::Value = serde_json::from_slice(&fs::read(state).unwrap()).unwrap();
        assert_eq!(saved["epoch"], run["next"]["epoch"]);
        assert!(run["batches"].as_u64().unwrap() > 0);
        let lines = fs::read_to_string(hashes).unwrap().lines().count() as u64;
        assert_eq!(run["batches"], lines, "no batch is lost from the list");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let one_class = format!("{}/..", photos());
    for arguments in [&["run", photos()][..], &["inspect", photos()], &["verify", photos()]] {
        let mut child = command(arguments)
            .current_dir(&one_class)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let mut complaints = String::new();
        child.stderr.take().unwrap().read_to_string(&mut complaints).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{arguments:?}: {complaints}");
        assert_eq!(complaints, "", "{arguments:?}");
    }
}

#[test]
fn no_output_is_written_through_a_link() {
    let folder = fresh("run-links");
    let precious = folder.join("precious");
    fs::write(&precious, "precious").unwrap();
    let link = |name: &str| {
        let link = folder.join(name);
        std::os::unix::fs::symlink(&precious, &link).unwrap();
        link.to_str().unwrap().to_owned()
    };
    let (hashes, list, bad) = (link("hashes"), link("list"), link("bad"));
    let crop = "CenterCrop(size=8)";
    let said = complaint(&["run", photos(), "--transform", crop, "--hashes", &hashes], 1);
    assert!(said.contains("is a link"), "{said}");
    let quarantine = format!("quarantine='{bad}'");
    let skip = ["--set", "on_error=skip", "--set", &quarantine];
    let said = complaint(&[&["run", photos(), "--transform", crop][..], &skip].concat(), 1);
    assert!(said.contains("is a link"), "{said}");
    assert!(complaint(&["verify", photos(), "--list", &list], 1).contains("is a link"));
    // Those that are written whole replace the link, and use no file whose name can be guessed.
    link("state.json.partial");
    link("trace.json.partial");
    let (state, trace) = (link("state.json"), link("trace.json"));
    json(&["run", photos(), "--transform", crop, "--state", &state, "--trace", &trace], 0);
    for written in [&state, &trace] {
        assert!(fs::read_to_string(written).unwrap().starts_with('{'));
        assert!(!fs::symlink_metadata(written).unwrap().is_symlink());
    }
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    fs::remove_dir_all(folder).unwrap();
}
