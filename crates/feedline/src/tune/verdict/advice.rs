//! What to try, the best first, with what it would bring as far as that can be predicted.

use super::cause::{Shares, StageWork, is_fast_enough, kind, makers};
use super::paths;
use super::words::{ability, count, measured, on_cores, possible, unit};
use super::{Advice, Cause};
use crate::spec::read::show_bytes;
use crate::tune::evidence::{Evidence, Executor};

/// The most workers that are ever advised for waiting in parallel.
const MOST_WORKERS: u64 = 64;

/// What brings less than this is no promise: two runs differ by as much.
const WORTH_A_WORD: f64 = 1.1;

pub(super) fn find(evidence: &Evidence, shares: &Shares, cause: Cause) -> Vec<Advice> {
    let mut advice = match cause {
        Cause::Unknown | Cause::Trainer => Vec::new(),
        Cause::ReadLatency => {
            let mut advice: Vec<Advice> = more_waiting(evidence).into_iter().collect();
            advice.extend(shards(evidence));
            advice.extend(cached(evidence));
            advice
        }
        Cause::ReadBandwidth => bandwidth(evidence),
        Cause::SlowPlace => slow_place(evidence),
        Cause::Memory => memory(evidence, shares),
        Cause::InterpreterLock => interpreter_lock(evidence),
        Cause::HandOver => hand_over(evidence, shares),
        Cause::EpochStart => epoch_start(evidence),
        Cause::Uneven => {
            let text = "More batches in the making bridge those that take long.";
            vec![more_ahead(evidence, text)]
        }
        Cause::TooFewWorkers => more_workers(evidence, shares).into_iter().collect(),
        Cause::TooManyWorkers => vec![fewer_workers(evidence, shares)],
        Cause::StarvedCores => vec![more_cores(evidence, shares)],
        Cause::Decode | Cause::Transform | Cause::Code => Vec::new(),
    };
    let work = [
        Cause::Decode,
        Cause::Transform,
        Cause::Code,
        Cause::TooFewWorkers,
        Cause::TooManyWorkers,
        Cause::StarvedCores,
    ];
    if work.contains(&cause) {
        advice.extend(less_work(evidence));
        // Where the number of workers, or the cores that decide it, is not the advice itself.
        if matches!(cause, Cause::Decode | Cause::Transform | Cause::Code)
            || (cause == Cause::StarvedCores && !shares.confined(evidence))
        {
            advice.extend(more_workers(evidence, shares));
        }
        advice.extend(from_memory(evidence));
    }
    advice.dedup_by(|a, b| a.text == b.text);
    advice
}

/// "would raise 1,450 to about 2,900 images/s", with what the trainer could use if that is less.
fn raise(evidence: &Evidence, predicted: f64) -> String {
    let (from, to) = (count(ability(evidence)), count(predicted));
    let wanted = evidence.wanted();
    let enough = match wanted.is_finite() && wanted < predicted {
        true => format!(" (the trainer can use {})", count(wanted)),
        false => String::new(),
    };
    format!("would raise {from} to about {to} {}/s{enough}", unit(evidence))
}

/// No Python code is among the stages.
fn native(evidence: &Evidence) -> bool {
    matches!(evidence.executor, Executor::Native | Executor::Inline)
        && !evidence.stages.iter().any(|stage| kind(stage) == StageWork::Code)
}

/// Packs the data into a folder beside it; the flags are to follow.
fn pack(evidence: &Evidence, ending: &str) -> String {
    let (from, to) = (paths::source(&evidence.source), paths::beside(&evidence.source, ending));
    format!("feedline pack {from} {to}")
}

/// Makes the heaviest work lighter.
fn less_work(evidence: &Evidence) -> Vec<Advice> {
    let Some((stage, _)) = evidence.heaviest() else { return Vec::new() };
    match kind(stage) {
        StageWork::Decode => pack_with_index(evidence).into_iter().collect(),
        StageWork::Transform if native(evidence) => {
            let on_gpu = Advice {
                text: "Less work for each sample: on the GPU, or on smaller images.".to_owned(),
                code: Some(
                    "move the heaviest op to the GPU (batch[\"image\"].cuda() first), or shrink before it: Resize before GaussianBlur, not after".to_owned(),
                ),
                ..Advice::default()
            };
            let text = "Making large images smaller once, when packing, leaves less for each epoch.";
            smaller(evidence, text).into_iter().chain([on_gpu]).collect()
        }
        StageWork::Code | StageWork::Transform => vec![Advice {
            text: format!(
                "Moving {} to feedline's own decoding and transforms takes it off Python.",
                stage.name
            ),
            code: Some(
                "Loader(\"path/to/data\", transforms=[RandomResizedCrop(224), ToDtype(\"float32\", scale=True)])"
                    .to_owned(),
            ),
            ..Advice::default()
        }],
        StageWork::Read | StageWork::HandOver => Vec::new(),
    }
}

/// Stores images no larger than the transforms need them.
fn smaller(evidence: &Evidence, text: &str) -> Option<Advice> {
    let side = evidence.stored_side.filter(|_| evidence.loose && !evidence.encoding.is_empty())?;
    Some(Advice {
        text: text.to_owned(),
        command: Some(format!("{} --resize {side}", pack(evidence, "small"))),
        ..Advice::default()
    })
}

fn pack_with_index(evidence: &Evidence) -> Option<Advice> {
    let now = ability(evidence);
    let packed = evidence.packed.map(|packed| measured(evidence, packed));
    // What was measured and does not help is no advice.
    if !evidence.wants_crop_index() || packed.is_some_and(|packed| packed < WORTH_A_WORD * now) {
        return None;
    }
    let bring = match packed {
        Some(packed) => raise(evidence, packed),
        None => "would decode only what a crop needs".to_owned(),
    };
    Some(Advice {
        text: format!("Packing with a crop index {bring}."),
        command: Some(format!("{} --crop-index", pack(evidence, "packed"))),
        code: None,
        predicted: packed,
    })
}

/// Samples that stay in memory are neither read nor decoded in later epochs.
fn from_memory(evidence: &Evidence) -> Option<Advice> {
    let decodes = evidence.heaviest().is_some_and(|(stage, _)| kind(stage) == StageWork::Decode);
    let free = evidence.without_decoding.map(|rate| measured(evidence, rate));
    let useless = free.is_some_and(|free| free < WORTH_A_WORD * ability(evidence));
    if !decodes || !native(evidence) || useless {
        return None;
    }
    let bring = match free {
        Some(free) => raise(evidence, free),
        None => "spares decoding".to_owned(),
    };
    Some(Advice {
        text: format!(
            "Keeping decoded images in memory {bring} from the second epoch on, if they fit."
        ),
        command: None,
        code: Some("cache={\"hold\": \"decoded\", \"required\": False}".to_owned()),
        predicted: free,
    })
}

/// Cores that the program uses for other work than loading: its own training step.
fn cores_of_step(evidence: &Evidence, shares: &Shares) -> f64 {
    evidence.process_cores.map_or(0.0, |own| (own - shares.cores_used).max(0.0))
}

/// Workers for cores that are idle: enough for the trainer, or one for each core that other programs
/// and the training step leave. Half a core that they use is rounded away: it is often only now and
/// then.
fn more_workers(evidence: &Evidence, shares: &Shares) -> Option<Advice> {
    let left = evidence.cores_left() - cores_of_step(evidence, shares);
    let (now, most) = (makers(evidence), left.round().min(evidence.cores.floor()));
    let rate = ability(evidence);
    if most < now + 1.0 || rate <= 0.0 {
        return None;
    }
    let packed = evidence.packed.map_or(f64::INFINITY, |packed| measured(evidence, packed));
    let aim = packed.min(evidence.wanted());
    let needed = (aim / rate * now * 1.02).ceil().clamp(now + 1.0, most);
    let predicted = on_cores(evidence, rate * needed / now, evidence.cores);
    // A worker beside the program's own thread is not one more but the first.
    let more = needed - if evidence.workers == 0 { 0.0 } else { now };
    let (number, s) = (count(more), if more > 1.0 { "s" } else { "" });
    let adverb = if evidence.workers == 0 { "" } else { " more" };
    Some(Advice {
        text: format!("{number}{adverb} worker{s} {}.", raise(evidence, predicted)),
        command: None,
        code: Some(format!("num_workers={needed}")),
        predicted: Some(predicted),
    })
}

fn fewer_workers(evidence: &Evidence, shares: &Shares) -> Advice {
    let cores = evidence.cores.floor().max(1.0);
    let workers = shares.useful_workers.ceil().max(cores);
    // A sixteenth more is a matter of rounding, and of reads from the page cache.
    let (workers, why) = match workers <= (cores * 1.0625).ceil() {
        true => (cores, "one for each core"),
        false => (workers, "of which some wait for bytes while others have the cores"),
    };
    let s = if workers > 1.0 { "s" } else { "" };
    Advice {
        text: format!(
            "{workers} worker{s}, {why}, would do the same with less memory and fewer switches."
        ),
        code: Some(format!("num_workers={workers}")),
        ..Advice::default()
    }
}

fn more_cores(evidence: &Evidence, shares: &Shares) -> Advice {
    let machine = evidence.machine_cores.unwrap_or(evidence.cores);
    let rate = ability(evidence);
    let others = evidence.cores_of_others().unwrap_or(0.0);
    // Without a figure where it is none, such as "from 2,620 to 2,620".
    let bring = |predicted: f64| match predicted >= WORTH_A_WORD * rate {
        true => (raise(evidence, predicted), Some(predicted)),
        false => ("would let workers work all of their time".to_owned(), None),
    };
    if shares.confined(evidence) {
        // Those that others use are not to be had.
        let free = (machine - others).max(evidence.cores);
        let more = rate * free / evidence.cores.max(1.0);
        let (text, predicted) = bring(on_cores(evidence, more, free));
        return Advice {
            text: format!("All {} cores {text}.", count(machine)),
            command: Some(format!("taskset -c 0-{} COMMAND", count(machine - 1.0))),
            code: Some(format!(
                "ask the scheduler for more cores (cpus-per-task, cpu limit), then num_workers={}",
                count(machine)
            )),
            predicted,
        };
    }
    // What others and the program's own step leave by now; what the workers use is theirs already.
    let step = cores_of_step(evidence, shares);
    let had = (evidence.cores - others - step).max(shares.cores_used).max(0.1);
    let by_others = match evidence.cores_of_others() {
        Some(_) => rate * (evidence.cores / had).max(1.0),
        None => f64::INFINITY,
    };
    let alone = (rate / shares.on_core.max(0.1)).min(by_others);
    let (text, predicted) = bring(on_cores(evidence, alone, evidence.cores));
    Advice {
        text: format!("Cores of its own {text}."),
        command: Some("top -o %CPU".to_owned()),
        code: Some("end or move what else runs, or ask for cores that are not shared".to_owned()),
        predicted,
    }
}

/// Reads that wait cost no core: more of them at once, unless that brings nothing any more.
fn more_waiting(evidence: &Evidence) -> Option<Advice> {
    let (now, rate) = (makers(evidence), ability(evidence));
    // Beyond this, cores or the trainer are the limit.
    let cpu = evidence.cpu_of_a_sample();
    let prepared = evidence.ceilings.prepared.map(|rate| measured(evidence, rate));
    let ceiling = prepared.unwrap_or_else(|| match cpu > 0.0 {
        true => evidence.cores / cpu,
        false => f64::INFINITY,
    });
    let aim = ceiling.min(evidence.wanted());
    let needed = match aim.is_finite() && rate > 0.0 {
        true => (aim / rate * now).ceil(),
        false => 4.0 * now,
    };
    let needed = needed.clamp(now + 1.0, MOST_WORKERS.max(2 * evidence.workers) as f64);
    let predicted = possible(evidence, (rate * needed / now).min(ceiling));
    (predicted >= WORTH_A_WORD * rate).then(|| Advice {
        text: format!(
            "{} workers, which wait at the same time, {}.",
            count(needed),
            raise(evidence, predicted)
        ),
        command: None,
        code: Some(format!("num_workers={needed}")),
        predicted: Some(predicted),
    })
}

fn shards(evidence: &Evidence) -> Option<Advice> {
    evidence.loose.then(|| Advice {
        text: "Packing into shards makes fewer and larger reads of it.".to_owned(),
        command: Some(format!("{} --to tar", pack(evidence, "packed"))),
        ..Advice::default()
    })
}

fn cached(evidence: &Evidence) -> Option<Advice> {
    if !native(evidence) {
        return None;
    }
    let prepared = evidence.ceilings.prepared.map(|rate| measured(evidence, rate));
    Some(Advice {
        text: match prepared {
            Some(rate) => format!(
                "Keeping encoded samples in memory {} from the second epoch on, if they fit.",
                raise(evidence, rate)
            ),
            None => "Keeping encoded samples in memory spares reads from the second epoch on, if they fit."
                .to_owned(),
        },
        command: None,
        code: Some("cache=\"memory\"".to_owned()),
        predicted: prepared,
    })
}

fn bandwidth(evidence: &Evidence) -> Vec<Advice> {
    let mut advice: Vec<Advice> = cached(evidence).into_iter().collect();
    let need = evidence.wanted().min(evidence.ceilings.prepared.unwrap_or(f64::INFINITY));
    let bytes = evidence.read_bytes_per_sample;
    let need = match need.is_finite() && bytes > 0.0 {
        true => format!(" It would have to give {}/s.", show_bytes((need * bytes) as u64)),
        false => String::new(),
    };
    advice.push(Advice {
        text: format!("Copying the data to a faster disk first, such as a local one.{need}"),
        command: Some(format!("cp -r {} /path/on/a/local/disk", paths::source(&evidence.source))),
        ..Advice::default()
    });
    let text = "Smaller images need fewer bytes: stored no larger than they are used.";
    advice.extend(smaller(evidence, text));
    advice
}

fn slow_place(evidence: &Evidence) -> Vec<Advice> {
    let place = evidence.slow_places.first().map_or("", |place| &*place.name);
    let mut advice = vec![Advice {
        text: "Copying it anew, to where the others are, or looking at its disk, would make it as fast as they are."
            .to_owned(),
        command: Some(format!("time tar cf - {} | wc -c", paths::source(place))),
        ..Advice::default()
    }];
    if native(evidence) {
        let text = "More batches in the making bridge a slow read now and then.";
        advice.push(more_ahead(evidence, text));
    }
    advice
}

fn more_ahead(evidence: &Evidence, text: &str) -> Advice {
    // Twice as many as now, and no fewer than what usually bridges.
    let now = (evidence.ahead as f64 / makers(evidence)).ceil();
    let code = Some(format!("prefetch_factor={}", (2.0 * now).max(8.0)));
    Advice { text: text.to_owned(), code, ..Advice::default() }
}

fn memory(evidence: &Evidence, shares: &Shares) -> Vec<Advice> {
    // What a cache takes of it grows along, at most.
    let now = evidence.memory_given.max(evidence.memory_limit).max(1_000_000);
    // In proportion to the work that would be done if nobody waited, in round numbers.
    let times = (1.0 / (1.0 - shares.memory).max(0.1)).max(2.0);
    let wanted = (now as f64 * times).min(u64::MAX as f64 / 4.0) as u64;
    let unit = 10u64.pow(wanted.max(1).ilog10());
    let round = wanted.div_ceil(unit) * unit;
    let fewer = (makers(evidence) / 2.0).floor().max(1.0);
    let shown = show_bytes(round).replace(' ', "");
    let mut advice = vec![Advice {
        text: format!(
            "More memory, {} in place of {}, lets all workers work.",
            show_bytes(round),
            show_bytes(now)
        ),
        command: (!evidence.pipeline.is_empty())
            .then(|| format!("feedline run {} --memory {shown}", evidence.pipeline)),
        code: Some(format!("memory=\"{shown}\"")),
        predicted: None,
    }];
    if makers(evidence) > 1.0 {
        advice.push(Advice {
            text: format!("Fewer workers, {fewer}, need less of it, as do smaller batches."),
            code: Some(format!("num_workers={fewer}")),
            ..Advice::default()
        });
    }
    advice
}

fn interpreter_lock(evidence: &Evidence) -> Vec<Advice> {
    let cores = evidence.cores.floor().max(1.0);
    let rate = ability(evidence);
    let held = evidence.interpreter_lock.unwrap_or(1.0);
    let predicted = on_cores(evidence, rate * evidence.cores_left().max(1.0) * held, cores);
    let mut advice = vec![Advice {
        text: format!("Processes in place of threads {}.", raise(evidence, predicted.max(rate))),
        command: None,
        code: Some(format!("executor=\"processes\", num_workers={cores}")),
        predicted: Some(predicted.max(rate)),
    }];
    advice.extend(less_work(evidence));
    advice
}

fn hand_over(evidence: &Evidence, shares: &Shares) -> Vec<Advice> {
    let processes = matches!(evidence.executor, Executor::Processes | Executor::Torch);
    let small = Advice {
        text: "Handing over fewer bytes: uint8 in place of float32 is a quarter, and is converted on the GPU."
            .to_owned(),
        code: Some("leave ToDtype and Normalize to the GPU: batch[\"image\"].cuda().float().div_(255)".to_owned()),
        ..Advice::default()
    };
    let threads = Advice {
        text: "Threads hand batches over without pickling and copying, where the code releases the interpreter lock."
            .to_owned(),
        code: Some(
            match evidence.executor {
                // torch's own has no such argument; this takes its place.
                Executor::Torch => "feedline.torch.DataLoader(..., executor=\"threads\")",
                _ => "executor=\"threads\"",
            }
            .to_owned(),
        ),
        ..Advice::default()
    };
    let mut advice = if processes { vec![threads] } else { Vec::new() };
    if is_fast_enough(evidence, shares) && evidence.executor != Executor::Inline {
        let text = "More batches that are ready bridge those that take long.";
        advice.push(more_ahead(evidence, text));
    }
    advice.push(small);
    advice
}

fn epoch_start(evidence: &Evidence) -> Vec<Advice> {
    let (text, code) = match evidence.executor {
        Executor::Torch => (
            "Workers that stay alive between epochs start once.",
            "DataLoader(..., persistent_workers=True)",
        ),
        _ => (
            "One long epoch in place of many short ones, used to its end, keeps the workers ahead.",
            "num_samples=N, or one loop over several epochs without breaking out of it",
        ),
    };
    let code = Some(code.to_owned());
    vec![Advice { text: text.to_owned(), code, ..Advice::default() }]
}
