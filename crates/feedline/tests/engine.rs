//! How the engine behaves at its edges: kept batches, hanging reads, bad samples, little memory.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::support::{Folder, arrays, ends, jpeg, over_local, photos, rows};
use feedline::error::Stage;
use feedline::sample::Room;
use feedline::sample::{DType, Field, FieldKind, Location, Value};
use feedline::source::Source;
use feedline::spec::{CacheSpec, OnError, OpSpec};
use feedline::store::{Local, Store};
use feedline::{Builder, Error, Fault, Loader};

fn cropped(folder: &Folder) -> Builder {
    Loader::builder(folder.path()).transform(OpSpec::new("CenterCrop").with("size", 16))
}

#[test]
fn a_kept_batch_is_never_overwritten() {
    let mut loader =
        Loader::over(arrays(64)).batch_size(4).shuffle(true).num_workers(4).build().unwrap();
    let mut kept = Vec::new();
    for _ in 0..5 {
        for batch in loader.epoch() {
            let batch = batch.unwrap();
            kept.push((rows(&batch), batch));
        }
    }
    // Also when the loader is gone.
    drop(loader);
    for (before, batch) in kept {
        assert_eq!(rows(&batch), before);
    }
}

/// Reads of all but the first two files hang until they are let go.
#[derive(Default)]
struct Hanging(AtomicBool);

impl Store for Hanging {
    over_local!();

    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        let first =
            ["class0/000.jpg", "class0/001.jpg"].iter().any(|name| location.path.ends_with(name));
        while !first && !self.0.load(Ordering::Acquire) {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Local.read(location, room)
    }

    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        Local.size(location)
    }
}

#[test]
fn dropping_a_loader_does_not_wait_for_reads_that_hang() {
    let folder = Folder::new("hang");
    photos(&folder, 2, 4);
    let store = Arc::new(Hanging::default());
    let mut loader =
        cropped(&folder).batch_size(2).num_workers(3).store(store.clone()).build().unwrap();
    let first = loader.next_batch().unwrap().unwrap();
    ends(move || drop(loader));
    assert_eq!(first.rows(), 2);
    store.0.store(true, Ordering::Release);
}

/// One sample takes as long as the test likes.
#[derive(Default)]
struct OneHangs {
    /// Other files that were read, and whether the one may be.
    state: Mutex<(HashSet<PathBuf>, bool)>,
    changed: Condvar,
}

impl Store for OneHangs {
    over_local!();

    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        let mut state = self.state.lock().unwrap();
        if location.path.ends_with("009.jpg") {
            drop(self.changed.wait_while(state, |(_, go_on)| !*go_on).unwrap());
            return Local.read(location, room);
        }
        Local.read(location, room)?;
        state.0.insert(location.path.to_owned());
        self.changed.notify_all();
        Ok(())
    }

    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        Local.size(location)
    }
}

#[test]
fn a_slow_sample_delays_only_its_own_batch() {
    let folder = Folder::new("slow");
    photos(&folder, 1, 20);
    let builder = cropped(&folder).batch_size(2).num_workers(2).prefetch_factor(5);
    let store = Arc::new(OneHangs::default());
    let mut loader = builder.store(store.clone()).build().unwrap();
    loader.begin_epoch();
    // Batch 4 holds the slow sample: those before it come, and the five after it are made by the
    // other worker, while the sample is still being read.
    for number in 0..4 {
        assert_eq!(loader.next_batch().unwrap().unwrap().number(), number);
    }
    let state = store.state.lock().unwrap();
    let (mut state, late) = store
        .changed
        .wait_timeout_while(state, Duration::from_secs(300), |(read, _)| read.len() < 19)
        .unwrap();
    assert!(!late.timed_out(), "{:?}", state.0);
    state.1 = true;
    drop(state);
    store.changed.notify_all();
    for number in 4..10 {
        assert_eq!(loader.next_batch().unwrap().unwrap().number(), number);
    }
    assert!(loader.next_batch().is_none());
}

struct Panics;

impl Source for Panics {
    fn len(&self) -> u64 {
        8
    }
    fn fields(&self) -> &[Field] {
        static FIELDS: std::sync::OnceLock<Vec<Field>> = std::sync::OnceLock::new();
        FIELDS.get_or_init(|| {
            let kind = FieldKind::Array { dtype: DType::I64, shape: Vec::new() };
            vec![Field { name: "x".to_owned(), kind }]
        })
    }
    fn value(&self, index: u64, _: usize) -> Result<Value<'_>, Fault> {
        assert!(index != 5, "sample 5 is cursed");
        Ok(Value::Int(index as i64))
    }
    fn fingerprint(&self) -> u64 {
        1
    }
    fn name(&self) -> String {
        "panics".to_owned()
    }
}

#[test]
fn a_panic_is_that_samples_error() {
    for workers in [0, 2] {
        let mut loader = Loader::over(Panics).batch_size(2).num_workers(workers).build().unwrap();
        let results: Vec<_> = loader.epoch().collect();
        assert_eq!(results.len(), 3, "two good batches, then the error ends the epoch");
        let Err(Error::Sample(error)) = &results[2] else { panic!("{:?}", results[2]) };
        assert_eq!(error.index, 5);
        assert!(error.to_string().contains("sample 5 is cursed"), "{error}");
        // The state points to the batch that failed.
        assert_eq!((loader.state().epoch, loader.state().batch), (0, 2));
        let mut skipping = Loader::over(Panics)
            .batch_size(2)
            .on_error(OnError::Skip)
            .num_workers(workers)
            .build()
            .unwrap();
        assert_eq!(skipping.epoch().filter(|batch| batch.is_ok()).count(), 4);
        assert_eq!(skipping.stats().work.failed, 1);
    }
}

#[test]
fn bad_samples_are_named_counted_and_listed() {
    let folder = Folder::new("bad");
    photos(&folder, 2, 10);
    let whole = jpeg(1, 40, 40);
    folder.write("class0/002.jpg", &whole[..whole.len() / 2]);
    folder.write("class0/004.jpg", b"");
    folder.write("class1/006.jpg", b"<html>not found</html>");
    let build = || cropped(&folder).batch_size(4).num_workers(2);

    let mut raising = build().build().unwrap();
    let error = raising.epoch().find_map(Result::err).unwrap();
    let Error::Sample(error) = error else { panic!("{error}") };
    assert_eq!((error.index, error.stage), (2, Stage::Decode));
    assert!(error.path.as_ref().unwrap().ends_with("class0/002.jpg"));

    let list = folder.path().join("quarantine.jsonl");
    let skipping = || build().on_error(OnError::Skip).quarantine(list.clone());
    let mut loader = skipping().build().unwrap();
    for _ in 0..3 {
        assert_eq!(loader.epoch().map(Result::unwrap).map(|b| b.rows()).sum::<usize>(), 20);
    }
    assert_eq!(loader.stats().work.failed, 3);
    let listed: Vec<serde_json::Value> = std::fs::read_to_string(&list)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(listed.len(), 3, "each once, though seen in three epochs");
    assert_eq!(listed[0]["index"], 2);
    assert!(listed[2]["reason"].as_str().unwrap().len() > 5);

    // The state carries what was skipped, so a resumed run does not list it again.
    let state = loader.state();
    assert_eq!(state.skipped, [(0, 2), (0, 4), (0, 16)]);
    let mut resumed = skipping().build().unwrap();
    resumed.resume(&state).unwrap();
    assert_eq!(resumed.epoch().filter(|batch| batch.is_ok()).count(), 5);
    assert_eq!(std::fs::read_to_string(&list).unwrap().lines().count(), 3);

    let mut strict = build().on_error(OnError::Skip).max_failures(1).build().unwrap();
    let error = strict.epoch().find_map(Result::err).unwrap();
    assert!(matches!(error, Error::TooManyFailures { failed: 2, allowed: 1, .. }), "{error}");
}

#[test]
fn with_everything_bad_the_run_ends_with_a_reason() {
    let folder = Folder::new("allbad");
    for number in 0..5 {
        folder.write(&format!("a/{number}.jpg"), b"nothing");
    }
    let mut loader =
        cropped(&folder).batch_size(2).on_error(OnError::Skip).num_workers(2).build().unwrap();
    assert!(matches!(loader.epoch().next(), Some(Err(Error::Sample(_)))));
}

/// A BMP of a kilobyte that declares 120 million pixels in runs.
fn vast_bitmap() -> Vec<u8> {
    let mut bytes = b"BM".to_vec();
    for number in [1080_u32, 0, 1078, 40, 12_000, 10_000, 1 | 8 << 16, 1, 2, 0, 0, 256, 0] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.resize(1078, 7);
    bytes.extend_from_slice(&[0, 1]);
    bytes
}

#[test]
fn a_sample_too_large_for_the_memory_is_skipped_by_name() {
    let folder = Folder::new("vast");
    photos(&folder, 2, 10);
    folder.write("class0/vast.bmp", &vast_bitmap());
    let sparse = folder.write("class1/sparse.jpg", b"\xff\xd8");
    let file = std::fs::OpenOptions::new().write(true).open(sparse).unwrap();
    file.set_len(1 << 43).unwrap();
    let build = || cropped(&folder).batch_size(4).memory(40_000_000);
    let mut raising = build().num_workers(2).build().unwrap();
    let error = raising.epoch().find_map(Result::err).unwrap();
    assert!(matches!(error, Error::Sample(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("class0/vast.bmp") && text.contains("memory leaves 40.0 MB"), "{text}");

    let mut hashes = Vec::new();
    for workers in [0, 1, 4] {
        let list = folder.path().join(format!("{workers}.jsonl"));
        let skipping =
            build().on_error(OnError::Skip).quarantine(list.clone()).num_workers(workers);
        let mut loader = skipping.build().unwrap();
        let batches: Vec<_> = loader.epoch().map(|batch| batch.unwrap().hash()).collect();
        assert_eq!(batches.len(), 6);
        assert_eq!(loader.stats().work.failed, 2);
        let listed = std::fs::read_to_string(list).unwrap();
        assert!(listed.contains("vast.bmp") && listed.contains("sparse.jpg"), "{listed}");
        hashes.push(batches);
    }
    assert!(hashes.iter().all(|batches| *batches == hashes[0]), "with any number of workers");
}

#[test]
fn memory_in_which_no_sample_fits_is_the_settings_fault() {
    let folder = Folder::new("all-vast");
    for number in 0..4 {
        folder.write(&format!("a/{number}.bmp"), &vast_bitmap());
    }
    let builder = cropped(&folder).batch_size(2).memory(40_000_000).on_error(OnError::Skip);
    let mut loader = builder.num_workers(2).build().unwrap();
    let error = loader.epoch().find_map(Result::err).unwrap();
    assert!(matches!(error, Error::Memory(_)), "{error}");
    assert!(error.to_string().contains("raise memory"), "{error}");
}

#[test]
fn what_a_source_keeps_counts_as_memory() {
    let folder = Folder::new("kept-names");
    photos(&folder, 1, 1);
    let mut text = "path,label,score\n".to_owned();
    for row in 0..100_000 {
        text.push_str(&format!("class0/a-rather-long-name-of-a-file-{row:06}.jpg,{row},0.5\n"));
    }
    let table = folder.write("table.csv", text.as_bytes());
    let build = |memory| {
        let op = OpSpec::new("Resize").with("size", vec![8, 8]);
        Loader::builder(&table).transform(op).batch_size(4).memory(memory).build()
    };
    let error = build(4_000_000).err().unwrap();
    assert!(matches!(error, Error::Memory(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("table.csv") && text.contains("raise memory"), "{text}");
    let limit = build(40_000_000).unwrap().stats().flow.limit;
    assert!((20_000_000..35_000_000).contains(&limit), "{limit}");
}

/// A PPM of zeros that takes no room on the disk.
fn black(folder: &Folder, name: &str, side: u64) {
    let path = folder.write(name, format!("P6 {side} {side} 255\n").as_bytes());
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() + side * side * 3).unwrap();
}

#[test]
fn what_a_source_keeps_leaves_less_for_a_sample_which_is_skipped_by_name() {
    let folder = Folder::new("kept-and-large");
    (0..8).for_each(|number| black(&folder, &format!("s{number}.ppm"), 32));
    black(&folder, "large.ppm", 3000);
    let mut text = "path,label\nlarge.ppm,0\n".to_owned();
    for row in 0..150_000 {
        text.push_str(&format!("{}s{}.ppm,{}\n", "./".repeat(45), row % 8, row % 8));
    }
    let table = folder.write("table.csv", text.as_bytes());
    let mut hashes = Vec::new();
    for workers in [0, 1, 4] {
        let op = OpSpec::new("CenterCrop").with("size", 16);
        let builder = Loader::builder(&table).transform(op).batch_size(4).memory(64 << 20);
        let builder = builder.on_error(OnError::Skip).num_workers(workers);
        let mut loader = builder.build().unwrap();
        let batches: Vec<_> = loader.epoch().take(3).map(|batch| batch.unwrap().hash()).collect();
        assert_eq!(loader.stats().work.failed, 1, "{workers} workers");
        hashes.push(batches);
    }
    assert!(hashes.iter().all(|batches| *batches == hashes[0]), "with any number of workers");
}

/// Images of one size, of which the first has a long text.
struct Captioned {
    image: Vec<u8>,
    long: Vec<u8>,
    fields: Vec<Field>,
}

impl Source for Captioned {
    fn len(&self) -> u64 {
        4
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn value(&self, index: u64, field: usize) -> Result<Value<'_>, Fault> {
        Ok(Value::Bytes(match (field, index) {
            (0, _) => &self.image,
            (_, 0) => &self.long,
            _ => b"short",
        }))
    }

    fn fingerprint(&self) -> u64 {
        9
    }

    fn name(&self) -> String {
        "captions".to_owned()
    }
}

#[test]
fn a_text_beside_an_image_is_too_long_whether_or_not_the_image_is_cached() {
    for decoded in [false, true] {
        let mut image = b"P6 1000 1000 255\n".to_vec();
        image.resize(image.len() + 3_000_000, 5);
        let field = |name: &str, kind| Field { name: name.to_owned(), kind };
        let fields = vec![field("image", FieldKind::EncodedImage), field("text", FieldKind::Text)];
        let source = Captioned { image, long: vec![b'a'; 14_500_000], fields };
        let cache = CacheSpec::default().with(|cache| {
            cache.decoded = decoded;
            cache.limit = Some(15_000_000);
            cache.required = false;
        });
        let mut loader = Loader::over(source)
            .transform(OpSpec::new("CenterCrop").with("size", 16))
            .batch_size(2)
            .memory(31_000_000)
            .cache(cache)
            .on_error(OnError::Skip)
            .num_workers(1)
            .build()
            .unwrap();
        for epoch in 1..=3 {
            for batch in loader.epoch() {
                let batch = batch.unwrap();
                let lengths = [0, 1].map(|row| batch.ragged(1).unwrap().bytes(row).len());
                assert_eq!(lengths, [5, 5], "epoch {epoch}, decoded {decoded}");
            }
        }
    }
}

#[test]
fn batches_held_by_the_program_are_an_error_not_a_hang() {
    let mut loader = Loader::over(arrays(4000))
        .transform(OpSpec::new("Resize").with("size", 64))
        .batch_size(256)
        .memory(8_000_000)
        .num_workers(2)
        .build()
        .unwrap();
    let mut kept = Vec::new();
    let error = loader.epoch().find_map(|batch| match batch {
        Ok(batch) => {
            kept.push(batch);
            None
        }
        Err(error) => Some(error),
    });
    let error = error.unwrap();
    assert!(matches!(error, Error::Memory(_)), "{error}");
    assert!(error.to_string().contains("drop batches sooner"), "{error}");
    // Once they are dropped the run goes on with the very next batch.
    let next = kept.len() as u64;
    kept.clear();
    let state = loader.state();
    assert_eq!(state.batch, next);
    loader.resume(&state).unwrap();
    assert_eq!(loader.epoch().filter(|batch| batch.is_ok()).count() as u64, 16 - next);
}

#[test]
fn a_demanded_cache_that_is_too_small_is_refused_at_once() {
    let folder = Folder::new("cache");
    photos(&folder, 2, 8);
    for decoded in [false, true] {
        let build = |limit, required| {
            let cache = CacheSpec::default().with(|cache| {
                cache.decoded = decoded;
                cache.limit = Some(limit);
                cache.required = required;
            });
            cropped(&folder).batch_size(4).num_workers(2).cache(cache).build()
        };
        let Err(error) = build(3000, true) else { panic!("was accepted") };
        assert!(error.to_string().contains("cache.required = false"), "{error}");
        // Allowed but too small: it keeps what fits.
        let mut some = build(3000, false).unwrap();
        let mut all = build(1_000_000, true).unwrap();
        let mut none = cropped(&folder).batch_size(4).build().unwrap();
        for _ in 0..2 {
            for ((a, b), c) in some.epoch().zip(all.epoch()).zip(none.epoch()) {
                let hash = c.unwrap().hash();
                assert_eq!((a.unwrap().hash(), b.unwrap().hash()), (hash, hash));
            }
        }
        assert!(some.stats().cached_bytes <= 3000);
        assert!(all.stats().work.cache_hits >= 16, "{:?}", all.stats().work);
    }
}

#[test]
fn a_huge_declared_image_is_refused_without_memory() {
    let folder = Folder::new("huge");
    photos(&folder, 1, 3);
    // A PNG header that declares 65535 x 65535 pixels.
    let mut png = vec![0x89, b'P', b'N', b'G', 13, 10, 26, 10, 0, 0, 0, 13];
    let mut header = b"IHDR".to_vec();
    header.extend([0, 0, 255, 255, 0, 0, 255, 255, 8, 2, 0, 0, 0]);
    png.extend(&header);
    png.extend(crc(&header).to_be_bytes());
    png.extend([0, 0, 0, 1, b'I', b'D', b'A', b'T', 0, 0, 0, 0, 0]);
    folder.write("class0/001.png", &png);
    let mut loader = cropped(&folder).batch_size(4).num_workers(1).build().unwrap();
    let error = loader.epoch().find_map(Result::err).unwrap().to_string();
    assert!(error.contains("65535"), "{error}");
}

fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

#[test]
fn an_image_that_memory_cannot_hold_is_named() {
    let folder = Folder::new("big");
    folder.write("a/0.jpg", &jpeg(1, 2000, 2000));
    let mut loader = cropped(&folder).memory(4_000_000).num_workers(2).build().unwrap();
    let error = loader.epoch().find_map(Result::err).unwrap().to_string();
    assert!(error.contains("0.jpg") && error.contains("raise memory"), "{error}");
    let mut enough = cropped(&folder).memory(40_000_000).num_workers(2).build().unwrap();
    assert!(enough.epoch().all(|batch| batch.is_ok()));
}

/// Whether a sample fits into little memory depends on that sample alone: large files of small
/// images and small files of large images, at limits that some of them pass and some do not.
#[test]
fn little_memory_gives_the_same_with_any_workers() {
    let folder = Folder::new("alternating");
    let mut draws = feedline::internals::random::Draws::new(1, 0, 0, 0);
    for number in 0..16 {
        let side: usize = if number % 2 == 0 { 420 } else { 560 };
        let mut pixels = vec![number as u8; side * side * 3];
        if number % 2 == 0 {
            pixels.iter_mut().for_each(|x| *x = draws.bits() as u8);
        }
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, side as u32, side as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
        folder.write(&format!("a/{number:02}.png"), &bytes);
    }
    let mut outcomes = std::collections::BTreeSet::new();
    for memory in (1_100_000..2_300_000).step_by(100_000) {
        let run = |workers| {
            let builder = cropped(&folder).batch_size(4).shuffle(true).memory(memory);
            let mut loader = builder.on_error(OnError::Skip).num_workers(workers).build().unwrap();
            let mut hashes = Vec::new();
            for _ in 0..2 {
                for batch in loader.epoch() {
                    hashes.push(batch.map(|b| b.hash()).map_err(|e| e.to_string()));
                }
            }
            let skipped = loader.state().skipped.len();
            (hashes, skipped)
        };
        let alone = run(0);
        // What is skipped follows from the sample and the setting, never from what is free.
        assert_eq!(run(1), alone, "memory = {memory}");
        assert_eq!(run(4), alone, "memory = {memory}");
        outcomes.insert((alone.1, alone.0.iter().any(Result::is_err)));
    }
    assert!(outcomes.contains(&(0, false)), "{outcomes:?}: the largest limit holds all");
    assert!(outcomes.contains(&(8, false)), "{outcomes:?}: some limits hold half of them");
    assert!(outcomes.iter().any(|(_, failed)| *failed), "{outcomes:?}: some hold none");
}

#[test]
fn an_error_leaves_the_run_at_its_batch() {
    let folder = Folder::new("stays");
    photos(&folder, 1, 12);
    folder.write("class0/001.jpg", b"bad");
    let places = |mut loader: Loader| {
        for _ in 0..2 {
            let first = loader.epoch().next();
            assert!(matches!(first, Some(Err(_))), "{first:?}");
            assert_eq!(loader.position(), (0, 0));
        }
    };
    let skipping = || cropped(&folder).batch_size(4).on_error(OnError::Skip).num_workers(2);
    places(skipping().quarantine("/dev/full".into()).build().unwrap());
    places(skipping().max_failures(0).build().unwrap());
    places(cropped(&folder).batch_size(4).num_workers(2).build().unwrap());
}

#[test]
fn next_batch_ends_with_its_epoch() {
    let mut loader = Loader::over(arrays(12)).batch_size(4).num_workers(2).build().unwrap();
    for epoch in 0..3 {
        loader.begin_epoch();
        let mut seen = 0;
        while let Some(batch) = loader.next_batch() {
            assert_eq!(batch.unwrap().epoch(), epoch);
            seen += 1;
        }
        assert_eq!(seen, 3);
        assert!(loader.next_batch().is_none());
    }
}

#[test]
fn a_cache_that_turns_out_too_small_ends_the_run_and_skips_nothing() {
    let (small, large) = (Folder::new("small"), Folder::new("large"));
    for number in 0..8 {
        small.write(&format!("a/{number}.jpg"), &jpeg(number, 16, 16));
        large.write(&format!("a/{number}.jpg"), &jpeg(number, 200, 200));
    }
    // One limit over both sources: it need not be shared out by the number of samples.
    let total = 8 * (16 * 16 + 200 * 200) * 3;
    let build = |limit| {
        let cache = CacheSpec::default().with(|cache| {
            cache.decoded = true;
            cache.limit = Some(limit);
            cache.required = true;
        });
        let builder = cropped(&small).source(large.path()).batch_size(4).num_workers(2);
        builder.on_error(OnError::Skip).cache(cache).build()
    };
    let mut enough = build(total).unwrap();
    assert!(enough.epoch().all(|batch| batch.is_ok()));
    assert_eq!(enough.stats().cached_bytes, total);
    assert!(matches!(build(total - 1), Err(Error::Cache(_))));
    // Files that grew after they were looked at.
    let mut loader = build(total).unwrap();
    for number in 0..8 {
        large.write(&format!("a/{number}.jpg"), &jpeg(number, 300, 300));
    }
    let errors: Vec<Error> = loader.epoch().filter_map(Result::err).collect();
    assert!(matches!(errors[..], [Error::Cache(_)]), "{errors:?}");
    assert_eq!(loader.stats().work.failed, 0);
}

#[test]
fn the_next_epoch_is_made_while_the_last_batches_are_consumed() {
    let mut loader =
        Loader::over(arrays(64)).batch_size(8).num_workers(2).prefetch_factor(4).build().unwrap();
    let batches: Vec<_> = loader.epoch().map(Result::unwrap).collect();
    drop(batches);
    let deadline = Instant::now() + Duration::from_secs(300);
    while loader.stats().flow.ready == 0 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert!(loader.stats().flow.ready > 0, "{:?}", loader.stats().flow);
    assert_eq!(loader.epoch().next().unwrap().unwrap().epoch(), 1);
}

#[test]
fn epochs_follow_set_epoch_and_breaking_off() {
    let mut loader =
        Loader::over(arrays(12)).batch_size(4).shuffle(true).num_workers(2).build().unwrap();
    let first = |loader: &mut Loader| {
        let batch = loader.epoch().next().unwrap().unwrap();
        (batch.epoch(), rows(&batch))
    };
    let zero = first(&mut loader);
    let one = first(&mut loader);
    assert_eq!((zero.0, one.0), (0, 1));
    assert_ne!(zero.1, one.1);
    loader.set_epoch(0);
    assert_eq!(first(&mut loader), zero);
    loader.set_epoch(1_000_000);
    assert_eq!(first(&mut loader).0, 1_000_000);
}

#[test]
fn images_of_other_sizes_are_refused_with_the_remedy() {
    let folder = Folder::new("sizes");
    folder.write("a/0.jpg", &jpeg(1, 20, 30));
    folder.write("a/1.jpg", &jpeg(2, 21, 30));
    let mut loader = Loader::builder(folder.path()).batch_size(2).num_workers(1).build().unwrap();
    let error = loader.epoch().find_map(Result::err).unwrap().to_string();
    assert!(error.contains("1.jpg") && error.contains("[3, 30, 21]"), "{error}");
    assert!(error.contains("add a Resize or a crop"), "{error}");
}
