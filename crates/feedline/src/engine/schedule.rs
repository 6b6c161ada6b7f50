//! The order of a loader by itself, for a program that makes the samples.

use serde_json::Value;

use super::identity;
use super::rank::{self, Rank};
use crate::error::{Error, Result, SpecError};
use crate::order::{Batches, Identity, Order, Pick, Row, State};
use crate::spec::{Spec, Workers};

/// A row of a batch and the sample that belongs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// The row's place in the epoch.
    pub row: Row,
    /// Its sample.
    pub pick: Pick,
}

/// Which samples the batches of every epoch hold: the same that a [`super::Loader`] of the same
/// spec would put there. Of the spec, what concerns samples and pixels does not count.
///
/// ```
/// use feedline::{Spec, internals::engine::Schedule};
/// let spec = Spec::from_json(r#"{"source": {"kind": "arrays"}, "batch_size": 4, "shuffle": true}"#)?;
/// let schedule = Schedule::new(spec, &[10], &|_| None)?;
/// assert_eq!(schedule.batches(), 3);
/// let mut seen: Vec<u64> =
///     (0..3).flat_map(|number| schedule.batch(0, number)).map(|due| due.pick.index).collect();
/// seen.sort();
/// assert_eq!(seen, (0..10).collect::<Vec<_>>());
/// # Ok::<(), feedline::SpecError>(())
/// ```
pub struct Schedule {
    spec: Spec,
    sizes: Vec<u64>,
    order: Order,
    batches: Batches,
    rank: Rank,
}

impl Schedule {
    /// The order that `spec` asks for over sources of these sizes, one for each that it names.
    /// `label` gives a sample's class where `weights = "balanced"` needs it.
    pub fn new(
        spec: Spec,
        sizes: &[u64],
        label: &dyn Fn(Pick) -> Option<i64>,
    ) -> Result<Schedule, SpecError> {
        spec.check()?;
        if sizes.len() != spec.sources.len() {
            return Err(SpecError::new("source", "does not go with the sizes that were given")
                .value(spec.sources.len())
                .allowed(format!("{} of them", sizes.len())));
        }
        let rank = Rank::resolve(spec.rank, spec.world_size)?;
        let order = Order::new(&spec, sizes, label)?;
        let batches =
            Batches::new(order.samples(), spec.batch_size, rank.rank, rank.world, spec.last_batch)?;
        Ok(Schedule { spec, sizes: sizes.to_vec(), order, batches, rank })
    }

    /// The spec that it follows.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Batches of an epoch, the same on every rank.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.batches.count()
    }

    /// Samples of an epoch over all ranks.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.order.samples()
    }

    /// This process and how many there are.
    #[must_use]
    pub fn rank(&self) -> (u64, u64) {
        (self.rank.rank, self.rank.world)
    }

    /// Workers that the spec asks for.
    #[must_use]
    pub fn num_workers(&self) -> usize {
        match self.spec.num_workers {
            Workers::Auto => rank::auto_workers(),
            Workers::Count(count) => count as usize,
        }
    }

    /// The rows of batch `number`, which is below [`Schedule::batches`].
    #[must_use]
    pub fn batch(&self, epoch: u64, number: u64) -> Vec<Due> {
        let order = self.order.epoch(epoch);
        let due = |row| Due { row, pick: order.pick(row.position) };
        (0..self.batches.rows(number)).map(|row| due(self.batches.row(number, row))).collect()
    }

    /// How many rows of batch `number` only fill it up. They come last.
    #[must_use]
    pub fn padding(&self, number: u64) -> u64 {
        self.batches.padding(number)
    }

    /// The stand-in for the sample of `row` when it cannot be had, and for its stand-ins.
    #[must_use]
    pub fn substitute(&self, epoch: u64, row: Row, attempt: u32) -> Pick {
        self.order.epoch(epoch).substitute(row, attempt)
    }

    /// Where a run stands before batch `number` of `epoch`. `data` says what the samples are and
    /// `pixels` what becomes of them: a state with other ones is refused. A refusal names what
    /// differs in them, except under the key `fingerprint`.
    #[must_use]
    pub fn state(
        &self,
        (epoch, number): (u64, u64),
        data: &Value,
        pixels: &Value,
        skipped: impl Iterator<Item = Pick>,
    ) -> State {
        State::new(epoch, number, self.identity(data, pixels), skipped)
    }

    /// Checks that a state belongs to this order, these samples and what becomes of them.
    pub fn check(&self, state: &State, data: &Value, pixels: &Value) -> Result<()> {
        state.check(&self.identity(data, pixels), self.batches()).map_err(Error::State)?;
        for (source, index) in &state.skipped {
            let size = usize::try_from(*source).ok().and_then(|source| self.sizes.get(source));
            if size.is_none_or(|size| index >= size) {
                return Err(Error::State(format!(
                    "it lists sample {index} of source {source} as skipped, which there is not"
                )));
            }
        }
        Ok(())
    }

    fn identity(&self, data: &Value, pixels: &Value) -> Identity {
        identity::identity(&self.spec, data, pixels, self.batches.global(), None)
    }
}
