//! Exchanges of all with all in packets: what goes to each member, and what comes from each, lies at regular distances, so that
//! nothing is prepared for each of them, and a GPU's threads do their words from beginning to end (MSCCL++'s all-pairs all-reduce).

use core::ptr::with_exposed_provenance_mut;

use congruent_heap::abi::{self, NO_PE};
use congruent_heap::{Pe, Pod, Sym, TeamView, kernel_arg, refuse};

#[cfg(not(target_arch = "nvptx64"))]
use crate::arch::each;
use crate::arch::{self, Share};
use crate::group::share;
use crate::operand::{PACKETS, PLAIN, packed_words};
use crate::rma::check_same;
use crate::{Ctx, Group, Operand, Reducer};

/// As many elements for each member of a team: those of member `i` begin `i` steps behind the first's.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct PerMember<T> {
    first: Sym<T>,
    step: usize,
}

impl<T: Pod> PerMember<T> {
    /// With so many elements from one member's to the next one's.
    #[inline(always)]
    pub const fn new(first: Sym<T>, step: usize) -> Self {
        Self { first, step }
    }

    /// The same elements for all.
    #[inline(always)]
    pub const fn same(all: Sym<T>) -> Self {
        Self::new(all, 0)
    }

    /// Those of member `i`.
    #[inline(always)]
    pub const fn of(self, i: usize) -> Sym<T> {
        Sym::from_raw(self.first.offset() + (i * self.step * size_of::<T>()) as u64, self.first.len() as u64)
    }
}

kernel_arg! {
    /// What an exchange sends, and where it puts what comes, in bytes; and what is left for exchanges behind it. It is checked where it is
    /// used.
    #[doc(hidden)]
    #[derive(Debug)]
    pub struct Exchange {
        /// Where packets come in, at every member.
        pub(crate) inbox: u64,
        /// Bytes of each member's part of it.
        pub(crate) part: u32,
        pub(crate) flag: u32,
        pub(crate) dst: u64,
        pub(crate) dst_step: u64,
        pub(crate) src: u64,
        pub(crate) src_step: u64,
        /// Of data, to each.
        pub(crate) bytes: u64,
        left: u64,
    }
}

impl Exchange {
    /// Of nothing.
    pub const NONE: Self =
        Self { inbox: 0, part: 0, flag: 0, dst: 0, dst_step: 0, src: 0, src_step: 0, bytes: 0, left: 0 };

    /// Exchanges of what is for each member in `src`, of which [`next`](Self::next) begins the first.
    ///
    /// # Panics
    /// Where the lengths of `dst` and `src` differ.
    #[inline(always)]
    #[track_caller]
    pub fn new<T: Pod>(dst: PerMember<T>, src: PerMember<T>) -> Self {
        check_same(dst.first.len(), src.first.len());
        Self {
            dst: dst.first.offset(),
            dst_step: (dst.step * size_of::<T>()) as u64,
            src: src.first.offset(),
            src_step: (src.step * size_of::<T>()) as u64,
            left: src.first.bytes() as u64,
            ..Self::NONE
        }
    }

    /// Goes on to the next exchange, of at most so many bytes. They come in at the `inbox` of each member, in the part of the member that
    /// sent them, with this flag.
    #[inline(always)]
    pub fn next(&mut self, most: usize, inbox: PerMember<u8>, flag: u32) {
        (self.inbox, self.part, self.flag) = (inbox.first.offset(), inbox.first.len() as u32, flag);
        (self.dst, self.src) = (self.dst + self.bytes, self.src + self.bytes);
        self.bytes = self.left.min(most as u64);
        self.left -= self.bytes;
    }

    /// Where what comes from a member is stored.
    #[inline(always)]
    pub fn dst<T: Pod>(&self, from: usize) -> Sym<T> {
        Sym::from_raw(self.dst + self.dst_step * from as u64, self.bytes / size_of::<T>() as u64)
    }

    /// What is for a member.
    #[inline(always)]
    pub fn src<T: Pod>(&self, to: usize) -> Sym<T> {
        Sym::from_raw(self.src + self.src_step * to as u64, self.bytes / size_of::<T>() as u64)
    }

    /// Whether all members are sent the same.
    #[inline(always)]
    pub const fn sends_the_same(&self) -> bool {
        self.src_step == 0
    }

    /// How many bytes it sends to each member.
    #[inline(always)]
    pub const fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// How many are left behind it.
    #[inline(always)]
    pub const fn left(&self) -> usize {
        self.left as usize
    }
}

impl Ctx<'_> {
    /// Sends every other member of a team what is for it, and combines what comes from all, with this member's own, in rank order; or
    /// stores each where it belongs, by [`Keep`](crate::Keep). A destination may be the source, where both are for the same member or
    /// have one step. What is given is in memory that all threads see, the same for each.
    ///
    /// # Collective
    /// Over the team's groups that use the inbox: with other flags each time, and no words of an inbox that others still read.
    ///
    /// # Ordering
    /// As [`fold`](Ctx::fold): the group has met since its threads stored the source. On return it has met again.
    ///
    /// # Panics
    /// Where the inbox has too little room or is not aligned to 16 bytes, elements do not fill words, a source or destination is not
    /// aligned for its elements or ends within one, or a member is reached only through a proxy.
    #[doc(hidden)]
    #[inline(always)]
    #[track_caller]
    pub fn exchange_packets<T: Pod>(
        &self,
        group: &impl Group,
        team: &TeamView,
        exchange: &Exchange,
        op: impl Reducer<T>,
    ) {
        if const { !matches!(size_of::<T>(), 1 | 2 | 4 | 8) } {
            refuse!("elements that do not fill words are not packed");
        }
        let exchanged = Exchanged { ctx: self, group, team, exchange };
        arch::send(&exchanged);
        // SAFETY: what was sent lies inside the heaps, aligned for its form.
        let failed = unsafe { !op.receive(&exchanged) };
        self.join(group, failed);
    }
}

/// An exchange that a group does, of a team.
pub struct Exchanged<'x, B> {
    pub(crate) ctx: &'x Ctx<'x>,
    pub(crate) group: &'x B,
    pub(crate) team: &'x TeamView,
    pub(crate) exchange: &'x Exchange,
}

impl<B: Group> Exchanged<'_, B> {
    /// The calling thread's part.
    #[inline(always)]
    pub(crate) fn work(&self) -> Work<'_> {
        Work { ctx: self.ctx, share: share(self.group), team: self.team, exchange: self.exchange }
    }
}

/// A thread's part of an exchange: of every member's bytes the same words of 8, which nobody else looks at.
pub(crate) struct Work<'w> {
    pub(crate) ctx: &'w Ctx<'w>,
    pub(crate) share: Share,
    pub(crate) team: &'w TeamView,
    pub(crate) exchange: &'w Exchange,
}

impl Work<'_> {
    /// Refuses what does not lie in the heaps, or cannot be reached.
    #[inline(always)]
    #[cfg_attr(not(target_arch = "nvptx64"), track_caller)]
    pub(crate) fn check(&self) {
        let Exchange { inbox, part, dst, dst_step, src, src_step, bytes, .. } = *self.exchange;
        let abi::Context { heap_bytes, npes, routes, .. } = *self.ctx.abi();
        if !self.team.fits(npes) {
            refuse!("a rank names a PE that this world lacks: is it of another world?");
        }
        // Without branches. Nothing overflows: all heaps together have fewer than 2^62 bytes.
        let (part, others) = (u64::from(part), self.team.size() as u64 - 1);
        let is_outside = |first: u64, step: u64, bytes: u64| {
            let is_huge = (first > heap_bytes) | (step > heap_bytes) | (bytes > heap_bytes);
            is_huge | (first.wrapping_add(step.wrapping_mul(others)).wrapping_add(bytes) > heap_bytes)
        };
        if is_outside(inbox, part, part) | is_outside(dst, dst_step, bytes) | is_outside(src, src_step, bytes) {
            refuse!("a symmetric object reaches past the heap: is it of another world?");
        }
        if packed_words(bytes as usize, PACKETS) as u64 * 8 > part {
            refuse!("too few words for these bytes in packets or lines");
        }
        if (inbox | part) & 15 != 0 {
            refuse!("packets start on a multiple of 16 bytes, lines on one of their size");
        }
        if routes != 0 {
            let team = self.ctx.known_team(*self.team);
            if team.ranks().any(|rank| self.ctx.is_proxied(rank.pe())) {
                refuse!("folds work on peers that loads and stores reach; this one is reached through a proxy");
            }
        }
    }

    /// All other members, the next one first.
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<'_> {
        each(1..self.team.size()).map(|i| self.after(i))
    }

    /// The member so many ranks behind this one, which is less than all.
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    fn after(&self, i: usize) -> usize {
        let (rank, n) = (self.team.me() + i, self.team.size());
        if rank < n { rank } else { rank - n }
    }

    /// Where this PE has what lies at `offset`.
    #[inline(always)]
    pub(crate) fn own(&self, offset: u64) -> *mut u8 {
        with_exposed_provenance_mut(self.ctx.abi().address(self.ctx.pe(), offset) as usize)
    }

    /// The packets that this member sends to another.
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    pub(crate) fn sent(&self, to: usize) -> Operand {
        self.packets(self.ctx.known_team(*self.team).rank(to).pe(), self.team.me())
    }

    /// The packets that member `from` sends to a PE.
    #[inline(always)]
    pub(crate) fn packets(&self, to: Pe, from: usize) -> Operand {
        let Exchange { inbox, part, bytes, flag, .. } = *self.exchange;
        let offset = inbox + u64::from(part) * from as u64;
        let address = self.ctx.abi().address(to, offset);
        let sender = self.ctx.known_team(*self.team).rank(from).pe().raw();
        Operand { address, bytes: bytes as usize, offset, pe: to.raw(), sender, form: PACKETS, flag }
    }

    /// Where what comes from a member is stored; or what is combined, of whichever member.
    #[inline(always)]
    pub(crate) fn dst(&self, from: usize) -> Operand {
        self.plain(self.exchange.dst + self.exchange.dst_step * from as u64)
    }

    /// What is for a member.
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    pub(crate) fn src(&self, to: usize) -> Operand {
        self.plain(self.exchange.src + self.exchange.src_step * to as u64)
    }

    #[inline(always)]
    fn plain(&self, offset: u64) -> Operand {
        let (bytes, address) = (self.exchange.bytes as usize, self.own(offset) as u64);
        Operand { address, bytes, offset, pe: self.ctx.pe().raw(), sender: NO_PE, form: PLAIN, flag: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_goes_on_where_the_one_before_ended() {
        let (dst, src) = (Sym::<u16>::from_raw(64, 10), Sym::<u16>::from_raw(128, 10));
        let inbox = |offset| PerMember::new(Sym::<u8>::from_raw(offset, 32), 32);
        let mut exchange = Exchange::new(PerMember::new(dst, 10), PerMember::same(src));
        assert!(exchange.sends_the_same());
        let mut all = std::vec::Vec::new();
        while exchange.left() > 0 {
            exchange.next(8, inbox(256), 1);
            all.push((exchange.dst::<u16>(1), exchange.src::<u16>(1)));
        }
        let part = |at: u64, len| (Sym::from_raw(64 + 20 + at, len), Sym::from_raw(128 + at, len));
        assert_eq!(all, [part(0, 4), part(8, 4), part(16, 2)]);
    }
}
