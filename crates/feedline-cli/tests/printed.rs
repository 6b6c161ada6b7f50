//! What user code prints while it is diagnosed does not get into the result.
#![allow(clippy::unwrap_used)]

use std::ffi::OsString;
use std::io::Write;
use std::process::Command;

use feedline::internals::tune::{Feed, Spread};
use feedline_cli::{Host, ObjectFacts, OpenFeed, main_from};

/// A loader that prints with every batch.
struct Chatty;

impl Feed for Chatty {
    fn begin(&mut self) -> feedline::Result<()> {
        Ok(())
    }

    fn next(&mut self) -> feedline::Result<Option<u64>> {
        // The harness holds nothing back: it is asked to.
        println!("a batch for you");
        std::thread::sleep(std::time::Duration::from_millis(5));
        Ok(Some(4))
    }
}

struct Talking;

impl Host for Talking {
    fn command(&self) -> Vec<OsString> {
        vec!["feedline".into()]
    }

    fn open(&self, feed: &OpenFeed) -> Result<Box<dyn Feed>, String> {
        println!("opening {}", feed.target);
        if feed.target.ends_with(":broken") {
            Err("is broken".to_owned())
        } else {
            Ok(Box::new(Chatty))
        }
    }

    fn look(&self, _: &str) -> Result<ObjectFacts, String> {
        Ok(ObjectFacts::default())
    }

    fn time_step(&self, _: &OpenFeed) -> Result<Spread, String> {
        Ok(Spread::default())
    }

    fn flush_printed(&self) {
        // As an interpreter, which keeps back what was printed.
        print!("held back");
        std::io::stdout().flush().unwrap();
    }
}

const TARGET: &str = "FEEDLINE_TEST_PRINTED";

/// Not a test of its own: the process that the other one starts, and looks at from outside.
#[test]
fn speaker() {
    let Ok(target) = std::env::var(TARGET) else { return };
    let arguments = ["feedline", "diagnose", &target, "--seconds", "0.5", "--json", "--quiet"];
    let code = main_from(arguments.map(OsString::from).to_vec(), &Talking);
    println!("code {code}");
}

#[test]
fn the_result_stands_alone() {
    for (target, code) in [("train:loader", 0), ("train:broken", 1)] {
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["printed::speaker", "--exact", "--nocapture", "--test-threads", "1"])
            .env(TARGET, target)
            .output()
            .unwrap();
        let (out, err) =
            (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{out}{err}");
        assert!(err.contains(&format!("opening {target}")) && err.contains("held back"), "{err}");
        assert_eq!(err.contains("a batch for you"), code == 0, "{err}");
        assert!(!out.contains("opening") && !out.contains("for you"), "{out}");
        // One JSON object, on its line, and what comes behind is printed to the real one again.
        let mut lines = out.lines().skip_while(|line| !line.contains('{'));
        let result = lines.next().unwrap();
        let result = &result[result.find('{').unwrap()..];
        let value: serde_json::Value = serde_json::from_str(result).unwrap();
        assert_eq!(value["command"] == "diagnose", code == 0, "{value}");
        assert_eq!(value["error"]["message"].is_string(), code == 1, "{value}");
        assert_eq!(lines.next(), Some(&*format!("code {code}")), "{out}");
    }
}
