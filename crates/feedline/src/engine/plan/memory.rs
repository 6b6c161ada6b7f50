//! Who gets how much memory: batches, the cache, blocks, one sample.

use crate::error::{Error, Result};
use crate::spec::Spec;
use crate::spec::read::show_bytes;
use crate::tune;

/// The most that is taken when nothing is said: a quarter of what is free, at most this.
const DEFAULT_MEMORY: u64 = 4_000_000_000;

/// What blocks may take when nothing is said.
const BLOCK_MEMORY: u64 = 512_000_000;

/// Bytes that blocks may take in all.
pub(super) fn block_memory(spec: &Spec) -> u64 {
    spec.memory.map_or(BLOCK_MEMORY, |memory| memory / 4)
}

/// What each source may take for blocks: they share the memory evenly.
pub(super) fn each_block_memory(spec: &Spec) -> u64 {
    block_memory(spec) / spec.sources.len().max(1) as u64
}

pub(super) fn ahead(spec: &Spec, workers: usize, batch_bytes: u64) -> usize {
    if workers == 0 {
        return 1;
    }
    match spec.prefetch_factor {
        Some(factor) => {
            usize::try_from(factor).unwrap_or(usize::MAX).saturating_mul(workers).min(1 << 16)
        }
        // All workers share in each batch, so two are enough to keep them busy while one is
        // consumed. Small batches get more, to ride out an uneven consumer: 64 MB holds them.
        None => (64_000_000 / batch_bytes.max(1)).clamp(2, 8) as usize,
    }
}

/// Bytes for the flow and bytes for the cache.
pub(super) fn memory(
    spec: &Spec,
    batch_bytes: u64,
    in_blocks: bool,
    held: u64,
) -> Result<(u64, u64)> {
    let available = tune::memory_available();
    // One batch with the program and one in the making, and a little to make it with.
    let least = batch_bytes.saturating_mul(2).saturating_add(1_000_000);
    let blocks = if in_blocks { block_memory(spec) } else { 0 };
    let asked = spec.memory.unwrap_or_else(|| {
        available
            .map_or(DEFAULT_MEMORY, |free| free / 4)
            .clamp(least.max(tune::LEAST_MEMORY), DEFAULT_MEMORY.max(least))
            .max(least.saturating_add(blocks).saturating_add(held))
    });
    // Asking for more than the machine or the cgroup has left ends in a kill.
    let total = available.map_or(asked, |free| asked.min(free / 10 * 9));
    let cache = match &spec.cache {
        None => 0,
        Some(cache) => cache.limit.unwrap_or(total / 2),
    };
    let flow = total.saturating_sub(cache).saturating_sub(blocks).saturating_sub(held);
    if flow < least {
        let mut cached = String::new();
        let others = [
            (cache, "the cache"),
            (blocks, "blocks of the data"),
            (held, "the data's names, labels and places"),
        ];
        for (bytes, what) in others {
            if bytes > 0 {
                cached += &format!(" beside {} for {what}", show_bytes(bytes));
            }
        }
        return Err(Error::Memory(format!(
            "a batch takes {}, so memory must be at least {}{cached}; it is {}: raise memory or lower batch_size",
            show_bytes(batch_bytes),
            show_bytes(least),
            show_bytes(total),
        )));
    }
    Ok((flow, cache))
}

/// Bytes that one sample may take beside a batch with the program, one in the making and what the
/// sources keep.
pub(super) fn sample_memory(spec: &Spec, batch_bytes: u64, in_blocks: bool, held: u64) -> u64 {
    let batches = batch_bytes.saturating_mul(2);
    let blocks = if in_blocks { block_memory(spec) } else { 0 };
    let others = batches.saturating_add(blocks).saturating_add(held);
    let given = spec.memory.unwrap_or(DEFAULT_MEMORY.max(others.saturating_add(1_000_000)));
    let cache = spec.cache.as_ref().map_or(0, |cache| cache.limit.unwrap_or(given / 2));
    given.saturating_sub(cache).saturating_sub(others)
}
