//! `feedline pack`: a data set that loads faster, made from another.

use std::path::{Path, PathBuf};
use std::time::Instant;

use feedline::Spec;
use feedline::internals::engine::{Expectation, Gain, Pack, PackOptions, Packed, transforms_until};
use feedline::internals::pack::Subsampling;
use feedline::internals::spec::{parse_bytes, show_bytes};
use feedline::pack::Limit;
use feedline::pack::WriteOptions;
use feedline::spec::Layout;
use feedline::spec::{OpSpec, SourceFormat, SourceKind, Workers};
use serde_json::{Value, json};

use crate::output::{Failure, Outcome, Output};
use crate::pipeline::{self, Keys};
use crate::signals::Signals;
use crate::terminal::{Table, show_count, show_seconds};

const EXAMPLES: &str = "\
Examples:
  feedline pack photos fast --crop-index             the same pixels, crops load faster
  feedline pack photos small --resize 256            shorter side 256, JPEG quality 90
  feedline pack photos pixels --raw --resize 256     decoded: fastest, and largest on disk
  feedline pack photos shards --to tar               WebDataset shards of 256 MB, shuffled
  feedline pack photos shards --to tar --crop-index --resize 256
  feedline pack photos table --to parquet --compression zstd --shard-samples 10000
  feedline pack photos arrays --to npy --spec train.toml --until CenterCrop
  feedline pack photos fast --crop-index --dry-run   what would it bring?
  feedline verify fast                               compare every file with its checksum

Without --to, a folder of images is written that any program reads, with the names and class folders
of SRC (and a manifest.csv where SRC is a table). --crop-index loses nothing: pixels, EXIF, ICC and
comments stay, progressive files become baseline ones. What cannot be rewritten is copied as it is
and counted. --resize leaves images alone that are no larger, and drops EXIF and ICC of those that
it makes smaller.

With --to, all fields of the samples go into files of that format in the folder DST, in a shuffled
order (--seed, --no-shuffle). DST itself loads as one data set, with its class names; its files are
read by the format's own library.

The set is written to DST.partial and renamed at the end. Interrupted at any point, the same command
goes on (after the last whole shard; --raw, lmdb, hdf5, npy and zarr begin again). A DST that holds
anything else is refused, and one inside of SRC.";

/// Make a data set that loads faster, or of another format.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PackCommand {
    /// A data set: a folder of images, a manifest, files of any format; or a spec (.toml, .json).
    source: PathBuf,

    /// Folder to write; must be new or empty, and not inside of SRC.
    destination: PathBuf,

    /// Format to write: tar, tfrecord, lmdb, hdf5, npy, parquet, arrow or zarr
    /// [default: as DST ends, else a folder of images].
    #[arg(long, value_name = "FORMAT", value_parser = read_format, conflicts_with = "raw")]
    to: Option<SourceFormat>,

    /// The order of samples in a format is drawn with this [default: 0].
    #[arg(long, value_name = "N", conflicts_with = "no_shuffle")]
    seed: Option<u64>,

    /// Keep the order of the samples.
    #[arg(long)]
    no_shuffle: bool,

    /// Bytes of a shard [default: 256MB].
    #[arg(long, value_name = "SIZE", value_parser = read_size)]
    shard_size: Option<u64>,

    /// Samples of a shard [default: as many as fit].
    #[arg(long, value_name = "N")]
    shard_samples: Option<u64>,

    /// Compression, where the format has it: zstd, gzip, lz4 ...
    #[arg(long, value_name = "NAME")]
    compression: Option<String>,

    /// Its level.
    #[arg(long, value_name = "N", requires = "compression", allow_negative_numbers = true)]
    compression_level: Option<i32>,

    /// Samples of a chunk or row group, where the format has them.
    #[arg(long, value_name = "N")]
    block_samples: Option<u64>,

    /// A pipeline whose first transforms are done once, now; see --until.
    #[arg(long, value_name = "FILE", requires = "until")]
    spec: Option<PathBuf>,

    /// Do the spec's transforms up to this one: its name, how many, or \"decode\" for none.
    #[arg(long, value_name = "OP|N")]
    until: Option<String>,

    /// A transform that is done once, now, as CenterCrop(size=224); may be repeated.
    #[arg(long = "transform", value_name = "OP", value_parser = pipeline::read_transform)]
    #[arg(conflicts_with_all = ["spec", "until"])]
    transforms: Vec<Value>,

    /// How transformed images are stored in a format [default: array].
    #[arg(long, value_parser = ["array", "jpeg"])]
    encode: Option<String>,

    /// Put restart markers into JPEGs, losslessly, so that a crop is decoded without the rest.
    #[arg(long)]
    crop_index: bool,

    /// Units of 8 to 16 pixels between two markers; the nearest that divides a row is taken
    /// [default: about 16 segments in a row].
    #[arg(long, value_name = "N", requires = "crop_index", conflicts_with = "raw")]
    segment: Option<u16>,

    /// Make larger images smaller: this is their shorter side.
    #[arg(long, value_name = "SIDE")]
    resize: Option<u32>,

    /// JPEG quality of images that are coded anew, 1 to 100 [default: 90].
    #[arg(long, value_name = "Q", conflicts_with = "raw")]
    quality: Option<u8>,

    /// Keep a colour sample for every pixel (4:4:4) instead of one for four (4:2:0).
    #[arg(long, conflicts_with = "raw")]
    full_color: bool,

    /// Write decoded pixels: nothing is left to decode.
    #[arg(long, conflicts_with = "crop_index")]
    raw: bool,

    /// Do not compare the pixels of JPEGs that get markers with the original's, which takes most
    /// of the time; progressive ones are compared nevertheless.
    #[arg(long, requires = "crop_index", conflicts_with = "raw")]
    no_check: bool,

    /// Columns of a manifest that become labels, separated by commas [default: label].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    label_columns: Option<Vec<String>>,

    /// Turn images that are decoded as their EXIF orientation asks.
    #[arg(long)]
    exif_orientation: bool,

    /// Leave out samples that cannot be read or decoded, instead of ending with an error: every
    /// image that is kept is decoded once, also with --no-check.
    #[arg(long)]
    skip_bad: bool,

    /// Only say what it would bring, from a trial with some of the images.
    #[arg(long)]
    dry_run: bool,

    /// Do not measure what it brings, neither before nor after.
    #[arg(long, conflicts_with = "dry_run")]
    no_trial: bool,

    /// Threads that work [default: auto, one for each core].
    #[arg(long, value_name = "N", value_parser = pipeline::read_workers)]
    num_workers: Option<Value>,

    /// Bytes that the work may take [default: a quarter of what is free, at most 1GB].
    #[arg(long, value_name = "SIZE", value_parser = read_size)]
    memory: Option<u64>,
}

impl PackCommand {
    /// The format that was asked for, or that the destination is named after.
    fn format(&self) -> Option<SourceFormat> {
        let named = || {
            let ending = self.destination.extension()?.to_str()?;
            SourceFormat::writable().find(|format| format.extension().eq_ignore_ascii_case(ending))
        };
        self.to.or_else(|| named().filter(|_| !self.raw))
    }

    fn options(&self, spec: Option<&Spec>) -> Result<PackOptions, Failure> {
        let default = PackOptions::default();
        let to = self.format();
        let transforms = match (spec, &self.until) {
            (Some(spec), Some(until)) => {
                transforms_until(&spec.transforms, until).map_err(feedline::Error::from)?
            }
            (None, Some(until)) if !until.eq_ignore_ascii_case("decode") => {
                return Err(Failure::Usage("--until needs the pipeline: give --spec".to_owned()));
            }
            _ => self
                .transforms
                .iter()
                .cloned()
                .filter_map(|op| OpSpec::from_value(op).ok())
                .collect(),
        };
        let transformed = self.until.is_some() || !transforms.is_empty();
        let mut decode = spec.map_or(default.decode.clone(), |spec| spec.decode.clone());
        decode.exif_orientation |= self.exif_orientation;
        Ok(PackOptions {
            to,
            write: WriteOptions {
                compression: self.compression.clone(),
                level: self.compression_level,
                block_samples: self.block_samples,
            },
            shard: Limit {
                bytes: match (self.shard_size, self.shard_samples) {
                    (Some(bytes), _) => bytes,
                    (None, Some(_)) => u64::MAX,
                    (None, None) => default.shard.bytes,
                },
                samples: self.shard_samples.unwrap_or(default.shard.samples),
            },
            shuffle: (!self.no_shuffle).then(|| self.seed.unwrap_or(0)),
            crop_index: self.crop_index,
            segment: self.segment,
            resize: self.resize,
            transforms,
            decoded: match self.encode.as_deref() {
                Some(encode) => encode == "array",
                None => to.is_some() && transformed,
            },
            layout: spec.map_or(Layout::Hwc, |spec| spec.layout),
            quality: self.quality.unwrap_or(default.quality),
            subsampling: if self.full_color { Subsampling::Full } else { Subsampling::Half },
            raw: self.raw,
            check: !self.no_check,
            decode,
            skip_bad: self.skip_bad,
            num_workers: match self.num_workers.as_ref().and_then(Value::as_u64) {
                Some(count) => Workers::Count(count),
                None => Workers::Auto,
            },
            memory: self.memory,
        })
    }

    /// What is packed: the path as it is, or what a spec names.
    fn source(&self) -> Result<(SourceKind, Option<Spec>), Failure> {
        let read = |path: &Path| pipeline::describe(path, Keys::new(), Keys::new(), &[]);
        let spec = self.spec.as_deref().map(read).transpose()?;
        if pipeline::is_spec_file(&self.source) {
            let named = read(&self.source)?;
            let [one] = &named.sources[..] else {
                return Err(Failure::Usage("pack one source at a time".to_owned()));
            };
            return Ok((one.kind.clone(), spec.or(Some(named))));
        }
        let kind = match &self.label_columns {
            None => SourceKind::Path(self.source.clone()),
            Some(_) => SourceKind::Manifest {
                path: self.source.clone(),
                path_column: None,
                label_columns: self.label_columns.clone(),
                root: None,
            },
        };
        Ok((kind, spec))
    }

    /// A flag that would change nothing, and why.
    fn without_effect(&self) -> Option<String> {
        let shards = [
            ("--shard-size", self.shard_size.is_some()),
            ("--shard-samples", self.shard_samples.is_some()),
        ];
        let of_formats = [
            ("--seed", self.seed.is_some()),
            ("--no-shuffle", self.no_shuffle),
            ("--compression", self.compression.is_some()),
            ("--block-samples", self.block_samples.is_some()),
        ];
        let given = |flags: &[(&'static str, bool)]| {
            flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag)
        };
        match self.format() {
            None => given(&shards)
                .or_else(|| given(&of_formats))
                .map(|flag| format!("{flag} is for the files of a format: give --to FORMAT, too")),
            Some(format) if format.is_one_file() => given(&shards).map(|flag| {
                format!("{flag} has no meaning: {} is not written in shards", format.name())
            }),
            Some(_) => None,
        }
    }

    pub(crate) fn run(self, output: &mut Output) -> Result<Outcome, Failure> {
        let (kind, spec) = self.source()?;
        let options = self.options(spec.as_ref())?;
        let to_do = options.to.is_some()
            || options.crop_index
            || options.raw
            || options.resize.is_some()
            || !options.transforms.is_empty();
        if !to_do {
            return Err(Failure::Usage(
                "nothing to do: give --to FORMAT, --crop-index, --resize SIDE, --transform OP, --raw, or several of them".to_owned(),
            ));
        }
        if let Some(flag) = self.without_effect() {
            return Err(Failure::Usage(flag));
        }
        let pack = Pack::open(kind, options)?;
        pack.check_destination(&self.destination)?;
        let expected = match self.no_trial {
            true => None,
            false => Some(pack.expect().map_err(bad_sample)?),
        };
        let mut result = json!({
            "command": "pack",
            "source": pipeline::shown(&self.source),
            "destination": pipeline::shown(&self.destination),
            "format": self.format().map(SourceFormat::name),
            "dry_run": self.dry_run,
            "source_samples": pack.samples(),
            "num_workers": pack.num_workers(),
            "expected": expected.as_ref().map(|expected| expectation(&pack, expected)),
        });
        if let Some(expected) = expected.as_ref().filter(|_| !output.is_json()) {
            show_expected(output, &pack, expected)?;
            output.flush()?;
        }
        if !self.dry_run {
            if let Some((open, blocks)) = pack.mixed_blocks()? {
                output.note(&format!(
                    "SRC is read in {} blocks, of which memory holds {}: samples are shuffled among so many blocks at a time (--memory raises it)",
                    show_count(blocks),
                    show_count(open),
                ));
            }
            let signals = Signals::watch();
            let progress = output.progress(pack.samples(), "samples");
            let start = Instant::now();
            let packed = pack.run(&self.destination, &|done| progress.set(done), &|| {
                signals.received().is_some()
            });
            let seconds = start.elapsed().as_secs_f64();
            progress.finish();
            let packed = match (packed, signals.received()) {
                (Err(feedline::Error::Interrupted), Some(code)) => {
                    output.note("interrupted: the same command goes on from here");
                    return Ok(Outcome::Interrupted(code));
                }
                (packed, _) => packed.map_err(bad_sample)?,
            };
            let gain = if self.no_trial { None } else { pack.measure(&self.destination) };
            result["packed"] = describe(&packed, seconds);
            result["measured"] = gain.as_ref().map(|gain| show_gain(&pack, gain)).into();
            if !output.is_json() {
                show_packed(output, &pack, &packed, seconds, gain)?;
            }
        }
        if output.is_json() {
            output.json(&result)?;
        }
        Ok(Outcome::Success)
    }
}

/// A bad sample ends the work, unless that is not wanted.
fn bad_sample(error: feedline::Error) -> Failure {
    match error {
        feedline::Error::Sample(sample) => {
            Failure::BadSample(sample, "--skip-bad leaves such samples out")
        }
        other => other.into(),
    }
}

fn show_gain(pack: &Pack, gain: &Gain) -> Value {
    json!({
        "images_per_second_before": gain.before,
        "images_per_second_after": gain.after,
        "gain": pack.is_fair_trial().then(|| gain.after / gain.before.max(1e-9)),
        "work": pack.trial_work(),
    })
}

fn expectation(pack: &Pack, expected: &Expectation) -> Value {
    json!({
        "looked_at": expected.looked_at,
        "bytes_before": expected.before,
        "bytes_after": expected.after,
        "seconds": expected.seconds,
        "loading": expected.gain.as_ref().map(|gain| show_gain(pack, gain)),
    })
}

fn describe(packed: &Packed, seconds: f64) -> Value {
    let unchanged = packed.unchanged.iter().map(|(reason, count, example)| {
        json!({"reason": reason, "files": count, "example": example.to_string_lossy()})
    });
    let bad = packed
        .bad
        .iter()
        .map(|(path, reason)| json!({"path": path.to_string_lossy(), "reason": reason}));
    json!({
        "samples": packed.samples,
        "bytes_before": packed.before,
        "bytes_after": packed.after,
        "unchanged_files": packed.unchanged.iter().map(|(_, count, _)| count).sum::<u64>(),
        "unchanged": unchanged.collect::<Vec<_>>(),
        "left_out": packed.left_out,
        "bad": bad.collect::<Vec<_>>(),
        "kept": packed.kept,
        "resumed_samples": packed.resumed,
        "seconds": seconds,
    })
}

fn rates(pack: &Pack, gain: Option<Gain>) -> [String; 3] {
    match gain {
        Some(gain) => [
            show_count(gain.before as u64),
            show_count(gain.after as u64),
            match pack.is_fair_trial() {
                true => format!("{:.2}x", gain.after / gain.before.max(1e-9)),
                false => "?".to_owned(),
            },
        ],
        None => ["?", "?", "?"].map(str::to_owned),
    }
}

fn headings(pack: &Pack) -> [&'static str; 7] {
    let (samples, rate) = match pack.has_images() {
        true => ("images", "images/s before"),
        false => ("samples", "samples/s before"),
    };
    ["", samples, "size before", "after", rate, "after", "gain"]
}

fn show_expected(output: &mut Output, pack: &Pack, expected: &Expectation) -> Result<(), Failure> {
    let mut table = Table::new(headings(pack));
    let [before, after, gain] = rates(pack, expected.gain);
    table.row([
        "expected".to_owned(),
        show_count(pack.samples()),
        show_bytes(expected.before),
        show_bytes(expected.after),
        before,
        after,
        gain,
    ]);
    output.table(&table)?;
    output.text(
        &format!(
            "from a trial with {} {}, for {} with {} workers; packing takes about {}",
            show_count(expected.looked_at),
            headings(pack)[1],
            pack.trial_work(),
            pack.num_workers(),
            show_seconds(expected.seconds),
        ),
        0,
    )
}

fn show_packed(
    output: &mut Output,
    pack: &Pack,
    packed: &Packed,
    seconds: f64,
    gain: Option<Gain>,
) -> Result<(), Failure> {
    let mut table = Table::new(headings(pack));
    let [before, after, gain] = rates(pack, gain);
    table.row([
        if packed.kept { "was there" } else { "packed" }.to_owned(),
        show_count(packed.samples),
        if packed.kept { "?".to_owned() } else { show_bytes(packed.before) },
        show_bytes(packed.after),
        before,
        after,
        gain,
    ]);
    output.table(&table)?;
    if packed.resumed > 0 {
        let resumed = show_count(packed.resumed);
        output.text(&format!("{resumed} of them were there from an interrupted run"), 0)?;
    }
    for (reason, count, example) in &packed.unchanged {
        let example = example.to_string_lossy();
        output.text(&format!("{} as before: {reason} (as {example})", show_count(*count)), 4)?;
    }
    if packed.left_out > 0 {
        output.text(&format!("{} left out as bad", show_count(packed.left_out)), 0)?;
        for (path, reason) in &packed.bad {
            output.text(&format!("bad  {}: {reason}", path.to_string_lossy()), 5)?;
        }
    }
    if !packed.kept {
        output.text(&format!("packed in {}", show_seconds(seconds)), 0)?;
    }
    Ok(())
}

fn read_format(text: &str) -> Result<SourceFormat, String> {
    SourceFormat::to_write(text)
        .ok_or_else(|| format!("expected one of {}", SourceFormat::names(SourceFormat::writable())))
}

fn read_size(text: &str) -> Result<u64, String> {
    parse_bytes(text).ok_or_else(|| "expected a size such as 512MB or 2GiB".to_owned())
}
