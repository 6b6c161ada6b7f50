//! An LMDB environment in one pass: a folder with `data.mdb`, written page after page.
//!
//! Samples come in the order of their keys, so the tree is built from the left to the right and
//! nothing is ever changed: no map that has to grow, no transaction in memory, and no C code. Each
//! key begins with the sample's number, since a reader sees them in the order of their bytes. The
//! rest is as in tar shards: `000000012_NAME.jpg`, `000000012_NAME.cls`.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::members::Members;
use super::record::{Record, RecordWriter, WriteOptions};
use crate::error::{Error, Result};
use crate::sample::Field;

const PAGE: usize = 4096;
/// What every page begins with.
const HEADER: usize = 16;
/// A node before its key.
const NODE: usize = 8;
/// A node that is larger has its value on pages of its own: two have to fit on a page.
const LARGEST_NODE: usize = (PAGE - HEADER) / 2 - 2;
/// LMDB's own limit.
const LONGEST_KEY: usize = 511;
/// LMDB's own limit.
const LARGEST_VALUE: usize = u32::MAX as usize;
const NO_PAGE: u64 = u64::MAX;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const OVERFLOW: u16 = 0x04;
const META: u16 = 0x08;
const BIG_DATA: u16 = 0x01;
const INTEGER_KEY: u16 = 0x08;

/// A page of nodes in the making: offsets grow from the front, nodes from the back.
struct NodePage {
    bytes: Vec<u8>,
    lower: usize,
    upper: usize,
    flags: u16,
}

impl NodePage {
    fn new(flags: u16) -> NodePage {
        NodePage { bytes: vec![0; PAGE], lower: HEADER, upper: PAGE, flags }
    }

    fn is_empty(&self) -> bool {
        self.lower == HEADER
    }

    /// Adds a node of three numbers, a key and a value; false if there is no room.
    fn put(&mut self, head: [u16; 3], key: &[u8], value: &[u8]) -> bool {
        let length = (NODE + key.len() + value.len()).next_multiple_of(2);
        if self.lower + 2 + length > self.upper {
            return false;
        }
        self.upper -= length;
        let (lower, mut at) = (self.lower, self.upper);
        self.bytes[lower..lower + 2].copy_from_slice(&(self.upper as u16).to_le_bytes());
        self.lower += 2;
        let numbers = [head[0], head[1], head[2], key.len() as u16].map(u16::to_le_bytes);
        for part in [numbers.as_flattened(), key, value] {
            self.bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        true
    }

    /// The page as it is written, under its number.
    fn finish(mut self, number: u64) -> Vec<u8> {
        self.bytes[..8].copy_from_slice(&number.to_le_bytes());
        self.bytes[10..12].copy_from_slice(&self.flags.to_le_bytes());
        self.bytes[12..14].copy_from_slice(&(self.lower as u16).to_le_bytes());
        self.bytes[14..16].copy_from_slice(&(self.upper as u16).to_le_bytes());
        self.bytes
    }
}

/// What the description of a database says.
#[derive(Default)]
struct Counts {
    depth: u16,
    branches: u64,
    leaves: u64,
    overflow: u64,
    entries: u64,
}

/// Writes one environment.
pub(crate) struct LmdbWriter {
    path: PathBuf,
    output: BufWriter<File>,
    members: Members,
    /// The next page's number.
    next: u64,
    counts: Counts,
    leaf: NodePage,
    /// The first key of the leaf in the making.
    first: Vec<u8>,
    /// The first key and the page of every leaf that is written.
    leaves: Vec<(Vec<u8>, u64)>,
    samples: u64,
}

impl LmdbWriter {
    /// Makes the folder and begins its file.
    pub(crate) fn create(
        path: &Path,
        fields: &[Field],
        options: &WriteOptions,
    ) -> Result<LmdbWriter> {
        if let Some(compression) = options.compression.as_deref().filter(|name| *name != "none") {
            return Err(Error::Source {
                what: path.display().to_string(),
                problem: format!(
                    "cannot be compressed with {compression:?}: LMDB has no compression"
                ),
            });
        }
        let members = Members::new(path, fields)?;
        fs::create_dir(path).map_err(failed(path))?;
        let path = path.join("data.mdb");
        let file = File::create_new(&path).map_err(failed(&path))?;
        let mut output = BufWriter::with_capacity(1 << 20, file);
        // The first two pages are written last.
        output.write_all(&[0; 2 * PAGE]).map_err(failed(&path))?;
        Ok(LmdbWriter {
            path,
            output,
            members,
            next: 2,
            counts: Counts::default(),
            leaf: NodePage::new(LEAF),
            first: Vec::new(),
            leaves: Vec::new(),
            samples: 0,
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.output.write_all(bytes).map_err(failed(&self.path))
    }

    fn problem(&self, problem: String) -> Error {
        Error::Source { what: self.path.display().to_string(), problem }
    }

    fn put_entry(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if value.len() > LARGEST_VALUE {
            return Err(self.problem("cannot hold a value of 4 GiB".to_owned()));
        }
        let size = value.len() as u32;
        let (low, high) = (size as u16, (size >> 16) as u16);
        self.counts.entries += 1;
        if NODE + key.len() + value.len() <= LARGEST_NODE {
            return self.put_node([low, high, 0], key, value);
        }
        let number = self.next;
        let pages = (HEADER + value.len()).div_ceil(PAGE);
        let mut head = [0; HEADER];
        head[..8].copy_from_slice(&number.to_le_bytes());
        head[10..12].copy_from_slice(&OVERFLOW.to_le_bytes());
        head[12..].copy_from_slice(&(pages as u32).to_le_bytes());
        self.write(&head)?;
        self.write(value)?;
        self.write(&[0; PAGE][..pages * PAGE - HEADER - value.len()])?;
        self.next += pages as u64;
        self.counts.overflow += pages as u64;
        self.put_node([low, high, BIG_DATA], key, &number.to_le_bytes())
    }

    fn put_node(&mut self, head: [u16; 3], key: &[u8], value: &[u8]) -> Result<()> {
        if self.leaf.put(head, key, value) {
            if self.counts_first() {
                self.first = key.to_vec();
            }
            return Ok(());
        }
        self.end_leaf()?;
        self.first = key.to_vec();
        // An empty page has room for any node.
        self.leaf.put(head, key, value);
        Ok(())
    }

    /// True when the leaf has just got its first node.
    fn counts_first(&self) -> bool {
        self.leaf.lower == HEADER + 2
    }

    fn end_leaf(&mut self) -> Result<()> {
        let page = std::mem::replace(&mut self.leaf, NodePage::new(LEAF));
        let number = self.put_page(page)?;
        self.counts.leaves += 1;
        self.leaves.push((std::mem::take(&mut self.first), number));
        Ok(())
    }

    fn put_page(&mut self, page: NodePage) -> Result<u64> {
        let number = self.next;
        self.next += 1;
        self.write(&page.finish(number))?;
        Ok(number)
    }

    /// Writes the levels above the leaves; the page of the root.
    fn put_branches(&mut self) -> Result<u64> {
        if !self.leaf.is_empty() {
            self.end_leaf()?;
        }
        let mut level = std::mem::take(&mut self.leaves);
        self.counts.depth = u16::from(!level.is_empty());
        while level.len() > 1 {
            self.counts.depth += 1;
            let mut above: Vec<(Vec<u8>, u64)> = Vec::new();
            let mut page = NodePage::new(BRANCH);
            let room = |key: &Vec<u8>| 2 + (NODE + key.len()).next_multiple_of(2);
            for (at, (key, child)) in level.iter().enumerate() {
                let head = [*child as u16, (*child >> 16) as u16, (*child >> 32) as u16];
                if page.is_empty() {
                    above.push((key.clone(), 0));
                    // A page's first key is never looked at.
                    page.put(head, &[], &[]);
                } else {
                    page.put(head, key, &[]);
                }
                // The last two stay together: a branch of one child is against LMDB's rules.
                let rest = &level[at + 1..];
                let wanted = if rest.len() == 2 { 2 } else { 1 };
                let wanted: usize = rest.iter().take(wanted).map(|(key, _)| room(key)).sum();
                if rest.is_empty() || page.lower + wanted > page.upper {
                    let done = std::mem::replace(&mut page, NodePage::new(BRANCH));
                    let number = self.put_page(done)?;
                    self.counts.branches += 1;
                    if let Some(last) = above.last_mut() {
                        last.1 = number;
                    }
                }
            }
            level = above;
        }
        Ok(level.first().map_or(NO_PAGE, |(_, page)| *page))
    }

    /// One of the two pages that describe the file.
    fn meta(&self, number: u64, transaction: u64, root: u64) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        let empty = Counts::default();
        let (counts, last) = match root {
            NO_PAGE => (&empty, 1),
            _ => (&self.counts, self.next - 1),
        };
        let map = (self.next * PAGE as u64).next_multiple_of(1 << 20);
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            page[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&number.to_le_bytes());
        put(&[0; 2]);
        put(&META.to_le_bytes());
        put(&[0; 4]);
        put(&0xbeef_c0de_u32.to_le_bytes());
        put(&1u32.to_le_bytes());
        put(&0u64.to_le_bytes());
        put(&map.to_le_bytes());
        for (pad, flags, counts, root) in
            [(PAGE as u32, INTEGER_KEY, &empty, NO_PAGE), (0, 0, counts, root)]
        {
            put(&pad.to_le_bytes());
            put(&flags.to_le_bytes());
            put(&counts.depth.to_le_bytes());
            for count in [counts.branches, counts.leaves, counts.overflow, counts.entries, root] {
                put(&count.to_le_bytes());
            }
        }
        put(&last.to_le_bytes());
        put(&transaction.to_le_bytes());
        page
    }
}

/// What a sample's keys begin with: its number, and its name without the dots that would end it.
fn prefix(number: u64, name: &str) -> String {
    let mut key = format!("{number:09}");
    if name != key {
        let base = name.rfind('/').map_or(0, |slash| slash + 1);
        key.push('_');
        key.push_str(&name[..base]);
        key.push_str(&name[base..].replace('.', "_"));
    }
    key
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { what: "cannot write", path, source }
}

impl RecordWriter for LmdbWriter {
    fn put(&mut self, record: &Record<'_>) -> Result<()> {
        if self.samples >= 1_000_000_000 {
            return Err(self.problem("cannot hold more than a billion samples".to_owned()));
        }
        let mut prefix = prefix(self.samples, record.key);
        let mut members = self.members.of(record)?;
        // In the order of their bytes, as the tree wants them.
        members.sort_by(|a, b| a.extension.cmp(&b.extension));
        let longest = members.iter().map(|member| member.extension.len() + 1).max().unwrap_or(0);
        while prefix.len() + longest > LONGEST_KEY && prefix.pop().is_some() {}
        for member in &members {
            let key = format!("{prefix}.{}", member.extension);
            if key.len() > LONGEST_KEY {
                return Err(self.problem(format!("cannot hold the key {key:?}: it is too long")));
            }
            self.put_entry(key.as_bytes(), &member.bytes)?;
        }
        self.samples += 1;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        (self.next + 1) * PAGE as u64
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        let root = self.put_branches()?;
        let metas = [self.meta(0, 0, NO_PAGE), self.meta(1, 1, root)].concat();
        let LmdbWriter { path, output, .. } = *self;
        let written = output.into_inner().map_err(std::io::IntoInnerError::into_error);
        written
            .and_then(|file| {
                // What the pages describe is on the disk before they are.
                file.sync_all()?;
                file.write_all_at(&metas, 0)?;
                file.sync_all()
            })
            .map_err(failed(&path))
    }
}
