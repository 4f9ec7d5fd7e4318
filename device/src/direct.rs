//! A peer's memory by load and store, where the machine reaches it so.

use congruent_heap::refuse;
use core::marker::PhantomData;

use congruent_heap::{Place, Pod, Rank};

use crate::{Ctx, access};

/// Memory that any thread loads from and stores to: a place of another PE ([`Ctx::direct`]), or what a launch was lent
/// ([`Relaxed`](crate::Relaxed)). All accesses are relaxed (MM-1), as those of [`Ctx::load`] are.
#[derive(Clone, Copy)]
pub struct Peer<'c, T> {
    first: *mut T,
    len: usize,
    ctx: PhantomData<&'c Ctx<'c>>,
}

impl Ctx<'_> {
    /// Whether loads and stores reach a member's heap; otherwise a proxy does.
    ///
    /// # Panics
    /// Where the rank is not of this world.
    #[inline(always)]
    #[track_caller]
    pub fn reaches<G>(&self, rank: Rank<G>) -> bool {
        self.check_pe(rank.pe());
        !self.is_proxied(rank.pe())
    }

    /// The place as memory to load from and store to, or `None` where the peer is reached through a proxy.
    ///
    /// # Panics
    /// Where the place is not of this world.
    #[inline(always)]
    #[track_caller]
    pub fn direct<T: Pod, G>(&self, place: Place<T, G>) -> Option<Peer<'_, T>> {
        let first = self.reach(place);
        (!self.is_proxied(place.pe())).then_some(Peer { first, len: place.len(), ctx: PhantomData })
    }
}

impl<T: Pod> Peer<'_, T> {
    /// # Safety
    /// So many elements are mapped there and aligned while this lives, and whoever accesses them meanwhile does so by relaxed
    /// accesses.
    #[inline(always)]
    pub(crate) const unsafe fn new(first: *mut T, len: usize) -> Self {
        Self { first, len, ctx: PhantomData }
    }

    /// How many elements.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element `i`, relaxed.
    ///
    /// # Panics
    /// Where `i` is out of bounds.
    #[inline(always)]
    #[track_caller]
    pub fn load(&self, i: usize) -> T {
        self.check(i);
        // SAFETY: `direct` checked the place, and `i` is inside.
        unsafe { access::load(self.first.add(i)) }
    }

    /// Stores element `i`, relaxed.
    ///
    /// # Panics
    /// Where `i` is out of bounds.
    #[inline(always)]
    #[track_caller]
    pub fn store(&self, i: usize, value: T) {
        self.check(i);
        // SAFETY: `direct` checked the place, and `i` is inside.
        unsafe { access::store(self.first.add(i), value) }
    }

    #[inline(always)]
    #[track_caller]
    fn check(&self, i: usize) {
        if i >= self.len {
            refuse!("index out of bounds of a peer's memory");
        }
    }
}
