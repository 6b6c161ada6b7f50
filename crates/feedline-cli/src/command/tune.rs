//! `feedline tune`: the fewest workers and the smallest memory that keep the trainer busy.

use std::path::{Path, PathBuf};

use feedline::internals::engine::LoaderFeed;
use feedline::internals::spec::{counted, show_percent, show_rate};
use feedline::internals::spec::{parse_bytes, show_bytes};
use feedline::internals::tune::{self, TrainStep, Workload, measure};
use feedline::spec::Workers;
use feedline::{Error, Loader, Spec};
use serde_json::{Value, json};

use crate::host::is_python;
use crate::output::{Failure, Outcome, Output};
use crate::pipeline::{self, Keys, is_spec_file};
use crate::rewrite::{self, Change};
use crate::signals::Signals;
use crate::terminal::Table;
use crate::tuning::{Choice, GOAL, Limits, Search, Stretch, Tried, Tunables};

const EXAMPLES: &str = "\
Examples:
  feedline tune pipeline.toml --train-step 100ms          sets num_workers, prefetch_factor, memory
  feedline tune pipeline.toml --train-step 100ms --dry-run  only says what it would set
  feedline tune pipeline.toml --cpus 4 --memory 2GB       within these limits
  feedline tune photos --batch-size 64 --out photos.toml  writes a whole spec for a data set

It runs short stretches with one setting and another in turn, against a step of the given length,
and takes the fewest workers, then the fewest open batches and the least memory, that keep the
trainer's wait under 1 %. A spec in TOML keeps its comments and its layout; each key that is set
gets a comment with its reason. No setting changes what is in a batch.";

/// Find the fewest workers and the smallest memory that keep the trainer busy.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Tune {
    /// A spec (.toml, .json), a folder of images, or a manifest (.csv, .tsv, .jsonl).
    #[arg(value_name = "SPEC|PATH")]
    target: PathBuf,

    /// The training step of a batch: 100ms, uniform(80ms,120ms), normal(100ms,10ms), or 1ms/sample.
    #[arg(long, value_name = "TIME", value_parser = train_step)]
    train_step: Option<TrainStep>,

    /// Cores that may be used; all that this process has by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4096))]
    cpus: Option<u64>,

    /// The most memory that the loader may hold, such as 2GB.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,

    /// Seconds of each stretch; at least 12 steps are run.
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = stretch_seconds)]
    seconds: f64,

    /// Samples of a batch, for a PATH.
    #[arg(long, value_name = "N")]
    batch_size: Option<u64>,

    /// An op of the chain, for a PATH; may be repeated.
    #[arg(long, value_name = "OP", value_parser = pipeline::read_transform)]
    transform: Vec<Value>,

    /// Write the settings into this file (.toml, .json) instead of the spec itself.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Write nothing.
    #[arg(long)]
    dry_run: bool,
}

/// A step that takes time: without one everything waits.
pub(crate) fn train_step(text: &str) -> Result<TrainStep, String> {
    let step = TrainStep::parse(text)?;
    match step.mean(1.0) {
        Some(mean) if mean > 0.0 => Ok(step),
        _ => Err("a step must take some time, such as 100ms".to_owned()),
    }
}

/// Bytes as a flag gives them.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| "allowed: bytes as a number, or text such as 2GB".to_owned())
}

fn stretch_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.05..=600.0).contains(seconds));
    seconds.ok_or_else(|| "allowed: 0.05 to 600".to_owned())
}

/// The step if none is given.
const USUAL_STEP: f64 = 0.1;

impl Tune {
    pub(crate) fn run(self, output: &mut Output) -> Result<Outcome, Failure> {
        needs_data("tune", &self.target)?;
        let destination = self.destination()?;
        let spec = pipeline::describe(&self.target, pipeline::bare_defaults(), self.flags(), &[])?;
        let cores = tune::cores() as u64;
        let cpus = self.cpus.unwrap_or(cores);
        if cpus > cores {
            return Err(Failure::Usage(format!(
                "--cpus {cpus}: this process may use {cores} (its affinity and its cgroup count); to plan for a larger machine, use `feedline plan`"
            )));
        }
        let step = self.train_step.unwrap_or_else(|| {
            output.note("no --train-step was given: a step of 100 ms a batch is taken");
            TrainStep::Fixed(USUAL_STEP)
        });
        let mean = step.mean(spec.batch_size as f64).unwrap_or(USUAL_STEP);
        let limits = self.limits(&spec, cpus)?;
        let seconds = self.seconds.max(mean * 12.0);
        let workload = Workload { step, epochs: u64::MAX, batches: None, seconds: Some(seconds) };
        let mut search = Search::new(limits, step, spec.batch_size as f64);
        let mut result = json!({
            "command": "tune",
            "target": self.target.to_string_lossy(),
            "train_step": step,
            "goal": GOAL,
            "cpus": cpus,
            "memory": self.memory,
        });
        let signals = Signals::watch();
        let mut stretches = Vec::new();
        let mut behind = 0;
        while let Some(settings) = search.upcoming() {
            let first = search.cost().is_none();
            let (sought, number, most) = search.turn();
            output.note(&format!(
                "{sought}, stretch {number} of at most {most}: {}",
                show_settings(settings)
            ));
            let progress = output.progress(milliseconds(seconds), "ms of this stretch");
            let run = self.stretch(&spec, settings, &workload, first, behind, &mut |_, passed| {
                progress.set(milliseconds(passed.min(seconds)));
                signals.received().is_none()
            });
            progress.finish();
            let (stretch, batches) = run?;
            if let Some(code) = signals.received() {
                output.note("interrupted: nothing is written");
                if output.is_json() {
                    describe(&mut result, &search, stretches, None, None);
                    output.json(&result)?;
                }
                return Ok(Outcome::Interrupted(code));
            }
            output.note(&format!(
                "{}: the trainer waited {}, {} samples/s",
                show_settings(settings),
                show_percent(stretch.wait_share),
                show_rate(stretch.rate)
            ));
            search.record(settings, &stretch);
            stretches.push(json!({"settings": settings, "behind": behind, "batches": batches}));
            behind += batches;
        }
        let mut choice = search.choice();
        choice.remarks.extend(self.memory_overrides(&spec));
        self.spell_out_prefetch(&spec, &search, &mut choice);
        self.check_same_batches(&spec, choice.settings)?;
        let changes = changes(&choice);
        // A file that cannot be written does not take the result away.
        let written = match &destination {
            Some(path) => self.write(&spec, path, &choice, &changes),
            None => Ok(()),
        };
        if output.is_json() {
            let path = destination.as_deref().filter(|_| written.is_ok());
            describe(&mut result, &search, stretches, Some(&choice), path);
            output.json(&result)?;
        } else {
            self.show(&search, &choice, &changes, output)?;
            match &destination {
                None => output.line("nothing was written (--dry-run)")?,
                Some(path) if written.is_ok() => {
                    output.line(&format!("written to {}", path.display()))?;
                }
                Some(_) => {}
            }
        }
        output.flush()?;
        written.map(|()| Outcome::Success)
    }

    /// Where the settings go; `None` with --dry-run.
    fn destination(&self) -> Result<Option<PathBuf>, Failure> {
        let is_spec = is_spec_file(&self.target);
        if is_spec && (self.batch_size.is_some() || !self.transform.is_empty()) {
            return Err(Failure::Usage(
                "--batch-size and --transform are for a PATH: the spec says what to tune"
                    .to_owned(),
            ));
        }
        if let Some(out) = &self.out {
            let name = out.display();
            if !is_spec_file(out) {
                return Err(Failure::Usage(format!(
                    "--out {name}: the name of a spec ends in .toml or .json"
                )));
            }
            if out.exists() && *out != self.target && !self.dry_run {
                return Err(Failure::Usage(format!(
                    "--out {name}: exists already; remove it or choose another name"
                )));
            }
            let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty());
            if folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(Failure::Usage(format!("--out {name}: there is no such folder")));
            }
        }
        if self.dry_run {
            return Ok(None);
        }
        let path = match (&self.out, is_spec) {
            (Some(out), _) => out,
            (None, true) => &self.target,
            (None, false) => {
                return Err(Failure::Usage(format!(
                    "{} is no spec to write the settings into: add --out pipeline.toml, or --dry-run to see them only",
                    self.target.display()
                )));
            }
        };
        // Better now than after minutes of work.
        pipeline::try_writing(&replaced(path))?;
        Ok(Some(path.clone()))
    }

    fn flags(&self) -> Keys {
        let mut keys = Keys::new();
        if let Some(size) = self.batch_size {
            keys.insert("batch_size".to_owned(), size.into());
        }
        if !self.transform.is_empty() {
            keys.insert("transforms".to_owned(), Value::Array(self.transform.clone()));
        }
        keys
    }

    /// Memory can be tuned where it changes no batch.
    fn limits(&self, spec: &Spec, cpus: u64) -> Result<Limits, Failure> {
        let loader = Loader::from_spec(spec.clone())?;
        let limit = loader.stats().flow.limit;
        let state = |memory: u64| {
            let changed = spec.clone().with(|spec| spec.memory = Some(memory));
            Loader::from_spec(changed).map(|loader| loader.state())
        };
        let moved = state(limit / 2).is_ok_and(|state| state != loader.state());
        let memory_left = if spec.cache.is_some() {
            Some("it holds the cache, too".to_owned())
        } else {
            moved.then(|| {
                "samples are read in blocks, whose order depends on it, so it would change the batches".to_owned()
            })
        };
        let memory = match (self.memory, spec.memory) {
            (Some(asked), _) if moved && Some(asked) != spec.memory => {
                return Err(Failure::Usage(format!(
                    "--memory {}: samples are read in blocks, whose order depends on it, so it would change the batches; set memory in the spec first",
                    show_bytes(asked)
                )));
            }
            (asked, set) => asked.or(set),
        };
        Ok(Limits { cpus, memory, memory_left })
    }

    /// That --memory is taken rather than what the spec has, if they differ.
    fn memory_overrides(&self, spec: &Spec) -> Option<String> {
        let (asked, set) = (self.memory?, spec.memory?);
        (asked != set).then(|| {
            format!(
                "the limit was --memory {}, in place of the spec's {}",
                show_bytes(asked),
                show_bytes(set)
            )
        })
    }

    /// One short run of a fresh loader, which begins `behind` so many batches: what was read before
    /// is in memory, where real data may not be. Tunables that cannot work count as waiting all the
    /// time, unless they are the `first`. Also how many batches were read.
    fn stretch(
        &self,
        spec: &Spec,
        settings: Tunables,
        workload: &Workload,
        first: bool,
        behind: u64,
        going_on: &mut dyn FnMut(u64, f64) -> bool,
    ) -> Result<(Stretch, u64), Failure> {
        let failed = |open| (Stretch { wait_share: 1.0, open, ..Stretch::default() }, open);
        // The same bad samples are met by every run: the list of them is for real ones.
        let measured = applied(spec, settings).with(|spec| spec.quarantine = None);
        let loader = match Loader::from_spec(measured) {
            Err(Error::Memory(_)) if !first => return Ok(failed(0)),
            loader => loader?,
        };
        let open = loader.prefetch();
        let mut feed = LoaderFeed::new(loader, None).behind(behind);
        match measure(&mut feed, workload, going_on) {
            Err(Error::Memory(_)) if !first => Ok(failed(open)),
            run => {
                let run = run?;
                Ok((Stretch::of(&run, open), run.batches + open))
            }
        }
    }

    /// A factor that the spec has must not stay if the loader's own choice was measured.
    fn spell_out_prefetch(&self, spec: &Spec, search: &Search, choice: &mut Choice) {
        if choice.settings.prefetch_factor.is_none() && spec.prefetch_factor.is_some() {
            let tried = search.tried().iter().find(|tried| tried.settings == choice.settings);
            let open = tried.map_or(2, |tried| tried.open);
            let factor = open.div_ceil(choice.settings.num_workers.max(1)).max(1);
            choice.settings.prefetch_factor = Some(factor);
            let reason = format!("{}, as many as were measured", counted(open, "open batch"));
            choice.reasons.push(("prefetch_factor".to_owned(), reason));
        }
    }

    /// The settings are written only if they change no batch.
    fn check_same_batches(&self, spec: &Spec, settings: Tunables) -> Result<(), Failure> {
        let before = Loader::from_spec(spec.clone())?.state();
        let after = Loader::from_spec(applied(spec, settings))?.state();
        if before == after {
            return Ok(());
        }
        Err(Failure::Library(Error::System(
            "the settings would change the batches, so they are not written (please report this)"
                .to_owned(),
        )))
    }

    fn write(
        &self,
        spec: &Spec,
        path: &Path,
        choice: &Choice,
        changes: &[Change],
    ) -> Result<(), Failure> {
        let is_json = |path: &Path| {
            path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
        };
        let same_folder = path.parent() == self.target.parent();
        let as_written =
            is_spec_file(&self.target) && is_json(path) == is_json(&self.target) && same_folder;
        let text = if as_written {
            std::fs::read_to_string(&self.target).map_err(|source| {
                let (what, path) = ("cannot read the spec", self.target.clone());
                Failure::Library(Error::Io { what, path, source })
            })?
        } else {
            // Elsewhere, relative paths would be others.
            applied(spec, choice.settings).for_elsewhere(path)?
        };
        let changed = match is_json(path) {
            true => rewrite::json(&text, changes),
            false => rewrite::toml(&text, changes),
        };
        let changed = changed.map_err(|problem| {
            let what = self.target.display().to_string();
            Failure::Library(Error::Source { what, problem })
        })?;
        pipeline::write_whole(&replaced(path), changed.as_bytes())
    }

    fn show(
        &self,
        search: &Search,
        choice: &Choice,
        changes: &[Change],
        output: &mut Output,
    ) -> Result<(), Failure> {
        let mut table = Table::new([
            "workers",
            "open",
            "memory",
            "waited",
            "95 % interval",
            "samples/s",
            "runs",
        ]);
        for tried in search.tried().iter().filter(|tried| !tried.wait_shares.is_empty()) {
            let (share, runs) = (tried.wait_share(), tried.wait_shares.len());
            let percent = |share: f64| format!("{:.1}", share * 100.0);
            let interval = match runs {
                // One stretch says nothing of others.
                1 => "-".to_owned(),
                _ => format!("{} to {} %", percent(share.low), percent(share.high)),
            };
            let limit = tried.settings.memory.map_or_else(|| "auto".to_owned(), show_bytes);
            table.row([
                tried.settings.num_workers.to_string(),
                tried.open.to_string(),
                limit,
                format!("{} %", percent(share.mean)),
                interval,
                show_rate(tried.rate().mean),
                match tried.set_aside.len() {
                    0 => runs.to_string(),
                    aside => format!("{runs}, {aside} aside"),
                },
            ]);
        }
        output.table(&table)?;
        output.line("")?;
        for change in changes {
            let value = match &change.value {
                Value::String(text) => format!("\"{text}\""),
                other => other.to_string(),
            };
            output.text(&format!("{} = {value}  # {}", change.key, change.reason), 4)?;
        }
        for remark in &choice.remarks {
            output.text(remark, 4)?;
        }
        Ok(())
    }
}

/// The file that is replaced: a link stays one, and what it points to is.
fn replaced(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0) as u64
}

/// Python's data sets have no spec that could be changed, and no samples without Python.
pub(crate) fn needs_data(command: &str, target: &Path) -> Result<(), Failure> {
    let target = target.to_string_lossy();
    if !is_python(&target) {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{target}: `feedline {command}` takes a spec or data; for a Python data set use `feedline bench {target}` or `feedline diagnose {target}`, and num_workers=\"auto\" to have it tuned while it runs"
    )))
}

fn applied(spec: &Spec, settings: Tunables) -> Spec {
    spec.clone().with(|spec| {
        spec.num_workers = Workers::Count(settings.num_workers);
        spec.prefetch_factor = settings.prefetch_factor;
        spec.memory = settings.memory;
    })
}

fn changes(choice: &Choice) -> Vec<Change> {
    let settings = choice.settings;
    let memory = settings.memory.map(|bytes| {
        let text = show_bytes(bytes);
        if parse_bytes(&text) == Some(bytes) { Value::from(text) } else { Value::from(bytes) }
    });
    let values = [
        ("num_workers", Some(settings.num_workers.into())),
        ("prefetch_factor", settings.prefetch_factor.map(Value::from)),
        ("memory", memory),
    ];
    let why = |key: &str| choice.reasons.iter().find(|(of, _)| of == key);
    values
        .into_iter()
        .filter_map(|(key, value)| {
            let reason = why(key).map_or_else(String::new, |(_, reason)| reason.clone());
            Some(Change { key: key.to_owned(), value: value?, reason })
        })
        .collect()
}

/// Adds what was found to the result; without a choice it was interrupted.
fn describe(
    result: &mut Value,
    search: &Search,
    stretches: Vec<Value>,
    choice: Option<&Choice>,
    written: Option<&Path>,
) {
    let found = json!({
        "interrupted": choice.is_none(),
        "cost": search.cost(),
        "samples_per_second_wanted": search.demand().rate(),
        "tried": search.tried().iter().map(tried_json).collect::<Vec<_>>(),
        "stretches": stretches,
        "choice": choice,
        "written": written.map(|path| path.to_string_lossy()),
    });
    if let (Value::Object(result), Value::Object(found)) = (result, found) {
        result.extend(found);
    }
}

fn tried_json(tried: &Tried) -> Value {
    json!({
        "num_workers": tried.settings.num_workers,
        "prefetch_factor": tried.settings.prefetch_factor,
        "memory": tried.settings.memory,
        "open": tried.open,
        "memory_used": tried.memory,
        "wait_share": tried.wait_share(),
        "samples_per_second": tried.rate(),
        "wait_shares": tried.wait_shares,
        "wait_shares_set_aside":
            tried.set_aside.iter().map(|(wait_share, _)| wait_share).collect::<Vec<_>>(),
    })
}

fn show_settings(settings: Tunables) -> String {
    let mut text = counted(settings.num_workers, "worker");
    if let Some(factor) = settings.prefetch_factor {
        text += &format!(", prefetch_factor {factor}");
    }
    if let Some(bytes) = settings.memory {
        text += &format!(", {}", show_bytes(bytes));
    }
    text
}
