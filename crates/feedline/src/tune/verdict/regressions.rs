//! Evidence that was judged wrongly once.

use super::tests::{decoding, stage};
use super::*;
use crate::tune::evidence::{Executor, WorkerTime};

fn codes(verdict: &Verdict) -> Vec<&str> {
    verdict.advice.iter().filter_map(|one| one.code.as_deref()).collect()
}

fn has_sign(verdict: &Verdict, sign: &str) -> bool {
    verdict.signs.iter().any(|known| known.starts_with(sign))
}

/// Two cores that are full: a read waits for 60 ms, decoding takes 4 ms of a core.
fn full_cores(workers: u64) -> Evidence {
    let wall = workers as f64 / 490.0;
    let busy = workers as f64 * 10.0;
    Evidence {
        workers,
        cores: 2.0,
        machine_cores: Some(2.0),
        machine_cores_busy: Some(2.0),
        process_cores: Some(1.96),
        samples: 4900,
        wait_seconds: 9.0,
        step_seconds: 1.0,
        stages: vec![stage("read", 0.06, 0.0), stage("decode", wall - 0.06, 0.004)],
        worker_time: WorkerTime { busy, cpu: 19.6, idle: 0.0, memory: 0.0 },
        ceilings: Ceilings { real: Some(490.0), prepared: Some(500.0), ..Ceilings::default() },
        packed: None,
        ..decoding()
    }
}

#[test]
fn workers_that_wait_for_bytes_are_not_too_many() {
    // 32 keep both cores busy: 64 are no disaster, and two would make a fifteenth of it.
    for workers in [40, 64] {
        let verdict = judge(&full_cores(workers));
        assert_eq!((verdict.cause, verdict.resource), (Cause::Decode, Resource::AllCores));
        assert!(!codes(&verdict).iter().any(|code| code.contains("num_workers")), "{verdict:#?}");
        assert!(has_sign(&verdict, "All cores busy"), "{verdict:#?}");
        assert!(!has_sign(&verdict, "Cores idle") && !has_sign(&verdict, "Too many workers"));
    }
    let verdict = judge(&full_cores(160));
    assert_eq!(verdict.cause, Cause::TooManyWorkers, "{verdict:#?}");
    assert_eq!(codes(&verdict)[0], "num_workers=32");
    // What is fast once the bytes are in memory waits for them, however busy the cores are.
    let mut late = full_cores(40);
    late.ceilings.prepared = Some(900.0);
    let verdict = judge(&late);
    assert_eq!(verdict.cause, Cause::ReadLatency);
    assert!(has_sign(&verdict, "All cores busy") && !has_sign(&verdict, "Cores idle"));
    // Cores that others keep busy are idle as far as the loader goes.
    late.worker_time.cpu = 3.0;
    late.process_cores = Some(0.3);
    let verdict = judge(&late);
    assert!(has_sign(&verdict, "Cores idle") && !has_sign(&verdict, "All cores busy"));
}

#[test]
fn copying_in_too_few_threads_wants_more_of_them() {
    let mut arrays = decoding();
    arrays.stages = vec![stage("copy", 0.002, 0.002)];
    (arrays.workers, arrays.encoding) = (1, String::new());
    arrays.worker_time = WorkerTime { busy: 9.9, cpu: 9.8, idle: 0.1, memory: 0.0 };
    let verdict = judge(&arrays);
    assert_eq!(verdict.cause, Cause::TooFewWorkers, "{verdict:#?}");
    assert!(codes(&verdict)[0].starts_with("num_workers="), "{verdict:#?}");
    // Where processes hand over, more of them hand over more.
    arrays.executor = Executor::Processes;
    assert_eq!(judge(&arrays).cause, Cause::HandOver);
}

#[test]
fn cores_of_the_training_step_are_not_to_be_had() {
    let mut step = decoding();
    step.stages.iter_mut().for_each(|stage| stage.cpu_seconds /= 4.0);
    step.worker_time = WorkerTime { busy: 49.0, cpu: 12.0, idle: 1.0, memory: 0.0 };
    (step.machine_cores_busy, step.process_cores) = (Some(8.0), Some(7.7));
    let verdict = judge(&step);
    assert_eq!(verdict.cause, Cause::StarvedCores);
    assert!(!codes(&verdict).iter().any(|code| code.contains("num_workers")), "{verdict:#?}");
}

#[test]
fn several_workers_are_not_one_core() {
    let mut few = decoding();
    few.workers = 4;
    few.worker_time = WorkerTime { busy: 39.0, cpu: 38.5, idle: 1.0, memory: 0.0 };
    let verdict = judge(&few);
    assert_eq!((verdict.cause, verdict.resource), (Cause::TooFewWorkers, Resource::Workers));
    assert!(!has_sign(&verdict, "One core"), "{verdict:#?}");
}

#[test]
fn workers_that_share_the_cores_among_themselves_are_not_starved() {
    let mut shared = decoding();
    (shared.workers, shared.cores, shared.machine_cores) = (4, 2.0, Some(2.0));
    shared.stages.iter_mut().for_each(|stage| stage.cpu_seconds /= 2.0);
    shared.worker_time = WorkerTime { busy: 40.0, cpu: 19.5, idle: 0.0, memory: 0.0 };
    (shared.machine_cores_busy, shared.process_cores) = (Some(2.0), Some(1.95));
    let verdict = judge(&shared);
    assert_eq!((verdict.cause, verdict.resource), (Cause::Decode, Resource::AllCores));
}

#[test]
fn memory_that_holds_nobody_up_is_not_to_blame() {
    let mut enough = decoding();
    (enough.wait_seconds, enough.step_seconds) = (0.03, 1.0);
    enough.worker_time = WorkerTime { busy: 20.0, cpu: 20.0, idle: 0.0, memory: 80.0 };
    enough.ceilings.real = Some(40_000.0);
    assert_eq!(judge(&enough).cause, Cause::Trainer);
    enough.ceilings.real = Some(14_000.0);
    assert_eq!(judge(&enough).cause, Cause::Memory);
}

#[test]
fn more_batches_are_more_than_there_are() {
    let mut uneven = decoding();
    (uneven.batches, uneven.samples) = (10_000, 640_000);
    (uneven.step_seconds, uneven.wait_seconds) = (5.0, 20.0);
    uneven.ceilings.real = Some(700_000.0);
    uneven.ahead = 16 * uneven.workers;
    let verdict = judge(&uneven);
    assert_eq!(verdict.cause, Cause::Uneven);
    assert_eq!(codes(&verdict)[0], "prefetch_factor=32");
}
