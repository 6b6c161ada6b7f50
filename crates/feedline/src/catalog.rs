//! The description of a packed data set: `feedline.json`, written when all else is in place, and
//! the list of its files with their checksums beside it.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::output_file;
use crate::sample::{DType, Field, FieldKind};
use crate::spec::SourceFormat;
use crate::store::{Handle, Local, Reader, Store};

/// The description's name.
pub(crate) const FILE: &str = "feedline.json";

/// The name of the list of files: a JSON object a line.
pub(crate) const LIST: &str = "feedline-files.jsonl";

/// The table of paths and labels of a set that was packed from one.
pub(crate) const TABLE: &str = "manifest.csv";

/// The format that this build writes and reads.
pub(crate) const VERSION: u32 = 1;

/// The key of the description's own checksum, which sets of earlier versions lack.
const CHECKSUM: &str = "xxh3";

/// No description that this program wrote is larger: 100,000 shards take 12 MB.
const LARGEST: u64 = 16 << 20;

/// No line of a list of files or of a journal is longer: a path has up to 4096 bytes, and up to six
/// letters stand for a byte.
const LONGEST_LINE: u64 = 1 << 20;

/// What a packed set consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PackedKind {
    /// Image files that any program reads.
    Images,
    /// Decoded pixels in a few large files.
    Raw,
    /// Files of a format that other programs read too.
    Format(SourceFormat),
}

impl PackedKind {
    /// Its name in a description.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PackedKind::Images => "images",
            PackedKind::Raw => "raw",
            PackedKind::Format(format) => format.name(),
        }
    }
}

impl From<PackedKind> for String {
    fn from(kind: PackedKind) -> String {
        kind.name().to_owned()
    }
}

impl TryFrom<String> for PackedKind {
    type Error = String;

    fn try_from(name: String) -> Result<PackedKind, String> {
        match name.as_str() {
            "images" => Ok(PackedKind::Images),
            "raw" => Ok(PackedKind::Raw),
            other => SourceFormat::from_name(other)
                .map(PackedKind::Format)
                .ok_or_else(|| format!("unknown kind {name:?}")),
        }
    }
}

/// A field of every sample of a packed set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedField {
    /// Its name in a batch.
    pub name: String,
    /// What it is: "image", "pixels", "array", "ragged", "bytes" or "text".
    pub kind: String,
    /// The type of an array's elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// The shape of arrays that all have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<usize>>,
    /// How many axes arrays have that differ in shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub axes: Option<usize>,
    /// Channels of pixels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<usize>,
}

impl From<&Field> for PackedField {
    fn from(field: &Field) -> PackedField {
        let named = |kind: &str| PackedField {
            name: field.name.clone(),
            kind: kind.to_owned(),
            ..PackedField::default()
        };
        match &field.kind {
            FieldKind::EncodedImage => named("image"),
            FieldKind::Pixels { channels } => {
                PackedField { channels: Some(*channels), ..named("pixels") }
            }
            FieldKind::Array { dtype, shape } => PackedField {
                dtype: Some(dtype.name().to_owned()),
                shape: Some(shape.clone()),
                ..named("array")
            },
            FieldKind::Ragged { dtype, axes } => PackedField {
                dtype: Some(dtype.name().to_owned()),
                axes: Some(*axes),
                ..named("ragged")
            },
            FieldKind::Bytes => named("bytes"),
            FieldKind::Text => named("text"),
        }
    }
}

impl PackedField {
    /// The field that is described; `None` if that makes no sense.
    #[must_use]
    pub fn field(&self) -> Option<Field> {
        let dtype = || self.dtype.as_deref().and_then(DType::from_name);
        let kind = match self.kind.as_str() {
            "image" => FieldKind::EncodedImage,
            "pixels" => FieldKind::Pixels { channels: self.channels? },
            "array" => FieldKind::Array { dtype: dtype()?, shape: self.shape.clone()? },
            "ragged" => {
                FieldKind::Ragged { dtype: dtype()?, axes: self.axes.filter(|axes| *axes > 0)? }
            }
            "bytes" => FieldKind::Bytes,
            "text" => FieldKind::Text,
            _ => return None,
        };
        Some(Field { name: self.name.clone(), kind })
    }
}

/// A file, or a folder of files, that holds some of the samples.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Its path in the set's folder.
    pub path: String,
    /// Its samples.
    pub samples: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// A packed data set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Catalog {
    /// The version of this format; the key by which a description is known for one.
    pub feedline_pack: u32,
    /// What it consists of.
    pub kind: PackedKind,
    /// How many samples there are.
    pub samples: u64,
    /// The names of the classes, in the order of their numbers.
    pub classes: Vec<String>,
    /// What a sample holds beside its image: name and type.
    pub labels: Vec<(String, String)>,
    /// True when paths and labels are in [`TABLE`] rather than in the folders' names.
    pub table: bool,
    /// All fields of a sample, where the set is in a format of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<PackedField>,
    /// Where the samples lie, in their order, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shards: Vec<Shard>,
    /// What was asked for, and of which data.
    pub job: Value,
    /// Bytes of all files.
    pub bytes: u64,
    /// xxh3 of [`LIST`], in hexadecimal.
    pub list: String,
}

/// A file of a packed set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedFile {
    /// Its path in the set's folder.
    pub path: String,
    /// The same where it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<Vec<u8>>,
    /// Its length.
    pub bytes: u64,
    /// xxh3 of its contents, in hexadecimal.
    pub xxh3: String,
}

impl ListedFile {
    /// An entry for what lies at `path`.
    #[must_use]
    pub fn new(path: &Path, bytes: u64, xxh3: u64) -> ListedFile {
        ListedFile {
            path: path.to_string_lossy().into_owned(),
            path_bytes: path.to_str().is_none().then(|| path.as_os_str().as_bytes().to_vec()),
            bytes,
            xxh3: show_checksum(xxh3),
        }
    }

    /// Where it lies, in the set's folder.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match &self.path_bytes {
            Some(bytes) => OsStr::from_bytes(bytes).into(),
            None => self.path.clone().into(),
        }
    }
}

/// A checksum as it is written.
#[must_use]
pub(crate) fn show_checksum(xxh3: u64) -> String {
    format!("{xxh3:016x}")
}

/// A small text file as a whole. More than `most` bytes are an error, as is anything but a file.
pub(crate) fn read_text(path: &Path, most: u64) -> std::io::Result<String> {
    let mut text = String::new();
    let read = Reader::new(Local.open(path)?).take(most + 1).read_to_string(&mut text)?;
    match read as u64 > most {
        true => Err(std::io::Error::other(format!("is larger than {most} bytes"))),
        false => Ok(text),
    }
}

/// The same for the files of work in progress.
pub(crate) fn read_note(path: &Path) -> std::io::Result<String> {
    read_text(path, LARGEST)
}

/// The lines of a file, each of at most 1 MB.
pub(crate) fn lines(path: &Path) -> std::io::Result<impl Iterator<Item = std::io::Result<String>>> {
    Ok(lines_of(Local.open(path)?))
}

fn lines_of(file: Handle) -> impl Iterator<Item = std::io::Result<String>> {
    let mut reader = BufReader::new(Reader::new(file));
    let mut over = false;
    std::iter::from_fn(move || {
        let mut line = String::new();
        let read = match over {
            true => Ok(0),
            false => reader.by_ref().take(LONGEST_LINE).read_line(&mut line),
        };
        match read {
            Ok(0) => None,
            Ok(read) if read as u64 == LONGEST_LINE && !line.ends_with('\n') => {
                over = true;
                Some(Err(std::io::Error::other("has a line of more than 1 MB")))
            }
            Ok(_) => {
                line.truncate(line.trim_end_matches(['\r', '\n']).len());
                Some(Ok(line))
            }
            Err(error) => {
                over = true;
                Some(Err(error))
            }
        }
    })
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what, path, source }
}

fn damaged(path: &Path, problem: impl std::fmt::Display) -> Error {
    Error::Source {
        what: path.display().to_string(),
        problem: format!("{problem}: the packed set is damaged, pack it again"),
    }
}

/// True for a path that leads from a folder to something below it, and not out of it.
pub(crate) fn is_inside(path: &Path) -> bool {
    let mut parts = path.components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

fn check_inside(description: &Path, path: &Path) -> Result<()> {
    match is_inside(path) {
        true => Ok(()),
        false => Err(damaged(
            description,
            format!("names the file {path:?}, which is not in its folder"),
        )),
    }
}

impl Catalog {
    /// The description of the set in `folder` on this machine; `None` if it is no packed set.
    pub fn read(folder: &Path) -> Result<Option<Catalog>> {
        Catalog::read_in(&Local, folder)
    }

    /// The same for a folder of any store.
    pub(crate) fn read_in(store: &dyn Store, folder: &Path) -> Result<Option<Catalog>> {
        let path = folder.join(FILE);
        let file = match store.open(&path) {
            Ok(file) => file,
            // Whatever cannot be there is no packed set.
            Err(error) => {
                use std::io::ErrorKind::{NotADirectory, NotFound};
                return match error.kind() {
                    NotFound | NotADirectory => Ok(None),
                    _ => Err(failed("cannot open", &path)(error)),
                };
            }
        };
        let mut text = String::new();
        let read = Reader::new(file).take(LARGEST + 1).read_to_string(&mut text);
        // Some other file of that name is not ours; one that cannot be read may be.
        let is_text = match read {
            Err(error) if error.kind() != std::io::ErrorKind::InvalidData => {
                return Err(failed("cannot read", &path)(error));
            }
            read => read.is_ok(),
        };
        let value: Value = match is_text.then(|| serde_json::from_str(&text).ok()).flatten() {
            Some(value) => value,
            None => return Ok(None),
        };
        match value.get("feedline_pack").map(Value::as_u64) {
            None => Ok(None),
            Some(version) if version == Some(u64::from(VERSION)) => {
                let found: Catalog =
                    serde_json::from_value(value).map_err(|error| damaged(&path, error))?;
                for shard in &found.shards {
                    check_inside(&path, Path::new(&shard.path))?;
                }
                Ok(Some(found))
            }
            Some(_) => Err(Error::Source {
                what: path.display().to_string(),
                problem: format!(
                    "has a version that this feedline does not know (it knows {VERSION}): update it"
                ),
            }),
        }
    }

    /// Writes the description so that it is seen whole or not at all.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let text = self.text().map_err(|error| Error::System(error.to_string()))?;
        let partial = folder.join(format!(".{FILE}.partial"));
        if text.len() as u64 >= LARGEST {
            let problem = "is larger than 16 MB: write fewer shards".to_owned();
            return Err(Error::Source { what: path.display().to_string(), problem });
        }
        output_file::create(&partial)
            .and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.write_all(b"\n")?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&partial, &path))
            .map_err(failed("cannot write", &path))
    }

    /// The description with its own checksum.
    fn text(&self) -> serde_json::Result<String> {
        let mut value = serde_json::to_value(self)?;
        // As it is read again: parsing may change the last digit of a number.
        let read: Value = serde_json::from_str(&value.to_string())?;
        value[CHECKSUM] = own_checksum(&read).into();
        serde_json::to_string_pretty(&value)
    }

    /// Why the description in `folder` is not the one that was written; `None` if it is, or has no
    /// checksum of its own.
    pub(crate) fn check_description(folder: &Path) -> Result<Option<String>> {
        let path = folder.join(FILE);
        let text = read_text(&path, LARGEST).map_err(failed("cannot read", &path))?;
        let mut value: Value =
            serde_json::from_str(&text).map_err(|error| damaged(&path, error))?;
        let Some(written) = value.as_object_mut().and_then(|map| map.shift_remove(CHECKSUM)) else {
            return Ok(None);
        };
        let (now, written) = (own_checksum(&value), written.as_str().unwrap_or("none"));
        Ok((written != now)
            .then(|| format!("has changed: its checksum is {now}, {written} was written")))
    }

    /// Calls `each` with every file of the set, after the list's own checksum was compared.
    pub fn files(&self, folder: &Path, each: &mut dyn FnMut(ListedFile)) -> Result<()> {
        self.files_in(&Local, folder, each)
    }

    /// The same for a folder of any store.
    pub(crate) fn files_in(
        &self,
        store: &dyn Store,
        folder: &Path,
        each: &mut dyn FnMut(ListedFile),
    ) -> Result<()> {
        let path = folder.join(LIST);
        let list = store.open(&path).map_err(failed("cannot open", &path))?;
        let (_, xxh3) = checksum_of(list.clone()).map_err(failed("cannot read", &path))?;
        if show_checksum(xxh3) != self.list {
            return Err(damaged(&path, "is not the list that was written"));
        }
        for line in lines_of(list) {
            let line = line.map_err(failed("cannot read", &path))?;
            let entry: ListedFile =
                serde_json::from_str(&line).map_err(|error| damaged(&path, error))?;
            check_inside(&path, &entry.path())?;
            each(entry);
        }
        Ok(())
    }
}

fn own_checksum(description: &Value) -> String {
    show_checksum(xxhash_rust::xxh3::xxh3_64(description.to_string().as_bytes()))
}

/// Writes the list of files, and gives its checksum and the bytes of all of them.
pub(crate) fn write_list(
    folder: &Path,
    entries: &mut dyn Iterator<Item = ListedFile>,
) -> Result<(String, u64)> {
    let path = folder.join(LIST);
    let file = output_file::create(&path).map_err(failed("cannot write", &path))?;
    let mut file = BufWriter::new(file);
    let mut bytes = 0;
    for entry in entries {
        bytes += entry.bytes;
        let line =
            serde_json::to_string(&entry).map_err(|error| Error::System(error.to_string()))?;
        writeln!(file, "{line}").map_err(failed("cannot write", &path))?;
    }
    let file = file.into_inner().map_err(|error| failed("cannot write", &path)(error.into()))?;
    file.sync_all().map_err(failed("cannot write", &path))?;
    Ok((show_checksum(checksum(&path)?.1), bytes))
}

/// Length and xxh3 of a file, read piece by piece.
pub(crate) fn checksum(path: &Path) -> Result<(u64, u64)> {
    let file = Local.open(path).map_err(failed("cannot open", path))?;
    checksum_of(file).map_err(failed("cannot read", path))
}

fn checksum_of(file: Handle) -> std::io::Result<(u64, u64)> {
    let mut file = Reader::new(file);
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    let mut piece = vec![0; 1 << 20];
    let mut length = 0;
    loop {
        match file.read(&mut piece)? {
            0 => return Ok((length, hash.digest())),
            read => {
                hash.update(&piece[..read]);
                length += read as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_description_does_not_lead_out_of_its_folder() {
        let folder = std::env::temp_dir().join(format!("feedline-catalog-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut catalog = Catalog {
            feedline_pack: VERSION,
            kind: PackedKind::Format(SourceFormat::Csv),
            samples: 1,
            classes: Vec::new(),
            labels: Vec::new(),
            table: false,
            fields: Vec::new(),
            shards: vec![Shard::default()],
            job: Value::Null,
            bytes: 1,
            list: String::new(),
        };
        let stays = [("x", true), ("a/b.csv", true)];
        let leaves = ["../x", "a/../../x", "/etc/passwd", "", "."].map(|path| (path, false));
        for (path, fine) in stays.into_iter().chain(leaves) {
            catalog.shards[0].path = path.to_owned();
            catalog.write(&folder).unwrap();
            match Catalog::read(&folder) {
                Ok(read) => assert!(fine && read.is_some(), "{path:?}"),
                Err(error) => {
                    assert!(!fine && error.to_string().contains("not in its folder"), "{error}");
                }
            }
            let entry = ListedFile::new(Path::new(path), 1, 1);
            (catalog.list, _) = write_list(&folder, &mut [entry].into_iter()).unwrap();
            assert_eq!(catalog.files(&folder, &mut |_| ()).is_ok(), fine, "{path:?}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_list_is_read_line_by_line_and_a_pipe_never() {
        let folder = std::env::temp_dir().join(format!("feedline-lines-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("list");
        let all = || lines(&path).unwrap().collect::<std::io::Result<Vec<String>>>();
        let long = "x".repeat(LONGEST_LINE as usize - 1);
        fs::write(&path, format!("a\n\n{long}\r\nb")).unwrap();
        assert!(all().is_err());
        fs::write(&path, format!("a\n\n{long}\nb")).unwrap();
        assert_eq!(all().unwrap(), ["a", "", &long, "b"]);
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(all().unwrap_err().to_string().contains("more than 1 MB"));
        File::create(folder.join(FILE)).unwrap().set_len(1 << 40).unwrap();
        assert!(Catalog::check_description(&folder).is_err());
        assert!(Catalog::read(&folder).unwrap().is_none(), "no description of ours");
        for name in [FILE, "list"] {
            fs::remove_file(folder.join(name)).unwrap();
            output_file::make_pipe(&folder.join(name));
        }
        assert!(lines(&path).is_err());
        assert!(Catalog::check_description(&folder).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
