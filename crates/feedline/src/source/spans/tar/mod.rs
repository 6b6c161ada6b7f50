//! Tar shards as the webdataset package reads and writes them.
//!
//! Files that follow each other and have one name up to the first dot are one sample; what follows
//! the dot says what they are. Of a plain archive only headers and small numbers are read, once;
//! then samples are read at their places in any order. A compressed one is unpacked as a whole.

mod header;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use header::Headers;
pub(in crate::source) use header::Member;

use super::encoding::Encoding;
use super::input::{Compression, Input};
use super::npy::NpyTensor;
use super::part::{ABSENT, ByteSpan, Content, ShardPart, SpanColumn, Values};
use crate::error::{Fault, Result};
use crate::source::names::Names;
use crate::source::spans::{self, Claim, Peek, Scanner, Spans};
use crate::source::{Opening, shards};
use crate::spec::FieldChoice;

/// What shards' names end in.
pub(in crate::source) const ENDINGS: [&str; 5] =
    [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd"];

const NUMBERS: [&str; 7] = ["cls", "cls2", "class", "count", "index", "inx", "id"];
const TEXTS: [&str; 5] = ["txt", "text", "transcript", "json", "jsn"];
const PICKLES: [&str; 5] = ["pyd", "pkl", "pickle", "pth", "pt"];

/// A number in a file of its own is no longer than this.
const LONGEST_NUMBER: u64 = 64;
/// Numbers are taken out of JSON up to this size, for this many keys.
const LONGEST_JSON: u64 = 64 << 10;
const MOST_KEYS: usize = 64;
/// What their columns' names begin with.
pub(in crate::source) const JSON_NUMBER: &str = "json.";

/// Opens shards.
pub(in crate::source) fn open(
    path: &Path,
    fields: &[FieldChoice],
    with: &Opening<'_>,
) -> Result<Spans> {
    let files = shards::expand(path, &ENDINGS, &**with.store)?;
    let scanner = Scanner {
        format: "tar",
        version: 1,
        compression: Compression::by_magic,
        scan: Arc::new(scan),
        admit: &|_, part, with| (is_sound(part, with) && is_in_order(part)).then_some(()),
        check: &check,
    };
    Spans::open(path, &scanner, files, fields, with)
}

/// What a name is to a sample: the sample's key and the field's extension, as the webdataset package
/// distinguishes them. `None` for metadata, hidden files and names without a dot.
pub(in crate::source) fn split(name: &[u8]) -> Option<(&[u8], String)> {
    let base = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let dot = base + name[base..].iter().position(|byte| *byte == b'.').filter(|dot| *dot > 0)?;
    let top = name.split(|byte| *byte == b'/').next().unwrap_or_default();
    if top.len() >= 4 && top.starts_with(b"__") && top.ends_with(b"__") {
        return None;
    }
    let extension = String::from_utf8_lossy(&name[dot + 1..]);
    // The kind of file is known in any case; a field's name keeps its own.
    let extension = match extension.rsplit_once('.') {
        Some((field, kind)) => format!("{field}.{}", kind.to_lowercase()),
        None => extension.to_lowercase(),
    };
    Some((&name[..dot], extension))
}

/// What an extension's last part says of the bytes.
enum Role {
    Image,
    Number,
    Text,
    Array,
    Bytes,
    Pickle,
}

fn role(extension: &str, with: &Opening<'_>) -> Role {
    let last = extension.rsplit('.').next().unwrap_or_default();
    match last {
        _ if with.image_extensions.contains(&last) => Role::Image,
        _ if NUMBERS.contains(&last) => Role::Number,
        _ if TEXTS.contains(&last) => Role::Text,
        _ if PICKLES.contains(&last) => Role::Pickle,
        "npy" => Role::Array,
        _ => Role::Bytes,
    }
}

/// True if an extension says what the bytes are.
pub(in crate::source) fn is_known(extension: &str, with: &Opening<'_>) -> bool {
    !matches!(role(extension, with), Role::Bytes) || extension.ends_with("bin")
}

/// The field's name if nobody chose one: "image" for images, "label" for "cls", "caption" for
/// "caption.txt".
fn field_name(extension: &str, role: &Role) -> String {
    match extension.rsplit_once('.') {
        Some((name, last)) if !matches!(role, Role::Bytes) || last == "bin" => name.to_owned(),
        None if matches!(role, Role::Image) => "image".to_owned(),
        None if extension == "cls" => "label".to_owned(),
        _ => extension.to_owned(),
    }
}

/// A column while it is found. Samples that do not have it take no room.
struct Found {
    extension: String,
    role: Role,
    samples: Vec<usize>,
    places: Vec<ByteSpan>,
    /// Of a number: `None` once one of them was none.
    numbers: Option<Vec<i64>>,
    arrays: ArraysFound,
}

/// What the headers of .npy files have in common.
#[derive(Default)]
struct ArraysFound {
    first: Option<NpyTensor>,
    /// True if one of them is unlike the first in that way.
    other_type: bool,
    other_shape: bool,
    not_plain: bool,
    fault: Option<String>,
}

impl ArraysFound {
    fn add(&mut self, header: Result<NpyTensor, Fault>, size: u64) {
        let header = match header {
            Ok(header) => header,
            Err(fault) => {
                // Reported when that sample is read, unless all are so.
                self.not_plain = true;
                self.fault.get_or_insert(fault.to_string());
                return;
            }
        };
        let whole = header.bytes().and_then(|bytes| bytes.checked_add(header.start as u64));
        self.not_plain |= !header.is_plain() || whole != Some(size);
        match &self.first {
            None => self.first = Some(header),
            Some(first) => {
                self.other_type |=
                    first.dtype != header.dtype || first.shape.len() != header.shape.len();
                self.other_shape |= first.shape != header.shape;
                self.not_plain |= first.start != header.start;
            }
        }
    }

    fn content(&self) -> (Content, Encoding) {
        let Some(first) = &self.first else {
            let reason = self.fault.clone().unwrap_or_default();
            return (Content::Refused(format!("cannot be read: {reason}")), Encoding::Plain);
        };
        let (dtype, axes) = (first.dtype, first.shape.len());
        if self.other_type {
            return (Content::Bytes, Encoding::Plain);
        }
        if self.other_shape {
            return (Content::Ragged { dtype, axes }, Encoding::Npy);
        }
        let encoding =
            if self.not_plain { Encoding::Npy } else { Encoding::After(first.start as u64) };
        (Content::Array { dtype, shape: first.shape.clone() }, encoding)
    }
}

impl Found {
    fn new(extension: &str, with: &Opening<'_>) -> Found {
        Found {
            extension: extension.to_owned(),
            role: role(extension, with),
            samples: Vec::new(),
            places: Vec::new(),
            numbers: Some(Vec::new()),
            arrays: ArraysFound::default(),
        }
    }

    /// Looks at the bytes where the scan has to.
    fn look(&mut self, input: &mut Input<'_>, member: &Member) -> Result<()> {
        match self.role {
            Role::Number => {
                let text = match member.size {
                    0..=LONGEST_NUMBER => input.bytes(member.start, member.size)?,
                    _ => &[],
                };
                let number = std::str::from_utf8(text).ok().and_then(|t| t.trim().parse().ok());
                match (number, &mut self.numbers) {
                    (Some(number), Some(numbers)) => numbers.push(number),
                    _ => self.numbers = None,
                }
            }
            Role::Array => {
                let start = input.bytes(member.start, member.size.min(12))?;
                let header = match NpyTensor::length(start) {
                    Ok(length) => {
                        let length = member.size.min(length as u64);
                        NpyTensor::read(input.bytes(member.start, length)?)
                    }
                    Err(fault) => Err(fault),
                };
                self.arrays.add(header, member.size);
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(self, samples: usize) -> SpanColumn {
        let (content, encoding) = match self.role {
            Role::Image => (Content::Image, Encoding::Plain),
            Role::Number if self.numbers.is_some() => (Content::Number, Encoding::Plain),
            Role::Number | Role::Text => (Content::Text, Encoding::Plain),
            Role::Array => self.arrays.content(),
            Role::Bytes => (Content::Bytes, Encoding::Plain),
            Role::Pickle => {
                let reason = "is a Python pickle: reading a pickle runs code, so it is refused";
                (Content::Refused(reason.to_owned()), Encoding::Plain)
            }
        };
        let mut column = SpanColumn::new(&self.extension, content);
        column.field = field_name(&self.extension, &self.role);
        column.encoding = encoding;
        if column.content == Content::Number {
            column.values = Values::Int(Vec::new());
        }
        column.fill(samples);
        for (at, place) in self.samples.iter().zip(self.places) {
            column.places[*at] = place;
        }
        if let (Values::Int(values), Some(numbers)) = (&mut column.values, self.numbers) {
            self.samples.iter().zip(numbers).for_each(|(at, number)| values[*at] = number);
        }
        column
    }
}

/// Numbers inside the samples' JSON, for those who choose them as "json.key".
#[derive(Default)]
struct JsonFound {
    keys: Vec<String>,
    numbers: Vec<Vec<(usize, f64, Option<i64>)>>,
    /// How many there are.
    count: u64,
}

/// A number as it is taken out of JSON, and as a whole one.
fn json_number(value: &serde_json::Value) -> Option<(f64, Option<i64>)> {
    match value {
        serde_json::Value::Bool(value) => {
            Some((f64::from(u8::from(*value)), Some((*value).into())))
        }
        value => Some((value.as_f64()?, value.as_i64())),
    }
}

impl JsonFound {
    fn add(&mut self, sample: usize, text: &[u8]) {
        let Ok(serde_json::Value::Object(object)) = serde_json::from_slice(text) else { return };
        for (key, value) in object {
            let Some((number, whole)) = json_number(&value) else { continue };
            let at = match self.keys.iter().position(|known| *known == key) {
                Some(at) => at,
                None if self.keys.len() < MOST_KEYS => {
                    self.keys.push(key);
                    self.numbers.push(Vec::new());
                    self.keys.len() - 1
                }
                None => continue,
            };
            self.numbers[at].push((sample, number, whole));
            self.count += 1;
        }
    }

    fn finish(self, samples: usize) -> impl Iterator<Item = SpanColumn> {
        self.keys.into_iter().zip(self.numbers).map(move |(key, numbers)| {
            let mut column = SpanColumn::new(&format!("{JSON_NUMBER}{key}"), Content::Number);
            column.hidden = true;
            let whole = numbers.iter().all(|(_, _, whole)| whole.is_some());
            column.values = if whole { Values::Int(Vec::new()) } else { Values::Float(Vec::new()) };
            column.fill(samples);
            for (at, number, whole) in numbers {
                column.places[at] = [0, 0];
                match &mut column.values {
                    Values::Int(values) => values[at] = whole.unwrap_or(0),
                    Values::Float(values) => values[at] = number as f32,
                    Values::None => {}
                }
            }
            column
        })
    }
}

fn scan(input: &mut Input<'_>, with: &Opening<'_>) -> Result<ShardPart> {
    let mut headers = Headers::default();
    // The rest of a member's last block counts: without it, other programs take the archive for cut.
    let mut before: Option<Member> = None;
    group(input, with, 0, &mut |input| {
        if let Some(member) = &before {
            let blocks = member.size.checked_next_multiple_of(512).unwrap_or(u64::MAX);
            if !input.reaches(member.start.saturating_add(blocks))? {
                let name = String::from_utf8_lossy(&member.name).into_owned();
                return Err(input.problem(format!("ends inside of {name:?}: it is cut short")));
            }
        }
        before = headers.next(input)?;
        Ok(before.clone())
    })
}

/// Whether the columns are those that grouping makes of their names.
pub(in crate::source) fn is_sound(part: &ShardPart, with: &Opening<'_>) -> bool {
    let samples = part.names.len() as usize;
    part.columns.iter().all(|column| {
        if column.hidden {
            let number = column.name.starts_with(JSON_NUMBER) && column.values.len() == samples;
            return number && column.content == Content::Number && column.field == column.name;
        }
        let role = role(&column.name, with);
        let plain = column.encoding == Encoding::Plain;
        let whole = matches!(column.values, Values::Int(_));
        let content = match (&role, &column.content) {
            (Role::Number, Content::Number) => return whole && plain && is_named(column, &role),
            (Role::Image, Content::Image)
            | (Role::Number | Role::Text, Content::Text)
            | (Role::Bytes | Role::Array, Content::Bytes)
            | (Role::Pickle | Role::Array, Content::Refused(_)) => plain,
            (Role::Array, Content::Array { .. }) => {
                matches!(column.encoding, Encoding::After(_) | Encoding::Npy)
            }
            (Role::Array, Content::Ragged { .. }) => column.encoding == Encoding::Npy,
            _ => false,
        };
        content && column.values.len() == 0 && is_named(column, &role)
    })
}

fn is_named(column: &SpanColumn, role: &Role) -> bool {
    column.field == field_name(&column.name, role)
}

fn is_in_order(part: &ShardPart) -> bool {
    part.columns.iter().all(|column| column.hidden || spans::is_in_order(&column.places))
}

/// Compares a member with its header, which stands before it, and a number with its text.
fn check(peek: &Peek<'_>, claim: &Claim<'_>) -> Option<()> {
    let Claim { column, .. } = claim;
    if column.hidden {
        return check_json(peek, claim);
    }
    let [start, size] = match claim.place()? {
        ABSENT => return Some(()),
        place => place,
    };
    let block = peek(start.checked_sub(512)?, 512)?;
    let name = header::name_before(block.as_slice().try_into().ok()?, size)?;
    // A longer name, or one that is not ASCII, stands in a header of its own.
    let stem = [claim.name(), b".", column.name.as_bytes()].concat();
    if stem.len() < 100 && stem.is_ascii() && !name.eq_ignore_ascii_case(&stem) {
        return None;
    }
    check_value(peek, claim)
}

/// Compares a number with the text at its place, and what is said of an array with its header.
pub(in crate::source) fn check_value(peek: &Peek<'_>, claim: &Claim<'_>) -> Option<()> {
    let Claim { column, at, .. } = claim;
    let [start, size] = claim.place()?;
    if let Values::Int(values) = &column.values {
        let text = peek(start, Some(size).filter(|size| *size <= LONGEST_NUMBER)?)?;
        let number: i64 = std::str::from_utf8(&text).ok()?.trim().parse().ok()?;
        return (number == *values.get(*at)?).then_some(());
    }
    if let (Content::Array { dtype, shape }, Encoding::After(skip)) =
        (&column.content, column.encoding)
    {
        let header = NpyTensor::read(&peek(start, size.min(skip))?).ok()?;
        let same = header.dtype == *dtype && header.shape == *shape && header.is_plain();
        return (same && header.start as u64 == skip).then_some(());
    }
    Some(())
}

/// Compares a number with the JSON that it was taken from.
pub(in crate::source) fn check_json(peek: &Peek<'_>, claim: &Claim<'_>) -> Option<()> {
    let Claim { part, column, at, .. } = claim;
    let key = column.name.strip_prefix(JSON_NUMBER)?;
    let text = part.columns.iter().find(|column| column.name == "json")?;
    let number = match *text.places.get(*at)? {
        ABSENT => None,
        [_, size] if size > LONGEST_JSON => None,
        [start, size] => {
            let object: serde_json::Value =
                serde_json::from_slice(&peek(start, size)?).unwrap_or_default();
            object.get(key).and_then(json_number)
        }
    };
    let same = match (number, &column.values) {
        (None, _) => claim.place()? == ABSENT,
        (Some(_), _) if claim.place()? == ABSENT => false,
        (Some((_, whole)), Values::Int(values)) => whole == Some(*values.get(*at)?),
        (Some((number, _)), Values::Float(values)) => number as f32 == *values.get(*at)?,
        (Some(_), Values::None) => false,
    };
    same.then_some(())
}

/// Groups what `next` gives, one after the other, into samples; `before` bytes are kept beside.
pub(in crate::source) fn group(
    input: &mut Input<'_>,
    with: &Opening<'_>,
    before: u64,
    next: &mut dyn FnMut(&mut Input<'_>) -> Result<Option<Member>>,
) -> Result<ShardPart> {
    let mut part = ShardPart::default();
    let mut columns: Vec<Found> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut json = JsonFound::default();
    let mut seen: HashSet<u64> = HashSet::new();
    let mut key: Option<Vec<u8>> = None;
    let mut members = 0usize;
    while let Some(member) = next(input)? {
        if let Some((own, extension)) = split(&member.name) {
            if key.as_deref() != Some(own) {
                if !seen.insert(xxhash_rust::xxh3::xxh3_64(own)) {
                    return Err(repeated(input, own));
                }
                part.names.push(own);
                key = Some(own.to_vec());
            }
            let sample = part.names.len() as usize - 1;
            let at = *known.entry(extension).or_insert_with_key(|extension| {
                columns.push(Found::new(extension, with));
                columns.len() - 1
            });
            let column = &mut columns[at];
            if column.samples.last() == Some(&sample) {
                let name = String::from_utf8_lossy(&member.name).into_owned();
                return Err(input.problem(format!("holds {name:?} twice")));
            }
            column.look(input, &member)?;
            if column.extension == "json" && member.size <= LONGEST_JSON {
                json.add(sample, input.bytes(member.start, member.size)?);
            }
            column.samples.push(sample);
            column.places.push([member.start, member.size]);
            members += 1;
            if members.is_multiple_of(1024) {
                input.hold(before + kept(&part.names, &columns, &json, members))?;
            }
        }
    }
    input.hold(before + kept(&part.names, &columns, &json, members))?;
    let samples = part.names.len() as usize;
    // Every column takes room for every sample.
    if columns.len().saturating_mul(samples) > members * 16 + (1 << 20) {
        return Err(input.problem(format!(
            "has {} different extensions for {samples} samples: these are no samples of one kind",
            columns.len()
        )));
    }
    part.columns = columns.into_iter().map(|column| column.finish(samples)).collect();
    part.columns.extend(json.finish(samples));
    Ok(part)
}

/// Bytes that are kept of so many members, with the columns that will be made of them: every column
/// takes a place and maybe a number for every sample.
fn kept(names: &Names, columns: &[Found], json: &JsonFound, members: usize) -> u64 {
    let cells = names.len().saturating_mul((columns.len() + json.keys.len()) as u64);
    let lists = 48 * members as u64 + 32 * names.len() + 48 * json.count;
    names.held() + lists + 512 * columns.len() as u64 + cells.saturating_mul(24)
}

fn repeated(input: &Input<'_>, key: &[u8]) -> crate::error::Error {
    let key = String::from_utf8_lossy(key);
    input.problem(format!(
        "has files of sample {key:?} in two places: the files of a sample must follow each other"
    ))
}

#[cfg(test)]
mod tests;
