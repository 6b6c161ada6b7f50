//! Why the trainer waits, and what to do: from [`Evidence`] to a sentence.
//!
//! `cause` decides, with its thresholds, `advice` says what to try (`paths` has what commands name),
//! `words` puts it into sentences.
//! All are pure functions: the same evidence gives the same verdict, in a diagnosis and online.

mod advice;
mod cause;
mod paths;
#[cfg(test)]
mod regressions;
#[cfg(test)]
mod tests;
mod words;

pub use self::paths::shell_word;
use serde::{Deserialize, Serialize};

use self::cause::Shares;
use super::evidence::{Ceilings, Evidence};

/// What holds the trainer up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Nothing was measured yet.
    Unknown,
    /// The trainer itself: nothing to gain here.
    Trainer,
    /// Every read waits before its first byte comes.
    ReadLatency,
    /// Bytes come too slowly.
    ReadBandwidth,
    /// One file, shard or folder is much slower than the others.
    SlowPlace,
    /// Decoding takes the cores.
    Decode,
    /// Transforms take the cores.
    Transform,
    /// The program's own code takes the cores.
    Code,
    /// Python's interpreter lock lets one thread run at a time.
    InterpreterLock,
    /// Handing batches over: joining, pickling, copying.
    HandOver,
    /// Workers stand in line for memory.
    Memory,
    /// Others take the cores, or the process may use too few.
    StarvedCores,
    /// Cores are idle because there are too few workers.
    TooFewWorkers,
    /// More workers than cores get in each other's way.
    TooManyWorkers,
    /// The first batch of each epoch comes late.
    EpochStart,
    /// The loader is fast enough, but now and then a batch takes longer than those that are ready
    /// bridge.
    Uneven,
}

/// What is at its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Nothing of the loader's.
    None,
    /// One core, while others are idle.
    OneCore,
    /// All workers, while cores are idle.
    Workers,
    /// All cores.
    AllCores,
    /// The bytes a second of the disk or the network.
    DiskBandwidth,
    /// The time that a request takes.
    RequestLatency,
    /// The memory that the loader may hold.
    Memory,
    /// Python's interpreter lock.
    InterpreterLock,
}

/// Where the time of the trainer goes: shares that add up to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StallBar {
    /// Waiting, because bytes come late.
    pub reading: f64,
    /// Waiting, because samples are prepared slowly.
    pub preparing: f64,
    /// Waiting, because batches are joined and handed over slowly.
    pub copying: f64,
    /// Not waiting.
    pub none: f64,
}

/// Something to try.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// What, and what it would bring.
    pub text: String,
    /// The command to run, if there is one.
    pub command: Option<String>,
    /// The change of the program, if there is one.
    pub code: Option<String>,
    /// Samples a second afterwards, as far as that can be predicted.
    pub predicted: Option<f64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What holds the trainer up.
    pub cause: Cause,
    /// What is at its limit.
    pub resource: Resource,
    /// One sentence or three, with figures.
    pub sentence: String,
    /// The same in a few words, for a line in a log: "decode", "reading (latency)", "the trainer".
    pub limit: String,
    /// Signs that users know by name, as far as they are seen.
    pub signs: Vec<String>,
    /// Where the trainer's time goes.
    pub stall: StallBar,
    /// What to try, the best first.
    pub advice: Vec<Advice>,
    /// The share of the time that the trainer waited.
    pub wait_share: f64,
    /// Samples a second that it got.
    pub samples_per_second: f64,
}

/// Says why the trainer waits.
#[must_use]
pub fn judge(evidence: &Evidence) -> Verdict {
    judge_beside(evidence, &|_| false)
}

/// The same where more was measured than the evidence holds: advice that was `tried` already is left
/// out.
#[must_use]
pub fn judge_beside(evidence: &Evidence, tried: &dyn Fn(&Advice) -> bool) -> Verdict {
    let shares = Shares::of(evidence);
    let cause = cause::find(evidence, &shares);
    let resource = cause::resource(evidence, &shares, cause);
    let mut advice = advice::find(evidence, &shares, cause);
    advice.retain(|one| !tried(one));
    Verdict {
        cause,
        resource,
        sentence: words::sentence(evidence, &shares, cause, &advice),
        limit: words::limit(evidence, cause),
        signs: words::signs(evidence, &shares, cause),
        stall: stall(evidence, &shares, cause),
        advice,
        wait_share: evidence.wait_share(),
        samples_per_second: evidence.rate(),
    }
}

/// Which part of the bar a cause belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StallPart {
    Reading,
    Preparing,
    Copying,
    /// None of them: what was measured says it.
    Any,
}

fn part(cause: Cause) -> StallPart {
    match cause {
        Cause::ReadLatency | Cause::ReadBandwidth | Cause::SlowPlace => StallPart::Reading,
        Cause::HandOver => StallPart::Copying,
        Cause::Decode
        | Cause::Transform
        | Cause::Code
        | Cause::InterpreterLock
        | Cause::Memory
        | Cause::StarvedCores
        | Cause::TooFewWorkers
        | Cause::TooManyWorkers => StallPart::Preparing,
        Cause::Unknown | Cause::Trainer | Cause::EpochStart | Cause::Uneven => StallPart::Any,
    }
}

/// Shares the trainer's waiting out: by how much faster it goes with parts out of the way, else by
/// what workers spend their time on. The cause has the last word, so that the bar does not contradict
/// the sentence above it.
fn stall(evidence: &Evidence, shares: &Shares, cause: Cause) -> StallBar {
    let wait = evidence.wait_share();
    let (reading, copying) = parts_of_waiting(&evidence.ceilings, shares);
    let preparing = 1.0 - reading - copying;
    let (reading, copying) = match part(cause) {
        StallPart::Copying => (0.0, 1.0),
        StallPart::Reading if reading < preparing.max(copying) => (1.0, 0.0),
        StallPart::Preparing if preparing < reading.max(copying) => (0.0, 0.0),
        // Batches that are there are waited for while they are handed over.
        StallPart::Any if cause == Cause::Trainer && cause::is_fast_enough(evidence, shares) => {
            (0.0, 1.0)
        }
        _ => (reading, copying),
    };
    let (reading, copying) = (reading * wait, copying * wait);
    StallBar { reading, copying, preparing: (wait - reading - copying).max(0.0), none: 1.0 - wait }
}

/// Of all waiting, the shares of reading and of copying.
fn parts_of_waiting(ceilings: &Ceilings, shares: &Shares) -> (f64, f64) {
    match (ceilings.real, ceilings.prepared) {
        (Some(real), Some(prepared)) if real > 0.0 && prepared > 0.0 => {
            let copying = ceilings.replayed.map_or(0.0, |replayed| real / replayed.max(real));
            // Something that is as fast without reading waits for something else. Two runs differ
            // by what else runs on the machine, too, which is not reading.
            let reading = (1.0 - real / prepared).min(shares.reading);
            (reading.clamp(0.0, 1.0 - copying), copying)
        }
        _ => (shares.reading, shares.copying.min(1.0 - shares.reading)),
    }
}
