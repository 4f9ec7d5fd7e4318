//! All-reduce, residual and RMSNorm in one call: what a tensor-parallel layer does between its matrix products.
//!
//! Of each row every member has a partial sum, and all have the same residual. With `h = residual + (x[0] + x[1] + ... + x[n-1])`,
//! which becomes the residual, each member gets `h / sqrt(mean(h^2) + epsilon) * weights`. The block that has summed a row
//! normalizes it, so nothing is launched twice, and no block waits for another one of its PE.
//!
//! The sum is in rank order, the residual last, in the type's accumulator, with one rounding at the end: the residual has the same
//! bits for every algorithm and every number of blocks and threads. Squares are summed in `f32` by the threads of a block, so the
//! last bits of a normalized row depend on how many these are; all members that have as many get the same.

use core::ops::Range;

use congruent_device::{AccumulateIn, Block, Group, Keep, Number, Operands, Sum, Sym, math, operands, refuse};

use crate::names::Operation;
use crate::session::Coll;
use crate::{Protocol, check, one_shot};

/// Rows that are summed and normalized, of as many numbers each as there are weights.
#[derive(Clone, Copy, Debug)]
pub struct NormRows<'a, T> {
    /// The normalized rows. May be `src`.
    pub dst: Sym<T>,
    /// This member's partial sums.
    pub src: Sym<T>,
    /// What is added, the same at all members; and then the sum.
    pub residual: Sym<T>,
    /// A factor for each number of a row.
    pub weights: &'a [T],
    /// What keeps a row of zeros from a division by zero.
    pub epsilon: f32,
}

/// A number that is normalized in `f32`.
pub trait Normed: Number + AccumulateIn<f32> {}
impl<T: Number + AccumulateIn<f32>> Normed for T {}

/// Sums and normalizes rows: [`one_shot()`] where the plan is over packets or lines, else [`direct`]. The host knows which is faster: that
/// which a call of all-reduce with as many bytes takes, one-shot or another algorithm.
///
/// ```
/// use congruent_collectives::PlanView;
/// use congruent_collectives::norm::{self, NormRows};
/// use congruent_device::{Slice, Sym, bf16, kernels};
///
/// kernels! {
///     /// Rows of as many numbers as there are weights; the normalized ones take the place of the partial sums.
///     pub fn sum_and_norm(
///         block, ctx, plan: PlanView, partials: Sym<bf16>, residual: Sym<bf16>, weights: Slice<bf16>,
///     ) {
///         let rows = NormRows { dst: partials, src: partials, residual, weights, epsilon: 1e-5 };
///         norm::all_reduce(&mut plan.enter(block, ctx), rows);
///     }
/// }
/// ```
///
/// # Collective
/// As [`direct`].
///
/// # Ordering
/// As [`direct`].
///
/// # Panics
/// As [`direct`].
#[inline(always)]
#[track_caller]
pub fn all_reduce<T: Normed>(coll: &mut Coll<'_, Block<'_>>, rows: NormRows<'_, T>) {
    match coll.plan.protocol() {
        Protocol::Simple => direct(coll, rows),
        Protocol::Ll | Protocol::Ll128 => one_shot(coll, rows),
    }
}

/// The same in one exchange of packets: every member sums and normalizes all rows.
///
/// # Collective
/// As [`direct`], but each member sends the buffer to `n-1` others, and a block its rows.
///
/// # Ordering
/// As [`direct`]; packets carry themselves only (MM-8).
///
/// # Panics
/// As [`direct`], and as [`one_shot::all_reduce`].
#[inline(always)]
#[track_caller]
pub fn one_shot<T: Normed>(coll: &mut Coll<'_, Block<'_>>, rows: NormRows<'_, T>) {
    rows.check();
    let _call = one_shot::begin(coll, Operation::NormOneShot, rows.src.bytes());
    // What any thread of the group has stored is sent.
    coll.group().sync();
    let mine = rows_of_block(rows.count(), coll.block as usize, coll.blocks as usize);
    let (sums, from) = (rows.of(rows.residual, &mine), rows.of(rows.src, &mine));
    let (most, len) = (one_shot::most::<T, _>(coll), from.len());
    for start in (0..len).step_by(most) {
        let (sums, from) = (sums.slice(start..(start + most).min(len)), from.slice(start..(start + most).min(len)));
        let _step = one_shot::step(coll, (start / most, len.div_ceil(most)), from.bytes());
        one_shot::clean_all(coll, from.bytes());
        one_shot::to_others(coll, from);
        {
            let all = one_shot::of_all(coll, from);
            let and_residual = operands(coll.n() + 1, |i| if i == coll.n() { coll.operand(sums) } else { all.get(i) });
            coll.fold::<T>(from.bytes(), coll.only(sums), and_residual, Sum, coll.n());
        }
        one_shot::done(coll);
    }
    rows.normalize(coll, mine);
}

/// The same in two steps: each member sums and normalizes its part of the rows, and gives them to all.
///
/// # Collective
/// Over the team. Each member reads `(n-1)/n` of `src` and writes twice as much. All give as many rows, in as many blocks, and the same
/// residual, weights and epsilon.
///
/// # Ordering
/// What a member stored to `src` and `residual` before, in the block whose [row](rows_of_block) it is or before this kernel, is summed;
/// on return this block's rows of `dst` and `residual` are complete, and those of `src` may be overwritten. Until then other members
/// store to these rows: no other block of this PE reads them.
///
/// # Panics
/// Where the lengths differ or are no whole number of rows, buffers overlap other than that `dst` is `src`, or a member is reached
/// only through a proxy.
#[inline(always)]
#[track_caller]
pub fn direct<T: Normed>(coll: &mut Coll<'_, Block<'_>>, rows: NormRows<'_, T>) {
    rows.check();
    let _call = coll.begin(Operation::NormDirect, rows.src.bytes());
    let of_block = rows_of_block(rows.count(), coll.block as usize, coll.blocks as usize);
    // Each block's first row is another member's, so that all have work where blocks have few rows each.
    let mine = part(of_block, (coll.me() + coll.block as usize) % coll.n(), coll.n());
    coll.barrier();
    let (sums, from) = (rows.of(rows.residual, &mine), rows.of(rows.src, &mine));
    let at = |i: usize| if i == coll.n() { sums.at(coll.own()) } else { from.at(coll.rank(i)) };
    let everywhere = coll.ctx().places(coll.n(), |i| sums.at(coll.after(i)));
    coll.start_fold::<T>(from.bytes(), everywhere, coll.ctx().places(coll.n() + 1, at), Sum, coll.n());
    let normalized = rows.of(rows.dst, &mine);
    rows.normalize(coll, mine);
    if coll.n() > 1 {
        let others = coll.ctx().places(coll.n() - 1, |i| normalized.at(coll.after(i + 1)));
        coll.start_fold(normalized.bytes(), others, coll.only(normalized), Keep, 0);
    }
    coll.barrier();
}

/// The rows of `count` that block `block` of `blocks` sums, at every member: who computes partial sums in the same kernel has this block
/// compute these.
#[inline(always)]
pub fn rows_of_block(count: usize, block: usize, blocks: usize) -> Range<usize> {
    part(0..count, block, blocks)
}

/// Part `i` of `count` of a range of rows.
#[inline(always)]
fn part(rows: Range<usize>, i: usize, count: usize) -> Range<usize> {
    let each = rows.len().div_ceil(count);
    (rows.start + i * each).min(rows.end)..(rows.start + (i + 1) * each).min(rows.end)
}

impl<T: Normed> NormRows<'_, T> {
    #[inline(always)]
    #[track_caller]
    fn check(&self) {
        check::same(self.dst, self.src);
        if self.residual.len() != self.src.len() {
            refuse!("the residual has as many rows as the source");
        }
        check::apart(self.residual, self.src);
        check::apart(self.residual, self.dst);
        if self.weights.is_empty() || !self.src.len().is_multiple_of(self.weights.len()) {
            refuse!("rows have as many numbers as there are weights, and there is a whole number of them");
        }
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.src.len() / self.weights.len()
    }

    /// These rows of a buffer.
    #[inline(always)]
    #[track_caller]
    fn of(&self, buffer: Sym<T>, rows: &Range<usize>) -> Sym<T> {
        buffer.slice(rows.start * self.weights.len()..rows.end * self.weights.len())
    }

    /// Normalizes rows whose sums the group's threads have just stored, and has them meet again.
    #[inline(always)]
    #[track_caller]
    fn normalize(&self, coll: &Coll<'_, Block<'_>>, rows: Range<usize>) {
        let (group, ctx, len) = (coll.group(), coll.ctx(), self.weights.len());
        let wide = |x: T| -> f32 { x.into_acc() };
        let square = |x: f32| x * x;
        group.sync();
        for row in rows {
            let (from, to) = (self.of(self.residual, &(row..row + 1)), self.of(self.dst, &(row..row + 1)));
            let squares = group.strided(len).fold(0.0, |sum, i| sum + square(wide(ctx.load(from, i))));
            let scale = math::rsqrt(group.reduce(squares, Sum) / len as f32 + self.epsilon);
            for i in group.strided(len) {
                ctx.store(to, i, T::from_acc(wide(ctx.load(from, i)) * scale * wide(self.weights[i])));
            }
        }
        group.sync();
    }
}
