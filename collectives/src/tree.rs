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

use congruent_device::{Ctx, End, Ends, Group, Place, Pod, Sym, Tag, Team, ends};

use crate::call::Call;
use crate::link::Link;
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
    let call = Call::enter(group, ctx, team, plan, "all-reduce tree", src.bytes());
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else {
        let nodes = [Node::first(call.me, call.n), Node::second(call.me, call.n)];
        let half = |buf: Sym<T>, tree| call.mine(Share::new(tree, 2).of(buf));
        let laps = laps(&call, half(src, 0)).max(laps(&call, half(src, 1)));
        let height = height(call.n);
        let mut trees = Trees::open(&call, &nodes);
        for tick in 0..laps + 2 * height {
            for (tree, node) in nodes.iter().enumerate() {
                let cut = |buf: Sym<T>, lap| cut(&call, half(buf, tree), lap);
                if let Some(lap) = tick.checked_sub(height - node.depth) {
                    let to = node.parent.is_none().then(|| cut(dst, lap));
                    trees.up(group, node, (lap, laps), cut(src, lap), to, true, op);
                }
                if let (Some(lap), Some(_)) = (tick.checked_sub(height + node.depth), node.parent) {
                    trees.down(group, node, (lap, laps), cut(dst, lap));
                }
            }
        }
        trees.close(group);
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
    let call = Call::enter(group, ctx, team, plan, "reduce tree", src.bytes());
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else {
        let node = Node::rooted(call.me, call.n, root);
        let (mine, result) = (call.mine(src), call.mine(dst));
        let laps = laps(&call, mine);
        let mut trees = Trees::open(&call, &[node]);
        for lap in 0..laps {
            let to = node.parent.is_none().then(|| cut(&call, result, lap));
            trees.up(group, &node, (lap, laps), cut(&call, mine, lap), to, false, op);
        }
        trees.close(group);
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
    let call = Call::enter(group, ctx, team, plan, "broadcast tree", src.bytes());
    let mine = call.mine(dst);
    if call.me == root && dst != src {
        ctx.copy(group, mine, call.mine(src));
    }
    if call.n > 1 {
        let node = Node::rooted(call.me, call.n, root);
        let laps = laps(&call, mine);
        let mut trees = Trees::open(&call, &[node]);
        trees.ready(group, &node);
        for lap in 0..laps {
            trees.down(group, &node, (lap, laps), cut(&call, mine, lap));
        }
        trees.close(group);
    }
    call.leave(group);
}

/// Piece `lap` of a range; empty behind its end.
#[inline(always)]
fn cut<T: Pod, G: Tag>(call: &Call<'_, G>, range: Sym<T>, lap: usize) -> Sym<T> {
    let most = Link::most::<T>(call);
    range.slice((lap * most).min(range.len())..((lap + 1) * most).min(range.len()))
}

/// How many pieces a range has.
#[inline(always)]
fn laps<T: Pod, G: Tag>(call: &Call<'_, G>, range: Sym<T>) -> usize {
    range.len().div_ceil(Link::most::<T>(call))
}

/// The links with the neighbours in all trees, one for each neighbour.
struct Trees<'l, 'c, G> {
    call: &'l Call<'c, G>,
    links: [Option<Link<'l, 'c, G>>; 6],
}

impl<'l, 'c, G: Tag> Trees<'l, 'c, G> {
    #[inline(always)]
    fn open(call: &'l Call<'c, G>, nodes: &[Node]) -> Self {
        let mut trees = Self { call, links: [const { None }; 6] };
        for node in nodes {
            for rank in [node.parent, node.children[0], node.children[1]].into_iter().flatten() {
                if trees.with(Some(rank)).is_none()
                    && let Some(free) = trees.links.iter_mut().find(|link| link.is_none())
                {
                    *free = Some(Link::open(call, call.team.rank(rank)));
                }
            }
        }
        trees
    }

    #[inline(always)]
    fn close(self, group: &impl Group) {
        for link in self.links.into_iter().flatten() {
            link.close(group);
        }
    }

    /// The link with a neighbour, where there is such a neighbour.
    #[inline(always)]
    fn with(&mut self, rank: Option<usize>) -> Option<&mut Link<'l, 'c, G>> {
        self.links.iter_mut().flatten().find(|link| Some(link.peer.index()) == rank)
    }

    /// Whether what goes down goes straight to where it belongs, and not through queues.
    #[inline(always)]
    fn straight(&self) -> bool {
        self.call.view.protocol() == Protocol::Simple
    }

    /// Tells the parent that it may write here, and awaits the same of the children. Where a member has sent its contribution
    /// up, that says as much.
    #[inline(always)]
    #[track_caller]
    fn ready(&mut self, group: &impl Group, node: &Node) {
        if self.straight() {
            if let Some(parent) = self.with(node.parent) {
                parent.knock(group);
            }
            for child in node.children {
                if let Some(child) = self.with(child) {
                    child.hear(group);
                }
            }
        }
    }

    /// Adds the children's sums to this member's piece, and sends that to the parent; or stores it `to` where it belongs if
    /// this is the root, and with `pass` there at its child too.
    #[inline(always)]
    #[track_caller]
    #[expect(clippy::too_many_arguments, reason = "one fold, so that kernels hold it once")]
    fn up<T: Pod>(
        &mut self,
        group: &impl Group,
        node: &Node,
        lap: (usize, usize),
        piece: Sym<T>,
        to: Option<Sym<T>>,
        pass: bool,
        op: impl Reducer<T>,
    ) {
        if piece.is_empty() {
            return;
        }
        let call = self.call;
        let towards = node.parent.or(node.children[0]).unwrap_or(call.me);
        let _step = call.step("reduce up", lap, call.team.rank(towards), piece.bytes());
        let inputs = node.children.map(|child| self.with(child).map(|link| link.input(group, piece.len())));
        let src = with_children(piece.at(call.own()), inputs);
        let last = WITH_CHILDREN.finish(call.n);
        if let Some(to) = to {
            self.crown(group, node.children[0].filter(|_| pass), to, src, op, last);
        } else if let Some(parent) = self.with(node.parent) {
            parent.send(group, piece.len(), None, src, op, WITH_CHILDREN);
        }
        for child in node.children {
            if let Some(child) = self.with(child) {
                child.release(group);
            }
        }
    }

    /// Folds the result `to` where it belongs, here and at a child.
    #[inline(always)]
    #[track_caller]
    fn crown<T: Pod>(
        &mut self,
        group: &impl Group,
        child: Option<usize>,
        to: Sym<T>,
        src: impl Ends<T, Team = G>,
        op: impl Reducer<T>,
        last: Stage,
    ) {
        let (call, straight) = (self.call, self.straight());
        match self.with(child) {
            Some(child) if !straight => child.send(group, to.len(), Some(to), src, op, last),
            child => {
                let there = child.as_ref().map(|child| child.peer).filter(|&peer| call.ctx.reaches(peer));
                let both = [to.at(call.own()), to.at(there.unwrap_or(call.own()))];
                let dst = ends(1 + usize::from(there.is_some()), move |i| End::Plain(both[i]));
                op.fold(group, call.ctx, dst, src, last);
                match (child, there) {
                    (Some(child), Some(_)) => child.knock(group),
                    (Some(child), None) => child.put(group, to, to),
                    (None, _) => {}
                }
            }
        }
    }

    /// Receives a finished piece from the parent, if there is one, and sends it to the children.
    #[inline(always)]
    #[track_caller]
    fn down<T: Pod>(&mut self, group: &impl Group, node: &Node, lap: (usize, usize), piece: Sym<T>) {
        if piece.is_empty() {
            return;
        }
        let call = self.call;
        let towards = node.children[0].or(node.parent).unwrap_or(call.me);
        let _step = call.step("broadcast down", lap, call.team.rank(towards), piece.bytes());
        if self.straight() {
            if let Some(parent) = self.with(node.parent) {
                parent.hear(group);
            }
            for child in node.children {
                if let Some(child) = self.with(child) {
                    child.put(group, piece, piece);
                }
            }
            return;
        }
        let (mut from, mut kept) = (End::Plain(piece.at(call.own())), None);
        if let Some(parent) = self.with(node.parent) {
            from = parent.input(group, piece.len());
            kept = Some(piece);
        }
        if let Some(child) = self.with(node.children[0]) {
            child.send(group, piece.len(), kept, [from], Keep, Stage::RAW);
        } else {
            Keep.fold(group, call.ctx, [piece.at(call.own())], [from], Stage::RAW);
        }
        if let Some(child) = self.with(node.children[1]) {
            child.pass(group, piece);
        }
        if let Some(parent) = self.with(node.parent) {
            parent.release(group);
        }
    }
}

/// A member's own contribution, then what its children have sent.
#[inline(always)]
fn with_children<T: Pod, G>(own: Place<T, G>, inputs: [Option<End<T, G>>; 2]) -> impl Ends<T, Team = G> {
    let own = End::Plain(own);
    let all = [own, inputs[0].unwrap_or(own), inputs[1].unwrap_or(own)];
    ends(1 + inputs.iter().flatten().count(), move |i| all[i])
}
