//! Two candidates that run in turn.
//!
//! The reference, which has more, goes first, then the one that has less, and so on: what else the
//! machine does falls on both. A pair in which both wait, though the reference did not before, says
//! nothing of either: it is set aside and run again, a few times.

use super::GOAL;
use super::tried::{FAR, FEWEST_ROUNDS, MOST_ROUNDS, Stretch, Tried};

/// So many pairs in which both wait are no accident: they count.
const MOST_ASIDE: usize = 3;

#[derive(Debug, Clone)]
pub(super) struct Contest {
    /// The place of the one that has more; `None` if there is none.
    pub(super) reference: Option<usize>,
    /// The place of the one that has less.
    pub(super) candidate: usize,
    /// Stretches of this contest.
    turns: usize,
    /// Pairs that are set aside.
    aside: usize,
    /// Pairs are set aside no more.
    all_count: bool,
    /// The wait of the reference in this pair, if it was expected to keep it under the goal.
    expected: Option<f64>,
}

impl Contest {
    pub(super) fn between(reference: usize, candidate: usize) -> Contest {
        let reference = Some(reference).filter(|at| *at != candidate);
        Contest { reference, candidate, turns: 0, aside: 0, all_count: false, expected: None }
    }

    /// Without anything to compare it with.
    pub(super) fn alone(candidate: usize) -> Contest {
        Contest::between(candidate, candidate)
    }

    /// Whose turn it is.
    pub(super) fn upcoming(&self) -> usize {
        self.reference.filter(|_| self.turns.is_multiple_of(2)).unwrap_or(self.candidate)
    }

    /// Stretches so far, and how many there are at most.
    pub(super) fn turns(&self) -> (usize, usize) {
        let pairs = if self.all_count { MOST_ROUNDS } else { MOST_ROUNDS + MOST_ASIDE - 1 };
        (self.turns, if self.reference.is_some() { 2 * pairs } else { MOST_ROUNDS })
    }

    /// Pairs that are set aside.
    pub(super) fn aside(&self) -> usize {
        self.aside
    }

    pub(super) fn is_over(&self, tried: &[Tried]) -> bool {
        let clear = |at: usize| tried[at].keeps().is_some();
        let Some(reference) = self.reference else {
            let rounds = self.turns;
            return rounds >= MOST_ROUNDS || rounds >= FEWEST_ROUNDS && clear(self.candidate);
        };
        let rounds = self.turns / 2 - self.aside;
        let both_clear = rounds >= FEWEST_ROUNDS && clear(self.candidate) && clear(reference);
        // The last pair is whole.
        self.turns.is_multiple_of(2) && (rounds >= MOST_ROUNDS || both_clear)
    }

    /// How the stretch whose turn it was went. `enough` says that the reference ought to keep the
    /// wait under the goal by far.
    pub(super) fn record(&mut self, tried: &mut [Tried], stretch: &Stretch, enough: bool) {
        let at = self.upcoming();
        let kept = tried[at].keeps() == Some(true);
        tried[at].record(stretch);
        self.turns += 1;
        let Some(reference) = self.reference else { return };
        if at == reference {
            self.expected = Some(stretch.wait_share).filter(|_| kept || enough);
            return;
        }
        // Far longer than the reference is the candidate's own doing.
        let disturbed = self.expected.is_some_and(|waited| {
            waited > GOAL && stretch.wait_share > GOAL && stretch.wait_share <= waited * FAR
        });
        if !disturbed || self.all_count {
            return;
        }
        self.aside += 1;
        for side in [reference, at] {
            tried[side].set_aside();
        }
        if self.aside == MOST_ASIDE {
            for side in [reference, at] {
                tried[side].put_back(self.aside);
            }
            (self.aside, self.all_count) = (0, true);
        }
    }
}
