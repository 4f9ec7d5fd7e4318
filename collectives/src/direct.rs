//! Straight between the members that give and the members that get: one step, and no member passes anything on.
//!
//! All-reduce is "two-shot": member `c` reads chunk `c` of every member, combines, and writes the result to every member, so
//! each byte of a source is read once and each byte of a destination written once, between two barriers. Reductions combine in
//! rank order, `((x[0] + x[1]) + ...) + x[n-1]`, with one rounding at the end.
//!
//! Data moves by put, or by get where many read from one, so that each member's block does its own part. Reductions need
//! members that loads and stores reach.

use congruent_device::{Group, Keep, Pod, Rank, Reducer, Sym, World};

use crate::descriptor::{Descriptor, Sizes, Work};
use crate::names::Operation;
use crate::session::Coll;
use crate::step::{Link, Step};
use crate::{Algorithm, Collective, Protocol, check};

mod step {
    pub(super) const REDUCE_AND_GIVE: &str = "reduce and give";
    pub(super) const REDUCE: &str = "reduce";
    pub(super) const GIVE: &str = "give";
    pub(super) const TAKE_AND_GIVE: &str = "take and give";
    pub(super) const TAKE: &str = "take";
    pub(super) const SWAP: &str = "swap";
}

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
/// Where the lengths differ, the buffers overlap without being the same, or a
/// member is reached only through a proxy.
#[inline(always)]
#[track_caller]
pub fn all_reduce<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>) {
    check::same(dst, src);
    let _call = coll.begin(Operation::AllReduceDirect, src.bytes());
    if coll.n() == 1 {
        return coll.alone(dst, src, op);
    }
    if !src.is_empty() {
        let (to, from) = (coll.chunk(dst, coll.me()), coll.chunk(src, coll.me()));
        coll.barrier();
        {
            let _step = coll.step(step::REDUCE_AND_GIVE, (0, 1), coll.me(), from.bytes());
            let everywhere = coll.ctx().places(coll.n(), |i| to.at(coll.after(i)));
            coll.start_fold(from.bytes(), everywhere, coll.of_all(from), op, coll.n());
        }
        coll.barrier();
    }
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
pub fn reduce_scatter<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>) {
    check::part_of(src, dst, coll.n(), coll.me());
    let _call = coll.begin(Operation::ReduceScatterDirect, src.bytes());
    if coll.n() == 1 {
        return coll.alone(dst, src, op);
    }
    if !dst.is_empty() {
        let (to, from) = (coll.mine(dst), coll.mine(coll.part(src, coll.me())));
        coll.barrier();
        {
            let _step = coll.step(step::REDUCE, (0, 1), coll.me(), from.bytes());
            coll.start_fold(from.bytes(), coll.only(to), coll.of_all(from), op, coll.n());
        }
        coll.barrier();
    }
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
pub fn reduce<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>, root: usize) {
    check::same(dst, src);
    check::root(root, coll.n());
    let _call = coll.begin(Operation::ReduceDirect, src.bytes());
    if coll.n() == 1 {
        return coll.alone(dst, src, op);
    }
    if !src.is_empty() {
        let (to, from) = (coll.chunk(dst, coll.me()), coll.chunk(src, coll.me()));
        coll.barrier();
        {
            let _step = coll.step(step::REDUCE, (0, 1), root, from.bytes());
            let at_root = coll.ctx().places(1, |_| to.at(coll.rank(root)));
            coll.start_fold(from.bytes(), at_root, coll.of_all(from), op, coll.n());
        }
        coll.barrier();
    }
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
/// Where the lengths do not fit or the buffers overlap otherwise.
#[inline(always)]
#[track_caller]
pub fn all_gather<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>) {
    let inside = check::part_of(dst, src, coll.n(), coll.me());
    let _call = coll.begin(Operation::AllGatherDirect, dst.bytes());
    if !src.is_empty() {
        let (to, from) = (coll.mine(coll.part(dst, coll.me())), coll.mine(src));
        coll.barrier();
        {
            // Not to this member where its data already is where it belongs.
            let skip = if inside { 0 } else { coll.n() };
            let _step = coll.step(step::GIVE, (0, 1), coll.me(), from.bytes());
            spread(coll, to, skip, from, coll.own());
        }
        coll.barrier();
    }
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
pub fn broadcast<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, root: usize) {
    check::same(dst, src);
    check::root(root, coll.n());
    let _call = coll.begin(Operation::BroadcastDirect, src.bytes());
    if !src.is_empty() {
        let (to, from) = (coll.chunk(dst, coll.me()), coll.chunk(src, coll.me()));
        // Not to the root where it already has everything.
        let skip = if dst == src { coll.wrap(root + coll.n() - coll.me()) } else { coll.n() };
        coll.barrier();
        {
            let from_root = coll.rank(root);
            let _step = coll.step(step::TAKE_AND_GIVE, (0, 1), root, from.bytes());
            spread(coll, to, skip, from, from_root);
        }
        coll.barrier();
    }
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
pub fn scatter<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, root: usize) {
    check::root(root, coll.n());
    let inside = check::part_of(src, dst, coll.n(), coll.me());
    let _call = coll.begin(Operation::ScatterDirect, src.bytes());
    let (to, from) = (coll.mine(dst), coll.mine(coll.part(src, coll.me())));
    if coll.me() == root && !inside {
        coll.copy(to, from);
    }
    if dst.is_empty() {
    } else if coll.me() == root {
        for i in 1..coll.n() {
            coll.signal_member(coll.wrap(root + i));
        }
        for i in 1..coll.n() {
            coll.wait_member(coll.wrap(root + i));
        }
    } else {
        let _step = coll.step(step::TAKE, (0, 1), root, to.bytes());
        coll.open(Link::A, root);
        coll.wait_ready(Link::A);
        coll.ctx().get(coll.group(), to, from.at(coll.rank(root)));
        coll.signal_ready(Link::A);
        coll.close(Link::A);
    }
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
pub fn gather<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, root: usize) {
    check::root(root, coll.n());
    let inside = check::part_of(dst, src, coll.n(), coll.me());
    let _call = coll.begin(Operation::GatherDirect, dst.bytes());
    let (to, from) = (coll.mine(coll.part(dst, coll.me())), coll.mine(src));
    if coll.me() == root && !inside {
        coll.copy(to, from);
    }
    if src.is_empty() {
    } else if coll.me() == root {
        for i in 1..coll.n() {
            coll.signal_member(coll.wrap(root + i));
        }
        for i in 1..coll.n() {
            coll.wait_member(coll.wrap(root + i));
        }
    } else {
        let _step = coll.step(step::GIVE, (0, 1), root, from.bytes());
        coll.open(Link::A, root);
        coll.wait_ready(Link::A);
        coll.put(Link::A, to, from);
        coll.close(Link::A);
    }
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
/// Where the lengths differ or do not divide by `n`, the buffers overlap without being the same.
#[inline(always)]
#[track_caller]
pub fn all_to_all<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>) {
    check::parted(dst, src, coll.n());
    let _call = coll.begin(Operation::AllToAllDirect, src.bytes());
    if src.is_empty() {
        return;
    }
    coll.keep(dst, src);
    coll.keep_chunks::<T>(coll.divided(src.len()));
    coll.group().sync();
    if dst == src {
        return swap::<T, B>(coll);
    }
    let me = coll.me();
    coll.start_copy(coll.kept_chunk(coll.dst::<T>(), me), coll.kept_chunk(coll.src::<T>(), me));
    coll.barrier();
    for i in 1..coll.n {
        let to = coll.after(i as usize);
        let (dst, part) = (coll.kept_chunk(coll.dst::<T>(), coll.me()), coll.kept_chunk(coll.src::<T>(), to.index()));
        let _step = coll.step(step::GIVE, (i as usize - 1, coll.n() - 1), to.index(), part.bytes());
        coll.ctx().put_nbi(coll.group(), dst.at(to), part);
    }
    coll.ctx().await_proxy(coll.group());
    coll.barrier();
}

/// The all-to-all in place: in turn `k` the members whose ranks add up to `k` modulo `n` swap their parts, slot by slot.
#[inline(always)]
#[track_caller]
fn swap<T: Pod, B: Group>(coll: &mut Coll<'_, B>) {
    for turn in 0..coll.n {
        let peer = coll.wrap(turn as usize + coll.n() - coll.me());
        if peer == coll.me() {
            continue;
        }
        let part = coll.kept_chunk(coll.dst::<T>(), peer);
        let _step = coll.step(step::SWAP, (turn as usize, coll.n()), peer, part.bytes());
        coll.open(Link::A, peer);
        coll.group().sync();
        for round in 0.. {
            let chunk = coll.cut(coll.kept_chunk(coll.dst::<T>(), peer), round);
            if chunk.is_empty() {
                break;
            }
            coll.moves(Step::NEW.reduce().send(Link::A), chunk);
            coll.moves(Step::NEW.recv(Link::A).copy(), chunk);
        }
        // Of the group, only who signals at the end of a step still looks at the link, and on a GPU that is who opens the next one.
        coll.close(Link::A);
    }
    coll.group().sync();
}

/// Writes what is in `src` at member `from` to `dst` at all members but the one `skip` after this one, if there is one: read once,
/// where loads and stores reach all of them; otherwise fetched and put to each. The group meets in the barrier behind it.
#[inline(always)]
#[track_caller]
fn spread<T: Pod, B: Group>(coll: &Coll<'_, B>, dst: Sym<T>, skip: usize, src: Sym<T>, from: Rank<World>) {
    let (ctx, group, count) = (coll.ctx(), coll.group(), coll.n() - usize::from(skip < coll.n()));
    let to = |i| coll.after(i + usize::from(i >= skip));
    let near = ctx.reaches(from) && (0..count).all(|i| ctx.reaches(to(i)));
    if group.uniform(near.into()) == 0 {
        return fetch_and_put(coll, dst, skip, src, from);
    }
    if count > 0 {
        let all = ctx.places(count, |i| dst.at(to(i)));
        coll.start_fold(src.bytes(), all, ctx.places(1, |_| src.at(from)), Keep, 0);
    }
}

/// The same where a proxy reaches some of them: fetched and put to each.
#[cold]
#[cfg_attr(target_arch = "nvptx64", inline(never))]
#[track_caller]
fn fetch_and_put<T: Pod, B: Group>(coll: &Coll<'_, B>, dst: Sym<T>, skip: usize, src: Sym<T>, from: Rank<World>) {
    let (ctx, group) = (coll.ctx(), coll.group());
    let here = if from.index() == coll.me() {
        src
    } else {
        ctx.get(group, dst, src.at(from));
        dst
    };
    if skip > 0 && here != dst {
        ctx.copy(group, dst, here);
    }
    for i in (1..coll.n()).filter(|i| *i != skip) {
        ctx.put_nbi(group, dst.at(coll.after(i)), here);
    }
    ctx.await_proxy(group);
}

/// [`all_reduce`].
pub static ALL_REDUCE: Descriptor = described(Collective::AllReduce, |call| {
    // A link brings what its PE reads and what the others write to it; cores are busy with either once.
    Work::between_barriers(call, if call.over_links { 2.0 * call.others } else { call.bytes })
})
.direct_only()
.scheduled(|schedule| {
    schedule.read_others(step::REDUCE_AND_GIVE, schedule.chunk(schedule.me()));
    schedule.write_others(step::REDUCE_AND_GIVE, schedule.chunk(schedule.me()));
});

/// [`reduce_scatter`].
pub static REDUCE_SCATTER: Descriptor = described(Collective::ReduceScatter, parts)
    .direct_only()
    .scheduled(|schedule| schedule.read_others(step::REDUCE, schedule.part(schedule.me())));

/// [`reduce`].
pub static REDUCE: Descriptor = described(Collective::Reduce, parts).direct_only().scheduled(|schedule| {
    schedule.read_others(step::REDUCE, schedule.chunk(schedule.me()));
    schedule.plain(step::REDUCE, (0, 1), schedule.me(), schedule.call().root, schedule.chunk(schedule.me()));
});

/// [`all_gather`].
pub static ALL_GATHER: Descriptor = described(Collective::AllGather, parts)
    .scheduled(|schedule| schedule.write_others(step::GIVE, schedule.part(schedule.me())));

/// [`broadcast`].
pub static BROADCAST: Descriptor = described(Collective::Broadcast, parts).scheduled(|schedule| {
    let (me, chunk, call) = (schedule.me(), schedule.chunk(schedule.me()), *schedule.call());
    schedule.plain(step::TAKE_AND_GIVE, (0, 1), call.root, me, chunk);
    let others = (0..schedule.n()).filter(|&to| to != call.root || !call.in_place);
    others.for_each(|to| schedule.plain(step::TAKE_AND_GIVE, (0, 1), me, to, chunk));
});

/// [`scatter`].
pub static SCATTER: Descriptor = described(Collective::Scatter, at_the_root)
    .scheduled(|schedule| schedule.plain(step::TAKE, (0, 1), schedule.call().root, schedule.me(), schedule.part(0)));

/// [`gather`].
pub static GATHER: Descriptor = described(Collective::Gather, at_the_root)
    .scheduled(|schedule| schedule.plain(step::GIVE, (0, 1), schedule.me(), schedule.call().root, schedule.part(0)));

/// [`all_to_all`].
pub static ALL_TO_ALL: Descriptor = described(Collective::AllToAll, parts).scheduled(|schedule| {
    let (n, me, in_place) = (schedule.n(), schedule.me(), schedule.call().in_place);
    for i in 1..n {
        let to = schedule.wrap(me + i);
        // In place, in the round of the two ranks' sum.
        let (name, step) =
            if in_place { (step::SWAP, (schedule.wrap(me + to), n)) } else { (step::GIVE, (i - 1, n - 1)) };
        schedule.plain(name, step, me, to, schedule.part(to));
    }
});

const fn described(collective: Collective, work: fn(&Sizes) -> Work) -> Descriptor {
    Descriptor::new(collective, Algorithm::DIRECT, &[Protocol::Simple], work)
}

/// Each member reads or writes its part of all buffers, and combines while it reads.
fn parts(call: &Sizes) -> Work {
    Work::between_barriers(call, call.others)
}

/// All parts but its own pass the root's link.
fn at_the_root(call: &Sizes) -> Work {
    Work { hops: 2.0, posts: call.n - 2.0, moved: call.others, ..Work::NONE }
}
