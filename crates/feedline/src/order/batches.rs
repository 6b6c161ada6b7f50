//! Which positions of an epoch each rank's batches hold.
//!
//! The global batch is batch_size x world_size positions in a row; rank r holds its r-th run.
//! So the ranks' i-th batches joined are the i-th batch of one process with the global size.

use crate::error::SpecError;
use crate::spec::LastBatch;

/// A row of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The position whose sample it holds.
    pub position: u64,
    /// The position that its random draws belong to: differs from `position` when filled up.
    pub draws: u64,
    /// It repeats a sample only to fill the batch.
    pub padding: bool,
}

/// The batches of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Batches {
    samples: u64,
    batch_size: u64,
    rank: u64,
    world: u64,
    last: LastBatch,
}

impl Batches {
    /// The batches of `rank` out of `world` over an epoch of `samples` positions.
    pub(crate) fn new(
        samples: u64,
        batch_size: u64,
        rank: u64,
        world: u64,
        last: LastBatch,
    ) -> Result<Self, SpecError> {
        let batches = Batches { samples, batch_size, rank, world, last };
        // Far beyond any use, and far from where the arithmetic below would wrap.
        let global = batch_size.checked_mul(world).filter(|global| *global <= 1 << 40);
        let Some(global) = global.filter(|_| samples <= 1 << 60) else {
            return Err(SpecError::new(
                "batch_size",
                "makes a global batch (batch_size x world_size) of more than 2^40 rows, or an epoch of more than 2^60",
            )
            .value(format!("{batch_size} x {world}")));
        };
        if samples == 0 {
            return Ok(batches);
        }
        if batches.count() == 0 {
            return Err(SpecError::new("batch_size", format!("is larger than the epoch of {samples} samples, and drop_last is set: there would be no batch"))
                .value(if world == 1 { batch_size.to_string() } else { format!("{batch_size} x {world} ranks") })
                .allowed(format!("at most {}, or last_batch = \"short\", \"pad\" or \"wrap\"", samples / world)));
        }
        let rest = samples % global;
        if last == LastBatch::Short && rest > 0 && rest < world {
            return Err(SpecError::new(
                "last_batch",
                format!(
                    "the last batch has {rest} rows for {world} ranks, so some would have none"
                ),
            )
            .value("\"short\"")
            .allowed("\"drop\", \"pad\" or \"wrap\" with this number of samples and ranks"));
        }
        Ok(batches)
    }

    /// Rows of all ranks' batches together.
    #[must_use]
    pub(crate) fn global(&self) -> u64 {
        self.batch_size * self.world
    }

    /// Batches of an epoch: the same on every rank.
    #[must_use]
    pub(crate) fn count(&self) -> u64 {
        match self.last {
            LastBatch::Drop => self.samples / self.global(),
            _ => self.samples.div_ceil(self.global()),
        }
    }

    /// This rank's rows of batch `number`: the first one's place in the epoch, and how many.
    fn run(&self, number: u64) -> (u64, u64) {
        let start = number * self.global();
        let rest = self.samples.saturating_sub(start);
        if rest < self.global() && self.last == LastBatch::Short {
            // Runs that differ by at most one row, in order, none lost.
            let split =
                |rank: u64| (u128::from(rest) * u128::from(rank) / u128::from(self.world)) as u64;
            (start + split(self.rank), split(self.rank + 1) - split(self.rank))
        } else {
            (start + self.rank * self.batch_size, self.batch_size)
        }
    }

    /// Rows of batch `number`.
    #[must_use]
    pub(crate) fn rows(&self, number: u64) -> u64 {
        self.run(number).1
    }

    /// How many rows of batch `number` only fill it up. They come last.
    #[must_use]
    pub(crate) fn padding(&self, number: u64) -> u64 {
        let (start, rows) = self.run(number);
        (start + rows).saturating_sub(self.samples).min(rows)
    }

    /// What row `row` of batch `number` holds.
    #[must_use]
    pub(crate) fn row(&self, number: u64, row: u64) -> Row {
        self.at(self.run(number).0 + row)
    }

    /// What the row before this rank's first one holds, in the batch of all ranks. Before the
    /// first of that is its last.
    #[must_use]
    pub(crate) fn before(&self, number: u64) -> Row {
        let (first, whole) = (self.run(number).0, number * self.global());
        if first > whole {
            return self.at(first - 1);
        }
        let rest = self.samples.saturating_sub(whole);
        let short = self.last == LastBatch::Short && rest < self.global();
        self.at(whole + if short { rest } else { self.global() }.saturating_sub(1))
    }

    fn at(&self, place: u64) -> Row {
        let padding = place >= self.samples;
        let position = match (padding, self.last) {
            (false, _) => place,
            (true, LastBatch::Wrap) => place % self.samples.max(1),
            (true, _) => self.samples - 1,
        };
        Row { position, draws: place, padding }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(batches: &Batches) -> Vec<Vec<Row>> {
        (0..batches.count())
            .map(|b| (0..batches.rows(b)).map(|r| batches.row(b, r)).collect())
            .collect()
    }

    proptest! {
        #[test]
        fn ranks_joined_are_one_process(samples in 1u64..200, size in 1u64..9, world in 1u64..9, last in 0usize..4) {
            let last = [LastBatch::Short, LastBatch::Drop, LastBatch::Pad, LastBatch::Wrap][last];
            let parts: Result<Vec<_>, _> = (0..world).map(|rank| Batches::new(samples, size, rank, world, last)).collect();
            let Ok(parts) = parts else { return Ok(()) };
            let whole = all(&Batches::new(samples, size * world, 0, 1, last).unwrap());
            let parts: Vec<_> = parts.iter().map(all).collect();
            for (number, batch) in whole.iter().enumerate() {
                let joined: Vec<Row> = parts.iter().flat_map(|part| part[number].clone()).collect();
                prop_assert_eq!(&joined, batch);
                prop_assert!(parts.iter().all(|part| !part[number].is_empty()));
                let mut before = *batch.last().unwrap();
                for rank in 0..world {
                    let part = Batches::new(samples, size, rank, world, last).unwrap();
                    prop_assert_eq!(part.before(number as u64), before);
                    before = *parts[rank as usize][number].last().unwrap();
                }
            }
            prop_assert!(parts.iter().all(|part| part.len() == whole.len()));
            let real: Vec<u64> = whole.iter().flatten().filter(|r| !r.padding).map(|r| r.position).collect();
            let expected = if last == LastBatch::Drop { samples / (size * world) * (size * world) } else { samples };
            prop_assert_eq!(real, (0..expected).collect::<Vec<_>>());
        }
    }

    #[test]
    fn padding_is_counted_on_the_rank_that_has_it() {
        let part = |rank, last| Batches::new(10, 4, rank, 2, last).unwrap();
        assert_eq!(
            (part(0, LastBatch::Pad).padding(1), part(1, LastBatch::Pad).padding(1)),
            (2, 4)
        );
        assert_eq!(
            part(0, LastBatch::Pad).row(1, 3),
            Row { position: 9, draws: 11, padding: true }
        );
        assert_eq!(
            part(1, LastBatch::Wrap).row(1, 0),
            Row { position: 2, draws: 12, padding: true }
        );
        assert_eq!((part(0, LastBatch::Short).rows(1), part(1, LastBatch::Short).rows(1)), (1, 1));
        assert!(Batches::new(9, 4, 0, 2, LastBatch::Short).is_err());
        assert!(Batches::new(3, 4, 0, 1, LastBatch::Drop).is_err());
        // As WORLD_SIZE in the environment could be: the product would wrap to 0.
        assert!(Batches::new(9, 16, 0, 1 << 60, LastBatch::Pad).is_err());
        assert_eq!(Batches::new(3, 4, 0, 1, LastBatch::Short).unwrap().rows(0), 3);
    }
}
