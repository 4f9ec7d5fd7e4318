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
//! Pieces go up and down one after the other, by the clock: what a member sends in one tick, its neighbour uses in the next.
//! At depth `d` of height `h`, piece `i` goes up in tick `i + h - d` and down in tick `i + h + d`, first in the one tree, then in
//! the other. So every member of a pair counts the pieces between them in one order, also where they are neighbours in both
//! trees; and as no more than two pieces go one way in a tick, and a queue holds four, a member waits only for what others
//! do in earlier ticks.
//!
//! # Order of summation
//! Each member adds its own, then the sum of its child of lower rank, then that of the other, and rounds to the element's type
//! where it sends: `(x + S(lower)) + S(higher)`, ranks as the tree counts them. The first tree does the first half of the
//! buffer (the first [`Share`] of two), the second the other. The operator is commutative.

use congruent_device::{Ctx, End, Ends, Group, Pod, Rank, Sym, Tag, Team, anew, ends};

use crate::call::Call;
use crate::link::{Arrival, Incoming, Outgoing, largest_piece};
use crate::names::Operation;
use crate::node::{Node, height};
use crate::plan::View;
use crate::reducer::{Keep, Reducer, Stage};
use crate::share::Share;
use crate::{Protocol, check};

/// What an inner node folds: its own contribution, and what its children have summed up.
const WITH_CHILDREN: Stage = Stage { rest_are_partial: true, ..Stage::RAW };

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
    let call = Call::enter(group, ctx, team, plan, Operation::AllReduceTree, src.bytes());
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else {
        let half = |buf: Sym<T>, tree| call.mine(Share::new(tree, 2).of(buf));
        let laps = laps(&call, half(src, 0)).max(laps(&call, half(src, 1)));
        let height = height(call.n);
        // Counted in 32 bits, and destinations cut only where they are stored to: a GPU has registers for no more.
        for tick in 0..(laps + 2 * height) as u32 {
            let tick = tick as usize;
            for tree in 0..2 {
                // Found anew each time: both would be eight registers.
                let node = Node::of_two(tree, anew(call.me as u64) as usize, call.n);
                let cut = |buf: Sym<T>, lap| cut(&call, half(buf, tree), lap);
                if let Some(lap) = tick.checked_sub(height - node.depth()) {
                    up(&call, group, node, (lap, laps), cut(src, lap), || cut(dst, lap), true, op);
                }
                if let (Some(lap), Some(_)) = (tick.checked_sub(height + node.depth()), node.parent()) {
                    down(&call, group, node, (lap, laps), cut(dst, lap));
                }
            }
        }
    }
    call.leave(group);
}

/// Combines the members' `src` element by element with `op`, and gives the result to member `root` in `dst`, piece by piece up
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
    let call = Call::enter(group, ctx, team, plan, Operation::ReduceTree, src.bytes());
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else {
        let node = Node::rooted(call.me, call.n, root);
        let (mine, result) = (call.mine(src), call.mine(dst));
        let laps = laps(&call, mine);
        for lap in 0..laps {
            up(&call, group, node, (lap, laps), cut(&call, mine, lap), || cut(&call, result, lap), false, op);
        }
    }
    call.leave(group);
}

/// Gives every member the `src` of member `root` in `dst`, piece by piece down a tree.
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
    let call = Call::enter(group, ctx, team, plan, Operation::BroadcastTree, src.bytes());
    let mine = call.mine(dst);
    if call.me == root && dst != src {
        ctx.copy(group, mine, call.mine(src));
    }
    if call.n > 1 {
        let node = Node::rooted(call.me, call.n, root);
        let laps = laps(&call, mine);
        ready(&call, group, node);
        for lap in 0..laps {
            down(&call, group, node, (lap, laps), cut(&call, mine, lap));
        }
    }
    call.leave(group);
}

/// Piece `lap` of a range; empty behind its end.
#[inline(always)]
fn cut<T: Pod, G: Tag>(call: &Call<'_, G>, range: Sym<T>, lap: usize) -> Sym<T> {
    let most = largest_piece::<T, G>(call);
    range.slice((lap * most).min(range.len())..((lap + 1) * most).min(range.len()))
}

/// How many pieces a range has.
#[inline(always)]
fn laps<T: Pod, G: Tag>(call: &Call<'_, G>, range: Sym<T>) -> usize {
    range.len().div_ceil(largest_piece::<T, G>(call))
}

/// Whether what goes down goes straight to where it belongs, and not through queues.
#[inline(always)]
fn straight<G: Tag>(call: &Call<'_, G>) -> bool {
    call.view.protocol() == Protocol::Simple
}

// Ways to and from neighbours are open only while they are used: kept in a list, they would be in memory.

/// Tells the parent that it may write here, and awaits the same of the children. Where a member has sent its contribution
/// up, that says as much.
#[inline(always)]
#[track_caller]
fn ready<G: Tag>(call: &Call<'_, G>, group: &impl Group, node: Node) {
    if !straight(call) {
        return;
    }
    if let Some(parent) = node.parent() {
        let mut way = Outgoing::open(call, call.team.rank(parent));
        way.knock(group);
        way.close(group);
    }
    for i in 0..node.degree() {
        let mut way = Incoming::open(call, child(call, node, i));
        way.hear(group);
        way.close(group);
    }
}

/// Adds the children's sums to this member's piece, and sends that to the parent; or, if this is the root, stores it `to` where
/// it belongs, and with `pass` there at its child too.
#[inline(always)]
#[track_caller]
#[expect(clippy::too_many_arguments, reason = "one fold, so that kernels hold it once")]
fn up<T: Pod, G: Tag>(
    call: &Call<'_, G>,
    group: &impl Group,
    node: Node,
    lap: (usize, usize),
    piece: Sym<T>,
    to: impl Fn() -> Sym<T>,
    pass: bool,
    op: impl Reducer<T>,
) {
    if piece.is_empty() {
        return;
    }
    let towards = call.team.rank(node.parent().unwrap_or(node.child(0).unwrap_or(call.me)));
    let _step = call.step("reduce up", lap, towards, piece.bytes());
    let own = piece.at(call.own());
    let none = Arrival { offset: 0, flag: 0, sender: towards.pe() };
    let (mut lower, mut higher) = (none, none);
    for i in 0..node.degree() {
        // Looked at only: it is opened again when its place is given back.
        let arrival = Incoming::open(call, child(call, node, i)).arrival(group);
        if i == 0 {
            lower = arrival;
        } else {
            higher = arrival;
        }
    }
    let src = ends(1 + node.degree(), move |i| {
        if i == 0 {
            return End::plain(own);
        }
        let offset = if i == 1 { lower.offset } else { higher.offset };
        let flag = if i == 1 { lower.flag } else { higher.flag };
        let sender = if i == 1 { lower.sender } else { higher.sender };
        Arrival { offset, flag, sender }.end(call, own.len())
    });
    let is_root = node.parent().is_none();
    let stage = if is_root { WITH_CHILDREN.finish(call.n) } else { WITH_CHILDREN };
    if is_root && (!pass || straight(call)) {
        crown(call, group, pass.then_some(towards), to(), src, op, stage);
    } else {
        let mut way = Outgoing::open(call, towards);
        way.send(group, piece.len(), if is_root { to() } else { Sym::empty() }, src, op, stage);
        way.close(group);
    }
    for i in 0..node.degree() {
        release(call, group, child(call, node, i));
    }
}

/// Folds the result `to` where it belongs, here and at a child.
#[inline(always)]
#[track_caller]
fn crown<T: Pod, G: Tag>(
    call: &Call<'_, G>,
    group: &impl Group,
    child: Option<Rank<G>>,
    to: Sym<T>,
    src: impl Ends<T, Team = G>,
    op: impl Reducer<T>,
    stage: Stage,
) {
    let there = child.filter(|&child| call.ctx.reaches(child));
    let other = there.unwrap_or(call.own());
    let dst = ends(1 + usize::from(there.is_some()), move |i| to.at(if i == 0 { call.own() } else { other }).into());
    op.fold(group, call.ctx, dst, src, stage);
    if let Some(child) = child {
        let mut way = Outgoing::open(call, child);
        if there.is_some() {
            way.knock(group);
        } else {
            way.put(group, to, to);
        }
        way.close(group);
    }
}

/// Receives a finished piece from the parent, if there is one, and sends it to the children.
#[inline(always)]
#[track_caller]
fn down<T: Pod, G: Tag>(call: &Call<'_, G>, group: &impl Group, node: Node, lap: (usize, usize), piece: Sym<T>) {
    if piece.is_empty() {
        return;
    }
    let towards = node.child(0).unwrap_or(node.parent().unwrap_or(call.me));
    let _step = call.step("broadcast down", lap, call.team.rank(towards), piece.bytes());
    let own = End::plain(piece.at(call.own()));
    let (mut from, mut kept) = (own, Sym::empty());
    if let Some(parent) = node.parent() {
        let mut way = Incoming::open(call, call.team.rank(parent));
        if straight(call) {
            way.hear(group);
            way.close(group);
        } else {
            (from, kept) = (way.input(group, piece.len()), piece);
        }
    }
    for i in 0..node.degree() {
        let mut way = Outgoing::open(call, child(call, node, i));
        if straight(call) {
            way.put(group, piece, piece);
        } else {
            // The first one is sent what arrives while this member keeps it, the second one what is kept.
            way.send(group, piece.len(), kept, [from], Keep, Stage::RAW);
            (from, kept) = (own, Sym::empty());
        }
        way.close(group);
    }
    if let (Some(parent), false) = (node.parent(), straight(call)) {
        if !kept.is_empty() {
            Keep.fold(group, call.ctx, [own], [from], Stage::RAW);
        }
        release(call, group, call.team.rank(parent));
    }
}

/// Child `i` of a node that has one.
#[inline(always)]
#[track_caller]
fn child<G: Tag>(call: &Call<'_, G>, node: Node, i: usize) -> Rank<G> {
    call.team.rank(node.child(i).unwrap_or(call.me))
}

/// Gives the place of a piece back to the neighbour that sent it.
#[inline(always)]
#[track_caller]
fn release<G: Tag>(call: &Call<'_, G>, group: &impl Group, from: Rank<G>) {
    let mut way = Incoming::open(call, from);
    way.release(group);
    way.close(group);
}
