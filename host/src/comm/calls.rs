//! The collectives of a [`Comm`] with parts of one length.

use congruent_collectives::{Collective, HasDatatype, Op, PreMulSum, Reduction};
use congruent_device::{Pod, Sym};

use super::Comm;
use super::enqueue::{Call, Queue};
use crate::LaunchError;
use crate::launches::Launcher;

/// An operator on elements of `T`, with what it needs: an [`Op`], a [`PreMulSum`] with the scalar of all members, or an
/// [`OwnPreMulSum`] with this member's.
#[derive(Clone, Copy, Debug)]
pub struct OpWith<T> {
    op: Op,
    scalar: Option<T>,
    own: bool,
}

/// A premul-sum in which each member has a scalar of its own for what it contributes: a weighted sum. All members' calls are of it.
///
/// With a [`PreMulSum`], whose scalar is the same on all members, whoever combines elements multiplies those of others too, and every
/// algorithm can. Here members combine their own, which they do in a ring and in trees.
///
/// ```
/// use congruent::OwnPreMulSum;
///
/// # congruent::local(3, |world| {
/// let (comm, stream) = (world.comm(world.team())?, world.stream()?);
/// let (mean, samples) = (world.alloc::<f32>(100)?, [10.0, 30.0, 40.0]);
/// mean.fill(comm.rank() as f32)?;
/// // Each member's value counts as its samples do.
/// let weight = samples[comm.rank()] / samples.iter().sum::<f32>();
/// comm.all_reduce(&stream, mean.view(), mean.view(), OwnPreMulSum(weight))?;
/// world.synchronize(&stream)?;
/// assert!((mean.to_vec()?[0] - (30.0 + 2.0 * 40.0) / 80.0).abs() < 1e-6);
/// # Ok::<_, congruent::Error>(())
/// # })?;
/// # Ok::<_, congruent::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnPreMulSum<T>(pub T);

impl<T> From<Op> for OpWith<T> {
    fn from(op: Op) -> Self {
        Self { op, scalar: None, own: false }
    }
}

impl<T> From<PreMulSum<T>> for OpWith<T> {
    fn from(PreMulSum(scalar): PreMulSum<T>) -> Self {
        Self { op: Op::PreMulSum, scalar: Some(scalar), own: false }
    }
}

impl<T> From<OwnPreMulSum<T>> for OpWith<T> {
    fn from(OwnPreMulSum(scalar): OwnPreMulSum<T>) -> Self {
        Self { op: Op::PreMulSum, scalar: Some(scalar), own: true }
    }
}

impl Comm {
    /// Waits on the stream until every member has reached it.
    ///
    /// # Collective
    /// Over the team.
    ///
    /// # Errors
    /// See [`LaunchError`].
    #[track_caller]
    pub fn barrier(&self, queue: &impl Queue) -> Result<(), LaunchError> {
        self.admit(queue.stream(self)?, Collective::Barrier.name(), &[])?;
        let choice = self.chosen(Collective::Barrier, 0, None)?;
        queue.take(
            self,
            Call {
                collective: Collective::Barrier,
                algorithm: choice.algorithm,
                protocol: choice.protocol,
                grid: choice.grid(),
                reduction: None,
                own_scalars: false,
                dst: Sym::empty(),
                src: Sym::empty(),
                root: 0,
                parts: None,
                count: 0,
                element: 1,
                by: Launcher::call(),
            },
        )
    }

    /// Combines the members' `src` element by element into every member's `dst`, which may be `src`.
    ///
    /// # Collective
    /// Over the team, with the same length, type and operator.
    ///
    /// # Errors
    /// Where lengths or operator do not fit, and see [`LaunchError`].
    #[track_caller]
    pub fn all_reduce<T: HasDatatype>(
        &self,
        queue: &impl Queue,
        dst: Sym<T>,
        src: Sym<T>,
        op: impl Into<OpWith<T>>,
    ) -> Result<(), LaunchError> {
        lengths(dst.len(), src.len(), 1)?;
        self.reduction(queue, Collective::AllReduce, dst, src, op.into(), 0)
    }

    /// Combines the members' `src` element by element into the root's `dst`, which may be `src`.
    ///
    /// # Collective
    /// Over the team, with the same length, type, operator and root.
    ///
    /// # Errors
    /// As [`all_reduce`](Comm::all_reduce), and where there is no such root.
    #[track_caller]
    pub fn reduce<T: HasDatatype>(
        &self,
        queue: &impl Queue,
        dst: Sym<T>,
        src: Sym<T>,
        op: impl Into<OpWith<T>>,
        root: usize,
    ) -> Result<(), LaunchError> {
        lengths(dst.len(), src.len(), 1)?;
        self.reduction(queue, Collective::Reduce, dst, src, op.into(), root)
    }

    /// Combines the members' `src` element by element, and gives member `i` part `i` of the result in `dst`, which may be that
    /// part of `src`: `src` is as many times as long as there are members.
    ///
    /// # Collective
    /// Over the team, with the same length, type and operator.
    ///
    /// # Errors
    /// As [`all_reduce`](Comm::all_reduce).
    #[track_caller]
    pub fn reduce_scatter<T: HasDatatype>(
        &self,
        queue: &impl Queue,
        dst: Sym<T>,
        src: Sym<T>,
        op: impl Into<OpWith<T>>,
    ) -> Result<(), LaunchError> {
        lengths(src.len(), dst.len(), self.size())?;
        self.reduction(queue, Collective::ReduceScatter, dst, src, op.into(), 0)
    }

    /// Gives every member the root's `src` in `dst`, which may be `src`.
    ///
    /// # Collective
    /// Over the team, with the same length and root.
    ///
    /// # Errors
    /// Where lengths do not fit or there is no such root, and see [`LaunchError`].
    #[track_caller]
    pub fn broadcast<T: Pod>(
        &self,
        queue: &impl Queue,
        dst: Sym<T>,
        src: Sym<T>,
        root: usize,
    ) -> Result<(), LaunchError> {
        lengths(dst.len(), src.len(), 1)?;
        self.movement(queue, Collective::Broadcast, dst, src, root)
    }

    /// Gives the root every member's `src` in `dst`, in rank order: `dst` is as many times as long as there are members.
    ///
    /// # Collective
    /// Over the team, with the same length and root; all give a `dst`, and only the root's is written.
    ///
    /// # Errors
    /// As [`broadcast`](Comm::broadcast).
    #[track_caller]
    pub fn gather<T: Pod>(&self, queue: &impl Queue, dst: Sym<T>, src: Sym<T>, root: usize) -> Result<(), LaunchError> {
        lengths(dst.len(), src.len(), self.size())?;
        self.movement(queue, Collective::Gather, dst, src, root)
    }

    /// Gives member `i` part `i` of the root's `src` in `dst`: `src` is as many times as long as there are members.
    ///
    /// # Collective
    /// Over the team, with the same length and root; all give a `src`, and only the root's is read.
    ///
    /// # Errors
    /// As [`broadcast`](Comm::broadcast).
    #[track_caller]
    pub fn scatter<T: Pod>(
        &self,
        queue: &impl Queue,
        dst: Sym<T>,
        src: Sym<T>,
        root: usize,
    ) -> Result<(), LaunchError> {
        lengths(src.len(), dst.len(), self.size())?;
        self.movement(queue, Collective::Scatter, dst, src, root)
    }

    /// Gives every member every member's `src` in `dst`, in rank order: `dst` is as many times as long as there are members,
    /// and `src` may be the member's part of it.
    ///
    /// # Collective
    /// Over the team, with the same length.
    ///
    /// # Errors
    /// As [`broadcast`](Comm::broadcast).
    #[track_caller]
    pub fn all_gather<T: Pod>(&self, queue: &impl Queue, dst: Sym<T>, src: Sym<T>) -> Result<(), LaunchError> {
        lengths(dst.len(), src.len(), self.size())?;
        self.movement(queue, Collective::AllGather, dst, src, 0)
    }

    /// Part `i` of member `j`'s `src` becomes part `j` of member `i`'s `dst`, which may be `src`.
    ///
    /// # Collective
    /// Over the team, with the same length, one part of the same length for each member.
    ///
    /// # Errors
    /// As [`broadcast`](Comm::broadcast).
    #[track_caller]
    pub fn all_to_all<T: Pod>(&self, queue: &impl Queue, dst: Sym<T>, src: Sym<T>) -> Result<(), LaunchError> {
        lengths(dst.len(), src.len(), 1)?;
        lengths(dst.len(), dst.len() / self.size(), self.size())?;
        self.movement(queue, Collective::AllToAll, dst, src, 0)
    }

    #[track_caller]
    fn reduction<T: HasDatatype>(
        &self,
        queue: &impl Queue,
        collective: Collective,
        dst: Sym<T>,
        src: Sym<T>,
        op: OpWith<T>,
        root: usize,
    ) -> Result<(), LaunchError> {
        let OpWith { op, scalar, own } = op;
        if op == Op::PreMulSum && scalar.is_none() {
            return Err(LaunchError::Scalar);
        }
        let Some(reduction) = Reduction::new::<T>(op, scalar) else {
            return Err(LaunchError::Operator { op, datatype: T::DATATYPE });
        };
        self.call(queue, collective, dst, src, Some((reduction, own)), root)
    }

    #[track_caller]
    fn movement<T: Pod>(
        &self,
        queue: &impl Queue,
        collective: Collective,
        dst: Sym<T>,
        src: Sym<T>,
        root: usize,
    ) -> Result<(), LaunchError> {
        self.call(queue, collective, dst, src, None, root)
    }

    #[track_caller]
    fn call<T: Pod>(
        &self,
        queue: &impl Queue,
        collective: Collective,
        dst: Sym<T>,
        src: Sym<T>,
        reduction: Option<(Reduction, bool)>,
        root: usize,
    ) -> Result<(), LaunchError> {
        if root >= self.size() {
            return Err(LaunchError::Root { root, size: self.size() });
        }
        self.admit(queue.stream(self)?, collective.name(), &[&dst, &src])?;
        let bytes = dst.bytes().max(src.bytes()) as u64;
        let (reduction, own_scalars) = reduction.map_or((None, false), |(of, own)| (Some(of), own));
        let choice = self.choose(collective, bytes, reduction.map(|of| (of.op(), of.datatype())), own_scalars)?;
        self.overlap(collective, dst, src)?;
        queue.take(
            self,
            Call {
                collective,
                algorithm: choice.algorithm,
                protocol: choice.protocol,
                grid: choice.grid(),
                reduction,
                own_scalars,
                dst: dst.cast(),
                src: src.cast(),
                root: root as u32,
                parts: None,
                count: dst.len().min(src.len()),
                element: size_of::<T>(),
                by: Launcher::call(),
            },
        )
    }

    /// The buffers do not overlap, but as the collective's in-place form has it.
    fn overlap<T: Pod>(&self, collective: Collective, dst: Sym<T>, src: Sym<T>) -> Result<(), LaunchError> {
        let own = |parts: Sym<T>| {
            let each = parts.len() / self.size();
            parts.slice(self.rank() * each..(self.rank() + 1) * each)
        };
        let (in_place, form) = match collective {
            Collective::Gather | Collective::AllGather => {
                (src == own(dst), "this member's part of the destination as source")
            }
            Collective::Scatter | Collective::ReduceScatter => {
                (dst == own(src), "this member's part of the source as destination")
            }
            _ => (dst == src, "one buffer as both"),
        };
        if in_place { Ok(()) } else { apart(collective.name(), form, dst, src) }
    }
}

/// A buffer of `whole` elements is `parts` times as long as one of `part`.
fn lengths(whole: usize, part: usize, parts: usize) -> Result<(), LaunchError> {
    if part.checked_mul(parts) == Some(whole) { Ok(()) } else { Err(LaunchError::Lengths { dst: whole, src: part }) }
}

/// The buffers do not overlap.
pub(super) fn apart<T: Pod>(
    call: &'static str,
    instead: &'static str,
    dst: Sym<T>,
    src: Sym<T>,
) -> Result<(), LaunchError> {
    let end = |sym: Sym<T>| sym.offset() + sym.bytes() as u64;
    let both = dst.offset().max(src.offset())..end(dst).min(end(src));
    if both.is_empty() { Ok(()) } else { Err(LaunchError::Overlap { call, instead }) }
}
