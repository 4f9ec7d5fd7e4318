//! Straight between the members that give and the members that get: one step, and no member passes anything on.
//!
//! All-reduce is "two-shot": member `c` reads chunk `c` of every member, combines, and writes the result to every member, so
//! each byte of a source is read once and each byte of a destination written once, between two barriers. Reductions combine in
//! rank order, `((x[0] + x[1]) + ...) + x[n-1]`, with one rounding at the end.
//!
//! Data moves by put, or by get where many read from one, so that each member's block does its own part. Reductions need
//! members that loads and stores reach.

use congruent_device::{Ctx, End, Group, Pod, Rank, Sym, Tag, Team, ends};

use crate::call::Call;
use crate::check;
use crate::link::Link;
use crate::names::Operation;
use crate::plan::View;
use crate::reducer::{Keep, Reducer, Stage};
use crate::share::Share;

/// Combines the members' `src` element by element with `op`, and gives every member the result in `dst`.
///
/// # Collective
/// Over the team; `dst` may be `src`. Each member reads `(n-1)/n` of the buffer's bytes and writes as many.
///
/// # Ordering
/// What a member stored to `src` before, in this block or before this kernel, is combined; on return this block's share of
/// `dst` is complete, and `src` and `dst` may be overwritten.
///
/// # Panics
/// Where the lengths differ, the buffers overlap without being the same, the plan is for another team or fewer blocks, or a
/// member is reached only through a proxy.
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
    let call = Call::enter(group, ctx, team, plan, Operation::AllReduceDirect, src.bytes());
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else if !src.is_empty() {
        let chunk = |buf: Sym<T>| call.mine(Share::new(call.me, call.n).of(buf));
        call.meet(group);
        {
            let _step = call.step("reduce and give", (0, 1), call.own(), chunk(src).bytes());
            let everywhere = ends(call.n, |i| chunk(dst).at(call.after(i)).into());
            op.fold(group, ctx, everywhere, of_all(&call, chunk(src)), Stage::RAW.finish(call.n));
        }
        call.meet(group);
    }
    call.leave(group);
}

/// Combines the members' `src` element by element with `op`, and gives member `i` part `i` of the result in `dst`: `src` is
/// `n` times as long as `dst`.
///
/// # Collective
/// Over the team; `dst` may be part `me` of `src`. Each member reads `(n-1)/n` of the source's bytes.
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
    let call = Call::enter(group, ctx, team, plan, Operation::ReduceScatterDirect, src.bytes());
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else if !dst.is_empty() {
        let mine = call.mine(call.part(src, call.me));
        call.meet(group);
        {
            let _step = call.step("reduce", (0, 1), call.own(), mine.bytes());
            let own = [call.mine(dst).at(call.own())];
            op.fold(group, ctx, own, of_all(&call, mine), Stage::RAW.finish(call.n));
        }
        call.meet(group);
    }
    call.leave(group);
}

/// Combines the members' `src` element by element with `op`, and gives the result to member `root` in `dst`.
///
/// # Collective
/// Over the team; `dst` may be `src`, and only the root's `dst` is written. Each member reads `(n-1)/n` of the buffer's bytes
/// and writes `1/n` to the root.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// Where `root` is no member, and as [`all_reduce`].
#[inline(always)]
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "each of them is the caller's to choose")]
pub fn reduce<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    dst: Sym<T>,
    src: Sym<T>,
    op: impl Reducer<T>,
    root: usize,
    plan: &View,
) {
    check::same(dst, src);
    check::root(root, team.size());
    let call = Call::enter(group, ctx, team, plan, Operation::ReduceDirect, src.bytes());
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else if !src.is_empty() {
        let chunk = |buf: Sym<T>| call.mine(Share::new(call.me, call.n).of(buf));
        call.meet(group);
        {
            let _step = call.step("reduce", (0, 1), team.rank(root), chunk(src).bytes());
            let there = [chunk(dst).at(team.rank(root))];
            op.fold(group, ctx, there, of_all(&call, chunk(src)), Stage::RAW.finish(call.n));
        }
        call.meet(group);
    }
    call.leave(group);
}

/// Gives every member every member's `src` in `dst`, in rank order: `dst` is `n` times as long as `src`.
///
/// # Collective
/// Over the team; `src` may be part `me` of `dst`. Each member reads its `src` once and puts it to `n-1` others.
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
    let call = Call::enter(group, ctx, team, plan, Operation::AllGatherDirect, dst.bytes());
    let (mine, to) = (call.mine(src), call.mine(call.part(dst, call.me)));
    if !src.is_empty() {
        call.meet(group);
        // From this member on, or from the next where its data already is where it belongs.
        let first = usize::from(inside);
        let _step = call.step("give", (0, 1), call.own(), mine.bytes());
        spread(&call, group, to, call.n - first, |i| call.after(first + i), mine, call.own());
        call.meet(group);
    }
    call.leave(group);
}

/// Gives every member the `src` of member `root` in `dst`: member `c` reads chunk `c` and writes it to all, so that all
/// members' blocks work.
///
/// # Collective
/// Over the team; `dst` may be `src`, and only the root's `src` is read. Each member reads `1/n` of the buffer's bytes from
/// the root, and writes `(n-1)/n` of them.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// Where `root` is no member, and where the lengths differ, the buffers overlap without being the same, or the plan is for
/// another team or fewer blocks.
#[inline(always)]
#[track_caller]
pub fn broadcast<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    dst: Sym<T>,
    src: Sym<T>,
    root: usize,
    plan: &View,
) {
    check::same(dst, src);
    check::root(root, team.size());
    let call = Call::enter(group, ctx, team, plan, Operation::BroadcastDirect, src.bytes());
    if !src.is_empty() {
        let chunk = |buf: Sym<T>| call.mine(Share::new(call.me, call.n).of(buf));
        let (to, from) = (chunk(dst), chunk(src));
        // All but the root, which comes last, where it already has everything.
        let count = call.n - usize::from(dst == src);
        let place = call.wrap(call.me + call.n - 1 - root);
        let nth = |i| if place + i < count { place + i } else { place + i - count };
        call.meet(group);
        {
            let _step = call.step("take and give", (0, 1), team.rank(root), from.bytes());
            spread(&call, group, to, count, |i| team.rank(call.wrap(root + 1 + nth(i))), from, team.rank(root));
        }
        call.meet(group);
    }
    call.leave(group);
}

/// Gives member `i` part `i` of the `src` of member `root` in `dst`: `src` is `n` times as long as `dst`.
///
/// # Collective
/// Over the team; the root's `dst` may be its part of `src`, and only the root's `src` is read, but all give one of the right
/// length. Each member but the root gets its part.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// As [`broadcast`].
#[inline(always)]
#[track_caller]
pub fn scatter<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    dst: Sym<T>,
    src: Sym<T>,
    root: usize,
    plan: &View,
) {
    check::root(root, team.size());
    let inside = check::part_of(src, dst, team.size(), team.me().index());
    let call = Call::enter(group, ctx, team, plan, Operation::ScatterDirect, src.bytes());
    let (mine, from) = (call.mine(dst), call.mine(call.part(src, call.me)));
    if call.me == root && !inside {
        ctx.copy(group, mine, from);
    }
    if !dst.is_empty() {
        fetched(&call, group, root, |root| ctx.get(group, mine, from.at(root)));
    }
    call.leave(group);
}

/// Gives member `root` every member's `src` in `dst`, in rank order: `dst` is `n` times as long as `src`.
///
/// # Collective
/// Over the team; the root's `src` may be its part of `dst`, and only the root's `dst` is written, but all give one of the
/// right length. Each member but the root puts its `src`.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// As [`broadcast`].
#[inline(always)]
#[track_caller]
pub fn gather<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    dst: Sym<T>,
    src: Sym<T>,
    root: usize,
    plan: &View,
) {
    check::root(root, team.size());
    let inside = check::part_of(dst, src, team.size(), team.me().index());
    let call = Call::enter(group, ctx, team, plan, Operation::GatherDirect, dst.bytes());
    let (mine, to) = (call.mine(src), call.mine(call.part(dst, call.me)));
    if call.me == root && !inside {
        ctx.copy(group, to, mine);
    }
    if call.n > 1 && !src.is_empty() {
        if call.me == root {
            for i in 1..call.n {
                knock(&call, group, i);
            }
            for i in 1..call.n {
                hear(&call, group, i);
            }
        } else {
            let _step = call.step("give", (0, 1), team.rank(root), mine.bytes());
            let mut link = Link::open(&call, team.rank(root));
            link.hear(group);
            link.put(group, to, mine);
            link.close(group);
        }
    }
    call.leave(group);
}

/// Part `i` of member `j`'s `src` becomes part `j` of member `i`'s `dst`.
///
/// # Collective
/// Over the team; both buffers have one part of the same length for each member. `dst` may be `src`; then the parts are
/// exchanged pair by pair, through the plan's queues. Each member sends `(n-1)/n` of the buffer's bytes.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// Where the lengths differ or do not divide by `n`, the buffers overlap without being the same, or the plan is for another
/// team or fewer blocks.
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
    let call = Call::enter(group, ctx, team, plan, Operation::AllToAllDirect, src.bytes());
    if src.is_empty() {
    } else if dst == src {
        swap(&call, group, dst);
    } else {
        ctx.copy(group, call.mine(call.part(dst, call.me)), call.mine(call.part(src, call.me)));
        if call.n > 1 {
            call.meet(group);
            for i in 1..call.n {
                let to = call.after(i);
                let part = call.mine(call.part(src, to.index()));
                let _step = call.step("give", (i - 1, call.n - 1), to, part.bytes());
                ctx.put(group, call.mine(call.part(dst, call.me)).at(to), part);
            }
            ctx.quiet(group);
            call.meet(group);
        }
    }
    call.leave(group);
}

/// The all-to-all in place: in round `k` the members whose ranks add up to `k` modulo `n` swap their parts, piece by piece.
#[inline(always)]
#[track_caller]
fn swap<T: Pod, G: Tag>(call: &Call<'_, G>, group: &impl Group, buf: Sym<T>) {
    for round in 0..call.n {
        let peer = call.wrap(round + call.n - call.me);
        if peer == call.me {
            continue;
        }
        let part = call.mine(call.part(buf, peer));
        let mut link = Link::open(call, call.team.rank(peer));
        let _step = call.step("swap", (round, call.n), link.peer, part.bytes());
        let most = Link::<G>::most::<T>(call);
        for start in (0..part.len()).step_by(most) {
            let piece = part.slice(start..(start + most).min(part.len()));
            link.pass(group, piece);
            link.receive(group, piece);
        }
        link.close(group);
    }
}

/// The same range of every member, in rank order.
#[inline(always)]
fn of_all<'s, T: Pod, G: Tag>(
    call: &'s Call<'_, G>,
    range: Sym<T>,
) -> impl congruent_device::Ends<T, Team = G> + use<'s, T, G> {
    ends(call.n, move |i| End::plain(range.at(call.team.rank(i))))
}

/// Writes what is in `src` at member `from` to `dst` at `count` members `to`: read once, where loads and stores reach all of
/// them; otherwise fetched and put to each.
#[inline(always)]
#[track_caller]
fn spread<T: Pod, G: Tag>(
    call: &Call<'_, G>,
    group: &impl Group,
    dst: Sym<T>,
    count: usize,
    to: impl Fn(usize) -> Rank<G>,
    src: Sym<T>,
    from: Rank<G>,
) {
    let (ctx, own) = (call.ctx, call.own());
    if ctx.reaches(from) && (0..count).all(|i| ctx.reaches(to(i))) {
        if count > 0 {
            Keep.fold(group, ctx, ends(count, |i| dst.at(to(i)).into()), [src.at(from)], Stage::RAW);
        }
        return;
    }
    let here = if from == own {
        src
    } else {
        ctx.get(group, dst, src.at(from));
        dst
    };
    for i in 0..count {
        if to(i) != own {
            ctx.put(group, dst.at(to(i)), here);
        } else if here != dst {
            ctx.copy(group, dst, here);
        }
    }
    ctx.quiet(group);
}

/// The root says that its buffer is ready, the others fetch from it and say that they have.
#[inline(always)]
#[track_caller]
fn fetched<G: Tag>(call: &Call<'_, G>, group: &impl Group, root: usize, get: impl FnOnce(Rank<G>)) {
    if call.me == root {
        for i in 1..call.n {
            knock(call, group, i);
        }
        for i in 1..call.n {
            hear(call, group, i);
        }
    } else {
        let mut link = Link::open(call, call.team.rank(root));
        let _step = call.step("take", (0, 1), link.peer, 0);
        link.hear(group);
        get(link.peer);
        link.knock(group);
        link.close(group);
    }
}

/// Knocks at the member at distance `i`.
#[inline(always)]
#[track_caller]
fn knock<G: Tag>(call: &Call<'_, G>, group: &impl Group, i: usize) {
    let mut link = Link::open(call, call.after(i));
    link.knock(group);
    link.close(group);
}

/// Hears the member at distance `i`.
#[inline(always)]
#[track_caller]
fn hear<G: Tag>(call: &Call<'_, G>, group: &impl Group, i: usize) {
    let mut link = Link::open(call, call.after(i));
    link.hear(group);
    link.close(group);
}
