//! Which algorithm and protocol exist for which collective, and for which teams.

use congruent_collectives::{Algorithm, Collective, Protocol};

use Algorithm::{Bruck, Direct, Multimem, OneShot, Recursive, Ring, Tree};
use Collective::{
    AllGather, AllGatherV, AllReduce, AllToAll, AllToAllV, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    SendRecv,
};
use Protocol::{Ll, Ll128, Simple};

/// An algorithm that exists for a collective.
#[derive(Clone, Copy, Debug)]
pub struct Supported {
    /// What it does.
    pub collective: Collective,
    /// Along which paths.
    pub algorithm: Algorithm,
    /// How data and signals may travel.
    pub protocols: &'static [Protocol],
    /// Whether members load from or store to each other's buffers themselves, so that the proxy cannot stand in.
    pub direct_only: bool,
    /// The sizes of teams.
    pub members: Members,
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

/// Everything that exists. A barrier is of one step or recursive by the team's size alone. Of two that are equally fast, the one that stands first is chosen.
pub const SUPPORT: &[Supported] = &[
    row(AllReduce, OneShot, &[Ll, Ll128]).direct_only(),
    row(AllReduce, Direct, &[Simple]).direct_only(),
    row(AllReduce, Ring, &[Simple, Ll, Ll128]),
    row(AllReduce, Tree, &[Simple, Ll, Ll128]),
    row(AllReduce, Recursive, &[Simple, Ll, Ll128]),
    row(AllReduce, Multimem, &[Simple]).direct_only(),
    row(ReduceScatter, OneShot, &[Ll, Ll128]).direct_only(),
    row(ReduceScatter, Direct, &[Simple]).direct_only(),
    row(ReduceScatter, Ring, &[Simple, Ll, Ll128]),
    row(ReduceScatter, Recursive, &[Simple, Ll, Ll128]),
    row(ReduceScatter, Multimem, &[Simple]).direct_only(),
    row(AllGather, OneShot, &[Ll, Ll128]).direct_only(),
    row(AllGather, Direct, &[Simple]),
    row(AllGather, Ring, &[Simple, Ll, Ll128]),
    row(AllGather, Recursive, &[Simple]),
    row(AllGather, Multimem, &[Simple]).direct_only(),
    row(Broadcast, Direct, &[Simple]),
    row(Broadcast, Ring, &[Simple, Ll, Ll128]),
    row(Broadcast, Tree, &[Simple, Ll, Ll128]),
    row(Broadcast, Multimem, &[Simple]).direct_only(),
    row(Reduce, Direct, &[Simple]).direct_only(),
    row(Reduce, Ring, &[Simple, Ll, Ll128]),
    row(Reduce, Tree, &[Simple, Ll, Ll128]),
    row(Gather, Direct, &[Simple]),
    row(Scatter, Direct, &[Simple]),
    row(AllToAll, OneShot, &[Ll, Ll128]).direct_only(),
    row(AllToAll, Direct, &[Simple]),
    row(AllToAll, Bruck, &[Simple, Ll, Ll128]),
    row(AllToAllV, Direct, &[Simple]),
    row(AllGatherV, Direct, &[Simple]),
    row(SendRecv, Direct, &[Simple]),
    row(Barrier, Direct, &[Simple]).of(Members::UpTo(8)),
    row(Barrier, Recursive, &[Simple]).of(Members::MoreThan(8)),
];

const fn row(collective: Collective, algorithm: Algorithm, protocols: &'static [Protocol]) -> Supported {
    Supported { collective, algorithm, protocols, direct_only: false, members: Members::Any }
}

impl Supported {
    const fn direct_only(self) -> Self {
        Self { direct_only: true, ..self }
    }

    const fn of(self, members: Members) -> Self {
        Self { members, ..self }
    }
}

/// What exists for a collective, in the order of the table.
pub(super) fn of(collective: Collective) -> impl Iterator<Item = (&'static Supported, Protocol)> {
    let rows = SUPPORT.iter().filter(move |row| row.collective == collective);
    rows.flat_map(|row| row.protocols.iter().map(move |&protocol| (row, protocol)))
}

/// The row of an algorithm of a collective, where it exists.
pub(super) fn find(collective: Collective, algorithm: Algorithm) -> Option<&'static Supported> {
    SUPPORT.iter().find(|row| row.collective == collective && row.algorithm == algorithm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_collective_has_a_way_that_nothing_forbids() {
        for &collective in Collective::ALL {
            for members in [1, 2, 8, 9, 64] {
                let always = |row: &Supported| {
                    row.collective == collective
                        && !row.direct_only
                        && row.members.includes(members)
                        && row.algorithm != Multimem
                        && row.protocols.contains(&Simple)
                };
                assert!(SUPPORT.iter().any(always), "{collective} of {members}");
            }
        }
    }

    #[test]
    fn no_algorithm_stands_twice_and_none_is_empty() {
        for (i, row) in SUPPORT.iter().enumerate() {
            let same = |other: &Supported| (other.collective, other.algorithm) == (row.collective, row.algorithm);
            assert!(!SUPPORT[..i].iter().any(same), "{} {}", row.collective, row.algorithm);
            assert!(!row.protocols.is_empty());
        }
        assert!(find(AllToAll, Bruck).is_some() && find(AllToAll, Ring).is_none());
        assert_eq!(of(AllReduce).count(), 13);
    }

    #[test]
    fn what_reads_a_multicast_address_or_sends_to_everybody_at_once_reaches_everybody() {
        for row in SUPPORT.iter().filter(|row| matches!(row.algorithm, Multimem | OneShot)) {
            assert!(row.direct_only, "{} {}", row.collective, row.algorithm);
        }
    }
}
