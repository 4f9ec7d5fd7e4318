//! How an algorithm applies an operator: to which kind of values, and whether the result is final.

use congruent_device::{Ctx, Ends, Fold, Group, LinkReduction, Pod};

use crate::op::ReduceOp;

/// What the sources of a fold are, and what becomes of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Whether the first source is a partial result, and not as a member contributed it.
    pub first_is_partial: bool,
    /// The same of the others.
    pub rest_are_partial: bool,
    /// How many members' contributions are in the result, if these are all: then it is finished. Otherwise 0.
    pub finishes: u32,
}

impl Stage {
    /// Contributions become a partial result.
    pub const RAW: Self = Self { first_is_partial: false, rest_are_partial: false, finishes: 0 };
    /// A partial result and contributions become a partial result.
    pub const MORE: Self = Self { first_is_partial: true, ..Self::RAW };
    /// Partial results become a partial result.
    pub const PARTIAL: Self = Self { rest_are_partial: true, ..Self::MORE };

    /// The same with the final result, of `members` contributions.
    #[must_use]
    #[inline(always)]
    pub const fn finish(self, members: usize) -> Self {
        Self { finishes: members as u32, ..self }
    }
}

/// What reduces: every [`ReduceOp`], and what a host chose at run time ([`Reduction`](crate::Reduction)).
pub trait Reducer<T: Pod>: Copy {
    /// Folds the sources, in their order, into every destination.
    fn fold(self, group: &impl Group, ctx: &Ctx<'_>, dst: impl Ends<T>, src: impl Ends<T>, stage: Stage);

    /// The same as links do it, with the result of `members` contributions; `None` where they cannot.
    fn linked(self, members: usize) -> Option<LinkReduction>;
}

impl<T: Pod, O: ReduceOp<T>> Reducer<T> for O {
    #[inline(always)]
    #[track_caller]
    fn fold(self, group: &impl Group, ctx: &Ctx<'_>, dst: impl Ends<T>, src: impl Ends<T>, stage: Stage) {
        if O::ONLY_MOVES {
            ctx.transfer(group, dst, src.get(0));
        } else {
            ctx.fold(group, dst, src, Staged { op: self, stage });
        }
    }

    #[inline(always)]
    fn linked(self, members: usize) -> Option<LinkReduction> {
        ReduceOp::linked(self, members)
    }
}

/// An operator at a stage.
pub(crate) struct Staged<O> {
    pub(crate) op: O,
    pub(crate) stage: Stage,
}

impl<T: Pod, O: ReduceOp<T>> Fold<T> for Staged<O> {
    type Acc = O::Acc;
    #[inline(always)]
    fn first(&self, value: T) -> O::Acc {
        if self.stage.first_is_partial { self.op.resume(value) } else { self.op.lift(value) }
    }
    #[inline(always)]
    fn next(&self, sum: O::Acc, value: T) -> O::Acc {
        let value = if self.stage.rest_are_partial { self.op.resume(value) } else { self.op.lift(value) };
        self.op.combine(sum, value)
    }
    #[inline(always)]
    fn last(&self, sum: O::Acc) -> T {
        match self.stage.finishes {
            0 => self.op.lower(sum),
            members => self.op.finish(sum, members as usize),
        }
    }
}

/// Reduces nothing: the one source, as it is.
#[derive(Clone, Copy)]
pub(crate) struct Keep;

impl<T: Pod> ReduceOp<T> for Keep {
    const ONLY_MOVES: bool = true;
    type Acc = T;
    #[inline(always)]
    fn lift(self, value: T) -> T {
        value
    }
    #[inline(always)]
    fn resume(self, partial: T) -> T {
        partial
    }
    #[inline(always)]
    fn combine(self, a: T, _b: T) -> T {
        a
    }
    #[inline(always)]
    fn lower(self, acc: T) -> T {
        acc
    }
    #[inline(always)]
    fn finish(self, acc: T, _members: usize) -> T {
        acc
    }
}
