//! What a collective must leave behind.

use congruent::collectives::{Collective, HasDatatype, Op, Reduction};

use super::model::Sample;
use super::orders::{Model, order_of};
use super::ways::Way;

/// One collective on the samples of some buffer.
#[derive(Clone, Copy)]
pub(super) struct Call<T> {
    pub(super) way: Way,
    /// Ignored by those that move data.
    pub(super) op: Op,
    pub(super) scalar: T,
    pub(super) root: usize,
    pub(super) members: usize,
    /// Elements of a member's part, or of the buffers where there are no parts.
    pub(super) len: usize,
    /// Which samples are contributed.
    pub(super) buffer: u64,
}

impl<T: Sample + HasDatatype> Call<T> {
    /// Type and operator as the kernels take them.
    pub(super) fn reduction(&self) -> Option<Reduction> {
        if !self.way.reduces() {
            return None;
        }
        let reduction = Reduction::new::<T>(self.op, Some(self.scalar));
        Some(reduction.unwrap_or_else(|| panic!("{} has no {}", T::DATATYPE, self.op)))
    }

    /// What rank `me` gets; `None` where nothing is written. `pe` says which PE a rank is.
    pub(super) fn expected(&self, me: usize, pe: impl Fn(usize) -> usize) -> Option<Vec<T>> {
        let Self { way, root, members, len, .. } = *self;
        let x = |rank: usize, i: usize| T::sample(self.buffer, pe(rank), i);
        let at_root = |values: &dyn Fn() -> Vec<T>| (me == root).then(values);
        let parts = |of: &dyn Fn(usize, usize) -> T| (0..members * len).map(|at| of(at / len, at % len)).collect();
        match way.collective {
            Collective::AllReduce => Some(self.reduced(0, 0, x)),
            Collective::Reduce => at_root(&|| self.reduced(root, 0, x)),
            Collective::ReduceScatter => Some(self.reduced(me, me * len, x)),
            Collective::Broadcast => Some((0..len).map(|i| x(root, i)).collect()),
            Collective::Scatter => Some((0..len).map(|i| x(root, me * len + i)).collect()),
            Collective::Gather => at_root(&|| parts(&x)),
            Collective::AllGather => Some(parts(&x)),
            Collective::AllToAll => Some(parts(&|rank, i| x(rank, me * len + i))),
            other => panic!("{other} has parts of any length"),
        }
    }

    /// Elements from `start` on; `member` is who gets the result, where that is one.
    fn reduced(&self, member: usize, start: usize, x: impl Fn(usize, usize) -> T) -> Vec<T> {
        let Self { way, op, scalar, members, len, .. } = *self;
        let model = Model::new(op, scalar, members);
        let order = |i| order_of((way.collective, way.algorithm), (members, member), i, len, size_of::<T>());
        (0..len).map(|i| model.reduced(order(i), |rank| x(rank, start + i))).collect()
    }
}
