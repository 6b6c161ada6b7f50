//! What a command prints and how it ends: text or JSON on standard output, errors, exit codes.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::json;

use crate::chart::Bars;
use crate::terminal::{Paint, Progress, Table, Terminal, printable};

/// Exit code: all went well.
pub(crate) const SUCCESS: i32 = 0;
/// Exit code: the work failed, or bad samples were found.
pub(crate) const FAILED: i32 = 1;
/// Exit code: wrong usage, or a mistake in a pipeline's description.
pub(crate) const WRONG_USAGE: i32 = 2;

/// How a command that ran to its end ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All went well.
    Success,
    /// Bad samples were found, or a check did not hold.
    BadSamples,
    /// A signal ended it early; what was done by then is reported. Holds the exit code.
    Interrupted(i32),
}

impl Outcome {
    pub(crate) fn exit_code(self) -> i32 {
        match self {
            Outcome::Success => SUCCESS,
            Outcome::BadSamples => FAILED,
            Outcome::Interrupted(code) => code,
        }
    }
}

/// Why a command stopped early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The flags do not make sense.
    Usage(String),
    /// A mistake in a file that describes a pipeline.
    SpecFile(PathBuf, Box<feedline::SpecError>),
    /// The library's reason.
    Library(feedline::Error),
    /// A sample that ended the work, and the flag with which it does not.
    BadSample(Box<feedline::SampleError>, &'static str),
    /// Standard output does not take the result.
    Output(io::Error),
}

impl From<feedline::Error> for Failure {
    fn from(error: feedline::Error) -> Self {
        Failure::Library(error)
    }
}

impl From<feedline_sample_photos::Error> for Failure {
    fn from(error: feedline_sample_photos::Error) -> Self {
        use feedline_sample_photos::Error;
        Failure::Library(match error {
            Error::Parameter { name, value, low, high } => {
                feedline::SpecError::new(name, "out of range")
                    .value(value)
                    .allowed(format!("{low} to {high}"))
                    .into()
            }
            Error::Folder { path, problem } => {
                feedline::Error::Source { what: path.display().to_string(), problem }
            }
            Error::Io { what, path, source } => feedline::Error::Io { what, path, source },
            other => feedline::Error::System(other.to_string()),
        })
    }
}

impl Failure {
    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            Failure::Usage(_) | Failure::SpecFile(..) => WRONG_USAGE,
            Failure::Library(feedline::Error::Spec(_)) => WRONG_USAGE,
            // `feedline ... | head`: the reader has seen enough.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => SUCCESS,
            Failure::Library(_) | Failure::BadSample(..) | Failure::Output(_) => FAILED,
        }
    }

    fn kind(&self) -> &'static str {
        use feedline::Error;
        match self {
            Failure::Usage(_) => "usage",
            Failure::Output(_) => "output",
            Failure::SpecFile(..) | Failure::Library(Error::Spec(_)) => "spec",
            Failure::BadSample(..) | Failure::Library(Error::Sample(_)) => "sample",
            Failure::Library(Error::Io { .. }) => "io",
            Failure::Library(Error::Source { .. }) => "source",
            Failure::Library(Error::State(_)) => "state",
            Failure::Library(Error::Memory(_)) => "memory",
            Failure::Library(Error::Cache(_)) => "cache",
            Failure::Library(Error::Device(_)) => "device",
            Failure::Library(Error::TooManyFailures { .. }) => "too_many_failures",
            Failure::Library(_) => "other",
        }
    }

    pub(crate) fn message(&self) -> String {
        match self {
            Failure::Usage(message) => message.clone(),
            Failure::SpecFile(path, error) => format!("{}: {error}", path.display()),
            Failure::Library(error) => error.to_string(),
            Failure::BadSample(error, flag) => format!("{error}: {flag}"),
            Failure::Output(error) => format!("cannot write to standard output: {error}"),
        }
    }

    /// One message on standard error, and the same as JSON on standard output if that was asked and
    /// there is no result yet.
    pub(crate) fn report(&self, output: &Output) {
        if self.exit_code() == SUCCESS {
            return;
        }
        let label = output.terminal.paint_error(Paint::Bad, "error:");
        // Nothing is left to inform the user with when standard error is closed.
        let _ = writeln!(io::stderr(), "{label} {}", printable(&self.message()));
        self.report_json(output.json && !output.reported && !matches!(self, Failure::Output(_)));
    }

    /// The JSON part of [`report`](Self::report).
    pub(crate) fn report_json(&self, asked: bool) {
        if asked {
            let (kind, message, exit_code) = (self.kind(), self.message(), self.exit_code());
            let object =
                json!({"error": {"kind": kind, "message": message, "exit_code": exit_code}});
            let _ = writeln!(io::stdout(), "{object}");
        }
    }
}

/// Where a command's result goes.
pub(crate) struct Output {
    json: bool,
    /// The one JSON object was printed.
    reported: bool,
    quiet: bool,
    terminal: Terminal,
    stdout: BufWriter<io::Stdout>,
}

impl Output {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        let (terminal, stdout) = (Terminal::detect(), BufWriter::new(io::stdout()));
        Output { json, reported: false, quiet, terminal, stdout }
    }

    /// The result is wanted as one JSON object, through [`json`](Self::json), and nothing else.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// The result as JSON. What fails afterwards is reported on standard error and by the exit code.
    pub(crate) fn json(&mut self, result: &impl Serialize) -> Result<(), Failure> {
        self.reported = true;
        self.json_line(result)
    }

    /// One of several objects, a line each.
    pub(crate) fn json_line(&mut self, object: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(object).map_err(|error| Failure::Output(error.into()))?;
        self.line(&text)
    }

    /// A line of text, or several.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        writeln!(self.stdout, "{text}").map_err(Failure::Output)
    }

    /// A line of text that may hold names from outside, folded to the terminal's width with
    /// `indent` spaces before what follows.
    pub(crate) fn text(&mut self, text: &str, indent: usize) -> Result<(), Failure> {
        let text = self.terminal.wrapped(&printable(text), indent);
        self.line(&text)
    }

    /// A line to be copied: it is never folded.
    pub(crate) fn exact(&mut self, text: &str) -> Result<(), Failure> {
        self.line(&printable(text))
    }

    /// A line that stands above others.
    pub(crate) fn heading(&mut self, text: &str) -> Result<(), Failure> {
        let text = self.terminal.wrapped(&printable(text), 2);
        let text = self.terminal.paint(Paint::Heading, &text);
        self.line(&text)
    }

    /// A chart that fits the terminal, with an empty line above.
    pub(crate) fn chart(&mut self, bars: &Bars) -> Result<(), Failure> {
        let text = bars.render(&self.terminal);
        self.line(&format!("\n{}", text.trim_end()))
    }

    /// A table that fits the terminal.
    pub(crate) fn table(&mut self, table: &Table) -> Result<(), Failure> {
        let text = table.render(&self.terminal);
        self.line(text.trim_end())
    }

    /// Progress towards `total` on standard error: a bar on a terminal, else a line now and then.
    pub(crate) fn progress(&self, total: u64, unit: &'static str) -> Progress {
        Progress::new(&self.terminal, total, unit, self.quiet)
    }

    /// A line for the person who watches, on standard error.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            // A closed standard error only loses the remark.
            let _ = writeln!(io::stderr(), "{}", printable(text));
        }
    }

    /// A line on standard error that is part of the result, for who wants no progress too.
    pub(crate) fn announce(&self, text: &str) {
        // Nobody is left to read it when standard error is closed.
        let _ = writeln!(io::stderr(), "{}", printable(text));
    }

    /// A line about what was just done, for a person who watches; a log gets none.
    pub(crate) fn remark(&self, text: &str) {
        if self.terminal.is_watched() {
            self.note(text);
        }
    }

    pub(crate) fn terminal(&self) -> &Terminal {
        &self.terminal
    }

    /// Everything printed so far reaches the reader, or the reason why not is known.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.stdout.flush().map_err(Failure::Output)
    }
}
