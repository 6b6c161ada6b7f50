//! Why the trainer waits, found by taking parts out of the way one after the other.
//!
//! Everything real, against the training step and on its own; encoded bytes in memory; decoded
//! pixels in memory; transforms replaced by the rows that they made; final batches handed over
//! again. What each brings shows where the time goes. `replay` and `decoded` keep what is handed over
//! again, `probe` reads alone.

mod decoded;
mod probe;
mod replay;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::decoded::decode_some;
use self::replay::{Again, KeptBatches, Remembering, Replayed};
use super::feeding::LoaderFeed;
use super::pack::{Pack, PackOptions};
use crate::engine::loader::{Builder, Loader};
use crate::engine::plan::{Pixels, Plan};
use crate::engine::recorded::Recorded;
use crate::error::{Error, Result};
use crate::source::Source;
use crate::spec::read::show_bytes;
use crate::spec::{OnError, SourceKind, SourceSpec, Spec, Subset, Workers};
use crate::store::{Files, Store};
use crate::tune::{
    Cause, Ceilings, Diagnosis, Evidence, FREE, Feed, GoingOn, LEAST_BATCHES, Machine, PackTrial,
    Run, TrainStep, Watched, Workload, judge, leave_out_ready, memory_available, noise, stage_rows,
    too_short,
};

/// Spans of each lane of the timeline.
const SPANS: usize = 20_000;

/// Bytes that a diagnosis keeps at most unless another limit is given.
const KEPT: u64 = 512_000_000;

/// Samples that are packed for a trial, and how often both sides of it have their turn: the best of
/// each counts, as what else the machine does only ever slows one down.
const PACKED: u64 = 256;
const TURNS: u32 = 3;

/// The share of the time of the run that is judged.
const JUDGED: f64 = 0.35;

/// Reading less than this share of a sample's time is not looked into.
const LITTLE_READING: f64 = 0.2;

/// Finds out why a trainer waits for a loader.
#[must_use]
pub struct Diagnose {
    spec: Spec,
    given: Vec<Arc<dyn Source>>,
    store: Arc<dyn Store>,
    workload: Workload,
    seconds: f64,
    kept: u64,
    named: String,
}

impl Diagnose {
    /// A diagnosis of the loader that `builder` would build.
    pub fn of(builder: Builder) -> Diagnose {
        let Builder { mut spec, given, store } = builder;
        // The same bad samples are met by every run: the list of them is for real ones.
        spec.quarantine = None;
        let store = store.unwrap_or_else(|| Arc::new(Files::default()));
        let named = String::new();
        Diagnose { spec, given, store, workload: FREE, seconds: 20.0, kept: KEPT, named }
    }
}

impl Diagnose {
    /// The training step; without one, the loader runs as fast as it can.
    pub fn step(mut self, step: TrainStep) -> Self {
        self.workload.step = step;
        self
    }

    /// How the pipeline is named in commands, with its flags, for advice that is one.
    pub fn named(mut self, words: String) -> Self {
        self.named = words;
        self
    }

    /// Batches of each epoch that the trainer uses; all if this is not called.
    pub fn batches(mut self, batches: u64) -> Self {
        self.workload.batches = Some(batches);
        self
    }

    /// About how long it may take, 20 seconds if this is not called.
    pub fn seconds(mut self, seconds: f64) -> Self {
        self.seconds = seconds.clamp(0.1, 86_400.0);
        self
    }

    /// Bytes that it may keep in memory beside the loader, 512 MB if this is not called: of encoded
    /// samples, of decoded ones, and of final batches, each. At most an eighth of what the process
    /// may still take.
    pub fn kept(mut self, bytes: u64) -> Self {
        self.kept = bytes;
        self
    }

    fn room(&self) -> u64 {
        memory_available().map_or(self.kept, |free| self.kept.min(free / 8))
    }

    fn loader(&self, spec: &Spec, store: Arc<dyn Store>) -> Result<Loader> {
        Loader::of_plan(Plan::new(spec.clone(), self.given.clone(), Some(store))?)
    }

    /// Finds out. `going_on` hears what is done and which share of it, and ends the work by
    /// answering false: then the answer is of what is known by then.
    pub fn run(
        &self,
        target: &str,
        machine: Machine,
        going_on: &mut GoingOn<'_>,
    ) -> Result<Diagnosis> {
        let mut watched = Watched::new(going_on, self.seconds);
        let loader = self.loader(&self.spec, self.store.clone())?;
        let mut feed = LoaderFeed::new(loader, Some(SPANS));
        let run = watched.judged("everything real", &mut feed, &self.workload, JUDGED)?;
        let mut evidence = run.evidence.clone();
        let plan = feed.loader().plan().clone();
        evidence.ahead = plan.ahead as u64;
        leave_out_ready(&run, evidence.ahead, &mut evidence);
        drop(feed);
        let mut found = Found::default();
        if !watched.stopped {
            // Behind what was read already, and read ahead, so that the page cache does not help.
            let read = run.batches.saturating_add(evidence.ahead);
            let read = self.probe(&mut watched, &plan, read, &mut evidence);
            let start = behind(read, plan.batches.count());
            let stages = Stages { of: self, plan: &plan, start };
            stages.measure(&mut watched, &run, &mut found)?;
        }
        evidence.ceilings = found.ceilings;
        evidence.without_decoding = found.without_decoding;
        evidence.remarks = found.remarks;
        evidence.not_measured = found.not_measured;
        match watched.stopped {
            true => evidence.not_measured.push("It was ended early.".to_owned()),
            false => evidence.remarks.extend(too_short(&run, JUDGED)),
        }
        let mut stages = stage_rows(&evidence);
        for row in &mut stages {
            row.measured_if_free = match row.name.as_str() {
                "read" => found.ceilings.prepared,
                "decode" => found.without_decoding,
                "transform" => found.without_transforms,
                _ => None,
            };
        }
        evidence.remarks.extend(noise(&stages, found.ceilings.real));
        evidence.pipeline = self.named.clone();
        let mut verdict = judge(&evidence);
        if verdict.cause == Cause::Decode && !watched.stopped {
            self.packed(&mut watched, &mut evidence);
            verdict = judge(&evidence);
        }
        Ok(Diagnosis {
            target: target.to_owned(),
            machine,
            workload: self.workload,
            verdict,
            stages,
            ceilings: evidence.ceilings,
            evidence,
            run,
        })
    }

    /// Reads some samples alone and together, behind `read` batches, if reading takes time; the
    /// batches that are read then. Nothing else may read meanwhile.
    fn probe(
        &self,
        watched: &mut Watched<'_, '_>,
        plan: &Plan,
        read: u64,
        evidence: &mut Evidence,
    ) -> u64 {
        let reads = evidence.stages.iter().find(|stage| stage.name == "read");
        let all: f64 = evidence.stages.iter().map(|stage| stage.seconds).sum();
        let reading = reads.map_or(0.0, |reads| reads.seconds / all.max(1e-12));
        if reading < LITTLE_READING || !watched.begin("reading alone", 0.05) {
            return read;
        }
        let batch_size = self.spec.batch_size.max(1);
        let after = read.saturating_mul(batch_size);
        let (found, behind) = probe::reads(plan, after, self.seconds * 0.05);
        evidence.read_probe = found;
        behind.div_ceil(batch_size)
    }

    /// Tries what a packed set with a crop index would bring, on some samples with this pipeline.
    fn packed(&self, watched: &mut Watched<'_, '_>, evidence: &mut Evidence) {
        let [source] = self.spec.sources.as_slice() else { return };
        if !evidence.wants_crop_index() || !watched.begin("packing some samples", 0.05) {
            return;
        }
        match self.try_packed(watched, source) {
            Ok((samples, trial)) => {
                evidence.packed = trial.predict(&evidence.ceilings);
                evidence.remarks.push(format!(
                    "Packing with a crop index: tried with {samples} samples in memory, {:.0} samples/s before and {:.0} after.",
                    trial.before, trial.after
                ));
            }
            Err(error) => {
                evidence.not_measured.push(format!("Packing with a crop index: {error}"));
            }
        }
    }

    /// Both sides read the same samples from memory, so that only what is prepared differs.
    fn try_packed(
        &self,
        watched: &mut Watched<'_, '_>,
        source: &SourceSpec,
    ) -> Result<(u64, PackTrial)> {
        let options = PackOptions {
            crop_index: true,
            check: false,
            skip_bad: true,
            decode: self.spec.decode.clone(),
            num_workers: Workers::Auto,
            ..PackOptions::default()
        };
        let part = Pack::open(source.kind.clone(), options)?.some(PACKED)?;
        let samples = part.chosen().len() as u64;
        let mut packed = source.clone();
        packed.kind = SourceKind::Path(part.path().to_owned());
        let feed = |source: SourceSpec, subset: Option<Subset>, store: Arc<dyn Store>| {
            let spec = Spec {
                sources: vec![source],
                subset,
                weights: None,
                num_samples: None,
                cache: None,
                on_error: OnError::Skip,
                // Few small batches ahead: those are still made while the other side begins its turn.
                batch_size: self.spec.batch_size.min(samples / 8).max(1),
                prefetch_factor: Some(1),
                rank: Some(0),
                world_size: Some(1),
                ..self.spec.clone()
            };
            let memory = Arc::new(Remembering::new(store, self.room()));
            // Each turn begins anew: what workers made while the other side had its turn would come
            // at once, and be taken for speed.
            Ok::<_, Error>(Again::new(self.loader(&spec, memory)?, (0, 0), Some(u64::MAX)))
        };
        let chosen = Subset::Indices(part.chosen().to_vec());
        let mut before = feed(source.clone(), Some(chosen), self.store.clone())?;
        let mut after = feed(packed, None, Arc::new(Files::default()))?;
        let mut trial = PackTrial::default();
        let share = 0.18 / f64::from(2 * TURNS);
        for _ in 0..TURNS {
            for (name, feed, best) in [
                ("the samples as they are", &mut before, &mut trial.before),
                ("the packed samples", &mut after, &mut trial.after),
            ] {
                let run = watched.run(name, feed, &FREE, share)?;
                *best = best.max(run.samples_per_second);
            }
        }
        Ok((samples, trial))
    }
}

/// What the runs with parts out of the way found.
#[derive(Default)]
struct Found {
    ceilings: Ceilings,
    without_decoding: Option<f64>,
    without_transforms: Option<f64>,
    remarks: Vec<String>,
    not_measured: Vec<String>,
}

/// Runs with parts out of the way. `start` is behind what was read already.
struct Stages<'a> {
    of: &'a Diagnose,
    plan: &'a Plan,
    start: (u64, u64),
}

/// The epoch and the batch behind so many, in the first epoch as long as that has any.
fn behind(batches: u64, length: u64) -> (u64, u64) {
    (0, if batches < length { batches } else { 0 })
}

impl Stages<'_> {
    fn measure(&self, watched: &mut Watched<'_, '_>, run: &Run, found: &mut Found) -> Result<()> {
        // The first run fills the memory that the second one reads from.
        let memory = Arc::new(Remembering::new(self.of.store.clone(), self.of.room()));
        let loader = self.of.loader(&self.of.spec, memory.clone())?;
        let mut real = Again::new(loader, self.start, None);
        let name = "everything real, without the step";
        let free = watched.run(name, &mut real, &FREE, 0.15)?;
        found.ceilings.real = match self.of.workload.step {
            // The same again: the longer one counts.
            TrainStep::None if self.of.workload.batches.is_none() => {
                run.is_conclusive().then_some(run.samples_per_second)
            }
            _ => watched.rate_of(name, &free, &mut found.not_measured),
        };
        // Each begins behind what others have read, and read ahead.
        let ahead = self.plan.ahead as u64;
        let read = self.start.1.saturating_add(free.batches).saturating_add(ahead);
        // Reads are in the order of the batches: of those that are kept, the last may lack some.
        let count = (free.batches as f64 * memory.kept_share()).floor() as u64;
        if watched.stopped || count == 0 {
            return Ok(());
        }
        let blocks = self.plan.sources.iter().any(|source| source.blocks().is_some());
        if blocks {
            found.not_measured.push(
                "Encoded samples in memory: they lie in blocks that are read as a whole."
                    .to_owned(),
            );
        }
        let mut again = real.limited(count);
        if !blocks {
            let name = "encoded samples in memory";
            let rate = watched.rate(name, &mut again, 0.12, &mut found.not_measured)?;
            found.ceilings.prepared = rate;
        }
        let kept = self.keep(watched, &mut again, count)?;
        drop((again, memory));
        if kept.is_empty() || watched.stopped {
            return Ok(());
        }
        let read = self.without_transforms(watched, read, &kept, found)?;
        self.without_decoding(watched, read, kept.len() as u64, found)?;
        let mut replayed = Replayed::new(kept);
        let name = "final batches again";
        found.ceilings.replayed =
            watched.rate(name, &mut replayed, 0.03, &mut found.not_measured)?;
        Ok(())
    }

    /// Makes the batches once more and keeps as many as memory allows.
    fn keep(
        &self,
        watched: &mut Watched<'_, '_>,
        again: &mut Again,
        most: u64,
    ) -> Result<KeptBatches> {
        let mut kept = KeptBatches::default();
        if !watched.begin("keeping final batches", 0.05) {
            return Ok(kept);
        }
        let until = Instant::now() + Duration::from_secs_f64(self.of.seconds * 0.05);
        again.begin()?;
        let room = self.of.room();
        while (kept.len() as u64) < most && kept.bytes() < room {
            let late = Instant::now() > until && kept.len() as u64 >= LEAST_BATCHES;
            if late || again.next()?.is_none() {
                break;
            }
            again.with_batch(|batch| kept.push(self.plan, batch));
        }
        Ok(kept)
    }

    /// Reads, behind `read` batches that were read already, and decodes, and writes rows that were
    /// made before; the batches that are read then.
    fn without_transforms(
        &self,
        watched: &mut Watched<'_, '_>,
        read: u64,
        kept: &KeptBatches,
        found: &mut Found,
    ) -> Result<u64> {
        let Some(recorded) = self.plan.image.as_ref().and_then(|_| kept.recorded()) else {
            return Ok(read);
        };
        let loader = self.with_recorded(recorded)?;
        let mut feed = Again::new(loader, behind(read, self.plan.batches.count()), None);
        let name = "transforms replayed";
        let run = watched.run(name, &mut feed, &FREE, 0.08)?;
        found.without_transforms = watched.rate_of(name, &run, &mut found.not_measured);
        Ok(read.saturating_add(run.batches).saturating_add(self.plan.ahead as u64))
    }

    /// Reads, behind `read` batches that were read already, and transforms what was decoded before:
    /// few images if memory has room for few, again and again.
    fn without_decoding(
        &self,
        watched: &mut Watched<'_, '_>,
        read: u64,
        batches: u64,
        found: &mut Found,
    ) -> Result<()> {
        let image = self.plan.image.as_ref();
        let decodes = image.is_some_and(|image| matches!(image.pixels, Pixels::Encoded));
        let kept = self.of.spec.cache.as_ref().is_some_and(|cache| cache.decoded);
        let name = "decoding some samples";
        if !decodes || kept || !watched.begin(name, 0.1) {
            return Ok(());
        }
        let (room, asked) = (self.of.room(), Instant::now());
        let limit = Duration::from_secs_f64(self.of.seconds * 0.1);
        let mut more = || asked.elapsed() < limit && watched.begin(name, 0.0);
        let decoded = decode_some(self.plan, self.start, batches, room, &mut more);
        let images = decoded.recorded.images.len() as u64;
        if images == 0 {
            found.not_measured.push(match decoded.full {
                true => format!(
                    "Decoding if it were free: a decoded image takes more than {}.",
                    show_bytes(room)
                ),
                false => "Decoding if it were free: no image could be decoded.".to_owned(),
            });
            return Ok(());
        }
        if decoded.full || images < self.of.spec.batch_size {
            let why = match decoded.full {
                true => format!("no more of them fit into {}", show_bytes(room)),
                false => "there was no time for more".to_owned(),
            };
            found.remarks.push(format!(
                "Decoding if it were free: {images} decoded images were used again and again, as {why}."
            ));
        }
        let loader = self.with_recorded(decoded.recorded)?;
        let mut feed = Again::new(loader, behind(read, self.plan.batches.count()), None);
        let name = "decoded images in memory";
        found.without_decoding = watched.rate(name, &mut feed, 0.08, &mut found.not_measured)?;
        Ok(())
    }

    /// A loader of which some stages hand over what they made before.
    fn with_recorded(&self, recorded: Recorded) -> Result<Loader> {
        let (spec, given) = (self.of.spec.clone(), self.of.given.clone());
        let mut plan = Plan::new(spec, given, Some(self.of.store.clone()))?;
        plan.recorded = Some(recorded);
        Loader::of_plan(plan)
    }
}
