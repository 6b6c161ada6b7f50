//! A part of a JPEG with restart markers has the pixels of a full decode, to the bit, though only
//! the segments around it are decoded.
#![allow(clippy::unwrap_used)]

use feedline::error::Fault;
use feedline::internals::decode::{ColorMode, DecodeOptions, Decoder, probe};
use feedline::internals::image::{Excerpt, Pixels, Region, Scratch};
use feedline::internals::pack::{Encoder, Subsampling};
use feedline::internals::random::Draws;

const KINDS: [(Subsampling, usize, usize); 5] = [
    (Subsampling::Full, 8, 8),
    (Subsampling::Horizontal, 16, 8),
    (Subsampling::Half, 16, 16),
    (Subsampling::Vertical, 8, 16),
    (Subsampling::Gray, 8, 8),
];

/// Noise over gradients: every block differs from its neighbours, so a wrong one shows.
fn image(draws: &mut Draws, width: usize, height: usize) -> Vec<u8> {
    (0..width * height * 3).map(|i| ((i / 7) as u8).wrapping_add(draws.below(90) as u8)).collect()
}

struct Photo {
    bytes: Vec<u8>,
    width: usize,
    height: usize,
    /// Units in a row, and pixels of a unit across.
    units: usize,
    interval: usize,
}

fn photo(number: u64, draws: &mut Draws) -> Photo {
    let (subsampling, unit_width, _) = KINDS[number as usize % KINDS.len()];
    let (width, height) = (1 + draws.below(200) as usize, 1 + draws.below(200) as usize);
    let units = width.div_ceil(unit_width);
    let divisors: Vec<usize> = (1..=units).filter(|n| units.is_multiple_of(*n)).collect();
    let interval = match number % 8 {
        // Several rows in a segment, one row, and what goes with rows in no simple way.
        0 => units * (1 + draws.below(3) as usize),
        1 => units,
        2 => 1 + draws.below(2 * units as u64) as usize,
        _ => divisors[draws.below(divisors.len() as u64) as usize],
    };
    let mut encoder = Encoder::new(70 + draws.below(30) as u8, subsampling, false).unwrap();
    encoder.restart_interval(interval as u16).unwrap();
    let bytes = encoder.encode(&image(draws, width, height), width, height).unwrap().to_vec();
    Photo { bytes, width, height, units, interval }
}

fn part(draws: &mut Draws, height: usize, width: usize) -> Region {
    // Mostly crops of a good size; some of a pixel or two.
    let most = if draws.below(4) == 0 { 5 } else { 200 };
    let h = 1 + draws.below(height.min(most) as u64) as usize;
    let w = 1 + draws.below(width.min(most) as u64) as usize;
    Region {
        top: draws.below((height - h) as u64 + 1) as usize,
        left: draws.below((width - w) as u64 + 1) as usize,
        height: h,
        width: w,
    }
}

/// The pixels of `part`, decoded with what lies around it or alone.
fn decode(
    decoder: &mut Decoder,
    scratch: &mut Scratch,
    bytes: &[u8],
    options: &DecodeOptions,
    part: Region,
    whole: bool,
) -> Result<Vec<u8>, Fault> {
    let header = probe(bytes, options)?;
    let around = Excerpt::around(header.height, header.width, part, 1);
    let wanted = if whole { None } else { Some(around) };
    let image = decoder.decode_part(bytes, &header, options, wanted, scratch)?;
    let Pixels::U8(pixels) = image.pixels() else { panic!("bytes") };
    let view = image.view();
    let at_hand = image.excerpt().part;
    let row = |y: usize| {
        let start = view.at(y - at_hand.top, part.left - at_hand.left, 0);
        pixels[start..start + part.width * view.channels].to_vec()
    };
    Ok((part.top..part.top + part.height).flat_map(row).collect())
}

#[test]
fn parts_equal_the_full_decode_to_the_bit() {
    let (mut decoder, mut scratch) = (Decoder::new(), Scratch::default());
    let mut compared = 0;
    for number in 0..240 {
        let mut draws = Draws::new(31, 0, number, 0);
        let photo = photo(number, &mut draws);
        let mode = if number % 7 == 6 { ColorMode::Gray } else { ColorMode::Rgb };
        let options = DecodeOptions { mode, ..DecodeOptions::default() };
        for _ in 0..40 {
            let part = part(&mut draws, photo.height, photo.width);
            let mut decode =
                |whole| decode(&mut decoder, &mut scratch, &photo.bytes, &options, part, whole);
            let (full, some) = (decode(true).unwrap(), decode(false).unwrap());
            let Photo { width, height, units, interval, .. } = photo;
            assert!(
                full == some,
                "{number}: {part:?} of {width} x {height}, {interval} of {units} units a segment"
            );
            compared += 1;
        }
    }
    assert!(compared >= 9000);
}

/// Where the scan's data begin, and where its restart markers lie.
fn markers(bytes: &[u8]) -> (usize, Vec<usize>) {
    let scan = bytes.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap();
    let data = scan + 2 + usize::from(u16::from_be_bytes([bytes[scan + 2], bytes[scan + 3]]));
    let is_restart = |at: &usize| bytes[*at] == 0xff && (0xd0..=0xd7).contains(&bytes[at + 1]);
    (data, (data..bytes.len() - 1).filter(is_restart).collect())
}

fn damage(draws: &mut Draws, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let (data, restarts) = markers(&bytes);
    let any = |draws: &mut Draws| data + draws.below((bytes.len() - data) as u64) as usize;
    let a_restart = |draws: &mut Draws| {
        restarts.get(draws.below(restarts.len().max(1) as u64) as usize).copied().unwrap_or(data)
    };
    match draws.below(8) {
        // Segments cut short or left out, with and without the end.
        0 => {
            let (a, b) = (any(draws), any(draws));
            drop(bytes.drain(a.min(b)..a.max(b)));
        }
        1 => bytes.truncate(any(draws)),
        2 => {
            let at = a_restart(draws);
            bytes[at + 1] = 0xd0 | draws.below(8) as u8;
        }
        // A marker too many, one too few, one that does not belong there.
        3 => {
            let at = any(draws);
            drop(bytes.splice(at..at, [0xff, 0xd0 | draws.below(8) as u8]));
        }
        4 => {
            let at = a_restart(draws);
            drop(bytes.drain(at..at + 2));
        }
        5 => {
            let at = any(draws);
            bytes[at] = draws.below(256) as u8;
            bytes[at.min(data + 1)] = 0xff;
        }
        // An interval that is not the one that the data have.
        6 => {
            if let Some(at) = bytes.windows(4).position(|w| w == [0xff, 0xdd, 0, 4]) {
                bytes[at + 5] = draws.below(20) as u8;
            }
        }
        _ => {
            let at = draws.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << draws.below(8);
        }
    }
    bytes
}

#[test]
fn damaged_files_never_panic_and_never_give_other_pixels() {
    let (mut decoder, mut scratch) = (Decoder::new(), Scratch::default());
    let (mut both, mut refused) = (0, 0);
    for number in 0..4000 {
        let mut draws = Draws::new(32, 0, number, 0);
        let photo = photo(number, &mut draws);
        let bytes = damage(&mut draws, &photo.bytes);
        for allow_truncated in [false, true] {
            let options = DecodeOptions { allow_truncated, ..DecodeOptions::default() };
            let Ok(header) = probe(&bytes, &options) else { continue };
            let part = part(&mut draws, header.height.min(400), header.width.min(400));
            let mut decode =
                |whole| decode(&mut decoder, &mut scratch, &bytes, &options, part, whole);
            match (decode(true), decode(false)) {
                (Ok(full), Ok(some)) => {
                    assert!(
                        full == some,
                        "{number}: {part:?} of {} x {}",
                        photo.width,
                        photo.height
                    );
                    both += 1;
                }
                (Ok(_), Err(fault)) => panic!("{number}: only the part is refused: {fault}"),
                // Damage outside of the part is not seen.
                (Err(_), _) => refused += 1,
            }
        }
    }
    assert!(both > 4000 && refused > 1000, "{both} compared, {refused} refused");
}

#[test]
fn segments_outside_of_the_part_are_not_decoded() {
    let mut draws = Draws::new(33, 0, 0, 0);
    let pixels = image(&mut draws, 160, 160);
    for (subsampling, _, _) in KINDS {
        let mut encoder = Encoder::new(90, subsampling, false).unwrap();
        encoder.restart_interval(1).unwrap();
        let bytes = encoder.encode(&pixels, 160, 160).unwrap().to_vec();
        let (data, restarts) = markers(&bytes);
        // Without its first segment the file is bad, but not where it is looked at.
        let hurt = [&bytes[..data], &bytes[restarts[0]..]].concat();
        let options = DecodeOptions::default();
        let (mut decoder, mut scratch) = (Decoder::new(), Scratch::default());
        let mut decode = |bytes: &[u8], part, whole| {
            decode(&mut decoder, &mut scratch, bytes, &options, part, whole)
        };
        let apart = Region { top: 90, left: 70, height: 50, width: 40 };
        let good = decode(&bytes, apart, true).unwrap();
        assert!(decode(&hurt, apart, true).is_err());
        assert_eq!(decode(&hurt, apart, false).unwrap(), good);
        let there = Region { top: 0, left: 0, ..apart };
        assert!(decode(&hurt, there, false).is_err());
    }
}
