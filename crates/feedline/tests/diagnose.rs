//! Faults that are injected, and the verdict that must name each of them: live with `make soak
//! SOAK=diagnose`, and on the evidence that it recorded in `fixtures/evidence`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::support::{Folder, jpeg, over_local};
use feedline::error::Fault;
use feedline::internals::engine::{Diagnose, Pack, PackOptions};
use feedline::internals::tune::{
    Advice, Cause, Diagnosis, Evidence, Machine, Resource, StallBar, TrainStep, Verdict, judge,
    stage_rows,
};
use feedline::pack::Limit;
use feedline::pack::WriteOptions;
use feedline::sample::{DType, Location, Room};
use feedline::source::{Arrays, Column};
use feedline::spec::{DecodeSpec, OpSpec, SourceFormat, SourceKind};
use feedline::store::{Delayed, Files, Store, Throttled};
use feedline::{Builder, Loader};

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

    /// With what they are called in recordings.
    fn folders(&self) -> [(&Folder, &'static str); 3] {
        [(&self.small, "small"), (&self.shards, "shards"), (&self.large, "large")]
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
        let exact = DecodeSpec::default().with(|decode| decode.exact = true);
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

fn is_right(verdict: &Verdict, case: &Case) -> bool {
    let seen =
        case.sign.is_empty() || verdict.signs.iter().any(|known| known.starts_with(case.sign));
    let found = (verdict.cause, verdict.resource) == (case.cause, case.resource);
    found && seen && verdict.sentence.contains(case.place)
}

/// One test at a time: each of them wants all cores, and would be the other's injected fault.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

const STEP: TrainStep = TrainStep::Fixed(0.001);

/// What is injected, and what must be found.
struct Case {
    name: &'static str,
    cause: Cause,
    resource: Resource,
    /// How the sign begins that belongs to it, if any.
    sign: &'static str,
    /// What the sentence names: a slow place is named, not only said to be there.
    place: &'static str,
}

const IDLE: &str = "Cores idle and the GPU waiting";
const BUSY: &str = "All cores busy and the GPU still waiting";
const ONE_CORE: &str = "One core at 100 % while others idle";

#[rustfmt::skip]
const CASES: [Case; 15] = [
    Case { name: "a store of 100 kB per second", cause: Cause::ReadBandwidth, resource: Resource::DiskBandwidth, sign: IDLE, place: "" },
    Case { name: "reads that take 40 ms", cause: Cause::ReadLatency, resource: Resource::RequestLatency, sign: IDLE, place: "" },
    Case { name: "the same from shards", cause: Cause::ReadLatency, resource: Resource::RequestLatency, sign: IDLE, place: "" },
    Case { name: "one slow shard", cause: Cause::SlowPlace, resource: Resource::RequestLatency, sign: IDLE, place: "000003" },
    Case { name: "one slow folder", cause: Cause::SlowPlace, resource: Resource::RequestLatency, sign: IDLE, place: "class4" },
    Case { name: "slow decoding", cause: Cause::Decode, resource: Resource::AllCores, sign: BUSY, place: "" },
    Case { name: "a heavy transform", cause: Cause::Transform, resource: Resource::AllCores, sign: BUSY, place: "" },
    Case { name: "a tiny memory budget", cause: Cause::Memory, resource: Resource::Memory, sign: "Memory spikes", place: "" },
    Case { name: "one core of several", cause: Cause::StarvedCores, resource: Resource::AllCores, sign: "Fewer cores than the machine has", place: "" },
    Case { name: "one worker", cause: Cause::TooFewWorkers, resource: Resource::OneCore, sign: ONE_CORE, place: "" },
    Case { name: "no workers", cause: Cause::TooFewWorkers, resource: Resource::OneCore, sign: ONE_CORE, place: "" },
    Case { name: "sixteen workers for each core", cause: Cause::TooManyWorkers, resource: Resource::AllCores, sign: "Too many workers", place: "" },
    Case { name: "epochs that are left early", cause: Cause::EpochStart, resource: Resource::None, sign: "Slow epoch starts", place: "" },
    Case { name: "large rows to copy", cause: Cause::HandOver, resource: Resource::AllCores, sign: "", place: "" },
    Case { name: "a trainer that is slow", cause: Cause::Trainer, resource: Resource::None, sign: "", place: "" },
];

/// Injects it; `None` where this machine has one core, or no taskset.
fn inject(name: &str, data: &Data) -> Option<Diagnosis> {
    let cores = feedline::internals::tune::cores() as u64;
    let plain = |diagnose: Diagnose| run(diagnose.step(STEP).seconds(2.0));
    let delayed = |millis| Arc::new(slow_requests(millis));
    Some(match name {
        "a store of 100 kB per second" => {
            let store = Throttled::new(files(), 100_000);
            plain(Diagnose::of(data.small().store(Arc::new(store))))
        }
        "reads that take 40 ms" => plain(Diagnose::of(data.small().store(delayed(40)))),
        "the same from shards" => plain(Diagnose::of(data.shards().store(delayed(40)))),
        "one slow shard" => {
            let store = Arc::new(slow_requests(100).only("000003"));
            run(Diagnose::of(data.shards().store(store)).step(STEP).seconds(6.0))
        }
        "one slow folder" => {
            let store = Arc::new(slow_requests(100).only("class4"));
            plain(Diagnose::of(data.small().store(store)))
        }
        "slow decoding" => plain(Diagnose::of(data.large().num_workers(cores))),
        "a heavy transform" => {
            let mut builder = data.small().batch_size(16).num_workers(cores);
            for _ in 0..4 {
                let blur = OpSpec::new("GaussianBlur").with("kernel_size", 41).with("sigma", 9.0);
                builder = builder.transform(blur);
            }
            plain(Diagnose::of(builder))
        }
        // Room for one image of 1600 x 1200 at a time, and four workers that want one.
        "a tiny memory budget" => {
            plain(Diagnose::of(data.large().num_workers(4).memory(11_000_000)))
        }
        "one core of several" | "one worker" | "no workers" if cores == 1 => return None,
        "one core of several" => {
            return on_one_core(|| plain(Diagnose::of(data.large().num_workers(2))));
        }
        "one worker" => plain(Diagnose::of(data.large().num_workers(1))),
        "no workers" => plain(Diagnose::of(data.large().num_workers(0))),
        "sixteen workers for each core" => {
            plain(Diagnose::of(data.large().num_workers(16 * cores)))
        }
        "epochs that are left early" => {
            let builder = data.small().store(delayed(20)).num_workers(4);
            run(Diagnose::of(builder).batches(2).step(TrainStep::Fixed(0.15)).seconds(6.0))
        }
        "large rows to copy" => {
            let builder = Loader::over(arrays(32, 4_000_000)).batch_size(8);
            plain(Diagnose::of(builder.num_workers(cores)))
        }
        "a trainer that is slow" => {
            let builder = Loader::over(arrays(64, 1000)).batch_size(4).num_workers(1);
            run(Diagnose::of(builder).step(TrainStep::Fixed(0.1)).seconds(5.0))
        }
        other => panic!("nothing injects {other}"),
    })
}

fn recording(name: &str) -> PathBuf {
    let name = name.replace(' ', "-");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/evidence/{name}.json"))
}

fn recorded(name: &str) -> Evidence {
    serde_json::from_str(&std::fs::read_to_string(recording(name)).unwrap()).unwrap()
}

/// With FEEDLINE_RECORD=1, keeps the evidence of a live run for the tests that judge it again.
fn record(name: &str, evidence: &Evidence, folders: &[(&Folder, &str)]) {
    if std::env::var_os("FEEDLINE_RECORD").is_none() {
        return;
    }
    let mut text = serde_json::to_string_pretty(evidence).unwrap() + "\n";
    for (folder, called) in folders {
        text = text.replace(folder.path().to_str().unwrap(), called);
    }
    let path = recording(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// What is true of every verdict.
fn is_consistent(verdict: &Verdict, name: &str) {
    let stall = verdict.stall;
    let sum = stall.reading + stall.preparing + stall.copying + stall.none;
    assert!((sum - 1.0).abs() < 1e-6, "{name}: {stall:?}");
    let nothing = verdict.sentence.contains("Nothing to gain here");
    assert_eq!(nothing, verdict.cause == Cause::Trainer, "{name}: {}", verdict.sentence);
}

#[test]
fn recorded_evidence_names_what_was_injected() {
    for case in &CASES {
        let verdict = judge(&recorded(case.name));
        is_consistent(&verdict, case.name);
        assert!(is_right(&verdict, case), "{}: {verdict:#?}", case.name);
    }
}

#[test]
#[ignore = "live, 50 s on idle cores: make soak SOAK=diagnose"]
fn the_verdict_names_what_was_injected() {
    let _alone = alone();
    let data = Data::new();
    let mut judged = 0;
    let mut wrong = Vec::new();
    println!("{:<32} {:<16} {:<16} sentence", "injected", "expected", "found");
    for case in &CASES {
        let (name, mut last) = (case.name, None);
        for _ in 0..3 {
            let Some(diagnosis) = inject(name, &data) else { break };
            // On a machine that nobody else uses, the first answer counts.
            let right = is_right(&diagnosis.verdict, case);
            if right {
                record(name, &diagnosis.evidence, &data.folders());
            }
            let again = !right && disturbed(&diagnosis);
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
        let (expected, found) = (format!("{:?}", case.cause), format!("{:?}", verdict.cause));
        println!("{name:<32} {expected:<16} {found:<16} {}", verdict.sentence);
        is_consistent(verdict, name);
        // Where others take the cores, that is the truth of what needs them.
        let works = [Cause::Decode, Cause::Transform, Cause::TooManyWorkers].contains(&case.cause);
        let truth = works && verdict.cause == Cause::StarvedCores && disturbed(&diagnosis);
        judged += 1;
        // Others who use the cores change what is at its limit, and what is seen of it.
        let right = match disturbed(&diagnosis) {
            true => verdict.cause == case.cause && verdict.sentence.contains(case.place),
            false => is_right(verdict, case),
        };
        if !(truth || right) {
            wrong.push(format!("{name}: {verdict:#?}\n{:#?}", diagnosis.evidence));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(judged >= 12, "{judged} cases could be tried");
}

/// Formats whose samples are read while the loader runs. Text (CSV, JSON lines) is read when it is
/// opened.
const READ: [&str; 14] = [
    "arrow",
    "hdf5",
    "litdata",
    "lmdb",
    "mds",
    "npy",
    "parquet",
    "tar",
    "tfrecord",
    "zarr",
    "zip",
    "manifest",
    "raw",
    "crop-indexed",
];

/// Photos in a shard, and the list of MDS or LitData: how many rows, where each begins, each with the
/// size of its only value first.
fn write_shard(format: &str, to: &Path) {
    let four = |number: usize| u32::try_from(number).unwrap().to_le_bytes();
    let (mut starts, mut rows) = (Vec::new(), Vec::new());
    for number in 0..240 {
        let photo = jpeg(number, 120, 90);
        starts.extend(four(4 + 4 * 241 + rows.len()));
        rows.extend([&four(photo.len()), &photo[..]].concat());
    }
    starts.extend(four(4 + 4 * 241 + rows.len()));
    let list = match format {
        "mds" => serde_json::json!({"version": 2, "shards": [{
            "format": "mds", "column_names": ["image"], "column_encodings": ["jpeg"],
            "column_sizes": [null], "compression": null, "samples": 240,
            "raw_data": {"basename": "shard"}, "zip_data": null,
        }]}),
        _ => serde_json::json!({
            "chunks": [{"filename": "shard", "chunk_size": 240}],
            "config": {
                "compression": null, "compression_level": null, "data_format": ["jpeg"],
                "data_spec": null, "encryption": null, "item_loader": null,
            },
        }),
    };
    std::fs::write(to.join("shard"), [&four(240)[..], &starts, &rows].concat()).unwrap();
    std::fs::write(to.join("index.json"), list.to_string()).unwrap();
}

/// A data set of this format, behind a store that is slow; what it lies in comes along.
fn slow(format: &str, photos: &Folder) -> (Folder, Builder) {
    let to = Folder::new("slow");
    let packed = to.path().join("set");
    let pack = |options: PackOptions| {
        let kind = SourceKind::Path(photos.path().to_owned());
        Pack::open(kind, options).unwrap().run(&packed, &|_| (), &|| false).unwrap();
        Loader::builder(&packed)
    };
    let arrays = ["hdf5", "npy", "zarr"].contains(&format);
    let builder = match format {
        "mds" | "litdata" => {
            write_shard(format, to.path());
            Loader::builder(to.path())
        }
        "manifest" => {
            let class = |number| number % 6;
            let row =
                |number| format!("class{}/{number:03}.jpg,{}\n", class(number), class(number));
            let rows: String = (0..240).map(row).collect();
            let table = photos.path().join("photos.csv");
            std::fs::write(&table, format!("path,label\n{rows}")).unwrap();
            Loader::builder(table)
        }
        "zip" => {
            let path = to.path().join("photos.zip");
            let mut archive = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
            let stored = zip::write::SimpleFileOptions::default()
                .compression_method(zip::CompressionMethod::Stored);
            for number in 0..240 {
                archive.start_file(format!("class{}/{number:03}.jpg", number % 6), stored).unwrap();
                archive.write_all(&jpeg(number, 120, 90)).unwrap();
            }
            archive.finish().unwrap();
            Loader::builder(path)
        }
        "raw" => pack(PackOptions { raw: true, resize: Some(64), ..PackOptions::default() }),
        "crop-indexed" => pack(PackOptions { crop_index: true, ..PackOptions::default() }),
        _ => {
            let resize = OpSpec::new("Resize").with("size", vec![64, 64]);
            pack(PackOptions {
                to: SourceFormat::to_write(format),
                decoded: arrays,
                transforms: if arrays { vec![resize] } else { Vec::new() },
                write: WriteOptions { block_samples: Some(8), ..WriteOptions::default() },
                ..PackOptions::default()
            })
        }
    };
    let store = Arc::new(Throttled::new(files(), 100_000));
    let builder = builder.batch_size(4).num_workers(2).store(store);
    match arrays {
        true => (to, builder),
        false => (to, builder.transform(OpSpec::new("CenterCrop").with("size", 64))),
    }
}

fn names_the_store(verdict: &Verdict, format: &str) {
    let reads = [Cause::ReadBandwidth, Cause::ReadLatency, Cause::SlowPlace];
    assert!(reads.contains(&verdict.cause), "{format}: {verdict:#?}");
    is_consistent(verdict, format);
}

#[test]
fn recorded_evidence_of_every_format_names_the_store() {
    for format in READ {
        names_the_store(&judge(&recorded(&format!("slow {format}"))), format);
    }
    for format in SourceFormat::writable() {
        assert!(READ.contains(&format.name()), "{}", format.name());
    }
}

/// A wrapper of the store reaches every format, so what it injects is found in every format.
#[test]
#[ignore = "live, seven minutes on idle cores: make soak SOAK=diagnose"]
fn a_slow_store_is_named_in_every_format() {
    let _alone = alone();
    let photos = Folder::new("small");
    for number in 0..240 {
        photos.write(&format!("class{}/{number:03}.jpg", number % 6), &jpeg(number, 120, 90));
    }
    for format in READ {
        let (to, builder) = slow(format, &photos);
        let diagnosis = run(Diagnose::of(builder).step(STEP).seconds(3.0));
        let verdict = &diagnosis.verdict;
        println!("{format:<12} {:?}: {}", verdict.cause, verdict.sentence);
        names_the_store(verdict, format);
        record(
            &format!("slow {format}"),
            &diagnosis.evidence,
            &[(&to, "slow"), (&photos, "small")],
        );
    }
}

/// What was injected into data sets of Python code (tests/soak/live_diagnosis.py), and the part of
/// the bar that must be the largest.
#[test]
fn recorded_evidence_of_python_code_names_what_was_injected() {
    type Part = fn(&StallBar) -> f64;
    let preparing: Part = |stall| stall.preparing;
    let reading: Part = |stall| stall.reading;
    let copying: Part = |stall| stall.copying;
    let any: Part = |stall| stall.reading.max(stall.preparing).max(stall.copying);
    for (name, cause, part) in [
        ("locked", Cause::InterpreterLock, preparing),
        ("locked_in_processes", Cause::Code, preparing),
        ("locked_inline", Cause::TooFewWorkers, preparing),
        ("asleep", Cause::ReadLatency, reading),
        ("asleep_in_processes", Cause::ReadLatency, reading),
        ("asleep_in_torch", Cause::ReadLatency, reading),
        ("handed", Cause::HandOver, copying),
        ("short", Cause::EpochStart, any),
        ("quick", Cause::Trainer, any),
    ] {
        let verdict = judge(&recorded(&format!("python-{name}")));
        is_consistent(&verdict, name);
        assert_eq!(verdict.cause, cause, "{name}: {verdict:#?}");
        assert_eq!(part(&verdict.stall), any(&verdict.stall), "{name}: {verdict:#?}");
        let is_something = |one: &Advice| one.command.is_some() || one.code.is_some();
        assert!(cause == Cause::Trainer || verdict.advice.iter().all(is_something), "{verdict:#?}");
        if name == "handed" {
            // torch's own DataLoader has no executor.
            let code = verdict.advice[0].code.as_deref().unwrap();
            assert!(code.starts_with("feedline.torch.DataLoader("), "{code}");
        }
    }
}

/// What is measured with parts out of the way, of reads that take 100 ms.
fn reading_takes_most(evidence: &Evidence) {
    let ceilings = evidence.ceilings;
    let (real, prepared, replayed) =
        (ceilings.real.unwrap(), ceilings.prepared.unwrap(), ceilings.replayed.unwrap());
    assert!(prepared > 3.0 * real, "reading takes most of the time: {ceilings:?}");
    assert!(replayed > prepared, "{ceilings:?}");
    let read = &stage_rows(evidence)[0];
    assert!(read.predicted_if_free.unwrap() > 3.0 * real, "{read:?}");
    let verdict = judge(evidence);
    assert!(verdict.stall.reading > 0.5, "{verdict:?}");
}

#[test]
#[ignore = "live, 8 s on idle cores: make soak SOAK=diagnose"]
fn parts_are_taken_out_of_the_way() {
    let _alone = alone();
    let data = Data::new();
    let store = Arc::new(slow_requests(100));
    let diagnosis = run(Diagnose::of(data.small().store(store)).step(STEP).seconds(3.0));
    reading_takes_most(&diagnosis.evidence);
    let real = diagnosis.ceilings.real.unwrap();
    assert!(diagnosis.stages[2].measured_if_free.unwrap() < 3.0 * real, "reading stays");
    record("reads that take 100 ms", &diagnosis.evidence, &data.folders());
}

#[test]
fn recorded_parts_tell_what_reading_takes() {
    reading_takes_most(&recorded("reads that take 100 ms"));
}

/// The wiring, without a judgement of times.
#[test]
fn it_measures_each_part_and_can_be_ended_early() {
    let folder = Folder::new("parts");
    for number in 0..48 {
        folder.write(&format!("class/{number:03}.jpg"), &jpeg(number, 60, 45));
    }
    let builder = || {
        let crop = OpSpec::new("CenterCrop").with("size", 32);
        let builder = Loader::builder(folder.path()).transform(crop).batch_size(4);
        builder.num_workers(2).store(Arc::new(slow_requests(1)))
    };
    let diagnosis = run(Diagnose::of(builder()).step(STEP).seconds(0.5));
    let ceilings = diagnosis.ceilings;
    assert!(ceilings.real.is_some() && ceilings.replayed.is_some(), "{ceilings:?}");
    assert_eq!(diagnosis.ceilings, diagnosis.evidence.ceilings);
    let names: Vec<&str> = diagnosis.stages.iter().map(|row| &*row.name).collect();
    assert_eq!(names[..3], ["read", "decode", "transform"]);
    assert!(ceilings.prepared.is_some());
    assert_eq!(diagnosis.stages[0].measured_if_free, ceilings.prepared);
    assert!(diagnosis.stages[2].measured_if_free.is_some());
    assert_eq!(diagnosis.run.timeline.len(), 3, "two workers and the trainer");
    assert_eq!(diagnosis.verdict, judge(&diagnosis.evidence));

    let mut asked = 0;
    let ended = Diagnose::of(builder()).run("x", Machine::default(), &mut |_, _| {
        asked += 1;
        asked < 3
    });
    let ended = ended.unwrap();
    // It asks before it begins, and after each batch.
    assert_eq!((ended.run.batches, ended.ceilings.real), (2, None));
    assert!(ended.evidence.not_measured.iter().any(|note| note.contains("ended early")));
}

/// A disk behind a page cache: what was read once is read at once.
struct FirstReads {
    slow: Delayed,
    fast: Arc<dyn Store>,
    seen: Mutex<HashSet<PathBuf>>,
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
#[ignore = "live, 6 s on idle cores: make soak SOAK=diagnose"]
fn no_part_is_fast_because_of_what_another_one_has_read() {
    let _alone = alone();
    let (many, photo) = (Folder::new("many"), jpeg(1, 120, 90));
    (0..1200).for_each(|number| drop(many.write(&format!("class/{number:04}.jpg"), &photo)));
    let (slow, fast) = (slow_requests(40), files());
    let store = Arc::new(FirstReads { slow, fast, seen: Mutex::default() });
    let crop = OpSpec::new("CenterCrop").with("size", 64);
    let builder = Loader::builder(many.path()).transform(crop).batch_size(4).shuffle(true);
    let builder = builder.num_workers(2).store(store);
    let diagnosis = run(Diagnose::of(builder).step(STEP).seconds(2.0));
    let verdict = &diagnosis.verdict;
    assert_eq!(verdict.cause, Cause::ReadLatency, "{verdict:#?}");
    let real = diagnosis.ceilings.real.unwrap();
    assert!(real < 100.0, "two readers and 40 ms for each: {real}");
    for row in diagnosis.stages.iter().filter(|row| ["decode", "transform"].contains(&&*row.name)) {
        let measured = row.measured_if_free.unwrap();
        assert!(measured < 2.0 * real, "reading stays: {row:?}, {real} with it");
    }
}

/// Says in which part of a diagnosis files are read that were read before. Reads take 5 ms: two
/// readers read 200 files in half a second at most, on whichever machine.
struct SecondReads {
    slow: Delayed,
    part: Mutex<String>,
    seen: Mutex<HashSet<PathBuf>>,
    again: Mutex<HashMap<String, u64>>,
}

impl Store for SecondReads {
    over_local!();

    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        let first = self.seen.lock().unwrap().insert(location.path.to_owned());
        let part = self.part.lock().unwrap().clone();
        *self.again.lock().unwrap().entry(part).or_default() += u64::from(!first);
        self.slow.read(location, room)
    }

    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        self.slow.size(location)
    }
}

#[test]
fn no_part_is_measured_on_what_another_one_has_read() {
    let (many, photo) = (Folder::new("many"), jpeg(1, 60, 45));
    (0..1200).for_each(|number| drop(many.write(&format!("class/{number:04}.jpg"), &photo)));
    let store = Arc::new(SecondReads {
        slow: slow_requests(5),
        part: Mutex::default(),
        seen: Mutex::default(),
        again: Mutex::default(),
    });
    let crop = OpSpec::new("CenterCrop").with("size", 32);
    let builder = Loader::builder(many.path()).transform(crop).batch_size(4).shuffle(true);
    let builder = builder.num_workers(2).store(store.clone());
    let diagnose = Diagnose::of(builder).step(STEP).seconds(0.5);
    let note = |part: &str| {
        part.clone_into(&mut store.part.lock().unwrap());
        true
    };
    diagnose.run("x", Machine::default(), &mut |part, _| note(part)).unwrap();
    let again = store.again.lock().unwrap();
    for part in
        ["everything real, without the step", "transforms replayed", "decoded images in memory"]
    {
        assert_eq!(again.get(part), Some(&0), "{again:?}");
    }
}

/// Images of `width` x `height`, of which three decoded ones or none are kept.
fn without_decoding((width, height): (usize, usize), seconds: f64, gained: fn(f64) -> bool) {
    let folder = Folder::new("decoded");
    let photo = jpeg(1, width, height);
    for number in 0..24 {
        folder.write(&format!("class/{number:03}.jpg"), &photo);
    }
    // A transform that hardly looks at its image.
    let resize = OpSpec::new("Resize")
        .with("size", vec![32, 32])
        .with("interpolation", "nearest")
        .with("antialias", false);
    let exact = DecodeSpec::default().with(|decode| decode.exact = true);
    let builder = || {
        let builder = Loader::builder(folder.path()).decode(exact.clone());
        builder.transform(resize.clone()).batch_size(4).num_workers(2)
    };
    let found = |images: f64| {
        let kept = (images * (width * height * 3) as f64) as u64;
        let diagnosis = run(Diagnose::of(builder()).step(STEP).seconds(seconds).kept(kept));
        let decode = diagnosis.stages.iter().find(|row| row.name == "decode").unwrap();
        let (real, free) = (diagnosis.ceilings.real.unwrap(), decode.measured_if_free);
        (free.map(|free| free / real), diagnosis.evidence)
    };
    let (gain, evidence) = found(3.5);
    assert!(gain.is_some_and(gained), "{gain:?} {evidence:#?}");
    assert!(evidence.remarks.iter().any(|said| said.contains("3 decoded images")), "{evidence:#?}");
    assert!(evidence.not_measured.is_empty(), "{evidence:#?}");
    let (gain, evidence) = found(0.9);
    assert_eq!(gain, None);
    let noted = |said: &String| said.contains("a decoded image takes more than ");
    assert!(evidence.not_measured.iter().any(noted), "{evidence:#?}");
}

#[test]
fn decoding_is_left_out_however_few_decoded_images_fit() {
    without_decoding((320, 240), 1.0, |_| true);
}

#[test]
#[ignore = "live, 8 s on idle cores: make soak SOAK=diagnose"]
fn without_decoding_it_is_faster_however_few_decoded_images_fit() {
    let _alone = alone();
    without_decoding((1600, 1200), 2.0, |gain| gain > 2.0);
}

#[test]
#[ignore = "live, 20 s on idle cores: make soak SOAK=diagnose"]
fn what_packing_would_bring_is_what_it_brings() {
    let _alone = alone();
    let data = Data::new();
    let folder = Folder::new("with-index");
    let packed = folder.path().join("packed");
    let options = PackOptions { crop_index: true, ..PackOptions::default() };
    let kind = SourceKind::Path(data.large.path().to_owned());
    Pack::open(kind, options).unwrap().run(&packed, &|_| (), &|| false).unwrap();
    let cores = feedline::internals::tune::cores() as u64;
    let over = |path: &std::path::Path| {
        let crop = OpSpec::new("CenterCrop").with("size", 32);
        let builder = Loader::builder(path).transform(crop).batch_size(16).num_workers(cores);
        run(Diagnose::of(builder).step(STEP).seconds(4.0))
    };
    let mut tried = Vec::new();
    for _ in 0..3 {
        let (now, then) = (over(data.large.path()), over(&packed));
        // Others may have the cores: then packing is not tried.
        let Some(predicted) = now.evidence.packed else {
            tried.push(format!("{:?}: {:?}", now.verdict.cause, now.evidence.not_measured));
            continue;
        };
        assert!(predicted <= now.ceilings.replayed.unwrap(), "{predicted} {:?}", now.ceilings);
        assert!(now.evidence.remarks.iter().any(|said| said.contains("tried with 192 samples")));
        let true_rate = then.ceilings.real.unwrap();
        println!("predicted {predicted:.0}, true {true_rate:.0}, {:?}", now.evidence.remarks);
        if predicted < 2.5 * true_rate {
            record("packing with a crop index", &now.evidence, &data.folders());
            return;
        }
        tried.push(format!("{predicted:.0} was predicted, {true_rate:.0} is true"));
    }
    panic!("{tried:#?}");
}

#[test]
fn recorded_packing_is_advised_with_what_it_brings() {
    let evidence = recorded("packing with a crop index");
    let predicted = evidence.packed.unwrap();
    assert!(predicted <= evidence.ceilings.replayed.unwrap(), "{evidence:#?}");
    assert!(evidence.remarks.iter().any(|said| said.contains("tried with 192 samples")));
    let verdict = judge(&evidence);
    let packs = |one: &&Advice| one.command.as_ref().is_some_and(|c| c.contains("--crop-index"));
    let advice = verdict.advice.iter().find(packs).unwrap();
    let said = advice.predicted.unwrap();
    assert!((0.95 * predicted..=predicted).contains(&said), "{verdict:#?}");
}
