//! `feedline verify`: reads and decodes every sample, and lists the bad ones.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use feedline::error::SampleError;
use feedline::internals::catalog::{Catalog, PackedKind};
use feedline::internals::output_file;
use feedline::internals::spec::show_bytes;
use serde_json::{Value, json};

use crate::output::{Failure, Outcome, Output};
use crate::pipeline::{self, Keys};
use crate::terminal::{Paint, printable, show_count, show_seconds};

const EXAMPLES: &str = "\
Examples:
  feedline verify photos                      exit code 1 if anything is bad
  feedline verify pipeline.toml --list bad.jsonl
  feedline verify photos --set decode.allow_truncated=true
  feedline verify photos --json | jq -r '.bad[].path'

Checks all samples of the sources, also those that a spec's subset leaves out. A file that
vanishes meanwhile is a bad sample. The list has a JSON object a line, as a loader's quarantine
file has: source, index, path, offset, stage, reason, and path_bytes if the name is not UTF-8.
The files of a packed set are compared with the checksums that were noted when it was packed, and
then every sample is read and decoded too. Of raw pixels nothing is left to decode: they are as they
were written.";

/// Read and decode every sample, and list the bad ones.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Verify {
    /// A folder of images, a manifest (.csv, .tsv, .jsonl), or a spec (.toml, .json).
    #[arg(value_name = "PATH|SPEC")]
    target: PathBuf,

    /// Write the bad samples to this file, a JSON object a line.
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,

    /// Threads that check [default: auto, one for each core].
    #[arg(long, value_name = "N", value_parser = pipeline::read_workers)]
    num_workers: Option<Value>,

    /// Bytes that the check may hold [default: a quarter of what is free, at most 1GB].
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,

    /// Set any key of the spec, in TOML's syntax; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Verify {
    pub(crate) fn run(self, output: &mut Output) -> Result<Outcome, Failure> {
        let mut compared = None;
        if self.target.is_dir()
            && let Some(packed) = Catalog::read(&self.target)?
        {
            let found = self.compare(&packed, output)?;
            if !found.bad.is_empty() || packed.kind == PackedKind::Raw {
                return self.show_compared(&packed, &found, output);
            }
            compared = Some((packed, found));
        }
        let mut flags = Keys::new();
        flags.extend(self.num_workers.map(|workers| ("num_workers".to_owned(), workers)));
        flags.extend(self.memory.map(|memory| ("memory".to_owned(), memory.into())));
        let spec = pipeline::describe(&self.target, Keys::new(), flags, &self.set)?;
        let verify = feedline::internals::engine::Verify::open(&spec)?;
        let cannot_list = |path: &PathBuf, source| {
            let path = path.clone();
            Failure::Library(feedline::Error::Io { what: "cannot write the list", path, source })
        };
        let mut list = match &self.list {
            Some(path) => {
                Some((path, output_file::create(path).map_err(|e| cannot_list(path, e))?))
            }
            None => None,
        };
        let progress = output.progress(verify.samples(), "samples");
        let start = Instant::now();
        let mut listed = Vec::new();
        let mut failure = None;
        let verified = verify.run(&|done| progress.set(done), &mut |error: SampleError| {
            let mut take = || {
                if let Some((path, file)) = &mut list {
                    let line = format!("{}\n", error.to_value());
                    file.write_all(line.as_bytes()).map_err(|e| cannot_list(path, e))?;
                }
                if output.is_json() {
                    listed.push(error.to_value());
                    return Ok(());
                }
                // Shown as they are found: checking all may take hours.
                progress.aside(|| {
                    output.line(&describe(&error, output.terminal()))?;
                    output.flush()
                })
            };
            match take() {
                Ok(()) => ControlFlow::Continue(()),
                Err(reason) => {
                    failure = Some(reason);
                    ControlFlow::Break(())
                }
            }
        })?;
        let seconds = start.elapsed().as_secs_f64();
        progress.finish();
        if let Some(failure) = failure {
            return Err(failure);
        }
        if output.is_json() {
            let mut result = json!({
                "command": "verify",
                "target": pipeline::shown(&self.target),
                "sources": verify.source_names(),
                "samples": verified.samples,
                "bad_samples": verified.bad,
                "bytes": verified.bytes,
                "seconds": seconds,
                "num_workers": verify.num_workers(),
                "bad": listed,
            });
            if let Some((packed, found)) = &compared {
                result["packed"] = json!(packed.kind);
                result["files"] = found.files.into();
                result["bad_files"] = 0.into();
                result["seconds"] = (seconds + found.seconds).into();
            }
            output.json(&result)?;
        } else {
            if let Some((_, found)) = &compared {
                found.show(output)?;
            }
            let verdict = match verified.bad {
                0 => "all samples are good".to_owned(),
                1 => "1 sample is bad".to_owned(),
                bad => format!("{} samples are bad", show_count(bad)),
            };
            let paint = if verified.bad == 0 { Paint::Heading } else { Paint::Bad };
            let verdict = output.terminal().paint(paint, &verdict);
            output.line(&format!(
                "{verdict}: {} checked, {} read in {}, {}/s",
                show_count(verified.samples),
                show_bytes(verified.bytes),
                show_seconds(seconds),
                show_count((verified.samples as f64 / seconds.max(1e-9)) as u64),
            ))?;
        }
        Ok(if verified.bad == 0 { Outcome::Success } else { Outcome::BadSamples })
    }
}

/// What a comparison with checksums found.
struct Compared {
    files: u64,
    bytes: u64,
    bad: Vec<(PathBuf, String)>,
    seconds: f64,
    threads: usize,
}

impl Compared {
    fn show(&self, output: &mut Output) -> Result<(), Failure> {
        for (path, reason) in &self.bad {
            output.text(&format!("bad  {}: {reason}", path.to_string_lossy()), 5)?;
        }
        let verdict = match self.bad.len() {
            0 => "all files are as they were packed".to_owned(),
            1 => "1 file is bad".to_owned(),
            count => format!("{} files are bad", show_count(count as u64)),
        };
        let paint = if self.bad.is_empty() { Paint::Heading } else { Paint::Bad };
        let verdict = output.terminal().paint(paint, &verdict);
        output.line(&format!(
            "{verdict}: {} compared with their checksums, {} read in {}",
            show_count(self.files),
            show_bytes(self.bytes),
            show_seconds(self.seconds),
        ))
    }
}

impl Verify {
    /// A packed set knows its files' checksums: they are compared.
    fn compare(&self, packed: &Catalog, output: &Output) -> Result<Compared, Failure> {
        let threads = match self.num_workers.as_ref().and_then(Value::as_u64) {
            Some(count) => count as usize,
            None => feedline::internals::tune::cores(),
        };
        let mut files = 0;
        packed.files(&self.target, &mut |_| files += 1)?;
        let progress = output.progress(files, "files");
        let start = Instant::now();
        let mut bad = Vec::new();
        let (files, bytes) = feedline::internals::pack::check(
            &self.target,
            packed,
            feedline::internals::decode::EXTENSIONS,
            threads,
            &|done| progress.set(done),
            &mut |path, reason| bad.push((self.target.join(path), reason)),
        )?;
        let seconds = start.elapsed().as_secs_f64();
        progress.finish();
        Ok(Compared { files, bytes, bad, seconds, threads })
    }

    fn show_compared(
        &self,
        packed: &Catalog,
        found: &Compared,
        output: &mut Output,
    ) -> Result<Outcome, Failure> {
        let lines: Vec<Value> = (found.bad.iter())
            .map(|(path, reason)| json!({"path": path.to_string_lossy(), "reason": reason}))
            .collect();
        if let Some(list) = &self.list {
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            pipeline::write_whole(list, text.as_bytes())?;
        }
        if output.is_json() {
            output.json(&json!({
                "command": "verify",
                "target": pipeline::shown(&self.target),
                "packed": packed.kind,
                "samples": packed.samples,
                "files": found.files,
                "bad_files": found.bad.len(),
                "bytes": found.bytes,
                "seconds": found.seconds,
                "num_workers": found.threads,
                "bad": lines,
            }))?;
        } else {
            found.show(output)?;
        }
        Ok(if found.bad.is_empty() { Outcome::Success } else { Outcome::BadSamples })
    }
}

/// `bad  photos/7.jpg: cannot decode: JPEG: ends early (at byte 1234)`
fn describe(error: &SampleError, terminal: &crate::terminal::Terminal) -> String {
    let name = match &error.path {
        Some(path) => path.to_string_lossy().into_owned(),
        None => format!("sample {}", error.index),
    };
    let place = error.offset.map_or(String::new(), |offset| format!(" (at byte {offset})"));
    let text = format!("{name}: cannot {}: {}{place}", error.stage, error.fault);
    let text = format!("bad  {}", printable(&text).replace('\n', "\\n"));
    // Painted last: codes have no width.
    terminal.wrapped(&text, 5).replacen("bad", &terminal.paint(Paint::Bad, "bad"), 1)
}
