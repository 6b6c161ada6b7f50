//! The B+tree of an LMDB file, read page by page. Every number in it is checked: the C library
//! trusts them and crashes on a damaged file.

use super::super::input::Input;
use super::super::part::Place;
use crate::error::Result;

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

const DUP_SORT: u16 = 0x04;
const INTEGER_KEY: u16 = 0x08;

/// All keys of the main database in its order, and where their values lie.
#[derive(Default)]
pub(super) struct Entries {
    keys: Vec<u8>,
    ends: Vec<u64>,
    pub(super) places: Vec<Place>,
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

    /// The number of a key.
    pub(super) fn find(&self, wanted: &[u8]) -> Option<usize> {
        self.keys().position(|key| key == wanted)
    }
}

/// The newest of the two descriptions of the file.
struct Meta {
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

/// Reads a description from the page at `at`; `None` if there is none.
fn meta_at(input: &mut Input<'_>, at: u64) -> Result<Option<Meta>> {
    let page = input.some(at, (HEADER + META) as u64)?;
    let Some(meta) = page.get(HEADER..HEADER + META) else { return Ok(None) };
    if u32_at(meta, 0) != MAGIC {
        return Ok(None);
    }
    let version = u32_at(meta, 4);
    if version != 1 {
        return Err(input.problem(format!("is an LMDB file of version {version}; 1 is known")));
    }
    let (free, main) = (&meta[24..24 + DATABASE], &meta[24 + DATABASE..24 + 2 * DATABASE]);
    Ok(Some(Meta {
        page_size: u64::from(u32_at(free, 0)),
        flags: u16_at(main, 4),
        depth: u16_at(main, 6),
        entries: u64_at(main, 32),
        root: u64_at(main, 40),
        transaction: u64_at(meta, 24 + 2 * DATABASE + 8),
    }))
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
    match meta.page_size.is_power_of_two() && (512..=65536).contains(&meta.page_size) {
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
    // A tree has each page once, so there are no more visits than pages.
    let mut visits = 0;
    let mut open = vec![(meta.root, 1u16)];
    while let Some((number, depth)) = open.pop() {
        visits += 1;
        if number < 2 || number >= pages {
            return Err(damaged(input, number, "is not in the file"));
        }
        if visits > pages || depth > DEEPEST || depth > meta.depth {
            return Err(damaged(input, number, "is reached in more than one way"));
        }
        let start = number * meta.page_size;
        let page = input.bytes(start, meta.page_size)?;
        let parsed = match u16_at(page, 10) & (BRANCH | LEAF | LEAF2) {
            BRANCH => branch(page).map(|mut children| {
                children.reverse();
                open.extend(children.into_iter().map(|child| (child, depth + 1)));
            }),
            LEAF => leaf(page, start, meta.page_size, &mut found),
            _ => Err("is of a kind that does not belong here"),
        };
        parsed.map_err(|problem| damaged(input, number, problem))?;
        // Nodes of a damaged page may share their bytes.
        if found.keys.len() as u64 > pages * meta.page_size {
            return Err(damaged(input, number, "has keys that overlap"));
        }
    }
    if found.len() as u64 + found.databases != meta.entries {
        return Err(damaged(input, meta.root, "leads to another number of entries than is noted"));
    }
    let length = pages * meta.page_size;
    let inside = |place: &Place| place[0].checked_add(place[1]).is_some_and(|end| end <= length);
    match found.places.iter().all(inside) {
        true => Ok(found),
        false => Err(damaged(input, meta.root, "leads to values beyond the end of the file")),
    }
}

type Problem = &'static str;

/// Where the nodes of a page begin.
fn nodes(page: &[u8]) -> Result<impl Iterator<Item = usize> + '_, Problem> {
    let lower = usize::from(u16_at(page, 12));
    if lower < HEADER || lower > page.len() || lower % 2 != 0 {
        return Err("has a wrong number of nodes");
    }
    Ok(page[HEADER..lower]
        .chunks_exact(2)
        .map(|two| usize::from(u16::from_le_bytes([two[0], two[1]]))))
}

/// The key and the rest of the page behind it, of the node at `at`.
fn node(page: &[u8], at: usize) -> Result<(&[u8], usize), Problem> {
    let key = at + NODE..at + NODE + usize::from(u16_at(page, at + 6));
    let end = key.end;
    match page.get(key) {
        Some(key) if at >= HEADER => Ok((key, end)),
        _ => Err("has a node beyond its end"),
    }
}

fn branch(page: &[u8]) -> Result<Vec<u64>, Problem> {
    nodes(page)?
        .map(|at| {
            node(page, at)?;
            Ok(u64::from(u32_at(page, at)) | u64::from(u16_at(page, at + 4)) << 32)
        })
        .collect()
}

fn leaf(page: &[u8], start: u64, page_size: u64, found: &mut Entries) -> Result<(), Problem> {
    for at in nodes(page)? {
        let (key, data) = node(page, at)?;
        let length = u64::from(u32_at(page, at));
        let flags = u16_at(page, at + 4);
        if flags & DUP_DATA != 0 {
            return Err("has a key with several values, which are not samples");
        }
        if flags & SUB_DATA != 0 {
            found.databases += 1;
            found.first_database.get_or_insert_with(|| String::from_utf8_lossy(key).into_owned());
            continue;
        }
        let place = if flags & BIG_DATA != 0 {
            if page.len() < data + 8 {
                return Err("has a node beyond its end");
            }
            let first = u64_at(page, data).checked_mul(page_size).ok_or("has a wrong number")?;
            [first.saturating_add(HEADER as u64), length]
        } else if data as u64 + length > page.len() as u64 {
            return Err("has a value beyond its end");
        } else {
            [start + data as u64, length]
        };
        found.keys.extend_from_slice(key);
        found.ends.push(found.keys.len() as u64);
        found.places.push(place);
    }
    Ok(())
}
