//! Teams: which PEs, in which order. A team is computed (`start + rank * stride`) or an explicit list.

use core::fmt;
use core::marker::PhantomData;

use crate::{Pe, Rank, Sym, Tag, World};

/// A team as a kernel argument: its members, this PE's rank in it, the words it synchronizes on, and its multicast window.
#[repr(C)]
pub struct TeamView<G = World> {
    start: u32,
    stride: u32,
    size: u32,
    me: u32,
    members: Sym<u32>,
    sync: Sym<u64>,
    window: u32,
    tag: PhantomData<G>,
}

impl<G: Tag> TeamView<G> {
    /// The members `start + i * stride` for `i` below `size`, seen from its rank `me`, with its sync words.
    pub const fn strided(start: u32, stride: u32, size: u32, me: u32, sync: Sym<u64>) -> Self {
        Self { start, stride, size, me, members: Sym::empty(), sync, window: 0, tag: PhantomData }
    }

    /// The members listed in this PE's copy of `members`, seen from its rank `me`, with its sync words.
    pub const fn listed(members: Sym<u32>, me: u32, sync: Sym<u64>) -> Self {
        Self { start: 0, stride: 0, size: members.len() as u32, me, members, sync, window: 0, tag: PhantomData }
    }

    /// The same team with a multicast window that was made for it; 0 for none. Like an offset, a number that a context
    /// checks before it follows it.
    #[must_use]
    pub const fn with_window(self, window: u32) -> Self {
        Self { window, ..self }
    }

    /// The same team under the tag that fixed kernels take.
    pub const fn untagged(self) -> TeamView<World> {
        let Self { start, stride, size, me, members, sync, window, .. } = self;
        TeamView { start, stride, size, me, members, sync, window, tag: PhantomData }
    }

    /// How many members.
    #[inline(always)]
    pub const fn size(&self) -> usize {
        self.size as usize
    }

    /// This PE's index in the team.
    #[inline(always)]
    pub const fn me(&self) -> usize {
        self.me as usize
    }

    /// The list of members; empty where they are computed.
    #[inline(always)]
    pub const fn members(&self) -> Sym<u32> {
        self.members
    }

    /// The sync words.
    #[inline(always)]
    pub const fn sync(&self) -> Sym<u64> {
        self.sync
    }

    /// The multicast window, 0 for none.
    #[inline(always)]
    pub const fn window(&self) -> u32 {
        self.window
    }

    /// The member that this view is for, which is `pe`: it need not be looked up.
    #[doc(hidden)]
    #[inline(always)]
    pub const fn own(&self, pe: Pe) -> Rank<G> {
        Rank::new(self.me, pe)
    }

    /// The index of a PE in a computed team, `Some(None)` where it is no member; `None` where the members are listed.
    #[doc(hidden)]
    #[inline(always)]
    pub const fn index_of(&self, pe: Pe) -> Option<Option<usize>> {
        if !self.members.is_empty() {
            return None;
        }
        // A team of one may have any stride, and 0 divides nothing.
        let stride = if self.stride == 0 { 1 } else { self.stride };
        let far = pe.raw().wrapping_sub(self.start);
        let member = pe.raw() >= self.start && far.is_multiple_of(stride) && far / stride < self.size;
        Some(if member { Some((far / stride) as usize) } else { None })
    }

    /// Whether a world of so many PEs may have the team: it has members, not more than these, this PE is one, and all are among them
    /// where they are computed. What a list says is known where it is read.
    #[doc(hidden)]
    #[inline(always)]
    pub const fn fits(&self, npes: u32) -> bool {
        let others = self.size.wrapping_sub(1);
        let last = self.start as u64 + self.stride as u64 * others as u64;
        (others < npes) & (self.me < self.size) & (!self.members.is_empty() | (last < npes as u64))
    }

    /// Member `i`, which is below [`size`](Self::size); `listed(i)` reads the list where there is one.
    #[inline(always)]
    pub fn rank_with(&self, i: usize, listed: impl FnOnce(usize) -> u32) -> Rank<G> {
        let pe = if self.members.is_empty() { self.start + i as u32 * self.stride } else { listed(i) };
        Rank::new(i as u32, Pe::new(pe))
    }
}

impl<G> Clone for TeamView<G> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<G> Copy for TeamView<G> {}
impl<G> fmt::Debug for TeamView<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TeamView")
            .field("size", &self.size)
            .field("me", &self.me)
            .field("start", &self.start)
            .field("stride", &self.stride)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use members::{Members, TeamError};

#[cfg(not(target_arch = "nvptx64"))]
mod members {
    use std_alloc::vec::Vec;

    use crate::Pe;

    /// Which PEs a team has, in rank order: what the host computes before any memory is involved.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Members {
        /// `start + rank * stride`.
        Strided {
            /// The PE of rank 0.
            start: u32,
            /// The distance between neighbouring ranks, at least 1.
            stride: u32,
            /// How many members, at least 1.
            size: u32,
        },
        /// Any PEs, each once, in rank order.
        Listed(Vec<u32>),
    }

    /// Why there is no such team.
    #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
    #[non_exhaustive]
    pub enum TeamError {
        /// A team of nobody.
        #[error("a team needs at least one member; give a size of 1 or more")]
        Empty,
        /// A member that is not in the parent.
        #[error("member {member} is outside the parent team of {size}; members are 0..{size}")]
        OutOfRange {
            /// The member asked for.
            member: u64,
            /// How many the parent has.
            size: u32,
        },
        /// A member listed twice.
        #[error("member {member} is listed twice; each PE has one rank in a team")]
        Twice {
            /// The member.
            member: u32,
        },
        /// A stride of 0 with more than one member.
        #[error("a stride of 0 names the same PE {size} times; give a stride of 1 or more")]
        ZeroStride {
            /// How many members were asked for.
            size: u32,
        },
    }

    impl Members {
        /// All of `npes` PEs.
        pub const fn world(npes: u32) -> Self {
            Self::Strided { start: 0, stride: 1, size: npes }
        }

        /// The ranks `start + i * stride` of a parent of `parent` members.
        ///
        /// # Errors
        /// Where it is empty, has stride 0, or reaches past the parent.
        pub fn strided(parent: u32, start: u32, stride: u32, size: u32) -> Result<Self, TeamError> {
            if size == 0 {
                return Err(TeamError::Empty);
            }
            if stride == 0 && size > 1 {
                return Err(TeamError::ZeroStride { size });
            }
            let last = u64::from(start) + u64::from(stride) * u64::from(size - 1);
            if last >= u64::from(parent) {
                return Err(TeamError::OutOfRange { member: last, size: parent });
            }
            Ok(Self::Strided { start, stride: stride.max(1), size })
        }

        /// Exactly these ranks of a parent of `parent` members, in this order. A list that happens to be strided is
        /// stored as such.
        ///
        /// # Errors
        /// Where it is empty, names a member twice, or one that the parent lacks.
        pub fn listed(parent: u32, list: &[u32]) -> Result<Self, TeamError> {
            let mut sorted = list.to_vec();
            sorted.sort_unstable();
            let last = *sorted.last().ok_or(TeamError::Empty)?;
            if last >= parent {
                return Err(TeamError::OutOfRange { member: last.into(), size: parent });
            }
            if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(TeamError::Twice { member: pair[0] });
            }
            Ok(Self::from_distinct(list))
        }

        /// Splits `choices.len()` ranks by colour; within a colour, ranks are ordered by key, then by rank in the parent.
        /// `None` as a colour joins no team. Returns the team of rank `me`.
        ///
        /// The rule is MPI_Comm_split's.
        pub fn split(choices: &[Option<(u32, u32)>], me: usize) -> Option<Self> {
            let (colour, _) = choices.get(me).copied().flatten()?;
            let mut team: Vec<(u32, u32)> = choices
                .iter()
                .zip(0u32..)
                .filter_map(|(choice, rank)| choice.filter(|c| c.0 == colour).map(|(_, key)| (key, rank)))
                .collect();
            team.sort_unstable();
            let list: Vec<u32> = team.into_iter().map(|(_, rank)| rank).collect();
            Some(Self::from_distinct(&list))
        }

        /// How many members.
        pub fn size(&self) -> u32 {
            match self {
                Self::Strided { size, .. } => *size,
                Self::Listed(list) => list.len() as u32,
            }
        }

        /// The PE of a rank, or `None` where there is no such rank.
        pub fn pe(&self, rank: u32) -> Option<Pe> {
            match self {
                Self::Strided { start, stride, size } => (rank < *size).then(|| Pe::new(start + rank * stride)),
                Self::Listed(list) => list.get(rank as usize).copied().map(Pe::new),
            }
        }

        /// The rank of a PE, or `None` where it is not a member.
        pub fn rank_of(&self, pe: Pe) -> Option<u32> {
            (0..self.size()).find(|&rank| self.pe(rank) == Some(pe))
        }

        /// Every member, in rank order.
        pub fn pes(&self) -> impl Iterator<Item = Pe> + '_ {
            (0..self.size()).filter_map(|rank| self.pe(rank))
        }

        /// The same team with every member, a rank of `parent`, replaced by the PE that it is there.
        pub fn through(&self, parent: &Members) -> Option<Self> {
            let list: Option<Vec<u32>> = self.pes().map(|rank| parent.pe(rank.raw()).map(Pe::raw)).collect();
            Some(Self::from_distinct(&list?))
        }

        fn from_distinct(list: &[u32]) -> Self {
            let start = list[0];
            let stride = list.get(1).map_or(Some(1), |&second| second.checked_sub(start));
            let strided = stride.filter(|&stride| {
                stride > 0
                    && list
                        .iter()
                        .zip(0u32..)
                        .all(|(&pe, i)| u64::from(pe) == u64::from(start) + u64::from(i) * u64::from(stride))
            });
            match strided {
                Some(stride) => Self::Strided { start, stride, size: list.len() as u32 },
                None => Self::Listed(list.to_vec()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TeamView;
    use crate::{Sym, World};

    #[test]
    fn a_world_has_teams_of_its_own_pes_only() {
        let fits =
            |start, stride, size, me| TeamView::<World>::strided(start, stride, size, me, Sym::from_raw(0, 1)).fits(4);
        assert!(fits(0, 1, 4, 3) && fits(1, 2, 2, 0) && fits(3, 9, 1, 0));
        // None, too many, one past the last, and a member that the team lacks.
        assert!(!fits(0, 1, 0, 0) && !fits(0, 0, 5, 0) && !fits(1, 1, 4, 0) && !fits(0, 1, 2, 2));
    }
}
