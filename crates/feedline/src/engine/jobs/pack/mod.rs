//! Packs a data set: reads, converts and writes every sample, and reports what that gains.
//!
//! `work` is the threads, `convert` makes of one sample what is to be written, `gather` reads what
//! it holds beside its image, `targets` names files, `sharded` and `records` put samples into
//! shards of a format, `gain` measures loading before and after. Writing itself is in `crate::pack`.

mod convert;
mod gain;
mod gather;
mod options;
mod records;
mod room;
mod sharded;
mod stamp;
mod targets;
mod work;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value as Json, json};

use self::convert::Picture;
pub use self::gain::{Expectation, Gain};
pub use self::options::{PackOptions, transforms_until};
use self::targets::Targets;
use self::work::Work;
use crate::catalog::{self, Catalog, ListedFile, PackedField, PackedKind};
use crate::decode::DecodeOptions;
use crate::engine::plan::{block_ends, decode_options, opening, sample_error};
use crate::error::{Error, Fault, Result, SampleError, SpecError, Stage};
use crate::image::{Layout, PixelType};
use crate::order::{Order, Pick};
use crate::pack::destination::{Claim, Destination};
use crate::pack::files::{Done, Files};
use crate::pack::raw;
use crate::sample::{DType, Field, FieldKind, Value};
use crate::source::{self, Source};
use crate::spec::{OpSpec, SourceKind, Spec, Subset, Workers};
use crate::store::{self, Store};
use crate::transform::{Chain, ImageShape};
use crate::tune;

/// The most that is taken when nothing is said. The order of writing goes by it too, whatever is
/// free: a seed gives one order.
const DEFAULT_MEMORY: u64 = 1_000_000_000;

/// What became of a data set.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Packed {
    /// Samples of the result.
    pub samples: u64,
    /// Bytes before.
    pub before: u64,
    /// Bytes after.
    pub after: u64,
    /// Files that are as they were though they were to be changed, by reason: how many, and one
    /// of them.
    pub unchanged: Vec<(String, u64, PathBuf)>,
    /// Samples that were left out.
    pub left_out: u64,
    /// The first of them, with their reasons.
    pub bad: Vec<(PathBuf, String)>,
    /// The same set was there already, whole; nothing was written.
    pub kept: bool,
    /// Samples that an earlier, interrupted run had done.
    pub resumed: u64,
}

/// A data set that can be packed.
pub struct Pack {
    kind: SourceKind,
    path: PathBuf,
    source: Arc<dyn Source>,
    store: Arc<dyn Store>,
    /// The field with encoded images.
    image: Option<usize>,
    options: PackOptions,
    decode: DecodeOptions,
    /// What is done to images.
    chain: Chain,
    /// Leaves them as they are.
    plain: Chain,
    targets: Targets,
    table: bool,
    workers: usize,
    /// Bytes that the threads take together.
    memory: u64,
    /// Bytes that one sample may take: what the options say, whatever is free.
    largest: u64,
}

impl Pack {
    /// Opens a data set that lies in files.
    pub fn open(kind: SourceKind, options: PackOptions) -> Result<Pack> {
        options.check()?;
        let default = tune::memory_available()
            .map_or(DEFAULT_MEMORY, |free| free / 4)
            .clamp(DEFAULT_MEMORY / 4, DEFAULT_MEMORY);
        let memory = options.memory.unwrap_or(default);
        let decode = options.decode.clone();
        // What blocks of the source may take decides the order, so it is the same everywhere.
        let blocks = options.memory.unwrap_or(DEFAULT_MEMORY);
        let spec = Spec { decode, memory: Some(blocks), ..Spec::default() };
        let store: Arc<dyn Store> = Arc::new(store::Files::default());
        let source = source::open(&kind, &opening(&spec, &store))?;
        let Some(path) = kind.path() else {
            return Err(Error::Source {
                what: source.name(),
                problem: "only files can be packed".to_owned(),
            });
        };
        let path = path.to_owned();
        let is_encoded = |field: &Field| field.kind == FieldKind::EncodedImage;
        let image = source.fields().iter().position(is_encoded);
        let targets = match image {
            _ if options.to.is_some() => Targets::none(),
            Some(_) if options.raw => Targets::none(),
            Some(image) => Targets::new(&*source, image, options.decodes())?,
            None => Targets::none(),
        };
        let needs_image = options.to.is_none() || options.crop_index || options.decodes();
        if needs_image && image.is_none() {
            return Err(Error::Source {
                what: source.name(),
                problem: "has no encoded images; pack the set that it was made from".to_owned(),
            });
        }
        let packed = if path.is_dir() { Catalog::read(&path)? } else { None };
        let table = packed.map_or(!path.is_dir(), |packed| packed.table);
        Ok(Pack {
            kind,
            path,
            image,
            decode: decode_options(&spec),
            chain: chain(&options)?,
            plain: Chain::build(&[], Layout::Hwc)?,
            targets,
            table,
            workers: match options.num_workers {
                Workers::Auto => tune::cores(),
                Workers::Count(count) => (count as usize).clamp(1, 1024),
            },
            memory,
            largest: blocks / 2,
            source,
            store,
            options,
        })
    }

    /// Samples of the set.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.source.len()
    }

    /// Threads that will work.
    #[must_use]
    pub fn num_workers(&self) -> usize {
        self.workers
    }

    /// Refuses a folder that is the data set's own or lies inside it, where what is written would
    /// be taken for samples of the set.
    pub fn check_destination(&self, destination: &Path) -> Result<()> {
        // What is no folder of samples cannot have another among them.
        let Some(data) = self.path.canonicalize().ok().filter(|data| data.is_dir()) else {
            return Ok(());
        };
        let asked = std::path::absolute(destination).unwrap_or_else(|_| destination.to_owned());
        let found = asked.ancestors().find_map(|part| part.canonicalize().ok());
        if !found.is_some_and(|folder| folder.starts_with(&data)) {
            return Ok(());
        }
        Err(Error::Source {
            what: destination.display().to_string(),
            problem: format!(
                "lies inside of {}, which is to be packed, and would become a part of it: choose a folder beside it",
                self.path.display()
            ),
        })
    }

    /// Packs all samples into `destination`. `progress` hears how many are done; the work is
    /// called off when `stop` says so, and goes on from there when it is asked for again.
    pub fn run(
        &self,
        destination: &Path,
        progress: &(dyn Fn(u64) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Packed> {
        self.check_destination(destination)?;
        self.write(destination, None, progress, stop)
    }

    /// The same for some of the samples.
    fn write(
        &self,
        path: &Path,
        some: Option<&[u64]>,
        progress: &(dyn Fn(u64) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Packed> {
        let job = self.job(some)?;
        let destination = match Destination::claim(path, &job)? {
            Claim::Free(destination) => destination,
            Claim::Whole(catalog) => {
                let (samples, after) = (catalog.samples, catalog.bytes);
                return Ok(Packed { samples, after, kept: true, ..Packed::default() });
            }
        };
        let mut work = Work::new(self, some, progress, stop)?;
        let mut shards = Vec::new();
        let (entries, mut packed) = match self.options.to {
            Some(format) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let written = self.write_records(format, &name, &destination, &mut work)?;
                shards = written.0;
                (written.1, written.2)
            }
            None if self.options.raw => self.write_raw(&destination, &work)?,
            None => self.write_files(&destination, &work)?,
        };
        if packed.samples == 0 {
            return Err(Error::Source {
                what: self.source.name(),
                problem: format!("none of {} samples could be packed", work.count),
            });
        }
        let (list, bytes) = catalog::write_list(destination.folder(), &mut entries.into_iter())?;
        packed.after = bytes;
        let labels = self.labels().map(|(_, name, dtype)| (name, dtype.name().to_owned()));
        let in_format = self.options.to.is_some();
        let fields = self.fields();
        let fields = fields.iter().filter(|_| in_format).map(PackedField::from);
        let catalog = Catalog {
            feedline_pack: catalog::VERSION,
            kind: match self.options.to {
                Some(format) => PackedKind::Format(format),
                None if self.options.raw => PackedKind::Raw,
                None => PackedKind::Images,
            },
            samples: packed.samples,
            classes: self.source.classes().to_vec(),
            labels: labels.collect(),
            table: self.table && !self.options.raw && !in_format,
            fields: fields.collect(),
            shards,
            job,
            bytes,
            list,
        };
        destination.commit(&catalog)?;
        Ok(packed)
    }

    /// The order of writing, and how many blocks of the source are mixed at a time where they are
    /// too many to mix them all.
    fn order(&self, some: Option<&[u64]>) -> Result<(Order, Option<u64>)> {
        let seed = self.options.to.and(self.options.shuffle);
        let spec = Spec {
            shuffle: seed.is_some(),
            seed: seed.unwrap_or(0),
            subset: some.map(|some| Subset::Indices(some.to_vec())),
            memory: Some(self.options.memory.unwrap_or(DEFAULT_MEMORY)),
            ..Spec::default()
        };
        let order = Order::new(&spec, &[self.source.len()], &|_| None)?;
        Ok(order.in_blocks(&spec, &block_ends(&spec, std::slice::from_ref(&self.source))))
    }

    /// How many blocks of the source are mixed at a time, and of how many, where memory does not
    /// hold them all: then the shuffle is not over the whole set.
    pub fn mixed_blocks(&self) -> Result<Option<(u64, u64)>> {
        let blocks = self.source.blocks().map_or(0, |blocks| blocks.ends.len() as u64);
        Ok(self.order(None)?.1.map(|open| (open, blocks)))
    }

    fn write_raw(
        &self,
        destination: &Destination,
        work: &Work<'_>,
    ) -> Result<(Vec<ListedFile>, Packed)> {
        // Places in the files depend on what came before, so earlier work is of no use.
        destination.clear()?;
        let labels = self.labels().count();
        let writer = raw::RawWriter::new(destination.folder(), labels, raw::SHARD);
        let root = PathBuf::from(self.source.name());
        let root = std::path::absolute(&root).unwrap_or(root);
        work.run(
            &|number, sample, made| match made {
                Ok(made) => {
                    let Picture::Array(pixels, [height, width, channels]) = made.picture else {
                        return Err(Error::System("a file among pixels".to_owned()));
                    };
                    let labels = self.label_bits(sample)?;
                    let name = work.name(sample);
                    // Not where the source lies: the same data are packed to the same bytes.
                    let name = name
                        .strip_prefix(&root)
                        .or_else(|_| name.strip_prefix(root.parent().unwrap_or(&root)))
                        .unwrap_or(&name);
                    let name = name.as_os_str().as_encoded_bytes();
                    let labels = labels.as_slice();
                    let sample = raw::Sample { pixels, height, width, channels, labels, name };
                    writer.put(number, Some(sample))?;
                    Ok(None)
                }
                Err(error) => {
                    writer.put(number, None)?;
                    Ok(Some(error.fault.to_string()))
                }
            },
            &|| writer.abort(),
        )?;
        let (entries, samples) = writer.finish()?;
        Ok((entries, work.packed(samples, 0)))
    }

    fn write_files(
        &self,
        destination: &Destination,
        work: &Work<'_>,
    ) -> Result<(Vec<ListedFile>, Packed)> {
        let folder = destination.folder();
        let name_of = |sample: u64| self.targets.name(sample).map(Path::to_owned);
        let (files, earlier) = Files::open(destination, &name_of)?;
        let mut all: Vec<Option<Done>> = vec![None; self.source.len() as usize];
        let resumed = earlier.len() as u64;
        for done in earlier {
            if let Some(place) = all.get_mut(done.sample as usize) {
                *place = Some(done);
            }
        }
        let all = Mutex::new(all);
        let lock = || all.lock().unwrap_or_else(PoisonError::into_inner);
        work.run_unless(
            &|sample| {
                let done = lock()[sample as usize].clone();
                done.map(|done| (done.bytes.is_none(), done.before, done.reason))
            },
            &|_, sample, made| {
                let (done, bad) = match made {
                    Ok(made) => {
                        let Picture::File(bytes) = made.picture else {
                            return Err(Error::System("pixels among files".to_owned()));
                        };
                        let name = self.targets.name(sample).unwrap_or(Path::new(""));
                        let done = files.put(name, bytes, made.before, sample)?;
                        (Done { reason: made.reason, ..done }, None)
                    }
                    Err(error) => {
                        let reason = Some(error.fault.to_string());
                        let done = Done {
                            sample,
                            bytes: None,
                            xxh3: 0,
                            before: 0,
                            reason: reason.clone(),
                        };
                        (done, reason)
                    }
                };
                files.note(&done)?;
                lock()[sample as usize] = Some(done);
                Ok(bad)
            },
            &|| {},
        )?;
        let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        let written = |sample: u64| {
            let first = self.targets.first(sample) as usize;
            all[first].as_ref().is_some_and(|done| done.bytes.is_some())
        };
        let chosen: Vec<u64> = match work.some {
            Some(some) => some.to_vec(),
            None => (0..self.source.len()).collect(),
        };
        let samples: Vec<u64> = chosen.into_iter().filter(|sample| written(*sample)).collect();
        if work.some.is_none() {
            self.check_classes(&samples)?;
        }
        let mut entries = Vec::new();
        for done in all.iter().flatten() {
            if let (Some(bytes), Some(name)) = (done.bytes, self.targets.name(done.sample)) {
                entries.push(ListedFile::new(name, bytes, done.xxh3));
            }
        }
        if self.table {
            let labels: Vec<_> = self.labels().collect();
            entries.push(self.targets.write_table(folder, &*self.source, &labels, &samples)?);
        }
        Ok((entries, work.packed(samples.len() as u64, resumed)))
    }

    /// Class folders give the classes their numbers, so none may vanish.
    fn check_classes(&self, samples: &[u64]) -> Result<()> {
        let classes = self.source.classes();
        let Some((field, _, _)) = self.labels().find(|(_, _, dtype)| *dtype == DType::I64) else {
            return Ok(());
        };
        let mut found = vec![false; classes.len()];
        for sample in samples {
            if let Ok(Value::Int(label)) = self.source.value(*sample, field)
                && let Some(found) = found.get_mut(label as usize)
            {
                *found = true;
            }
        }
        match found.iter().position(|found| !found) {
            None => Ok(()),
            Some(empty) => Err(Error::Source {
                what: self.source.name(),
                problem: format!(
                    "has no good image for the class {:?}, so the classes after it would get other numbers: remove it or fix an image",
                    classes[empty]
                ),
            }),
        }
    }

    /// Field number, name and type of everything beside the image.
    fn labels(&self) -> impl Iterator<Item = (usize, String, DType)> + '_ {
        self.source.fields().iter().enumerate().filter_map(|(number, field)| match &field.kind {
            FieldKind::Array { dtype, shape } if shape.is_empty() => {
                Some((number, field.name.clone(), *dtype))
            }
            _ => None,
        })
    }

    fn label_bits(&self, sample: u64) -> Result<Vec<u64>> {
        let bits = |(field, _, _)| match self.source.value(sample, field) {
            Ok(Value::Int(label)) => Ok(label as u64),
            Ok(Value::Float(label)) => Ok(u64::from(label.to_bits())),
            Ok(_) => Err(self.error(sample, Stage::Read, Fault::Shape("no label".to_owned()))),
            Err(fault) => Err(self.error(sample, Stage::Read, fault)),
        };
        self.labels().map(bits).map(|bits| bits.map_err(|e| Error::Sample(Box::new(e)))).collect()
    }

    /// What decides the result, and so whether earlier work can be gone on with.
    fn job(&self, some: Option<&[u64]>) -> Result<Json> {
        let path = self.path.canonicalize().map_err(|source| Error::Io {
            what: "cannot open",
            path: self.path.clone(),
            source,
        })?;
        Ok(json!({
            "feedline_pack": catalog::VERSION,
            "source": path.to_string_lossy(),
            "labels": self.labels().map(|(_, name, _)| name).collect::<Vec<_>>(),
            "samples": self.source.len(),
            "fingerprint": catalog::show_checksum(self.source.fingerprint()),
            "files": catalog::show_checksum(stamp::stamp(&path, &*self.source, self.image)),
            "options": self.options.to_value(),
            "open_blocks": self.order(some)?.1.map(|open| (open, self.cuts())),
            "some": some,
        }))
    }

    /// A hash of where the source's blocks end: memory decides that too, for some.
    fn cuts(&self) -> Option<String> {
        let ends = &self.source.blocks()?.ends;
        let bytes: Vec<u8> = ends.iter().flat_map(|end| end.to_le_bytes()).collect();
        Some(catalog::show_checksum(xxhash_rust::xxh3::xxh3_64(&bytes)))
    }

    fn error(&self, sample: u64, stage: Stage, fault: Fault) -> SampleError {
        let sources = std::slice::from_ref(&self.source);
        sample_error(sources, Pick { source: 0, index: sample }, stage, fault)
    }
}

/// What is done to images: a resize, or the ops of a pipeline.
fn chain(options: &PackOptions) -> Result<Chain> {
    let resize = options.resize.iter();
    let resize =
        resize.map(|side| OpSpec::new("Resize").with("size", *side).with("antialias", true));
    let ops: Vec<OpSpec> = resize.chain(options.transforms.iter().cloned()).collect();
    let layout = if options.decoded { options.layout } else { Layout::Hwc };
    let chain = Chain::build(&ops, layout)?;
    let channels = if options.decode.gray { 1 } else { 3 };
    chain.check(channels, PixelType::U8)?;
    match output_type(&chain, channels) {
        Some(dtype) if dtype != DType::U8 && !options.decoded => {
            Err(SpecError::new("transforms", format!("make {dtype}, which no image file holds"))
                .allowed("decoded with a format for arrays, or fewer ops")
                .into())
        }
        _ => Ok(chain),
    }
}

/// The type of what a chain makes of decoded images.
fn output_type(chain: &Chain, channels: usize) -> Option<DType> {
    let input = ImageShape { height: 1 << 12, width: 1 << 12, channels };
    chain.output(input, PixelType::U8).ok().map(|output| output.dtype)
}
