//! The command as its users meet it: output, exit codes, pipes.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn feedline(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_feedline")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The name of a folder that is not there yet.
fn fresh(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("feedline-command-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    path
}

#[test]
fn help_teaches_by_example_and_documents_exit_codes() {
    let help = feedline(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    for expected in ["Examples:", "feedline sample-data photos", "Exit codes:", "130", "NO_COLOR"] {
        assert!(text(&help.stdout).contains(expected), "{expected}");
    }
    assert!(
        !text(&help.stdout).contains("\n  measure "),
        "what is for the command itself is not shown"
    );
    let commands = [
        "run",
        "inspect",
        "verify",
        "bench",
        "diagnose",
        "tune",
        "plan",
        "watch",
        "sample-data",
        "completions",
    ];
    for command in commands {
        let help = feedline(&[command, "--help"]);
        assert!(text(&help.stdout).contains("Examples:"), "{command}");
    }
    assert!(text(&feedline(&["--version"]).stdout).contains(env!("CARGO_PKG_VERSION")));
}

/// Paragraphs of a help are folded by whoever shows them, and not a second time.
#[test]
fn help_is_folded_once_and_flags_stand_where_they_belong() {
    let help_at = |command: &str, width: usize| {
        let mut help = Command::new(env!("CARGO_BIN_EXE_feedline"));
        let shown = help.args([command, "--help"]).env("COLUMNS", width.to_string()).output();
        text(&shown.unwrap().stdout).to_owned()
    };
    let commands = ["run", "bench", "diagnose", "watch"];
    for (command, width) in commands.iter().flat_map(|name| [(name, 100), (name, 72)]) {
        let help = help_at(command, width);
        let examples = help.split_once("Examples:").unwrap().1;
        for paragraph in examples.split("\n\n").skip(1) {
            let lines: Vec<&str> = paragraph.lines().collect();
            let (last, folded) = lines.split_last().unwrap();
            let is_text = |line: &str| !line.starts_with(' ') && !line.ends_with(':');
            if lines.iter().all(|line| is_text(line)) {
                let short = folded.iter().find(|line| line.chars().count() < width * 7 / 10);
                assert_eq!(short, None, "{command} at {width}, before {last}");
            }
        }
    }
    let bench = help_at("bench", 100);
    let of = |heading: &str| {
        let after = bench.split_once(&format!("\n{heading}:\n")).unwrap().1;
        after
            .lines()
            .take_while(|line| line.is_empty() || line.starts_with(' '))
            .collect::<String>()
    };
    let (results, copies) = (of("Results"), of("Copies to a GPU"));
    for flag in ["--device", "--batch <", "--rounds"] {
        assert!(copies.contains(flag) && !results.contains(flag), "{flag}: {results}");
    }
    assert!(results.contains("--report") && results.contains("--csv"), "{results}");
}

#[test]
fn sample_data_as_text_and_as_json() {
    let folder = fresh("made");
    let name = folder.to_str().unwrap();
    let arguments = ["sample-data", name, "--count", "6", "--classes", "2"];
    let first = feedline(&arguments);
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    assert!(text(&first.stdout).starts_with("folder"), "{}", text(&first.stdout));
    assert!(
        !first.stdout.contains(&0x1b) && first.stderr.is_empty(),
        "no colour, no progress in a pipe"
    );

    let again = feedline(&[&arguments[..], &["--json"]].concat());
    let result: serde_json::Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((&result["kept"], &result["photos"]), (&true.into(), &6.into()));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn failures_have_a_message_a_code_and_a_json_form() {
    let folder = fresh("foreign");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("notes.txt"), "mine").unwrap();
    let name = folder.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 4] = [
        (&["sample-data", name], 1, "source"),
        (&["sample-data", "unused", "--quality", "0"], 2, "spec"),
        (&["sample-data"], 2, "usage"),
        (&["no-such-command"], 2, "usage"),
    ];
    for (arguments, code, kind) in cases {
        let plain = feedline(arguments);
        assert_eq!(plain.status.code(), Some(code), "{arguments:?}");
        assert!(
            plain.stdout.is_empty() && text(&plain.stderr).starts_with("error:"),
            "{arguments:?}"
        );
        let json = feedline(&[arguments, &["--json"]].concat());
        assert_eq!(json.status.code(), Some(code), "{arguments:?}");
        assert!(!json.stderr.is_empty(), "{arguments:?}");
        let object: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(object["error"]["kind"], kind);
        assert_eq!(object["error"]["exit_code"], code);
        assert!(object["error"]["message"].as_str().is_some_and(|message| message.len() > 10));
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_closed_pipe_ends_quietly() {
    for arguments in [&["completions", "zsh"][..], &["--help"], &["completions", "bash", "--json"]]
    {
        let mut child = Command::new(env!("CARGO_BIN_EXE_feedline"))
            .args(arguments)
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
fn completions_are_valid_shell() {
    let script = feedline(&["completions", "bash"]).stdout;
    assert!(text(&script).contains("sample-data"));
    let mut bash = match Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn() {
        Ok(bash) => bash,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => panic!("{error}"),
    };
    bash.stdin.take().unwrap().write_all(&script).unwrap();
    assert!(bash.wait().unwrap().success());
    for shell in ["zsh", "fish", "powershell", "elvish"] {
        let script = feedline(&["completions", shell]);
        assert_eq!(script.status.code(), Some(0), "{shell}");
        assert!(text(&script.stdout).contains("train-step"), "{shell}");
        // Where the shell is installed, it also parses the script.
        let flag = if matches!(shell, "zsh" | "fish") { "-n" } else { continue };
        let parser = Command::new(shell).arg(flag).stdin(Stdio::piped()).spawn();
        if let Ok(mut parser) = parser {
            parser.stdin.take().unwrap().write_all(&script.stdout).unwrap();
            assert!(parser.wait().unwrap().success(), "{shell}");
        }
    }
}

/// What the command prints to a terminal, if there is a `script` to make one.
fn on_a_terminal(surroundings: &str, arguments: &str) -> Option<String> {
    let line = format!("{surroundings} {} {arguments}", env!("CARGO_BIN_EXE_feedline"));
    let script = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null())
        .output();
    Some(String::from_utf8_lossy(&script.ok()?.stdout).into_owned())
}

#[test]
fn a_terminal_gets_colour_unless_it_is_unwanted() {
    let arguments = "sample-data x --quality 0";
    let Some(coloured) = on_a_terminal("", arguments) else { return };
    assert!(coloured.contains("\u{1b}[1;31merror:"), "{coloured}");
    for surroundings in ["NO_COLOR=1", "TERM=dumb"] {
        let plain = on_a_terminal(surroundings, arguments).unwrap();
        assert!(plain.contains("error:") && !plain.contains('\u{1b}'), "{surroundings}: {plain}");
    }
}
