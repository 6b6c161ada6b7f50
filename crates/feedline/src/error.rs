//! What can go wrong, always with what it concerns.
//!
//! A stage that fails on one sample returns a [`Fault`]: the cause, without knowing which
//! sample it was. The engine adds the sample's name and makes it an [`Error::Sample`].

use std::path::PathBuf;

/// The result of everything that a user calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a user of the crate sees.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The description of the pipeline is wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// One sample could not be read, decoded or transformed.
    #[error("{0}")]
    Sample(Box<SampleError>),
    /// A file or folder that is not a sample could not be used.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was attempted, as a phrase that the path completes.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A data set cannot be used as it is (empty, malformed manifest, mismatched arrays).
    #[error("{what}: {problem}")]
    Source {
        /// The data set: its path or a description.
        what: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A resume state does not belong to this loader.
    #[error("cannot resume: {0}")]
    State(String),
    /// The memory limit is too small for the work, or the program holds all of it.
    #[error("memory: {0}")]
    Memory(String),
    /// `cache` was demanded and the data set does not fit.
    #[error("cache: {0}")]
    Cache(String),
    /// More samples failed than `max_failures` allows.
    #[error("{failed} samples failed, more than max_failures = {allowed} allows; the last: {last}")]
    TooManyFailures {
        /// Distinct samples that failed so far.
        failed: u64,
        /// The limit.
        allowed: u64,
        /// The newest failure.
        last: Box<SampleError>,
    },
    /// The iterator was replaced by a newer one of the same loader.
    #[error(
        "this iterator is over: the loader was iterated, seeked or resumed again since it was made"
    )]
    Stale,
    /// The program called the wait for a batch off; see `Loader::next_batch_unless`.
    #[error("the wait for a batch was called off")]
    Interrupted,
    /// A device (a GPU) cannot be used, or one of its calls failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The operating system refused something the engine needs.
    #[error("{0}")]
    System(String),
}

/// Why a device (a GPU) cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No device has such a name.
    #[error("{0:?} is no device; allowed: \"cuda\", or \"cuda:1\" for another than the first")]
    Name(String),
    /// The driver's library is not there, or is not what it should be.
    #[error("the CUDA driver {library} cannot be used: {reason}")]
    Library {
        /// The library's name or path.
        library: String,
        /// The loader's reason, or the symbol that is missing.
        reason: String,
    },
    /// The driver sees fewer devices.
    #[error("there is no device cuda:{number}: the driver sees {count}")]
    Missing {
        /// The number that was asked for.
        number: i32,
        /// How many there are.
        count: i32,
    },
    /// A call of the driver failed.
    #[error("{call} failed: {name} ({code}): {text}{advice}")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// Its result.
        code: i32,
        /// The result's name.
        name: String,
        /// What the driver says of it.
        text: String,
        /// What to do, if anything is known to help; starts with "; ".
        advice: &'static str,
    },
    /// A stream number that DLPack forbids.
    #[error("stream = {0}: allowed: None, -1, 1, 2 or the handle of a stream")]
    Stream(i64),
    /// The process was forked after the device was opened.
    #[error(
        "a device does not survive a fork: make the loader in the child, or start it by spawn or forkserver"
    )]
    Forked,
}

impl DeviceError {
    /// The driver's result, if it was a call that failed.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            DeviceError::Call { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the device has no memory left.
    #[must_use]
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.code() == Some(2)
    }
}

/// A mistake in a pipeline's description.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpecError {
    /// The key, as a path from the top: `transforms[1].size`.
    pub key: String,
    /// The offending value as JSON, if there is one.
    pub value: Option<String>,
    /// What is wrong.
    pub problem: String,
    /// What would be right.
    pub allowed: Option<String>,
    /// The nearest known name, when the key or value looks like a slip of the pen.
    pub nearest: Option<String>,
}

impl SpecError {
    /// A mistake at `key`, with nothing else known.
    pub fn new(key: impl Into<String>, problem: impl Into<String>) -> Self {
        SpecError {
            key: key.into(),
            value: None,
            problem: problem.into(),
            allowed: None,
            nearest: None,
        }
    }

    /// Adds what would be right.
    #[must_use]
    pub fn allowed(mut self, allowed: impl Into<String>) -> Self {
        self.allowed = Some(allowed.into());
        self
    }

    /// Adds the offending value.
    #[must_use]
    pub fn value(mut self, value: impl std::fmt::Display) -> Self {
        let text = value.to_string();
        // A long list would hide the message.
        self.value = Some(match text.char_indices().nth(80) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text,
        });
        self
    }

    /// Puts `prefix` in front of the key.
    #[must_use]
    pub fn within(mut self, prefix: &str) -> Self {
        self.key = match (prefix, self.key.as_str()) {
            (_, "") => prefix.to_owned(),
            ("", _) => return self,
            (_, key) if key.starts_with('[') => format!("{prefix}{key}"),
            (_, key) => format!("{prefix}.{key}"),
        };
        self
    }
}

impl std::fmt::Display for SpecError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.key.is_empty() {
            write!(f, "{}", self.key)?;
            if let Some(value) = &self.value {
                write!(f, " = {value}")?;
            }
            write!(f, ": ")?;
        }
        write!(f, "{}", self.problem)?;
        if let Some(allowed) = &self.allowed {
            write!(f, "; allowed: {allowed}")?;
        }
        if let Some(nearest) = &self.nearest {
            write!(f, "; did you mean {nearest}?")?;
        }
        Ok(())
    }
}

impl std::error::Error for SpecError {}

/// The stage in which a sample failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Getting the encoded bytes.
    Read,
    /// Encoded bytes to an array.
    Decode,
    /// Array to array.
    Transform,
    /// Writing into the batch.
    Collate,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Stage::Read => "read",
            Stage::Decode => "decode",
            Stage::Transform => "transform",
            Stage::Collate => "collate",
        })
    }
}

/// One sample's failure, with its name.
#[derive(Debug, thiserror::Error)]
#[error("sample {index}{}: cannot {stage}: {fault}", place(path, *offset))]
#[non_exhaustive]
pub struct SampleError {
    /// The sample's number in its source.
    pub index: u64,
    /// Which of several mixed sources.
    pub source_number: usize,
    /// The file it lies in, if it lies in one.
    pub path: Option<PathBuf>,
    /// Where in that file the trouble is, or where the sample begins.
    pub offset: Option<u64>,
    /// Where it failed.
    pub stage: Stage,
    /// Why.
    #[source]
    pub fault: Fault,
}

impl SampleError {
    /// Sample `index` of the first source failed in `stage`.
    #[must_use]
    pub fn new(index: u64, stage: Stage, fault: Fault) -> SampleError {
        SampleError { index, source_number: 0, path: None, offset: None, stage, fault }
    }

    /// As plain data: a line of a quarantine file, an entry of a report.
    #[must_use]
    pub fn to_value(&self) -> serde_json::Value {
        use std::os::unix::ffi::OsStrExt;
        let mut value = serde_json::json!({
            "source": self.source_number,
            "index": self.index,
            "path": self.path.as_ref().map(|path| path.to_string_lossy()),
            "offset": self.offset,
            "stage": self.stage.to_string(),
            "reason": self.fault.to_string(),
        });
        // JSON has no place for other bytes, and the name must not be lost.
        if let Some(path) = self.path.as_ref().filter(|path| path.to_str().is_none()) {
            value["path_bytes"] = path.as_os_str().as_bytes().into();
        }
        value
    }
}

/// A file's name may hold what a terminal obeys.
fn printable(path: &std::path::Path) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    path.to_string_lossy().chars().map(escape).collect()
}

fn place(path: &Option<PathBuf>, offset: Option<u64>) -> String {
    match (path, offset) {
        (Some(path), Some(offset)) => format!(" ({} at byte {offset})", printable(path)),
        (Some(path), None) => format!(" ({})", printable(path)),
        (None, _) => String::new(),
    }
}

/// Why one sample failed, as its stage knows it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The operating system's reason.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The bytes are not what they claim to be.
    #[error("{format}: {reason}")]
    Corrupt {
        /// The format that was being decoded.
        format: &'static str,
        /// What is wrong.
        reason: String,
        /// Byte offset of the trouble inside the sample, where the decoder reports it.
        offset: Option<u64>,
    },
    /// Whole, but not something this build can decode.
    #[error("{0}")]
    Unsupported(String),
    /// A declared size beyond the limits; nothing was allocated for it.
    #[error("{0}")]
    TooLarge(String),
    /// The sample's shape does not fit the batch.
    #[error("{0}")]
    Shape(String),
    /// The code that handled the sample panicked.
    #[error("internal error: {0} (please report this with the file)")]
    Panic(String),
    /// The work was called off; never shown to a user.
    #[error("cancelled")]
    Cancelled,
}

impl Fault {
    /// Bytes that are not what they claim to be, at no known place.
    pub fn corrupt(format: &'static str, reason: impl Into<String>) -> Self {
        Fault::Corrupt { format, reason: reason.into(), offset: None }
    }
}
