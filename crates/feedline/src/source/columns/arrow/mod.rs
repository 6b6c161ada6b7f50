//! Arrow's IPC files and streams, and Feather (its second version, which is the same).
//!
//! Values of batches that are not compressed are read from where they lie. Compressed batches and
//! dictionaries are decoded by the `arrow-ipc` crate, a batch at a time.

mod layout;
mod messages;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::{Array, ArrayRef};
use arrow_buffer::{Buffer, MutableBuffer};
use arrow_ipc::reader::{RecordBatchDecoder, read_dictionary};
use arrow_schema::{DataType, SchemaRef};
use memmap2::MmapMut;

use super::parquet::guard;
use super::values::Sort;
use super::{Files, Places, Table, Unit, take_places};
use crate::buffer;
use crate::error::{Error, Fault, Result};
use crate::sample::DType;
use crate::source::{Opening, kind_of, problem};
use crate::spec::FieldChoice;
use crate::spec::read::show_bytes;
use crate::store::{EntryKind, Object, Reader, Store};
use layout::{ColumnWalk, Noted, corrupt};
use messages::{ArrowFile, Message};

/// A compressed buffer may always grow to this.
const SMALL: u64 = 4 << 20;
/// What descriptions and places of batches may take, however little memory is given.
const LEAST_ROOM: u64 = 32 << 20;
/// Larger bodies are mapped, so that what is not read of them takes no memory.
const SMALL_BODY: u64 = 1 << 20;

/// Opens Arrow files and streams.
pub(in crate::source) fn open(
    what: &Path,
    fields: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<Table> {
    let paths = match saved(what, &**with.store)? {
        Some(paths) => paths.into_iter().map(crate::source::shards::fixed).collect(),
        None => crate::source::shards::expand(
            what,
            &[".arrow", ".feather", ".ipc", ".arrows"],
            &**with.store,
        )?,
    };
    let mut files = Vec::new();
    let mut room = with.memory.max(LEAST_ROOM);
    for path in paths {
        let file = guard("arrow", || ArrowFile::open(with.store, &path, room))
            .map_err(|fault| problem(&path, fault))?;
        room = room.saturating_sub(file.held);
        files.push(file);
    }
    let dictionaries =
        Mutex::new(KeptDictionaries { most: with.block_memory / 4, ..KeptDictionaries::default() });
    Table::open(Box::new(Arrow { files, dictionaries }), what, fields, with)
}

/// The files of a folder that Hugging Face's `datasets` saved, as its state lists them.
fn saved(folder: &Path, store: &dyn Store) -> Result<Option<Vec<PathBuf>>> {
    use std::io::Read;
    let mut text = String::new();
    let path = folder.join("state.json");
    if kind_of(&path, store)? != Some(EntryKind::File) {
        return Ok(None);
    }
    let read = store
        .open(&path)
        .and_then(|file| Reader::new(file).take(64 << 20).read_to_string(&mut text));
    match read {
        Err(source) if source.kind() != std::io::ErrorKind::InvalidData => {
            return Err(Error::Io { what: "cannot read", path, source });
        }
        _ => {}
    }
    let state: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let Some(files) = state["_data_files"].as_array() else { return Ok(None) };
    // Names without folders: the list must not lead elsewhere.
    let name = |file: &serde_json::Value| {
        Some(folder.join(Path::new(file["filename"].as_str()?).file_name()?))
    };
    Ok(files.iter().map(name).collect())
}

fn failed(error: arrow_schema::ArrowError) -> Fault {
    Fault::corrupt("arrow", error.to_string())
}

/// Dictionaries by their numbers.
type Dictionaries = Arc<HashMap<i64, ArrayRef>>;

/// The dictionaries that were used last, of all files.
#[derive(Default)]
struct KeptDictionaries {
    /// By files: how many messages they come from, what they take, and when they were used.
    files: HashMap<usize, (usize, Dictionaries, u64, u64)>,
    bytes: u64,
    /// What they may take, but for those of one file.
    most: u64,
    clock: u64,
}

impl KeptDictionaries {
    fn get(&mut self, file: usize, count: usize) -> Option<(usize, Dictionaries)> {
        self.clock += 1;
        let (messages, all, _, used) = self.files.get_mut(&file)?;
        *used = self.clock;
        (*messages <= count).then(|| (*messages, all.clone()))
    }

    fn put(&mut self, file: usize, count: usize, all: &Dictionaries) {
        self.clock += 1;
        let bytes = held(all);
        let before = self.files.insert(file, (count, all.clone(), bytes, self.clock));
        self.bytes = self.bytes + bytes - before.map_or(0, |(_, _, bytes, _)| bytes);
        while self.bytes > self.most && self.files.len() > 1 {
            let oldest = self.files.iter().min_by_key(|(_, (_, _, _, used))| *used);
            let Some(oldest) = oldest.map(|(file, _)| *file) else { break };
            let gone = self.files.remove(&oldest);
            self.bytes -= gone.map_or(0, |(_, _, bytes, _)| bytes);
        }
    }
}

/// Bytes that dictionaries take.
fn held(all: &HashMap<i64, ArrayRef>) -> u64 {
    all.values().map(|values| values.get_array_memory_size() as u64).sum()
}

struct Arrow {
    files: Vec<ArrowFile>,
    dictionaries: Mutex<KeptDictionaries>,
}

impl Arrow {
    fn known(&self) -> MutexGuard<'_, KeptDictionaries> {
        self.dictionaries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn source(&self, file: usize, fault: Fault) -> Error {
        problem(&self.files[file].path, fault)
    }

    /// The dictionaries as they stand after so many messages, if they take no more than `most`.
    fn dictionaries(&self, number: usize, count: usize, most: u64) -> Result<Dictionaries, Fault> {
        let (from, before) = self.known().get(number, count).unwrap_or_default();
        if from == count {
            return Ok(before);
        }
        let file = &self.files[number];
        let opened = file.reopen()?;
        let all = guard("arrow", || {
            let mut all = HashMap::clone(&before);
            for message in &file.dictionaries[from..count] {
                let bytes = message.read(&*opened)?;
                let dictionary = messages::parse(&bytes)?.header_as_dictionary_batch();
                let dictionary = dictionary.ok_or_else(|| corrupt("a dictionary is missing"))?;
                let layout = message.layout(dictionary.data())?;
                let compressed = dictionary.data().is_some_and(|data| data.compression().is_some());
                let need = sizes(&*opened, &layout.buffers, compressed)?.saturating_add(held(&all));
                if need > most {
                    return Err(Fault::TooLarge(format!(
                        "has dictionaries of {}, of which {} may be held: give more memory",
                        show_bytes(need),
                        show_bytes(most)
                    )));
                }
                let body = body(&*opened, message, &layout.buffers)?;
                let version = file.version;
                read_dictionary(&body, dictionary, &file.schema, &mut all, &version)
                    .map_err(failed)?;
            }
            Ok(Arc::new(all))
        })?;
        self.known().put(number, count, &all);
        Ok(all)
    }

    /// Where a column's values lie, if they lie plainly in the file.
    fn place(
        &self,
        number: usize,
        column: usize,
        sort: &Sort,
        room: &mut u64,
    ) -> Result<Option<Arc<Places>>> {
        let file = &self.files[number];
        if file.batches.iter().any(|batch| batch.compressed) {
            return Ok(None);
        }
        let data_type = file.schema.field(column).data_type();
        use crate::sample::FieldKind::{Array, Ragged, Text};
        let wanted = match sort {
            Sort::Plain(Array { dtype: DType::Bool, .. } | Ragged { dtype: DType::Bool, .. }) => {
                false
            }
            Sort::Plain(Ragged { axes, .. }) => *axes == 1,
            Sort::Plain(Array { .. } | Text) | Sort::Binary | Sort::ImageStruct => true,
            Sort::Plain(_) => false,
            Sort::Whole => data_type.primitive_width() == Some(8),
        };
        if !wanted || has_dictionary(data_type) {
            return Ok(None);
        }
        let before = *room;
        let each = layout::fixed_width(data_type).is_none();
        if each {
            take_places(&file.path, file.rows, room)?;
        }
        let note = || -> Result<Option<Places>, Fault> {
            let opened = file.reopen()?;
            let mut noted = Noted {
                begins: Vec::new(),
                lengths: Vec::new(),
                runs: Vec::new(),
                width: 0,
                rows: 0,
            };
            if each {
                buffer::reserve(&mut noted.begins, file.rows)?;
                buffer::reserve(&mut noted.lengths, file.rows)?;
            }
            for batch in file.batches.iter().filter(|batch| batch.rows > 0) {
                let at = batch.columns[column];
                let mut walk = ColumnWalk { file: &*opened, layout: &batch.layout, at };
                if walk.note(data_type, batch.rows, &mut noted)?.is_none() {
                    return Ok(None);
                }
            }
            Ok(Some(match noted.runs.is_empty() {
                true => Places::Each { begins: noted.begins, lengths: noted.lengths },
                false => Places::Runs { runs: noted.runs, width: noted.width },
            }))
        };
        let places = note().map_err(|fault| self.source(number, fault))?;
        if places.is_none() {
            *room = before;
        }
        Ok(places.map(Arc::new))
    }
}

/// What buffers take once they are unpacked.
fn sizes(file: &dyn Object, buffers: &[(u64, u64)], compressed: bool) -> Result<u64, Fault> {
    let size = |place: &(u64, u64)| match compressed {
        true => grown(file, *place),
        false => Ok(place.1),
    };
    buffers.iter().try_fold(0, |sum: u64, place| Ok(sum.saturating_add(size(place)?)))
}

/// What a compressed buffer becomes, if it can.
fn grown(file: &dyn Object, (begin, length): (u64, u64)) -> Result<u64, Fault> {
    if length == 0 {
        return Ok(0);
    }
    let mut head = [0; 8];
    if length < 8 {
        return Err(corrupt("a compressed buffer is too short"));
    }
    file.read_exact_at(&mut head, begin)?;
    match i64::from_le_bytes(head) {
        -1 => Ok(length - 8),
        bytes => u64::try_from(bytes)
            .ok()
            .filter(|bytes| *bytes <= length.saturating_mul(1 << 14).clamp(SMALL, 1 << 31))
            .ok_or_else(|| corrupt("a compressed buffer is larger than it can be")),
    }
}

/// A message's body of which only these buffers were read; the rest is zero and takes no memory.
fn body(file: &dyn Object, message: &Message, buffers: &[(u64, u64)]) -> Result<Buffer, Fault> {
    let fill = |body: &mut [u8]| -> Result<(), Fault> {
        for (begin, length) in buffers {
            let from = (begin - message.body) as usize;
            let part = body.get_mut(from..from.saturating_add(*length as usize));
            let part = part.ok_or_else(|| corrupt("a buffer lies outside its batch"))?;
            file.read_exact_at(part, *begin)?;
        }
        Ok(())
    };
    if message.body_length <= SMALL_BODY {
        let mut body = MutableBuffer::from_len_zeroed(message.body_length as usize);
        fill(body.as_slice_mut())?;
        return Ok(body.into());
    }
    let mut body = MmapMut::map_anon(message.body_length as usize)?;
    fill(&mut body)?;
    Ok(bytes::Bytes::from_owner(body).into())
}

fn has_dictionary(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(..) => true,
        DataType::Struct(fields) => fields.iter().any(|field| has_dictionary(field.data_type())),
        _ => false,
    }
}

impl Files for Arrow {
    fn list(&self) -> Vec<(&Path, u64, SchemaRef)> {
        self.files.iter().map(|file| (&*file.path, file.rows, file.schema.clone())).collect()
    }

    fn stamp(&self, file: usize) -> u64 {
        self.files[file].stamp
    }

    fn size(&self, file: usize, column: usize) -> Option<u64> {
        let file = &self.files[file];
        let data_type = file.schema.field(column).data_type();
        if let Some(width) = data_type.primitive_width() {
            return file.rows.checked_mul(width.max(8) as u64);
        }
        match data_type {
            DataType::Boolean => Some(file.rows),
            DataType::Dictionary(..) => file.rows.checked_mul(16),
            _ => {
                let buffers = file.batches.iter().flat_map(|batch| batch.buffers(column));
                let bytes = buffers.map(|buffer| buffer.1).try_fold(0, u64::checked_add)?;
                bytes.checked_mul(2)?.checked_add(file.rows.checked_mul(8)?)
            }
        }
    }

    fn places(
        &self,
        number: usize,
        columns: &[(usize, &Sort)],
        room: &mut u64,
    ) -> Result<Vec<Option<Arc<Places>>>> {
        columns.iter().map(|(column, sort)| self.place(number, *column, sort, room)).collect()
    }

    fn units(
        &self,
        number: usize,
        columns: &[usize],
        _limit: u64,
        _most: u64,
    ) -> Result<Vec<Unit>> {
        let file = &self.files[number];
        // There are as many as batches, whose descriptions are counted and larger.
        let all = || -> Result<Vec<Unit>, Fault> {
            let opened = file.reopen()?;
            let batches = file.batches.iter().enumerate().filter(|(_, batch)| batch.rows > 0);
            let unit = |(group, batch): (usize, &messages::Batch)| {
                let (first, rows) = (0, batch.rows);
                let bytes = sizes(&*opened, &batch.of_columns(columns), batch.compressed)?;
                Ok(Unit { file: number, group, first, rows, bytes })
            };
            batches.map(unit).collect()
        };
        all().map_err(|fault| self.source(number, fault))
    }

    fn need(&self, unit: &Unit, columns: &[usize]) -> Result<u64, Fault> {
        let file = &self.files[unit.file];
        let batch = &file.batches[unit.group];
        sizes(&*file.reopen()?, &batch.of_columns(columns), batch.compressed)
    }

    fn needs(&self, unit: &Unit, columns: &[usize], each: &mut dyn FnMut(u64, u64)) {
        let batch = &self.files[unit.file].batches[unit.group];
        batch.of_columns(columns).iter().for_each(|(begin, length)| each(*begin, *length));
    }

    fn held(&self) -> u64 {
        self.files.iter().map(|file| file.held).sum::<u64>() + self.known().bytes
    }

    fn decode(&self, unit: &Unit, columns: &[usize], most: u64) -> Result<Vec<ArrayRef>, Fault> {
        let file = &self.files[unit.file];
        let batch = &file.batches[unit.group];
        let opened = file.reopen()?;
        let buffers = batch.of_columns(columns);
        let need = sizes(&*opened, &buffers, batch.compressed)?;
        let needed = columns.iter().any(|c| has_dictionary(file.schema.field(*c).data_type()));
        let dictionaries = match needed {
            true => self.dictionaries(unit.file, batch.dictionaries, most.saturating_sub(need))?,
            false => Dictionaries::default(),
        };
        let mut sorted = columns.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let bytes = batch.message.read(&*opened)?;
        let body = body(&*opened, &batch.message, &buffers)?;
        let found = guard("arrow", || {
            let record = messages::parse(&bytes)?.header_as_record_batch();
            let record = record.ok_or_else(|| corrupt("a batch is missing"))?;
            let schema = file.schema.clone();
            RecordBatchDecoder::try_new(&body, record, schema, &dictionaries, &file.version)
                .and_then(|decoder| decoder.with_projection(Some(&sorted)).read_record_batch())
                .map_err(failed)
        })?;
        if found.num_rows() as u64 != unit.rows {
            return Err(corrupt("a batch has fewer rows than it says"));
        }
        let pick = |column: &usize| {
            let at = sorted.binary_search(column).unwrap_or(0);
            found.columns().get(at).cloned().ok_or_else(|| corrupt("a column is missing"))
        };
        columns.iter().map(pick).collect()
    }
}
