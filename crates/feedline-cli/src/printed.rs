//! What user code prints while it runs in this process: it goes to standard error, so that standard
//! output has the result only.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

use crate::host::Host;
use crate::output::Failure;

/// While this lives, standard output of the process is its standard error.
pub(crate) struct PrintedAside<'a> {
    /// The real one; `None` if there is none.
    real: Option<OwnedFd>,
    host: &'a dyn Host,
}

impl<'a> PrintedAside<'a> {
    pub(crate) fn begin(host: &'a dyn Host) -> Result<Self, Failure> {
        host.flush_printed();
        io::stdout().flush().map_err(Failure::Output)?;
        // Where standard output is closed, nothing can get into it.
        let Ok(real) = io::stdout().as_fd().try_clone_to_owned() else {
            return Ok(PrintedAside { real: None, host });
        };
        if rustix::stdio::dup2_stdout(io::stderr()).is_err() {
            // Standard error is closed: nobody wants to hear of it.
            let nowhere = File::options().write(true).open("/dev/null").map_err(Failure::Output)?;
            rustix::stdio::dup2_stdout(nowhere).map_err(|error| Failure::Output(error.into()))?;
        }
        Ok(PrintedAside { real: Some(real), host })
    }
}

impl Drop for PrintedAside<'_> {
    fn drop(&mut self) {
        self.host.flush_printed();
        // What cannot be written is not the result.
        let _ = io::stdout().flush();
        if let Some(real) = &self.real {
            // It was standard output before; if it cannot be again, writing the result says so.
            let _ = rustix::stdio::dup2_stdout(real);
        }
    }
}
