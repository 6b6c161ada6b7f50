//! Faults that are injected, and the verdict that must name each of them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feedline::engine::{Diagnose, Pack, PackOptions};
use feedline::error::Fault;
use feedline::pack::shards::Limit;
use feedline::sample::{DType, Location, Room};
use feedline::source::{Arrays, Column};
use feedline::spec::{DecodeSpec, OpSpec, SourceFormat, SourceKind};
use feedline::store::{Delayed, Files, Store, Throttled};
use feedline::tune::{Cause, Diagnosis, Machine, Resource, TrainStep};
use feedline::{Builder, Loader};
use support::{Folder, jpeg, over_local};

/// Data of the cases.
struct Data {
    /// 240 images of 120 x 90 in six folders.
    small: Folder,
    /// The same in six tar shards.
    shards: Folder,
    /// 192 images of 1600 x 1200.
    large: Folder,
}

impl Data {
    fn new() -> Data {
        let (small, shards, large) =
            (Folder::new("small"), Folder::new("shards"), Folder::new("large"));
        for number in 0..240 {
            let name = format!("class{}/{number:03}.jpg", number % 6);
            small.write(&name, &jpeg(number, 120, 90));
        }
        let photo = jpeg(1, 1600, 1200);
        for number in 0..192 {
            large.write(&format!("class{}/{number:03}.jpg", number % 2), &photo);
        }
        let options = PackOptions {
            to: Some(SourceFormat::Tar),
            shard: Limit { samples: 40, ..Limit::default() },
            ..PackOptions::default()
        };
        let kind = SourceKind::Path(small.path().to_owned());
        let packed = shards.path().join("packed");
        Pack::open(kind, options).unwrap().run(&packed, &|_| (), &|| false).unwrap();
        Data { small, shards, large }
    }

    fn small(&self) -> Builder {
        self.over(Loader::builder(self.small.path()))
    }

    fn shards(&self) -> Builder {
        self.over(Loader::builder(self.shards.path().join("packed")))
    }

    /// Whole images are decoded, and little of them is used: batches of 16, so that a step of a
    /// millisecond that lasts some of them, on a busy machine, is still the shorter.
    fn large(&self) -> Builder {
        let exact = DecodeSpec { exact: true, ..DecodeSpec::default() };
        Loader::builder(self.large.path())
            .decode(exact)
            .transform(OpSpec::new("CenterCrop").with("size", 32))
            .batch_size(16)
            .num_workers(2)
    }

    fn over(&self, builder: Builder) -> Builder {
        builder
            .transform(OpSpec::new("CenterCrop").with("size", 64))
            .batch_size(4)
            .shuffle(true)
            .num_workers(2)
    }
}

fn files() -> Arc<dyn Store> {
    Arc::new(Files::default())
}

fn slow_requests(millis: u64) -> Delayed {
    Delayed::new(files(), Duration::from_millis(millis))
}

fn arrays(rows: usize, elements: usize) -> Arrays {
    Arrays::new(vec![Column::new("x", DType::U8, &[rows, elements], vec![3u8; rows * elements])])
        .unwrap()
}

/// Runs `work` in a thread that may use one core, if the system lets it.
fn on_one_core(work: impl FnOnce() -> Diagnosis + Send) -> Option<Diagnosis> {
    std::thread::scope(|scope| {
        let bound = scope.spawn(|| {
            // The threads of a loader are born with the affinity of the one that starts them.
            let own = std::fs::read_link("/proc/thread-self").ok()?;
            let number = own.file_name()?.to_str()?.to_owned();
            let set = std::process::Command::new("taskset").args(["-cp", "0", &number]).output();
            set.ok()?.status.success().then(work)
        });
        bound.join().unwrap()
    })
}

fn run(diagnose: Diagnose) -> Diagnosis {
    diagnose.run("the case", Machine::default(), &mut |_, _| true).unwrap()
}

/// Somebody else uses most of this machine.
fn disturbed(diagnosis: &Diagnosis) -> bool {
    diagnosis.evidence.cores_of_others().is_some_and(|others| others > 0.5)
}

fn is_right(diagnosis: &Diagnosis, cause: Cause, resource: Resource, sign: &str) -> bool {
    let verdict = &diagnosis.verdict;
    let seen = sign.is_empty() || verdict.signs.iter().any(|known| known.starts_with(sign));
    (verdict.cause, verdict.resource) == (cause, resource) && seen
}

/// One test at a time: each of them wants all cores, and would be the other's injected fault.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const STEP: TrainStep = TrainStep::Fixed(0.001);

#[test]
fn the_verdict_names_what_was_injected() {
    let _alone = alone();
    let data = Data::new();
    let cores = feedline::tune::cores();
    let all_cores = cores as u64;
    // What is injected, what must be found, and how the sign begins that belongs to it, if any.
    type Found = (Cause, Resource);
    type Case<'a> = (&'a str, Found, &'a str, Box<dyn Fn() -> Option<Diagnosis> + 'a>);
    let plain = |diagnose: Diagnose| Some(run(diagnose.step(STEP).seconds(2.0)));
    let cases: Vec<Case<'_>> = vec![
        (
            "a store of 100 kB/s",
            (Cause::ReadBandwidth, Resource::DiskBandwidth),
            "Cores idle and the GPU waiting",
            Box::new(|| {
                let store = Throttled::new(files(), 100_000);
                plain(data.small().store(Arc::new(store)).diagnose())
            }),
        ),
        (
            "reads that take 40 ms",
            (Cause::ReadLatency, Resource::RequestLatency),
            "Cores idle and the GPU waiting",
            Box::new(|| plain(data.small().store(Arc::new(slow_requests(40))).diagnose())),
        ),
        (
            "the same from shards",
            (Cause::ReadLatency, Resource::RequestLatency),
            "Cores idle and the GPU waiting",
            Box::new(|| plain(data.shards().store(Arc::new(slow_requests(40))).diagnose())),
        ),
        (
            "one slow shard",
            (Cause::SlowPlace, Resource::RequestLatency),
            "Cores idle and the GPU waiting",
            Box::new(|| {
                let store = slow_requests(100).only("000003");
                let diagnose = data.shards().store(Arc::new(store)).diagnose();
                Some(run(diagnose.step(STEP).seconds(6.0)))
            }),
        ),
        (
            "one slow folder",
            (Cause::SlowPlace, Resource::RequestLatency),
            "Cores idle and the GPU waiting",
            Box::new(|| {
                let store = slow_requests(100).only("class4");
                plain(data.small().store(Arc::new(store)).diagnose())
            }),
        ),
        (
            "slow decoding",
            (Cause::Decode, Resource::AllCores),
            "All cores busy and the GPU still waiting",
            Box::new(|| plain(data.large().num_workers(all_cores).diagnose())),
        ),
        (
            "a heavy transform",
            (Cause::Transform, Resource::AllCores),
            "All cores busy and the GPU still waiting",
            Box::new(|| {
                let mut builder = data.small().batch_size(16).num_workers(all_cores);
                for _ in 0..4 {
                    let blur =
                        OpSpec::new("GaussianBlur").with("kernel_size", 41).with("sigma", 9.0);
                    builder = builder.transform(blur);
                }
                plain(builder.diagnose())
            }),
        ),
        (
            "a tiny memory budget",
            (Cause::Memory, Resource::Memory),
            "Memory spikes",
            Box::new(|| {
                // Room for one image of 1600 x 1200 at a time, and four workers that want one.
                plain(data.large().num_workers(4).memory(11_000_000).diagnose())
            }),
        ),
        (
            "one core of several",
            (Cause::StarvedCores, Resource::AllCores),
            "Fewer cores than the machine has",
            Box::new(|| {
                let work = || run(data.large().num_workers(2).diagnose().step(STEP).seconds(2.0));
                if cores > 1 { on_one_core(work) } else { None }
            }),
        ),
        (
            "one worker",
            (Cause::TooFewWorkers, Resource::OneCore),
            "One core at 100 % while others idle",
            Box::new(|| {
                let diagnosis = || plain(data.large().num_workers(1).diagnose());
                if cores > 1 { diagnosis() } else { None }
            }),
        ),
        (
            "no workers",
            (Cause::TooFewWorkers, Resource::OneCore),
            "One core at 100 % while others idle",
            Box::new(|| {
                let diagnosis = || plain(data.large().num_workers(0).diagnose());
                if cores > 1 { diagnosis() } else { None }
            }),
        ),
        (
            "sixteen workers for each core",
            (Cause::TooManyWorkers, Resource::AllCores),
            "Too many workers",
            Box::new(|| plain(data.large().num_workers(16 * all_cores).diagnose())),
        ),
        (
            "epochs that are left early",
            (Cause::EpochStart, Resource::None),
            "Slow epoch starts",
            Box::new(|| {
                let builder = data.small().store(Arc::new(slow_requests(20))).num_workers(4);
                let step = TrainStep::Fixed(0.15);
                Some(run(builder.diagnose().batches(2).step(step).seconds(6.0)))
            }),
        ),
        (
            "large rows to copy",
            (Cause::HandOver, Resource::AllCores),
            "",
            Box::new(|| {
                let builder = Loader::over(arrays(32, 4_000_000)).batch_size(8);
                plain(builder.num_workers(all_cores).diagnose())
            }),
        ),
        (
            "a trainer that is slow",
            (Cause::Trainer, Resource::None),
            "",
            Box::new(|| {
                let builder = Loader::over(arrays(64, 1000)).batch_size(4).num_workers(1);
                Some(run(builder.diagnose().step(TrainStep::Fixed(0.1)).seconds(5.0)))
            }),
        ),
    ];
    assert!(cases.len() >= 12);
    let mut judged = 0;
    let mut wrong = Vec::new();
    println!("{:<32} {:<16} {:<16} sentence", "injected", "expected", "found");
    for (name, (expected, resource), sign, diagnose) in &cases {
        let mut last = None;
        for _ in 0..3 {
            let Some(diagnosis) = diagnose() else { break };
            // On a machine that nobody else uses, the first answer counts.
            let again = !is_right(&diagnosis, *expected, *resource, sign) && disturbed(&diagnosis);
            last = Some(diagnosis);
            if !again {
                break;
            }
        }
        let Some(diagnosis) = last else {
            println!("{name:<32} left out: this machine has one core, or no taskset");
            continue;
        };
        let verdict = &diagnosis.verdict;
        let found = format!("{:?}", verdict.cause);
        println!("{name:<32} {:<16} {found:<16} {}", format!("{expected:?}"), verdict.sentence);
        let sum = {
            let stall = verdict.stall;
            stall.reading + stall.preparing + stall.copying + stall.none
        };
        assert!((sum - 1.0).abs() < 1e-6, "{name}: {:?}", verdict.stall);
        let nothing = verdict.sentence.contains("Nothing to gain here");
        assert_eq!(nothing, verdict.cause == Cause::Trainer, "{name}: {}", verdict.sentence);
        // Where others take the cores, that is the truth of what needs them.
        let works = [Cause::Decode, Cause::Transform, Cause::TooManyWorkers].contains(expected);
        let truth = works && verdict.cause == Cause::StarvedCores && disturbed(&diagnosis);
        judged += 1;
        // Others who use the cores change what is at its limit, and what is seen of it.
        let right = match disturbed(&diagnosis) {
            true => verdict.cause == *expected,
            false => is_right(&diagnosis, *expected, *resource, sign),
        };
        // A slow place is named, not only said to be there.
        let place = match *name {
            "one slow shard" => "000003",
            "one slow folder" => "class4",
            _ => "",
        };
        if !(truth || right && verdict.sentence.contains(place)) {
            wrong.push(format!("{name}: {verdict:#?}\n{:#?}", diagnosis.evidence));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(judged >= 12, "{judged} cases could be tried");
}

#[test]
fn parts_are_taken_out_of_the_way_and_it_can_be_ended_early() {
    let _alone = alone();
    let data = Data::new();
    let store = Arc::new(slow_requests(100));
    let diagnosis = run(data.small().store(store.clone()).diagnose().step(STEP).seconds(3.0));
    let ceilings = diagnosis.ceilings;
    let (real, prepared, replayed) =
        (ceilings.real.unwrap(), ceilings.prepared.unwrap(), ceilings.replayed.unwrap());
    assert!(prepared > 3.0 * real, "reading takes most of the time: {ceilings:?}");
    assert!(replayed > prepared, "{ceilings:?}");
    let names: Vec<&str> = diagnosis.stages.iter().map(|row| &*row.name).collect();
    assert_eq!(names[..3], ["read", "decode", "transform"]);
    let read = &diagnosis.stages[0];
    assert_eq!(read.measured_if_free, Some(prepared));
    assert!(read.predicted_if_free.unwrap() > 3.0 * real, "{read:?}");
    assert!(diagnosis.stages[2].measured_if_free.unwrap() < 3.0 * real, "reading stays");
    assert!(diagnosis.verdict.stall.reading > 0.5, "{:?}", diagnosis.verdict);
    assert!(!diagnosis.run.timeline.is_empty() && diagnosis.run.timeline.len() == 3);

    let mut asked = 0;
    let ended = data.small().store(store).diagnose().run("x", Machine::default(), &mut |_, _| {
        asked += 1;
        asked < 3
    });
    let ended = ended.unwrap();
    assert_eq!((ended.run.batches, ended.ceilings.real), (3, None));
    assert!(ended.evidence.not_measured.iter().any(|note| note.contains("ended early")));
}

/// A disk behind a page cache: what was read once is read at once.
struct FirstReads {
    slow: Delayed,
    fast: Arc<dyn Store>,
    seen: Mutex<std::collections::HashSet<std::path::PathBuf>>,
}

impl Store for FirstReads {
    over_local!();

    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        let first = self.seen.lock().unwrap().insert(location.path.to_owned());
        if first { self.slow.read(location, room) } else { self.fast.read(location, room) }
    }

    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        self.fast.size(location)
    }
}

#[test]
fn no_part_is_measured_on_what_another_one_has_read() {
    let _alone = alone();
    let (many, photo) = (Folder::new("many"), jpeg(1, 120, 90));
    (0..1200).for_each(|number| drop(many.write(&format!("class/{number:04}.jpg"), &photo)));
    let (slow, fast) = (slow_requests(40), files());
    let store = Arc::new(FirstReads { slow, fast, seen: Mutex::default() });
    let crop = OpSpec::new("CenterCrop").with("size", 64);
    let builder = Loader::builder(many.path()).transform(crop).batch_size(4).shuffle(true);
    let builder = builder.num_workers(2).store(store);
    let diagnosis = run(builder.diagnose().step(STEP).seconds(2.0));
    let verdict = &diagnosis.verdict;
    assert_eq!(verdict.cause, Cause::ReadLatency, "{verdict:#?}");
    let real = diagnosis.ceilings.real.unwrap();
    assert!(real < 100.0, "two readers and 40 ms for each: {real}");
    for row in diagnosis.stages.iter().filter(|row| ["decode", "transform"].contains(&&*row.name)) {
        let measured = row.measured_if_free.unwrap();
        assert!(measured < 2.0 * real, "reading stays: {row:?}, {real} with it");
    }
}

#[test]
fn decoding_is_left_out_however_few_decoded_images_fit() {
    let _alone = alone();
    let data = Data::new();
    // All of 1600 x 1200 pixels, 5.8 MB each, and a transform that hardly looks at them.
    let resize = OpSpec::new("Resize")
        .with("size", vec![32, 32])
        .with("interpolation", "nearest")
        .with("antialias", false);
    let exact = DecodeSpec { exact: true, ..DecodeSpec::default() };
    let builder = || {
        let builder = Loader::builder(data.large.path()).decode(exact.clone());
        builder.transform(resize.clone()).batch_size(4).num_workers(2)
    };
    let found = |kept: u64| {
        let diagnosis = run(builder().diagnose().step(STEP).seconds(2.0).kept(kept));
        let decode = diagnosis.stages.iter().find(|row| row.name == "decode").unwrap();
        let (real, free) = (diagnosis.ceilings.real.unwrap(), decode.measured_if_free);
        (free.map(|free| free / real), diagnosis.evidence)
    };
    let (gain, evidence) = found(20_000_000);
    assert!(gain.is_some_and(|gain| gain > 2.0), "{gain:?} {evidence:#?}");
    assert!(evidence.remarks.iter().any(|said| said.contains("3 decoded images")), "{evidence:#?}");
    assert!(evidence.not_measured.is_empty(), "{evidence:#?}");
    let (gain, evidence) = found(5_000_000);
    assert_eq!(gain, None);
    let told = |said: &String| said.contains("a decoded image takes more than 5.0 MB");
    assert!(evidence.not_measured.iter().any(told), "{evidence:#?}");
}

#[test]
fn what_packing_would_bring_is_what_it_brings() {
    let _alone = alone();
    let data = Data::new();
    let folder = Folder::new("with-index");
    let packed = folder.path().join("packed");
    let options = PackOptions { crop_index: true, ..PackOptions::default() };
    let kind = SourceKind::Path(data.large.path().to_owned());
    Pack::open(kind, options).unwrap().run(&packed, &|_| (), &|| false).unwrap();
    let cores = feedline::tune::cores() as u64;
    let over = |path: &std::path::Path| {
        let crop = OpSpec::new("CenterCrop").with("size", 32);
        let builder = Loader::builder(path).transform(crop).batch_size(16).num_workers(cores);
        run(builder.diagnose().step(STEP).seconds(4.0))
    };
    let mut tried = Vec::new();
    for _ in 0..3 {
        let (now, then) = (over(data.large.path()), over(&packed));
        // Others may have the cores: then packing is not tried.
        let Some(foretold) = now.evidence.packed else {
            tried.push(format!("{:?}: {:?}", now.verdict.cause, now.evidence.not_measured));
            continue;
        };
        assert!(foretold <= now.ceilings.replayed.unwrap(), "{foretold} {:?}", now.ceilings);
        assert!(now.evidence.remarks.iter().any(|said| said.contains("tried with 192 samples")));
        let true_rate = then.ceilings.real.unwrap();
        println!("foretold {foretold:.0}, true {true_rate:.0}, {:?}", now.evidence.remarks);
        if foretold < 2.5 * true_rate {
            return;
        }
        tried.push(format!("{foretold:.0} was foretold, {true_rate:.0} is true"));
    }
    panic!("{tried:#?}");
}
