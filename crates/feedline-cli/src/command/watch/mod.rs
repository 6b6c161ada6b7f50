//! `feedline watch`: looks at a running process, second by second.

mod screen;
mod view;

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use feedline::Error;
use feedline::internals::spec::{show_percent, show_time};
use feedline_view::live::{self, LoaderNow, Peer, Seen, Snapshot};
use serde_json::json;

use crate::output::{Failure, Outcome, Output};
use crate::signals::Signals;
use crate::terminal::{Table, show_count};

use self::view::{queue, used_of};

const EXAMPLES: &str = "\
Examples:
  feedline watch                     the only running process, or a list of them
  feedline watch 12345               the process with this number
  feedline watch --web 12345         open its page and print the address
  feedline watch 12345 --json        a JSON object a second
  feedline watch 12345 --json --once | jq .loaders[0].verdict.sentence

What can be watched: processes of yours on this machine that use feedline.Loader, \
feedline.torch.DataLoader or `feedline run`, from their first batch on. Nothing has to be switched \
on for it. While somebody looks, a thread of the process takes its figures once a second. Worker \
processes are not listed: what they do shows in the process that they work for. FEEDLINE_WATCH=0 in \
a process's environment forbids it; FEEDLINE_WATCH=/a/path keeps the sockets in that folder, which \
must be yours alone. The watcher ends with the process. On a terminal: q ends, Tab shows the next \
loader. Elsewhere it prints a line a second. The address of a page will do in place \
of the number, but `ps` shows its token to all users of the machine.";

/// Look at a running training process.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Watch {
    /// The number of a process, or the address of its dashboard; the only one by default.
    #[arg(value_name = "PID|URL")]
    target: Option<String>,

    /// Open the process's page for a browser, and print its address.
    #[arg(long, conflicts_with = "once")]
    web: bool,

    /// Show the figures once, and end.
    #[arg(long)]
    once: bool,
}

/// Where figures come from.
#[derive(Clone)]
enum WatchTarget {
    Process(Peer),
    Page(String),
}

impl WatchTarget {
    fn look(&self) -> Seen {
        match self {
            WatchTarget::Process(peer) => peer.look(),
            WatchTarget::Page(address) => live::fetch(address),
        }
    }

    fn name(&self) -> String {
        match self {
            WatchTarget::Process(peer) => format!("process {}", peer.pid),
            WatchTarget::Page(address) => address.clone(),
        }
    }
}

const EVERY: Duration = Duration::from_secs(1);

/// How often a key and a signal are looked for.
const BLINK: Duration = Duration::from_millis(50);

impl Watch {
    pub(crate) fn run(self, output: &mut Output) -> Result<Outcome, Failure> {
        let signals = Signals::watch();
        let place = match self.target.as_deref() {
            Some(target) => find(target)?,
            None => match live::peers().as_slice() {
                [] => return Err(failed(format!("{NOBODY}; looked in {}", places()))),
                [only] => WatchTarget::Process(only.clone()),
                several => return list(several, output),
            },
        };
        if self.web {
            return web(&place, output);
        }
        // The first look says at once whether there is anything to see.
        let first = match place.look() {
            Seen::Snapshot(snapshot) => snapshot,
            Seen::Silent(error) => return Err(failed(format!("{}: {error}", place.name()))),
            Seen::Ended => return Err(failed(nobody_at(&place))),
        };
        if self.once {
            line(&first, output)?;
            return Ok(Outcome::Success);
        }
        let looks = follow(place.clone(), first.session.clone());
        let ended = if output.is_json() || !output.terminal().has_screen() {
            line(&first, output)?;
            lines(&looks, &signals, output)?
        } else {
            let colour = output.terminal().has_colour();
            screen::show(*first, &looks, &signals, colour).map_err(Failure::Output)?
        };
        if ended {
            output.note(&format!("{} has ended", place.name()));
        }
        Ok(signals.received().map_or(Outcome::Success, Outcome::Interrupted))
    }
}

const NOBODY: &str = "no process of yours that loads data with feedline was found: it can be watched from its first batch on, by the same user on the same machine, unless FEEDLINE_WATCH=0 forbids it";

/// For a place where nobody is. A process that was found a moment ago was there.
fn nobody_at(place: &WatchTarget) -> String {
    match place {
        WatchTarget::Process(_) => format!("{} has ended", place.name()),
        WatchTarget::Page(address) => format!(
            "nobody answers at {address}: the process may have ended, or the address is another one's"
        ),
    }
}

/// The folders that were searched.
fn places() -> String {
    let folders = live::searched();
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn failed(message: String) -> Failure {
    Failure::Library(Error::System(message))
}

fn find(target: &str) -> Result<WatchTarget, Failure> {
    if target.contains("://") {
        return Ok(WatchTarget::Page(target.to_owned()));
    }
    let pid: u32 = target.parse().map_err(|_| {
        Failure::Usage(format!(
            "{target:?} is neither the number of a process nor the address of a dashboard; `feedline watch` alone lists what runs"
        ))
    })?;
    let found = live::peers().into_iter().find(|peer| peer.pid == pid);
    found.map(WatchTarget::Process).ok_or_else(|| {
        failed(format!(
            "process {pid} cannot be watched: it must be yours, on this machine, and have made a batch with feedline, without FEEDLINE_WATCH=0; looked in {}",
            places()
        ))
    })
}

fn web(place: &WatchTarget, output: &mut Output) -> Result<Outcome, Failure> {
    let address = match place {
        WatchTarget::Page(address) => address.clone(),
        WatchTarget::Process(peer) => {
            peer.dashboard().map_err(|error| failed(format!("process {}: {error}", peer.pid)))?
        }
    };
    if output.is_json() {
        output.json(&json!({"command": "watch", "url": address}))?;
    } else {
        output.line(&address)?;
    }
    Ok(Outcome::Success)
}

/// Several processes: which are there?
fn list(peers: &[Peer], output: &mut Output) -> Result<Outcome, Failure> {
    let seen: Vec<(u32, Option<Box<Snapshot>>)> = peers
        .iter()
        .map(|peer| match peer.look() {
            Seen::Snapshot(snapshot) => (peer.pid, Some(snapshot)),
            Seen::Silent(_) | Seen::Ended => (peer.pid, None),
        })
        .collect();
    if output.is_json() {
        let processes: Vec<_> = seen.iter().filter_map(|(_, snapshot)| snapshot.as_ref()).collect();
        output.json(&json!({"command": "watch", "processes": processes}))?;
        return Ok(Outcome::Success);
    }
    let mut table = Table::new(["program", "process", "loaders", "samples/s", "waited"]);
    for (pid, snapshot) in &seen {
        let Some(snapshot) = snapshot else {
            table.row([
                "does not answer".into(),
                pid.to_string(),
                "-".into(),
                "-".into(),
                "-".into(),
            ]);
            continue;
        };
        let rate: f64 = snapshot.loaders.iter().map(|loader| loader.samples_per_second).sum();
        let waited =
            snapshot.loaders.iter().filter_map(|loader| loader.wait_share).reduce(f64::max);
        table.row([
            snapshot.program.clone(),
            pid.to_string(),
            snapshot.loaders.len().to_string(),
            show_count(rate.round() as u64),
            waited.map_or_else(|| "-".to_owned(), show_percent),
        ]);
    }
    output.table(&table)?;
    output.line("")?;
    output.text("feedline watch PROCESS shows one of them", 0)?;
    Ok(Outcome::Success)
}

/// Looks once a second, on a thread of its own: a process that is stopped answers late or never,
/// and the keyboard must not wait for it.
fn follow(place: WatchTarget, session: String) -> Receiver<Seen> {
    let (sender, receiver) = sync_channel(1);
    thread::spawn(move || {
        let mut next = Instant::now() + EVERY;
        loop {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            next = (next + EVERY).max(Instant::now());
            let seen = place.look().after(&session);
            let over = matches!(seen, Seen::Ended);
            if sender.send(seen).is_err() || over {
                return;
            }
        }
    });
    receiver
}

/// A line a second, until the process ends (true) or a signal comes.
fn lines(looks: &Receiver<Seen>, signals: &Signals, output: &mut Output) -> Result<bool, Failure> {
    let mut silent = false;
    while signals.received().is_none() {
        match looks.recv_timeout(BLINK) {
            Ok(Seen::Snapshot(snapshot)) => {
                silent = false;
                line(&snapshot, output)?;
            }
            Ok(Seen::Silent(_)) if !silent => {
                silent = true;
                output.note("the process does not answer; waiting for it");
            }
            Ok(Seen::Silent(_)) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Seen::Ended) | Err(RecvTimeoutError::Disconnected) => return Ok(true),
        }
    }
    Ok(false)
}

fn line(snapshot: &Snapshot, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        let mut value = json!({"command": "watch"});
        let seen = serde_json::to_value(snapshot).map_err(|error| Failure::Output(error.into()))?;
        if let (Some(value), serde_json::Value::Object(seen)) = (value.as_object_mut(), seen) {
            value.extend(seen);
        }
        output.json_line(&value)?;
    } else if snapshot.loaders.is_empty() {
        output.line("no loader is open")?;
    }
    if !output.is_json() {
        for loader in &snapshot.loaders {
            let name = if snapshot.loaders.len() > 1 {
                format!("{}: ", loader.name)
            } else {
                String::new()
            };
            output.text(&format!("{name}{}", in_words(loader)), 4)?;
        }
        if snapshot.hidden > 0 {
            output.text(&format!("{} more loaders, used longer ago", snapshot.hidden), 4)?;
        }
    }
    output.flush()
}

/// A loader in a line.
fn in_words(loader: &LoaderNow) -> String {
    let mut words = vec![
        format!("{} samples/s", show_count(loader.samples_per_second.round() as u64)),
        format!("waited {}", loader.wait_share.map_or_else(|| "-".to_owned(), show_percent)),
    ];
    let waiting = loader.waiting_seconds.filter(|seconds| *seconds >= 1.0);
    words.extend(waiting.map(|seconds| format!("waiting for {}", show_time(seconds))));
    words.extend(loader.queue.map(|found| format!("queue {}", queue(found))));
    words.extend(loader.memory.map(|memory| format!("memory {}", used_of(memory))));
    if loader.failed > 0 {
        words.push(format!("{} quarantined", show_count(loader.failed)));
    }
    words.extend(loader.verdict.as_ref().map(|verdict| format!("limit: {}", verdict.limit)));
    words.join("  ")
}
