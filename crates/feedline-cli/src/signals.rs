//! Ctrl-C and SIGTERM, for commands that have something to put in order first.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{SigId, flag, low_level};

/// Watches for signals that ask the process to end. A second one ends it at once.
pub(crate) struct Signals {
    code: Arc<AtomicUsize>,
    registered: Vec<SigId>,
}

impl Signals {
    pub(crate) fn watch() -> Self {
        let code = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        let mut registered = Vec::new();
        for (signal, exit_code) in [(SIGINT, 130), (SIGTERM, 143)] {
            // In this order: the first signal finds the flag unset and only sets it. Where the
            // system refuses, the signal keeps ending the process.
            registered.extend(flag::register_conditional_shutdown(
                signal,
                exit_code,
                again.clone(),
            ));
            registered.extend(flag::register(signal, again.clone()));
            registered.extend(flag::register_usize(signal, code.clone(), exit_code as usize));
        }
        Signals { code, registered }
    }

    /// The exit code that the signal asks for, once there was one.
    pub(crate) fn received(&self) -> Option<i32> {
        received(&self.code)
    }
}

fn received(code: &AtomicUsize) -> Option<i32> {
    let code = code.load(Ordering::Relaxed);
    i32::try_from(code).ok().filter(|code| *code != 0)
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.registered.drain(..).for_each(|id| {
            low_level::unregister(id);
        });
    }
}

/// How often a wait is looked at: a signal is answered at once, as people see it.
const LOOK: Duration = Duration::from_millis(50);

/// What a process that ends itself exits with.
const FAILED: i32 = 1;

/// What is waited for.
struct Wait {
    /// In which part of the work, and how many batches it had by now.
    part: String,
    batches: u64,
    /// None while the data set is still being opened: importing it may take any time.
    since: Option<Instant>,
}

/// Looks after waits that nobody can call off, as they are inside of somebody's code: a signal is
/// answered while one lasts, and one that lasts too long ends the process.
pub(crate) struct Patience {
    wait: Arc<Mutex<Wait>>,
    /// Dropped, it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Patience {
    /// Until it is dropped. With `json` the error is reported on standard output, too.
    pub(crate) fn begin(signals: &Signals, timeout: Duration, json: bool) -> Self {
        let wait = Wait { part: String::new(), batches: 0, since: None };
        let wait = Arc::new(Mutex::new(wait));
        // The real one: what user code prints goes elsewhere.
        let stdout = match json {
            true => io::stdout().as_fd().try_clone_to_owned().ok().map(File::from),
            false => None,
        };
        let (stop, stopped) = channel::<()>();
        let (code, seen) = (signals.code.clone(), wait.clone());
        let look = move || {
            let mut reported = false;
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if !reported && received(&code).is_some() {
                    reported = true;
                    say("ending after this batch; again to end at once");
                }
                let wait = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if wait.since.is_some_and(|since| since.elapsed() > timeout) {
                    give_up(&wait, timeout, stdout.as_ref());
                }
            }
        };
        // Without the thread nobody looks after the waits, and everything else is as it was.
        let thread = std::thread::Builder::new().name("feedline-patience".to_owned()).spawn(look);
        Patience { wait, stop: Some(stop), thread: thread.ok() }
    }

    /// The data set is open: from now on batches are waited for.
    pub(crate) fn opened(&self) {
        self.wait.lock().unwrap_or_else(PoisonError::into_inner).since = Some(Instant::now());
    }

    /// Another part begins, or a batch of the same one came.
    pub(crate) fn heard(&self, part: &str) {
        let mut wait = self.wait.lock().unwrap_or_else(PoisonError::into_inner);
        match wait.part == part {
            true => wait.batches += 1,
            false => (wait.part, wait.batches) = (part.to_owned(), 0),
        }
        wait.since = Some(Instant::now());
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        self.stop = None;
        // It only looks: there is nothing that it could fail with.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// On standard error, on a line of its own behind a bar that may be there.
fn say(text: &str) {
    let mut stderr = io::stderr().lock();
    let line = if stderr.is_terminal() { "\n" } else { "" };
    // Nobody hears it where standard error is closed.
    let _ = writeln!(stderr, "{line}{text}");
}

/// Ends the process, at once: other threads are in the middle of something, and run on.
fn give_up(wait: &Wait, timeout: Duration, stdout: Option<&File>) {
    let seconds = timeout.as_secs_f64();
    let place = match wait.batches {
        0 if wait.part.is_empty() => "from the beginning".to_owned(),
        0 => format!("from the beginning of \"{}\"", wait.part),
        batches => format!("after {batches} of \"{}\"", wait.part),
    };
    let message = format!(
        "no batch for {seconds:.0} s, {place}: it hangs, or takes longer than --timeout allows"
    );
    say(&format!("error: {message}"));
    if let Some(mut stdout) = stdout {
        let error = json!({"kind": "other", "message": message, "exit_code": FAILED});
        // It is reported on standard error as well.
        let _ = writeln!(stdout, "{}", json!({ "error": error }));
    }
    low_level::exit(FAILED);
}
