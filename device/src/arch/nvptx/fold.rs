//! Folds on the GPU: each thread takes vectors, packets, words of lines, or elements, and keeps sums in registers.

use core::arch::asm;

use congruent_heap::{Pod, refuse};

use super::granules::{Chosen, Typed};
use super::pieces::pieces;
use super::{Lane, anew, recall};
use crate::arch::{End, Ends, Form, Share};
use crate::bulk::{Fold, FoldChoice};
use crate::group::{Group, share};
use crate::poll::{Patience, Waiter};

/// Folds element `i` of every source, in their order, into element `i` of every destination. False when a wait for packets
/// ended without them; the reason is recorded.
///
/// # Safety
/// Every end covers `count` elements of mapped symmetric memory, aligned for `T` where it is plain.
#[inline(always)]
pub(crate) unsafe fn fold<T: Pod, F: Fold<T>>(
    share: Share,
    dst: &impl Ends,
    src: &impl Ends,
    count: usize,
    fold: &F,
    patience: Patience<'_>,
) -> bool {
    // SAFETY: the caller's contract; either way covers every element once.
    unsafe {
        if !matches!(size_of::<T>(), 1 | 2 | 4 | 8) {
            elements::<T, F>(share, dst, src, count, fold);
            return true;
        }
        pieces(share, dst, src, count * size_of::<T>(), Typed::new(fold), &|| patience)
    }
}

/// The most ends of a fold whose type is chosen at run time: all members of a team of 64, twice.
const MOST: usize = 128;
/// Bytes that one end takes in shared memory, after a head of the same size.
const SLOT: u32 = 32;

/// The same for a type that `choice` knows. It runs in a function of its own, one for all kernels of a module, because it has
/// the arithmetic of every type; the ends reach it through the block's shared memory.
///
/// # Safety
/// Every end covers `bytes` bytes of mapped symmetric memory.
#[inline(always)]
pub(crate) unsafe fn fold_chosen<G: Group, C: FoldChoice>(
    group: &G,
    dst: &impl Ends,
    src: &impl Ends,
    bytes: usize,
    choice: C,
    patience: Patience<'_>,
) -> bool {
    let (lane, share) = (Lane::new(), share(group));
    let (dsts, srcs) = (dst.count(), src.count());
    if !G::IS_BLOCK && C::IS_SMALL {
        // SAFETY: the caller's contract.
        return unsafe { pieces(share, dst, src, bytes, Chosen::new(choice), &|| patience) };
    }
    if !G::IS_BLOCK || dsts + srcs > MOST {
        refuse!("a reduction chosen at run time folds by whole blocks, at most 128 ends");
    }
    let shared = shared_ends();
    for i in (share.rank..dsts + srcs).step_by(share.size) {
        let end = if i < dsts { dst.end(i) } else { src.end(i - dsts) };
        let (form, flag) = match end.form {
            Form::Plain => (Form::PLAIN, 0),
            Form::Packets { flag } => (Form::PACKETS, flag),
            Form::Lines { flag, bytes } => (bytes, flag),
        };
        let slot = shared + (i as u32 + 1) * SLOT;
        // SAFETY: there are slots for MOST ends, which these are not more than.
        unsafe {
            put_shared::<0>(slot, end.start as u64);
            put_shared::<8>(slot, u64::from(flag) | u64::from(form) << 32);
            put_shared::<16>(slot, end.offset);
            put_shared::<24>(slot, u64::from(end.sender));
        }
    }
    if share.rank == 0 {
        // SAFETY: the head is before the slots.
        unsafe { put_shared::<0>(shared, patience.budget_ns) };
    }
    lane.block_sync();
    let [a, b, c] = choice.encode();
    // SAFETY: the caller's contract; the barrier ordered what was put with what is read. The next fold puts other ends after
    // the barrier that ends this one.
    unsafe { fold_shared::<C>(a, b, c, bytes as u64, dsts as u64 | (srcs as u64) << 32) }
}

/// It calls nothing that comes back once it has begun: what a function that is called keeps across a call of its own would be on
/// the stack.
///
/// # Safety
/// As [`fold_chosen`], of the ends in shared memory.
#[inline(never)]
unsafe fn fold_shared<C: FoldChoice>(a: u64, b: u64, c: u64, bytes: u64, counts: u64) -> bool {
    let (lane, shared) = (Lane::new(), shared_ends());
    // Who waits has time to look it up.
    let patience = || {
        let shared = anew(shared.into()) as u32;
        let (control, launch) = recall(0, 0);
        // SAFETY: who this thread is was kept when the kernel was entered; `fold_chosen` put the budget at the head of the ends.
        unsafe { Patience { waiter: Waiter::new(lane, control, launch), budget_ns: get_shared::<0>(shared) } }
    };
    let (dsts, srcs) = (counts as u32, (counts >> 32) as u32);
    let dst = &SharedEnds { first: shared + SLOT, count: dsts };
    let src = &SharedEnds { first: shared + (dsts + 1) * SLOT, count: srcs };
    let share = Share { rank: lane.thread() as usize, size: lane.threads() as usize };
    // SAFETY: the caller's contract.
    unsafe { pieces(share, dst, src, bytes as usize, Chosen::<C>::encoded([a, b, c]), &patience) }
}

/// Ends that are in the block's shared memory, each in its slot, for as long as this lives.
struct SharedEnds {
    first: u32,
    count: u32,
}

impl Ends for SharedEnds {
    #[inline(always)]
    fn count(&self) -> usize {
        self.count as usize
    }
    #[inline(always)]
    fn end(&self, i: usize) -> End {
        let slot = anew((self.first + i as u32 * SLOT).into()) as u32;
        // SAFETY: `fold_shared` made this of ends that `fold_chosen` has put there, and folds ask for those only.
        let [start, form, offset, sender] =
            unsafe { [get_shared::<0>(slot), get_shared::<8>(slot), get_shared::<16>(slot), get_shared::<24>(slot)] };
        let start = core::ptr::with_exposed_provenance_mut(start as usize);
        let form = Form::of((form >> 32) as u32, form as u32);
        End { start, form, last: start.cast(), offset, sender: sender as u32 }
    }
}

/// Where the ends are, in the block's shared memory. A function of its own, so that a module has one such place.
#[inline(never)]
fn shared_ends() -> u32 {
    let address: u32;
    // SAFETY: declares shared memory for a head and MOST ends, and gives its address.
    unsafe {
        asm!("{{ .shared .align 16 .b8 ends[4128]; mov.u32 {a}, ends; }}", a = out(reg32) address, options(nostack));
    }
    const { assert!((MOST as u32 + 1) * SLOT == 4128) };
    address
}

/// # Safety
/// The address is that of `shared_ends` or of a slot behind it.
#[inline(always)]
unsafe fn put_shared<const AT: u32>(address: u32, value: u64) {
    // SAFETY: the caller's contract.
    unsafe {
        asm!("st.shared.b64 [{a} + {o}], {v};", a = in(reg32) address, o = const AT, v = in(reg64) value, options(nostack));
    }
}

/// # Safety
/// As for [`put_shared`].
#[inline(always)]
unsafe fn get_shared<const AT: u32>(address: u32) -> u64 {
    let value;
    // SAFETY: the caller's contract. What is not used need not be read.
    unsafe {
        asm!(
            "ld.shared.b64 {v}, [{a} + {o}];",
            a = in(reg32) address, o = const AT, v = out(reg64) value, options(pure, readonly, nostack)
        );
    }
    value
}

/// Elements of other sizes, one by one; they are never packed.
///
/// # Safety
/// As [`fold`].
#[inline(always)]
unsafe fn elements<T: Pod, F: Fold<T>>(share: Share, dst: &impl Ends, src: &impl Ends, count: usize, fold: &F) {
    let mut at = share.rank;
    while at < count {
        // SAFETY: the caller's contract, and `at < count`.
        unsafe {
            let mut sum = fold.first(crate::access::load(src.end(0).start.cast::<T>().add(at)));
            for i in 1..src.count() {
                sum = fold.next(sum, crate::access::load(src.end(i).start.cast::<T>().add(at)));
            }
            let result = fold.last(sum);
            for i in 0..dst.count() {
                crate::access::store(dst.end(i).start.cast::<T>().add(at), result);
            }
        }
        at += share.size;
    }
}
