//! Reductions and scans of what the threads of a group give, one value each.
//!
//! The tree of a reduction depends on the number of threads alone, and every thread has the same bits.

use crate::arch;
use crate::{Block, Group, Lanes, Pod, ReduceOp};

/// What all lanes give, combined; the same for all.
#[inline(always)]
#[track_caller]
fn combine<L: Lanes, T: Pod, O: ReduceOp<T, Acc: Pod>>(lanes: &L, value: T, op: O) -> O::Acc {
    let mut acc = op.lift(value);
    if let Some(reduced) = op.multimem(1).and_then(|how| lanes.lane().redux(L::MOST, how, acc)) {
        return reduced;
    }
    let (rank, size) = (lanes.rank(), lanes.size());
    let mut step = arch::bound(L::MOST, size).next_power_of_two() / 2;
    while step > 0 {
        let other = lanes.shfl_down(acc, step);
        if rank + step < size {
            acc = op.combine(acc, other);
        }
        step /= 2;
    }
    lanes.shfl(acc, 0)
}

/// What the lanes up to this one give, combined in their order.
#[inline(always)]
#[track_caller]
pub(crate) fn inclusive<L: Lanes, T: Pod, O: ReduceOp<T, Acc: Pod>>(lanes: &L, value: O::Acc, op: O) -> O::Acc {
    let mut acc = value;
    let (rank, bound) = (lanes.rank(), arch::bound(L::MOST, lanes.size()));
    let mut step = 1;
    while step < bound {
        let before = lanes.shfl_up(acc, step);
        if rank >= step {
            acc = op.combine(before, acc);
        }
        step *= 2;
    }
    acc
}

#[inline(always)]
#[track_caller]
pub(crate) fn reduce<L: Lanes, T: Pod, O: ReduceOp<T, Acc: Pod>>(lanes: &L, value: T, op: O) -> T {
    op.finish(combine(lanes, value, op), lanes.size())
}

#[inline(always)]
#[track_caller]
pub(crate) fn exclusive<L: Lanes, T: Pod, O: ReduceOp<T, Acc: Pod>>(lanes: &L, value: T, initial: T, op: O) -> T {
    let before = lanes.shfl_up(inclusive(lanes, op.lift(value), op), 1);
    let initial = op.resume(initial);
    op.lower(if lanes.leader() { initial } else { op.combine(initial, before) })
}

#[inline(always)]
#[track_caller]
pub(crate) fn reduce_block<T: Pod, O: ReduceOp<T, Acc: Pod>>(block: &Block<'_>, value: T, op: O) -> T {
    let mine = combine(&block.warp(), value, op);
    let acc = block
        .as_lane()
        .of_warps(mine, |warps| (1..block.warps()).fold(warps.get(0), |acc, warp| op.combine(acc, warps.get(warp))));
    op.finish(acc, block.size())
}

/// What the threads up to this one give, combined in their order.
#[inline(always)]
#[track_caller]
pub(crate) fn inclusive_block<T: Pod, O: ReduceOp<T, Acc: Pod>>(block: &Block<'_>, value: T, op: O) -> T {
    let mine = inclusive(&block.warp(), op.lift(value), op);
    let acc = block.as_lane().of_warps(mine, |warps| match block.warp_index() {
        0 => mine,
        before => op.combine((1..before).fold(warps.get(0), |acc, warp| op.combine(acc, warps.get(warp))), mine),
    });
    op.lower(acc)
}

/// The same without this thread's, behind `initial`.
#[inline(always)]
#[track_caller]
pub(crate) fn exclusive_block<T: Pod, O: ReduceOp<T, Acc: Pod>>(block: &Block<'_>, value: T, initial: T, op: O) -> T {
    let warp = block.warp();
    let mine = inclusive(&warp, op.lift(value), op);
    let before = warp.shfl_up(mine, 1);
    let acc = block.as_lane().of_warps(mine, |warps| {
        (0..block.warp_index()).fold(op.resume(initial), |acc, warp| op.combine(acc, warps.get(warp)))
    });
    op.lower(if warp.leader() { acc } else { op.combine(acc, before) })
}
