//! The feedline command as a library, so that the Python package ships the same one.
//!
//! [`main_from`] takes the arguments and gives the exit code. Each subcommand is a file in
//! `command/`: its flags, its work through the `feedline` crate, its output as text and as JSON.
//! What they share is here beside it: [`pipeline`] (a spec file or a data set, with flags),
//! [`output`] (results and exit codes), [`terminal`] (colour, progress, tables), [`chart`] (bars),
//! [`pictures`] (reports, traces, plots), [`rewrite`] (keys of a spec file), [`signals`] (Ctrl-C),
//! [`live`] (loaders that can be watched), [`host`] (what only Python can do), [`printed`] (what user
//! code prints), [`bench`] (runs in processes of their own).

mod bench;
mod chart;
mod command;
mod host;
mod live;
mod node_plan;
mod output;
mod pictures;
mod pipeline;
mod printed;
mod rewrite;
mod signals;
mod terminal;
mod tuning;

use std::ffi::OsString;

use clap::Parser;

pub use crate::host::{Binary, Host, ObjectFacts, ObjectKind, OpenFeed, is_python};

use crate::command::Command;
use crate::output::{Failure, Output};

const EXAMPLES: &str = "\
Examples:
  feedline sample-data photos              make 2,000 photo-like JPEGs to try things with
  feedline inspect photos                  sizes, formats, classes, with histograms
  feedline verify photos                   read and decode everything, list what is bad
  feedline pack photos fast --crop-index   a copy that loads faster, losslessly
  feedline run photos --shuffle            how fast can it be loaded?
  feedline run photos --train-step 20ms    would a training step of 20 ms wait?
  feedline run pipeline.toml --json        a pipeline from a file, the result as JSON
  feedline diagnose photos --train-step 20ms   why does the trainer wait, and what helps?
  feedline watch                           look at a training run while it runs
  feedline bench photos --train-step 50ms  which settings keep the GPU busy?
  feedline bench train.py:make_dataset     the same for a Python data set, beside torch's loader
  feedline bench --device cuda             do copies to the GPU work, and how fast?
  feedline tune pipeline.toml              the fewest workers and the least memory that do
  feedline plan photos --gpus 8 --cpus 160 --step 120ms --batch-size 256
  feedline completions bash > ~/.local/share/bash-completion/completions/feedline

Exit codes:
  0    success, also when the reader of a pipe closed it early
  1    the work failed, or bad samples were found
  2    wrong usage, or a mistake in a pipeline's description
  130  interrupted (Ctrl-C); 143 if by SIGTERM

Colour and progress bars appear on terminals only; NO_COLOR=1 turns colour off there too.
Results go to standard output, progress and errors to standard error. With --json, an error is
also printed to standard output, as {\"error\": {\"kind\", \"message\", \"exit_code\"}}.";

/// Reads, decodes, augments, batches and prefetches training data.
#[derive(Debug, Parser)]
#[command(name = "feedline", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,

    /// Print the result as one JSON object.
    #[arg(long, global = true, display_order = 900)]
    json: bool,

    /// No progress on standard error.
    #[arg(short, long, global = true, display_order = 901)]
    quiet: bool,
}

/// Runs the command with `args`, the first of which is its own name, and returns its exit code.
///
/// Nothing is changed for the process: a caller that catches Ctrl-C (as Python does) should
/// restore the default first, so that it ends the command at once. `host` is what the command runs
/// inside: the binary of its own, or Python.
#[must_use]
pub fn main_from(args: Vec<OsString>, host: &dyn Host) -> i32 {
    let json_asked = args.iter().skip(1).take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    let arguments = match Arguments::try_parse_from(args) {
        Ok(arguments) => arguments,
        Err(answer) if answer.use_stderr() => {
            // clap's own rendering is kept: it is coloured and shows the usage.
            let _ = answer.print();
            Failure::Usage(first_paragraph(&answer.render().to_string())).report_json(json_asked);
            return output::WRONG_USAGE;
        }
        Err(help) => {
            // Help and version go to standard output; a closed pipe there is no failure.
            let _ = help.print();
            return output::SUCCESS;
        }
    };
    let mut output = Output::new(arguments.json, arguments.quiet);
    let outcome = arguments.command.run(&mut output, host).and_then(|outcome| {
        output.flush()?;
        Ok(outcome)
    });
    match outcome {
        Ok(outcome) => outcome.exit_code(),
        Err(failure) => {
            failure.report(&output);
            failure.exit_code()
        }
    }
}

/// clap's message without its label and without the usage that follows.
fn first_paragraph(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}
