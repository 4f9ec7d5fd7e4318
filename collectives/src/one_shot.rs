//! Everybody sends to everybody at once, in packets that carry their own flags: one hop, no signal, no barrier.
//!
//! The fastest way for a few bytes (NCCL's LL all-to-all, MSCCL++'s all-pairs). Each channel has an inbox of two halves, used in
//! turn. In an exchange every member writes to every inbox, and has read all of its own before it ends; so a member that is
//! two exchanges ahead knows that the half it writes now has been read. That needs no credits, but every exchange must be one
//! of all with all.
//!
//! Reductions combine in rank order, `((x[0] + x[1]) + ...) + x[n-1]`, with one rounding at the end. The plan's protocol is
//! LL or LL128; elements have 1, 2, 4 or 8 bytes.

use congruent_device::refuse;
use congruent_device::{Ctx, End, Ends, Group, Pod, Rank, Span, Sym, Tag, Team, ends};

use crate::call::Call;
use crate::link::packed_or_plain;
use crate::names::Operation;
use crate::plan::View;
use crate::reducer::{Keep, Reducer, Stage};
use crate::{Protocol, check};

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
/// Where the lengths differ, the buffers overlap without being the same, the plan is for another team or fewer blocks or has
/// the simple protocol, elements do not fit it, or a member is reached only through a proxy.
#[inline(always)]
#[track_caller]
pub fn all_reduce<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    dst: Sym<T>,
    src: Sym<T>,
    op: impl Reducer<T>,
    plan: &View,
) {
    check::same(dst, src);
    let call = enter(group, ctx, team, plan, Operation::AllReduceOneShot, src.bytes());
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else {
        let (to, from) = (call.mine(dst), call.mine(src));
        let most = most::<T, G>(&call);
        for start in (0..from.len()).step_by(most) {
            let (shot, range) = (Shot::new(&call), start..(start + most).min(from.len()));
            let _step = shot.step::<T>(start / most, from.len().div_ceil(most), range.len());
            let (to, from) = (to.slice(range.clone()), from.slice(range));
            Keep.fold(group, ctx, shot.to_others(group, from.len()), [from.at(call.own())], Stage::RAW);
            op.fold(group, ctx, [to.at(call.own())], shot.of_all(group, from), Stage::RAW.finish(call.n));
        }
    }
    call.leave(group);
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
pub fn reduce_scatter<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    dst: Sym<T>,
    src: Sym<T>,
    op: impl Reducer<T>,
    plan: &View,
) {
    check::part_of(src, dst, team.size(), team.me().index());
    let call = enter(group, ctx, team, plan, Operation::ReduceScatterOneShot, src.bytes());
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else {
        let part = |i| call.mine(call.part(src, i));
        let (most, len) = (most::<T, G>(&call), call.mine(dst).len());
        for start in (0..len).step_by(most) {
            let (shot, range) = (Shot::new(&call), start..(start + most).min(len));
            let _step = shot.step::<T>(start / most, len.div_ceil(most), range.len());
            for i in 1..call.n {
                let rank = call.after(i);
                shot.send(group, rank, part(rank.index()).slice(range.clone()));
            }
            let (to, own) = (call.mine(dst).slice(range.clone()), part(call.me).slice(range));
            op.fold(group, ctx, [to.at(call.own())], shot.of_all(group, own), Stage::RAW.finish(call.n));
        }
    }
    call.leave(group);
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
pub fn all_gather<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    dst: Sym<T>,
    src: Sym<T>,
    plan: &View,
) {
    let inside = check::part_of(dst, src, team.size(), team.me().index());
    let call = enter(group, ctx, team, plan, Operation::AllGatherOneShot, dst.bytes());
    let mine = call.mine(src);
    if !inside {
        ctx.copy(group, call.mine(call.part(dst, call.me)), mine);
    }
    if call.n > 1 {
        let most = most::<T, G>(&call);
        for start in (0..mine.len()).step_by(most) {
            let (shot, range) = (Shot::new(&call), start..(start + most).min(mine.len()));
            let _step = shot.step::<T>(start / most, mine.len().div_ceil(most), range.len());
            let piece = mine.slice(range.clone());
            Keep.fold(group, ctx, shot.to_others(group, piece.len()), [piece.at(call.own())], Stage::RAW);
            for i in 1..call.n {
                let rank = call.after(i);
                shot.receive(group, rank, call.mine(call.part(dst, rank.index())).slice(range.clone()));
            }
        }
    }
    call.leave(group);
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
pub fn all_to_all<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    dst: Sym<T>,
    src: Sym<T>,
    plan: &View,
) {
    check::parted(dst, src, team.size());
    let call = enter(group, ctx, team, plan, Operation::AllToAllOneShot, src.bytes());
    let part = |parts: Sym<T>, i| call.mine(call.part(parts, i));
    if dst != src {
        ctx.copy(group, part(dst, call.me), part(src, call.me));
    }
    if call.n > 1 {
        let (most, len) = (most::<T, G>(&call), part(src, 0).len());
        for start in (0..len).step_by(most) {
            let (shot, range) = (Shot::new(&call), start..(start + most).min(len));
            let _step = shot.step::<T>(start / most, len.div_ceil(most), range.len());
            // All is sent before anything is received, so that the buffers may be the same.
            for i in 1..call.n {
                let rank = call.after(i);
                shot.send(group, rank, part(src, rank.index()).slice(range.clone()));
            }
            for i in 1..call.n {
                let rank = call.after(i);
                shot.receive(group, rank, part(dst, rank.index()).slice(range.clone()));
            }
        }
    }
    call.leave(group);
}

#[inline(always)]
#[track_caller]
fn enter<'c, G: Tag>(
    group: &impl Group,
    ctx: &'c Ctx<'_>,
    team: &'c Team<'_, G>,
    plan: &View,
    operation: Operation,
    bytes: usize,
) -> Call<'c, G> {
    if plan.protocol() == Protocol::Simple {
        refuse!("one-shot algorithms need a plan over LL or LL128");
    }
    Call::enter(group, ctx, team, plan, operation, bytes)
}

/// How many elements one exchange takes.
#[inline(always)]
#[track_caller]
fn most<T: Pod, G: Tag>(call: &Call<'_, G>) -> usize {
    let most = call.view.shot_bytes() / size_of::<T>();
    if most == 0 {
        refuse!("the plan's buffer is too small for one-shot algorithms");
    }
    most
}

/// One exchange of all with all.
struct Shot<'s, 'c, G> {
    call: &'s Call<'c, G>,
    count: u64,
}

impl<'s, 'c, G: Tag> Shot<'s, 'c, G> {
    #[inline(always)]
    fn new(call: &'s Call<'c, G>) -> Self {
        let count = call.shots();
        call.set_shots(count + 1);
        Self { call, count }
    }

    /// Exchange `i` of `of`, of so many elements, as traces show it.
    #[inline(always)]
    fn step<T>(&self, i: usize, of: usize, elements: usize) -> Span<'c> {
        self.call.step("exchange", (i, of), self.call.own(), elements * size_of::<T>())
    }

    /// The packets that `from` writes at `at`.
    #[inline(always)]
    #[track_caller]
    fn packets<T: Pod>(&self, group: &impl Group, from: usize, at: Rank<G>, len: usize, writes: bool) -> End<T, G> {
        let (call, half) = (self.call, (self.count % 2) as usize);
        let place = call.view.inbox(call.channel, from, half);
        let renews = writes && call.view.renews(self.count, 2);
        let packets = packed_or_plain(call, group, place, at, len, call.view.flag(self.count), renews);
        packets.from_pe(call.team.rank(from).pe())
    }

    /// This member's packets at all others.
    #[inline(always)]
    #[track_caller]
    fn to_others<T: Pod>(&self, group: &impl Group, len: usize) -> impl Ends<T, Team = G> {
        let call = self.call;
        if call.view.renews(self.count, 2) {
            for i in 1..call.n {
                let _renewed: End<T, G> = self.packets(group, call.me, call.after(i), len, true);
            }
        }
        ends(call.n - 1, move |i| self.packets(&congruent_device::Thread, call.me, call.after(i + 1), len, false))
    }

    /// Everybody's elements, in rank order: packets, and this member's own as they are.
    #[inline(always)]
    fn of_all<T: Pod>(&self, _group: &impl Group, own: Sym<T>) -> impl Ends<T, Team = G> {
        let call = self.call;
        ends(call.n, move |i| match i == call.me {
            true => End::plain(own.at(call.own())),
            false => self.packets(&congruent_device::Thread, i, call.own(), own.len(), false),
        })
    }

    #[inline(always)]
    #[track_caller]
    fn send<T: Pod>(&self, group: &impl Group, to: Rank<G>, piece: Sym<T>) {
        let packets = self.packets::<T>(group, self.call.me, to, piece.len(), true);
        let own = [piece.at(self.call.own())];
        Keep.fold(group, self.call.ctx, [packets], own, Stage::RAW);
    }

    #[inline(always)]
    #[track_caller]
    fn receive<T: Pod>(&self, group: &impl Group, from: Rank<G>, piece: Sym<T>) {
        let packets = self.packets::<T>(group, from.index(), self.call.own(), piece.len(), false);
        Keep.fold(group, self.call.ctx, [piece.at(self.call.own())], [packets], Stage::RAW);
    }
}
