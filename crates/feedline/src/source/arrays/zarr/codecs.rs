//! How the bytes of a chunk were packed, and how that is undone.

use serde_json::Value;

use super::blosc;
use crate::error::Fault;
use crate::source::arrays::{grown, unshuffle, zlib, zstd};

/// What a checksum or a header adds to a chunk at most.
const SLACK: usize = 64;

/// One step of packing bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Blosc,
    Zstd,
    Gzip,
    Zlib,
    /// A block of LZ4 after its length.
    Lz4,
    Crc32c,
    /// Bytes sorted by their place in elements of so many.
    Shuffle(usize),
}

fn corrupt(reason: impl Into<String>) -> Fault {
    Fault::corrupt("zarr", reason)
}

impl Codec {
    /// The codec of that name, of Zarr 3 or of numcodecs.
    pub(super) fn named(name: &str, settings: &Value) -> Result<Codec, String> {
        Ok(match name.strip_prefix("numcodecs.").unwrap_or(name) {
            "blosc" => Codec::Blosc,
            "zstd" => Codec::Zstd,
            "gzip" => Codec::Gzip,
            "zlib" => Codec::Zlib,
            "lz4" => Codec::Lz4,
            "crc32c" => Codec::Crc32c,
            "shuffle" => {
                let size = settings.get("elementsize").and_then(Value::as_u64).unwrap_or(4);
                Codec::Shuffle(usize::try_from(size).unwrap_or(1))
            }
            _ => {
                return Err(format!(
                    "is packed with {name:?}, which cannot be undone: blosc, zstd, gzip, zlib, lz4, crc32c and shuffle can"
                ));
            }
        })
    }

    fn undo(self, data: Vec<u8>, limit: usize) -> Result<Vec<u8>, Fault> {
        match self {
            Codec::Blosc => blosc::decompress(&data, limit),
            Codec::Zstd => zstd("zarr", &data, limit),
            Codec::Gzip => grown("zarr", flate2::read::MultiGzDecoder::new(&data[..]), limit),
            Codec::Zlib => zlib("zarr", &data, limit),
            Codec::Lz4 => {
                let damaged = || corrupt("a chunk's lz4 data is damaged");
                let (length, block) = data.split_at_checked(4).ok_or_else(damaged)?;
                let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
                let mut out = Vec::new();
                blosc::lz4(block, &mut out, limit.min(length as usize)).ok_or_else(damaged)?;
                Ok(out)
            }
            Codec::Crc32c => {
                let mut data = data;
                let wrong = || corrupt("a chunk's checksum is wrong");
                let end = data.len().checked_sub(4).ok_or_else(wrong)?;
                if crc32c::crc32c(&data[..end]).to_le_bytes() != data[end..] {
                    return Err(wrong());
                }
                data.truncate(end);
                Ok(data)
            }
            Codec::Shuffle(size) => Ok(unshuffle(&data, size)),
        }
    }
}

/// Undoes the steps from the last to the first; `bytes` come out.
pub(super) fn undo(codecs: &[Codec], stored: Vec<u8>, bytes: usize) -> Result<Vec<u8>, Fault> {
    let limit = bytes.saturating_add(SLACK);
    codecs.iter().rev().try_fold(stored, |data, codec| codec.undo(data, limit))
}
