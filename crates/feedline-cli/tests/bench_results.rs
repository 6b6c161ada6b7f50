//! What `feedline bench` reports can be used, and is reported whatever else goes wrong.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::command_line::{command, complaint, feedline, fresh, json, photos, text};
use serde_json::Value;

/// Runs that are over at once.
const TINY: [&str; 8] =
    ["--epochs", "1", "--batches", "3", "--repeats", "1", "--config", "workers=1"];

/// Runs a line that was printed, as a shell does.
fn in_shell(line: &str, folder: &Path) -> Output {
    let feedline = Path::new(env!("CARGO_BIN_EXE_feedline")).parent().unwrap();
    let path = format!("{}:{}", feedline.display(), std::env::var("PATH").unwrap());
    let shell =
        Command::new("sh").args(["-c", line]).current_dir(folder).env("PATH", path).output();
    shell.unwrap()
}

fn lines(result: &Value) -> Vec<String> {
    let lines = result["use"].as_array().unwrap().iter();
    lines.map(|line| line.as_str().unwrap().to_owned()).collect()
}

/// The spec that a command says it ran.
fn ran(line: &str, folder: &Path) -> Value {
    let ran = in_shell(&format!("{line} --json"), folder);
    assert_eq!(ran.status.code(), Some(0), "{line}: {}", text(&ran.stderr));
    let result: Value = serde_json::from_slice(&ran.stdout).unwrap();
    result["spec"].clone()
}

#[test]
fn the_line_to_use_runs_the_pipeline_that_was_measured() {
    let folder = fresh("bench-line");
    let ops =
        ["--transform", "Resize(size=[32, 48])", "--transform", "RandomHorizontalFlip(p=1.0)"];
    let sets = ["--set", "decode.mode=gray", "--set", "subset=':30'"];
    let more = ["--shuffle", "--batch-size", "6"];
    let result = json(&[&["bench", photos()], &TINY[..], &ops, &sets, &more].concat(), 0);
    let printed = lines(&result);
    assert_eq!(printed.len(), 2, "{printed:?}");
    let spec = ran(&printed[0], &folder);
    assert_eq!((&spec["batch_size"], &spec["num_workers"]), (&6.into(), &1.into()), "{spec}");
    assert_eq!((&spec["shuffle"], &spec["decode"]["mode"]), (&true.into(), &"gray".into()));
    assert_eq!((&spec["subset"], &spec["transforms"][0]["size"][1]), (&":30:1".into(), &48.into()));
    assert_eq!(spec["transforms"][1]["op"], "RandomHorizontalFlip");
    let shown = feedline(&[&["bench", photos()], &TINY[..], &ops, &sets, &more].concat());
    assert!(
        text(&shown.stdout).contains(&format!("\n  {}\n", printed[0])),
        "{}",
        text(&shown.stdout)
    );

    // A spec whose name a shell would take apart, and its data in another format.
    let file = folder.join("it's a spec.toml");
    let crop = "[[transforms]]\nop = \"CenterCrop\"\nsize = 16\n";
    fs::write(&file, format!("source = {:?}\nbatch_size = 4\n{crop}", photos())).unwrap();
    let name = file.to_str().unwrap();
    let result = json(&[&["bench", name], &TINY[..6], &["--formats", "tar"]].concat(), 0);
    let printed = lines(&result);
    assert!(printed[2].starts_with("feedline.Loader.from_spec("), "{printed:?}");
    let packed = in_shell(&printed[0], &folder);
    assert_eq!(packed.status.code(), Some(0), "{}", text(&packed.stderr));
    let spec = ran(&printed[1], &folder);
    assert_eq!((&spec["source"], &spec["batch_size"]), (&"packed".into(), &4.into()), "{spec}");
    assert_eq!(spec["transforms"][0]["op"], "CenterCrop");
    fs::remove_dir_all(folder).unwrap();
}

/// 300 rows of 16 float32, as NumPy writes them.
fn rows(path: &Path) {
    let mut header = "{'descr': '<f4', 'fortran_order': False, 'shape': (300, 16), }".to_owned();
    header += &" ".repeat(128 - 10 - 1 - header.len());
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(u16::try_from(header.len()).unwrap().to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend((0..300 * 16).flat_map(|value| (value as f32).to_le_bytes()));
    fs::write(path, bytes).unwrap();
}

#[test]
fn data_that_is_no_picture_just_works() {
    let folder = fresh("plain-data");
    let (array, table) = (folder.join("x.npy"), folder.join("tab.csv"));
    rows(&array);
    let cells: String = (0..300).map(|row| format!("{row},{}\n", row * 2)).collect();
    fs::write(&table, format!("a,b\n{cells}")).unwrap();
    for path in [&array, &table] {
        let name = path.to_str().unwrap();
        let run = json(&["run", name], 0);
        assert_eq!((&run["samples"], &run["spec"]["transforms"]), (&300.into(), &Value::Null));
        let bench = json(&[&["bench", name], &TINY[..]].concat(), 0);
        assert_eq!(bench["best"], "workers=1", "{bench}");
        let printed = lines(&bench);
        assert!(!printed[1].contains("transforms"), "{printed:?}");
        let again = in_shell(&printed[0], &folder);
        assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
        let found = json(&["diagnose", name, "--seconds", "0.5"], 0);
        let sentence = found["verdict"]["sentence"].as_str().unwrap();
        assert!(sentence.starts_with("Without a training step"), "{sentence}");
        let gpus = ["--gpus", "1", "--step", "20ms", "--samples", "64"];
        json(&[&["plan", name], &gpus[..]].concat(), 0);
        let short = ["--train-step", "2ms", "--seconds", "0.1", "--dry-run"];
        let tuned = feedline(&[&["tune", name], &short[..]].concat());
        assert!(!text(&tuned.stderr).contains("transforms"), "{}", text(&tuned.stderr));
    }
    // Who asks for a transform gets one, or learns why not.
    let crop = ["--transform", "CenterCrop(size=8)"];
    let printed = complaint(&[&["run", array.to_str().unwrap()], &crop[..]].concat(), 2);
    assert!(printed.contains("transforms") && printed.contains("[16]"), "{printed}");
    // Bytes as they are have no pixels to crop.
    let bytes = json(&["run", photos(), "--set", "decode.mode=bytes"], 0);
    assert_eq!(bytes["samples"], 40);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_cannot_be_written_is_reported_before_the_runs() {
    let folder = fresh("bench-unwritten");
    let file = folder.join("file");
    fs::write(&file, "mine").unwrap();
    let (folder_name, file_name) = (folder.to_str().unwrap(), file.to_str().unwrap());
    let cases = [
        ("--csv", folder_name, "this is a folder"),
        ("--markdown", "/proc/x.md", "cannot write"),
        ("--report", "/proc/x.html", "cannot write"),
        ("--trace", "/proc/x.json", "cannot write"),
        ("--svg", file_name, "cannot make the folder"),
        ("--png", "/proc/x", "cannot make the folder"),
    ];
    for (flag, path, expected) in cases {
        // Nobody waits an hour for this.
        let endless = ["--seconds", "600", "--repeats", "6", flag, path];
        let run = feedline(&[&["bench", photos()], &endless[..]].concat());
        let said = text(&run.stderr);
        assert!(matches!(run.status.code(), Some(1 | 2)), "{flag}: {said}");
        assert!(said.contains(expected) && said.contains(path), "{flag}: {said}");
    }
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!((left, fs::read_to_string(&file).unwrap()), (vec![file], "mine".to_owned()));
    fs::remove_dir_all(folder).unwrap();
}

/// A file that can no longer be written when the runs are over takes nothing away.
#[test]
fn the_result_is_reported_even_if_a_file_fails_at_the_end() {
    let folder = fresh("bench-late");
    let bench = ["bench", photos(), "--seconds", "2", "--repeats", "1", "--config", "workers=1"];
    let diagnose = ["diagnose", photos(), "--seconds", "2"];
    let cases = [(&bench[..], "--csv"), (&bench[..], "--report"), (&diagnose[..], "--report")];
    for (arguments, flag) in cases {
        let place = folder.join(format!("{}{flag}", arguments[0]));
        fs::create_dir_all(&place).unwrap();
        let file = place.join("a.out");
        let arguments = [arguments, &[flag, file.to_str().unwrap(), "--json"]].concat();
        let mut child =
            command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Its first words come after files were tried and before the runs: then the folder goes.
        let mut said = String::new();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        errors.read_line(&mut said).unwrap();
        fs::remove_dir_all(&place).unwrap();
        let rest = std::thread::spawn(move || {
            let mut rest = String::new();
            errors.read_to_string(&mut rest).unwrap();
            rest
        });
        let ended = child.wait_with_output().unwrap();
        said += &rest.join().unwrap();
        let shown = text(&ended.stdout);
        let objects: Vec<Value> =
            serde_json::Deserializer::from_str(shown).into_iter().map(Result::unwrap).collect();
        assert_eq!((ended.status.code(), objects.len()), (Some(1), 1), "{said} {shown}");
        assert_eq!(objects[0]["command"], arguments[0], "{}", objects[0]["error"]);
        assert!(said.contains("cannot write"), "{said}");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_was_not_measured_is_no_result() {
    let printed = complaint(&["bench", photos(), "--seconds", "0"], 2);
    assert!(printed.contains("--seconds") && printed.contains("more than 0"), "{printed}");
    // One batch says nothing of those after it.
    let one = ["--epochs", "1", "--batches", "1", "--repeats", "2", "--config", "workers=1"];
    let run = feedline(&[&["bench", photos()], &one[..]].concat());
    let shown = text(&run.stdout);
    assert_eq!(run.status.code(), Some(1), "{shown}");
    assert!(shown.contains("failed: workers=1: a run had one batch"), "{shown}");
    assert!(!shown.contains("Best") && !shown.contains("warning"), "{shown}");
    // One run says nothing of others, and there is no trainer that could be busy.
    let run = feedline(&[&["bench", photos(), "--batch-size", "8"], &TINY[..]].concat());
    let shown = text(&run.stdout);
    assert!(!shown.contains('±') && !shown.contains("The trainer"), "{shown}");
    assert!(shown.contains("With it: Without a training step the loader gives"), "{shown}");
}

#[test]
fn settings_of_python_are_refused_by_name() {
    let grid = ["--epochs", "1", "--repeats", "1", "--config", "executor=threads"];
    let run = feedline(&[&["bench", photos()], &grid[..]].concat());
    let shown = text(&run.stdout);
    assert!(shown.contains("executor is for Python data sets"), "{shown}");
}
