//! Exchanges of all with all in packets: what goes to each member, and what comes from each, lies at regular distances, so that
//! nothing is prepared for each of them, and each thread does its words from beginning to end (MSCCL++'s all-pairs all-reduce).

use core::iter::from_fn;
use core::ptr::with_exposed_provenance_mut;

use congruent_heap::abi::{self, NO_PE};
use congruent_heap::{Pe, Pod, Sym, TeamView, kernel_arg, refuse};

use crate::access::{load_up_to_8, low_high, store_packets, store_up_to_8};
use crate::arch::{self, Share, each};
use crate::bulk::Fold;
use crate::group::share;
use crate::operand::{Operands, PACKETS, PLAIN, operands, packed_words};
use crate::poll::Polled;
use crate::reduce::packs::PackOp;
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
        inbox: u64,
        /// Bytes of each member's part of it.
        part: u32,
        flag: u32,
        dst: u64,
        dst_step: u64,
        src: u64,
        src_step: u64,
        /// Of data, to each.
        bytes: u64,
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
        self.check_exchange(team, exchange);
        let exchanged = Exchanged { ctx: self, group, team, exchange };
        // SAFETY: all is inside the heaps, and aligned for its form.
        let failed = unsafe {
            arch::send(&exchanged);
            exchanged.tell();
            !op.receive(&exchanged)
        };
        self.join(group, failed);
    }

    outlined! {
        /// Refuses what does not lie in the heaps, or cannot be reached.
        fn check_exchange(&self, team: &TeamView, exchange: &Exchange) {
            let Exchange { inbox, part, dst, dst_step, src, src_step, bytes, .. } = *exchange;
            let abi::Context { heap_bytes, npes, .. } = *self.abi();
            if !team.fits(npes) {
                refuse!("a rank names a PE that this world lacks: is it of another world?");
            }
            // Without branches. Nothing overflows: all heaps together have fewer than 2^62 bytes.
            let (part, others) = (u64::from(part), team.size() as u64 - 1);
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
            if self.abi().routes != 0 {
                let team = self.known_team(*team);
                if team.ranks().any(|rank| self.is_proxied(rank.pe())) {
                    refuse!("folds work on peers that loads and stores reach; this one is reached through a proxy");
                }
            }
        }
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
    /// Tells who watches what went to other PEs, and wakes who sleeps on it.
    #[cfg(not(target_arch = "nvptx64"))]
    fn tell(&self) {
        let (ctx, own) = (self.ctx, self.ctx.pe());
        if !self.group.leader() || self.exchange.bytes == 0 {
            return;
        }
        let work = self.work();
        for i in work.others() {
            let packets = work.sent(i);
            ctx.moved_by(self.group, own.raw(), packets.pe, packets.extent());
            ctx.wake(Pe::new(packets.pe), packets.last_word());
        }
    }

    /// GPUs are not watched, and nobody sleeps there.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    fn tell(&self) {}

    /// A fold of as many bytes, of contributions of all members where there are so many sources.
    #[inline(always)]
    pub(crate) fn fold<D: Operands, S: Operands>(&self, dst: D, src: S) -> Fold<'_, B, D, S> {
        let (bytes, members) = (self.exchange.bytes as usize, self.team.size() as u32);
        Fold { ctx: self.ctx, group: self.group, dst, src, bytes, members }
    }

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
    /// All other members, the next one first.
    #[inline(always)]
    fn others(&self) -> impl Iterator<Item = usize> + use<'_> {
        each(1..self.team.size()).map(|i| self.after(i))
    }

    /// The member so many ranks behind this one, which is less than all.
    #[inline(always)]
    pub(crate) fn after(&self, i: usize) -> usize {
        let (rank, n) = (self.team.me() + i, self.team.size());
        if rank < n { rank } else { rank - n }
    }

    /// Where the thread's words begin, and how many bytes each has.
    #[inline(always)]
    fn words(&self) -> impl Iterator<Item = (usize, u32)> + use<> {
        let (Share { rank, size }, bytes) = (self.share, self.exchange.bytes as usize);
        let mut next = rank * 8;
        from_fn(move || {
            let at = next;
            next = at + size * 8;
            (at < bytes).then(|| (at, (bytes - at).min(8) as u32))
        })
    }

    /// Where this PE has what lies at `offset`.
    #[inline(always)]
    fn own(&self, offset: u64) -> *mut u8 {
        with_exposed_provenance_mut(self.ctx.abi().address(self.ctx.pe(), offset) as usize)
    }

    /// The packets that this member sends to another.
    #[cfg(not(target_arch = "nvptx64"))]
    pub(crate) fn sent(&self, to: usize) -> Operand {
        self.packets(self.ctx.known_team(*self.team).rank(to).pe(), self.team.me())
    }

    /// The packets that member `from` sends to a PE.
    #[inline(always)]
    fn packets(&self, to: Pe, from: usize) -> Operand {
        let Exchange { inbox, part, bytes, flag, .. } = *self.exchange;
        let offset = inbox + u64::from(part) * from as u64;
        let address = self.ctx.abi().address(to, offset);
        let sender = self.ctx.known_team(*self.team).rank(from).pe().raw();
        Operand { address, bytes: bytes as usize, offset, pe: to.raw(), sender, form: PACKETS, flag }
    }

    /// This member's own and the packets of all others, in rank order.
    #[inline(always)]
    pub(crate) fn sources(&self) -> impl Operands {
        let (own, me) = (self.ctx.pe(), self.team.me());
        operands(self.team.size(), move |i| if i == me { self.src(me) } else { self.packets(own, i) })
    }

    /// Where what comes from a member is stored; or what is combined, of whichever member.
    #[inline(always)]
    pub(crate) fn dst(&self, from: usize) -> Operand {
        self.plain(self.exchange.dst + self.exchange.dst_step * from as u64)
    }

    /// What is for a member.
    #[inline(always)]
    pub(crate) fn src(&self, to: usize) -> Operand {
        self.plain(self.exchange.src + self.exchange.src_step * to as u64)
    }

    #[inline(always)]
    fn plain(&self, offset: u64) -> Operand {
        let (bytes, address) = (self.exchange.bytes as usize, self.own(offset) as u64);
        Operand { address, bytes, offset, pe: self.ctx.pe().raw(), sender: NO_PE, form: PLAIN, flag: 0 }
    }

    /// Sends what is for others.
    ///
    /// # Safety
    /// What the exchange names lies in the heaps, aligned for its form, and so do the PEs of a team that is computed.
    #[inline(always)]
    pub(crate) unsafe fn send(&self) {
        // SAFETY: the caller's contract.
        unsafe {
            if self.team.members().is_empty() {
                self.send_to(|i| self.team.rank_with(i, |_| NO_PE).pe());
            } else {
                self.send_to(|i| {
                    let pe = self.ctx.known_team(*self.team).rank(i).pe();
                    self.ctx.check_pe(pe);
                    pe
                });
            }
        }
    }

    /// The same, to members whose PEs are told.
    ///
    /// # Safety
    /// As [`send`](Self::send); the PEs are there.
    #[inline(always)]
    unsafe fn send_to(&self, pe_of: impl Fn(usize) -> Pe) {
        let Exchange { inbox, part, src, src_step, flag, .. } = *self.exchange;
        // Read once: behind a store, the compiler reads memory again.
        let abi::Context { base, stride, .. } = *self.ctx.abi();
        let (from, to) = (self.own(src), inbox + u64::from(part) * self.team.me() as u64);
        for (at, n) in self.words() {
            // SAFETY: the caller's contract; `at` is inside.
            unsafe {
                let mut data = load_up_to_8(from.add(at), n, 1);
                for i in self.others() {
                    if src_step > 0 {
                        data = load_up_to_8(from.add(src_step as usize * i + at), n, 1);
                    }
                    let packets =
                        with_exposed_provenance_mut::<u8>((base + u64::from(pe_of(i).raw()) * stride + to) as usize);
                    store_packets(packets.add(2 * at), n, data, flag);
                }
            }
        }
    }

    /// Combines what comes from all with what is this member's own, or stores each where it belongs. False when a wait ended without
    /// what it was for; the reason is recorded.
    ///
    /// # Safety
    /// As [`send`](Self::send), which came before.
    #[cfg_attr(target_arch = "nvptx64", inline(always))]
    pub(crate) unsafe fn receive<P: PackOp>(&self, by: P) -> bool {
        let (n, me) = (self.team.size(), self.team.me());
        let Exchange { inbox, part, dst, dst_step, src, src_step, bytes, flag, .. } = *self.exchange;
        if (dst | dst_step | src | src_step | bytes) as usize & (by.multiple() - 1) != 0 {
            refuse!("bytes that are folded as a type are aligned for it and end with an element");
        }
        let inbox = self.own(inbox);
        // Computed where it is needed, so that no register of a GPU holds it through the loops.
        let src = || self.own(self.exchange.src + self.exchange.src_step * me as u64);
        let dst = |i: usize| self.own(self.exchange.dst + self.exchange.dst_step * i as u64);
        for (at, len) in self.words() {
            let packets = |i: usize| inbox.wrapping_add(part as usize * i + 2 * at);
            // SAFETY: the caller's contract; `at` is inside. Where one packet is all there is, the other word is not looked at, and
            // mapped, as pages are multiples of 16 bytes.
            unsafe {
                let own = load_up_to_8(src().add(at), len, P::UNIT);
                let (mut sums, mut first) = (by.none(), 0);
                while first < n {
                    // So many members at a time: what is missing of them is asked for again together.
                    let is_one = |k: usize| k < P::AHEAD && first + k < n;
                    let ask = |k: usize| if is_one(k) { arch::load_words(packets(first + k)) } else { [0; 2] };
                    let lacks = |k: usize, [low, high]: [u64; 2]| {
                        let differs = |word: u64| word as u32 != flag;
                        is_one(k) & (first + k != me) & (differs(low) | (len > 4) & differs(high))
                    };
                    let lack = |a, b, c, d| lacks(0, a) | lacks(1, b) | lacks(2, c) | lacks(3, d);
                    // Four variables and no array, which would be in memory.
                    let (mut a, mut b, mut c, mut d) = ([0; 2], [0; 2], [0; 2], [0; 2]);
                    let come = || {
                        (a, b, c, d) = (ask(0), ask(1), ask(2), ask(3));
                        !lack(a, b, c, d)
                    };
                    // One of those that still lack is named.
                    let late = |_| {
                        let late = first + each(0..P::AHEAD).find(|&k| lacks(k, ask(k))).unwrap_or(0);
                        (self.packets(self.ctx.pe(), late), arch::load_words(packets(late))[0])
                    };
                    if !self.ctx.all_packets(late, self.slept_on(first, packets(first)), come) {
                        return false;
                    }
                    let mut take = |k: usize, words: [u64; 2]| {
                        if !is_one(k) {
                            return;
                        }
                        let values = if first + k == me { own } else { words.map(|packet| (packet >> 32) as u32) };
                        if P::ONE {
                            store_up_to_8(dst(first + k).add(at), len, P::UNIT, values);
                        } else {
                            let is_first = k == 0 && first == 0;
                            sums = by.next(sums, filled(values, len, by.multiple()), is_first, false);
                        }
                    };
                    take(0, a);
                    take(1, b);
                    take(2, c);
                    take(3, d);
                    first = arch::opaque((first + P::AHEAD) as u64) as usize;
                }
                if !P::ONE {
                    store_up_to_8(dst(0).add(at), len, P::UNIT, by.last(sums, n as u32));
                }
            }
        }
        true
    }

    /// The word that a wait for packets sleeps on: the last one, of which the sender tells.
    #[cfg(not(target_arch = "nvptx64"))]
    #[inline(always)]
    fn slept_on(&self, member: usize, _from: *mut u8) -> Polled {
        self.packets(self.ctx.pe(), member).last_word()
    }

    /// GPUs do not sleep.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    fn slept_on(&self, _member: usize, from: *mut u8) -> Polled {
        // SAFETY: the packet's word, mapped and aligned.
        unsafe { Polled::new(from.cast()) }
    }
}

/// A word of which `n` bytes are data, and the others the first element again: what operators make of it is nobody's, and nothing
/// that they refuse.
#[inline(always)]
fn filled(values: [u32; 2], n: u32, element: usize) -> [u32; 2] {
    if n == 8 {
        return values;
    }
    let word = u64::from(values[0]) | u64::from(values[1]) << 32;
    let first = word & u64::MAX >> (64 - 8 * element);
    low_high((n as usize..8).step_by(element).fold(word, |word, at| word | first << (8 * at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_data_is_the_first_element_again() {
        assert_eq!(filled([0x0403_0201, 0x0807_0605], 8, 1), [0x0403_0201, 0x0807_0605]);
        assert_eq!(filled([0x0403_0201, 0x05], 5, 1), [0x0403_0201, 0x0101_0105]);
        assert_eq!(filled([0x0201, 0], 2, 2), [0x0201_0201, 0x0201_0201]);
        assert_eq!(filled([7, 0], 4, 4), [7, 7]);
    }

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
