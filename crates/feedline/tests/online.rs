//! What is changed while a loader runs changes no batch, and a loader that adjusts itself ends with
//! the fewest workers that do.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::support::{Folder, arrays, photos, rows};
use feedline::internals::random::Draws;
use feedline::spec::OpSpec;
use feedline::stats::Knob;
use feedline::{Builder, Loader, Spec, State};

fn images(folder: &Folder) -> Builder {
    Loader::builder(folder.path())
        .transform(OpSpec::new("RandomResizedCrop").with("size", 16))
        .transform(OpSpec::new("ToDtype").with("dtype", "float32").with("scale", true))
        .batch_size(5)
        .shuffle(true)
        .seed(3)
}

type Stream = Vec<(u64, u64, Vec<u64>)>;

/// So many batches over as many epochs as they take; `between` may change the loader.
fn take(loader: &mut Loader, count: usize, between: &mut dyn FnMut(&mut Loader)) -> Stream {
    let mut stream = Stream::new();
    while stream.len() < count {
        loader.begin_epoch();
        while stream.len() < count {
            let Some(batch) = loader.next_batch() else { break };
            let batch = batch.unwrap();
            stream.push((batch.epoch(), batch.number(), rows(&batch)));
            drop(batch);
            between(loader);
        }
    }
    stream
}

#[test]
fn changes_at_every_batch_change_no_batch() {
    let folder = Folder::new("online");
    photos(&folder, 3, 9);
    // Little memory makes workers stand in line while others are sent to rest.
    for (case, memory) in [(0, None), (1, Some(1_060_000)), (2, None), (3, Some(1_200_000))] {
        let expected = take(&mut images(&folder).num_workers(1).build().unwrap(), 60, &mut |_| ());
        let mut draws = Draws::new(6, case, 0, 0);
        let mut builder = images(&folder).num_workers(6);
        if let Some(memory) = memory {
            builder = builder.memory(memory);
        }
        let mut loader = builder.build().unwrap();
        let mut change = |loader: &mut Loader| {
            let (workers, open) = (draws.below(9) as usize, draws.below(7) as usize);
            loader.adjust(workers, open);
            let wanted = workers.clamp(1, 6);
            assert_eq!((loader.num_workers(), loader.prefetch()), (wanted, open.max(1) as u64));
        };
        let mut found = take(&mut loader, 23, &mut change);
        // Across a resume, too.
        let state: State =
            serde_json::from_str(&serde_json::to_string(&loader.state()).unwrap()).unwrap();
        drop(loader);
        let mut loader = images(&folder).num_workers(4).build().unwrap();
        loader.resume(&state).unwrap();
        found.extend(take(&mut loader, 60 - 23, &mut |loader| loader.adjust(1 + case as usize, 2)));
        assert_eq!(found, expected);
    }
}

#[test]
fn the_callers_own_thread_stays_alone() {
    let mut loader = Loader::over(arrays(20)).batch_size(4).num_workers(0).build().unwrap();
    assert_eq!(take(&mut loader, 12, &mut |loader| loader.adjust(5, 5)).len(), 12);
    assert_eq!(loader.num_workers(), 0);
    assert!(!loader.stats().tuning.auto);
}

#[test]
fn a_fixed_number_stays() {
    let mut loader = Loader::over(arrays(64)).batch_size(4).num_workers(2).build().unwrap();
    take(&mut loader, 64, &mut |_| ());
    let tuning = loader.stats().tuning;
    assert_eq!((tuning.auto, tuning.num_workers, tuning.most_workers), (false, 2, 2));
    assert!(tuning.decisions.is_empty());
}

/// What is decided is tested with made-up figures beside `tune::Controller`.
#[test]
#[ignore = "live: make soak SOAK=diagnose"]
fn a_slow_trainer_needs_few_workers() {
    let folder = Folder::new("online-auto");
    photos(&folder, 2, 20);
    let expected = take(&mut images(&folder).num_workers(1).build().unwrap(), 40, &mut |_| ());
    let mut loader = images(&folder).build().unwrap();
    let cores = feedline::internals::tune::cores();
    assert_eq!(loader.num_workers(), cores);
    let (began, mut seen) = (Instant::now(), Stream::new());
    // 5 small photos a step take a few milliseconds of work; a loaded machine has a minute.
    let late = || began.elapsed() > Duration::from_secs(300);
    while seen.len() < 40 || loader.num_workers() > 1 && !late() {
        seen.extend(take(&mut loader, 8, &mut |loader| {
            std::thread::sleep(Duration::from_millis(20));
            assert!((1..=cores).contains(&loader.num_workers()));
        }));
    }
    assert_eq!(seen[..40], expected[..]);
    let tuning = loader.stats().tuning;
    assert_eq!(tuning.num_workers, 1, "{tuning:#?}");
    assert!(tuning.auto && tuning.most_workers == cores as u64);
    if cores > 1 {
        let mut workers = tuning.decisions.iter().filter(|d| d.setting == Knob::NumWorkers);
        let first = workers.find(|decision| decision.to < decision.from).unwrap();
        assert_eq!(first.from, cores as u64, "{tuning:#?}");
        assert!(first.reason.contains("workers do what it needs"), "{tuning:#?}");
    }
    let value = loader.stats().to_value();
    assert_eq!(value["tuning"]["num_workers"], 1);
    assert_eq!(value["tuning"]["auto"], true);
}

#[test]
fn what_was_found_can_be_frozen() {
    let folder = Folder::new("online-frozen");
    photos(&folder, 2, 8);
    let mut loader = images(&folder).num_workers(3).build().unwrap();
    let expected = take(&mut loader, 8, &mut |_| ());
    loader.adjust(2, 5);
    let file = folder.path().join("frozen.toml");
    loader.freeze(&file).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("# as it was set\nnum_workers = 2\n"), "{text}");
    assert!(text.contains("prefetch_factor = 3\n"), "{text}");
    let mut again = Loader::from_spec(Spec::from_file(&file).unwrap()).unwrap();
    assert_eq!((again.num_workers(), again.prefetch()), (2, 6));
    assert!(!again.stats().tuning.auto);
    assert_eq!(take(&mut again, 8, &mut |_| ()), expected);
    assert!(loader.freeze(&folder.path().join("none/frozen.toml")).is_err());
}
