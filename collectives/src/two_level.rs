//! Collectives of a team on several hosts, in two levels: between the members of each host, and along *rails*, each of which has the
//! members with one place on all hosts. What goes from host to host goes once, and over all rails at once.
//!
//! All-reduce is a reduce-scatter in each host, an all-reduce along each rail of the part that is left there, and an all-gather in each
//! host (NCCL has the same for its networks of several rails; Thakur, Rabenseifner and Gropp, 2005, for the levels). Between hosts a member
//! sends `2 (h-1)/h S/l`, for `h` hosts of `l` members.
//!
//! [`all_reduce`] is for kernels, with a plan of each level. Calls on streams are made of calls of the two levels' communicators, each of
//! which chooses its algorithm by itself; they need a team whose ranks are those of one host after the other, as many on each
//! ([`Descriptor::levels`]).
//!
//! # Order of summation
//! The members of a host first, as [`ring::reduce_scatter`] does; then hosts, as [`recursive::all_reduce`]. Partial results are rounded to
//! the element's type between the levels, so an average, which would be rounded twice, is not one of them.

use congruent_device::{Ctx, Group, Pod, Reducer, Sym, kernel_arg};

use crate::descriptor::{Descriptor, Sizes, Work};
use crate::{Algorithm, Collective, PlanView, Protocol, recursive, ring};

kernel_arg! {
    /// The plans of two levels, for one launch.
    #[derive(Debug)]
    pub struct Levels {
        /// For this member's team on its host.
        pub host: PlanView,
        /// For the team of members with its place on all hosts.
        pub rail: PlanView,
    }
}

/// Combines the members' `src` element by element with `op`, and gives every member the result in `dst`.
///
/// ```
/// use congruent_collectives::{Sum, two_level};
/// use congruent_device::{Sym, kernels};
///
/// kernels! {
///     pub fn sum_up(block, ctx, dst: Sym<f32>, src: Sym<f32>, levels: two_level::Levels) {
///         two_level::all_reduce(block, ctx, &levels, dst, src, Sum);
///     }
/// }
/// ```
///
/// # Collective
/// Over all members of the host's teams that the rails join; `dst` may be `src`. A partial result is an operand of `op` again: neither an
/// average nor a premul-sum.
///
/// # Ordering
/// As [`ring::all_reduce`].
///
/// # Panics
/// As [`ring::reduce_scatter`] and [`recursive::all_reduce`]; where the block has a session.
#[inline(always)]
#[track_caller]
pub fn all_reduce<T: Pod, B: Group>(
    block: &B,
    ctx: &Ctx<'_>,
    levels: &Levels,
    dst: Sym<T>,
    src: Sym<T>,
    op: impl Reducer<T>,
) {
    let members = levels.host.team().size();
    let part = src.len() / members;
    let (even, rest) = (part * members, src.len() % members);
    if part > 0 {
        let (all, mut coll) = (dst.slice(..even), levels.host.enter(block, ctx));
        let own = coll.part(all, coll.me());
        ring::reduce_scatter(&mut coll, own, src.slice(..even), op);
        drop(coll);
        recursive::all_reduce(&mut levels.rail.enter(block, ctx), own, own, op);
        ring::all_gather(&mut levels.host.enter(block, ctx), all, own);
    }
    if rest > 0 {
        let (to, from) = (dst.slice(even..), src.slice(even..));
        recursive::all_reduce(&mut levels.host.enter(block, ctx), to, from, op);
        recursive::all_reduce(&mut levels.rail.enter(block, ctx), to, to, op);
    }
}

/// Below so many bytes a call of all-reduce is two, of the whole in each host and along each rail: steps cost more than what the others
/// would save.
pub const SHORT: usize = 16 << 10;

/// All-reduce of both levels.
pub static ALL_REDUCE: Descriptor = described(Collective::AllReduce, |call| {
    if call.bytes < SHORT as f64 {
        return Work { hops: call.log_hosts, moved: call.log_hosts * call.bytes, launches: 1.0, ..Work::NONE };
    }
    let moved = 2.0 * between(call) * call.bytes / call.on_host();
    Work { hops: 2.0 * call.log_hosts, moved, launches: 2.0, ..Work::NONE }
});

/// Reduce-scatter of both levels.
pub static REDUCE_SCATTER: Descriptor = described(Collective::ReduceScatter, one_way);

/// All-gather of both levels.
pub static ALL_GATHER: Descriptor = described(Collective::AllGather, one_way);

/// All-to-all of both levels: what a host's members send to those of another one goes together.
pub static ALL_TO_ALL: Descriptor = described(Collective::AllToAll, |call| Work {
    hops: 2.0,
    posts: 2.0 * (call.hosts - 2.0),
    moved: between(call) * call.bytes,
    launches: call.hosts,
    ..Work::NONE
});

/// A part of each host along the rail, and a call in each host for each of them.
fn one_way(call: &Sizes) -> Work {
    let moved = between(call) * call.bytes / call.on_host();
    Work { hops: call.log_hosts, moved, launches: call.hosts, ..Work::NONE }
}

const fn described(collective: Collective, work: fn(&Sizes) -> Work) -> Descriptor {
    let usual = Descriptor::new(collective, Algorithm::TWO_LEVEL, &[Protocol::Simple], work);
    // Each host's call takes an algorithm that can.
    Descriptor { levels: true, own_scalars: true, ..usual }
}

/// What a member has that goes to other hosts.
fn between(call: &Sizes) -> f64 {
    (call.hosts - 1.0) / call.hosts
}
