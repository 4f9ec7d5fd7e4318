//! The ring: each member talks to its two neighbours only, and every link carries its share all the time.
//!
//! All-reduce is a reduce-scatter and an all-gather (Patarasuk and Yuan, 2009). The buffer has one chunk per member. In the
//! reduce-scatter, the partial sum of chunk `c` starts at member `c + 1` and goes round, each member adding its own, until
//! member `c` has the whole; in the all-gather, finished chunks go round once more. A long buffer goes round in several laps,
//! each with one piece of every chunk.
//!
//! Element `i` of chunk `c` is `((x[c+1] + x[c+2]) + ...) + x[c]`, member numbers modulo `n`, partial sums rounded to the
//! element's type at each member. [`reduce`] has one chunk, whose `c` is the root.

use congruent_device::{Ctx, End, Group, Pod, Rank, Sym, Tag, Team, anew, ends};

use crate::call::Call;
use crate::link::{Incoming, Outgoing, largest_piece};
use crate::names::Operation;
use crate::plan::View;
use crate::reducer::{Keep, Reducer, Stage};
use crate::share::Share;
use crate::{Protocol, check};

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
    let call = Call::enter(group, ctx, team, plan, Operation::AllReduceRing, src.bytes());
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else {
        let mut ring = Ring::open(&call);
        let chunk = |buf: Sym<T>, c| Share::new(c, call.n).of(buf);
        // A block may have nothing of a chunk and something of a shorter one, so every chunk is asked.
        let laps = (0..call.n).map(|c| ring.laps(chunk(src, c))).max().unwrap_or(0);
        for lap in 0..laps {
            ring.reduce(group, |c| cut(&call, chunk(src, c), lap), cut(&call, chunk(dst, call.me), lap), true, op);
            ring.gather(group, false, |c| cut(&call, chunk(dst, c), lap));
        }
        ring.close(group);
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
/// Where the lengths do not fit or the buffers overlap otherwise, and where the plan is for another team or fewer blocks.
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
    let call = Call::enter(group, ctx, team, plan, Operation::ReduceScatterRing, src.bytes());
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else {
        let mut ring = Ring::open(&call);
        // Nothing is passed on. Where the compiler knows that, a kernel of sm_80 keeps more than its registers hold.
        let pass = anew(0) == 1;
        for lap in 0..ring.laps(dst) {
            ring.reduce(group, |c| cut(&call, call.part(src, c), lap), cut(&call, dst, lap), pass, op);
        }
        ring.close(group);
    }
    call.leave(group);
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
pub fn all_gather<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    dst: Sym<T>,
    src: Sym<T>,
    plan: &View,
) {
    let inside = check::part_of(dst, src, team.size(), team.me().index());
    let call = Call::enter(group, ctx, team, plan, Operation::AllGatherRing, dst.bytes());
    if !inside {
        ctx.copy(group, call.mine(call.part(dst, call.me)), call.mine(src));
    }
    if call.n > 1 {
        ready(&call, group, true, true);
        let mut ring = Ring::open(&call);
        for lap in 0..ring.laps(src) {
            let piece = |c| cut(&call, call.part(dst, c), lap);
            ring.gather(group, true, piece);
        }
        ring.close(group);
    }
    call.leave(group);
}

/// Gives every member the `src` of member `root` in `dst`, piece by piece along the ring.
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
    let call = Call::enter(group, ctx, team, plan, Operation::BroadcastRing, src.bytes());
    if call.me == root && dst != src {
        ctx.copy(group, call.mine(dst), call.mine(src));
    }
    if call.n > 1 {
        let last = call.wrap(call.me + 1) == root;
        ready(&call, group, call.me != root, !last);
        let mut ring = Ring::open(&call);
        for lap in 0..ring.laps(dst) {
            let piece = cut(&call, dst, lap);
            let _step = call.step("broadcast", (lap, ring.laps(dst)), ring.right, piece.bytes());
            ring.pass(group, piece, call.me != root, !last);
        }
        ring.close(group);
    }
    call.leave(group);
}

/// Combines the members' `src` element by element with `op`, and gives the result to member `root` in `dst`, piece by piece
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
    let call = Call::enter(group, ctx, team, plan, Operation::ReduceRing, src.bytes());
    if call.n == 1 {
        call.keep(group, dst, src, op);
    } else {
        let mut ring = Ring::open(&call);
        let first = call.wrap(root + 1) == call.me;
        for lap in 0..ring.laps(src) {
            let piece = cut(&call, src, lap);
            let _step = call.step("reduce", (lap, ring.laps(src)), ring.right, piece.bytes());
            let to = if call.me == root { cut(&call, dst, lap) } else { Sym::empty() };
            ring.add(group, piece, first, to, false, op);
        }
        ring.close(group);
    }
    call.leave(group);
}

/// Piece `lap` of this block's share of a chunk.
#[inline(always)]
fn cut<T: Pod, G: Tag>(call: &Call<'_, G>, chunk: Sym<T>, lap: usize) -> Sym<T> {
    let (mine, most) = (call.mine(chunk), largest_piece::<T, G>(call));
    mine.slice((lap * most).min(mine.len())..((lap + 1) * most).min(mine.len()))
}

/// Whether data goes straight to where it belongs at the right neighbour, and not through its queue.
#[inline(always)]
fn straight<G: Tag>(call: &Call<'_, G>) -> bool {
    call.view.protocol() == Protocol::Simple
}

/// Tells the left neighbour that it may write here, if this member `gets`, and awaits the same of the right one, if it
/// `gives`.
#[inline(always)]
#[track_caller]
fn ready<G: Tag>(call: &Call<'_, G>, group: &impl Group, gets: bool, gives: bool) {
    if straight(call) && gets {
        let mut to_left = Outgoing::open(call, call.after(call.n - 1));
        to_left.knock(group);
        to_left.close(group);
    }
    if straight(call) && gives {
        let mut from_right = Incoming::open(call, call.after(1));
        from_right.hear(group);
        from_right.close(group);
    }
}

/// The way from the left neighbour and the way to the right one.
struct Ring<'l, 'c, G> {
    call: &'l Call<'c, G>,
    right: Rank<G>,
    from_left: Incoming<'l, 'c, G>,
    to_right: Outgoing<'l, 'c, G>,
}

impl<'l, 'c, G: Tag> Ring<'l, 'c, G> {
    #[inline(always)]
    fn open(call: &'l Call<'c, G>) -> Self {
        let (left, right) = (call.after(call.n - 1), call.after(1));
        Self { call, right, from_left: Incoming::open(call, left), to_right: Outgoing::open(call, right) }
    }

    #[inline(always)]
    #[track_caller]
    fn close(self, group: &impl Group) {
        self.from_left.close(group);
        self.to_right.close(group);
    }

    /// How many laps a chunk takes, of which none is longer.
    #[inline(always)]
    fn laps<T: Pod>(&self, chunk: Sym<T>) -> usize {
        self.call.mine(chunk).len().div_ceil(largest_piece::<T, G>(self.call))
    }

    /// Adds `piece` to the partial result from the left, or begins one with it. The sum goes on to the right; or, where `to` is not
    /// empty, it is final and goes there, and with `pass` there at the right too.
    #[inline(always)]
    #[track_caller]
    fn add<T: Pod>(
        &mut self,
        group: &impl Group,
        piece: Sym<T>,
        begins: bool,
        to: Sym<T>,
        pass: bool,
        op: impl Reducer<T>,
    ) {
        if piece.is_empty() {
            return;
        }
        let (call, right) = (self.call, self.right);
        let own = End::plain(piece.at(call.own()));
        let (mut first, mut stage) = (own, Stage::RAW);
        if !begins {
            (first, stage) = (self.from_left.input(group, piece.len()), Stage::MORE);
        }
        let src =
            ends(if begins { 1 } else { 2 }, move |i| if i == 0 { first } else { End::plain(piece.at(call.own())) });
        let is_final = !to.is_empty();
        let stage = if is_final { stage.finish(call.n) } else { stage };
        if is_final && (!pass || straight(call)) {
            let passes = pass && call.ctx.reaches(right);
            let dst = ends(1 + usize::from(passes), move |i| to.at(if i == 0 { call.own() } else { right }).into());
            op.fold(group, call.ctx, dst, src, stage);
            if passes {
                self.to_right.knock(group);
            } else if pass {
                self.to_right.put(group, to, to);
            }
        } else {
            self.to_right.send(group, piece.len(), to, src, op, stage);
        }
        if !begins {
            self.from_left.release(group);
        }
    }

    /// One lap of the reduce-scatter: `src(c)` is this member's piece of chunk `c`, and the result of its own goes to `dst`,
    /// and with `pass` there at the right too.
    #[inline(always)]
    #[track_caller]
    fn reduce<T: Pod>(
        &mut self,
        group: &impl Group,
        src: impl Fn(usize) -> Sym<T>,
        dst: Sym<T>,
        pass: bool,
        op: impl Reducer<T>,
    ) {
        let (n, me) = (self.call.n, self.call.me);
        for step in 0..n - 1 {
            let chunk = self.call.wrap(me + 2 * n - 2 - step);
            let _step = self.call.step("scatter-reduce", (step, n - 1), self.right, src(chunk).bytes());
            // A sum begins here, before another one comes from the left.
            for turn in usize::from(step > 0)..2 {
                let begins = turn == 0;
                let piece = src(if begins { self.call.wrap(me + n - 1) } else { chunk });
                let to = if !begins && step == n - 2 { dst } else { Sym::empty() };
                self.add(group, piece, begins, to, pass, op);
            }
        }
    }

    /// Receives a finished piece from the left with `take`, otherwise it is this member's; sends it on with `give`.
    #[inline(always)]
    #[track_caller]
    fn pass<T: Pod>(&mut self, group: &impl Group, piece: Sym<T>, take: bool, give: bool) {
        if piece.is_empty() {
            return;
        }
        let own = End::plain(piece.at(self.call.own()));
        if straight(self.call) {
            if take {
                self.from_left.hear(group);
            }
            if give {
                self.to_right.put(group, piece, piece);
            }
            return;
        }
        let from = if take { self.from_left.input(group, piece.len()) } else { own };
        if give {
            self.to_right.send(group, piece.len(), if take { piece } else { Sym::empty() }, [from], Keep, Stage::RAW);
        } else {
            Keep.fold(group, self.call.ctx, [own], [from], Stage::RAW);
        }
        if take {
            self.from_left.release(group);
        }
    }

    /// One lap of the all-gather. This member's own piece goes to the right first, if it does not have it yet.
    #[inline(always)]
    #[track_caller]
    fn gather<T: Pod>(&mut self, group: &impl Group, own: bool, piece: impl Fn(usize) -> Sym<T>) {
        let (n, me) = (self.call.n, self.call.me);
        for step in usize::from(!own)..n {
            let piece = piece(self.call.wrap(me + n - step));
            let _step = (step > 0).then(|| self.call.step("all-gather", (step - 1, n - 1), self.right, piece.bytes()));
            self.pass(group, piece, step > 0, step < n - 1);
        }
    }
}
