//! The decoder for plain JPEGs writes the very pixels that libjpeg-turbo writes.
#![allow(clippy::unwrap_used)]

#[path = "support/damaged.rs"]
#[allow(dead_code)]
mod damaged;

use damaged::{SUBSAMPLINGS, picture};
use feedline::internals::decode::{ColorMode, DecodeOptions, Decoder, probe};
use feedline::internals::image::{Excerpt, Pixels, Region, Scratch};
use feedline::internals::pack::{Encoder, Subsampling};
use feedline::internals::random::Draws;

/// A filled byte between two markers is allowed and means nothing, but it is not plain: such a
/// file is decoded by the library.
fn for_the_library(bytes: &[u8]) -> Vec<u8> {
    [&bytes[..2], &[0xff], &bytes[2..]].concat()
}

fn decode(
    decoder: &mut Decoder,
    bytes: &[u8],
    options: &DecodeOptions,
    wanted: Option<Excerpt>,
) -> (Excerpt, Vec<u8>) {
    let header = probe(bytes, options).unwrap();
    let mut scratch = Scratch::default();
    let image = decoder.decode_part(bytes, &header, options, wanted, &mut scratch).unwrap();
    let Pixels::U8(pixels) = image.pixels() else { panic!("bytes") };
    (image.excerpt(), pixels[..image.view().elements()].to_vec())
}

#[test]
fn whole_images_and_parts_equal_the_library_to_the_bit() {
    let mut decoder = Decoder::new();
    let mut crops = 0;
    for number in 0..400u64 {
        let mut draws = Draws::new(17, 0, number, 0);
        let (width, height) = (1 + draws.below(170) as usize, 1 + draws.below(170) as usize);
        let quality = [30, 75, 90, 95, 100][draws.below(5) as usize];
        let kind = SUBSAMPLINGS[number as usize % 5];
        let mut encoder = Encoder::new(quality, kind, false).unwrap();
        encoder.restart_interval([0, 0, 1, 2, 3, 7, 1000][draws.below(7) as usize]).unwrap();
        let pixels = picture(&mut draws, width, height);
        let bytes = encoder.encode(&pixels, width, height).unwrap().to_vec();
        let mode = if kind == Subsampling::Gray && number % 2 == 0 {
            ColorMode::Gray
        } else {
            ColorMode::Rgb
        };
        let options = DecodeOptions { mode, ..DecodeOptions::default() };
        let (_, library) = decode(&mut decoder, &for_the_library(&bytes), &options, None);
        let (_, whole) = decode(&mut decoder, &bytes, &options, None);
        assert!(whole == library, "{number}: {kind:?} {width} x {height} at {quality}");
        for _ in 0..12 {
            let (h, w) =
                (1 + draws.below(height as u64) as usize, 1 + draws.below(width as u64) as usize);
            let part = Region {
                top: draws.below((height - h) as u64 + 1) as usize,
                left: draws.below((width - w) as u64 + 1) as usize,
                height: h,
                width: w,
            };
            let wanted = Excerpt::around(height, width, part, 1);
            let (excerpt, some) = decode(&mut decoder, &bytes, &options, Some(wanted));
            let tiny = width <= 4;
            assert!(
                excerpt == wanted || tiny,
                "{number}: {kind:?} {width} x {height} was not plain"
            );
            let Region { top, left, height: rows, width: columns } = excerpt.part;
            assert_eq!(some.len(), rows * columns * mode.channels());
            for row in part.top..part.top + part.height {
                let line = |image: &[u8], top: usize, left: usize, width: usize| {
                    let start = ((row - top) * width + part.left - left) * mode.channels();
                    image[start..start + part.width * mode.channels()].to_vec()
                };
                assert_eq!(
                    line(&some, top, left, columns),
                    line(&library, 0, 0, width),
                    "{number}: {part:?} of {kind:?} {width} x {height}, row {row}"
                );
            }
            crops += 1;
        }
    }
    assert_eq!(crops, 4800);
}

/// Whatever happened to a file, both ways give the same pixels or both refuse it.
#[test]
fn damaged_files_are_taken_as_the_library_takes_them() {
    let (mut equal, mut refused) = (0, 0);
    let mut decoder = Decoder::new();
    for number in 0..2500u64 {
        let draws = &mut Draws::new(23, 0, number, 0);
        let (width, height) = (5 + draws.below(60) as usize, 5 + draws.below(60) as usize);
        let mut encoder = Encoder::new(85, SUBSAMPLINGS[number as usize % 5], false).unwrap();
        encoder.restart_interval([0, 1, 3][draws.below(3) as usize]).unwrap();
        let pixels = picture(draws, width, height);
        let mut bytes = encoder.encode(&pixels, width, height).unwrap().to_vec();
        for _ in 0..1 + draws.below(3) {
            let at = 2 + draws.below(bytes.len() as u64 - 2) as usize;
            bytes[at] = draws.below(256) as u8;
        }
        let options = DecodeOptions::default();
        let mut outcome = |bytes: &[u8]| {
            let header = probe(bytes, &options).ok()?;
            let mut scratch = Scratch::default();
            let image = decoder.decode(bytes, &header, &options, &mut scratch).ok()?;
            let Pixels::U8(pixels) = image.pixels() else { panic!("bytes") };
            Some(pixels[..image.view().elements()].to_vec())
        };
        let (own, library) = (outcome(&bytes), outcome(&for_the_library(&bytes)));
        assert!(own == library, "{number}: {} {}", own.is_some(), library.is_some());
        *if own.is_some() { &mut equal } else { &mut refused } += 1;
    }
    assert!(equal > 300 && refused > 300, "{equal} {refused}");
}
