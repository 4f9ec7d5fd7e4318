//! Between partners at distances 1, 2, 4, ...: a logarithm of the team in steps, and every member in each of them.
//!
//! All-reduce of what fits one slot is recursive doubling: partners exchange all they have and both combine it. Of more it is
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

use congruent_device::{Group, Pod, Reducer, Sym};

use crate::descriptor::{Descriptor, Sizes, Work};
use crate::names::Operation;
use crate::pairs::{self, Pairs, Role, kept};
use crate::schedule::Schedule;
use crate::session::Coll;
use crate::step::{Link, Step};
use crate::{Algorithm, Collective, Protocol, check, scratch};

const PARTNER: Link = Link::A;
const SEND: Step = Step::NEW.reduce().send(PARTNER);
const RECV: Step = Step::NEW.recv(PARTNER).copy();
/// What is the same for both, and goes where it belongs: who has had a member's elements may overwrite them.
const COPY_SEND: Step = Step::NEW.direct_send(PARTNER);
const RECV_COPY: Step = Step::NEW.direct_recv(PARTNER).copy();
/// What a core does with what comes from the member that it takes part for.
const FOLD_IN: Step = Step::NEW.recv(PARTNER).reduce_into().copy().contributions();

mod step {
    pub(super) const FOLD_IN: &str = "fold in";
    pub(super) const REDUCE: &str = "reduce";
    pub(super) const GATHER: &str = "all-gather";
    pub(super) const FOLD_OUT: &str = "fold out";
}

/// Combines the members' `src` element by element with `op`, and gives every member the result in `dst`.
///
/// # Collective
/// Over the team; `dst` may be `src`. A member that takes part sends `log2 p` times a block's share that fits one slot, and
/// of a longer one `2 (p-1)/p` of its bytes; it sends the whole once more to the odd rank after it where there are two for one,
/// and that one sends it once.
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
    let _call = coll.begin(Operation::AllReduceRecursive, src.bytes());
    if coll.n() == 1 {
        return coll.alone(dst, src, op);
    }
    let (from, to) = (coll.mine(src), coll.mine(dst));
    if from.is_empty() {
        return;
    }
    let pairs = Pairs::new(coll.n());
    let (role, steps) = (pairs.role(coll.me()), pairs.steps());
    let whole = from.len() <= coll.plan.slot_elements::<T>();
    coll.keep(to, from);
    coll.group().sync();
    let kept = |buf: Sym<T>, core, steps| if whole { buf } else { kept(buf, core, steps) };
    for step in pairs.schedule(if whole { 0 } else { steps }, role) {
        let (from, to) = (coll.src::<T>(), coll.dst::<T>());
        let none = to.slice(..0);
        let (exchange, give, own, to) = match (step, role) {
            (pairs::Step::FoldIn, Role::Extra) => (Exchange::new(step::FOLD_IN, coll.me() - 1, RECV), from, none, none),
            (pairs::Step::FoldIn, Role::Core(_, Some(extra))) => {
                (Exchange::new(step::FOLD_IN, extra, FOLD_IN), none, from, to)
            }
            (pairs::Step::Reduce(step), Role::Core(core, extra)) => {
                let partner = core ^ (1 << step);
                let own = if step == 0 && extra.is_none() { from } else { to };
                let recv = recv_reduce(pairs, core, partner, step == 0, step + 1 == steps);
                let exchange =
                    Exchange { step: (step, steps), ..Exchange::new(step::REDUCE, pairs.rank(partner), recv) };
                let (give, keep) = (kept(own, partner, step + 1), kept(own, core, step + 1));
                (exchange, give, keep, kept(to, core, step + 1))
            }
            (pairs::Step::Gather(step), Role::Core(core, _)) => {
                let undone = steps - 1 - step;
                let partner = core ^ (1 << undone);
                let (have, lack) = (kept(to, core, undone + 1), kept(to, partner, undone + 1));
                let exchange = Exchange { step: (step, steps), ..Exchange::direct(step::GATHER, pairs.rank(partner)) };
                (exchange, have, lack, lack)
            }
            (pairs::Step::FoldOut, Role::Core(_, Some(extra))) => {
                (Exchange::direct(step::FOLD_OUT, extra), to, none, none)
            }
            (pairs::Step::FoldOut, Role::Extra) => (Exchange::direct(step::FOLD_OUT, coll.me() - 1), none, to, to),
            _ => continue,
        };
        exchange.run(coll, give, own, to, op);
    }
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
/// Where the lengths do not fit or the buffers overlap otherwise, or the plan's
/// buffer has no room for an element of each member.
#[inline(always)]
#[track_caller]
pub fn reduce_scatter<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>, op: impl Reducer<T>) {
    check::part_of(src, dst, coll.n(), coll.me());
    let _call = coll.begin(Operation::ReduceScatterRecursive, src.bytes());
    if coll.n() == 1 {
        return coll.alone(dst, src, op);
    }
    let mut start = 0;
    loop {
        let (mine, scratch) = (coll.mine(dst), scratch::whole(coll));
        if start >= mine.len() {
            return;
        }
        let range = start..(start + scratch::each::<T>(scratch.bytes(), coll.n())).min(mine.len());
        let parts = scratch.slice(..coll.n() * range.len() * size_of::<T>()).cast::<T>();
        for i in 0..coll.n() {
            coll.start_copy(coll.part(parts, i), coll.mine(coll.part(src, i)).slice(range.clone()));
        }
        // Where it has come to is found by what was kept, so that no register of a GPU holds it meanwhile.
        let done = scatter(coll, parts, mine.slice(range), op);
        start = (done.offset() - coll.mine(dst).offset()) as usize / size_of::<T>() + done.len();
    }
}

/// Reduce-scatter of `parts`, which are overwritten. Gives the destination.
#[inline(always)]
#[track_caller]
fn scatter<T: Pod, B: Group>(coll: &mut Coll<'_, B>, parts: Sym<T>, dst: Sym<T>, op: impl Reducer<T>) -> Sym<T> {
    let pairs = Pairs::new(coll.n());
    let (role, steps) = (pairs.role(coll.me()), pairs.steps());
    coll.keep(dst, parts);
    coll.group().sync();
    for step in pairs.schedule(0, role) {
        let (dst, parts) = (coll.dst::<T>(), coll.src::<T>());
        let none = parts.slice(..0);
        let of = |first, count| parts.slice(pairs.rank(first) * dst.len()..pairs.rank(first + count) * dst.len());
        let (exchange, give, own, to) = match (step, role) {
            (pairs::Step::FoldIn, Role::Extra) => {
                (Exchange::new(step::FOLD_IN, coll.me() - 1, RECV), parts, none, none)
            }
            (pairs::Step::FoldIn, Role::Core(_, Some(extra))) => {
                (Exchange::new(step::FOLD_IN, extra, FOLD_IN), none, parts, parts)
            }
            (pairs::Step::Reduce(step), Role::Core(core, _)) => {
                // The parts of `count` cores from `keep` on are still to be reduced here after this step.
                let count = pairs.cores >> (step + 1);
                let (partner, keep) = (core ^ count, core & !(count - 1));
                let recv = recv_reduce(pairs, core, partner, step == 0, count == 1);
                let exchange =
                    Exchange { step: (step, steps), ..Exchange::new(step::REDUCE, pairs.rank(partner), recv) };
                (exchange, of(keep ^ count, count), of(keep, count), of(keep, count))
            }
            (pairs::Step::FoldOut, Role::Core(_, Some(extra))) => {
                (Exchange::new(step::FOLD_OUT, extra, RECV), coll.part(parts, extra), none, none)
            }
            (pairs::Step::FoldOut, Role::Extra) => (Exchange::new(step::FOLD_OUT, coll.me() - 1, RECV), none, dst, dst),
            _ => continue,
        };
        exchange.run(coll, give, own, to, op);
    }
    let (dst, parts) = (coll.dst::<T>(), coll.src());
    if let Role::Core(..) = role {
        coll.start_copy(dst, coll.part(parts, coll.me()));
    }
    // Before these are others.
    coll.group().sync();
    dst
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
/// Where the lengths do not fit or the buffers overlap otherwise.
#[inline(always)]
#[track_caller]
pub fn all_gather<T: Pod, B: Group>(coll: &mut Coll<'_, B>, dst: Sym<T>, src: Sym<T>) {
    let inside = check::part_of(dst, src, coll.n(), coll.me());
    let _call = coll.begin(Operation::AllGatherRecursive, dst.bytes());
    let part = |coll: &Coll<'_, B>, i| coll.mine(coll.part(dst, i));
    if !inside {
        coll.copy(part(coll, coll.me()), coll.mine(src));
    }
    if coll.n() > 1 && !src.is_empty() {
        // All are there: from now on every `dst` may be written.
        coll.barrier();
        let steps = log2(coll.n());
        for step in 0..steps {
            let have = 1 << step;
            let gives = have.min(coll.n() - have);
            let to = coll.after(have);
            let _step = coll.step(step::GATHER, (step, steps), to.index(), gives * part(coll, 0).bytes());
            // The last put signals for all of them.
            for back in 1..gives {
                let chunk = part(coll, coll.before(back));
                coll.ctx().put_nbi(coll.group(), chunk.at(to), chunk);
            }
            let own = part(coll, coll.me());
            coll.open(PARTNER, to.index());
            coll.put(PARTNER, own, own);
            coll.close_sender(PARTNER);
            coll.wait_member(coll.before(have));
        }
    }
}

/// How two cores combine: the lower one's comes first.
#[inline(always)]
fn recv_reduce(pairs: Pairs, core: usize, partner: usize, first: bool, last: bool) -> Step {
    let step = Step::NEW.recv(PARTNER).copy();
    let step = if pairs.is_partial(core, first) { step.partial() } else { step };
    let step = if pairs.is_partial(partner, first) { step } else { step.contributions() };
    let step = if core < partner { step.reduce_into() } else { step.reduce() };
    if last { step.finish() } else { step }
}

/// What goes to a partner, and what becomes of what comes from it.
struct Exchange {
    name: &'static str,
    step: (usize, usize),
    peer: usize,
    send: Step,
    recv: Step,
}

impl Exchange {
    /// The only one of its name.
    #[inline(always)]
    const fn new(name: &'static str, peer: usize, recv: Step) -> Self {
        Self { name, step: (0, 1), peer, send: SEND, recv }
    }

    /// The same of elements that go to their place at the partner, who gave what was there before.
    #[inline(always)]
    const fn direct(name: &'static str, peer: usize) -> Self {
        Self { send: COPY_SEND, ..Self::new(name, peer, RECV_COPY) }
    }

    /// Sends `give`, and receives to `to`, with `own` where it reduces: slot by slot in turn, so that neither waits for the other with a
    /// full queue.
    #[inline(always)]
    #[track_caller]
    fn run<T: Pod, B: Group>(self, coll: &mut Coll<'_, B>, give: Sym<T>, own: Sym<T>, to: Sym<T>, op: impl Reducer<T>) {
        let _step = coll.step(self.name, self.step, self.peer, give.bytes());
        coll.open(PARTNER, self.peer);
        coll.keep_parts(give, own, to);
        coll.group().sync();
        for round in 0..give.len().max(to.len()).div_ceil(coll.plan.slot_elements::<T>()) {
            let chunk = coll.cut(coll.give::<T>(), round);
            coll.moves(self.send, chunk);
            let (to, own) = (coll.cut(coll.to(), round), coll.cut(coll.own_part(), round));
            if self.recv.reduces() {
                coll.step_of(self.recv, to, own, op);
            } else {
                coll.moves(self.recv, to);
            }
        }
        coll.close(PARTNER);
        coll.group().sync();
    }
}

/// [`all_reduce`].
pub static ALL_REDUCE: Descriptor = described(Collective::AllReduce, Protocol::ALL, |call| {
    // The members above a power of two hand theirs to one below, and get the result in the end.
    let extra = if call.members.is_power_of_two() { 0.0 } else { 1.0 };
    let steps = call.log_n + extra;
    Work { hops: steps, moved: steps * call.bytes, reduced: call.log_n * call.bytes, ..Work::NONE }
})
.scheduled(schedule_doubling);

/// [`reduce_scatter`].
pub static REDUCE_SCATTER: Descriptor =
    described(Collective::ReduceScatter, Protocol::ALL, |call| Work { reduced: call.others, ..halves(call) })
        .scheduled(schedule_halving);

/// [`all_gather`].
pub static ALL_GATHER: Descriptor =
    described(Collective::AllGather, &[Protocol::Simple], halves).scheduled(|schedule| {
        let (n, steps) = (schedule.n(), log2(schedule.n()));
        for step in 0..steps {
            let have = 1 << step;
            let bytes = have.min(n - have) * schedule.part(0);
            schedule.plain(step::GATHER, (step, steps), schedule.me(), schedule.wrap(schedule.me() + have), bytes);
        }
    });

const fn described(collective: Collective, protocols: &'static [Protocol], work: fn(&Sizes) -> Work) -> Descriptor {
    Descriptor { queued: true, ..Descriptor::new(collective, Algorithm::RECURSIVE, protocols, work) }
}

/// In each step half of what is left, or twice of what there is.
fn halves(call: &Sizes) -> Work {
    Work { hops: call.log_n, moved: call.others, ..Work::NONE }
}

/// Steps until one member has reached all.
#[inline(always)]
fn log2(n: usize) -> usize {
    n.next_power_of_two().trailing_zeros() as usize
}

/// Recursive doubling, or halving and doubling.
fn schedule_doubling(schedule: &mut Schedule<'_>) {
    let (pairs, mine) = (Pairs::new(schedule.n()), schedule.mine(schedule.whole()));
    let (core, extra) = match pairs.role(schedule.me()) {
        Role::Extra => return schedule.queued(step::FOLD_IN, (0, 1), schedule.me() - 1, mine.len()),
        Role::Core(core, extra) => (core, extra),
    };
    let (steps, whole) = (pairs.steps(), mine.len() <= schedule.slot());
    let kept = |core, steps| if whole { mine.len() } else { kept(mine, core, steps).len() };
    for step in 0..steps {
        let partner = core ^ (1 << step);
        schedule.queued(step::REDUCE, (step, steps), pairs.rank(partner), kept(partner, step + 1));
    }
    for step in (0..if whole { 0 } else { steps }).rev() {
        let partner = core ^ (1 << step);
        schedule.queued(step::GATHER, (steps - 1 - step, steps), pairs.rank(partner), kept(core, step + 1));
    }
    if let Some(extra) = extra {
        schedule.queued(step::FOLD_OUT, (0, 1), extra, mine.len());
    }
}

/// Recursive halving, as much at a time as the scratch has room for.
fn schedule_halving(schedule: &mut Schedule<'_>) {
    let pairs = Pairs::new(schedule.n());
    schedule.in_scratch(scratch::SLOTS, |schedule, len| {
        let (core, extra) = match pairs.role(schedule.me()) {
            Role::Extra => return schedule.queued(step::FOLD_IN, (0, 1), schedule.me() - 1, schedule.n() * len),
            Role::Core(core, extra) => (core, extra),
        };
        let (mut first, mut count, steps) = (0, pairs.cores, pairs.steps());
        for step in 0..steps {
            count /= 2;
            let partner = core ^ count;
            let (keep, give) = if core < partner { (first, first + count) } else { (first + count, first) };
            let parts = pairs.rank(give + count) - pairs.rank(give);
            schedule.queued(step::REDUCE, (step, steps), pairs.rank(partner), parts * len);
            first = keep;
        }
        if let Some(extra) = extra {
            schedule.queued(step::FOLD_OUT, (0, 1), extra, len);
        }
    });
}
