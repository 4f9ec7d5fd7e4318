//! Bulk accesses on the CPU: copy, fold, fill.

use core::mem::MaybeUninit;

use congruent_heap::abi::NO_PE;
use congruent_heap::{Pod, refuse};

use super::{load, load_acquire, store, store_release};
use crate::arch::Share;
use crate::bulk::Fold;
use crate::group::{Group, share};
use crate::operand::{PACKETS, PLAIN};
use crate::{Ctx, Operand, Operands, ReduceOp, Reduction};

/// Copies its share of `bytes` bytes.
///
/// # Safety
/// Both ranges are mapped; at least one is symmetric memory, the other that or memory of this thread's own.
#[inline(always)]
pub(crate) unsafe fn copy(share: Share, dst: *mut u8, src: *const u8, bytes: usize) {
    let (start, end) = part(share, bytes);
    // SAFETY: the caller's contract, for a part of the ranges.
    unsafe { copy_bytes(dst.add(start), src.add(start), end - start) };
}

/// Which bytes of `bytes` a lane handles: contiguous parts that start on cache lines.
#[inline(always)]
fn part(share: Share, bytes: usize) -> (usize, usize) {
    if share.size == 1 {
        return (0, bytes);
    }
    let each = bytes.div_ceil(share.size).next_multiple_of(64);
    ((share.rank * each).min(bytes), ((share.rank + 1) * each).min(bytes))
}

/// # Safety
/// As [`copy`].
#[inline(always)]
unsafe fn copy_bytes(dst: *mut u8, src: *const u8, bytes: usize) {
    if bytes == 8 && (dst as usize | src as usize).is_multiple_of(8) {
        // SAFETY: the caller's contract, and both are aligned.
        unsafe { store(dst.cast::<u64>(), load(src.cast::<u64>())) };
    } else {
        // SAFETY: the caller's contract.
        unsafe { copy_many(dst, src, bytes) };
    }
}

/// Up to this size a copy takes less time than a string instruction takes to start.
#[cfg(target_arch = "x86_64")]
const FEW: usize = 128;

/// A copy of up to [`FEW`] bytes: pieces of one size that overlap where they must, each read before any is written.
///
/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_few(dst: *mut u8, src: *const u8, bytes: usize) {
    use core::arch::asm;
    macro_rules! ends {
        ($class:ident, $size:literal, $move:literal) => {
            asm!(
                concat!($move, " {a}, [{s}]"), concat!($move, " {b}, [{s} + {n} - ", $size, "]"),
                concat!($move, " [{d}], {a}"), concat!($move, " [{d} + {n} - ", $size, "], {b}"),
                s = in(reg) src, d = in(reg) dst, n = in(reg) bytes, a = out($class) _, b = out($class) _,
                options(nostack, preserves_flags),
            )
        };
    }
    // SAFETY: each piece is inside both ranges, because `bytes` is at least its size and at most twice that.
    unsafe {
        match bytes {
            0 => {}
            1 => store(dst, load(src)),
            2..4 => {
                let (first, middle, last) = (load(src), load(src.add(bytes / 2)), load(src.add(bytes - 1)));
                store(dst, first);
                store(dst.add(bytes / 2), middle);
                store(dst.add(bytes - 1), last);
            }
            4..8 => {
                let (a, b): (u32, u32);
                asm!("mov {a:e}, [{s}]", "mov {b:e}, [{s} + {n} - 4]", "mov [{d}], {a:e}", "mov [{d} + {n} - 4], {b:e}",
                    s = in(reg) src, d = in(reg) dst, n = in(reg) bytes, a = out(reg) a, b = out(reg) b,
                    options(nostack, preserves_flags));
                let _both_stored = (a, b);
            }
            8..16 => ends!(reg, "8", "mov"),
            16..=32 => ends!(xmm_reg, "16", "movdqu"),
            _ => {
                copy_few(dst, src, 32);
                let (mut at, end) = (32, bytes - 32);
                while at < end {
                    copy_few(dst.add(at), src.add(at), 32);
                    at += 32;
                }
                copy_few(dst.add(end), src.add(end), 32);
            }
        }
    }
}

/// Past this size a copy does not fit the caches near the core, and its destination need not be read first.
#[cfg(target_arch = "x86_64")]
const STREAM: usize = 2 << 20;

/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_many(mut dst: *mut u8, mut src: *const u8, mut bytes: usize) {
    use core::arch::asm;
    if bytes <= FEW {
        // SAFETY: the caller's contract.
        return unsafe { copy_few(dst, src, bytes) };
    }
    // SAFETY: each block reads and writes only the two ranges, byte by byte or 16 at once (the file's heading argues why
    // that may race). The direction flag is clear by the ABI. The stores of one string instruction have no order among
    // themselves, but all come before every later store (Intel SDM vol. 3A, "Fast-String Operation and Out-of-Order
    // Stores"). Non-temporal stores are weakly ordered (vol. 1, "Caching of Temporal vs. Non-Temporal Data"); the sfence
    // puts them before every later store. So a release that follows covers both.
    unsafe {
        if bytes >= STREAM {
            let head = (dst as usize).wrapping_neg() % 64;
            asm!("rep movsb", inout("rcx") head => _, inout("rdi") dst, inout("rsi") src, options(nostack, preserves_flags));
            bytes -= head;
            let lines = bytes / 64 * 64;
            asm!(
                "2:",
                "movdqu {a}, [{s}]", "movdqu {b}, [{s} + 16]", "movdqu {c}, [{s} + 32]", "movdqu {e}, [{s} + 48]",
                "movntdq [{d}], {a}", "movntdq [{d} + 16], {b}", "movntdq [{d} + 32], {c}", "movntdq [{d} + 48], {e}",
                "add {s}, 64", "add {d}, 64", "sub {n}, 64",
                "jnz 2b",
                "sfence",
                s = inout(reg) src, d = inout(reg) dst, n = inout(reg) lines => _,
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, e = out(xmm_reg) _,
                options(nostack),
            );
            bytes %= 64;
        }
        asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") dst => _, inout("rsi") src => _, options(nostack, preserves_flags));
    }
}

/// # Safety
/// As [`copy`].
#[cfg(target_arch = "aarch64")]
unsafe fn copy_many(mut dst: *mut u8, mut src: *const u8, mut bytes: usize) {
    use core::arch::asm;
    // SAFETY: each block reads and writes only the two ranges, which may be aligned for nothing. All stores are ordinary ones: they
    // come before every later store with release (Arm ARM, B2.3).
    unsafe {
        let pairs = bytes / 32 * 32;
        if pairs > 0 {
            asm!(
                "2:",
                "ldp {a:q}, {b:q}, [{s}], #32", "stp {a:q}, {b:q}, [{d}], #32",
                "subs {n}, {n}, #32",
                "b.ne 2b",
                s = inout(reg) src, d = inout(reg) dst, n = inout(reg) pairs => _, a = out(vreg) _, b = out(vreg) _,
                options(nostack),
            );
            bytes -= pairs;
        }
        while bytes >= 8 {
            asm!("ldr {a}, [{s}], #8", "str {a}, [{d}], #8", s = inout(reg) src, d = inout(reg) dst, a = out(reg) _,
                options(nostack, preserves_flags));
            bytes -= 8;
        }
        for at in 0..bytes {
            store(dst.add(at), load(src.add(at)));
        }
    }
}

/// Bytes that [`fold`] holds of one source at a time: they stay in the first-level cache.
const TILE: usize = 4096;

#[repr(align(64))]
struct Tile(MaybeUninit<[u8; TILE]>);

impl Tile {
    /// The first `count` elements, which the caller has filled.
    ///
    /// # Safety
    /// So many elements have been written and fit.
    #[inline(always)]
    unsafe fn elements<T: Pod>(&mut self, count: usize) -> &mut [T] {
        // SAFETY: the tile is 64-byte aligned, of its own, filled as the caller says; any bytes are a valid Pod.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast::<T>(), count) }
    }
}

/// Folds by an operator on elements of `T`. False when a wait for packets ended without them; the reason is recorded.
///
/// Ranges that loads and stores reach go through vector registers where the processor has wide ones. Otherwise sources are
/// brought into private tiles, so that the fold runs on plain memory.
///
/// # Safety
/// Every operand is mapped symmetric memory.
#[inline(always)]
#[track_caller]
pub(crate) unsafe fn fold<T: Pod, O: ReduceOp<T>, B: Group, D: Operands, S: Operands>(
    fold: &Fold<'_, B, D, S>,
    op: O,
) -> bool {
    let (dst, src) = (List::of(&fold.dst), List::of(&fold.src));
    let work = Work { ctx: fold.ctx, share: share(fold.group), dst: &dst, src: &src, members: fold.members as usize };
    // SAFETY: the caller's contract.
    unsafe { work.fold::<T, O>(fold.bytes, op) }
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
    let (dst, src) = (List::of(&fold.dst), List::of(&fold.src));
    let work = Work { ctx: fold.ctx, share: share(fold.group), dst: &dst, src: &src, members: fold.members as usize };
    // SAFETY: the caller's contract.
    unsafe { work.fold_reduction(fold.bytes, reduction) }
}

/// Operands, each computed once.
struct List {
    few: [Operand; Self::FEW],
    many: std::vec::Vec<Operand>,
    count: usize,
}

impl List {
    /// So many need no allocation.
    const FEW: usize = 8;

    #[inline(always)]
    fn of(operands: &impl Operands) -> Self {
        let none = Operand { address: 0, bytes: 0, offset: 0, pe: NO_PE, sender: NO_PE, form: PLAIN, flag: 0 };
        let mut list = Self { few: [none; Self::FEW], many: std::vec::Vec::new(), count: operands.count() };
        if list.count > Self::FEW {
            list.many.extend((0..list.count).map(|i| operands.get(i)));
        } else {
            for i in 0..list.count {
                list.few[i] = operands.get(i);
            }
        }
        list
    }
}

impl core::ops::Deref for List {
    type Target = [Operand];
    #[inline(always)]
    fn deref(&self) -> &[Operand] {
        if self.count > Self::FEW { &self.many } else { &self.few[..self.count] }
    }
}

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
pub(super) use for_reduction;

/// A thread's share of a fold.
struct Work<'w> {
    ctx: &'w Ctx<'w>,
    share: Share,
    dst: &'w [Operand],
    src: &'w [Operand],
    /// See [`Fold`].
    members: usize,
}

impl Work<'_> {
    /// # Safety
    /// As [`fold`].
    #[track_caller]
    unsafe fn fold_reduction(&self, bytes: usize, reduction: Reduction) -> bool {
        // SAFETY: the caller's contract.
        for_reduction!(reduction, |T, op| unsafe { self.fold::<T, _>(bytes, op) })
    }

    /// # Safety
    /// As [`fold`].
    #[track_caller]
    unsafe fn fold<T: Pod, O: ReduceOp<T>>(&self, bytes: usize, op: O) -> bool {
        const { assert!(size_of::<T>() <= TILE && align_of::<T>() <= 64 && size_of::<O::Acc>() <= TILE) };
        let count = self.elements_of::<T>(bytes);
        #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut, reason = "nothing is folded before the tiles"))]
        let (mut at, end) = if self.share.size == 1 {
            (0, count)
        } else {
            let Share { rank, size } = self.share;
            let each = count.div_ceil(size).next_multiple_of(self.grain::<T>());
            ((rank * each).min(count), ((rank + 1) * each).min(count))
        };
        #[cfg(target_arch = "x86_64")]
        if let Some(fused) = super::fused::Fused::new::<T>(self.dst, self.src, at, end, self.members) {
            // SAFETY: the caller's contract, for parts of the ranges; `Fused` holds plain operands only.
            unsafe {
                if !self.tiles(at, at + fused.head, op) {
                    return false;
                }
                at += fused.head;
                at += fused.run::<T, O>(at, op);
            }
        }
        // SAFETY: the caller's contract, for a part of the ranges.
        unsafe { self.tiles(at, end, op) }
    }

    /// How many elements of `T` operands of `bytes` bytes have.
    #[inline(always)]
    #[track_caller]
    fn elements_of<T>(&self, bytes: usize) -> usize {
        for operand in self.dst.iter().chain(self.src) {
            if operand.bytes != bytes {
                refuse!("destination and source have different lengths");
            }
            if operand.is_plain() && !operand.start().cast::<T>().is_aligned() {
                refuse!("bytes that are folded as a type are aligned for it and end with an element");
            }
        }
        if !bytes.is_multiple_of(size_of::<T>()) {
            refuse!("bytes that are folded as a type are aligned for it and end with an element");
        }
        bytes / size_of::<T>()
    }

    /// Elements that a lane's or a tile's part is a multiple of, so that no packet and no line is shared.
    fn grain<T>(&self) -> usize {
        let line = |operand: &Operand| match operand.form() {
            PLAIN | PACKETS => None,
            line => Some((line as usize - 8) / size_of::<T>()),
        };
        self.dst.iter().chain(self.src).find_map(line).unwrap_or(64)
    }

    /// Elements `at..end`, tile by tile.
    ///
    /// # Safety
    /// As [`fold`], for this part.
    #[track_caller]
    unsafe fn tiles<T: Pod, O: ReduceOp<T>>(&self, mut at: usize, end: usize, op: O) -> bool {
        if at >= end {
            return true;
        }
        let (mut values, mut sums) = (Tile(MaybeUninit::uninit()), Tile(MaybeUninit::uninit()));
        let size = size_of::<T>();
        let most = TILE / size.max(size_of::<O::Acc>());
        let grain = self.grain::<T>();
        let step = if most > grain { most / grain * grain } else { most };
        while at < end {
            let n = step.min(end - at);
            // SAFETY: the ranges are the caller's, `at + n <= end`, and each tile holds `n` elements of either type. The first source
            // writes every sum, which the others read.
            unsafe {
                let into = values.0.as_mut_ptr().cast();
                let sums = core::slice::from_raw_parts_mut(sums.0.as_mut_ptr().cast::<MaybeUninit<O::Acc>>(), n);
                for (i, source) in self.src.iter().enumerate() {
                    if !fetch(source, at * size, n * size, into, self.ctx) {
                        return false;
                    }
                    let values = values.elements::<T>(n);
                    match (i, source.is_partial()) {
                        (0, false) => each(sums, values, |_, value| op.lift(value)),
                        (0, true) => each(sums, values, |_, value| op.resume(value)),
                        (_, false) => each(sums, values, |sum, value| op.combine(sum.assume_init(), op.lift(value))),
                        (_, true) => each(sums, values, |sum, value| op.combine(sum.assume_init(), op.resume(value))),
                    }
                }
                let values = values.elements::<T>(n);
                for (value, sum) in values.iter_mut().zip(sums) {
                    let sum = sum.assume_init();
                    *value = if self.members > 0 { op.finish(sum, self.members) } else { op.lower(sum) };
                }
                for destination in self.dst {
                    deliver(destination, at * size, n * size, values.as_ptr().cast());
                }
            }
            at += n;
        }
        true
    }
}

#[inline(always)]
fn each<T: Copy, A: Copy>(sums: &mut [MaybeUninit<A>], values: &[T], next: impl Fn(MaybeUninit<A>, T) -> A) {
    for (sum, &value) in sums.iter_mut().zip(values) {
        *sum = MaybeUninit::new(next(*sum, value));
    }
}

/// Brings bytes `at..at + bytes` of an operand to private memory, which has room for whole words of 4 bytes.
///
/// # Safety
/// The range is part of the operand, which is mapped; `at` is the start of a packet or a line where the operand has them.
unsafe fn fetch(operand: &Operand, at: usize, bytes: usize, into: *mut u8, ctx: &Ctx<'_>) -> bool {
    let (start, flag) = (operand.start(), operand.flag);
    // SAFETY: the caller's contract; packets and lines are found where `Operand` says that they are.
    unsafe {
        match operand.form() {
            PLAIN => {
                copy_bytes(into, start.add(at), bytes);
                true
            }
            PACKETS => {
                let first = start.cast::<u64>().add(at / 4);
                (0..bytes.div_ceil(4)).all(|k| {
                    let word = first.add(k);
                    let mut packet = load(word);
                    if packet as u32 != flag {
                        if !ctx.packet(|| *operand, operand.last_word(), || load(word) as u32 == flag) {
                            return false;
                        }
                        packet = load(word);
                    }
                    into.cast::<u32>().add(k).write((packet >> 32) as u32);
                    true
                })
            }
            line => {
                let data = line as usize - 8;
                (at / data..(at + bytes).div_ceil(data)).all(|k| {
                    let start = start.add(k * line as usize);
                    let word = start.add(data).cast::<u64>();
                    let arrived = || load_acquire(word) == u64::from(flag);
                    if !arrived() && !ctx.packet(|| *operand, operand.last_word(), arrived) {
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
    // SAFETY: the caller's contract; packets and lines go where `Operand` says that they are.
    unsafe {
        match operand.form() {
            PLAIN => copy_bytes(start.add(at), from, bytes),
            PACKETS => {
                let first = start.cast::<u64>().add(at / 4);
                let packet = |data: u32| u64::from(data) << 32 | u64::from(flag);
                for k in 0..bytes / 4 {
                    store(first.add(k), packet(from.cast::<u32>().add(k).read()));
                }
                if !bytes.is_multiple_of(4) {
                    let mut rest = [0; 4];
                    core::ptr::copy_nonoverlapping(from.add(bytes / 4 * 4), rest.as_mut_ptr(), bytes % 4);
                    store(first.add(bytes / 4), packet(u32::from_ne_bytes(rest)));
                }
            }
            line => {
                let data = line as usize - 8;
                for k in at / data..(at + bytes).div_ceil(data) {
                    let start = start.add(k * line as usize);
                    let part = k * data - at;
                    copy_bytes(start, from.add(part), data.min(bytes - part));
                    store_release(start.add(data).cast(), flag.into());
                }
            }
        }
    }
}
/// Stores `value` into its share of `count` elements.
///
/// # Safety
/// The range is mapped symmetric memory aligned for `T`, whose alignment is at most 64.
#[inline(always)]
pub(crate) unsafe fn fill<T: Pod>(share: Share, dst: *mut T, count: usize, value: T) {
    const { assert!(size_of::<T>() <= TILE && align_of::<T>() <= 64) };
    let mut tile = Tile(MaybeUninit::zeroed());
    let step = (TILE / size_of::<T>()).min(count);
    // SAFETY: the tile is zeroed and holds `step` elements.
    unsafe { tile.elements::<T>(step) }.fill(value);
    let each = count.div_ceil(share.size).next_multiple_of(64);
    let (mut at, end) = ((share.rank * each).min(count), ((share.rank + 1) * each).min(count));
    while at < end {
        let n = step.min(end - at);
        // SAFETY: the range is the caller's and `at + n <= count`.
        unsafe { copy_bytes(dst.add(at).cast(), tile.0.as_ptr().cast(), n * size_of::<T>()) };
        at += n;
    }
}

/// Copies bytes between symmetric memory and memory of the host's own, or within symmetric memory.
///
/// # Safety
/// Both ranges are mapped; each is symmetric memory or the caller's own.
pub unsafe fn copy_bytes_for_host(dst: *mut u8, src: *const u8, bytes: usize) {
    // SAFETY: the caller's contract.
    unsafe { copy_bytes(dst, src, bytes) }
}

/// Zeroes symmetric memory.
///
/// # Safety
/// The range is mapped symmetric memory.
pub unsafe fn zero_for_host(dst: *mut u8, bytes: usize) {
    // SAFETY: the caller's contract.
    unsafe { fill(Share { rank: 0, size: 1 }, dst, bytes, 0) }
}
