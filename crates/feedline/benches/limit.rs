//! What bare libjpeg-turbo does with the same crops: the limit that `benchmarks/run.py` measures
//! beside the loaders.
//!
//!     limit FOLDER THREADS full|crop|scaled|entropy [SIZE]
//!
//! Every line on standard input starts an epoch over the JPEGs below the folder, in a new order,
//! and is answered with a line of JSON. A file is read and decoded, with accurate DCT and smooth
//! upsampling, and nothing else is done: `full` decodes every pixel, `crop` the rows and columns
//! of a box as `RandomResizedCrop` draws it, `scaled` the same with DCT scaling where the box is at
//! least twice SIZE, `entropy` all of the image at 1/8, where little but Huffman decoding is left.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::fs::{self, File};
use std::io::{self, BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use turbojpeg_sys as tj;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Full,
    Crop,
    Scaled,
    Entropy,
}

/// SplitMix64: the boxes have the loader's distribution, not its very numbers.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, end: c_int) -> c_int {
        (self.next() % end.max(1) as u64) as c_int
    }

    /// A part of 8 to 100 % of the area, with a ratio of 3:4 to 4:3.
    fn part(&mut self, width: c_int, height: c_int) -> tj::tjregion {
        let [low, high] = [(3.0f64 / 4.0).ln(), (4.0f64 / 3.0).ln()];
        for _ in 0..10 {
            let area = f64::from(width) * f64::from(height) * self.uniform(0.08, 1.0);
            let ratio = self.uniform(low, high).exp();
            let w = (area * ratio).sqrt().round() as c_int;
            let h = (area / ratio).sqrt().round() as c_int;
            if (1..=width).contains(&w) && (1..=height).contains(&h) {
                let (x, y) = (self.below(width - w + 1), self.below(height - h + 1));
                return tj::tjregion { x, y, w, h };
            }
        }
        let side = width.min(height);
        tj::tjregion { x: (width - side) / 2, y: (height - side) / 2, w: side, h: side }
    }
}

/// One thread's decoder with its buffers, which grow to the largest image.
struct Decoder {
    instance: NonNull<c_void>,
    bytes: Vec<u8>,
    pixels: Vec<u8>,
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: made by `tj3Init` and destroyed only here.
        unsafe { tj::tj3Destroy(self.instance.as_ptr()) }
    }
}

impl Decoder {
    fn new() -> Result<Self, Failure> {
        // SAFETY: takes no pointers; null is checked.
        let instance = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let instance = NonNull::new(instance).ok_or("TurboJPEG cannot be started")?;
        Ok(Decoder { instance, bytes: Vec::new(), pixels: Vec::new() })
    }

    fn check(&self, status: c_int) -> Result<(), Failure> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the instance is alive; the text is the instance's own and ends with a zero.
        let text = unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.instance.as_ptr())) };
        Err(text.to_string_lossy().into())
    }

    fn get(&self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: the instance is alive.
        unsafe { tj::tj3Get(self.instance.as_ptr(), parameter as c_int) }
    }

    /// Reads and decodes one file.
    fn decode(
        &mut self,
        path: &Path,
        mode: Mode,
        size: c_int,
        draws: &mut Draws,
    ) -> Result<(), Failure> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len() as usize;
        self.bytes.resize(length.max(self.bytes.len()), 0);
        file.read_exact(&mut self.bytes[..length])?;
        let handle = self.instance.as_ptr();
        // SAFETY: `bytes` outlives the call, which reads no more than `length` of it.
        let status =
            unsafe { tj::tj3DecompressHeader(handle, self.bytes.as_ptr(), length as tj::size_t) };
        self.check(status)?;
        let width = self.get(tj::TJPARAM_TJPARAM_JPEGWIDTH);
        let height = self.get(tj::TJPARAM_TJPARAM_JPEGHEIGHT);

        let part = draws.part(width, height);
        let eighths = match mode {
            Mode::Entropy => 1,
            Mode::Scaled => {
                [1, 2, 4].into_iter().find(|n| part.w.min(part.h) * n / 8 >= size).unwrap_or(8)
            }
            _ => 8,
        };
        let scale = tj::tjscalingfactor { num: 1, denom: 8 / eighths };
        // SAFETY: the instance is alive; the factor is a plain value.
        self.check(unsafe { tj::tj3SetScalingFactor(handle, scale) })?;
        let scaled = |n: c_int| (n * eighths + 7) / 8;
        let mut region = tj::tjregion { x: 0, y: 0, w: scaled(width), h: scaled(height) };
        if matches!(mode, Mode::Crop | Mode::Scaled) {
            // Columns can only be left out in whole units of the coarsest component.
            let wide = match self.get(tj::TJPARAM_TJPARAM_SUBSAMP) {
                tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => 2 * eighths,
                tj::TJSAMP_TJSAMP_411 => 4 * eighths,
                _ => eighths,
            };
            let [left, right] = [part.x * eighths / 8, scaled(part.x + part.w).min(region.w)];
            let [top, bottom] = [part.y * eighths / 8, scaled(part.y + part.h).min(region.h)];
            let x = left / wide * wide;
            region = tj::tjregion { x, y: top, w: right - x, h: bottom - top };
        }
        // SAFETY: the instance is alive and has read a header; the region is a plain value.
        self.check(unsafe { tj::tj3SetCroppingRegion(handle, region) })?;
        let needed = region.w as usize * region.h as usize * 3;
        self.pixels.resize(needed.max(self.pixels.len()), 0);
        // SAFETY: `bytes` and `pixels` outlive the call; the library writes `region.h` rows of
        // `region.w` pixels of 3 bytes without gaps, which `pixels` has room for.
        let status = unsafe {
            tj::tj3Decompress8(
                handle,
                self.bytes.as_ptr(),
                length as tj::size_t,
                self.pixels.as_mut_ptr(),
                0,
                tj::TJPF_TJPF_RGB as c_int,
            )
        };
        self.check(status).map_err(|error| format!("{}: {error}", path.display()).into())
    }
}

fn photos(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            photos(&path, found)?;
        } else if path.extension().is_some_and(|ending| ending == "jpg" || ending == "jpeg") {
            found.push(path);
        }
    }
    Ok(())
}

fn epoch(
    paths: &[PathBuf],
    threads: usize,
    mode: Mode,
    size: c_int,
    number: u64,
) -> Result<f64, Failure> {
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let work = || -> Result<(), Failure> {
            let mut decoder = Decoder::new()?;
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(path) = paths.get(index) else { return Ok(()) };
                let mut draws = Draws((number << 32) ^ index as u64);
                decoder.decode(path, mode, size, &mut draws)?;
            }
        };
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|thread| match thread.join() {
            Ok(outcome) => outcome,
            Err(_) => Err("a thread panicked".into()),
        })
    })?;
    Ok(began.elapsed().as_secs_f64())
}

fn run() -> Result<(), Failure> {
    let given: Vec<String> = std::env::args().skip(1).filter(|text| text != "--bench").collect();
    let [folder, threads, mode, rest @ ..] = given.as_slice() else {
        eprintln!("usage: limit FOLDER THREADS full|crop|scaled|entropy [SIZE]");
        return Ok(());
    };
    let mode = match mode.as_str() {
        "full" => Mode::Full,
        "crop" => Mode::Crop,
        "scaled" => Mode::Scaled,
        "entropy" => Mode::Entropy,
        other => return Err(format!("no mode is called {other}").into()),
    };
    let size = rest.first().map_or(Ok(224), |text| text.parse())?;
    let threads = threads.parse()?;
    let mut paths = Vec::new();
    photos(Path::new(folder), &mut paths)?;
    paths.sort();
    for (number, line) in io::stdin().lock().lines().enumerate() {
        line?;
        let mut draws = Draws(number as u64);
        for last in (1..paths.len()).rev() {
            paths.swap(last, (draws.next() % (last as u64 + 1)) as usize);
        }
        let seconds = epoch(&paths, threads, mode, size, number as u64)?;
        let images = paths.len();
        println!("{{\"images\": {images}, \"seconds\": {seconds}, \"first\": null}}");
        io::stdout().flush()?;
    }
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("limit: {error}");
        std::process::exit(1);
    }
}
