//! The subcommands, one file each.

mod bench;
mod completions;
mod facts;
mod inspect;
mod pack;
mod run;
mod sample_data;
mod verify;

use crate::output::{Failure, Outcome, Output};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Run(Box<run::Run>),
    Inspect(inspect::Inspect),
    Verify(verify::Verify),
    Pack(Box<pack::PackCommand>),
    Bench(bench::Bench),
    SampleData(sample_data::SampleData),
    Completions(completions::Completions),
}

impl Command {
    pub(crate) fn run(self, output: &mut Output) -> Result<Outcome, Failure> {
        match self {
            Command::Run(command) => command.run(output),
            Command::Inspect(command) => command.run(output),
            Command::Verify(command) => command.run(output),
            Command::Pack(command) => command.run(output),
            Command::Bench(command) => command.run(output),
            Command::SampleData(command) => command.run(output),
            Command::Completions(command) => command.run(output),
        }
    }
}
