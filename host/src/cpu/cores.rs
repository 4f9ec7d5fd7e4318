//! The cores that PEs share.

use std::collections::BTreeSet;

use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

/// The cores that a PE may run on.
#[derive(Serialize, Deserialize)]
pub(crate) struct Cores {
    listed: BTreeSet<u32>,
    /// Fewer where a quota holds.
    usable: u32,
}

impl Cores {
    /// This PE's.
    pub(crate) fn detect() -> Self {
        let allowed = sched_getaffinity(None).ok();
        let listed = |set: CpuSet| (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32).collect();
        let usable = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        Self { listed: allowed.map(listed).unwrap_or_default(), usable }
    }

    /// How many cores the PEs of a host have together: as many as there are PEs, where a launcher binds each to one of its
    /// own.
    pub(crate) fn shared(all: &[Self]) -> u32 {
        let together: BTreeSet<u32> = all.iter().flat_map(|cores| cores.listed.iter().copied()).collect();
        let limited = all.iter().filter(|cores| (cores.usable as usize) < cores.listed.len());
        limited.map(|cores| cores.usable).min().unwrap_or(together.len() as u32).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_of_bound_pes_add_up_and_shared_ones_count_once() {
        let cores = |listed: &[u32], usable| Cores { listed: listed.iter().copied().collect(), usable };
        assert_eq!(Cores::shared(&[cores(&[0], 1), cores(&[1], 1)]), 2);
        assert_eq!(Cores::shared(&[cores(&[0, 1], 2), cores(&[0, 1], 2), cores(&[0, 1], 2)]), 2);
        // A quota of one core of eight.
        assert_eq!(Cores::shared(&[cores(&[0, 1, 2, 3, 4, 5, 6, 7], 1)]), 1);
        assert_eq!(Cores::shared(&[cores(&[], 1)]), 1);
        let here = Cores::detect();
        assert!(here.usable >= 1 && here.listed.len() >= here.usable as usize);
    }
}
