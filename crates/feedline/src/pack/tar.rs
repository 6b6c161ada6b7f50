//! Writes tar shards as the webdataset package reads them.
//!
//! By hand rather than by a general writer: headers hold nothing of this machine or this day, so
//! that equal samples make equal files, and names of any length and script go into pax headers.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::members::Members;
use super::record::{Record, RecordWriter, WriteOptions};
use crate::error::{Error, Result};
use crate::sample::Field;

const BLOCK: usize = 512;
/// The largest number that the length's eleven octal digits hold.
const LARGEST_OCTAL: u64 = 0o777_7777_7777;

enum Out {
    Plain(BufWriter<File>),
    Gzip(flate2::write::GzEncoder<BufWriter<File>>),
    Zstd(zstd::Encoder<'static, BufWriter<File>>),
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Out::Plain(out) => out.write(bytes),
            Out::Gzip(out) => out.write(bytes),
            Out::Zstd(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Out::Plain(out) => out.flush(),
            Out::Gzip(out) => out.flush(),
            Out::Zstd(out) => out.flush(),
        }
    }
}

/// Writes one shard.
pub(crate) struct TarWriter {
    path: PathBuf,
    out: Out,
    members: Members,
    bytes: u64,
    /// Hashes of the samples' names: 8 bytes each.
    keys: HashSet<u64>,
}

impl TarWriter {
    /// Begins a shard at `path`, which must not be there yet. Compression is "gzip" or "zstd".
    pub(crate) fn create(
        path: &Path,
        fields: &[Field],
        options: &WriteOptions,
    ) -> Result<TarWriter> {
        let problem = |problem: String| Error::Source { what: path.display().to_string(), problem };
        for field in fields {
            let bad = |c: char| c == '/' || c == '\0' || c.is_control();
            if field.name.contains(bad) || field.name.starts_with('.') || field.name.is_empty() {
                return Err(problem(format!(
                    "cannot have a field {:?}: its name is part of a file's name",
                    field.name
                )));
            }
        }
        let members = Members::new(path, fields)?;
        let failed = |source| Error::Io { what: "cannot write", path: path.to_owned(), source };
        let level = options.level;
        let file = || {
            let file = File::options().write(true).create_new(true).open(path).map_err(failed)?;
            Ok::<_, Error>(BufWriter::with_capacity(1 << 20, file))
        };
        let out = match options.compression.as_deref() {
            None | Some("none") => Out::Plain(file()?),
            Some("gzip" | "gz") => {
                let level = flate2::Compression::new(level.unwrap_or(6).clamp(0, 9) as u32);
                Out::Gzip(flate2::GzBuilder::new().mtime(0).write(file()?, level))
            }
            Some("zstd" | "zst") => {
                let encoder = zstd::Encoder::new(file()?, level.unwrap_or(3));
                Out::Zstd(encoder.map_err(failed)?)
            }
            Some(other) => {
                return Err(problem(format!("cannot be compressed by {other:?}: gzip or zstd")));
            }
        };
        Ok(TarWriter { path: path.to_owned(), out, members, bytes: 0, keys: HashSet::new() })
    }

    fn failed(&self, source: std::io::Error) -> Error {
        Error::Io { what: "cannot write", path: self.path.clone(), source }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|error| self.failed(error))
    }

    /// Fills the last block with zeros.
    fn pad(&mut self, written: usize) -> Result<()> {
        let rest = written.next_multiple_of(BLOCK) - written;
        self.write(&[0; BLOCK][..rest])
    }

    fn member(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let length = bytes.len() as u64;
        let mut extended = Vec::new();
        if name.len() > 100 || !name.is_ascii() {
            add_record(&mut extended, "path", name);
        }
        if length > LARGEST_OCTAL {
            add_record(&mut extended, "size", &length.to_string());
        }
        if !extended.is_empty() {
            self.write(&header("pax_header", extended.len() as u64, b'x'))?;
            self.write(&extended)?;
            self.pad(extended.len())?;
        }
        self.write(&header(name, length, b'0'))?;
        self.write(bytes)?;
        self.pad(bytes.len())
    }
}

/// A record of a pax header: its length counts itself.
fn add_record(out: &mut Vec<u8>, key: &str, value: &str) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    out.extend(format!("{length} {key}={value}\n").as_bytes());
}

fn header(name: &str, size: u64, kind: u8) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    // A longer name is in the extended header; here it is cut, for programs that know none.
    put(0, &name.as_bytes()[..name.len().min(100)]);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", size.min(LARGEST_OCTAL)).as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// A sample's name as readers of such shards take it apart: no dot after the last slash, no part
/// that they would pass over.
fn check_key(path: &Path, key: &str) -> Result<()> {
    let base = key.rsplit('/').next().unwrap_or_default();
    let top = key.split('/').next().unwrap_or_default();
    let problem = if base.is_empty() {
        "it is empty"
    } else if base.contains('.') {
        "readers take what follows the first dot for the kind of file"
    } else if top.starts_with("__") && top.ends_with("__") {
        "readers take it for metadata"
    } else if key.contains('\0') {
        "it has a zero byte"
    } else {
        return Ok(());
    };
    Err(Error::Source {
        what: path.display().to_string(),
        problem: format!("cannot have a sample called {key:?}: {problem}"),
    })
}

impl RecordWriter for TarWriter {
    fn put(&mut self, record: &Record<'_>) -> Result<()> {
        check_key(&self.path, record.key)?;
        if !self.keys.insert(xxhash_rust::xxh3::xxh3_64(record.key.as_bytes())) {
            return Err(Error::Source {
                what: self.path.display().to_string(),
                problem: format!("has two samples called {:?}", record.key),
            });
        }
        for member in self.members.of(record)? {
            self.member(&format!("{}.{}", record.key, member.extension), &member.bytes)?;
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        // Two empty blocks are the end.
        self.write(&[0; 2 * BLOCK])?;
        let (path, out) = (self.path, self.out);
        let failed = |source| Error::Io { what: "cannot write", path: path.clone(), source };
        let out = match out {
            Out::Plain(out) => out,
            Out::Gzip(out) => out.finish().map_err(failed)?,
            Out::Zstd(out) => out.finish().map_err(failed)?,
        };
        let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
        file.sync_all().map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::record::Given;
    use crate::sample::{DType, FieldKind};

    fn field(name: &str, kind: FieldKind) -> Field {
        Field { name: name.to_owned(), kind }
    }

    fn write(path: &Path, keys: &[&str], options: &WriteOptions) -> Result<()> {
        let fields = [
            field("image", FieldKind::EncodedImage),
            field("label", FieldKind::scalar(DType::I64)),
        ];
        let mut writer = Box::new(TarWriter::create(path, &fields, options)?);
        for (number, key) in keys.iter().enumerate() {
            let label = (number as i64).to_ne_bytes();
            let values =
                [Given { bytes: b"\x89PNG...", shape: &[] }, Given { bytes: &label, shape: &[] }];
            writer.put(&Record { key, values: &values })?;
        }
        writer.finish()
    }

    #[test]
    fn any_program_reads_what_is_written_and_equal_samples_make_equal_files() {
        let folder = std::env::temp_dir().join(format!("feedline-packtar-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let long = format!("{}/é", "f".repeat(120));
        let keys = ["a/1", "ü", &long];
        let plain = WriteOptions::default();
        for name in ["1.tar", "2.tar"] {
            write(&folder.join(name), &keys, &plain).unwrap();
        }
        let bytes = std::fs::read(folder.join("1.tar")).unwrap();
        assert_eq!(bytes, std::fs::read(folder.join("2.tar")).unwrap());
        assert!(bytes.len().is_multiple_of(BLOCK));
        let mut archive = ::tar::Archive::new(&bytes[..]);
        let names: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        let expected: Vec<String> =
            keys.iter().flat_map(|key| [format!("{key}.png"), format!("{key}.cls")]).collect();
        assert_eq!(names, expected);
        for (compression, name) in [("gzip", "3.tar.gz"), ("zstd", "3.tar.zst")] {
            let options =
                WriteOptions { compression: Some(compression.to_owned()), ..plain.clone() };
            write(&folder.join(name), &keys, &options).unwrap();
            let packed = std::fs::read(folder.join(name)).unwrap();
            let mut unpacked = Vec::new();
            let mut reader: Box<dyn std::io::Read> = match compression {
                "gzip" => Box::new(flate2::read::GzDecoder::new(&packed[..])),
                _ => Box::new(zstd::Decoder::new(&packed[..]).unwrap()),
            };
            std::io::Read::read_to_end(&mut reader, &mut unpacked).unwrap();
            assert_eq!(unpacked, bytes, "{compression}");
        }
        for (key, message) in
            [("a.b", "first dot"), ("", "empty"), ("a/", "empty"), ("__x__/a", "metadata")]
        {
            let path = folder.join(format!("bad{}.tar", key.len()));
            let error = write(&path, &[key], &plain).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
            std::fs::remove_file(path).unwrap();
        }
        let twice = write(&folder.join("5.tar"), &["a", "b", "a"], &plain).unwrap_err();
        assert!(twice.to_string().contains("two samples called"));
        assert!(write(&folder.join("1.tar"), &keys, &plain).is_err(), "nothing is overwritten");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
