//! What our side must reach, beside whom.

use core::ops::RangeInclusive;

use crate::peer::BEST_MPI;
use crate::proxied::LIBFABRIC;
use crate::roofline::ROOFLINE;
use crate::sample::{Case, Work};
use crate::tokens;

/// A promise about one work: the other's time divided by ours is at least `ratio`.
#[derive(Debug, Clone)]
pub struct Requirement {
    /// PEs of the job.
    pub pes: u32,
    /// The work.
    pub work: Work,
    /// At these sizes.
    pub bytes: RangeInclusive<u64>,
    /// Beside this peer.
    pub peer: &'static str,
    /// 1 is as fast, 2 is twice as fast.
    pub ratio: f64,
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const MPI: &str = "Open MPI";
const OSHMEM: &str = "Open MPI OSHMEM";

const fn two(work: Work, bytes: RangeInclusive<u64>, peer: &'static str, ratio: f64) -> Requirement {
    Requirement { pes: 2, work, bytes, peer, ratio }
}

const fn four(work: Work, bytes: RangeInclusive<u64>, peer: &'static str, ratio: f64) -> Requirement {
    Requirement { pes: 4, work, bytes, peer, ratio }
}

/// All promises. A put of many bytes is a `memcpy` with order, so it may cost a tenth more; what Open MPI does, we do at
/// least as fast. Collectives read inputs and write outputs once, where MPI copies to shared buffers between them, so that
/// they are several times as fast from some KiB on. Where PEs share cores, no less than MPI: waits must yield well.
pub const REQUIRED: &[Requirement] = &[
    two(Work::PutValue, 8..=8, OSHMEM, 1.0),
    two(Work::Put, 8..=8, OSHMEM, 1.0),
    two(Work::Put, 64 * KIB..=64 * MIB, "memcpy", 0.9),
    two(Work::PutBoth, 64 * KIB..=64 * MIB, "memcpy", 0.9),
    two(Work::FetchAdd, 8..=8, OSHMEM, 1.0),
    two(Work::Gups, MIB..=16 * MIB, "memcpy", 0.8),
    two(Work::Gups, MIB..=16 * MIB, OSHMEM, 1.5),
    two(Work::SendRecv, 8..=8, MPI, 1.0),
    two(Work::Barrier, 0..=0, MPI, 1.0),
    two(Work::AllReduce, 4..=KIB, MPI, 1.2),
    two(Work::AllReduce, 16 * KIB..=16 * KIB, MPI, 5.0),
    two(Work::AllReduce, 256 * KIB..=256 * KIB, MPI, 6.0),
    two(Work::AllReduce, 4 * MIB..=4 * MIB, MPI, 5.0),
    two(Work::AllReduce, 64 * MIB..=64 * MIB, MPI, 5.0),
    two(Work::AllReduce, 4 * MIB..=64 * MIB, ROOFLINE, 0.7),
    two(Work::Broadcast, KIB..=KIB, MPI, 1.0),
    two(Work::Broadcast, 64 * KIB..=4 * MIB, MPI, 2.0),
    two(Work::AllGather, KIB..=KIB, MPI, 1.0),
    two(Work::AllGather, 64 * KIB..=4 * MIB, MPI, 2.0),
    two(Work::ReduceScatter, KIB..=KIB, MPI, 1.0),
    two(Work::ReduceScatter, 64 * KIB..=4 * MIB, MPI, 2.0),
    two(Work::AllToAll, KIB..=KIB, MPI, 1.0),
    two(Work::AllToAll, 64 * KIB..=4 * MIB, MPI, 2.0),
    two(Work::AllReduce, 4..=64, BEST_MPI, 2.0),
    two(Work::AllReduce, KIB..=KIB, BEST_MPI, 2.0),
    two(Work::AllGather, KIB..=KIB, BEST_MPI, 2.0),
    two(Work::ReduceScatter, KIB..=KIB, BEST_MPI, 2.0),
    two(Work::AllToAll, KIB..=KIB, BEST_MPI, 2.0),
    two(Work::Broadcast, KIB..=KIB, BEST_MPI, 1.3),
    two(Work::AllReduce, 16 * KIB..=256 * KIB, BEST_MPI, 6.0),
    two(Work::Moe, tokens::BYTES..=tokens::BYTES, BEST_MPI, 2.0),
    two(Work::Moe, tokens::BYTES..=tokens::BYTES, ROOFLINE, 0.6),
    two(Work::Put, 8..=8, LIBFABRIC, 0.7),
    two(Work::Put, MIB..=MIB, LIBFABRIC, 0.9),
    two(Work::Tokens, 7 * KIB..=7 * KIB, LIBFABRIC, 0.83),
    four(Work::AllReduce, KIB..=MIB, MPI, 1.0),
    four(Work::AllReduce, KIB..=KIB, BEST_MPI, 1.0),
    four(Work::Broadcast, KIB..=KIB, BEST_MPI, 1.0),
    four(Work::AllGather, KIB..=KIB, BEST_MPI, 1.0),
    four(Work::ReduceScatter, KIB..=KIB, BEST_MPI, 1.0),
    four(Work::AllToAll, KIB..=KIB, BEST_MPI, 1.0),
    four(Work::Moe, tokens::BYTES..=tokens::BYTES, BEST_MPI, 2.0),
];

/// The ratio that must be reached, if any is promised.
pub fn required(case: Case, peer: &str) -> Option<f64> {
    let meant = |promise: &&Requirement| {
        (promise.pes, promise.work, promise.peer) == (case.pes, case.work, peer) && promise.bytes.contains(&case.bytes)
    };
    REQUIRED.iter().find(meant).map(|promise| promise.ratio)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::peers;

    #[test]
    fn promises_name_peers_that_exist() {
        let peers = peers();
        let exists =
            |name| [ROOFLINE, LIBFABRIC, BEST_MPI].contains(&name) || peers.iter().any(|peer| peer.name() == name);
        assert!(REQUIRED.iter().all(|promise| exists(promise.peer)));
    }

    #[test]
    fn a_promise_is_found_by_all_that_it_names() {
        let case = |pes, work, bytes| Case { pes, work, bytes };
        assert_eq!(required(case(2, Work::AllReduce, 4 * MIB), MPI), Some(5.0));
        assert_eq!(required(case(2, Work::AllReduce, 4 * MIB), ROOFLINE), Some(0.7));
        assert_eq!(required(case(2, Work::AllReduce, 4 * MIB), "memcpy"), None);
        assert_eq!(required(case(2, Work::AllReduce, 64 * KIB), MPI), None);
        assert_eq!(required(case(4, Work::AllReduce, KIB), MPI), Some(1.0));
        assert_eq!(required(case(4, Work::Broadcast, KIB), MPI), None);
        assert_eq!(required(case(2, Work::AllToAll, 4 * MIB), MPI), Some(2.0));
    }
}
