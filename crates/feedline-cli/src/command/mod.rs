//! The subcommands, one file each.

mod bench;
mod completions;
mod copies;
mod diagnose;
mod facts;
mod inspect;
mod measure;
mod pack;
mod plan;
mod run;
mod sample_data;
mod tune;
mod verify;
mod watch;

use crate::host::Host;
use crate::output::{Failure, Outcome, Output};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Run(Box<run::Run>),
    Inspect(inspect::Inspect),
    Verify(verify::Verify),
    Pack(Box<pack::PackCommand>),
    Diagnose(Box<diagnose::Diagnose>),
    Watch(watch::Watch),
    Bench(Box<bench::Bench>),
    Measure(measure::Measure),
    Tune(Box<tune::Tune>),
    Plan(Box<plan::Plan>),
    SampleData(sample_data::SampleData),
    Completions(completions::Completions),
}

impl Command {
    /// Runs it. `host` is asked where Python is needed.
    pub(crate) fn run(self, output: &mut Output, host: &dyn Host) -> Result<Outcome, Failure> {
        match self {
            Command::Run(command) => command.run(output),
            Command::Inspect(command) => command.run(output),
            Command::Verify(command) => command.run(output),
            Command::Pack(command) => command.run(output),
            Command::Diagnose(command) => command.run(output, host),
            Command::Watch(command) => command.run(output),
            Command::Bench(command) => command.run(output, host),
            Command::Measure(command) => command.run(host),
            Command::Tune(command) => command.run(output),
            Command::Plan(command) => command.run(output),
            Command::SampleData(command) => command.run(output),
            Command::Completions(command) => command.run(output),
        }
    }
}
