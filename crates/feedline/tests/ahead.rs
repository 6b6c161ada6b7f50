//! Hints to the store: in the known order, ahead of the reads, only while reads are slow.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Folder, ends, over_local, photos, rows};
use feedline::sample::Location;
use feedline::sample::Room;
use feedline::spec::OpSpec;
use feedline::store::{Hint, Local, Store};
use feedline::{Builder, Fault, Loader};

/// The larger of four batches of 8 and 256 samples.
const WINDOW: usize = 256;

/// Takes its time for each read, and writes down what it is asked.
struct Slow {
    time: Duration,
    hang: AtomicBool,
    reads: Mutex<Vec<PathBuf>>,
    /// With the number of reads that had begun.
    hints: Mutex<Vec<(PathBuf, usize)>>,
}

impl Slow {
    fn new(milliseconds: u64) -> Arc<Slow> {
        Arc::new(Slow {
            time: Duration::from_millis(milliseconds),
            hang: AtomicBool::new(false),
            reads: Mutex::default(),
            hints: Mutex::default(),
        })
    }
}

impl Store for Slow {
    over_local!();

    fn read(&self, location: &Location<'_>, room: &mut dyn Room) -> Result<(), Fault> {
        self.reads.lock().unwrap().push(location.path.to_owned());
        std::thread::sleep(self.time);
        Local.read(location, room)
    }

    fn size(&self, location: &Location<'_>) -> Result<u64, Fault> {
        Local.size(location)
    }

    fn hint(&self, location: &Location<'_>) -> Hint {
        let begun = self.reads.lock().unwrap().len();
        self.hints.lock().unwrap().push((location.path.to_owned(), begun));
        while self.hang.load(Ordering::Acquire) {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Hint::Fetching
    }
}

fn loader(folder: &Folder) -> Builder {
    Loader::builder(folder.path())
        .transform(OpSpec::new("CenterCrop").with("size", 16))
        .batch_size(8)
        .shuffle(true)
        .seed(3)
}

fn all(builder: Builder, epochs: usize) -> (Vec<Vec<u64>>, u64) {
    let mut loader = builder.build().unwrap();
    let mut seen = Vec::new();
    for _ in 0..epochs {
        seen.extend(loader.epoch().map(|batch| rows(&batch.unwrap())));
    }
    let hinted = loader.stats().read_ahead;
    drop(loader);
    (seen, hinted)
}

#[test]
fn hints_follow_the_order_within_the_window_and_change_nothing() {
    let folder = Folder::new("ahead");
    // More than two windows, so that a hint's turn cannot be taken for another epoch's.
    photos(&folder, 1, 703);
    // One thread reads in the order of the batches.
    let one = Slow::new(0);
    let (plain, _) = all(loader(&folder).num_workers(0).store(one.clone()), 3);
    let order = one.reads.lock().unwrap().clone();
    for workers in [0, 2] {
        let slow = Slow::new(1);
        let builder = loader(&folder).num_workers(workers).store(slow.clone());
        let (batches, hinted) = all(builder, 2);
        assert_eq!(batches, plain[..batches.len()]);
        // None comes after the loader is gone.
        let hints = slow.hints.lock().unwrap().clone();
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(slow.hints.lock().unwrap().len(), hints.len());
        assert_eq!(hinted as usize, hints.len());
        assert!(hints.len() > 1050, "{} of 1406 reads", hints.len());
        // Where each file comes in each epoch; a hint's epoch is the one after its last hint.
        let mut turns: HashMap<&PathBuf, Vec<usize>> = HashMap::new();
        for (at, path) in order.iter().enumerate() {
            turns.entry(path).or_default().push(at);
        }
        let (mut ahead, mut rising) = (0, 0);
        let mut latest = 0;
        for (path, begun) in &hints {
            // The turn nearest to the last hint: epochs are longer than the window.
            let turn = *turns[path].iter().min_by_key(|turn| turn.abs_diff(latest)).unwrap();
            // Four threads take turns in order; one that loses its core falls behind a window.
            assert!(latest == 0 || turn.abs_diff(latest) <= WINDOW + 16, "{latest} {turn}");
            // The loader keeps up to 8 batches in the making, whose rows are taken in order.
            assert!(turn <= begun + WINDOW + 16, "{turn} {begun}");
            ahead += usize::from(turn >= *begun);
            rising += usize::from(turn > latest);
            latest = turn;
        }
        assert!(ahead * 10 >= hints.len() * 9, "{ahead} of {}", hints.len());
        assert!(rising * 4 > hints.len() * 3, "{rising} of {}", hints.len());
    }
}

#[test]
fn quick_reads_bring_no_hints() {
    let folder = Folder::new("warm");
    photos(&folder, 1, 100);
    let warm = Slow::new(0);
    let (_, hinted) = all(loader(&folder).num_workers(2).store(warm.clone()), 3);
    assert_eq!((hinted, warm.hints.lock().unwrap().len()), (0, 0));
}

#[test]
fn dropping_a_loader_does_not_wait_for_hints_that_hang() {
    let folder = Folder::new("hang");
    photos(&folder, 1, 100);
    let slow = Slow::new(2);
    slow.hang.store(true, Ordering::Release);
    let mut loader = loader(&folder).num_workers(2).store(slow.clone()).build().unwrap();
    assert_eq!(loader.epoch().take(8).filter(|batch| batch.is_ok()).count(), 8);
    assert_eq!(slow.hints.lock().unwrap().len(), 4, "each thread hangs in its first");
    ends(move || drop(loader));
    slow.hang.store(false, Ordering::Release);
}
