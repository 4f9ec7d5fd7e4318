//! Matrices spread over a warp: `mma` by an LLVM intrinsic where there is one, the rest by assembly; each behind something convergent,
//! which to LLVM's passes over its IR neither is.
//!
//! Lane `l` has, of the accumulator, rows `l / 4` and that plus 8, columns `l % 4 * 2` and the next (PTX ISA, "Matrix Fragments for
//! mma.m16n8k16"); of `A` the same rows, and of `B` the same columns as rows, each 2 elements to a register.

use core::arch::asm;
use core::mem::transmute_copy;

use congruent_heap::{Pod, refuse};

use super::{Lane, MOST_LANES, SharedAt, shared_store};
use crate::matrix::Multiplicand;

/// A lane's share of 16 times 16 elements of `A`.
pub(crate) type PartA = [u32; 4];
/// A lane's share of 16 times 8 elements of `B`.
pub(crate) type PartB = [u32; 2];
/// A lane's share of 16 times 8 sums.
pub(crate) type PartC = [f32; 4];

#[repr(C)]
struct Two<T>(T, T);

#[repr(C)]
struct Four<T>(T, T, T, T);

unsafe extern "unadjusted" {
    #[link_name = "llvm.nvvm.activemask"]
    fn active_mask() -> u32;
    #[link_name = "llvm.nvvm.mma.m16n8k16.row.col.bf16"]
    fn mma_bf16(a: u32, b: u32, c: u32, d: u32, e: u32, f: u32, s: f32, t: f32, u: f32, v: f32) -> Four<f32>;
}

macro_rules! ldmatrix {
    ($($name:ident: $instruction:literal, $result:ident { $($register:ident)* };)*) => {$(
        /// # Safety
        /// Every lane of a whole warp calls it behind [`convergent`], with the address of a row of 16 bytes in shared memory, aligned to that.
        #[inline(always)]
        unsafe fn $name(row: u32) -> $result<u32> {
            $(let $register: u32;)*
            // SAFETY: the caller's contract. The intrinsics take generic addresses, of which ptxas makes those of shared memory again
            // and again, so it is assembly: see `convergent`.
            unsafe {
                asm!(
                    concat!("ldmatrix.sync.aligned.m8n8.", $instruction, ".b16 {{", ldmatrix!(@ $($register)*), "}}, [{row}];"),
                    row = in(reg32) row, $($register = out(reg32) $register,)* options(nostack)
                );
            }
            $result($($register),*)
        }
    )*};
    (@ a b) => { "{a}, {b}" };
    (@ a b c d) => { "{a}, {b}, {c}, {d}" };
}
ldmatrix! {
    ldmatrix2: "x2.shared", Two { a b };
    ldmatrix2_trans: "x2.trans.shared", Two { a b };
    ldmatrix4: "x4.shared", Four { a b c d };
    ldmatrix4_trans: "x4.trans.shared", Four { a b c d };
}

/// Ahead of what a whole warp runs together: LLVM does not know that it is convergent, and knows it of this, of which the assembler makes
/// nothing, as nobody asks for the mask. It brings no block that
/// has it under another condition, and what is volatile or needs its results stays behind it.
///
/// # Safety
/// Every lane of a whole warp calls it.
#[inline(always)]
pub(crate) unsafe fn convergent() {
    // SAFETY: the caller's contract.
    unsafe { active_mask() };
}

/// The lane's index in its warp, and how many there are.
#[inline(always)]
pub(crate) fn in_whole_warp(lane: &Lane<'_>) -> (usize, usize) {
    ((lane.thread() % MOST_LANES) as usize, MOST_LANES as usize)
}

/// How many warps a block has, which has `N` threads.
#[inline(always)]
pub(crate) fn warps_of<const N: usize>(lane: &Lane<'_>) -> usize {
    if lane.threads() as usize != N {
        refuse!("the kernel is for blocks of another number of threads");
    }
    N.div_ceil(MOST_LANES as usize)
}

/// `c += a * b`
#[inline(always)]
pub(crate) fn mma<T: Multiplicand, const M: usize, const N: usize>(
    _lane: &Lane<'_>,
    c: &mut [[PartC; N]; M],
    a: &[PartA; M],
    b: &[PartB; N],
) {
    // SAFETY: every lane of a whole warp calls it, by the contract of matrices.
    unsafe { convergent() };
    copies!(m in M => copies!(n in N => {
        // SAFETY: every lane of a whole warp calls it, by the contract of matrices; sm_80 and later have it.
        c[m][n] = unsafe { if T::IS_BF16 { mma_of_bf16(a[m], b[n], c[m][n]) } else { mma_of_f16(a[m], b[n], c[m][n]) } };
    }));
}

/// Stores the lane's sums as what `of` makes of them, two beside each other at once.
///
/// # Safety
/// There are 16 rows of 8 elements from element `at` on, `stride` apart; both are multiples of 8.
#[inline(always)]
pub(crate) unsafe fn store_c<T: Pod>(
    lane: &Lane<'_>,
    start: SharedAt,
    at: usize,
    stride: usize,
    [s, t, u, v]: &PartC,
    of: impl Fn(f32) -> T,
) {
    let lane = in_whole_warp(lane).0;
    let first = start.behind::<T>(lane / 4 * stride + lane % 4 * 2).opaque();
    let pair = |at: usize, two: [f32; 2]| {
        let [s, t] = two.map(&of);
        let to = first.behind::<T>(at);
        // SAFETY: the caller's contract; two elements are aligned to the size of both, and those of two bytes are any bits.
        unsafe {
            if size_of::<T>() == 2 {
                let [s, t] = [s, t].map(|half| u32::from(transmute_copy::<T, u16>(&half)));
                shared_store(to, 0, s | t << 16);
            } else {
                shared_store(to, 0, [s, t]);
            }
        }
    };
    pair(at, [*s, *t]);
    pair(at + 8 * stride, [*u, *v]);
}

/// # Safety
/// Every lane of a whole warp calls it.
#[inline(always)]
unsafe fn mma_of_bf16(a: PartA, b: PartB, c: PartC) -> PartC {
    // SAFETY: the caller's contract.
    let Four(s, t, u, v) = unsafe { mma_bf16(a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3]) };
    [s, t, u, v]
}

/// The intrinsic for `f16` takes vectors, which rustc passes to no function on this target, so it is assembly.
///
/// # Safety
/// As for [`mma_of_bf16`].
#[inline(always)]
unsafe fn mma_of_f16([a0, a1, a2, a3]: PartA, [b0, b1]: PartB, [mut s, mut t, mut u, mut v]: PartC) -> PartC {
    // SAFETY: the caller's contract.
    unsafe {
        asm!(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {{{s}, {t}, {u}, {v}}}, {{{a0}, {a1}, {a2}, {a3}}}, \
             {{{b0}, {b1}}}, {{{s}, {t}, {u}, {v}}};",
            s = inout(reg32) s, t = inout(reg32) t, u = inout(reg32) u, v = inout(reg32) v,
            a0 = in(reg32) a0, a1 = in(reg32) a1, a2 = in(reg32) a2, a3 = in(reg32) a3, b0 = in(reg32) b0, b1 = in(reg32) b1,
            options(nomem, nostack)
        );
    }
    [s, t, u, v]
}

/// Two elements in a register, the first one low.
#[inline(always)]
fn pair<T: Multiplicand>(first: T, second: T) -> u32 {
    u32::from(first.bits()) | u32::from(second.bits()) << 16
}

/// `A` of what there is in each row and column.
#[inline(always)]
pub(crate) fn part_a<T: Multiplicand>(lane: &Lane<'_>, mut element: impl FnMut(usize, usize) -> T) -> PartA {
    let lane = in_whole_warp(lane).0;
    let (row, column) = (lane / 4, lane % 4 * 2);
    let mut two = |row: usize, column: usize| pair(element(row, column), element(row, column + 1));
    [two(row, column), two(row + 8, column), two(row, column + 8), two(row + 8, column + 8)]
}

/// `B` of what there is in each row and column.
#[inline(always)]
pub(crate) fn part_b<T: Multiplicand>(lane: &Lane<'_>, mut element: impl FnMut(usize, usize) -> T) -> PartB {
    let lane = in_whole_warp(lane).0;
    let (row, column) = (lane % 4 * 2, lane / 4);
    let mut two = |row: usize, column: usize| pair(element(row, column), element(row + 1, column));
    [two(row, column), two(row + 8, column)]
}

/// `value` everywhere.
#[inline(always)]
pub(crate) fn fill_c(value: f32) -> PartC {
    [value; 4]
}

/// What `each` makes of the lane's sums, of which it is told row and column.
#[inline(always)]
pub(crate) fn map_c(lane: &Lane<'_>, [s, t, u, v]: PartC, mut each: impl FnMut(usize, usize, f32) -> f32) -> PartC {
    let lane = in_whole_warp(lane).0;
    let (row, column) = (lane / 4, lane % 4 * 2);
    [each(row, column, s), each(row, column + 1, t), each(row + 8, column, u), each(row + 8, column + 1, v)]
}

/// Where the lane's row of a matrix of `ldmatrix` begins: of 8 rows each, the matrices lie one below the other and then beside each
/// other, or the other way round.
#[inline(always)]
fn row(lane: &Lane<'_>, start: SharedAt, at: usize, stride: usize, below_first: bool) -> u32 {
    let lane = in_whole_warp(lane).0;
    let (first, second) = (lane / 8 % 2 * 8, lane / 16 * 8);
    let (down, right) = if below_first { (first, second) } else { (second, first) };
    start.behind::<u16>((lane % 8 + down) * stride + right).opaque().element::<u16>(at)
}

/// `A` from shared memory, where each row is `stride` elements behind the one before; of its transposed one, where it lies so.
///
/// # Safety
/// There are 16 rows of 16 elements from element `at` on, which is a multiple of 8 as `stride` is. [`convergent`] comes before.
#[inline(always)]
pub(crate) unsafe fn load_a<T: Multiplicand>(
    lane: &Lane<'_>,
    start: SharedAt,
    at: usize,
    stride: usize,
    transposed: bool,
) -> PartA {
    let from = row(lane, start, at, stride, !transposed);
    // SAFETY: the caller's contract, for every lane of a whole warp; rows are aligned to 16, as arrays are.
    let Four(a, b, c, d) = unsafe { if transposed { ldmatrix4_trans(from) } else { ldmatrix4(from) } };
    [a, b, c, d]
}

/// Two `B` beside each other; see [`load_a`].
///
/// # Safety
/// As for [`load_a`].
#[inline(always)]
pub(crate) unsafe fn load_b2<T: Multiplicand>(
    lane: &Lane<'_>,
    start: SharedAt,
    at: usize,
    stride: usize,
    transposed: bool,
) -> [PartB; 2] {
    let from = row(lane, start, at, stride, !transposed);
    // SAFETY: as above. `mma` has the columns of `B` where it has the rows of `A`.
    let Four(a, b, c, d) = unsafe { if transposed { ldmatrix4(from) } else { ldmatrix4_trans(from) } };
    [[a, b], [c, d]]
}

/// One `B`; see [`load_a`].
///
/// # Safety
/// There are 16 rows of 8 elements, or where it lies transposed, 8 rows of 16; else as for [`load_a`].
#[inline(always)]
pub(crate) unsafe fn load_b<T: Multiplicand>(
    lane: &Lane<'_>,
    start: SharedAt,
    at: usize,
    stride: usize,
    transposed: bool,
) -> PartB {
    let from = row(lane, start, at, stride, !transposed);
    // SAFETY: as above. Of the other lanes the addresses are not looked at.
    let Two(a, b) = unsafe { if transposed { ldmatrix2(from) } else { ldmatrix2_trans(from) } };
    [a, b]
}
