//! Folds on the CPU.
//!
//! Bytes that lie as they are go through vector registers where the processor has wide ones. Otherwise sources are brought into private
//! tiles, so that the fold runs on plain memory.

use core::cell::Cell;
use core::mem::{MaybeUninit, transmute_copy};
use core::ops::Range;

use congruent_heap::{Pod, refuse};

use super::bulk::copy_bytes;
#[cfg(target_arch = "x86_64")]
use super::fused::Fused;
use super::{load, load_acquire, store, store_release};
use crate::arch::{Share, Word};
use crate::bulk::Fold;
use crate::group::{Group, share};
use crate::operand::{PACKETS, PLAIN};
use crate::{Ctx, Operand, Operands, ReduceOp, Reduction};

/// What an expression is for the Rust type and the operator of a [`Reduction`].
macro_rules! for_reduction {
    ($reduction:expr, |$T:ident, $op:ident| $is:expr) => {{
        use $crate::{Avg, BitAnd, BitOr, BitXor, Max, Min, Op, PreMulSum, Prod, Sum};
        let reduction: $crate::Reduction = $reduction;
        macro_rules! by {
            ($by:expr) => {{
                let $op = $by;
                $is
            }};
        }
        macro_rules! number {
            () => {
                match reduction.op() {
                    Op::Prod => by!(Prod),
                    Op::Min => by!(Min),
                    Op::Max => by!(Max),
                    Op::Avg => by!(Avg),
                    Op::PreMulSum => by!(PreMulSum(reduction.scalar::<$T>())),
                    // `Reduction::new` lets bitwise operators only to integers, so what is left here is the sum.
                    Op::Sum | Op::And | Op::Or | Op::Xor => by!(Sum),
                }
            };
        }
        $crate::reduce::for_datatype!(reduction.datatype(),
            $T => match reduction.op() {
                Op::And => by!(BitAnd),
                Op::Or => by!(BitOr),
                Op::Xor => by!(BitXor),
                _ => number!(),
            },
            $T => number!()
        )
    }};
}

/// Folds by an operator on elements of `T`. False when a wait for packets ended without them; the reason is recorded.
///
/// # Safety
/// Every operand is mapped symmetric memory.
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn fold<T: Pod, O: ReduceOp<T>, B: Group, D: Operands, S: Operands>(
    fold: &Fold<'_, B, D, S>,
    op: O,
) -> bool {
    // SAFETY: the caller's contract.
    unsafe { of_operands(fold, |work| work.fold::<T, O>(op), |lines| lines.fold::<T, O>(op)) }
}

/// Sends the bytes of one source to every destination.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn transfer<B: Group, D: Operands, S: Operands>(fold: &Fold<'_, B, D, S>) -> bool {
    // SAFETY: the caller's contract.
    unsafe { self::fold::<u8, _, B, D, S>(fold, |source, _| source) }
}

/// Folds by an operator that was chosen at run time, on elements of a type that was.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn fold_reduction<B: Group, D: Operands, S: Operands>(
    fold: &Fold<'_, B, D, S>,
    reduction: Reduction,
) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        of_operands(
            fold,
            |work| work.fold_reduction(reduction),
            |lines| for_reduction!(reduction, |T, op| lines.fold::<T, _>(op)),
        )
    }
}

/// Does a lane's share of a fold: of bytes as they are once packets have come, or of operands of which some have lines.
///
/// # Safety
/// As [`fold`], for what is done.
#[inline(always)]
#[track_caller]
unsafe fn of_operands<B: Group, D: Operands, S: Operands>(
    fold: &Fold<'_, B, D, S>,
    of_bytes: impl FnOnce(&Work<'_>),
    of_lines: impl FnOnce(&Lines<'_>) -> bool,
) -> bool {
    let Fold { ctx, bytes, members, .. } = *fold;
    let (share, members) = (share(fold.group), members as usize);
    let (partial, has_lines, come) = (Cell::new(0), Cell::new(false), Cell::new(true));
    let checked = |operand: Operand| {
        if operand.bytes != bytes {
            refuse!("destination and source have different lengths");
        }
        operand
    };
    let to = |i| {
        let to = checked(fold.dst.get(i));
        has_lines.set(has_lines.get() | (const { !D::PLAIN } && to.has_lines()));
        to.data()
    };
    with_all(fold.dst.count(), to, |dst| {
        let from = |i| {
            let from = checked(fold.src.get(i));
            // No algorithm has a partial one among so many.
            let is_other = const { !S::PLAIN } && from.has_lines() || from.is_partial() && fold.src.count() > 64;
            has_lines.set(has_lines.get() | is_other);
            partial.set(partial.get() | u64::from(from.is_partial()) << (i % 64));
            come.set(come.get() && ctx.packets_come(&from));
            from.data()
        };
        with_all(fold.src.count(), from, |src| {
            if !come.get() {
                return false;
            }
            if has_lines.get() {
                return with_operands(&fold.dst, |dst| {
                    with_operands(&fold.src, |src| of_lines(&Lines { ctx, share, dst, src, bytes, members }))
                });
            }
            of_bytes(&Work { share, dst, src, partial: partial.get(), bytes, members });
            true
        })
    })
}

/// Gives operands, each computed once.
#[inline(always)]
fn with_operands<R>(operands: &impl Operands, then: impl FnOnce(&[Operand]) -> R) -> R {
    with_all(operands.count(), |i| operands.get(i), then)
}

/// Gives so many values, each computed once; a few of them without an allocation.
#[inline(always)]
pub(super) fn with_all<T, R>(count: usize, mut get: impl FnMut(usize) -> T, then: impl FnOnce(&[T]) -> R) -> R {
    const FEW: usize = 8;
    if count > FEW {
        return then(&(0..count).map(get).collect::<std::vec::Vec<_>>());
    }
    // What is not written is not read; all of it would take longer to write than a short fold takes.
    let mut few = [const { MaybeUninit::uninit() }; FEW];
    for (i, value) in few[..count].iter_mut().enumerate() {
        value.write(get(i));
    }
    // SAFETY: so many were just written.
    then(unsafe { core::slice::from_raw_parts(few.as_ptr().cast(), count) })
}

/// A lane's share of a fold of bytes as they are.
pub(super) struct Work<'w> {
    pub(super) share: Share,
    pub(super) dst: &'w [*mut u8],
    pub(super) src: &'w [*mut u8],
    /// A bit for each source that is a partial result: of none where there are more than 64.
    pub(super) partial: u64,
    /// Bytes of each.
    pub(super) bytes: usize,
    /// See [`Fold`].
    pub(super) members: usize,
}

impl Work<'_> {
    /// # Safety
    /// As [`fold`].
    #[track_caller]
    pub(super) unsafe fn fold_reduction(&self, reduction: Reduction) {
        // SAFETY: the caller's contract.
        for_reduction!(reduction, |T, op| unsafe { self.fold::<T, _>(op) });
    }

    /// # Safety
    /// As [`fold`].
    #[track_caller]
    pub(super) unsafe fn fold<T: Pod, O: ReduceOp<T>>(&self, op: O) {
        let all = self.dst.iter().chain(self.src).fold(0, |all, &place| all | place as usize);
        if all % align_of::<T>() != 0 {
            refuse!("bytes that are folded as a type are aligned for it and end with an element");
        }
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "nothing is folded before the tiles"))]
        let Range { start: mut at, end } = elements::<T>(self.share, self.bytes, 64);
        #[cfg(target_arch = "x86_64")]
        if let Some(fused) = Fused::new::<T>(self, at, end) {
            // SAFETY: the caller's contract, for parts of the ranges.
            unsafe {
                self.tiles(at..at + fused.head, op);
                at += fused.head;
                at += fused.run::<T, O>(at, op);
            }
        }
        // SAFETY: the caller's contract, for a part of the ranges.
        unsafe {
            match size_of::<T>() {
                1 if end - at < 64 => self.few::<T, O, u8, 8>(at..end, op),
                2 if end - at < 32 => self.few::<T, O, u16, 4>(at..end, op),
                4 if end - at < 16 => self.few::<T, O, u32, 2>(at..end, op),
                8 if end - at < 8 => self.few::<T, O, u64, 1>(at..end, op),
                _ => self.tiles(at..end, op),
            }
        }
    }

    /// Combines elements of all sources, `N` of each.
    #[inline(always)]
    pub(super) fn combine<T: Pod, O: ReduceOp<T>, const N: usize>(
        &self,
        op: O,
        load: impl Fn(*mut u8) -> [T; N],
    ) -> [T; N] {
        let lift = |i: usize, values: [T; N]| match self.partial >> (i % 64) & 1 {
            0 => values.map(|value| op.lift(value)),
            _ => values.map(|value| op.resume(value)),
        };
        let mut sums = lift(0, load(self.src[0]));
        for (i, &source) in self.src.iter().enumerate().skip(1) {
            let values = lift(i, load(source));
            for i in 0..N {
                sums[i] = op.combine(sums[i], values[i]);
            }
        }
        match self.members {
            0 => sums.map(|sum| op.lower(sum)),
            members => sums.map(|sum| op.finish(sum, members)),
        }
    }

    /// Folds a few elements, `N` of them by words of 8 bytes, and then one by one by words of their size.
    ///
    /// # Safety
    /// As [`fold`], for these elements.
    #[inline(always)]
    unsafe fn few<T: Pod, O: ReduceOp<T>, W: Word, const N: usize>(&self, range: Range<usize>, op: O) {
        let (mut at, end) = (range.start * size_of::<T>(), range.end * size_of::<T>());
        // SAFETY: the caller's contract.
        unsafe {
            while end - at >= 8 {
                self.one::<T, O, u64, N>(at, op);
                at += 8;
            }
            while at < end {
                self.one::<T, O, W, 1>(at, op);
                at += size_of::<T>();
            }
        }
    }

    /// Folds the elements of a word.
    ///
    /// # Safety
    /// As [`fold`], for a word that `N` elements fill.
    #[inline(always)]
    unsafe fn one<T: Pod, O: ReduceOp<T>, W: Word, const N: usize>(&self, at: usize, op: O) {
        // SAFETY: the caller's contract; a word need not be aligned to be accessed in parts, as those of folds may be.
        let values = self.combine::<T, O, N>(op, |from| unsafe { transmute_copy(&load::<W>(from.add(at).cast())) });
        for &to in self.dst {
            // SAFETY: as above.
            unsafe { store::<W>(to.add(at).cast(), transmute_copy(&values)) };
        }
    }

    /// # Safety
    /// As [`fold`], for these elements.
    #[inline(always)]
    unsafe fn tiles<T: Pod, O: ReduceOp<T>>(&self, range: Range<usize>, op: O) {
        let partial = |i: usize| self.partial >> (i % 64) & 1 != 0;
        // SAFETY: the caller's contract; the tiles have the room.
        let fetch = |i: usize, at, bytes, into| unsafe {
            copy_bytes(into, self.src[i].add(at), bytes);
            true
        };
        // SAFETY: as above.
        let deliver = |i: usize, at, bytes, from| unsafe { copy_bytes(self.dst[i].add(at), from, bytes) };
        let (srcs, dsts) = ((self.src.len(), partial), self.dst.len());
        // SAFETY: as above.
        let _nothing_is_awaited = unsafe { tiles(range, 64, srcs, dsts, self.members, op, fetch, deliver) };
    }
}

/// A lane's share of a fold of operands of which some have lines.
struct Lines<'w> {
    ctx: &'w Ctx<'w>,
    share: Share,
    dst: &'w [Operand],
    src: &'w [Operand],
    bytes: usize,
    members: usize,
}

impl Lines<'_> {
    /// # Safety
    /// As [`fold`].
    #[track_caller]
    unsafe fn fold<T: Pod, O: ReduceOp<T>>(&self, op: O) -> bool {
        // No line is shared.
        let line = |operand: &Operand| operand.has_lines().then(|| (operand.form() as usize - 8) / size_of::<T>());
        let grain = self.dst.iter().chain(self.src).find_map(line).unwrap_or(64);
        // SAFETY: the caller's contract; the tiles have the room.
        let fetch = |i: usize, at, bytes, into| unsafe { fetch(&self.src[i], at, bytes, into, self.ctx) };
        // SAFETY: as above.
        let deliver = |i: usize, at, bytes, from| unsafe { deliver(&self.dst[i], at, bytes, from) };
        let (srcs, dsts) = ((self.src.len(), |i: usize| self.src[i].is_partial()), self.dst.len());
        let range = elements::<T>(self.share, self.bytes, grain);
        // SAFETY: as above.
        unsafe { tiles(range, grain, srcs, dsts, self.members, op, fetch, deliver) }
    }
}

/// A lane's share of the elements of `T` of operands of so many bytes.
#[inline(always)]
#[track_caller]
fn elements<T>(Share { rank, size }: Share, bytes: usize, grain: usize) -> Range<usize> {
    if !bytes.is_multiple_of(size_of::<T>()) {
        refuse!("bytes that are folded as a type are aligned for it and end with an element");
    }
    let count = bytes / size_of::<T>();
    if size == 1 {
        return 0..count;
    }
    let each = count.div_ceil(size).next_multiple_of(grain);
    (rank * each).min(count)..((rank + 1) * each).min(count)
}

/// Bytes that [`fold`] holds of one source at a time: they stay in the first-level cache.
pub(super) const TILE: usize = 4096;

#[repr(align(64))]
pub(super) struct Tile(pub(super) MaybeUninit<[u8; TILE]>);

impl Tile {
    /// The first `count` elements, which the caller has filled.
    ///
    /// # Safety
    /// So many elements have been written and fit.
    #[inline(always)]
    pub(super) unsafe fn elements<T: Pod>(&mut self, count: usize) -> &mut [T] {
        // SAFETY: the tile is 64-byte aligned, of its own, filled as the caller says; any bytes are a valid Pod.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast::<T>(), count) }
    }
}

/// Folds a range of elements of so many sources, of which some are partial, tile by tile. A source is fetched, and a destination
/// delivered, by its index, the byte where the tile begins, and how many it has.
///
/// # Safety
/// What fetches fills as many bytes of a tile.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "two kinds of folds have the same loop")]
unsafe fn tiles<T: Pod, O: ReduceOp<T>>(
    Range { start: mut at, end }: Range<usize>,
    grain: usize,
    (srcs, is_partial): (usize, impl Fn(usize) -> bool),
    dsts: usize,
    members: usize,
    op: O,
    fetch: impl Fn(usize, usize, usize, *mut u8) -> bool,
    deliver: impl Fn(usize, usize, usize, *const u8),
) -> bool {
    const { assert!(size_of::<T>() <= TILE && align_of::<T>() <= 64 && size_of::<O::Acc>() <= TILE) };
    if at >= end {
        return true;
    }
    let (mut values, mut sums) = (Tile(MaybeUninit::uninit()), Tile(MaybeUninit::uninit()));
    let size = size_of::<T>();
    let most = TILE / size.max(size_of::<O::Acc>());
    let step = if most > grain { most / grain * grain } else { most };
    while at < end {
        let n = step.min(end - at);
        // SAFETY: each tile holds `n` elements of either type. The first source writes every sum, which the others read.
        unsafe {
            let sums = core::slice::from_raw_parts_mut(sums.0.as_mut_ptr().cast::<MaybeUninit<O::Acc>>(), n);
            for i in 0..srcs {
                if !fetch(i, at * size, n * size, values.0.as_mut_ptr().cast()) {
                    return false;
                }
                let values = values.elements::<T>(n);
                match (i, is_partial(i)) {
                    (0, false) => each(sums, values, |_, value| op.lift(value)),
                    (0, true) => each(sums, values, |_, value| op.resume(value)),
                    (_, false) => each(sums, values, |sum, value| op.combine(sum.assume_init(), op.lift(value))),
                    (_, true) => each(sums, values, |sum, value| op.combine(sum.assume_init(), op.resume(value))),
                }
            }
            let values = values.elements::<T>(n);
            for (value, sum) in values.iter_mut().zip(sums) {
                let sum = sum.assume_init();
                *value = if members > 0 { op.finish(sum, members) } else { op.lower(sum) };
            }
            for i in 0..dsts {
                deliver(i, at * size, n * size, values.as_ptr().cast());
            }
        }
        at += n;
    }
    true
}

#[inline(always)]
fn each<T: Copy, A: Copy>(sums: &mut [MaybeUninit<A>], values: &[T], next: impl Fn(MaybeUninit<A>, T) -> A) {
    for (sum, &value) in sums.iter_mut().zip(values) {
        *sum = MaybeUninit::new(next(*sum, value));
    }
}

/// Brings bytes `at..at + bytes` of an operand to private memory.
///
/// # Safety
/// The range is part of the operand, which is mapped, and whose packets have come; `at` is the start of a line where it has lines.
unsafe fn fetch(operand: &Operand, at: usize, bytes: usize, into: *mut u8, ctx: &Ctx<'_>) -> bool {
    let (start, flag) = (operand.start(), operand.flag);
    // SAFETY: the caller's contract; bytes and lines are found where `Operand` says that they are.
    unsafe {
        match operand.form() {
            PLAIN | PACKETS => {
                copy_bytes(into, operand.data().add(at), bytes);
                true
            }
            line => {
                let data = line as usize - 8;
                (at / data..(at + bytes).div_ceil(data)).all(|k| {
                    let start = start.add(k * line as usize);
                    let word = start.add(data).cast::<u64>();
                    let arrived = || load_acquire(word) == u64::from(flag);
                    if !arrived() && !ctx.flagged(*operand, arrived) {
                        return false;
                    }
                    let from = k * data - at;
                    copy_bytes(into.add(from), start, data.min(bytes - from));
                    true
                })
            }
        }
    }
}

/// Sends private bytes to bytes `at..at + bytes` of an operand.
///
/// # Safety
/// As [`fetch`]; `from` holds `bytes` bytes.
unsafe fn deliver(operand: &Operand, at: usize, bytes: usize, from: *const u8) {
    let (start, flag) = (operand.start(), operand.flag);
    // SAFETY: the caller's contract; bytes and lines go where `Operand` says that they are.
    unsafe {
        match operand.form() {
            // Who waits for packets is told once the whole group has stored them.
            PLAIN | PACKETS => copy_bytes(operand.data().add(at), from, bytes),
            line => {
                let data = line as usize - 8;
                for k in at / data..(at + bytes).div_ceil(data) {
                    let start = start.add(k * line as usize);
                    let part = k * data - at;
                    copy_bytes(start, from.add(part), data.min(bytes - part));
                    store_release(start.add(data).cast::<u64>(), flag.into());
                }
            }
        }
    }
}
