//! Everybody sends to everybody at once, in packets that carry their own flags: one hop, no signal, no barrier.
//!
//! The fastest way for a few bytes (NCCL's LL all-to-all, MSCCL++'s all-pairs). Each channel has an inbox of two halves, used in
//! turn. In an exchange every member writes to every inbox, and has read all of its own before it ends; so a member that is
//! two exchanges ahead knows that the half it writes now has been read. That needs no credits, but every exchange must be one
//! of all with all.
//!
//! Reductions combine in rank order, `((x[0] + x[1]) + ...) + x[n-1]`, with one rounding at the end. The plan's protocol is
//! LL or LL128; elements have 1, 2, 4 or 8 bytes.

use congruent_device::{
    Exchange, Group, Keep, Operand, Operands, PLAIN, PerMember, Pod, Rank, Reducer, Span, Sym, World, operands, refuse,
};

use crate::descriptor::{Descriptor, Sizes, Work};
use crate::names::Operation;
use crate::session::{Coll, State};
use crate::{Algorithm, Collective, Protocol, check};

/// The name of its steps.
const EXCHANGE: &str = "exchange";

/// Combines the members' `src` element by element with `op`, and gives every member the result in `dst`.
///
/// # Collective
/// Over the team; `dst` may be `src`. Each member sends the buffer to `n-1` others.
///
/// # Ordering
/// What a member stored to `src` before, in this block or before this kernel, is combined; on return this block's share of
/// `dst` is complete, and `src` and `dst` may be overwritten. It orders nothing else: packets carry themselves only (MM-8).
///
/// # Panics
/// Where the lengths differ, the buffers overlap without being the same or has
/// the simple protocol, elements do not fit it, or a member is reached only through a proxy.
#[inline(always)]
#[track_caller]
pub fn all_reduce<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>) {
    check::same(dst, src);
    let _call = begin(coll, Operation::AllReduceOneShot, src.bytes());
    if coll.n() == 1 {
        return coll.alone(dst, src, op);
    }
    let (to, from) = (PerMember::same(coll.mine(dst)), PerMember::same(coll.mine(src)));
    exchange::<T, B, false>(coll, to, from, op);
}

/// Combines the members' `src` element by element with `op`, and gives member `i` part `i` of the result in `dst`: `src` is
/// `n` times as long as `dst`.
///
/// # Collective
/// Over the team; `dst` may be part `me` of `src`. Each member sends `(n-1)/n` of the source's bytes.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// Where the lengths do not fit or the buffers overlap otherwise, and as [`all_reduce`].
#[inline(always)]
#[track_caller]
pub fn reduce_scatter<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>) {
    check::part_of(src, dst, coll.n(), coll.me());
    let _call = begin(coll, Operation::ReduceScatterOneShot, src.bytes());
    if coll.n() == 1 {
        return coll.alone(dst, src, op);
    }
    let to = PerMember::same(coll.mine(dst));
    let from = of_parts(coll, src);
    exchange::<T, B, false>(coll, to, from, op);
}

/// Gives every member every member's `src` in `dst`, in rank order: `dst` is `n` times as long as `src`.
///
/// # Collective
/// Over the team; `src` may be part `me` of `dst`. Each member sends its `src` to `n-1` others.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// As [`reduce_scatter`].
#[inline(always)]
#[track_caller]
pub fn all_gather<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>) {
    let inside = check::part_of(dst, src, coll.n(), coll.me());
    let _call = begin(coll, Operation::AllGatherOneShot, dst.bytes());
    if coll.n() == 1 {
        if !inside {
            coll.copy(coll.mine(dst), coll.mine(src));
        }
        return;
    }
    let (to, from) = (of_parts(coll, dst.cast()), PerMember::same(coll.mine(src).cast()));
    exchange::<u8, B, true>(coll, to, from, Keep);
}

/// Part `i` of member `j`'s `src` becomes part `j` of member `i`'s `dst`.
///
/// # Collective
/// Over the team; both buffers have one part of the same length for each member, and `dst` may be `src`. Each member sends
/// `(n-1)/n` of the buffer's bytes.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// Where the lengths differ or do not divide by `n`, and as [`all_reduce`].
#[inline(always)]
#[track_caller]
pub fn all_to_all<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>) {
    check::parted(dst, src, coll.n());
    let _call = begin(coll, Operation::AllToAllOneShot, src.bytes());
    if coll.n() == 1 {
        if dst != src {
            coll.copy(coll.mine(dst), coll.mine(src));
        }
        return;
    }
    let (to, from) = (of_parts(coll, dst.cast()), of_parts(coll, src.cast()));
    exchange::<u8, B, true>(coll, to, from, Keep);
}

/// This block's share of each part of a buffer that has one part for each member.
#[inline(always)]
#[track_caller]
fn of_parts<T: Pod, B: Group>(coll: &Coll<'_, B>, parts: Sym<T>) -> PerMember<T> {
    PerMember::new(coll.mine(coll.part(parts, 0)), coll.divided(parts.len()))
}

/// Sends each member what is for it in `src`. What comes is combined in `dst`, or else stored there, each member's where it belongs.
/// As many exchanges as it takes, of all with all.
#[inline(always)]
#[track_caller]
fn exchange<T: Pod, B: Group, const GATHERS: bool>(
    coll: &mut Coll<'_, B>,
    dst: PerMember<T>,
    src: PerMember<T>,
    op: impl Reducer<T>,
) {
    if src.of(0).is_empty() {
        return;
    }
    let most = most::<T, B>(coll) * size_of::<T>();
    let next = |state: &mut State| {
        let half = state.plan.inbox(state.memory, (state.exchanges % 2) as usize);
        state.exchange.next(most, half, state.plan.flag(state.exchanges));
    };
    // The group meets: what any thread of it has stored is sent.
    coll.set(|state| {
        state.exchange = Exchange::new(dst, src);
        next(state);
    });
    loop {
        // Read before the group meets again: then it may change.
        let (bytes, left) = (coll.exchange.bytes(), coll.exchange.left());
        let _step = step(coll, parts_of(src.of(0).bytes(), left, most), bytes);
        // Both packets of a last word are written below, whatever of it has data; a thread that cleaned one would not be the same.
        clean_all(coll, bytes.next_multiple_of(size_of::<u64>()));
        if coll.plan.protocol() == Protocol::Ll {
            coll.ctx().exchange_packets(coll.group(), &coll.plan.team, &coll.exchange, op);
        } else {
            exchange_lines::<T, B, GATHERS>(coll, op);
        }
        if left == 0 {
            break;
        }
        coll.set(|state| {
            state.exchanges += 1;
            next(state);
        });
    }
    coll.change(|state| state.exchanges += 1);
}

/// Which of how many exchanges has so many bytes of all left behind it.
#[inline(always)]
fn parts_of(all: usize, left: usize, most: usize) -> (usize, usize) {
    // A division takes as long as half of a short exchange's own work.
    if all <= most {
        return (0, 1);
    }
    let parts = all.div_ceil(most);
    (parts - left.div_ceil(most) - 1, parts)
}

/// An exchange in lines.
#[cfg_attr(target_arch = "nvptx64", inline(never))]
#[cfg_attr(not(target_arch = "nvptx64"), inline(always))]
#[track_caller]
fn exchange_lines<T: Pod, B: Group, const GATHERS: bool>(coll: &Coll<'_, B>, op: impl Reducer<T>) {
    // Where each part is, is looked up when it is needed.
    let (dst, src) = (|i: usize| coll.exchange.dst::<T>(i), |i: usize| coll.exchange.src::<T>(i));
    let bytes = coll.exchange.bytes();
    if coll.exchange.sends_the_same() {
        to_others(coll, src(0));
    } else {
        for i in 1..coll.n() {
            let to = coll.after(i);
            coll.transfer(bytes, [packets(coll, coll.me(), to, bytes)], coll.only(src(to.index())));
        }
    }
    if !GATHERS {
        return coll.fold(bytes, coll.only(dst(0)), of_all(coll, src(coll.me())), op, coll.n());
    }
    coll.start_copy(dst(coll.me()), src(coll.me()));
    for i in 1..coll.n() {
        let from = coll.after(i);
        let packets = packets(coll, from.index(), coll.own(), bytes).from_pe(from.pe());
        coll.transfer(bytes, coll.only(dst(from.index())), [packets]);
    }
}

#[inline(always)]
#[track_caller]
pub(crate) fn begin<'c, B: Group>(coll: &mut Coll<'c, B>, operation: Operation, bytes: usize) -> Span<'c> {
    if coll.plan.protocol() == Protocol::Simple {
        refuse!("one-shot algorithms need a plan over LL or LL128");
    }
    coll.begin(operation, bytes)
}

/// How many elements one exchange takes.
#[inline(always)]
#[track_caller]
pub(crate) fn most<T: Pod, B: Group>(coll: &Coll<'_, B>) -> usize {
    let most = coll.plan.shot_bytes() / size_of::<T>();
    if most == 0 {
        refuse!("the plan's buffer is too small for one-shot algorithms");
    }
    most
}

/// An exchange, as traces show it.
#[inline(always)]
pub(crate) fn step<'c, B: Group>(coll: &Coll<'c, B>, part: (usize, usize), bytes: usize) -> Span<'c> {
    coll.step(EXCHANGE, part, coll.me(), bytes)
}

/// The exchange is over: what follows is the next one.
#[inline(always)]
pub(crate) fn done<B: Group>(coll: &mut Coll<'_, B>) {
    coll.set(|state| state.exchanges += 1);
}

/// The packets that member `from` writes at `at`.
#[inline(always)]
#[track_caller]
fn packets<B: Group>(coll: &Coll<'_, B>, from: usize, at: Rank<World>, bytes: usize) -> Operand {
    coll.packed(half(coll, from), at, bytes, coll.plan.flag(coll.exchanges))
}

/// Where member `from` writes in this exchange, in anybody's inbox.
#[inline(always)]
fn half<B: Group>(coll: &Coll<'_, B>, from: usize) -> Sym<u8> {
    coll.plan.inbox(coll.memory, (coll.exchanges % 2) as usize).of(from)
}

/// Where the flags have wrapped around: writes the rest of this member's half of each other member's inbox. In its own, whoever looks for
/// packets has sent them.
#[inline(always)]
#[track_caller]
pub(crate) fn clean_all<B: Group>(coll: &Coll<'_, B>, bytes: usize) {
    if coll.plan.cleans(coll.exchanges, 2) {
        for i in 1..coll.n() {
            clean(coll, coll.after(i), bytes);
        }
    }
}

#[cfg_attr(target_arch = "nvptx64", inline(never))]
#[track_caller]
fn clean<B: Group>(coll: &Coll<'_, B>, to: Rank<World>, bytes: usize) {
    let behind = half(coll, coll.me()).slice(packets(coll, coll.me(), to, bytes).extent()..).cast::<u64>();
    coll.ctx().start_fill_at(coll.group(), behind.at(to), coll.plan.flag(coll.exchanges).into());
}

/// Sends the same to all others.
#[inline(always)]
#[track_caller]
pub(crate) fn to_others<T: Pod, B: Group>(coll: &Coll<'_, B>, own: Sym<T>) {
    let to = operands(coll.n() - 1, |i| packets(coll, coll.me(), coll.after(i + 1), own.bytes()));
    coll.transfer(own.bytes(), to, coll.only(own));
}

/// Everybody's elements, in rank order: packets, and this member's own as they are.
#[inline(always)]
#[track_caller]
pub(crate) fn of_all<'s, T: Pod, B: Group>(coll: &'s Coll<'_, B>, own: Sym<T>) -> impl Operands + use<'s, T, B> {
    operands(coll.n(), move |i| {
        let (memory, form) = if i == coll.me() { (own.cast(), PLAIN) } else { (half(coll, i), coll.form) };
        let flag = coll.plan.flag(coll.exchanges);
        coll.ctx().in_form(memory.at(coll.own()), own.bytes(), form, flag).from_pe(coll.rank(i).pe())
    })
}

/// [`all_reduce`].
pub static ALL_REDUCE: Descriptor = described(Collective::AllReduce, |call| {
    let all = (call.n - 1.0) * call.bytes;
    Work { hops: 1.0, moved: all, reduced: all, ..Work::NONE }
})
.scheduled(|schedule| schedule.packets(EXCHANGE, schedule.share()));

/// [`reduce_scatter`].
pub static REDUCE_SCATTER: Descriptor =
    described(Collective::ReduceScatter, |call| Work { reduced: call.others, ..parts(call) });

/// [`all_gather`].
pub static ALL_GATHER: Descriptor = described(Collective::AllGather, parts);

/// [`all_to_all`].
pub static ALL_TO_ALL: Descriptor = described(Collective::AllToAll, parts);

/// Packets only, and a part to each other member unless said otherwise.
const fn described(collective: Collective, work: fn(&Sizes) -> Work) -> Descriptor {
    Descriptor::new(collective, Algorithm::ONE_SHOT, &[Protocol::Ll, Protocol::Ll128], work)
        .direct_only()
        .scheduled(|schedule| schedule.packets(EXCHANGE, schedule.part(0)))
}

fn parts(call: &Sizes) -> Work {
    Work { hops: 1.0, moved: call.others, ..Work::NONE }
}
