//! Exchanges in packets on the GPU. Blocks call functions that take what all threads see in memory; a group that is less than a block has
//! its loops where it is.

use core::iter::from_fn;
use core::ptr::with_exposed_provenance_mut;

use congruent_heap::abi;
use congruent_heap::{Pod, TeamView, refuse};

use super::fold::stateless;
use super::words::{filled, load_up_to_8, store_up_to_8};
use super::{block_share, fold_reduction, load_words, opaque_word, store_words};
use crate::arch::{Share, each};
use crate::bulk::Fold;
use crate::exchange::{Exchange, Exchanged, Work};
use crate::operand::{Operands, operands};
use crate::poll::Polled;
use crate::reduce::packs::{Move, PackOp, Typed};
use crate::{Ctx, Group, ReduceOp, Reduction};

impl Work<'_> {
    /// Where the thread's words begin, and how many bytes each has: a part of an inbox, which has room for them, is counted in 32 bits.
    #[inline(always)]
    fn words(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let (Share { rank, size }, bytes) = (self.share, self.exchange.bytes as u32);
        let (mut next, step) = (rank as u32 * 8, size as u32 * 8);
        from_fn(move || {
            let at = next;
            next = at + step;
            (at < bytes).then(|| (at, (bytes - at).min(8)))
        })
    }

    /// The packets of all members, in rank order.
    #[inline(always)]
    fn sources(&self) -> impl Operands {
        let own = self.ctx.pe();
        operands(self.team.size(), move |i| self.packets(own, i))
    }

    /// Looks at what the exchange names, and sends what is for each member, this one too, so that all that comes is packets. The thread that
    /// looks for these has stored them before, at the same addresses, so it finds no older ones (PTX ISA, 8.10.5). Every word is
    /// two packets, whether it has data for both or not.
    #[inline(always)]
    fn send(&self) {
        self.check();
        let Exchange { inbox, part, src, src_step, flag, .. } = *self.exchange;
        // Read once: behind a store, the compiler reads memory again.
        let abi::Context { base, stride, .. } = *self.ctx.abi();
        let (n, me, is_listed) = (self.team.size(), self.team.me(), !self.team.members().is_empty());
        let to = inbox + u64::from(part) * me as u64;
        // Where a member's heap is, in a team that is computed: so far from the first one's for each rank.
        let (first, second) = (self.team.rank_with(0, |_| 0).pe(), self.team.rank_with(1, |_| 0).pe());
        let (first, step) = (base + u64::from(first.raw()) * stride, u64::from(second.raw() - first.raw()) * stride);
        let from = self.own(src);
        for (at, len) in self.words() {
            // SAFETY: `check` found all in the heaps, and PEs that are listed are looked at here; `at` is inside. A part is a multiple of
            // 16 bytes, so that there is room for both packets.
            unsafe {
                let (from, to) = (from.add(at as usize), to + 2 * u64::from(at));
                let load = |from: *const u8| {
                    let [low, high] = load_up_to_8(from, len, 1);
                    // An operator is given whole elements, whether there is data or not.
                    [low, if len > 4 { high } else { low }].map(|data| u64::from(data) << 32 | u64::from(flag))
                };
                let mut packets = load(from);
                let mut member = me;
                loop {
                    member = if member + 1 < n { member + 1 } else { 0 };
                    if src_step > 0 {
                        packets = load(from.add(src_step as usize * member));
                    }
                    let heap = if is_listed {
                        let pe = self.ctx.known_team(*self.team).rank(member).pe();
                        self.ctx.check_pe(pe);
                        base + u64::from(pe.raw()) * stride
                    } else {
                        first + step * member as u64
                    };
                    store_words(with_exposed_provenance_mut((heap + to) as usize), packets);
                    if member == me {
                        break;
                    }
                }
            }
        }
    }

    /// Combines what comes from all, or stores each where it belongs. False when a wait ended without what it was for; the reason is
    /// recorded.
    ///
    /// # Safety
    /// [`send`](Self::send) came before.
    #[inline(always)]
    unsafe fn receive<P: PackOp>(&self, by: P) -> bool {
        let n = self.team.size() as u32;
        let Exchange { inbox, part, dst, dst_step, src, src_step, bytes, flag, .. } = *self.exchange;
        if (dst | dst_step | src | src_step | bytes) as usize & (by.multiple() - 1) != 0 {
            refuse!("bytes that are folded as a type are aligned for it and end with an element");
        }
        let inbox = self.own(inbox);
        // Computed where it is needed, so that no register of a GPU holds it through the loops.
        let dst = |i: u32| self.own(self.exchange.dst + self.exchange.dst_step * u64::from(i));
        for (at, len) in self.words() {
            let packets = |i: u32| inbox.wrapping_add(part as usize * i as usize + 2 * at as usize);
            // SAFETY: the caller's contract; `at` is inside. A packet's word is mapped and aligned.
            unsafe {
                let (mut sums, mut first) = (by.none(), 0_u32);
                while first < n {
                    // So many members at a time: what is missing of them is asked for again together. Behind the last one, its packets are
                    // asked for once more, as that takes no branch.
                    let ask = |k: u32| {
                        if k < P::AHEAD as u32 { load_words(packets((first + k).min(n - 1))) } else { [flag.into(); 2] }
                    };
                    let lacks = |[low, high]: [u64; 2]| (low as u32 ^ flag) | (high as u32 ^ flag);
                    // Four variables and no array, which would be in memory.
                    let (mut a, mut b, mut c, mut d) = ([0; 2], [0; 2], [0; 2], [0; 2]);
                    let come = || {
                        (a, b, c, d) = (ask(0), ask(1), ask(2), ask(3));
                        lacks(a) | lacks(b) | lacks(c) | lacks(d) == 0
                    };
                    // One of those that still lack is named.
                    let late = |_| {
                        let late = each(0..P::AHEAD).find(|&k| lacks(ask(k as u32)) != 0).unwrap_or(0);
                        let late = (first + late as u32).min(n - 1);
                        (self.packets(self.ctx.pe(), late as usize), load_words(packets(late))[0])
                    };
                    if !self.ctx.all_packets(late, Polled::new(packets(first).cast()), come) {
                        return false;
                    }
                    let mut take = |k: u32, words: [u64; 2]| {
                        if k >= P::AHEAD as u32 || first + k >= n {
                            return;
                        }
                        let values = words.map(|packet| (packet >> 32) as u32);
                        if P::ONE {
                            store_up_to_8(dst(first + k).add(at as usize), len, P::UNIT, values);
                        } else {
                            // Of elements of 4 bytes and more, what was sent fills the word.
                            let fills = const { !P::TOTAL && P::UNIT < 4 };
                            let values = if fills { filled(values, len, by.multiple()) } else { values };
                            sums = by.next(sums, values, k == 0 && first == 0, false);
                        }
                    };
                    take(0, a);
                    take(1, b);
                    take(2, c);
                    take(3, d);
                    first = opaque_word(first + P::AHEAD as u32);
                }
                if !P::ONE {
                    store_up_to_8(dst(0).add(at as usize), len, P::UNIT, by.last(sums, n));
                }
            }
        }
        true
    }
}

/// Looks at what the exchange names, refuses what does not lie in the heaps, aligned for its form, and sends what is for each member.
#[inline(always)]
pub(crate) fn send<B: Group>(exchanged: &Exchanged<'_, B>) {
    if B::IS_BLOCK {
        // SAFETY: a block's threads call it together, with a team and an exchange that all of them see.
        unsafe { send_block(exchanged.team, exchanged.exchange) }
    } else {
        exchanged.work().send();
    }
}

/// Combines what comes by an operator on elements whose type is known. False when a wait ended without what it was for; the reason is
/// recorded.
///
/// # Safety
/// [`send`] came before.
#[inline(always)]
pub(crate) unsafe fn receive<T: Pod, O: ReduceOp<T>, B: Group>(exchanged: &Exchanged<'_, B>, op: O) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        if !B::IS_BLOCK || size_of::<O>() > 0 {
            return exchanged.work().receive(Typed::<T, O>::new(op));
        }
        receive_block_by::<T, O>(exchanged.team, exchanged.exchange)
    }
}

/// Stores what comes where it belongs.
///
/// # Safety
/// As [`receive`].
#[inline(always)]
pub(crate) unsafe fn receive_parts<B: Group>(exchanged: &Exchanged<'_, B>) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        if B::IS_BLOCK {
            receive_parts_block(exchanged.team, exchanged.exchange)
        } else {
            exchanged.work().receive(Move::<false>)
        }
    }
}

/// Combines what comes by an operator that was chosen at run time, on elements of a type that was.
///
/// # Safety
/// As [`receive`].
#[inline(always)]
pub(crate) unsafe fn receive_reduction<B: Group>(exchanged: &Exchanged<'_, B>, reduction: Reduction) -> bool {
    if !B::IS_BLOCK {
        refuse!("a reduction chosen at run time folds by whole blocks");
    }
    let (ctx, group, exchange, work) = (exchanged.ctx, exchanged.group, exchanged.exchange, exchanged.work());
    let (dst, src) = ([work.dst(0)], work.sources());
    let (bytes, members) = (exchange.bytes(), exchanged.team.size() as u32);
    // SAFETY: the caller's contract.
    unsafe { fold_reduction(&Fold { ctx, group, dst, src, bytes, members }, reduction) }
}

/// # Safety
/// By every thread of the block, of what all of them see.
#[inline(never)]
unsafe fn send_block(team: &TeamView, exchange: &Exchange) {
    // SAFETY: an exchange is within a kernel.
    unsafe { of_block(&Ctx::of_kernel(), team, exchange).send() }
}

/// # Safety
/// As [`receive`], by every thread of the block, of what all of them see.
#[inline(never)]
unsafe fn receive_block_by<T: Pod, O: ReduceOp<T>>(team: &TeamView, exchange: &Exchange) -> bool {
    // SAFETY: the caller's contract.
    unsafe { receive_block(team, exchange, Typed::<T, O>::new(stateless())) }
}

/// # Safety
/// As [`receive_block_by`].
#[inline(never)]
unsafe fn receive_parts_block(team: &TeamView, exchange: &Exchange) -> bool {
    // SAFETY: the caller's contract.
    unsafe { receive_block(team, exchange, Move::<false>) }
}

/// # Safety
/// As [`receive_block_by`].
#[inline(always)]
unsafe fn receive_block(team: &TeamView, exchange: &Exchange, by: impl PackOp) -> bool {
    // SAFETY: the caller's contract. An exchange is within a kernel.
    unsafe { of_block(&Ctx::of_kernel(), team, exchange).receive(by) }
}

/// A thread's part of a block's exchange.
#[inline(always)]
fn of_block<'w>(ctx: &'w Ctx<'w>, team: &'w TeamView, exchange: &'w Exchange) -> Work<'w> {
    Work { ctx, share: block_share(ctx), team, exchange }
}
