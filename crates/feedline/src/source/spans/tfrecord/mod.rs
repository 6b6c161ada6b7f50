//! TFRecord files of tf.train.Example and SequenceExample.
//!
//! A record is its length, the length's checksum, its bytes and their checksum. All checksums are
//! compared once, in the scan that finds where each feature lies; after that a sample is a place
//! in the file, and one that is changed later is not noticed.

mod columns;
mod example;
mod wire;

pub(in crate::source) use columns::{Columns, is_example, is_named};
pub(in crate::source) use example::{count_numbers, write_numbers};

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::encoding::Encoding;
use super::input::{Compression, Input};
use super::part::{ABSENT, Content, ShardPart, SpanColumn, Values};
use super::{Claim, Peek, Scanner, Spans, is_in_order};
use crate::error::Result;
use crate::sample::DType;
use crate::source::names::Names;
use crate::source::{Opening, is_folder, may_be_file, shards};
use crate::spec::FieldChoice;

/// True for the names of such files, as `train.tfrecord`, `train.tfrecords.gz` or
/// `train.tfrecord-00000-of-00128`, in lower case.
pub(in crate::source) fn is_name(name: &[u8]) -> bool {
    memchr::memmem::find(name, b".tfrec").is_some()
}

/// Length and checksum before a record, checksum after it.
const HEAD: u64 = 12;
const TAIL: u64 = 4;

/// TensorFlow's checksum: CRC-32C, turned so that it may be stored beside what it is of.
pub(in crate::source) fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// True if a file may begin like this: the checksum of the first record's length is right.
pub(in crate::source) fn is_tfrecord(start: &[u8]) -> bool {
    start.first_chunk::<12>().is_some_and(|head| length_of(head).is_some())
}

/// The length that a record's head says, if its checksum is right.
fn length_of(head: &[u8; 12]) -> Option<u64> {
    let (length, crc) = head.split_at(8);
    let right = masked_crc(length).to_le_bytes() == *crc;
    right.then(|| {
        u64::from_le_bytes([
            length[0], length[1], length[2], length[3], length[4], length[5], length[6], length[7],
        ])
    })
}

/// Opens files.
pub(in crate::source) fn open(
    path: &Path,
    fields: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<Spans> {
    let store = &**with.store;
    let files = if is_folder(path, store)? {
        let mut files = shards::list(path, store)?;
        files.retain(|file| {
            let name = file.file_name().map(|name| name.as_bytes().to_ascii_lowercase());
            name.is_some_and(|name| is_name(&name)) && may_be_file(file, store)
        });
        files
    } else {
        shards::expand(path, &[], store)?
    };
    let scanner = Scanner {
        format: "tfrecord",
        version: 1,
        compression,
        scan: Arc::new(scan),
        admit: &|_, part, _| {
            let sound = |column: &SpanColumn| is_named(column) && is_in_order(&column.places);
            part.columns.iter().all(sound).then_some(())
        },
        check: &check,
    };
    Spans::open(path, &scanner, files, fields, with)
}

/// Zlib has no mark, but what begins like it and has a wrong checksum is no record.
fn compression(start: &[u8]) -> Compression {
    match start {
        _ if is_tfrecord(start) => Compression::None,
        [head, flags, ..]
            if head & 0x0f == 8 && (u16::from(*head) << 8 | u16::from(*flags)) % 31 == 0 =>
        {
            Compression::Zlib
        }
        _ => Compression::by_magic(start),
    }
}

/// Between a feature's name and its value there are up to four lengths, each with its tag.
const BEFORE_VALUE: u64 = 4 * 11;

/// The tags of a name and of its value, and of a feature's three lists.
const NAME: u8 = 0x0a;
const VALUE: u8 = 0x12;
const BYTES_LIST: u8 = 0x0a;
const FLOAT_LIST: u8 = 0x12;
const INT_LIST: u8 = 0x1a;

/// A tag and a length, as protocol buffers write them.
fn tagged(tag: u8, mut length: u64) -> Vec<u8> {
    let mut bytes = vec![tag];
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes
}

/// Compares what lies at a place with what is said of it: the feature's name has to stand before it,
/// a number has to be the one that is there, and a string of bytes or of floats as long as the
/// length before it says.
pub(in crate::source) fn check(peek: &Peek<'_>, claim: &Claim<'_>) -> Option<()> {
    let Claim { column, at, .. } = *claim;
    let [start, length] = match claim.place()? {
        ABSENT => return Some(()),
        place => place,
    };
    if length == 0 {
        // An empty list, which has no number.
        return (column.values.len() == 0).then_some(());
    }
    let name = column.name.as_bytes();
    let key = [&tagged(NAME, name.len() as u64), name, &[VALUE]].concat();
    let window = (BEFORE_VALUE + key.len() as u64).min(start);
    let before = peek(start - window, window)?;
    let value = &before[memchr::memmem::rfind(&before, &key)? + key.len()..];
    // The value's length, then the tag of its list.
    let tag = value.iter().position(|byte| *byte < 0x80).and_then(|at| value.get(at + 1)).copied();
    if let Encoding::Numbers { is_float, has_steps } = column.encoding {
        let list = if is_float { FLOAT_LIST } else { INT_LIST };
        if !has_steps && tag != Some(list) {
            return None;
        }
        let mut found = [0; 8];
        let found = &mut found[..if is_float { 4 } else { 8 }];
        let said = match &column.values {
            // Counted and compared with what is said whenever it is read.
            Values::None => return Some(()),
            Values::Int(values) if !is_float => bytemuck::bytes_of(values.get(at)?),
            Values::Float(values) if is_float => bytemuck::bytes_of(values.get(at)?),
            _ => return None,
        };
        write_numbers(&peek(start, length)?, is_float, has_steps, found).ok()?;
        return (found == said).then_some(());
    }
    let is_float = match &column.content {
        Content::Array { dtype, .. } | Content::Ragged { dtype, .. } => *dtype == DType::F32,
        _ => false,
    };
    let fits = tag == Some(BYTES_LIST) || tag == Some(FLOAT_LIST) && is_float;
    let whole = value.ends_with(&tagged(NAME, length));
    (fits && whole && column.values.len() == 0).then_some(())
}

/// Finds the features of all records of a file.
fn scan(input: &mut Input<'_>, with: &Opening<'_>) -> Result<ShardPart> {
    let mut columns = Columns::new(with.is_image);
    let mut names = Names::default();
    let mut at = 0u64;
    loop {
        let number = names.len();
        input.hold(names.held() + columns.held())?;
        let head = input.some(at, HEAD)?;
        if head.is_empty() {
            break;
        }
        let problem = match head.first_chunk::<12>().map(length_of) {
            None => "is cut short",
            Some(None) if number == 0 => "is no TFRecord: the checksum of its length is wrong",
            Some(None) => "is damaged: the checksum of its length is wrong",
            Some(Some(length)) => {
                let whole = length.checked_add(TAIL).filter(|_| at.checked_add(HEAD).is_some());
                let bytes = match whole {
                    Some(whole) => input.some(at + HEAD, whole)?,
                    None => &[],
                };
                match bytes.split_last_chunk::<4>() {
                    Some((record, crc)) if record.len() as u64 == length => {
                        if masked_crc(record).to_le_bytes() != *crc {
                            "is damaged: its checksum is wrong"
                        } else if let Err(problem) = columns.add(record, at + HEAD) {
                            return Err(input.problem(format!(
                                "record {number} at byte {at} is no tf.train.Example: {problem}"
                            )));
                        } else {
                            names.push(number.to_string().as_bytes());
                            at += HEAD + length + TAIL;
                            continue;
                        }
                    }
                    _ => "is cut short",
                }
            }
        };
        return Err(input.problem(format!("record {number} at byte {at} {problem}")));
    }
    let columns = columns.finish().map_err(|problem| input.problem(problem))?;
    Ok(ShardPart { names, columns, ..ShardPart::default() })
}
