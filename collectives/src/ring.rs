//! The ring: each member talks to its two neighbours only, and every link carries its share all the time.
//!
//! All-reduce is a reduce-scatter and an all-gather (Patarasuk and Yuan, 2009). The buffer has one chunk per member. In
//! the reduce-scatter, the partial sum of chunk `c` starts at member `c + 1` and goes round, each member adding its own,
//! until member `c` has the whole; in the all-gather, finished chunks go round once more. Chunks travel in pieces, so that
//! a member works on one while its neighbour works on the one before.
//!
//! Partial sums are read from the left neighbour's buffer and finished chunks are written to the right neighbour's, so
//! there is no scratch: a partial sum can only be overwritten by the finished chunk, which exists only once everybody has
//! read the partial sums it was made of. The neighbours must therefore be reachable by load and store.
//!
//! # Order of summation
//! Element `i` of chunk `c` is `x[c+1] ∘ x[c+2] ∘ … ∘ x[c]`, from left to right, indices modulo the team's size.

use congruent_device::{Ctx, Group, KernelArg, Pod, Semaphore, Sym, Tag, Team};

use crate::{Needs, ReduceOp, Shape, Share};

/// Bytes that travel at once, unless a shape says otherwise: small enough to stay in a core's cache until the neighbour
/// has read them, large enough that signals cost nothing.
pub const PIECE: usize = 128 << 10;

/// A ring plan's shape: up to so many blocks, in pieces of so many bytes.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    blocks: u32,
    piece: u32,
}

impl Ring {
    /// A ring for launches of up to `blocks` blocks.
    pub const fn new(blocks: u32) -> Self {
        Self { blocks, piece: PIECE as u32 }
    }

    /// How many blocks a launch may have.
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// The same, in pieces of about `bytes` bytes (at least 128).
    #[must_use]
    pub const fn piece(self, bytes: u32) -> Self {
        Self { piece: if bytes < 128 { 128 } else { bytes }, ..self }
    }
}

/// A ring plan as a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// For each block: posted by the left neighbour when what I may read of it is ready.
    partial: Sym<Semaphore>,
    /// For each block: posted by the left neighbour when it has written a finished piece here.
    finished: Sym<Semaphore>,
    /// For each block: posted by the right neighbour when it has read all, or may be written to.
    free: Sym<Semaphore>,
    piece: u32,
    /// 1 where a block works alone, 0 where the blocks of a launch share the work.
    alone: u32,
}

impl Shape for Ring {
    type View = View;

    fn needs(&self) -> Needs {
        Needs { semaphores: 3 * self.blocks as usize, scratch: 0 }
    }

    fn view(&self, semaphores: Sym<Semaphore>, _scratch: Sym<u8>) -> View {
        let row = |i| semaphores.slice(i * self.blocks as usize..(i + 1) * self.blocks as usize);
        View { partial: row(0), finished: row(1), free: row(2), piece: self.piece, alone: 0 }
    }
}

impl KernelArg for View {
    fn fits(&self, heap_bytes: u64) -> bool {
        self.partial.fits(heap_bytes) && self.finished.fits(heap_bytes) && self.free.fits(heap_bytes)
    }
}

impl View {
    /// The same plan, for a block that calls the collective by itself, on a buffer that no other block shares.
    #[must_use]
    #[inline(always)]
    pub const fn alone(self) -> Self {
        Self { alone: 1, ..self }
    }
}

/// Combines the members' `src` element by element with `op`, and gives every member the result in `dst`.
///
/// # Collective
/// Over the team; `dst` may be `src`. Sends `2 (n-1)/n` of the buffer's bytes.
///
/// # Ordering
/// What a member stored to `src` before, in this block or before this kernel, is combined; on return this block's share of
/// `dst` is complete, and `src` and `dst` may be overwritten.
///
/// # Panics
/// Where the lengths differ, or the plan is for fewer blocks.
#[inline(always)]
#[track_caller]
pub fn all_reduce<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    dst: Sym<T>,
    src: Sym<T>,
    op: impl ReduceOp<T>,
    plan: &View,
) {
    if dst.len() != src.len() {
        panic!("destination and source have different lengths");
    }
    let ring = Neighbours::new(ctx, team, plan);
    if ring.n == 1 {
        return ring.keep(group, dst, src);
    }
    ring.reduce(group, dst, src, op, true);
    ring.pass_on(group, dst, ring.me);
}

/// Combines the members' `buf` element by element with `op`, so that member `i` has [chunk](Share) `i` of the result in
/// its place; the rest of `buf` is unspecified afterwards.
///
/// # Collective
/// Over the team. Sends `(n-1)/n` of the buffer's bytes.
///
/// # Ordering
/// As [`all_reduce`].
///
/// # Panics
/// Where the plan is for fewer blocks.
#[inline(always)]
#[track_caller]
pub fn reduce_scatter<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    buf: Sym<T>,
    op: impl ReduceOp<T>,
    plan: &View,
) {
    let ring = Neighbours::new(ctx, team, plan);
    if ring.n == 1 {
        return;
    }
    ring.reduce(group, buf, buf, op, false);
    // The right neighbour reads partial sums from here; they may go only when it is done.
    ctx.notify(group, ring.free.at(ring.left).post());
    ctx.wait(group, ring.free.from_rank(ring.right), 1);
}

/// Gives every member every member's chunk of `buf`: member `i` contributes [chunk](Share) `i`, in its place.
///
/// # Collective
/// Over the team. Sends `(n-1)/n` of the buffer's bytes.
///
/// # Ordering
/// What a member stored to its chunk before, in this block or before this kernel, is given; on return this block's share
/// of every chunk is complete, and `buf` may be overwritten.
///
/// # Panics
/// Where the plan is for fewer blocks.
#[inline(always)]
#[track_caller]
pub fn all_gather<T: Pod, G: Tag>(group: &impl Group, ctx: &Ctx<'_>, team: &Team<'_, G>, buf: Sym<T>, plan: &View) {
    let ring = Neighbours::new(ctx, team, plan);
    if ring.n == 1 {
        return;
    }
    // The right neighbour's buffer may be written once it is here too.
    ctx.notify(group, ring.free.at(ring.left).post());
    ctx.wait(group, ring.free.from_rank(ring.right), 1);
    for piece in ring.pieces(buf, ring.me) {
        ctx.put_signal(group, piece.at(ring.right), piece, ring.finished.at(ring.right).post());
    }
    ring.pass_on(group, buf, ring.me);
}

/// Gives every member the `buf` of member `root`, piece by piece along the ring.
///
/// # Collective
/// Over the team. Each member but the last sends the buffer once.
///
/// # Ordering
/// As [`all_gather`].
///
/// # Panics
/// Where `root` is out of range, or the plan is for fewer blocks.
#[inline(always)]
#[track_caller]
pub fn broadcast<T: Pod, G: Tag>(
    group: &impl Group,
    ctx: &Ctx<'_>,
    team: &Team<'_, G>,
    buf: Sym<T>,
    root: usize,
    plan: &View,
) {
    let ring = Neighbours::new(ctx, team, plan);
    let (first, last) = (team.rank(root), wrap(root + ring.n - 1, ring.n));
    if ring.n == 1 {
        return;
    }
    if ring.me != root {
        ctx.notify(group, ring.free.at(ring.left).post());
    }
    if ring.me != last {
        ctx.wait(group, ring.free.from_rank(ring.right), 1);
    }
    for piece in ring.cut(ring.mine(buf)) {
        if ring.me != first.index() {
            ctx.wait(group, ring.finished.from_rank(ring.left), 1);
        }
        if ring.me != last {
            ctx.put_signal(group, piece.at(ring.right), piece, ring.finished.at(ring.right).post());
        }
    }
}

/// This member's place in the ring, and its block's semaphores.
struct Neighbours<'c, G> {
    ctx: &'c Ctx<'c>,
    n: usize,
    me: usize,
    left: congruent_device::Rank<G>,
    right: congruent_device::Rank<G>,
    own: congruent_device::Rank<G>,
    partial: Sym<Semaphore>,
    finished: Sym<Semaphore>,
    free: Sym<Semaphore>,
    piece: usize,
    blocks: Share,
}

impl<'c, G: Tag> Neighbours<'c, G> {
    #[inline(always)]
    #[track_caller]
    fn new(ctx: &'c Ctx<'_>, team: &Team<'_, G>, plan: &View) -> Self {
        let slot = ctx.block_index();
        let blocks = if plan.alone == 1 { Share::new(0, 1) } else { Share::new(slot, ctx.blocks()) };
        let own = team.me();
        Self {
            ctx,
            n: team.size(),
            me: own.index(),
            left: team.prev(),
            right: team.next(),
            own,
            partial: plan.partial.elem(slot),
            finished: plan.finished.elem(slot),
            free: plan.free.elem(slot),
            piece: plan.piece as usize,
            blocks,
        }
    }

    /// This block's share of a buffer, or of a chunk of it.
    #[inline(always)]
    fn mine<T: Pod>(&self, whole: Sym<T>) -> Sym<T> {
        self.blocks.of(whole)
    }

    /// The pieces of this block's share of chunk `c`.
    #[inline(always)]
    fn pieces<T: Pod>(&self, buf: Sym<T>, c: usize) -> Pieces<T> {
        self.cut(self.mine(Share::new(c, self.n).of(buf)))
    }

    #[inline(always)]
    fn cut<T: Pod>(&self, rest: Sym<T>) -> Pieces<T> {
        Pieces { rest, most: Share::largest::<T>(self.piece.div_ceil(size_of::<T>()), 1) }
    }

    /// A team of one: `dst` becomes `src`.
    #[inline(always)]
    #[track_caller]
    fn keep<T: Pod>(&self, group: &impl Group, dst: Sym<T>, src: Sym<T>) {
        if dst == src {
            group.sync();
        } else {
            self.ctx.copy(group, self.mine(dst), self.mine(src));
        }
    }

    /// The reduce-scatter: at step `s` this member makes its partial sum of chunk `me - 2 - s`. The last step finishes
    /// chunk `me`, and with `give` writes it to the right neighbour too, as the first step of the all-gather.
    #[inline(always)]
    #[track_caller]
    fn reduce<T: Pod>(&self, group: &impl Group, dst: Sym<T>, src: Sym<T>, op: impl ReduceOp<T>, give: bool) {
        let (ctx, n) = (self.ctx, self.n);
        // What the right neighbour reads of me first is my source, which is ready as it is.
        ctx.notify(group, self.partial.at(self.right).post());
        ctx.wait(group, self.partial.from_rank(self.left), 1);
        for step in 0..n - 1 {
            let chunk = wrap(self.me + 2 * n - 2 - step, n);
            let last = step == n - 2;
            let sums = self.pieces(dst, chunk);
            let values = self.pieces(src, chunk);
            for (sum, value) in sums.zip(values) {
                // At the first step the left neighbour's part is its source, later its partial sum.
                let from = if step == 0 { value } else { sum };
                if step > 0 {
                    ctx.wait(group, self.partial.from_rank(self.left), 1);
                }
                let parts = [from.at(self.left), value.at(self.own)];
                let combine = |a, b| op.combine(if step == 0 { op.lift(a) } else { op.resume(a) }, op.lift(b));
                if last && give {
                    ctx.combine(group, [sum.at(self.own), sum.at(self.right)], parts, |a, b| {
                        op.finish(combine(a, b), n)
                    });
                    ctx.notify(group, self.finished.at(self.right).post());
                } else {
                    ctx.combine(group, [sum.at(self.own)], parts, |a, b| {
                        let sum = combine(a, b);
                        if last { op.finish(sum, n) } else { op.lower(sum) }
                    });
                    if !last {
                        ctx.notify(group, self.partial.at(self.right).post());
                    }
                }
            }
        }
    }

    /// The rest of the all-gather, after chunk `first` has been written to the right neighbour: each finished chunk that
    /// arrives from the left goes on to the right, but the last, which is the right neighbour's own.
    #[inline(always)]
    fn pass_on<T: Pod>(&self, group: &impl Group, buf: Sym<T>, first: usize) {
        for step in 1..self.n {
            let chunk = wrap(first + self.n - step, self.n);
            for piece in self.pieces(buf, chunk) {
                self.ctx.wait(group, self.finished.from_rank(self.left), 1);
                if step < self.n - 1 {
                    let done = self.finished.at(self.right).post();
                    self.ctx.put_signal(group, piece.at(self.right), piece, done);
                }
            }
        }
    }
}

/// Cuts a range into pieces of at most `most` elements. An empty range has none.
#[derive(Clone, Copy)]
struct Pieces<T> {
    rest: Sym<T>,
    most: usize,
}

impl<T: Pod> Iterator for Pieces<T> {
    type Item = Sym<T>;

    #[inline(always)]
    fn next(&mut self) -> Option<Sym<T>> {
        if self.rest.is_empty() {
            return None;
        }
        let cut = self.most.min(self.rest.len());
        let piece = self.rest.slice(..cut);
        self.rest = self.rest.slice(cut..);
        Some(piece)
    }
}

/// `i` modulo `n`, for `i` below `3n`.
#[inline(always)]
fn wrap(i: usize, n: usize) -> usize {
    let i = if i >= n { i - n } else { i };
    if i >= n { i - n } else { i }
}
