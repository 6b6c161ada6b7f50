//! The verdict in sentences.

use super::cause::{
    self, Shares, StageWork, TURNOVER_TIMES, Turnovers, is_fast_enough, kind, makers, turnovers,
    wait_of_a_batch,
};
use super::{Advice, Cause};
use crate::spec::read::{show_bytes, show_count};
use crate::spec::show::{show_percent, show_time};
use crate::tune::evidence::{Evidence, Executor};

/// Above this share of the time a trainer's step counts as one: below, the loader ran freely.
const A_STEP: f64 = 0.001;

/// Fewer cores than this are not worth a word.
const SOME_CORES: f64 = 0.1;
/// Cores that others use without anybody minding.
const MANY_OTHERS: f64 = 0.5;

/// A count, from a thousand on to the nearest ten: it was measured.
pub(super) fn count(value: f64) -> String {
    let tens = if value >= 1000.0 { 10.0 } else { 1.0 };
    match value.is_finite() {
        true => show_count(((value / tens).round() * tens) as u64),
        false => value.to_string(),
    }
}

/// What is counted: images, or samples of any kind.
pub(super) fn unit(evidence: &Evidence) -> &'static str {
    let decodes = evidence.stages.iter().any(|stage| kind(stage) == StageWork::Decode);
    if decodes || !evidence.encoding.is_empty() { "images" } else { "samples" }
}

/// From this share of waiting on, the trainer gets what the loader can give.
const ALWAYS_LATE: f64 = 0.05;

/// Samples a second that the loader can give: what the trainer got if it waited for them, else what
/// was measured without it.
pub(super) fn ability(evidence: &Evidence) -> f64 {
    match evidence.ceilings.real {
        Some(real) if evidence.wait_share() < ALWAYS_LATE => real,
        _ => evidence.rate(),
    }
}

/// What was measured at another time without a step, as it would be here: the machine may have been
/// busier or less busy then, for everything alike.
pub(super) fn measured(evidence: &Evidence, rate: f64) -> f64 {
    let real = evidence.ceilings.real.filter(|real| *real > 0.0);
    possible(evidence, rate * real.map_or(1.0, |real| ability(evidence) / real))
}

/// At most what can be handed over, if that is known, whatever is predicted for the work before it.
pub(super) fn possible(evidence: &Evidence, rate: f64) -> f64 {
    let most = evidence.ceilings.replayed.unwrap_or(f64::INFINITY);
    rate.min(most.max(ability(evidence)))
}

/// At most what so many cores do if a sample's work stays what it is.
pub(super) fn on_cores(evidence: &Evidence, rate: f64, cores: f64) -> f64 {
    let cpu = evidence.cpu_of_a_sample();
    let most = if cpu > 0.0 { cores / cpu } else { f64::INFINITY };
    possible(evidence, rate.min(most.max(ability(evidence))))
}

/// The trainer has a step; otherwise the loader ran as fast as it can.
pub(super) fn has_step(evidence: &Evidence) -> bool {
    !evidence.without_step && 1.0 - evidence.wait_share() >= A_STEP
}

/// A few words for a line in a log.
pub(super) fn limit(evidence: &Evidence, cause: Cause) -> String {
    let heaviest = || evidence.heaviest().map_or("your code", |(stage, _)| stage.name.as_str());
    match cause {
        Cause::Unknown => "nothing yet",
        Cause::Trainer => "the trainer",
        Cause::ReadLatency if waits_in_code(evidence) => "your code (it waits)",
        Cause::ReadLatency => "reading (latency)",
        Cause::ReadBandwidth => "reading (bandwidth)",
        Cause::SlowPlace => "reading (one slow place)",
        Cause::Decode => "decode",
        Cause::Transform => "transform",
        Cause::Code => heaviest(),
        Cause::InterpreterLock => "Python's interpreter lock",
        Cause::HandOver => "handing over",
        Cause::Memory => "memory",
        Cause::StarvedCores => "cores",
        Cause::TooFewWorkers => "too few workers",
        Cause::TooManyWorkers => "too many workers",
        Cause::EpochStart => "epoch start",
        Cause::Uneven => "uneven batches",
    }
    .to_owned()
}

/// Reading is done by the program's code: the engine sees only that it waits.
fn waits_in_code(evidence: &Evidence) -> bool {
    evidence.heaviest_by_time().is_some_and(|stage| kind(stage) == StageWork::Code)
}

/// The program's own code by its name, if it has one.
fn own_code(name: &str) -> String {
    match name {
        "" | "your code" => "your code".to_owned(),
        name => format!("your code ({name})"),
    }
}

/// The heaviest work in words, with its share of the processor time.
fn work(evidence: &Evidence) -> String {
    let Some((stage, share)) = evidence.heaviest() else { return "making samples".to_owned() };
    let name = match kind(stage) {
        StageWork::Decode if evidence.encoding.is_empty() => "decoding".to_owned(),
        StageWork::Decode => format!("{} decoding", evidence.encoding),
        StageWork::Transform => "transforms".to_owned(),
        StageWork::Read => "unpacking what is read".to_owned(),
        StageWork::HandOver => format!("joining and handing over ({})", stage.name),
        StageWork::Code => own_code(&stage.name),
    };
    format!("{name}, {} of CPU", show_percent(share))
}

fn reason(evidence: &Evidence, shares: &Shares, cause: Cause) -> String {
    let read_rate = evidence.read_bytes_per_sample * ability(evidence);
    let at_once = makers(evidence);
    match cause {
        Cause::Unknown => "not known, as no stage was measured".to_owned(),
        Cause::Trainer => "the trainer itself".to_owned(),
        Cause::ReadLatency if waits_in_code(evidence) => {
            let stage = evidence.heaviest_by_time();
            let (name, seconds, cpu) =
                stage.map_or(("", 0.0, 0.0), |s| (&*s.name, s.seconds, s.cpu_seconds));
            format!(
                "{} waits, for files, a network or a sleep: {} of a sample, {} of it on a core",
                own_code(name),
                show_time(seconds),
                show_time(cpu)
            )
        }
        Cause::ReadLatency => {
            // Of samples in blocks, most come without a read, and one waits for the whole block.
            let reads = evidence.stages.iter().find(|stage| stage.name == "read");
            let usual = reads.map_or(0.0, |reads| reads.seconds).max(evidence.read_p50_seconds);
            let read = evidence.read_probe.map_or(usual, |probe| probe.alone);
            let idle = match shares.uses_all(evidence) {
                true => "",
                false => "; cores are idle meanwhile",
            };
            format!(
                "the latency of reads, {} each, {} at a time{idle}",
                show_time(read),
                count(at_once)
            )
        }
        Cause::ReadBandwidth => format!(
            "bytes come slowly, {}/s over all workers ({} of a sample's time)",
            show_bytes(read_rate as u64),
            show_percent(shares.waiting)
        ),
        Cause::SlowPlace => {
            let place = evidence.slow_places.first().cloned().unwrap_or_default();
            format!(
                "reads of {} take {}, those elsewhere {}",
                place.name,
                show_time(place.seconds),
                show_time(place.elsewhere)
            )
        }
        Cause::Decode | Cause::Transform | Cause::Code => work(evidence),
        Cause::HandOver if is_fast_enough(evidence, shares) => format!(
            "handing batches over, {} each; they are made {}",
            show_time(wait_of_a_batch(evidence)),
            ahead(evidence)
        ),
        Cause::Uneven => format!(
            "batches take unequally long, {} of waiting each on the mean, though they are made {}",
            show_time(wait_of_a_batch(evidence)),
            ahead(evidence)
        ),
        Cause::HandOver => format!(
            "joining samples and handing batches over, {} of a sample's time",
            show_percent(shares.copying.max(1.0 - shares.explained))
        ),
        Cause::InterpreterLock => format!(
            "Python's interpreter lock, held {} of the time: threads run Python one at a time",
            show_percent(evidence.interpreter_lock.unwrap_or(1.0))
        ),
        Cause::Memory => format!(
            "memory, of which the loader may hold {}: workers waited for it {} of their time",
            show_bytes(evidence.memory_limit),
            show_percent(shares.memory)
        ),
        Cause::StarvedCores => starved(evidence, shares),
        Cause::TooFewWorkers => format!(
            "too few workers: {} for {} cores; the heaviest work is {}",
            match evidence.workers {
                0 => "none but the program's own thread".to_owned(),
                workers => count(workers as f64),
            },
            count(evidence.cores),
            work(evidence)
        ),
        Cause::TooManyWorkers => format!(
            "too many workers: {} on {} cores, where each has a core {} of its time; the heaviest work is {}",
            evidence.workers,
            count(evidence.cores),
            show_percent(shares.on_core),
            work(evidence)
        ),
        Cause::EpochStart => {
            let (mean, other) = turnovers(evidence).map_or((0.0, 0.0), |t| (t.mean, t.other));
            format!(
                "epoch starts: the first batch of an epoch took {}, any other {}",
                show_time(mean),
                show_time(other)
            )
        }
    }
}

/// How much faster batches are made than used.
fn ahead(evidence: &Evidence) -> String {
    match evidence.ceilings.real {
        Some(real) => format!("{:.1} times as fast as they are used", real / evidence.wanted()),
        None => "faster than they are used".to_owned(),
    }
}

fn starved(evidence: &Evidence, shares: &Shares) -> String {
    let machine = evidence.machine_cores.unwrap_or(evidence.cores);
    if shares.confined(evidence) {
        return format!(
            "starved of cores: affinity or cgroup give this process {} of the machine's {}; the heaviest work is {}",
            count(evidence.cores),
            count(machine),
            work(evidence)
        );
    }
    let others = evidence.cores_of_others().unwrap_or(0.0);
    let step = evidence.process_cores.map_or(0.0, |own| (own - shares.cores_used).max(0.0));
    // What the workers lack, whoever has it: another program, or the program's own step.
    let by = match (others, step) {
        (others, step) if others.max(step) < SOME_CORES => String::new(),
        (others, step) if others >= step => {
            format!("; other programs use {others:.1} of the machine's {}", count(machine))
        }
        (_, step) => {
            format!("; the rest of this program uses {step:.1} of the machine's {}", count(machine))
        }
    };
    format!("starved of cores: workers have one {} of their time{by}", show_percent(shares.on_core))
}

/// The whole verdict: how much the trainer waited, why, and what would help.
pub(super) fn sentence(
    evidence: &Evidence,
    shares: &Shares,
    cause: Cause,
    advice: &[Advice],
) -> String {
    if cause == Cause::Unknown && evidence.batches == 0 {
        return "Nothing was measured yet.".to_owned();
    }
    let waited = match has_step(evidence) {
        true => format!("The trainer waited {} of the time.", show_percent(evidence.wait_share())),
        false => format!(
            "Without a training step the loader gives {} {}/s.",
            count(evidence.rate()),
            unit(evidence)
        ),
    };
    if cause == Cause::Trainer && evidence.wait_share() >= cause::NEGLIGIBLE {
        return format!(
            "{waited} It is {} for each batch, the hand-over itself, as batches are made {}. Nothing to gain here: the trainer is the limit.",
            show_time(wait_of_a_batch(evidence)),
            ahead(evidence)
        );
    }
    if cause == Cause::Trainer {
        return format!("{waited} Nothing to gain here: the trainer is the limit.");
    }
    let label = if has_step(evidence) { "Cause" } else { "Limit" };
    let hidden = match evidence.wait_share() < cause::NEGLIGIBLE && cause::is_hidden(evidence) {
        true => format!(
            " That will not last, as it used what was made before: the loader gives {} {}/s, and it can use {}.",
            count(ability(evidence)),
            unit(evidence),
            count(evidence.wanted())
        ),
        false => String::new(),
    };
    let mut text = format!("{waited}{hidden} {label}: {}.", reason(evidence, shares, cause));
    if let Some(best) = advice.first() {
        text.push(' ');
        text.push_str(&best.text);
        // The second one, if it is predicted as well.
        if let Some(next) = advice.get(1).filter(|next| {
            best.predicted.is_some() && next.predicted.is_some() && best.text.ends_with('.')
        }) {
            text.pop();
            let same = match (best.predicted, next.predicted) {
                (Some(a), Some(b)) => (a / b - 1.0).abs() < 0.1,
                _ => false,
            };
            let short = next.text.split(" would ").next().unwrap_or_default();
            let short = lower_first(short);
            match (same, next.predicted) {
                (true, _) => text.push_str(&format!("; {short} would do the same.")),
                (false, rate) => {
                    let rate = count(rate.unwrap_or(0.0));
                    text.push_str(&format!("; {short} would give about {rate}."));
                }
            }
        }
    }
    text
}

fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_lowercase().chain(letters).collect())
}

/// Signs that users know, as far as they are seen.
pub(super) fn signs(evidence: &Evidence, shares: &Shares, found: Cause) -> Vec<String> {
    let mut signs = Vec::new();
    let waits = evidence.wait_share() >= cause::NEGLIGIBLE && evidence.batches > 0;
    let cores = count(evidence.cores);
    let used = format!("{:.1} of {cores} cores used", shares.cores_used);
    let busy = shares.all_busy(evidence) && shares.cores_used > 0.0;
    let lock = found == Cause::InterpreterLock || evidence.executor == Executor::Inline;
    let alone = found == Cause::TooFewWorkers && makers(evidence) <= 1.0;
    if waits && evidence.cores > 1.0 && (lock || alone) && !busy {
        signs.push(format!("One core at 100 % while others idle ({used})"));
    }
    let reading = [Cause::ReadLatency, Cause::ReadBandwidth, Cause::SlowPlace].contains(&found);
    // Workers that wait for bytes leave their cores idle, whatever others do with them.
    let idle = reading && !shares.uses_all(evidence);
    if waits && busy && !idle {
        let others = evidence.cores_of_others().filter(|others| *others >= SOME_CORES);
        let others = others.map_or(String::new(), |by| format!(", {by:.1} by other programs"));
        signs.push(format!("All cores busy and the GPU still waiting ({used}{others})"));
    }
    let machine = evidence.machine_cores.unwrap_or(0.0);
    if waits && machine >= evidence.cores + 1.0 && shares.uses_all(evidence) {
        signs.push(format!(
            "Fewer cores than the machine has: affinity or cgroup give this process {cores} of {}, and it uses them all",
            count(machine)
        ));
    }
    if waits && idle {
        signs.push(format!("Cores idle and the GPU waiting, I/O latency ({used})"));
    }
    let slow = |t: &Turnovers| t.mean > 0.02 && t.mean >= TURNOVER_TIMES * t.other;
    if let Some(turnover) = turnovers(evidence).filter(slow) {
        signs.push(format!(
            "Slow epoch starts ({} for the first batch, {} for others)",
            show_time(turnover.mean),
            show_time(turnover.other)
        ));
    }
    if let Some(others) = evidence.cores_of_others().filter(|others| *others >= MANY_OTHERS) {
        signs.push(format!(
            "Other programs kept {others:.1} cores busy meanwhile: figures are lower than they could be, and less sure"
        ));
    }
    let spike = evidence.usual_memory > 0 && evidence.peak_memory > 2 * evidence.usual_memory;
    if spike {
        signs.push(format!(
            "Memory spikes ({} for a moment, {} usually)",
            show_bytes(evidence.peak_memory),
            show_bytes(evidence.usual_memory)
        ));
    } else if evidence.batches_remade > 0 || found == Cause::Memory {
        signs.push(format!(
            "Memory spikes, held back by the limit of {} ({} batches were made again)",
            show_bytes(evidence.memory_limit),
            evidence.batches_remade
        ));
    }
    if makers(evidence) > cause::TOO_MANY * shares.useful_workers && !reading {
        signs.push(format!("Too many workers ({} on {cores} cores)", evidence.workers));
    }
    signs
}
