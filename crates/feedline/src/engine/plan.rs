//! A spec made ready: everything is opened, checked and decided before anything runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::identity;
use super::rank::{self, Rank};
use super::recorded::Recorded;
use crate::buffer;
use crate::catalog::Catalog;
use crate::decode::{self, ColorMode, DecodeOptions};
use crate::error::{Error, Fault, Result, SampleError, SpecError, Stage};
use crate::image::{Layout, PixelType, View};
use crate::layout::{BatchLayout, Variable};
use crate::order::{Batches, BlockEnds, Identity, Order, Pick};
use crate::sample::{DType, Field, FieldKind, Location, Room, Value};
use crate::source::{self, Blocks, Opening, Source};
use crate::spec::read::show_bytes;
use crate::spec::{OnError, OpenBlocks, SourceKind, Spec, Workers};
use crate::store::{Files, Store};
use crate::transform::{Chain, ImageShape, Mix, Output};
use crate::tune;

/// The most that is taken when nothing is said: a quarter of what is free, at most this.
const DEFAULT_MEMORY: u64 = 4_000_000_000;

/// Samples that are read alone count as a block, beside sources that have blocks.
const ALONE: u64 = 1024;

/// What blocks may take when nothing is said.
const BLOCK_MEMORY: u64 = 512_000_000;

/// How the image field of a sample becomes a row of the batch.
pub(crate) enum Pixels {
    /// Encoded bytes are decoded first; pixels that a source lends have their size with them.
    Encoded,
    /// An array of one shape that is in memory already.
    Array { view: View, pixel_type: PixelType },
}

/// The field that the transforms work on.
pub(crate) struct ImageField {
    pub(crate) field: usize,
    pub(crate) pixels: Pixels,
    pub(crate) output: Output,
}

/// How the rows of a batch are mixed with each other.
pub(crate) struct Mixing {
    pub(crate) mix: Mix,
    /// The field whose classes are mixed too.
    pub(crate) label: usize,
    pub(crate) classes: usize,
}

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
        check_order(&spec, &blocks)?;
        let (order, open_blocks) = order.in_blocks(&spec, &blocks);
        // Where blocks end is part of the order, too: it may depend on the memory that was given.
        let order_of_blocks = open_blocks.map(|open| (open, blocks.fingerprint()));
        let batches =
            Batches::new(order.samples(), spec.batch_size, rank.rank, rank.world, spec.last_batch)?;
        let image = match purpose {
            Purpose::Load => {
                // Without ops, arrays need not be images, unless they are mixed.
                let plain = chain.is_empty() && mix.is_none();
                image_field(&spec, &fields, &chain, plain, &sources, &*store, &decode)?
            }
            Purpose::Check => unwritten_image(&fields),
        };
        let mixing = match mix {
            None => None,
            Some(mix) => Some(mixing(mix, &fields, image.as_ref(), &*sources[0])?),
        };
        let read_field = match &image {
            Some(image) => Some(image.field),
            None => fields.iter().position(|field| match &field.kind {
                FieldKind::Array { shape, .. } => !shape.is_empty(),
                _ => true,
            }),
        };
        let rows = batches.rows(0).max(1);
        let layout = batch_layout(&spec, &fields, image.as_ref(), mixing.as_ref(), rows)?;
        let workers = match spec.num_workers {
            Workers::Auto => rank::auto_workers(),
            Workers::Count(count) => count as usize,
        };
        let batch_bytes = layout.bytes() as u64;
        let ahead = ahead(&spec, workers, batch_bytes);
        let in_blocks = sources.iter().any(|source| source.blocks().is_some());
        let held = sources.iter().map(|source| source.held()).fold(0, u64::saturating_add);
        let (memory, cache_limit) = memory(&spec, batch_bytes, in_blocks, held)?;
        // What is too large for a sample is known before anybody waits for it.
        let left = memory.saturating_sub(batch_bytes.saturating_mul(2));
        let sample_memory = sample_memory(&spec, batch_bytes, in_blocks, held).min(left);
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

/// What sources are opened with: images are what can be decoded, and blocks take a quarter of the
/// memory that the spec gives. What is free counts for nothing, since it decides how many blocks are
/// shuffled together.
#[must_use]
pub fn opening<'a>(spec: &Spec, store: &'a Arc<dyn Store>) -> Opening<'a> {
    Opening {
        store,
        image_extensions: decode::EXTENSIONS,
        block_memory: block_memory(spec),
        memory: spec.memory.or_else(tune::memory_available).unwrap_or(u64::MAX),
        is_image: |bytes| decode::Format::sniff(bytes).is_some(),
    }
}

/// Bytes that blocks may take in all.
fn block_memory(spec: &Spec) -> u64 {
    spec.memory.map_or(BLOCK_MEMORY, |memory| memory / 4)
}

/// The blocks of all sources laid end to end; none if no source has any.
pub(super) fn block_ends(spec: &Spec, sources: &[Arc<dyn Source>]) -> BlockEnds {
    let Some(bytes) = sources.iter().filter_map(|source| Some(source.blocks()?.bytes)).max() else {
        return BlockEnds::default();
    };
    let (mut ends, mut before) = (Vec::new(), 0);
    for source in sources {
        match source.blocks() {
            Some(blocks) => ends.extend(blocks.ends.iter().map(|end| before + end)),
            // Samples that are read alone are as good in any block.
            None => {
                let even = Blocks::even(source.len(), ALONE, 0);
                ends.extend(even.ends.iter().map(|end| before + end));
            }
        }
        before += source.len();
    }
    // Half of the memory, so that the next pool's blocks have room beside the last one's.
    BlockEnds { ends, room: each_block_memory(spec) / 2 / bytes.max(1) }
}

/// What each source may take for blocks: they share the memory evenly.
fn each_block_memory(spec: &Spec) -> u64 {
    block_memory(spec) / spec.sources.len().max(1) as u64
}

/// Refuses draws that would unpack a whole block for each sample.
fn check_order(spec: &Spec, blocks: &BlockEnds) -> Result<(), SpecError> {
    let key = match spec {
        Spec { weights: Some(_), .. } => "weights",
        Spec { replacement: true, .. } => "replacement",
        _ => return Ok(()),
    };
    // There is room for half as many as are kept.
    let kept = blocks.room.saturating_mul(2);
    if blocks.ends.len() as u64 <= kept || spec.open_blocks == OpenBlocks::All {
        return Ok(());
    }
    Err(SpecError::new(
        key,
        format!(
            "draws samples from everywhere, but this data is read in {} blocks, of which {kept} fit into the memory for them: each sample would read a block",
            blocks.ends.len()
        ),
    )
    .allowed("more memory, a set that was packed without compression (feedline pack), or open_blocks = \"all\" to do it all the same"))
}

/// Opens what the spec names, and checks that the sources go together.
pub(super) fn open_sources(
    spec: &Spec,
    store: &Arc<dyn Store>,
    given: Vec<Arc<dyn Source>>,
) -> Result<Vec<Arc<dyn Source>>> {
    let mut given = given.into_iter();
    let mut sources = Vec::new();
    for named in &spec.sources {
        sources.push(match (&named.kind, given.len()) {
            (SourceKind::Arrays, 1..) => {
                given.next().ok_or_else(|| Error::System("a source vanished".to_owned()))?
            }
            (kind, _) => {
                let block_memory = each_block_memory(spec);
                source::open(kind, &Opening { block_memory, ..opening(spec, store) })?
            }
        });
    }
    let first: &Arc<dyn Source> = &sources[0];
    for (at, other) in sources.iter().enumerate().skip(1) {
        if other.fields() != first.fields() {
            let fields = |source: &Arc<dyn Source>| {
                source.fields().iter().map(describe).collect::<Vec<_>>().join(", ")
            };
            return Err(SpecError::new(format!("source[{at}]"), format!("has {}", fields(other)))
                .allowed(format!("the fields of source[0]: {}", fields(first)))
                .into());
        }
        if other.classes() != first.classes() {
            return Err(SpecError::new(
                format!("source[{at}]"),
                "has other classes than source[0], so its label numbers mean something else",
            )
            .allowed("sources with the same classes, or manifests with numbers as labels")
            .into());
        }
    }
    Ok(sources)
}

fn describe(field: &Field) -> String {
    match &field.kind {
        FieldKind::EncodedImage => format!("{} (encoded image)", field.name),
        FieldKind::Pixels { channels } => format!("{} ({channels} x uint8 pixels)", field.name),
        FieldKind::Array { dtype, shape } => format!("{} ({dtype} {shape:?})", field.name),
        FieldKind::Ragged { dtype, axes } => {
            format!("{} ({dtype}, {axes} axes of any length)", field.name)
        }
        FieldKind::Bytes => format!("{} (bytes)", field.name),
        FieldKind::Text => format!("{} (text)", field.name),
    }
}

/// What fields of classes are called.
const LABELS: [&str; 5] = ["label", "labels", "target", "class", "cls"];

/// The field that holds classes: a scalar of type int64 that is called so, else the first.
pub(super) fn label_field(fields: &[Field]) -> Option<usize> {
    label_field_of(fields, &|dtype| dtype == DType::I64)
}

/// Whether its name says that it holds classes.
pub(super) fn is_called_label(field: &Field) -> bool {
    LABELS.contains(&field.name.as_str())
}

/// The field that holds classes, of one of the types that are accepted.
pub(super) fn label_field_of(fields: &[Field], accepted: &dyn Fn(DType) -> bool) -> Option<usize> {
    let fits = |field: &Field| match &field.kind {
        FieldKind::Array { dtype, shape } => shape.is_empty() && accepted(*dtype),
        _ => false,
    };
    let called = |name: &&str| fields.iter().position(|field| field.name == **name && fits(field));
    LABELS.iter().find_map(called).or_else(|| fields.iter().position(fits))
}

fn image_field(
    spec: &Spec,
    fields: &[Field],
    chain: &Chain,
    plain: bool,
    sources: &[Arc<dyn Source>],
    store: &dyn Store,
    decode: &DecodeOptions,
) -> Result<Option<ImageField>> {
    let encoded = fields.iter().position(|field| field.kind == FieldKind::EncodedImage);
    if spec.decode.bytes {
        return match (encoded, plain) {
            (Some(_), true) => Ok(None),
            (Some(_), false) => Err(SpecError::new("transforms", "have no pixels to work on")
                .allowed("none with decode.mode = \"bytes\"")
                .into()),
            (None, _) => Err(SpecError::new("decode.mode", "has no encoded image to leave alone")
                .value("\"bytes\"")
                .allowed("\"rgb\" or \"gray\"")
                .into()),
        };
    }
    if let Some(field) = encoded {
        let channels = if spec.decode.gray { 1 } else { 3 };
        chain.check(channels, PixelType::U8)?;
        let output = match chain.fixed_output(channels, PixelType::U8) {
            Some(output) => output,
            None => output_of_first(spec, field, chain, sources, store, decode)?,
        };
        return Ok(Some(ImageField { field, pixels: Pixels::Encoded, output }));
    }
    let lent = |field: &Field| match field.kind {
        FieldKind::Pixels { channels } => Some(channels),
        _ => None,
    };
    if let Some((field, channels)) =
        fields.iter().enumerate().find_map(|(number, field)| Some((number, lent(field)?)))
    {
        if spec.decode.gray && channels != 1 {
            return Err(SpecError::new("decode.mode", "comes too late: the pixels are packed")
                .value("\"gray\"")
                .allowed("\"rgb\", or a set that was packed as grayscale")
                .into());
        }
        chain.check(channels, PixelType::U8)?;
        let output = match chain.fixed_output(channels, PixelType::U8) {
            Some(output) => output,
            None => output_of_first(spec, field, chain, sources, store, decode)?,
        };
        return Ok(Some(ImageField { field, pixels: Pixels::Encoded, output }));
    }
    if plain {
        // Arrays without transforms pass as they are, whatever they hold.
        return Ok(None);
    }
    let wrong = |problem: String| {
        Error::from(SpecError::new("transforms", problem).allowed(
            "uint8 or float32 arrays of shape [samples, height, width], [samples, channels, height, width] or [samples, height, width, channels], with 1, 3 or 4 channels, as the first field",
        ))
    };
    let Some(FieldKind::Array { dtype, shape }) = fields.first().map(|field| &field.kind) else {
        return Err(wrong("need an image".to_owned()));
    };
    let pixel_type = match dtype {
        DType::U8 => PixelType::U8,
        DType::F32 => PixelType::F32,
        other => {
            return Err(wrong(format!("cannot work on {other} elements of {:?}", fields[0].name)));
        }
    };
    let view = View::of_shape(shape, false).ok_or_else(|| {
        wrong(format!("cannot work on samples of shape {shape:?} in {:?}", fields[0].name))
    })?;
    if view.elements() == 0 {
        return Err(wrong(format!("cannot work on images without pixels, {shape:?}")));
    }
    chain.check(view.channels, pixel_type)?;
    let input = ImageShape { height: view.height, width: view.width, channels: view.channels };
    let output = chain.output(input, pixel_type).map_err(|fault| wrong(fault.to_string()))?;
    Ok(Some(ImageField { field: 0, pixels: Pixels::Array { view, pixel_type }, output }))
}

/// Checks that there is something to mix.
fn mixing(
    mix: Mix,
    fields: &[Field],
    image: Option<&ImageField>,
    source: &dyn Source,
) -> Result<Mixing> {
    let labelled = "class folders, a manifest with a column of whole numbers or class names, or arrays with an int64 field of one number per sample";
    let Some(label) = label_field(fields).filter(|field| image.is_some_and(|i| i.field != *field))
    else {
        return Err(mix
            .error("", "needs labels to mix, and the source has none")
            .allowed(labelled)
            .into());
    };
    if let Some(image) = image {
        mix.check(&image.output)?;
    }
    let known = Some(source.classes().len()).filter(|known| *known > 0);
    let classes = match (mix.num_classes(), known) {
        (Some(told), Some(known)) if told < known => {
            return Err(mix
                .error("num_classes", format!("is too few: the source has {known} classes"))
                .value(told)
                .allowed(format!("at least {known}"))
                .into());
        }
        (Some(classes), _) | (None, Some(classes)) => classes,
        (None, None) => {
            return Err(mix
                .error("num_classes", "is missing, and the source does not tell")
                .allowed("a whole number above every label")
                .into());
        }
    };
    Ok(Mixing { mix, label, classes })
}

/// An image that takes no room in a batch.
fn unwritten_image(fields: &[Field]) -> Option<ImageField> {
    let is_image =
        |field: &Field| matches!(field.kind, FieldKind::EncodedImage | FieldKind::Pixels { .. });
    let field = fields.iter().position(is_image)?;
    let output = Output { shape: vec![0], dtype: DType::U8, layout: Layout::Chw };
    Some(ImageField { field, pixels: Pixels::Encoded, output })
}

/// Memory for a look at one file before anything runs.
struct Fresh(Vec<u8>);

impl Room for Fresh {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        // A photo is far below this.
        if bytes > 64 << 20 {
            return Err(Fault::TooLarge(format!(
                "has {}, too much to take the size of all images from it: add a Resize or a crop",
                show_bytes(bytes)
            )));
        }
        self.0.clear();
        buffer::extend_zeroed(&mut self.0, bytes)?;
        Ok(&mut self.0)
    }
}

/// Without a transform that fixes the size, the first readable image sets it for all.
fn output_of_first(
    spec: &Spec,
    field: usize,
    chain: &Chain,
    sources: &[Arc<dyn Source>],
    store: &dyn Store,
    decode: &DecodeOptions,
) -> Result<Output> {
    let source = &sources[0];
    let look = |bytes: &[u8]| {
        let header = decode::probe(bytes, decode).map_err(|fault| (Stage::Decode, fault))?;
        let shape =
            ImageShape { height: header.height, width: header.width, channels: header.channels };
        chain.output(shape, PixelType::U8).map_err(|fault| (Stage::Transform, fault))
    };
    let tries = if spec.on_error == OnError::Skip { source.len().min(1000) } else { 1 };
    let mut first = None;
    for index in 0..tries {
        let looked = match source.value(index, field) {
            Ok(Value::Bytes(bytes)) => look(bytes),
            Ok(value @ (Value::File(_) | Value::Made)) => {
                let mut bytes = Fresh(Vec::new());
                let read = match value {
                    Value::File(location) => store.read(&location, &mut bytes),
                    _ => source.read(index, field, &mut bytes),
                };
                read.map_err(|fault| (Stage::Read, fault)).and_then(|()| look(&bytes.0))
            }
            Ok(Value::Pixels { height, width, channels, .. }) => {
                let shape = ImageShape { height, width, channels };
                chain.output(shape, PixelType::U8).map_err(|fault| (Stage::Transform, fault))
            }
            _ => continue,
        };
        match looked {
            Ok(output) => return Ok(output),
            Err((stage, fault)) => {
                first.get_or_insert(sample_error(sources, Pick { source: 0, index }, stage, fault));
            }
        }
    }
    Err(match first {
        Some(error) => Error::Sample(Box::new(error)),
        None => Error::Source {
            what: source.name(),
            problem: "has no image to take the size from".to_owned(),
        },
    })
}

fn batch_layout(
    spec: &Spec,
    fields: &[Field],
    image: Option<&ImageField>,
    mixing: Option<&Mixing>,
    rows: u64,
) -> Result<BatchLayout> {
    let too_large = || {
        SpecError::new("batch_size", "makes a batch larger than memory can be")
            .value(spec.batch_size)
    };
    // Mixing needs one row more, which nobody sees: the one before the first.
    let rows = rows + u64::from(mixing.is_some());
    let mut layout = BatchLayout::new(usize::try_from(rows).map_err(|_| too_large())?);
    for (number, field) in fields.iter().enumerate() {
        let pushed = match (image.filter(|image| image.field == number), &field.kind) {
            (Some(image), _) => {
                let (shape, dtype) = (&image.output.shape, image.output.dtype);
                match (spec.layout, shape.as_slice()) {
                    // The shape says channels first, the memory has them last.
                    (Layout::ChannelsLast, [channels, _, width]) => layout.push_strided(
                        &field.name,
                        dtype,
                        shape,
                        vec![1, channels * width, *channels],
                    ),
                    _ => layout.push(&field.name, dtype, shape),
                }
            }
            (None, FieldKind::Array { .. }) if mixing.is_some_and(|m| m.label == number) => {
                let classes = mixing.map_or(1, |mixing| mixing.classes);
                layout.push(&field.name, DType::F32, &[classes])
            }
            (None, FieldKind::Array { dtype, shape }) => layout.push(&field.name, *dtype, shape),
            (None, FieldKind::Ragged { dtype, axes }) => {
                layout.push_variable(&field.name, *dtype, Variable::Array { axes: *axes })
            }
            (None, FieldKind::Text) => layout.push_variable(&field.name, DType::U8, Variable::Text),
            // An image that is not decoded: as is asked for, or as it is not the sample's first.
            (None, FieldKind::Bytes | FieldKind::EncodedImage) => {
                layout.push_variable(&field.name, DType::U8, Variable::Bytes)
            }
            (None, FieldKind::Pixels { .. }) => {
                return Err(Error::Source {
                    what: format!("field {:?}", field.name),
                    problem: "is a second image of pixels; a sample can have one".to_owned(),
                });
            }
        };
        pushed.ok_or_else(too_large)?;
    }
    Ok(layout)
}

fn ahead(spec: &Spec, workers: usize, batch_bytes: u64) -> usize {
    if workers == 0 {
        return 1;
    }
    match spec.prefetch_factor {
        Some(factor) => {
            usize::try_from(factor).unwrap_or(usize::MAX).saturating_mul(workers).min(1 << 16)
        }
        // All workers share in each batch, so two are enough to keep them busy while one is
        // consumed. Small batches get more, to ride out an uneven consumer: 64 MB holds them.
        None => (64_000_000 / batch_bytes.max(1)).clamp(2, 8) as usize,
    }
}

/// Bytes for the flow and bytes for the cache.
fn memory(spec: &Spec, batch_bytes: u64, in_blocks: bool, held: u64) -> Result<(u64, u64)> {
    let available = tune::memory_available();
    // One batch with the program and one in the making, and a little to make it with.
    let least = batch_bytes.saturating_mul(2).saturating_add(1_000_000);
    let blocks = if in_blocks { block_memory(spec) } else { 0 };
    let asked = spec.memory.unwrap_or_else(|| {
        available
            .map_or(DEFAULT_MEMORY, |free| free / 4)
            .clamp(least.max(tune::LEAST_MEMORY), DEFAULT_MEMORY.max(least))
            .max(least.saturating_add(blocks).saturating_add(held))
    });
    // Asking for more than the machine or the cgroup has left ends in a kill.
    let total = available.map_or(asked, |free| asked.min(free / 10 * 9));
    let cache = match &spec.cache {
        None => 0,
        Some(cache) => cache.limit.unwrap_or(total / 2),
    };
    let flow = total.saturating_sub(cache).saturating_sub(blocks).saturating_sub(held);
    if flow < least {
        let mut cached = String::new();
        let others = [
            (cache, "the cache"),
            (blocks, "blocks of the data"),
            (held, "the data's names, labels and places"),
        ];
        for (bytes, what) in others {
            if bytes > 0 {
                cached += &format!(" beside {} for {what}", show_bytes(bytes));
            }
        }
        return Err(Error::Memory(format!(
            "a batch takes {}, so memory must be at least {}{cached}; it is {}: raise memory or lower batch_size",
            show_bytes(batch_bytes),
            show_bytes(least),
            show_bytes(total),
        )));
    }
    Ok((flow, cache))
}

/// Bytes that one sample may take beside a batch with the program, one in the making and what the
/// sources keep.
fn sample_memory(spec: &Spec, batch_bytes: u64, in_blocks: bool, held: u64) -> u64 {
    let batches = batch_bytes.saturating_mul(2);
    let blocks = if in_blocks { block_memory(spec) } else { 0 };
    let others = batches.saturating_add(blocks).saturating_add(held);
    let given = spec.memory.unwrap_or(DEFAULT_MEMORY.max(others.saturating_add(1_000_000)));
    let cache = spec.cache.as_ref().map_or(0, |cache| cache.limit.unwrap_or(given / 2));
    given.saturating_sub(cache).saturating_sub(others)
}
