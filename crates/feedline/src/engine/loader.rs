//! The public face: a loader, its builder, its epochs.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::device::{ASKING, PAUSE};
use super::flow::{Cursor, Failure};
use super::monitor::{Monitor, Stats};
use super::plan::Plan;
use super::run::Engine;
use crate::deliver::Batch;
use crate::deliver::device::{Device, PageLock, Returning};
use crate::error::{Error, Result};
use crate::image::Layout;
use crate::layout::{BatchField, BatchLayout};
use crate::order::{Permutation, Pick, State};
use crate::output_file;
use crate::sample::Value;
use crate::source::{Arrays, Source};
use crate::spec::{
    CacheSpec, DecodeSpec, LastBatch, OnError, OpSpec, OpenBlocks, SourceKind, SourceSpec, Spec,
    Subset, Weights, Workers,
};
use crate::store::Store;

/// Describes a loader step by step. Every step has the name of its key in a spec.
///
/// ```
/// use feedline::{Loader, source::{Arrays, Column}, sample::DType, spec::OpSpec};
/// let images: Vec<u8> = vec![0; 10 * 3 * 8 * 8];
/// let labels: Vec<i64> = (0..10).collect();
/// let arrays = Arrays::new(vec![
///     Column::new("image", DType::U8, &[10, 3, 8, 8], images),
///     Column::new("label", DType::I64, &[10], labels),
/// ])?;
/// let mut loader = Loader::over(arrays)
///     .transform(OpSpec::new("ToDtype").with("dtype", "float32").with("scale", true))
///     .batch_size(4)
///     .shuffle(true)
///     .num_workers(2)
///     .build()?;
/// for batch in loader.epoch() {
///     let batch = batch?;
///     let pixels: &[f32] = batch.get("image").unwrap().as_slice().unwrap();
///     assert_eq!(pixels.len(), batch.rows() * 3 * 8 * 8);
/// }
/// # Ok::<(), feedline::Error>(())
/// ```
#[must_use]
pub struct Builder {
    pub(super) spec: Spec,
    pub(super) given: Vec<Arc<dyn Source>>,
    pub(super) store: Option<Arc<dyn Store>>,
}

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident: $type:ty => $field:expr;)*) => {
        $($(#[$doc])* pub fn $name(mut self, value: $type) -> Self {
            let set: fn(&mut Spec, $type) = $field;
            set(&mut self.spec, value);
            self
        })*
    };
}

impl Builder {
    steps! {
        /// How encoded images become pixels.
        decode: DecodeSpec => |spec, value| spec.decode = value;
        /// Adds an op to the end of the chain.
        transform: OpSpec => |spec, value| spec.transforms.push(value);
        /// How pixels lie in a batch.
        layout: Layout => |spec, value| spec.layout = value;
        /// Samples of a batch, on each rank.
        batch_size: u64 => |spec, value| spec.batch_size = value;
        /// A new order in each epoch.
        shuffle: bool => |spec, value| spec.shuffle = value;
        /// Blocks that are shuffled together where data is read a block at a time.
        open_blocks: OpenBlocks => |spec, value| spec.open_blocks = value;
        /// Draw samples with replacement.
        replacement: bool => |spec, value| spec.replacement = value;
        /// Draw samples in proportion to these.
        weights: Weights => |spec, value| spec.weights = Some(value);
        /// Use only these samples.
        subset: Subset => |spec, value| spec.subset = Some(value);
        /// Samples of an epoch.
        num_samples: u64 => |spec, value| spec.num_samples = Some(value);
        /// What becomes of an incomplete last batch.
        last_batch: LastBatch => |spec, value| spec.last_batch = value;
        /// Leave an incomplete last batch out.
        drop_last: bool => |spec, value| spec.last_batch = if value { LastBatch::Drop } else { LastBatch::Short };
        /// The root of all randomness.
        seed: u64 => |spec, value| spec.seed = value;
        /// Threads that make batches; 0 makes them in the caller's.
        num_workers: u64 => |spec, value| spec.num_workers = Workers::Count(value);
        /// Batches in the making per worker.
        prefetch_factor: u64 => |spec, value| spec.prefetch_factor = Some(value);
        /// Bytes that the loader may hold.
        memory: u64 => |spec, value| spec.memory = Some(value);
        /// Keep samples for the next epoch.
        cache: CacheSpec => |spec, value| spec.cache = Some(value);
        /// What a bad sample does.
        on_error: OnError => |spec, value| spec.on_error = value;
        /// How many distinct samples may fail.
        max_failures: u64 => |spec, value| spec.max_failures = Some(value);
        /// A file that lists the samples that failed.
        quarantine: PathBuf => |spec, value| spec.quarantine = Some(value);
        /// False hands batches over as they are ready, which is not deterministic.
        in_order: bool => |spec, value| spec.in_order = value;
    }

    /// This process among those that share the work.
    pub fn rank(mut self, rank: u64, world_size: u64) -> Self {
        (self.spec.rank, self.spec.world_size) = (Some(rank), Some(world_size));
        self
    }

    /// Adds a source: joined to the others end to end, or mixed with them if it has a weight.
    pub fn source(mut self, source: impl Into<SourceSpec>) -> Self {
        self.spec.sources.push(source.into());
        self
    }

    /// Reads through another store than the file system.
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// The description so far.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Opens and checks everything. Nothing runs before the first batch is asked for.
    pub fn build(self) -> Result<Loader> {
        Loader::of_plan(Plan::new(self.spec, self.given, self.store)?)
    }
}

/// Makes batches, epoch after epoch.
pub struct Loader {
    plan: Arc<Plan>,
    engine: Engine,
    /// The epoch and the number of the next batch to hand over.
    position: (u64, u64),
    /// With `in_order = false`: later batches of the epoch that were handed over.
    ahead: Vec<u64>,
    /// The last batch of an epoch was handed over, and the next epoch has not begun.
    at_end: bool,
    /// The position was set from outside, so the next epoch begins there.
    placed: bool,
    /// Samples that failed.
    failed: BTreeSet<Pick>,
    quarantine: Option<File>,
    pinning: Option<Pinning>,
}

/// Page-locking of what is handed over.
struct Pinning {
    device: Arc<dyn Device>,
    /// What the program drops goes through here, unless somebody else keeps it long enough.
    returning: Option<Arc<Returning>>,
}

impl Loader {
    /// The loader that a spec describes, step by step from there.
    pub fn describe(spec: Spec) -> Builder {
        Builder { spec, given: Vec::new(), store: None }
    }

    /// A loader over a folder of class folders, a flat folder or a manifest.
    pub fn builder(source: impl Into<SourceSpec>) -> Builder {
        let spec = Spec { sources: vec![source.into()], ..Spec::default() };
        Builder { spec, given: Vec::new(), store: None }
    }

    /// A loader over arrays or any other source of the program's own.
    pub fn over(source: impl Source + 'static) -> Builder {
        let spec = Spec { sources: vec![SourceKind::Arrays.into()], ..Spec::default() };
        Builder { spec, given: vec![Arc::new(source)], store: None }
    }

    /// A loader as a spec describes it.
    pub fn from_spec(spec: Spec) -> Result<Loader> {
        Loader::of_plan(Plan::new(spec, Vec::new(), None)?)
    }

    /// A loader as a spec describes it, with arrays of the program in place of those it names.
    pub fn from_spec_over(spec: Spec, arrays: Vec<Arrays>) -> Result<Loader> {
        let given = arrays.into_iter().map(|arrays| Arc::new(arrays) as Arc<dyn Source>).collect();
        Loader::of_plan(Plan::new(spec, given, None)?)
    }

    pub(super) fn of_plan(plan: Plan) -> Result<Loader> {
        check_cache(&plan)?;
        let quarantine = match &plan.spec.quarantine {
            None => None,
            Some(path) => {
                let opened = output_file::append(path).map_err(|source| Error::Io {
                    what: "cannot write the quarantine file",
                    path: path.clone(),
                    source,
                });
                Some(opened?)
            }
        };
        let plan = Arc::new(plan);
        let engine = Engine::new(plan.clone(), Cursor::at(0, 0));
        Ok(Loader {
            plan,
            engine,
            position: (0, 0),
            ahead: Vec::new(),
            at_end: false,
            placed: true,
            failed: BTreeSet::new(),
            quarantine,
            pinning: None,
        })
    }

    /// Page-locks batches before they are handed over, so that copies of them to `device` run
    /// beside the program. Memory is locked once and stays so while it is used again; a batch that
    /// was dropped is not written to before the device has done all that it was given until then.
    pub fn pin(&mut self, device: Arc<dyn Device>) {
        let returning = Some(Arc::new(Returning::new(self.engine.home(), device.clone())));
        self.pinning = Some(Pinning { device, returning });
    }

    /// [`Loader::pin`] for a caller that keeps batches until they are copied.
    pub(super) fn pin_for_prefetch(&mut self, device: Arc<dyn Device>) {
        self.pinning = Some(Pinning { device, returning: None });
    }

    pub(super) fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Goes to a batch: the next iteration begins there.
    pub(super) fn place_at(&mut self, epoch: u64, batch: u64) {
        self.leave_parent();
        self.go_to(epoch, batch, Vec::new());
        self.placed = true;
    }

    /// How batches lie in memory.
    pub(super) fn layout(&self) -> &BatchLayout {
        &self.plan.layout
    }

    /// Whether the next batch can be handed over at once.
    pub(super) fn is_ready(&self) -> bool {
        !self.engine.is_foreign() && self.engine.is_ready()
    }

    /// Whether there is memory for one more batch.
    pub(super) fn has_spare(&self) -> bool {
        !self.engine.is_foreign() && self.engine.has_spare()
    }

    /// Takes back what the device is done with. As long as no batch is ready, waits for more of
    /// it: it may be the memory that the next batch is to be made in.
    fn take_back(&self, interrupted: &mut Option<&mut dyn FnMut() -> bool>) -> Result<()> {
        let Some(returning) = self.pinning.as_ref().and_then(|pin| pin.returning.as_ref()) else {
            return Ok(());
        };
        let began = Instant::now();
        while returning.collect()? && !self.engine.is_ready() {
            if began.elapsed() >= ASKING && interrupted.as_mut().is_some_and(|ask| ask()) {
                return Err(Error::Interrupted);
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Begins the next epoch, or goes on where [`Loader::resume`] or [`Loader::set_epoch`] put it.
    pub fn epoch(&mut self) -> Epoch<'_> {
        self.begin_epoch();
        Epoch { loader: self, over: false }
    }

    /// What [`Loader::epoch`] does, for callers that then use [`Loader::next_batch`].
    pub fn begin_epoch(&mut self) {
        self.leave_parent();
        if !self.placed && (self.position.1 > 0 || !self.ahead.is_empty()) {
            self.go_to(self.position.0 + 1, 0, Vec::new());
        }
        self.placed = false;
        self.at_end = false;
        self.engine.begin_epoch();
    }

    /// The next batch of the epoch; `None` at its end, until [`Loader::begin_epoch`].
    pub fn next_batch(&mut self) -> Option<Result<Batch>> {
        self.next_or_stop(None)
    }

    /// [`Loader::next_batch`] for a program that may be interrupted: `interrupted` is asked about
    /// every 50 ms of waiting, and ends the wait with [`Error::Interrupted`] and nothing lost.
    pub fn next_batch_unless(
        &mut self,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Option<Result<Batch>> {
        self.next_or_stop(Some(interrupted))
    }

    /// The program is done with an epoch's last batch; [`Loader::next_batch`] hears it too when it
    /// is asked for one more. Until then nobody knows how long that step took.
    pub fn end_epoch(&mut self) {
        if !self.engine.is_foreign() {
            self.engine.used(Instant::now());
        }
    }

    fn next_or_stop(
        &mut self,
        mut interrupted: Option<&mut dyn FnMut() -> bool>,
    ) -> Option<Result<Batch>> {
        self.leave_parent();
        if self.at_end {
            self.end_epoch();
            return None;
        }
        if let Err(error) = self.take_back(&mut interrupted) {
            return Some(Err(error));
        }
        let done = match self.engine.next(interrupted) {
            Ok(done) => done,
            Err(error) => return Some(Err(error)),
        };
        let mut outcome = done.outcome;
        let done = super::flow::Done { outcome: Default::default(), ..done };
        if let Some((_, error)) = outcome.error {
            // The batch stays the next one: after the cause is mended, a resumed run makes it.
            self.engine.discard(done);
            self.go_to(self.position.0, self.position.1, self.ahead.clone());
            return Some(Err(error));
        }
        outcome.failures.sort_by_key(|failure| failure.row);
        for failure in outcome.failures {
            if let Err(error) = self.record(failure) {
                self.engine.discard(done);
                self.go_to(self.position.0, self.position.1, self.ahead.clone());
                return Some(Err(error));
            }
        }
        let mut home = self.engine.home();
        if let Some(pin) = &self.pinning {
            if let Err(error) = PageLock::of_batch(&pin.device, &done.memory) {
                self.engine.discard(done);
                self.go_to(self.position.0, self.position.1, self.ahead.clone());
                return Some(Err(error.into()));
            }
            if let Some(returning) = &pin.returning {
                home = returning.clone();
            }
        }
        let batch = self.engine.batch(&done, home);
        self.move_past(done.batch);
        Some(Ok(batch))
    }

    fn move_past(&mut self, batch: u64) {
        if batch != self.position.1 {
            self.ahead.push(batch);
            return;
        }
        self.position.1 += 1;
        while let Some(at) = self.ahead.iter().position(|ahead| *ahead == self.position.1) {
            self.ahead.swap_remove(at);
            self.position.1 += 1;
        }
        if self.position.1 >= self.len() {
            self.position = (self.position.0 + 1, 0);
            self.at_end = true;
        }
    }

    fn record(&mut self, failure: Failure) -> Result<()> {
        if !self.failed.contains(&failure.pick) {
            if let (Some(file), Some(path)) = (&mut self.quarantine, &self.plan.spec.quarantine) {
                let line = format!("{}\n", failure.error.to_value());
                file.write_all(line.as_bytes()).map_err(|source| Error::Io {
                    what: "cannot write the quarantine file",
                    path: path.clone(),
                    source,
                })?;
            }
            self.failed.insert(failure.pick);
        }
        let failed = self.failed.len() as u64;
        self.engine.note_failed(failed);
        match self.plan.spec.max_failures {
            Some(allowed) if failed > allowed => {
                Err(Error::TooManyFailures { failed, allowed, last: Box::new(failure.error) })
            }
            _ => Ok(()),
        }
    }

    fn go_to(&mut self, epoch: u64, batch: u64, ahead: Vec<u64>) {
        self.position = (epoch, batch);
        self.at_end = false;
        // What is being made already need not be thrown away.
        if !(ahead.is_empty() && self.ahead.is_empty() && self.engine.is_at(epoch, batch)) {
            self.engine.seek(Cursor { epoch, batch, skip: (epoch, ahead.clone()) });
        }
        self.ahead = ahead;
    }

    /// In a child process made by fork, the engine's threads are gone: a fresh one takes over.
    fn leave_parent(&mut self) {
        if self.engine.is_foreign() {
            let cursor = Cursor {
                epoch: self.position.0,
                batch: self.position.1,
                skip: (self.position.0, self.ahead.clone()),
            };
            let fresh = Engine::new(self.plan.clone(), cursor);
            // A device does not survive a fork, and what was on its way back is the parent's.
            self.pinning = None;
            fresh.note_failed(self.failed.len() as u64);
            // The old one is let go without touching its locks.
            drop(std::mem::replace(&mut self.engine, fresh));
        }
    }

    /// Goes to the beginning of `epoch`: the next iteration is that one.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.place_at(epoch, 0);
    }

    /// Where the run stands: after the last batch that was handed over.
    #[must_use]
    pub fn state(&self) -> State {
        let failed = self.failed.iter().copied();
        let mut state =
            State::new(self.position.0, self.position.1, self.plan.identity.clone(), failed);
        state.delivered_ahead = self.ahead.clone();
        state.delivered_ahead.sort_unstable();
        state
    }

    /// Goes on where `state` was taken; the next epoch begins there.
    pub fn resume(&mut self, state: &State) -> Result<()> {
        state.check(&self.plan.identity, self.len()).map_err(Error::State)?;
        let mut failed = BTreeSet::new();
        for (source, index) in &state.skipped {
            let known =
                self.plan.sources.get(*source as usize).is_some_and(|source| *index < source.len());
            if !known {
                return Err(Error::State(format!(
                    "it lists sample {index} of source {source} as skipped, which there is not"
                )));
            }
            failed.insert(Pick { source: *source as usize, index: *index });
        }
        self.leave_parent();
        self.failed = failed;
        self.engine.note_failed(self.failed.len() as u64);
        self.go_to(state.epoch, state.batch, state.delivered_ahead.clone());
        self.placed = true;
        Ok(())
    }

    /// Batches of an epoch, the same on every rank.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.plan.batches.count()
    }

    /// Never true: a loader without batches cannot be built.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Samples of an epoch over all ranks.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.plan.order.samples()
    }

    /// The epoch and the number of the next batch.
    #[must_use]
    pub fn position(&self) -> (u64, u64) {
        self.position
    }

    /// The names of the classes, if the source has them.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        self.plan.sources[0].classes()
    }

    /// What a batch holds.
    #[must_use]
    pub fn fields(&self) -> &[BatchField] {
        self.plan.layout.fields()
    }

    /// The description it was built from.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.plan.spec
    }

    /// What the sources are called.
    #[must_use]
    pub fn source_names(&self) -> Vec<String> {
        self.plan.sources.iter().map(|source| source.name()).collect()
    }

    /// The names of the sources of which columns are in no field, with those columns; none that
    /// somebody chose or left out by name.
    #[must_use]
    pub fn unused_columns(&self) -> Vec<(String, Vec<String>)> {
        let sources = self.plan.sources.iter().filter(|source| !source.unused_columns().is_empty());
        sources.map(|source| (source.name(), source.unused_columns().to_vec())).collect()
    }

    /// This process and how many there are.
    #[must_use]
    pub fn rank(&self) -> (u64, u64) {
        (self.plan.rank.rank, self.plan.rank.world)
    }

    /// Threads that make batches now; 0 if the caller's own does.
    #[must_use]
    pub fn num_workers(&self) -> usize {
        self.monitor().workers() as usize
    }

    /// Batches that may be open at once: in the making, or made and waiting.
    #[must_use]
    pub fn prefetch(&self) -> u64 {
        self.stats().flow.ahead
    }

    /// Changes, while it runs, how many workers make batches (at most as many as the loader was
    /// built with) and how many batches may be open. No batch changes by that. From then on a loader
    /// with `num_workers = "auto"` adjusts nothing by itself.
    pub fn adjust(&mut self, workers: usize, prefetch: usize) {
        self.leave_parent();
        self.engine.stop_tuning();
        self.engine.adjust(workers, prefetch);
    }

    /// Writes the spec with the settings that the loader has now, so that a loader of that file has
    /// them from its start and changes nothing: [`Loader::from_spec`] after [`Spec::from_file`]. TOML
    /// has the reasons as comments; a name that ends in `.json` gets JSON. Arrays of the program have
    /// to be given again.
    pub fn freeze(&self, path: &std::path::Path) -> Result<()> {
        if self.engine.is_foreign() {
            return Err(Error::System(
                "this process was forked and has used no batch yet, so there is nothing to freeze"
                    .to_owned(),
            ));
        }
        let (spec, reasons) = super::online::frozen(&self.plan.spec, &self.stats().tuning);
        spec.write_file(path, &reasons)
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine.monitor().stats()
    }

    /// A view for other threads, such as a dashboard's: it reads while the program waits for a
    /// batch, and holds nothing up.
    #[must_use]
    pub fn monitor(&self) -> Monitor {
        self.engine.monitor()
    }

    /// Whether workers time what they do, which they do unless told otherwise. `benches/overhead.rs`
    /// turns it off to measure what it costs; without it nobody can say what is slow.
    pub fn observe(&self, on: bool) {
        self.engine.observe(on);
    }

    /// Keeps a timeline from now on: the last `most` spans of the program and of each worker.
    pub fn record_timeline(&self, most: usize) {
        self.engine.record(most);
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        if let Some(returning) = self.pinning.as_ref().and_then(|pin| pin.returning.as_ref()) {
            returning.close();
        }
    }
}

/// The batches of one epoch.
pub struct Epoch<'a> {
    loader: &'a mut Loader,
    over: bool,
}

impl Epoch<'_> {
    /// Where the run stands; see [`Loader::state`].
    #[must_use]
    pub fn state(&self) -> State {
        self.loader.state()
    }
}

impl Iterator for Epoch<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let item = self.loader.next_batch();
        // After an error this epoch is over.
        self.over = !matches!(item, Some(Ok(_)));
        item
    }
}

/// A demanded cache must hold the whole set: better to say so now than after an hour.
fn check_cache(plan: &Plan) -> Result<()> {
    let Some(spec) = plan.spec.cache.as_ref().filter(|spec| spec.required) else { return Ok(()) };
    let mut total = 0f64;
    // Decoded sizes need a look into each file, so 64 of them stand for all, chosen without a
    // pattern that sizes could share; what is encoded is known from the folder alone.
    for source in &plan.sources {
        let image = plan.image.as_ref().map_or(0, |image| image.field);
        let spread = Permutation::new(source.len(), 64);
        for number in 0..if spec.decoded { source.len().min(64) } else { source.len() } {
            let Ok(Value::File(location)) = source.value(spread.apply(number), image) else {
                continue;
            };
            let size = match spec.decoded {
                true => plan.decoded_size(&location),
                false => plan.store.size(&location).ok(),
            };
            // Each of those looked at stands for as many as there are of them.
            let weight =
                if spec.decoded { source.len() as f64 / source.len().min(64) as f64 } else { 1.0 };
            total += size.unwrap_or(0) as f64 * weight;
        }
    }
    let estimate = total as u64;
    if estimate > plan.cache_limit {
        let show = crate::spec::read::show_bytes;
        return Err(Error::Cache(format!(
            "the data set takes {}{}, the cache may take {}: raise cache.limit (or memory), or set cache.required = false to keep what fits",
            if spec.decoded { "about " } else { "" },
            show(estimate),
            show(plan.cache_limit)
        )));
    }
    Ok(())
}
