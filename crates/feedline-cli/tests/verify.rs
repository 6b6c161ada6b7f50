//! `feedline verify`: finds what is bad, and only that.
#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::command_line::{a_photo, complaint, feedline, fresh, json, photos, text};
use serde_json::Value;

/// A JPEG header that declares 65535 x 65535 pixels.
const HUGE: &[u8] =
    b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01\
    \xff\xda\x00\x0c\x03\x01\x00\x02\x11\x03\x11\x00\x3f\x00";

/// Nine files of which three are good.
fn bad_folder(name: &str) -> std::path::PathBuf {
    let folder = fresh(name);
    let photo = a_photo();
    let mut corrupt = photo.clone();
    let middle = corrupt.len() / 2;
    corrupt[middle..middle + 64].fill(0xff);
    let files: [(&[u8], &[u8]); 8] = [
        (b"good.jpg", &photo),
        (b"also good.jpg", &photo),
        (b"corrupt.jpg", &corrupt),
        (b"truncated.jpg", &photo[..photo.len() / 3]),
        (b"empty.jpg", b""),
        (b"huge.jpg", HUGE),
        (b"page.png", b"<!DOCTYPE html>"),
        (b"caf\xe9.jpg", b"not UTF-8 in its name, and no photo"),
    ];
    for (name, bytes) in files {
        fs::write(folder.join(OsStr::from_bytes(name)), bytes).unwrap();
    }
    fs::write(folder.join(OsStr::from_bytes(b"gut \xfc.jpg")), &photo).unwrap();
    folder
}

fn names(bad: &Value) -> Vec<String> {
    let name = |bad: &Value| {
        Path::new(bad["path"].as_str().unwrap()).file_name().unwrap().to_str().unwrap().to_owned()
    };
    bad.as_array().unwrap().iter().map(name).collect()
}

#[test]
fn good_data_is_good() {
    let checked = json(&["verify", photos()], 0);
    assert_eq!((&checked["samples"], &checked["bad_samples"]), (&40.into(), &0.into()));
    assert_eq!(checked["bad"], serde_json::json!([]));
    let shown = feedline(&["verify", photos()]);
    assert_eq!(shown.status.code(), Some(0));
    assert!(text(&shown.stdout).starts_with("all samples are good: 40 checked"));
    assert!(!shown.stdout.contains(&0x1b) && shown.stderr.is_empty());
}

#[test]
fn every_kind_of_bad_file_is_found_with_its_reason() {
    let folder = bad_folder("bad");
    let list = folder.join("list.jsonl");
    let name = folder.to_str().unwrap();
    let expected =
        ["caf\u{fffd}.jpg", "corrupt.jpg", "empty.jpg", "huge.jpg", "page.png", "truncated.jpg"];
    for workers in ["0", "1", "5"] {
        let arguments = ["verify", name, "--num-workers", workers, "--memory", "32MB"];
        let checked = json(&[&arguments[..], &["--list", list.to_str().unwrap()]].concat(), 1);
        assert_eq!((&checked["samples"], &checked["bad_samples"]), (&9.into(), &6.into()));
        let bad = &checked["bad"];
        assert_eq!(names(bad), expected, "{workers} workers");
        let reason = |number: usize| bad[number]["reason"].as_str().unwrap().to_owned();
        assert!(reason(2).contains("empty") && reason(3).contains("65535 x 65535"));
        assert!(reason(4).contains("<!DOCTYPE html>"), "{}", reason(4));
        assert!(bad.as_array().unwrap().iter().all(|bad| bad["stage"].is_string()));
        let bytes: Vec<u8> = serde_json::from_value(bad[0]["path_bytes"].clone()).unwrap();
        assert_eq!(bytes, folder.join(OsStr::from_bytes(b"caf\xe9.jpg")).as_os_str().as_bytes());
        let listed = fs::read_to_string(&list).unwrap();
        let listed: Vec<Value> = listed.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(&listed, bad.as_array().unwrap());
    }
    let shown = feedline(&["verify", name]);
    assert_eq!(shown.status.code(), Some(1));
    let shown = text(&shown.stdout);
    assert!(shown.contains("6 samples are bad: 9 checked"), "{shown}");
    assert!(shown.contains("truncated.jpg: cannot decode: JPEG"), "{shown}");

    let lenient = json(&["verify", name, "--set", "decode.allow_truncated=true"], 1);
    assert!(!names(&lenient["bad"]).contains(&"truncated.jpg".to_owned()));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_file_that_is_gone_is_a_bad_sample() {
    let folder = fresh("gone");
    fs::write(folder.join("here.jpg"), a_photo()).unwrap();
    let table = folder.join("table.jsonl");
    fs::write(&table, "{\"path\": \"here.jpg\"}\n{\"path\": \"gone.jpg\"}\n").unwrap();
    let spec = folder.join("spec.toml");
    fs::write(&spec, "source = 'table.jsonl'\nsubset = '0:1'").unwrap();
    for target in [&table, &spec] {
        let checked = json(&["verify", target.to_str().unwrap()], 1);
        assert_eq!(names(&checked["bad"]), ["gone.jpg"], "also outside of the subset");
        assert_eq!(checked["bad"][0]["stage"], "read");
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_cannot_begin_says_why() {
    let folder = fresh("nothing");
    let name = folder.to_str().unwrap();
    assert!(complaint(&["verify", name], 1).contains("has no images"));
    assert!(
        complaint(&["verify", photos(), "--list", "/no/such/list"], 1).contains("/no/such/list")
    );
    assert!(complaint(&["verify", photos(), "--lst", "x"], 2).contains("--list"));
    fs::remove_dir_all(folder).unwrap();
}
