//! A JPEG with restart markers put in has the same pixels and the same metadata.
#![allow(clippy::unwrap_used)]

use feedline::error::Fault;
use feedline::internals::decode::{DecodeOptions, Decoder, probe};
use feedline::internals::image::{Pixels, Scratch};
use feedline::internals::pack::Recutter;
use feedline::internals::pack::{Encoder, Subsampling};
use feedline::internals::random::Draws;

const KINDS: [(Subsampling, usize); 5] = [
    (Subsampling::Full, 8),
    (Subsampling::Horizontal, 16),
    (Subsampling::Half, 16),
    (Subsampling::Vertical, 8),
    (Subsampling::Gray, 8),
];

fn image(draws: &mut Draws, width: usize, height: usize) -> Vec<u8> {
    (0..width * height * 3).map(|i| ((i / 7) as u8).wrapping_add(draws.below(90) as u8)).collect()
}

fn decode(bytes: &[u8], scratch: &mut Scratch) -> Result<Vec<u8>, Fault> {
    let options = DecodeOptions::default();
    let header = probe(bytes, &options)?;
    let image = Decoder::new().decode(bytes, &header, &options, scratch)?;
    let Pixels::U8(pixels) = image.pixels() else { panic!("bytes") };
    Ok(pixels[..image.view().elements()].to_vec())
}

/// Marker and body of everything before the scan.
fn segments(bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    let mut at = 2;
    loop {
        assert_eq!(bytes[at], 0xff);
        let length = usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
        found.push((bytes[at + 1], bytes[at + 4..at + 2 + length].to_vec()));
        if bytes[at + 1] == 0xda {
            return found;
        }
        at += 2 + length;
    }
}

fn with_metadata(jpeg: &[u8]) -> Vec<u8> {
    let mut bytes = jpeg[..2].to_vec();
    for (marker, body) in [
        (0xe1, &b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0"[..]),
        (0xe2, b"ICC_PROFILE\0\x01\x01 not really a profile, and has \xff\xd9 inside"),
        (0xed, b"Photoshop 3.0\0"),
        (0xfe, b"a comment"),
    ] {
        bytes.extend([0xff, marker]);
        bytes.extend((body.len() as u16 + 2).to_be_bytes());
        bytes.extend(body);
    }
    bytes.extend(&jpeg[2..]);
    bytes.extend(b"what a phone puts behind the end");
    bytes
}

#[test]
fn pixels_and_metadata_stay() {
    let mut recutter = Recutter::new().unwrap();
    let mut scratch = Scratch::default();
    for number in 0..120u64 {
        let mut draws = Draws::new(41, 0, number, 0);
        let (subsampling, unit) = KINDS[number as usize % KINDS.len()];
        let (width, height) = (1 + draws.below(200) as usize, 1 + draws.below(200) as usize);
        let progressive = number % 3 == 2;
        let mut encoder = Encoder::new(80, subsampling, progressive).unwrap();
        let pixels = image(&mut draws, width, height);
        let jpeg = with_metadata(encoder.encode(&pixels, width, height).unwrap());
        let segment = 1 + draws.below(6) as u16;
        let cut = recutter.recut(&jpeg, Some(segment)).unwrap().to_vec();
        let before = decode(&jpeg, &mut scratch).unwrap();
        assert!(before == decode(&cut, &mut scratch).unwrap(), "{number}");
        assert!(cut.ends_with(b"what a phone puts behind the end"));
        // All but the frame's kind and what the coder needs is as it was, in its order.
        let kept = |bytes: &[u8]| -> Vec<(u8, Vec<u8>)> {
            let coder = |marker: u8| matches!(marker, 0xc4 | 0xdd | 0xda | 0xc0..=0xc2);
            segments(bytes).into_iter().filter(|(marker, _)| !coder(*marker)).collect()
        };
        assert_eq!(kept(&jpeg), kept(&cut));
        let interval = segments(&cut).into_iter().find(|(marker, _)| *marker == 0xdd).unwrap().1;
        let interval = usize::from(u16::from_be_bytes([interval[0], interval[1]]));
        assert_eq!(width.div_ceil(unit) % interval, 0, "{number}: {interval}");
        assert!(segments(&cut).iter().all(|(marker, _)| *marker != 0xc2), "no longer progressive");
        // Once more changes nothing.
        assert!(recutter.recut(&cut, Some(segment)).unwrap() == cut);
    }
}

#[test]
fn what_cannot_be_cut_says_why() {
    let mut recutter = Recutter::new().unwrap();
    let mut encoder = Encoder::new(80, Subsampling::Half, false).unwrap();
    let photo = encoder.encode(&vec![99; 64 * 64 * 3], 64, 64).unwrap().to_vec();
    let frame = photo.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    let changed = |at: usize, value: u8| {
        let mut bytes = photo.clone();
        bytes[frame + at] = value;
        bytes
    };
    for (bytes, reason) in [
        (b"\x89PNG\r\n\x1a\n".to_vec(), "not a JPEG"),
        (Vec::new(), "not a JPEG"),
        (changed(1, 0xc9), "arithmetic"),
        (changed(1, 0xc3), "lossless"),
        (changed(1, 0xc5), "hierarchical"),
        (changed(4, 12), "12 bits"),
        (changed(11, 0x31), "odd sampling"),
        (changed(14, 0x22), "odd sampling"),
    ] {
        let fault = recutter.recut(&bytes, None).unwrap_err();
        assert!(matches!(&fault, Fault::Unsupported(_)), "{fault}");
        assert!(fault.to_string().contains(reason), "{fault}");
    }
    for bytes in [&photo[..photo.len() / 2], &photo[..frame + 6], &photo[..2 + 2]] {
        let fault = recutter.recut(bytes, None).unwrap_err();
        assert!(matches!(&fault, Fault::Corrupt { .. }), "{fault}");
    }
    // An error leaves nothing behind.
    assert!(recutter.recut(&photo, None).is_ok());
}

#[test]
fn damaged_files_never_panic() {
    let mut recutter = Recutter::new().unwrap();
    let mut scratch = Scratch::default();
    let (mut rewritten, mut differing) = (0, 0);
    for number in 0..3000u64 {
        let mut draws = Draws::new(42, 0, number, 0);
        let (subsampling, _) = KINDS[number as usize % KINDS.len()];
        let mut encoder = Encoder::new(60, subsampling, number % 2 == 0).unwrap();
        let pixels = image(&mut draws, 40, 40);
        let mut bytes = encoder.encode(&pixels, 40, 40).unwrap().to_vec();
        for _ in 0..1 + draws.below(3) {
            let at = draws.below(bytes.len().max(1) as u64) as usize;
            match draws.below(4) {
                0 => bytes.truncate(at.max(1)),
                1 if bytes.len() > 5 => drop(bytes.drain(at..bytes.len().min(at + 5))),
                _ if at < bytes.len() => bytes[at] = draws.below(256) as u8,
                _ => {}
            }
        }
        let Ok(cut) = recutter.recut(&bytes, None) else { continue };
        if let Ok(before) = decode(&bytes, &mut scratch) {
            // A progressive file that lacks scans is shown smoothed, and a damaged one may hold
            // coefficients that no encoder can write. `Pack` compares the pixels of both.
            let same = decode(cut, &mut scratch).is_ok_and(|after| after == before);
            differing += u32::from(!same);
            rewritten += u32::from(same);
        }
    }
    assert!(rewritten > 300 && differing < rewritten / 50, "{rewritten} equal, {differing} not");
}
