//! No image reaches the next one: what a worker keeps (codes, rows, contexts, scratch, tables of a
//! resize) changes no pixel of what it makes afterwards.
//!
//! Each file of a damaged corpus goes through workers that have made others before, in several
//! orders, and through new ones. `FEEDLINE_MUTATIONS` sets another number of files.
#![allow(clippy::unwrap_used)]

#[path = "support/damaged.rs"]
mod damaged;

use damaged::{Kind, Seed, damaged, joined, pieces, seeds};
use feedline::Spec;
use feedline::internals::decode::{DecodeOptions, Decoder, probe};
use feedline::internals::engine::{Given, Stages, Workbench};
use feedline::internals::image::{Pixels, Scratch};
use feedline::internals::random::Draws;
use feedline::spec::{DecodeSpec, OpSpec};

fn mutations() -> u64 {
    std::env::var("FEEDLINE_MUTATIONS").map_or(6_000, |text| text.parse().unwrap())
}

fn pipelines() -> Vec<Stages> {
    let op = OpSpec::new;
    let float = || op("ToDtype").with("dtype", "float32").with("scale", true);
    let chains = [
        (DecodeSpec::default(), vec![]),
        (
            DecodeSpec::default().with(|decode| decode.allow_truncated = true),
            vec![op("Resize").with("size", vec![17, 23])],
        ),
        (
            DecodeSpec::default().with(|decode| decode.exif_orientation = true),
            vec![op("RandomResizedCrop").with("size", 12), op("RandomHorizontalFlip"), float()],
        ),
        (
            DecodeSpec::default().with(|decode| {
                decode.allow_damaged = true;
                decode.gray = true;
            }),
            vec![],
        ),
        (
            DecodeSpec::default().with(|decode| decode.exact = true),
            vec![
                op("RandomAffine").with("degrees", 20.0),
                op("GaussianBlur").with("kernel_size", 3),
                op("ColorJitter").with("brightness", 0.4).with("hue", 0.1),
                op("Pad").with("padding", 3),
            ],
        ),
        (
            DecodeSpec::default().with(|decode| decode.allow_truncated = true),
            vec![op("CenterCrop").with("size", 9), op("RandAugment"), op("RandomErasing")],
        ),
    ];
    let stages = chains.into_iter().map(|(decode, transforms)| {
        Stages::new(
            &Spec::default().with(|spec| {
                spec.decode = decode;
                spec.transforms = transforms;
            }),
            0,
        )
        .unwrap()
    });
    stages.collect()
}

/// What becomes of a file: its pixels, or the error.
fn outcome(stages: &Stages, bytes: &[u8], bench: &mut Workbench) -> Result<Vec<u8>, String> {
    let given = Given::Encoded(bytes);
    let shown =
        |(stage, fault): (feedline::error::Stage, feedline::Fault)| format!("{stage:?}: {fault}");
    let ready = stages.prepare(given).map_err(shown)?;
    // Small seeds, but a damaged header may declare a large image.
    if ready.output.bytes() > 4 << 20 {
        return Err("large".to_owned());
    }
    let mut out = vec![0; ready.output.bytes()];
    stages.write(given, &ready, (5, 0, 3), bench, &mut out).map_err(shown)?;
    Ok(out)
}

#[test]
fn used_and_new_workers_make_the_same_of_a_damaged_corpus() {
    let seeds = seeds();
    let stages = pipelines();
    let total = mutations();
    let mut used: Vec<Workbench> = stages.iter().map(|_| Workbench::default()).collect();
    let mut shared = Workbench::default();
    let (mut good, mut bad) = (0u64, 0u64);
    for begin in (0..total).step_by(1_000) {
        let files: Vec<Vec<u8>> =
            (begin..(begin + 1_000).min(total)).map(|number| damaged(&seeds, number)).collect();
        let results: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(at, bytes)| {
                let which = at % stages.len();
                let fresh = outcome(&stages[which], bytes, &mut Workbench::default());
                let again = outcome(&stages[which], bytes, &mut used[which]);
                assert!(fresh == again, "file {}: {}", begin + at as u64, shown(&fresh, &again));
                *if fresh.is_ok() { &mut good } else { &mut bad } += 1;
                fresh
            })
            .collect();
        // Once more in an order without a pattern, all pipelines with one worker's memory.
        let mut order: Vec<usize> = (0..files.len()).collect();
        let draws = &mut Draws::new(47, 0, begin, 0);
        for last in (1..order.len()).rev() {
            order.swap(last, draws.below(last as u64 + 1) as usize);
        }
        for at in order {
            let again = outcome(&stages[at % stages.len()], &files[at], &mut shared);
            let first = &results[at];
            assert!(*first == again, "file {}: {}", begin + at as u64, shown(first, &again));
        }
    }
    assert!(good > total / 10 && bad > total / 10, "{good} good, {bad} bad");
    println!("{total} damaged images: {good} with pixels, {bad} refused, 0 differ");
}

fn shown(first: &Result<Vec<u8>, String>, again: &Result<Vec<u8>, String>) -> String {
    match (first, again) {
        (Ok(first), Ok(again)) => {
            let most = first.iter().zip(again).map(|(a, b)| a.abs_diff(*b)).max();
            format!("pixels differ by up to {most:?} levels")
        }
        (first, again) => format!(
            "{:?} for a new worker, {:?} for a used one",
            first.as_ref().map(Vec::len),
            again.as_ref().map(Vec::len)
        ),
    }
}

fn decoded(decoder: &mut Decoder, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let options = DecodeOptions::default();
    let header = probe(bytes, &options).map_err(|fault| fault.to_string())?;
    let mut scratch = Scratch::default();
    let image = decoder
        .decode(bytes, &header, &options, &mut scratch)
        .map_err(|fault| fault.to_string())?;
    let Pixels::U8(pixels) = image.pixels() else { panic!("bytes") };
    Ok(pixels[..image.view().elements()].to_vec())
}

fn baseline(seeds: &[Seed]) -> impl Iterator<Item = Vec<Vec<u8>>> {
    seeds
        .iter()
        .filter(|seed| seed.kind == Kind::Jpeg)
        .map(|seed| pieces(seed.kind, &seed.bytes))
        .filter(|pieces| pieces.iter().any(|piece| piece.starts_with(&[0xff, 0xc0])))
}

fn segment(pieces: &mut [Vec<u8>], marker: u8) -> &mut Vec<u8> {
    pieces.iter_mut().find(|piece| piece.starts_with(&[0xff, marker])).unwrap()
}

/// In version 0.1.0 such a file was decoded for ever: the table that its scan names was taken for
/// one that had been defined before, and reading with it consumed nothing.
#[test]
fn a_scan_that_names_a_table_nobody_defined_is_refused() {
    for mut file in baseline(&seeds()) {
        for (selector, number) in [(0, 2), (0, 3), (4, 2), (4, 3)] {
            let scan = segment(&mut file, 0xda);
            let old = scan[6];
            scan[6] = old & !(15 << selector) | number << selector;
            let error = decoded(&mut Decoder::new(), &joined(Kind::Jpeg, &file)).unwrap_err();
            assert!(error.contains("table"), "{error}");
            segment(&mut file, 0xda)[6] = old;
        }
    }
}

/// In version 0.1.0 a refused table left the earlier image's codes in place without their
/// definition, and the next file that lacked one was decoded with them.
#[test]
fn a_file_without_its_tables_is_not_decoded_with_those_of_the_file_before() {
    let seeds = seeds();
    let files: Vec<_> = baseline(&seeds).collect();
    for (number, file) in files.iter().enumerate() {
        let before = joined(Kind::Jpeg, &files[(number + 1) % files.len()]);
        let mut refused = file.clone();
        // More codes of one bit than there are.
        segment(&mut refused, 0xc4)[5] = 3;
        for marker in [0xc4, 0xdb] {
            let mut without = file.clone();
            without.retain(|piece| !piece.starts_with(&[0xff, marker]));
            let without = joined(Kind::Jpeg, &without);
            let fresh = decoded(&mut Decoder::new(), &without);
            let mut used = Decoder::new();
            decoded(&mut used, &before).unwrap();
            // As the library decodes it, too: a fill byte before a marker is not plain.
            decoded(&mut used, &[&before[..2], &[0xff], &before[2..]].concat()).unwrap();
            assert!(decoded(&mut used, &without) == fresh, "{number}: behind a good file");
            let _ = decoded(&mut used, &joined(Kind::Jpeg, &refused));
            assert!(decoded(&mut used, &without) == fresh, "{number}: behind a refused one");
        }
    }
}
