//! Binary trees: as many hops as a logarithm of the team, and every member busy.
//!
//! All-reduce goes up and down two trees at once, each with half of the buffer (Sanders, Speck and Träff, "Two-tree
//! algorithms for full bandwidth broadcast, reduction and scan", 2009; NCCL since 2.4). In the first tree the lowest bit that
//! is set in a rank says how high it stands: odd ranks are leaves, and rank 0 is the root, with one child. The second tree is
//! the first one's mirror in a team of even size, and in one of odd size the same tree with all ranks moved by one. So a
//! member is a leaf in at least one of the two, but for one member where the size is odd.
//!
//! Broadcast and reduce use the first tree, with ranks counted from the root.
//!
//! # Pipeline
//! Chunks go up and down one after the other, by the clock: what a member sends in one tick, its neighbour uses in the next.
//! At depth `d` of height `h`, chunk `i` goes up in tick `i + h - d` and down in tick `i + h + d`, first in the one tree, then in
//! the other. So every member of a pair counts the chunks between them in one order, also where they are neighbours in both
//! trees; and as no more than two chunks go one way in a tick, and a queue holds four, a member waits only for what others
//! do in earlier ticks.
//!
//! # Order of summation
//! Each member adds its own, then the sum of its child of lower rank, then that of the other, and rounds to the element's type
//! where it sends: `(x + S(lower)) + S(higher)`, ranks as the tree counts them. The first tree does the first half of the
//! buffer (the first [`Share`] of two), the second the other. The operator is commutative.

use congruent_device::{Group, Pod, Reducer, Sym};

use crate::descriptor::{Descriptor, Sizes, Work};
use crate::names::Operation;
use crate::node::{Node, height};
use crate::schedule::Schedule;
use crate::session::Coll;
use crate::share::Share;
use crate::step::{Link, Step};
use crate::{Algorithm, Collective, Protocol, check};

/// The neighbours' links.
const PARENT: Link = Link::A;
const LOWER: Link = Link::B;
const HIGHER: Link = Link::C;

/// The link with child `i`.
#[inline(always)]
const fn child(i: usize) -> Link {
    if i == 0 { LOWER } else { HIGHER }
}

mod step {
    pub(super) const UP: &str = "reduce up";
    pub(super) const DOWN: &str = "broadcast down";
}

/// Combines the members' `src` element by element with `op`, and gives every member the result in `dst`.
///
/// # Collective
/// Over the team; `dst` may be `src`. Each member sends a half of the buffer once up its tree, unless it is the root, and once
/// to each child: twice the buffer's bytes at most where the halves are equal. All members together send it `2 (n-1)` times.
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
    let _call = coll.begin(Operation::AllReduceTree, src.bytes());
    if coll.n() == 1 {
        return coll.alone(dst, src, op);
    }
    coll.keep(dst, src);
    coll.keep_nodes();
    coll.group().sync();
    let half = |coll: &Coll<'_, B>, buf: Sym<T>, tree| coll.mine(Share::new(tree, 2).of(buf));
    let rounds = [0, 1].map(|tree| half(coll, src, tree).len().div_ceil(coll.plan.slot_elements::<T>()));
    let rounds = rounds[0].max(rounds[1]);
    let height = height(coll.n());
    for tick in 0..rounds + 2 * height {
        for tree in 0..2 {
            let node = coll.node(tree);
            if let Some(round) = tick.checked_sub(height - node.depth()) {
                let (to, from) =
                    (coll.cut(half(coll, coll.dst(), tree), round), coll.cut(half(coll, coll.src(), tree), round));
                up(coll, node, (round, rounds), to, from, true, op);
            }
            if let (Some(round), Some(_)) = (tick.checked_sub(height + node.depth()), node.parent()) {
                let chunk = coll.cut(half(coll, coll.dst(), tree), round);
                down(coll, node, (round, rounds), chunk);
            }
        }
    }
    // Before another call keeps others.
    coll.group().sync();
}

/// Combines the members' `src` element by element with `op`, and gives the result to member `root` in `dst`, chunk by chunk up
/// a tree.
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
    let _call = coll.begin(Operation::ReduceTree, src.bytes());
    if coll.n() == 1 {
        return coll.alone(dst, src, op);
    }
    let node = Node::rooted(coll.me(), coll.n(), root);
    let rounds = coll.rounds_of(src);
    for round in 0..rounds {
        let (to, from) = (coll.cut(coll.mine(dst), round), coll.cut(coll.mine(src), round));
        up(coll, node, (round, rounds), to, from, false, op);
    }
}

/// Gives every member the `src` of member `root` in `dst`, chunk by chunk down a tree.
///
/// # Collective
/// Over the team; `dst` may be `src`, and only the root's `src` is read. Each member sends the buffer to its children, of
/// which the root has one and the others have none, one or two; all members together send it `n-1` times.
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
    let _call = coll.begin(Operation::BroadcastTree, src.bytes());
    if coll.me() == root && dst != src {
        coll.copy(coll.mine(dst), coll.mine(src));
    }
    if coll.n() > 1 {
        let node = Node::rooted(coll.me(), coll.n(), root);
        // Where a member has sent its contribution up, that says as much.
        coll.ready(node.parent(), None);
        for i in 0..node.degree() {
            coll.ready(None, node.child(i));
        }
        let rounds = coll.rounds_of(dst);
        for round in 0..rounds {
            let chunk = coll.cut(coll.mine(dst), round);
            down(coll, node, (round, rounds), chunk);
        }
    }
}

/// Adds the children's sums to this member's chunk, and sends that to the parent; or, if this is the root, stores it where it belongs,
/// and with `pass` at its child too.
#[inline(always)]
#[track_caller]
fn up<T: Pod, B: Group>(
    coll: &mut Coll<'_, B>,
    node: Node,
    round: (usize, usize),
    dst: Sym<T>,
    src: Sym<T>,
    pass: bool,
    op: impl Reducer<T>,
) {
    if src.is_empty() {
        return;
    }
    let towards = node.parent().or(node.child(0)).unwrap_or(coll.me());
    let _step = coll.step(step::UP, round, towards, src.bytes());
    let mut step = Step::NEW.reduce_into();
    for i in 0..node.degree() {
        step = step.recv(child(i));
        coll.open(child(i), node.child(i).unwrap_or(towards));
    }
    if node.parent().is_some() {
        coll.open(PARENT, towards);
        step = step.send(PARENT);
    } else {
        step = step.copy().finish();
        if pass {
            step = step.direct_send(LOWER);
        }
    }
    coll.group().sync();
    coll.step_of(step, dst, src, op);
    close(coll, node);
}

/// Receives a finished chunk from the parent, if there is one, and sends it to the children.
#[inline(always)]
#[track_caller]
fn down<T: Pod, B: Group>(coll: &mut Coll<'_, B>, node: Node, round: (usize, usize), chunk: Sym<T>) {
    if chunk.is_empty() {
        return;
    }
    let towards = node.child(0).or(node.parent()).unwrap_or(coll.me());
    let _step = coll.step(step::DOWN, round, towards, chunk.bytes());
    let mut step = Step::NEW;
    if let Some(parent) = node.parent() {
        coll.open(PARENT, parent);
        step = step.direct_recv(PARENT).copy();
    }
    for i in 0..node.degree() {
        coll.open(child(i), node.child(i).unwrap_or(towards));
        step = step.direct_send(child(i));
    }
    coll.group().sync();
    coll.moves(step, chunk);
    close(coll, node);
}

/// Links are open while they are used: a member may be the parent in one tree and a child in the other.
#[inline(always)]
#[track_caller]
fn close<B: Group>(coll: &mut Coll<'_, B>, node: Node) {
    if node.parent().is_some() {
        coll.close(PARENT);
    }
    for i in 0..node.degree() {
        coll.close(child(i));
    }
    coll.group().sync();
}

/// [`all_reduce`].
pub static ALL_REDUCE: Descriptor = described(Collective::AllReduce, |call| {
    let moved = 2.0 * call.bytes + 2.0 * (call.log_n - 1.0) * call.chunk;
    Work { hops: 2.0 * call.log_n, posts: call.chunks, moved, reduced: call.bytes, ..Work::NONE }
})
.scheduled(|schedule| {
    for tree in 0..2 {
        let node = Node::of_two(tree, schedule.me(), schedule.n());
        let half = schedule.mine(Share::new(tree, 2).of(schedule.whole())).len();
        schedule_up(schedule, node, half);
        schedule_down(schedule, node, half);
    }
});

/// [`reduce`].
pub static REDUCE: Descriptor =
    described(Collective::Reduce, |call| Work { reduced: 2.0 * call.bytes, ..down_once(call) })
        .scheduled(|schedule| schedule_up(schedule, rooted(schedule), schedule.share()));

/// [`broadcast`].
pub static BROADCAST: Descriptor = described(Collective::Broadcast, down_once)
    .scheduled(|schedule| schedule_down(schedule, rooted(schedule), schedule.share()));

const fn described(collective: Collective, work: fn(&Sizes) -> Work) -> Descriptor {
    Descriptor { queued: true, own_scalars: true, ..Descriptor::new(collective, Algorithm::TREE, Protocol::ALL, work) }
}

/// A pipeline of which most members have two children.
fn down_once(call: &Sizes) -> Work {
    let moved = 2.0 * call.bytes + (call.log_n - 1.0) * call.chunk;
    Work { hops: call.log_n, posts: call.chunks, moved, ..Work::NONE }
}

fn rooted(schedule: &Schedule<'_>) -> Node {
    Node::rooted(schedule.me(), schedule.n(), schedule.call().root)
}

fn schedule_up(schedule: &mut Schedule<'_>, node: Node, bytes: usize) {
    node.parent().into_iter().for_each(|parent| schedule.queued(step::UP, (0, 1), parent, bytes));
}

fn schedule_down(schedule: &mut Schedule<'_>, node: Node, bytes: usize) {
    let children = (0..node.degree()).filter_map(|i| node.child(i));
    children.for_each(|child| schedule.queued(step::DOWN, (0, 1), child, bytes));
}
