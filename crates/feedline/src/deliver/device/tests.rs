//! The prefetcher on a device that dawdles, with hosts and consumers that are as rude as allowed:
//! host memory is scribbled over as soon as it is given back, and device batches are dropped as
//! soon as work that reads them is queued.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use super::fake::Fake;
use super::*;
use crate::deliver::{Batch, Home};
use crate::layout::BatchLayout;
use crate::sample::DType;

const BYTES: usize = 600;

/// Scribbles over memory that it gets back, and gives it out again.
#[derive(Default)]
struct Rude {
    free: Mutex<Vec<Arc<BatchMemory>>>,
    out: AtomicUsize,
}

fn fill(memory: &BatchMemory, value: u8) {
    for at in 0..memory.len() {
        // SAFETY: inside the memory. Atomic, as the copies of the fake are.
        unsafe { AtomicU8::from_ptr(memory.as_ptr().add(at)) }.store(value, Ordering::Relaxed);
    }
}

impl Home for Rude {
    fn take_back(&self, memory: Arc<BatchMemory>) {
        fill(&memory, 0xEE);
        self.out.fetch_sub(1, Ordering::SeqCst);
        self.free.lock().unwrap().push(memory);
    }
}

fn layout() -> Arc<BatchLayout> {
    let mut layout = BatchLayout::new(4);
    layout.push("image", DType::U8, &[BYTES / 4]).unwrap();
    layout.push("label", DType::I64, &[]).unwrap();
    Arc::new(layout)
}

fn batch(home: &Arc<Rude>, home_of_batch: Arc<dyn Home>, number: u64) -> Batch {
    let memory = home.free.lock().unwrap().pop();
    let memory = memory.unwrap_or_else(|| Arc::new(BatchMemory::new(layout().bytes()).unwrap()));
    fill(&memory, value(number));
    home.out.fetch_add(1, Ordering::SeqCst);
    // SAFETY: nobody writes to the memory before it comes back.
    unsafe { Batch::new(layout(), memory, home_of_batch, 4, (0, number), 0) }
}

fn value(number: u64) -> u8 {
    1 + (number % 200) as u8
}

/// Runs `count` batches through a prefetcher and returns how many a consumer saw with wrong bytes.
fn run(fake: &Arc<Fake>, count: u64, ahead: usize) -> usize {
    let device = fake.device();
    let home = Arc::new(Rude::default());
    let mut prefetcher = Prefetcher::new(device.clone(), &layout(), ahead).unwrap();
    let consumer = Stream::new(&device).unwrap();
    let mut seen: Vec<(u64, Receiver<Vec<u8>>)> = Vec::new();
    let mut made = 0;
    while (seen.len() as u64) < count {
        prefetcher.release().unwrap();
        while made < count && prefetcher.reserve().unwrap() {
            let batch = batch(&home, home.clone(), made);
            PageLock::of_batch(&device, home_memory(&batch)).unwrap();
            prefetcher.submit(batch, made).unwrap();
            made += 1;
        }
        let (batch, number) = prefetcher.take().unwrap();
        batch.hand_to(Some(consumer.handle() as i64)).unwrap();
        let address = batch.address(0).unwrap();
        seen.push((number, fake.read_later(address, BYTES, consumer.handle())));
        // The program's last array dies while its stream has yet to read it.
        drop(batch);
        let slots = prefetcher.figures().slots as usize;
        assert!(slots <= ahead + 4, "device memory for {slots} batches");
    }
    let wrong = seen
        .into_iter()
        .filter(|(number, bytes)| bytes.recv().unwrap() != vec![value(*number); BYTES])
        .count();
    drop(prefetcher);
    drop(consumer);
    assert_eq!(home.out.load(Ordering::SeqCst), 0, "every host batch came home");
    home.free.lock().unwrap().clear();
    assert_eq!(fake.left(), (0, 0, 0, 0), "memory, events, streams, locks");
    wrong
}

fn home_memory(batch: &Batch) -> &BatchMemory {
    batch.memory().unwrap()
}

#[test]
fn many_schedules_deliver_every_byte_and_leave_nothing() {
    for seed in 0..60 {
        let fake = Fake::new(seed, [0, 20, 100, 300][seed as usize % 4]);
        let wrong = run(&fake, 30, seed as usize % 4);
        assert_eq!(wrong, 0, "seed {seed}");
        let locked = fake.locked.load(Ordering::Relaxed);
        assert!(locked <= 30, "memory is locked once, not for every batch: {locked}");
    }
}

#[test]
fn without_the_guard_of_host_memory_the_poison_is_seen() {
    let fake = Fake::new(1, 300);
    fake.events_lie.store(true, Ordering::Relaxed);
    let wrong = run(&fake, 30, 2);
    assert!(wrong > 0, "early reuse of host memory must be seen");
}

#[test]
fn without_the_guard_of_device_memory_the_poison_is_seen() {
    let fake = Fake::new(2, 300);
    fake.waits_lie.store(true, Ordering::Relaxed);
    let wrong = run(&fake, 30, 2);
    assert!(wrong > 0, "early reuse of device memory must be seen");
}

#[test]
fn every_kind_of_stream_is_served() {
    let fake = Fake::new(3, 50);
    let device = fake.device();
    let home = Arc::new(Rude::default());
    let mut prefetcher = Prefetcher::new(device.clone(), &layout(), 1).unwrap();
    for (number, stream) in [None, Some(1), Some(-1)].into_iter().enumerate() {
        prefetcher.submit(batch(&home, home.clone(), number as u64), ()).unwrap();
        let (batch, ()) = prefetcher.take().unwrap();
        batch.hand_to(stream).unwrap();
        let read = fake.read_later(batch.address(0).unwrap(), BYTES, LEGACY_STREAM);
        if stream != Some(-1) {
            assert_eq!(read.recv().unwrap(), vec![value(number as u64); BYTES]);
        }
        batch.hand_to_anybody().unwrap();
        assert_eq!(batch.read_back().unwrap()[0], vec![value(number as u64); BYTES]);
        for wrong in [0, -2, i64::MIN] {
            assert_eq!(batch.hand_to(Some(wrong)), Err(DeviceError::Stream(wrong)));
        }
        // A stream that is gone is an error for who asks; nothing hangs on it later.
        assert!(batch.hand_to(Some(77)).is_err());
    }
    drop(prefetcher);
    home.free.lock().unwrap().clear();
    assert_eq!(fake.left(), (0, 0, 0, 0));
}

#[test]
fn a_full_device_stops_prefetching_and_fails_only_when_nothing_waits() {
    let fake = Fake::new(4, 20);
    let device = fake.device();
    let home = Arc::new(Rude::default());
    let mut prefetcher = Prefetcher::new(device.clone(), &layout(), 3).unwrap();
    let (_, bytes) = super::batch::offsets(&layout()).unwrap();
    fake.most.store(2 * bytes, Ordering::Relaxed);
    for number in 0..2 {
        assert!(prefetcher.reserve().unwrap());
        prefetcher.submit(batch(&home, home.clone(), number), ()).unwrap();
    }
    assert!(!prefetcher.reserve().unwrap());
    let held = [prefetcher.take().unwrap(), prefetcher.take().unwrap()];
    assert!(prefetcher.reserve().unwrap_err().is_out_of_memory());
    drop(held);
    assert!(prefetcher.reserve().unwrap());
    assert_eq!(fake.allocated(), 2 * bytes);
    drop(prefetcher);
    home.free.lock().unwrap().clear();
    assert_eq!(fake.left(), (0, 0, 0, 0));
}

#[test]
fn batches_outlive_the_prefetcher() {
    let fake = Fake::new(5, 100);
    let device = fake.device();
    let home = Arc::new(Rude::default());
    let mut prefetcher = Prefetcher::new(device.clone(), &layout(), 2).unwrap();
    prefetcher.submit(batch(&home, home.clone(), 0), ()).unwrap();
    prefetcher.submit(batch(&home, home.clone(), 1), ()).unwrap();
    let (kept, ()) = prefetcher.take().unwrap();
    drop(prefetcher);
    assert_eq!(home.out.load(Ordering::SeqCst), 0);
    kept.hand_to(None).unwrap();
    let read = fake.read_later(kept.address(0).unwrap(), BYTES, LEGACY_STREAM);
    drop(kept);
    assert_eq!(read.recv().unwrap(), vec![value(0); BYTES]);
    assert_eq!(fake.left().0, 0, "freed when its readers were done");
    home.free.lock().unwrap().clear();
    assert_eq!(fake.left(), (0, 0, 0, 0));
}

#[test]
fn pinned_batches_come_home_when_the_program_s_copies_are_done() {
    for seed in 0..20 {
        let fake = Fake::new(seed, 200);
        let device = fake.device();
        let home = Arc::new(Rude::default());
        let returning = Arc::new(Returning::new(home.clone(), device.clone()));
        let own = Stream::new(&device).unwrap();
        let mut targets = Vec::new();
        for number in 0..20 {
            returning.collect().unwrap();
            let batch = batch(&home, returning.clone(), number);
            PageLock::of_batch(&device, home_memory(&batch)).unwrap();
            let target = DeviceMemory::new(&device, BYTES).unwrap();
            // SAFETY: the batch is dropped too early, which `Returning` makes up for.
            unsafe { target.copy_in(0, batch.array(0).unwrap().bytes, &own) }.unwrap();
            targets.push(target);
        }
        if seed % 2 == 0 {
            while returning.collect().unwrap() {
                std::thread::yield_now();
            }
        }
        returning.close();
        for (number, target) in targets.iter().enumerate() {
            let mut bytes = vec![0; BYTES];
            target.read(0, &mut bytes, &own).unwrap();
            assert_eq!(bytes, vec![value(number as u64); BYTES], "seed {seed}");
        }
        assert_eq!(home.out.load(Ordering::SeqCst), 0);
        // After the end memory is handed back as it comes.
        drop(batch(&home, returning.clone(), 0));
        assert_eq!(home.out.load(Ordering::SeqCst), 0);
        drop((targets, own));
        home.free.lock().unwrap().clear();
        assert_eq!(fake.left(), (0, 0, 0, 0));
    }
}

#[test]
fn every_call_that_fails_is_an_error_and_leaves_nothing() {
    let calls = [
        "allocate",
        "create_stream",
        "create_event",
        "copy_in",
        "record",
        "has_passed",
        "wait",
        "make_wait",
        "lock",
        "unlock",
        "free",
        "destroy_event",
        "destroy_stream",
    ];
    for call in calls {
        for after in 0..8 {
            let fake = Fake::new(6, 30);
            let device = fake.device();
            let home = Arc::new(Rude::default());
            *fake.failing.lock().unwrap() = Some((call, after, 1));
            let hit = || fake.failing.lock().unwrap().is_none_or(|(_, _, times)| times == 0);
            let outcome = (|| -> Result<bool, crate::Error> {
                let mut prefetcher = Prefetcher::new(device.clone(), &layout(), 2)?;
                let consumer = Stream::new(&device)?;
                for number in 0..8 {
                    prefetcher.release()?;
                    prefetcher.reserve()?;
                    let batch = batch(&home, home.clone(), number);
                    PageLock::of_batch(&device, home_memory(&batch))?;
                    prefetcher.submit(batch, ())?;
                    if let Some((batch, ())) = prefetcher.take() {
                        batch.hand_to(Some(consumer.handle() as i64))?;
                    }
                }
                // What fails later, at the end, has nobody to be reported to.
                Ok(hit())
            })();
            // Of what only gives back, nobody can make use of an error. A failed record in a
            // consumer's stream is made up for by waiting for all streams.
            let silent = ["unlock", "free", "destroy_event", "destroy_stream", "wait", "record"];
            match outcome {
                Ok(hit) => assert!(!hit || silent.contains(&call), "{call} after {after}"),
                Err(error) => assert!(error.to_string().starts_with(call), "{error}"),
            }
            assert_eq!(home.out.load(Ordering::SeqCst), 0, "{call} after {after}");
            home.free.lock().unwrap().clear();
            assert_eq!(fake.left(), (0, 0, 0, 0), "{call} after {after}");
        }
    }
}

#[test]
fn memory_whose_readers_cannot_be_followed_is_freed_behind_them() {
    for (call, known) in [("make_wait", true), ("make_wait", false), ("record_all", false)] {
        for seed in 0..10 {
            let fake = Fake::new(seed, 2000);
            let device = fake.device();
            let home = Arc::new(Rude::default());
            let mut prefetcher = Prefetcher::new(device.clone(), &layout(), 2).unwrap();
            let consumer = Stream::new(&device).unwrap();
            prefetcher.submit(batch(&home, home.clone(), 7), ()).unwrap();
            let (taken, ()) = prefetcher.take().unwrap();
            taken.hand_to(Some(consumer.handle() as i64)).unwrap();
            if !known {
                taken.hand_to(Some(-1)).unwrap();
            }
            let bytes = fake.read_later(taken.address(0).unwrap(), BYTES, consumer.handle());
            drop(taken);
            *fake.failing.lock().unwrap() =
                Some((call, usize::from(!known && call == "make_wait"), 1));
            assert!(prefetcher.reserve().unwrap_err().to_string().starts_with(call));
            assert!(bytes.recv().unwrap() == vec![value(7); BYTES], "{call}, seed {seed}");
        }
    }
}

#[test]
fn names_of_devices() {
    assert_eq!(number("cuda").unwrap(), 0);
    assert_eq!(number("cuda:3").unwrap(), 3);
    for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda3", "cuda:-1", "cuda:99999999999", "cpu"] {
        assert_eq!(number(wrong), Err(DeviceError::Name(wrong.to_owned())));
    }
}

#[test]
fn what_is_measured_is_verified() {
    let fake = Fake::new(7, 100);
    let steps = AtomicUsize::new(0);
    let measured = measure::measure(&fake.device(), 5000, 3, &|done| {
        steps.store(done as usize, Ordering::Relaxed)
    });
    let measured = measured.unwrap();
    assert_eq!((measured.wrong, measured.bytes), (0, 5000));
    assert_eq!(steps.load(Ordering::Relaxed) as u64, measure::copies(3));
    assert_eq!(fake.left(), (0, 0, 0, 0));
    for call in ["allocate", "copy_in", "copy_out", "lock", "wait", "record"] {
        *fake.failing.lock().unwrap() = Some((call, 1, 1));
        assert!(
            measure::measure(&fake.device(), 5000, 3, &|_| ())
                .unwrap_err()
                .to_string()
                .starts_with(call)
        );
        assert_eq!(fake.left(), (0, 0, 0, 0), "{call}");
    }
}
