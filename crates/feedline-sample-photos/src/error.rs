//! Why a set was not made.

use std::io;
use std::path::PathBuf;

/// Why a set was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is out of its range.
    #[error("{name} = {value}: out of range; allowed: {low} to {high}")]
    Parameter {
        /// What it is called.
        name: &'static str,
        /// What it is.
        value: u64,
        /// The least that it may be.
        low: u64,
        /// The most that it may be.
        high: u64,
    },
    /// The folder holds something else.
    #[error("{}: {problem}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What it holds and what to do.
        problem: String,
    },
    /// A file or folder could not be read or written.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was attempted, as a phrase that the path completes.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The JPEG library's reason.
    #[error("cannot encode a JPEG: {0}")]
    Encoder(String),
}
