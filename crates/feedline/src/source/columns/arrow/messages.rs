//! The messages of an Arrow file or stream: its schema, dictionaries and record batches.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_ipc::{MessageHeader, MetadataVersion};
use arrow_schema::{DataType, SchemaRef};

use super::layout::{BatchMessage, Cursor, corrupt};
use crate::buffer;
use crate::error::Fault;
use crate::spec::read::show_bytes;
use crate::store::{Handle, Object, Store};

/// What an IPC file begins and ends with; a stream has neither.
pub(super) const MAGIC: &[u8; 6] = b"ARROW1";
/// No message of a sound file has more to say.
const LARGEST_MESSAGE: u64 = 64 << 20;
/// What a field of a schema takes beside its names.
const FIELD: u64 = 400;
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
    pub(super) fn read(&self, file: &dyn Object) -> Result<Vec<u8>, Fault> {
        let mut bytes = buffer::zeroed(self.length)?;
        file.read_exact_at(&mut bytes, self.begin)?;
        Ok(bytes)
    }

    /// The parts of a record batch, compared with the body.
    pub(super) fn layout(
        &self,
        batch: Option<arrow_ipc::RecordBatch<'_>>,
    ) -> Result<BatchMessage, Fault> {
        let batch = batch.ok_or_else(|| corrupt("a batch is missing"))?;
        let unsigned =
            |value: i64| u64::try_from(value).map_err(|_| corrupt("a length is negative"));
        let mut layout = BatchMessage::default();
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
    pub layout: BatchMessage,
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

    /// The buffers of some columns.
    pub(super) fn of_columns(&self, columns: &[usize]) -> Vec<(u64, u64)> {
        columns.iter().flat_map(|column| self.buffers(*column)).copied().collect()
    }

    /// Bytes that this description takes.
    fn held(&self) -> u64 {
        let BatchMessage { nodes, buffers, variadic } = &self.layout;
        let parts = 16 * nodes.len() + 16 * buffers.len() + 8 * variadic.len();
        (size_of::<Batch>() + parts + self.columns.len() * size_of::<Cursor>()) as u64
    }
}

/// A file of record batches.
pub(super) struct ArrowFile {
    store: Arc<dyn Store>,
    pub path: PathBuf,
    pub rows: u64,
    pub schema: SchemaRef,
    pub version: MetadataVersion,
    pub batches: Vec<Batch>,
    pub dictionaries: Vec<Message>,
    length: u64,
    pub stamp: u64,
    /// Bytes that the descriptions of batches and dictionaries take, and may take.
    pub held: u64,
    room: u64,
}

impl ArrowFile {
    /// Reads what all messages say, if that takes no more than `room` bytes.
    pub(super) fn open(store: &Arc<dyn Store>, path: &Path, room: u64) -> Result<ArrowFile, Fault> {
        let file = store.open(path)?;
        let length = file.len();
        let mut all = ArrowFile {
            path: path.to_owned(),
            rows: 0,
            schema: Arc::new(arrow_schema::Schema::empty()),
            version: MetadataVersion::V5,
            batches: Vec::new(),
            dictionaries: Vec::new(),
            length,
            stamp: file.stamp(),
            store: store.clone(),
            held: 0,
            room,
        };
        let mut head = [0; 6];
        if length >= 6 {
            file.read_exact_at(&mut head, 0)?;
        }
        match &head == MAGIC {
            true => all.read_file(&*file)?,
            false if &head[..4] == b"FEA1" => {
                let problem = "is Feather's first version: write it anew with pyarrow.feather";
                return Err(Fault::Unsupported(problem.to_owned()));
            }
            false => all.read_stream(&*file)?,
        }
        Ok(all)
    }

    /// The file, if it is still what it was.
    pub(super) fn reopen(&self) -> Result<Handle, Fault> {
        self.store.reopen(&self.path, self.stamp)
    }

    /// The message at a place; `None` at the end of a stream.
    fn message(&self, file: &dyn Object, at: u64) -> Result<Option<(Message, Vec<u8>)>, Fault> {
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

    fn read_stream(&mut self, file: &dyn Object) -> Result<(), Fault> {
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
                (MessageHeader::DictionaryBatch, true) => self.take_dictionary(message)?,
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

    fn read_file(&mut self, file: &dyn Object) -> Result<(), Fault> {
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
        let mut bytes = buffer::zeroed(length)?;
        file.read_exact_at(&mut bytes, self.length - 10 - length)?;
        let footer =
            arrow_ipc::root_as_footer(&bytes).map_err(|_| corrupt("has a damaged footer"))?;
        self.take_schema(footer.schema(), footer.version())?;
        // Messages lie one behind the other; a footer that names one again and again would have it
        // read as often.
        let mut left = self.length;
        let mut count = |message: &Message| {
            let bytes = message.length.saturating_add(message.body_length);
            left = left.checked_sub(bytes).ok_or_else(|| corrupt("has messages that overlap"))?;
            Ok::<_, Fault>(())
        };
        let place = |block: &arrow_ipc::Block| {
            u64::try_from(block.offset()).map_err(|_| corrupt("a batch has no place"))
        };
        for block in footer.dictionaries().into_iter().flatten() {
            let (message, _) = self
                .message(file, place(block)?)?
                .ok_or_else(|| corrupt("a dictionary is missing"))?;
            count(&message)?;
            self.take_dictionary(message)?;
        }
        for block in footer.recordBatches().into_iter().flatten() {
            let (message, bytes) =
                self.message(file, place(block)?)?.ok_or_else(|| corrupt("a batch is missing"))?;
            count(&message)?;
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
        // Entries may lead to the same field or name: each is written out when it is read.
        let left = self.room.saturating_sub(self.held);
        let taken = schema_memory(&schema, left).ok_or_else(|| {
            Fault::TooLarge(format!(
                "has a schema that takes more than {}: give more memory",
                show_bytes(left)
            ))
        })?;
        self.hold(taken)?;
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
        let batch = Batch { message, rows, compressed, layout, columns, dictionaries };
        // A footer may name the same batch many times.
        self.hold(batch.held())?;
        buffer::grow(&mut self.batches, 1)?;
        self.batches.push(batch);
        Ok(())
    }

    fn take_dictionary(&mut self, message: Message) -> Result<(), Fault> {
        self.hold(size_of::<Message>() as u64)?;
        buffer::grow(&mut self.dictionaries, 1)?;
        self.dictionaries.push(message);
        Ok(())
    }

    fn hold(&mut self, bytes: u64) -> Result<(), Fault> {
        self.held += bytes;
        match self.held <= self.room {
            true => Ok(()),
            false => Err(Fault::TooLarge(format!(
                "has so many batches that their descriptions alone take more than {}: give more memory",
                show_bytes(self.room)
            ))),
        }
    }

    /// Rows take some room in every column but those of nothing.
    fn check_rows(
        &self,
        layout: &BatchMessage,
        columns: &[Cursor],
        rows: u64,
        compressed: bool,
    ) -> Result<(), Fault> {
        let growth = if compressed { 1 << 17 } else { 8 };
        for (at, field) in self.schema.fields().iter().enumerate() {
            let bytes: u64 =
                layout.between(&columns[at], &columns[at + 1]).iter().map(|place| place.1).sum();
            if takes_room(field.data_type()) && rows > bytes.saturating_mul(growth) {
                return Err(corrupt("a batch has more rows than its buffers hold"));
            }
        }
        Ok(())
    }
}

/// Whether every row of a type takes some room in the buffers of its column.
fn takes_room(data_type: &DataType) -> bool {
    match data_type {
        DataType::Null | DataType::RunEndEncoded(..) => false,
        DataType::Struct(fields) => fields.iter().any(|field| takes_room(field.data_type())),
        DataType::FixedSizeList(child, length) => *length > 0 && takes_room(child.data_type()),
        DataType::FixedSizeBinary(width) => *width > 0,
        _ => true,
    }
}

/// Bytes that a schema takes; `None` if they are more than `left`.
fn schema_memory(schema: &arrow_ipc::Schema<'_>, left: u64) -> Option<u64> {
    let mut rest = left;
    for pair in schema.custom_metadata().into_iter().flatten() {
        pair_memory(&pair, &mut rest)?;
    }
    for field in schema.fields().into_iter().flatten() {
        field_memory(&field, &mut rest)?;
    }
    Some(left - rest)
}

fn pair_memory(pair: &arrow_ipc::KeyValue<'_>, left: &mut u64) -> Option<()> {
    let bytes = pair.key().map_or(0, str::len) + pair.value().map_or(0, str::len);
    *left = left.checked_sub(FIELD / 4 + bytes as u64)?;
    Some(())
}

/// Takes what a field and all within it take; the verifier has bounded how deep they are.
fn field_memory(field: &arrow_ipc::Field<'_>, left: &mut u64) -> Option<()> {
    *left = left.checked_sub(FIELD + field.name().map_or(0, str::len) as u64)?;
    for pair in field.custom_metadata().into_iter().flatten() {
        pair_memory(&pair, left)?;
    }
    let mut children = field.children().into_iter().flatten();
    children.try_for_each(|child| field_memory(&child, left))
}
