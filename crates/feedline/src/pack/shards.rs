//! Records in files of a limited size, one after the other: `NAME-000000.tar`, `NAME-000001.tar`.

use std::fs;
use std::path::{Path, PathBuf};

use super::record::{Record, RecordWriter, WriteOptions};
use crate::catalog::{self, ListedFile, Shard};
use crate::error::{Error, Result};
use crate::sample::Field;
use crate::spec::SourceFormat;

/// Bytes after which a new shard is begun when nothing else is asked for: few enough files to
/// list and keep open, small enough to copy and to spread.
pub const SHARD_BYTES: u64 = 256_000_000;

/// When a shard is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// It holds so many bytes at most, or one sample.
    pub bytes: u64,
    /// It holds so many samples at most.
    pub samples: u64,
}

impl Default for Limit {
    fn default() -> Self {
        Limit { bytes: SHARD_BYTES, samples: u64::MAX }
    }
}

impl Limit {
    /// One shard for all.
    pub const NONE: Limit = Limit { bytes: u64::MAX, samples: u64::MAX };
}

/// What the shards are.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Where they lie.
    pub folder: PathBuf,
    /// Their format.
    pub format: SourceFormat,
    /// What every sample holds.
    pub fields: Vec<Field>,
    /// How they are written.
    pub options: WriteOptions,
    /// When one is full.
    pub limit: Limit,
    /// What shard number n is called in the folder.
    pub names: Names,
}

/// What shards are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Names {
    /// There is one, of this name.
    One(String),
    /// A number of so many digits between these.
    Numbered(String, usize, String),
}

impl Names {
    /// The name of shard `number`.
    #[must_use]
    pub(crate) fn name(&self, number: u64) -> String {
        match self {
            Names::One(name) => name.clone(),
            Names::Numbered(before, digits, after) => format!("{before}{number:0digits$}{after}"),
        }
    }
}

struct Open {
    writer: Box<dyn RecordWriter>,
    number: u64,
    samples: u64,
}

/// A shard that gets no more samples.
pub(crate) struct Full {
    open: Open,
    path: PathBuf,
    name: String,
}

/// A shard that is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finished {
    /// Its number.
    pub number: u64,
    /// What it is.
    pub shard: Shard,
    /// Its files with their checksums, as they are read back.
    pub files: Vec<ListedFile>,
}

/// Writes records into shards. The same records give the same shards.
pub(crate) struct Shards {
    plan: Plan,
    next: u64,
    open: Option<Open>,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

impl Shards {
    /// Begins with shard number `first`.
    #[must_use]
    pub(crate) fn new(plan: Plan, first: u64) -> Shards {
        Shards { plan, next: first, open: None }
    }

    /// True when the record will begin a new shard.
    fn is_full(&self, record: &Record<'_>) -> bool {
        let Some(open) = &self.open else { return true };
        let bytes: usize = record.values.iter().map(|value| value.bytes.len()).sum();
        let Limit { bytes: most, samples } = self.plan.limit;
        open.samples > 0
            && (open.samples >= samples || open.writer.bytes().saturating_add(bytes as u64) > most)
    }

    /// Adds a sample. A shard that was full comes back, to be finished by whoever has the time.
    pub(crate) fn put(&mut self, record: &Record<'_>) -> Result<Option<Full>> {
        let mut full = None;
        if self.is_full(record) {
            full = self.end();
            let number = self.next;
            self.next += 1;
            let path = self.plan.folder.join(self.plan.names.name(number));
            let plan = &self.plan;
            let writer = super::create(plan.format, &path, &plan.fields, &plan.options)?;
            self.open = Some(Open { writer, number, samples: 0 });
        }
        if let Some(open) = &mut self.open {
            open.writer.put(record)?;
            open.samples += 1;
        }
        Ok(full)
    }

    /// The last shard, if any has begun.
    pub(crate) fn end(&mut self) -> Option<Full> {
        let open = self.open.take()?;
        let name = self.plan.names.name(open.number);
        Some(Full { open, path: self.plan.folder.join(&name), name })
    }
}

impl Full {
    /// Has it reach the disk, and gives its name.
    pub(crate) fn close(self) -> Result<String> {
        self.open.writer.finish()?;
        Ok(self.name)
    }

    /// Has it reach the disk, and reads it back for its checksum.
    pub(crate) fn finish(self) -> Result<Finished> {
        let Full { open, path, name } = self;
        open.writer.finish()?;
        let mut files = Vec::new();
        list(&path, Path::new(&name), &mut files)?;
        let bytes = files.iter().map(|file| file.bytes).sum();
        let shard = Shard { path: name, samples: open.samples, bytes };
        Ok(Finished { number: open.number, shard, files })
    }
}

/// The file at `path`, or all files below it, sorted.
fn list(path: &Path, name: &Path, files: &mut Vec<ListedFile>) -> Result<()> {
    if !fs::metadata(path).map_err(failed("cannot open", path))?.is_dir() {
        let (bytes, xxh3) = catalog::checksum(path)?;
        files.push(ListedFile::new(name, bytes, xxh3));
        return Ok(());
    }
    let mut names = fs::read_dir(path)
        .and_then(|entries| {
            entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<Vec<_>, _>>()
        })
        .map_err(failed("cannot list", path))?;
    names.sort();
    // Folders are as deep as the writer made them.
    names.iter().try_for_each(|inner| list(&path.join(inner), &name.join(inner), files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers() {
        let names = Names::Numbered("photos-".to_owned(), 6, ".tar".to_owned());
        assert_eq!(names.name(12), "photos-000012.tar");
        assert_eq!(names.name(12_345_678), "photos-12345678.tar");
        assert_eq!(Names::One("x.h5".to_owned()).name(0), "x.h5");
    }
}
