//! Shuffling in blocks, for data that is read a block at a time.
//!
//! The blocks of an epoch are permuted and taken K at a time; the samples of these K, a pool, are
//! permuted among each other. So at most K blocks are open at once, every sample has its turn, and
//! any position is found by two searches in a table of the blocks' places, without walking there.

use std::sync::{Arc, Mutex, PoisonError};

use super::Permutation;
use crate::random::key;

/// The purposes of keys, beside those of the whole order.
const BLOCKS: u64 = 16;
const POOL: u64 = 17;

/// The block shuffle of all epochs.
pub(super) struct BlockShuffle {
    /// Where each block ends, in samples to choose from.
    ends: Vec<u64>,
    /// Blocks of a pool.
    open: u64,
    seed: u64,
    /// The tables of the epochs asked for last: the one that is read, and the one prefetched.
    tables: Mutex<KeptTables>,
}

/// Epochs with their tables.
type KeptTables = [Option<(u64, Arc<Table>)>; 2];

/// The order of an epoch's blocks.
pub(super) struct Table {
    blocks: Permutation,
    /// Where each block ends, in positions of the epoch, in the epoch's order of blocks.
    ends: Vec<u64>,
    pools: u64,
}

impl BlockShuffle {
    /// `ends` is rising; empty blocks do no harm.
    pub(super) fn new(ends: Vec<u64>, open: u64, seed: u64) -> BlockShuffle {
        BlockShuffle { ends, open: open.max(1), seed, tables: Mutex::default() }
    }

    fn start(&self, block: u64) -> u64 {
        block.checked_sub(1).map_or(0, |before| self.ends[before as usize])
    }

    /// The table of an epoch, made when the epoch is asked for first.
    pub(super) fn table(&self, epoch: u64) -> Arc<Table> {
        let find = |tables: &KeptTables| {
            let known = tables.iter().flatten().find(|(known, _)| *known == epoch);
            known.map(|(_, table)| table.clone())
        };
        let lock = || self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = find(&lock()) {
            return table;
        }
        let blocks = Permutation::new(self.ends.len() as u64, key(self.seed, epoch, BLOCKS));
        let mut reached = 0;
        let ends = (0..self.ends.len() as u64).map(|place| {
            let block = blocks.apply(place);
            reached += self.ends[block as usize] - self.start(block);
            reached
        });
        let ends = ends.collect();
        let table = Arc::new(Table { blocks, ends, pools: key(self.seed, epoch, POOL) });
        let mut tables = lock();
        if let Some(table) = find(&tables) {
            return table;
        }
        tables.swap(0, 1);
        tables[0] = Some((epoch, table.clone()));
        table
    }

    /// The sample at `position` of the epoch that `table` belongs to.
    pub(super) fn pick(&self, table: &Table, position: u64) -> u64 {
        let place = table.ends.partition_point(|end| *end <= position) as u64;
        let pool = place / self.open;
        let first = pool * self.open;
        let last = (first + self.open).min(table.ends.len() as u64) - 1;
        let start = first.checked_sub(1).map_or(0, |before| table.ends[before as usize]);
        let end = table.ends[last as usize];
        let inside = Permutation::new(end - start, key(table.pools, pool, 0));
        let shuffled = start + inside.apply(position - start);
        let pool_ends = &table.ends[first as usize..=last as usize];
        let place = first + pool_ends.partition_point(|end| *end <= shuffled) as u64;
        let block = table.blocks.apply(place);
        let before = place.checked_sub(1).map_or(0, |before| table.ends[before as usize]);
        self.start(block) + (shuffled - before)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn epoch(shuffle: &BlockShuffle, epoch: u64) -> Vec<u64> {
        let table = shuffle.table(epoch);
        (0..*shuffle.ends.last().unwrap()).map(|at| shuffle.pick(&table, at)).collect()
    }

    #[test]
    fn every_sample_has_its_turn_and_few_blocks_are_open() {
        for (ends, open) in [
            (vec![10, 20, 30, 40, 50, 55], 2),
            (vec![1, 2, 3, 1000], 3),
            (vec![5, 5, 12, 12], 2),
            (vec![7], 4),
            ((1..=100).map(|n| n * 13).collect(), 8),
        ] {
            let shuffle = BlockShuffle::new(ends.clone(), open, 9);
            let order = epoch(&shuffle, 0);
            let seen: BTreeSet<u64> = order.iter().copied().collect();
            assert_eq!((seen.len(), order.len() as u64), (order.len(), *ends.last().unwrap()));
            assert_ne!(order, epoch(&shuffle, 1));
            assert_eq!(order, epoch(&shuffle, 0), "again, after another");
            // Once a pool is left, none of its blocks comes again.
            let block = |sample: &u64| ends.partition_point(|end| end <= sample);
            let mut open_now = BTreeSet::new();
            let mut done = BTreeSet::new();
            for sample in &order {
                if open_now.insert(block(sample)) && open_now.len() as u64 > open {
                    open_now.remove(&block(sample));
                    done.append(&mut open_now);
                    open_now.insert(block(sample));
                }
                assert!(!done.contains(&block(sample)), "{ends:?}");
            }
        }
    }

    #[test]
    fn a_pool_is_shuffled_as_a_whole() {
        // Two blocks in one pool: a full shuffle, in which neighbours come from either.
        let shuffle = BlockShuffle::new(vec![500, 1000], 2, 1);
        let order = epoch(&shuffle, 3);
        let changes = order.windows(2).filter(|pair| (pair[0] < 500) != (pair[1] < 500)).count();
        assert!((430..570).contains(&changes), "{changes}");
    }
}
