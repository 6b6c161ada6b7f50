//! Reads on their own: one at a time, then several at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::engine::plan::Plan;
use crate::sample::{Grown, Value};
use crate::tune::{ReadProbe, Spread};

/// Readers at once.
const READERS: u64 = 4;

/// Reads of each kind that are enough, and that are needed.
const ENOUGH: usize = 64;
const NEEDED: usize = 4;

/// Reads samples of epoch 0 from position `after` on, alone and together, each of them once:
/// `None` if too few could be read in time. It takes about `seconds`, and more where a few reads do.
/// Also the position behind what it has read.
pub(super) fn reads(plan: &Plan, after: u64, seconds: f64) -> (Option<ReadProbe>, u64) {
    let next = AtomicU64::new(after);
    let alone = read(plan, 1, &next, seconds / 2.0);
    let together = read(plan, READERS, &next, seconds / 2.0);
    let found = (alone.len() >= NEEDED && together.len() >= NEEDED).then(|| ReadProbe {
        // The mean: a store that lets some wait for others does not show in half of them.
        alone: Spread::of(&alone).mean,
        together: Spread::of(&together).mean,
        readers: READERS,
    });
    (found, next.into_inner())
}

/// How long each read took while `readers` read.
fn read(plan: &Plan, readers: u64, next: &AtomicU64, seconds: f64) -> Vec<f64> {
    let (began, limit) = (Instant::now(), Duration::from_secs_f64(seconds));
    let field = plan.read_field.unwrap_or(0);
    let order = plan.order.epoch(0);
    let samples = plan.order.samples().max(1);
    let times = Mutex::new(Vec::new());
    let enough = ENOUGH * readers as usize;
    let reader = || {
        let mut room = Grown::at_most(plan.memory);
        loop {
            let so_far = times.lock().unwrap_or_else(PoisonError::into_inner).len();
            let late = began.elapsed() >= limit && so_far >= NEEDED || began.elapsed() >= limit * 8;
            if so_far >= enough || late {
                return;
            }
            let pick = order.pick(next.fetch_add(1, Relaxed) % samples);
            let source = &plan.sources[pick.source];
            let asked = Instant::now();
            let mut work = || {
                source.value(pick.index, field).and_then(|value| match value {
                    Value::File(location) | Value::Pixels { location, .. } => {
                        plan.store.read(&location, &mut room)
                    }
                    Value::Made => source.read(pick.index, field, &mut room),
                    _ => Ok(()),
                })
            };
            // Bad samples are others' business, and so are panics that they lead to; they must not
            // keep this going for ever.
            let read = catch_unwind(AssertUnwindSafe(&mut work));
            let took = asked.elapsed().as_secs_f64();
            match read {
                Ok(Ok(())) => times.lock().unwrap_or_else(PoisonError::into_inner).push(took),
                _ if began.elapsed() >= limit => return,
                _ => {}
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..readers {
            // With fewer readers it takes longer.
            let _ = std::thread::Builder::new().spawn_scoped(scope, reader);
        }
        reader();
    });
    times.into_inner().unwrap_or_else(PoisonError::into_inner)
}
