//! How the bytes of a place are written, and one function that turns them into what is wanted.

use std::io::Read;

use flate2::{Crc, read::DeflateDecoder};
use serde::{Deserialize, Serialize};

use super::npy_header::NpyHeader;
use super::part::{Content, array_bytes};
use crate::error::Fault;
use crate::sample::{DType, Room};

/// How the bytes of a place are written. A new one is a variant here and an arm in `decode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Encoding {
    /// As they are wanted.
    Plain,
    /// As they are wanted, after so many bytes of a header that was looked at.
    After(u64),
    /// NumPy's .npy with its header, in any byte order.
    Npy,
    /// Whole numbers of protocol buffers, one after the other; the column is of type int64. With a
    /// tag, each follows that byte.
    Varints {
        /// The byte before each number.
        tag: Option<u8>,
    },
    /// A member of a zip archive; the extra number is [`packed`].
    Deflate,
}

/// Half of the address space of 32 bits; no sample of an archive is larger.
pub(super) const LARGEST_MEMBER: u64 = (1 << 31) - 1;

/// A member's length once it is unpacked, its checksum, and whether it is compressed at all, in one
/// number. `None` if it is too large.
pub(super) fn packed(unpacked: u64, crc: u32, deflated: bool) -> Option<u64> {
    let length = (unpacked <= LARGEST_MEMBER).then_some(unpacked)?;
    Some(u64::from(crc) << 32 | u64::from(deflated) << 31 | length)
}

impl Encoding {
    /// Bytes to skip in a place so that the rest is what is wanted; `None` if it is not there.
    pub(super) fn skip(self) -> Option<u64> {
        match self {
            Encoding::Plain => Some(0),
            Encoding::After(header) => Some(header),
            _ => None,
        }
    }

    /// The same for one place with its extra number.
    pub(super) fn skip_of(self, extra: u64) -> Option<u64> {
        match self {
            Encoding::Deflate if extra & 1 << 31 == 0 => Some(0),
            _ => self.skip(),
        }
    }

    /// True if each place needs a number of its own.
    pub(super) fn needs_extra(self) -> bool {
        self == Encoding::Deflate
    }

    /// The encoding to use if the bytes are wanted as the data has them, header and all.
    pub(super) fn raw(self) -> Encoding {
        match self {
            Encoding::Deflate => Encoding::Deflate,
            _ => Encoding::Plain,
        }
    }

    /// Writes what `bytes` hold into `room`.
    pub(super) fn decode(
        self,
        content: &Content,
        bytes: &[u8],
        extra: u64,
        room: &mut dyn Room,
    ) -> Result<(), Fault> {
        if let Some(skip) = self.skip_of(extra) {
            let bytes = bytes.get(skip as usize..).unwrap_or_default();
            if let Content::Array { shape, .. } = content {
                room.shape(shape);
            }
            room.make(bytes.len() as u64)?.copy_from_slice(bytes);
            return Ok(());
        }
        match self {
            Encoding::Plain | Encoding::After(_) => Ok(()),
            Encoding::Npy => npy(content, bytes, room),
            Encoding::Varints { tag } => varints(content, bytes, tag, room),
            Encoding::Deflate => inflate(bytes, extra, room),
        }
    }
}

/// Compares an array with what its column says of all of them.
fn check(content: &Content, dtype: DType, shape: &[usize]) -> Result<(), Fault> {
    let fits = match content {
        Content::Array { dtype: wanted, shape: all } => *wanted == dtype && all == shape,
        Content::Ragged { dtype: wanted, axes } => *wanted == dtype && *axes == shape.len(),
        _ => false,
    };
    match fits {
        true => Ok(()),
        false => Err(Fault::Shape(format!(
            "has an array of type {dtype} and shape {shape:?}, unlike the others of this field"
        ))),
    }
}

fn npy(content: &Content, bytes: &[u8], room: &mut dyn Room) -> Result<(), Fault> {
    let header = NpyHeader::read(bytes)?;
    check(content, header.dtype, &header.shape)?;
    let elements = &bytes[header.start..];
    if header.bytes() != Some(elements.len() as u64) {
        return Err(Fault::corrupt(
            "npy",
            format!("has {} bytes of elements for the shape {:?}", elements.len(), header.shape),
        ));
    }
    room.shape(&header.shape);
    header.write(elements, room.make(elements.len() as u64)?);
    Ok(())
}

/// The number at the start of `bytes` and how many bytes it takes.
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        let part = u64::from(byte & 0x7f);
        if at == 9 && part > 1 {
            return None;
        }
        value |= part << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

/// Goes through whole numbers; `None` if they do not end where the bytes do.
fn each_varint(mut bytes: &[u8], tag: Option<u8>, each: &mut dyn FnMut(u64)) -> Option<()> {
    while !bytes.is_empty() {
        if let Some(tag) = tag {
            bytes = bytes.strip_prefix(&[tag])?;
        }
        let (value, length) = varint(bytes)?;
        each(value);
        bytes = &bytes[length..];
    }
    Some(())
}

fn varints(
    content: &Content,
    bytes: &[u8],
    tag: Option<u8>,
    room: &mut dyn Room,
) -> Result<(), Fault> {
    let mut count = 0usize;
    let corrupt = || Fault::corrupt("varint", "has a whole number that does not end");
    each_varint(bytes, tag, &mut |_| count += 1).ok_or_else(corrupt)?;
    let shape = match content {
        // A list of n numbers may stand for an array of another shape.
        Content::Array { dtype: DType::I64, shape }
            if array_bytes(DType::U8, shape) == Some(count as u64) =>
        {
            shape.clone()
        }
        _ => vec![count],
    };
    check(content, DType::I64, &shape)?;
    room.shape(&shape);
    let mut out = room.make(count as u64 * 8)?.chunks_exact_mut(8);
    each_varint(bytes, tag, &mut |value| {
        if let Some(element) = out.next() {
            element.copy_from_slice(&value.to_le_bytes());
        }
    })
    .ok_or_else(corrupt)
}

fn inflate(bytes: &[u8], extra: u64, room: &mut dyn Room) -> Result<(), Fault> {
    let length = extra & LARGEST_MEMBER;
    // Deflate makes at most 1032 bytes of one; who declares more lies.
    if length / 1032 > bytes.len() as u64 {
        return Err(Fault::corrupt("zip", format!("declares {length} bytes, too many")));
    }
    let out = room.make(length)?;
    let mut decoder = DeflateDecoder::new(bytes);
    let wrong = |error: std::io::Error| Fault::corrupt("zip", error.to_string());
    decoder.read_exact(out).map_err(wrong)?;
    if decoder.read(&mut [0]).map_err(wrong)? != 0 {
        return Err(Fault::corrupt("zip", format!("unpacks to more than its {length} bytes")));
    }
    let mut crc = Crc::new();
    crc.update(out);
    match crc.sum() == (extra >> 32) as u32 {
        true => Ok(()),
        false => Err(Fault::corrupt("zip", "has another checksum than its archive says")),
    }
}
