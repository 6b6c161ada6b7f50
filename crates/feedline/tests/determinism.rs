//! A batch is a function of spec, seed, epoch and number: whatever the workers, the ranks and the
//! interruptions, the rows are those of one uninterrupted thread.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::support::{Folder, arrays, jpeg, photos, rows};
use feedline::internals::random::Draws;
use feedline::spec::{
    CacheSpec, DecodeSpec, LastBatch, OnError, OpSpec, SourceKind, SourceSpec, Subset, Weights,
};
use feedline::{Builder, Loader, State};

/// Cases to try; some draw settings that are refused, and 2,000 must be left.
const CASES: u64 = 2600;

/// The data sets that cases choose from.
struct World {
    good: Folder,
    spoilt: Folder,
}

impl World {
    fn new() -> Self {
        let (good, spoilt) = (Folder::new("good"), Folder::new("spoilt"));
        photos(&good, 3, 6);
        photos(&spoilt, 2, 8);
        spoilt.write("class0/003.jpg", b"not an image");
        spoilt.write("class1/002.jpg", &jpeg(5, 20, 20)[..200]);
        spoilt.write("class1/005.jpg", b"");
        let table: String =
            (0..15).map(|i| format!("class{}/{:03}.jpg,{}\n", i % 3, i % 6, i * i)).collect();
        good.write("list.csv", format!("path,label\n{table}").as_bytes());
        World { good, spoilt }
    }
}

/// Everything that decides the batches, but not how they are made.
struct Case<'w> {
    world: &'w World,
    seed: u64,
    source: u64,
    samples: usize,
    order: u64,
    global: u64,
    last: LastBatch,
    /// 0 leaves batches as they are.
    mix: u64,
}

/// MixUp, CutMix or either of them; bytes cannot be blended.
fn mixed(builder: Builder, mix: u64, floats: bool) -> Builder {
    let op = |name: &str| OpSpec::new(name).with("num_classes", 200).with("alpha", 0.7);
    match mix {
        0 => builder,
        1 if floats => builder.transform(op("MixUp")),
        2 if floats => {
            let choices = vec![op("MixUp").to_value(), op("CutMix").to_value()];
            builder.transform(OpSpec::new("RandomChoice").with("transforms", choices))
        }
        _ => builder.transform(op("CutMix")),
    }
}

fn images(builder: Builder) -> Builder {
    builder
        .transform(OpSpec::new("RandomResizedCrop").with("size", 8))
        .transform(OpSpec::new("RandomHorizontalFlip"))
        .transform(OpSpec::new("ToDtype").with("dtype", "float32").with("scale", true))
}

impl Case<'_> {
    fn builder(&self) -> Builder {
        let good = self.world.good.path();
        let builder = match self.source {
            0..=3 => Loader::over(arrays(self.samples)),
            4 | 5 => Loader::over(arrays(self.samples))
                .transform(OpSpec::new("RandomCrop").with("size", 8).with("padding", 2))
                .transform(OpSpec::new("RandomHorizontalFlip")),
            6 => images(Loader::builder(good)),
            7 => images(Loader::builder(good.join("list.csv"))),
            8 => images(Loader::builder(self.world.spoilt.path())).on_error(OnError::Skip),
            _ => {
                let first = SourceSpec::from(SourceKind::ImageFolder(good.into())).weight(0.7);
                let second = SourceSpec::from(SourceKind::ImageFolder(good.into())).weight(0.3);
                images(Loader::builder(first).source(second)).shuffle(true)
            }
        };
        let several = self.source > 8;
        let builder = mixed(builder, self.mix, self.source > 5);
        let builder = match self.order {
            _ if several => builder,
            0..=3 => builder.shuffle(true),
            4 => builder.replacement(true).num_samples(23),
            5 if self.source < 4 => {
                builder.weights(Weights::Each((0..self.samples).map(|i| 1.0 + i as f64).collect()))
            }
            6 => builder.subset(Subset::parse("1::2").unwrap()).shuffle(true),
            _ => builder,
        };
        let decode = DecodeSpec::default().with(|decode| decode.exact = self.exact());
        builder.seed(self.seed).last_batch(self.last).decode(decode)
    }
}

impl Case<'_> {
    fn exact(&self) -> bool {
        self.seed.is_multiple_of(2)
    }
}

type Stream = Vec<(u64, u64, Vec<u64>)>;

/// The next `count` batches, starting epochs as needed.
fn take(loader: &mut Loader, count: u64, out: &mut Stream) {
    let mut left = count;
    while left > 0 {
        let mut epoch = loader.epoch();
        while left > 0 {
            let Some(batch) = epoch.next() else { break };
            let batch = batch.unwrap();
            out.push((batch.epoch(), batch.number(), rows(&batch)));
            left -= 1;
        }
    }
}

/// One rank's stream, killed and resumed at random places, with other workers each time.
fn interrupted(case: &Case<'_>, rank: u64, world: u64, total: u64, draws: &mut Draws) -> Stream {
    let mut stream = Stream::new();
    let mut state: Option<String> = None;
    let stops = draws.below(6);
    for stop in 0..=stops {
        let left = total - stream.len() as u64;
        let count = if stop == stops { left } else { draws.below(left + 1) };
        let mut builder = case
            .builder()
            .batch_size(case.global / world)
            .rank(rank, world)
            .num_workers(draws.below(17));
        if draws.chance(0.2) {
            builder = builder.prefetch_factor(1 + draws.below(3));
        }
        if draws.chance(0.2) && case.source >= 6 {
            // Decoded images are kept whole, and so are decoded at full size.
            let decoded = draws.chance(0.5) && case.exact();
            builder = builder.cache(CacheSpec::default().with(|cache| {
                cache.decoded = decoded;
                cache.limit = Some(60_000);
                cache.required = false;
            }));
        }
        let mut loader = builder.build().unwrap();
        if let Some(text) = &state {
            let state: State = serde_json::from_str(text).unwrap();
            loader.resume(&state).unwrap();
        }
        take(&mut loader, count, &mut stream);
        state = Some(serde_json::to_string(&loader.state()).unwrap());
    }
    stream
}

/// False if the settings are refused.
fn run_case(world: &World, number: u64) -> bool {
    let mut draws = Draws::new(2026, 11, number, 0);
    let ranks = if draws.chance(0.6) { 1 } else { 1 + draws.below(8) };
    let case = Case {
        world,
        seed: draws.below(1000),
        source: draws.below(10),
        samples: 1 + draws.below(60) as usize,
        order: draws.below(9),
        global: ranks * (1 + draws.below(9)),
        last: [LastBatch::Short, LastBatch::Drop, LastBatch::Pad, LastBatch::Wrap]
            [draws.below(4) as usize],
        mix: draws.below(6).saturating_sub(2),
    };
    let reference = case.builder().batch_size(case.global).rank(0, 1).num_workers(0).build();
    // A short last batch that some ranks would not share in, or none at all, is refused.
    let refused = |rank| {
        case.builder()
            .batch_size(case.global / ranks)
            .rank(rank, ranks)
            .num_workers(0)
            .build()
            .is_err()
    };
    if reference.is_err() || refused(0) {
        return false;
    }
    let mut reference = reference.unwrap();
    let total = reference.len() + draws.below(2 * reference.len() + 2);
    let mut expected = Stream::new();
    take(&mut reference, total, &mut expected);

    let mut joined: Stream =
        expected.iter().map(|(epoch, batch, _)| (*epoch, *batch, Vec::new())).collect();
    for rank in 0..ranks {
        let part = interrupted(&case, rank, ranks, total, &mut draws);
        assert_eq!(part.len(), joined.len(), "case {number}");
        for (whole, (epoch, batch, rows)) in joined.iter_mut().zip(part) {
            assert_eq!((whole.0, whole.1), (epoch, batch), "case {number}");
            whole.2.extend(rows);
        }
    }
    assert_eq!(
        joined, expected,
        "case {number}: {ranks} ranks, source {}, mix {}",
        case.source, case.mix
    );
    true
}

#[test]
fn any_workers_ranks_and_interruptions_give_the_same_rows() {
    let world = World::new();
    let (next, ran) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= CASES {
                        return;
                    }
                    ran.fetch_add(u64::from(run_case(&world, number)), Relaxed);
                }
            });
        }
    });
    assert!(ran.load(Relaxed) >= 2000, "only {} cases ran", ran.load(Relaxed));
}

#[test]
fn a_state_moves_to_another_number_of_ranks() {
    let build = |batch: u64, rank, world| {
        images(Loader::over(arrays(52)))
            .batch_size(batch)
            .shuffle(true)
            .rank(rank, world)
            .num_workers(2)
            .build()
            .unwrap()
    };
    let mut whole = Stream::new();
    take(&mut build(8, 0, 1), 20, &mut whole);
    // 4 ranks for a while, then 2, then 1.
    let mut state = None;
    let mut at = 0;
    for (world, count) in [(4u64, 5u64), (2, 6), (1, 9)] {
        let mut joined: Vec<Vec<u64>> = vec![Vec::new(); count as usize];
        let mut last = None;
        for rank in 0..world {
            let mut loader = build(8 / world, rank, world);
            if let Some(state) = &state {
                loader.resume(state).unwrap();
            }
            let mut part = Stream::new();
            take(&mut loader, count, &mut part);
            joined.iter_mut().zip(part).for_each(|(whole, (_, _, rows))| whole.extend(rows));
            last = Some(loader.state());
        }
        for rows in joined {
            assert_eq!(rows, whole[at].2, "batch {at} with {world} ranks");
            at += 1;
        }
        state = last;
    }
}

#[test]
fn rows_are_mixed_with_the_row_before_them_in_the_batch_of_all_ranks() {
    let floats = |builder: Builder| {
        builder.transform(OpSpec::new("ToDtype").with("dtype", "float32").with("scale", true))
    };
    let all = |world: u64| {
        let mut batches: Vec<(Vec<f32>, Vec<f32>)> = vec![Default::default(); 4];
        for rank in 0..world {
            let builder =
                floats(Loader::over(arrays(26))).transform(OpSpec::new("Pad").with("padding", 1));
            let builder = mixed(builder, 1, true).shuffle(true).seed(5).rank(rank, world);
            let mut loader = builder.batch_size(8 / world).num_workers(3).build().unwrap();
            for (batch, (images, labels)) in loader.epoch().zip(&mut batches) {
                let batch = batch.unwrap();
                images.extend(batch.get("image").unwrap().as_slice::<f32>().unwrap());
                labels.extend(batch.get("label").unwrap().as_slice::<f32>().unwrap());
            }
        }
        batches
    };
    let one = all(1);
    assert_eq!(one, all(2));
    let mut plain = floats(Loader::over(arrays(26)))
        .transform(OpSpec::new("Pad").with("padding", 1))
        .shuffle(true)
        .seed(5)
        .rank(0, 1)
        .batch_size(8)
        .build()
        .unwrap();
    for (batch, (images, labels)) in plain.epoch().zip(&one) {
        let batch = batch.unwrap();
        let (rows, wanted) = (batch.rows(), batch.get("image").unwrap());
        let wanted = wanted.as_slice::<f32>().unwrap();
        let classes = batch.get("label").unwrap();
        let classes = classes.as_slice::<i64>().unwrap();
        let size = wanted.len() / rows;
        // The share shows in the labels: every row keeps the same.
        let own = labels[classes[0] as usize];
        for row in 0..rows {
            let before = (row + rows - 1) % rows;
            let label = &labels[row * 200..(row + 1) * 200];
            assert_eq!(label[classes[row] as usize], own);
            assert!((label[classes[before] as usize] - (1.0 - own)).abs() < 1e-6 || rows == 1);
            assert!((label.iter().sum::<f32>() - 1.0).abs() < 1e-6);
            for i in 0..size {
                let (x, y) = (wanted[row * size + i], wanted[before * size + i]);
                let got = images[row * size + i];
                assert!((got - (x * own + y * (1.0 - own))).abs() < 1e-6, "{row} {i}");
            }
        }
    }
}

#[test]
fn out_of_order_delivers_each_batch_once_and_resumes_exactly() {
    let build = || arrays_loader().in_order(false).build().unwrap();
    let mut expected = Stream::new();
    take(&mut arrays_loader().num_workers(0).build().unwrap(), 26, &mut expected);
    for stop in 0..26 {
        let mut stream = Stream::new();
        let mut loader = build();
        take(&mut loader, stop, &mut stream);
        let state = loader.state();
        drop(loader);
        let mut loader = build();
        loader.resume(&state).unwrap();
        take(&mut loader, 26 - stop, &mut stream);
        stream.sort_unstable();
        assert_eq!(stream, expected, "stopped after {stop}");
    }
}

fn arrays_loader() -> Builder {
    Loader::over(arrays(50)).batch_size(4).shuffle(true).num_workers(3)
}
