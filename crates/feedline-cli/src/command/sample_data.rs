//! `feedline sample-data`: photo-like JPEGs to try things with.

use std::path::PathBuf;
use std::time::Instant;

use feedline::internals::spec::show_bytes;
use feedline_sample_photos::SamplePhotos;
use serde_json::json;

use crate::output::{Failure, Outcome, Output};
use crate::terminal::{Table, show_count, show_seconds};

const EXAMPLES: &str = "\
Examples:
  feedline sample-data photos                       2,000 photos, 20 classes, about 200 MB
  feedline sample-data few --count 100 --classes 5  a small set for tests
  feedline sample-data big --preset large           1896x1606 pixels, about 500 KB each (1 GB)

The same options make the same bytes on every machine. A folder that already holds the set is kept
as it is, an interrupted run is finished by running it again, and a folder with other files in it
is refused.";

/// Make a deterministic set of photo-like JPEGs in class folders.
///
/// Sizes, bytes per pixel and detail are like ImageNet's (about 500x375 pixels, about 100 KB), so
/// that loading speeds mean something without a download.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SampleData {
    /// Folder to write into; made if it is not there.
    directory: PathBuf,

    /// Sizes to start from; the other options override single values.
    #[arg(long, value_enum, default_value_t = Preset::Imagenet)]
    preset: Preset,

    /// Photos in all [default: 2000].
    #[arg(long)]
    count: Option<u64>,

    /// Class folders [default: 20].
    #[arg(long)]
    classes: Option<u64>,

    /// Another seed makes other photos [default: 0].
    #[arg(long)]
    seed: Option<u64>,

    /// Width of the commonest size [default: 500, or 1896 for large].
    #[arg(long)]
    width: Option<u32>,

    /// Height of the commonest size [default: 375, or 1606 for large].
    #[arg(long)]
    height: Option<u32>,

    /// JPEG quality, 1 to 100 [default: 94, or 78 for large].
    #[arg(long)]
    quality: Option<u8>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Preset {
    /// About 500x375 pixels and 100 KB.
    Imagenet,
    /// About 1896x1606 pixels and 500 KB.
    Large,
}

impl SampleData {
    pub(crate) fn run(self, output: &mut Output) -> Result<Outcome, Failure> {
        let preset = match self.preset {
            Preset::Imagenet => SamplePhotos::default(),
            Preset::Large => SamplePhotos::large(),
        };
        let photos = SamplePhotos {
            count: self.count.unwrap_or(preset.count),
            classes: self.classes.unwrap_or(preset.classes),
            seed: self.seed.unwrap_or(preset.seed),
            mean_width: self.width.unwrap_or(preset.mean_width),
            mean_height: self.height.unwrap_or(preset.mean_height),
            quality: self.quality.unwrap_or(preset.quality),
        };
        let progress = output.progress(photos.count, "photos");
        let start = Instant::now();
        let summary = photos.write(&self.directory, &|done| progress.set(done))?;
        let seconds = start.elapsed().as_secs_f64();
        progress.finish();
        let place = self.directory.display();
        if output.is_json() {
            output.json(&json!({
                "command": "sample-data",
                "directory": place.to_string(),
                "kept": summary.kept,
                "photos": summary.photos,
                "classes": summary.classes,
                "bytes": summary.bytes,
                "pixels": summary.pixels,
                "seconds": seconds,
                "parameters": photos,
            }))?;
        } else {
            let mut table = Table::new([
                "folder",
                "photos",
                "classes",
                "size",
                "mean file",
                "bytes/pixel",
                "made in",
            ]);
            table.row([
                place.to_string(),
                show_count(summary.photos),
                show_count(summary.classes),
                show_bytes(summary.bytes),
                show_bytes(summary.bytes / summary.photos.max(1)),
                format!("{:.2}", summary.bytes as f64 / summary.pixels.max(1) as f64),
                if summary.kept { "was there".to_owned() } else { show_seconds(seconds) },
            ]);
            output.table(&table)?;
        }
        Ok(Outcome::Success)
    }
}
