//! The built command, and a small data set to use it on.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

/// What only ends a test that would never end: a busy machine takes as long as it takes.
pub(crate) const HANG: Duration = Duration::from_secs(300);

/// The command with plain surroundings: no colour settings, no ranks, a UTF-8 locale.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_feedline"));
    command.args(args).env("LC_ALL", "C.UTF-8");
    for variable in ["NO_COLOR", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
        command.env_remove(variable);
    }
    command
}

pub(crate) fn feedline(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The result as JSON, of a command that must end with `code`.
#[track_caller]
pub(crate) fn json(args: &[&str], code: i32) -> Value {
    let output = feedline(&[args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a failing command says on standard error.
#[track_caller]
pub(crate) fn complaint(args: &[&str], code: i32) -> String {
    let output = feedline(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
    text(&output.stderr).to_owned()
}

/// 40 photos in 4 classes, made once: nobody may change them.
pub(crate) fn photos() -> &'static str {
    static PHOTOS: OnceLock<String> = OnceLock::new();
    PHOTOS.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("command-photos");
        let name = folder.to_str().unwrap().to_owned();
        let size = ["--count", "40", "--classes", "4", "--width", "120", "--height", "90"];
        let made = feedline(&[&["sample-data", &name], &size[..]].concat());
        assert!(made.status.success(), "{}", text(&made.stderr));
        name
    })
}

/// Sends Ctrl-C's signal, which is of use once the command watches for it.
pub(crate) fn interrupt(child: &Child) {
    let watched = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & 2 != 0
    };
    let began = Instant::now();
    while !watched() {
        assert!(began.elapsed() < HANG, "it does not watch for signals");
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
}

/// An empty folder for one test.
pub(crate) fn fresh(name: &str) -> PathBuf {
    let name = format!("command-{name}-{}", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// The encoded bytes of one of the photos.
pub(crate) fn a_photo() -> Vec<u8> {
    let class = fs::read_dir(photos()).unwrap().map(|entry| entry.unwrap().path());
    let class = class.filter(|path| path.is_dir()).min().unwrap();
    let photo = fs::read_dir(class).unwrap().map(|entry| entry.unwrap().path()).min().unwrap();
    fs::read(photo).unwrap()
}
