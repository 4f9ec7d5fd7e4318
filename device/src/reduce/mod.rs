//! Reductions: what combines elements. The loops that do are the machine's ([`arch`](crate::arch)).

mod located;
mod names;
mod number;
mod op;
mod operators;
pub(crate) mod packs;
mod reduction;

pub use located::{MaxLoc, MinLoc};
#[doc(hidden)]
pub use names::is_named;
pub use names::{Datatype, Op};
pub use number::{AccumulateIn, Integer, Number};
pub use op::{Arithmetic, In, ReduceOp};
pub use operators::{Avg, BitAnd, BitOr, BitXor, Max, Min, PreMulSum, Prod, Sum};
pub(crate) use reduction::for_datatype;
pub use reduction::{HasDatatype, Reduction};

use crate::bulk::Fold;
use crate::exchange::Exchanged;
use crate::{Group, MultimemReduction, Operands, Pod, arch};

/// What reduces: every [`ReduceOp`], and what a host chose at run time ([`Reduction`]).
pub trait Reducer<T: Pod>: Copy {
    /// The same by `multimem` instructions, with the result of `members` contributions; `None` where there is none for it.
    fn multimem(self, members: usize) -> Option<MultimemReduction>;

    /// Runs a fold. False when a wait for packets ended without them; the reason is recorded.
    ///
    /// # Safety
    /// The operands are mapped symmetric memory, aligned for their form, and for `T` where they are plain.
    #[doc(hidden)]
    unsafe fn fold<B: Group, D: Operands, S: Operands>(self, fold: &Fold<'_, B, D, S>) -> bool;

    /// Does what is left of an exchange once its group has sent. False when a wait for packets ended without them; the reason is recorded.
    ///
    /// # Safety
    /// What the exchange names lies in the heaps, aligned for its form.
    #[doc(hidden)]
    unsafe fn receive<B: Group>(self, exchanged: &Exchanged<'_, B>) -> bool;
}

impl<T: Pod, O: ReduceOp<T>> Reducer<T> for O {
    #[inline(always)]
    fn multimem(self, members: usize) -> Option<MultimemReduction> {
        ReduceOp::multimem(self, members)
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn fold<B: Group, D: Operands, S: Operands>(self, fold: &Fold<'_, B, D, S>) -> bool {
        // SAFETY: the caller's contract.
        unsafe { arch::fold::<T, O, B, D, S>(fold, self) }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn receive<B: Group>(self, exchanged: &Exchanged<'_, B>) -> bool {
        // SAFETY: the caller's contract.
        unsafe { arch::receive::<T, O, B>(exchanged, self) }
    }
}

/// Reduces nothing: the one source, as it is.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Keep;

impl Reducer<u8> for Keep {
    #[inline(always)]
    fn multimem(self, _members: usize) -> Option<MultimemReduction> {
        None
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn fold<B: Group, D: Operands, S: Operands>(self, fold: &Fold<'_, B, D, S>) -> bool {
        // SAFETY: the caller's contract. Any bytes are bytes.
        unsafe { arch::transfer(fold) }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn receive<B: Group>(self, exchanged: &Exchanged<'_, B>) -> bool {
        // SAFETY: the caller's contract.
        unsafe { arch::receive_parts(exchanged) }
    }
}
