//! The ways of the collectives, an algorithm over a protocol each, and the fixed kernels that go them.

use congruent::collectives::{Algorithm, Collective, Datatype, Descriptor, Op, PlanView, Protocol, Reduction};
use congruent::device::Sym;
use congruent::{Error, FixedArgs, FixedKernel, Grid, Stream, World};

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
        Self::those(members, |algorithm| algorithm != Algorithm::MULTIMEM)
    }

    /// Those through multicast addresses.
    pub fn multimem(members: usize) -> Vec<Self> {
        Self::those(members, |algorithm| algorithm == Algorithm::MULTIMEM)
    }

    fn those(members: usize, wanted: impl Fn(Algorithm) -> bool) -> Vec<Self> {
        // Those of two levels have no kernels, and want several hosts.
        let wanted = |of: &&&Descriptor| !of.levels && wanted(of.algorithm) && of.members.includes(members);
        let described = Descriptor::ALL.iter().filter(wanted);
        let ways = described.flat_map(|of| {
            of.protocols.iter().map(|&protocol| Self { collective: of.collective, algorithm: of.algorithm, protocol })
        });
        ways.filter(Self::has_equal_parts).collect()
    }

    fn has_equal_parts(&self) -> bool {
        use Collective::{AllGatherV, AllToAllV, Barrier, SendRecv};
        !matches!(self.collective, AllToAllV | AllGatherV | SendRecv | Barrier)
    }

    /// Whether it combines.
    pub fn reduces(&self) -> bool {
        self.collective.reduces()
    }

    /// Whether it takes the operator on elements of the type, where these exist: links do not reduce by all.
    pub fn takes(&self, op: Op, datatype: Datatype) -> bool {
        use Datatype::{Bf16, F16, F32, F64, I32, I64, U32, U64};
        let integer = matches!(datatype, I32 | U32 | I64 | U64);
        if self.algorithm != Algorithm::MULTIMEM || !self.reduces() {
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
        let Some(kernel) = FixedKernel::of(self.collective, self.algorithm) else { panic!("{self:?} has no kernel") };
        let Args { dst, src, reduction, root, plan, rounds } = args;
        let args = FixedArgs { dst, src, reduction, root, plan: plan.over(self.protocol), rounds };
        let Site { world, stream, grid } = *site;
        Ok(kernel.launch(world, stream, grid, args)?)
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
    /// How often, one after the other.
    pub rounds: u32,
}
