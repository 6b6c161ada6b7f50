//! Looks at a data set: sizes of all files, headers of some, labels, blocks, and its speed.

mod correlation;
mod labels;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use self::correlation::MOST_INFLATION;
use super::trial::{self, Rate};
use crate::catalog::{Catalog, PackedKind};
use crate::decode::{self, DecodeOptions, Format};
use crate::engine::plan::{block_ends, decode_options, open_sources, opening, sample_error};
use crate::error::{Error, Fault, Result, SampleError, Stage};
use crate::order::Pick;
use crate::sample::{FieldKind, Location, Room, Value};
use crate::source::{self, Source};
use crate::spec::read::show_bytes;
use crate::spec::{OnError, OpenBlocks, SourceFormat, Spec, Workers};
use crate::store::{Local, Store};
use crate::tune;

/// Headers nearly always lie in the first part of a file; where not, the whole file is read.
const FIRST_PART: u64 = 64 << 10;

/// The largest file that is read for its header. TIFF may have it at the end.
const WHOLE: u64 = 256 << 20;

/// Files that a thread takes at once.
const RUN: u64 = 64;

/// How many failures are kept with their reasons; all are counted.
const KEPT: usize = 20;

/// How long the trial runs.
const TRIAL: Duration = Duration::from_secs(1);

/// A data set that can be looked at: all samples of a spec's sources.
pub struct Inspect {
    store: Arc<dyn Store>,
    sources: Vec<Arc<dyn Source>>,
    decode: DecodeOptions,
    workers: usize,
    spec: Spec,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Inspection {
    /// Samples of all sources.
    pub samples: u64,
    /// Each source.
    pub sources: Vec<SourceFacts>,
    /// What a sample holds.
    pub fields: Vec<FieldFacts>,
    /// How many samples each class has, in the order of the classes. Empty without classes.
    pub classes: Vec<(String, u64)>,
    /// The size of every file that could be looked at, sorted: 8 bytes a sample.
    pub file_sizes: Vec<u64>,
    /// What the headers say, for the samples that were looked into, in their order.
    pub headers: Vec<Seen>,
    /// How many samples were looked into.
    pub looked_into: u64,
    /// How many files were not there, not readable or no images, among those looked at.
    pub failed: u64,
    /// The first of them.
    pub failures: Vec<SampleError>,
    /// Samples whose labels were counted: all, unless they have to be read from blocks and that
    /// takes long.
    pub labels_counted: u64,
    /// What shuffling does, where data is read a block at a time.
    pub mixing: Option<Mixing>,
}

/// How well a shuffle mixes data that is read a block at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mixing {
    /// Blocks of the set.
    pub blocks: u64,
    /// Bytes of the largest.
    pub block_bytes: u64,
    /// Blocks that are mixed at once.
    pub open: u64,
    /// Samples of a batch.
    pub batch_size: u64,
    /// The correlation of labels within a block; `None` if there are no labels or too few blocks.
    pub correlation: Option<f64>,
    /// How much more the classes' shares vary between batches than with a full shuffle; above
    /// [`MOST_INFLATION`] it matters.
    pub inflation: Option<f64>,
}

/// One of the files that samples lie in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFacts {
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
    /// Its samples, where that is written down.
    pub samples: Option<u64>,
}

/// One source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFacts {
    /// What it is called.
    pub name: String,
    /// Its samples.
    pub samples: u64,
    /// Its format and how it is compressed, where it is not a folder of files.
    pub format: Option<String>,
    /// The files that it lies in, where they hold many samples each.
    pub files: Vec<FileFacts>,
    /// Columns that are in no field, and that nobody left out by name.
    pub unused_columns: Vec<String>,
}

/// One field of the samples.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldFacts {
    /// Its name in a batch.
    pub name: String,
    /// What it is.
    pub kind: FieldKind,
    /// The smallest and the largest value of a scalar.
    pub range: Option<(f64, f64)>,
    /// How many different values a scalar has, if it is a whole number with at most 65,536.
    pub distinct: Option<u64>,
}

/// What one header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The format, from the bytes.
    pub format: Format,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// A progressive JPEG, which takes about three times as long to decode.
    pub progressive: bool,
    /// The name claims another format.
    pub misnamed: bool,
}

/// What threads find, until it is put in order.
#[derive(Default)]
struct Found {
    sizes: Vec<u64>,
    headers: Vec<(u64, Seen)>,
    failures: Vec<(u64, SampleError)>,
    failed: u64,
}

impl Inspect {
    /// Opens the sources. Of the rest of the spec, `decode` and `num_workers` count.
    pub fn open(spec: &Spec) -> Result<Inspect> {
        spec.check()?;
        let store: Arc<dyn Store> = Arc::new(Local);
        Ok(Inspect {
            sources: open_sources(spec, &store, Vec::new())?,
            store,
            decode: decode_options(spec),
            workers: match spec.num_workers {
                Workers::Auto => tune::cores(),
                Workers::Count(count) => (count as usize).max(1),
            },
            spec: spec.clone(),
        })
    }

    /// How fast it loads, from a run of a second: with the spec's transforms, or with those that
    /// photos usually get if it has none. `None` if that cannot be said.
    #[must_use]
    pub fn trial(&self) -> Option<Rate> {
        let is_image = |kind: &FieldKind| matches!(kind, FieldKind::EncodedImage);
        let images = self.sources[0].fields().iter().any(|field| is_image(&field.kind));
        let transforms = match self.spec.transforms.is_empty() && images {
            true => trial::usual_transforms(),
            false => self.spec.transforms.clone(),
        };
        let spec = Spec {
            transforms,
            shuffle: true,
            on_error: OnError::Skip,
            max_failures: None,
            quarantine: None,
            rank: Some(0),
            world_size: Some(1),
            ..self.spec.clone()
        };
        trial::rate(spec, TRIAL).ok()?
    }

    /// Threads that look, and that the trial runs with.
    #[must_use]
    pub fn num_workers(&self) -> usize {
        self.workers
    }

    /// Samples of all sources.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.sources.iter().map(|source| source.len()).sum()
    }

    /// Looks at all files' sizes and into about `sample` files, spread evenly. `progress` hears
    /// how many files were looked at.
    pub fn run(&self, sample: u64, progress: &(dyn Fn(u64) + Sync)) -> Result<Inspection> {
        let total = self.samples();
        let sample = sample.min(total);
        let fields = self.sources[0].fields();
        let find =
            |wanted: &dyn Fn(&FieldKind) -> bool| fields.iter().position(|f| wanted(&f.kind));
        let image =
            find(&|kind| matches!(kind, FieldKind::EncodedImage | FieldKind::Pixels { .. }));
        let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let found = Mutex::new(Found::default());
        let look = || {
            let mut own = Found::default();
            loop {
                let start = next.fetch_add(RUN, Relaxed);
                if start >= total {
                    break;
                }
                for number in start..(start + RUN).min(total) {
                    if let Some(field) = image {
                        self.look(number, field, is_chosen(number, sample, total), &mut own);
                    }
                    progress(done.fetch_add(1, Relaxed) + 1);
                }
            }
            let mut all = found.lock().unwrap_or_else(PoisonError::into_inner);
            all.sizes.append(&mut own.sizes);
            all.headers.append(&mut own.headers);
            all.failures.append(&mut own.failures);
            all.failed += own.failed;
        };
        std::thread::scope(|scope| {
            let mut started = 0;
            for number in 0..self.workers {
                let worker = std::thread::Builder::new().name(format!("feedline-{number}"));
                match worker.spawn_scoped(scope, look) {
                    Ok(_) => started += 1,
                    Err(_) if started > 0 => break,
                    Err(error) => {
                        return Err(Error::System(format!("cannot start a thread: {error}")));
                    }
                }
            }
            Ok(())
        })?;
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sizes.sort_unstable();
        found.headers.sort_unstable_by_key(|(number, _)| *number);
        found.failures.sort_by_key(|(number, _)| *number);
        found.failures.truncate(KEPT);
        let labels = self.labels();
        Ok(Inspection {
            samples: total,
            sources: self.sources.iter().enumerate().map(|(n, s)| self.source(n, &**s)).collect(),
            mixing: self.mixing(labels.correlation),
            fields: labels.fields,
            classes: labels.classes,
            labels_counted: labels.counted,
            file_sizes: found.sizes,
            headers: found.headers.into_iter().map(|(_, seen)| seen).collect(),
            looked_into: if image.is_some() { sample } else { 0 },
            failed: found.failed,
            failures: found.failures.into_iter().map(|(_, error)| error).collect(),
        })
    }

    fn look(&self, number: u64, field: usize, chosen: bool, found: &mut Found) {
        let mut index = number;
        let mut source = 0;
        while index >= self.sources[source].len() {
            index -= self.sources[source].len();
            source += 1;
        }
        let looked = match self.sources[source].value(index, field) {
            Ok(Value::File(location)) => match self.store.size(&location) {
                Ok(size) => {
                    found.sizes.push(size);
                    if chosen { self.header(&location, size).map(Some) } else { Ok(None) }
                }
                Err(fault) => Err((Stage::Read, fault)),
            },
            // What is packed as pixels has a size, but neither a file nor a format.
            Ok(Value::Pixels { location, .. }) => {
                found.sizes.push(location.range.map_or(0, |(_, bytes)| bytes));
                Ok(None)
            }
            Ok(Value::Bytes(bytes)) => {
                found.sizes.push(bytes.len() as u64);
                if chosen { self.probe(bytes, None).map(Some) } else { Ok(None) }
            }
            // Only a read shows how large it is.
            Ok(Value::Made) if !chosen => Ok(None),
            Ok(Value::Made) => self.made(source, index, field, &mut found.sizes),
            Ok(_) => Err((Stage::Read, Fault::Shape("is not an image".to_owned()))),
            Err(fault) => Err((Stage::Read, fault)),
        };
        match looked {
            Ok(Some(seen)) => found.headers.push((number, seen)),
            Ok(None) => {}
            Err((stage, fault)) => {
                found.failed += 1;
                // Each thread goes upwards, so its first ones hold the first of all.
                if found.failures.len() < KEPT {
                    let pick = Pick { source, index };
                    found.failures.push((number, sample_error(&self.sources, pick, stage, fault)));
                }
            }
        }
    }

    /// An image that its source has to make.
    fn made(
        &self,
        source: usize,
        index: u64,
        field: usize,
        sizes: &mut Vec<u64>,
    ) -> Result<Option<Seen>, (Stage, Fault)> {
        let mut bytes = Bytes(Vec::new());
        let read = self.sources[source].read(index, field, &mut bytes);
        read.map_err(|fault| (Stage::Read, fault))?;
        sizes.push(bytes.0.len() as u64);
        match self.sources[source].fields()[field].kind {
            FieldKind::EncodedImage => self.probe(&bytes.0, None).map(Some),
            _ => Ok(None),
        }
    }

    fn header(&self, location: &Location<'_>, size: u64) -> Result<Seen, (Stage, Fault)> {
        let name = location.path.extension().and_then(|extension| extension.to_str());
        let (start, _) = location.range.unwrap_or((0, size));
        let mut bytes = Bytes(Vec::new());
        let mut read = |length: u64| {
            let part = Location { range: Some((start, length)), ..*location };
            self.store.read(&part, &mut bytes).map_err(|fault| (Stage::Read, fault))?;
            self.probe(&bytes.0, name.and_then(Format::from_extension))
        };
        match read(size.min(FIRST_PART)) {
            Err((Stage::Decode, _)) if size > FIRST_PART => read(size),
            first => first,
        }
    }

    fn probe(&self, bytes: &[u8], named: Option<Format>) -> Result<Seen, (Stage, Fault)> {
        let header = decode::probe(bytes, &self.decode).map_err(|fault| (Stage::Decode, fault))?;
        Ok(Seen {
            format: header.format,
            width: header.width,
            height: header.height,
            progressive: header.progressive,
            misnamed: named.is_some_and(|named| named != header.format),
        })
    }

    /// How a shuffle mixes the blocks.
    fn mixing(&self, correlation: Option<f64>) -> Option<Mixing> {
        let ends = block_ends(&self.spec, &self.sources);
        let blocks = ends.ends.len() as u64;
        let largest =
            self.sources.iter().filter_map(|source| Some(source.blocks()?.bytes)).max()?;
        let open = match self.spec.open_blocks {
            OpenBlocks::Auto => ends.room.max(1),
            OpenBlocks::All => blocks,
            OpenBlocks::Count(count) => count,
        };
        let (open, batch_size) = (open.min(blocks), self.spec.batch_size);
        let predicted = |rho| correlation::inflation(rho, batch_size, open, blocks, self.samples());
        Some(Mixing {
            blocks,
            block_bytes: largest,
            open,
            batch_size,
            correlation,
            inflation: correlation.map(predicted),
        })
    }

    /// What is known of a source from the outside.
    fn source(&self, number: usize, source: &dyn Source) -> SourceFacts {
        let (mut format, mut files) = (None, Vec::new());
        // Samples that have files of their own need no list of them.
        let alone = (0..source.fields().len()).any(|field| {
            matches!(source.value(0, field), Ok(Value::File(Location { range: None, .. })))
        });
        if let Some(path) = self.spec.sources[number].kind.path().filter(|_| !alone) {
            if let Ok(Some(packed)) = Catalog::read_in(&*self.store, path) {
                format = Some(packed.kind.name().to_owned());
                let compression = match packed.job["options"]["compression"].as_str() {
                    // What it is packed with where nothing is said.
                    None if packed.kind == PackedKind::Format(SourceFormat::Zarr) => Some("zstd"),
                    named => named,
                };
                if let Some(compression) = compression {
                    format = format.map(|format| format!("{format}, {compression}"));
                }
                files.extend(packed.shards.iter().map(|shard| FileFacts {
                    path: path.join(&shard.path),
                    bytes: shard.bytes,
                    samples: Some(shard.samples),
                }));
            } else if let Some((found, paths)) =
                source::files_of(&self.spec.sources[number].kind, &opening(&self.spec, &self.store))
            {
                let compression = paths.first().and_then(|path| compression_of(path));
                let compression = compression.map_or(String::new(), |name| format!(", {name}"));
                format = Some(format!("{}{compression}", found.name()));
                let samples = Some(source.len()).filter(|_| paths.len() == 1);
                files.extend(paths.into_iter().filter_map(|path| {
                    let bytes = std::fs::metadata(&path).ok()?.len();
                    Some(FileFacts { path, bytes, samples })
                }));
            } else if let Ok(metadata) = std::fs::metadata(path)
                && metadata.is_file()
            {
                let bytes = metadata.len();
                let samples = Some(source.len());
                files.push(FileFacts { path: path.to_owned(), bytes, samples });
            }
        }
        SourceFacts {
            name: source.name(),
            samples: source.len(),
            format,
            files,
            unused_columns: source.unused_columns().to_vec(),
        }
    }
}

/// How a whole file is compressed, as its name says.
fn compression_of(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "gz" | "tgz" => Some("gzip"),
        "zst" | "zstd" => Some("zstd"),
        _ => None,
    }
}

/// True for `sample` of the numbers below `total`, spread evenly.
fn is_chosen(number: u64, sample: u64, total: u64) -> bool {
    let before = |n: u64| u128::from(n) * u128::from(sample) / u128::from(total.max(1));
    before(number + 1) > before(number)
}

struct Bytes(Vec<u8>);

impl Room for Bytes {
    fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
        if bytes == 0 {
            return Err(Fault::corrupt("image", "the file is empty"));
        }
        if bytes > WHOLE {
            return Err(Fault::TooLarge(format!(
                "has {} and no header in its first part",
                show_bytes(bytes)
            )));
        }
        self.0.resize(bytes as usize, 0);
        Ok(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::SourceKind;

    #[test]
    fn shards_are_listed_with_sizes_format_and_compression() {
        let top = std::env::temp_dir().join(format!("feedline-inspect-{}", std::process::id()));
        std::fs::create_dir_all(&top).unwrap();
        for (name, rows) in [("a-0.jsonl", 2), ("a-1.jsonl", 3)] {
            std::fs::write(top.join(name), "{\"x\": 1}\n".repeat(rows)).unwrap();
        }
        for path in [top.clone(), top.join("a-*.jsonl"), top.join("a-{0..1}.jsonl")] {
            let spec = Spec { sources: vec![SourceKind::Path(path).into()], ..Spec::default() };
            let found = Inspect::open(&spec).unwrap().run(0, &|_| ()).unwrap();
            let facts = &found.sources[0];
            assert_eq!((facts.samples, facts.format.as_deref()), (5, Some("jsonl")));
            let sizes: Vec<u64> = facts.files.iter().map(|file| file.bytes).collect();
            assert_eq!(sizes, [18, 27]);
        }
        assert_eq!(compression_of(Path::new("a.tar.gz")), Some("gzip"));
        assert_eq!(compression_of(Path::new("a.tar.ZST")), Some("zstd"));
        assert_eq!(compression_of(Path::new("a.tar")), None);
        std::fs::remove_dir_all(top).unwrap();
    }

    #[test]
    fn the_chosen_are_as_many_as_asked_and_spread() {
        for (sample, total) in [(0, 10), (3, 10), (10, 10), (1, 1), (7, 1000)] {
            let chosen: Vec<u64> = (0..total).filter(|n| is_chosen(*n, sample, total)).collect();
            assert_eq!(chosen.len() as u64, sample);
            let gaps = chosen.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(gaps.into_iter().all(|gap| gap <= total / sample + 1), "{chosen:?}");
        }
    }
}
