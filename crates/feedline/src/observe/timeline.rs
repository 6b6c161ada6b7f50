//! What each worker and the program did when: the last spans of each, in bounded memory.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// What a lane was busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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

    /// All lanes, the program's first.
    #[must_use]
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
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
}
