//! Writes data sets: what `feedline` itself makes, and checks after making it.
//!
//! A set that is packed from another goes through a [`destination`]; `engine::Pack` reads and
//! converts the samples, and hands them to the writer of a format: [`files`], [`raw`], or one of
//! those that [`create`] knows.

pub(crate) mod arrays;
#[cfg(feature = "parquet")]
pub(crate) mod arrow;
#[cfg(feature = "parquet")]
mod columns;
mod datum;
pub(crate) mod destination;
pub(crate) mod files;
#[cfg(feature = "hdf5")]
pub(crate) mod hdf5;
pub(crate) mod jpeg;
pub(crate) mod lmdb;
mod members;
pub(crate) mod npy;
#[cfg(feature = "parquet")]
pub(crate) mod parquet;
pub(crate) mod raw;
pub(crate) mod record;
#[cfg(feature = "libjpeg-turbo")]
pub(crate) mod recut;
#[cfg(not(feature = "libjpeg-turbo"))]
pub(crate) mod recut {
    //! Builds without libjpeg-turbo rewrite no JPEGs.
    pub use super::jpeg::absent::Recutter;
}
pub(crate) mod shards;
mod stretch;
pub(crate) mod tar;
pub(crate) mod temporary;
pub(crate) mod tfrecord;
mod writer;
pub(crate) mod zarr;

pub use datum::Datum;
pub use record::WriteOptions;
pub use shards::Limit;
pub(crate) use temporary::TemporaryFolder;
pub use writer::{Writer, WriterOptions, Written};

use std::path::Path;

use crate::error::{Error, Result};
use crate::sample::Field;
use crate::spec::SourceFormat;

use record::RecordWriter;

/// Begins a file (or folder) of `format` at `path`, which must not be there yet. A new format is
/// an arm here and a file beside this one.
#[doc(hidden)]
pub fn create(
    format: SourceFormat,
    path: &Path,
    fields: &[Field],
    options: &WriteOptions,
) -> Result<Box<dyn RecordWriter>> {
    Ok(match format {
        SourceFormat::Tar => Box::new(tar::TarWriter::create(path, fields, options)?),
        #[cfg(feature = "hdf5")]
        SourceFormat::Hdf5 => Box::new(hdf5::Hdf5Writer::create(path, fields, options)?),
        SourceFormat::Npy => Box::new(arrays::NpyWriter::create(path, fields, options)?),
        SourceFormat::Zarr => Box::new(zarr::ZarrWriter::create(path, fields, options)?),
        SourceFormat::Tfrecord => {
            Box::new(tfrecord::TfrecordWriter::create(path, fields, options)?)
        }
        SourceFormat::Lmdb => Box::new(lmdb::LmdbWriter::create(path, fields, options)?),
        #[cfg(feature = "parquet")]
        SourceFormat::Parquet => Box::new(parquet::ParquetWriter::create(path, fields, options)?),
        #[cfg(feature = "parquet")]
        SourceFormat::Arrow => Box::new(arrow::FeatherWriter::create(path, fields, options)?),
        _ => {
            return Err(Error::Source {
                what: path.display().to_string(),
                problem: match format.lacks() {
                    Some(feature) => format!(
                        "cannot be written as {}: this build of feedline lacks its feature {feature:?}",
                        format.name()
                    ),
                    None => format!("cannot be written as {}", format.name()),
                },
            });
        }
    })
}
