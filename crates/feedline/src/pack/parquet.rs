//! Writes Parquet files. Encoded images are stored as they are, each in its place: nothing is won
//! by compressing them, and a reader finds any of them without decoding a page.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, GzipLevel, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;

use super::columns::{Batch, create, failed, unknown_compression};
use super::record::{Record, RecordWriter, WriteOptions};
use crate::error::{Error, Result};
use crate::sample::{DType, Field, FieldKind};

/// Bytes of a row group: enough for long reads, little enough to be a block in memory.
const GROUP: u64 = 32 << 20;
/// Rows of a row group, if they are small.
const ROWS: u64 = 1 << 17;

/// Writes one file.
pub(crate) struct ParquetWriter {
    path: PathBuf,
    writer: ArrowWriter<BufWriter<File>>,
    batch: Batch,
    rows: u64,
}

fn compression(path: &Path, options: &WriteOptions) -> Result<Compression> {
    let level = options.level;
    let bad = |error: parquet::errors::ParquetError| Error::Source {
        what: path.display().to_string(),
        problem: format!("level is not allowed: {error}"),
    };
    Ok(match options.compression.as_deref() {
        None | Some("none" | "uncompressed") => Compression::UNCOMPRESSED,
        Some("snappy") => Compression::SNAPPY,
        Some("lz4" | "lz4_raw") => Compression::LZ4_RAW,
        Some("zstd") => Compression::ZSTD(match level {
            Some(level) => ZstdLevel::try_new(level).map_err(bad)?,
            None => ZstdLevel::default(),
        }),
        Some("gzip") => Compression::GZIP(match level {
            Some(level) => GzipLevel::try_new(level.max(0) as u32).map_err(bad)?,
            None => GzipLevel::default(),
        }),
        Some(other) => {
            return Err(unknown_compression(path, other, "none, zstd, snappy, gzip, lz4"));
        }
    })
}

impl ParquetWriter {
    /// Begins a file that must not be there yet.
    pub(crate) fn create(
        path: &Path,
        fields: &[Field],
        options: &WriteOptions,
    ) -> Result<ParquetWriter> {
        let batch = Batch::new(path, fields)?;
        let mut properties = WriterProperties::builder()
            .set_compression(compression(path, options)?)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_max_row_group_row_count(None);
        let variable =
            |field: &Field| field.kind == FieldKind::EncodedImage || field.kind.is_variable();
        if fields.iter().any(variable) {
            // A page is looked at after so many values: one of a thousand images would be huge.
            properties = properties.set_write_batch_size(16);
        }
        for field in fields {
            let one = |name: &str| ColumnPath::new(vec![field.name.clone(), name.to_owned()]);
            let (column, plain) = match &field.kind {
                FieldKind::EncodedImage => (one("bytes"), true),
                FieldKind::Bytes => (ColumnPath::new(vec![field.name.clone()]), false),
                FieldKind::Array { dtype: DType::F32 | DType::F64 | DType::F16, .. } => {
                    properties = properties
                        .set_column_dictionary_enabled(ColumnPath::from(field.name.clone()), false);
                    continue;
                }
                _ => continue,
            };
            properties = properties
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_statistics_enabled(column.clone(), EnabledStatistics::None);
            if plain {
                let none = Compression::UNCOMPRESSED;
                properties = properties
                    .set_column_compression(column, none)
                    .set_column_compression(one("path"), none)
                    .set_column_dictionary_enabled(one("path"), false)
                    .set_column_statistics_enabled(one("path"), EnabledStatistics::None);
            }
        }
        let file = BufWriter::with_capacity(1 << 20, create(path)?);
        let writer = ArrowWriter::try_new(file, batch.schema().clone(), Some(properties.build()))
            .map_err(|error| failed(path, error))?;
        let rows = options.block_samples.unwrap_or(ROWS).max(1);
        Ok(ParquetWriter { path: path.to_owned(), writer, batch, rows })
    }

    fn flush(&mut self) -> Result<()> {
        if self.batch.rows() > 0 {
            let batch = self.batch.take()?;
            self.writer
                .write(&batch)
                .and_then(|()| self.writer.flush())
                .map_err(|error| failed(&self.path, error))?;
        }
        Ok(())
    }
}

impl RecordWriter for ParquetWriter {
    fn put(&mut self, record: &Record<'_>) -> Result<()> {
        if self.batch.is_full(record, self.rows, GROUP) {
            self.flush()?;
        }
        self.batch.put(record)
    }

    fn bytes(&self) -> u64 {
        self.writer.bytes_written() as u64 + self.batch.bytes()
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.flush()?;
        let path = self.path;
        let file = self.writer.into_inner().map_err(|error| failed(&path, error))?;
        let file = file.into_inner().map_err(|error| failed(&path, error))?;
        file.sync_all().map_err(|error| failed(&path, error))
    }
}
