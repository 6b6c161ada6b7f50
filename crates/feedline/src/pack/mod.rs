//! Writes data sets: what `feedline` itself makes, and checks after making it.
//!
//! A set that is packed from another goes through a [`destination`]; `engine::Pack` reads and
//! converts the samples, and hands them to the writer of a format: [`files`], [`raw`], or one of
//! those that [`create`] knows.

pub mod arrays;
pub mod arrow;
mod columns;
mod datum;
pub mod destination;
pub mod files;
pub mod hdf5;
pub mod jpeg;
pub mod lmdb;
mod members;
pub mod npy;
pub mod parquet;
pub mod raw;
pub mod record;
pub mod recut;
pub mod sample_photos;
pub mod shards;
mod stretch;
pub mod tar;
mod temporary;
pub mod tfrecord;
mod writer;
pub mod zarr;

pub use datum::Datum;
pub use sample_photos::{SamplePhotos, Summary};
pub use temporary::TemporaryFolder;
pub use writer::{Writer, WriterOptions, Written};

use std::path::Path;

use crate::error::{Error, Result};
use crate::sample::Field;
use crate::spec::SourceFormat;

use record::{RecordWriter, WriteOptions};

/// The formats that samples are written to.
pub const WRITABLE: [SourceFormat; 8] = [
    SourceFormat::Tar,
    SourceFormat::Tfrecord,
    SourceFormat::Lmdb,
    SourceFormat::Hdf5,
    SourceFormat::Npy,
    SourceFormat::Parquet,
    SourceFormat::Arrow,
    SourceFormat::Zarr,
];

/// Begins a file (or folder) of `format` at `path`, which must not be there yet. A new format is
/// an arm here and a file beside this one.
pub fn create(
    format: SourceFormat,
    path: &Path,
    fields: &[Field],
    options: &WriteOptions,
) -> Result<Box<dyn RecordWriter>> {
    Ok(match format {
        SourceFormat::Tar => Box::new(tar::TarWriter::create(path, fields, options)?),
        SourceFormat::Hdf5 => Box::new(hdf5::Writer::create(path, fields, options)?),
        SourceFormat::Npy => Box::new(arrays::Writer::create(path, fields, options)?),
        SourceFormat::Zarr => Box::new(zarr::Writer::create(path, fields, options)?),
        SourceFormat::Tfrecord => {
            Box::new(tfrecord::TfrecordWriter::create(path, fields, options)?)
        }
        SourceFormat::Lmdb => Box::new(lmdb::LmdbWriter::create(path, fields, options)?),
        SourceFormat::Parquet => Box::new(parquet::Writer::create(path, fields, options)?),
        SourceFormat::Arrow => Box::new(arrow::Writer::create(path, fields, options)?),
        _ => {
            return Err(Error::Source {
                what: path.display().to_string(),
                problem: format!("cannot be written as {}", format.name()),
            });
        }
    })
}

/// What the names of such files end in, without the dot.
#[must_use]
pub fn extension(format: SourceFormat) -> &'static str {
    match format {
        SourceFormat::Hdf5 => "h5",
        other => other.name(),
    }
}

/// The same with what says how a file is compressed as a whole.
#[must_use]
pub fn ending(format: SourceFormat, compression: Option<&str>) -> String {
    let outer = match (format, compression) {
        (SourceFormat::Tar, Some("gzip" | "gz")) => ".gz",
        (SourceFormat::Tar, Some("zstd" | "zst")) => ".zst",
        _ => "",
    };
    format!(".{}{outer}", extension(format))
}

/// True when a set is one file or folder by nature, rather than shards.
#[must_use]
pub fn is_one_file(format: SourceFormat) -> bool {
    use SourceFormat::{Hdf5, Lmdb, Npy, Zarr};
    matches!(format, Lmdb | Hdf5 | Zarr | Npy)
}
