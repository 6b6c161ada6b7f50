//! `feedline measure`: one run of `feedline bench`, in a process of its own.

use std::ffi::OsString;

use crate::bench::child;
use crate::host::Host;
use crate::output::{Failure, Outcome};

/// Run batches as `feedline bench` asks for them.
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub(crate) struct Measure {
    /// What to run.
    target: OsString,
}

impl Measure {
    pub(crate) fn run(self, host: &dyn Host) -> Result<Outcome, Failure> {
        child::serve(&self.target, host).map_err(|error| {
            Failure::Usage(format!("measure is started by feedline bench, not by people: {error}"))
        })?;
        Ok(Outcome::Success)
    }
}
