//! The B+tree of an LMDB file, read page by page. Every number in it is checked: the C library
//! trusts them and crashes on a damaged file.

use std::collections::HashSet;

use crate::buffer;
use crate::error::Result;
use crate::source::spans::Peek;
use crate::source::spans::input::Input;
use crate::source::spans::part::ByteSpan;

/// What every page begins with.
const HEADER: usize = 16;
/// A node before its key: three halves of a number, and the key's length.
const NODE: usize = 8;
/// A database's description.
const DATABASE: usize = 48;
const META: usize = 24 + 2 * DATABASE + 16;
const MAGIC: u32 = 0xbeef_c0de;
/// The root of a database without entries, and of none.
const NO_PAGE: u64 = u64::MAX;
/// As deep as the C library's own cursors go.
const DEEPEST: u16 = 32;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const LEAF2: u16 = 0x20;

const BIG_DATA: u16 = 0x01;
const SUB_DATA: u16 = 0x02;
const DUP_DATA: u16 = 0x04;

const REVERSE_KEY: u16 = 0x02;
const DUP_SORT: u16 = 0x04;
const INTEGER_KEY: u16 = 0x08;

/// Keys that describe the others.
const NO_SAMPLES: [&[u8]; 3] = [b"__len__", b"__keys__", NUMBER_OF_SAMPLES];
const NUMBER_OF_SAMPLES: &[u8] = b"num-samples";

/// All keys of the main database that stand for samples, in its order, and where their values lie.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) keys: Vec<u8>,
    pub(super) ends: Vec<u64>,
    pub(super) places: Vec<ByteSpan>,
    /// How many entries describe the others, and whether one says how many samples there are.
    notes: u64,
    pub(super) has_number: bool,
    /// How many databases there are inside of this one, and the name of the first.
    pub(super) databases: u64,
    pub(super) first_database: Option<String>,
    /// Keys are whole numbers of the machine.
    pub(super) integer_keys: bool,
}

impl Entries {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn key(&self, number: usize) -> &[u8] {
        let start = if number == 0 { 0 } else { self.ends[number - 1] as usize };
        &self.keys[start..self.ends[number] as usize]
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|number| self.key(number))
    }

    /// Bytes that it takes. Those who are named by numbers get names beside their keys.
    pub(super) fn held(&self) -> u64 {
        let names = if self.integer_keys { 64 * self.len() } else { 0 };
        let lists = 8 * self.ends.capacity() + 16 * self.places.capacity();
        (self.keys.capacity() + lists + names) as u64
    }
}

/// The newest of the two descriptions of the file.
pub(super) struct Meta {
    version: u32,
    page_size: u64,
    flags: u16,
    depth: u16,
    entries: u64,
    root: u64,
    transaction: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |two| u16::from_le_bytes([two[0], two[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

impl Meta {
    fn has_sound_pages(&self) -> bool {
        self.page_size.is_power_of_two() && (512..=65536).contains(&self.page_size)
    }

    /// The newest description, for [`Meta::find`].
    pub(super) fn look(peek: &Peek<'_>) -> Option<Meta> {
        let at = |at: u64| meta_of(&peek(at, (HEADER + META) as u64)?);
        let first = at(0).filter(Meta::has_sound_pages)?;
        match at(first.page_size) {
            Some(second) if second.transaction > first.transaction => {
                Some(second).filter(|second| second.page_size == first.page_size)
            }
            _ => Some(first),
        }
    }

    /// The keys that a sample of this name may have.
    pub(super) fn keys(&self, name: &[u8]) -> Vec<Vec<u8>> {
        let number = std::str::from_utf8(name).ok().and_then(|name| name.parse::<u64>().ok());
        match number.filter(|_| self.flags & INTEGER_KEY != 0) {
            Some(number) => {
                let bytes = number.to_le_bytes();
                vec![bytes.to_vec(), bytes[..4].to_vec()]
            }
            None => vec![name.to_vec()],
        }
    }

    fn compare(&self, one: &[u8], other: &[u8]) -> std::cmp::Ordering {
        match self.flags & (INTEGER_KEY | REVERSE_KEY) {
            0 => one.cmp(other),
            _ => one.iter().rev().cmp(other.iter().rev()),
        }
    }

    /// Where the value of a key lies, looked up from the root on; `None` if it is not there, or the
    /// tree is not what it should be.
    pub(super) fn find(&self, peek: &Peek<'_>, key: &[u8]) -> Option<ByteSpan> {
        let mut number = self.root;
        for _ in 0..DEEPEST {
            let start = number.checked_mul(self.page_size)?;
            let page = peek(start, self.page_size)?;
            match u16_at(&page, 10) & (BRANCH | LEAF | LEAF2) {
                BRANCH => {
                    let children = branch(&page).ok()?;
                    // The first key of a branch stands for whatever is smaller.
                    let others = children.get(1..)?;
                    let is_before = |(other, _): &(&[u8], u64)| self.compare(other, key).is_le();
                    number = children.get(others.partition_point(is_before))?.1;
                }
                LEAF => {
                    let mut place = None;
                    let seen = &mut |found: Found<'_>| {
                        match found {
                            Found::Value(other, at) if other == key => place = Some(at),
                            _ => {}
                        }
                        Ok(())
                    };
                    leaf(&page, start, self.page_size, seen).ok()?;
                    return place;
                }
                _ => return None,
            }
        }
        None
    }
}

/// The description in a page; `None` if there is none.
fn meta_of(page: &[u8]) -> Option<Meta> {
    let meta = page.get(HEADER..HEADER + META)?;
    let (free, main) = (&meta[24..24 + DATABASE], &meta[24 + DATABASE..24 + 2 * DATABASE]);
    (u32_at(meta, 0) == MAGIC).then(|| Meta {
        version: u32_at(meta, 4),
        page_size: u64::from(u32_at(free, 0)),
        flags: u16_at(main, 4),
        depth: u16_at(main, 6),
        entries: u64_at(main, 32),
        root: u64_at(main, 40),
        transaction: u64_at(meta, 24 + 2 * DATABASE + 8),
    })
}

/// Reads a description from the page at `at`; `None` if there is none.
fn meta_at(input: &mut Input<'_>, at: u64) -> Result<Option<Meta>> {
    let meta = meta_of(input.some(at, (HEADER + META) as u64)?);
    match meta.as_ref().map(|meta| meta.version) {
        Some(version) if version != 1 => {
            Err(input.problem(format!("is an LMDB file of version {version}; 1 is known")))
        }
        _ => Ok(meta),
    }
}

fn newest_meta(input: &mut Input<'_>) -> Result<Meta> {
    let first = meta_at(input, 0)?;
    // Where the second one lies is only said by the first.
    let sizes: Vec<u64> = match &first {
        Some(meta) => vec![meta.page_size],
        None => (9..=16).map(|power| 1 << power).collect(),
    };
    let mut newest = first;
    for size in sizes {
        if let Some(second) = meta_at(input, size)?.filter(|second| second.page_size == size) {
            if newest.as_ref().is_none_or(|first| first.transaction < second.transaction) {
                newest = Some(second);
            }
            break;
        }
    }
    let meta = newest.ok_or_else(|| input.problem("is no LMDB file"))?;
    match meta.has_sound_pages() {
        true => Ok(meta),
        false => Err(input.problem(format!("is damaged: its pages have {} bytes", meta.page_size))),
    }
}

/// Walks the main database.
pub(super) fn walk(input: &mut Input<'_>) -> Result<Entries> {
    let meta = newest_meta(input)?;
    if meta.flags & DUP_SORT != 0 {
        return Err(input.problem(
            "was made with MDB_DUPSORT: keys with several values are not samples. Copy it to a database without",
        ));
    }
    let mut found = Entries { integer_keys: meta.flags & INTEGER_KEY != 0, ..Entries::default() };
    if meta.root == NO_PAGE {
        return Ok(found);
    }
    let damaged = |input: &Input<'_>, page: u64, problem: &str| {
        input
            .problem(format!("is damaged, or was written while it was read: page {page} {problem}"))
    };
    let pages = input.length()? / meta.page_size;
    let mut visited: HashSet<u64> = HashSet::new();
    let mut open = vec![(meta.root, 1u16)];
    while let Some((number, depth)) = open.pop() {
        if number < 2 || number >= pages {
            return Err(damaged(input, number, "is not in the file"));
        }
        // A tree has each page once.
        if visited.try_reserve(1).is_err() {
            return Err(input.problem("has more pages than fit into memory"));
        }
        if !visited.insert(number) || depth > DEEPEST || depth > meta.depth {
            return Err(damaged(input, number, "is reached in more than one way"));
        }
        let start = number * meta.page_size;
        let page = input.bytes(start, meta.page_size)?;
        let parsed = match u16_at(page, 10) & (BRANCH | LEAF | LEAF2) {
            BRANCH => branch(page).map(|nodes| {
                open.extend(nodes.into_iter().rev().map(|(_, child)| (child, depth + 1)));
            }),
            LEAF => leaf(page, start, meta.page_size, &mut |node| found.add(node)),
            _ => Err("is of a kind that does not belong here"),
        };
        parsed.map_err(|problem| damaged(input, number, problem))?;
        // What is yet to be visited, and a set of numbers with room to grow.
        let walk = 16 * open.len() + 32 * visited.len();
        input.hold(found.held() + walk as u64)?;
    }
    if found.len() as u64 + found.notes + found.databases != meta.entries {
        return Err(damaged(input, meta.root, "leads to another number of entries than is noted"));
    }
    let length = pages * meta.page_size;
    let inside = |place: &ByteSpan| place[0].checked_add(place[1]).is_some_and(|end| end <= length);
    match found.places.iter().all(inside) {
        true => Ok(found),
        false => Err(damaged(input, meta.root, "leads to values beyond the end of the file")),
    }
}

type Problem = &'static str;

struct Node<'a> {
    at: usize,
    key: &'a [u8],
    /// Where the key ends.
    end: usize,
}

/// What a page's list says of its nodes: no two of them may share their bytes.
struct Nodes<'a> {
    page: &'a [u8],
    offsets: std::slice::ChunksExact<'a, u8>,
    /// Bytes of the page that are neither head nor list, nor of a node that was given.
    left: usize,
}

impl<'a> Nodes<'a> {
    fn of(page: &'a [u8]) -> Result<Nodes<'a>, Problem> {
        let lower = usize::from(u16_at(page, 12));
        if lower < HEADER || lower > page.len() || lower % 2 != 0 {
            return Err("has a wrong number of nodes");
        }
        let offsets = page[HEADER..lower].chunks_exact(2);
        Ok(Nodes { page, offsets, left: page.len() - lower })
    }

    /// The next node.
    fn next(&mut self) -> Result<Option<Node<'a>>, Problem> {
        let Some(two) = self.offsets.next() else { return Ok(None) };
        let at = usize::from(u16_at(two, 0));
        let start = at + NODE;
        let end = start + usize::from(u16_at(self.page, at + 6));
        match self.page.get(start..end) {
            Some(key) if at >= HEADER => {
                self.take(end - at)?;
                Ok(Some(Node { at, key, end }))
            }
            _ => Err("has a node beyond its end"),
        }
    }

    /// Counts bytes of the node that was given last.
    fn take(&mut self, bytes: usize) -> Result<(), Problem> {
        self.left = self.left.checked_sub(bytes).ok_or("has nodes that overlap")?;
        Ok(())
    }
}

/// The keys and pages that a branch leads to.
fn branch(page: &[u8]) -> Result<Vec<(&[u8], u64)>, Problem> {
    let mut nodes = Nodes::of(page)?;
    let mut found = Vec::new();
    while let Some(Node { at, key, .. }) = nodes.next()? {
        found.push((key, u64::from(u32_at(page, at)) | u64::from(u16_at(page, at + 4)) << 32));
    }
    Ok(found)
}

/// What a leaf has for a key.
enum Found<'a> {
    Value(&'a [u8], ByteSpan),
    Database(&'a [u8]),
}

impl Entries {
    fn add(&mut self, found: Found<'_>) -> Result<(), Problem> {
        let (key, place) = match found {
            Found::Database(key) => {
                self.databases += 1;
                self.first_database
                    .get_or_insert_with(|| String::from_utf8_lossy(key).into_owned());
                return Ok(());
            }
            Found::Value(key, _) if NO_SAMPLES.contains(&key) => {
                self.notes += 1;
                self.has_number |= key == NUMBER_OF_SAMPLES;
                return Ok(());
            }
            Found::Value(key, place) => (key, place),
        };
        let room = buffer::grow(&mut self.keys, key.len()).is_ok()
            && buffer::grow(&mut self.ends, 1).is_ok()
            && buffer::grow(&mut self.places, 1).is_ok();
        if !room {
            return Err("has more entries than fit into memory");
        }
        self.keys.extend_from_slice(key);
        self.ends.push(self.keys.len() as u64);
        self.places.push(place);
        Ok(())
    }
}

/// Calls `seen` with all entries of a leaf.
fn leaf(
    page: &[u8],
    start: u64,
    page_size: u64,
    seen: &mut dyn FnMut(Found<'_>) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let mut nodes = Nodes::of(page)?;
    while let Some(Node { at, key, end: data }) = nodes.next()? {
        let length = u64::from(u32_at(page, at));
        let flags = u16_at(page, at + 4);
        if flags & DUP_DATA != 0 {
            return Err("has a key with several values, which are not samples");
        }
        if flags & SUB_DATA != 0 {
            seen(Found::Database(key))?;
            continue;
        }
        let place = if flags & BIG_DATA != 0 {
            if page.len() < data + 8 {
                return Err("has a node beyond its end");
            }
            nodes.take(8)?;
            let first = u64_at(page, data).checked_mul(page_size).ok_or("has a wrong number")?;
            [first.saturating_add(HEADER as u64), length]
        } else if data as u64 + length > page.len() as u64 {
            return Err("has a value beyond its end");
        } else {
            nodes.take(length as usize)?;
            [start + data as u64, length]
        };
        seen(Found::Value(key, place))?;
    }
    Ok(())
}
