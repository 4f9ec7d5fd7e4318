//! Instructions, as they are executed.

use congruent_verify::ptx;

use crate::alu::matrix::{Mma, Tiles};
use crate::alu::{Carry, Compute, Decide, Function};

/// A parameter's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// An instruction with the predicate in front of it, and where it is in the text.
#[derive(Clone)]
pub(crate) struct Instruction {
    /// A predicate, and what it has to be.
    pub(crate) guard: Option<(usize, bool)>,
    pub(crate) operation: Operation,
    pub(crate) span: ptx::Span,
    pub(crate) source: Option<ptx::SourceLine>,
}

/// Where an operand comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    Register(usize),
    Immediate(u64),
    Special(Special),
    Global(usize, i64),
    Shared(usize, i64),
    /// The address of a `.local` variable of this call.
    Local(u64),
    /// The address of a parameter of the kernel.
    Param(u64),
    Function(usize),
}

/// A register of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Special {
    Thread(usize),
    Threads(usize),
    Block(usize),
    Blocks(usize),
    Lane,
    Warp,
    Warps,
    Sm,
    Sms,
    Grid,
    Clock,
    ClockHigh,
    Time,
    TimeHigh,
    LanesEqual,
    LanesUpTo,
    LanesBelow,
    LanesFrom,
    LanesAbove,
    DynamicShared,
    TotalShared,
    /// What is the same everywhere, as the size of a cluster is.
    Constant(u32),
}

/// A register that is written, with the bits that it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Target {
    pub(crate) register: usize,
    pub(crate) mask: u64,
}

/// A predicate as an operand: a register, or its opposite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Predicate {
    pub(crate) register: usize,
    pub(crate) negated: bool,
}

/// Where a predicate operand comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Truth {
    Predicate(Predicate),
    Constant(bool),
}

/// How far an access is ordered and seen, as the memory model has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strength {
    Weak,
    Relaxed(Scope),
    Acquire(Scope),
    Release(Scope),
    AcquireRelease(Scope),
}

impl Strength {
    pub(crate) fn is_strong(self) -> bool {
        self != Self::Weak
    }

    pub(crate) fn scope(self) -> Option<Scope> {
        match self {
            Self::Weak => None,
            Self::Relaxed(scope) | Self::Acquire(scope) | Self::Release(scope) | Self::AcquireRelease(scope) => {
                Some(scope)
            }
        }
    }

    /// The same in a scope.
    pub(crate) fn within(self, scope: Scope) -> Self {
        match self {
            Self::Weak => Self::Weak,
            Self::Relaxed(_) => Self::Relaxed(scope),
            Self::Acquire(_) => Self::Acquire(scope),
            Self::Release(_) => Self::Release(scope),
            Self::AcquireRelease(_) => Self::AcquireRelease(scope),
        }
    }

    /// The same without an order.
    pub(crate) fn relaxed(self) -> Self {
        self.scope().map_or(Self::Weak, Self::Relaxed)
    }
}

/// Which threads an order is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Block,
    Device,
    System,
}

/// Which addresses an access takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    Generic,
    Global,
    Shared,
    Local,
    /// Parameters of the kernel.
    Param,
}

/// The address of an access.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Address {
    pub(crate) space: Where,
    pub(crate) base: Source,
    pub(crate) offset: i64,
}

/// What is accessed: so many units of so many bytes, side by side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Access {
    pub(crate) address: Address,
    pub(crate) unit: u64,
    pub(crate) count: u64,
    pub(crate) strength: Strength,
    /// A load that may be stale: `.nc`.
    pub(crate) is_noncoherent: bool,
}

/// Which operand of a shuffle tells the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What lanes of a warp do together.
#[derive(Clone, Debug)]
pub(crate) enum Together {
    Sync,
    Shuffle { kind: Shuffle, to: Option<Target>, valid: Option<usize>, value: Source, lane: Source, clamp: Source },
    VoteAll { to: usize, value: Truth },
    VoteAny { to: usize, value: Truth },
    VoteUniform { to: usize, value: Truth },
    Ballot { to: Target, value: Truth },
    MatchAny { to: Target, value: Source },
    MatchAll { to: Option<Target>, valid: Option<usize>, value: Source },
    Reduce { to: Target, value: Source, combine: Combination },
    Elect { to: Option<Target>, chosen: Option<usize> },
}

/// What a whole warp does with matrices, whose parts all lanes hold.
#[derive(Clone, Debug)]
pub(crate) enum Matrix {
    Multiply { mma: Mma, to: Vec<Option<Target>>, from: [Vec<Source>; 3] },
    Load { tiles: Tiles, to: Vec<Option<Target>>, rows: Access },
    Store { tiles: Tiles, from: Vec<Source>, rows: Access },
    Transpose { to: Vec<Option<Target>>, from: Source },
}

/// What a barrier does when all are there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BarrierResult {
    None,
    Count(Target),
    And(usize),
    Or(usize),
}

/// How predicates are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Boolean {
    And,
    Or,
    Xor,
}

/// What makes one of two values.
pub(crate) type Combination = &'static dyn Compute<2>;

/// What compares two values.
pub(crate) type Comparison = &'static dyn Decide<2>;

/// What is done with a word of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// By one operand.
    Combine(Combination),
    /// Written if it is what the first operand says.
    CompareAndSwap,
}

/// How the words of several devices become one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Combine {
    /// One after the other.
    Two(Combination),
    /// With more precision than they have, rounded once.
    All(fn(&[u64]) -> u64),
}

/// What an instruction does.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Compute {
        function: Function,
        to: Option<Target>,
        from: Vec<Source>,
    },
    /// `add.cc`, `addc` and the like, with the function's carry and where it goes.
    Carry {
        function: Carry,
        to: Target,
        from: Vec<Source>,
        keeps: bool,
    },
    Compare {
        function: Comparison,
        to: Option<usize>,
        opposite: Option<usize>,
        from: [Source; 2],
        with: Option<(Boolean, Truth)>,
    },
    /// As `Compare`, with a number as result: what is true and what is false.
    Set {
        function: Comparison,
        to: Target,
        from: [Source; 2],
        with: Option<(Boolean, Truth)>,
        truth: u64,
    },
    Test {
        function: &'static dyn Decide<1>,
        to: usize,
        from: Source,
    },
    Predicate {
        to: usize,
        first: Truth,
        second: Option<(Boolean, Truth)>,
    },
    Select {
        to: Target,
        from: [Source; 2],
        by: Truth,
    },
    Move {
        to: Target,
        from: Source,
    },
    /// Several registers put side by side into one, each with its bits.
    Pack {
        to: Target,
        from: Vec<Source>,
        bits: u32,
    },
    Unpack {
        to: Vec<Option<Target>>,
        from: Source,
        bits: u32,
    },
    /// Registers of 128 bits are two.
    MoveWide {
        to: [Option<Target>; 2],
        from: [Source; 2],
    },
    IsSpace {
        to: usize,
        from: Source,
        space: Where,
    },
    Load {
        access: Access,
        to: Vec<Option<Target>>,
        is_signed: bool,
    },
    Store {
        access: Access,
        from: Vec<Source>,
    },
    Atomic {
        access: Access,
        to: Vec<Option<Target>>,
        change: Change,
        from: Vec<Source>,
        second: Option<Source>,
    },
    /// From parameters of a call, by their place in the frame.
    LoadParam {
        offset: u64,
        unit: u64,
        to: Vec<Option<Target>>,
        is_signed: bool,
    },
    StoreParam {
        offset: u64,
        unit: u64,
        from: Vec<Source>,
    },
    MultimemReduce {
        access: Access,
        to: Vec<Target>,
        combine: Combine,
    },
    MultimemStore {
        access: Access,
        from: Vec<Source>,
    },
    MultimemAdd {
        access: Access,
        combine: Combination,
        from: Vec<Source>,
    },
    /// `cp.async`: done when it is waited for, as late as it may be.
    CopyLater {
        to: Address,
        from: Address,
        bytes: u64,
        filled: Option<Source>,
    },
    CopyCommit,
    /// Until at most so many groups are left.
    CopyWait(Option<u64>),
    Fence {
        strength: Strength,
        is_consistent: bool,
    },
    FenceAlias,
    Barrier {
        id: Source,
        count: Option<Source>,
        is_aligned: bool,
        result: BarrierResult,
        value: Truth,
    },
    Arrive {
        id: Source,
    },
    Matrix {
        what: Matrix,
        name: String,
    },
    Together {
        what: Together,
        mask: Source,
        name: String,
    },
    ActiveLanes {
        to: Target,
    },
    Branch(usize),
    BranchTable {
        index: Source,
        targets: Vec<usize>,
    },
    Call {
        function: Source,
        arguments: Vec<Slot>,
        results: Vec<Slot>,
    },
    Return,
    Exit,
    Trap,
    /// Lets others run: `nanosleep`.
    Rest,
    Nothing,
}
