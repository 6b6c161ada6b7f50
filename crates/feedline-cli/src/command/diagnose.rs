//! `feedline diagnose`: why does the trainer wait, and what would help?

use std::path::PathBuf;
use std::time::Duration;

use feedline::internals::spec::parse_duration;
use feedline::internals::tune::{
    Diagnosis, GoingOn, Machine, Resource, StageRow, StallBar, TrainStep, Workload, diagnose_feed,
    shell_word,
};
use feedline::{Error, Loader, Spec};
use feedline_view::Report;
use serde_json::Value;

use crate::host::{Host, OpenFeed, is_python};
use crate::output::{Failure, Outcome, Output};
use crate::pictures::{Pictures, SPANS};
use crate::pipeline::{self, Keys};
use crate::printed::PrintedAside;
use crate::signals::{Patience, Signals};
use crate::terminal::{Table, show_batches, show_count, show_number};

const EXAMPLES: &str = "\
Examples:
  feedline diagnose photos --train-step 20ms        a folder, against a step of 20 ms
  feedline diagnose pipeline.toml --train-step 'normal(100ms, 10ms)'
  feedline diagnose pipeline.toml                   no step: what limits the loader itself?
  feedline diagnose pipeline.toml --set num_workers=8 --seconds 60
  feedline diagnose train.py:make_loader --train-step train.py:step
  feedline diagnose photos --train-step 20ms --report why.html
  feedline diagnose pipeline.toml --train-step 20ms --json | jq -r .verdict.sentence

It runs everything real, then with parts out of the way: encoded samples in memory (no reading), \
decoded images in memory (no decoding), rows made before (no transforms), final batches handed over \
again. What each brings shows where the time goes. A loader or data set in Python is run as it is.";

/// Say why the trainer waits for its batches, and what to change.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Diagnose {
    /// A spec (.toml, .json), data (a folder, a manifest, shards), or Python code: module:name or
    /// file.py:name of a data set, a loader, or a function that makes one.
    #[arg(value_name = "SPEC|PATH|CODE")]
    target: PathBuf,

    /// The training step: 20ms, uniform(80ms, 120ms), normal(100ms, 10ms), 1ms/sample; for a target
    /// in Python also module:name or file.py:name of a function that is called with each batch.
    #[arg(long, value_name = "TIME|CODE")]
    train_step: Option<String>,

    /// About how long it may take.
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = read_seconds)]
    seconds: f64,

    /// It is ended if a batch, with its step, takes longer than this.
    #[arg(long, value_name = "TIME", default_value = "120s", value_parser = some_time)]
    timeout: Duration,

    /// Batches of each epoch that the trainer uses; all by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batches: Option<u64>,

    /// Threads or processes that make batches: a number, or auto for one for each core.
    #[arg(long, value_name = "N", value_parser = pipeline::read_workers)]
    num_workers: Option<Value>,

    /// Samples of a batch.
    #[arg(long, value_name = "N")]
    batch_size: Option<u64>,

    /// An op of the chain, such as 'CenterCrop(size=224)'; may be repeated, replaces the spec's.
    #[arg(long, value_name = "OP", value_parser = pipeline::read_transform)]
    transform: Vec<Value>,

    /// Bytes that the loader may hold, such as 512MB or 2GiB.
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// Set any key of the spec, in TOML's syntax, or any argument of a loader in Python; may be
    /// repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    #[command(flatten)]
    pictures: Pictures,
}

fn read_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.5..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "allowed: 0.5 to 3600".to_owned())
}

fn some_time(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        time if time.is_zero() => Err("expected more than 0".to_owned()),
        time => Ok(time),
    }
}

/// Steps of the progress bar.
const STEPS: u64 = 1000;

impl Diagnose {
    pub(crate) fn run(self, output: &mut Output, host: &dyn Host) -> Result<Outcome, Failure> {
        self.pictures.check(&[])?;
        let signals = Signals::watch();
        let progress = output.progress(STEPS, "steps");
        let patience = Patience::begin(&signals, self.timeout, output.is_json());
        let found = self.diagnose(output, host, &patience, &mut |part, share| {
            patience.heard(part);
            progress.set((share * STEPS as f64) as u64);
            signals.received().is_none()
        });
        drop(patience);
        progress.finish();
        let diagnosis = found?;
        if output.is_json() {
            let mut object = serde_json::to_value(&diagnosis).unwrap_or_default();
            object["command"] = "diagnose".into();
            if diagnosis.evidence.batches == 0 {
                // Of one batch, which starts everything, neither is known.
                for name in ["samples_per_second", "wait_share", "stall"] {
                    object["verdict"][name] = Value::Null;
                }
                object["run"]["samples_per_second"] = Value::Null;
            }
            output.json(&object)?;
        } else {
            show(&diagnosis, output)?;
        }
        let title = format!("Diagnosis of {}", diagnosis.target);
        self.pictures.write(&Report::of_diagnosis(&title, &diagnosis), output)?;
        Ok(signals.received().map_or(Outcome::Success, Outcome::Interrupted))
    }

    fn diagnose(
        &self,
        output: &Output,
        host: &dyn Host,
        patience: &Patience,
        going_on: &mut GoingOn<'_>,
    ) -> Result<Diagnosis, Failure> {
        let target = pipeline::shown(&self.target);
        let python = is_python(&target);
        let (step, code) = self.step(python)?;
        if step == TrainStep::None {
            output.note("no --train-step was given: what limits the loader itself is looked for");
        }
        let machine = Machine::here();
        if python {
            let settings = pipeline::settings(self.flags(), &self.set)?;
            let asked = OpenFeed {
                target,
                settings,
                step: code,
                spans: self.pictures.want_timeline().then_some(SPANS),
                ..OpenFeed::default()
            };
            let workload =
                Workload { step, epochs: u64::MAX, batches: self.batches, seconds: None };
            // What the user's code prints must not get into the result.
            let _printing = PrintedAside::begin(host)?;
            let mut feed = host.open(&asked).map_err(Error::System)?;
            patience.opened();
            let name = &asked.target;
            return Ok(diagnose_feed(name, machine, &mut *feed, workload, self.seconds, going_on)?);
        }
        let defaults = pipeline::bare_defaults();
        let spec = pipeline::describe(&self.target, defaults, self.flags(), &self.set)?;
        let named = self.named(&spec);
        let diagnose = feedline::internals::engine::Diagnose::of(Loader::describe(spec))
            .step(step)
            .seconds(self.seconds);
        let mut diagnose = diagnose.named(named);
        if let Some(batches) = self.batches {
            diagnose = diagnose.batches(batches);
        }
        patience.opened();
        Ok(diagnose.run(&target, machine, going_on)?)
    }

    /// The step, and the code that is it.
    fn step(&self, python: bool) -> Result<(TrainStep, Option<String>), Failure> {
        let wrong = |problem: String| Failure::Usage(format!("--train-step: {problem}"));
        match &self.train_step {
            None => Ok((TrainStep::None, None)),
            Some(code) if is_python(code) && python => Ok((TrainStep::Own, Some(code.clone()))),
            Some(code) if is_python(code) => Err(wrong(format!(
                "{code:?} is Python code, which needs batches of Python: name a function that returns feedline.Loader(...) as the target, or give the step's time"
            ))),
            Some(text) => Ok((TrainStep::parse(text).map_err(wrong)?, None)),
        }
    }

    /// The pipeline as other commands take it, but for its memory, which advice may change.
    fn named(&self, spec: &Spec) -> String {
        let target = pipeline::shown(&self.target);
        let dash = if target.starts_with('-') { "./" } else { "" };
        let mut words = vec![shell_word(&format!("{dash}{target}"))];
        let settings = [
            ("num_workers", self.num_workers.clone()),
            ("batch_size", self.batch_size.map(Value::from)),
        ];
        for (key, value) in settings {
            let text = value.map(|value| value.as_str().map_or(value.to_string(), str::to_owned));
            words
                .extend(text.map(|text| format!("--set {}", shell_word(&format!("{key}={text}")))));
        }
        let memory =
            |set: &&String| set.split('=').next().is_some_and(|key| key.trim() == "memory");
        let sets = self.set.iter().filter(|set| !memory(set));
        words.extend(sets.map(|set| format!("--set {}", shell_word(set))));
        if !self.transform.is_empty() {
            let ops = spec.transforms.iter().map(pipeline::show_transform);
            words.extend(ops.map(|op| format!("--transform {}", shell_word(&op))));
        }
        words.join(" ")
    }

    fn flags(&self) -> Keys {
        let transforms = Some(Value::from(self.transform.clone()));
        let given = [
            ("num_workers", self.num_workers.clone()),
            ("batch_size", self.batch_size.map(Value::from)),
            ("memory", self.memory.clone().map(Value::from)),
            ("transforms", transforms.filter(|_| !self.transform.is_empty())),
        ];
        given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

fn show(diagnosis: &Diagnosis, output: &mut Output) -> Result<(), Failure> {
    let verdict = &diagnosis.verdict;
    output.heading(&verdict.sentence)?;
    output.line("")?;
    if diagnosis.evidence.batches > 0 {
        let bar = stall_bar(
            &verdict.stall,
            diagnosis.workload.step != TrainStep::None,
            output.terminal().chart_width().min(72),
            output.terminal().is_unicode(),
        );
        bar.into_iter().try_for_each(|line| output.line(&line))?;
        output.line("")?;
    }
    if !diagnosis.stages.is_empty() {
        output.table(&stage_table(&diagnosis.stages))?;
        output.line("")?;
    }
    for (name, text) in facts(diagnosis) {
        output.text(&format!("{name:<15}  {text}"), 17)?;
    }
    if !verdict.advice.is_empty() {
        output.line("")?;
        output.heading("What to try")?;
    }
    for (number, advice) in (1..).zip(&verdict.advice) {
        output.text(&format!("{number}. {}", advice.text), 3)?;
        for exact in advice.command.iter().chain(&advice.code) {
            output.exact(&format!("   {exact}"))?;
        }
    }
    Ok(())
}

/// Where the time of the trainer goes, or of the loader if there is no step: a bar, and what its
/// parts are.
fn stall_bar(stall: &StallBar, has_step: bool, width: usize, unicode: bool) -> Vec<String> {
    let names = match has_step {
        true => ["busy", "waits for reading", "waits for preparing", "waits for copying"],
        false => ["between batches", "reading", "preparing", "copying"],
    };
    let parts = [
        (names[0], stall.none, "░", "."),
        (names[1], stall.reading, "▒", "r"),
        (names[2], stall.preparing, "█", "P"),
        (names[3], stall.copying, "▓", "c"),
    ];
    let symbol = |rich: &'static str, plain: &'static str| if unicode { rich } else { plain };
    let mut bar = String::new();
    let mut until = 0.0;
    let mut drawn = 0;
    for (_, share, rich, plain) in parts {
        until += share;
        // Rounding each end instead of each part keeps the whole as long as it should be.
        let end = (until * width as f64).round().clamp(0.0, width as f64) as usize;
        bar += &symbol(rich, plain).repeat(end.saturating_sub(drawn));
        drawn = drawn.max(end);
    }
    let legend = parts
        .iter()
        .filter(|(_, share, ..)| *share >= 0.005)
        .map(|(name, share, rich, plain)| {
            format!("{} {name} {:.0} %", symbol(rich, plain), share * 100.0)
        })
        .collect::<Vec<_>>();
    let heading = if has_step { "The trainer's time" } else { "Where the time goes" };
    vec![heading.to_owned(), format!("  {bar}"), format!("  {}", legend.join("   "))]
}

/// Microseconds, or milliseconds where there are many.
fn show_time(seconds: f64) -> String {
    match seconds * 1e6 {
        micros if micros >= 10_000.0 => format!("{:.1} ms", micros / 1000.0),
        micros => format!("{} µs", show_count(micros.round() as u64)),
    }
}

fn show_rate(rate: Option<f64>) -> String {
    rate.map_or("-".to_owned(), |rate| show_count(rate.round() as u64))
}

fn stage_table(stages: &[StageRow]) -> Table {
    let mut table =
        Table::new(["stage", "time", "CPU", "of CPU", "alone /s", "if free /s", "measured /s"]);
    for stage in stages {
        table.row([
            stage.name.clone(),
            show_time(stage.seconds),
            show_time(stage.cpu_seconds),
            format!("{:.0} %", stage.share * 100.0),
            show_rate(stage.ceiling),
            show_rate(stage.predicted_if_free),
            show_rate(stage.measured_if_free),
        ]);
    }
    table
}

fn facts(diagnosis: &Diagnosis) -> Vec<(&'static str, String)> {
    let evidence = &diagnosis.evidence;
    let mut facts = Vec::new();
    let resource = match diagnosis.verdict.resource {
        Resource::None => "nothing of the loader's",
        Resource::OneCore => "one core, while others are idle",
        Resource::Workers => "all workers, while cores are idle",
        Resource::AllCores => "all cores",
        Resource::DiskBandwidth => "the bandwidth of the disk or the network",
        Resource::RequestLatency => "the latency of requests",
        Resource::Memory => "the memory that the loader may hold",
        Resource::InterpreterLock => "Python's interpreter lock",
    };
    facts.push(("at its limit", resource.to_owned()));
    let ceilings = &diagnosis.ceilings;
    let rates = [
        ("everything real", ceilings.real),
        ("encoded in memory", ceilings.prepared),
        ("final batches again", ceilings.replayed),
    ];
    if rates.iter().any(|(_, rate)| rate.is_some()) {
        let named = rates.map(|(name, rate)| format!("{name} {}", show_rate(rate)));
        facts.push(("without a step", format!("{} samples/s", named.join(", "))));
    }
    if ceilings.step.is_some() {
        facts.push(("the step alone", format!("{} samples/s", show_rate(ceilings.step))));
    }
    let run = &diagnosis.run;
    // The size that was set: the last batch of an epoch may be shorter.
    let mean = run.samples as f64 / run.batches.max(1) as f64;
    let rows = evidence.batch_size.max(mean);
    facts.push((
        "measured",
        format!(
            "{} of {rows:.0}, {}, {}",
            show_batches(run.batches),
            show_number(evidence.workers, "worker"),
            show_number(evidence.cores.round() as u64, "core")
        ),
    ));
    facts.extend(diagnosis.verdict.signs.iter().map(|sign| ("sign", sign.clone())));
    facts.extend(evidence.remarks.iter().map(|remark| ("remark", remark.clone())));
    facts.extend(evidence.not_measured.iter().map(|note| ("not measured", note.clone())));
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnosis() -> Diagnosis {
        let evidence = feedline::internals::tune::Evidence::default();
        Diagnosis {
            target: "x".to_owned(),
            machine: Machine::default(),
            workload: Workload { step: TrainStep::Own, epochs: 1, batches: None, seconds: None },
            verdict: feedline::internals::tune::judge(&evidence),
            stages: Vec::new(),
            ceilings: Default::default(),
            evidence,
            run: Default::default(),
        }
    }

    #[test]
    fn what_has_a_step_is_not_reported_as_without_one() {
        let mut found = diagnosis();
        let named = |found: &Diagnosis, name: &str| {
            facts(found).into_iter().find(|(known, _)| *known == name).map(|(_, text)| text)
        };
        assert_eq!(named(&found, "without a step"), None, "nothing was measured");
        (found.ceilings.real, found.ceilings.step) = (Some(127_124.0), Some(30_669.0));
        let text = "everything real 127,124, encoded in memory -, final batches again - samples/s";
        assert_eq!(named(&found, "without a step").as_deref(), Some(text));
        assert_eq!(named(&found, "the step alone").as_deref(), Some("30,669 samples/s"));
        (found.run.batches, found.run.samples) = (63, 4000);
        (found.evidence.workers, found.evidence.cores) = (1, 2.0);
        found.evidence.batch_size = 64.0;
        let text = "63 batches of 64, 1 worker, 2 cores";
        assert_eq!(named(&found, "measured").as_deref(), Some(text));
    }

    #[test]
    fn without_a_step_nobody_waits() {
        let stall = StallBar { reading: 0.2, preparing: 0.7, copying: 0.0, none: 0.1 };
        let lines = stall_bar(&stall, false, 40, false);
        assert_eq!(lines[0], "Where the time goes");
        assert_eq!(lines[2], "  . between batches 10 %   r reading 20 %   P preparing 70 %");
    }

    #[test]
    fn the_bar_is_as_long_as_it_should_be() {
        for shares in [[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0], [0.333, 0.333, 0.333, 0.001]]
        {
            let [none, reading, preparing, copying] = shares;
            let stall = StallBar { reading, preparing, copying, none };
            for unicode in [true, false] {
                let lines = stall_bar(&stall, true, 40, unicode);
                assert_eq!(lines[1].trim().chars().count(), 40, "{lines:?}");
            }
            let lines = stall_bar(&stall, true, 40, false);
            assert_eq!(lines[2].contains("copying"), copying > 0.01, "{lines:?}");
        }
    }
}
