//! Exchanges in packets on the CPU: word by word, or, of many, by folds.

use congruent_heap::{Pe, Pod};

use super::bulk::{copy, fold, fold_reduction, for_reduction, transfer};
use super::{load, store};
use crate::exchange::Exchanged;
use crate::group::share;
use crate::reduce::packs::{Move, Typed};
use crate::{Group, Operands, ReduceOp, Reduction, operands};

#[inline(always)]
pub(crate) unsafe fn load_words(pointer: *const u8) -> [u64; 2] {
    let words = pointer.cast::<u64>();
    // SAFETY: the caller's contract: 16 bytes of mapped memory, aligned.
    unsafe { [load(words), load(words.add(1))] }
}

#[inline(always)]
pub(crate) unsafe fn store_words(pointer: *mut u8, [a, b]: [u64; 2]) {
    let words = pointer.cast::<u64>();
    // SAFETY: as for `load_words`.
    unsafe {
        store(words, a);
        store(words.add(1), b);
    }
}

/// Up to so many bytes, words are sent and taken one by one: folds take longer to begin, and less for each word.
const FEW: usize = 64;

/// Sends what is for others.
///
/// # Safety
/// What the exchange names lies in the heaps, aligned for its form.
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn send<B: Group>(exchanged: &Exchanged<'_, B>) {
    let work = exchanged.work();
    // SAFETY: the caller's contract.
    unsafe {
        let others = exchanged.team.size() - 1;
        let sent = |i: usize| {
            let operand = work.sent(work.after(i + 1));
            exchanged.ctx.check_pe(Pe::new(operand.pe));
            operand
        };
        if exchanged.exchange.bytes() <= FEW {
            work.send();
        } else if exchanged.exchange.sends_the_same() {
            let _nothing_is_awaited = transfer(&exchanged.fold(operands(others, sent), [work.src(0)]));
        } else {
            for i in 0..others {
                let _nothing_is_awaited = transfer(&exchanged.fold([sent(i)], [work.src(work.after(i + 1))]));
            }
        }
        // Who waits is woken once all lanes have sent. And what a lane stores of what comes, another may have had to send: a fold of elements
        // is divided otherwise than one of bytes.
        exchanged.group.sync();
    }
}

/// Combines what comes by an operator on elements whose type is known. False when a wait ended without what it was for; the reason is
/// recorded.
///
/// # Safety
/// As [`send`], which came before.
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn receive<T: Pod, O: ReduceOp<T>, B: Group>(exchanged: &Exchanged<'_, B>, op: O) -> bool {
    let work = exchanged.work();
    // SAFETY: the caller's contract.
    unsafe {
        if exchanged.exchange.bytes() <= FEW {
            return work.receive(Typed::<T, O>::new(op));
        }
        fold::<T, O, B, _, _>(&exchanged.fold([work.dst(0)], work.sources()), op)
    }
}

/// Stores what comes where it belongs.
///
/// # Safety
/// As [`receive`].
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn receive_parts<B: Group>(exchanged: &Exchanged<'_, B>) -> bool {
    let work = exchanged.work();
    // SAFETY: the caller's contract.
    unsafe {
        if exchanged.exchange.bytes() <= FEW {
            return work.receive(Move::<false>);
        }
        let (me, sources) = (exchanged.team.me(), work.sources());
        let (to, from) = (work.dst(me).start(), work.src(me).start());
        if to != from {
            copy(share(exchanged.group), to, from, exchanged.exchange.bytes());
        }
        let mut others = (1..sources.count()).map(|i| work.after(i));
        others.all(|from| transfer(&exchanged.fold([work.dst(from)], [sources.get(from)])))
    }
}

/// Combines what comes by an operator that was chosen at run time, on elements of a type that was.
///
/// # Safety
/// As [`receive`].
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn receive_reduction<B: Group>(exchanged: &Exchanged<'_, B>, reduction: Reduction) -> bool {
    let work = exchanged.work();
    // SAFETY: the caller's contract.
    unsafe {
        if exchanged.exchange.bytes() <= FEW {
            return for_reduction!(reduction, |T, op| work.receive(Typed::<T, _>::new(op)));
        }
        fold_reduction(&exchanged.fold([work.dst(0)], work.sources()), reduction)
    }
}
