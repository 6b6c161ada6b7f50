//! Decoded pixels in a few large files, with an index: what `source/raw.rs` reads.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::buffer::ALIGNMENT;
use crate::catalog::{self, ListedFile};
use crate::error::{Error, Result};
use crate::sample::{RawIndex, RawRecord};

/// Bytes after which a new file is begun: few enough files to map them all, small enough to copy.
pub(crate) const SHARD: u64 = 1 << 30;

/// What those get who wait for one that failed; never the cause.
pub(crate) const OVER: &str = "another thread failed";

/// One image to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample<'a> {
    /// `height` rows of `width` pixels of `channels` bytes.
    pub pixels: &'a [u8],
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Channels of a pixel.
    pub channels: usize,
    /// Its labels: an int64, or the bits of a float32.
    pub labels: &'a [u64],
    /// What it was called.
    pub name: &'a [u8],
}

/// Writes samples from many threads; they lie in the order of their numbers.
pub(crate) struct RawWriter {
    folder: PathBuf,
    shard_bytes: u64,
    state: Mutex<RawWriterState>,
    turn: Condvar,
}

struct RawWriterState {
    /// The sample whose place is given out next.
    next: u64,
    failed: bool,
    shard: Option<(u32, Arc<File>)>,
    offset: u64,
    index: RawIndex,
}

impl RawWriter {
    /// Writes into `folder`, files of `shard_bytes` at most (or one sample).
    #[must_use]
    pub(crate) fn new(folder: &Path, labels: usize, shard_bytes: u64) -> RawWriter {
        let state = RawWriterState {
            next: 0,
            failed: false,
            shard: None,
            offset: 0,
            index: RawIndex::new(labels),
        };
        let (state, turn) = (Mutex::new(state), Condvar::new());
        RawWriter { folder: folder.to_owned(), shard_bytes, state, turn }
    }

    fn lock(&self) -> MutexGuard<'_, RawWriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, name: &str) -> impl FnOnce(std::io::Error) -> Error {
        let path = self.folder.join(name);
        move |source| Error::Io { what: "cannot write", path, source }
    }

    /// Writes sample `number`, or leaves it out. Waits until all before it have their places, so
    /// every number must come, and of numbers that are being made the lowest first.
    pub(crate) fn put(&self, number: u64, sample: Option<Sample<'_>>) -> Result<()> {
        let mut state = self.lock();
        while state.next != number && !state.failed {
            state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.failed {
            return Err(Error::System(OVER.to_owned()));
        }
        let place = sample.map(|sample| self.place(&mut state, sample)).transpose();
        state.next += 1;
        state.failed |= place.is_err();
        drop(state);
        self.turn.notify_all();
        if let (Some((record, file)), Some(sample)) = (place?, sample) {
            // The place is this sample's alone: the lock is not needed to write there.
            file.write_all_at(sample.pixels, record.offset)
                .map_err(self.failed(&RawIndex::shard(record.shard)))?;
        }
        Ok(())
    }

    /// A place for the next sample, in a new file if need be.
    fn place(
        &self,
        state: &mut RawWriterState,
        sample: Sample<'_>,
    ) -> Result<(RawRecord, Arc<File>)> {
        let length = sample.pixels.len() as u64;
        let full = state.offset > 0 && state.offset + length > self.shard_bytes;
        let number = match &state.shard {
            Some((number, file)) if !full => (*number, Some(file.clone())),
            Some((number, _)) => (number + 1, None),
            None => (0, None),
        };
        let (number, file) = match number {
            (number, Some(file)) => (number, file),
            (number, None) => {
                let name = RawIndex::shard(number);
                let file = File::create(self.folder.join(&name)).map_err(self.failed(&name))?;
                let file = Arc::new(file);
                state.shard = Some((number, file.clone()));
                state.offset = 0;
                (number, file)
            }
        };
        let record = RawRecord {
            shard: number,
            height: sample.height as u32,
            width: sample.width as u32,
            channels: sample.channels as u32,
            offset: state.offset,
        };
        if record.elements() != Some(length) {
            return Err(Error::System(format!("{length} bytes are not the pixels of {record:?}")));
        }
        state.index.push(record, sample.labels, sample.name);
        state.offset = (state.offset + length).next_multiple_of(ALIGNMENT as u64);
        Ok((record, file))
    }

    /// Frees those that wait for their turn: the work is over.
    pub(crate) fn abort(&self) {
        self.lock().failed = true;
        self.turn.notify_all();
    }

    /// Writes the index, has all of it reach the disk, and gives the files with their checksums
    /// as they are read back, and the number of samples.
    pub(crate) fn finish(self) -> Result<(Vec<ListedFile>, u64)> {
        let state = self.lock();
        let (index, names) = state.index.files();
        let shards = state.shard.as_ref().map_or(0, |(last, _)| last + 1);
        for (name, bytes) in [(RawIndex::FILE, &index), (RawIndex::NAMES, &names)] {
            fs::write(self.folder.join(name), bytes).map_err(self.failed(name))?;
        }
        let all = (0..shards).map(RawIndex::shard);
        let all = all.chain([RawIndex::FILE.to_owned(), RawIndex::NAMES.to_owned()]);
        let mut entries = Vec::new();
        for name in all {
            let path = self.folder.join(&name);
            File::open(&path).and_then(|file| file.sync_all()).map_err(self.failed(&name))?;
            let (bytes, xxh3) = catalog::checksum(&path)?;
            entries.push(ListedFile::new(Path::new(&name), bytes, xxh3));
        }
        Ok((entries, state.index.len()))
    }
}
