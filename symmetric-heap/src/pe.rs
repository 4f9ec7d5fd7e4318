//! Who takes part: a [`Pe`] is an index in the world, a [`Rank`] is an index in a team. They are different types on
//! purpose, and ranks of different teams are different types too, so one cannot stand where the other is meant.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

/// A processing element: its index in the world, `0..npes`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pe(u32);

impl Pe {
    /// The PE with this index in the world.
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// Its index in the world.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its index as the ABI carries it.
    pub const fn raw(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Pe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PE {}", self.0)
    }
}

/// The name of a team at the type level. Make one with [`team_tag!`](crate::team_tag).
pub trait Tag: Copy + 'static {}

/// The tag of the team of all PEs.
#[derive(Clone, Copy, Debug)]
pub struct World;

/// The tag of the team of PEs that share this PE's host.
#[derive(Clone, Copy, Debug)]
pub struct Node;

impl Tag for World {}
impl Tag for Node {}

/// Declares a tag type, so that ranks of this team cannot be used with another.
///
/// ```
/// congruent_heap::team_tag! {
///     /// PEs that hold the same shard of the weights.
///     pub Tensor
/// }
/// fn takes_tag<G: congruent_heap::Tag>() {}
/// takes_tag::<Tensor>();
/// ```
#[macro_export]
macro_rules! team_tag {
    ($(#[$meta:meta])* $vis:vis $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        $vis struct $name;
        impl $crate::Tag for $name {}
    };
}

/// A member of a team `G`: its index there, and the PE it is.
///
/// Only a team makes ranks, so a rank always names a PE that exists.
#[repr(C)]
pub struct Rank<G = World> {
    index: u32,
    pe: Pe,
    team: PhantomData<G>,
}

impl<G> Rank<G> {
    #[doc(hidden)]
    pub const fn new(index: u32, pe: Pe) -> Self {
        Self { index, pe, team: PhantomData }
    }

    /// Its index in the team.
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// The PE it is.
    pub const fn pe(self) -> Pe {
        self.pe
    }
}

impl<G> Clone for Rank<G> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<G> Copy for Rank<G> {}
impl<G> PartialEq for Rank<G> {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index && self.pe == other.pe
    }
}
impl<G> Eq for Rank<G> {}
impl<G> Hash for Rank<G> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.index, self.pe).hash(state);
    }
}
impl<G> fmt::Debug for Rank<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ({})", self.index, self.pe)
    }
}
