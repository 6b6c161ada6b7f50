//! The public face: a loader, its builder, its epochs.
//!
//! `builder` describes a loader, `epoch` hands its batches over, `position` says where it stands and
//! goes elsewhere.

mod builder;
mod epoch;
mod position;

pub use builder::Builder;
pub use epoch::Epoch;

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;

use super::flow::Cursor;
use super::monitor::{Monitor, Stats};
use super::plan::Plan;
use super::run::Engine;
use crate::deliver::device::{Device, Returning};
use crate::error::{Error, Result};
use crate::layout::{BatchField, BatchLayout};
use crate::order::{Permutation, Pick};
use crate::output_file;
use crate::sample::Value;
use crate::source::{Arrays, Source};
use crate::spec::{SourceKind, SourceSpec, Spec};

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

    /// A loader over whatever is at the path: images, shards, tables, arrays.
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

    /// How batches lie in memory.
    pub(super) fn layout(&self) -> &BatchLayout {
        &self.plan.layout
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

    /// Whether workers time what they do, which they do by default. `benches/overhead.rs`
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
