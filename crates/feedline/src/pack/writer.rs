//! For programs that produce data themselves: samples in, files of a format out.

use std::collections::HashSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::datum::Datum;
use super::destination::{lock, make_own};
use super::record::{Given, Record, WriteOptions};
use super::shards::{Full, Limit, Names, Plan, Shards};
use crate::error::{Error, Result};
use crate::sample::Field;
use crate::spec::SourceFormat;

/// How files are written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WriterOptions {
    /// Their format; as the path ends if not given.
    pub format: Option<SourceFormat>,
    /// When a shard is full, for many of them; all samples go into one file if not given, unless
    /// the path is a pattern.
    pub shard: Option<Limit>,
    /// What the format leaves open.
    pub write: WriteOptions,
}

/// What a writer has written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Samples of all files.
    pub samples: u64,
    /// The files (or folders), in their order.
    pub files: Vec<PathBuf>,
}

/// Writes samples to `out.tar`, or to shards `out-000000.tar` and so on if the path is a pattern
/// as `out-{000000..}.tar` or `out-%06d.tar`, or if shards have a limit.
///
/// Nothing is seen under the final names before [`Writer::finish`]; a writer that is dropped leaves
/// nothing behind.
///
/// ```no_run
/// use feedline::pack::{Datum, Writer, WriterOptions};
/// let mut writer = Writer::create("out.tar".as_ref(), None, WriterOptions::default())?;
/// let photo = std::fs::read("photo.jpg").unwrap();
/// writer.write(None, &[("image", Datum::Image(&photo)), ("label", Datum::Int(3))])?;
/// assert_eq!(writer.finish()?.samples, 1);
/// # Ok::<(), feedline::Error>(())
/// ```
pub struct Writer {
    path: PathBuf,
    format: SourceFormat,
    names: Names,
    limit: Limit,
    options: WriteOptions,
    /// As declared, or of the first sample.
    fields: Option<Vec<Field>>,
    shards: Option<Shards>,
    /// Names of the files that are whole.
    files: Vec<String>,
    samples: u64,
    /// Hashes of all keys.
    keys: HashSet<u64>,
    /// After a failure nothing more is written.
    failed: bool,
    making: Making,
}

/// The folder that files are written in, beside their final place; gone when this is dropped.
struct Making {
    folder: PathBuf,
    _lock: File,
    /// The process that made it. A fork has a copy, but the folder is not its own.
    process: u32,
}

impl Drop for Making {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // What a fork has buffered is the first process's to write, into files that both share.
        if self.making.process != std::process::id() {
            std::mem::forget(self.shards.take());
        }
    }
}

fn refused(path: &Path, problem: impl Into<String>) -> Error {
    Error::Source { what: path.display().to_string(), problem: problem.into() }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

/// `out-{000000..}.tar`, also with an end, or `out-%06d.tar`.
fn pattern(name: &str) -> Option<Names> {
    let numbered = |before: &str, digits: usize, after: &str| {
        Some(Names::Numbered(before.to_owned(), digits, after.to_owned()))
    };
    if let Some((before, rest)) = name.split_once('{')
        && let Some((inside, after)) = rest.split_once('}')
        && let Some((first, last)) = inside.split_once("..")
    {
        let zeros = !first.is_empty() && first.bytes().all(|byte| byte == b'0');
        let digits = last.bytes().all(|byte| byte.is_ascii_digit());
        return (zeros && digits).then(|| numbered(before, first.len(), after)).flatten();
    }
    let (before, rest) = name.split_once('%')?;
    let (digits, after) = rest.split_once('d')?;
    let digits = digits.strip_prefix('0')?.parse().ok().filter(|digits| *digits <= 18)?;
    numbered(before, digits, after)
}

/// The format that a name ends in, and the compression of a whole file.
fn format_of(name: &str) -> Option<(SourceFormat, Option<&'static str>)> {
    let name = name.to_ascii_lowercase();
    let ends = |ending: &str| name.strip_suffix(ending).is_some_and(|rest| rest.ends_with('.'));
    Some(match () {
        () if ends("hdf5") => (SourceFormat::Hdf5, None),
        () if ends("tfrecords") => (SourceFormat::Tfrecord, None),
        () if ends("feather") => (SourceFormat::Arrow, None),
        () if ends("tar.gz") || ends("tgz") => (SourceFormat::Tar, Some("gzip")),
        () if ends("tar.zst") => (SourceFormat::Tar, Some("zstd")),
        () => (SourceFormat::writable().find(|format| ends(format.extension()))?, None),
    })
}

impl Writer {
    /// Makes ready to write; the first file begins with the first sample. `fields` are taken from
    /// it if not declared: every sample must then have the same ones.
    pub fn create(
        path: &Path,
        fields: Option<Vec<Field>>,
        options: WriterOptions,
    ) -> Result<Writer> {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return Err(refused(path, "is no name for a file"));
        };
        let (named, compression) = match format_of(name) {
            Some((format, compression)) => (Some(format), compression),
            None => (None, None),
        };
        let mut write = options.write;
        if write.compression.is_none() && options.format.is_none_or(|given| named == Some(given)) {
            write.compression = compression.map(str::to_owned);
        }
        let Some(format) = options.format.or(named) else {
            let endings = SourceFormat::writable().map(|format| format!(".{}", format.extension()));
            let endings = endings.collect::<Vec<_>>().join(", ");
            return Err(refused(
                path,
                format!("has no ending that is known: give the format, or one of {endings}"),
            ));
        };
        let (names, limit) = match (pattern(name), options.shard) {
            (Some(names), limit) => (names, limit.unwrap_or_default()),
            (None, None) => (Names::One(name.to_owned()), Limit::NONE),
            (None, Some(limit)) => {
                // All that follows the first dot: out-000000.tar.gz.
                let at = name.bytes().skip(1).position(|byte| byte == b'.');
                let (stem, ending) = name.split_at(at.map_or(name.len(), |at| at + 1));
                (Names::Numbered(format!("{stem}-"), 6, ending.to_owned()), limit)
            }
        };
        if format.is_one_file() && names != Names::One(name.to_owned()) {
            return Err(refused(
                path,
                format!(
                    "{} is written as one file: name one, without a limit for shards",
                    format.name()
                ),
            ));
        }
        if limit.bytes.min(limit.samples) == 0 {
            return Err(refused(path, "a shard has at least one byte and one sample"));
        }
        if let Some(fields) = &fields {
            check_fields(path, fields)?;
        }
        let making = path.with_file_name(format!(".{name}.feedline-partial"));
        make_own(&making)?;
        let lock = lock(&making).map_err(failed("cannot lock", &making))?;
        let lock = lock.ok_or_else(|| refused(path, "another writer is writing it"))?;
        let writer = Writer {
            path: path.to_owned(),
            format,
            names,
            limit,
            options: write,
            fields,
            shards: None,
            files: Vec::new(),
            samples: 0,
            keys: HashSet::new(),
            failed: false,
            making: Making { folder: making, _lock: lock, process: std::process::id() },
        };
        writer.refuse_what_is_there(0)?;
        // What a writer that was killed has left.
        for entry in fs::read_dir(&writer.making.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
        Ok(writer)
    }

    /// Fields as declared, or those of the first sample once there is one.
    #[must_use]
    pub fn fields(&self) -> Option<&[Field]> {
        self.fields.as_deref()
    }

    /// Samples so far.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    fn refuse_what_is_there(&self, number: u64) -> Result<()> {
        let path = self.path.with_file_name(self.names.name(number));
        match fs::symlink_metadata(&path).is_ok() {
            true => Err(refused(&path, "is there already: remove it or choose another name")),
            false => Ok(()),
        }
    }

    /// Adds a sample: its fields by their names, in any order. Without a key it gets its number.
    /// A sample that is refused for what it holds leaves the writer as it was.
    pub fn write(&mut self, key: Option<&str>, sample: &[(&str, Datum<'_>)]) -> Result<()> {
        if self.failed {
            return Err(refused(&self.path, "writing has failed before: begin again"));
        }
        let wrong = |text: String| refused(&self.path, format!("sample {}: {text}", self.samples));
        let fields = match &self.fields {
            Some(fields) => fields.clone(),
            None => {
                let field = |(name, datum): &(&str, Datum<'_>)| Field {
                    name: (*name).to_owned(),
                    kind: datum.kind(),
                };
                let fields: Vec<Field> = sample.iter().map(field).collect();
                check_fields(&self.path, &fields)?;
                fields
            }
        };
        if let Some((name, _)) =
            sample.iter().find(|(name, _)| fields.iter().all(|field| field.name != *name))
        {
            return Err(wrong(format!("has a field {name:?}, which was not declared")));
        }
        let mut stored = Vec::with_capacity(fields.len());
        for field in &fields {
            let mut found = sample.iter().filter(|(name, _)| *name == field.name);
            let datum = match (found.next(), found.next()) {
                (Some((_, datum)), None) => datum,
                (None, _) => return Err(wrong(format!("has no field {:?}", field.name))),
                _ => return Err(wrong(format!("has two fields {:?}", field.name))),
            };
            let bytes = datum.stored_as(&field.kind);
            stored.push(bytes.map_err(|text| wrong(format!("{:?} {text}", field.name)))?);
        }
        let numbered = format!("{:09}", self.samples);
        let key = key.unwrap_or(&numbered);
        if key.is_empty() || key.bytes().any(|byte| byte < 0x20) {
            return Err(wrong(format!("{key:?} is no key: it needs letters and no line ends")));
        }
        let hash = xxhash_rust::xxh3::xxh3_64(key.as_bytes());
        if self.keys.contains(&hash) {
            return Err(wrong(format!("the key {key:?} was there before: keys are unique")));
        }
        let values: Vec<Given<'_>> =
            stored.iter().map(|(bytes, shape)| Given { bytes, shape }).collect();
        let put = self.put(&fields, &Record { key, values: &values });
        // A format's writer may have written half of the sample.
        self.failed |= put.is_err();
        put?;
        self.fields = Some(fields);
        self.keys.insert(hash);
        self.samples += 1;
        Ok(())
    }

    fn put(&mut self, fields: &[Field], record: &Record<'_>) -> Result<()> {
        let shards = self.shards.get_or_insert_with(|| {
            let plan = Plan {
                folder: self.making.folder.clone(),
                format: self.format,
                fields: fields.to_vec(),
                options: self.options.clone(),
                limit: self.limit,
                names: self.names.clone(),
            };
            Shards::new(plan, 0)
        });
        match shards.put(record)? {
            Some(full) => self.close(full),
            None => Ok(()),
        }
    }

    fn close(&mut self, full: Full) -> Result<()> {
        self.files.push(full.close()?);
        self.refuse_what_is_there(self.files.len() as u64)
    }

    /// Finishes the last file and gives all of them their names.
    pub fn finish(mut self) -> Result<Written> {
        if self.failed {
            return Err(refused(&self.path, "writing has failed before: nothing is kept"));
        }
        let Some(last) = self.shards.as_mut().and_then(Shards::end) else {
            return Err(refused(&self.path, "no sample was written"));
        };
        self.files.push(last.close()?);
        let mut written = Written { samples: self.samples, files: Vec::new() };
        for name in &self.files {
            let path = self.path.with_file_name(name);
            fs::rename(self.making.folder.join(name), &path)
                .map_err(failed("cannot rename to", &path))?;
            written.files.push(path);
        }
        Ok(written)
    }
}

/// Fields have names, each its own.
fn check_fields(path: &Path, fields: &[Field]) -> Result<()> {
    if fields.is_empty() {
        return Err(refused(path, "a sample has at least one field"));
    }
    for (at, field) in fields.iter().enumerate() {
        if field.name.is_empty() || field.name.bytes().any(|byte| byte < 0x20 || byte == b'/') {
            return Err(refused(path, format!("{:?} is no name for a field", field.name)));
        }
        if fields[..at].iter().any(|other| other.name == field.name) {
            return Err(refused(path, format!("two fields are called {:?}", field.name)));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_names() {
        let numbered = |digits| Some(Names::Numbered("out-".to_owned(), digits, ".tar".to_owned()));
        assert_eq!(pattern("out-{000000..}.tar"), numbered(6));
        assert_eq!(pattern("out-{000..999}.tar"), numbered(3));
        assert_eq!(pattern("out-%06d.tar"), numbered(6));
        for plain in ["out.tar", "out-{a,b}.tar", "50%.tar", "out-{1..}.tar", "{", "%d"] {
            assert_eq!(pattern(plain), None, "{plain}");
        }
    }

    #[test]
    fn formats_by_their_endings() {
        for (name, format) in [
            ("a.tar", SourceFormat::Tar),
            ("a.H5", SourceFormat::Hdf5),
            ("a.hdf5", SourceFormat::Hdf5),
            ("a-{000..}.parquet", SourceFormat::Parquet),
        ] {
            assert_eq!(format_of(name), Some((format, None)), "{name}");
        }
        assert_eq!(format_of("a.tar.gz"), Some((SourceFormat::Tar, Some("gzip"))));
        assert_eq!(format_of("tar"), None);
    }

    #[test]
    fn a_dropped_writer_leaves_nothing() {
        let folder = std::env::temp_dir().join(format!("feedline-writer-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("out.tar");
        let writer = Writer::create(&path, None, WriterOptions::default()).unwrap();
        let second = Writer::create(&path, None, WriterOptions::default()).err().unwrap();
        assert!(second.to_string().contains("another writer"), "{second}");
        drop(writer);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        // A fork's copy is dropped in another process.
        let mut writer = Writer::create(&path, None, WriterOptions::default()).unwrap();
        writer.write(None, &[("label", Datum::Int(1))]).unwrap();
        writer.making.process += 1;
        let making = writer.making.folder.clone();
        drop(writer);
        assert_eq!(fs::read_dir(&making).unwrap().count(), 1);
        fs::remove_dir_all(&making).unwrap();
        fs::write(&path, "here").unwrap();
        let there = Writer::create(&path, None, WriterOptions::default()).err().unwrap();
        assert!(there.to_string().contains("is there already"), "{there}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
