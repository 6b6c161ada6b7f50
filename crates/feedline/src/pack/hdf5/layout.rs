//! How an HDF5 file lies on a disk, as far as it is written here: superblock version 2, object
//! headers version 2, chunks found by B-trees version 1, and heaps of values of variable length.
//!
//! Everything is little-endian but elements, which are as this machine has them and say so.

use hdf5_reader::checksum::jenkins_lookup3;

use crate::sample::DType;

/// The bytes of the superblock, which begins the file and is written last.
pub(super) const SUPERBLOCK: usize = 48;

/// An address that leads nowhere.
pub(super) const NOWHERE: u64 = u64::MAX;

/// What a heap of values has at least.
const LEAST_HEAP: usize = 4096;

/// What begins a heap, and what begins each of its values.
const HEAP_HEAD: usize = 16;

/// Children of a node of a tree of chunks: twice the K that files have unless they say another.
const CHILDREN: usize = 64;

/// The bytes of a reference to a value of variable length.
pub(super) const REFERENCE: usize = 16;

/// What the elements of a dataset are.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Element {
    Number(DType),
    /// References to bytes.
    Bytes,
    /// References to text in UTF-8.
    Text,
}

impl Element {
    pub(super) fn size(self) -> usize {
        match self {
            Element::Number(dtype) => dtype.size(),
            Element::Bytes | Element::Text => REFERENCE,
        }
    }

    /// The message that says the type; `None` for one that HDF5 does not have.
    fn message(self) -> Option<Vec<u8>> {
        Some(match self {
            Element::Number(DType::Bool) => boolean(),
            Element::Number(DType::F16) => float(2, [10, 5, 0, 10], 15),
            Element::Number(DType::F32) => float(4, [23, 8, 0, 23], 127),
            Element::Number(DType::F64) => float(8, [52, 11, 0, 52], 1023),
            Element::Number(DType::BF16) => return None,
            Element::Number(dtype) => {
                let signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
                integer(dtype.size() as u32, signed)
            }
            Element::Bytes => variable(0, 0),
            Element::Text => variable(1, 1),
        })
    }

    pub(super) fn is_known(self) -> bool {
        self.message().is_some()
    }
}

/// The bit that says that the most significant byte comes first.
const ORDER: u8 = cfg!(target_endian = "big") as u8;

fn integer(size: u32, signed: bool) -> Vec<u8> {
    let mut out = vec![0x10, ORDER | u8::from(signed) << 3, 0, 0];
    out.extend_from_slice(&size.to_le_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(&(size as u16 * 8).to_le_bytes());
    out
}

/// `parts` are the place and length of the exponent, then of the mantissa, in bits.
fn float(size: u32, parts: [u8; 4], bias: u32) -> Vec<u8> {
    let bits = size as u8 * 8;
    // The mantissa's first bit is 1 and not stored.
    let mut out = vec![0x11, ORDER | 0x20, bits - 1, 0];
    out.extend_from_slice(&size.to_le_bytes());
    out.extend_from_slice(&[0, 0, bits, 0]);
    out.extend_from_slice(&parts);
    out.extend_from_slice(&bias.to_le_bytes());
    out
}

/// An enumeration of FALSE and TRUE, which h5py takes for booleans.
fn boolean() -> Vec<u8> {
    let mut out = vec![0x18, 2, 0, 0];
    out.extend_from_slice(&1u32.to_le_bytes());
    out.extend_from_slice(&integer(1, true));
    out.extend_from_slice(b"FALSE\0\0\0TRUE\0\0\0\0");
    out.extend_from_slice(&[0, 1]);
    out
}

/// References to sequences of bytes (0), or to strings (1) of a character set.
fn variable(kind: u8, characters: u8) -> Vec<u8> {
    let mut out = vec![0x19, kind, characters, 0];
    out.extend_from_slice(&(REFERENCE as u32).to_le_bytes());
    out.extend_from_slice(&integer(1, false));
    out
}

/// Begins the file: where it ends, and where its root group is.
pub(super) fn superblock(end: u64, root: u64) -> Vec<u8> {
    let mut out = b"\x89HDF\r\n\x1a\n\x02\x08\x08\x00".to_vec();
    for address in [0, NOWHERE, end, root] {
        out.extend_from_slice(&address.to_le_bytes());
    }
    summed(out)
}

fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = jenkins_lookup3(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// An object: its messages, each a kind and bytes.
fn object(messages: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let length: usize = messages.iter().map(|(_, bytes)| bytes.len() + 4).sum();
    // The length has four bytes, and no times are kept.
    let mut out = b"OHDR\x02\x02".to_vec();
    out.extend_from_slice(&(length as u32).to_le_bytes());
    for (kind, bytes) in messages {
        out.push(*kind);
        out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        out.push(0);
        out.extend_from_slice(bytes);
    }
    summed(out)
}

/// The root group: the names and addresses of all datasets.
pub(super) fn root(links: &[(String, u64)]) -> Vec<u8> {
    let mut info = vec![0, 0];
    info.extend_from_slice(&[0xff; 16]);
    let mut messages = vec![(0x02, info), (0x0a, vec![0, 0])];
    for (name, address) in links {
        // A character set (UTF-8) and a name's length of two bytes.
        let mut link = vec![1, 0x11, 1];
        link.extend_from_slice(&(name.len() as u16).to_le_bytes());
        link.extend_from_slice(name.as_bytes());
        link.extend_from_slice(&address.to_le_bytes());
        messages.push((0x06, link));
    }
    object(&messages)
}

/// A dataset whose first axis may grow, in chunks.
pub(super) struct Dataset<'a> {
    pub(super) element: Element,
    /// All axes, and those of a chunk.
    pub(super) shape: &'a [u64],
    pub(super) chunk: &'a [u64],
    /// The level of gzip, after the bytes of elements are shuffled.
    pub(super) gzip: Option<u8>,
    /// The address of its tree of chunks.
    pub(super) tree: u64,
}

impl Dataset<'_> {
    pub(super) fn header(&self) -> Vec<u8> {
        let size = self.element.size() as u32;
        let mut space = vec![2, self.shape.len() as u8, 1, 1];
        let most = std::iter::once(&u64::MAX).chain(&self.shape[1..]);
        for axis in self.shape.iter().chain(most) {
            space.extend_from_slice(&axis.to_le_bytes());
        }
        let mut layout = vec![3, 2, self.chunk.len() as u8 + 1];
        layout.extend_from_slice(&self.tree.to_le_bytes());
        for axis in self.chunk.iter().map(|axis| *axis as u32).chain([size]) {
            layout.extend_from_slice(&axis.to_le_bytes());
        }
        let mut messages = vec![
            (0x01, space),
            (0x03, self.element.message().unwrap_or_default()),
            // Zeros, where chunks are missing.
            (0x05, vec![3, 0x0b]),
            (0x08, layout),
        ];
        if let Some(level) = self.gzip {
            let mut filters = vec![2, 2];
            for (filter, value) in [(2u16, size), (1, u32::from(level))] {
                for half in [filter, 1, 1] {
                    filters.extend_from_slice(&half.to_le_bytes());
                }
                filters.extend_from_slice(&value.to_le_bytes());
            }
            messages.push((0x0b, filters));
        }
        object(&messages)
    }
}

/// Where a chunk lies, and its bytes there.
#[derive(Clone, Copy)]
pub(super) struct WrittenChunk {
    pub(super) address: u64,
    pub(super) bytes: u32,
}

/// The nodes of a tree of chunks that follow each other along the first axis, `rows` each, and the
/// address of the first of them all; they lie at `at`, one after the other.
pub(super) fn tree(chunks: &[WrittenChunk], rows: u64, axes: usize, at: u64) -> (Vec<u8>, u64) {
    if chunks.is_empty() {
        return (Vec::new(), NOWHERE);
    }
    let key = |out: &mut Vec<u8>, chunk: usize| {
        let bytes = chunks.get(chunk).map_or(0, |chunk| chunk.bytes);
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(chunk as u64 * rows).to_le_bytes());
        out.resize(out.len() + axes * 8, 0);
    };
    let node_bytes = 24 + CHILDREN * 8 + (CHILDREN + 1) * (16 + axes * 8);
    let mut out = Vec::new();
    // The children of a level, and how many chunks lie below each.
    let (mut children, mut below) = (chunks.iter().map(|c| c.address).collect::<Vec<_>>(), 1);
    for level in 0u8.. {
        let first = at + out.len() as u64;
        let count = children.len().div_ceil(CHILDREN);
        let address = |number: usize| first + (number * node_bytes) as u64;
        for (number, some) in children.chunks(CHILDREN).enumerate() {
            let start = out.len();
            out.extend_from_slice(b"TREE\x01");
            out.push(level);
            out.extend_from_slice(&(some.len() as u16).to_le_bytes());
            let before = number.checked_sub(1).map_or(NOWHERE, address);
            let after = if number + 1 < count { address(number + 1) } else { NOWHERE };
            out.extend_from_slice(&before.to_le_bytes());
            out.extend_from_slice(&after.to_le_bytes());
            for (child, address) in some.iter().enumerate() {
                key(&mut out, (number * CHILDREN + child) * below);
                out.extend_from_slice(&address.to_le_bytes());
            }
            key(&mut out, ((number * CHILDREN + some.len()) * below).min(chunks.len()));
            out.resize(start + node_bytes, 0);
        }
        if count == 1 {
            return (out, first);
        }
        children = (0..count).map(address).collect();
        below *= CHILDREN;
    }
    (out, NOWHERE)
}

/// A heap of values; value `i` has number `i + 1` in it.
pub(super) fn heap<'a>(values: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = b"GCOL\x01\0\0\0".to_vec();
    out.extend_from_slice(&[0; 8]);
    for (number, value) in values.enumerate() {
        out.extend_from_slice(&(number as u16 + 1).to_le_bytes());
        out.extend_from_slice(&[0; 6]);
        out.extend_from_slice(&(value.len() as u64).to_le_bytes());
        out.extend_from_slice(value);
        out.resize(out.len().next_multiple_of(8), 0);
    }
    let used = out.len();
    let whole = used.max(LEAST_HEAP);
    out.resize(whole, 0);
    if whole - used >= HEAP_HEAD {
        // Number 0 is what is free.
        out[used + 8..used + 16].copy_from_slice(&((whole - used) as u64).to_le_bytes());
    }
    out[8..16].copy_from_slice(&(whole as u64).to_le_bytes());
    out
}

/// A reference to value `number` of the heap at an address; nothing of no bytes is in a heap.
pub(super) fn reference(length: usize, heap: u64, number: u32) -> [u8; REFERENCE] {
    let mut out = [0; REFERENCE];
    if length > 0 {
        out[..4].copy_from_slice(&(length as u32).to_le_bytes());
        out[4..12].copy_from_slice(&heap.to_le_bytes());
        out[12..].copy_from_slice(&number.to_le_bytes());
    }
    out
}
