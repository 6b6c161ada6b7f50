//! The running engine: its threads, and how they end.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::ahead::Ahead;
use super::flow::{Closing, Cursor, Done, Flow};
use super::monitor::Monitor;
use super::online::Online;
use super::plan::Plan;
use super::sync::{Mutex, lock};
use super::work::{Shared, Worker, panic_text};
use crate::deliver::{Batch, Home};
use crate::error::{Error, Result};
use crate::observe::{Activity, ConsumerCounters, SlowPlaces, Span, Timeline, WorkerCounters};
use crate::store::Cache;
use crate::tune::Tuning;

/// How long the end of an engine may take. A thread that hangs in a read is left behind: it
/// holds nothing that anybody waits for, and ends when the read does.
const PARTING: Duration = Duration::from_millis(800);

impl Home for Flow {
    fn take_back(&self, memory: Arc<crate::buffer::BatchMemory>) {
        self.give_back(memory);
    }
}

/// Threads that make batches, from the first one asked for until this is dropped.
pub(super) struct Engine {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Threads report that they ended.
    ended: Option<(Sender<()>, Receiver<()>)>,
    /// With `num_workers = 0`: the caller's own hands.
    own: Option<Box<Worker>>,
    /// Workers that are wanted, of those that the plan allows, and batches that may be open.
    workers: usize,
    open: usize,
    /// Set if the loader adjusts itself.
    online: Option<Online>,
    process: u32,
    /// The batch that the program got last.
    handed: Option<Handed>,
    /// Time that the program has waited for the next batch in calls that were called off.
    waited: Duration,
}

/// A batch that the program has.
struct Handed {
    /// Since when; none if it asked for more already.
    since: Option<Instant>,
    epoch: u64,
    batch: u64,
    rows: u64,
}

impl Engine {
    pub(super) fn new(plan: Arc<Plan>, cursor: Cursor) -> Self {
        let closing = match &plan.mixing {
            None => Closing::Nothing,
            Some(_) => Closing::Mix { made: plan.rank.world > 1 },
        };
        let (layout, batches) = (plan.layout.clone(), plan.batches.clone());
        let flow = Flow::new(layout, batches, closing, plan.ahead, plan.memory, cursor);
        let caches = match plan.spec.cache {
            None => Vec::new(),
            Some(_) => {
                let sizes = plan.sources.iter().map(|source| source.len());
                Cache::sharing(sizes, plan.cache_limit)
            }
        };
        flow.adjust(plan.workers, plan.ahead);
        let online = Online::of(&plan);
        let tuning = Tuning {
            auto: online.is_some(),
            most_workers: plan.workers as u64,
            ..Tuning::default()
        };
        let (workers, open) = (plan.workers, plan.ahead);
        let counters = (0..plan.workers.max(1)).map(|_| WorkerCounters::default()).collect();
        let shared = Arc::new(Shared {
            plan,
            flow: Arc::new(flow),
            caches,
            counters,
            consumer: ConsumerCounters::default(),
            observed: AtomicBool::new(true),
            timeline: OnceLock::new(),
            ahead: Arc::new(Ahead::new()),
            slow_places: SlowPlaces::default(),
            tuning: Mutex::new(tuning),
        });
        let own = (shared.plan.workers == 0).then(|| Box::new(Worker::new(shared.clone(), 0)));
        Engine {
            shared,
            threads: Vec::new(),
            ended: None,
            own,
            workers,
            open,
            online,
            process: std::process::id(),
            handed: None,
            waited: Duration::ZERO,
        }
    }

    /// True in a child process that was forked off the one that started the engine: its threads
    /// do not exist here, and its locks may be held for ever.
    pub(super) fn is_foreign(&self) -> bool {
        self.process != std::process::id()
    }

    fn start(&mut self) -> Result<()> {
        // Threads that were never wanted do not exist.
        while self.threads.len() < self.workers {
            let number = self.threads.len();
            let worker = Worker::new(self.shared.clone(), number);
            let (ended, _) = self.ended.get_or_insert_with(channel);
            let guard = Ended(ended.clone());
            let flow = self.shared.flow.clone();
            let thread = std::thread::Builder::new()
                .name(format!("feedline-{number}"))
                .spawn(move || {
                    let _guard = guard;
                    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| worker.run())) {
                        flow.break_down(panic_text(&*payload));
                    }
                })
                .map_err(|error| {
                    Error::System(format!(
                        "cannot start worker {number} of {}: {error}; lower num_workers",
                        self.workers
                    ))
                })?;
            self.threads.push(thread);
        }
        Ok(())
    }

    pub(super) fn next(&mut self, interrupted: Option<&mut dyn FnMut() -> bool>) -> Result<Done> {
        self.start()?;
        let began = Instant::now();
        let own = &mut self.own;
        let in_order = self.shared.plan.spec.in_order;
        let mut help = || own.as_mut().is_some_and(|worker| worker.help());
        self.shared.consumer.asks(self.waited);
        let done = self.shared.flow.next(in_order, &mut help, interrupted);
        let ended = Instant::now();
        self.waited += ended - began;
        let done = done.inspect_err(|_| self.shared.consumer.stops_asking(self.waited))?;
        let wait = std::mem::take(&mut self.waited);
        let asked = ended - wait;
        let begins = self.handed.as_ref().is_none_or(|handed| handed.epoch != done.epoch);
        if !begins {
            // Otherwise it was not asked for the end of the epoch before: what happens between two
            // epochs is no training step.
            self.used(asked);
        }
        self.shared.consumer.delivered(done.rows, wait, begins);
        self.span(Activity::Wait, asked, ended, done.batch);
        self.handed = Some(Handed {
            since: Some(Instant::now()),
            epoch: done.epoch,
            batch: done.batch,
            rows: done.rows,
        });
        if self.online.as_ref().is_some_and(|online| online.is_due(ended)) {
            self.tune(ended);
        }
        Ok(done)
    }

    /// An epoch begins, be it the same one again. Whatever the program waited for before, it does not
    /// want any more, and what it did since its last batch was no training step.
    pub(super) fn begin_epoch(&mut self) {
        self.handed = None;
        if !std::mem::take(&mut self.waited).is_zero() {
            self.shared.consumer.stops_asking(Duration::ZERO);
        }
    }

    /// The program asks for more, and so is done with the batch that it has.
    pub(super) fn used(&mut self, asked: Instant) {
        let Some(handed) = &mut self.handed else { return };
        let Some(since) = handed.since.take() else { return };
        let (batch, rows) = (handed.batch, handed.rows);
        self.shared.consumer.stepped(rows, asked.saturating_duration_since(since));
        self.span(Activity::Step, since, asked, batch);
    }

    fn span(&self, activity: Activity, from: Instant, to: Instant, batch: u64) {
        if let Some(timeline) = self.shared.timeline.get() {
            let (begin, end) = (timeline.at(from), timeline.at(to));
            timeline.program().push(Span { activity, begin, end, batch });
        }
    }

    /// Changes the number of workers, within what the plan allows, and of batches that may be open.
    /// What a batch holds does not change.
    pub(super) fn adjust(&mut self, workers: usize, open: usize) {
        self.workers = workers.clamp(1, self.shared.plan.workers.max(1));
        if self.shared.plan.workers == 0 {
            self.workers = 0;
        }
        self.open = open.max(1);
        self.shared.flow.adjust(self.workers, self.open);
    }

    /// The program chose itself: nothing is adjusted any more.
    pub(super) fn stop_tuning(&mut self) {
        self.online = None;
        lock(&self.shared.tuning).auto = false;
    }

    fn tune(&mut self, now: Instant) {
        let Some(online) = &mut self.online else { return };
        let Some(decision) = online.look(now, &self.shared) else { return };
        let (workers, open) = online.wanted();
        lock(&self.shared.tuning).note(decision);
        if (workers, open) != (self.workers, self.open) {
            self.adjust(workers, open);
        }
    }

    /// Keeps the last `most` spans of the program and of each worker from now on.
    pub(super) fn record(&self, most: usize) {
        self.shared.timeline.get_or_init(|| Timeline::new(self.shared.counters.len(), most));
    }

    /// Whether workers time what they do.
    pub(super) fn observe(&self, on: bool) {
        self.shared.observed.store(on, Ordering::Relaxed);
    }

    /// So many distinct samples have failed by now.
    pub(super) fn note_failed(&self, samples: u64) {
        self.shared.consumer.failed(samples);
    }

    /// A view of this engine for other threads.
    pub(super) fn monitor(&self) -> Monitor {
        Monitor::over(self.shared.clone(), self.process)
    }

    /// Where batches' memory goes.
    pub(super) fn home(&self) -> Arc<dyn Home> {
        self.shared.flow.clone()
    }

    /// Whether the next batch is done, or can be made with the caller's own hands.
    pub(super) fn is_ready(&self) -> bool {
        match self.own {
            Some(_) => self.shared.flow.has_room(),
            None => self.shared.flow.is_ready(self.shared.plan.spec.in_order),
        }
    }

    /// Whether there is memory for one more batch.
    pub(super) fn has_spare(&self) -> bool {
        self.shared.flow.has_spare()
    }

    pub(super) fn batch(&self, done: &Done, home: Arc<dyn Home>) -> Batch {
        let plan = &self.shared.plan;
        let place = (done.epoch, done.batch);
        let padding = plan.batches.padding(done.batch) as usize;
        // SAFETY: the flow hands a batch over once all its rows are done and their writers gone.
        unsafe {
            Batch::new(
                plan.layout.clone(),
                done.memory.clone(),
                home,
                done.rows as usize,
                place,
                padding,
            )
        }
    }

    /// Gives up a batch that will not be handed over.
    pub(super) fn discard(&self, done: Done) {
        self.shared.flow.give_back(done.memory);
    }

    pub(super) fn seek(&self, cursor: Cursor) {
        self.shared.flow.seek(cursor);
    }

    pub(super) fn is_at(&self, epoch: u64, batch: u64) -> bool {
        self.shared.flow.is_at(epoch, batch)
    }
}

/// Reports that a thread ended, however it did.
struct Ended(Sender<()>);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_foreign() {
            // Neither the locks nor the threads are ours to touch.
            std::mem::forget(std::mem::take(&mut self.threads));
            std::mem::forget(self.own.take());
            std::mem::forget(self.shared.clone());
            return;
        }
        self.shared.flow.stop();
        if let Some(mut own) = self.own.take() {
            own.give_scratch_back();
        }
        let deadline = Instant::now() + PARTING;
        self.shared.ahead.stop(deadline);
        let mut left = self.threads.len();
        if let Some((_, ended)) = &self.ended {
            while left > 0
                && ended.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok()
            {
                left -= 1;
            }
        }
        if left == 0 {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}
