//! The tests of the command.
#![allow(clippy::unwrap_used)]

mod bench;
mod bench_results;
mod command;
mod command_line;
mod diagnose;
mod inspect;
mod pack;
mod pictures;
mod printed;
mod run;
mod tune;
mod verify;
mod watch;
