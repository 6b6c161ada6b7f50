//! Any bytes as a JPEG: the decoder of our own and libjpeg-turbo give the same pixels or both refuse
//! them, and ours takes at most ten times as long.
#![no_main]

#[path = "../../crates/feedline/tests/support/damaged.rs"]
#[allow(dead_code)]
mod damaged;

use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::Duration;

use damaged::{Kind, Seed, damage, seeds};
use feedline::internals::decode::{DecodeOptions, Decoder, probe};
use feedline::internals::image::{Pixels, Scratch};
use feedline::internals::observe::thread_cpu;
use feedline::internals::random::Draws;
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

/// Of the processor: what is below this is the clock's, the allocator's and the machine's.
const FLOOR: Duration = Duration::from_millis(20);

thread_local! {
    /// Used for all files, so that what one leaves behind would show in the next.
    static USED: RefCell<(Decoder, Scratch)> = RefCell::default();
}

fn decoded(bytes: &[u8]) -> (Option<Vec<u8>>, Duration) {
    let options = DecodeOptions { max_pixels: 1 << 22, ..DecodeOptions::default() };
    USED.with_borrow_mut(|(decoder, scratch)| {
        let began = thread_cpu();
        let pixels = probe(bytes, &options).ok().and_then(|header| {
            let image = decoder.decode(bytes, &header, &options, scratch).ok()?;
            let Pixels::U8(pixels) = image.pixels() else { return None };
            Some(pixels[..image.view().elements()].to_vec())
        });
        (pixels, thread_cpu() - began)
    })
}

fuzz_target!(|data: &[u8]| {
    if !data.starts_with(&[0xff, 0xd8, 0xff]) {
        return;
    }
    let (own, own_time) = decoded(data);
    // A fill byte before a marker means nothing, but such a file is left to the library.
    let (library, library_time) = decoded(&[&data[..2], &[0xff], &data[2..]].concat());
    assert!(own == library, "{} {}", own.is_some(), library.is_some());
    assert!(own_time <= 10 * library_time + FLOOR, "{own_time:?} against {library_time:?}");
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    static SEEDS: OnceLock<Vec<Seed>> = OnceLock::new();
    let seeds = SEEDS.get_or_init(|| {
        seeds().into_iter().filter(|seed| seed.kind == Kind::Jpeg).collect()
    });
    let draws = &mut Draws::new(u64::from(seed), 0, 0, 0);
    let is_jpeg = data[..size].starts_with(&[0xff, 0xd8, 0xff]);
    if is_jpeg && draws.below(4) == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let from = match is_jpeg && draws.below(8) != 0 {
        true => data[..size].to_vec(),
        false => seeds[draws.below(seeds.len() as u64) as usize].bytes.clone(),
    };
    let made = damage(seeds, Kind::Jpeg, &from, draws);
    let length = made.len().min(max_size);
    data[..length].copy_from_slice(&made[..length]);
    length
});
