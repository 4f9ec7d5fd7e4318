//! The ways of the collectives, an algorithm over a protocol each, and the fixed kernels that go them.

use congruent::collectives::{Algorithm, Collective, Datatype, Op, PlanView, Protocol, Reduction};
use congruent::device::Sym;
use congruent::select::SUPPORT;
use congruent::{Error, Grid, Stream, World, kernels};

/// An algorithm of a collective, over a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// What it does.
    pub collective: Collective,
    /// Along which paths.
    pub algorithm: Algorithm,
    /// How data and signals travel.
    pub protocol: Protocol,
}

impl Way {
    /// All that a team of so many has, of the collectives whose parts have one length. Those of multicast need a machine that
    /// has it, and have a family of their own.
    pub fn all(members: usize) -> Vec<Self> {
        Self::those(members, |algorithm| algorithm != Algorithm::Multimem)
    }

    /// Those through multicast addresses.
    pub fn multimem(members: usize) -> Vec<Self> {
        Self::those(members, |algorithm| algorithm == Algorithm::Multimem)
    }

    fn those(members: usize, wanted: impl Fn(Algorithm) -> bool) -> Vec<Self> {
        let rows = SUPPORT.iter().filter(|row| wanted(row.algorithm) && row.members.includes(members));
        let of_row = |row: &'static congruent::select::Supported| {
            let way = |&protocol| Self { collective: row.collective, algorithm: row.algorithm, protocol };
            row.protocols.iter().map(way)
        };
        rows.flat_map(of_row).filter(Self::has_equal_parts).collect()
    }

    fn has_equal_parts(&self) -> bool {
        use Collective::{AllGatherV, AllToAllV, Barrier, SendRecv};
        !matches!(self.collective, AllToAllV | AllGatherV | SendRecv | Barrier)
    }

    /// Whether it combines.
    pub fn reduces(&self) -> bool {
        matches!(self.collective, Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce)
    }

    /// Whether it takes the operator on elements of the type, where these exist: links do not reduce by all.
    pub fn takes(&self, op: Op, datatype: Datatype) -> bool {
        use Datatype::{Bf16, F16, F32, F64, I32, I64, U32, U64};
        let integer = matches!(datatype, I32 | U32 | I64 | U64);
        if self.algorithm != Algorithm::Multimem || !self.reduces() {
            return true;
        }
        match op {
            Op::Sum => integer || matches!(datatype, F16 | Bf16 | F32 | F64),
            Op::Avg => integer || matches!(datatype, F32 | F64),
            Op::Min | Op::Max | Op::And | Op::Or | Op::Xor => integer,
            Op::Prod | Op::PreMulSum => false,
        }
    }

    /// Elements of the destination and of the source, where a member's part or the whole buffer has `len`.
    pub fn lengths(&self, len: usize, members: usize) -> (usize, usize) {
        use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        match self.collective {
            ReduceScatter | Scatter => (len, len * members),
            AllGather | Gather => (len * members, len),
            AllToAll => (len * members, len * members),
            _ => (len, len),
        }
    }

    /// Puts its fixed kernel on a stream.
    ///
    /// # Errors
    /// Where it cannot be launched
    ///
    /// # Panics
    /// Of a way without a kernel
    pub fn launch(&self, site: &Site<'_>, args: Args) -> Result<(), Error> {
        use Algorithm::{Bruck, Direct, Multimem, OneShot, Recursive, Ring, Tree};
        use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
        let Args { dst, src, reduction, root, plan } = args;
        let plan = plan.over(self.protocol);
        let moves = (dst, src, root, plan, 1);
        let Site { world, stream, grid } = *site;
        let Some(reduction) = reduction else {
            return Ok(match (self.collective, self.algorithm) {
                (Broadcast, Ring) => world.launch(stream, kernels::broadcast_ring, grid, moves),
                (Broadcast, Direct) => world.launch(stream, kernels::broadcast_direct, grid, moves),
                (Broadcast, Tree) => world.launch(stream, kernels::broadcast_tree, grid, moves),
                (Broadcast, Multimem) => world.launch(stream, kernels::broadcast_multimem, grid, moves),
                (Scatter, Direct) => world.launch(stream, kernels::scatter_direct, grid, moves),
                (Gather, Direct) => world.launch(stream, kernels::gather_direct, grid, moves),
                (AllGather, Ring) => world.launch(stream, kernels::all_gather_ring, grid, moves),
                (AllGather, OneShot) => world.launch(stream, kernels::all_gather_one_shot, grid, moves),
                (AllGather, Direct) => world.launch(stream, kernels::all_gather_direct, grid, moves),
                (AllGather, Recursive) => world.launch(stream, kernels::all_gather_recursive, grid, moves),
                (AllGather, Multimem) => world.launch(stream, kernels::all_gather_multimem, grid, moves),
                (AllToAll, OneShot) => world.launch(stream, kernels::all_to_all_one_shot, grid, moves),
                (AllToAll, Direct) => world.launch(stream, kernels::all_to_all_direct, grid, moves),
                (AllToAll, Bruck) => world.launch(stream, kernels::all_to_all_bruck, grid, moves),
                _ => panic!("{self:?} moves data, and this suite knows no kernel for it"),
            }?);
        };
        let reduces = (dst, src, reduction, root, plan, 1);
        Ok(match (self.collective, self.algorithm) {
            (AllReduce, Ring) => world.launch(stream, kernels::all_reduce_ring, grid, reduces),
            (AllReduce, OneShot) => world.launch(stream, kernels::all_reduce_one_shot, grid, reduces),
            (AllReduce, Direct) => world.launch(stream, kernels::all_reduce_direct, grid, reduces),
            (AllReduce, Tree) => world.launch(stream, kernels::all_reduce_tree, grid, reduces),
            (AllReduce, Recursive) => world.launch(stream, kernels::all_reduce_recursive, grid, reduces),
            (AllReduce, Multimem) => world.launch(stream, kernels::all_reduce_multimem, grid, reduces),
            (ReduceScatter, Ring) => world.launch(stream, kernels::reduce_scatter_ring, grid, reduces),
            (ReduceScatter, OneShot) => world.launch(stream, kernels::reduce_scatter_one_shot, grid, reduces),
            (ReduceScatter, Direct) => world.launch(stream, kernels::reduce_scatter_direct, grid, reduces),
            (ReduceScatter, Recursive) => world.launch(stream, kernels::reduce_scatter_recursive, grid, reduces),
            (ReduceScatter, Multimem) => world.launch(stream, kernels::reduce_scatter_multimem, grid, reduces),
            (Reduce, Ring) => world.launch(stream, kernels::reduce_ring, grid, reduces),
            (Reduce, Direct) => world.launch(stream, kernels::reduce_direct, grid, reduces),
            (Reduce, Tree) => world.launch(stream, kernels::reduce_tree, grid, reduces),
            _ => panic!("{self:?} reduces, and this suite knows no kernel for it"),
        }?)
    }
}

/// Where a kernel is to run.
#[derive(Clone, Copy)]
pub struct Site<'s> {
    /// The PE's world.
    pub world: &'s World,
    /// Its stream.
    pub stream: &'s Stream,
    /// Blocks and threads.
    pub grid: Grid,
}

/// What a fixed kernel is given; a reduction only those that reduce.
#[derive(Clone, Copy)]
pub struct Args {
    /// Where results go.
    pub dst: Sym<u8>,
    /// What each member gives.
    pub src: Sym<u8>,
    /// Type and operator.
    pub reduction: Option<Reduction>,
    /// The root, where there is one.
    pub root: u32,
    /// The plan, of which the way chooses the protocol.
    pub plan: PlanView,
}
