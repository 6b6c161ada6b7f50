//! What several test files need: small data sets, and a look at every row of a batch.
#![allow(dead_code, unused_imports, unused_macros, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use feedline::Batch;
use feedline::internals::pack::{Encoder, Subsampling};
use feedline::internals::random::Draws;
use feedline::sample::DType;
use feedline::source::{Arrays, Column};

/// A folder of its own, removed at the end.
pub(crate) struct Folder(pub PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let unique = format!("{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("feedline-{name}-{unique}"));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Does what must not wait for something that the caller still holds up: a loaded machine has a minute.
pub(crate) fn ends(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    ended.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
}

/// Processor time of this thread, which others on the machine do not lengthen; 0 where it is unknown.
pub(crate) fn processor_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    nanoseconds.unwrap_or(0.0) / 1e9
}

/// A JPEG of smooth colours that depend on `seed`.
pub(crate) fn jpeg(seed: u64, width: usize, height: usize) -> Vec<u8> {
    let mut draws = Draws::new(seed, 0, 0, 0);
    let phase: Vec<f64> = (0..6).map(|_| draws.uniform(0.5, 3.0)).collect();
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            for c in 0..3 {
                let wave =
                    x as f64 / width as f64 * phase[c] + y as f64 / height as f64 * phase[c + 3];
                pixels.push(((wave.fract()) * 255.0) as u8);
            }
        }
    }
    let mut encoder = Encoder::new(85, Subsampling::Half, false).unwrap();
    encoder.encode(&pixels, width, height).unwrap().to_vec()
}

/// `classes` folders with `each` small photos.
pub(crate) fn photos(folder: &Folder, classes: usize, each: usize) {
    for class in 0..classes {
        for number in 0..each {
            let seed = (class * 1000 + number) as u64;
            let size = (20 + number % 5 * 3, 24 + class * 2);
            folder.write(&format!("class{class}/{number:03}.jpg"), &jpeg(seed, size.0, size.1));
        }
    }
}

/// `n` images of 3 x 8 x 8 and their numbers as labels.
pub(crate) fn arrays(n: usize) -> Arrays {
    let pixels: Vec<u8> = (0..n * 192).map(|i| (i * 31 % 251) as u8).collect();
    let labels: Vec<i64> = (0..n as i64).collect();
    Arrays::new(vec![
        Column::new("image", DType::U8, &[n, 3, 8, 8], pixels),
        Column::new("label", DType::I64, &[n], labels),
    ])
    .unwrap()
}

/// A hash of each row, over all fields.
pub(crate) fn rows(batch: &Batch) -> Vec<u64> {
    (0..batch.rows())
        .map(|row| {
            (0..batch.fields().len()).fold(0, |hash, field| {
                let array = batch.array(field).unwrap();
                let bytes = array.bytes.len() / array.rows;
                let row = &array.bytes[row * bytes..(row + 1) * bytes];
                xxhash_rust::xxh3::xxh3_64_with_seed(row, hash)
            })
        })
        .collect()
}

/// The methods of a store that differs from the files of this machine in its reads alone.
macro_rules! over_local {
    () => {
        fn open(&self, path: &std::path::Path) -> std::io::Result<feedline::store::Handle> {
            feedline::store::Local.open(path)
        }

        fn list(
            &self,
            folder: &std::path::Path,
            each: &mut dyn FnMut(feedline::store::Entry) -> std::ops::ControlFlow<()>,
        ) -> std::io::Result<()> {
            feedline::store::Local.list(folder, each)
        }

        fn find(&self, path: &std::path::Path) -> std::io::Result<feedline::store::Metadata> {
            feedline::store::Local.find(path)
        }
    };
}

pub(crate) use over_local;
