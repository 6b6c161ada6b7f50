//! `feedline plan`: what a machine with GPUs needs, from a few hundred samples.

use std::path::PathBuf;

use feedline::BatchField;
use feedline::internals::engine::{LoaderFeed, Pack, PackOptions};
use feedline::internals::spec::show_bytes;
use feedline::internals::spec::{counted, show_percent, show_rate, show_time};
use feedline::internals::tune::{self, Evidence, Run, TrainStep, Workload, measure};
use feedline::spec::{OnError, SourceKind, SourceSpec, Subset, Workers};
use feedline::{Error, Loader, Spec};
use serde_json::{Value, json};

use super::tune::{needs_data, size, train_step};
use crate::bench::caveats::others_in_words;
use crate::node_plan::{Measured, Node, NodePlan, advise};
use crate::output::{Failure, Outcome, Output};
use crate::pipeline::{self, Keys};
use crate::signals::Signals;
use crate::terminal::{Progress, Table, show_count};
use crate::tuning::{Cost, Demand};

const EXAMPLES: &str = "\
Examples:
  feedline plan photos --gpus 8 --cpus 160 --memory 1TB --step 120ms --batch-size 256
  feedline plan pipeline.toml --gpus 4 --step 80ms        for this machine's cores and memory
  feedline plan pipeline.toml --gpus 8 --step 80ms --json | jq .plan.cores_per_gpu

It reads a few hundred samples here, makes them with one worker and with all cores, packs some of
them with a crop index where that is possible, and says what to reserve and to set for each GPU
process. Cores are those that this process may use: its affinity and its cgroup count.";

/// Say what a machine with GPUs needs to keep them busy.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Plan {
    /// A spec (.toml, .json), a folder of images, or a manifest (.csv, .tsv, .jsonl).
    #[arg(value_name = "SPEC|PATH")]
    target: PathBuf,

    /// GPUs of the machine, each with a process of its own.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    gpus: u64,

    /// Cores of the machine; those that this process may use by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=65536))]
    cpus: Option<u64>,

    /// Memory of the machine, such as 1TB; what is free here by default.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,

    /// The training step of a batch, such as 120ms, or of a sample, such as 1ms/sample.
    #[arg(long, value_name = "TIME", visible_alias = "train-step", value_parser = train_step)]
    step: TrainStep,

    /// Samples of a batch, on each GPU.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    batch_size: Option<u64>,

    /// An op of the chain, such as 'CenterCrop(size=224)'; may be repeated, replaces the spec's.
    #[arg(long, value_name = "OP", value_parser = pipeline::read_transform)]
    transform: Vec<Value>,

    /// Set any key of the spec, in TOML's syntax; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Samples to measure; more on many cores.
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u64).range(16..=1_000_000))]
    samples: u64,

    /// Do not try packing.
    #[arg(long)]
    no_pack: bool,
}

/// A measurement ends after so many seconds, however few samples were made.
const LONGEST: f64 = 20.0;

/// Samples of a batch while it is measured: many batches show more than a few large ones.
const MEASURED_BATCH: u64 = 16;

/// What is measured with all cores: so many batches, and so many samples for each worker, beside
/// those that are open from the beginning.
const STEADY_BATCHES: u64 = 16;
const EACH_WORKER: u64 = 16;

/// Cores that others may use before all cores are measured again.
const MANY_RIVALS: f64 = 0.5;

/// If others use more than this share of the cores, those say nothing of what all of them keep.
const MOST_RIVALS: f64 = 0.5;

/// Turns of the samples as they are and of the packed ones.
const TURNS: u64 = 3;

/// Samples that are packed to see what that brings.
const PACKED: u64 = 256;

/// More cores than this show nothing new.
const MOST_CORES: usize = 64;

impl Plan {
    pub(crate) fn run(self, output: &mut Output) -> Result<Outcome, Failure> {
        needs_data("plan", &self.target)?;
        let spec =
            pipeline::describe(&self.target, pipeline::bare_defaults(), self.flags(), &self.set)?;
        let cores = tune::cores();
        let signals = Signals::watch();
        let mut node = Node {
            gpus: self.gpus,
            cpus: self.cpus.unwrap_or(cores as u64),
            memory: self.memory.or_else(tune::memory_available),
            demand: Demand::of(self.step, spec.batch_size as f64),
        };
        let together = cores.min(MOST_CORES);
        let many = match together {
            1 => self.samples,
            _ => self.samples.max(samples_for(&spec, together)?),
        };
        let progress = output.progress(2 * many + self.samples, "samples");
        let made = measure_all(&spec, together, many, self.samples, &signals, &progress);
        progress.finish();
        let (costs, mut all) = made?;
        let disturbed = all.as_ref().map_or(0.0, |all| rivals(&all.run, together));
        if disturbed > MANY_RIVALS && signals.received().is_none() {
            // Whatever else was at work may be done.
            let progress = output.progress(many, "samples, again");
            let again = make(&spec, together, many, &signals, &progress, 0);
            progress.finish();
            let again = again?;
            if rivals(&again.run, together) < disturbed {
                all = Some(again);
            }
        }
        if let Some(code) = signals.received() {
            return self.interrupted(code, output);
        }
        let (packed, unpacked) = match self.no_pack {
            true => (None, None),
            false => match packing(&spec, &signals, output) {
                Ok(speedup) => (Some(speedup), None),
                Err(reason) => (None, Some(reason)),
            },
        };
        if let Some(code) = signals.received() {
            return self.interrupted(code, output);
        }
        let mut warnings: Vec<String> = others_at_work(&costs, all.as_ref()).into_iter().collect();
        let (measured, crowded) = measured(&spec, &costs, all.as_ref(), together, packed)?;
        warnings.extend(crowded);
        node.cpus = node.cpus.max(1);
        let plan = advise(&node, &measured);
        if output.is_json() {
            output.json(&json!({
                "command": "plan",
                "target": self.target.to_string_lossy(),
                "interrupted": false,
                "node": node,
                "cores_here": cores,
                "measured": measured,
                "not_packed": unpacked,
                "warnings": warnings,
                "plan": plan,
            }))?;
        } else {
            show(&node, &measured, &plan, unpacked.as_deref(), output)?;
            for warning in warnings {
                output.text(&format!("warning: {warning}"), 2)?;
            }
        }
        Ok(Outcome::Success)
    }

    /// Nothing can be said of a part of the measurements.
    fn interrupted(&self, code: i32, output: &mut Output) -> Result<Outcome, Failure> {
        output.note("interrupted: there is no plan");
        if output.is_json() {
            let target = self.target.to_string_lossy();
            output.json(&json!({"command": "plan", "target": target, "interrupted": true}))?;
        }
        Ok(Outcome::Interrupted(code))
    }

    fn flags(&self) -> Keys {
        let mut keys = Keys::new();
        keys.extend(self.batch_size.map(|size| ("batch_size".to_owned(), size.into())));
        if !self.transform.is_empty() {
            keys.insert("transforms".to_owned(), Value::Array(self.transform.clone()));
        }
        keys
    }
}

/// Samples that show what so many workers do together.
fn samples_for(spec: &Spec, workers: usize) -> Result<u64, Failure> {
    let changed = measurable(spec, workers);
    let size = changed.batch_size;
    let open = Loader::from_spec(changed)?.prefetch();
    Ok(steady_samples(size, workers as u64, open))
}

fn steady_samples(batch_size: u64, workers: u64, open: u64) -> u64 {
    let steady = (STEADY_BATCHES * batch_size).max(EACH_WORKER * workers);
    // The first batch starts the workers.
    (open + 1) * batch_size + steady.next_multiple_of(batch_size.max(1))
}

/// The spec with so many workers, and without what would hide what a sample costs.
fn measurable(spec: &Spec, workers: usize) -> Spec {
    spec.clone().with(|it| {
        it.num_workers = Workers::Count(workers as u64);
        it.batch_size = spec.batch_size.min(MEASURED_BATCH);
        // A cache would show the second epoch only.
        it.cache = None;
        // The same bad samples are met by every run: the list of them is for real ones.
        it.quarantine = None;
        it.rank = Some(0);
        it.world_size = Some(1);
    })
}

/// One worker twice and all together. The first reads what the others read again: it shows how long
/// bytes take, and the others are compared with the same data in memory.
fn measure_all(
    spec: &Spec,
    together: usize,
    many: u64,
    few: u64,
    signals: &Signals,
    progress: &Progress,
) -> Result<(Costs, Option<Made>), Failure> {
    let first = make(spec, 1, many, signals, progress, 0)?;
    let alone = make(spec, 1, few, signals, progress, many)?;
    let all = match together {
        1 => None,
        _ => Some(make(spec, together, many, signals, progress, many + few)?),
    };
    Ok((Costs { first, alone }, all))
}

/// What one worker made, at first and again.
struct Costs {
    first: Made,
    alone: Made,
}

/// Whether other programs used the cores meanwhile, in words.
fn others_at_work(costs: &Costs, all: Option<&Made>) -> Option<String> {
    let made = [&costs.first, &costs.alone].into_iter().chain(all);
    others_in_words(&made.filter_map(|made| made.run.others()).collect::<Vec<f64>>())
}

/// Makes samples as fast as so many workers can.
fn make(
    spec: &Spec,
    workers: usize,
    wanted: u64,
    signals: &Signals,
    progress: &Progress,
    before: u64,
) -> Result<Made, Failure> {
    let changed = measurable(spec, workers);
    let batch_size = changed.batch_size;
    let mut feed = LoaderFeed::new(Loader::from_spec(changed)?, None);
    let open = feed.loader().prefetch();
    let workload =
        Workload { step: TrainStep::None, epochs: u64::MAX, batches: None, seconds: Some(LONGEST) };
    let run = measure(&mut feed, &workload, &mut |batches, _| {
        let samples = batches * batch_size;
        progress.set(before + samples.min(wanted));
        samples < wanted && signals.received().is_none()
    })?;
    let stats = feed.loader().stats();
    let fields = feed.loader().fields();
    let row_bytes = fields.iter().map(row_bytes).sum::<u64>();
    let variable = fields.iter().any(|field| field.variable.is_some());
    Ok(Made { run, open, scratch: stats.flow.scratch, row_bytes, variable })
}

/// Samples a second without the first batches, which were made before anybody asked for them.
fn steady_rate(run: &Run, open: u64) -> f64 {
    let open = usize::try_from(open).unwrap_or(usize::MAX);
    let waits = run.waits.get(open..).filter(|waits| !waits.is_empty());
    let Some(waits) = waits else { return run.samples_per_second };
    let steps = run.steps.get(open + 1..).unwrap_or_default();
    let seconds = waits.iter().sum::<f64>() + steps.iter().sum::<f64>();
    let rows = run.samples as f64 / run.batches.max(1) as f64;
    rows * waits.len() as f64 / seconds.max(1e-9)
}

/// What a measurement made.
struct Made {
    run: Run,
    /// Batches that could be open.
    open: u64,
    scratch: u64,
    /// Of a row of a batch, fields without a fixed length left out.
    row_bytes: u64,
    variable: bool,
}

fn row_bytes(field: &BatchField) -> u64 {
    let elements: u64 = field.shape.iter().map(|size| *size as u64).product();
    if field.variable.is_some() { 0 } else { elements * field.dtype.size() as u64 }
}

/// What was measured, and a warning if a part of it could not be.
fn measured(
    spec: &Spec,
    Costs { first, alone }: &Costs,
    all: Option<&Made>,
    cores: usize,
    packed: Option<f64>,
) -> Result<(Measured, Option<String>), Failure> {
    let evidence: &Evidence = &alone.run.evidence;
    let Some(mut cost) = Cost::of(evidence) else {
        return Err(Failure::Library(Error::Source {
            what: "the data set".to_owned(),
            problem: "gave too few batches to measure: raise --samples or lower --batch-size"
                .to_owned(),
        }));
    };
    let kept = all.map_or(Some(1.0), |all| efficiency(all, cost, cores));
    let crowded = kept.is_none().then(|| {
        "other programs used most of the cores, so what all cores keep when they are used together is not known and taken to be all: plan again when the machine is quiet".to_owned()
    });
    // Later the same bytes were in memory.
    cost.waiting = Cost::of(&first.run.evidence).map_or(0.0, |cost| cost.waiting).max(cost.waiting);
    let variable = if alone.variable { evidence.read_bytes_per_sample as u64 } else { 0 };
    let measured = Measured {
        cost,
        samples: first.run.samples + alone.run.samples + all.map_or(0, |all| all.run.samples),
        efficiency: kept.unwrap_or(1.0),
        cores: tune::cores() as u64,
        batch_bytes: (alone.row_bytes + variable) * spec.batch_size,
        scratch_bytes: alone.scratch,
        read_bytes: evidence.read_bytes_per_sample,
        packed,
    };
    Ok((measured, crowded))
}

/// Cores of those that this process may use which other programs had meanwhile.
fn rivals(run: &Run, cores: usize) -> f64 {
    let machine = run.evidence.machine_cores.unwrap_or(cores as f64);
    // Others are taken to run where this process may not, as long as there is room.
    let elsewhere = (machine - cores as f64).max(0.0);
    (run.others().unwrap_or(0.0) - elsewhere).clamp(0.0, cores as f64)
}

/// How much of its rate a core keeps when all are used, of those that others left; `None` if that
/// were too few to tell.
fn efficiency(all: &Made, cost: Cost, cores: usize) -> Option<f64> {
    let others = rivals(&all.run, cores);
    if others > cores as f64 * MOST_RIVALS {
        return None;
    }
    // Workers that wait for bytes share cores, so only the cores' own work is compared.
    let alone = cost.rate(1.0, 1.0) * (cores as f64 - others);
    let together = steady_rate(&all.run, all.open) / alone;
    Some(if together > 0.0 { together.clamp(0.1, 1.0) } else { 1.0 })
}

/// How many times as fast packed data is made with this pipeline; or why that is not known.
fn packing(spec: &Spec, signals: &Signals, output: &Output) -> Result<f64, String> {
    let [source] = spec.sources.as_slice() else {
        return Err("several sources are packed one by one".to_owned());
    };
    let text = |error: Error| error.to_string();
    let options = PackOptions {
        crop_index: true,
        check: false,
        skip_bad: true,
        decode: spec.decode.clone(),
        ..PackOptions::default()
    };
    let pack = Pack::open(source.kind.clone(), options).map_err(text)?;
    let count = PACKED.min(pack.samples());
    let progress = output.progress((1 + 2 * TURNS) * count, "samples, to try packing");
    let made = (|| {
        let stop = || signals.received().is_some();
        let part = pack.part(count, &|done| progress.set(done), &stop).map_err(text)?;
        let mut packed = source.clone();
        packed.kind = SourceKind::Path(part.path().to_owned());
        let cost = |sources: Vec<SourceSpec>, subset: Option<Subset>, before: u64| {
            let changed = spec.clone().with(|spec| {
                spec.sources = sources;
                spec.subset = subset;
                spec.weights = None;
                spec.num_samples = None;
                spec.on_error = OnError::Skip;
            });
            let made = make(&changed, 1, count, signals, &progress, before);
            let made = made.map_err(|failure| failure.message())?;
            let cost = Cost::of(&made.run.evidence).filter(|cost| cost.cpu > 0.0);
            cost.ok_or_else(|| "too few samples could be made of the packed set".to_owned())
        };
        let chosen = Subset::Indices(part.chosen().to_vec());
        let sides = [(source.clone(), Some(chosen)), (packed, None)];
        // In turn, and the best of each: what else the machine does only makes them slower.
        let mut best = [f64::INFINITY; 2];
        for turn in 0..TURNS {
            for (side, (source, subset)) in sides.iter().enumerate() {
                let done = (1 + 2 * turn + side as u64) * count;
                let cost = cost(vec![source.clone()], subset.clone(), done)?;
                best[side] = best[side].min(cost.cpu);
            }
        }
        Ok(best[0] / best[1])
    })();
    progress.finish();
    made
}

fn show(
    node: &Node,
    measured: &Measured,
    plan: &NodePlan,
    unpacked: Option<&str>,
    output: &mut Output,
) -> Result<(), Failure> {
    output.heading(&format!(
        "{}, {}, {}: a step of {} with batches of {}",
        counted(node.gpus, "GPU"),
        counted(node.cpus, "core"),
        node.memory.map_or_else(|| "memory unknown".to_owned(), show_bytes),
        show_time(node.demand.step),
        show_count(node.demand.batch_size as u64),
    ))?;
    let mut table = Table::new(["for each GPU process", "", "whole node", ""]);
    let rows = [
        ["samples/s wanted", "cores for this load"],
        ["cores to reserve", "memory for loaders"],
        ["num_workers", "read a second"],
        ["prefetch_factor", "samples measured"],
        ["memory", "cores measured on"],
        ["expected wait", "what all cores keep"],
    ];
    let left = [
        show_rate(plan.samples_per_second),
        plan.cores_per_gpu.to_string(),
        plan.workers_per_rank.to_string(),
        plan.prefetch_factor.to_string(),
        show_bytes(plan.memory_per_rank),
        show_percent(plan.wait_share),
    ];
    let right = [
        plan.node_cores.to_string(),
        show_bytes(plan.node_memory),
        show_bytes(plan.read_bytes_per_second as u64),
        show_count(measured.samples),
        measured.cores.to_string(),
        show_percent(measured.efficiency),
    ];
    for (names, (left, right)) in rows.into_iter().zip(left.into_iter().zip(right)) {
        table.row([names[0].to_owned(), left, names[1].to_owned(), right]);
    }
    output.table(&table)?;
    output.line("")?;
    for sentence in &plan.sentences {
        output.text(sentence, 0)?;
    }
    if let Some(reason) = unpacked {
        output.text(&format!("Packing was not measured: {reason}"), 0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_who_use_the_cores_are_reported() {
        let made = |busy: Option<f64>| {
            let mut run = Run { seconds: 2.0, ..Run::default() };
            (run.evidence.machine_cores_busy, run.evidence.process_cores) = (busy, Some(1.0));
            Made { run, open: 2, scratch: 0, row_bytes: 0, variable: false }
        };
        let said = |busy: Option<f64>| {
            let costs = Costs { first: made(busy), alone: made(busy) };
            others_at_work(&costs, Some(&made(busy)))
        };
        let text = said(Some(2.5)).unwrap();
        assert!(text.contains("other programs kept 1.5 cores busy"), "{text}");
        assert_eq!((said(Some(1.1)), said(None)), (None, None));
    }

    #[test]
    fn what_others_take_is_not_what_cores_lose() {
        // Two workers of 100 samples/s each.
        let made = |rate: f64, others: f64, machine: f64| {
            let mut run = Run { seconds: 2.0, samples_per_second: rate, ..Run::default() };
            run.evidence.process_cores = Some(1.0);
            run.evidence.machine_cores_busy = Some(1.0 + others);
            run.evidence.machine_cores = Some(machine);
            Made { run, open: 2, scratch: 0, row_bytes: 0, variable: false }
        };
        let cost = Cost { cpu: 0.01, waiting: 0.0 };
        let kept = |rate: f64, others: f64, machine: f64| {
            efficiency(&made(rate, others, machine), cost, 2).map(|kept| (kept * 100.0).round())
        };
        assert_eq!(kept(160.0, 0.0, 2.0), Some(80.0));
        assert_eq!(kept(120.0, 0.8, 2.0), Some(100.0), "the others had the rest");
        assert_eq!(kept(60.0, 1.4, 2.0), None);
        // There is room for them where this process may not run.
        assert_eq!(kept(160.0, 6.0, 8.0), Some(80.0));
        assert_eq!(kept(160.0, 6.5, 7.0), None);
    }

    #[test]
    fn more_workers_are_measured_with_more_samples() {
        // Sixteen batches behind those that are open, and sixteen samples for each worker.
        assert_eq!(steady_samples(16, 2, 8), (9 + 16) * 16);
        assert_eq!(steady_samples(16, 64, 8), (9 + 64) * 16);
        assert_eq!(steady_samples(1, 64, 2), 3 + 1024);
    }

    #[test]
    fn batches_that_were_open_before_do_not_count() {
        let mut run = Run { samples: 160, batches: 20, samples_per_second: 1e6, ..Run::default() };
        run.waits = [vec![0.0; 3], vec![0.01; 16]].concat();
        run.steps = vec![0.0; 20];
        assert!((steady_rate(&run, 3) - 800.0).abs() < 1e-6);
        assert_eq!(steady_rate(&run, 19), 1e6, "nothing else is there");
    }
}
