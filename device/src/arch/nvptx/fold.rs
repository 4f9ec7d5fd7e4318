//! Folds on the GPU: each thread takes vectors, packets, words of lines, or elements, and keeps sums in registers.
//!
//! A block's operands lie in its shared memory, where the loops find them, each in a function of its own: for moves, for sums of the
//! types that are hot, and for all other reductions that are chosen at run time. A group that is less than a block computes them.

use core::arch::asm;

use congruent_heap::abi::NO_PE;
use congruent_heap::{Pod, refuse};

use super::{block_share, opaque, opaque_word, vectors};
use crate::bulk::Fold;
use crate::group::share;
use crate::reduce::packs::{Move, PackOp, Typed};
use crate::{Ctx, Datatype, Group, Op, Operand, Operands, ReduceOp, Reduction, Sum, access, bf16, f16};

/// Folds by an operator on elements whose type is known. False when a wait for packets ended without them; the reason is recorded.
///
/// # Safety
/// Every operand is mapped symmetric memory, aligned for `T` where it is plain.
#[inline(always)]
pub(crate) unsafe fn fold<T: Pod, O: ReduceOp<T>, B: Group, D: Operands, S: Operands>(
    fold: &Fold<'_, B, D, S>,
    op: O,
) -> bool {
    // SAFETY: the caller's contract; either way covers every element once.
    unsafe {
        let is_vectored = matches!(size_of::<T>(), 1 | 2 | 4 | 8);
        if !is_vectored || !B::IS_BLOCK || size_of::<O>() > 0 {
            let came = if is_vectored {
                fold.inline(Typed::<T, O>::new(op))
            } else {
                elements::<T, O, B, D, S>(fold, op);
                true
            };
            // Its loops ask for operands as they go, and what these follow from, the block's leader changes next.
            if B::IS_BLOCK {
                fold.group.sync();
            }
            return came;
        }
        let (bytes, counts) = put_operands(fold);
        if const { D::PLAIN && S::PLAIN } {
            fold_block_by::<T, O, true>(bytes, counts, fold.members)
        } else {
            fold_block_by::<T, O, false>(bytes, counts, fold.members)
        }
    }
}

/// Sends the bytes of one source to every destination.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
pub(crate) unsafe fn transfer<B: Group, D: Operands, S: Operands>(fold: &Fold<'_, B, D, S>) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        if !B::IS_BLOCK {
            return fold.inline(Move::<true>);
        }
        let (bytes, counts) = put_operands(fold);
        if const { D::PLAIN && S::PLAIN && D::APART && S::APART } {
            move_block::<true, false>(bytes, counts)
        } else if const { D::PLAIN && S::PLAIN } {
            move_block::<true, true>(bytes, counts)
        } else {
            move_block::<false, true>(bytes, counts)
        }
    }
}

/// Folds by an operator that was chosen at run time, on elements of a type that was.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
pub(crate) unsafe fn fold_reduction<B: Group, D: Operands, S: Operands>(
    fold: &Fold<'_, B, D, S>,
    reduction: Reduction,
) -> bool {
    if !B::IS_BLOCK {
        refuse!("a reduction chosen at run time folds by whole blocks");
    }
    let [names, scalar] = reduction.to_words();
    // SAFETY: the caller's contract.
    unsafe {
        let (bytes, counts) = put_operands(fold);
        if const { D::PLAIN && S::PLAIN && D::APART && S::APART } {
            fold_any::<true>(names, scalar, bytes, counts, fold.members)
        } else if const { D::PLAIN && S::PLAIN } {
            fold_block::<true>(names, scalar, bytes, counts, fold.members)
        } else {
            fold_block::<false>(names, scalar, bytes, counts, fold.members)
        }
    }
}

/// Operands of so many bytes. They are computed by anybody, and again each time that they are asked for.
struct OfLength<'o, O> {
    operands: &'o O,
    bytes: usize,
}

impl<O: Operands> Operands for OfLength<'_, O> {
    const PLAIN: bool = O::PLAIN;

    #[inline(always)]
    fn count(&self) -> usize {
        self.operands.count()
    }
    #[inline(always)]
    fn get(&self, i: usize) -> Operand {
        let operand = self.operands.get(i);
        // Of a number that it knows, the compiler would choose the address.
        if opaque(operand.bytes as u64) as usize != self.bytes {
            refuse!("destination and source have different lengths");
        }
        operand.known(O::PLAIN)
    }
}

impl<B: Group, D: Operands, S: Operands> Fold<'_, B, D, S> {
    /// Runs where no other thread has its operands.
    ///
    /// # Safety
    /// As [`fold`].
    #[inline(always)]
    unsafe fn inline(&self, by: impl PackOp) -> bool {
        let dst = &OfLength { operands: &self.dst, bytes: self.bytes };
        let src = &OfLength { operands: &self.src, bytes: self.bytes };
        // SAFETY: the caller's contract.
        unsafe { vectors::fold(share(self.group), dst, src, self.bytes, self.members, by, self.ctx) }
    }
}

/// The most operands of a block's fold: all members of a team of 64, twice, and one more.
const MOST: usize = 129;
/// Bytes that one takes in shared memory.
const SLOT: u32 = 32;

/// Puts a block's operands into its shared memory. Gives how many bytes each has, and how many destinations there are, with the sources in
/// the upper half.
///
/// # Safety
/// Every thread of the block calls it with the same operands.
#[inline(always)]
unsafe fn put_operands<B: Group, D: Operands, S: Operands>(fold: &Fold<'_, B, D, S>) -> (u64, u64) {
    let (dsts, srcs) = (fold.dst.count(), fold.src.count());
    if dsts + srcs > MOST {
        refuse!("a block folds at most 129 operands");
    }
    for i in fold.group.strided(dsts + srcs) {
        let operand = if i < dsts { fold.dst.get(i) } else { fold.src.get(i - dsts) };
        if operand.bytes != fold.bytes {
            refuse!("destination and source have different lengths");
        }
        let slot = table() + i as u32 * SLOT;
        // SAFETY: there are slots for MOST operands, which these are not more than.
        unsafe {
            put::<0>(slot, operand.address);
            put::<8>(slot, u64::from(operand.flag) | u64::from(operand.form) << 32);
            put::<16>(slot, operand.offset);
            put::<24>(slot, u64::from(operand.sender));
        }
    }
    // What was put before what is read; the next fold puts others after the barrier that ends this one.
    fold.group.sync();
    // Of counts that it knows, the compiler would make another function.
    (fold.bytes as u64, opaque(dsts as u64 | (srcs as u64) << 32))
}

// Functions of few scalar arguments, one of each for all kernels of a module. They call nothing that comes back once they have begun:
// what a function that is called keeps across a call of its own would be on the stack.

/// # Safety
/// As [`fold`], of the operands in shared memory.
#[inline(never)]
unsafe fn fold_block_by<T: Pod, O: ReduceOp<T>, const PLAIN: bool>(bytes: u64, counts: u64, members: u32) -> bool {
    // SAFETY: the caller's contract.
    unsafe { from_table::<PLAIN>(bytes, counts, members, Typed::<T, O>::new(stateless())) }
}

/// An operator without state, which is the same anywhere. Who calls a function that is told only the type has asked whether it has any;
/// the function is compiled for the others all the same.
#[inline(always)]
pub(super) fn stateless<O: Copy>() -> O {
    if size_of::<O>() > 0 {
        refuse!("an operator that has state is folded by its group");
    }
    // SAFETY: a value without bytes.
    unsafe { core::mem::transmute_copy(&()) }
}

/// # Safety
/// As [`fold`], of the operands in shared memory.
#[inline(never)]
unsafe fn move_block<const PLAIN: bool, const VECTORS: bool>(bytes: u64, counts: u64) -> bool {
    // SAFETY: the caller's contract.
    unsafe { from_table::<PLAIN>(bytes, counts, 0, Move::<VECTORS>) }
}

/// Sums of the types that are hot have loops of their own.
///
/// # Safety
/// As [`fold`], of the operands in shared memory.
#[inline(never)]
unsafe fn fold_block<const PLAIN: bool>(names: u64, scalar: u64, bytes: u64, counts: u64, members: u32) -> bool {
    let reduction = Reduction::from_words([names, scalar]);
    // SAFETY: the caller's contract.
    unsafe {
        match (reduction.op(), reduction.datatype()) {
            (Op::Sum, Datatype::F32) => fold_block_by::<f32, Sum, PLAIN>(bytes, counts, members),
            (Op::Sum, Datatype::F16) => fold_block_by::<f16, Sum, PLAIN>(bytes, counts, members),
            (Op::Sum, Datatype::Bf16) => fold_block_by::<bf16, Sum, PLAIN>(bytes, counts, members),
            _ => fold_any::<PLAIN>(names, scalar, bytes, counts, members),
        }
    }
}

/// # Safety
/// As [`fold`], of the operands in shared memory.
#[inline(never)]
unsafe fn fold_any<const PLAIN: bool>(names: u64, scalar: u64, bytes: u64, counts: u64, members: u32) -> bool {
    // SAFETY: the caller's contract.
    unsafe { from_table::<PLAIN>(bytes, counts, members, Reduction::from_words([names, scalar])) }
}

/// # Safety
/// As [`fold`], of the operands in shared memory.
#[inline(always)]
unsafe fn from_table<const PLAIN: bool>(bytes: u64, counts: u64, members: u32, by: impl PackOp) -> bool {
    // SAFETY: a fold is within a kernel.
    let ctx = unsafe { Ctx::of_kernel() };
    let (dsts, srcs) = (counts as u32, (counts >> 32) as u32);
    let dst = &Table::<PLAIN> { first: table(), count: dsts };
    let src = &Table::<PLAIN> { first: table() + dsts * SLOT, count: srcs };
    // SAFETY: the caller's contract.
    unsafe { vectors::fold(block_share(&ctx), dst, src, bytes as usize, members, by, &ctx) }
}

/// Operands that are in the block's shared memory, each in its slot, for as long as this lives.
struct Table<const PLAIN: bool> {
    first: u32,
    count: u32,
}

impl<const PLAIN: bool> Operands for Table<PLAIN> {
    const PLAIN: bool = PLAIN;

    #[inline(always)]
    fn count(&self) -> usize {
        self.count as usize
    }
    #[inline(always)]
    fn get(&self, i: usize) -> Operand {
        let slot = opaque_word(self.first + i as u32 * SLOT);
        // SAFETY: `from_table` made this of operands that `put_operands` has put there, and folds ask for those only.
        let [address, form, offset, sender] =
            unsafe { [get::<0>(slot), get::<8>(slot), get::<16>(slot), get::<24>(slot)] };
        let (flag, form) = (form as u32, (form >> 32) as u32);
        Operand { address, bytes: 0, offset, pe: NO_PE, sender: sender as u32, form, flag }.known(PLAIN)
    }
}

/// Where the operands are, in the block's shared memory.
#[inline(always)]
fn table() -> u32 {
    let address: u32;
    // SAFETY: the address of what is declared below.
    unsafe { asm!("mov.u32 {a}, congruent_operands;", a = out(reg32) address, options(pure, nomem, nostack)) };
    address
}
core::arch::global_asm!(".shared .align 16 .b8 congruent_operands[4128];");
const _: () = assert!(MOST as u32 * SLOT == 4128);

/// # Safety
/// The address is that of a slot of `table`.
#[inline(always)]
unsafe fn put<const AT: u32>(slot: u32, value: u64) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("st.shared.b64 [{a} + {o}], {v};", a = in(reg32) slot, o = const AT, v = in(reg64) value, options(nostack))
    };
}

/// # Safety
/// As for [`put`].
#[inline(always)]
unsafe fn get<const AT: u32>(slot: u32) -> u64 {
    let value;
    // SAFETY: the caller's contract. What is not used need not be read.
    unsafe {
        asm!(
            "ld.shared.b64 {v}, [{a} + {o}];",
            a = in(reg32) slot, o = const AT, v = out(reg64) value, options(pure, readonly, nostack)
        );
    }
    value
}

/// Elements of other sizes, one by one; they are never packed.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn elements<T: Pod, O: ReduceOp<T>, B: Group, D: Operands, S: Operands>(fold: &Fold<'_, B, D, S>, op: O) {
    let place = |operand: Operand| {
        if operand.bytes != fold.bytes || !operand.is_plain() {
            refuse!("elements that do not fill words are not packed, and as many in every operand");
        }
        operand.start().cast::<T>()
    };
    for at in fold.group.strided(fold.bytes / size_of::<T>()) {
        // SAFETY: the caller's contract, and `at` is inside.
        unsafe {
            let value = |i| {
                let source = fold.src.get(i);
                let value = access::load(place(source).add(at));
                if source.is_partial() { op.resume(value) } else { op.lift(value) }
            };
            let mut sum = value(0);
            for i in 1..fold.src.count() {
                sum = op.combine(sum, value(i));
            }
            let result = if fold.members > 0 { op.finish(sum, fold.members as usize) } else { op.lower(sum) };
            for i in 0..fold.dst.count() {
                access::store(place(fold.dst.get(i)).add(at), result);
            }
        }
    }
}
