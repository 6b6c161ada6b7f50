//! A data set of photo-like JPEGs that anyone can make: the same bytes on every machine.
//!
//! Real photographs decode at a speed that depends on their sizes, bytes per pixel and detail.
//! These imitate ImageNet's: about 500x375 pixels, about 100 KB, the same mix of landscape and
//! portrait, an amplitude spectrum of about 1/f. Benchmarks and demos need no download.

mod draws;
mod encoder;
mod error;
mod noise;
mod scene;
mod style;
mod whole_file;

pub use error::Error;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use draws::Draws;
use encoder::Encoder;
use scene::Painter;
use style::{Style, folder_name};

type Result<T> = std::result::Result<T, Error>;

/// The file that marks a folder as a sample set; its last version is written after all photos.
const MARKER: &str = ".feedline-sample-data.json";

/// Raised when the same parameters give other bytes, so that old sets are made anew.
const GENERATION: u32 = 1;

/// What to make. [`SamplePhotos::default`] imitates ImageNet, [`SamplePhotos::large`] a camera.
///
/// ```
/// use feedline_sample_photos::SamplePhotos;
/// # let dir = std::env::temp_dir().join(format!("feedline-doc-{}", std::process::id()));
/// let photos = SamplePhotos { count: 4, classes: 2, ..SamplePhotos::default() };
/// let summary = photos.write(&dir, &|_done| {})?;
/// assert_eq!(summary.photos, 4);
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), feedline_sample_photos::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplePhotos {
    /// Photos in all; class `i % classes` gets photo `i`.
    pub count: u64,
    /// Class folders.
    pub classes: u64,
    /// Another seed makes other photos.
    pub seed: u64,
    /// Width of the commonest size. The mean number of pixels is `mean_width * mean_height`.
    pub mean_width: u32,
    /// Height of the commonest size.
    pub mean_height: u32,
    /// JPEG quality, 1 to 100.
    pub quality: u8,
}

impl Default for SamplePhotos {
    fn default() -> Self {
        SamplePhotos {
            count: 2000,
            classes: 20,
            seed: 0,
            mean_width: 500,
            mean_height: 375,
            quality: 94,
        }
    }
}

/// What a sample set consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of photos.
    pub photos: u64,
    /// Number of class folders.
    pub classes: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Pixels of all photos.
    pub pixels: u64,
    /// The set was there already, whole and with the same parameters; nothing was written.
    pub kept: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Marker {
    generation: u32,
    parameters: SamplePhotos,
    /// None while photos are being written.
    summary: Option<Summary>,
}

impl SamplePhotos {
    /// Photos of 1896x1606 pixels and about 500 KB, for tests of memory.
    #[must_use]
    pub fn large() -> Self {
        SamplePhotos { mean_width: 1896, mean_height: 1606, quality: 78, ..SamplePhotos::default() }
    }

    /// Writes the photos into class folders of `dir`, on all cores.
    ///
    /// A set with the same parameters is kept if it is whole and finished if it is not. A folder
    /// that holds anything else is refused. `progress` hears how many photos are done, from any
    /// of the threads.
    pub fn write(&self, dir: &Path, progress: &(dyn Fn(u64) + Sync)) -> Result<Summary> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        self.write_with(dir, threads, progress)
    }

    /// [`write`](Self::write) with a given number of threads. The bytes do not depend on it.
    pub fn write_with(
        &self,
        dir: &Path,
        threads: usize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Summary> {
        self.check()?;
        if let Some(summary) = self.claim(dir)? {
            progress(self.count);
            return Ok(Summary { kept: true, ..summary });
        }
        for class in 0..self.classes.min(self.count) {
            create_folder(&dir.join(folder_name(class, self.classes)))?;
        }
        let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
        let (bytes, pixels) = (AtomicU64::new(0), AtomicU64::new(0));
        let failed = AtomicBool::new(false);
        let failure = Mutex::new(None);
        let work = || -> Result<()> {
            let mut painter = Painter::default();
            let mut encoder = Encoder::new(self.quality)?;
            while !failed.load(Ordering::Relaxed) {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= self.count {
                    break;
                }
                let (width, height) = self.size_of(index);
                let jpeg = self.photo(index, width, height, &mut painter, &mut encoder)?;
                write_whole(&dir.join(self.path_of(index)), jpeg)?;
                bytes.fetch_add(jpeg.len() as u64, Ordering::Relaxed);
                pixels.fetch_add((width * height) as u64, Ordering::Relaxed);
                progress(done.fetch_add(1, Ordering::Relaxed) + 1);
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, 256) {
                scope.spawn(|| {
                    if let Err(error) = work() {
                        failed.store(true, Ordering::Relaxed);
                        if let Ok(mut failure) = failure.lock() {
                            failure.get_or_insert(error);
                        }
                    }
                });
            }
        });
        if let Ok(Some(error)) = failure.into_inner() {
            return Err(error);
        }
        let summary = Summary {
            photos: self.count,
            classes: self.classes.min(self.count),
            bytes: bytes.into_inner(),
            pixels: pixels.into_inner(),
            kept: false,
        };
        self.mark(dir, Some(summary.clone()))?;
        Ok(summary)
    }

    fn check(&self) -> Result<()> {
        let check = |name, value, low, high| match (low..=high).contains(&value) {
            true => Ok(()),
            false => Err(Error::Parameter { name, value, low, high }),
        };
        check("count", self.count, 1, 100_000_000)?;
        check("classes", self.classes, 1, 100_000)?;
        // Below 16 pixels there is no room for a picture; above, a painter takes over 4 GB.
        check("width", self.mean_width.into(), 16, 8192)?;
        check("height", self.mean_height.into(), 16, 8192)?;
        check("quality", self.quality.into(), 1, 100)?;
        Ok(())
    }

    /// Makes `dir` ours, or reports what it holds: a whole set gives its summary.
    fn claim(&self, dir: &Path) -> Result<Option<Summary>> {
        create_folder(dir)?;
        let marker = dir.join(MARKER);
        let refuse = |problem: String| Err(Error::Folder { path: dir.to_owned(), problem });
        let text = match fs::read_to_string(&marker) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut entries =
                    fs::read_dir(dir).map_err(|source| io_error("cannot list", dir, source))?;
                if entries.next().is_some() {
                    return refuse(
                        "the folder holds other files; choose a new or empty folder for the sample photos"
                            .into(),
                    );
                }
                self.mark(dir, None)?;
                return Ok(None);
            }
            Err(error) => return Err(io_error("cannot read", &marker, error)),
        };
        match serde_json::from_str::<Marker>(&text) {
            Ok(found) if found.parameters == *self && found.generation == GENERATION => {
                if let Some(summary) = found.summary {
                    // A set from which files were deleted is completed rather than trusted.
                    if (0..self.count).all(|index| dir.join(self.path_of(index)).is_file()) {
                        return Ok(Some(summary));
                    }
                }
                self.mark(dir, None)?;
                remove_partial_files(dir)?;
                Ok(None)
            }
            Ok(found) => refuse(format!(
                "the folder holds sample photos with other parameters ({}); remove it or choose another folder",
                found.parameters.describe(found.generation)
            )),
            Err(_) => {
                refuse(format!("{MARKER} in it is damaged; remove the folder or choose another"))
            }
        }
    }

    fn describe(&self, generation: u32) -> String {
        let SamplePhotos { count, classes, seed, mean_width, mean_height, quality } = self;
        format!(
            "{count} photos, {classes} classes, seed {seed}, {mean_width}x{mean_height}, \
             quality {quality}, generation {generation}"
        )
    }

    fn mark(&self, dir: &Path, summary: Option<Summary>) -> Result<()> {
        let marker = Marker { generation: GENERATION, parameters: self.clone(), summary };
        let path = dir.join(MARKER);
        let text = serde_json::to_string_pretty(&marker)
            .map_err(|error| io_error("cannot write", &path, error.into()))?;
        write_whole(&path, (text + "\n").as_bytes())
    }

    fn path_of(&self, index: u64) -> PathBuf {
        let (class, number) = (index % self.classes, index / self.classes);
        Path::new(&folder_name(class, self.classes)).join(format!("{number:05}.jpg"))
    }

    /// The size of a photo, in about the proportions of ImageNet; the mean area is that of the
    /// commonest size to within 1 %.
    fn size_of(&self, index: u64) -> (usize, usize) {
        let mut draws = Draws::new(self.seed, index, 0);
        let (width, height) = (f64::from(self.mean_width), f64::from(self.mean_height));
        let (width, height) = match draws.below(100) {
            0..38 => (width, height),
            38..58 => (width, height * 0.888),
            58..72 => (height, width),
            72..80 => (height * 0.888, width),
            80..85 => (width, width),
            85..92 => (width * 1.28, height * 1.28),
            _ => (width * draws.uniform(0.4, 1.3), height * draws.uniform(0.4, 1.3)),
        };
        (width.round() as usize, height.round() as usize)
    }

    fn photo<'e>(
        &self,
        index: u64,
        width: usize,
        height: usize,
        painter: &mut Painter,
        encoder: &'e mut Encoder,
    ) -> Result<&'e [u8]> {
        let scale = (f64::from(self.mean_width) / 500.0) as f32;
        let style = Style::of(index % self.classes);
        let pixels =
            painter.paint(style, width, height, scale, &mut Draws::new(self.seed, index, 1));
        encoder.encode(pixels, width, height)
    }
}

fn io_error(what: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io { what, path: path.to_owned(), source }
}

fn create_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|source| io_error("cannot create the folder", path, source))
}

/// Whoever sees `path` sees all of it.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    whole_file::write(path, bytes).map_err(|source| io_error("cannot write", path, source))
}

/// Clears what an interrupted run left, in the folder and its class folders.
fn remove_partial_files(dir: &Path) -> Result<()> {
    let list = |dir: &Path| -> Result<Vec<fs::DirEntry>> {
        let entries = fs::read_dir(dir).and_then(Iterator::collect);
        entries.map_err(|source| io_error("cannot list", dir, source))
    };
    let mut entries = list(dir)?;
    for entry in list(dir)? {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            entries.extend(list(&entry.path())?);
        }
    }
    for entry in entries {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if name.starts_with(b".") && name.ends_with(b".partial") {
            let path = entry.path();
            fs::remove_file(&path).map_err(|source| io_error("cannot remove", &path, source))?;
        }
    }
    Ok(())
}
