//! What can go wrong around a live view.

use std::fmt;
use std::io;

/// Why a page cannot be served or a process cannot be watched.
#[derive(Debug)]
#[non_exhaustive]
pub enum LiveError {
    /// The port cannot be had.
    Port {
        /// Which.
        port: u16,
        /// Why.
        source: io::Error,
    },
    /// The chosen token is not fit.
    Token(String),
    /// A thread, a socket or the system's random numbers failed.
    Start(io::Error),
    /// Nothing can be watched in a child that was forked at a bad moment.
    Forked,
}

impl fmt::Display for LiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LiveError::Port { port: 0, source } => {
                write!(f, "the dashboard cannot listen on 127.0.0.1: {source}")
            }
            LiveError::Port { port, source } => write!(
                f,
                "the dashboard cannot listen on port {port} of 127.0.0.1: {source}; choose another port, or 0 for any that is free"
            ),
            LiveError::Token(why) => f.write_str(why),
            LiveError::Start(source) => write!(f, "the dashboard cannot start: {source}"),
            LiveError::Forked => f.write_str(
                "this process was forked while its parent used the dashboard: start it before the fork, or in a fresh process",
            ),
        }
    }
}

impl std::error::Error for LiveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LiveError::Port { source, .. } | LiveError::Start(source) => Some(source),
            LiveError::Token(_) | LiveError::Forked => None,
        }
    }
}
