//! What a search found, with the reason for each setting.

use serde::{Deserialize, Serialize};

use feedline::internals::spec::show_bytes;
use feedline::internals::spec::{counted, show_percent, show_rate};
use feedline::internals::tune::LEAST_MEMORY;
use feedline_view::benchmark::Interval;

use super::tried::{Tried, Tunables};
use super::{GOAL, Search};
use crate::bench::caveats::others_in_words;

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Choice {
    /// What to set.
    pub(crate) settings: Tunables,
    /// The wait is under the goal.
    pub(crate) kept: bool,
    /// The share that the trainer waits.
    pub(crate) wait_share: Interval,
    /// Samples a second.
    pub(crate) rate: Interval,
    /// The reason for each key of a spec that is set.
    pub(crate) reasons: Vec<(String, String)>,
    /// What to know beside them.
    pub(crate) remarks: Vec<String>,
}

impl Search {
    /// What was found so far; the last word once [`Search::upcoming`] has nothing more.
    #[must_use]
    pub(crate) fn choice(&self) -> Choice {
        let chosen = &self.tried[self.chosen];
        let settings = chosen.settings;
        let kept = chosen.keeps().unwrap_or(false);
        let mut reasons = vec![("num_workers".to_owned(), self.why_workers(chosen, kept))];
        if settings.prefetch_factor.is_some() {
            reasons.push(("prefetch_factor".to_owned(), self.why_prefetch(chosen)));
        }
        if settings.memory.is_some() {
            reasons.push(("memory".to_owned(), self.why_memory(chosen)));
        }
        let mut remarks = self.remarks.clone();
        if self.again > 0 {
            remarks.push(format!(
                "{} run again: the trainer waited with either setting, though one of them had kept the wait under {:.0} %",
                match self.again {
                    1 => "a pair of stretches was".to_owned(),
                    pairs => format!("{pairs} pairs of stretches were"),
                },
                GOAL * 100.0
            ));
        }
        remarks.extend(others_in_words(&self.others));
        Choice {
            settings,
            kept,
            wait_share: chosen.wait_share(),
            rate: chosen.rate(),
            reasons,
            remarks,
        }
    }

    fn why_workers(&self, chosen: &Tried, kept: bool) -> String {
        let workers = chosen.settings.num_workers;
        let waited = share(&chosen.wait_share());
        let rate = show_rate(chosen.rate().mean);
        if !kept && self.returns > 0 {
            return format!(
                "the trainer waited {waited} on the whole, at {rate} of {} samples/s; nothing that was tried kept the wait under {:.0} % for long",
                show_rate(self.demand.rate()),
                GOAL * 100.0
            );
        }
        if !kept {
            return format!(
                "the trainer waits {waited} and more workers within {} make it no faster: {rate} of {} samples/s",
                counted(self.limits.cpus, "core"),
                show_rate(self.demand.rate())
            );
        }
        let fewer = self.tried.iter().find(|tried| {
            tried.settings == self.with_workers(workers - 1) && !tried.wait_shares.is_empty()
        });
        let beside = match fewer {
            Some(fewer) => {
                format!("; with {} it waits {}", workers - 1, share(&fewer.wait_share()))
            }
            None => String::new(),
        };
        // More than the fewest were taken if those between them failed.
        let fewer_did = self
            .tried
            .iter()
            .any(|tried| tried.settings.num_workers < workers && tried.keeps() == Some(true));
        let fewest = if fewer_did { "so many" } else { "the fewest that" };
        format!(
            "{fewest} keep the wait under {:.0} %: {waited} at {rate} samples/s{beside}",
            GOAL * 100.0
        )
    }

    fn why_prefetch(&self, chosen: &Tried) -> String {
        let usual = Tunables { prefetch_factor: None, ..chosen.settings };
        let usual = Tunables { memory: self.limits.memory, ..usual };
        let usual = self.tried.iter().find(|tried| tried.settings == usual);
        let keep = format!(
            "{} {} the wait at {}",
            counted(chosen.open, "open batch"),
            if chosen.open == 1 { "keeps" } else { "keep" },
            share(&chosen.wait_share()),
        );
        match usual {
            Some(usual) if usual.keeps() == Some(true) => {
                format!("{keep}; {} took more memory for nothing", usual.open)
            }
            Some(usual) => format!(
                "{keep}; with {} it was {}, as the machine was not steady",
                usual.open,
                share(&usual.wait_share())
            ),
            None => keep,
        }
    }

    fn why_memory(&self, chosen: &Tried) -> String {
        let asked = chosen.settings.memory;
        let least = show_bytes(LEAST_MEMORY);
        if asked == self.limits.memory {
            return if asked.is_some_and(|bytes| bytes <= LEAST_MEMORY) {
                format!("the limit that was given; less than {least} is never advised")
            } else {
                "the limit that was given; less would leave no room for larger samples".to_owned()
            };
        }
        let held = show_bytes(chosen.memory);
        let room = if asked == Some(LEAST_MEMORY) {
            format!(
                "the loader held {held}, but less than {least} is never advised: the rest is room for larger samples"
            )
        } else {
            format!("the loader held {held}, and the rest is room for larger samples")
        };
        format!("{room}; the wait was {} within it", share(&chosen.wait_share()))
    }
}

fn share(interval: &Interval) -> String {
    show_percent(interval.mean)
}
