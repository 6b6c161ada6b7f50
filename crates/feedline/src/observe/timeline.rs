//! What each worker and the program did when: the last spans of each, in bounded memory.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// What a lane was busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Activity {
    /// The program waits for its next batch.
    Wait,
    /// The program uses a batch: the training step.
    Step,
    /// A worker gets bytes.
    Read,
    /// A worker turns bytes into pixels.
    Decode,
    /// A worker turns pixels into a row of the batch.
    Transform,
    /// A worker copies fields as they are, or joins samples into a batch.
    Copy,
    /// A worker runs the program's own code.
    Code,
    /// A worker stands in line for memory.
    Memory,
}

/// Something that took a while. Times are nanoseconds since the timeline began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// What it was.
    pub activity: Activity,
    /// When it began.
    pub begin: u64,
    /// When it ended.
    pub end: u64,
    /// The number of the batch within its epoch.
    pub batch: u64,
}

/// The last spans of one worker, or of the program.
#[derive(Debug)]
pub struct Lane {
    spans: Mutex<VecDeque<Span>>,
    most: usize,
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Span>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a span; the oldest gives way when the lane is full.
    pub fn push(&self, span: Span) {
        let mut spans = self.lock();
        if spans.len() == self.most {
            spans.pop_front();
        }
        spans.push_back(span);
    }

    /// What it holds, the oldest first.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        self.lock().iter().copied().collect()
    }
}

/// Lanes: the program's first, then one for each worker.
#[derive(Debug)]
pub struct Timeline {
    began: Instant,
    lanes: Vec<Lane>,
}

impl Timeline {
    /// A timeline for so many workers, of which each lane keeps the last `most` spans (32 bytes
    /// each).
    #[must_use]
    pub fn new(workers: usize, most: usize) -> Self {
        let lane = || Lane { spans: Mutex::new(VecDeque::new()), most: most.max(1) };
        Timeline { began: Instant::now(), lanes: (0..=workers).map(|_| lane()).collect() }
    }

    /// The program's lane.
    #[must_use]
    pub fn program(&self) -> &Lane {
        &self.lanes[0]
    }

    /// A worker's lane, if there is such a worker.
    #[must_use]
    pub fn worker(&self, number: usize) -> Option<&Lane> {
        self.lanes.get(number + 1)
    }

    /// What all lanes hold, the program's first, from the moment on from which none has lost
    /// anything: a worker fills its lane sooner than the program, and would seem to have been idle
    /// before.
    #[must_use]
    pub fn spans(&self) -> Vec<Vec<Span>> {
        let mut lanes: Vec<Vec<Span>> = self.lanes.iter().map(Lane::spans).collect();
        let full = lanes.iter().zip(&self.lanes).filter(|(spans, lane)| spans.len() == lane.most);
        let since = full.filter_map(|(spans, _)| spans.first()).map(|span| span.begin).max();
        if let Some(since) = since {
            lanes.iter_mut().for_each(|spans| spans.retain(|span| span.end > since));
        }
        lanes
    }

    /// A moment as the timeline counts.
    #[must_use]
    pub fn at(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_keeps_the_newest() {
        let timeline = Timeline::new(1, 3);
        for batch in 0..5 {
            let span = Span { activity: Activity::Step, begin: batch, end: batch + 1, batch };
            timeline.program().push(span);
        }
        let kept: Vec<u64> = timeline.program().spans().iter().map(|span| span.batch).collect();
        assert_eq!(kept, [2, 3, 4]);
        assert!(timeline.worker(0).is_some() && timeline.worker(1).is_none());
    }

    #[test]
    fn lanes_begin_where_none_has_lost_anything() {
        let timeline = Timeline::new(2, 4);
        let span = |begin, end| Span { activity: Activity::Step, begin, end, batch: 0 };
        // The program has room for all, a worker only for the last four, the other made little.
        for (begin, end) in [(0, 10), (10, 25), (25, 30)] {
            timeline.program().push(span(begin, end));
        }
        (0..10).for_each(|at| timeline.worker(0).unwrap().push(span(at * 3, at * 3 + 3)));
        timeline.worker(1).unwrap().push(span(2, 3));
        let lanes = timeline.spans();
        let begins = |lane: usize| lanes[lane].iter().map(|span| span.begin).collect::<Vec<_>>();
        assert_eq!(begins(1), [18, 21, 24, 27]);
        assert_eq!(begins(0), [10, 25], "what was going on stays");
        assert_eq!(begins(2), [0u64; 0]);
    }
}
