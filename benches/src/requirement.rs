//! What our side must reach, beside whom.

use core::ops::RangeInclusive;

use crate::sample::Work;

/// A promise about one work: the other's time divided by ours is at least `ratio`.
#[derive(Debug, Clone)]
pub struct Requirement {
    /// The work.
    pub work: Work,
    /// At these sizes.
    pub bytes: RangeInclusive<u64>,
    /// Beside this peer.
    pub peer: &'static str,
    /// 1 is as fast, 2 is twice as fast.
    pub ratio: f64,
}

const MIB: u64 = 1 << 20;

/// All promises. A put of many bytes is a `memcpy` with order, so it may cost a tenth more; what Open MPI does, we do at
/// least as fast, and an all-reduce of many bytes, which reads and writes each buffer only once, a third faster.
pub const REQUIRED: &[Requirement] = &[
    Requirement { work: Work::PutValue, bytes: 8..=8, peer: "Open MPI OSHMEM", ratio: 1.0 },
    Requirement { work: Work::Put, bytes: 8..=8, peer: "Open MPI OSHMEM", ratio: 1.0 },
    Requirement { work: Work::Put, bytes: MIB / 16..=64 * MIB, peer: "memcpy", ratio: 0.9 },
    Requirement { work: Work::PutBoth, bytes: MIB / 16..=64 * MIB, peer: "memcpy", ratio: 0.9 },
    Requirement { work: Work::FetchAdd, bytes: 8..=8, peer: "Open MPI OSHMEM", ratio: 1.0 },
    Requirement { work: Work::SendRecv, bytes: 8..=8, peer: "Open MPI", ratio: 1.0 },
    Requirement { work: Work::Barrier, bytes: 0..=0, peer: "Open MPI", ratio: 1.0 },
    Requirement { work: Work::AllReduce, bytes: 4 * MIB..=64 * MIB, peer: "Open MPI", ratio: 1.3 },
];

/// The ratio that must be reached, if any is promised.
pub fn required(work: Work, bytes: u64, peer: &str) -> Option<f64> {
    let meant = |promise: &&Requirement| promise.work == work && promise.peer == peer && promise.bytes.contains(&bytes);
    REQUIRED.iter().find(meant).map(|promise| promise.ratio)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::peers;

    #[test]
    fn promises_name_peers_that_exist() {
        let peers = peers();
        assert!(REQUIRED.iter().all(|promise| peers.iter().any(|peer| peer.name() == promise.peer)));
        assert_eq!(required(Work::AllReduce, 4 * MIB, "Open MPI"), Some(1.3));
        assert_eq!(required(Work::AllReduce, 4 * MIB, "memcpy"), None);
    }
}
