//! Looks at a data set: sizes of all files, headers of some, labels of all.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::plan::{decode_options, label_field, open_sources, sample_error};
use crate::decode::{self, DecodeOptions, Format};
use crate::error::{Error, Fault, Result, SampleError, Stage};
use crate::order::Pick;
use crate::sample::{DType, FieldKind, Location, Room, Value};
use crate::source::Source;
use crate::spec::read::show_bytes;
use crate::spec::{Spec, Workers};
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

/// Beyond this many values, whole numbers are identities rather than classes.
const MOST_VALUES: usize = 1 << 16;

/// A data set that can be looked at: all samples of a spec's sources.
pub struct Inspect {
    sources: Vec<Arc<dyn Source>>,
    decode: DecodeOptions,
    workers: usize,
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
}

/// One source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFacts {
    /// What it is called.
    pub name: String,
    /// Its samples.
    pub samples: u64,
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
        Ok(Inspect {
            sources: open_sources(spec, Vec::new())?,
            decode: decode_options(spec),
            workers: match spec.num_workers {
                Workers::Auto => tune::cores(),
                Workers::Count(count) => (count as usize).max(1),
            },
        })
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
        let image = self.sources[0]
            .fields()
            .iter()
            .position(|field| !matches!(field.kind, FieldKind::Array { .. }));
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
        let (fields, classes) = self.labels();
        Ok(Inspection {
            samples: total,
            sources: (self.sources.iter())
                .map(|source| SourceFacts { name: source.name(), samples: source.len() })
                .collect(),
            fields,
            classes,
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
            Ok(Value::File(location)) => match Local.size(&location) {
                Ok(size) => {
                    found.sizes.push(size);
                    if chosen { self.header(&location, size).map(Some) } else { Ok(None) }
                }
                Err(fault) => Err((Stage::Read, fault)),
            },
            // What is packed as pixels has a size, but neither a file nor a format.
            Ok(Value::Pixels { bytes, .. }) => {
                found.sizes.push(bytes.len() as u64);
                Ok(None)
            }
            Ok(Value::Bytes(bytes)) => {
                found.sizes.push(bytes.len() as u64);
                if chosen { self.probe(bytes, None).map(Some) } else { Ok(None) }
            }
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

    fn header(&self, location: &Location<'_>, size: u64) -> Result<Seen, (Stage, Fault)> {
        let name = location.path.extension().and_then(|extension| extension.to_str());
        let (start, _) = location.range.unwrap_or((0, size));
        let mut bytes = Bytes(Vec::new());
        let mut read = |length: u64| {
            let part = Location { range: Some((start, length)), ..*location };
            Local.read(&part, &mut bytes).map_err(|fault| (Stage::Read, fault))?;
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

    /// The fields with the ranges of their values, and how many samples each class has.
    fn labels(&self) -> (Vec<FieldFacts>, Vec<(String, u64)>) {
        let fields = self.sources[0].fields();
        let label = label_field(fields);
        let mut classes = Vec::new();
        let facts = fields.iter().enumerate().map(|(number, field)| {
            let mut facts = FieldFacts {
                name: field.name.clone(),
                kind: field.kind.clone(),
                range: None,
                distinct: None,
            };
            let FieldKind::Array { dtype, shape } = &field.kind else { return facts };
            if !shape.is_empty() || !matches!(dtype, DType::I64 | DType::F32) {
                return facts;
            }
            let mut values: Option<BTreeMap<i64, u64>> = (*dtype == DType::I64).then(BTreeMap::new);
            for source in &self.sources {
                for index in 0..source.len() {
                    let value = match source.value(index, number) {
                        Ok(Value::Int(value)) => {
                            if let Some(values) = &mut values {
                                *values.entry(value).or_default() += 1;
                            }
                            value as f64
                        }
                        Ok(Value::Float(value)) => f64::from(value),
                        _ => continue,
                    };
                    if values.as_ref().is_some_and(|values| values.len() > MOST_VALUES) {
                        values = None;
                    }
                    let (low, high) = facts.range.unwrap_or((value, value));
                    facts.range = Some((low.min(value), high.max(value)));
                }
            }
            facts.distinct = values.as_ref().map(|values| values.len() as u64);
            if let Some(values) = values.filter(|_| label == Some(number)) {
                let names = self.sources[0].classes();
                classes = if names.is_empty() {
                    values.iter().map(|(value, count)| (value.to_string(), *count)).collect()
                } else {
                    let count = |number| values.get(&(number as i64)).copied().unwrap_or(0);
                    names.iter().enumerate().map(|(n, name)| (name.clone(), count(n))).collect()
                };
            }
            facts
        });
        let facts = facts.collect();
        (facts, classes)
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
