//! What happens in a running loader, for whoever wants to know: the program, a dashboard, the
//! advisers in `tune`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::evidence::evidence;
use super::flow::FlowStats;
use super::sync::lock;
use super::work::Shared;
use crate::observe::{self, PlaceStats, Span};
use crate::store::Cache;
use crate::tune::{Evidence, Tuning};

/// A view of a running loader. It may be used from any thread; reading never holds the loader up.
#[derive(Clone)]
pub struct Monitor {
    shared: Arc<Shared>,
    process: u32,
}

/// What happened so far in a loader.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Counters and times.
    pub work: observe::WorkStats,
    /// The queue and the memory.
    pub flow: FlowStats,
    /// Bytes in the cache.
    pub cached_bytes: u64,
    /// Files that the store was notified of before they were read, as reads were slow.
    pub read_ahead: u64,
    /// Places with slow reads, those with the most time first.
    pub slow_places: Vec<PlaceStats>,
    /// How it is set, and what was changed while it runs.
    pub tuning: Tuning,
}

impl Monitor {
    pub(super) fn over(shared: Arc<Shared>, process: u32) -> Self {
        Monitor { shared, process }
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        if self.process != std::process::id() {
            // Its locks may be held for ever by threads that do not exist here.
            return Stats::default();
        }
        let shared = &*self.shared;
        let flow = shared.flow.figures();
        let mut tuning = lock(&shared.tuning).clone();
        tuning.num_workers = flow.workers.min(shared.plan.workers as u64);
        tuning.prefetch = flow.ahead;
        Stats {
            work: observe::figures(&shared.consumer, &shared.counters),
            flow,
            tuning,
            cached_bytes: shared.caches.first().map_or(0, Cache::used),
            read_ahead: shared.ahead.hints(),
            slow_places: shared.slow_places.figures(),
        }
    }

    /// Samples of a batch on this rank.
    #[must_use]
    pub fn batch_size(&self) -> u64 {
        self.shared.plan.spec.batch_size
    }

    /// Threads that make batches now; 0 if the program's own does.
    #[must_use]
    pub fn workers(&self) -> u64 {
        let most = self.shared.plan.workers as u64;
        if self.process == std::process::id() {
            self.shared.flow.figures().workers.min(most)
        } else {
            most
        }
    }

    /// What happened since `before`, as those want it who judge.
    #[must_use]
    #[doc(hidden)]
    pub fn evidence_since(&self, before: &Stats) -> Evidence {
        evidence(&self.shared, before, &self.stats())
    }

    /// The timeline: the program's lane first, then one for each worker, all from the same moment on.
    /// Empty unless it is kept.
    #[must_use]
    pub fn timeline(&self) -> Vec<Vec<Span>> {
        // The locks of another process's lanes may be held for ever.
        let own = self.process == std::process::id();
        let timeline = self.shared.timeline.get().filter(|_| own);
        timeline.map_or_else(Vec::new, observe::Timeline::spans)
    }
}

impl Stats {
    /// The same as data: what `Loader.stats()` is in Python, and what a dashboard gets.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let (work, flow) = (&self.work, &self.flow);
        let parts: Map<String, Value> =
            work.parts.iter().map(|part| (part.name.to_owned(), part.seconds.into())).collect();
        json!({
            "batches": work.batches,
            "samples": work.samples,
            "failed_samples": work.failed,
            "first_batch_seconds": work.first_batch_seconds,
            "wait_seconds": work.wait_seconds,
            "waiting_seconds": work.waiting_seconds,
            "longest_wait_seconds": work.longest_wait_seconds,
            "wait_p50_seconds": work.waits.p50,
            "wait_p99_seconds": work.waits.p99,
            "step_seconds": work.step_seconds,
            "seconds_per_sample": parts,
            "read_bytes": work.bytes_read,
            "read_ahead": self.read_ahead,
            "workers": {
                "samples_made": work.samples_made,
                "busy_seconds": work.busy_seconds,
                "cpu_seconds": work.cpu_seconds,
                "idle_seconds": work.idle_seconds,
                "memory_wait_seconds": work.memory_wait_seconds,
            },
            "queue": {"ready": flow.ready, "open": flow.open, "most": flow.ahead},
            "memory": {
                "limit": flow.limit,
                "used": flow.used,
                "scratch": flow.scratch,
                "held_by_program": flow.held,
                "rows_waiting": flow.waiting_for_memory,
                "batches_remade": flow.remade,
            },
            "tuning": self.tuning,
            "cache": {"hits": work.cache_hits, "bytes": self.cached_bytes},
        })
    }
}
