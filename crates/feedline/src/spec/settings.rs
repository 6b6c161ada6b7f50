//! Settings of a spec that are more than a number or a word, and how each is read.

use serde_json::Value;

use super::Table;
use crate::error::SpecError;
use crate::image::Layout;

/// How encoded images become pixels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
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

impl DecodeSpec {
    /// The same with what `change` sets.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut DecodeSpec)) -> DecodeSpec {
        change(&mut self);
        self
    }
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheSpec {
    /// Keep decoded pixels instead of encoded bytes.
    pub decoded: bool,
    /// Bytes for it; half of the memory limit if not given.
    pub limit: Option<u64>,
    /// Fail if the data set does not fit; otherwise keep what fits.
    pub required: bool,
}

impl CacheSpec {
    /// The same with what `change` sets.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut CacheSpec)) -> CacheSpec {
        change(&mut self);
        self
    }
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

/// More threads than that is a slip: no machine gains from it.
pub(super) const MOST_WORKERS: u64 = 1024;

pub(super) const WEIGHTS: &str =
    "\"balanced\", or a list with a finite number of at least 0 for each sample, not all 0";

pub(super) fn read_decode(table: &mut Table) -> Result<DecodeSpec, SpecError> {
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

pub(super) fn read_open_blocks(table: &mut Table) -> Result<OpenBlocks, SpecError> {
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

pub(super) fn read_weights(table: &mut Table) -> Result<Option<Weights>, SpecError> {
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

pub(super) fn read_subset(table: &mut Table) -> Result<Option<Subset>, SpecError> {
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

pub(super) fn read_workers(table: &mut Table) -> Result<Workers, SpecError> {
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

pub(super) fn read_cache(table: &mut Table) -> Result<Option<CacheSpec>, SpecError> {
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
