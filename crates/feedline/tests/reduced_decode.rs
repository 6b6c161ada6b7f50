//! Decoding at a smaller size changes pixels by little, and not at all when asked to be exact.
#![allow(clippy::unwrap_used)]

use feedline::internals::decode::{DecodeOptions, Decoder, probe};
use feedline::internals::image::{Layout, Pixels, Scratch};
use feedline::internals::pack::{Encoder, Subsampling};
use feedline::internals::random::Draws;
use feedline::internals::transform::{Chain, ImageShape};
use feedline::spec::OpSpec;

/// Edges, gradients and grain, as photos have them.
fn photo(draws: &mut Draws, width: usize, height: usize) -> Vec<u8> {
    let (fx, fy) = (draws.uniform(0.01, 0.2), draws.uniform(0.01, 0.2));
    (0..width * height * 3)
        .map(|i| {
            let (x, y) = ((i / 3 % width) as f64, (i / 3 / width) as f64);
            let wave = (x * fx + (i % 3) as f64).sin() * 50.0 + (y * fy).cos() * 50.0;
            let edge = if ((x * 0.7 + y) as usize / 37).is_multiple_of(2) { 25.0 } else { -25.0 };
            (128.0 + wave + edge + draws.uniform(-6.0, 6.0)) as u8
        })
        .collect()
}

fn run(chain: &Chain, bytes: &[u8], position: u64, exact: bool, whole: bool) -> (usize, Vec<u8>) {
    let options = DecodeOptions::default();
    let header = probe(bytes, &options).unwrap();
    let shape = ImageShape { height: header.height, width: header.width, channels: 3 };
    let wanted = chain.excerpt(shape, 3, position, exact);
    let mut scratch = Scratch::default();
    let mut decoder = Decoder::new();
    let wanted_or_all = (!whole).then_some(wanted);
    let mut image =
        decoder.decode_part(bytes, &header, &options, wanted_or_all, &mut scratch).unwrap();
    if !whole {
        assert_eq!(image.excerpt(), wanted);
    }
    assert!(matches!(image.pixels(), Pixels::U8(_)));
    let output = chain.output(shape, feedline::internals::image::PixelType::U8).unwrap();
    let mut out = vec![0; output.bytes()];
    chain.run(&mut image, 3, position, &mut out).unwrap();
    (wanted.reduction, out)
}

#[test]
fn reduced_crops_are_close_and_exact_ones_equal() {
    let chains = [
        vec![OpSpec::new("RandomResizedCrop").with("size", 128)],
        vec![OpSpec::new("Resize").with("size", 64), OpSpec::new("CenterCrop").with("size", 56)],
        vec![OpSpec::new("CenterCrop").with("size", 300), OpSpec::new("Resize").with("size", 40)],
        vec![
            OpSpec::new("Resize").with("size", 64),
            OpSpec::new("RandomHorizontalFlip"),
            OpSpec::new("RandomCrop").with("size", 48),
        ],
    ]
    .map(|ops| Chain::build(&ops, Layout::Chw).unwrap());
    let kinds = [
        Subsampling::Half,
        Subsampling::Full,
        Subsampling::Horizontal,
        Subsampling::Vertical,
        Subsampling::Gray,
    ];
    let mut seen = [0; 9];
    for number in 0..120u64 {
        let draws = &mut Draws::new(8, 0, number, 0);
        let (width, height) = (310 + draws.below(300) as usize, 310 + draws.below(300) as usize);
        let kind = kinds[number as usize % 5];
        let mut encoder = Encoder::new(92, kind, false).unwrap();
        encoder.restart_interval([0, 5][number as usize / 5 % 2]).unwrap();
        let bytes = encoder.encode(&photo(draws, width, height), width, height).unwrap().to_vec();
        for (i, chain) in chains.iter().enumerate() {
            let (_, full) = run(chain, &bytes, number, true, true);
            let (none, exact) = run(chain, &bytes, number, true, false);
            assert!(none == 1 && exact == full, "{number} {i}: exact is not exact");
            let (reduction, reduced) = run(chain, &bytes, number, false, false);
            seen[reduction] += 1;
            // Stated in the README: so many levels on average, and 30 anywhere. Real photographs were
            // seen to differ by up to 42 in a single pixel.
            let bound = [0.0, 0.0, 2.0, 0.0, 3.0, 0.0, 0.0, 0.0, 5.0][reduction];
            let differences = || full.iter().zip(&reduced).map(|(a, b)| a.abs_diff(*b));
            let mean = differences().map(f64::from).sum::<f64>() / full.len() as f64;
            let most = differences().max().unwrap();
            let close = mean <= bound && most <= 30;
            assert!(close, "{number} {i} {kind:?} 1/{reduction}: {mean} {most}");
        }
    }
    assert!(seen[1] > 20 && seen[2] > 20 && seen[4] > 20 && seen[8] > 5, "{seen:?}");
}
