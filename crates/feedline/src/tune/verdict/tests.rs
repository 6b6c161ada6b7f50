//! Made-up evidence, and what is said of it.

use super::*;
use crate::tune::evidence::{Ceilings, Executor, ReadProbe, SlowPlace, StageCost, WorkerTime};

pub(super) fn stage(name: &str, seconds: f64, cpu_seconds: f64) -> StageCost {
    StageCost { name: name.to_owned(), seconds, cpu_seconds }
}

/// 100 batches of 64 JPEGs on 8 cores that all work; the trainer waits 31 % of 10 seconds.
pub(super) fn decoding() -> Evidence {
    Evidence {
        executor: Executor::Native,
        batch_size: 64.0,
        workers: 5,
        cores: 8.0,
        machine_cores: Some(8.0),
        machine_cores_busy: Some(5.2),
        batches: 227,
        samples: 14_500,
        wait_seconds: 3.1,
        step_seconds: 6.9,
        stages: vec![
            stage("read", 0.0002, 0.0002),
            stage("decode", 0.0024, 0.0024),
            stage("transform", 0.0007, 0.0007),
            stage("copy", 0.00008, 0.00008),
        ],
        worker_time: WorkerTime { busy: 49.0, cpu: 48.5, idle: 1.0, memory: 0.0 },
        memory_limit: 4_000_000_000,
        encoding: "JPEG".to_owned(),
        source: "photos".to_owned(),
        loose: true,
        crops: true,
        process_cores: Some(5.0),
        packed: Some(2900.0),
        ..Evidence::default()
    }
}

#[test]
fn the_sentence_has_figures_the_cause_and_what_would_help() {
    let verdict = judge(&decoding());
    assert_eq!(
        verdict.sentence,
        "The trainer waited 31 % of the time. Cause: JPEG decoding, 71 % of CPU. Packing with a crop index would raise 1,450 to about 2,900 images/s (the trainer can use 2,100); 3 more workers would give about 2,320."
    );
    assert_eq!((verdict.cause, verdict.resource), (Cause::Decode, Resource::Workers));
    assert_eq!(verdict.limit, "decode");
    let command = verdict.advice[0].command.as_deref();
    assert_eq!(command, Some("feedline pack photos photos-packed --crop-index"));
    assert_eq!(verdict.advice[1].code.as_deref(), Some("num_workers=8"));
    let sum = verdict.stall.reading + verdict.stall.preparing + verdict.stall.copying;
    assert!(
        (sum - verdict.wait_share).abs() < 1e-9 && (sum + verdict.stall.none - 1.0).abs() < 1e-9
    );
    assert!(verdict.stall.preparing > 10.0 * verdict.stall.reading, "{:?}", verdict.stall);
}

#[test]
fn no_advice_promises_more_than_can_be_handed_over() {
    let ceilings = Ceilings { replayed: Some(1900.0), real: Some(1450.0), ..Ceilings::default() };
    let evidence = Evidence { ceilings, packed: Some(22_280.0), ..decoding() };
    let verdict = judge(&evidence);
    let promised: Vec<f64> = verdict.advice.iter().filter_map(|one| one.predicted).collect();
    assert!(promised.len() >= 2 && promised.iter().all(|rate| *rate <= 1900.0), "{verdict:#?}");
    assert!(verdict.sentence.contains("would raise 1,450 to about 1,900"), "{verdict:#?}");
    // What is handed over now can be handed over.
    let ceilings = Ceilings { replayed: Some(700.0), ..ceilings };
    let verdict = judge(&Evidence { ceilings, ..evidence });
    assert!(verdict.advice.iter().all(|one| one.predicted.is_none_or(|rate| rate > 1449.0)));
}

/// One change of the evidence for each cause, and a word that the verdict must have.
#[test]
fn every_cause_is_found() {
    type Change = fn(&mut Evidence);
    let slow_reads: Change = |e| {
        e.stages[0] = stage("read", 0.05, 0.0002);
        e.worker_time.cpu = 3.0;
        e.read_bytes_per_sample = 100_000.0;
        e.read_p50_seconds = 0.05;
    };
    let cases: &[(&str, Change, Cause, Resource, &str)] = &[
        ("nothing", |e| *e = Evidence::default(), Cause::Unknown, Resource::None, "Nothing was"),
        (
            "trainer",
            |e| e.wait_seconds = 0.03,
            Cause::Trainer,
            Resource::None,
            "Nothing to gain here",
        ),
        (
            "decode",
            |e| (e.workers, e.worker_time.cpu) = (8, 78.0),
            Cause::Decode,
            Resource::AllCores,
            "JPEG decoding",
        ),
        ("decode, few", |_| (), Cause::Decode, Resource::Workers, "JPEG decoding"),
        (
            "transform",
            |e| e.stages[2] = stage("transform", 0.02, 0.02),
            Cause::Transform,
            Resource::Workers,
            "transforms, 88 % of CPU",
        ),
        (
            "code",
            |e| e.stages = vec![stage("__getitem__", 0.02, 0.019), stage("collate", 0.001, 0.001)],
            Cause::Code,
            Resource::Workers,
            "your code (__getitem__)",
        ),
        ("latency", slow_reads, Cause::ReadLatency, Resource::RequestLatency, "50 ms each"),
        (
            "latency, in blocks",
            |e| {
                e.stages[0] = stage("read", 0.05, 0.0002);
                e.read_bytes_per_sample = 100_000.0;
                e.read_p50_seconds = 4e-6;
            },
            Cause::ReadLatency,
            Resource::RequestLatency,
            "50 ms each",
        ),
        (
            "latency, probed",
            |e| {
                e.stages[0] = stage("read", 0.05, 0.0002);
                e.read_bytes_per_sample = 3e6;
                e.read_probe = Some(ReadProbe { alone: 0.04, together: 0.045, readers: 4 });
            },
            Cause::ReadLatency,
            Resource::RequestLatency,
            "40 ms each",
        ),
        (
            "code that sleeps",
            |e| {
                e.executor = Executor::Processes;
                e.stages = vec![stage("__getitem__", 0.02, 0.0001)];
            },
            Cause::ReadLatency,
            Resource::RequestLatency,
            "your code (__getitem__) waits",
        ),
        (
            "bandwidth",
            |e| {
                e.stages[0] = stage("read", 0.05, 0.0002);
                e.read_bytes_per_sample = 100_000.0;
                e.read_probe = Some(ReadProbe { alone: 0.01, together: 0.039, readers: 4 });
            },
            Cause::ReadBandwidth,
            Resource::DiskBandwidth,
            "145 MB/s",
        ),
        (
            "bandwidth, by the size of reads",
            |e| {
                e.stages[0] = stage("read", 0.05, 0.0002);
                e.read_bytes_per_sample = 3e6;
            },
            Cause::ReadBandwidth,
            Resource::DiskBandwidth,
            "bytes come slowly",
        ),
        (
            "slow place",
            |e| {
                let name = "/data/shard-7.tar".to_owned();
                let (seconds, elsewhere) = (0.2, 0.001);
                let place = SlowPlace { name, reads: 60, other_reads: 1, seconds, elsewhere };
                e.slow_places = vec![place];
            },
            Cause::SlowPlace,
            Resource::RequestLatency,
            "/data/shard-7.tar",
        ),
        (
            "memory",
            |e| e.worker_time.memory = 50.0,
            Cause::Memory,
            Resource::Memory,
            "may hold 4.0 GB",
        ),
        ("memory, again", |e| e.batches_remade = 90, Cause::Memory, Resource::Memory, "memory"),
        (
            "interpreter lock",
            |e| {
                e.executor = Executor::Threads;
                e.interpreter_lock = Some(0.97);
                e.stages = vec![stage("__getitem__", 0.02, 0.004)];
            },
            Cause::InterpreterLock,
            Resource::InterpreterLock,
            "held 97 % of the time",
        ),
        (
            "hand-over",
            |e| e.stages[3] = stage("copy", 0.02, 0.02),
            Cause::HandOver,
            Resource::Workers,
            "handing batches over, 86 %",
        ),
        (
            "hand-over of processes",
            |e| {
                (e.executor, e.workers) = (Executor::Processes, 8);
                e.worker_time = WorkerTime::default();
                e.stages = vec![stage("__getitem__", 0.00001, 0.00001)];
            },
            Cause::HandOver,
            Resource::Workers,
            "handing batches over, 100 %",
        ),
        (
            "affinity",
            |e| {
                (e.cores, e.workers) = (1.0, 4);
                e.stages.iter_mut().for_each(|stage| stage.cpu_seconds /= 4.0);
                e.worker_time = WorkerTime { busy: 38.0, cpu: 9.5, idle: 1.0, memory: 0.0 };
            },
            Cause::StarvedCores,
            Resource::AllCores,
            "1 of the machine's 8",
        ),
        (
            "others",
            |e| {
                e.stages.iter_mut().for_each(|stage| stage.cpu_seconds /= 4.0);
                e.worker_time = WorkerTime { busy: 49.0, cpu: 12.0, idle: 1.0, memory: 0.0 };
                (e.machine_cores_busy, e.process_cores) = (Some(8.0), Some(1.2));
            },
            Cause::StarvedCores,
            Resource::AllCores,
            "other programs use 6.8 of the machine's 8",
        ),
        (
            "the step itself",
            |e| {
                e.stages.iter_mut().for_each(|stage| stage.cpu_seconds /= 4.0);
                e.worker_time = WorkerTime { busy: 49.0, cpu: 12.0, idle: 1.0, memory: 0.0 };
                (e.machine_cores_busy, e.process_cores) = (Some(8.0), Some(7.7));
            },
            Cause::StarvedCores,
            Resource::AllCores,
            "the rest of this program uses 6.5 of the machine's 8",
        ),
        (
            "too few workers",
            |e| {
                e.workers = 1;
                e.worker_time = WorkerTime { busy: 9.9, cpu: 9.8, idle: 0.1, memory: 0.0 };
            },
            Cause::TooFewWorkers,
            Resource::OneCore,
            "1 for 8 cores",
        ),
        (
            "no workers",
            |e| {
                (e.workers, e.executor) = (0, Executor::Inline);
                e.worker_time = WorkerTime { busy: 3.0, cpu: 3.0, idle: 0.0, memory: 0.0 };
            },
            Cause::TooFewWorkers,
            Resource::OneCore,
            "the program's own thread",
        ),
        (
            "too many workers",
            |e| {
                e.workers = 64;
                e.stages.iter_mut().for_each(|stage| stage.cpu_seconds /= 8.0);
                e.worker_time = WorkerTime { busy: 600.0, cpu: 78.0, idle: 1.0, memory: 0.0 };
            },
            Cause::TooManyWorkers,
            Resource::AllCores,
            "64 on 8 cores",
        ),
        (
            "epoch start",
            |e| {
                e.turnovers = 10;
                e.turnover_seconds = Some(0.28);
            },
            Cause::EpochStart,
            Resource::None,
            "first batch of an epoch took 280 ms",
        ),
    ];
    for (name, change, cause, resource, words) in cases {
        let mut evidence = decoding();
        change(&mut evidence);
        let verdict = judge(&evidence);
        assert_eq!((verdict.cause, verdict.resource), (*cause, *resource), "{name}: {verdict:#?}");
        assert!(verdict.sentence.contains(words), "{name}: {}", verdict.sentence);
        let helpless = [Cause::Unknown, Cause::Trainer].contains(cause);
        assert_eq!(verdict.advice.is_empty(), helpless, "{name}: {verdict:#?}");
        let exact = |advice: &Advice| advice.command.is_some() || advice.code.is_some();
        assert!(verdict.advice.iter().all(exact), "{name}: {verdict:#?}");
        assert!(!verdict.limit.is_empty());
    }
}

#[test]
fn signs_that_users_know_are_named() {
    let has = |evidence: &Evidence, sign: &str| {
        let signs = judge(evidence).signs;
        assert!(signs.iter().any(|known| known.starts_with(sign)), "{sign}: {signs:?}");
    };
    let mut one = decoding();
    one.workers = 1;
    one.worker_time = WorkerTime { busy: 9.9, cpu: 9.8, idle: 0.1, memory: 0.0 };
    has(&one, "One core at 100 % while others idle");
    let mut all = decoding();
    (all.workers, all.worker_time.cpu) = (8, 78.0);
    has(&all, "All cores busy and the GPU still waiting");
    let mut late = decoding();
    late.stages[0] = stage("read", 0.05, 0.0002);
    has(&late, "Cores idle and the GPU waiting");
    let mut starts = decoding();
    (starts.turnovers, starts.turnover_seconds) = (1, Some(0.5));
    has(&starts, "Slow epoch starts");
    let mut spikes = decoding();
    (spikes.usual_memory, spikes.peak_memory) = (1_000_000_000, 3_100_000_000);
    has(&spikes, "Memory spikes (3.1 GB");
    let mut others = decoding();
    others.machine_cores_busy = Some(6.3);
    has(&others, "Other programs kept 1.3 cores busy");
    let mut many = decoding();
    many.workers = 40;
    has(&many, "Too many workers");
    assert_eq!(judge(&decoding()).signs, Vec::<String>::new());
}

#[test]
fn measured_ceilings_share_the_waiting_out() {
    let mut evidence = decoding();
    let (real, prepared, replayed) = (Some(1000.0), Some(4000.0), Some(10_000.0));
    evidence.ceilings = Ceilings { real, prepared, replayed, ..Ceilings::default() };
    let stall = judge(&evidence).stall;
    // Reading is 0.2 of 3.38 ms: the rest of what differs is something else.
    assert!((stall.reading - 0.31 * 0.0002 / 0.00338).abs() < 1e-9, "{stall:?}");
    evidence.stages[0] = stage("read", 0.05, 0.0002);
    let stall = judge(&evidence).stall;
    assert!((stall.reading - 0.31 * 0.75).abs() < 1e-9, "{stall:?}");
    assert!((stall.copying - 0.31 * 0.1).abs() < 1e-9, "{stall:?}");
    evidence.step_seconds = 0.0;
    let verdict = judge(&evidence);
    assert!(verdict.sentence.starts_with("Without a training step the loader gives"));
    assert!(verdict.sentence.contains("Limit: "), "{}", verdict.sentence);
    assert_eq!(verdict.stall.none, 0.0);
}

/// The loader alone gives more than the trainer can use: whatever it waits for, more workers and less
/// work are of no use.
#[test]
fn a_loader_that_is_fast_enough_is_not_to_blame() {
    // 0.5 ms of training and 15 µs of waiting for each batch of 64.
    let mut fast = decoding();
    (fast.batches, fast.samples) = (10_000, 640_000);
    (fast.step_seconds, fast.wait_seconds) = (5.0, 0.15);
    fast.stages = vec![stage("read", 0.000_001, 0.000_001)];
    fast.ceilings.real = Some(700_000.0);
    let verdict = judge(&fast);
    assert_eq!((verdict.cause, verdict.resource), (Cause::Trainer, Resource::None), "{verdict:#?}");
    assert!(verdict.sentence.contains("15 µs for each batch"), "{}", verdict.sentence);
    assert!(verdict.sentence.contains("5.5 times as fast"), "{}", verdict.sentence);
    assert!(verdict.sentence.contains("Nothing to gain here"), "{}", verdict.sentence);
    assert_eq!(verdict.advice, []);
    assert!((verdict.stall.copying - verdict.wait_share).abs() < 1e-9, "{:?}", verdict.stall);

    // The same without that measurement: the workers are idle most of the time.
    let mut online = fast.clone();
    online.ceilings.real = None;
    assert_eq!(judge(&online).cause, Cause::Decode, "busy workers are the limit");
    online.worker_time = WorkerTime { busy: 2.0, cpu: 2.0, idle: 23.0, memory: 0.0 };
    assert_eq!(judge(&online).cause, Cause::Trainer);
    // Nobody uses anything where there is no step.
    online.step_seconds = 0.0;
    assert_eq!(judge(&online).cause, Cause::Decode);

    // Two milliseconds of waiting are more than it takes to hand over a batch that is there.
    let mut uneven = fast.clone();
    uneven.wait_seconds = 20.0;
    uneven.stages = decoding().stages;
    let verdict = judge(&uneven);
    assert_eq!((verdict.cause, verdict.resource), (Cause::Uneven, Resource::None), "{verdict:#?}");
    assert_eq!(verdict.advice[0].code.as_deref(), Some("prefetch_factor=8"));
    // Unless they come from Python.
    uneven.executor = Executor::Torch;
    uneven.stages = vec![stage("__getitem__", 0.0001, 0.0001)];
    let verdict = judge(&uneven);
    assert_eq!((verdict.cause, verdict.resource), (Cause::HandOver, Resource::None));
    assert!(verdict.sentence.contains("handing batches over, 2.0 ms each"), "{}", verdict.sentence);

    // The program's own thread is waited for, however fast it is.
    let mut inline = fast;
    (inline.workers, inline.executor) = (0, Executor::Inline);
    assert_eq!(judge(&inline).cause, Cause::TooFewWorkers);
}

/// The commands of all advice.
fn commands(evidence: &Evidence) -> Vec<String> {
    judge(evidence).advice.into_iter().filter_map(|advice| advice.command).collect()
}

#[test]
fn a_crop_index_is_advised_only_where_it_is_of_use() {
    let advised = |change: fn(&mut Evidence)| {
        let mut evidence = decoding();
        evidence.packed = None;
        change(&mut evidence);
        commands(&evidence).iter().any(|command| command.contains("--crop-index"))
    };
    assert!(advised(|_| ()));
    assert!(!advised(|e| e.crop_index = true), "it is there already");
    assert!(!advised(|e| e.crops = false), "whole images are used");
    assert!(!advised(|e| e.encoding = "PNG".to_owned()));
    assert!(!advised(|e| e.loose = false));
    assert!(!advised(|e| e.packed = Some(1500.0)), "it was measured and brings nothing");
}

#[test]
fn packed_data_lies_beside_the_data() {
    for source in ["photos/", "./photos", "photos/."] {
        let evidence = Evidence { source: source.to_owned(), ..decoding() };
        let expected = format!("feedline pack {source} photos-packed --crop-index");
        assert_eq!(commands(&evidence)[0], expected);
    }
    let evidence = Evidence { source: ".".to_owned(), ..decoding() };
    assert_eq!(commands(&evidence)[0], "feedline pack . ../packed --crop-index");
}

#[test]
fn images_are_stored_no_smaller_than_they_are_used() {
    let mut evidence = decoding();
    evidence.stages[2] = stage("transform", 0.02, 0.02);
    assert_eq!(commands(&evidence), Vec::<String>::new(), "their size is not known");
    evidence.stored_side = Some(512);
    assert_eq!(commands(&evidence), ["feedline pack photos photos-small --resize 512"]);
    evidence.stages[0] = stage("read", 0.5, 0.0002);
    evidence.read_bytes_per_sample = 3e6;
    let last = commands(&evidence).pop();
    assert_eq!(last.as_deref(), Some("feedline pack photos photos-small --resize 512"));
}

#[test]
fn more_memory_is_named_for_the_pipeline_that_was_given() {
    let mut evidence = decoding();
    evidence.worker_time.memory = 150.0;
    // Half of it is set aside for a cache.
    (evidence.memory_limit, evidence.memory_given) = (3_000_000, 6_000_000);
    assert_eq!(commands(&evidence), Vec::<String>::new(), "not the data without its pipeline");
    evidence.pipeline = "sub/m.toml --set batch_size=4".to_owned();
    let verdict = judge(&evidence);
    let expected = "feedline run sub/m.toml --set batch_size=4 --memory 30.0MB";
    assert_eq!(verdict.advice[0].command.as_deref(), Some(expected), "{verdict:#?}");
    assert_eq!(verdict.advice[0].code.as_deref(), Some("memory=\"30.0MB\""));
    assert!(verdict.advice[0].text.contains("30.0 MB in place of 6.0 MB"), "{verdict:#?}");
}

/// torch's DataLoader has no executor: what has one is named.
#[test]
fn arguments_are_those_of_the_loader_that_is_used() {
    let mut evidence = decoding();
    (evidence.executor, evidence.workers) = (Executor::Torch, 8);
    evidence.worker_time = WorkerTime::default();
    evidence.stages = vec![stage("__getitem__", 0.00001, 0.00001)];
    let advised = judge(&evidence).advice.remove(0).code;
    assert_eq!(advised.as_deref(), Some("feedline.torch.DataLoader(..., executor=\"threads\")"));
    evidence.executor = Executor::Processes;
    let advised = judge(&evidence).advice.remove(0).code;
    assert_eq!(advised.as_deref(), Some("executor=\"threads\""));
    // Code that waits, in the program's own thread: torch's or not, it takes workers.
    (evidence.executor, evidence.workers) = (Executor::Inline, 0);
    evidence.stages = vec![stage("__getitem__", 0.02, 0.0001)];
    let advised = judge(&evidence).advice.remove(0).code.unwrap();
    assert!(advised.starts_with("num_workers=") && !advised.contains("executor"), "{advised}");
}

/// Nothing distinguishes a slow start from slow batches where each batch is an epoch's first.
#[test]
fn epochs_of_one_batch_are_no_slow_starts() {
    let mut evidence = decoding();
    evidence.turnovers = evidence.batches;
    evidence.turnover_seconds = Some(evidence.wait_seconds / evidence.batches as f64);
    let verdict = judge(&evidence);
    assert_eq!(verdict.cause, Cause::Decode, "{verdict:#?}");
    assert!(!verdict.signs.iter().any(|sign| sign.contains("epoch")), "{:?}", verdict.signs);
    // One that was begun only to be measured, and which the trainer did not wait for.
    (evidence.turnovers, evidence.turnover_seconds) = (0, Some(2.0));
    let verdict = judge(&evidence);
    assert_eq!(verdict.cause, Cause::Decode, "{verdict:#?}");
    assert!(verdict.signs.iter().any(|sign| sign.starts_with("Slow epoch starts (2.0 s")));
}

#[test]
fn many_slow_places_are_a_slow_disk() {
    let mut evidence = decoding();
    let place = |number: u64| SlowPlace {
        name: number.to_string(),
        reads: 20,
        other_reads: 0,
        seconds: 0.2,
        elsewhere: 0.001,
    };
    evidence.slow_places = (0..10).map(place).collect();
    assert_eq!(judge(&evidence).cause, Cause::Decode);
    evidence.slow_places.truncate(1);
    assert_eq!(judge(&evidence).cause, Cause::SlowPlace);
    evidence.slow_places[0].other_reads = 100;
    assert_eq!(judge(&evidence).cause, Cause::Decode, "the place is fast as well");
}

#[test]
fn without_a_step_nobody_is_said_to_wait() {
    let mut evidence = decoding();
    // What passes between two batches is no step, however much of the time it is.
    (evidence.wait_seconds, evidence.step_seconds, evidence.without_step) = (9.7, 0.3, true);
    let sentence = judge(&evidence).sentence;
    let said = "Without a training step the loader gives 1,450 images/s. Limit: JPEG decoding";
    assert!(sentence.starts_with(said), "{sentence}");
    evidence.without_step = false;
    let sentence = judge(&evidence).sentence;
    assert!(sentence.starts_with("The trainer waited 97 % of the time. Cause: "), "{sentence}");
}

const CAUSES: [Cause; 16] = [
    Cause::Unknown,
    Cause::Trainer,
    Cause::ReadLatency,
    Cause::ReadBandwidth,
    Cause::SlowPlace,
    Cause::Decode,
    Cause::Transform,
    Cause::Code,
    Cause::InterpreterLock,
    Cause::HandOver,
    Cause::Memory,
    Cause::StarvedCores,
    Cause::TooFewWorkers,
    Cause::TooManyWorkers,
    Cause::EpochStart,
    Cause::Uneven,
];

#[test]
fn the_bar_agrees_with_the_cause_whoever_makes_the_batches() {
    let executors = [Executor::Native, Executor::Threads, Executor::Processes, Executor::Torch];
    // One stage takes nearly all of the time, in turn: what was measured may say anything.
    for (heavy, executor, cause) in (0..4)
        .flat_map(|heavy| executors.map(|executor| (heavy, executor)))
        .flat_map(|(heavy, executor)| CAUSES.map(|cause| (heavy, executor, cause)))
    {
        let mut evidence = Evidence { executor, ..decoding() };
        let name = evidence.stages[heavy].name.clone();
        evidence.stages[heavy] = stage(&name, 0.05, 0.01);
        // Workers that look idle, of a loader that is faster than the trainer.
        evidence.worker_time = WorkerTime { busy: 2.0, cpu: 2.0, idle: 48.0, memory: 0.0 };
        let bar = stall(&evidence, &Shares::of(&evidence), cause);
        let said = format!("{heavy} {executor:?} {cause:?} {bar:?}");
        let sum = bar.reading + bar.preparing + bar.copying + bar.none;
        assert!((sum - 1.0).abs() < 1e-9, "{said}");
        let largest = bar.reading.max(bar.preparing).max(bar.copying);
        match part(cause) {
            StallPart::Reading => assert_eq!(bar.reading, largest, "{said}"),
            StallPart::Preparing => assert_eq!(bar.preparing, largest, "{said}"),
            StallPart::Copying => assert!((bar.copying - 0.31).abs() < 1e-9, "{said}"),
            StallPart::Any => {}
        }
        let all_copying = (bar.copying - 0.31).abs() < 1e-9;
        let may = [Cause::HandOver, Cause::Trainer].contains(&cause);
        assert!(may || !all_copying, "{said}");
    }
}

/// Two cores, of which other programs use one.
fn shared() -> Evidence {
    Evidence {
        workers: 2,
        cores: 2.0,
        machine_cores: Some(2.0),
        machine_cores_busy: Some(2.0),
        process_cores: Some(1.0),
        samples: 26_200,
        wait_seconds: 9.0,
        step_seconds: 1.0,
        stages: vec![stage("decode", 0.0030, 0.0004)],
        worker_time: WorkerTime { busy: 20.0, cpu: 10.0, idle: 0.0, memory: 0.0 },
        packed: None,
        ..decoding()
    }
}

#[test]
fn nothing_is_promised_that_the_machine_does_not_have() {
    let verdict = judge(&shared());
    assert_eq!(verdict.cause, Cause::StarvedCores, "{verdict:#?}");
    // A sample takes 0.4 ms of 2 cores, and others have one of both.
    let first = &verdict.advice[0];
    assert_eq!(first.predicted, Some(5000.0), "{verdict:#?}");
    assert!(first.text.contains("would raise 2,620 to about 5,000 images/s"), "{verdict:#?}");
    let mut light = shared();
    light.stages[0].cpu_seconds = 0.00001;
    let promised = judge(&light).advice[0].predicted;
    assert_eq!(promised, Some(5240.0), "twice the cores, not a hundred times the rate");
    // A sample's work fills the cores already: no figure where nothing is gained.
    let mut full = shared();
    full.stages[0].cpu_seconds = 0.00076;
    let verdict = judge(&full);
    assert_eq!((verdict.cause, verdict.advice[0].predicted), (Cause::StarvedCores, None));

    // Workers for cores that others use are of no use.
    let workers = |evidence: &Evidence| {
        let advice = judge(evidence).advice;
        advice.iter().any(|one| one.code.as_deref().is_some_and(|c| c.contains("num_workers")))
    };
    let mut busy = decoding();
    assert!(workers(&busy));
    busy.machine_cores_busy = Some(8.0);
    assert!(!workers(&busy), "{:#?}", judge(&busy));
    // One core of eight, of which others use six: two are to be had.
    let mut confined = decoding();
    (confined.cores, confined.workers) = (1.0, 4);
    confined.stages.iter_mut().for_each(|stage| stage.cpu_seconds /= 4.0);
    confined.worker_time = WorkerTime { busy: 38.0, cpu: 9.5, idle: 1.0, memory: 0.0 };
    (confined.machine_cores_busy, confined.process_cores) = (Some(7.0), Some(1.0));
    let verdict = judge(&confined);
    assert_eq!(verdict.cause, Cause::StarvedCores, "{verdict:#?}");
    let promised = verdict.advice[0].predicted.unwrap();
    assert!((promised - 2.0 / 0.000845).abs() < 1e-6, "{promised}");
}

/// The loader is half as fast as the trainer, and a few batches were made before the first step.
#[test]
fn batches_made_ahead_do_not_acquit_the_loader() {
    let mut evidence = decoding();
    (evidence.batches, evidence.samples, evidence.ahead) = (6, 384, 8);
    (evidence.wait_seconds, evidence.step_seconds) = (0.0, 0.384);
    evidence.ceilings.real = Some(500.0);
    let verdict = judge(&evidence);
    assert_eq!(verdict.cause, Cause::Decode, "{verdict:#?}");
    let said = "The trainer waited 0 % of the time. That will not last, as it used what was made before: the loader gives 500 images/s, and it can use 1,000. Cause: JPEG decoding";
    assert!(verdict.sentence.starts_with(said), "{}", verdict.sentence);
    // A loader that is about as fast, and many batches without a wait.
    evidence.ceilings.real = Some(850.0);
    assert_eq!(judge(&evidence).cause, Cause::Trainer);
    evidence.ceilings.real = Some(500.0);
    (evidence.batches, evidence.samples, evidence.step_seconds) = (600, 38_400, 38.4);
    assert_eq!(judge(&evidence).cause, Cause::Trainer);
    // Nobody makes anything ahead where there are no workers.
    (evidence.batches, evidence.ahead, evidence.workers) = (6, 0, 0);
    assert_eq!(judge(&evidence).cause, Cause::Trainer);
}

#[test]
fn code_without_a_name_is_named_once() {
    let mut evidence = decoding();
    evidence.executor = Executor::Processes;
    evidence.stages = vec![stage("your code", 0.02, 0.0001)];
    let sentence = judge(&evidence).sentence;
    assert!(sentence.contains("Cause: your code waits, for files"), "{sentence}");
    evidence.stages = vec![stage("your code", 0.02, 0.019)];
    let sentence = judge(&evidence).sentence;
    assert!(sentence.contains("Cause: your code, 100 % of CPU"), "{sentence}");
}

#[test]
fn cores_that_others_use_are_not_idle() {
    let mut evidence = decoding();
    assert_eq!(judge(&evidence).resource, Resource::Workers);
    evidence.machine_cores_busy = Some(7.8);
    let verdict = judge(&evidence);
    assert_eq!((verdict.cause, verdict.resource), (Cause::Decode, Resource::AllCores));
    let sign =
        "All cores busy and the GPU still waiting (4.8 of 8 cores used, 2.8 by other programs)";
    assert!(verdict.signs.iter().any(|known| known == sign), "{:?}", verdict.signs);
}

/// Eight of 64 cores are not few, and yet whoever asks why is to hear of it.
#[test]
fn fewer_cores_than_the_machine_has_are_a_sign() {
    let mut evidence = decoding();
    (evidence.workers, evidence.worker_time.cpu, evidence.machine_cores) = (8, 78.0, Some(64.0));
    let verdict = judge(&evidence);
    assert_eq!(verdict.cause, Cause::Decode);
    let sign = "Fewer cores than the machine has: affinity or cgroup give this process 8 of 64";
    assert!(verdict.signs.iter().any(|known| known.starts_with(sign)), "{:?}", verdict.signs);
    evidence.worker_time.cpu = 20.0;
    assert!(!judge(&evidence).signs.iter().any(|known| known.starts_with("Fewer cores")));
}

#[test]
fn what_was_measured_without_decoding_is_predicted() {
    let said = |without_decoding: Option<f64>| {
        let advice = judge(&Evidence { without_decoding, ..decoding() }).advice;
        advice.into_iter().find(|one| one.text.starts_with("Keeping decoded images"))
    };
    assert_eq!(said(None).unwrap().predicted, None);
    let advice = said(Some(4000.0)).unwrap();
    assert_eq!(advice.predicted, Some(4000.0));
    assert!(advice.text.contains("would raise 1,450 to about 4,000 images/s"), "{advice:?}");
    assert_eq!(said(Some(1500.0)), None, "it was measured and brings nothing");
}
