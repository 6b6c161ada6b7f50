//! Chunks of a Zarr array, each in a file or in a part of one.

use std::path::PathBuf;
use std::sync::Arc;

use super::codecs;
use super::metadata::{Keys, Packing, Shard};
use crate::buffer;
use crate::error::Fault;
use crate::sample::{Location, Room};
use crate::source::arrays::{Grid, Maker, Resolve, check_block, elements, largest_block};
use crate::source::{BlockCache, Needs};
use crate::store::{Handle, Store};

/// Bytes of shard indexes that are kept.
const INDEXES: u64 = 16 << 20;

/// Says that a part of a shard was never written.
const NOWHERE: u64 = u64::MAX;

/// The chunks of an array.
pub(super) struct Chunks {
    folder: PathBuf,
    store: Arc<dyn Store>,
    grid: Grid,
    packing: Packing,
    keys: Keys,
    shard: Option<Shard>,
    fill: Vec<u8>,
    block_memory: u64,
    /// Indexes of shards, by the shards' numbers.
    indexes: BlockCache<Vec<u8>>,
}

fn corrupt(reason: impl Into<String>) -> Fault {
    Fault::corrupt("zarr", reason)
}

/// Where a chunk of a shard is.
struct InShard {
    /// The shard's place, and its number.
    outer: Vec<u64>,
    number: u64,
    /// The chunk's number in it, of so many.
    inner: u64,
    count: Option<u64>,
}

/// Offset and length of a chunk, as a shard's index says.
fn entry(index: &[u8], inner: u64) -> Option<(u64, u64)> {
    let at = usize::try_from(inner).ok()?.checked_mul(16)?;
    let (offset, bytes) = index.get(at..)?.get(..16)?.split_at(8);
    Some((u64::from_le_bytes(offset.try_into().ok()?), u64::from_le_bytes(bytes.try_into().ok()?)))
}

impl Chunks {
    pub(super) fn new(
        folder: PathBuf,
        store: Arc<dyn Store>,
        metadata: &super::metadata::Metadata,
        block_memory: u64,
    ) -> Chunks {
        Chunks {
            folder,
            store,
            grid: metadata.grid.clone(),
            packing: metadata.packing.clone(),
            keys: metadata.keys.clone(),
            shard: metadata.shard.clone(),
            fill: metadata.fill.clone(),
            block_memory,
            indexes: BlockCache::new(INDEXES),
        }
    }

    /// The file of a chunk; `None` if it was never written.
    fn file(&self, place: &[u64]) -> Result<Option<Handle>, Fault> {
        match self.store.open(&self.folder.join(self.keys.name(place))) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn in_shard(&self, shard: &Shard, place: &[u64]) -> InShard {
        let per: Vec<u64> =
            shard.shape.iter().zip(&self.grid.chunk).map(|(outer, inner)| outer / inner).collect();
        let outer: Vec<u64> = place.iter().zip(&per).map(|(at, per)| at / per).collect();
        let inner = place.iter().zip(&per).fold(0u64, |number, (at, per)| number * per + at % per);
        let counts =
            self.grid.shape.iter().zip(&shard.shape).map(|(axis, outer)| axis.div_ceil(*outer));
        let number = counts.zip(&outer).fold(0u64, |number, (count, at)| number * count + at);
        let count = per.iter().try_fold(1u64, |count, per| count.checked_mul(*per));
        InShard { outer, number, inner, count }
    }

    /// The stored bytes of a chunk; `None` if it was never written.
    fn stored(&self, place: &[u64]) -> Result<Option<Vec<u8>>, Fault> {
        let read = |file: Handle, offset: u64, length: u64| {
            if length > self.block_memory {
                return Err(Fault::TooLarge(format!(
                    "a chunk has {length} bytes, {} are allowed",
                    self.block_memory
                )));
            }
            let mut bytes = buffer::zeroed(length)?;
            file.read_exact_at(&mut bytes, offset)?;
            Ok(Some(bytes))
        };
        let Some(shard) = &self.shard else {
            return match self.file(place)? {
                Some(file) => {
                    let length = file.len();
                    read(file, 0, length)
                }
                None => Ok(None),
            };
        };
        let InShard { outer, number, inner, count } = self.in_shard(shard, place);
        let Some(file) = self.file(&outer)? else { return Ok(None) };
        let length = file.len();
        let count = count.ok_or_else(|| corrupt("a shard has too many chunks"))?;
        let index_bytes = count
            .checked_mul(16)
            .and_then(|bytes| bytes.checked_add(if shard.checked { 4 } else { 0 }))
            .filter(|bytes| *bytes <= length)
            .ok_or_else(|| corrupt("a shard is shorter than its index"))?;
        let index = self.indexes.get(number, index_bytes, || {
            let start = if shard.index_first { 0 } else { length - index_bytes };
            check_block(index_bytes, self.block_memory, length)?;
            let mut index = buffer::zeroed(index_bytes)?;
            file.read_exact_at(&mut index, start)?;
            let index = match shard.checked {
                true => codecs::undo(&[codecs::Codec::Crc32c], index, count as usize * 16)?,
                false => index,
            };
            Ok((index, index_bytes))
        })?;
        let (offset, bytes) =
            entry(&index, inner).ok_or_else(|| corrupt("a shard's index is too short"))?;
        if (offset, bytes) == (NOWHERE, NOWHERE) {
            return Ok(None);
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= length => read(file, offset, bytes),
            _ => Err(corrupt("a part of a shard is beyond its end")),
        }
    }

    /// The bytes of a chunk of unknown length, of no more than is reasonable.
    fn unpacked(&self, place: &[u64]) -> Result<Option<Vec<u8>>, Fault> {
        let Some(stored) = self.stored(place)? else { return Ok(None) };
        let limit = largest_block(self.block_memory, stored.len() as u64);
        codecs::undo(&self.packing.codecs, stored, limit as usize).map(Some)
    }

    fn chunk(&self, place: &[u64]) -> Result<Option<Vec<u8>>, Fault> {
        let Some(stored) = self.stored(place)? else { return Ok(None) };
        let whole = self.grid.chunk_bytes().unwrap_or(u64::MAX);
        check_block(whole, self.block_memory, stored.len() as u64)?;
        let chunk = codecs::undo(&self.packing.codecs, stored, whole as usize)?;
        match self.packing.order.is_empty() || chunk.len() as u64 != whole {
            true => Ok(Some(chunk)),
            false => Ok(Some(self.in_order(&chunk)?)),
        }
    }

    /// Elements of a chunk whose axes were stored in another order.
    fn in_order(&self, chunk: &[u8]) -> Result<Vec<u8>, Fault> {
        let (axes, size) = (&self.grid.chunk, self.grid.size as usize);
        // Elements from one to the next along each axis, in the usual order.
        let mut steps = vec![1u64; axes.len()];
        for axis in (1..axes.len()).rev() {
            steps[axis - 1] = steps[axis] * axes[axis];
        }
        let mut out = buffer::zeroed(chunk.len() as u64)?;
        let mut at = vec![0u64; axes.len()];
        for element in chunk.chunks_exact(size.max(1)) {
            let to: u64 =
                self.packing.order.iter().zip(&at).map(|(axis, at)| steps[*axis] * at).sum();
            let to = to as usize * size;
            out[to..to + size].copy_from_slice(element);
            for (place, axis) in self.packing.order.iter().enumerate().rev() {
                at[place] += 1;
                if at[place] < axes[*axis] {
                    break;
                }
                at[place] = 0;
            }
        }
        Ok(out)
    }
}

impl Maker for Chunks {
    fn needs(&self, block: u64, each: &mut Needs<'_>) {
        self.grid.chunks_of(block, |place| {
            let (place, range) = match &self.shard {
                None => (place.to_vec(), None),
                // Where it lies in its shard shows once the shard's index was read.
                Some(shard) => {
                    let InShard { outer, number, inner, .. } = self.in_shard(shard, place);
                    let known = self.indexes.kept(number);
                    match known.and_then(|index| entry(&index, inner)) {
                        Some((offset, bytes)) if offset != NOWHERE => {
                            (outer, Some((offset, bytes)))
                        }
                        _ => return,
                    }
                }
            };
            let path = PathBuf::from(self.keys.name(&place));
            each(&Location { root: &self.folder, path: &path, range, stamp: None });
        });
    }

    fn make(&self, block: u64, bytes: u64) -> Result<Vec<u8>, Fault> {
        // What is known to be stored is not known yet: a block that is too large for nothing is
        // refused, one that is made of chunks is checked with them.
        if bytes > largest_block(self.block_memory, 0) {
            let mut place = vec![0; self.grid.shape.len()];
            place[0] = block;
            let chunks =
                elements(&self.grid.counts().skip(1).map(|n| n as usize).collect::<Vec<_>>());
            let stored = self.stored(&place)?.map_or(0, |stored| stored.len() as u64);
            check_block(bytes, self.block_memory, stored.saturating_mul(chunks.unwrap_or(1)))?;
        }
        self.grid.block(block, bytes, &self.fill, |place| self.chunk(place))
    }
}

/// Texts or bytes of different lengths. A row is the number of a text, which is looked for when
/// it is wanted.
pub(super) struct Texts {
    pub chunks: Arc<Chunks>,
    pub cache: BlockCache<Vec<u8>>,
}

impl Resolve for Texts {
    fn resolve(&self, reference: &[u8], text: bool, room: &mut dyn Room) -> Result<(), Fault> {
        let mut eight = [0; 8];
        eight.copy_from_slice(reference.get(..8).ok_or_else(|| corrupt("a row is too short"))?);
        let row = u64::from_ne_bytes(eight);
        let each = self.chunks.grid.chunk[0];
        // What a chunk of texts unpacks to shows only then.
        let expected = largest_block(self.chunks.block_memory, 0);
        let chunk = self.cache.get(row / each, expected, || {
            let chunk = self.chunks.unpacked(&[row / each])?.unwrap_or_default();
            let bytes = chunk.len() as u64;
            Ok((chunk, bytes))
        })?;
        let short = || corrupt("a chunk of texts is cut short");
        let number = |at: usize| {
            let four = chunk.get(at..at + 4).ok_or_else(short)?;
            Ok::<_, Fault>(u32::from_le_bytes([four[0], four[1], four[2], four[3]]) as usize)
        };
        let mut item: &[u8] = &[];
        // A chunk that was never written has empty texts.
        if !chunk.is_empty() {
            if row % each >= number(0)? as u64 {
                return Err(short());
            }
            let mut at = 4;
            for _ in 0..=row % each {
                let length = number(at)?;
                at += 4;
                item = chunk.get(at..at + length).ok_or_else(short)?;
                at += length;
            }
        }
        if text && std::str::from_utf8(item).is_err() {
            return Err(Fault::corrupt("text", "is not UTF-8"));
        }
        room.make(item.len() as u64)?.copy_from_slice(item);
        Ok(())
    }
}

/// Rows that are their own numbers.
pub(super) struct Numbers {
    /// Rows of a block.
    pub each: u64,
}

impl Maker for Numbers {
    fn make(&self, block: u64, bytes: u64) -> Result<Vec<u8>, Fault> {
        check_block(bytes, u64::MAX, 0)?;
        Ok((0..bytes / 8).flat_map(|row| (block * self.each + row).to_ne_bytes()).collect())
    }
}
