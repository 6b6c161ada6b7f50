//! `feedline pack`: all modes, wrong input, interruption, and what reads the result.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::command_line::{a_photo, command, complaint, feedline, fresh, json, photos, text};
use feedline::internals::pack::{Encoder, Subsampling};
use serde_json::Value;

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Packs without the trial, which takes two seconds.
#[track_caller]
fn pack(source: &str, destination: &Path, flags: &[&str]) -> Value {
    let packed = json(&[&["pack", source, name(destination), "--no-trial"], flags].concat(), 0);
    assert!(packed["expected"].is_null());
    packed["packed"].clone()
}

/// The hash of the batches of a data set, small crops in a shuffled order.
#[track_caller]
fn hash(data: &str) -> Value {
    let crop = "RandomResizedCrop(size=32)";
    let exact = "decode.exact=true";
    let run =
        json(&["run", data, "--shuffle", "--seed", "5", "--transform", crop, "--set", exact], 0);
    assert_eq!(run["samples"], 40);
    run["hash"].clone()
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() { found.extend(files_below(&entry)) } else { found.push(entry) }
    }
    found.sort();
    found
}

fn images_below(folder: &Path) -> Vec<PathBuf> {
    let is_image = |path: &PathBuf| path.extension().is_some_and(|e| e == "jpg" || e == "png");
    let strip = |path: PathBuf| path.strip_prefix(folder).unwrap().to_owned();
    files_below(folder).into_iter().filter(is_image).map(strip).collect()
}

#[test]
fn a_crop_indexed_copy_gives_the_same_batches() {
    let folder = fresh("pack-index");
    let packed_at = folder.join("fast");
    let packed = pack(photos(), &packed_at, &["--crop-index"]);
    assert_eq!((&packed["samples"], &packed["unchanged_files"]), (&40.into(), &0.into()));
    assert_eq!(images_below(&packed_at), images_below(Path::new(photos())));
    for photo in images_below(&packed_at) {
        let bytes = fs::read(packed_at.join(photo)).unwrap();
        assert!(bytes.windows(2).any(|pair| pair == [0xff, 0xd0]));
    }
    assert_eq!(hash(name(&packed_at)), hash(photos()));
    let inspected = json(&["inspect", name(&packed_at)], 0);
    assert_eq!(inspected["classes"].as_array().unwrap().len(), 4);

    // The same again is kept, something else refused, and nothing of it changed.
    let before = fs::read(packed_at.join("feedline.json")).unwrap();
    assert_eq!(pack(photos(), &packed_at, &["--crop-index"])["kept"], true);
    let refused = complaint(&["pack", photos(), name(&packed_at), "--raw", "--no-trial"], 1);
    assert!(refused.contains("other options"), "{refused}");
    assert_eq!(fs::read(packed_at.join("feedline.json")).unwrap(), before);

    // Compared with the checksums, and a changed byte is found.
    let checked = json(&["verify", name(&packed_at)], 0);
    assert_eq!((&checked["files"], &checked["bad_files"]), (&40.into(), &0.into()));
    assert_eq!((&checked["samples"], &checked["bad_samples"]), (&40.into(), &0.into()));
    let victim = packed_at.join(&images_below(&packed_at)[7]);
    let mut bytes = fs::read(&victim).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&victim, bytes).unwrap();
    fs::remove_file(packed_at.join(&images_below(&packed_at)[3])).unwrap();
    let checked = json(&["verify", name(&packed_at)], 1);
    assert_eq!(checked["bad_files"], 2);
    assert!(checked["bad"][1]["reason"].as_str().unwrap().contains("has changed"));
    let shown = feedline(&["verify", name(&packed_at)]);
    assert!(text(&shown.stdout).contains("2 files are bad: 40 compared"));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn smaller_jpegs() {
    let folder = fresh("pack-resize");
    let source = folder.join("source");
    fs::create_dir_all(&source).unwrap();
    fs::write(source.join("large.jpg"), a_photo()).unwrap();
    let pixels: Vec<u8> = (0..90 * 50 * 3).map(|i| (i / 9) as u8).collect();
    fs::write(source.join("pixels.ppm"), [&b"P6 90 50 255\n"[..], &pixels].concat()).unwrap();
    let mut encoder = Encoder::new(90, Subsampling::Half, false).unwrap();
    let small = encoder.encode(&pixels[..30 * 30 * 3], 30, 30).unwrap().to_vec();
    fs::write(source.join("small.jpg"), &small).unwrap();
    for (flags, indexed) in [(&["--quality", "80"][..], false), (&["--crop-index"], true)] {
        let made = folder.join(format!("made-{indexed}"));
        let packed = pack(name(&source), &made, &[&["--resize", "40"], flags].concat());
        assert_eq!(packed["samples"], 3);
        let names = ["large.jpg", "pixels.ppm.jpg", "small.jpg"].map(PathBuf::from);
        assert_eq!(images_below(&made), names);
        let seen = json(&["inspect", name(&made)], 0);
        assert_eq!(
            seen["formats"]["JPEG"].as_u64().unwrap_or(0),
            seen["samples"].as_u64().unwrap()
        );
        assert_eq!((&seen["height"]["min"], &seen["height"]["max"]), (&30.0.into(), &40.0.into()));
        assert_eq!(fs::read(made.join("small.jpg")).unwrap() == small, !indexed);
        json(&["verify", name(&made)], 0);
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn decoded_pixels() {
    let folder = fresh("pack-raw");
    let (whole, small) = (folder.join("whole"), folder.join("small"));
    let packed = pack(photos(), &whole, &["--raw"]);
    assert_eq!(packed["samples"], 40);
    assert_eq!(hash(name(&whole)), hash(photos()), "the same pixels, labels and order");
    pack(photos(), &small, &["--raw", "--resize", "48"]);
    let run = json(&["run", name(&small), "--transform", "CenterCrop(size=48)"], 0);
    assert_eq!(run["samples"], 40);
    let seen = json(&["inspect", name(&small)], 0);
    assert_eq!(seen["fields"][0]["type"], "uint8 pixels");
    assert_eq!(seen["classes"].as_array().unwrap().len(), 4);
    assert!(seen["bytes"].as_u64().unwrap() >= 40 * 48 * 48 * 3);
    json(&["verify", name(&small)], 0);
    let refused = complaint(&["pack", name(&small), name(&folder.join("x")), "--raw"], 1);
    assert!(refused.contains("has no encoded images"), "{refused}");
    let gray = complaint(&["run", name(&small), "--set", "decode.mode=gray"], 2);
    assert!(gray.contains("packed"), "{gray}");

    // Truncated and altered files are refused, each with its name.
    let file = |file: &str| small.join(file);
    let shard = fs::read(file("pixels-00000.bin")).unwrap();
    fs::write(file("pixels-00000.bin"), &shard[..shard.len() - 1]).unwrap();
    assert!(complaint(&["run", name(&small)], 1).contains("pixels-00000.bin: ends before"));
    assert!(complaint(&["verify", name(&small)], 1).is_empty(), "a bad file is a result");
    fs::write(file("pixels-00000.bin"), &shard).unwrap();
    let index = fs::read(file("index.bin")).unwrap();
    for at in [0, 8, 16, 24, 28, 32, 36, 40, 47] {
        let mut wrong = index.clone();
        wrong[at] = 0xff;
        wrong[at + 1] = 0xff;
        fs::write(file("index.bin"), &wrong).unwrap();
        let said = complaint(&["run", name(&small)], 1);
        assert!(said.contains("index.bin") || said.contains("pixels-"), "{at}: {said}");
    }
    fs::write(file("index.bin"), &index[..index.len() - 3]).unwrap();
    assert!(complaint(&["run", name(&small)], 1).contains("index.bin"));
    fs::write(file("index.bin"), &index).unwrap();
    fs::remove_file(file("names.bin")).unwrap();
    assert!(complaint(&["run", name(&small)], 1).contains("names.bin"));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_cannot_be_rewritten_is_copied_and_counted() {
    let folder = fresh("pack-odd");
    let source = folder.join("source");
    fs::create_dir_all(&source).unwrap();
    let photo = a_photo();
    let mut arithmetic = photo.clone();
    let frame = photo.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    arithmetic[frame + 1] = 0xc9;
    let mut encoder = Encoder::new(90, Subsampling::Full, true).unwrap();
    let progressive = encoder.encode(&vec![77; 100 * 80 * 3], 100, 80).unwrap().to_vec();
    let files: [(&str, &[u8]); 6] = [
        ("arithmetic.jpg", &arithmetic),
        ("good.jpg", &photo),
        ("progressive.jpg", &progressive),
        ("page.png", b"<!DOCTYPE html>"),
        ("pixels.ppm", b"P6 1 1 255\nabc"),
        ("truncated.jpg", &photo[..photo.len() / 2]),
    ];
    for (file, bytes) in files {
        fs::write(source.join(file), bytes).unwrap();
    }
    let made = folder.join("made");
    let packed = pack(name(&source), &made, &["--crop-index"]);
    assert_eq!((&packed["samples"], &packed["unchanged_files"]), (&6.into(), &4.into()));
    for (file, bytes) in files {
        let same = fs::read(made.join(file)).unwrap() == bytes;
        assert_eq!(same, !matches!(file, "good.jpg" | "progressive.jpg"), "{file}");
    }
    let reasons = packed["unchanged"].to_string();
    for reason in ["not a JPEG", "arithmetic coding", "damaged", "cannot be decoded"] {
        assert!(reasons.contains(reason), "{reasons}");
    }
    // Where all must be decoded, a bad one is an error with its name, or left out if that is asked.
    let raw = folder.join("raw");
    let said = complaint(&["pack", name(&source), name(&raw), "--raw", "--no-trial"], 1);
    assert!(said.contains("cannot decode") && said.contains("--skip-bad"), "{said}");
    assert!(!raw.exists());
    let tried = complaint(&["pack", name(&source), name(&raw), "--raw"], 1);
    assert!(tried.contains("--skip-bad"), "the trial says so too: {tried}");
    for (to, flags) in [("raw", &["--raw"][..]), ("skipped", &["--crop-index"]), ("t.tar", &[])] {
        let packed = pack(name(&source), &folder.join(to), &[flags, &["--skip-bad"]].concat());
        assert_eq!((&packed["samples"], &packed["left_out"]), (&4.into(), &2.into()), "{to}");
        assert_eq!(packed["bad"].as_array().unwrap().len(), 2);
        json(&["verify", name(&folder.join(to))], 0);
    }
    // What was copied is as it was packed, and bad.
    let verified = json(&["verify", name(&made)], 1);
    assert_eq!((&verified["bad_files"], &verified["bad_samples"]), (&0.into(), &2.into()));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_table_keeps_its_labels() {
    let folder = fresh("pack-table");
    let (inside, outside) = (folder.join("inside"), folder.join("elsewhere"));
    fs::create_dir_all(inside.join("deep")).unwrap();
    fs::create_dir_all(&outside).unwrap();
    for path in [inside.join("deep/a.jpg"), inside.join("b.jpg"), outside.join("a.jpg")] {
        fs::write(path, a_photo()).unwrap();
    }
    let table = inside.join("table.csv");
    let rows = "path,label,score\ndeep/a.jpg,zebra,0.5\n../elsewhere/a.jpg,ant,1.25\nb.jpg,ant,2\ndeep/a.jpg,bee,3\n";
    fs::write(&table, rows).unwrap();
    let spec = folder.join("spec.toml");
    let describe = |data: &Path| {
        fs::write(&spec, format!("source = {{kind = 'manifest', path = '{}', label_columns = ['label', 'score']}}\ntransforms = [{{op = 'CenterCrop', size = 16}}]", name(data))).unwrap();
        json(&["run", name(&spec)], 0)["hash"].clone()
    };
    for flags in [&["--crop-index"][..], &["--crop-index", "--segment", "4", "--no-check"]] {
        let made = folder.join(format!("made{}", flags.len()));
        let columns = ["--label-columns", "label,score"];
        let packed = pack(name(&table), &made, &[flags, &columns].concat());
        assert_eq!(packed["samples"], 4);
        assert!(made.join("deep/a.jpg").is_file() && made.join("b.jpg").is_file());
        assert_eq!(describe(&made.join("manifest.csv")), describe(&table));
        let seen = json(&["inspect", name(&made)], 0);
        assert_eq!(seen["samples"], 4);
        let classes = seen["classes"].as_array().unwrap();
        assert_eq!(
            classes.iter().map(|c| c["name"].as_str().unwrap()).collect::<Vec<_>>(),
            ["ant", "bee", "zebra"]
        );
        json(&["verify", name(&made)], 0);
    }
    let raw = folder.join("raw");
    pack(name(&table), &raw, &["--raw"]);
    let seen = json(&["inspect", name(&raw)], 0);
    assert_eq!((&seen["samples"], seen["classes"].as_array().unwrap().len()), (&4.into(), 3));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn wrong_input() {
    let folder = fresh("pack-wrong");
    let free = folder.join("free");
    for flags in [
        &[][..],
        &["--raw", "--crop-index"],
        &["--segment", "2", "--raw"],
        &["--quality", "5"],
        &["--resize", "0"],
        &["--crop-index", "--segment", "0"],
        &["--resize", "9", "--quality", "101"],
        &["--raw", "--memory", "much"],
        // Flags that would change nothing.
        &["--crop-index", "--compression", "zstd"],
        &["--crop-index", "--seed", "3"],
        &["--raw", "--shard-samples", "3"],
        &["--to", "npy", "--shard-size", "3MB"],
        &["--to", "lmdb", "--shard-samples", "3"],
    ] {
        let output = feedline(&[&["pack", photos(), name(&free)], flags].concat());
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {}", text(&output.stderr));
    }
    assert!(complaint(&["pack", "/no/such", name(&free), "--raw"], 1).contains("/no/such"));
    // What is not ours is not touched: files in DST, in DST.partial, a file as DST.
    fs::write(folder.join("mine.txt"), "mine").unwrap();
    let said = complaint(&["pack", photos(), name(&folder), "--raw", "--no-trial"], 1);
    assert!(said.contains("holds other files"), "{said}");
    let said =
        complaint(&["pack", photos(), name(&folder.join("mine.txt")), "--raw", "--no-trial"], 1);
    assert!(said.contains("mine.txt"), "{said}");
    fs::create_dir_all(folder.join("free.partial")).unwrap();
    fs::write(folder.join("free.partial/mine.txt"), "mine").unwrap();
    let said = complaint(&["pack", photos(), name(&free), "--raw", "--no-trial"], 1);
    assert!(said.contains("free.partial"), "{said}");
    assert_eq!(fs::read(folder.join("free.partial/mine.txt")).unwrap(), b"mine");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_destination_inside_of_the_data_is_refused() {
    let folder = fresh("pack-inside");
    let data = folder.join("data");
    let class = data.join("class");
    fs::create_dir_all(&class).unwrap();
    fs::write(class.join("1.jpg"), a_photo()).unwrap();
    std::os::unix::fs::symlink(&data, folder.join("link")).unwrap();
    let before = files_below(&data);
    let within = |source: &str, destination: &str| {
        let flags = ["--crop-index", "--no-trial"];
        let mut command = command(&[&["pack", source, destination], &flags[..]].concat());
        command.current_dir(&data).output().unwrap()
    };
    for (source, destination) in [
        (".", "."),
        (".", ".-packed"),
        ("../data", "../data/-packed"),
        ("../data/", "class/deeper/packed"),
        ("../link", "packed"),
        (".", "../link/packed"),
    ] {
        let refused = within(source, destination);
        let complaint = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{source} {destination}: {complaint}");
        assert!(
            complaint.contains("choose a folder beside it"),
            "{source} {destination}: {complaint}"
        );
        assert_eq!(files_below(&data), before, "{source} {destination}");
    }
    let beside = within(".", "../data-packed");
    assert_eq!(beside.status.code(), Some(0), "{}", text(&beside.stderr));
}

#[test]
fn a_dry_run_writes_nothing_and_says_what_to_expect() {
    let folder = fresh("pack-dry");
    let free = folder.join("free");
    let said = json(&["pack", photos(), name(&free), "--resize", "64", "--dry-run"], 0);
    let expected = &said["expected"];
    assert!(expected["looked_at"].as_u64().unwrap() >= 2);
    for key in ["bytes_before", "bytes_after", "seconds"] {
        assert!(expected[key].as_f64().unwrap() > 0.0, "{key}");
    }
    let loading = &expected["loading"];
    for key in ["images_per_second_before", "images_per_second_after", "gain"] {
        assert!(loading[key].as_f64().unwrap() > 0.0, "{key}");
    }
    assert!(said["packed"].is_null() && fs::read_dir(&folder).unwrap().next().is_none());
    let shown = feedline(&["pack", photos(), name(&free), "--crop-index"]);
    let shown = text(&shown.stdout);
    assert!(shown.contains("expected") && shown.contains("packed in"), "{shown}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_trial_leaves_nothing_behind_even_if_it_fails() {
    let folder = fresh("pack-trial");
    let (temporary, bad) = (folder.join("temporary"), folder.join("bad"));
    fs::create_dir_all(&temporary).unwrap();
    fs::create_dir_all(bad.join("class")).unwrap();
    for number in 0..8 {
        fs::write(bad.join(format!("class/{number}.jpg")), b"\xff\xd8\xff no photo").unwrap();
    }
    let target = folder.join("packed");
    for (source, good) in [(photos(), true), (name(&bad), false)] {
        let arguments = ["pack", source, name(&target), "--raw", "--resize", "32", "--dry-run"];
        let tried = command(&arguments).env("TMPDIR", &temporary).output().unwrap();
        assert_eq!(tried.status.success(), good, "{source}: {}", text(&tried.stderr));
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "after {source}");
    }
    let arguments = ["pack", photos(), name(&target), "--resize", "32", "--dry-run"];
    let missing = command(&arguments).env("TMPDIR", temporary.join("missing")).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("missing"), "{}", text(&missing.stderr));
}

#[test]
fn killed_in_the_middle_it_goes_on_and_is_never_taken_for_whole() {
    let folder = fresh("pack-killed");
    let source = folder.join("source");
    let size = ["--count", "80", "--classes", "4", "--width", "700", "--height", "500"];
    assert!(feedline(&[&["sample-data", name(&source)], &size[..]].concat()).status.success());
    for (number, mode) in ["--crop-index", "--raw"].into_iter().enumerate() {
        let made = folder.join(format!("made{number}"));
        let partial = folder.join(format!("made{number}.partial"));
        let arguments =
            ["pack", name(&source), name(&made), mode, "--no-trial", "--num-workers", "1"];
        let mut child =
            command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begun = || {
            let journal = fs::metadata(partial.join("feedline-journal.jsonl"));
            let shard = fs::metadata(partial.join("pixels-00000.bin"));
            journal.is_ok_and(|file| file.len() > 200)
                || shard.is_ok_and(|file| file.len() > 2_000_000)
        };
        let start = Instant::now();
        while !begun() {
            assert!(
                start.elapsed() < Duration::from_secs(300) && child.try_wait().unwrap().is_none()
            );
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!made.exists() && partial.exists());
        assert!(feedline::internals::catalog::Catalog::read(&partial).unwrap().is_none());
        let packed = pack(name(&source), &made, &[mode]);
        assert_eq!(packed["samples"], 80);
        assert_eq!(packed["resumed_samples"].as_u64().unwrap() > 0, mode == "--crop-index");
        assert!(!partial.exists());
        json(&["verify", name(&made)], 0);
        let run = |data: &Path| {
            json(
                &[
                    "run",
                    name(data),
                    "--transform",
                    "RandomResizedCrop(size=64)",
                    "--set",
                    "decode.exact=true",
                ],
                0,
            )["hash"]
                .clone()
        };
        assert_eq!(run(&made), run(&source));
    }
    fs::remove_dir_all(folder).unwrap();
}
