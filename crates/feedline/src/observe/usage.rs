//! What the process and its children use, and how busy the machine is, as the system reports.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Processor time and memory of a process and all that it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Seconds of processor time, children included.
    pub cpu_seconds: f64,
    /// Bytes in memory: all that the process has there, and what each of its descendants has for
    /// itself alone. Files and shared memory that only descendants have are not counted.
    pub memory: u64,
    /// Processes.
    pub processes: u64,
}

/// Ticks a second of the times in /proc, the same on every Linux that Rust runs on.
const TICKS: f64 = 100.0;

impl Usage {
    /// Of this process.
    #[must_use]
    pub fn now() -> Usage {
        Usage::of(std::process::id())
    }

    /// Of the process `id` and its descendants. Zero where the system does not report it. What is read
    /// does not grow with the number of other processes, nor with the memory of these.
    #[must_use]
    pub fn of(id: u32) -> Usage {
        let mut usage = Usage::default();
        let mut family = Family::of(id);
        let mut left = vec![(id, None)];
        while let Some((process, parent)) = left.pop() {
            let Some(stat) = Stat::of(process) else { continue };
            usage.processes += 1;
            usage.cpu_seconds += stat.ticks as f64 / TICKS;
            usage.memory += match parent {
                None => Resident::of(process).all,
                Some(stack) => own_memory(process, &stat, stat.is_fork_of(stack)),
            };
            left.extend(
                family.children(process).into_iter().map(|child| (child, Some(stat.stack))),
            );
        }
        usage
    }
}

struct Stat {
    parent: u32,
    /// User and system time, with that of children that have ended.
    ticks: u64,
    /// When it began, which distinguishes two processes with the same number.
    began: u64,
    /// Where its stack begins: by chance with every program that is started, and the same in a
    /// child that was forked and runs on. 0 where that is not known.
    stack: u64,
}

impl Stat {
    fn of(process: u32) -> Option<Stat> {
        let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name in parentheses may hold anything.
        let rest = text.rsplit_once(')')?.1;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let ticks = (11..15).map(|at| number(at).unwrap_or(0)).sum();
        let (began, stack) = (number(19).unwrap_or(0), number(25).unwrap_or(0));
        Some(Stat { parent: u32::try_from(number(1)?).ok()?, ticks, began, stack })
    }

    /// Whether it runs on with the memory of a parent whose stack begins at `stack`.
    fn is_fork_of(&self, stack: u64) -> bool {
        self.stack > 1 && self.stack == stack
    }
}

/// Who is whose child.
enum Family {
    /// Each process lists its children.
    Asked,
    /// From a look at all processes.
    Listed(HashMap<u32, Vec<u32>>),
}

impl Family {
    fn of(process: u32) -> Family {
        let lists_children =
            fs::metadata(format!("/proc/{process}/task/{process}/children")).is_ok();
        if lists_children { Family::Asked } else { Family::Listed(parents()) }
    }

    fn children(&mut self, process: u32) -> Vec<u32> {
        match self {
            Family::Listed(children) => children.remove(&process).unwrap_or_default(),
            Family::Asked => {
                let tasks = fs::read_dir(format!("/proc/{process}/task"));
                let texts = tasks
                    .into_iter()
                    .flatten()
                    .flatten()
                    .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
                texts
                    .flat_map(|text| {
                        let ids = text.split_whitespace().filter_map(|id| id.parse().ok());
                        ids.collect::<Vec<u32>>()
                    })
                    .collect()
            }
        }
    }
}

/// The children of every process.
fn parents() -> HashMap<u32, Vec<u32>> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(stat) = Stat::of(id) {
            children.entry(stat.parent).or_default().push(id);
        }
    }
    children
}

/// The number of bytes in a line of a file in /proc, such as `VmRSS:   12 kB`.
fn bytes_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Bytes of a process in memory, from counters that the system keeps anyway.
struct Resident {
    all: u64,
    /// Without files and shared memory.
    anonymous: u64,
}

impl Resident {
    fn of(process: u32) -> Resident {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let all = bytes_of(&status, "VmRSS").unwrap_or(0);
        Resident { all, anonymous: bytes_of(&status, "RssAnon").unwrap_or(all) }
    }
}

/// What a forked child was found to share with others.
#[derive(Clone, Copy)]
struct Looked {
    began: u64,
    /// When to look again.
    due: Instant,
    shared: u64,
}

/// Forked children by their numbers.
static LOOKED: Mutex<BTreeMap<u32, Looked>> = Mutex::new(BTreeMap::new());

/// So many are remembered.
const MOST_LOOKED: usize = 4096;

/// Such a look is not repeated sooner, nor before it has cost less than a thousandth of the time:
/// the system walks through all the memory of the process.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Bytes that a child has for itself. One that was forked and runs on has its parent's memory too,
/// page by page until either writes there; how much of it is left is looked at now and then.
fn own_memory(process: u32, stat: &Stat, forked: bool) -> u64 {
    let anonymous = Resident::of(process).anonymous;
    if !forked {
        return anonymous;
    }
    let now = Instant::now();
    let known = LOOKED.try_lock().ok().and_then(|looked| looked.get(&process).copied());
    if let Some(known) = known.filter(|known| known.began == stat.began && now < known.due) {
        return anonymous.saturating_sub(known.shared);
    }
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap_or_default();
    let Some(own) = bytes_of(&text, "Private_Dirty") else { return anonymous };
    let shared = anonymous.saturating_sub(own);
    let due = Instant::now() + LOOK_AGAIN.max(now.elapsed() * 1000);
    if let Ok(mut looked) = LOOKED.try_lock() {
        if looked.len() >= MOST_LOOKED {
            looked.clear();
        }
        looked.insert(process, Looked { began: stat.began, due, shared });
    }
    anonymous.saturating_sub(shared)
}

/// The most memory that this process has had since this was begun, without its children. The system
/// keeps it, so that nothing is missed between two looks.
#[derive(Debug)]
pub(crate) struct PeakMemory {
    /// The mark was taken back: what it says is of the time since.
    fresh: bool,
}

impl PeakMemory {
    /// Takes the system's mark back to what the process has now.
    #[must_use]
    pub(crate) fn begin() -> PeakMemory {
        // 5 is the mark of the most memory; some systems refuse, and then nothing is known.
        PeakMemory { fresh: fs::write("/proc/self/clear_refs", "5").is_ok() }
    }

    /// Bytes; nothing where the system does not report it.
    #[must_use]
    pub(crate) fn most(&self) -> Option<u64> {
        let status = fs::read_to_string("/proc/self/status").ok().filter(|_| self.fresh)?;
        bytes_of(&status, "VmHWM")
    }
}

/// Seconds that all cores of the machine were busy, and stood idle (waiting for a disk is idle),
/// since it started. Differences of two readings show how busy it was.
#[must_use]
pub(crate) fn machine_busy() -> Option<(f64, f64)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<f64> =
        line.split_whitespace().filter_map(|time| time.parse::<f64>().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest times are part of user and nice.
    let idle = times.get(3)? + times.get(4)?;
    let all: f64 = times.iter().take(8).sum();
    Some(((all - idle) / TICKS, idle / TICKS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_of_much_memory_is_not_missed() {
        // Other tests take the mark back, too: one look of a few is not disturbed.
        let seen = |_| {
            let peak = PeakMemory::begin();
            let before = peak.most()?;
            drop(std::hint::black_box(vec![1_u8; 200 << 20]));
            let after = peak.most()?;
            // It is the mark of this one alone.
            let again = PeakMemory::begin().most()?;
            Some((before, after, again))
        };
        let looks: Vec<_> = (0..8).map_while(seen).collect();
        let held = |(before, after, again): &(u64, u64, u64)| {
            *after > before + (100 << 20) && again + (100 << 20) < *after
        };
        assert!(looks.is_empty() || looks.iter().any(held), "{looks:?}");
    }

    #[test]
    fn this_process_and_its_children_use_something() {
        let alone = Usage::now();
        assert!(alone.memory > 100_000 && alone.processes >= 1, "{alone:?}");
        let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
        let both = Usage::now();
        let child_id = child.id();
        let found = Family::Asked.children(std::process::id()).contains(&child_id);
        let listed = parents().remove(&std::process::id()).unwrap_or_default();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(both.processes > 1, "{both:?}");
        assert!(found && listed.contains(&child_id), "both ways find it: {found} {listed:?}");
        assert_eq!(Usage::of(u32::MAX), Usage::default());
        assert_eq!(bytes_of("VmRSSx: 1 kB\nVmRSS:\t  12 kB\n", "VmRSS"), Some(12 * 1024));
        let (busy, idle) = machine_busy().unwrap();
        assert!(busy > 0.0 && idle >= 0.0);
    }
}
