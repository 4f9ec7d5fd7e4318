//! What can go wrong in a kernel.

use std::fmt;

use thiserror::Error;

/// Why a launch ended.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Cause {
    /// Nothing is mapped there.
    #[error("nothing is mapped for the {bytes} bytes at {at:#x}")]
    Unmapped {
        /// The address.
        at: u64,
        /// How many bytes were accessed.
        bytes: u64,
    },
    /// The device may not do that there.
    #[error("the device has no access for this to the {bytes} bytes at {at:#x}")]
    NoAccess {
        /// The address.
        at: u64,
        /// How many bytes were accessed.
        bytes: u64,
    },
    /// An address that is not a multiple of the access's size.
    #[error("the address {at:#x} is not a multiple of the {bytes} bytes accessed")]
    Misaligned {
        /// The address.
        at: u64,
        /// How many bytes were accessed.
        bytes: u64,
    },
    /// An address outside a block's shared memory.
    #[error("{bytes} bytes at {at:#x} of shared memory, of which the block has {have} bytes")]
    Shared {
        /// The address in shared memory.
        at: u64,
        /// How many bytes were accessed.
        bytes: u64,
        /// How many bytes the block has.
        have: u64,
    },
    /// An address outside a lane's local memory.
    #[error("{bytes} bytes at {at:#x} of local memory, of which the lane has {have} bytes")]
    Local {
        /// The address in local memory.
        at: u64,
        /// How many bytes were accessed.
        bytes: u64,
        /// How many bytes the lane has.
        have: u64,
    },
    /// An address outside the parameters.
    #[error("{bytes} bytes at {at:#x} of the parameters, which have {have} bytes")]
    Param {
        /// The address among the parameters.
        at: u64,
        /// How many bytes were accessed.
        bytes: u64,
        /// How many bytes there are.
        have: u64,
    },
    /// A load or store that is not `multimem`, of a multicast address.
    #[error("{at:#x} is a multicast address, which only multimem instructions may access")]
    PlainMulticast {
        /// The address.
        at: u64,
    },
    /// A `multimem` instruction on other memory.
    #[error("{at:#x} is not a multicast address")]
    NoMulticast {
        /// The address.
        at: u64,
    },
    /// A `multimem` instruction where not every device has memory.
    #[error("{bound} of {devices} devices have memory bound at the multicast address {at:#x}")]
    Unbound {
        /// The address.
        at: u64,
        /// How many devices have memory there.
        bound: usize,
        /// How many must.
        devices: usize,
    },
    /// `trap`.
    #[error("the kernel trapped")]
    Trap,
    /// An aligned barrier or an instruction of a whole warp that only some lanes reached.
    #[error("{what} is executed by lanes {here:#010x} of a warp whose lanes are {whole:#010x}")]
    Diverged {
        /// The instruction.
        what: String,
        /// The lanes that are there.
        here: u32,
        /// The lanes that must be.
        whole: u32,
    },
    /// A lane that executes an instruction whose mask has not its own bit.
    #[error("lane {lane} executes {what} with the mask {mask:#010x}, which it is not in")]
    OutsideMask {
        /// The instruction.
        what: String,
        /// The lane.
        lane: u32,
        /// The mask.
        mask: u32,
    },
    /// A jump through a table, behind its end.
    #[error("a jump to number {index} of {targets} places")]
    NoTarget {
        /// Which place.
        index: u64,
        /// How many there are.
        targets: usize,
    },
    /// A call through a register that holds no function's address.
    #[error("{at:#x} is not the address of a function that takes such arguments")]
    NoFunction {
        /// What was called.
        at: u64,
    },
    /// Calls that are nested too deeply for the stack.
    #[error("calls are nested too deeply: local memory of {have} bytes is used up")]
    StackOverflow {
        /// How many bytes there are.
        have: u64,
    },
    /// Threads of a block that wait for each other at different places.
    #[error("the block stands still: {waiting}")]
    StoodStill {
        /// Who waits where.
        waiting: String,
    },
    /// All wait for words that nobody writes.
    #[error("deadlock: nobody has written anything for {seconds} s, and all wait; in this launch: {waiting}")]
    Deadlock {
        /// For how long.
        seconds: u64,
        /// Who waits for what.
        waiting: String,
    },
    /// The device was to stop there.
    #[error("the device was told to stop after {step} instructions")]
    Halted {
        /// After how many.
        step: u64,
    },
    /// A launch that does not end.
    #[error("it has not ended after {instructions} instructions of warps")]
    Endless {
        /// How many were executed.
        instructions: u64,
    },
    /// Blocks that wait for one that has no room.
    #[error(
        "would hang on a GPU: {resident} blocks wait for others, of which {pending} cannot begin until one of them ends"
    )]
    NoRoom {
        /// How many blocks are on the device.
        resident: u32,
        /// How many are not.
        pending: u32,
    },
    /// Two accesses that nothing orders.
    #[error("data race: nothing orders these two accesses of one place\n  {}\n  {}\n  missing: {missing}", .parties[0], .parties[1])]
    Race {
        /// The accesses, the first one first.
        parties: Box<[Party; 2]>,
        /// What would order them.
        missing: &'static str,
    },
    /// A read of memory that nobody has written.
    #[error("{bytes} bytes at {at:#x} are read, and nobody has written them")]
    Unwritten {
        /// Where in the memory.
        at: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Something else came than a record says.
    #[error("line {line} of the record says `{recorded}`, and what came is `{came}`")]
    Unrecorded {
        /// The line, counted from 1.
        line: usize,
        /// What it says.
        recorded: String,
        /// What came in its place.
        came: String,
    },
    /// The engine was told to end.
    #[error("the engine was told to end")]
    Stopped,
}

/// One of the accesses of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// What was done: `read`, `write` or `atomic`.
    pub what: &'static str,
    /// The kernel.
    pub kernel: String,
    /// The function.
    pub function: String,
    /// The line in the PTX, counted from 1.
    pub line: usize,
    /// The instruction, as it is written.
    pub instruction: String,
    /// The line of the source that the PTX names, where it does.
    pub source: Option<String>,
    /// The PE, where the launch named one.
    pub pe: Option<u32>,
    /// The device.
    pub device: u32,
    /// The block, in each dimension.
    pub block: [u32; 3],
    /// The warp in the block.
    pub warp: u32,
    /// The lane in the warp.
    pub lane: u32,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, kernel, function, line, instruction, source, block: [x, y, z], warp, lane, .. } = self;
        write!(f, "{what} by kernel {kernel} {}", Whose(self.pe, self.device))?;
        write!(f, ", block ({x}, {y}, {z}), warp {warp}, lane {lane}")?;
        write!(f, ": {function}, line {line} of the PTX: {instruction}")?;
        source.iter().try_for_each(|source| write!(f, " ({source})"))
    }
}

/// The PE of a launch, if it has one, and its device.
pub(crate) struct Whose(pub(crate) Option<u32>, pub(crate) u32);

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(pe, device) = self;
        pe.iter().try_for_each(|pe| write!(f, "of PE {pe} "))?;
        write!(f, "on device {device}")
    }
}

/// Where a launch ended, and why.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Why.
    pub cause: Cause,
    /// The kernel.
    pub kernel: String,
    /// The function that was executed.
    pub function: String,
    /// The line in the PTX, counted from 1; 0 if no single instruction is to blame.
    pub line: usize,
    /// The instruction, as it is written.
    pub instruction: String,
    /// The line of the source that the PTX names, where it does.
    pub source: Option<String>,
    /// The PE, where the launch named one.
    pub pe: Option<u32>,
    /// The device.
    pub device: u32,
    /// The block, in each dimension.
    pub block: [u32; 3],
    /// The warp in the block.
    pub warp: u32,
    /// The lanes that executed it.
    pub lanes: u32,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cause, kernel, function, line, instruction, source, block: [x, y, z], warp, lanes, .. } = self;
        write!(f, "{cause}\n  in kernel {kernel} {}", Whose(self.pe, self.device))?;
        write!(f, ", block ({x}, {y}, {z}), warp {warp}, lanes {lanes:#010x}")?;
        if *line > 0 {
            write!(f, "\n  in {function}, line {line} of the PTX: {instruction}")?;
        }
        match source {
            Some(source) => write!(f, "\n  from {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Fault {}
