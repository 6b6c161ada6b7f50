//! Samples as records of a format, in shards: written in their order by whoever made them, noted
//! in the journal when a shard is on the disk.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::catalog::{self, ListedFile, Shard};
use crate::error::{Error, Result};
use crate::pack::destination::{Destination, JOURNAL};
use crate::pack::raw::OVER;
use crate::pack::record::Record;
use crate::pack::shards::{Finished, Full, Plan, Shards};

/// What became of some samples, beside being written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Noted {
    /// Bytes of the originals.
    pub(super) before: u64,
    /// Images that are as they were, by reason: how many, and one of them.
    pub(super) unchanged: BTreeMap<String, (u64, PathBuf)>,
    /// Samples that were left out: their numbers in the source, what they are called and why.
    pub(super) bad: BTreeMap<u64, (PathBuf, String)>,
    /// How many were left out.
    pub(super) left_out: u64,
}

/// How many reasons, and how many samples that were left out, are kept by name; all are counted.
const KEPT: usize = 20;

/// A name for messages: the journal holds none that are not UTF-8.
fn shown(path: &Path) -> PathBuf {
    path.to_string_lossy().into_owned().into()
}

impl Noted {
    pub(super) fn unchanged(&mut self, reason: String, count: u64, path: PathBuf) {
        let path = shown(&path);
        let full = self.unchanged.len() >= KEPT && !self.unchanged.contains_key(&reason);
        let reason = if full { "other reasons".to_owned() } else { reason };
        self.unchanged.entry(reason).or_insert((0, path)).0 += count;
    }

    pub(super) fn left_out(&mut self, sample: u64, path: PathBuf, reason: String) {
        self.left_out += 1;
        self.bad.insert(sample, (shown(&path), reason));
        if self.bad.len() > KEPT {
            self.bad.pop_last();
        }
    }

    /// Adds what another has noted.
    pub(super) fn append(&mut self, other: &Noted) {
        self.before += other.before;
        for (reason, (count, path)) in &other.unchanged {
            self.unchanged(reason.clone(), *count, path.clone());
        }
        for (sample, (path, reason)) in &other.bad {
            self.left_out(*sample, path.clone(), reason.clone());
        }
        self.left_out += other.left_out - other.bad.len() as u64;
    }
}

/// A shard that is on the disk: a line of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    number: u64,
    pub(super) shard: Shard,
    files: Vec<ListedFile>,
    /// The first sample, in the order of writing, that is not in it.
    pub(super) end: u64,
    pub(super) noted: Noted,
}

/// Where records go, from many threads.
pub(super) struct Sink {
    folder: PathBuf,
    state: Mutex<SinkState>,
    turn: Condvar,
}

struct SinkState {
    /// The sample that is written next.
    next: u64,
    failed: bool,
    shards: Shards,
    noted: Noted,
    journal: File,
    lines: Vec<Line>,
}

fn over() -> Error {
    Error::System(OVER.to_owned())
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

impl Sink {
    /// Goes on after the shards that earlier work of the same job has finished; the rest of it is
    /// thrown away. They come back too.
    pub(super) fn open(destination: &Destination, plan: Plan) -> Result<(Sink, Vec<Line>)> {
        let folder = destination.folder().to_owned();
        let path = folder.join(JOURNAL);
        let lines = read_journal(&path, &folder);
        let kept: Vec<&str> = lines.iter().map(|line| line.shard.path.as_str()).collect();
        destination.clear_but(&|name| kept.iter().any(|kept| name == *kept))?;
        let mut text = String::new();
        for line in &lines {
            text += &to_text(line)?;
        }
        std::fs::write(&path, text).map_err(failed("cannot write", &path))?;
        let journal = OpenOptions::new().append(true).open(&path);
        let state = SinkState {
            next: lines.last().map_or(0, |line| line.end),
            failed: false,
            shards: Shards::new(plan, lines.len() as u64),
            noted: Noted::default(),
            journal: journal.map_err(failed("cannot write", &path))?,
            lines: lines.clone(),
        };
        Ok((Sink { folder, state: Mutex::new(state), turn: Condvar::new() }, lines))
    }

    fn lock(&self) -> MutexGuard<'_, SinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes sample `number` of the order, or leaves it out. Waits until all before it are
    /// written, so every number must come, and of numbers that are being made the lowest first.
    /// `note` takes down what else there is to say of it.
    pub(super) fn put(
        &self,
        number: u64,
        record: Option<&Record<'_>>,
        note: &dyn Fn(&mut Noted),
    ) -> Result<()> {
        let mut state = self.lock();
        while state.next != number && !state.failed {
            state = self.turn.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.failed {
            return Err(over());
        }
        let put = record.map_or(Ok(None), |record| state.shards.put(record));
        // A shard that is full holds nothing of this sample.
        let full = put.map(|full| Some((full?, std::mem::take(&mut state.noted))));
        note(&mut state.noted);
        state.next += 1;
        state.failed |= full.is_err();
        drop(state);
        self.turn.notify_all();
        match full? {
            Some((full, noted)) => self.finish(full, number, noted),
            None => Ok(()),
        }
    }

    /// Has a shard reach the disk and notes it, while others go on with the next one.
    fn finish(&self, full: Full, end: u64, noted: Noted) -> Result<()> {
        let Finished { number, shard, files } = full.finish()?;
        let line = Line { number, shard, files, end, noted };
        let text = to_text(&line)?;
        let mut state = self.lock();
        let written = state.journal.write_all(text.as_bytes());
        state.lines.push(line);
        written.map_err(failed("cannot write", &self.folder.join(JOURNAL)))
    }

    /// Frees those that wait for their turn: the work is over.
    pub(super) fn abort(&self) {
        self.lock().failed = true;
        self.turn.notify_all();
    }

    /// Finishes the last shard, and gives all of them in their order, with their files.
    pub(super) fn end(self) -> Result<(Vec<Shard>, Vec<ListedFile>)> {
        let (last, noted, next) = {
            let mut state = self.lock();
            (state.shards.end(), std::mem::take(&mut state.noted), state.next)
        };
        if let Some(full) = last {
            self.finish(full, next, noted)?;
        }
        let mut state = self.lock();
        let mut lines = std::mem::take(&mut state.lines);
        lines.sort_by_key(|line| line.number);
        Ok(lines.into_iter().fold((Vec::new(), Vec::new()), |(mut shards, mut files), line| {
            shards.push(line.shard);
            files.extend(line.files);
            (shards, files)
        }))
    }
}

fn to_text(line: &Line) -> Result<String> {
    let text = serde_json::to_string(line).map_err(|error| Error::System(error.to_string()))?;
    Ok(text + "\n")
}

/// The shards from the first on that are noted and there with their lengths.
fn read_journal(path: &Path, folder: &Path) -> Vec<Line> {
    let Ok(lines) = catalog::lines(path) else { return Vec::new() };
    // The last line may be cut: its shard is written again.
    let mut lines: Vec<Line> =
        lines.map_while(|line| serde_json::from_str(&line.ok()?).ok()).collect();
    lines.sort_by_key(|line| line.number);
    let is_there = |entry: &ListedFile| {
        let found = std::fs::metadata(folder.join(entry.path()));
        found.is_ok_and(|metadata| metadata.len() == entry.bytes)
    };
    let whole =
        |(at, line): &(usize, &Line)| line.number == *at as u64 && line.files.iter().all(is_there);
    let count = lines.iter().enumerate().take_while(whole).count();
    lines.truncate(count);
    lines
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn names_that_are_not_utf8_can_be_noted() {
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(b"a\xff.jpg"));
        let mut noted = Noted::default();
        noted.unchanged("reason".to_owned(), 1, path.clone());
        noted.left_out(0, path, "reason".to_owned());
        let text = serde_json::to_string(&noted).unwrap();
        assert_eq!(serde_json::from_str::<Noted>(&text).unwrap(), noted);
    }
}
