//! LMDB environments, read-only and without the C library.
//!
//! The environment must not be written while it is read: no lock is taken, and places that were
//! found once are used again. What keys and values mean is a matter of convention; each that is
//! known is a function here. Named databases, and keys with several values, are not read.

mod tree;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use super::input::{Compression, Input};
use super::look::{PICKLE, look_at};
use super::names::Names;
use super::part::{ABSENT, Column, Content, Part};
use super::spans::{Scanner, Spans};
use super::tar::Member;
use super::tfrecord::{Columns, is_example};
use super::{Opening, shards, tar};
use crate::error::Result;
use crate::spec::FieldChoice;
use tree::Entries;

/// The file in an environment's folder.
const FILE: &str = "data.mdb";

/// Keys that describe the others.
const NO_SAMPLES: [&[u8]; 3] = [b"__len__", b"__keys__", b"num-samples"];

/// More kinds of values than a sample has.
const MOST_COLUMNS: usize = 64;

/// The environment's file: `path` itself, or the one in that folder.
pub(super) fn file_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(FILE) } else { path.to_owned() }
}

/// Opens environments: one, or several that a pattern stands for.
pub(super) fn open(path: &Path, fields: &[FieldChoice], with: &Opening<'_>) -> Result<Spans> {
    let files = match shards::is_pattern(path) {
        true => shards::expand(path, &[])?,
        false => vec![path.to_owned()],
    };
    let files = files.iter().map(|path| file_of(path)).collect();
    let scanner =
        Scanner { format: "lmdb", version: 1, compression: |_| Compression::None, scan: &scan };
    Spans::open(path, &scanner, files, fields, with)
}

/// Finds all samples.
fn scan(input: &mut Input<'_>, with: &Opening<'_>) -> Result<Part> {
    let entries = tree::walk(input)?;
    if let (0, Some(first)) = (entries.len(), &entries.first_database) {
        return Err(input.problem(format!(
            "holds only named databases, as {first:?}, which are not read: copy one to the main database"
        )));
    }
    if let Some(part) = numbered(input, &entries, with)? {
        return Ok(part);
    }
    if is_grouped(&entries, with) {
        let mut members = entries.keys().zip(&entries.places);
        return tar::group(input, with, &mut |_| {
            let member = members.find(|(key, _)| !NO_SAMPLES.contains(key));
            Ok(member.map(|(key, place)| Member {
                name: key.to_vec(),
                start: place[0],
                size: place[1],
            }))
        });
    }
    single(input, &entries, with)
}

/// `KEY.jpg`, `KEY.cls` and so on, as in tar shards: what stands before the first dot of the name
/// is the sample, the rest is the field.
fn is_grouped(entries: &Entries, with: &Opening<'_>) -> bool {
    let mut extensions: HashSet<String> = HashSet::new();
    let follow = entries.keys().filter(|key| !NO_SAMPLES.contains(key)).all(|key| {
        tar::split(key).is_some_and(|(_, extension)| {
            extensions.insert(extension);
            extensions.len() <= MOST_COLUMNS
        })
    });
    follow && extensions.iter().any(|extension| tar::is_known(extension, with))
}

/// `image-000000001`, `label-000000001` and so on beside `num-samples`: the usual layout for text
/// recognition. The numbers are the samples, what stands before them are the fields.
fn numbered(input: &mut Input<'_>, entries: &Entries, with: &Opening<'_>) -> Result<Option<Part>> {
    if entries.find(b"num-samples").is_none() {
        return Ok(None);
    }
    let split = |key: &[u8]| {
        let at = key.iter().rposition(|byte| *byte == b'-')?;
        let (name, number) = (std::str::from_utf8(&key[..at]).ok()?, &key[at + 1..]);
        let whole = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
        whole.then(|| (name.to_owned(), number.to_vec()))
    };
    let mut numbers: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut names = Names::default();
    let mut columns: Vec<Column> = Vec::new();
    for (key, place) in entries.keys().zip(&entries.places) {
        if NO_SAMPLES.contains(&key) {
            continue;
        }
        let Some((field, number)) = split(key) else { return Ok(None) };
        let sample = *numbers.entry(number).or_insert_with_key(|number| {
            names.push(number);
            names.len() as usize - 1
        });
        let at = match columns.iter().position(|column| column.name == field) {
            Some(at) => at,
            None if columns.len() >= MOST_COLUMNS => return Ok(None),
            None => {
                columns.push(Column::new(&field, Content::Bytes));
                columns.len() - 1
            }
        };
        let places = &mut columns[at].places;
        if places.len() <= sample {
            places.resize(sample + 1, ABSENT);
        }
        places[sample] = *place;
    }
    let samples = names.len() as usize;
    for column in &mut columns {
        column.fill(samples);
        look_at(input, column, with.is_image)?;
    }
    Ok((samples > 0).then_some(Part { names, columns, ..Part::default() }))
}

/// Every entry is a sample: an image, a tf.train.Example, text or bytes.
fn single(input: &mut Input<'_>, entries: &Entries, with: &Opening<'_>) -> Result<Part> {
    let samples: Vec<usize> =
        (0..entries.len()).filter(|number| !NO_SAMPLES.contains(&entries.key(*number))).collect();
    let mut names = Names::default();
    for number in &samples {
        let key = entries.key(*number);
        match (entries.integer_keys, key.len()) {
            (true, 4 | 8) => {
                let number = key.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
                names.push(number.to_string().as_bytes());
            }
            _ => names.push(key),
        }
    }
    let mut column = Column::new("data", Content::Bytes);
    column.places = samples.iter().map(|number| entries.places[*number]).collect();
    look_at(input, &mut column, with.is_image)?;
    match column.content {
        Content::Image => column.field = "image".to_owned(),
        Content::Refused(_) => {
            return Err(input.problem(format!("every value {PICKLE}")));
        }
        Content::Bytes => {
            if let Some(columns) = examples(input, &column, with)? {
                return Ok(Part { names, columns, ..Part::default() });
            }
        }
        _ => {}
    }
    Ok(Part { names, columns: vec![column], ..Part::default() })
}

/// The features of values that are examples; `None` if the first one is none.
fn examples(
    input: &mut Input<'_>,
    column: &Column,
    with: &Opening<'_>,
) -> Result<Option<Vec<Column>>> {
    let mut columns = Columns::new(with.is_image);
    for [at, length] in &column.places {
        let value = input.bytes(*at, *length)?;
        if columns.samples() == 0 && !is_example(value) {
            return Ok(None);
        }
        if let Err(problem) = columns.add(value, *at) {
            return Err(input.problem(format!(
                "the value at byte {at} is no tf.train.Example as others are: {problem}"
            )));
        }
    }
    columns.finish().map(Some).map_err(|problem| input.problem(problem))
}
