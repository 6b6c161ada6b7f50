//! What to set, and why: measuring, judging, advising. Nothing here changes what a batch contains,
//! and nothing here knows the stages: it sees a [`Feed`] that gives batches and [`Evidence`] of
//! what they cost. `engine/` makes both.
//!
//! | to | use |
//! |---|---|
//! | know what the machine allows | [`cores`], [`memory_available`], [`Machine::here`] |
//! | run a feed against a training step | [`measure()`] with a [`Workload`] |
//! | say why the trainer waits | [`judge`] |
//! | adjust a loader while it runs | [`Controller`] |

mod diagnosis;
mod evidence;
mod limit;
mod limits;
mod machine;
mod measure;
mod online;
mod packing;
mod result;
mod stages;
mod step;
mod verdict;

pub(crate) use diagnosis::{FREE, LEAST_BATCHES, Watched, leave_out_ready, too_short};
pub use diagnosis::{GoingOn, diagnose_feed};
pub use evidence::{Ceilings, Evidence, Executor, StageCost, WorkerTime};
pub(crate) use evidence::{ReadProbe, SlowPlace};
pub use limit::next_limit;
pub use limits::{LEAST_MEMORY, cores, memory_available};
pub use measure::{Feed, MeasuredPart, Run, Spread, Workload, measure};
pub use online::{Budget, Controller, Decision, Knob, Reading, Tuning};
pub(crate) use packing::PackTrial;
pub use result::{Diagnosis, Machine, StageRow};
pub(crate) use stages::noise;
pub use stages::stage_rows;
pub use step::TrainStep;
pub use verdict::{Advice, Cause, Resource, StallBar, Verdict, judge, judge_beside, shell_word};
