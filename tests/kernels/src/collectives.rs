//! Collectives beyond the fixed kernels: operators of a user's own, narrow integers, and several in flight at once.

use congruent_collectives::{Op, Sum, ring};
use congruent_device::{Sym, TeamView, kernels};

use crate::teams::Crew;

/// `x -> a x + b`, wrapping around: composing these is associative, and not commutative.
pub type Affine = [u32; 2];

/// First `f`, then `g`.
#[inline(always)]
pub fn then(f: Affine, g: Affine) -> Affine {
    [f[0].wrapping_mul(g[0]), f[1].wrapping_mul(g[0]).wrapping_add(g[1])]
}

macro_rules! narrow {
    ($($kernel:ident: $type:ty;)*) => {
        kernels! {$(
            /// All-reduce of a type that no fixed kernel has.
            pub fn $kernel(block, ctx, team: TeamView, dst: Sym<$type>, src: Sym<$type>, op: Op, plan: ring::View) {
                ring::all_reduce(block, ctx, &ctx.team(team), dst, src, op, &plan);
            }
        )*}
    };
}

narrow! {
    all_reduce_u8: u8;
    all_reduce_i8: i8;
    all_reduce_u16: u16;
    all_reduce_i16: i16;
}

kernels! {
    /// All-reduce with an operator of a user's own.
    pub fn compose(block, ctx, team: TeamView<Crew>, dst: Sym<Affine>, src: Sym<Affine>, plan: ring::View) {
        ring::all_reduce(block, ctx, &ctx.team(team), dst, src, then, &plan);
    }

    /// Each block by itself, on its chunk of each buffer: an all-reduce, a broadcast from member `block % size`, a
    /// reduce-scatter and an all-gather. Odd blocks begin with the broadcast, so that different ones are in flight at once.
    pub fn in_flight(
        block, ctx, team: TeamView<Crew>, sums: Sym<i64>, casts: Sym<u64>, parts: Sym<i64>, plan: ring::View,
    ) {
        let (team, plan) = (ctx.team(team), plan.alone());
        let (b, blocks) = (block.index(), block.count());
        let (sums, casts, parts) = (sums.chunk(b, blocks), casts.chunk(b, blocks), parts.chunk(b, blocks));
        if b % 2 == 0 {
            ring::all_reduce(block, ctx, &team, sums, sums, Sum, &plan);
            ring::broadcast(block, ctx, &team, casts, b % team.size(), &plan);
        } else {
            ring::broadcast(block, ctx, &team, casts, b % team.size(), &plan);
            ring::all_reduce(block, ctx, &team, sums, sums, Sum, &plan);
        }
        ring::reduce_scatter(block, ctx, &team, parts, Sum, &plan);
        ring::all_gather(block, ctx, &team, parts, &plan);
    }
}
