//! `feedline completions`: completion scripts for shells.

use clap::CommandFactory;
use serde_json::json;

use crate::output::{Failure, Outcome, Output};

const EXAMPLES: &str = "\
Examples:
  feedline completions bash > ~/.local/share/bash-completion/completions/feedline
  feedline completions zsh > ~/.zfunc/_feedline       (with ~/.zfunc in $fpath)
  feedline completions fish > ~/.config/fish/completions/feedline.fish";

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell to complete in.
    shell: clap_complete::Shell,
}

impl Completions {
    pub(crate) fn run(self, output: &mut Output) -> Result<Outcome, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(
            self.shell,
            &mut crate::Arguments::command(),
            "feedline",
            &mut script,
        );
        let script = String::from_utf8_lossy(&script);
        if output.is_json() {
            output.json(
                &json!({"command": "completions", "shell": self.shell.to_string(), "script": script}),
            )?;
        } else {
            output.line(script.trim_end())?;
        }
        Ok(Outcome::Success)
    }
}
