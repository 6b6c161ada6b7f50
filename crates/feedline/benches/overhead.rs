//! What the engine costs beside the work itself. Prints rates and ratios; fails below the bars.
//!
//! Ratios are taken between runs that alternate in one process, since machines drift.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use feedline::internals::order::Permutation;
use feedline::sample::DType;
use feedline::source::{Arrays, Column};
use feedline::spec::OpSpec;
use feedline::{Builder, Loader};
use feedline_sample_photos::SamplePhotos;

const BATCH: u64 = 512;
const ROUNDS: usize = 7;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Samples a second over one epoch.
fn rate(loader: &mut Loader) -> f64 {
    let began = Instant::now();
    let mut samples = 0;
    for batch in loader.epoch() {
        samples += black_box(batch.unwrap()).rows();
    }
    samples as f64 / began.elapsed().as_secs_f64()
}

fn loader(builder: Builder, batch_size: u64, workers: u64) -> Loader {
    let mut loader = builder
        .batch_size(batch_size)
        .shuffle(true)
        .drop_last(true)
        .num_workers(workers)
        .build()
        .unwrap();
    rate(&mut loader);
    loader
}

fn tiny() -> Builder {
    let n = 1 << 20;
    Loader::over(Arrays::new(vec![Column::new("x", DType::U8, &[n, 1], vec![7u8; n])]).unwrap())
}

const MEAN: [f32; 3] = [0.4914, 0.4822, 0.4465];
const STD: [f32; 3] = [0.247, 0.2435, 0.2616];
const SMALL: usize = 20_000;

fn small_pixels() -> Vec<u8> {
    (0..SMALL * 3072).map(|i| (i * 2_654_435_761) as u8).collect()
}

fn small() -> Builder {
    let labels: Vec<i64> = (0..SMALL as i64).collect();
    let columns = vec![
        Column::new("image", DType::U8, &[SMALL, 3, 32, 32], small_pixels()),
        Column::new("label", DType::I64, &[SMALL], labels),
    ];
    Loader::over(Arrays::new(columns).unwrap())
        .transform(OpSpec::new("ToDtype").with("dtype", "float32").with("scale", true))
        .transform(OpSpec::new("Normalize").with("mean", MEAN.to_vec()).with("std", STD.to_vec()))
}

/// The same conversion as a bare loop: shuffled order, the same number of buffers, no engine.
fn bare(pixels: &[u8], order: &[u64], buffers: &mut [Vec<f32>]) -> f64 {
    let began = Instant::now();
    let mut samples = 0;
    for (number, batch) in order.chunks_exact(BATCH as usize).enumerate() {
        let count = buffers.len();
        let out = &mut buffers[number % count];
        for (index, row) in batch.iter().zip(out.chunks_exact_mut(3072)) {
            let image = &pixels[*index as usize * 3072..][..3072];
            for channel in 0..3 {
                let scale = 1.0 / (255.0 * STD[channel]);
                let bias = -MEAN[channel] / STD[channel];
                let from = &image[channel * 1024..][..1024];
                let to = &mut row[channel * 1024..][..1024];
                for (to, from) in to.iter_mut().zip(from) {
                    *to = f32::from(*from) * scale + bias;
                }
            }
        }
        black_box(&out);
        samples += batch.len();
    }
    samples as f64 / began.elapsed().as_secs_f64()
}

/// Samples a second with the clocks read and without, in turn; the median of the ratios.
fn observed(mut loader: Loader, rounds: usize) -> f64 {
    let mut ratios = Vec::new();
    for round in 0..rounds {
        let mut rates = [0.0; 2];
        // Who goes first changes, since the second finds warmer caches.
        for on in [round % 2 == 0, round % 2 != 0] {
            loader.observe(on);
            rates[usize::from(on)] = rate(&mut loader);
        }
        ratios.push(rates[1] / rates[0]);
    }
    median(ratios)
}

fn photos(folder: &std::path::Path) -> Builder {
    let photos = SamplePhotos { count: 512, classes: 4, ..SamplePhotos::default() };
    photos.write(folder, &|_| ()).unwrap();
    Loader::builder(folder)
        .transform(OpSpec::new("RandomResizedCrop").with("size", 224))
        .transform(OpSpec::new("RandomHorizontalFlip"))
}

fn main() {
    let mut failed = false;
    let mut report = |name: &str, value: f64, unit: &str, bar: f64| {
        let verdict = if value >= bar { "ok" } else { "BELOW THE BAR" };
        println!("{name:<58} {value:>12.3} {unit:<10} bar {bar:>9.2}  {verdict}");
        failed |= value < bar;
    };

    let mut inline = loader(tiny(), BATCH, 0);
    let mut one = loader(tiny(), BATCH, 1);
    let (mut own, mut threaded) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        own.push(rate(&mut inline) / 1e6);
        threaded.push(rate(&mut one) / 1e6);
    }
    report("one-byte samples, in the caller's thread", median(own), "M/s", 1.0);
    report("one-byte samples, one worker", median(threaded), "M/s", 1.0);
    drop((inline, one));

    let pixels = small_pixels();
    let order: Vec<u64> = {
        let permutation = Permutation::new(SMALL as u64, 3);
        (0..SMALL as u64).map(|i| permutation.apply(i)).collect()
    };
    let mut buffers = vec![vec![0f32; BATCH as usize * 3072]; 3];
    let mut inline = loader(small(), BATCH, 0);
    let mut one = loader(small(), BATCH, 1);
    let (mut own, mut threaded, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    bare(&pixels, &order, &mut buffers);
    for _ in 0..ROUNDS * 3 {
        let bare = bare(&pixels, &order, &mut buffers);
        plain.push(bare / 1e3);
        own.push(rate(&mut inline) / bare);
        threaded.push(rate(&mut one) / bare);
    }
    println!("a bare loop over 3x32x32 arrays: {:.0} thousand/s", median(plain));
    report("3x32x32 to float32, in the caller's thread, to the bare loop", median(own), "x", 0.6);
    report("3x32x32 to float32, one worker, to the bare loop", median(threaded), "x", 0.6);
    drop((inline, one));

    // What observing costs: a bar of 1 %.
    let folder = std::env::temp_dir().join(format!("feedline-overhead-{}", std::process::id()));
    let seen = observed(loader(photos(&folder), 64, 2), ROUNDS * 3);
    report("photos, observed to not observed, two workers", seen, "x", 0.99);
    let seen = observed(loader(small(), BATCH, 2), ROUNDS * 9);
    report("3x32x32 to float32, observed to not observed, two workers", seen, "x", 0.99);
    let _ = std::fs::remove_dir_all(&folder);
    if failed {
        std::process::exit(1);
    }
}
