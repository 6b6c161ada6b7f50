//! A spec made ready: everything is opened, checked and decided before anything runs.
//!
//! `sources` opens what the spec names, `image` and `labels` find the fields that transforms and
//! mixing work on, `layout` lays out a batch, `memory` shares the memory out.

mod image;
mod labels;
mod layout;
mod memory;
mod sources;

pub(crate) use image::{ImageField, Pixels};
pub(crate) use labels::Mixing;
pub(super) use labels::{is_called_label, label_field, label_field_of};
pub use sources::opening;
pub(super) use sources::{block_ends, open_sources};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::identity;
use super::rank::{self, Rank};
use super::recorded::Recorded;
use crate::catalog::Catalog;
use crate::decode::{self, ColorMode, DecodeOptions};
use crate::error::{Fault, Result, SampleError, Stage};
use crate::layout::BatchLayout;
use crate::order::{Batches, Identity, Order, Pick};
use crate::sample::{FieldKind, Location, Value};
use crate::source::Source;
use crate::spec::{OnError, Spec, Workers};
use crate::store::{Files, Store};
use crate::transform::{Chain, Mix};

use self::image::Fresh;
use self::memory::block_memory;

/// What the samples are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be handed over in batches.
    Load,
    /// To see whether they can be decoded: images are written nowhere, nothing stands in for a
    /// bad one.
    Check,
}

/// What all workers share and nobody changes.
pub(crate) struct Plan {
    pub(crate) spec: Spec,
    pub(crate) sources: Vec<Arc<dyn Source>>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) order: Order,
    pub(crate) batches: Batches,
    pub(crate) chain: Chain,
    pub(crate) decode: DecodeOptions,
    pub(crate) image: Option<ImageField>,
    /// The field whose bytes take most of the reading.
    pub(crate) read_field: Option<usize>,
    pub(crate) mixing: Option<Mixing>,
    pub(crate) layout: Arc<BatchLayout>,
    pub(crate) rank: Rank,
    pub(crate) workers: usize,
    /// Batches that may be open at once.
    pub(crate) ahead: usize,
    /// Bytes for batches and scratch together; the cache has its own.
    pub(crate) memory: u64,
    /// Bytes that one sample may take while it is made: what the spec and the data leave beside two
    /// batches, so that the same samples are too large with any number of workers. Only a machine
    /// that has less free leaves less.
    pub(crate) sample_memory: u64,
    /// Bytes for the cache.
    pub(crate) cache_limit: u64,
    pub(crate) identity: Identity,
    pub(crate) purpose: Purpose,
    /// What takes the place of a stage, to see what that one takes.
    pub(crate) recorded: Option<Recorded>,
    /// The data was packed with a crop index, once somebody asked.
    pub(crate) crop_index: bool,
}

impl Plan {
    /// Opens and checks everything that `spec` names. `given` are the sources of the program,
    /// used in turn for those that the spec calls arrays.
    pub(crate) fn new(
        spec: Spec,
        given: Vec<Arc<dyn Source>>,
        store: Option<Arc<dyn Store>>,
    ) -> Result<Plan> {
        Plan::with_purpose(spec, given, store, Purpose::Load)
    }

    /// A plan to read and decode every sample of the spec's sources once, in order. Of the rest
    /// of the spec, `decode`, `num_workers` and `memory` count.
    pub(super) fn to_check(spec: &Spec) -> Result<Plan> {
        spec.check()?;
        let mut sources = spec.sources.clone();
        sources.iter_mut().for_each(|source| source.weight = None);
        let spec = Spec {
            sources,
            decode: spec.decode.clone(),
            num_workers: spec.num_workers,
            memory: spec.memory,
            on_error: OnError::Skip,
            batch_size: 64,
            rank: Some(0),
            world_size: Some(1),
            ..Spec::default()
        };
        Plan::with_purpose(spec, Vec::new(), None, Purpose::Check)
    }

    fn with_purpose(
        spec: Spec,
        given: Vec<Arc<dyn Source>>,
        store: Option<Arc<dyn Store>>,
        purpose: Purpose,
    ) -> Result<Plan> {
        spec.check()?;
        let rank = Rank::resolve(spec.rank, spec.world_size)?;
        let store: Arc<dyn Store> = store.unwrap_or_else(|| Arc::new(Files::default()));
        let sources = open_sources(&spec, &store, given)?;
        let fields = sources[0].fields().to_vec();
        let (ops, mix) = Mix::split(&spec.transforms)?;
        let chain = Chain::build(ops, spec.layout)?;
        let decode = decode_options(&spec);
        let sizes: Vec<u64> = sources.iter().map(|source| source.len()).collect();
        let label = label_field(&fields);
        let order = Order::new(&spec, &sizes, &|pick: Pick| match sources[pick.source]
            .value(pick.index, label?)
        {
            Ok(Value::Int(label)) => Some(label),
            Ok(Value::Bytes(bytes)) => bytes.try_into().ok().map(i64::from_ne_bytes),
            _ => None,
        })?;
        let blocks = block_ends(&spec, &sources);
        sources::check_order(&spec, &blocks)?;
        let (order, open_blocks) = order.in_blocks(&spec, &blocks);
        // Where blocks end is part of the order, too: it may depend on the memory that was given.
        let order_of_blocks = open_blocks.map(|open| (open, blocks.fingerprint()));
        let batches =
            Batches::new(order.samples(), spec.batch_size, rank.rank, rank.world, spec.last_batch)?;
        let image = match purpose {
            Purpose::Load => {
                // Without ops, arrays need not be images, unless they are mixed.
                let plain = chain.is_empty() && mix.is_none();
                image::image_field(&spec, &fields, &chain, plain, &sources, &*store, &decode)?
            }
            Purpose::Check => image::unwritten_image(&fields),
        };
        let mixing = match mix {
            None => None,
            Some(mix) => Some(labels::mixing(mix, &fields, image.as_ref(), &*sources[0])?),
        };
        let read_field = match &image {
            Some(image) => Some(image.field),
            None => fields.iter().position(|field| match &field.kind {
                FieldKind::Array { shape, .. } => !shape.is_empty(),
                _ => true,
            }),
        };
        let rows = batches.rows(0).max(1);
        let layout = layout::batch_layout(&spec, &fields, image.as_ref(), mixing.as_ref(), rows)?;
        let workers = match spec.num_workers {
            Workers::Auto => rank::auto_workers(),
            Workers::Count(count) => count as usize,
        };
        let batch_bytes = layout.bytes() as u64;
        let ahead = memory::ahead(&spec, workers, batch_bytes);
        let in_blocks = sources.iter().any(|source| source.blocks().is_some());
        let held = sources.iter().map(|source| source.held()).fold(0, u64::saturating_add);
        let (memory, cache_limit) = memory::memory(&spec, batch_bytes, in_blocks, held)?;
        // What is too large for a sample is known before anybody waits for it.
        let left = memory.saturating_sub(batch_bytes.saturating_mul(2));
        let sample_memory = memory::sample_memory(&spec, batch_bytes, in_blocks, held).min(left);
        let mut ops = chain.canonical();
        ops.extend(mixing.as_ref().map(|mixing| mixing.mix.canonical()));
        let data = identity::data(sources.iter().map(|source| &**source));
        let pixels = identity::pixels(&decode, spec.decode.bytes, &ops, spec.layout);
        let identity = identity::identity(&spec, &data, &pixels, batches.global(), order_of_blocks);
        let layout = Arc::new(layout);
        let crop_index = has_crop_index(&spec, &*store);
        Ok(Plan {
            spec,
            sources,
            store,
            order,
            batches,
            chain,
            decode,
            image,
            read_field,
            mixing,
            layout,
            rank,
            workers,
            ahead,
            memory,
            sample_memory,
            cache_limit,
            identity,
            purpose,
            recorded: None,
            crop_index,
        })
    }

    /// Bytes that the loader was given in all: for batches, for the cache, for blocks, and for what
    /// the sources keep.
    pub(crate) fn memory_given(&self) -> u64 {
        let in_blocks = self.sources.iter().any(|source| source.blocks().is_some());
        let blocks = if in_blocks { block_memory(&self.spec) } else { 0 };
        let held = self.sources.iter().map(|source| source.held()).fold(0, u64::saturating_add);
        self.memory.saturating_add(self.cache_limit).saturating_add(blocks).saturating_add(held)
    }

    /// Bytes of the decoded image at `location`, if it can be read.
    pub(crate) fn decoded_size(&self, location: &Location<'_>) -> Option<u64> {
        let mut bytes = Fresh(Vec::new());
        self.store.read(location, &mut bytes).ok()?;
        let header = decode::probe(&bytes.0, &self.decode).ok()?;
        Some((header.height * header.width * header.channels) as u64)
    }

    /// The name of a sample, for errors.
    pub(crate) fn error(&self, pick: Pick, stage: Stage, fault: Fault) -> SampleError {
        sample_error(&self.sources, pick, stage, fault)
    }
}

/// The first source was packed with a crop index.
fn has_crop_index(spec: &Spec, store: &dyn Store) -> bool {
    let path = spec.sources.first().and_then(|source| source.kind.path());
    let packed = path.and_then(|path| Catalog::read_in(store, path).ok().flatten());
    packed.is_some_and(|packed| packed.job["options"]["crop_index"] == true)
}

/// How the spec wants images decoded.
pub(super) fn decode_options(spec: &Spec) -> DecodeOptions {
    let default = DecodeOptions::default();
    DecodeOptions {
        mode: if spec.decode.gray { ColorMode::Gray } else { ColorMode::Rgb },
        exif_orientation: spec.decode.exif_orientation,
        allow_truncated: spec.decode.allow_truncated,
        allow_damaged: spec.decode.allow_damaged,
        // A cache keeps whole images: what is made of them must not depend on what it has kept.
        exact: spec.decode.exact || spec.cache.as_ref().is_some_and(|cache| cache.decoded),
        max_pixels: spec.decode.max_pixels.unwrap_or(default.max_pixels),
    }
}

/// A sample's fault with the sample's name.
pub(super) fn sample_error(
    sources: &[Arc<dyn Source>],
    pick: Pick,
    stage: Stage,
    fault: Fault,
) -> SampleError {
    let source = &sources[pick.source];
    // A source that panicked on this sample may do so again when asked for its name.
    let location = catch_unwind(AssertUnwindSafe(|| {
        (0..source.fields().len()).find_map(|field| match source.value(pick.index, field) {
            Ok(Value::File(location)) => Some(location),
            // What cannot be read is the file's fault; else the image's own name says more.
            Ok(Value::Pixels { location, .. }) if stage == Stage::Read => Some(location),
            _ => None,
        })
    }))
    .unwrap_or_default();
    let inside = match &fault {
        Fault::Corrupt { offset, .. } => *offset,
        _ => None,
    };
    let begins = location.and_then(|location| location.range).map(|(start, _)| start);
    SampleError {
        index: pick.index,
        source_number: pick.source,
        path: location
            .map(|location| location.root.join(location.path))
            .or_else(|| catch_unwind(AssertUnwindSafe(|| source.origin(pick.index))).ok()?),
        offset: match (begins, inside) {
            (None, None) => None,
            (begins, inside) => Some(begins.unwrap_or(0) + inside.unwrap_or(0)),
        },
        stage,
        fault,
    }
}
