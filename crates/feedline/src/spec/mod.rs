//! The pipeline as plain data: what TOML, JSON, the Rust builder and Python all describe.
//!
//! The keys are flat and carry the names of the Python `Loader`'s arguments. Reading goes key
//! by key through [`Table`], so that every mistake is named with its place, its value, what is
//! allowed and the nearest known name.
//!
//! ```
//! use feedline::Spec;
//! let spec = Spec::from_toml(r#"
//!     source = "photos"
//!     batch_size = 32
//!     shuffle = true
//!     [[transforms]]
//!     op = "CenterCrop"
//!     size = 224
//! "#)?;
//! assert_eq!(Spec::from_value(spec.to_value())?, spec);
//! let wrong = Spec::from_toml("source = 'photos'\nbatchsize = 32").unwrap_err();
//! assert!(wrong.to_string().contains("did you mean batch_size?"));
//! # Ok::<(), feedline::SpecError>(())
//! ```

mod file;
mod op;
pub mod read;
pub mod show;
mod source;
mod write;

pub use file::{read_file, read_toml};
pub use op::OpSpec;
pub use read::Table;
pub use source::{FieldChoice, FieldRole, SourceFormat, SourceKind, SourceSpec};

use std::path::PathBuf;

use serde_json::Value;

use crate::error::SpecError;
use crate::image::Layout;

/// Everything that decides what the batches are and how they are made.
#[derive(Debug, Clone, PartialEq)]
pub struct Spec {
    /// Where the samples come from. Several are joined end to end, or mixed if they have weights.
    pub sources: Vec<SourceSpec>,
    /// How encoded images become pixels.
    pub decode: DecodeSpec,
    /// What happens to the pixels.
    pub transforms: Vec<OpSpec>,
    /// How pixels lie in a batch.
    pub layout: Layout,
    /// Samples of a batch, on each rank.
    pub batch_size: u64,
    /// A new order in each epoch.
    pub shuffle: bool,
    /// Blocks that are shuffled together where data is read a block at a time.
    pub open_blocks: OpenBlocks,
    /// Draw samples with replacement.
    pub replacement: bool,
    /// Draw samples in proportion to these (implies replacement).
    pub weights: Option<Weights>,
    /// Use only these samples.
    pub subset: Option<Subset>,
    /// Samples of an epoch, if not the data set's size.
    pub num_samples: Option<u64>,
    /// What becomes of an incomplete last batch.
    pub last_batch: LastBatch,
    /// The root of all randomness.
    pub seed: u64,
    /// This process among `world_size`; the environment variable RANK if not given.
    pub rank: Option<u64>,
    /// Processes that share the work; the environment variable WORLD_SIZE if not given.
    pub world_size: Option<u64>,
    /// Threads that make batches.
    pub num_workers: Workers,
    /// Batches in the making per worker, as in torch; a few in all if not given.
    pub prefetch_factor: Option<u64>,
    /// Bytes that the loader may hold.
    pub memory: Option<u64>,
    /// Keep samples for the next epoch.
    pub cache: Option<CacheSpec>,
    /// What a bad sample does.
    pub on_error: OnError,
    /// With `on_error = "skip"`: how many distinct samples may fail.
    pub max_failures: Option<u64>,
    /// With `on_error = "skip"`: a file that lists them, a JSON object a line.
    pub quarantine: Option<PathBuf>,
    /// False hands batches over as they are ready, which is not deterministic.
    pub in_order: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Spec {
            sources: Vec::new(),
            decode: DecodeSpec::default(),
            transforms: Vec::new(),
            layout: Layout::Chw,
            batch_size: 1,
            shuffle: false,
            open_blocks: OpenBlocks::Auto,
            replacement: false,
            weights: None,
            subset: None,
            num_samples: None,
            last_batch: LastBatch::Short,
            seed: 0,
            rank: None,
            world_size: None,
            num_workers: Workers::Auto,
            prefetch_factor: None,
            memory: None,
            cache: None,
            on_error: OnError::Raise,
            max_failures: None,
            quarantine: None,
            in_order: true,
        }
    }
}

/// How encoded images become pixels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DecodeSpec {
    /// One channel instead of three.
    pub gray: bool,
    /// Not at all: a batch holds the files' bytes.
    pub bytes: bool,
    /// Turn the image as its EXIF tag says. Off by default, as in torchvision's ImageFolder.
    pub exif_orientation: bool,
    /// Larger images are refused before anything is allocated; `None` is Pillow's limit.
    pub max_pixels: Option<u64>,
    /// Take what can be decoded of a truncated file, as Pillow's `LOAD_TRUNCATED_IMAGES`.
    pub allow_truncated: bool,
    /// Take JPEGs whose data are all there and do not all decode, as Pillow does.
    pub allow_damaged: bool,
    /// Never decode at a smaller size, even where little of the detail would be seen.
    pub exact: bool,
}

/// How many blocks are shuffled together where data is read a block at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenBlocks {
    /// As many as half of the memory for blocks holds.
    #[default]
    Auto,
    /// All of them: a full shuffle, which may read each block many times.
    All,
    /// So many.
    Count(u64),
}

/// The chance of each sample.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Weights {
    /// One for each sample.
    Each(Vec<f64>),
    /// Every class as often as any other.
    Balanced,
}

/// A part of the data set.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subset {
    /// These samples, in this order.
    Indices(Vec<u64>),
    /// As a Python slice: `start:stop:step`, negative numbers count from the end.
    Slice(Option<i64>, Option<i64>, i64),
}

impl Subset {
    /// Reads `"100:200"`, `"::2"`, `":-1000"`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Subset> {
        let parts: Vec<&str> = text.split(':').map(str::trim).collect();
        if !(2..=3).contains(&parts.len()) {
            return None;
        }
        let number = |at: usize| match parts.get(at) {
            None | Some(&"") => Some(None),
            Some(text) => text.parse::<i64>().ok().map(Some),
        };
        let step = number(2)?.unwrap_or(1);
        (step >= 1).then_some(Subset::Slice(number(0)?, number(1)?, step))
    }
}

/// What becomes of the last batch of an epoch when the samples do not fill it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LastBatch {
    /// It is shorter; its rows are shared out among the ranks in runs as equal as possible.
    #[default]
    Short,
    /// It is left out (`drop_last`).
    Drop,
    /// The last sample is repeated; `Batch::padding` says how often.
    Pad,
    /// Filled from the start of the epoch.
    Wrap,
}

/// How many threads make batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Workers {
    /// One for each core this process may use; processes of one machine (`LOCAL_WORLD_SIZE`) share
    /// its cores.
    #[default]
    Auto,
    /// So many; 0 makes batches in the caller's thread.
    Count(u64),
}

/// Samples that are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSpec {
    /// Keep decoded pixels instead of encoded bytes.
    pub decoded: bool,
    /// Bytes for it; half of the memory limit if not given.
    pub limit: Option<u64>,
    /// Fail if the data set does not fit; otherwise keep what fits.
    pub required: bool,
}

/// What a bad sample does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnError {
    /// Its batch is an error.
    #[default]
    Raise,
    /// Another sample, always the same, stands in for it.
    Skip,
}

pub(crate) const LAYOUTS: [(&str, Layout); 3] =
    [("CHW", Layout::Chw), ("HWC", Layout::Hwc), ("channels_last", Layout::ChannelsLast)];
pub(crate) const LAST_BATCH: [(&str, LastBatch); 4] = [
    ("short", LastBatch::Short),
    ("drop", LastBatch::Drop),
    ("pad", LastBatch::Pad),
    ("wrap", LastBatch::Wrap),
];

impl Spec {
    /// Reads TOML.
    pub fn from_toml(text: &str) -> Result<Spec, SpecError> {
        Spec::from_value(read_toml(text)?)
    }

    /// Reads JSON.
    pub fn from_json(text: &str) -> Result<Spec, SpecError> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| SpecError::new("", format!("not valid JSON: {error}")))?;
        Spec::from_value(value)
    }

    /// Reads plain data.
    pub fn from_value(value: Value) -> Result<Spec, SpecError> {
        let mut table = Table::new("", value)?;
        let default = Spec::default();
        if table.is_null("seed") {
            // Whoever writes it expects another order in each run: a 0 would be silently wrong.
            return Err(table.error("seed", "is null").allowed(
                "a whole number, at least 0; left out, it is 0; seed=None in Python draws one",
            ));
        }
        let last_batch = table.choice("last_batch", &LAST_BATCH)?;
        let drop_last = table.boolean("drop_last")?;
        let last_batch = match (last_batch, drop_last) {
            (Some(last), Some(drop)) if drop != (last == LastBatch::Drop) => {
                return Err(table
                    .error("drop_last", "contradicts last_batch")
                    .value(drop)
                    .allowed("one of the two"));
            }
            (Some(last), _) => last,
            (None, Some(true)) => LastBatch::Drop,
            (None, _) => default.last_batch,
        };
        let spec = Spec {
            sources: source::read_sources(&mut table)?,
            decode: read_decode(&mut table)?,
            transforms: op::read_ops(&mut table)?,
            layout: table.choice("layout", &LAYOUTS)?.unwrap_or_default(),
            batch_size: table.whole("batch_size", 1)?.unwrap_or(default.batch_size),
            shuffle: table.boolean("shuffle")?.unwrap_or(default.shuffle),
            open_blocks: read_open_blocks(&mut table)?,
            replacement: table.boolean("replacement")?.unwrap_or(default.replacement),
            weights: read_weights(&mut table)?,
            subset: read_subset(&mut table)?,
            num_samples: table.whole("num_samples", 1)?,
            last_batch,
            seed: table.whole("seed", 0)?.unwrap_or(default.seed),
            rank: table.whole("rank", 0)?,
            world_size: table.whole("world_size", 1)?,
            num_workers: read_workers(&mut table)?,
            prefetch_factor: table.whole("prefetch_factor", 1)?,
            memory: table.bytes("memory")?,
            cache: read_cache(&mut table)?,
            on_error: table
                .choice("on_error", &[("raise", OnError::Raise), ("skip", OnError::Skip)])?
                .unwrap_or_default(),
            max_failures: table.whole("max_failures", 0)?,
            quarantine: table.text("quarantine")?.map(PathBuf::from),
            in_order: table.boolean("in_order")?.unwrap_or(default.in_order),
        };
        table.finish()?;
        spec.check()?;
        Ok(spec)
    }

    /// Finds contradictions between keys.
    pub fn check(&self) -> Result<(), SpecError> {
        if self.sources.is_empty() {
            return Err(SpecError::new("source", "is missing")
                .allowed("a path, a table, or a list of them"));
        }
        if self.batch_size == 0 || self.batch_size > u64::from(u32::MAX) {
            return Err(SpecError::new("batch_size", "is not allowed")
                .value(self.batch_size)
                .allowed("a whole number from 1 to 4294967295"));
        }
        self.check_values()?;
        let mixed = self.sources.iter().filter(|source| source.weight.is_some()).count();
        if mixed != 0 && mixed != self.sources.len() {
            return Err(SpecError::new("source", "some sources have a weight and some have none")
                .allowed("a weight for each (mixed) or for none (joined end to end)"));
        }
        if mixed != 0 {
            for (key, given) in [
                ("weights", self.weights.is_some()),
                ("subset", self.subset.is_some()),
                ("replacement", self.replacement),
            ] {
                if given {
                    return Err(SpecError::new(
                        key,
                        "does not go with sources that are mixed by weight",
                    ));
                }
            }
        }
        if let (Some(rank), Some(world)) = (self.rank, self.world_size)
            && rank >= world
        {
            return Err(SpecError::new("rank", "is not below world_size")
                .value(rank)
                .allowed(format!("0 to {}", world - 1)));
        }
        if self.on_error == OnError::Raise {
            for (key, given) in [
                ("max_failures", self.max_failures.is_some()),
                ("quarantine", self.quarantine.is_some()),
            ] {
                if given {
                    return Err(SpecError::new(key, "has no meaning unless on_error = \"skip\""));
                }
            }
        }
        let world = self.world_size.unwrap_or(1);
        if self.batch_size.checked_mul(world).is_none_or(|rows| rows > 1 << 40) {
            return Err(SpecError::new(
                "world_size",
                "makes a global batch of more than 2^40 rows",
            )
            .value(world));
        }
        Ok(())
    }
}

impl Spec {
    /// What reading refuses, refused also when a program sets it.
    fn check_values(&self) -> Result<(), SpecError> {
        let wrong =
            |key: &str, allowed: &str| SpecError::new(key, "is not allowed").allowed(allowed);
        let usable = |x: &f64| x.is_finite() && *x >= 0.0;
        if let Some(Weights::Each(weights)) = &self.weights
            && !(weights.iter().all(usable) && weights.iter().any(|x| *x > 0.0))
        {
            return Err(wrong("weights", WEIGHTS));
        }
        for (at, source) in self.sources.iter().enumerate() {
            if source.weight.is_some_and(|weight| !(weight.is_finite() && weight > 0.0)) {
                return Err(wrong(&format!("source[{at}].weight"), "a number above 0"));
            }
        }
        if matches!(self.subset, Some(Subset::Slice(_, _, step)) if step < 1) {
            return Err(wrong("subset", "a slice with a step of at least 1"));
        }
        if matches!(self.num_workers, Workers::Count(count) if count > MOST_WORKERS) {
            return Err(wrong("num_workers", "\"auto\" or a whole number from 0 to 1024"));
        }
        if self.prefetch_factor == Some(0) {
            return Err(wrong("prefetch_factor", "a whole number, at least 1"));
        }
        // 2^48 samples are years of training, and leave the arithmetic room.
        if self.num_samples.is_some_and(|samples| samples == 0 || samples > 1 << 48) {
            return Err(wrong("num_samples", "a whole number from 1 to 2^48"));
        }
        Ok(())
    }
}

/// More threads than that is a slip: no machine gains from it.
const MOST_WORKERS: u64 = 1024;

const WEIGHTS: &str =
    "\"balanced\", or a list with a finite number of at least 0 for each sample, not all 0";

fn read_decode(table: &mut Table) -> Result<DecodeSpec, SpecError> {
    let Some(value) = table.take("decode") else { return Ok(DecodeSpec::default()) };
    let mut decode = Table::new(table.key("decode"), value)?;
    let modes = [("rgb", "rgb"), ("gray", "gray"), ("bytes", "bytes")];
    let mode = decode.choice("mode", &modes)?;
    let read = DecodeSpec {
        gray: mode == Some("gray"),
        bytes: mode == Some("bytes"),
        exif_orientation: decode.boolean("exif_orientation")?.unwrap_or(false),
        max_pixels: decode.whole("max_pixels", 1)?,
        allow_truncated: decode.boolean("allow_truncated")?.unwrap_or(false),
        allow_damaged: decode.boolean("allow_damaged")?.unwrap_or(false),
        exact: decode.boolean("exact")?.unwrap_or(false),
    };
    decode.finish()?;
    Ok(read)
}

fn read_open_blocks(table: &mut Table) -> Result<OpenBlocks, SpecError> {
    match table.take("open_blocks") {
        None => Ok(OpenBlocks::Auto),
        Some(Value::String(text)) if text == "auto" => Ok(OpenBlocks::Auto),
        Some(Value::String(text)) if text == "all" => Ok(OpenBlocks::All),
        Some(value) => match value.as_u64().filter(|count| *count > 0) {
            Some(count) => Ok(OpenBlocks::Count(count)),
            None => Err(table
                .error("open_blocks", "is not allowed")
                .value(&value)
                .allowed("\"auto\", \"all\", or a whole number from 1")),
        },
    }
}

fn read_weights(table: &mut Table) -> Result<Option<Weights>, SpecError> {
    let Some(value) = table.take("weights") else { return Ok(None) };
    let read = match &value {
        Value::String(text) if text == "balanced" => Some(Weights::Balanced),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_f64().filter(|x| x.is_finite() && *x >= 0.0))
            .collect::<Option<Vec<f64>>>()
            .filter(|weights| weights.iter().any(|x| *x > 0.0))
            .map(Weights::Each),
        _ => None,
    };
    read.map(Some)
        .ok_or_else(|| table.error("weights", "is not allowed").value(&value).allowed(WEIGHTS))
}

fn read_subset(table: &mut Table) -> Result<Option<Subset>, SpecError> {
    let allowed = "a slice such as \"0:1000\" or \"::2\", or a list of sample numbers";
    let Some(value) = table.take("subset") else { return Ok(None) };
    let read = match &value {
        Value::String(text) => Subset::parse(text),
        Value::Array(items) => {
            items.iter().map(Value::as_u64).collect::<Option<_>>().map(Subset::Indices)
        }
        _ => None,
    };
    read.map(Some)
        .ok_or_else(|| table.error("subset", "is not allowed").value(&value).allowed(allowed))
}

fn read_workers(table: &mut Table) -> Result<Workers, SpecError> {
    let Some(value) = table.take("num_workers") else { return Ok(Workers::Auto) };
    match &value {
        Value::String(text) if text == "auto" => Some(Workers::Auto),
        other => other.as_u64().filter(|n| *n <= MOST_WORKERS).map(Workers::Count),
    }
    .ok_or_else(|| {
        table
            .error("num_workers", "is not allowed")
            .value(&value)
            .allowed("\"auto\" or a whole number from 0 to 1024")
    })
}

fn read_cache(table: &mut Table) -> Result<Option<CacheSpec>, SpecError> {
    let allowed = "\"memory\", or a table with hold, limit and required";
    let Some(value) = table.take("cache") else { return Ok(None) };
    match value {
        Value::String(text) if text == "memory" => {
            Ok(Some(CacheSpec { decoded: false, limit: None, required: true }))
        }
        Value::Object(_) => {
            let mut cache = Table::new(table.key("cache"), value)?;
            cache.choice("where", &[("memory", ())])?;
            let read = CacheSpec {
                decoded: cache
                    .choice("hold", &[("encoded", false), ("decoded", true)])?
                    .unwrap_or(false),
                limit: cache.bytes("limit")?,
                required: cache.boolean("required")?.unwrap_or(true),
            };
            cache.finish()?;
            Ok(Some(read))
        }
        other => Err(table.error("cache", "is not allowed").value(other).allowed(allowed)),
    }
}
