//! Writes Arrow IPC files, which are Feather files (of its second version) too.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};

use super::columns::{Batch, create, failed, unknown_compression};
use super::record::{Record, RecordWriter, WriteOptions};
use crate::error::Result;
use crate::sample::Field;

/// Bytes of a record batch.
const BATCH: u64 = 16 << 20;
/// Rows of a record batch, if they are small.
const ROWS: u64 = 1 << 16;

/// Writes one file.
pub(crate) struct FeatherWriter {
    path: PathBuf,
    writer: FileWriter<BufWriter<File>>,
    batch: Batch,
    rows: u64,
    written: u64,
}

impl FeatherWriter {
    /// Begins a file that must not be there yet.
    pub(crate) fn create(
        path: &Path,
        fields: &[Field],
        options: &WriteOptions,
    ) -> Result<FeatherWriter> {
        let batch = Batch::new(path, fields)?;
        let compression = match options.compression.as_deref() {
            None | Some("none" | "uncompressed") => None,
            Some("zstd") => Some(CompressionType::ZSTD),
            Some("lz4" | "lz4_frame") => Some(CompressionType::LZ4_FRAME),
            Some(other) => return Err(unknown_compression(path, other, "none, zstd, lz4")),
        };
        let level = options.level.filter(|_| compression == Some(CompressionType::ZSTD));
        let how = IpcWriteOptions::default()
            .try_with_compression(compression)
            .and_then(|how| match level {
                Some(level) => how.try_with_compression_level(Some(level)),
                None => Ok(how),
            })
            .map_err(|error| failed(path, error))?;
        let file = BufWriter::with_capacity(1 << 20, create(path)?);
        let writer = FileWriter::try_new_with_options(file, batch.schema(), how)
            .map_err(|error| failed(path, error))?;
        let rows = options.block_samples.unwrap_or(ROWS).max(1);
        Ok(FeatherWriter { path: path.to_owned(), writer, batch, rows, written: 0 })
    }

    fn flush(&mut self) -> Result<()> {
        if self.batch.rows() > 0 {
            self.written += self.batch.bytes();
            let batch = self.batch.take()?;
            self.writer.write(&batch).map_err(|error| failed(&self.path, error))?;
        }
        Ok(())
    }
}

impl RecordWriter for FeatherWriter {
    fn put(&mut self, record: &Record<'_>) -> Result<()> {
        if self.batch.is_full(record, self.rows, BATCH) {
            self.flush()?;
        }
        self.batch.put(record)
    }

    fn bytes(&self) -> u64 {
        self.written + self.batch.bytes()
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.flush()?;
        let path = self.path;
        // The footer is written here; closing it twice would be an error.
        let file = self.writer.into_inner().map_err(|error| failed(&path, error))?;
        let file = file.into_inner().map_err(|error| failed(&path, error))?;
        file.sync_all().map_err(|error| failed(&path, error))
    }
}
