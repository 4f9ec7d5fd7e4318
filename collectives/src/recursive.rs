//! Between partners at distances 1, 2, 4, ...: a logarithm of the team in steps, and every member in each of them.
//!
//! All-reduce of what fits one piece is recursive doubling: partners exchange all they have and both combine it. Of more it is
//! recursive halving and doubling (Rabenseifner, 2004): partners exchange the halves that the other keeps on with, and after
//! the last step everything goes back the same way. Both combine in the same order. Reduce-scatter is the halving alone, and
//! all-gather goes by dissemination (Bruck and others, 1997), so that all of it lands where it belongs.
//!
//! Where the team is no power of two, `p` is the next lower one and `e = n - p`: in reductions each of the first `e` odd ranks
//! gives its data to the even rank before it, which takes part for both.
//!
//! # Order of summation
//! Of two partial results, that of the lower ranks comes first. All-reduce pairs at distance 1 first, so sums are of
//! neighbours and in rank order: for eight `((x0 + x1) + (x2 + x3)) + ((x4 + x5) + (x6 + x7))`, for six
//! `((x0 + x1) + (x2 + x3)) + (x4 + x5)`. Reduce-scatter pairs at distance `p/2` first, so that what stays together is
//! contiguous: for eight `((x0 + x4) + (x2 + x6)) + ((x1 + x5) + (x3 + x7))`; its operator is commutative. Partial results are
//! rounded to the element's type at each step.

use congruent_device::{Ctx, Group, Pod, Sym, Tag, Team};

use crate::call::Call;
use crate::link::{Incoming, Link, Outgoing};
use crate::names::Operation;
use crate::pairs::{Pairs, Role, Step, kept};
use crate::plan::View;
use crate::reducer::{Keep, Reducer, Stage};
use crate::{check, scratch};

/// Combines the members' `src` element by element with `op`, and gives every member the result in `dst`.
///
/// # Collective
/// Over the team; `dst` may be `src`. A member that takes part sends `log2 p` times a block's share that fits one piece, and
/// of a longer one `2 (p-1)/p` of its bytes; it sends the whole once more to the odd rank after it where there are two for one,
/// and that one sends it once.
///
/// # Ordering
/// What a member stored to `src` before, in this block or before this kernel, is combined; on return this block's share of
/// `dst` is complete, and `src` and `dst` may be overwritten.
///
/// # Panics
/// Where the lengths differ, the buffers overlap without being the same, or the plan is for another team or fewer blocks.
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
    let call = Call::enter(group, ctx, team, plan, Operation::AllReduceRecursive, src.bytes());
    let (from, to) = (call.mine(src), call.mine(dst));
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else if !from.is_empty() {
        let pairs = Pairs::new(call.n);
        let (role, steps) = (pairs.role(call.me), pairs.steps());
        let whole = from.len() <= Link::<G>::most::<T>(&call);
        let kept = |buf: Sym<T>, core, steps| if whole { buf } else { kept(buf, core, steps) };
        let none = to.slice(..0);
        for step in pairs.schedule(if whole { 0 } else { steps }) {
            let exchange = match (step, role) {
                (Step::FoldIn, Role::Extra) => Exchange::swap("fold in", (0, 1), call.me - 1, from, none),
                (Step::FoldIn, Role::Core(_, Some(extra))) => {
                    Exchange::combine("fold in", (0, 1), extra, none, from, to, true, Stage::RAW)
                }
                (Step::Reduce(step), Role::Core(core, extra)) => {
                    let partner = core ^ (1 << step);
                    let own = if step == 0 && extra.is_none() { from } else { to };
                    Exchange::combine(
                        "reduce",
                        (step, steps),
                        pairs.rank(partner),
                        kept(own, partner, step + 1),
                        kept(own, core, step + 1),
                        kept(to, core, step + 1),
                        core < partner,
                        pairs.stage(core, partner, step == 0, step + 1 == steps),
                    )
                }
                (Step::Gather(step), Role::Core(core, _)) => {
                    let undone = steps - 1 - step;
                    let partner = core ^ (1 << undone);
                    let (have, lack) = (kept(to, core, undone + 1), kept(to, partner, undone + 1));
                    Exchange::swap("all-gather", (step, steps), pairs.rank(partner), have, lack)
                }
                (Step::FoldOut, Role::Core(_, Some(extra))) => Exchange::swap("fold out", (0, 1), extra, to, none),
                (Step::FoldOut, Role::Extra) => Exchange::swap("fold out", (0, 1), call.me - 1, none, to),
                _ => continue,
            };
            exchange.run(&call, group, op);
        }
    }
    call.leave(group);
}

/// Combines the members' `src` element by element with `op`, and gives member `i` part `i` of the result in `dst`: `src` is
/// `n` times as long as `dst`.
///
/// # Collective
/// Over the team; `dst` may be part `me` of `src`. Each member sends `(n-1)/n` of the source's bytes where `n` is a power of
/// two. Otherwise an odd rank that is folded into another sends the source once; the others send the parts of all members
/// but those they take part for, and for two that of the odd rank at the end.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// Where the lengths do not fit or the buffers overlap otherwise, and where the plan is for another team or fewer blocks or
/// its buffer has no room for an element of each member.
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
    let call = Call::enter(group, ctx, team, plan, Operation::ReduceScatterRecursive, src.bytes());
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else {
        let scratch = scratch::whole(&call);
        let most = scratch::each::<T>(scratch.bytes(), call.n);
        let mine = call.mine(dst);
        for start in (0..mine.len()).step_by(most) {
            let range = start..(start + most).min(mine.len());
            let parts = scratch.slice(..call.n * range.len() * size_of::<T>()).cast::<T>();
            for i in 0..call.n {
                ctx.copy(group, call.part(parts, i), call.mine(call.part(src, i)).slice(range.clone()));
            }
            scatter(&call, group, parts, mine.slice(range), op);
        }
    }
    call.leave(group);
}

/// Reduce-scatter of `parts`, which are overwritten.
#[inline(always)]
#[track_caller]
fn scatter<T: Pod, G: Tag>(call: &Call<'_, G>, group: &impl Group, parts: Sym<T>, dst: Sym<T>, op: impl Reducer<T>) {
    let pairs = Pairs::new(call.n);
    let (role, steps) = (pairs.role(call.me), pairs.steps());
    let none = parts.slice(..0);
    let of = |first, count| parts.slice(pairs.rank(first) * dst.len()..pairs.rank(first + count) * dst.len());
    for step in pairs.schedule(0) {
        let exchange = match (step, role) {
            (Step::FoldIn, Role::Extra) => Exchange::swap("fold in", (0, 1), call.me - 1, parts, none),
            (Step::FoldIn, Role::Core(_, Some(extra))) => {
                Exchange::combine("fold in", (0, 1), extra, none, parts, parts, true, Stage::RAW)
            }
            (Step::Reduce(step), Role::Core(core, _)) => {
                // The parts of `count` cores from `keep` on are still to be reduced here after this step.
                let count = pairs.cores >> (step + 1);
                let (partner, keep) = (core ^ count, core & !(count - 1));
                let (give, own) = (of(keep ^ count, count), of(keep, count));
                let stage = pairs.stage(core, partner, step == 0, count == 1);
                let peer = pairs.rank(partner);
                Exchange::combine("reduce", (step, steps), peer, give, own, own, core < partner, stage)
            }
            (Step::FoldOut, Role::Core(_, Some(extra))) => {
                Exchange::swap("fold out", (0, 1), extra, call.part(parts, extra), none)
            }
            (Step::FoldOut, Role::Extra) => Exchange::swap("fold out", (0, 1), call.me - 1, none, dst),
            _ => continue,
        };
        exchange.run(call, group, op);
    }
    if let Role::Core(..) = role {
        call.ctx.copy(group, dst, call.part(parts, call.me));
    }
}

/// Gives every member every member's `src` in `dst`, in rank order: `dst` is `n` times as long as `src`. In step `k` each
/// member gives what it has to the one at distance `2^k` after it.
///
/// # Collective
/// Over the team; `src` may be part `me` of `dst`. Each member sends `(n-1)/n` of the destination's bytes.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// Where the lengths do not fit or the buffers overlap otherwise, and where the plan is for another team or fewer blocks.
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
    let call = Call::enter(group, ctx, team, plan, Operation::AllGatherRecursive, dst.bytes());
    let part = |i| call.mine(call.part(dst, i));
    if !inside {
        ctx.copy(group, part(call.me), call.mine(src));
    }
    if call.n > 1 && !src.is_empty() {
        // All are there: from now on every `dst` may be written.
        call.meet(group);
        let steps = call.n.next_power_of_two().trailing_zeros() as usize;
        for step in 0..steps {
            let have = 1 << step;
            let gives = have.min(call.n - have);
            let (to, from) = (call.after(have), call.after(call.n - have));
            let _step = call.step("all-gather", (step, steps), to, gives * part(0).bytes());
            // The last put signals for all of them.
            for back in 1..gives {
                let piece = part(call.wrap(call.me + call.n - back));
                ctx.put(group, piece.at(to), piece);
            }
            let mut way = Outgoing::open(&call, to);
            way.put(group, part(call.me), part(call.me));
            way.close(group);
            let mut way = Incoming::open(&call, from);
            way.hear(group);
            way.close(group);
        }
    }
    call.leave(group);
}

/// What goes to a partner, and what becomes of what comes from it.
struct Exchange<T> {
    name: &'static str,
    step: (usize, usize),
    peer: usize,
    give: Sym<T>,
    to: Sym<T>,
    /// Combined with what arrives; empty where nothing is.
    own: Sym<T>,
    /// Whether this member's comes first.
    lower: bool,
    stage: Stage,
}

impl<T: Pod> Exchange<T> {
    /// Sends `give`, and receives to `to`.
    #[inline(always)]
    fn swap(name: &'static str, step: (usize, usize), peer: usize, give: Sym<T>, to: Sym<T>) -> Self {
        Self { name, step, peer, give, to, own: Sym::empty(), lower: false, stage: Stage::RAW }
    }

    /// Sends `give`, and combines `own` with what arrives to `to`.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "a step has as many parts")]
    fn combine(
        name: &'static str,
        step: (usize, usize),
        peer: usize,
        give: Sym<T>,
        own: Sym<T>,
        to: Sym<T>,
        lower: bool,
        stage: Stage,
    ) -> Self {
        Self { name, step, peer, give, to, own, lower, stage }
    }

    /// Does it, piece by piece in turn: neither waits for the other with a full queue.
    #[inline(always)]
    #[track_caller]
    fn run<G: Tag>(self, call: &Call<'_, G>, group: &impl Group, op: impl Reducer<T>) {
        let peer = call.team.rank(self.peer);
        let _step = call.step(self.name, self.step, peer, self.give.bytes());
        let mut link = Link::open(call, peer);
        let most = Link::<G>::most::<T>(call);
        for start in (0..self.give.len().max(self.to.len())).step_by(most) {
            if start < self.give.len() {
                link.pass(group, self.give.slice(start..(start + most).min(self.give.len())));
            }
            if start < self.to.len() {
                let range = start..(start + most).min(self.to.len());
                let to = [self.to.slice(range.clone()).at(call.own())];
                let input = link.input(group, range.len());
                if self.own.is_empty() {
                    Keep.fold(group, call.ctx, to, [input], Stage::RAW);
                } else {
                    let own = self.own.slice(range).at(call.own()).into();
                    let src = if self.lower { [own, input] } else { [input, own] };
                    op.fold(group, call.ctx, to, src, self.stage);
                }
                link.release(group);
            }
        }
        link.close(group);
    }
}
