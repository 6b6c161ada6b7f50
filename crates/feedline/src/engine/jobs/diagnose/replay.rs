//! What is handed over again: the same batches of a loader, bytes from memory, rows, batches.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use crate::deliver::Batch;
use crate::engine::loader::Loader;
use crate::engine::plan::Plan;
use crate::engine::recorded::Recorded;
use crate::error::{Fault, Result};
use crate::sample::{Grown, Location, Room};
use crate::store::{Entry, Handle, Hint, Metadata, Sidecar, Store};
use crate::tune::Feed;

/// A loader that makes the same batches again and again: an epoch is a stretch of one of its own.
pub(super) struct Again {
    loader: Loader,
    start: (u64, u64),
    /// Batches of the stretch; without a number, all that follow, epoch after epoch.
    count: Option<u64>,
    given: u64,
    held: Option<Batch>,
}

impl Again {
    pub(super) fn new(loader: Loader, start: (u64, u64), count: Option<u64>) -> Self {
        Again { loader, start, count, given: 0, held: None }
    }

    /// The same with so many batches.
    pub(super) fn limited(mut self, count: u64) -> Self {
        self.held = None;
        Again { count: Some(count), given: 0, ..self }
    }

    /// Does something with the batch in hand.
    pub(super) fn with_batch(&self, work: impl FnOnce(&Batch)) {
        if let Some(batch) = &self.held {
            work(batch);
        }
    }
}

impl Feed for Again {
    fn begin(&mut self) -> Result<()> {
        self.held = None;
        if self.count.is_some() || self.given == 0 {
            self.loader.place_at(self.start.0, self.start.1);
        }
        self.given = 0;
        self.loader.begin_epoch();
        Ok(())
    }

    fn next(&mut self) -> Result<Option<u64>> {
        self.held = None;
        if self.count.is_some_and(|count| self.given >= count) {
            return Ok(None);
        }
        let mut next = self.loader.next_batch().transpose()?;
        if next.is_none() && self.count.is_some() {
            // The stretch goes over the end of an epoch.
            self.loader.begin_epoch();
            next = self.loader.next_batch().transpose()?;
        }
        self.given += u64::from(next.is_some());
        self.held = next;
        Ok(self.held.as_ref().map(|batch| batch.rows() as u64))
    }
}

type ReadKey = (PathBuf, PathBuf, Option<(u64, u64)>);

/// Keeps what is read, as long as there is room, and gives it from memory the next time.
pub(super) struct Remembering {
    inner: Arc<dyn Store>,
    kept: RwLock<HashMap<ReadKey, Arc<[u8]>>>,
    used: AtomicU64,
    limit: u64,
    /// Reads that were kept, and those that found no room.
    reads: (AtomicU64, AtomicU64),
}

impl Remembering {
    pub(super) fn new(inner: Arc<dyn Store>, limit: u64) -> Self {
        let reads = (AtomicU64::new(0), AtomicU64::new(0));
        Remembering { inner, kept: RwLock::default(), used: AtomicU64::new(0), limit, reads }
    }

    fn is_full(&self) -> bool {
        self.used.load(Relaxed) > self.limit
    }

    /// The share of the reads that are kept: all of them, unless there was more than fits.
    pub(super) fn kept_share(&self) -> f64 {
        let (kept, lost) = (self.reads.0.load(Relaxed), self.reads.1.load(Relaxed));
        if lost == 0 { 1.0 } else { kept as f64 / (kept + lost) as f64 }
    }
}

impl Store for Remembering {
    fn open(&self, path: &Path) -> std::io::Result<Handle> {
        self.inner.open(path)
    }

    fn list(
        &self,
        folder: &Path,
        each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
    ) -> std::io::Result<()> {
        self.inner.list(folder, each)
    }

    fn find(&self, path: &Path) -> std::io::Result<Metadata> {
        self.inner.find(path)
    }

    fn reopen(&self, path: &Path, stamp: u64) -> Result<Handle, Fault> {
        self.inner.reopen(path, stamp)
    }

    fn sidecar(&self, path: &Path, ending: &str, place: Sidecar) -> Option<PathBuf> {
        self.inner.sidecar(path, ending, place)
    }

    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        let part = (location.root.to_owned(), location.path.to_owned(), location.range);
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner).get(&part).cloned();
        if let Some(bytes) = kept {
            room.make(bytes.len() as u64)?.copy_from_slice(&bytes);
            return Ok(());
        }
        if self.is_full() {
            self.reads.1.fetch_add(1, Relaxed);
            return self.inner.read(location, room);
        }
        let mut grown = Grown::at_most(self.limit.saturating_sub(self.used.load(Relaxed)));
        match self.inner.read(location, &mut grown) {
            Ok(()) => {}
            // What is too large to be kept may still be what the loader reads.
            Err(Fault::TooLarge(_)) => {
                self.reads.1.fetch_add(1, Relaxed);
                return self.inner.read(location, room);
            }
            Err(fault) => return Err(fault),
        }
        room.make(grown.bytes.len() as u64)?.copy_from_slice(&grown.bytes);
        self.used.fetch_add(grown.bytes.len() as u64, Relaxed);
        self.reads.0.fetch_add(1, Relaxed);
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        kept.insert(part, grown.bytes.into());
        Ok(())
    }

    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        self.inner.size(location)
    }

    fn hint(&self, location: &Location<'_>) -> Hint {
        self.inner.hint(location)
    }
}

/// A final batch, copied.
struct KeptBatch {
    /// All fields of one shape, and what the others hold.
    bytes: Vec<u8>,
    /// Rows of the image.
    images: Vec<std::ops::Range<usize>>,
    rows: u64,
}

/// Final batches.
#[derive(Default)]
pub(super) struct KeptBatches {
    batches: Vec<KeptBatch>,
    bytes: u64,
}

impl KeptBatches {
    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps a copy.
    pub(super) fn push(&mut self, plan: &Plan, batch: &Batch) {
        let mut kept =
            KeptBatch { bytes: Vec::new(), images: Vec::new(), rows: batch.rows() as u64 };
        let image = plan.image.as_ref().map(|image| image.field);
        for field in 0..batch.fields().len() {
            let start = kept.bytes.len();
            if let Some(array) = batch.array(field) {
                kept.bytes.extend_from_slice(array.bytes);
                let row_bytes = batch.fields()[field].row_bytes;
                if image == Some(field) {
                    kept.images.extend((0..batch.rows()).map(|row| {
                        let at = start + row * row_bytes;
                        at..at + row_bytes
                    }));
                }
            } else if let Some(ragged) = batch.ragged(field) {
                (0..ragged.rows).for_each(|row| kept.bytes.extend_from_slice(ragged.bytes(row)));
            }
        }
        self.bytes += kept.bytes.len() as u64;
        self.batches.push(kept);
    }

    /// The rows of images, for a plan that writes them in place of transforming.
    pub(super) fn recorded(&self) -> Option<Recorded> {
        let mut recorded = Recorded::default();
        for batch in &self.batches {
            for range in &batch.images {
                recorded.rows.push(batch.bytes.get(range.clone())?.into());
            }
        }
        (!recorded.rows.is_empty()).then_some(recorded)
    }
}

/// Hands copies of final batches over.
pub(super) struct Replayed {
    kept: KeptBatches,
    next: usize,
    held: Vec<u8>,
}

impl Replayed {
    pub(super) fn new(kept: KeptBatches) -> Self {
        Replayed { kept, next: 0, held: Vec::new() }
    }
}

impl Feed for Replayed {
    fn begin(&mut self) -> Result<()> {
        self.next = 0;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<u64>> {
        let Some(batch) = self.kept.batches.get(self.next) else { return Ok(None) };
        self.next += 1;
        self.held.clear();
        self.held.extend_from_slice(&batch.bytes);
        Ok(Some(batch.rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Memory, conformance};

    #[test]
    fn what_is_remembered_keeps_the_promises_of_a_store() {
        // With room for all, for some, and for nothing.
        for limit in [1 << 30, 1000, 0] {
            let memory = Arc::new(Memory::default());
            let put = |path: &Path, bytes: &[u8]| memory.put(path, bytes);
            let remembering = Remembering::new(memory.clone(), limit);
            let kept = conformance::check(&remembering, Path::new("/set"), &put);
            assert_eq!(kept, Ok(()), "{limit}");
        }
    }
}
