//! Comparing configurations: each run is a process of its own, which is given its job and answers
//! in lines of JSON.
//!
//! `job` is what both sides say, `child` the side that runs batches, `children` the side that waits
//! for it, `known` what is known of the target before, `contest` the turns that configurations take,
//! `packing` the formats, `show` the result, `recipe` the lines that make the best one. What to
//! compare (`configurations`), who is best (`ranking`), what to know before it is believed
//! (`caveats`) and all runs as one (`joined`) are pure.

pub(crate) mod caveats;
pub(crate) mod child;
pub(crate) mod children;
pub(crate) mod configurations;
pub(crate) mod contest;
pub(crate) mod job;
pub(crate) mod joined;
pub(crate) mod known;
pub(crate) mod packing;
pub(crate) mod ranking;
pub(crate) mod recipe;
pub(crate) mod show;
