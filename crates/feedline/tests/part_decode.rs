//! A part of a JPEG has the very pixels that a full decode has there.
#![allow(clippy::unwrap_used)]

use feedline::internals::decode::{ColorMode, DecodeOptions, Decoder, probe};
use feedline::internals::image::{Excerpt, Pixels, Region, Scratch};
use feedline::internals::pack::{Encoder, Subsampling};
use feedline::internals::random::Draws;

/// Noise over gradients: every block differs from its neighbours, so a wrong one shows.
fn image(draws: &mut Draws, width: usize, height: usize) -> Vec<u8> {
    (0..width * height * 3).map(|i| ((i / 7) as u8).wrapping_add(draws.below(90) as u8)).collect()
}

fn decode(
    decoder: &mut Decoder,
    bytes: &[u8],
    options: &DecodeOptions,
    part: Option<Region>,
) -> (Excerpt, Vec<u8>) {
    let header = probe(bytes, options).unwrap();
    let wanted = part.map(|part| Excerpt::around(header.height, header.width, part, 1));
    let mut scratch = Scratch::default();
    let image = decoder.decode_part(bytes, &header, options, wanted, &mut scratch).unwrap();
    let Pixels::U8(pixels) = image.pixels() else { panic!("bytes") };
    (image.excerpt(), pixels[..image.view().elements()].to_vec())
}

#[test]
fn parts_equal_the_full_decode_to_the_bit() {
    let mut decoder = Decoder::new();
    for number in 0..160u64 {
        let mut draws = Draws::new(9, 0, number, 0);
        let (width, height) = (1 + draws.below(150) as usize, 1 + draws.below(150) as usize);
        let subsampling = if number % 2 == 0 { Subsampling::Half } else { Subsampling::Full };
        let mut encoder = Encoder::new(80, subsampling, number % 8 == 7).unwrap();
        let pixels = image(&mut draws, width, height);
        let bytes = encoder.encode(&pixels, width, height).unwrap().to_vec();
        let mode = if number % 5 == 4 { ColorMode::Gray } else { ColorMode::Rgb };
        let options = DecodeOptions { mode, ..DecodeOptions::default() };
        let (_, whole) = decode(&mut decoder, &bytes, &options, None);
        let channels = mode.channels();
        for _ in 0..25 {
            let (h, w) =
                (1 + draws.below(height as u64) as usize, 1 + draws.below(width as u64) as usize);
            let part = Region {
                top: draws.below((height - h) as u64 + 1) as usize,
                left: draws.below((width - w) as u64 + 1) as usize,
                height: h,
                width: w,
            };
            let (excerpt, some) = decode(&mut decoder, &bytes, &options, Some(part));
            for row in part.top..part.top + part.height {
                let from = (row * width + part.left) * channels;
                let at_hand = excerpt.part;
                let some_from =
                    ((row - at_hand.top) * at_hand.width + part.left - at_hand.left) * channels;
                assert_eq!(
                    some[some_from..some_from + part.width * channels],
                    whole[from..from + part.width * channels],
                    "{number}: {part:?} of {width} x {height}, row {row}"
                );
            }
        }
    }
}

#[test]
fn a_truncated_file_is_refused_whichever_part_is_asked_for() {
    let bytes = crate::support::jpeg(3, 100, 100);
    let cut = &bytes[..bytes.len() * 3 / 4];
    let options = DecodeOptions::default();
    let header = probe(cut, &options).unwrap();
    let part = Region { top: 0, left: 0, height: 8, width: 8 };
    let part = Some(Excerpt::around(100, 100, part, 1));
    let mut scratch = Scratch::default();
    assert!(Decoder::new().decode_part(cut, &header, &options, part, &mut scratch).is_err());
}
