//! A candidate, and how its stretches went.

use feedline::internals::tune::{Evidence, Run};
use feedline_view::benchmark::Interval;
use serde::{Deserialize, Serialize};

use super::GOAL;

/// Stretches of each candidate: so many at least, and so many at most if the answer is not clear.
pub(super) const FEWEST_ROUNDS: usize = 2;
pub(super) const MOST_ROUNDS: usize = 5;

/// So many times as long, or as short, is far off.
pub(super) const FAR: f64 = 3.0;

/// What is tuned of a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tunables {
    /// Workers.
    pub(crate) num_workers: u64,
    /// Open batches for each worker; `None` is the loader's own choice.
    pub(crate) prefetch_factor: Option<u64>,
    /// Bytes that it may hold; `None` is the loader's own choice.
    pub(crate) memory: Option<u64>,
}

/// How a stretch went.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Stretch {
    /// The share of the time that the trainer waited.
    pub(crate) wait_share: f64,
    /// Samples a second.
    pub(crate) rate: f64,
    /// Samples of a batch, the mean; 0 if there was none.
    pub(crate) rows: f64,
    /// Batches that could be open.
    pub(crate) open: u64,
    /// Cores that other programs used meanwhile, if that is known.
    pub(crate) others: Option<f64>,
    /// What is known of the stages and the memory.
    pub(crate) evidence: Evidence,
}

impl Stretch {
    /// Of a run with so many batches that could be open.
    #[must_use]
    pub(crate) fn of(run: &Run, open: u64) -> Stretch {
        let (waits, steps) = (run.waits.iter().sum::<f64>(), run.steps.iter().skip(1).sum::<f64>());
        let total = waits + steps;
        Stretch {
            wait_share: if total > 0.0 { waits / total } else { 1.0 },
            rate: run.samples_per_second,
            rows: run.samples as f64 / run.batches.max(1) as f64,
            open,
            others: run.others(),
            evidence: run.evidence.clone(),
        }
    }
}

/// A candidate and its stretches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tried {
    /// What was set.
    pub(crate) settings: Tunables,
    /// The share of the time that the trainer waited, stretch by stretch.
    pub(crate) wait_shares: Vec<f64>,
    /// Samples a second, stretch by stretch.
    pub(crate) rates: Vec<f64>,
    /// Waits and rates of stretches that do not count: those it was compared with waited too.
    pub(crate) set_aside: Vec<(f64, f64)>,
    /// Batches that could be open.
    pub(crate) open: u64,
    /// The most bytes that the loader held at the end of a stretch.
    pub(crate) memory: u64,
    /// Batches that were thrown away for want of memory.
    pub(crate) remade: u64,
}

impl Tried {
    pub(super) fn new(settings: Tunables) -> Tried {
        Tried {
            settings,
            wait_shares: Vec::new(),
            rates: Vec::new(),
            set_aside: Vec::new(),
            open: 0,
            memory: 0,
            remade: 0,
        }
    }

    pub(super) fn record(&mut self, stretch: &Stretch) {
        self.wait_shares.push(stretch.wait_share);
        self.rates.push(stretch.rate);
        self.open = stretch.open;
        self.memory = self.memory.max(stretch.evidence.memory_used);
        self.remade += stretch.evidence.batches_remade;
    }

    /// The last stretch does not count.
    pub(super) fn set_aside(&mut self) {
        if let (Some(wait_share), Some(rate)) = (self.wait_shares.pop(), self.rates.pop()) {
            self.set_aside.push((wait_share, rate));
        }
    }

    /// The last stretches that were set aside count after all.
    pub(super) fn put_back(&mut self, stretches: usize) {
        let kept = self.set_aside.len().saturating_sub(stretches);
        for (wait_share, rate) in self.set_aside.drain(kept..) {
            self.wait_shares.push(wait_share);
            self.rates.push(rate);
        }
    }

    /// The share that was waited, with its interval.
    #[must_use]
    pub(crate) fn wait_share(&self) -> Interval {
        let interval = Interval::of(&self.wait_shares);
        Interval { low: interval.low.max(0.0), high: interval.high.min(1.0), ..interval }
    }

    /// Samples a second, with their interval.
    #[must_use]
    pub(crate) fn rate(&self) -> Interval {
        Interval::of(&self.rates)
    }

    /// It had as much as the other of everything, and more of something.
    pub(super) fn has_more_than(&self, other: &Tried) -> bool {
        let memory = |tried: &Tried| tried.settings.memory.unwrap_or(u64::MAX);
        let all = |tried: &Tried| (tried.settings.num_workers, tried.open, memory(tried));
        let ((workers, open, bytes), least) = (all(self), all(other));
        workers >= least.0 && open >= least.1 && bytes >= least.2 && all(self) != least
    }

    /// Whether the wait stays under the goal; `None` if that is not clear yet.
    #[must_use]
    pub(crate) fn keeps(&self) -> Option<bool> {
        let rounds = self.wait_shares.len();
        let share = self.wait_share();
        if rounds < FEWEST_ROUNDS {
            return None;
        }
        if share.high <= GOAL || share.low > GOAL {
            return Some(share.high <= GOAL);
        }
        // All on one side by far needs no statistics of two stretches.
        let far = |beyond: fn(f64, f64) -> bool, bound: f64| {
            self.wait_shares.iter().all(|share| beyond(*share, bound))
        };
        if far(|share, bound| share > bound, GOAL * FAR) {
            return Some(false);
        }
        if far(|share, bound| share < bound, GOAL / FAR) {
            return Some(true);
        }
        (rounds >= MOST_ROUNDS).then_some(share.mean <= GOAL)
    }
}
