//! Cores and memory that this process may use: the machine's, the affinity's, the cgroup's.

use std::fs;
use std::path::{Path, PathBuf};

/// Cores that this process may use: affinity and cgroup quota are respected (by std, for both
/// versions of cgroups).
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes that this process may still take: what the machine has to spare, or what its cgroup
/// leaves if that is less. `None` where neither can be read.
#[must_use]
pub fn memory_available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_in(&text));
    [machine, cgroup_left()].into_iter().flatten().min()
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn cgroup_left() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut left = None;
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, limit, usage) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
            c if c.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
            }
            _ => continue,
        };
        // A limit on any group above counts as well.
        let mut group: Option<PathBuf> = Some(Path::new(root).join(path.trim_start_matches('/')));
        while let Some(here) = group.filter(|here| here.starts_with(root)) {
            let number =
                |name: &str| fs::read_to_string(here.join(name)).ok()?.trim().parse::<u64>().ok();
            if let (Some(limit), Some(usage)) = (number(limit), number(usage)) {
                let here_left = limit.saturating_sub(usage);
                left = Some(left.map_or(here_left, |least: u64| least.min(here_left)));
            }
            group = here.parent().map(Path::to_owned);
        }
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_something() {
        assert!(cores() >= 1);
        assert!(memory_available().is_none_or(|bytes| bytes > 0));
        assert_eq!(available_in("MemTotal: 9 kB\nMemAvailable:    12 kB\n"), Some(12 * 1024));
        assert_eq!(available_in("nonsense"), None);
    }
}
