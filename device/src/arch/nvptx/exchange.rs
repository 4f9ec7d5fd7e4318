//! Exchanges in packets on the GPU. Blocks call functions that take what all threads see in memory; a group that is less than a block has
//! its loops where it is.

use core::iter::from_fn;
use core::ptr::with_exposed_provenance_mut;

use congruent_heap::abi::{self, NO_PE};
use congruent_heap::{Pe, Pod, TeamView, refuse};

use super::fold::stateless;
use super::words::{filled, load_up_to_8, store_packets, store_up_to_8};
use super::{block_share, fold_reduction, load_words, opaque};
use crate::arch::{Share, each};
use crate::bulk::Fold;
use crate::exchange::{Exchange, Exchanged, Work};
use crate::operand::{Operands, operands};
use crate::poll::Polled;
use crate::reduce::packs::{Move, PackOp, Typed};
use crate::{Ctx, Datatype, Group, Op, ReduceOp, Reduction, Sum, bf16, f16};

impl Work<'_> {
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

    /// This member's own and the packets of all others, in rank order.
    #[inline(always)]
    fn sources(&self) -> impl Operands {
        let (own, me) = (self.ctx.pe(), self.team.me());
        operands(self.team.size(), move |i| if i == me { self.src(me) } else { self.packets(own, i) })
    }

    /// Sends what is for others.
    ///
    /// # Safety
    /// What the exchange names lies in the heaps, aligned for its form, and so do the PEs of a team that is computed.
    #[inline(always)]
    unsafe fn send(&self) {
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
    #[inline(always)]
    unsafe fn receive<P: PackOp>(&self, by: P) -> bool {
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
            // mapped, as pages are multiples of 16 bytes. A packet's word is mapped and aligned.
            unsafe {
                let own = load_up_to_8(src().add(at), len, P::UNIT);
                let (mut sums, mut first) = (by.none(), 0);
                while first < n {
                    // So many members at a time: what is missing of them is asked for again together.
                    let is_one = |k: usize| k < P::AHEAD && first + k < n;
                    let ask = |k: usize| if is_one(k) { load_words(packets(first + k)) } else { [0; 2] };
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
                        (self.packets(self.ctx.pe(), late), load_words(packets(late))[0])
                    };
                    if !self.ctx.all_packets(late, Polled::new(packets(first).cast()), come) {
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
                    first = opaque((first + P::AHEAD) as u64) as usize;
                }
                if !P::ONE {
                    store_up_to_8(dst(0).add(at), len, P::UNIT, by.last(sums, n as u32));
                }
            }
        }
        true
    }
}

/// Sends what is for others.
///
/// # Safety
/// What the exchange names lies in the heaps, aligned for its form.
#[inline(always)]
pub(crate) unsafe fn send<B: Group>(exchanged: &Exchanged<'_, B>) {
    // SAFETY: the caller's contract.
    unsafe { if B::IS_BLOCK { send_block(exchanged.team, exchanged.exchange) } else { exchanged.work().send() } }
}

/// Combines what comes by an operator on elements whose type is known. False when a wait ended without what it was for; the reason is
/// recorded.
///
/// # Safety
/// As [`send`], which came before.
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
    let (team, exchange) = (exchanged.team, exchanged.exchange);
    // SAFETY: the caller's contract.
    unsafe {
        match (reduction.op(), reduction.datatype()) {
            (Op::Sum, Datatype::F32) => receive_block_by::<f32, Sum>(team, exchange),
            (Op::Sum, Datatype::F16) => receive_block_by::<f16, Sum>(team, exchange),
            (Op::Sum, Datatype::Bf16) => receive_block_by::<bf16, Sum>(team, exchange),
            // What is not hot has one loop for all folds.
            _ => {
                let work = exchanged.work();
                {
                    let (ctx, group, bytes, members) =
                        (exchanged.ctx, exchanged.group, exchange.bytes(), team.size() as u32);
                    let (dst, src) = ([work.dst(0)], work.sources());
                    fold_reduction(&Fold { ctx, group, dst, src, bytes, members }, reduction)
                }
            }
        }
    }
}

/// # Safety
/// As [`send`], by every thread of the block, of what all of them see.
#[inline(never)]
unsafe fn send_block(team: &TeamView, exchange: &Exchange) {
    // SAFETY: the caller's contract. An exchange is within a kernel.
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
