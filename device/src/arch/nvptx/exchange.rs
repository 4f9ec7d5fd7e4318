//! Exchanges in packets on the GPU. Blocks call functions that take what all threads see in memory; a group that is less than a block has
//! its loops where it is.

use congruent_heap::{Pod, TeamView, refuse};

use super::fold::stateless;
use super::{block_share, fold_reduction};
use crate::exchange::{Exchange, Exchanged, Work};
use crate::reduce::packs::{Move, PackOp, Typed};
use crate::{Ctx, Datatype, Group, Op, ReduceOp, Reduction, Sum, bf16, f16};

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
                fold_reduction(&exchanged.fold([work.dst(0)], work.sources()), reduction)
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
