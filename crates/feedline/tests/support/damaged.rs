//! Images of every format and ways to damage them that keep their structure: pieces (segments,
//! chunks, blocks) are left out, doubled, exchanged, taken from another file, and the selectors,
//! counts and lengths in them are changed. Random bits alone hardly ever reach a decoder's tables.
#![allow(clippy::unwrap_used)]

use feedline::internals::pack::{Encoder, Subsampling};
use feedline::internals::random::Draws;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Jpeg,
    Png,
    WebP,
    Plain,
}

pub(crate) struct Seed {
    pub kind: Kind,
    pub bytes: Vec<u8>,
}

/// Smooth, flat and noisy areas, so that blocks of every kind occur.
pub(crate) fn picture(draws: &mut Draws, width: usize, height: usize) -> Vec<u8> {
    let noise = [0, 3, 40, 255][draws.below(4) as usize];
    (0..width * height * 3)
        .map(|i| {
            let (x, y) = (i / 3 % width, i / 3 / width);
            let base = ((x * (1 + i % 3) + y * 2) / 3) as u8;
            if (x / 24 + y / 40).is_multiple_of(3) {
                90
            } else {
                base.wrapping_add(draws.below(noise + 1) as u8)
            }
        })
        .collect()
}

pub(crate) const SUBSAMPLINGS: [Subsampling; 5] = [
    Subsampling::Half,
    Subsampling::Horizontal,
    Subsampling::Vertical,
    Subsampling::Full,
    Subsampling::Gray,
];

fn jpeg(draws: &mut Draws, number: usize, progressive: bool) -> Vec<u8> {
    let (width, height) = (9 + draws.below(60) as usize, 9 + draws.below(60) as usize);
    let quality = [30, 75, 90, 95][draws.below(4) as usize];
    let mut encoder = Encoder::new(quality, SUBSAMPLINGS[number % 5], progressive).unwrap();
    encoder.restart_interval([0, 0, 1, 3][draws.below(4) as usize]).unwrap();
    let pixels = picture(draws, width, height);
    encoder.encode(&pixels, width, height).unwrap().to_vec()
}

fn png(draws: &mut Draws, number: usize) -> Vec<u8> {
    let (width, height) = (5 + draws.below(30), 5 + draws.below(30));
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    let colors = [png::ColorType::Rgb, png::ColorType::Grayscale, png::ColorType::Indexed];
    encoder.set_color(colors[number % 3]);
    let samples = if number.is_multiple_of(3) { 3 } else { 1 };
    if number % 3 == 2 {
        encoder.set_palette((0..768).map(|i| (i * 7) as u8).collect::<Vec<_>>());
    }
    let mut writer = encoder.write_header().unwrap();
    let data: Vec<u8> = (0..width * height * samples).map(|_| draws.below(256) as u8).collect();
    writer.write_image_data(&data).unwrap();
    drop(writer);
    bytes
}

/// By Pillow, which has Google's encoder of WebP.
const WEBP: [&[u8]; 2] =
    [include_bytes!("../fixtures/lossy.webp"), include_bytes!("../fixtures/lossless.webp")];
const PLAIN: [&[u8]; 10] = [
    include_bytes!("../fixtures/colors.bmp"),
    include_bytes!("../fixtures/runs.bmp"),
    include_bytes!("../fixtures/plain.tif"),
    include_bytes!("../fixtures/packed.tif"),
    include_bytes!("../fixtures/fax.tif"),
    include_bytes!("../fixtures/jpeg.tif"),
    include_bytes!("../fixtures/predicted.tif"),
    include_bytes!("../fixtures/palette.gif"),
    include_bytes!("../fixtures/plain.ppm"),
    include_bytes!("../fixtures/bits.pbm"),
];

/// Whole files of every format; half of them are JPEGs, whose decoder is our own.
pub(crate) fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for number in 0..80 {
        let draws = &mut Draws::new(41, 0, number as u64, 0);
        let (kind, bytes) = match number % 8 {
            0..=2 => (Kind::Jpeg, jpeg(draws, number / 4, false)),
            3 => (Kind::Jpeg, jpeg(draws, number / 8, true)),
            4 => (Kind::Png, png(draws, number / 8)),
            5 => (Kind::WebP, WEBP[number / 8 % 2].to_vec()),
            _ => (Kind::Plain, PLAIN[(number / 8 * 2 + number % 2) % PLAIN.len()].to_vec()),
        };
        seeds.push(Seed { kind, bytes });
    }
    seeds
}

/// The pieces of a file: all bytes, in their order.
pub(crate) fn pieces(kind: Kind, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let length = match kind {
            Kind::Jpeg => match rest {
                [0xff, 0xd0..=0xd9, ..] => 2,
                [0xff, 0xc0..=0xfe, high, low, ..] => {
                    2 + usize::from(u16::from_be_bytes([*high, *low]))
                }
                // Coded data, up to the next marker.
                _ => rest
                    .windows(2)
                    .position(|two| two[0] == 0xff && two[1] != 0)
                    .unwrap_or(rest.len()),
            },
            Kind::Png if at == 0 => 8,
            Kind::Png => match rest.first_chunk::<4>() {
                Some(length) => (u32::from_be_bytes(*length) as usize).saturating_add(12),
                None => rest.len(),
            },
            Kind::WebP if at == 0 => 12,
            Kind::WebP => match rest.get(4..8).and_then(|length| length.first_chunk::<4>()) {
                Some(length) => {
                    (u32::from_le_bytes(*length) as usize).next_multiple_of(2).saturating_add(8)
                }
                None => rest.len(),
            },
            Kind::Plain => 16,
        };
        let length = length.clamp(1, rest.len());
        pieces.push(rest[..length].to_vec());
        at += length;
    }
    pieces
}

/// The file of these pieces, with the checksums that a PNG reader compares.
pub(crate) fn joined(kind: Kind, pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, piece) in pieces.iter().enumerate() {
        let body = piece.len().saturating_sub(4);
        if kind == Kind::Png && number > 0 && body >= 8 {
            bytes.extend_from_slice(&piece[..body]);
            bytes.extend_from_slice(&checksum(&piece[4..body]).to_be_bytes());
        } else {
            bytes.extend_from_slice(piece);
        }
    }
    bytes
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// Where the numbers lie that choose and count in a piece.
fn selector(kind: Kind, piece: &[u8], draws: &mut Draws) -> usize {
    let length = piece.len() as u64;
    let early = 20.min(length);
    let at = match (kind, piece) {
        // A scan: how many components, their names and tables, the spectrum.
        (Kind::Jpeg, [0xff, 0xda, ..]) => 4 + draws.below(length.saturating_sub(4).max(1)),
        // Tables: their numbers, counts and first entries.
        (Kind::Jpeg, [0xff, 0xc4 | 0xdb, ..]) => 4 + draws.below(20),
        // A frame: precision, sizes, components, sampling, quantisers.
        (Kind::Jpeg, [0xff, 0xc0..=0xcf, ..]) => 4 + draws.below(length.saturating_sub(4).max(1)),
        (Kind::Jpeg, [0xff, 0xdd, ..]) => 4 + draws.below(2),
        (Kind::Jpeg, [0xff, ..]) => 1 + draws.below(early),
        (Kind::Png, _) => draws.below(early),
        _ => draws.below(length),
    };
    at.min(length - 1) as usize
}

/// Damage number `number`.
pub(crate) fn damaged(seeds: &[Seed], number: u64) -> Vec<u8> {
    let draws = &mut Draws::new(43, 1, number, 0);
    let seed = &seeds[draws.below(seeds.len() as u64) as usize];
    damage(seeds, seed.kind, &seed.bytes, draws)
}

/// Damages a file, for which others of its kind may be taken apart.
pub(crate) fn damage(seeds: &[Seed], kind: Kind, bytes: &[u8], draws: &mut Draws) -> Vec<u8> {
    let mut pieces = pieces(kind, bytes);
    for _ in 0..1 + draws.below(3) {
        let count = pieces.len() as u64;
        if count == 0 {
            break;
        }
        let at = draws.below(count) as usize;
        match draws.below(12) {
            0 => drop(pieces.remove(at)),
            1 => pieces.insert(at, pieces[at].clone()),
            2 => pieces.swap(at, draws.below(count) as usize),
            3 => {
                let alike: Vec<&Seed> = seeds.iter().filter(|seed| seed.kind == kind).collect();
                let other = alike[draws.below(alike.len() as u64) as usize];
                let others = self::pieces(other.kind, &other.bytes);
                pieces[at] = others[draws.below(others.len() as u64) as usize].clone();
            }
            4..=8 if !pieces[at].is_empty() => {
                let place = selector(kind, &pieces[at], draws);
                let old = pieces[at][place];
                pieces[at][place] = match draws.below(5) {
                    0 => draws.below(256) as u8,
                    1 => old.wrapping_add(1),
                    2 => old.wrapping_sub(1),
                    3 => old ^ 1 << draws.below(8),
                    _ => [0, 1, 2, 3, 0x10, 0x11, 0x12, 0x21, 0x22, 0x7f, 0x80, 0xff]
                        [draws.below(12) as usize],
                };
            }
            9 if pieces[at].len() > 4 => {
                let length = pieces[at].len() as u64;
                pieces[at].truncate(1 + draws.below(length - 1) as usize);
            }
            10 => {
                pieces.truncate(at + 1);
                if kind == Kind::Jpeg {
                    pieces.push(vec![0xff, 0xd9]);
                }
            }
            _ if !pieces[at].is_empty() => {
                let place = draws.below(pieces[at].len() as u64) as usize;
                pieces[at][place] = draws.below(256) as u8;
            }
            _ => {}
        }
    }
    joined(kind, &pieces)
}
