//! `feedline watch` beside a `feedline run`, as a user meets them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("feedline-watch-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_feedline"));
        command.args(args).current_dir(&self.0).env("FEEDLINE_WATCH", self.0.join("sockets"));
        command
    }

    fn feedline(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// A long run with its page, and the address.
    fn run(&self, more: &[&str]) -> (Child, String) {
        assert!(self.feedline(&["sample-data", "photos", "--count", "8"]).status.success());
        let run =
            ["run", "photos", "--batch-size", "2", "--epochs", "100000", "--train-step", "20ms"];
        let mut command = self.command(&[&run[..], &["--dashboard"], more].concat());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("dashboard: ").unwrap_or_else(|| panic!("{line}"));
        (child, address.trim().to_owned())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_run_is_watched_by_number_and_by_address() {
    let place = Place::new("run");
    // The address is no progress: who wants to hear nothing still needs it.
    let (mut run, address) = place.run(&["--quiet"]);
    let pid = run.id().to_string();
    let deadline = Instant::now() + Duration::from_secs(300);
    for target in [pid.as_str(), &address] {
        loop {
            let seen = place.feedline(&["watch", target, "--json", "--once"]);
            assert!(seen.status.success(), "{}", String::from_utf8_lossy(&seen.stderr));
            let seen: Value = serde_json::from_slice(&seen.stdout).unwrap();
            assert_eq!(seen["pid"], run.id());
            assert_eq!(seen["command"], "watch");
            if seen["loaders"][0]["batches"].as_u64() > Some(2) {
                assert!(seen["loaders"][0]["verdict"]["sentence"].is_string(), "{seen}");
                break;
            }
            assert!(Instant::now() < deadline, "{seen}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    let web = place.feedline(&["watch", "--web", &pid]);
    assert_eq!(String::from_utf8_lossy(&web.stdout).trim(), address);
    let mut watcher =
        place.command(&["watch"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watcher.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("samples/s") && line.contains("waited"), "{line}");
    run.kill().unwrap();
    run.wait().unwrap();
    let ended = watcher.wait_with_output().unwrap();
    // The reader of its lines is gone, or it saw the end first: both are fine ends.
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_eq!(place.feedline(&["watch"]).status.code(), Some(1));
    assert_eq!(fs::read_dir(place.0.join("sockets")).unwrap().count(), 0);
}

#[test]
fn mistakes_are_named() {
    let place = Place::new("mistakes");
    let message = |args: &[&str], code: i32| {
        let done = place.feedline(args);
        assert_eq!(done.status.code(), Some(code), "{args:?}");
        String::from_utf8(done.stderr).unwrap()
    };
    assert!(message(&["watch"], 1).contains("no process of yours"));
    assert!(message(&["watch", "photos"], 2).contains("\"photos\" is neither"));
    assert!(message(&["watch", "1"], 1).contains("process 1 cannot be watched"));
    assert!(message(&["watch", "http://127.0.0.1:1/x/"], 1).contains("nobody answers"));
    assert!(message(&["watch", "https://example.org/"], 1).contains("no address of a dashboard"));
    assert!(message(&["run", "photos", "--dashboard=no"], 2).contains("--dashboard"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    assert!(place.feedline(&["sample-data", "photos", "--count", "4"]).status.success());
    let flag = format!("--dashboard={port}");
    assert!(message(&["run", "photos", &flag], 1).contains(&format!("port {port}")));
}
