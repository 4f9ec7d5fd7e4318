//! The ring: each member talks to its two neighbours only, and every link carries its share all the time.
//!
//! All-reduce is a reduce-scatter and an all-gather (Patarasuk and Yuan, 2009). The buffer has one chunk per member. In the
//! reduce-scatter, the partial sum of chunk `c` starts at member `c + 1` and goes round, each member adding its own, until
//! member `c` has the whole; in the all-gather, finished chunks go round once more. A long buffer goes round several times, each
//! time with a slot's worth of every chunk.
//!
//! Element `i` of chunk `c` is `((x[c+1] + x[c+2]) + ...) + x[c]`, member numbers modulo `n`, partial sums rounded to the
//! element's type at each member. [`reduce`] has one chunk, whose `c` is the root.

use congruent_device::{Group, Pod, Reducer, Sym};

use crate::descriptor::{Descriptor, Sizes, Work};
use crate::names::Operation;
use crate::schedule::Schedule;
use crate::session::Coll;
use crate::share::Share;
use crate::step::{Link, Step};
use crate::{Algorithm, Collective, Protocol, check};

/// The neighbours' links.
const LEFT: Link = Link::A;
const RIGHT: Link = Link::B;

const SEND: Step = Step::NEW.reduce().send(RIGHT);
const RECV_REDUCE_SEND: Step = Step::NEW.recv(LEFT).reduce().send(RIGHT);
const RECV_REDUCE_COPY: Step = Step::NEW.recv(LEFT).reduce().copy().finish();
const RECV_REDUCE_COPY_SEND: Step = RECV_REDUCE_COPY.direct_send(RIGHT);
const COPY_SEND: Step = Step::NEW.direct_send(RIGHT);
const RECV_COPY_SEND: Step = Step::NEW.direct_recv(LEFT).copy().direct_send(RIGHT);
const RECV_COPY: Step = Step::NEW.direct_recv(LEFT).copy();

mod step {
    pub(super) const SCATTER: &str = "scatter-reduce";
    pub(super) const GATHER: &str = "all-gather";
    pub(super) const BROADCAST: &str = "broadcast";
    pub(super) const REDUCE: &str = "reduce";
}

/// Combines the members' `src` element by element with `op`, and gives every member the result in `dst`.
///
/// # Collective
/// Over the team; `dst` may be `src`. Each member sends `2 (n-1)/n` of the buffer's bytes.
///
/// # Ordering
/// What a member stored to `src` before, in this block or before this kernel, is combined; on return this block's share of
/// `dst` is complete, and `src` and `dst` may be overwritten.
///
/// # Panics
/// Where the lengths differ, the buffers overlap without being the same.
#[inline(always)]
#[track_caller]
pub fn all_reduce<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>) {
    check::same(dst, src);
    let _call = coll.begin(Operation::AllReduceRing, src.bytes());
    if coll.n() == 1 {
        return coll.alone(dst, src, op);
    }
    coll.keep_chunks::<T>(Share::largest::<T>(src.len(), coll.n()));
    open(coll, dst, src);
    let mut round = 0;
    while coll.has_round(coll.src::<T>(), round) {
        let from = |coll: &Coll<'_, B>, back| coll.chunk_in(coll.src::<T>(), back, round);
        let to = |coll: &Coll<'_, B>, back| coll.chunk_in(coll.dst::<T>(), back, round);
        scatter(coll, from, to, RECV_REDUCE_COPY_SEND, op);
        gather(coll, to);
        round += 1;
    }
    close(coll);
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
/// Where the lengths do not fit or the buffers overlap otherwise.
#[inline(always)]
#[track_caller]
pub fn reduce_scatter<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>) {
    check::part_of(src, dst, coll.n(), coll.me());
    let _call = coll.begin(Operation::ReduceScatterRing, src.bytes());
    if coll.n() == 1 {
        return coll.alone(dst, src, op);
    }
    coll.keep_chunks::<T>(dst.len());
    open(coll, dst, src);
    let mut round = 0;
    while coll.has_round(coll.src::<T>(), round) {
        let from = |coll: &Coll<'_, B>, back| coll.chunk_in(coll.src::<T>(), back, round);
        scatter(coll, from, |coll, _| coll.cut(coll.mine(coll.dst::<T>()), round as usize), RECV_REDUCE_COPY, op);
        round += 1;
    }
    close(coll);
}

/// Gives every member every member's `src` in `dst`, in rank order: `dst` is `n` times as long as `src`.
///
/// # Collective
/// Over the team; `src` may be part `me` of `dst`. Each member sends `(n-1)/n` of the destination's bytes.
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
    let _call = coll.begin(Operation::AllGatherRing, dst.bytes());
    if !inside {
        coll.copy(coll.mine(coll.part(dst, coll.me())), coll.mine(src));
    }
    if coll.n() > 1 {
        coll.ready(Some(coll.before(1)), Some(coll.wrap(coll.me() + 1)));
        coll.keep_chunks::<T>(src.len());
        open(coll, dst, src);
        let mut round = 0;
        while coll.has_round(coll.dst::<T>(), round) {
            let chunk = |coll: &Coll<'_, B>, back| coll.chunk_in(coll.dst::<T>(), back, round);
            let own = chunk(coll, 0);
            coll.moves(COPY_SEND, own);
            gather(coll, chunk);
            round += 1;
        }
        close(coll);
    }
}

/// Gives every member the `src` of member `root` in `dst`, chunk by chunk along the ring.
///
/// # Collective
/// Over the team; `dst` may be `src`, and only the root's `src` is read. Each member but the last sends the buffer once.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// Where `root` is no member, and as [`all_reduce`].
#[inline(always)]
#[track_caller]
pub fn broadcast<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, root: usize) {
    check::same(dst, src);
    check::root(root, coll.n());
    let _call = coll.begin(Operation::BroadcastRing, src.bytes());
    let is_root = coll.me() == root;
    if is_root && dst != src {
        coll.copy(coll.mine(dst), coll.mine(src));
    }
    if coll.n() > 1 {
        let (left, right) = (coll.before(1), coll.wrap(coll.me() + 1));
        let is_last = right == root;
        coll.ready((!is_root).then_some(left), (!is_last).then_some(right));
        open(coll, dst, src);
        let rounds = coll.rounds_of(dst);
        for round in 0..rounds {
            let chunk = coll.cut(coll.mine(coll.dst::<T>()), round);
            let _step = coll.step(step::BROADCAST, (round, rounds), coll.wrap(coll.me() + 1), chunk.bytes());
            let step = if is_root {
                COPY_SEND
            } else if is_last {
                RECV_COPY
            } else {
                RECV_COPY_SEND
            };
            coll.moves(step, chunk);
        }
        close(coll);
    }
}

/// Combines the members' `src` element by element with `op`, and gives the result to member `root` in `dst`, chunk by chunk
/// along the ring.
///
/// # Collective
/// Over the team; `dst` may be `src`, and only the root's `dst` is written. Each member but the root sends the buffer once.
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
    let _call = coll.begin(Operation::ReduceRing, src.bytes());
    if coll.n() == 1 {
        return coll.alone(dst, src, op);
    }
    open(coll, dst, src);
    let (is_first, is_root) = (coll.wrap(root + 1) == coll.me(), coll.me() == root);
    let rounds = coll.rounds_of(src);
    for round in 0..rounds {
        let (from, to) = (coll.cut(coll.mine(coll.src::<T>()), round), coll.cut(coll.mine(coll.dst::<T>()), round));
        let _step = coll.step(step::REDUCE, (round, rounds), coll.wrap(coll.me() + 1), from.bytes());
        let step = if is_root {
            RECV_REDUCE_COPY
        } else if is_first {
            SEND
        } else {
            RECV_REDUCE_SEND
        };
        coll.step_of(step, to, from, op);
    }
    close(coll);
}

/// One round of the reduce-scatter: a chunk's partial sum starts at the member after the one that it is for, and ends there by
/// `last`. Of two members or more: what a GPU keeps in a register, to bring a loop's threads together again, it keeps twice where the loop
/// may not run at all.
#[inline(always)]
#[track_caller]
fn scatter<T: Pod, B: Group>(
    coll: &mut Coll<'_, B>,
    from: impl Fn(&Coll<'_, B>, u32) -> Sym<T>,
    to: impl Fn(&Coll<'_, B>, u32) -> Sym<T>,
    last: Step,
    op: impl Reducer<T>,
) {
    let mut back = 1;
    loop {
        let src = from(coll, back);
        let part = (back as usize - 1, coll.n() - 1);
        let _step = coll.step(step::SCATTER, part, coll.wrap(coll.me() + 1), src.bytes());
        coll.step_of(if back == 1 { SEND } else { RECV_REDUCE_SEND }, src, src, op);
        back += 1;
        if back == coll.n {
            break;
        }
    }
    let src = from(coll, coll.n);
    coll.step_of(last, to(coll, coll.n), src, op);
}

/// One round of the all-gather, once this member's own chunk is on its way. Of two members or more, as [`scatter`].
#[inline(always)]
#[track_caller]
fn gather<T: Pod, B: Group>(coll: &mut Coll<'_, B>, chunk: impl Fn(&Coll<'_, B>, u32) -> Sym<T>) {
    let mut back = 1;
    loop {
        let dst = chunk(coll, back);
        let part = (back as usize - 1, coll.n() - 1);
        let _step = coll.step(step::GATHER, part, coll.wrap(coll.me() + 1), dst.bytes());
        coll.moves(if back < coll.n - 1 { RECV_COPY_SEND } else { RECV_COPY }, dst);
        back += 1;
        if back == coll.n {
            break;
        }
    }
}

#[inline(always)]
#[track_caller]
fn open<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>) {
    coll.keep(dst, src);
    coll.open(LEFT, coll.before(1));
    coll.open(RIGHT, coll.wrap(coll.me() + 1));
    coll.group().sync();
}

#[inline(always)]
#[track_caller]
fn close<B: Group>(coll: &mut Coll<'_, B>) {
    coll.close_receiver(LEFT);
    coll.close_sender(RIGHT);
    coll.group().sync();
}

/// [`all_reduce`].
pub static ALL_REDUCE: Descriptor = described(Collective::AllReduce, |call| round(call) + adding_round(call))
    .scheduled(|schedule| {
        schedule_round(schedule, step::SCATTER, 1, Schedule::chunk);
        schedule_round(schedule, step::GATHER, 0, Schedule::chunk);
    });

/// [`reduce_scatter`].
pub static REDUCE_SCATTER: Descriptor = described(Collective::ReduceScatter, adding_round)
    .scheduled(|schedule| schedule_round(schedule, step::SCATTER, 1, Schedule::part));

/// [`all_gather`].
pub static ALL_GATHER: Descriptor = described(Collective::AllGather, round)
    .scheduled(|schedule| schedule_round(schedule, step::GATHER, 0, Schedule::part));

/// [`broadcast`].
pub static BROADCAST: Descriptor = described(Collective::Broadcast, chain).scheduled(|schedule| {
    schedule_chain(schedule, step::BROADCAST, schedule.wrap(schedule.me() + 1) != schedule.call().root)
});

/// [`reduce`].
pub static REDUCE: Descriptor = described(Collective::Reduce, |call| Work { reduced: call.bytes, ..chain(call) })
    .scheduled(|schedule| schedule_chain(schedule, step::REDUCE, schedule.me() != schedule.call().root));

const fn described(collective: Collective, work: fn(&Sizes) -> Work) -> Descriptor {
    Descriptor { queued: true, own_scalars: true, ..Descriptor::new(collective, Algorithm::RING, Protocol::ALL, work) }
}

/// Every chunk but one's own goes on.
fn round(call: &Sizes) -> Work {
    Work { hops: call.n - 1.0, moved: call.others, ..Work::NONE }
}

fn adding_round(call: &Sizes) -> Work {
    Work { reduced: call.others, ..round(call) }
}

/// A pipeline: the last member has the last chunk when it has gone all the way.
fn chain(call: &Sizes) -> Work {
    Work { hops: call.n - 1.0, posts: call.chunks, moved: call.bytes + (call.n - 2.0) * call.chunk, ..Work::NONE }
}

/// Chunk by chunk to the right, from the one so many before this member's own.
fn schedule_round<'t>(
    schedule: &mut Schedule<'t>,
    name: &'static str,
    back: usize,
    chunk: fn(&Schedule<'t>, usize) -> usize,
) {
    let (n, me) = (schedule.n(), schedule.me());
    for step in 0..n - 1 {
        let bytes = chunk(schedule, schedule.wrap(me + 2 * n - back - step));
        schedule.queued(name, (step, n - 1), schedule.wrap(me + 1), bytes);
    }
}

/// Everything to the right, from all members but the last.
fn schedule_chain(schedule: &mut Schedule<'_>, name: &'static str, sends: bool) {
    if sends {
        schedule.queued(name, (0, 1), schedule.wrap(schedule.me() + 1), schedule.share());
    }
}
