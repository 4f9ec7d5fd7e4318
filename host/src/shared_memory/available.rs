//! How much memory this process may still take: what the system has, and what the limits of its control groups leave.

use std::fs;
use std::path::{Path, PathBuf};

/// In bytes; unknown where the system does not tell.
pub(super) fn bytes() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_system(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    system.into_iter().chain(groups.lines().filter_map(of_line)).min()
}

fn of_system(meminfo: &str) -> Option<u64> {
    let kilobytes = |name| field(meminfo, name).map(|kilobytes| kilobytes.saturating_mul(1024));
    Some(kilobytes("MemAvailable:")?.saturating_add(kilobytes("SwapFree:").unwrap_or(0)))
}

/// A line is `id:controllers:path`; in the unified hierarchy there are no controllers named.
fn of_line(line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (root, limit, usage) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
        named if named.split(',').any(|controller| controller == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
        }
        _ => return None,
    };
    let group = PathBuf::from(root).join(path.trim_start_matches('/'));
    let number = |folder: &Path, file| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    let room = |folder: &Path| {
        let cached = fs::read_to_string(folder.join("memory.stat")).ok().and_then(|stat| field(&stat, "inactive_file"));
        let used = number(folder, usage)?.saturating_sub(cached.unwrap_or(0));
        Some(number(folder, limit)?.saturating_sub(used))
    };
    group.ancestors().take_while(|folder| folder.starts_with(root)).filter_map(room).min()
}

/// The number after `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_may_take_something() {
        assert!(bytes().is_none_or(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn free_swap_counts_and_nonsense_does_not() {
        let text = "MemTotal: 9 kB\nMemAvailable:   100 kB\nSwapFree: 20 kB\n";
        assert_eq!(of_system(text), Some(120 * 1024));
        assert_eq!(of_system("MemAvailable: lots"), None);
        assert_eq!(of_line("7:cpu,cpuacct:/"), None);
        assert_eq!(of_line("nonsense"), None);
    }
}
