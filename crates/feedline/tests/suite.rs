//! The tests of the crate that share a process.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod ahead;
mod architecture;
mod baseline;
mod columns;
mod determinism;
mod diagnose;
mod engine;
mod golden;
mod online;
mod pack;
mod part_decode;
mod public_api;
mod records;
mod recut;
mod reduced_decode;
mod restart_decode;
mod single;
mod sources;
mod spec;
mod stores;
mod support;
mod variable;
