//! Packs a data set: reads, converts and writes every sample, and tells what that gains.
//!
//! `work` is the threads, `convert` makes of one sample what is to be written, `targets` names it,
//! `gain` measures loading before and after. Writing itself is in `crate::pack`. A new format is a new writer there and an
//! arm of [`Pack::write`].

mod convert;
mod gain;
mod room;
mod targets;
mod work;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value as Json, json};

use self::convert::Made;
pub use self::gain::{Expectation, Gain};
use self::targets::Targets;
use self::work::Work;
use super::plan::{opening, sample_error};
use crate::catalog::{self, Catalog, Entry, Kind};
use crate::decode::DecodeOptions;
use crate::error::{Error, Fault, Result, SampleError, SpecError, Stage};
use crate::image::Layout;
use crate::order::Pick;
use crate::pack::destination::{Claim, Destination};
use crate::pack::files::{Done, Files, JOURNAL};
use crate::pack::jpeg::Subsampling;
use crate::pack::raw;
use crate::sample::{DType, FieldKind, Value};
use crate::source::{self, Source};
use crate::spec::{OpSpec, SourceKind, Spec, Workers};
use crate::transform::Chain;
use crate::tune;

/// The most that is taken when nothing is said.
const DEFAULT_MEMORY: u64 = 1_000_000_000;

/// What is made of a data set.
#[derive(Debug, Clone, PartialEq)]
pub struct PackOptions {
    /// Restart markers into JPEGs, so that crops decode alone.
    pub crop_index: bool,
    /// Units between two markers; as many as serve the image's width if not given.
    pub segment: Option<u16>,
    /// The shorter side of images that are larger.
    pub resize: Option<u32>,
    /// Of JPEGs that are coded anew, 1 to 100.
    pub quality: u8,
    /// Of JPEGs that are coded anew.
    pub subsampling: Subsampling,
    /// Decoded pixels instead of files.
    pub raw: bool,
    /// Compare the pixels of every JPEG that is rewritten.
    pub check: bool,
    /// Turn images that are decoded as their EXIF orientation asks.
    pub exif_orientation: bool,
    /// Leave out images that cannot be decoded, where they have to be.
    pub skip_bad: bool,
    /// Threads that work.
    pub num_workers: Workers,
    /// Bytes that they may take together.
    pub memory: Option<u64>,
}

impl Default for PackOptions {
    fn default() -> Self {
        PackOptions {
            crop_index: false,
            segment: None,
            resize: None,
            quality: 90,
            subsampling: Subsampling::Half,
            raw: false,
            check: true,
            exif_orientation: false,
            skip_bad: false,
            num_workers: Workers::Auto,
            memory: None,
        }
    }
}

impl PackOptions {
    fn check(&self) -> Result<(), SpecError> {
        if !self.crop_index && self.resize.is_none() && !self.raw {
            return Err(SpecError::new("pack", "nothing is to be done")
                .allowed("crop_index, resize, raw, or resize with one of the others"));
        }
        if self.raw && self.crop_index {
            return Err(SpecError::new("raw", "cannot go with crop_index: pixels have no markers"));
        }
        let range = |key: &str, value: u64, low: u64, high: u64| match (low..=high).contains(&value)
        {
            true => Ok(()),
            false => Err(SpecError::new(key, "is not allowed")
                .value(value)
                .allowed(format!("{low} to {high}"))),
        };
        range("segment", self.segment.unwrap_or(1).into(), 1, 65_535)?;
        range("resize", self.resize.unwrap_or(1).into(), 1, 65_500)?;
        range("quality", self.quality.into(), 1, 100)
    }

    /// What decides the result.
    fn to_value(&self) -> Json {
        json!({
            "crop_index": self.crop_index,
            "segment": self.segment,
            "resize": self.resize,
            "quality": self.resize.map(|_| self.quality),
            "subsampling": self.resize.map(|_| format!("{:?}", self.subsampling)),
            "raw": self.raw,
            "check": self.check,
            "exif_orientation": self.exif_orientation,
            "skip_bad": self.skip_bad,
        })
    }
}

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
    image: usize,
    options: PackOptions,
    decode: DecodeOptions,
    /// Makes images smaller.
    resize: Chain,
    /// Leaves them as they are.
    plain: Chain,
    targets: Targets,
    table: bool,
    workers: usize,
    memory: u64,
}

impl Pack {
    /// Opens a folder of images or a manifest.
    pub fn open(kind: SourceKind, options: PackOptions) -> Result<Pack> {
        options.check()?;
        let source = source::open(&kind, &opening(&Spec::default()))?;
        let (SourceKind::Path(path)
        | SourceKind::ImageFolder(path)
        | SourceKind::Flat(path)
        | SourceKind::Manifest { path, .. }
        | SourceKind::Format { path, .. }) = &kind
        else {
            return Err(Error::Source {
                what: source.name(),
                problem: "only files can be packed".to_owned(),
            });
        };
        let path = path.clone();
        let is_encoded = |kind: &FieldKind| *kind == FieldKind::EncodedImage;
        let Some(image) = source.fields().iter().position(|field| is_encoded(&field.kind)) else {
            return Err(Error::Source {
                what: source.name(),
                problem: "has no encoded images; pack the set that it was made from".to_owned(),
            });
        };
        let packed = if path.is_dir() { Catalog::read(&path)? } else { None };
        let table = packed.map_or(!path.is_dir(), |packed| packed.table);
        let targets = Targets::new(&*source, image, options.resize.is_some(), options.raw)?;
        let resize: Vec<OpSpec> = options
            .resize
            .iter()
            .map(|side| OpSpec::new("Resize").with("size", *side).with("antialias", true))
            .collect();
        let default = tune::memory_available()
            .map_or(DEFAULT_MEMORY, |free| free / 4)
            .clamp(DEFAULT_MEMORY / 4, DEFAULT_MEMORY);
        Ok(Pack {
            kind,
            path,
            image,
            decode: DecodeOptions {
                exif_orientation: options.exif_orientation,
                ..DecodeOptions::default()
            },
            resize: Chain::build(&resize, Layout::Hwc)?,
            plain: Chain::build(&[], Layout::Hwc)?,
            targets,
            table,
            workers: match options.num_workers {
                Workers::Auto => tune::cores(),
                Workers::Count(count) => (count as usize).clamp(1, 1024),
            },
            memory: options.memory.unwrap_or(default),
            source,
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

    /// Packs all samples into `destination`. `progress` hears how many are done; the work is
    /// called off when `stop` says so, and goes on from there when it is asked for again.
    pub fn run(
        &self,
        destination: &Path,
        progress: &(dyn Fn(u64) + Sync),
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Packed> {
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
        let work = Work::new(self, some, progress, stop);
        let (entries, mut packed, leftovers): (_, _, &[&str]) = if self.options.raw {
            let (entries, packed) = self.write_raw(&destination, &work)?;
            (entries, packed, &[])
        } else {
            let (entries, packed) = self.write_files(&destination, &work)?;
            (entries, packed, &[JOURNAL])
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
        let catalog = Catalog {
            feedline_pack: catalog::VERSION,
            kind: if self.options.raw { Kind::Raw } else { Kind::Images },
            samples: packed.samples,
            classes: self.source.classes().to_vec(),
            labels: labels.collect(),
            table: self.table && !self.options.raw,
            fields: Vec::new(),
            shards: Vec::new(),
            job,
            bytes,
            list,
        };
        destination.commit(&catalog, leftovers)?;
        Ok(packed)
    }

    fn write_raw(
        &self,
        destination: &Destination,
        work: &Work<'_>,
    ) -> Result<(Vec<Entry>, Packed)> {
        // Places in the files depend on what came before, so earlier work is of no use.
        destination.clear()?;
        let labels = self.labels().count();
        let writer = raw::Writer::new(destination.folder(), labels, raw::SHARD);
        work.run(
            &|number, sample, made| match made {
                Ok(Made::Pixels { pixels, height, width, channels, .. }) => {
                    let labels = self.label_bits(sample)?;
                    let name = self.targets.origin(&*self.source, self.image, sample);
                    let name = name.as_os_str().as_encoded_bytes();
                    let labels = labels.as_slice();
                    let sample = raw::Sample { pixels, height, width, channels, labels, name };
                    writer.put(number, Some(sample))?;
                    Ok(None)
                }
                Ok(Made::File { .. }) => Err(Error::System("a file among pixels".to_owned())),
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
    ) -> Result<(Vec<Entry>, Packed)> {
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
                    Ok(Made::File { bytes, before, reason }) => {
                        let name = self.targets.name(sample).unwrap_or(Path::new(""));
                        let done = files.put(name, bytes, before, sample)?;
                        (Done { reason, ..done }, None)
                    }
                    Ok(Made::Pixels { .. }) => {
                        return Err(Error::System("pixels among files".to_owned()));
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
                entries.push(Entry::new(name, bytes, done.xxh3));
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
                    "has no good image for the class {:?}, so the classes after it would get other numbers: remove it or mend an image",
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
            "options": self.options.to_value(),
            "some": some,
        }))
    }

    fn error(&self, sample: u64, stage: Stage, fault: Fault) -> SampleError {
        let sources = std::slice::from_ref(&self.source);
        sample_error(sources, Pick { source: 0, index: sample }, stage, fault)
    }
}
