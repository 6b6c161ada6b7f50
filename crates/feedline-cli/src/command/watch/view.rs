//! What the screen shows: figures in words, and a few minutes of them.

use std::collections::VecDeque;

use feedline::internals::spec::show_bytes;
use feedline_view::live::{LoaderNow, Memory, Queue, Snapshot};

/// Seconds that are kept for the small charts: more than a screen is wide.
const KEPT: usize = 400;

/// What is known while the screen is up.
pub(super) struct View {
    pub(super) snapshot: Snapshot,
    /// The loader that is shown.
    chosen: u64,
    /// What is not known is a gap, not a zero.
    pub(super) rates: VecDeque<Option<u64>>,
    /// In tenths of a percent.
    pub(super) waits: VecDeque<Option<u64>>,
    /// The process does not answer.
    pub(super) silent: bool,
}

impl View {
    pub(super) fn new(snapshot: Snapshot) -> Self {
        let chosen = snapshot.busiest().map_or(0, |loader| loader.id);
        let mut view = View {
            snapshot: Snapshot::default(),
            chosen,
            rates: VecDeque::new(),
            waits: VecDeque::new(),
            silent: false,
        };
        view.add(snapshot);
        view
    }

    /// Takes in the newest figures.
    pub(super) fn add(&mut self, snapshot: Snapshot) {
        self.silent = false;
        self.snapshot = snapshot;
        if self.loader().is_none() {
            // A new loader for each epoch is one to who looks.
            match self.snapshot.successor(self.chosen).map(|successor| successor.id) {
                Some(successor) => self.chosen = successor,
                None => self.choose(self.snapshot.busiest().map(|loader| loader.id)),
            }
        }
        let Some(loader) = self.loader() else { return };
        let rate = Some(loader.samples_per_second.max(0.0).round() as u64);
        let wait = loader.wait_share.map(|share| (share * 1000.0).round() as u64);
        for (values, value) in [(&mut self.rates, rate), (&mut self.waits, wait)] {
            if values.len() == KEPT {
                values.pop_front();
            }
            values.push_back(value);
        }
    }

    pub(super) fn loader(&self) -> Option<&LoaderNow> {
        self.snapshot.loaders.iter().find(|loader| loader.id == self.chosen)
    }

    /// Shows the next loader.
    pub(super) fn next(&mut self) {
        let ids: Vec<u64> = self.snapshot.loaders.iter().map(|loader| loader.id).collect();
        let at = ids.iter().position(|id| *id == self.chosen).map_or(0, |at| at + 1);
        if ids.len() > 1 {
            self.choose(ids.get(at).or(ids.first()).copied());
        }
    }

    fn choose(&mut self, id: Option<u64>) {
        if let Some(id) = id {
            self.chosen = id;
            self.rates.clear();
            self.waits.clear();
        }
    }
}

pub(super) fn queue(queue: Queue) -> String {
    format!("{} of {}", queue.ready, queue.most)
}

/// Who makes the batches.
pub(super) fn makers(loader: &LoaderNow) -> String {
    let (one, several) = match loader.executor.as_deref() {
        Some("inline") => return "the program itself".to_owned(),
        Some("threads") => ("thread", "threads"),
        Some("processes") => ("process", "processes"),
        _ => ("worker", "workers"),
    };
    format!("{} {}", loader.workers, if loader.workers == 1 { one } else { several })
}

pub(super) fn used_of(memory: Memory) -> String {
    match memory.limit {
        0 => show_bytes(memory.used),
        limit => format!("{} of {}", show_bytes(memory.used), show_bytes(limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_in_words() {
        assert_eq!(used_of(Memory { used: 5, limit: 0 }), show_bytes(5));
        let mut loader = super::super::screen::tests::snapshot().loaders.remove(0);
        assert_eq!(makers(&loader), "4 workers");
        loader.workers = 1;
        for (executor, expected) in
            [("processes", "1 process"), ("threads", "1 thread"), ("torch", "1 worker")]
        {
            loader.executor = Some(executor.to_owned());
            assert_eq!(makers(&loader), expected);
        }
    }

    #[test]
    fn the_loader_used_most_is_shown_and_its_heir_goes_on() {
        let mut seen = super::super::screen::tests::snapshot();
        seen.loaders[1].samples_per_second = 3000.0;
        let mut view = View::new(seen.clone());
        assert_eq!(view.loader().map(|loader| loader.id), Some(1));
        (seen.loaders[1].id, seen.loaders[1].earlier) = (7, vec![1]);
        view.add(seen);
        assert_eq!(view.loader().map(|loader| loader.id), Some(7));
        assert_eq!(view.rates.len(), 2, "the past is kept");
    }

    #[test]
    fn hours_of_watching_keep_what_fits_the_screen() {
        let mut view = View::new(super::super::screen::tests::snapshot());
        (0..10_000).for_each(|_| view.add(super::super::screen::tests::snapshot()));
        assert_eq!((view.rates.len(), view.waits.len()), (KEPT, KEPT));
        view.add(Snapshot::default());
        assert!(view.loader().is_none());
        view.next();
        view.add(super::super::screen::tests::snapshot());
        assert!(view.loader().is_some());
    }
}
