//! Which sample comes when: a function of (seed, epoch, position), never a list.
//!
//! [`Order`] maps a position of an epoch to a sample, [`Batches`] maps a rank's batches to
//! positions, [`State`] says where a run stands. All of them seek in constant time.

mod batches;
mod blocks;
mod described;
mod mix;
mod permutation;
mod state;
mod weighted;

pub(crate) use batches::Batches;
pub use batches::Row;
pub(crate) use described::Described;
pub use permutation::Permutation;
pub(crate) use state::Identity;
pub use state::{MOST_EPOCHS, State, VERSION};

use std::sync::Arc;

use crate::canonical::CanonicalHash;
use crate::error::SpecError;
use crate::random::{Draws, key};
use crate::spec::{OpenBlocks, Spec, Subset, Weights};
use blocks::{BlockShuffle, Table};
use mix::Mix;
use weighted::Alias;

/// The purposes of keys, so that no two uses share random numbers.
const SHUFFLE: u64 = 1;
const REPLACEMENT: u64 = 2;
const SUBSTITUTE: u64 = 3;
const MIX: u64 = 4;

/// One sample of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pick {
    /// Which source.
    pub source: usize,
    /// Which of its samples.
    pub index: u64,
}

enum OrderKind {
    Sequential,
    Shuffled,
    Blocks(BlockShuffle),
    Replacement,
    Weighted(Alias),
    Mixed(Mix),
}

enum Chosen {
    All,
    Indices(Vec<u64>),
    Slice { start: u64, step: u64 },
}

/// How samples lie in blocks that are read as a whole, for [`Order::in_blocks`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BlockEnds {
    /// Where each block ends, all sources laid end to end.
    pub ends: Vec<u64>,
    /// Blocks that the memory has room for at once.
    pub room: u64,
}

impl BlockEnds {
    /// A hash of where blocks end.
    #[must_use]
    pub(crate) fn fingerprint(&self) -> String {
        let mut hash = CanonicalHash::new("blocks");
        hash.list(self.ends.len());
        self.ends.iter().for_each(|end| hash.whole(*end));
        hash.finish()
    }
}

/// The order of all epochs.
pub(crate) struct Order {
    kind: OrderKind,
    chosen: Chosen,
    seed: u64,
    /// Samples to choose from, after the subset.
    population: u64,
    /// Positions of an epoch.
    samples: u64,
    /// Where each source ends when all are laid end to end.
    ends: Vec<u64>,
}

impl Order {
    /// The order that `spec` asks for over sources of these sizes. `label` gives a sample's
    /// class where `weights = "balanced"` needs it.
    pub(crate) fn new(
        spec: &Spec,
        sizes: &[u64],
        label: &dyn Fn(Pick) -> Option<i64>,
    ) -> Result<Order, SpecError> {
        let mut ends = Vec::with_capacity(sizes.len());
        let mut total = 0u64;
        for size in sizes {
            total = total
                .checked_add(*size)
                .ok_or_else(|| SpecError::new("source", "has more than 2^64 samples"))?;
            ends.push(total);
        }
        let (chosen, population) = choose(spec.subset.as_ref(), total)?;
        if population == 0 {
            return Err(SpecError::new("subset", "leaves no samples")
                .allowed(format!("some of the {total} samples")));
        }
        let mut order = Order {
            kind: OrderKind::Sequential,
            chosen,
            seed: spec.seed,
            population,
            samples: population,
            ends,
        };
        let shares: Vec<f64> = spec.sources.iter().filter_map(|source| source.weight).collect();
        if let Some(at) = mix::without_a_place(&shares) {
            return Err(SpecError::new(
                format!("source[{at}].weight"),
                "is less than 1/2^32 of all",
            )
            .value(shares[at])
            .allowed("weights that are not so far apart"));
        }
        order.kind = if !shares.is_empty() {
            OrderKind::Mixed(Mix::new(&shares, sizes, spec.shuffle))
        } else if let Some(weights) = &spec.weights {
            OrderKind::Weighted(order.weighted(weights, label)?)
        } else if spec.replacement {
            OrderKind::Replacement
        } else if spec.shuffle {
            OrderKind::Shuffled
        } else {
            OrderKind::Sequential
        };
        if let Some(samples) = spec.num_samples {
            let once = matches!(order.kind, OrderKind::Sequential | OrderKind::Shuffled);
            if once && samples > population {
                return Err(SpecError::new("num_samples", "is more than the data set has")
                    .value(samples)
                    .allowed(format!("1 to {population}, or replacement = true")));
            }
            order.samples = samples;
        }
        Ok(order)
    }

    fn weighted(
        &self,
        weights: &Weights,
        label: &dyn Fn(Pick) -> Option<i64>,
    ) -> Result<Alias, SpecError> {
        let weights = match weights {
            Weights::Each(weights) if weights.len() as u64 == self.population => weights.clone(),
            Weights::Each(weights) => {
                return Err(SpecError::new("weights", format!("has {} numbers", weights.len()))
                    .allowed(format!("one for each of the {} samples", self.population)));
            }
            Weights::Balanced => {
                let labels: Option<Vec<i64>> =
                    (0..self.population).map(|i| label(self.locate(self.chosen(i)))).collect();
                let labels = labels.ok_or_else(|| {
                    SpecError::new("weights", "\"balanced\" needs an integer label for each sample")
                })?;
                let mut counts = std::collections::HashMap::new();
                labels.iter().for_each(|label| *counts.entry(*label).or_insert(0u64) += 1);
                labels.iter().map(|label| 1.0 / counts[label] as f64).collect()
            }
        };
        Ok(Alias::new(&weights))
    }

    /// The same order with a shuffle in blocks, where the spec leaves that open and there are more
    /// blocks than there is room for. Gives the number of blocks that are open at once.
    #[must_use]
    pub(crate) fn in_blocks(mut self, spec: &Spec, blocks: &BlockEnds) -> (Order, Option<u64>) {
        let open = match spec.open_blocks {
            OpenBlocks::Auto => blocks.room.max(1),
            OpenBlocks::Count(count) => count.max(1),
            OpenBlocks::All => return (self, None),
        };
        let ends: Option<Vec<u64>> =
            blocks.ends.iter().map(|end| self.chosen_below(*end)).collect();
        let Some(ends) = ends else { return (self, None) };
        if !matches!(self.kind, OrderKind::Shuffled) || ends.len() as u64 <= open {
            return (self, None);
        }
        self.kind = OrderKind::Blocks(BlockShuffle::new(ends, open, self.seed));
        (self, Some(open))
    }

    /// How many of the samples to choose from lie before `end`; `None` if they are in no order.
    fn chosen_below(&self, end: u64) -> Option<u64> {
        match &self.chosen {
            Chosen::All => Some(end),
            Chosen::Indices(indices) => {
                indices.is_sorted().then(|| indices.partition_point(|index| *index < end) as u64)
            }
            Chosen::Slice { start, step } => {
                Some(end.saturating_sub(*start).div_ceil(*step).min(self.population))
            }
        }
    }

    /// Positions of an epoch.
    #[must_use]
    pub(crate) fn samples(&self) -> u64 {
        self.samples
    }

    /// What is the same for all positions of an epoch, worked out once.
    #[must_use]
    pub(crate) fn epoch(&self, epoch: u64) -> EpochOrder<'_> {
        let table = match &self.kind {
            OrderKind::Blocks(shuffle) => Some(shuffle.table(epoch)),
            _ => None,
        };
        EpochOrder {
            order: self,
            epoch,
            table,
            shuffle: Permutation::new(self.population, key(self.seed, epoch, SHUFFLE)),
            draws: key(self.seed, epoch, REPLACEMENT),
            substitute: key(self.seed, epoch, SUBSTITUTE),
        }
    }

    fn chosen(&self, number: u64) -> u64 {
        match &self.chosen {
            Chosen::All => number,
            Chosen::Indices(indices) => indices[number as usize],
            Chosen::Slice { start, step } => start + number * step,
        }
    }

    fn locate(&self, number: u64) -> Pick {
        let source = self.ends.partition_point(|end| *end <= number);
        let before = if source == 0 { 0 } else { self.ends[source - 1] };
        Pick { source, index: number - before }
    }
}

fn choose(subset: Option<&Subset>, total: u64) -> Result<(Chosen, u64), SpecError> {
    match subset {
        None => Ok((Chosen::All, total)),
        Some(Subset::Indices(indices)) => {
            if let Some(wrong) = indices.iter().find(|index| **index >= total) {
                return Err(SpecError::new("subset", format!("names sample {wrong}"))
                    .allowed(format!("numbers below {total}, the size of the data set")));
            }
            Ok((Chosen::Indices(indices.clone()), indices.len() as u64))
        }
        Some(Subset::Slice(start, stop, step)) => {
            // As Python's slice.indices: negative counts from the end, all is clamped.
            let clamp = |bound: i64| {
                if bound < 0 {
                    total.saturating_sub(bound.unsigned_abs())
                } else {
                    (bound as u64).min(total)
                }
            };
            let start = start.map_or(0, clamp);
            let stop = stop.map_or(total, clamp);
            let step = step.unsigned_abs().max(1);
            Ok((Chosen::Slice { start, step }, stop.saturating_sub(start).div_ceil(step)))
        }
    }
}

/// The order of one epoch.
pub(crate) struct EpochOrder<'a> {
    order: &'a Order,
    epoch: u64,
    table: Option<Arc<Table>>,
    shuffle: Permutation,
    draws: u64,
    substitute: u64,
}

impl EpochOrder<'_> {
    /// The sample at `position`, which is below [`Order::samples`].
    #[must_use]
    pub(crate) fn pick(&self, position: u64) -> Pick {
        let order = self.order;
        let number = match &order.kind {
            OrderKind::Sequential => position,
            OrderKind::Shuffled => self.shuffle.apply(position),
            OrderKind::Blocks(shuffle) => match &self.table {
                Some(table) => shuffle.pick(table, position),
                None => position,
            },
            OrderKind::Replacement => {
                Draws::with_key(self.draws, position, 0).below(order.population)
            }
            OrderKind::Weighted(alias) => alias.pick(&mut Draws::with_key(self.draws, position, 0)),
            OrderKind::Mixed(mix) => {
                // The mix is one endless stream, of which an epoch is a window: so every sample
                // of every source has its turn before any comes again.
                let place =
                    u128::from(self.epoch) * u128::from(order.samples) + u128::from(position);
                return mix.pick(order.seed, place);
            }
        };
        order.locate(order.chosen(number))
    }

    /// The sample that stands in for the one of `row` when that cannot be had, and for its
    /// stand-ins when they cannot either. It depends on nothing else, so all runs agree on it;
    /// weights hold for it, and in a mix it comes from the same source.
    #[must_use]
    pub(crate) fn substitute(&self, row: Row, attempt: u32) -> Pick {
        let order = self.order;
        let mut draws = Draws::with_key(self.substitute, row.draws, attempt);
        let number = match &order.kind {
            OrderKind::Weighted(alias) => alias.pick(&mut draws),
            OrderKind::Mixed(_) => {
                let Pick { source, .. } = self.pick(row.position);
                let before = if source == 0 { 0 } else { order.ends[source - 1] };
                before + draws.below(order.ends[source] - before)
            }
            _ => draws.below(order.population),
        };
        order.locate(order.chosen(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::SourceSpec;

    fn order(spec: &Spec, sizes: &[u64]) -> Result<Order, SpecError> {
        Order::new(spec, sizes, &|pick| Some((pick.index % 4 == 0) as i64))
    }

    fn indices(spec: &Spec, sizes: &[u64], epoch: u64) -> Vec<u64> {
        let order = order(spec, sizes).unwrap();
        let epoch = order.epoch(epoch);
        (0..order.samples()).map(|position| epoch.pick(position).index).collect()
    }

    fn spec() -> Spec {
        Spec { sources: vec!["a".into()], ..Spec::default() }
    }

    #[test]
    fn subsets_follow_python() {
        let with = |subset: &str| Spec { subset: Subset::parse(subset), ..spec() };
        assert_eq!(indices(&with("2:5"), &[9], 0), [2, 3, 4]);
        assert_eq!(indices(&with("::4"), &[9], 0), [0, 4, 8]);
        assert_eq!(indices(&with("-2:"), &[9], 0), [7, 8]);
        assert_eq!(indices(&with("-100:100:7"), &[9], 0), [0, 7]);
        let listed = Spec { subset: Some(Subset::Indices(vec![3, 3, 1])), shuffle: true, ..spec() };
        let mut seen = indices(&listed, &[9], 5);
        seen.sort_unstable();
        assert_eq!(seen, [1, 3, 3]);
        let beyond = Spec { subset: Some(Subset::Indices(vec![9])), ..spec() };
        assert!(order(&beyond, &[9]).is_err());
    }

    #[test]
    fn nothing_to_choose_from_is_refused() {
        for subset in [Subset::Slice(Some(5), Some(2), 1), Subset::Indices(Vec::new())] {
            for spec in [
                Spec { replacement: true, num_samples: Some(10), ..spec() },
                Spec { weights: Some(Weights::Balanced), num_samples: Some(10), ..spec() },
                spec(),
            ] {
                let spec = Spec { subset: Some(subset.clone()), ..spec };
                assert!(order(&spec, &[9]).is_err());
            }
        }
    }

    #[test]
    fn stand_ins_follow_the_weights_and_the_source() {
        let row = |position| Row { position, draws: position, padding: false };
        let weighted = Spec { weights: Some(Weights::Each(vec![0.0, 1.0, 0.0])), ..spec() };
        let weighted = order(&weighted, &[3]).unwrap();
        let epoch = weighted.epoch(0);
        assert!((0..50).all(|attempt| epoch.substitute(row(0), attempt).index == 1));
        let sources = vec![SourceSpec::from("a").weight(1.0), SourceSpec::from("b").weight(1.0)];
        let mixed = order(&Spec { sources, ..Spec::default() }, &[10, 10]).unwrap();
        let epoch = mixed.epoch(0);
        for position in 0..20 {
            let stand_in = epoch.substitute(row(position), 3);
            assert_eq!(stand_in.source, epoch.pick(position).source);
            assert!(stand_in.index < 10);
        }
    }

    #[test]
    fn blocks_follow_the_subset_and_the_room() {
        let shuffled = Spec { shuffle: true, ..spec() };
        let ends = BlockEnds { ends: (1..=20).map(|n| n * 10).collect(), room: 3 };
        let in_blocks = |spec: &Spec, ends: &BlockEnds| {
            let (order, open) = order(spec, &[200]).unwrap().in_blocks(spec, ends);
            let epoch = order.epoch(2);
            let picks: Vec<u64> = (0..order.samples()).map(|at| epoch.pick(at).index).collect();
            (picks, open)
        };
        let (all, open) = in_blocks(&shuffled, &ends);
        assert_eq!(open, Some(3));
        let first: std::collections::BTreeSet<u64> = all[..30].iter().map(|n| n / 10).collect();
        assert_eq!(first.len(), 3);
        for subset in ["30:170", "::7", "-15:", ":1"] {
            let spec = Spec { subset: Subset::parse(subset), ..shuffled.clone() };
            let (mut some, _) = in_blocks(&spec, &ends);
            some.sort_unstable();
            assert_eq!(some, indices(&Spec { shuffle: false, ..spec }, &[200], 0), "{subset}");
        }
        // With room for all, as given, or without a shuffle: as if there were no blocks.
        let roomy = BlockEnds { room: 20, ..ends.clone() };
        for (spec, ends) in [
            (shuffled.clone(), &roomy),
            (Spec { open_blocks: OpenBlocks::All, ..shuffled.clone() }, &ends),
            (spec(), &ends),
        ] {
            assert_eq!(in_blocks(&spec, ends), (indices(&spec, &[200], 2), None));
        }
    }

    #[test]
    fn joined_sources_lie_end_to_end() {
        let two = Spec { sources: vec!["a".into(), "b".into()], ..Spec::default() };
        let order = order(&two, &[2, 3]).unwrap();
        let picks: Vec<_> =
            (0..5).map(|p| order.epoch(0).pick(p)).map(|p| (p.source, p.index)).collect();
        assert_eq!(picks, [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]);
    }

    #[test]
    fn weights_set_the_frequencies() {
        let weighted = Spec {
            weights: Some(Weights::Each(vec![0.0, 1.0, 3.0])),
            num_samples: Some(40_000),
            ..spec()
        };
        let mut counts = [0u64; 3];
        indices(&weighted, &[3], 0).iter().for_each(|i| counts[*i as usize] += 1);
        assert_eq!(counts[0], 0);
        assert!((counts[2] as f64 / 40_000.0 - 0.75).abs() < 0.011, "{counts:?}");
        // One sample in four is of class 1: balanced, half of the draws are.
        let balanced =
            Spec { weights: Some(Weights::Balanced), num_samples: Some(40_000), ..spec() };
        let ones = indices(&balanced, &[100], 0).iter().filter(|i| **i % 4 == 0).count();
        assert!((ones as f64 / 40_000.0 - 0.5).abs() < 0.013, "{ones}");
        assert!(order(&Spec { weights: Some(Weights::Each(vec![1.0])), ..spec() }, &[3]).is_err());
    }

    #[test]
    fn with_replacement_repeats_and_may_be_longer() {
        let spec = Spec { replacement: true, num_samples: Some(1000), ..spec() };
        let seen = indices(&spec, &[10], 0);
        assert_eq!(seen.len(), 1000);
        assert!((0..10).all(|i| seen.contains(&i)));
        assert_ne!(seen, indices(&spec, &[10], 1));
        let once = Spec { num_samples: Some(11), ..self::spec() };
        assert!(order(&once, &[10]).is_err());
    }

    #[test]
    fn a_mix_keeps_its_shares_and_visits_everything() {
        let sources = vec![SourceSpec::from("a").weight(3.0), SourceSpec::from("b").weight(1.0)];
        let spec = Spec { sources, shuffle: true, num_samples: Some(1000), ..Spec::default() };
        let order = order(&spec, &[600, 100]).unwrap();
        let mut seen = std::collections::HashMap::new();
        let mut of_first = 0;
        for epoch in 0..4 {
            let epoch = order.epoch(epoch);
            for position in 0..1000 {
                let pick = epoch.pick(position);
                of_first += usize::from(pick.source == 0);
                *seen.entry(pick).or_insert(0u32) += 1;
            }
        }
        assert!((of_first as f64 / 4000.0 - 0.75).abs() < 0.02, "{of_first}");
        // 4,000 picks hold about 5 rounds of the first and 10 of the second.
        assert_eq!(seen.len(), 700);
        let rounds = |source: usize| {
            let counts: Vec<u32> =
                seen.iter().filter(|(p, _)| p.source == source).map(|(_, n)| *n).collect();
            (*counts.iter().min().unwrap(), *counts.iter().max().unwrap())
        };
        assert!(rounds(0).1 - rounds(0).0 <= 3, "{:?}", rounds(0));
        assert!(rounds(1).1 - rounds(1).0 <= 3, "{:?}", rounds(1));
    }
}
