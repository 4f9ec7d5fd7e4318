//! Collectives beyond the fixed kernels: an operator of a user's own, and several in flight at once.

use core::time::Duration;

use congruent_collectives::{PlanView, Protocol, Sum, one_shot, ring, two_level};
use congruent_device::{Semaphore, Sym, TeamView, kernels};

use crate::Crew;

/// `x -> a x + b`, wrapping around: composing these is associative, and not commutative.
pub type Affine = [u32; 2];

/// First `f`, then `g`.
#[inline(always)]
pub fn then(f: Affine, g: Affine) -> Affine {
    [f[0].wrapping_mul(g[0]), f[1].wrapping_mul(g[0]).wrapping_add(g[1])]
}

kernels! {
    /// Comes to nothing, so many microseconds late: what is launched behind it is late too.
    pub fn delay(block, ctx, never: Sym<Semaphore>, microseconds: u64) {
        let _came = ctx.try_wait(block, never, 1, Duration::from_micros(microseconds));
    }

    /// All-reduce of a team on several hosts.
    pub fn sum_in_levels(block, ctx, dst: Sym<u32>, src: Sym<u32>, levels: two_level::Levels) {
        two_level::all_reduce(block, ctx, &levels, dst, src, Sum);
    }

    /// All-reduce with an operator of a user's own.
    pub fn compose(block, ctx, dst: Sym<Affine>, src: Sym<Affine>, plan: PlanView) {
        ring::all_reduce(&mut plan.enter(block, ctx), dst, src, then);
    }

    /// Of each element the member's number that is nearest to `to`, and of two that are as near the smaller one: an operator with state.
    /// By a ring, and in one exchange of packets where members reach each other's memory.
    pub fn nearest(block, ctx, ring_dst: Sym<i32>, shot_dst: Sym<i32>, src: Sym<i32>, to: i32, plan: PlanView, reached: u32) {
        let nearer = |a: i32, b: i32| if ((a - to).abs(), a) <= ((b - to).abs(), b) { a } else { b };
        ring::all_reduce(&mut plan.enter(block, ctx), ring_dst, src, nearer);
        if reached != 0 {
            one_shot::all_reduce(&mut plan.over(Protocol::Ll).enter(block, ctx), shot_dst, src, nearer);
        }
    }

    /// The largest of each byte, of elements that no word holds.
    pub fn largest_bytes(block, ctx, numbers: Sym<[u8; 3]>, plan: PlanView) {
        let larger = |a: [u8; 3], b: [u8; 3]| [a[0].max(b[0]), a[1].max(b[1]), a[2].max(b[2])];
        ring::all_reduce(&mut plan.enter(block, ctx), numbers, numbers, larger);
    }

    /// Each block by itself, on its chunk of each buffer: an all-reduce, a broadcast from member `block % size`, and of the
    /// part of each member, which are `parts` long together, a reduce-scatter and an all-gather. Odd blocks begin with the
    /// broadcast, so that different ones are in flight at once.
    pub fn in_flight(
        block, ctx, team: TeamView<Crew>, sums: Sym<i64>, casts: Sym<u64>, parts: Sym<i64>, plan: PlanView,
    ) {
        let (b, blocks, team) = (block.index(), block.count(), ctx.team(team));
        let mut coll = plan.alone(b).enter(block, ctx);
        let (sums, casts, parts) = (sums.chunk(b, blocks), casts.chunk(b, blocks), parts.chunk(b, blocks));
        let root = b % team.size();
        if b % 2 == 0 {
            ring::all_reduce(&mut coll, sums, sums, Sum);
            ring::broadcast(&mut coll, casts, casts, root);
        } else {
            ring::broadcast(&mut coll, casts, casts, root);
            ring::all_reduce(&mut coll, sums, sums, Sum);
        }
        let mine = parts.chunk(team.me().index(), team.size());
        ring::reduce_scatter(&mut coll, mine, parts, Sum);
        ring::all_gather(&mut coll, parts, mine);
    }
}
