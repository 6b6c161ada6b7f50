//! The messages of an Arrow file or stream: its schema, dictionaries and record batches.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_ipc::{MessageHeader, MetadataVersion};
use arrow_schema::{DataType, Field, SchemaRef};

use super::layout::{Cursor, Layout, corrupt};
use crate::catalog;
use crate::error::Fault;

/// What an IPC file begins and ends with; a stream has neither.
pub(super) const MAGIC: &[u8; 6] = b"ARROW1";
/// No message of a sound file has more to say.
const LARGEST_MESSAGE: u64 = 64 << 20;
/// What stands before the length of a message since version 0.15.
const CONTINUES: [u8; 4] = [0xff; 4];

/// A message and its body.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    /// Where what it says begins.
    pub begin: u64,
    /// Its length.
    pub length: u64,
    /// Where its body begins.
    pub body: u64,
    /// The body's length.
    pub body_length: u64,
}

impl Message {
    /// What it says.
    pub(super) fn read(&self, file: &File) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0; self.length as usize];
        file.read_exact_at(&mut bytes, self.begin)?;
        Ok(bytes)
    }

    /// The parts of a record batch, compared with the body.
    pub(super) fn layout(
        &self,
        batch: Option<arrow_ipc::RecordBatch<'_>>,
    ) -> Result<Layout, Fault> {
        let batch = batch.ok_or_else(|| corrupt("a batch is missing"))?;
        let unsigned =
            |value: i64| u64::try_from(value).map_err(|_| corrupt("a length is negative"));
        let mut layout = Layout::default();
        for node in batch.nodes().into_iter().flatten() {
            layout.nodes.push((unsigned(node.length())?, unsigned(node.null_count())?));
        }
        for buffer in batch.buffers().into_iter().flatten() {
            let (offset, length) = (unsigned(buffer.offset())?, unsigned(buffer.length())?);
            if offset.checked_add(length).is_none_or(|end| end > self.body_length) {
                return Err(corrupt("a buffer lies outside its batch"));
            }
            layout.buffers.push((self.body + offset, length));
        }
        for count in batch.variadicBufferCounts().into_iter().flatten() {
            layout.variadic.push(unsigned(count)?);
        }
        Ok(layout)
    }
}

/// Checks a message's bytes.
pub(super) fn parse(bytes: &[u8]) -> Result<arrow_ipc::Message<'_>, Fault> {
    arrow_ipc::root_as_message(bytes).map_err(|_| corrupt("a message is damaged"))
}

/// A record batch.
#[derive(Debug)]
pub(super) struct Batch {
    pub message: Message,
    pub rows: u64,
    pub compressed: bool,
    pub layout: Layout,
    /// Where each column begins in the layout, and the end of the last.
    pub columns: Vec<Cursor>,
    /// How many dictionary messages come before it.
    pub dictionaries: usize,
}

impl Batch {
    /// The buffers of a column.
    pub(super) fn buffers(&self, column: usize) -> &[(u64, u64)] {
        self.layout.between(&self.columns[column], &self.columns[column + 1])
    }
}

/// A file of record batches.
pub(super) struct ArrowFile {
    pub path: PathBuf,
    pub rows: u64,
    pub schema: SchemaRef,
    pub version: MetadataVersion,
    pub batches: Vec<Batch>,
    pub dictionaries: Vec<Message>,
    length: u64,
    pub stamp: u64,
}

impl ArrowFile {
    /// Reads what all messages say.
    pub(super) fn open(path: &Path) -> Result<ArrowFile, Fault> {
        let file = catalog::open(path)?;
        let length = file.metadata()?.len();
        let mut all = ArrowFile {
            path: path.to_owned(),
            rows: 0,
            schema: Arc::new(arrow_schema::Schema::empty()),
            version: MetadataVersion::V5,
            batches: Vec::new(),
            dictionaries: Vec::new(),
            length,
            stamp: catalog::stamp(&file)?,
        };
        let mut head = [0; 6];
        if length >= 6 {
            file.read_exact_at(&mut head, 0)?;
        }
        match &head == MAGIC {
            true => all.read_file(&file)?,
            false if &head[..4] == b"FEA1" => {
                let problem = "is Feather's first version: write it anew with pyarrow.feather";
                return Err(Fault::Unsupported(problem.to_owned()));
            }
            false => all.read_stream(&file)?,
        }
        Ok(all)
    }

    /// The file, if it is still what it was.
    pub(super) fn reopen(&self) -> Result<File, Fault> {
        catalog::reopen(&self.path, self.stamp)
    }

    /// The message at a place; `None` at the end of a stream.
    fn message(&self, file: &File, at: u64) -> Result<Option<(Message, Vec<u8>)>, Fault> {
        let mut head = [0; 8];
        if at == self.length {
            return Ok(None);
        }
        if at.checked_add(4).is_none_or(|end| end > self.length) {
            return Err(corrupt("ends within a message: it was cut short"));
        }
        let have = (self.length - at).min(8) as usize;
        file.read_exact_at(&mut head[..have], at)?;
        let (begin, length) = match head[..4] == CONTINUES {
            true => (at + 8, [head[4], head[5], head[6], head[7]]),
            false => (at + 4, [head[0], head[1], head[2], head[3]]),
        };
        let length = u64::from(u32::from_le_bytes(length));
        if length == 0 {
            return Ok(None);
        }
        let body = begin.checked_add(length).filter(|end| *end <= self.length);
        let body = body.filter(|_| length <= LARGEST_MESSAGE);
        let body = body.ok_or_else(|| corrupt("a message is longer than the file"))?;
        let mut message = Message { begin, length, body, body_length: 0 };
        let bytes = message.read(file)?;
        message.body_length = u64::try_from(parse(&bytes)?.bodyLength())
            .ok()
            .filter(|length| body.checked_add(*length).is_some_and(|end| end <= self.length))
            .ok_or_else(|| corrupt("a batch is longer than the file: it was cut short"))?;
        Ok(Some((message, bytes)))
    }

    fn read_stream(&mut self, file: &File) -> Result<(), Fault> {
        let mut at = 0;
        let mut begun = false;
        while let Some((message, bytes)) = self.message(file, at)? {
            // Each message is behind the one before, so this ends.
            at = message.body + message.body_length;
            let parsed = parse(&bytes)?;
            match (parsed.header_type(), begun) {
                (MessageHeader::Schema, false) => {
                    let schema = parsed.header_as_schema();
                    self.take_schema(schema, parsed.version())?;
                    begun = true;
                }
                (MessageHeader::RecordBatch, true) => self.take_batch(message, &parsed)?,
                (MessageHeader::DictionaryBatch, true) => self.dictionaries.push(message),
                (MessageHeader::Schema, true) => return Err(corrupt("has two schemas")),
                (_, true) => {}
                _ => return Err(corrupt("does not begin with a schema")),
            }
        }
        match begun {
            true => Ok(()),
            false => Err(corrupt("has no schema: it is empty, or no Arrow data")),
        }
    }

    fn read_file(&mut self, file: &File) -> Result<(), Fault> {
        let mut tail = [0; 10];
        if self.length < 20 {
            return Err(corrupt("is too short for an Arrow file"));
        }
        file.read_exact_at(&mut tail, self.length - 10)?;
        if &tail[4..] != MAGIC {
            return Err(corrupt("does not end as an Arrow file does: it was cut short"));
        }
        let length = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
        if length > (self.length - 18).min(LARGEST_MESSAGE) {
            return Err(corrupt("has a footer that is longer than the file"));
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, self.length - 10 - length)?;
        let footer =
            arrow_ipc::root_as_footer(&bytes).map_err(|_| corrupt("has a damaged footer"))?;
        self.take_schema(footer.schema(), footer.version())?;
        let place = |block: &arrow_ipc::Block| {
            u64::try_from(block.offset()).map_err(|_| corrupt("a batch has no place"))
        };
        for block in footer.dictionaries().into_iter().flatten() {
            let (message, _) = self
                .message(file, place(block)?)?
                .ok_or_else(|| corrupt("a dictionary is missing"))?;
            self.dictionaries.push(message);
        }
        for block in footer.recordBatches().into_iter().flatten() {
            let (message, bytes) =
                self.message(file, place(block)?)?.ok_or_else(|| corrupt("a batch is missing"))?;
            self.take_batch(message, &parse(&bytes)?)?;
        }
        Ok(())
    }

    fn take_schema(
        &mut self,
        schema: Option<arrow_ipc::Schema<'_>>,
        version: MetadataVersion,
    ) -> Result<(), Fault> {
        let schema = schema.ok_or_else(|| corrupt("has no schema"))?;
        if !schema.endianness().equals_to_target_endianness() {
            return Err(Fault::Unsupported("was written in another byte order".to_owned()));
        }
        if version < MetadataVersion::V4 {
            return Err(Fault::Unsupported("was written by an Arrow older than 0.8".to_owned()));
        }
        let schema = arrow_ipc::convert::try_fb_to_schema(schema)
            .map_err(|error| Fault::corrupt("arrow", error.to_string()))?;
        (self.schema, self.version) = (Arc::new(schema), version);
        Ok(())
    }

    fn take_batch(
        &mut self,
        message: Message,
        parsed: &arrow_ipc::Message<'_>,
    ) -> Result<(), Fault> {
        let batch = parsed.header_as_record_batch().ok_or_else(|| corrupt("a batch is missing"))?;
        let layout = message.layout(Some(batch))?;
        let rows =
            u64::try_from(batch.length()).map_err(|_| corrupt("a batch has negative rows"))?;
        let columns = layout
            .columns(self.schema.fields().iter().map(|field| &**field))
            .ok_or_else(|| corrupt("a batch has fewer arrays than its schema"))?;
        let starts = &columns[..columns.len() - 1];
        if starts.iter().any(|at| layout.rows(at) != Some(rows)) {
            return Err(corrupt("a column has another number of rows than its batch"));
        }
        let compressed = batch.compression().is_some();
        self.check_rows(&layout, &columns, rows, compressed)?;
        self.rows = self.rows.checked_add(rows).ok_or_else(|| corrupt("has too many rows"))?;
        let dictionaries = self.dictionaries.len();
        self.batches.push(Batch { message, rows, compressed, layout, columns, dictionaries });
        Ok(())
    }

    /// Rows take some room in every column but those of nothing.
    fn check_rows(
        &self,
        layout: &Layout,
        columns: &[Cursor],
        rows: u64,
        compressed: bool,
    ) -> Result<(), Fault> {
        let growth = if compressed { 1 << 17 } else { 8 };
        for (at, field) in self.schema.fields().iter().enumerate() {
            let takes_room = |field: &Field| {
                !matches!(
                    field.data_type(),
                    DataType::Null
                        | DataType::Struct(_)
                        | DataType::FixedSizeList(..)
                        | DataType::FixedSizeBinary(_)
                        | DataType::RunEndEncoded(..)
                )
            };
            let bytes: u64 =
                layout.between(&columns[at], &columns[at + 1]).iter().map(|place| place.1).sum();
            if takes_room(field) && rows > bytes.saturating_mul(growth) {
                return Err(corrupt("a batch has more rows than its buffers hold"));
            }
        }
        Ok(())
    }
}
