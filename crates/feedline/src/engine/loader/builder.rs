//! Describes a loader step by step.

use std::path::PathBuf;
use std::sync::Arc;

use super::Loader;
use crate::engine::plan::Plan;
use crate::error::Result;
use crate::image::Layout;
use crate::source::Source;
use crate::spec::{
    CacheSpec, DecodeSpec, LastBatch, OnError, OpSpec, OpenBlocks, SourceSpec, Spec, Subset,
    Weights, Workers,
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
    pub(in crate::engine) spec: Spec,
    pub(in crate::engine) given: Vec<Arc<dyn Source>>,
    pub(in crate::engine) store: Option<Arc<dyn Store>>,
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
