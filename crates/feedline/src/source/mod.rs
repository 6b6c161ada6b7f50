//! A collection of samples in one format: how many there are, what sample i holds.
//!
//! A source says where bytes lie or lends them; it never decodes. One file per format.

mod arrays;
mod blocks;
#[cfg(feature = "parquet")]
mod columns;
mod detect;
mod field_names;
mod images;
mod names;
mod shards;
mod spans;
mod text;
mod walk;

pub use arrays::memory::{ArrayData, Arrays, Column};
pub use blocks::{BlockCache, Blocks};
use images::folder::Folder;
use images::manifest::{Columns, Manifest};
use images::raw::Raw;

use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(feature = "hdf5")]
use arrays::hdf5;
use arrays::{npy, zarr};
#[cfg(feature = "parquet")]
use columns::{arrow, parquet};
use detect::Found;
use images::{manifest, packed};
use spans::{litdata, lmdb, mds, tar, tfrecord, zip};
use text::{csv, jsonl};

use crate::canonical;
use crate::catalog::{self, Catalog, PackedField};
use crate::error::{Error, Fault, Result};
use crate::sample::{Field, Location, Room, Value};
use crate::spec::read::show_bytes;
use crate::spec::{FieldChoice, SourceFormat, SourceKind};
use crate::store::{EntryKind, Store};

/// A collection of samples. All methods may be called from many threads at once, with indexes below
/// [`Source::len`] and numbers of its fields.
pub trait Source: Send + Sync {
    /// How many samples there are.
    fn len(&self) -> u64;

    /// True when there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What every sample holds, in the order of a batch's fields.
    fn fields(&self) -> &[Field];

    /// Field number `field` of sample `index`.
    fn value(&self, index: u64, field: usize) -> Result<Value<'_>, Fault>;

    /// Writes field number `field` of sample `index` into `room`: for a [`Value::Made`].
    fn read(&self, _index: u64, _field: usize, _room: &mut dyn Room) -> Result<(), Fault> {
        Err(Fault::Unsupported("this source makes no bytes".to_owned()))
    }

    /// Calls `each` with every part of a file that is read for field number `field` of sample
    /// `index`, whole blocks included: so that it can be fetched before. What only shows once
    /// something else was read may be left out.
    fn needs(&self, index: u64, field: usize, each: &mut Needs<'_>) {
        if let Some(location) = self.value(index, field).ok().and_then(|value| value.location()) {
            each(&location);
        }
    }

    /// How samples lie in blocks of which one is read as a whole for any of its samples; `None` if
    /// a sample is read alone.
    fn blocks(&self) -> Option<&Blocks> {
        None
    }

    /// What a sample that does not lie in a file of its own was called, for messages.
    fn origin(&self, _index: u64) -> Option<PathBuf> {
        None
    }

    /// The names of the classes, in the order of their numbers; empty if there are none.
    fn classes(&self) -> &[String] {
        &[]
    }

    /// Columns that nobody chose or left out and that are in no field, for a program to say so.
    fn unused_columns(&self) -> &[String] {
        &[]
    }

    /// A hash of names and labels, or of the data where they lie in memory: equal for the same
    /// data set on any machine. Files' contents are not looked at.
    fn fingerprint(&self) -> u64;

    /// What it is called in messages.
    fn name(&self) -> String;

    /// Bytes that it keeps in memory as long as it lives, beside blocks: names, labels, places,
    /// small columns.
    fn held(&self) -> u64 {
        0
    }
}

/// Is called with parts of files that will be read.
pub type Needs<'a> = dyn FnMut(&Location<'_>) + 'a;

/// What a source is opened with.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Opening<'a> {
    /// Where it lists and opens.
    pub store: &'a Arc<dyn Store>,
    /// File names that count as images end in these, in lower case.
    pub image_extensions: &'a [&'a str],
    /// Bytes that a source may keep in blocks which it had to read as a whole.
    pub block_memory: u64,
    /// Bytes that a source may take in all for what it keeps from its opening on: names, labels,
    /// places, small columns.
    pub memory: u64,
    /// What an image's first bytes look like: to know an image where nothing is said.
    pub is_image: fn(&[u8]) -> bool,
}

impl Opening<'_> {
    /// Refuses what would keep more than the memory that is given. `part` of `whole` are known
    /// when this is asked, by which the rest is estimated.
    fn check_held(&self, what: &Path, held: u64, (part, whole): (u64, u64)) -> Result<()> {
        if held <= self.memory {
            return Ok(());
        }
        let all = u128::from(held) * u128::from(whole.max(part)) / u128::from(part.max(1));
        let about = if part < whole { "about " } else { "" };
        Err(Error::Memory(format!(
            "the names, labels and places of {} take {about}{} for as long as it is open, memory is {}: raise memory, or divide the data set",
            what.display(),
            show_bytes(u64::try_from(all).unwrap_or(u64::MAX)),
            show_bytes(self.memory)
        )))
    }
}

/// What is wrong with a file, or with what else has that name.
fn problem(what: impl AsRef<Path>, problem: impl std::fmt::Display) -> Error {
    Error::Source { what: what.as_ref().display().to_string(), problem: problem.to_string() }
}

/// What is at a path; `None` if nothing is.
fn kind_of(path: &Path, store: &dyn Store) -> Result<Option<EntryKind>> {
    store.kind(path).map_err(|source| Error::Io { what: "cannot open", path: path.into(), source })
}

fn is_folder(path: &Path, store: &dyn Store) -> Result<bool> {
    Ok(kind_of(path, store)? == Some(EntryKind::Folder))
}

/// Whether a path may be a file: what cannot be looked at fails when it is opened.
fn may_be_file(path: &Path, store: &dyn Store) -> bool {
    kind_of(path, store).map_or(true, |kind| kind == Some(EntryKind::File))
}

/// What a fingerprint begins with: a hash of what a set is called and holds, the same in every
/// version of feedline.
fn described(files: &[PathBuf], ends: &[u64], fields: &[Field], classes: &[String]) -> u64 {
    let name = |file: &PathBuf| file.file_name().map(|name| name.to_string_lossy().into_owned());
    let description = serde_json::json!({
        "files": files.iter().map(name).collect::<Vec<_>>(),
        "ends": ends,
        "fields": fields.iter().map(PackedField::from).collect::<Vec<_>>(),
        "classes": classes,
    });
    xxhash_rust::xxh3::xxh3_64(canonical::hash("source", &description).as_bytes())
}

/// Opens what a spec names.
#[doc(hidden)]
pub fn open(kind: &SourceKind, with: &Opening<'_>) -> Result<Arc<dyn Source>> {
    Ok(match kind {
        SourceKind::Path(path) => open_path(path, with)?,
        SourceKind::Format { format, path, fields } => open_format(*format, path, fields, with)?,
        SourceKind::ImageFolder(path) => Arc::new(Folder::with_classes(path, with)?),
        SourceKind::Flat(path) => Arc::new(Folder::flat(path, with)?),
        SourceKind::Manifest { path, path_column, label_columns, root } => {
            Arc::new(Manifest::open(
                path,
                &Columns { path: path_column.clone(), labels: label_columns.clone() },
                root.as_deref(),
                with,
            )?)
        }
        SourceKind::Arrays => {
            return Err(problem(
                "arrays",
                "live in a program's memory: hand them to the loader there, a file cannot name them",
            ));
        }
    })
}

/// The format of what a spec names, and the files that it lies in as far as their names say;
/// `None` for images in folders, tables of them, and what is no longer there.
#[doc(hidden)]
pub fn files_of(kind: &SourceKind, with: &Opening<'_>) -> Option<(SourceFormat, Vec<PathBuf>)> {
    let path = kind.path()?;
    let format = match kind {
        SourceKind::Format { format, .. } if *format != SourceFormat::Auto => *format,
        SourceKind::Path(_) | SourceKind::Format { .. } => match detect::detect(path, with).ok()? {
            Found::Format(format) => format,
            Found::Classes | Found::Flat | Found::Manifest => return None,
        },
        _ => return None,
    };
    let store = &**with.store;
    let files = match shards::is_pattern(path, store) {
        false if is_folder(path, store).ok()? => {
            let mut files = shards::list(path, store).ok()?;
            files.retain(|file| detect::by_name(file) == Some(format));
            files
        }
        _ => shards::expand(path, &[], store).ok()?,
    };
    Some((format, files.into_iter().filter(|file| may_be_file(file, store)).collect()))
}

/// The columns of a packed set's table.
fn table_columns(packed: &Catalog) -> Columns {
    let labels = packed.labels.iter().map(|(name, _)| name.clone()).collect();
    Columns { path: Some("path".to_owned()), labels: Some(labels) }
}

fn open_path(path: &Path, with: &Opening<'_>) -> Result<Arc<dyn Source>> {
    if let Some(packed) = Catalog::read_in(&**with.store, path)? {
        match packed.kind {
            catalog::PackedKind::Raw => return Ok(Arc::new(Raw::open(path, &packed, with)?)),
            catalog::PackedKind::Format(format) => {
                let files = packed::files(path, &packed);
                let inner = open_format(format, &files, &[], with)?;
                return Ok(Arc::new(packed::Packed::new(path, &packed, inner)?));
            }
            catalog::PackedKind::Images if packed.table => {
                let table = path.join(catalog::TABLE);
                return Ok(Arc::new(Manifest::open(&table, &table_columns(&packed), None, with)?));
            }
            catalog::PackedKind::Images => {}
        }
    }
    open_found(path, &[], with)
}

/// Opens whatever is at a path that is no packed set.
fn open_found(path: &Path, fields: &[FieldChoice], with: &Opening<'_>) -> Result<Arc<dyn Source>> {
    let found = detect::detect(path, with)?;
    if !fields.is_empty() && matches!(found, Found::Classes | Found::Flat) {
        return Err(problem(path, "is a folder of images, of which no fields can be chosen"));
    }
    Ok(match found {
        Found::Classes => Arc::new(Folder::with_classes(path, with)?),
        Found::Flat => Arc::new(Folder::flat(path, with)?),
        Found::Manifest if fields.is_empty() => {
            Arc::new(Manifest::open(path, &Columns::default(), None, with)?)
        }
        // Who chooses columns wants the table itself.
        Found::Manifest if manifest::is_json(path) => {
            open_format(SourceFormat::Jsonl, path, fields, with)?
        }
        Found::Manifest => open_format(SourceFormat::Csv, path, fields, with)?,
        Found::Format(format) => open_format(format, path, fields, with)?,
    })
}

/// Opens what is in a format of its own. A new format is an arm here and a file beside this one.
fn open_format(
    format: SourceFormat,
    path: &Path,
    fields: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<Arc<dyn Source>> {
    Ok(match format {
        SourceFormat::Auto if fields.is_empty() => open_path(path, with)?,
        SourceFormat::Auto => open_found(path, fields, with)?,
        SourceFormat::Tar => Arc::new(tar::open(path, fields, with)?),
        SourceFormat::Zip => Arc::new(zip::open(path, fields, with)?),
        SourceFormat::Tfrecord => Arc::new(tfrecord::open(path, fields, with)?),
        SourceFormat::Lmdb => Arc::new(lmdb::open(path, fields, with)?),
        SourceFormat::Mds => Arc::new(mds::open(path, fields, with)?),
        SourceFormat::Litdata => Arc::new(litdata::open(path, fields, with)?),
        #[cfg(feature = "parquet")]
        SourceFormat::Parquet => Arc::new(parquet::open(path, fields, with)?),
        #[cfg(feature = "parquet")]
        SourceFormat::Arrow => Arc::new(arrow::open(path, fields, with)?),
        SourceFormat::Csv => Arc::new(csv::open(path, fields, with)?),
        SourceFormat::Jsonl => Arc::new(jsonl::open(path, fields, with)?),
        #[cfg(feature = "hdf5")]
        SourceFormat::Hdf5 => hdf5::open(path, fields, with)?,
        SourceFormat::Zarr => zarr::open(path, fields, with)?,
        SourceFormat::Npy => npy::open(path, fields, with)?,
        #[cfg(not(all(feature = "hdf5", feature = "parquet")))]
        SourceFormat::Hdf5 | SourceFormat::Parquet | SourceFormat::Arrow => {
            let feature = format.lacks().unwrap_or_default();
            let format = format.name();
            return Err(problem(
                path,
                format!(
                    "is {format}, which this build of feedline reads with its feature {feature:?} only"
                ),
            ));
        }
    })
}
