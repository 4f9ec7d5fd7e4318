//! An algorithm of a collective, described: which calls it can do, what they cost and what they move.
//!
//! A descriptor stands in the file of its algorithm. What chooses, prices, forecasts and launches reads descriptors and knows no
//! algorithm.

use core::ops::Add;

use crate::schedule::Schedule;
use crate::{Algorithm, Collective, Protocol};
use crate::{agree, bruck, direct, exchange, multimem, one_shot, recursive, ring, send_recv, tree, two_level};

/// An algorithm of a collective. Made by [`new`](Descriptor::new), for the most usual one, and changed field by field.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// What it does.
    pub collective: Collective,
    /// Along which paths.
    pub algorithm: Algorithm,
    /// How data and signals may travel.
    pub protocols: &'static [Protocol],
    /// The sizes of teams.
    pub members: Members,
    /// Whether members load from or store to each other's buffers themselves, so that the proxy cannot stand in.
    pub direct_only: bool,
    /// Whether it uses multicast addresses, and has the switch reduce what it reduces. What it moves costs as they do.
    pub multicast: bool,
    /// Whether each member combines its own contribution itself, so that members may multiply by scalars of their own.
    pub own_scalars: bool,
    /// Whether its steps cost what those through the plan's queues cost, in the simple protocol.
    pub queued: bool,
    /// Whether it is for teams on several hosts, with as many members on each, two or more, whose ranks are those of one host after the
    /// other. It has no kernel: its calls are calls of the teams of each host, and of those between hosts.
    pub levels: bool,
    /// What a member does in a call of two members or more, one after the other.
    pub work: fn(&Sizes) -> Work,
    /// Writes down what a member moves. `None` where only the call's lists say it, or where data goes to a switch and not from one
    /// member to another.
    pub moves: Option<fn(&mut Schedule<'_>)>,
}

impl Descriptor {
    /// All of the library's own. Of two that are equally fast, the one that stands first is chosen.
    pub const ALL: &'static [&'static Self] = &[
        &one_shot::ALL_REDUCE,
        &direct::ALL_REDUCE,
        &ring::ALL_REDUCE,
        &tree::ALL_REDUCE,
        &recursive::ALL_REDUCE,
        &multimem::ALL_REDUCE,
        &two_level::ALL_REDUCE,
        &one_shot::REDUCE_SCATTER,
        &direct::REDUCE_SCATTER,
        &ring::REDUCE_SCATTER,
        &recursive::REDUCE_SCATTER,
        &multimem::REDUCE_SCATTER,
        &two_level::REDUCE_SCATTER,
        &one_shot::ALL_GATHER,
        &direct::ALL_GATHER,
        &ring::ALL_GATHER,
        &recursive::ALL_GATHER,
        &multimem::ALL_GATHER,
        &two_level::ALL_GATHER,
        &direct::BROADCAST,
        &ring::BROADCAST,
        &tree::BROADCAST,
        &multimem::BROADCAST,
        &direct::REDUCE,
        &ring::REDUCE,
        &tree::REDUCE,
        &direct::GATHER,
        &direct::SCATTER,
        &one_shot::ALL_TO_ALL,
        &direct::ALL_TO_ALL,
        &bruck::ALL_TO_ALL,
        &two_level::ALL_TO_ALL,
        &exchange::ALL_TO_ALL_V,
        &exchange::ALL_GATHER_V,
        &send_recv::SEND_RECV,
        &agree::BARRIER_IN_ONE_ROUND,
        &agree::BARRIER,
    ];

    /// For teams of any size, by puts, and told without its moves.
    pub const fn new(
        collective: Collective,
        algorithm: Algorithm,
        protocols: &'static [Protocol],
        work: fn(&Sizes) -> Work,
    ) -> Self {
        Self {
            collective,
            algorithm,
            protocols,
            members: Members::Any,
            direct_only: false,
            multicast: false,
            own_scalars: false,
            queued: false,
            levels: false,
            work,
            moves: None,
        }
    }

    /// The same, of which members load from or store to each other's buffers themselves.
    pub const fn direct_only(self) -> Self {
        Self { direct_only: true, ..self }
    }

    /// The same, with a schedule of its moves.
    pub const fn scheduled(self, moves: fn(&mut Schedule<'_>)) -> Self {
        Self { moves: Some(moves), ..self }
    }

    /// The library's own algorithm of a collective, where it exists.
    pub fn of(collective: Collective, algorithm: Algorithm) -> Option<&'static Self> {
        Self::ALL.iter().copied().find(|one| (one.collective, one.algorithm) == (collective, algorithm))
    }
}

/// The sizes of teams that an algorithm is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    /// All.
    Any,
    /// Up to this many.
    UpTo(usize),
    /// More than this many.
    MoreThan(usize),
}

impl Members {
    /// Whether a team of so many is of these sizes.
    pub const fn includes(self, members: usize) -> bool {
        match self {
            Self::Any => true,
            Self::UpTo(most) => members <= most,
            Self::MoreThan(few) => members > few,
        }
    }
}

/// A call, as far as its cost depends on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Members of the team, two or more.
    pub members: usize,
    /// The same.
    pub n: f64,
    /// Steps until one member has reached all: the logarithm of the members, rounded up.
    pub log_n: f64,
    /// Bytes of the longer of the two buffers: one part for each member where members have parts.
    pub bytes: f64,
    /// Bytes of all parts but one.
    pub others: f64,
    /// Bytes that all blocks send in one slot each of a queue, or all there are: what travels at once where chunk follows chunk.
    pub chunk: f64,
    /// How many chunks there are.
    pub chunks: f64,
    /// Whether links between members are the limit, and not the cores that copy.
    pub over_links: bool,
    /// On how many hosts the members are, as many on each. One where that is not so.
    pub hosts: f64,
    /// Steps until one host has reached all.
    pub log_hosts: f64,
}

impl Sizes {
    /// Of so many members and bytes, in chunks of so many bytes.
    pub const fn new(members: usize, bytes: u64, chunk: u64, over_links: bool) -> Self {
        let (n, log_n) = (members as f64, members.next_power_of_two().ilog2() as f64);
        let chunk = if chunk < bytes { chunk } else { bytes };
        let chunks = if chunk > 0 { bytes.div_ceil(chunk) } else { 0 };
        let others = (n - 1.0) / n * bytes as f64;
        let (bytes, chunk, chunks) = (bytes as f64, chunk as f64, chunks as f64);
        Self { members, n, log_n, bytes, others, chunk, chunks, over_links, hosts: 1.0, log_hosts: 0.0 }
    }

    /// The same on so many hosts.
    pub const fn on(self, hosts: usize) -> Self {
        Self { hosts: hosts as f64, log_hosts: hosts.next_power_of_two().ilog2() as f64, ..self }
    }

    /// Members of each host.
    pub const fn on_host(&self) -> f64 {
        self.n / self.hosts
    }
}

/// What a member does one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Steps: a message goes, and is awaited.
    pub hops: f64,
    /// Messages in a step beyond its first.
    pub posts: f64,
    /// Bytes that move.
    pub moved: f64,
    /// Bytes that are combined, where that is not done while they move.
    pub reduced: f64,
    /// Launches beyond the first.
    pub launches: f64,
}

impl Work {
    /// None.
    pub const NONE: Self = Self { hops: 0.0, posts: 0.0, moved: 0.0, reduced: 0.0, launches: 0.0 };

    /// Between two barriers, each of them a message to every other member.
    pub const fn between_barriers(call: &Sizes, moved: f64) -> Self {
        Self { hops: 2.0, posts: 2.0 * (call.n - 2.0), moved, ..Self::NONE }
    }
}

impl Add for Work {
    type Output = Self;

    /// One after the other.
    fn add(self, other: Self) -> Self {
        Self {
            hops: self.hops + other.hops,
            posts: self.posts + other.posts,
            moved: self.moved + other.moved,
            reduced: self.reduced + other.reduced,
            launches: self.launches + other.launches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operation;
    use std::string::ToString;

    #[test]
    fn every_collective_has_an_algorithm_that_nothing_forbids() {
        for &collective in Collective::ALL {
            for members in [1, 2, 8, 9, 64] {
                let always = |one: &&Descriptor| {
                    one.collective == collective
                        && !one.direct_only
                        && !one.multicast
                        && !one.levels
                        && one.members.includes(members)
                        && one.protocols.contains(&Protocol::Simple)
                };
                assert!(Descriptor::ALL.iter().copied().any(|one| always(&one)), "{collective} of {members}");
            }
        }
    }

    #[test]
    fn no_algorithm_stands_twice_and_none_is_empty() {
        for (i, one) in Descriptor::ALL.iter().enumerate() {
            let same = |other: &&Descriptor| (other.collective, other.algorithm) == (one.collective, one.algorithm);
            assert!(!Descriptor::ALL[..i].iter().any(same), "{} {}", one.collective, one.algorithm);
            assert!(!one.protocols.is_empty() && Algorithm::ALL.contains(&one.algorithm));
        }
        assert!(Descriptor::of(Collective::AllToAll, Algorithm::BRUCK).is_some());
        assert!(Descriptor::of(Collective::AllToAll, Algorithm::RING).is_none());
    }

    #[test]
    fn what_reads_a_multicast_address_or_sends_packets_only_reaches_everybody() {
        for one in Descriptor::ALL {
            let must = one.multicast || !one.protocols.contains(&Protocol::Simple);
            assert!(one.direct_only || !must, "{} {}", one.collective, one.algorithm);
        }
    }

    #[test]
    fn faults_name_each_of_them() {
        let has_kernel = |one: &&&Descriptor| one.collective != Collective::Barrier && !one.levels;
        for one in Descriptor::ALL.iter().filter(has_kernel) {
            let name = std::format!("{} {}", one.collective, one.algorithm);
            assert!(Operation::ALL.iter().any(|operation| operation.to_string() == name), "{name}");
        }
    }
}
