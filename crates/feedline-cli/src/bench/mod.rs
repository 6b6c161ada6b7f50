//! Comparing configurations: each run is a process of its own, which is told what to do and answers
//! in lines of JSON.
//!
//! `job` is what both sides say, `child` the side that runs batches, `children` the side that waits
//! for it, `known` what is known of the target before, `contest` the turns that configurations take,
//! `packing` the formats, `show` the result, `recipe` the lines that make the best one.

pub(crate) mod child;
pub(crate) mod children;
pub(crate) mod contest;
pub(crate) mod job;
pub(crate) mod known;
pub(crate) mod packing;
pub(crate) mod recipe;
pub(crate) mod show;
