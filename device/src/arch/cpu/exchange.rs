//! Exchanges in packets on the CPU: bytes behind a flag to each member.

use core::cell::Cell;

use congruent_heap::{Pe, Pod};

use super::copy;
use super::fold::{Work, with_all};
use crate::exchange::Exchanged;
use crate::{Group, ReduceOp, Reduction};

/// Looks at what the exchange names, refuses what does not lie in the heaps, aligned for its form, and sends what is for others.
#[inline(always)]
#[track_caller]
pub(crate) fn send<B: Group>(exchanged: &Exchanged<'_, B>) {
    let (ctx, group, bytes) = (exchanged.ctx, exchanged.group, exchanged.exchange.bytes());
    let work = exchanged.work();
    work.check();
    let is_alone = work.share.size == 1;
    for to in work.others() {
        let packets = work.sent(to);
        ctx.check_pe(Pe::new(packets.pe));
        // SAFETY: `check` found both in the heaps, and the PE is there.
        unsafe { copy(work.share, packets.data(), work.src(to).start(), bytes) };
        if is_alone {
            ctx.sent(group, &packets);
        }
    }
    if !is_alone {
        // A flag is for what all lanes have sent. And what a lane stores of what comes, another may have had to send: a fold of elements is
        // divided otherwise than a copy of bytes.
        group.sync();
        if group.leader() {
            work.others().for_each(|to| ctx.sent(group, &work.sent(to)));
        }
    }
}

/// Combines what comes by an operator on elements whose type is known. False when a wait ended without what it was for; the reason is
/// recorded.
///
/// # Safety
/// [`send`] came before.
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn receive<T: Pod, O: ReduceOp<T>, B: Group>(exchanged: &Exchanged<'_, B>, op: O) -> bool {
    // SAFETY: the caller's contract.
    combine(exchanged, |work| unsafe { work.fold::<T, O>(op) })
}

/// Stores what comes where it belongs.
///
/// # Safety
/// As [`receive`].
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn receive_parts<B: Group>(exchanged: &Exchanged<'_, B>) -> bool {
    let (work, bytes) = (exchanged.work(), exchanged.exchange.bytes());
    let (me, own) = (exchanged.team.me(), exchanged.ctx.pe());
    let (to, from) = (work.dst(me).start(), work.src(me).start());
    // SAFETY: the caller's contract.
    unsafe {
        if to != from {
            copy(work.share, to, from, bytes);
        }
        work.others().all(|from| {
            let packets = work.packets(own, from);
            let come = exchanged.ctx.packets_come(&packets);
            if come {
                copy(work.share, work.dst(from).start(), packets.data(), bytes);
            }
            come
        })
    }
}

/// Combines what comes by an operator that was chosen at run time, on elements of a type that was.
///
/// # Safety
/// As [`receive`].
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn receive_reduction<B: Group>(exchanged: &Exchanged<'_, B>, reduction: Reduction) -> bool {
    // SAFETY: the caller's contract.
    combine(exchanged, |work| unsafe { work.fold_reduction(reduction) })
}

/// Does a fold of what comes, once it is there.
#[inline(always)]
fn combine<B: Group>(exchanged: &Exchanged<'_, B>, fold: impl FnOnce(&Work<'_>)) -> bool {
    let (work, bytes) = (exchanged.work(), exchanged.exchange.bytes());
    let (members, me, own) = (exchanged.team.size(), exchanged.team.me(), exchanged.ctx.pe());
    let come = Cell::new(true);
    let from = |i| {
        if i == me {
            return work.src(me).start();
        }
        let packets = work.packets(own, i);
        come.set(come.get() && exchanged.ctx.packets_come(&packets));
        packets.data()
    };
    with_all(members, from, |src| {
        if come.get() {
            fold(&Work { share: work.share, dst: &[work.dst(0).start()], src, partial: 0, bytes, members });
        }
        come.get()
    })
}
