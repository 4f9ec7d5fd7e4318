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

use congruent_device::{Ctx, Group, Pod, Rank, Sym, Tag, Team, ends};

use crate::call::Call;
use crate::link::Link;
use crate::pairs::{Pairs, Role, kept};
use crate::plan::View;
use crate::reducer::{Reducer, Stage};
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
    let call = Call::enter(group, ctx, team, plan, "all-reduce recursive", src.bytes());
    let (from, to) = (call.mine(src), call.mine(dst));
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else if !from.is_empty() {
        let pairs = Pairs::new(call.n);
        match pairs.role(call.me) {
            Role::Extra => {
                let holder = call.team.rank(call.me - 1);
                swap(&call, group, holder, ("fold in", 0, 1), from, to.slice(..0));
                swap(&call, group, holder, ("fold out", 0, 1), to.slice(..0), to);
            }
            Role::Core(core) => {
                let steps = pairs.steps();
                let whole = from.len() <= Link::<G>::most::<T>(&call);
                let kept = |buf: Sym<T>, core, steps| if whole { buf } else { kept(buf, core, steps) };
                if let Some(extra) = pairs.extra(core) {
                    let exchange = Exchange { peer: call.team.rank(extra), give: from.slice(..0), own: from, to };
                    exchange.combine(&call, group, ("fold in", 0, 1), true, Stage::RAW, op);
                }
                for step in 0..steps {
                    let partner = core ^ (1 << step);
                    let own = if step == 0 && pairs.extra(core).is_none() { from } else { to };
                    let exchange = Exchange {
                        peer: call.team.rank(pairs.rank(partner)),
                        give: kept(own, partner, step + 1),
                        own: kept(own, core, step + 1),
                        to: kept(to, core, step + 1),
                    };
                    let stage = pairs.stage(core, partner, step == 0, step + 1 == steps);
                    exchange.combine(&call, group, ("reduce", step, steps), core < partner, stage, op);
                }
                for step in (0..if whole { 0 } else { steps }).rev() {
                    let partner = core ^ (1 << step);
                    let peer = call.team.rank(pairs.rank(partner));
                    let (have, lack) = (kept(to, core, step + 1), kept(to, partner, step + 1));
                    swap(&call, group, peer, ("all-gather", steps - 1 - step, steps), have, lack);
                }
                if let Some(extra) = pairs.extra(core) {
                    swap(&call, group, call.team.rank(extra), ("fold out", 0, 1), to, to.slice(..0));
                }
            }
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
    let call = Call::enter(group, ctx, team, plan, "reduce-scatter recursive", src.bytes());
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
    let none = parts.slice(..0);
    let Role::Core(core) = pairs.role(call.me) else {
        let holder = call.team.rank(call.me - 1);
        swap(call, group, holder, ("fold in", 0, 1), parts, none);
        return swap(call, group, holder, ("fold out", 0, 1), none, dst);
    };
    if let Some(extra) = pairs.extra(core) {
        let exchange = Exchange { peer: call.team.rank(extra), give: none, own: parts, to: parts };
        exchange.combine(call, group, ("fold in", 0, 1), true, Stage::RAW, op);
    }
    // The parts of cores `first..first + count` are still to be reduced here.
    let (mut first, mut count) = (0, pairs.cores);
    let of = |first, count| parts.slice(pairs.rank(first) * dst.len()..pairs.rank(first + count) * dst.len());
    let steps = pairs.steps();
    for step in 0..steps {
        count /= 2;
        let partner = core ^ count;
        let (keep, give) = if core < partner { (first, first + count) } else { (first + count, first) };
        let own = of(keep, count);
        let exchange = Exchange { peer: call.team.rank(pairs.rank(partner)), give: of(give, count), own, to: own };
        let stage = pairs.stage(core, partner, step == 0, count == 1);
        exchange.combine(call, group, ("reduce", step, steps), core < partner, stage, op);
        first = keep;
    }
    call.ctx.copy(group, dst, call.part(parts, call.me));
    if let Some(extra) = pairs.extra(core) {
        swap(call, group, call.team.rank(extra), ("fold out", 0, 1), call.part(parts, extra), none);
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
    let call = Call::enter(group, ctx, team, plan, "all-gather recursive", dst.bytes());
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
            let mut link = Link::open(&call, to);
            link.put(group, part(call.me), part(call.me));
            if to != from {
                link.close(group);
                link = Link::open(&call, from);
            }
            link.hear(group);
            link.close(group);
            group.sync();
        }
    }
    call.leave(group);
}

/// What goes to a partner, and what its data is combined with.
struct Exchange<T, G> {
    peer: Rank<G>,
    give: Sym<T>,
    own: Sym<T>,
    to: Sym<T>,
}

impl<T: Pod, G: Tag> Exchange<T, G> {
    /// Sends, receives as many elements as there are of its own, and combines those; with `lower`, its own come first.
    #[inline(always)]
    #[track_caller]
    fn combine(
        self,
        call: &Call<'_, G>,
        group: &impl Group,
        (name, step, steps): (&'static str, usize, usize),
        lower: bool,
        stage: Stage,
        op: impl Reducer<T>,
    ) {
        let _step = call.step(name, (step, steps), self.peer, self.give.bytes());
        piecewise(call, group, self.peer, self.give, self.own.len(), |link, range| {
            let own = self.own.slice(range.clone()).at(call.own()).into();
            let input = link.input(group, range.len());
            let src = ends(2, move |i| if (i == 0) == lower { own } else { input });
            op.fold(group, call.ctx, [self.to.slice(range).at(call.own())], src, stage);
            link.release(group);
        });
    }
}

/// Sends one range to a partner and receives another.
#[inline(always)]
#[track_caller]
fn swap<T: Pod, G: Tag>(
    call: &Call<'_, G>,
    group: &impl Group,
    peer: Rank<G>,
    (name, step, steps): (&'static str, usize, usize),
    give: Sym<T>,
    to: Sym<T>,
) {
    let _step = call.step(name, (step, steps), peer, give.bytes());
    piecewise(call, group, peer, give, to.len(), |link, range| link.receive(group, to.slice(range)));
}

/// Sends a range to a partner, and has `takes` elements from it taken, piece by piece in turn: neither waits for the other
/// with a full queue.
#[inline(always)]
#[track_caller]
fn piecewise<'l, 'c, T: Pod, G: Tag>(
    call: &'l Call<'c, G>,
    group: &impl Group,
    peer: Rank<G>,
    give: Sym<T>,
    takes: usize,
    mut take: impl FnMut(&mut Link<'l, 'c, G>, core::ops::Range<usize>),
) {
    let mut link = Link::open(call, peer);
    let most = Link::<G>::most::<T>(call);
    for start in (0..give.len().max(takes)).step_by(most) {
        if start < give.len() {
            link.pass(group, give.slice(start..(start + most).min(give.len())));
        }
        if start < takes {
            take(&mut link, start..(start + most).min(takes));
        }
    }
    link.close(group);
    // The next step may open the same link, in every thread.
    group.sync();
}
