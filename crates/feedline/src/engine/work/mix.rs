//! Mixes the rows of a whole batch.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Worker;
use crate::engine::flow::Slice;
use crate::engine::plan::Plan;
use crate::observe::{Activity, Span, Times, WorkPart, thread_cpu};

impl Worker {
    /// Mixes a whole batch, which is a part of transforming it. Of its samples, one in `every` is
    /// timed.
    pub(super) fn mix(&self, whole: &mut Slice, every: u64) {
        let (shared, began) = (&*self.shared, Instant::now());
        let cpu = shared.observed.load(Ordering::Relaxed).then(thread_cpu);
        mix(&shared.plan, whole);
        let Some(before) = cpu else { return };
        let (ended, counters) = (Instant::now(), &shared.counters[self.number]);
        let times = Times { wall: ended - began, cpu: thread_cpu().saturating_sub(before) };
        counters.finished(0, times);
        counters.part(WorkPart::Transform, times.wall / every as u32);
        if let Some(timeline) = shared.timeline.get() {
            let (begin, end) = (timeline.at(began), timeline.at(ended));
            let span = Span { activity: Activity::Transform, begin, end, batch: whole.batch };
            timeline.worker(self.number).into_iter().for_each(|lane| lane.push(span));
        }
    }
}

/// Mixes all rows of a batch, each with the one before it.
fn mix(plan: &Plan, whole: &mut Slice) {
    let (Some(mixing), Some(image)) = (&plan.mixing, &plan.image) else { return };
    let mixed = mixing.mix.draw(plan.spec.seed, whole.epoch, whole.batch, &image.output);
    let rows = plan.batches.rows(whole.batch) as usize;
    for field in [image.field, mixing.label] {
        let (bytes, size) = whole.writer.rows_of(field);
        if plan.rank.world == 1 {
            // The last row is about to change, and the first one needs it as it was.
            bytes.copy_within((rows - 1) * size..rows * size, rows * size);
        }
        // From the last row down, so that the one before is still as it was made.
        for row in (0..rows).rev() {
            let (own, other) = match row.checked_sub(1) {
                Some(before) => {
                    let (low, high) = bytes.split_at_mut(row * size);
                    (&mut high[..size], &low[before * size..])
                }
                None => {
                    let (low, high) = bytes.split_at_mut(rows * size);
                    (&mut low[..size], &high[..size])
                }
            };
            if field == image.field {
                mixed.images(&image.output, own, other);
            } else {
                mixed.labels(own, other);
            }
        }
    }
}
