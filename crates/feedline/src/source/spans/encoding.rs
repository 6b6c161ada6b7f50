//! How the bytes of a place are written, and one function that turns them into what is wanted.

use std::io::Read;

use flate2::{Crc, read::DeflateDecoder};
use serde::{Deserialize, Serialize};

use super::headed::Header;
use super::npy::NpyTensor;
use super::part::{Content, array_bytes};
use super::tfrecord::{count_numbers, write_numbers};
use crate::error::Fault;
use crate::sample::{DType, Room};

/// How the bytes of a place are written. A new one is a variant here and an arm in `decode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::source) enum Encoding {
    /// As they are wanted.
    Plain,
    /// As they are wanted, after so many bytes of a header that was looked at.
    After(u64),
    /// NumPy's .npy with its header, in any byte order.
    Npy,
    /// A list of numbers of protocol buffers: int64, or float32.
    Numbers {
        /// Floating-point numbers rather than whole ones.
        is_float: bool,
        /// It is a list of such lists, one for each step.
        has_steps: bool,
    },
    /// An array after a header with its type and shape.
    Headed(Header),
    /// A member of a zip archive; the extra number is [`packed`].
    Deflate,
}

/// Half of the address space of 32 bits; no sample of an archive is larger.
pub(in crate::source) const LARGEST_MEMBER: u64 = (1 << 31) - 1;

/// A member's length once it is unpacked, its checksum, and whether it is compressed at all, in one
/// number. `None` if it is too large.
pub(in crate::source) fn packed(unpacked: u64, crc: u32, deflated: bool) -> Option<u64> {
    let length = (unpacked <= LARGEST_MEMBER).then_some(unpacked)?;
    Some(u64::from(crc) << 32 | u64::from(deflated) << 31 | length)
}

impl Encoding {
    /// Bytes to skip in a place so that the rest is what is wanted; `None` if it is not there.
    pub(in crate::source) fn skip(self) -> Option<u64> {
        match self {
            Encoding::Plain => Some(0),
            Encoding::After(header) => Some(header),
            _ => None,
        }
    }

    /// The same for one place with its extra number.
    pub(in crate::source) fn skip_of(self, extra: u64) -> Option<u64> {
        match self {
            Encoding::Deflate if extra & 1 << 31 == 0 => Some(0),
            _ => self.skip(),
        }
    }

    /// True if each place needs a number of its own.
    pub(in crate::source) fn needs_extra(self) -> bool {
        self == Encoding::Deflate
    }

    /// The encoding to use if the bytes are wanted as the data has them, header and all.
    pub(in crate::source) fn raw(self) -> Encoding {
        match self {
            Encoding::Deflate => Encoding::Deflate,
            _ => Encoding::Plain,
        }
    }

    /// Writes what `bytes` hold into `room`.
    pub(in crate::source) fn decode(
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
            Encoding::Numbers { is_float, has_steps } => {
                numbers(content, bytes, is_float, has_steps, room)
            }
            Encoding::Headed(header) => headed(content, bytes, header, room),
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
    let header = NpyTensor::read(bytes)?;
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

fn numbers(
    content: &Content,
    bytes: &[u8],
    is_float: bool,
    has_steps: bool,
    room: &mut dyn Room,
) -> Result<(), Fault> {
    let corrupt = |problem: &str| Fault::corrupt("tfrecord", problem);
    let (count, steps) = count_numbers(bytes, is_float, has_steps).map_err(corrupt)?;
    let dtype = if is_float { DType::F32 } else { DType::I64 };
    let shape = match content {
        // A list of n numbers may stand for an array of another shape.
        Content::Array { dtype: wanted, shape }
            if array_bytes(*wanted, shape) == array_bytes(dtype, &[count]) =>
        {
            shape.clone()
        }
        Content::Ragged { axes: 2, .. } => vec![steps, count / steps.max(1)],
        _ => vec![count],
    };
    check(content, dtype, &shape)?;
    room.shape(&shape);
    let room = room.make((count * dtype.size()) as u64)?;
    write_numbers(bytes, is_float, has_steps, room).map_err(corrupt)
}

fn headed(
    content: &Content,
    bytes: &[u8],
    header: Header,
    room: &mut dyn Room,
) -> Result<(), Fault> {
    let array = header.read(bytes)?;
    let dtype = match (array.dtype, content) {
        (Some(dtype), _) => dtype,
        (None, Content::Array { dtype, .. } | Content::Ragged { dtype, .. }) => *dtype,
        (None, _) => return Err(Fault::corrupt("array", "says no type")),
    };
    check(content, dtype, &array.shape)?;
    let elements = &bytes[array.start..];
    if array_bytes(dtype, &array.shape) != Some(elements.len() as u64) {
        return Err(Fault::corrupt("array", "has another size than its header says"));
    }
    room.shape(&array.shape);
    room.make(elements.len() as u64)?.copy_from_slice(elements);
    Ok(())
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
