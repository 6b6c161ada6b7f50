//! The running engine: its threads, and how they end.
#![allow(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::ahead::Ahead;
use super::flow::{Closing, Cursor, Done, Figures, Flow};
use super::plan::Plan;
use super::work::{Shared, Worker, panic_text};
use crate::deliver::{Batch, Home};
use crate::error::{Error, Result};
use crate::observe::{self, ConsumerCounters, WorkerCounters};
use crate::store::Cache;

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
    consumer: ConsumerCounters,
    threads: Vec<JoinHandle<()>>,
    ended: Option<Receiver<()>>,
    /// With `num_workers = 0`: the caller's own hands.
    own: Option<Box<Worker>>,
    process: u32,
    first_batch: Option<Duration>,
    /// Time that the program has waited for the next batch in calls that were called off.
    waited: Duration,
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
        let counters = (0..plan.workers.max(1)).map(|_| WorkerCounters::default()).collect();
        let shared = Arc::new(Shared {
            plan,
            flow: Arc::new(flow),
            caches,
            counters,
            ahead: Arc::new(Ahead::new()),
        });
        let own = (shared.plan.workers == 0).then(|| Box::new(Worker::new(shared.clone(), 0)));
        Engine {
            shared,
            consumer: ConsumerCounters::default(),
            threads: Vec::new(),
            ended: None,
            own,
            process: std::process::id(),
            first_batch: None,
            waited: Duration::ZERO,
        }
    }

    /// True in a child process that was forked off the one that started the engine: its threads
    /// do not exist here, and its locks may be held for ever.
    pub(super) fn is_foreign(&self) -> bool {
        self.process != std::process::id()
    }

    fn start(&mut self) -> Result<()> {
        if !self.threads.is_empty() || self.own.is_some() {
            return Ok(());
        }
        let (ended, receiver) = channel();
        self.ended = Some(receiver);
        for number in 0..self.shared.plan.workers {
            let worker = Worker::new(self.shared.clone(), number);
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
                        self.shared.plan.workers
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
        let done = self.shared.flow.next(in_order, &mut help, interrupted);
        self.waited += began.elapsed();
        let done = done?;
        let wait = std::mem::take(&mut self.waited);
        self.first_batch.get_or_insert(wait);
        self.consumer.delivered(done.rows, wait);
        Ok(done)
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

    /// Files that the store was told of before they were read.
    pub(super) fn read_ahead(&self) -> u64 {
        self.shared.ahead.hints()
    }

    pub(super) fn figures(&self) -> (observe::Figures, Figures, Option<Duration>, u64) {
        let cached = self.shared.caches.first().map_or(0, Cache::used);
        (
            observe::figures(&self.consumer, &self.shared.counters),
            self.shared.flow.figures(),
            self.first_batch,
            cached,
        )
    }
}

/// Tells that a thread ended, however it did.
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
        if let Some(ended) = &self.ended {
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
