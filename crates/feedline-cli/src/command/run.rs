//! `feedline run`: makes batches and says how fast.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use feedline::RunHash;
use feedline::internals::output_file;
use feedline::internals::spec::{parse_duration, show_bytes};
use feedline::spec::{LastBatch, OnError};
use feedline::{Batch, Error, Loader, State};
use serde_json::{Value, json};

use crate::live::Live;
use crate::output::{Failure, Outcome, Output};
use crate::pictures;
use crate::pipeline::{self, Keys, cannot_write};
use crate::signals::Signals;
use crate::terminal::{Progress, Table, show_batches, show_count, show_number, show_seconds};

const EXAMPLES: &str = "\
Examples:
  feedline run photos --shuffle --epochs 2
  feedline run photos --train-step 20ms            would a step of 20 ms wait for its batches?
  feedline run photos --transform 'Resize(size=256)' --transform 'CenterCrop(size=224)'
  feedline run pipeline.toml --set num_workers=4 --set decode.mode=gray
  feedline run pipeline.toml --json | jq .samples_per_second
  feedline run photos --epochs 50 --dashboard      watch it in a browser

Stop and go on, exactly:
  feedline run pipeline.toml --epochs 2 --batches 40 --state run.state
  feedline run pipeline.toml --epochs 2 --resume run.state --state run.state

A spec describes a pipeline with the keys of the Python Loader's arguments:
  source = \"photos\"          # relative to the spec's folder
  batch_size = 64
  shuffle = true
  transforms = [
      { op = \"RandomResizedCrop\", size = 224 },
      { op = \"RandomHorizontalFlip\" },
      { op = \"ToDtype\", dtype = \"float32\", scale = true },
  ]

A PATH to data instead gets batches of 64, and its images RandomResizedCrop(size=224) if no \
transform is given. The hash is over all batches of this run, in their order: it is equal for any \
number of workers. The state is saved at the end, on Ctrl-C, on SIGTERM and on an error; a second \
Ctrl-C ends at once.";

/// Make batches from a pipeline, and show how fast that is.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// A spec (.toml, .json), or data: a folder of images, a manifest (.csv, .tsv, .jsonl), arrays,
    /// shards.
    #[arg(value_name = "SPEC|PATH")]
    target: PathBuf,

    /// Samples of a batch.
    #[arg(long, value_name = "N")]
    batch_size: Option<u64>,

    /// A new order in each epoch.
    #[arg(long)]
    shuffle: bool,

    /// The root of all randomness.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Threads that make batches: a number, or auto for one for each core.
    #[arg(long, value_name = "N", value_parser = pipeline::read_workers)]
    num_workers: Option<Value>,

    /// Bytes that the loader may hold, such as 512MB or 2GiB.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// An op of the chain, such as 'CenterCrop(size=224)'; may be repeated, replaces the spec's.
    #[arg(long, value_name = "OP", value_parser = pipeline::read_transform)]
    transform: Vec<Value>,

    /// Set any key of the spec, in TOML's syntax; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Stop at the end of so many epochs, counted from the beginning, also when resumed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    epochs: u64,

    /// Stop after so many batches.
    #[arg(long, value_name = "N")]
    batches: Option<u64>,

    /// Stand for a training step of this duration (20ms, 0.5s) after each batch, and show which
    /// share of the time it waited. Hashing is part of the step.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    train_step: Option<Duration>,

    /// Do not hash the batches; hashing takes some milliseconds of a large one.
    #[arg(long, conflicts_with = "hashes")]
    no_hash: bool,

    /// Write a line for each batch to this file: epoch, batch, rows, hash.
    #[arg(long, value_name = "FILE")]
    hashes: Option<PathBuf>,

    /// Write what each worker did when, for https://ui.perfetto.dev or chrome://tracing.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Save the state to this file at the end.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,

    /// Go on from the state in this file.
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,

    /// Serve a page with live figures on this machine, at this port or any that is free, and print
    /// its address. Only who has the address can read it.
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    dashboard: Option<u16>,
}

/// What was measured of an epoch, or of all.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    epoch: u64,
    batches: u64,
    samples: u64,
    time: Duration,
    wait: Duration,
    hash: RunHash,
}

impl Measured {
    fn add(&mut self, batch: &Batch, wait: Duration, hash: Option<u64>) {
        self.batches += 1;
        self.samples += batch.rows() as u64;
        self.wait += wait;
        if let Some(hash) = hash {
            self.hash.add(hash);
        }
    }

    fn rate(&self) -> f64 {
        self.samples as f64 / self.time.as_secs_f64().max(1e-9)
    }

    fn wait_share(&self) -> f64 {
        self.wait.as_secs_f64() / self.time.as_secs_f64().max(1e-9)
    }

    fn json(&self, hashed: bool) -> Value {
        json!({
            "epoch": self.epoch,
            "batches": self.batches,
            "samples": self.samples,
            "seconds": self.time.as_secs_f64(),
            "samples_per_second": self.rate(),
            "wait_seconds": self.wait.as_secs_f64(),
            "wait_share": self.wait_share(),
            "hash": hashed.then(|| format!("{:016x}", self.hash.value())),
        })
    }
}

/// A whole run.
#[derive(Default)]
struct Measurement {
    all: Measured,
    epochs: Vec<Measured>,
    first_batch: Option<Duration>,
    /// The exit code of the signal that ended it.
    interrupted: Option<i32>,
}

impl Run {
    pub(crate) fn run(self, output: &mut Output) -> Result<Outcome, Failure> {
        let start = Instant::now();
        let spec =
            pipeline::describe(&self.target, pipeline::bare_defaults(), self.flags(), &self.set)?;
        let mut loader = Loader::from_spec(spec)?;
        if let Some(path) = &self.trace {
            pictures::try_file(path)?;
            loader.record_timeline(pictures::SPANS);
        }
        if let Some(path) = &self.resume {
            loader.resume(&read_state(path)?)?;
        }
        let hashes = match &self.hashes {
            Some(path) => Some(output_file::create(path).map_err(|source| {
                let path = path.clone();
                Failure::Library(Error::Io { what: "cannot write the hashes", path, source })
            })?),
            None => None,
        };
        let signals = Signals::watch();
        let _live = Live::over(&loader, self.dashboard, output)?;
        let unit = unit(&loader);
        let progress = output.progress(self.planned_samples(&loader), unit);
        let mut measurement = Measurement::default();
        let ran = self.measure(&mut loader, start, &signals, &progress, hashes, &mut measurement);
        progress.finish();
        if let Some(path) = &self.state {
            save_state(path, &loader.state())?;
            if ran.is_err() {
                let place = path.display();
                output.note(&format!("state saved to {place}: the batch that failed is its next"));
            }
        }
        ran?;
        if output.is_json() {
            output.json(&self.json(&loader, &measurement))?;
        } else {
            self.show(&loader, &measurement, output)?;
        }
        // Last: a disk that is full by now takes no result away.
        if let Some(path) = &self.trace {
            pictures::write_trace_of(&loader, &pipeline::shown(&self.target), path)?;
            output.note(&format!("trace: {}", path.display()));
        }
        Ok(match measurement.interrupted {
            Some(code) => Outcome::Interrupted(code),
            None => Outcome::Success,
        })
    }

    fn flags(&self) -> Keys {
        let mut keys = Keys::new();
        let mut put = |name: &str, value: Option<Value>| {
            keys.extend(value.map(|value| (name.to_owned(), value)));
        };
        put("batch_size", self.batch_size.map(Value::from));
        put("shuffle", self.shuffle.then_some(Value::Bool(true)));
        put("seed", self.seed.map(Value::from));
        put("num_workers", self.num_workers.clone());
        put("memory", self.memory.clone().map(Value::from));
        put(
            "transforms",
            (!self.transform.is_empty()).then(|| Value::Array(self.transform.clone())),
        );
        keys
    }

    /// Samples that this run will deliver, for the progress bar.
    fn planned_samples(&self, loader: &Loader) -> u64 {
        let (spec, (epoch, batch)) = (loader.spec(), loader.position());
        let whole = loader.len().saturating_mul(spec.batch_size);
        let of_epoch = match spec.last_batch {
            LastBatch::Short => loader.samples().div_ceil(loader.rank().1).min(whole),
            _ => whole,
        };
        let left = self.epochs.saturating_sub(epoch).saturating_mul(of_epoch);
        let left = left.saturating_sub(batch.saturating_mul(spec.batch_size));
        self.batches.map_or(left, |batches| left.min(batches.saturating_mul(spec.batch_size)))
    }

    fn measure(
        &self,
        loader: &mut Loader,
        start: Instant,
        signals: &Signals,
        progress: &Progress,
        mut hashes: Option<File>,
        measurement: &mut Measurement,
    ) -> Result<(), Failure> {
        let began = Instant::now();
        let most = self.batches.unwrap_or(u64::MAX);
        while loader.position().0 < self.epochs
            && measurement.all.batches < most
            && measurement.interrupted.is_none()
        {
            let epoch_began = Instant::now();
            let mut epoch = Measured { epoch: loader.position().0, ..Measured::default() };
            let mut batches = loader.epoch();
            while measurement.all.batches < most && measurement.interrupted.is_none() {
                let asked = Instant::now();
                let Some(batch) = batches.next() else { break };
                let batch = batch?;
                let (wait, step_began) = (asked.elapsed(), Instant::now());
                measurement.first_batch.get_or_insert_with(|| start.elapsed());
                let hash = (!self.no_hash).then(|| batch.hash());
                epoch.add(&batch, wait, hash);
                measurement.all.add(&batch, wait, hash);
                if let (Some(file), Some(hash), Some(path)) = (&mut hashes, hash, &self.hashes) {
                    let (epoch, number, rows) = (batch.epoch(), batch.number(), batch.rows());
                    let line = format!("{epoch} {number} {rows} {hash:016x}\n");
                    file.write_all(line.as_bytes()).map_err(|e| cannot_write(path, e))?;
                }
                progress.set(measurement.all.samples);
                drop(batch);
                self.rest_of_step(step_began, signals);
                measurement.interrupted = signals.received();
            }
            epoch.time = epoch_began.elapsed();
            measurement.epochs.push(epoch);
            measurement.all.time = began.elapsed();
        }
        Ok(())
    }

    /// Sleeps until the training step would be over.
    fn rest_of_step(&self, began: Instant, signals: &Signals) {
        let Some(step) = self.train_step else { return };
        while signals.received().is_none() {
            let left = step.saturating_sub(began.elapsed());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    fn show(
        &self,
        loader: &Loader,
        measurement: &Measurement,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let (unit, all) = (unit(loader), &measurement.all);
        let classes = match loader.classes().len() {
            0 => String::new(),
            count => format!(" in {} classes", show_count(count as u64)),
        };
        output.heading(&format!(
            "{}: {} {unit}{classes}, {} an epoch, {}",
            loader.source_names().join(" + "),
            show_count(loader.samples()),
            show_batches(loader.len()),
            show_number(loader.num_workers() as u64, "worker"),
        ))?;
        let rows = loader.spec().batch_size;
        let fields = loader.fields().iter().map(|field| {
            let shape: Vec<String> = std::iter::once(rows.to_string())
                .chain(field.shape.iter().map(ToString::to_string))
                .collect();
            format!("{} {} [{}]", field.name, field.dtype, shape.join(", "))
        });
        output.text(&format!("batch: {}", fields.collect::<Vec<_>>().join(", ")), 4)?;
        let transforms: Vec<String> =
            loader.spec().transforms.iter().map(pipeline::show_transform).collect();
        if !transforms.is_empty() {
            output.text(&format!("transforms: {}", transforms.join(", ")), 4)?;
        }
        output.line("")?;

        let rate = format!("{unit}/s");
        let mut heading = vec!["epoch", "batches", unit, "time", &rate];
        if self.train_step.is_some() {
            heading.push("waited");
        }
        if !self.no_hash {
            heading.push("hash");
        }
        let mut table = Table::headed(&heading);
        let mut row = |name: String, measured: &Measured| {
            let mut cells = vec![
                name,
                show_count(measured.batches),
                show_count(measured.samples),
                show_seconds(measured.time.as_secs_f64()),
                show_count(measured.rate().round() as u64),
            ];
            if self.train_step.is_some() {
                cells.push(format!("{:.1} %", measured.wait_share() * 100.0));
            }
            if !self.no_hash {
                cells.push(format!("{:016x}", measured.hash.value()));
            }
            table.cells(cells);
        };
        measurement.epochs.iter().for_each(|epoch| row(epoch.epoch.to_string(), epoch));
        if measurement.epochs.len() != 1 {
            row("all".to_owned(), all);
        }
        output.table(&table)?;
        output.line("")?;
        for (name, text) in self.remarks(loader, measurement) {
            output.text(&format!("{name:<12}  {text}"), 14)?;
        }
        Ok(())
    }

    /// The figures that are not of an epoch.
    fn remarks(&self, loader: &Loader, measurement: &Measurement) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if let Some(time) = measurement.first_batch {
            lines.push(("first batch", show_seconds(time.as_secs_f64())));
        }
        if let Some(bytes) = peak_memory() {
            lines.push(("peak memory", show_bytes(bytes)));
        }
        let stats = loader.stats();
        if let Some(step) = self.train_step {
            let longest = show_seconds(stats.work.longest_wait_seconds);
            let step = show_seconds(step.as_secs_f64());
            lines.push((
                "train step",
                format!("{step}; the longest wait for a batch was {longest}"),
            ));
        }
        if loader.spec().on_error == OnError::Skip || stats.work.failed > 0 {
            let listed = match (&loader.spec().quarantine, stats.work.failed) {
                (_, 0) => String::new(),
                (Some(path), _) => format!(", listed in {}", path.display()),
                (None, _) => " (--set quarantine=FILE lists them)".to_owned(),
            };
            lines.push(("failed", format!("{} samples{listed}", show_count(stats.work.failed))));
        }
        let (epoch, batch) = loader.position();
        if let Some(path) = &self.state {
            let place = path.display();
            lines.push(("state", format!("{place}: next is batch {batch} of epoch {epoch}")));
        }
        if measurement.interrupted.is_some() {
            lines.push(("interrupted", "the figures are of what was done by then".to_owned()));
        } else if measurement.all.batches == 0 {
            let text = format!("the next epoch is {epoch}, and --epochs {} ends here", self.epochs);
            lines.push(("nothing left", text));
        }
        lines
    }

    fn json(&self, loader: &Loader, measurement: &Measurement) -> Value {
        let (all, stats) = (&measurement.all, loader.stats());
        let hashed = !self.no_hash;
        let seconds = |time: Duration| time.as_secs_f64();
        let fields = loader.fields().iter();
        let parts = stats.work.parts.iter().map(|part| (part.name.to_owned(), part.seconds.into()));
        let (epoch, batch) = loader.position();
        json!({
            "command": "run",
            "target": pipeline::shown(&self.target),
            "spec": loader.spec().to_value(),
            "sources": loader.source_names(),
            "classes": loader.classes().len(),
            "samples_per_epoch": loader.samples(),
            "batches_per_epoch": loader.len(),
            "rank": loader.rank().0,
            "world_size": loader.rank().1,
            "num_workers": loader.num_workers(),
            "fields": fields.map(|field| json!({
                "name": field.name, "dtype": field.dtype.name(), "shape": field.shape,
            })).collect::<Vec<_>>(),
            "unit": unit(loader),
            "epochs": measurement.epochs.iter().map(|epoch| epoch.json(hashed)).collect::<Vec<_>>(),
            "batches": all.batches,
            "samples": all.samples,
            "seconds": seconds(all.time),
            "samples_per_second": all.rate(),
            "first_batch_seconds": measurement.first_batch.map(seconds),
            "train_step_seconds": self.train_step.map(seconds),
            "wait_seconds": seconds(all.wait),
            "wait_share": all.wait_share(),
            "longest_wait_seconds": stats.work.longest_wait_seconds,
            "peak_memory_bytes": peak_memory(),
            "bytes_read": stats.work.bytes_read,
            "read_ahead": stats.read_ahead,
            "seconds_per_sample": parts.collect::<Keys>(),
            "failed": stats.work.failed,
            "hash": hashed.then(|| format!("{:016x}", all.hash.value())),
            "next": {"epoch": epoch, "batch": batch},
            "state": self.state.as_deref().map(pipeline::shown),
            "interrupted": measurement.interrupted.is_some(),
        })
    }
}

fn unit(loader: &Loader) -> &'static str {
    if loader.fields().iter().any(|field| field.name == "image") { "images" } else { "samples" }
}

fn save_state(path: &Path, state: &State) -> Result<(), Failure> {
    let text = serde_json::to_string(state).map_err(|e| cannot_write(path, e.into()))?;
    pipeline::write_whole(path, format!("{text}\n").as_bytes())
}

fn read_state(path: &Path) -> Result<State, Failure> {
    let text = std::fs::read_to_string(path).map_err(|source| {
        Failure::Library(Error::Io { what: "cannot read the state", path: path.to_owned(), source })
    })?;
    State::from_json(&text).map_err(|error| match error {
        Error::State(why) => Failure::Library(Error::State(format!("{}: {why}", path.display()))),
        other => Failure::Library(other),
    })
}

/// The most memory that this process ever held, where the system reports it (Linux).
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}
