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

pub(crate) mod file;
mod format;
mod op;
pub(crate) mod read;
mod settings;
pub(crate) mod show;
mod source;

pub use format::SourceFormat;
pub use op::OpSpec;
pub(crate) use read::Table;
pub use settings::{
    CacheSpec, DecodeSpec, LastBatch, OnError, OpenBlocks, Subset, Weights, Workers,
};
pub(crate) use settings::{LAST_BATCH, LAYOUTS};
pub use source::{FieldChoice, FieldRole, SourceKind, SourceSpec};

use settings::{
    MOST_WORKERS, WEIGHTS, read_cache, read_decode, read_open_blocks, read_subset, read_weights,
    read_workers,
};
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::error::SpecError;
pub use crate::image::Layout;

/// Everything that decides what the batches are and how they are made.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
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

impl Spec {
    /// The same with what `change` sets.
    ///
    /// ```
    /// let spec = feedline::Spec::default().with(|spec| spec.batch_size = 64);
    /// assert_eq!(spec.batch_size, 64);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Spec)) -> Spec {
        change(&mut self);
        self
    }
}

impl Spec {
    /// Reads TOML.
    pub fn from_toml(text: &str) -> Result<Spec, SpecError> {
        Spec::from_value(file::read_toml(text)?)
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

    /// As plain data, which [`Spec::from_value`] reads back to an equal spec.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let default = Spec::default();
        let mut table = Map::new();
        let mut put = |name: &str, differs: bool, value: Value| {
            if differs {
                table.insert(name.to_owned(), value);
            }
        };
        let sources: Vec<Value> = self.sources.iter().map(SourceSpec::to_value).collect();
        match <[Value; 1]>::try_from(sources) {
            Ok([single]) => put("source", true, single),
            Err(several) => put("source", !several.is_empty(), several.into()),
        }
        let decode = json!({
            "mode": match &self.decode {
                decode if decode.bytes => "bytes",
                decode if decode.gray => "gray",
                _ => "rgb",
            },
            "exif_orientation": self.decode.exif_orientation,
            "max_pixels": self.decode.max_pixels,
            "allow_truncated": self.decode.allow_truncated,
            "allow_damaged": self.decode.allow_damaged,
            "exact": self.decode.exact,
        });
        put("batch_size", self.batch_size != default.batch_size, self.batch_size.into());
        put("shuffle", self.shuffle, true.into());
        let open_blocks: Value = match self.open_blocks {
            OpenBlocks::Count(count) => count.into(),
            OpenBlocks::All | OpenBlocks::Auto => "all".into(),
        };
        put("open_blocks", self.open_blocks != OpenBlocks::Auto, open_blocks);
        put("seed", self.seed != 0, self.seed.into());
        put("replacement", self.replacement, true.into());
        put("num_samples", self.num_samples.is_some(), self.num_samples.into());
        put(
            "last_batch",
            self.last_batch != default.last_batch,
            name_of(&LAST_BATCH, &self.last_batch).into(),
        );
        put("rank", self.rank.is_some(), self.rank.into());
        put("world_size", self.world_size.is_some(), self.world_size.into());
        put("layout", self.layout != default.layout, name_of(&LAYOUTS, &self.layout).into());
        if let Workers::Count(count) = self.num_workers {
            put("num_workers", true, count.into());
        }
        put("prefetch_factor", self.prefetch_factor.is_some(), self.prefetch_factor.into());
        put("memory", self.memory.is_some(), self.memory.into());
        put("on_error", self.on_error == OnError::Skip, "skip".into());
        put("max_failures", self.max_failures.is_some(), self.max_failures.into());
        if let Some(path) = &self.quarantine {
            put("quarantine", true, path.to_string_lossy().into_owned().into());
        }
        put("in_order", !self.in_order, false.into());
        match &self.weights {
            Some(Weights::Balanced) => put("weights", true, "balanced".into()),
            Some(Weights::Each(weights)) => put("weights", true, weights.clone().into()),
            None => {}
        }
        match &self.subset {
            Some(Subset::Indices(indices)) => put("subset", true, indices.clone().into()),
            Some(Subset::Slice(start, stop, step)) => {
                let text = |bound: &Option<i64>| bound.map_or(String::new(), |n| n.to_string());
                put("subset", true, format!("{}:{}:{step}", text(start), text(stop)).into());
            }
            None => {}
        }
        if let Some(cache) = &self.cache {
            let hold = if cache.decoded { "decoded" } else { "encoded" };
            put(
                "cache",
                true,
                json!({"hold": hold, "limit": cache.limit, "required": cache.required}),
            );
        }
        put("decode", self.decode != default.decode, decode);
        let ops: Vec<Value> = self.transforms.iter().map(OpSpec::to_value).collect();
        put("transforms", !ops.is_empty(), ops.into());
        Value::Object(table)
    }

    /// As TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        // Nulls have no TOML form; a table without them always has one.
        toml::to_string(&without_nulls(self.to_value())).unwrap_or_default()
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

fn name_of<T: PartialEq>(names: &[(&'static str, T)], wanted: &T) -> &'static str {
    names.iter().find(|(_, value)| value == wanted).map_or("", |(name, _)| name)
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(entries) => Value::Object(
            entries
                .into_iter()
                .filter(|(_, v)| !v.is_null())
                .map(|(k, v)| (k, without_nulls(v)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_survives_json_and_toml() {
        let text = r#"
            source = [{path = "a", weight = 2.0}, {kind = "manifest", path = "b.csv", label_columns = ["y"], weight = 1.0}]
            batch_size = 3
            shuffle = true
            seed = 9
            num_samples = 11
            last_batch = "wrap"
            rank = 1
            world_size = 4
            layout = "channels_last"
            num_workers = 0
            prefetch_factor = 3
            memory = "1GB"
            on_error = "skip"
            max_failures = 5
            quarantine = "bad.jsonl"
            in_order = false
            cache = {hold = "decoded", limit = "2MB", required = false}
            decode = {mode = "gray", max_pixels = 100}
            transforms = ["ToDtype", {op = "Resize", size = [3, 4]}]
        "#;
        let spec = Spec::from_toml(text).unwrap();
        assert_eq!(Spec::from_value(spec.to_value()).unwrap(), spec);
        assert_eq!(Spec::from_toml(&spec.to_toml()).unwrap(), spec);
        let spec = Spec::from_toml(
            "source = 'a'\nweights = [1.0, 2.5]\nsubset = '-5::2'\nreplacement = true",
        )
        .unwrap();
        assert_eq!(Spec::from_toml(&spec.to_toml()).unwrap(), spec);
    }

    #[test]
    fn contradictions_are_named() {
        for (text, message) in [
            ("batch_size = 3", "source: is missing"),
            ("source = 'a'\nbatch_size = 0", "batch_size = 0: is not allowed"),
            (
                "source = 'a'\nrank = 2\nworld_size = 2",
                "rank = 2: is not below world_size; allowed: 0 to 1",
            ),
            ("source = [{path='a', weight=1}, 'b']", "some sources have a weight"),
            ("source = [{path='a', weight=1}, {path='b', weight=0}]", "source[1].weight = 0"),
            ("source = 'a'\nquarantine = 'q'", "unless on_error"),
            ("source = 'a'\ndrop_last = true\nlast_batch = 'wrap'", "contradicts last_batch"),
            ("source = 'a'\nweights = [0, 0]", "not all 0"),
            ("source = 'a'\nsubset = '3'", "a slice such as"),
            (
                "source = 'a'\nnum_workers = -1",
                "num_workers = -1: is not allowed; allowed: \"auto\"",
            ),
            ("source = 'a'\ncache = 'disk'", "cache = \"disk\""),
            ("source = {kind = 'image-folder', path = 'a'}", "did you mean \"image_folder\"?"),
            ("source = 'a'\ntransforms = [{size = 3}]", "transforms[0]: has no op"),
            ("source = ", "not valid TOML"),
        ] {
            let error = Spec::from_toml(text).unwrap_err().to_string();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
