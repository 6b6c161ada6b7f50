//! Reads and decodes every sample once and says which are bad, without making batches.
//!
//! Workers take runs of samples; what they find is handed over in the order of the samples, so
//! two checks of the same files report the same. Memory is shared as in the loader: a worker that
//! needs more than is left gives back all it has and stands in line holding nothing, and while
//! somebody stands in line the others give theirs back after each sample. So the first in line
//! is always served.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::plan::{decode_options, open_sources, sample_error};
use crate::buffer::Slab;
use crate::decode::{self, DecodeOptions, Decoder};
use crate::error::{Error, Fault, Result, SampleError, Stage};
use crate::image::Scratch;
use crate::order::Pick;
use crate::sample::{FieldKind, Location, Value};
use crate::source::Source;
use crate::spec::read::show_bytes;
use crate::spec::{Spec, Workers};
use crate::store::{Local, Room, Store};
use crate::tune;

/// Samples that a worker takes at once: some milliseconds of photos.
const RUN: u64 = 8;

/// How many runs may be done before the oldest one is: what is found in them is kept in memory.
const AHEAD: u64 = 1024;

/// A check beside other work should not push it out of memory; a photo of 24 million pixels
/// takes 72 MB.
const DEFAULT_MEMORY: u64 = 1_000_000_000;

/// What a check went through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verified {
    /// Samples that were checked.
    pub samples: u64,
    /// How many of them are bad.
    pub bad: u64,
    /// Bytes of the files that could be read.
    pub bytes: u64,
    /// Pixels decoded.
    pub pixels: u64,
}

/// A data set that can be checked: all samples of a spec's sources, also those that its `subset`
/// leaves out.
pub struct Verify {
    sources: Vec<Arc<dyn Source>>,
    decode: DecodeOptions,
    workers: usize,
    memory: u64,
}

impl Verify {
    /// Opens the sources. Of the rest of the spec, `decode`, `num_workers` and `memory` count.
    pub fn open(spec: &Spec) -> Result<Verify> {
        spec.check()?;
        let available = tune::memory_available();
        let asked = spec.memory.unwrap_or_else(|| {
            available.map_or(DEFAULT_MEMORY, |free| free / 4).clamp(256_000_000, DEFAULT_MEMORY)
        });
        Ok(Verify {
            sources: open_sources(spec, Vec::new())?,
            decode: decode_options(spec),
            workers: match spec.num_workers {
                Workers::Auto => tune::cores(),
                Workers::Count(count) => (count as usize).max(1),
            },
            memory: available.map_or(asked, |free| asked.min(free / 10 * 9)),
        })
    }

    /// Samples of all sources.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.sources.iter().map(|source| source.len()).sum()
    }

    /// Threads that will check.
    #[must_use]
    pub fn num_workers(&self) -> usize {
        self.workers
    }

    /// What the sources are called.
    #[must_use]
    pub fn source_names(&self) -> Vec<String> {
        self.sources.iter().map(|source| source.name()).collect()
    }

    /// Checks every sample. `progress` hears how many are done; `bad` gets the bad ones in their
    /// order and may end the check.
    pub fn run(
        &self,
        progress: &(dyn Fn(u64) + Sync),
        bad: &mut (dyn FnMut(SampleError) -> ControlFlow<()> + Send),
    ) -> Result<Verified> {
        let check = Check {
            verify: self,
            total: self.samples(),
            gate: Gate::new(self.memory),
            report: Mutex::new(Report { taken: 0, told: 0, done: BTreeMap::new(), bad, count: 0 }),
            told: Condvar::new(),
            stop: AtomicBool::new(false),
            samples: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            pixels: AtomicU64::new(0),
            progress,
        };
        std::thread::scope(|scope| {
            let mut started = 0;
            for number in 0..self.workers {
                let worker = std::thread::Builder::new().name(format!("feedline-{number}"));
                match worker.spawn_scoped(scope, || Checker::new(&check).run()) {
                    Ok(_) => started += 1,
                    // Fewer threads do the same work.
                    Err(_) if started > 0 => break,
                    Err(error) => {
                        return Err(Error::System(format!("cannot start a thread: {error}")));
                    }
                }
            }
            Ok(())
        })?;
        let bad = lock(&check.report).count;
        Ok(Verified {
            samples: check.samples.load(Relaxed),
            bad,
            bytes: check.bytes.load(Relaxed),
            pixels: check.pixels.load(Relaxed),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Report<'a> {
    /// The first run that nobody has taken.
    taken: u64,
    /// The first run that was not handed over.
    told: u64,
    done: BTreeMap<u64, Vec<SampleError>>,
    bad: &'a mut (dyn FnMut(SampleError) -> ControlFlow<()> + Send),
    count: u64,
}

struct Check<'a> {
    verify: &'a Verify,
    total: u64,
    gate: Gate,
    report: Mutex<Report<'a>>,
    told: Condvar,
    stop: AtomicBool,
    samples: AtomicU64,
    bytes: AtomicU64,
    pixels: AtomicU64,
    progress: &'a (dyn Fn(u64) + Sync),
}

impl Check<'_> {
    /// The next run, unless it is too far ahead of the oldest one: then `wait` decides.
    fn take(&self, wait: bool) -> Option<Option<u64>> {
        let mut report = lock(&self.report);
        loop {
            if self.stop.load(Relaxed) || report.taken * RUN >= self.total {
                return None;
            }
            if report.taken < report.told + AHEAD {
                report.taken += 1;
                return Some(Some(report.taken - 1));
            }
            if !wait {
                return Some(None);
            }
            report = self.told.wait(report).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self, run: u64, found: Vec<SampleError>) {
        let mut report = lock(&self.report);
        report.done.insert(run, found);
        loop {
            let next = report.told;
            let Some(found) = report.done.remove(&next) else { break };
            report.told += 1;
            for error in found {
                if self.stop.load(Relaxed) {
                    break;
                }
                report.count += 1;
                if (report.bad)(error).is_break() {
                    self.stop.store(true, Relaxed);
                }
            }
        }
        self.told.notify_all();
    }

    fn pick(&self, number: u64) -> Pick {
        let mut index = number;
        for (source, samples) in self.verify.sources.iter().map(|s| s.len()).enumerate() {
            if index < samples {
                return Pick { source, index };
            }
            index -= samples;
        }
        Pick { source: 0, index: 0 }
    }
}

/// The bytes that all workers may hold together.
struct Gate {
    limit: u64,
    state: Mutex<Line>,
    moved: Condvar,
}

#[derive(Default)]
struct Line {
    used: u64,
    next: u64,
    waiting: VecDeque<u64>,
}

impl Gate {
    fn new(limit: u64) -> Self {
        Gate { limit, state: Mutex::new(Line::default()), moved: Condvar::new() }
    }

    /// Raises what a worker holds from `held` to `need`, if that can be had at once.
    fn grow(&self, held: u64, need: u64) -> bool {
        let mut line = lock(&self.state);
        let fits = line.waiting.is_empty() && line.used - held + need <= self.limit;
        if fits {
            line.used = line.used - held + need;
        }
        fits
    }

    /// Waits for `need` bytes, at most the limit, while the worker holds nothing.
    fn wait(&self, need: u64) {
        let mut line = lock(&self.state);
        let ticket = line.next;
        line.next += 1;
        line.waiting.push_back(ticket);
        while line.waiting.front() != Some(&ticket) || line.used + need > self.limit {
            line = self.moved.wait(line).unwrap_or_else(PoisonError::into_inner);
        }
        line.waiting.pop_front();
        line.used += need;
        self.moved.notify_all();
    }

    fn give_back(&self, bytes: u64) {
        lock(&self.state).used -= bytes;
        self.moved.notify_all();
    }

    fn is_wanted(&self) -> bool {
        !lock(&self.state).waiting.is_empty()
    }
}

/// Why a sample is not done.
enum Trouble {
    Fault(Stage, Fault),
    /// So many bytes are needed and not to be had at once.
    Memory(u64),
}

/// One worker.
struct Checker<'a> {
    check: &'a Check<'a>,
    decoder: Decoder,
    encoded: Slab,
    scratch: Scratch,
    granted: u64,
    /// Bytes of the present sample.
    length: u64,
}

impl<'a> Checker<'a> {
    fn new(check: &'a Check<'a>) -> Self {
        Checker {
            check,
            decoder: Decoder::new(),
            encoded: Slab::default(),
            scratch: Scratch::default(),
            granted: 0,
            length: 0,
        }
    }

    fn run(mut self) {
        loop {
            let run = match self.check.take(false) {
                None => break,
                Some(Some(run)) => run,
                Some(None) => {
                    self.give_back();
                    let Some(Some(run)) = self.check.take(true) else { break };
                    run
                }
            };
            let mut found = Vec::new();
            for number in run * RUN..((run + 1) * RUN).min(self.check.total) {
                if self.check.stop.load(Relaxed) {
                    break;
                }
                let pick = self.check.pick(number);
                if let Err((stage, fault)) = self.sample(pick) {
                    found.push(sample_error(&self.check.verify.sources, pick, stage, fault));
                }
                // Once, also for a sample that was read again after it stood in line.
                self.check.bytes.fetch_add(std::mem::take(&mut self.length), Relaxed);
                let done = self.check.samples.fetch_add(1, Relaxed) + 1;
                (self.check.progress)(done);
                if self.check.gate.is_wanted() {
                    self.give_back();
                }
            }
            self.check.finish(run, found);
        }
        self.give_back();
    }

    fn give_back(&mut self) {
        self.encoded = Slab::default();
        self.scratch.release();
        self.check.gate.give_back(std::mem::take(&mut self.granted));
    }

    fn sample(&mut self, pick: Pick) -> Result<(), (Stage, Fault)> {
        loop {
            // A panic in a decoder is that sample's error. What it left behind is thrown away.
            let tried = catch_unwind(AssertUnwindSafe(|| self.fields(pick)));
            match tried {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(Trouble::Fault(stage, fault))) => return Err((stage, fault)),
                Ok(Err(Trouble::Memory(need))) => {
                    let limit = self.check.gate.limit;
                    if need > limit {
                        let text = format!(
                            "needs {} to decode, memory leaves {}: raise memory, or lower decode.max_pixels to refuse such images",
                            show_bytes(need),
                            show_bytes(limit)
                        );
                        return Err((Stage::Decode, Fault::TooLarge(text)));
                    }
                    self.give_back();
                    self.check.gate.wait(need);
                    self.granted = need;
                }
                Err(payload) => {
                    self.decoder = Decoder::new();
                    self.scratch = Scratch::default();
                    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
                    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
                    let text = text.unwrap_or_else(|| "unknown".to_owned());
                    return Err((Stage::Decode, Fault::Panic(text)));
                }
            }
        }
    }

    fn fields(&mut self, pick: Pick) -> Result<(), Trouble> {
        let check = self.check;
        let source = &check.verify.sources[pick.source];
        let read = |fault| Trouble::Fault(Stage::Read, fault);
        for (number, field) in source.fields().iter().enumerate() {
            let value = source.value(pick.index, number).map_err(read)?;
            if field.kind != FieldKind::EncodedImage {
                continue;
            }
            match value {
                Value::File(location) => {
                    // The encoded bytes leave `self` while they are used, so that the rest can
                    // be borrowed.
                    let mut encoded = std::mem::take(&mut self.encoded);
                    let done = self.read(&location, &mut encoded).and_then(|length| {
                        let held = encoded.len();
                        self.image(encoded.at_least(length).map_err(read)?, held)
                    });
                    self.encoded = encoded;
                    done?;
                }
                Value::Bytes(bytes) => self.image(bytes, 0)?,
                _ => return Err(read(Fault::Shape("is not an image".to_owned()))),
            }
        }
        Ok(())
    }

    fn read(&mut self, location: &Location<'_>, encoded: &mut Slab) -> Result<usize, Trouble> {
        struct Encoded<'a, 'b> {
            checker: &'a mut Checker<'b>,
            slab: &'a mut Slab,
            length: usize,
            short_of: Option<Trouble>,
        }
        impl Room for Encoded<'_, '_> {
            fn make(&mut self, bytes: u64) -> Result<&mut [u8], Fault> {
                let length = usize::try_from(bytes)
                    .map_err(|_| Fault::TooLarge(format!("has {bytes} bytes")))?;
                if length == 0 {
                    return Err(Fault::corrupt("image", "the file is empty"));
                }
                if let Err(trouble) = self.checker.reserve(length, self.slab.len(), 0) {
                    self.short_of = Some(trouble);
                    return Err(Fault::Cancelled);
                }
                self.length = length;
                self.slab.at_least(length)
            }
        }
        let mut room = Encoded { checker: self, slab: encoded, length: 0, short_of: None };
        let read = Local.read(location, &mut room);
        match (read, room.short_of) {
            (_, Some(trouble)) => Err(trouble),
            (Err(fault), None) => Err(Trouble::Fault(Stage::Read, fault)),
            (Ok(()), None) => {
                let length = room.length;
                self.length = length as u64;
                Ok(length)
            }
        }
    }

    fn image(&mut self, bytes: &[u8], encoded: usize) -> Result<(), Trouble> {
        let decode = |fault| Trouble::Fault(Stage::Decode, fault);
        let options = &self.check.verify.decode;
        let header = decode::probe(bytes, options).map_err(decode)?;
        // Bytes that lie in the source's own memory are not ours to count.
        let length = if encoded == 0 { 0 } else { bytes.len() };
        self.reserve(length, encoded, header.memory)?;
        self.decoder.decode(bytes, &header, options, &mut self.scratch).map_err(decode)?;
        self.check.pixels.fetch_add((header.height * header.width) as u64, Relaxed);
        Ok(())
    }

    /// Has memory granted for a sample of `length` bytes that takes `decoded` more, beside what
    /// is kept from earlier samples: `encoded` bytes and the scratch.
    fn reserve(&mut self, length: usize, encoded: usize, decoded: usize) -> Result<(), Trouble> {
        let kept = encoded.max(length).saturating_add(decoded.max(self.scratch.held())) as u64;
        if kept > self.granted {
            if !self.check.gate.grow(self.granted, kept) {
                // Waiting happens with nothing kept, and whether a sample is too large must not
                // depend on those before it.
                return Err(Trouble::Memory(length.saturating_add(decoded) as u64));
            }
            self.granted = kept;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of 60 grey images of very different sizes, every seventh of them cut.
    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("feedline-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        for number in 0..60usize {
            let side = 1 + number * number % 97 * 3;
            let mut bytes = format!("P5 {side} {side} 255\n").into_bytes();
            bytes.resize(bytes.len() + side * side, number as u8);
            bytes.truncate(bytes.len() - usize::from(number % 7 == 0));
            std::fs::write(folder.join(format!("{number:02}.pgm")), bytes).unwrap();
        }
        folder
    }

    #[test]
    fn finds_the_bad_ones_in_order_with_little_memory() {
        let folder = folder("verify");
        let wanted: Vec<u64> = (0..60).step_by(7).collect();
        // The largest sample takes 0.6 MB, so eight workers have to stand in line for 0.7 MB.
        for (workers, memory) in [(1, None), (8, None), (8, Some(700_000)), (3, Some(700_000))] {
            let spec = Spec {
                sources: vec![folder.clone().into()],
                num_workers: Workers::Count(workers),
                memory,
                ..Spec::default()
            };
            let mut found = Vec::new();
            let verified = Verify::open(&spec)
                .unwrap()
                .run(&|_| {}, &mut |error| {
                    found.push(error.index);
                    ControlFlow::Continue(())
                })
                .unwrap();
            assert_eq!(found, wanted, "{workers} workers, memory {memory:?}");
            assert_eq!((verified.samples, verified.bad), (60, wanted.len() as u64));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_too_large_does_not_depend_on_what_came_before() {
        let folder = folder("verify-history");
        let bad = |sources: Vec<crate::spec::SourceSpec>, workers| {
            let num_workers = Workers::Count(workers);
            let memory = Some(500_000);
            let spec = Spec { sources, num_workers, memory, ..Spec::default() };
            let mut found = Vec::new();
            let mut take = |error: SampleError| {
                found.push(error.path.unwrap());
                ControlFlow::Continue(())
            };
            Verify::open(&spec).unwrap().run(&|_| {}, &mut take).unwrap();
            found
        };
        // Each file by itself, through a manifest of one line, has no history.
        let mut alone = Vec::new();
        for number in 0..60 {
            let one = folder.join("one.csv");
            std::fs::write(&one, format!("path\n{number:02}.pgm\n")).unwrap();
            alone.extend(bad(vec![one.into()], 1));
        }
        // More than those that are cut, and not all: the limit lies among the sizes.
        assert!((10..60).contains(&alone.len()), "{}", alone.len());
        for workers in [1, 2, 3, 8] {
            assert_eq!(bad(vec![folder.clone().into()], workers), alone, "{workers} workers");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn ends_when_asked_and_names_what_does_not_fit() {
        let folder = folder("verify-end");
        let mut spec = Spec { sources: vec![folder.clone().into()], ..Spec::default() };
        let verify = Verify::open(&spec).unwrap();
        let verified = verify.run(&|_| {}, &mut |_| ControlFlow::Break(())).unwrap();
        assert_eq!(verified.bad, 1);
        spec.memory = Some(100_000);
        let mut reasons = Vec::new();
        let verify = Verify::open(&spec).unwrap();
        verify
            .run(&|_| {}, &mut |error| {
                reasons.push(error.to_string());
                ControlFlow::Continue(())
            })
            .unwrap();
        assert!(reasons.iter().any(|reason| reason.contains("raise memory")), "{reasons:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
