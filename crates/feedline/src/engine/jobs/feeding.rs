//! A loader as those see it who measure: something that gives batches.

use crate::deliver::Batch;
use crate::engine::loader::Loader;
use crate::engine::monitor::Stats;
use crate::error::Result;
use crate::observe::Span;
use crate::tune::{Evidence, Feed};

/// A loader that is measured. The batch in hand is kept until the next one is asked for, as a
/// training step keeps it.
pub struct LoaderFeed {
    loader: Loader,
    held: Option<Batch>,
    before: Stats,
}

impl LoaderFeed {
    /// Over a loader that made nothing yet. `spans` are kept of each lane for a timeline, if any.
    #[must_use]
    pub fn new(loader: Loader, spans: Option<usize>) -> Self {
        if let Some(most) = spans {
            loader.record_timeline(most);
        }
        let before = loader.stats();
        LoaderFeed { loader, held: None, before }
    }

    /// The same, which begins with this batch of all that there are, epoch after epoch: behind what
    /// others have read, so that it is not read from memory.
    #[must_use]
    pub fn behind(mut self, batches: u64) -> Self {
        let length = self.loader.len().max(1);
        if batches > 0 {
            self.loader.place_at(batches / length, batches % length);
        }
        self
    }

    /// The loader.
    #[must_use]
    pub fn loader(&self) -> &Loader {
        &self.loader
    }
}

impl Feed for LoaderFeed {
    fn begin(&mut self) -> Result<()> {
        self.loader.begin_epoch();
        Ok(())
    }

    fn next(&mut self) -> Result<Option<u64>> {
        self.held = None;
        self.held = self.loader.next_batch().transpose()?;
        Ok(self.held.as_ref().map(|batch| batch.rows() as u64))
    }

    fn evidence(&mut self) -> Evidence {
        self.loader.monitor().evidence_since(&self.before)
    }

    fn timeline(&mut self) -> Vec<Vec<Span>> {
        self.loader.monitor().timeline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::DType;
    use crate::source::{Arrays, Column};

    #[test]
    fn what_others_read_is_passed_over() {
        let places = |behind: u64| {
            let rows = Column::new("x", DType::U8, &[20], vec![0u8; 20]);
            let source = Arrays::new(vec![rows]).unwrap();
            let loader = Loader::over(source).batch_size(4).num_workers(1).build().unwrap();
            let mut feed = LoaderFeed::new(loader, None).behind(behind);
            let mut seen = Vec::new();
            for _ in 0..2 {
                feed.begin().unwrap();
                while feed.next().unwrap().is_some() {
                    seen.extend(feed.held.as_ref().map(|batch| (batch.epoch(), batch.number())));
                }
            }
            seen
        };
        let all = places(0);
        assert_eq!((all.len(), all[0]), (10, (0, 0)));
        assert_eq!(places(3), all[3..]);
        // Behind a whole epoch is the next one.
        assert_eq!(places(7)[..3], [(1, 2), (1, 3), (1, 4)]);
    }
}
