//! `feedline inspect`: what a data set is made of.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use feedline::internals::engine::Inspection;
use feedline::internals::spec::show_bytes;
use feedline::sample::FieldKind;
use serde_json::{Value, json};

use super::facts;
use crate::chart::Bars;
use crate::output::{Failure, Outcome, Output};
use crate::pipeline::{self, Keys};
use crate::terminal::{Paint, Table, show_count};

const EXAMPLES: &str = "\
Examples:
  feedline inspect photos
  feedline inspect train.csv --sample 100000    look into more files
  feedline inspect photos --set source.kind=flat
  feedline inspect photos --json | jq .classes

Sizes are of all files. Formats and dimensions come from the headers of a sample of the files,
spread evenly; the output says how many. The speed is that of a shuffled run of one second on all
cores, with the spec's transforms or RandomResizedCrop(224); bad samples are left to feedline verify.

Where data is read a block at a time (a row group, a compressed shard, a chunk), a shuffle mixes as
many blocks at once as half of the memory for blocks holds. If a block's labels are alike, the
classes' shares then vary more from batch to batch than with a full shuffle: this factor is shown,
with a warning above 1.25.";

/// Show counts, sizes, formats, dimensions and classes of a data set.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Inspect {
    /// A folder of images, a manifest (.csv, .tsv, .jsonl), or a spec (.toml, .json).
    #[arg(value_name = "PATH|SPEC")]
    target: PathBuf,

    /// Look into the headers of so many files.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    sample: u64,

    /// Show so many classes in the chart.
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,

    /// Do not measure how fast it loads.
    #[arg(long)]
    no_trial: bool,

    /// Threads that look [default: auto, one for each core].
    #[arg(long, value_name = "N", value_parser = pipeline::read_workers)]
    num_workers: Option<Value>,

    /// Set any key of the spec, in TOML's syntax; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// The smallest, the middle, the mean and the largest of some numbers.
struct Spread {
    values: Vec<f64>,
}

impl Spread {
    fn new(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        (!values.is_empty()).then_some(Spread { values })
    }

    /// min, median, mean, max.
    fn figures(&self) -> [f64; 4] {
        let (values, count) = (&self.values, self.values.len());
        let median = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
        let mean = values.iter().sum::<f64>() / count as f64;
        [values[0], median, mean, values[count - 1]]
    }

    fn json(&self) -> Value {
        let [min, median, mean, max] = self.figures();
        json!({"min": min, "median": median, "mean": mean, "max": max})
    }
}

impl Inspect {
    pub(crate) fn run(self, output: &mut Output) -> Result<Outcome, Failure> {
        let mut flags = Keys::new();
        flags.extend(self.num_workers.clone().map(|workers| ("num_workers".to_owned(), workers)));
        let mut defaults = Keys::new();
        defaults.insert("batch_size".to_owned(), 64.into());
        let spec = pipeline::describe(&self.target, defaults, flags, &self.set)?;
        let start = Instant::now();
        let inspect = feedline::internals::engine::Inspect::open(&spec)?;
        let progress = output.progress(inspect.samples(), "files");
        let inspection = inspect.run(self.sample, &|done| progress.set(done))?;
        progress.finish();
        let figures = InspectionSummary::of(&inspection);
        let rate = if self.no_trial { None } else { inspect.trial() };
        if output.is_json() {
            let seconds = start.elapsed().as_secs_f64();
            let mut json = figures.json(&inspection, &self.target, seconds);
            json["trial"] = rate.map_or(
                Value::Null,
                |rate| json!({"samples_per_second": rate.samples, "bytes_per_second": rate.bytes}),
            );
            output.json(&json)?;
        } else {
            self.show(&inspection, &figures, output)?;
            facts::show_mixing(&inspection, output)?;
            facts::show_rate(rate, inspect.num_workers(), output)?;
        }
        Ok(Outcome::Success)
    }

    fn show(
        &self,
        found: &Inspection,
        figures: &InspectionSummary,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let names: Vec<&str> = found.sources.iter().map(|source| source.name.as_str()).collect();
        let classes = match found.classes.len() {
            0 => String::new(),
            1 => ", 1 class".to_owned(),
            count => format!(", {} classes", show_count(count as u64)),
        };
        output.heading(&format!(
            "{}: {} samples{classes}, {}",
            names.join(" + "),
            show_count(found.samples),
            show_bytes(figures.total_bytes)
        ))?;
        let fields: Vec<String> = found.fields.iter().map(facts::describe_field).collect();
        output.text(&format!("fields: {}", fields.join(", ")), 4)?;
        facts::show_unused(found, output)?;
        facts::show_files(found, output)?;
        output.line("")?;

        let mut table = Table::new(["", "min", "median", "mean", "max"]);
        let mut row = |name: &str, spread: &Option<Spread>, show: &dyn Fn(f64) -> String| {
            if let Some(spread) = spread {
                let [min, median, mean, max] = spread.figures().map(show);
                table.row([name.to_owned(), min, median, mean, max]);
            }
        };
        let pixels = |value: f64| show_count(value.round() as u64);
        row("file size", &figures.sizes, &show_size);
        row("width", &figures.widths, &pixels);
        row("height", &figures.heights, &pixels);
        row("megapixels", &figures.megapixels, &|value| format!("{value:.2}"));
        output.table(&table)?;

        output.line("")?;
        let mut table = Table::new(["format", "files", "share"]);
        for (name, count) in &figures.formats {
            let share = *count as f64 / found.headers.len().max(1) as f64 * 100.0;
            table.row([name.clone(), show_count(*count), format!("{share:.1} %")]);
        }
        if !figures.formats.is_empty() {
            output.table(&table)?;
        }
        let looked = if found.looked_into == found.samples {
            "all files".to_owned()
        } else {
            format!(
                "{} of {} files (--sample {} looks into more)",
                show_count(found.looked_into),
                show_count(found.samples),
                found.looked_into.saturating_mul(10).min(found.samples)
            )
        };
        if found.looked_into > 0 {
            output.line(&format!("Formats and dimensions are from the headers of {looked}."))?;
        }
        if figures.misnamed > 0 {
            let count = show_count(figures.misnamed);
            output.line(&format!("{count} of them are of another format than their names say."))?;
        }
        if let Some(sizes) = &figures.sizes {
            output.chart(&Bars::histogram("file size", &sizes.values, &show_edge))?;
        }
        if let Some(megapixels) = &figures.megapixels {
            let title = "megapixels (width x height)";
            output.chart(&Bars::histogram(title, &megapixels.values, &round_number))?;
        }
        self.show_classes(found, output)?;
        if found.failed > 0 {
            output.line("")?;
            let count = show_count(found.failed);
            let text = format!("{count} of the files looked at cannot be used:");
            let text = output.terminal().paint(Paint::Bad, &text);
            output.line(&text)?;
            for error in &found.failures {
                output.text(&format!("  {error}"), 4)?;
            }
            if found.failed > found.failures.len() as u64 {
                output.line("  ...")?;
            }
            output.line("feedline verify decodes every sample and lists all bad ones.")?;
        }
        Ok(())
    }

    fn show_classes(&self, found: &Inspection, output: &mut Output) -> Result<(), Failure> {
        let counts = || found.classes.iter().map(|(_, count)| *count);
        let (Some(fewest), Some(most)) = (counts().min(), counts().max()) else { return Ok(()) };
        let count = found.classes.len();
        let mut shown = found.classes.clone();
        let mut title = format!("classes: {} to {} samples", show_count(fewest), show_count(most));
        if fewest == most {
            title = format!("classes: {} samples each", show_count(most));
        }
        if count > self.top {
            shown.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
            shown.truncate(self.top);
            title += &format!("; the largest {} of {}", self.top, show_count(count as u64));
        }
        if found.labels_counted < found.samples {
            title += &format!("; of the {} that were read", show_count(found.labels_counted));
        }
        if shown.is_empty() {
            return Ok(());
        }
        output.chart(&Bars::new(title, shown))
    }
}

/// What is shown, computed once for text and JSON.
struct InspectionSummary {
    total_bytes: u64,
    sizes: Option<Spread>,
    widths: Option<Spread>,
    heights: Option<Spread>,
    megapixels: Option<Spread>,
    formats: Vec<(String, u64)>,
    misnamed: u64,
}

impl InspectionSummary {
    fn of(found: &Inspection) -> Self {
        let spread = |value: &dyn Fn(&feedline::internals::engine::Seen) -> f64| {
            Spread::new(found.headers.iter().map(value).collect())
        };
        let mut formats = BTreeMap::<String, u64>::new();
        for seen in &found.headers {
            let name = match seen.progressive {
                true => format!("{}, progressive", seen.format),
                false => seen.format.to_string(),
            };
            *formats.entry(name).or_default() += 1;
        }
        let mut formats: Vec<(String, u64)> = formats.into_iter().collect();
        formats.sort_by_key(|format| std::cmp::Reverse(format.1));
        // Files that hold many samples have more in them than the images.
        let in_files = found.sources.iter().all(|source| !source.files.is_empty());
        let files = found.sources.iter().flat_map(|source| &source.files);
        InspectionSummary {
            total_bytes: match in_files {
                true => files.map(|file| file.bytes).sum(),
                false => found.file_sizes.iter().sum(),
            },
            sizes: Spread::new(found.file_sizes.iter().map(|size| *size as f64).collect()),
            widths: spread(&|seen| seen.width as f64),
            heights: spread(&|seen| seen.height as f64),
            megapixels: spread(&|seen| seen.width as f64 * seen.height as f64 / 1e6),
            formats,
            misnamed: found.headers.iter().filter(|seen| seen.misnamed).count() as u64,
        }
    }

    fn json(&self, found: &Inspection, target: &std::path::Path, seconds: f64) -> Value {
        let spread = |spread: &Option<Spread>| spread.as_ref().map(Spread::json);
        let fields = found.fields.iter().map(|field| {
            let shape = match &field.kind {
                FieldKind::Array { shape, .. } => Some(shape),
                _ => None,
            };
            json!({
                "name": field.name, "type": field.kind.name(), "shape": shape,
                "min": field.range.map(|range| range.0), "max": field.range.map(|range| range.1),
                "distinct": field.distinct,
            })
        });
        let sources = found.sources.iter();
        json!({
            "command": "inspect",
            "target": pipeline::shown(target),
            "samples": found.samples,
            "sources": sources.map(facts::source).collect::<Vec<_>>(),
            "mixing": found.mixing.as_ref().map(facts::mixing),
            "labels_counted": found.labels_counted,
            "fields": fields.collect::<Vec<_>>(),
            "bytes": self.total_bytes,
            "file_size": spread(&self.sizes),
            "headers": found.headers.len(),
            "looked_into": found.looked_into,
            "formats": self.formats.iter().cloned().map(|(name, n)| (name, n.into())).collect::<Keys>(),
            "width": spread(&self.widths),
            "height": spread(&self.heights),
            "megapixels": spread(&self.megapixels),
            "misnamed": self.misnamed,
            "classes": found.classes.iter().map(|(name, n)| json!({"name": name, "samples": n})).collect::<Vec<_>>(),
            "failed": found.failed,
            "failures": found.failures.iter().map(|error| error.to_value()).collect::<Vec<_>>(),
            "seconds": seconds,
        })
    }
}

fn show_size(bytes: f64) -> String {
    show_bytes(bytes.round() as u64)
}

/// A round number of bytes: `80 kB`, not `80.0 kB`.
fn show_edge(bytes: f64) -> String {
    show_size(bytes).replace(".0 ", " ")
}

fn round_number(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
