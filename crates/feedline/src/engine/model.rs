//! Explores the schedules of `flow/`: a few workers, a consumer, little memory.
//!
//! shuttle runs each scenario under thousands of random and adversarial schedules. A deadlock, a
//! row that is lost or written twice, a batch out of order or a byte over the limit fails.
//!
//! `flow/` and `sync.rs` are compiled here once more, with shuttle's locks in the place of std's.

#![allow(unsafe_code)]

use std::sync::Arc;

use shuttle::{sync as primitives, thread};

use super::ahead;
use crate::buffer::BatchMemory;
use crate::layout::BatchLayout;
use crate::order::Batches;
use crate::sample::DType;
use crate::spec::LastBatch;

#[path = "flow/mod.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, clippy::duplicate_mod)]
mod flow;
#[path = "sync.rs"]
#[allow(dead_code, clippy::duplicate_mod)]
mod sync;

use flow::{Closing, Cursor, Flow, Grant, Next, Outcome, Slice};

const ROWS: u64 = 2;
const BATCHES: u64 = 3;

/// What mixing adds to a row.
const MIXED: u64 = 1 << 40;

#[derive(Clone)]
struct Scenario {
    ahead: usize,
    /// In batches: how much memory there is.
    memory: f64,
    /// In bytes: what the first and the second row of a batch need to be made.
    scratch: [u64; 2],
    /// In bytes: what a row writes behind the rows of its batch.
    tail: usize,
    workers: usize,
    in_order: bool,
    closing: Closing,
    /// After each batch another number of workers and of open batches is wanted.
    adjusted: bool,
}

impl Default for Scenario {
    fn default() -> Self {
        let closing = Closing::Nothing;
        Scenario {
            ahead: 2,
            memory: 10.0,
            scratch: [0; 2],
            tail: 0,
            workers: 2,
            in_order: true,
            closing,
            adjusted: false,
        }
    }
}

fn flow(scenario: &Scenario) -> (Arc<Flow>, u64) {
    let mut layout = BatchLayout::new(ROWS as usize + 1);
    layout.push("x", DType::U64, &[]).unwrap();
    let limit = (layout.bytes() as f64 * scenario.memory) as u64;
    let batches = Batches::new(ROWS * BATCHES, ROWS, 0, 1, LastBatch::Short).unwrap();
    let (layout, start) = (Arc::new(layout), Cursor::at(0, 0));
    (Arc::new(Flow::new(layout, batches, scenario.closing, scenario.ahead, limit, start)), limit)
}

fn code(epoch: u64, batch: u64, row: u64) -> u64 {
    1 + epoch * 1_000_000 + batch * 1000 + row
}

/// Room behind the rows; false if the slice is not wanted any more.
fn behind(flow: &Flow, slice: &mut Slice, row: u64, bytes: usize, granted: &mut u64) -> bool {
    while slice.room_left() < bytes {
        match flow.tail(slice, bytes, granted) {
            Ok(()) => {}
            Err(None) => return false,
            Err(Some(need)) => {
                flow.shrink(std::mem::take(granted));
                match flow.wait_for_scratch(slice, row, need) {
                    Grant::Granted => *granted = need,
                    Grant::Cancelled => return false,
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    if bytes > 0 {
        slice.room(bytes).unwrap().fill(row as u8 + 1);
        slice.keep(bytes);
    }
    true
}

fn make(flow: &Flow, mut slice: Slice, scenario: &Scenario, granted: &mut u64, limit: u64) {
    let needs = scenario.scratch;
    for row in slice.writer.rows() {
        let need = needs[row % 2];
        match flow.grow(*granted, need) {
            Grant::Granted => *granted = need.max(*granted),
            Grant::Wait => {
                flow.shrink(std::mem::take(granted));
                match flow.wait_for_scratch(&slice, row as u64, need) {
                    Grant::Granted => *granted = need,
                    Grant::Cancelled => break,
                    other => panic!("{other:?}"),
                }
            }
            Grant::Cancelled => break,
            other => panic!("{other:?}"),
        }
        assert!(flow.figures().used <= limit, "{:?}", flow.figures());
        if !behind(flow, &mut slice, row as u64, scenario.tail, granted) {
            break;
        }
        thread::yield_now();
        let value = code(slice.epoch, slice.batch, row as u64).to_ne_bytes();
        slice.writer.row(0, row).copy_from_slice(&value);
    }
    if let Some(mut whole) = flow.finish(slice, Outcome::default()) {
        thread::yield_now();
        let (rows, size) = whole.writer.rows_of(0);
        for (row, bytes) in rows.chunks_exact_mut(size).enumerate().take(ROWS as usize) {
            let made = code(whole.epoch, whole.batch, row as u64);
            assert_eq!(bytes, made.to_ne_bytes(), "every row is made before they are mixed");
            bytes.copy_from_slice(&(made + MIXED).to_ne_bytes());
        }
        thread::yield_now();
        assert!(flow.finish(whole, Outcome::default()).is_none(), "a batch is closed once");
    }
}

fn work(flow: &Flow, number: usize, scenario: &Scenario, limit: u64) {
    let mut granted = 0;
    loop {
        match flow.take(number, granted, 1, true) {
            Next::Work(slice) => make(flow, slice, scenario, &mut granted, limit),
            Next::Shrink => flow.shrink(std::mem::take(&mut granted)),
            Next::Idle => {}
            Next::Rest => {
                flow.shrink(std::mem::take(&mut granted));
                flow.rest(number);
            }
            Next::Stop => return flow.shrink(granted),
        }
    }
}

fn check(memory: &BatchMemory, epoch: u64, batch: u64) {
    check_mixed(memory, epoch, batch, 0);
}

fn check_mixed(memory: &BatchMemory, epoch: u64, batch: u64, more: u64) {
    for row in 0..ROWS {
        // SAFETY: the batch was handed over, so no writer is left.
        let bytes = unsafe { memory.range(row as usize * 8, 8) };
        assert_eq!(u64::from_ne_bytes(bytes.try_into().unwrap()), code(epoch, batch, row) + more);
    }
}

fn run(scenario: &Scenario, consume: impl FnOnce(&Flow)) {
    let (flow, limit) = flow(scenario);
    let workers: Vec<_> = (0..scenario.workers)
        .map(|number| {
            let flow = flow.clone();
            let scenario = scenario.clone();
            thread::spawn(move || work(&flow, number, &scenario, limit))
        })
        .collect();
    consume(&flow);
    flow.stop();
    for worker in workers {
        worker.join().unwrap();
    }
    let figures = flow.figures();
    assert_eq!(
        (figures.used, figures.scratch, figures.held),
        (0, 0, 0),
        "everything was given back"
    );
}

/// Two epochs in order, keeping each batch until the next one came.
fn consume_all(flow: &Flow, scenario: &Scenario) {
    let in_order = scenario.in_order;
    let more = if scenario.closing == Closing::Nothing { 0 } else { MIXED };
    let mut kept: Option<(Arc<BatchMemory>, u64, u64)> = None;
    let mut seen = Vec::new();
    for number in 0..2 * BATCHES {
        let done = flow.next(in_order, &mut || false, None).unwrap();
        check_mixed(&done.memory, done.epoch, done.batch, more);
        assert_eq!(done.rows, ROWS);
        assert_eq!(done.epoch, number / BATCHES);
        if in_order {
            assert_eq!(done.batch, number % BATCHES);
        }
        if scenario.adjusted {
            let number = number as usize;
            flow.adjust(1 + (number * 2 + 1) % scenario.workers, 1 + number % 3);
        }
        seen.push((done.epoch, done.batch));
        if let Some((memory, epoch, batch)) = kept.take() {
            // Nobody wrote into it while it was kept.
            check_mixed(&memory, epoch, batch, more);
            flow.give_back(memory);
        }
        kept = Some((done.memory, done.epoch, done.batch));
    }
    flow.give_back(kept.unwrap().0);
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len() as u64, 2 * BATCHES);
}

/// Half of the schedules at random, half by the PCT algorithm, which finds rare orders sooner.
fn explore(f: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(f.clone(), 3_000);
    shuttle::check_pct(f, 3_000, 5);
}

#[test]
fn batches_come_whole_and_in_order() {
    explore(|| {
        let scenario = Scenario::default();
        run(&scenario, |flow| consume_all(flow, &scenario));
    });
}

#[test]
fn out_of_order_loses_nothing() {
    explore(|| {
        let scenario = Scenario { ahead: 3, in_order: false, ..Scenario::default() };
        run(&scenario, |flow| consume_all(flow, &scenario));
    });
}

#[test]
fn little_memory_slows_but_never_stops() {
    // A batch is 64 bytes. The program keeps one, one is in the making, and what is left is one
    // row's need but not two, or has to be taken from a newer batch.
    for (memory, scratch, workers) in [
        (2.5, [30, 30], 2),
        (3.0, [60, 60], 2),
        (4.0, [100, 100], 3),
        (4.0, [120, 120], 2),
        // Rows of a newer batch wait in line while it is thrown away for an older one.
        (4.0, [100, 30], 3),
        (4.0, [30, 100], 4),
    ] {
        explore(move || {
            let scenario = Scenario { ahead: 3, memory, scratch, workers, ..Scenario::default() };
            run(&scenario, |flow| consume_all(flow, &scenario));
        });
    }
}

#[test]
fn rows_of_no_fixed_length_share_the_memory() {
    // A batch's two rows take 64 and 256 KB behind it, or one piece if one worker makes both; the
    // program keeps a batch, so there is room for two and a half at most.
    for (kilobytes, scratch, workers) in [(700, [0; 2], 2), (800, [60; 2], 3), (2000, [0; 2], 2)] {
        explore(move || {
            let memory = f64::from(kilobytes) * 1024.0 / 64.0;
            let tail = 60_000;
            let scenario =
                Scenario { ahead: 3, memory, scratch, tail, workers, ..Scenario::default() };
            run(&scenario, |flow| consume_all(flow, &scenario));
        });
    }
}

#[test]
fn a_batch_is_mixed_once_when_all_its_rows_are_made() {
    for (made, memory, scratch, in_order) in [
        (false, 10.0, [0; 2], true),
        (true, 10.0, [0; 2], true),
        (true, 10.0, [0; 2], false),
        // Batches are thrown away also while they are mixed.
        (true, 4.0, [100, 30], true),
        (false, 2.5, [30, 30], true),
    ] {
        explore(move || {
            let closing = Closing::Mix { made };
            let scenario =
                Scenario { ahead: 3, memory, scratch, in_order, closing, ..Scenario::default() };
            run(&scenario, |flow| consume_all(flow, &scenario));
        });
    }
}

#[test]
fn seeking_and_stopping_may_meet_a_batch_that_is_mixed() {
    explore(|| {
        let closing = Closing::Mix { made: true };
        let scenario = Scenario { memory: 3.5, closing, ..Scenario::default() };
        run(&scenario, |flow| {
            let first = flow.next(true, &mut || false, None).unwrap();
            flow.seek(Cursor::at(7, 0));
            let done = flow.next(true, &mut || false, None).unwrap();
            check_mixed(&done.memory, 7, 0, MIXED);
            check_mixed(&first.memory, 0, 0, MIXED);
            flow.give_back(done.memory);
            flow.give_back(first.memory);
        });
    });
}

#[test]
fn seeking_drops_what_was_in_the_making() {
    explore(|| {
        let scenario = Scenario { memory: 3.5, scratch: [60; 2], ..Scenario::default() };
        run(&scenario, |flow| {
            let first = flow.next(true, &mut || false, None).unwrap();
            flow.seek(Cursor { epoch: 7, batch: 0, skip: (7, vec![1]) });
            for batch in [0, 2] {
                let done = flow.next(true, &mut || false, None).unwrap();
                assert_eq!((done.epoch, done.batch), (7, batch));
                check(&done.memory, 7, batch);
                flow.give_back(done.memory);
            }
            check(&first.memory, 0, 0);
            flow.give_back(first.memory);
        });
    });
}

#[test]
fn stopping_ends_everybody_at_any_time() {
    explore(|| {
        let scenario = Scenario { memory: 2.5, scratch: [30; 2], ..Scenario::default() };
        run(&scenario, |_| thread::yield_now());
    });
}

#[test]
fn workers_and_open_batches_may_change_at_any_time() {
    for (memory, scratch, workers) in [(10.0, [0; 2], 3), (3.0, [60, 60], 2), (4.0, [100, 30], 3)] {
        explore(move || {
            let adjusted = true;
            let scenario = Scenario { memory, scratch, workers, adjusted, ..Scenario::default() };
            run(&scenario, |flow| consume_all(flow, &scenario));
        });
    }
}
