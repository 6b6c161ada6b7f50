//! What to set, and why: measuring, judging, advising. Nothing here changes what a batch contains,
//! and nothing here knows the stages: it sees a [`Feed`] that gives batches and [`Evidence`] of
//! what they cost. `engine/` makes both.
//!
//! | to | use |
//! |---|---|
//! | know what the machine allows | [`cores`], [`memory_available`], [`Machine::here`] |
//! | run a feed against a training step | [`measure()`] with a [`Workload`] |
//! | compare configurations | [`preset`] or [`grid`], [`Summary::of`], [`ranking()`], [`warnings`] |
//! | say why the trainer waits | [`judge`] |
//! | find the fewest workers and the least memory | [`Search`] |
//! | adjust a loader while it runs | [`Controller`] |
//! | say what a machine with GPUs needs | [`advise`] |

mod caveats;
mod configurations;
mod diagnosis;
mod evidence;
mod joined;
mod limit;
mod limits;
mod machine;
mod measure;
mod model;
mod online;
mod packing;
mod plan;
mod ranking;
mod result;
mod stages;
mod statistics;
mod step;
mod tuning;
mod verdict;

pub use caveats::{others_in_words, warnings};
pub use configurations::{
    Candidate, Settings, Subject, grid, name_of, preset, read_settings, read_value,
};
pub(crate) use diagnosis::{FREE, LEAST_BATCHES, Watched, leave_out_ready, too_short};
pub use diagnosis::{GoingOn, diagnose_feed};
pub use evidence::{Ceilings, Evidence, Executor, ReadProbe, SlowPlace, StageCost, WorkerTime};
pub use joined::joined;
pub use limit::next_limit;
pub use limits::{LEAST_MEMORY, cores, memory_available};
pub use measure::{Feed, Part, Run, Spread, Workload, measure};
pub use model::{Cost, Demand};
pub use online::{Budget, Controller, Decision, Knob, Reading, Tuning};
pub use packing::PackTrial;
pub use plan::{Measured, Node, NodePlan, PackedPlan, advise};
pub use ranking::{as_good, equals, ranking, workers_of};
pub use result::{
    Benchmark, Configuration, Diagnosis, Interval, Machine, StageRow, Summary, Warning,
};
pub(crate) use stages::noise;
pub use stages::stage_rows;
pub use statistics::mean_and_deviation;
pub use step::TrainStep;
pub use tuning::{Choice, GOAL, Limits, Search, Stretch, Tried, Tunables};
pub use verdict::{Advice, Cause, Resource, StallBar, Verdict, judge, judge_beside, shell_word};
