//! All-reduce, residual and RMSNorm in one call: what a tensor-parallel layer does between its matrix products.
//!
//! Of each row every member has a partial sum, and all have the same residual. With `h = residual + (x[0] + x[1] + ... + x[n-1])`,
//! which becomes the residual, each member gets `h / sqrt(mean(h^2) + epsilon) * weights`. The block that has summed a row
//! normalizes it, so nothing is launched twice, and no block waits for another one of its PE.
//!
//! The sum is in rank order, the residual last, in the type's accumulator, with one rounding at the end: the residual has the same
//! bits for every number of blocks and threads, and for every algorithm but [`multimem()`], whose order is the switch's. Squares are summed in `f32` by the threads of a block, so the
//! last bits of a normalized row depend on how many these are; all members that have as many get the same.

use core::ops::Range;

use congruent_device::quantize::{self, Fp8};
use congruent_device::{AccumulateIn, Block, Group, Keep, Number, Operands, Sum, Sym, math, operands, refuse};

use crate::names::Operation;
use crate::session::Coll;
use crate::{Protocol, check, multimem, one_shot};

/// Rows that are summed and normalized, of as many numbers each as there are weights.
#[derive(Clone, Copy, Debug)]
pub struct NormRows<'a, T, D = Sym<T>> {
    /// The normalized rows: as numbers of their type, which may be `src`, or [`Quantized`].
    pub dst: D,
    /// This member's partial sums.
    pub src: Sym<T>,
    /// What is added, the same at all members; and then the sum.
    pub residual: Sym<T>,
    /// A factor for each number of a row.
    pub weights: &'a [T],
    /// What keeps a row of zeros from a division by zero.
    pub epsilon: f32,
}

/// Normalized rows in 8 bits, as the next product takes them: each `group` numbers of a row are divided by a scale of their own, which
/// is what [`quantize::scale`] says of their normalized values in `f32`. Of a row the last group may have fewer.
///
/// ```
/// use congruent_collectives::PlanView;
/// use congruent_collectives::norm::{self, NormRows, Quantized};
/// use congruent_device::{Fp8E4M3, Slice, Sym, bf16, kernels};
///
/// kernels! {
///     /// Rows for a product in 8 bits.
///     pub fn sum_and_quantize(
///         block, ctx, plan: PlanView, numbers: Sym<Fp8E4M3>, scales: Sym<f32>, src: Sym<bf16>, residual: Sym<bf16>,
///         weights: Slice<bf16>,
///     ) {
///         let dst = Quantized { numbers, scales, group: 128 };
///         norm::all_reduce(&mut plan.enter(block, ctx), NormRows { dst, src, residual, weights, epsilon: 1e-5 });
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Quantized<F> {
    /// As many numbers as there are in the source.
    pub numbers: Sym<F>,
    /// A scale for each group of each row, row by row.
    pub scales: Sym<f32>,
    /// Numbers of a group: 128, say.
    pub group: usize,
}

/// A number that is normalized in `f32`.
pub trait Normed: Number + AccumulateIn<f32> {}
impl<T: Number + AccumulateIn<f32>> Normed for T {}

/// Where normalized rows of a type go: a [`Sym`] of it, or [`Quantized`].
pub trait NormDst<T>: Copy {
    /// Refuses what has not the room for these rows of so many numbers, or overlaps the residual.
    #[doc(hidden)]
    #[track_caller]
    fn check(self, src: Sym<T>, residual: Sym<T>, len: usize);
    /// Stores a row, of which `number` gives each number, by all threads of the block.
    #[doc(hidden)]
    #[track_caller]
    fn store(self, coll: &Coll<'_, Block<'_>>, row: usize, len: usize, number: impl Fn(usize) -> f32);
    /// Gives these rows to all other members, by `give`; the group meets in the barrier behind it.
    #[doc(hidden)]
    #[track_caller]
    fn give(self, coll: &Coll<'_, Block<'_>>, rows: &Range<usize>, len: usize, give: impl Fn(Sym<u8>));
}

impl<T: Normed> NormDst<T> for Sym<T> {
    #[inline(always)]
    #[track_caller]
    fn check(self, src: Sym<T>, residual: Sym<T>, _len: usize) {
        check::same(self, src);
        check::apart(residual, self);
    }

    #[inline(always)]
    #[track_caller]
    fn store(self, coll: &Coll<'_, Block<'_>>, row: usize, len: usize, number: impl Fn(usize) -> f32) {
        let to = self.slice(row * len..(row + 1) * len);
        for i in coll.group().strided(len) {
            coll.ctx().store(to, i, T::from_acc(number(i)));
        }
    }

    #[inline(always)]
    #[track_caller]
    fn give(self, _coll: &Coll<'_, Block<'_>>, rows: &Range<usize>, len: usize, give: impl Fn(Sym<u8>)) {
        give(self.slice(rows.start * len..rows.end * len).cast());
    }
}

impl<T: Normed, F: Fp8> NormDst<T> for Quantized<F> {
    #[inline(always)]
    #[track_caller]
    fn check(self, src: Sym<T>, residual: Sym<T>, len: usize) {
        let Self { numbers, scales, group } = self;
        if group == 0 || numbers.len() != src.len() || scales.len() != src.len() / len * len.div_ceil(group) {
            refuse!("quantized rows have as many numbers as the source, and a scale for each group of each row");
        }
        let bytes = |at: u64, bytes: usize| Sym::<u8>::from_raw(at, bytes as u64);
        let [numbers, scales] = [bytes(numbers.offset(), numbers.bytes()), bytes(scales.offset(), scales.bytes())];
        check::apart(numbers, scales);
        // Others still read the source, and the residual is what is normalized.
        for other in [bytes(src.offset(), src.bytes()), bytes(residual.offset(), residual.bytes())] {
            check::apart(other, numbers);
            check::apart(other, scales);
        }
    }

    #[inline(always)]
    #[track_caller]
    fn store(self, coll: &Coll<'_, Block<'_>>, row: usize, len: usize, number: impl Fn(usize) -> f32) {
        let Self { numbers, scales, group } = self;
        let (ctx, warp, groups) = (coll.ctx(), coll.group().warp(), len.div_ceil(group));
        for of_row in (coll.group().warp_index()..groups).step_by(coll.group().warps()) {
            let (first, end) = (of_row * group, (of_row * group + group).min(len));
            let largest = warp.strided(end - first).fold(0.0_f32, |most, i| most.max(number(first + i).abs()));
            let scale = quantize::scale::<F>(&warp, largest);
            for i in warp.strided(end - first) {
                ctx.store(numbers, row * len + first + i, quantize::narrow(number(first + i), scale));
            }
            if warp.leader() {
                ctx.store(scales, row * groups + of_row, scale);
            }
        }
    }

    #[inline(always)]
    #[track_caller]
    fn give(self, coll: &Coll<'_, Block<'_>>, rows: &Range<usize>, len: usize, give: impl Fn(Sym<u8>)) {
        let groups = len.div_ceil(self.group);
        give(self.numbers.slice(rows.start * len..rows.end * len).cast());
        // Both lists of members have the same place.
        coll.group().sync();
        give(self.scales.slice(rows.start * groups..rows.end * groups).cast());
    }
}

/// Copies bytes of this member's to all others.
#[inline(always)]
#[track_caller]
fn give(coll: &Coll<'_, Block<'_>>, bytes: Sym<u8>) {
    if coll.n() > 1 {
        let others = coll.ctx().places(coll.n() - 1, |i| bytes.at(coll.after(i + 1)));
        coll.start_fold(bytes.len(), others, coll.only(bytes), Keep, 0);
    }
}

/// Sums and normalizes rows: [`one_shot()`] where the plan is over packets or lines, else [`direct`]. The host knows which is faster: that
/// which a call of all-reduce with as many bytes takes, one-shot or another algorithm. Where that one is of links, call [`multimem()`]: its
/// order of sums is another.
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
pub fn all_reduce<T: Normed, D: NormDst<T>>(coll: &mut Coll<'_, Block<'_>>, rows: NormRows<'_, T, D>) {
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
pub fn one_shot<T: Normed, D: NormDst<T>>(coll: &mut Coll<'_, Block<'_>>, rows: NormRows<'_, T, D>) {
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
/// Where the lengths differ or are no whole number of rows, buffers overlap other than that `dst` is `src`, what is [`Quantized`] has not a
/// scale for each group, or a member is reached only through a proxy.
#[inline(always)]
#[track_caller]
pub fn direct<T: Normed, D: NormDst<T>>(coll: &mut Coll<'_, Block<'_>>, rows: NormRows<'_, T, D>) {
    rows.check();
    let _call = coll.begin(Operation::NormDirect, rows.src.bytes());
    let mine = rows.mine(coll);
    coll.barrier();
    let (sums, from) = (rows.of(rows.residual, &mine), rows.of(rows.src, &mine));
    let at = |i: usize| if i == coll.n() { sums.at(coll.own()) } else { from.at(coll.rank(i)) };
    let everywhere = coll.ctx().places(coll.n(), |i| sums.at(coll.after(i)));
    coll.start_fold::<T>(from.bytes(), everywhere, coll.ctx().places(coll.n() + 1, at), Sum, coll.n());
    rows.normalize(coll, mine.clone());
    rows.dst.give(coll, &mine, rows.weights.len(), |bytes| give(coll, bytes));
    coll.barrier();
}

/// The same through multicast addresses: each member's part of the rows is summed by links, normalized, and stored at all by links.
///
/// The order of the sum is the switch's, as [`mod@multimem`] says, and it is rounded before the residual is added and again behind that. All
/// members get the same bits.
///
/// # Collective
/// Over the team. Each member gives `src` to the switch once, and its part of the result once. All give as many rows, in as many blocks, and
/// the same residual, weights and epsilon.
///
/// # Ordering
/// As [`direct`] (MM-9). `src` is overwritten.
///
/// # Panics
/// As [`direct`], and where the team has no multicast or links do not sum such numbers.
#[inline(always)]
#[track_caller]
pub fn multimem<T: Normed, D: NormDst<T>>(coll: &mut Coll<'_, Block<'_>>, rows: NormRows<'_, T, D>) {
    rows.check();
    let how = multimem::reduction::<T, _>(coll, Sum);
    let _call = coll.begin(Operation::NormMultimem, rows.src.bytes());
    let mine = rows.mine(coll);
    coll.barrier();
    let (sums, from) = (rows.of(rows.residual, &mine), rows.of(rows.src, &mine));
    multimem::reduce(coll, from, from, Sum, how);
    // The fold's operands lie where those of its ends do, and its threads divide the rows otherwise.
    coll.group().sync();
    let both = coll.ctx().places(2, |i| if i == 0 { from } else { sums }.at(coll.own()));
    coll.start_fold::<T>(from.bytes(), coll.only(sums), both, Sum, coll.n());
    rows.normalize(coll, mine.clone());
    multimem::give(coll, sums.cast(), sums.cast());
    coll.group().sync();
    rows.dst.give(coll, &mine, rows.weights.len(), |bytes| multimem::give(coll, bytes, bytes));
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

impl<T: Normed, D: NormDst<T>> NormRows<'_, T, D> {
    #[inline(always)]
    #[track_caller]
    fn check(&self) {
        if self.residual.len() != self.src.len() {
            refuse!("the residual has as many rows as the source");
        }
        check::apart(self.residual, self.src);
        if self.weights.is_empty() || !self.src.len().is_multiple_of(self.weights.len()) {
            refuse!("rows have as many numbers as there are weights, and there is a whole number of them");
        }
        self.dst.check(self.src, self.residual, self.weights.len());
    }

    #[inline(always)]
    fn count(&self) -> usize {
        self.src.len() / self.weights.len()
    }

    /// This member's part of the block's rows. Each block's first row is another member's, so that all have work where blocks have few rows
    /// each.
    #[inline(always)]
    fn mine(&self, coll: &Coll<'_, Block<'_>>) -> Range<usize> {
        let of_block = rows_of_block(self.count(), coll.block as usize, coll.blocks as usize);
        part(of_block, (coll.me() + coll.block as usize) % coll.n(), coll.n())
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
            let from = self.of(self.residual, &(row..row + 1));
            let squares = group.strided(len).fold(0.0, |sum, i| sum + square(wide(ctx.load(from, i))));
            let scale = math::rsqrt(group.reduce(squares, Sum) / len as f32 + self.epsilon);
            self.dst.store(coll, row, len, |i| wide(ctx.load(from, i)) * scale * wide(self.weights[i]));
        }
        group.sync();
    }
}
