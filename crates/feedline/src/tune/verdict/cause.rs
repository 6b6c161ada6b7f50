//! Which of the causes it is. Each rule is a comparison with a threshold that is written down here.

use super::words::has_step;
use super::{Cause, Resource};
use crate::tune::evidence::{Evidence, Executor, StageCost};

/// Below this share of the time nobody should care.
pub(super) const NEGLIGIBLE: f64 = 0.01;

/// First batches of epochs are the cause if they are this share of all waiting,
const TURNOVER_SHARE: f64 = 0.5;
/// and each takes so many times as long as another wait.
pub(super) const TURNOVER_TIMES: f64 = 5.0;

/// A place is slow if its slow reads take so many times as long as those elsewhere,
const PLACE_TIMES: f64 = 5.0;
/// are this share of the reads there, and of the time of all slow reads,
const PLACE_SHARE: f64 = 0.5;
/// and of the time that the trainer waits.
const PLACE_WAIT: f64 = 0.25;

/// Memory is the cause if workers wait for it this share of their time,
const MEMORY_SHARE: f64 = 0.3;
/// or if this share of the batches was thrown away for want of it.
const REMADE_SHARE: f64 = 0.25;

/// Threads that hold Python's lock this share of the time have no use for a second core.
const LOCK_SHARE: f64 = 0.7;

/// Reading is the cause if workers wait for bytes this share of the time that samples take,
const READ_SHARE: f64 = 0.5;
/// or this one, if samples are made so many times as fast when their bytes are in memory.
const READ_SHARE_MEASURED: f64 = 0.25;
const MUCH_FASTER: f64 = 2.0;

/// Where no probe was made: smaller reads that take long are taken for slow requests.
const SMALL_READ: f64 = 256_000.0;

/// Code that is on a core less than this share of its time waits for something else than a core.
const ASLEEP: f64 = 0.15;

/// Work that is on a core less than this share of its time has to share its core.
const SHARED_CORE: f64 = 0.6;

/// A loader that is slower than this share of what the trainer can use is waited for, sooner or later.
const TOO_SLOW: f64 = 0.8;
/// Batches in the making for each worker, where that is not known: torch's default.
const AHEAD_OF_A_WORKER: f64 = 2.0;
/// Batches made ahead hide a wait for at most so many times as long as their number says: the run
/// without a step was at another time.
const HIDES: f64 = 2.0;

/// Joining and handing over is the cause from this share of a sample's time.
const HAND_OVER_SHARE: f64 = 0.4;

/// A loader that is so many times as fast as the trainer is not what the trainer waits for,
const FASTER: f64 = 1.2;
/// nor is one, where that was not measured, whose workers work less than this share of the time.
const IDLE: f64 = 0.5;
/// The trainer waits at most so many seconds for a batch that is ready: the hand-over itself.
const HAND_OVER: f64 = 0.0002;

/// Stages that take less than this share of the time that samples keep a worker, while the trainer
/// waits at least that share, leave the rest to the hand-over. It is small, as a worker that shares
/// its core takes longer, too.
const EXPLAINED: f64 = 0.1;
const MOSTLY_WAITS: f64 = 0.3;

/// Fewer cores than this are few for training, if the machine has half as many again and more.
const FEW_CORES: f64 = 4.0;

/// Workers for each one that the cores have use for that are too many.
pub(super) const TOO_MANY: f64 = 2.0;

/// So many for each core are too many for work that needs a core, whether or not they are seen to be
/// in each other's way: short pieces of work often wait for a core before they begin, not in between.
const FAR_TOO_MANY: f64 = 4.0;

/// Cores count as busy from this share on,
const ALL_BUSY: f64 = 0.7;
/// and if it takes other programs to make them so, from this one on: then few are left, for anybody.
const MACHINE_BUSY: f64 = 0.9;

/// What becomes of the time, as shares.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Shares {
    /// Reading, of a sample's time.
    pub(super) reading: f64,
    /// Waiting for bytes, of a sample's time.
    pub(super) waiting: f64,
    /// Joining and handing over, of a sample's time.
    pub(super) copying: f64,
    /// Code of the program's own, of a sample's time.
    pub(super) code: f64,
    /// On a core, of the time of stages that do not read.
    pub(super) on_core: f64,
    /// Waiting for memory, of workers' time.
    pub(super) memory: f64,
    /// Making samples, of workers' time.
    pub(super) busy: f64,
    /// Cores that the workers kept busy.
    pub(super) cores_used: f64,
    /// What stages take, of the time that a sample keeps a worker.
    pub(super) explained: f64,
    /// Workers that the cores have use for: while some wait for bytes, others have the cores.
    pub(super) useful_workers: f64,
}

/// What a stage does, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StageWork {
    Read,
    Decode,
    Transform,
    HandOver,
    Code,
}

/// Stages of the engine have fixed names; whatever else there is, is the program's own code.
pub(super) fn kind(stage: &StageCost) -> StageWork {
    match stage.name.as_str() {
        "read" => StageWork::Read,
        "decode" => StageWork::Decode,
        "transform" => StageWork::Transform,
        "copy" | "collate" | "pickle" | "hand over" => StageWork::HandOver,
        _ => StageWork::Code,
    }
}

impl Shares {
    pub(super) fn of(evidence: &Evidence) -> Shares {
        let stages = &evidence.stages;
        let time = &evidence.worker_time;
        let seconds = |wanted: &dyn Fn(StageWork) -> bool| -> f64 {
            stages.iter().filter(|stage| wanted(kind(stage))).map(|stage| stage.seconds).sum()
        };
        let cpu = |wanted: &dyn Fn(StageWork) -> bool| -> f64 {
            stages.iter().filter(|stage| wanted(kind(stage))).map(|stage| stage.cpu_seconds).sum()
        };
        let share =
            |part: f64, all: f64| if all > 0.0 { (part / all).clamp(0.0, 1.0) } else { 0.0 };
        let all = seconds(&|_| true);
        let others = seconds(&|kind| kind != StageWork::Read);
        // Too little other work says nothing of how readily a core is had.
        let on_core = match others > 0.05 * all {
            true => share(cpu(&|kind| kind != StageWork::Read), others),
            false => 1.0,
        };
        // Who has to share a core is off it while reading, too, and that is not the store's doing.
        let worked = cpu(&|kind| kind == StageWork::Read) / on_core.max(0.05);
        let waiting = (seconds(&|kind| kind == StageWork::Read) - worked).max(0.0);
        let on_cores = cpu(&|_| true);
        let passed = evidence.wait_seconds + evidence.step_seconds;
        // Where nobody watched the workers, they did what samples take.
        let known = time.total() > 0.0;
        let cpu_time = match known || time.cpu > 0.0 {
            true => time.cpu,
            false => cpu(&|_| true) * evidence.samples as f64,
        };
        Shares {
            reading: share(seconds(&|kind| kind == StageWork::Read), all),
            waiting: share(waiting, all),
            copying: share(seconds(&|kind| kind == StageWork::HandOver), all),
            code: share(seconds(&|kind| kind == StageWork::Code), all),
            on_core,
            memory: share(time.memory, time.total()),
            busy: if known { share(time.busy, time.total()) } else { 1.0 },
            cores_used: if passed > 0.0 { cpu_time / passed } else { 0.0 },
            explained: match all > 0.0 && evidence.rate() > 0.0 {
                true => all * evidence.rate() / makers(evidence),
                false => 1.0,
            },
            useful_workers: match on_cores > 0.0 {
                true => evidence.cores.max(1.0) * (1.0 + waiting / on_cores),
                false => evidence.cores.max(1.0),
            },
        }
    }

    /// The process has few of the machine's cores, and uses them.
    pub(super) fn confined(&self, evidence: &Evidence) -> bool {
        let fewer = evidence.machine_cores.is_some_and(|all| all >= 1.5 * evidence.cores);
        let wanted = self.cores_used >= 0.5 * evidence.cores || self.on_core < SHARED_CORE;
        fewer && evidence.cores < FEW_CORES && wanted
    }

    /// The workers use all cores that the process may use.
    pub(super) fn uses_all(&self, evidence: &Evidence) -> bool {
        self.cores_used >= ALL_BUSY * evidence.cores && self.cores_used > 0.0
    }

    /// All cores that the process may use are busy, whoever uses them.
    pub(super) fn all_busy(&self, evidence: &Evidence) -> bool {
        let machine = match (evidence.machine_cores_busy, evidence.machine_cores) {
            (Some(busy), Some(all)) => all > 0.0 && busy >= MACHINE_BUSY * all,
            _ => false,
        };
        self.uses_all(evidence) || machine
    }
}

/// The workers that make samples: the program's own thread is one.
pub(super) fn makers(evidence: &Evidence) -> f64 {
    evidence.workers.max(1) as f64
}

/// Waits for first batches of later epochs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Turnovers {
    /// All of them together.
    pub(super) all: f64,
    /// The mean.
    pub(super) mean: f64,
    /// The mean wait for any other batch.
    pub(super) other: f64,
}

/// `None` where there is nothing to compare: no epoch but the first, or epochs of one batch.
pub(super) fn turnovers(evidence: &Evidence) -> Option<Turnovers> {
    let mean = evidence.turnover_seconds?;
    let all = mean * evidence.turnovers as f64;
    let others = evidence.batches.saturating_sub(evidence.turnovers);
    let other = (evidence.wait_seconds - all).max(0.0) / others as f64;
    (others > 0).then_some(Turnovers { all, mean, other })
}

pub(super) fn find(evidence: &Evidence, shares: &Shares) -> Cause {
    if evidence.batches == 0 {
        return Cause::Unknown;
    }
    if evidence.wait_share() < NEGLIGIBLE && !is_hidden(evidence) {
        return Cause::Trainer;
    }
    if is_epoch_start(evidence) {
        return Cause::EpochStart;
    }
    if has_slow_place(evidence) {
        return Cause::SlowPlace;
    }
    let remade = evidence.batches_remade as f64;
    let short = shares.memory >= MEMORY_SHARE || remade >= REMADE_SHARE * evidence.batches as f64;
    // Within the same memory it was measured to be fast enough.
    let acquitted = evidence.ceilings.real.is_some() && is_fast_enough(evidence, shares);
    if short && !acquitted {
        return Cause::Memory;
    }
    if is_fast_enough(evidence, shares) && wait_of_a_batch(evidence) < HAND_OVER {
        return Cause::Trainer;
    }
    if evidence.executor == Executor::Threads
        && evidence.interpreter_lock.is_some_and(|share| share >= LOCK_SHARE)
    {
        return Cause::InterpreterLock;
    }
    let ceilings = &evidence.ceilings;
    let gain = match (ceilings.real, ceilings.prepared) {
        (Some(real), Some(prepared)) if real > 0.0 => Some(prepared / real),
        _ => None,
    };
    let faster = gain.is_some_and(|gain| gain >= MUCH_FASTER);
    // Waits that others fill do not hold up: then the cores are the limit.
    let filled = shares.uses_all(evidence) && gain.is_none_or(|gain| gain < FASTER);
    if !filled && shares.waiting >= READ_SHARE || faster && shares.waiting >= READ_SHARE_MEASURED {
        return read_cause(evidence);
    }
    if shares.code >= 0.5 && shares.on_core < ASLEEP && makers(evidence) < 4.0 * evidence.cores {
        return Cause::ReadLatency;
    }
    // The engine's own workers do the copying: more of them do more of it.
    let few = 2.0 * makers(evidence) <= evidence.cores && shares.busy >= 0.5;
    let own = matches!(evidence.executor, Executor::Native | Executor::Inline);
    let copies = shares.copying >= HAND_OVER_SHARE && !(few && own);
    if copies || hands_over(evidence, shares) {
        return Cause::HandOver;
    }
    // Where workers had to share their cores, the loader was slower than without a step.
    if is_fast_enough(evidence, shares) && shares.on_core >= SHARED_CORE {
        return match waits_for_hand_over(evidence, shares) {
            true => Cause::HandOver,
            false => Cause::Uneven,
        };
    }
    if few {
        return Cause::TooFewWorkers;
    }
    if shares.confined(evidence) {
        return Cause::StarvedCores;
    }
    if shares.on_core < SHARED_CORE && makers(evidence) > TOO_MANY * shares.useful_workers {
        return Cause::TooManyWorkers;
    }
    // Workers that share the cores among themselves have them all the same.
    if shares.on_core < SHARED_CORE && !shares.uses_all(evidence) {
        return Cause::StarvedCores;
    }
    if makers(evidence) > FAR_TOO_MANY * shares.useful_workers {
        return Cause::TooManyWorkers;
    }
    match evidence.heaviest().map(|(stage, _)| kind(stage)) {
        None => Cause::Unknown,
        // Bytes in memory that take a core to get at are packed somehow.
        Some(StageWork::Read | StageWork::Decode) => Cause::Decode,
        Some(StageWork::Transform) => Cause::Transform,
        Some(StageWork::HandOver) => Cause::HandOver,
        Some(StageWork::Code) => Cause::Code,
    }
}

/// The loader is too slow for the trainer, which does not wait yet as it uses what was made before.
/// A long run without a wait is the better witness: what was made ahead is used up after some
/// batches.
pub(super) fn is_hidden(evidence: &Evidence) -> bool {
    let Some(real) = evidence.ceilings.real.filter(|_| has_step(evidence)) else { return false };
    let share = real / evidence.wanted();
    let ahead = match evidence.ahead {
        0 => AHEAD_OF_A_WORKER * evidence.workers as f64,
        ahead => ahead as f64,
    };
    share < TOO_SLOW && evidence.batches as f64 * (1.0 - share) <= HIDES * ahead
}

/// The mean wait for a batch.
pub(super) fn wait_of_a_batch(evidence: &Evidence) -> f64 {
    evidence.wait_seconds / evidence.batches.max(1) as f64
}

/// Workers make batches faster than the trainer uses them. The program's own thread does not make
/// any meanwhile, so that it is waited for however fast it is.
pub(super) fn is_fast_enough(evidence: &Evidence, shares: &Shares) -> bool {
    if evidence.workers == 0 || evidence.executor == Executor::Inline || !has_step(evidence) {
        return false;
    }
    match evidence.ceilings.real {
        Some(real) => real >= FASTER * evidence.wanted(),
        None => shares.busy < IDLE,
    }
}

/// Batches are there, and yet the trainer waits: it takes that long to hand one over. Those of
/// Python's workers are taken apart and put together again; the engine's are only handed over.
fn waits_for_hand_over(evidence: &Evidence, shares: &Shares) -> bool {
    let python = !matches!(evidence.executor, Executor::Native | Executor::Inline);
    is_fast_enough(evidence, shares) && (python || wait_of_a_batch(evidence) < HAND_OVER)
}

/// Worker processes take far longer than their samples do: what is left is pickling and copying.
fn hands_over(evidence: &Evidence, shares: &Shares) -> bool {
    matches!(evidence.executor, Executor::Processes | Executor::Torch)
        && evidence.wait_share() >= MOSTLY_WAITS
        && shares.explained < EXPLAINED
}

fn is_epoch_start(evidence: &Evidence) -> bool {
    turnovers(evidence).is_some_and(|Turnovers { all, mean, other }| {
        all >= TURNOVER_SHARE * evidence.wait_seconds && all > 0.0 && mean >= TURNOVER_TIMES * other
    })
}

fn has_slow_place(evidence: &Evidence) -> bool {
    let Some(worst) = evidence.slow_places.first() else { return false };
    let time = |place: &crate::tune::SlowPlace| place.reads as f64 * place.seconds;
    let all: f64 = evidence.slow_places.iter().map(time).sum();
    worst.seconds >= PLACE_TIMES * worst.elsewhere
        && worst.reads as f64 >= PLACE_SHARE * (worst.reads + worst.other_reads) as f64
        && time(worst) >= PLACE_SHARE * all
        && time(worst) >= PLACE_WAIT * evidence.wait_seconds
}

/// Reads are slow: because each request takes long, or because bytes come slowly?
fn read_cause(evidence: &Evidence) -> Cause {
    let slow_requests = match evidence.read_probe {
        // Halfway, as ratios go, between "no longer" and "as many times longer as there are more".
        Some(probe) if probe.readers > 1 && probe.alone > 0.0 => {
            probe.together / probe.alone < (probe.readers as f64).sqrt()
        }
        _ => evidence.read_bytes_per_sample < SMALL_READ,
    };
    if slow_requests { Cause::ReadLatency } else { Cause::ReadBandwidth }
}

/// What is at its limit.
pub(super) fn resource(evidence: &Evidence, shares: &Shares, cause: Cause) -> Resource {
    match cause {
        Cause::Unknown | Cause::Trainer | Cause::EpochStart | Cause::Uneven => Resource::None,
        Cause::ReadLatency => Resource::RequestLatency,
        Cause::ReadBandwidth => Resource::DiskBandwidth,
        // One place does not answer; the others would.
        Cause::SlowPlace => Resource::RequestLatency,
        Cause::Memory => Resource::Memory,
        Cause::InterpreterLock => Resource::InterpreterLock,
        Cause::StarvedCores | Cause::TooManyWorkers => Resource::AllCores,
        Cause::TooFewWorkers if makers(evidence) <= 1.0 => Resource::OneCore,
        Cause::TooFewWorkers => Resource::Workers,
        Cause::Decode | Cause::Transform | Cause::Code | Cause::HandOver => {
            match shares.all_busy(evidence) {
                true => Resource::AllCores,
                false if is_fast_enough(evidence, shares) => Resource::None,
                false if makers(evidence) <= 1.0 => Resource::OneCore,
                false => Resource::Workers,
            }
        }
    }
}
