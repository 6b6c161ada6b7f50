//! The subcommands, one file each.

mod completions;
mod sample_data;

use crate::output::{Failure, Outcome, Output};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    SampleData(sample_data::SampleData),
    Completions(completions::Completions),
}

impl Command {
    pub(crate) fn run(self, output: &mut Output) -> Result<Outcome, Failure> {
        match self {
            Command::SampleData(command) => command.run(output),
            Command::Completions(command) => command.run(output),
        }
    }
}
