//! The collectives of a [`Comm`].

use congruent_collectives::{Collective, Op, Reduction, Typed};
use congruent_device::{Pod, Sym};
use congruent_kernels as kernels;

use super::{Comm, kernels as table};
use crate::launch::Target;
use crate::{LaunchError, Stream};

impl Comm {
    /// Waits on the stream until every member has reached it.
    ///
    /// # Collective
    /// Over the team.
    ///
    /// # Errors
    /// See [`LaunchError`].
    pub fn barrier(&self, stream: &Stream) -> Result<(), LaunchError> {
        self.target(stream).launch(kernels::barrier, (self.team, 1))
    }

    /// Combines the members' `src` element by element into every member's `dst`, which may be `src`.
    ///
    /// # Collective
    /// Over the team, with the same length, type and operator.
    ///
    /// # Errors
    /// Where lengths or operator do not fit, and see [`LaunchError`].
    pub fn all_reduce<T: Typed>(&self, stream: &Stream, dst: Sym<T>, src: Sym<T>, op: Op) -> Result<(), LaunchError> {
        lengths(dst.len(), src.len(), 1)?;
        self.reduction(stream, Collective::AllReduce, dst, src, op, 0)
    }

    /// Combines the members' `src` element by element into the root's `dst`, which may be `src`.
    ///
    /// # Collective
    /// Over the team, with the same length, type, operator and root.
    ///
    /// # Errors
    /// As [`all_reduce`](Comm::all_reduce), and where there is no such root.
    pub fn reduce<T: Typed>(
        &self,
        stream: &Stream,
        dst: Sym<T>,
        src: Sym<T>,
        op: Op,
        root: usize,
    ) -> Result<(), LaunchError> {
        lengths(dst.len(), src.len(), 1)?;
        self.reduction(stream, Collective::Reduce, dst, src, op, root)
    }

    /// Combines the members' `src` element by element, and gives member `i` part `i` of the result in `dst`, which may be that
    /// part of `src`: `src` is as many times as long as there are members.
    ///
    /// # Collective
    /// Over the team, with the same length, type and operator.
    ///
    /// # Errors
    /// As [`all_reduce`](Comm::all_reduce).
    pub fn reduce_scatter<T: Typed>(
        &self,
        stream: &Stream,
        dst: Sym<T>,
        src: Sym<T>,
        op: Op,
    ) -> Result<(), LaunchError> {
        lengths(src.len(), dst.len(), self.size())?;
        self.reduction(stream, Collective::ReduceScatter, dst, src, op, 0)
    }

    /// Gives every member the root's `src` in `dst`, which may be `src`.
    ///
    /// # Collective
    /// Over the team, with the same length and root.
    ///
    /// # Errors
    /// Where lengths do not fit or there is no such root, and see [`LaunchError`].
    pub fn broadcast<T: Pod>(
        &self,
        stream: &Stream,
        dst: Sym<T>,
        src: Sym<T>,
        root: usize,
    ) -> Result<(), LaunchError> {
        lengths(dst.len(), src.len(), 1)?;
        self.movement(stream, Collective::Broadcast, dst, src, root)
    }

    /// Gives the root every member's `src` in `dst`, in rank order: `dst` is as many times as long as there are members.
    ///
    /// # Collective
    /// Over the team, with the same length and root; all give a `dst`, and only the root's is written.
    ///
    /// # Errors
    /// As [`broadcast`](Comm::broadcast).
    pub fn gather<T: Pod>(&self, stream: &Stream, dst: Sym<T>, src: Sym<T>, root: usize) -> Result<(), LaunchError> {
        lengths(dst.len(), src.len(), self.size())?;
        self.movement(stream, Collective::Gather, dst, src, root)
    }

    /// Gives member `i` part `i` of the root's `src` in `dst`: `src` is as many times as long as there are members.
    ///
    /// # Collective
    /// Over the team, with the same length and root; all give a `src`, and only the root's is read.
    ///
    /// # Errors
    /// As [`broadcast`](Comm::broadcast).
    pub fn scatter<T: Pod>(&self, stream: &Stream, dst: Sym<T>, src: Sym<T>, root: usize) -> Result<(), LaunchError> {
        lengths(src.len(), dst.len(), self.size())?;
        self.movement(stream, Collective::Scatter, dst, src, root)
    }

    /// Gives every member every member's `src` in `dst`, in rank order: `dst` is as many times as long as there are members,
    /// and `src` may be the member's part of it.
    ///
    /// # Collective
    /// Over the team, with the same length.
    ///
    /// # Errors
    /// As [`broadcast`](Comm::broadcast).
    pub fn all_gather<T: Pod>(&self, stream: &Stream, dst: Sym<T>, src: Sym<T>) -> Result<(), LaunchError> {
        lengths(dst.len(), src.len(), self.size())?;
        self.movement(stream, Collective::AllGather, dst, src, 0)
    }

    /// Part `i` of member `j`'s `src` becomes part `j` of member `i`'s `dst`, which may be `src`.
    ///
    /// # Collective
    /// Over the team, with the same length, one part of the same length for each member.
    ///
    /// # Errors
    /// As [`broadcast`](Comm::broadcast).
    pub fn all_to_all<T: Pod>(&self, stream: &Stream, dst: Sym<T>, src: Sym<T>) -> Result<(), LaunchError> {
        lengths(dst.len(), src.len(), 1)?;
        lengths(dst.len(), dst.len() / self.size(), self.size())?;
        self.movement(stream, Collective::AllToAll, dst, src, 0)
    }

    fn reduction<T: Typed>(
        &self,
        stream: &Stream,
        collective: Collective,
        dst: Sym<T>,
        src: Sym<T>,
        op: Op,
        root: usize,
    ) -> Result<(), LaunchError> {
        let root = self.root(root)?;
        let Some(reduction) = Reduction::new::<T>(op, None) else {
            return Err(LaunchError::Operator { op, datatype: T::DATATYPE });
        };
        let (algorithm, protocol) = self.choose(collective, src.bytes() as u64);
        let view = self.view(stream)?.over(protocol);
        let args = (self.team, dst.cast(), src.cast(), reduction, root, view, 1);
        table::launch_reduction(&self.target(stream), collective, algorithm, args)
    }

    fn movement<T: Pod>(
        &self,
        stream: &Stream,
        collective: Collective,
        dst: Sym<T>,
        src: Sym<T>,
        root: usize,
    ) -> Result<(), LaunchError> {
        let root = self.root(root)?;
        let (algorithm, protocol) = self.choose(collective, src.bytes() as u64);
        let view = self.view(stream)?.over(protocol);
        let args = (self.team, dst.cast(), src.cast(), root, view, 1);
        table::launch_move(&self.target(stream), collective, algorithm, args)
    }

    fn target<'t>(&'t self, stream: &'t Stream) -> Target<'t> {
        Target { shared: &self.shared, stream, grid: self.grid }
    }

    fn root(&self, root: usize) -> Result<u32, LaunchError> {
        if root < self.size() { Ok(root as u32) } else { Err(LaunchError::Root { root, size: self.size() }) }
    }
}

/// A buffer of `whole` elements is `parts` times as long as one of `part`.
fn lengths(whole: usize, part: usize, parts: usize) -> Result<(), LaunchError> {
    if part.checked_mul(parts) == Some(whole) { Ok(()) } else { Err(LaunchError::Lengths { dst: whole, src: part }) }
}
