//! LMDB environments, read-only and without the C library.
//!
//! The environment must not be written while it is read: no lock is taken, and places that were
//! found once are used again. What keys and values mean is a matter of convention; each that is
//! known is a function here. Named databases, and keys with several values, are not read.

mod tree;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::input::{Compression, Input};
use super::look::{PICKLE, look_at};
use super::part::{ABSENT, Content, ShardPart, SpanColumn};
use super::tar;
use super::tar::Member;
use super::tfrecord;
use super::tfrecord::{Columns, is_example};
use super::{Claim, Peek, Scanner, Spans};
use crate::error::Result;
use crate::source::names::Names;
use crate::source::{Opening, is_folder, shards};
use crate::spec::FieldChoice;
use crate::store::Store;
use tree::{Entries, Meta};

/// The file in an environment's folder.
const FILE: &str = "data.mdb";

/// More kinds of values than a sample has.
const MOST_COLUMNS: usize = 64;

/// The environment's file: `path` itself, or the one in that folder.
fn file_of(path: &Path, store: &dyn Store) -> Result<PathBuf> {
    Ok(if is_folder(path, store)? { path.join(FILE) } else { path.to_owned() })
}

/// Opens environments: one, or several that a pattern stands for.
pub(in crate::source) fn open(
    path: &Path,
    fields: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<Spans> {
    let files = match shards::is_pattern(path, &**with.store) {
        true => shards::expand(path, &[], &**with.store)?,
        false => vec![path.to_owned()],
    };
    let files =
        files.iter().map(|path| file_of(path, &**with.store)).collect::<Result<Vec<_>>>()?;
    let scanner = Scanner {
        format: "lmdb",
        version: 1,
        compression: |_| Compression::None,
        scan: Arc::new(scan),
        admit: &|_, part, with| is_sound(part, with).then_some(()),
        check: &check,
    };
    Spans::open(path, &scanner, files, fields, with)
}

/// Finds all samples.
fn scan(input: &mut Input<'_>, with: &Opening<'_>) -> Result<ShardPart> {
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
        return tar::group(input, with, entries.held(), &mut |_| {
            Ok(members.next().map(|(key, place)| Member {
                name: key.to_vec(),
                start: place[0],
                size: place[1],
            }))
        });
    }
    single(input, entries, with)
}

/// `KEY.jpg`, `KEY.cls` and so on, as in tar shards: what stands before the first dot of the name
/// is the sample, the rest is the field.
fn is_grouped(entries: &Entries, with: &Opening<'_>) -> bool {
    let mut extensions: HashSet<String> = HashSet::new();
    let follow = entries.keys().all(|key| {
        tar::split(key).is_some_and(|(_, extension)| {
            extensions.insert(extension);
            extensions.len() <= MOST_COLUMNS
        })
    });
    follow && extensions.iter().any(|extension| tar::is_known(extension, with))
}

/// `image-000000001`, `label-000000001` and so on beside `num-samples`: the usual layout for text
/// recognition. The numbers are the samples, what stands before them are the fields.
fn numbered(
    input: &mut Input<'_>,
    entries: &Entries,
    with: &Opening<'_>,
) -> Result<Option<ShardPart>> {
    if !entries.has_number {
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
    let mut columns: Vec<SpanColumn> = Vec::new();
    for (entry, (key, place)) in entries.keys().zip(&entries.places).enumerate() {
        if entry.is_multiple_of(1024) {
            // Each number is a key of a map, and each column takes room for each sample.
            let samples = names.len();
            let cells = samples * columns.len() as u64;
            input.hold(entries.held() + names.held() + 128 * samples + 24 * cells)?;
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
                columns.push(SpanColumn::new(&field, Content::Bytes));
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
    Ok((samples > 0).then_some(ShardPart { names, columns, ..ShardPart::default() }))
}

/// Whether the columns could be those of some environment.
fn is_sound(part: &ShardPart, with: &Opening<'_>) -> bool {
    let named = |column: &SpanColumn| {
        let image = (column.name.as_str(), column.field.as_str()) == ("data", "image");
        image || tfrecord::is_named(column)
    };
    tar::is_sound(part, with) || part.columns.iter().all(named)
}

/// Looks a sample's key up in the tree: the place of the column has to be that of its value, or to
/// lie in it where the value is an example.
fn check(peek: &Peek<'_>, claim: &Claim<'_>) -> Option<()> {
    let column = claim.column;
    if column.hidden && column.name.starts_with(tar::JSON_NUMBER) {
        return tar::check_json(peek, claim);
    }
    let place = match claim.place()? {
        ABSENT => return Some(()),
        place => place,
    };
    let meta = Meta::look(peek)?;
    let (own, name) = (claim.name(), column.name.as_bytes());
    // A key that ends in "JPG" is of the column "jpg" too.
    let grouped = [column.name.clone(), column.name.to_uppercase()]
        .map(|name| [own, b".", name.as_bytes()].concat());
    let mut parts = grouped.into_iter().chain([[name, b"-", own].concat()]);
    if parts.any(|key| meta.find(peek, &key) == Some(place)) {
        return tar::check_value(peek, claim);
    }
    let [start, length] = meta.keys(own).iter().find_map(|key| meta.find(peek, key))?;
    if place == [start, length] && column.values.len() == 0 {
        return Some(());
    }
    let inside = place[0] >= start && place[0] + place[1] <= start + length;
    inside.then(|| tfrecord::check(peek, claim))?
}

/// Every entry is a sample: an image, a tf.train.Example, text or bytes.
fn single(input: &mut Input<'_>, entries: Entries, with: &Opening<'_>) -> Result<ShardPart> {
    let mut column = SpanColumn::new("data", Content::Bytes);
    let names = if entries.integer_keys {
        let mut names = Names::default();
        for key in entries.keys() {
            match key.len() {
                4 | 8 => {
                    let number =
                        key.iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
                    names.push(number.to_string().as_bytes());
                }
                _ => names.push(key),
            }
        }
        names
    } else {
        Names::from_parts(entries.keys, entries.ends).unwrap_or_default()
    };
    column.places = entries.places;
    look_at(input, &mut column, with.is_image)?;
    match column.content {
        Content::Image => column.field = "image".to_owned(),
        Content::Refused(_) => {
            return Err(input.problem(format!("every value {PICKLE}")));
        }
        Content::Bytes => {
            if let Some(columns) = examples(input, &column, with)? {
                return Ok(ShardPart { names, columns, ..ShardPart::default() });
            }
        }
        _ => {}
    }
    Ok(ShardPart { names, columns: vec![column], ..ShardPart::default() })
}

/// The features of values that are examples; `None` if the first one is none.
fn examples(
    input: &mut Input<'_>,
    column: &SpanColumn,
    with: &Opening<'_>,
) -> Result<Option<Vec<SpanColumn>>> {
    let mut columns = Columns::new(with.is_image);
    let before = column.held();
    for [at, length] in &column.places {
        input.hold(before + columns.held())?;
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
