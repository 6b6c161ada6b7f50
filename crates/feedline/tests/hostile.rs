//! Damaged files: whatever a file holds, opening and reading it ends, soon, within little memory,
//! with values or errors and never a panic.
//!
//! Each file of `fixtures/` (and each index that is made of it) is damaged in every way below, at
//! least 20,000 times for each parser. `FEEDLINE_MUTATIONS` sets another number (`make soak
//! SOAK=hostile`: a million), and
//! `FEEDLINE_HOSTILE=name:number` runs one damage alone.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(unsafe_code)]

#[path = "support/reading.rs"]
mod reading;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use feedline::spec::SourceFormat;
use reading::{MEMORY, read};

/// Time of one thread that it may take.
const TIME: Duration = Duration::from_secs(1);

/// Counts what this thread holds and the most that it held.
struct Counting;

thread_local! {
    static HELD: Cell<u64> = const { Cell::new(0) };
    static MOST: Cell<u64> = const { Cell::new(0) };
}

fn count(change: i64) {
    // A thread that is ending has no counters any more.
    let _ = HELD.try_with(|held| {
        let now = held.get().saturating_add_signed(change);
        held.set(now);
        let _ = MOST.try_with(|most| most.set(most.get().max(now)));
    });
}

// SAFETY: everything is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Numbers without a pattern, the same in every run.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Lengths and offsets that a parser may not expect.
fn extreme(draws: &mut Draws, length: usize) -> u64 {
    let near = length as u64;
    let numbers = [
        0,
        1,
        2,
        7,
        8,
        255,
        256,
        0x7f,
        0x80,
        0x7fff,
        0x8000,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0xffff_fff0,
        1 << 32,
        1 << 40,
        i64::MAX as u64,
        u64::MAX,
        u64::MAX - 7,
        near,
        near.wrapping_sub(1),
        near + 1,
        near / 2,
        near * 2,
    ];
    numbers[draws.below(numbers.len())]
}

fn put(bytes: &mut [u8], at: usize, width: usize, number: u64, big: bool) {
    let little = number.to_le_bytes();
    for (place, target) in bytes[at..].iter_mut().take(width).enumerate() {
        *target = little[if big { width - 1 - place } else { place }];
    }
}

/// Damage number `number` of `bytes`.
fn damage(bytes: &[u8], number: u64) -> Vec<u8> {
    let length = bytes.len();
    // First cut at every byte, then turn every bit, then whatever comes.
    if number < length as u64 {
        return bytes[..number as usize].to_vec();
    }
    let mut out = bytes.to_vec();
    let bit = number - length as u64;
    if bit < 8 * length as u64 {
        out[(bit / 8) as usize] ^= 1 << (bit % 8);
        return out;
    }
    let mut draws = Draws(number);
    for _ in 0..1 + draws.below(4) {
        let length = out.len();
        if length == 0 {
            break;
        }
        let at = draws.below(length);
        match draws.below(8) {
            0 => out[at] = draws.next() as u8,
            1..=4 => {
                let width = [1, 2, 4, 8][draws.below(4)];
                let number = extreme(&mut draws, length);
                let big = draws.below(4) == 0;
                put(&mut out, at, width, number, big);
            }
            5 => out.truncate(at),
            6 => {
                // A part twice.
                let end = (at + 1 + draws.below(64)).min(length);
                let part = out[at..end].to_vec();
                out.splice(at..at, part);
            }
            _ => {
                // A part missing.
                let end = (at + 1 + draws.below(64)).min(length);
                out.drain(at..end);
            }
        }
    }
    out
}

fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the struct is ours and lives until the call is over.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A folder in memory, which goes with this.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let shared = Path::new("/dev/shm");
        let root = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        let folder = root.join(format!("feedline-hostile-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        fs::copy(from, to).unwrap();
    }
}

fn files_below(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files_below(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn mutations() -> u64 {
    std::env::var("FEEDLINE_MUTATIONS").map_or(20_000, |text| text.parse().unwrap())
}

/// Damages `names` (files or folders of the fixtures), as many times in all as is asked for.
fn damage_all(format: SourceFormat, names: &[&str]) {
    // What a library panics about inside a source is caught there; silence keeps the log short.
    if std::env::var("FEEDLINE_HOSTILE").is_err() {
        std::panic::set_hook(Box::new(|_| {}));
    }
    let each = mutations().div_ceil(names.len() as u64);
    for name in names {
        let scratch = Scratch::new(name);
        let path = scratch.0.join(name);
        copy(&fixtures().join(name), &path);
        assert!(read(format, &path) > 0, "{name} is read while it is whole");
        // The index that this left behind is untrusted like the rest.
        let mut files = Vec::new();
        files_below(&scratch.0, &mut files);
        let whole: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
        let total: usize = whole.iter().map(Vec::len).sum();
        for (file, bytes) in files.iter().zip(&whole) {
            if bytes.is_empty() {
                continue;
            }
            // Larger files have more places to damage, and small ones enough of them.
            let share = each * bytes.len() as u64 / total as u64;
            for number in 0..share.max(each / files.len() as u64 / 2) {
                one(format, name, &path, file, bytes, number);
            }
            fs::write(file, bytes).unwrap();
            restore(&files, &whole);
        }
    }
}

fn restore(files: &[PathBuf], whole: &[Vec<u8>]) {
    for (file, bytes) in files.iter().zip(whole) {
        fs::write(file, bytes).unwrap();
    }
}

/// The damage that is being looked at, for a report if it never ends.
static NOW: AtomicU64 = AtomicU64::new(0);

fn one(format: SourceFormat, name: &str, path: &Path, file: &Path, bytes: &[u8], number: u64) {
    let shown = file.file_name().unwrap().to_string_lossy().into_owned();
    let label = format!("{name}:{number}");
    if std::env::var("FEEDLINE_HOSTILE").is_ok_and(|only| only != label) {
        return;
    }
    NOW.store(number, Relaxed);
    fs::write(file, damage(bytes, number)).unwrap();
    let held = HELD.get();
    MOST.set(held);
    let began = thread_time();
    let outcome = catch_unwind(AssertUnwindSafe(|| read(format, path)));
    let time = thread_time() - began;
    let most = MOST.get() - held;
    assert!(outcome.is_ok(), "{label} ({shown}): a panic");
    assert!(time < TIME, "{label} ({shown}): took {time:?}");
    assert!(most < MEMORY * 2, "{label} ({shown}): took {most} bytes");
}

/// Ends a run that hangs, and says where.
fn watched(name: &str, work: impl FnOnce() + Send + 'static) {
    let worker = std::thread::Builder::new().name(name.to_owned()).spawn(work).unwrap();
    let (mut last, mut idle) = (0, 0);
    while !worker.is_finished() {
        std::thread::sleep(Duration::from_millis(50));
        let now = NOW.load(Relaxed);
        idle = if now == last { idle + 1 } else { 0 };
        last = now;
        if idle > 20 * 60 {
            eprintln!("{name}: damage {now} does not end");
            std::process::abort();
        }
    }
    if let Err(payload) = worker.join() {
        let text = payload.downcast_ref::<String>().cloned().unwrap_or_default();
        // The hook that would say it is silent.
        eprintln!("{name}: {text}");
        panic!("{text}");
    }
}

macro_rules! hostile {
    ($($test:ident: $format:ident [$($name:literal),*];)*) => {
        $(#[test]
        fn $test() {
            watched(stringify!($test), || damage_all(SourceFormat::$format, &[$($name),*]));
        })*
    };
}

hostile! {
    tar: Tar ["plain.tar", "packed.tar.gz", "packed.tar.zst"];
    tfrecord: Tfrecord ["examples.tfrecord", "examples.tfrecord.gz", "sequences.tfrecord"];
    lmdb: Lmdb ["samples.lmdb"];
    hdf5: Hdf5 ["earliest.h5", "latest.h5"];
    npy: Npy ["rows.npy", "big-endian.npy", "fortran.npy", "stored.npz", "deflated.npz"];
    parquet: Parquet ["plain.parquet", "packed.parquet", "snappy.parquet"];
    arrow: Arrow ["plain.arrow", "stream.arrow", "packed.feather"];
    csv: Csv ["table.csv"];
    jsonl: Jsonl ["table.jsonl"];
    zarr: Zarr ["v2.zarr", "v3.zarr"];
    mds: Mds ["mds"];
    litdata: Litdata ["litdata"];
    raw: Auto ["raw"];
    zip: Zip ["images.zip"];
}
