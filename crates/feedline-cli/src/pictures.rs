//! Flags that make pictures of a result: a page, a trace, plots.

use std::path::{Path, PathBuf};

use feedline::internals::tune;
use feedline::{Error, Loader};
use feedline_view::{Format, Report, trace};

use crate::output::{Failure, Output};
use crate::pipeline;

/// Spans of each lane that a timeline keeps: 640 kB each.
pub(crate) const SPANS: usize = 20_000;

/// Where pictures go.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Results")]
pub(crate) struct Pictures {
    /// Write a report as one HTML file, which needs nothing else.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Write what happened when as a trace for Perfetto (ui.perfetto.dev).
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,

    /// Write the main plots as SVG into this folder.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,

    /// Write the main plots as PNG into this folder.
    #[arg(long, value_name = "DIR")]
    png: Option<PathBuf>,
}

/// Refuses a file whose folder is not there, before anything takes long.
fn check_folder(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        None => Ok(()),
        Some(folder) => Err(Failure::Usage(format!(
            "{}: there is no folder {}",
            path.display(),
            folder.display()
        ))),
    }
}

/// The same, and refuses a folder where a file is meant.
fn check_file(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        let text = format!("{}: this is a folder; name a file", path.display());
        return Err(Failure::Usage(text));
    }
    check_folder(path)
}

/// The same, and tries whether it can be written: better now than after all the work.
pub(crate) fn try_file(path: &Path) -> Result<(), Failure> {
    check_file(path)?;
    pipeline::try_writing(path)
}

fn no_folder(path: &Path, source: std::io::Error) -> Failure {
    let path = path.to_owned();
    Failure::Library(Error::Io { what: "cannot make the folder", path, source })
}

/// Tries whether files can be written to a folder, which is made later if it is not there.
fn try_folder(path: &Path) -> Result<(), Failure> {
    check_folder(path)?;
    if path.is_dir() {
        return pipeline::try_writing(&path.join("feedline"));
    }
    std::fs::create_dir(path).map_err(|source| no_folder(path, source))?;
    // It is empty; if it stays, it is the one that was asked for.
    let _ = std::fs::remove_dir(path);
    Ok(())
}

/// Writes the timeline that a loader kept.
pub(crate) fn write_trace_of(loader: &Loader, name: &str, path: &Path) -> Result<(), Failure> {
    let monitor = loader.monitor();
    let mut run = tune::Run { timeline: monitor.timeline(), ..tune::Run::default() };
    run.evidence.workers = monitor.workers();
    pipeline::write_with(path, |file| trace::write_run(name, &run, file))
}

impl Pictures {
    /// Whether a timeline is to be kept.
    pub(crate) fn want_timeline(&self) -> bool {
        [&self.report, &self.trace, &self.svg, &self.png].into_iter().any(Option::is_some)
    }

    /// Finds mistakes before anything is run, and whether all can be written, `others` too: files
    /// that more flags name.
    pub(crate) fn check(&self, others: &[(&str, &Path)]) -> Result<(), Failure> {
        let own = [("--report", &self.report), ("--trace", &self.trace)];
        let own = own.into_iter().filter_map(|(flag, path)| Some((flag, path.as_deref()?)));
        let files: Vec<_> = own.chain(others.iter().copied()).collect();
        let place = |path: &Path| std::path::absolute(path).ok();
        for (number, (flag, path)) in files.iter().enumerate() {
            let mut before = files[..number].iter();
            if let Some((same, _)) = before.find(|(_, other)| place(other) == place(path)) {
                return Err(Failure::Usage(format!(
                    "{same} and {flag} name the same file: one would replace the other"
                )));
            }
        }
        files.iter().try_for_each(|(_, path)| try_file(path))?;
        [&self.svg, &self.png].into_iter().flatten().try_for_each(|path| try_folder(path))
    }

    /// Writes what was asked for: all that can be, before the first failure is reported.
    pub(crate) fn write(&self, report: &Report<'_>, output: &Output) -> Result<(), Failure> {
        let written = [
            self.report.as_deref().map_or(Ok(()), |path| write_page(path, report, output)),
            self.trace.as_deref().map_or(Ok(()), |path| write_trace(path, report, output)),
            self.svg
                .as_deref()
                .map_or(Ok(()), |folder| write_plots(folder, Format::Svg, report, output)),
            self.png
                .as_deref()
                .map_or(Ok(()), |folder| write_plots(folder, Format::Png, report, output)),
        ];
        written.into_iter().collect()
    }
}

fn write_page(path: &Path, report: &Report<'_>, output: &Output) -> Result<(), Failure> {
    let failed = |error| Failure::Library(Error::System(format!("the report: {error}")));
    pipeline::write_whole(path, report.html().map_err(failed)?.as_bytes())?;
    output.note(&format!("report: {}", path.display()));
    Ok(())
}

fn write_trace(path: &Path, report: &Report<'_>, output: &Output) -> Result<(), Failure> {
    pipeline::write_with(path, |file| report.write_trace(file))?;
    let remark = match report.has_trace() {
        true => "open it in ui.perfetto.dev",
        false => "empty: no run has a timeline",
    };
    output.note(&format!("trace: {} ({remark})", path.display()));
    Ok(())
}

fn write_plots(
    folder: &Path,
    format: Format,
    report: &Report<'_>,
    output: &Output,
) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|source| no_folder(folder, source))?;
    let failed = |error| Failure::Library(Error::System(format!("{error}")));
    let pictures = report.pictures(format).map_err(failed)?;
    for picture in &pictures {
        pipeline::write_whole(&folder.join(&picture.name), &picture.content)?;
    }
    output.note(&format!("{} plots: {}", pictures.len(), folder.display()));
    Ok(())
}
