//! Starts a process for a job, waits for its answer, and ends it whatever happens.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::job::{Answer, Job};
use crate::host::Host;
use crate::signals::Signals;

/// How long a read waits before signals and deadlines are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long a process that has answered may take to end.
const PARTING: Duration = Duration::from_secs(5);
/// What is kept of what a process printed, to be shown when it fails.
const LAST_WORDS: usize = 2000;
/// A longer answer is no answer.
const MOST_BYTES: usize = 256 << 20;

/// Why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A signal came; its exit code.
    Interrupted(i32),
    /// It failed; why.
    Failed(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Trouble::Failed(format!("cannot run a process of its own: {error}"))
    }
}

/// What all jobs share.
pub(crate) struct Surroundings<'a> {
    pub(crate) host: &'a dyn Host,
    pub(crate) signals: &'a Signals,
    /// A process that says nothing for so long is ended.
    pub(crate) timeout: Duration,
    /// Let processes print to standard error.
    pub(crate) show_output: bool,
}

/// A process that is ended when this goes.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Surroundings<'_> {
    /// Has a process do `job` and returns its last answer; `heard` gets those before.
    pub(crate) fn ask(
        &self,
        target: &OsStr,
        job: &Job,
        heard: &mut dyn FnMut(&Answer),
    ) -> Result<Answer, Trouble> {
        self.hear(target, job, heard).map_err(|trouble| match self.signals.received() {
            // A terminal's Ctrl-C ends the process too, and its end may be seen first.
            Some(code) => Trouble::Interrupted(code),
            None => trouble,
        })
    }

    fn hear(
        &self,
        target: &OsStr,
        job: &Job,
        heard: &mut dyn FnMut(&Answer),
    ) -> Result<Answer, Trouble> {
        let (mut ours, theirs) = UnixStream::pair()?;
        let (mut child, words) = self.start(target, theirs)?;
        let mut text = serde_json::to_string(job).map_err(io::Error::from)?;
        text.push('\n');
        ours.set_read_timeout(Some(LOOK))?;
        // A process that ended already is noticed below, with its last words.
        let _ = ours.write_all(text.as_bytes());
        let mut last = Instant::now();
        let mut lines = Lines::default();
        loop {
            if let Some(code) = self.signals.received() {
                return Err(Trouble::Interrupted(code));
            }
            let more = lines.read(&mut ours)?;
            while let Some(answer) = lines.next() {
                last = Instant::now();
                match answer {
                    Answer::Opened | Answer::Progress(..) => heard(&answer),
                    Answer::Failed(reason) => return Err(Trouble::Failed(reason)),
                    answer => {
                        part(&mut child);
                        return Ok(answer);
                    }
                }
            }
            let ended = match more {
                More::Came => None,
                More::Later => child.0.try_wait()?.map(|status| status.to_string()),
                More::Never => Some(child.0.wait()?.to_string()),
            };
            if let Some(status) = ended {
                // Its end and its last answer may have crossed.
                if matches!(lines.read(&mut ours)?, More::Came) {
                    continue;
                }
                let words = words.text();
                return Err(Trouble::Failed(format!("its process ended ({status}){words}")));
            }
            if last.elapsed() > self.timeout {
                let seconds = self.timeout.as_secs_f64();
                return Err(Trouble::Failed(format!(
                    "no batch for {seconds:.0} s, so it was ended (--timeout raises that){}",
                    words.text()
                )));
            }
        }
    }

    fn start(&self, target: &OsStr, theirs: UnixStream) -> Result<(Running, LastWords), Trouble> {
        let line = self.host.command();
        let mut command = Command::new(line.first().map_or(OsStr::new("feedline"), AsRef::as_ref));
        command.args(line.iter().skip(1)).args(["measure", "--"]).arg(target);
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        let (reader, writer) = io::pipe()?;
        if self.show_output {
            // What is printed is no result: it goes where remarks go.
            command.stdout(Stdio::from(io::stderr().try_clone_fd()?));
        } else {
            command.stdout(writer.try_clone()?).stderr(writer);
        }
        let child = Running(command.spawn()?);
        Ok((child, LastWords::of(reader)))
    }
}

/// Standard error as a stream for another process.
trait CloneFd {
    fn try_clone_fd(&self) -> io::Result<OwnedFd>;
}

impl CloneFd for io::Stderr {
    fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        use std::os::fd::AsFd;
        self.as_fd().try_clone_to_owned()
    }
}

/// Lets a process that has answered end by itself, within reason.
fn part(child: &mut Running) {
    let deadline = Instant::now() + PARTING;
    while Instant::now() < deadline && matches!(child.0.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

enum More {
    Came,
    Later,
    Never,
}

/// Answers out of the bytes that come.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// So many of them hold no end of a line.
    looked_at: usize,
}

impl Lines {
    fn read(&mut self, from: &mut UnixStream) -> io::Result<More> {
        let mut room = [0; 64 << 10];
        match from.read(&mut room) {
            Ok(0) => Ok(More::Never),
            Ok(_) if self.bytes.len() > MOST_BYTES => {
                Err(io::Error::new(ErrorKind::InvalidData, "its answer is too long"))
            }
            Ok(count) => {
                self.bytes.extend_from_slice(&room[..count]);
                Ok(More::Came)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {
                    Ok(More::Later)
                }
                ErrorKind::ConnectionReset => Ok(More::Never),
                _ => Err(error),
            },
        }
    }

    /// The next answer; lines that are none are passed over.
    fn next(&mut self) -> Option<Answer> {
        loop {
            let end = self.bytes[self.looked_at..].iter().position(|byte| *byte == b'\n');
            let Some(end) = end.map(|end| end + self.looked_at) else {
                self.looked_at = self.bytes.len();
                return None;
            };
            let answer = serde_json::from_slice(&self.bytes[..end]).ok();
            self.bytes.drain(..=end);
            self.looked_at = 0;
            if answer.is_some() {
                return answer;
            }
        }
    }
}

/// The end of what a process printed.
struct LastWords(Arc<Mutex<VecDeque<u8>>>);

impl LastWords {
    fn of(mut reader: PipeReader) -> LastWords {
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let theirs = kept.clone();
        let follow = move || {
            let mut room = [0; 4096];
            loop {
                let count = match reader.read(&mut room) {
                    Ok(count @ 1..) => count,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Ok(0) | Err(_) => break,
                };
                let mut kept = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend(&room[..count]);
                let surplus = kept.len().saturating_sub(LAST_WORDS);
                kept.drain(..surplus);
            }
        };
        // It ends when the last process that can print does. Without it the words are lost.
        let _ = std::thread::Builder::new().name("feedline-words".to_owned()).spawn(follow);
        LastWords(kept)
    }

    /// For the end of a message; nothing if nothing was printed.
    fn text(&self) -> String {
        // What was printed last may still be on its way through the pipe.
        std::thread::sleep(LOOK);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(kept.make_contiguous()).trim().to_owned();
        if text.is_empty() { text } else { format!("; it printed last: {text}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_among_other_lines() {
        let mut lines = Lines::default();
        let progress = serde_json::to_string(&Answer::Progress(3, 0.5)).unwrap();
        lines
            .bytes
            .extend_from_slice(format!("hello\n\n{progress}\n{}", &progress[..4]).as_bytes());
        assert_eq!(lines.next(), Some(Answer::Progress(3, 0.5)));
        assert_eq!(lines.next(), None);
        lines.bytes.extend_from_slice(format!("{}\n", &progress[4..]).as_bytes());
        assert_eq!(lines.next(), Some(Answer::Progress(3, 0.5)));
        assert_eq!(lines.next(), None);
    }
}
