//! Cores and memory that this process may use: the machine's, the affinity's, the cgroup's.

use std::fs;
use std::path::{Path, PathBuf};

/// What a loader gets at least when nothing is said, in bytes, and the least that is advised: room
/// for samples that are larger than those that were seen.
pub const LEAST_MEMORY: u64 = 256_000_000;

/// Cores that this process may use: affinity and cgroup quota are respected, for both versions of
/// cgroups.
#[must_use]
pub fn cores() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    Groups::of_this_process().map_or(allowed, |groups| groups.cores(allowed))
}

/// Bytes that this process may still take: what the machine has to spare, or what its cgroup
/// leaves if that is less. `None` where neither can be read.
#[must_use]
pub fn memory_available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_in(&text));
    let groups = Groups::of_this_process().and_then(|groups| groups.memory_left());
    [machine, groups].into_iter().flatten().min()
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The control groups of a process.
struct Groups {
    /// What the system says they are, as `/proc/self/cgroup` does.
    listing: String,
    /// Where their files are.
    root: PathBuf,
}

/// The names of a group's files.
struct Version {
    quota: &'static str,
    /// Where the quota's period is, if it is not beside the quota.
    period: Option<&'static str>,
    memory_limit: &'static str,
    memory_used: &'static str,
    /// The line of `memory.stat` for pages of files that are not in use: the system takes them
    /// back before anybody lacks memory.
    unused_files: &'static str,
}

const FIRST: Version = Version {
    quota: "cpu.cfs_quota_us",
    period: Some("cpu.cfs_period_us"),
    memory_limit: "memory.limit_in_bytes",
    memory_used: "memory.usage_in_bytes",
    unused_files: "total_inactive_file",
};

const SECOND: Version = Version {
    quota: "cpu.max",
    period: None,
    memory_limit: "memory.max",
    memory_used: "memory.current",
    unused_files: "inactive_file",
};

impl Groups {
    fn of_this_process() -> Option<Groups> {
        let listing = fs::read_to_string("/proc/self/cgroup").ok()?;
        Some(Groups { listing, root: PathBuf::from("/sys/fs/cgroup") })
    }

    /// The folders of the groups that a controller limits: a limit on any group above counts as
    /// well.
    fn folders(&self, controller: &str) -> Vec<(PathBuf, Version)> {
        let mut all = Vec::new();
        for line in self.listing.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let second = controllers.is_empty();
            if !second && controllers.split(',').all(|name| name != controller) {
                continue;
            }
            let root = if second { self.root.clone() } else { self.root.join(controller) };
            // In a container the path may be the host's: what is above it is still there.
            let own = root.join(path.trim_start_matches('/'));
            let up = own.ancestors().take_while(|folder| folder.starts_with(&root));
            all.extend(up.map(|folder| (folder.to_owned(), if second { SECOND } else { FIRST })));
        }
        all
    }

    /// Of so many cores, those that the quotas leave; parts of a core do not count, but one does.
    fn cores(&self, allowed: usize) -> usize {
        let quota = |(folder, version): (PathBuf, Version)| {
            let quota = fs::read_to_string(folder.join(version.quota)).ok()?;
            let mut words = quota.split_whitespace();
            let quota = words.next()?.parse::<u64>().ok()?;
            let period = match version.period {
                Some(name) => number(&folder.join(name))?,
                None => words.next()?.parse().ok()?,
            };
            usize::try_from(quota.checked_div(period)?).ok()
        };
        let quotas = self.folders("cpu").into_iter().filter_map(quota);
        quotas.min().map_or(allowed, |least| allowed.min(least.max(1)))
    }

    /// Bytes that the groups leave; `None` if there is no limit.
    fn memory_left(&self) -> Option<u64> {
        let left = |(folder, version): (PathBuf, Version)| {
            let limit = number(&folder.join(version.memory_limit))?;
            let used = number(&folder.join(version.memory_used))?;
            let unused = unused_files(&folder.join("memory.stat"), version.unused_files);
            Some(limit.saturating_sub(used.saturating_sub(unused)))
        };
        self.folders("memory").into_iter().filter_map(left).min()
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn unused_files(path: &Path, name: &str) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
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

    /// Groups whose files are made up.
    fn groups(name: &str, listing: &str, files: &[(&str, &str)]) -> Groups {
        let root = std::env::temp_dir().join(format!("feedline-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Groups { listing: listing.to_owned(), root }
    }

    impl Drop for Groups {
        fn drop(&mut self) {
            if self.root.starts_with(std::env::temp_dir()) {
                let _ = fs::remove_dir_all(&self.root);
            }
        }
    }

    #[test]
    fn a_quota_leaves_fewer_cores() {
        let of = |name: &str, files: &[(&str, &str)]| groups(name, "0::/jobs/7\n", files).cores(16);
        assert_eq!(of("q0", &[("jobs/7/cpu.max", "400000 100000\n")]), 4);
        assert_eq!(of("q1", &[("jobs/7/cpu.max", "350000 100000\n")]), 3);
        assert_eq!(of("q2", &[("jobs/7/cpu.max", "50000 100000\n")]), 1, "less than one is one");
        assert_eq!(of("q3", &[("jobs/7/cpu.max", "max 100000\n")]), 16);
        assert_eq!(of("q4", &[("jobs/7/cpu.max", "9900000 100000\n")]), 16, "no more than allowed");
        // Those above count, whether or not the lowest is there.
        let above = [("jobs/7/cpu.max", "max 100000\n"), ("jobs/cpu.max", "200000 100000\n")];
        assert_eq!(of("q5", &above), 2);
        assert_eq!(of("q6", &[("cpu.max", "300000 100000\n")]), 3);
        assert_eq!(of("q7", &[("other/cpu.max", "100000 100000\n")]), 16, "somebody else's");
        assert_eq!(of("q8", &[("jobs/7/cpu.max", "100000 0\n")]), 16);
        assert_eq!(of("q9", &[("jobs/7/cpu.max", "")]), 16);
        let old = |quota: &str| {
            let files =
                [("cpu/a/cpu.cfs_quota_us", quota), ("cpu/a/cpu.cfs_period_us", "100000\n")];
            groups(&format!("q{}", quota.trim()), "4:cpu,cpuacct:/a\n0::/\nodd\n", &files).cores(16)
        };
        assert_eq!((old("250000\n"), old("-1\n")), (2, 16));
    }

    #[test]
    fn files_that_were_read_take_no_memory_from_anybody() {
        let stat = "anon 100\ninactive_file 600\nactive_file 50\n";
        let files = [
            ("a/memory.max", "1000\n"),
            ("a/memory.current", "900\n"),
            ("a/memory.stat", stat),
            ("memory.max", "max\n"),
        ];
        assert_eq!(groups("m0", "0::/a\n", &files).memory_left(), Some(700));
        assert_eq!(groups("m1", "0::/a\n", &files[..2]).memory_left(), Some(100), "no statistics");
        assert_eq!(groups("m2", "0::/\n", &files).memory_left(), None, "no limit");
        let full = [files[0], ("a/memory.current", "1400\n"), ("a/memory.stat", "anon 1\n")];
        assert_eq!(groups("m3", "0::/a\n", &full).memory_left(), Some(0));
        // The least of all groups above.
        let above = [&files[..3], &[("memory.max", "800\n"), ("memory.current", "500\n")]].concat();
        assert_eq!(groups("m4", "0::/a\n", &above).memory_left(), Some(300));
        let old = [
            ("memory/b/memory.limit_in_bytes", "1000\n"),
            ("memory/b/memory.usage_in_bytes", "900\n"),
            ("memory/b/memory.stat", "inactive_file 1\ntotal_inactive_file 200\n"),
        ];
        assert_eq!(groups("m5", "3:memory:/b\n", &old).memory_left(), Some(300));
    }
}
