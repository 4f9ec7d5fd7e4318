//! Why a launch was refused.

use congruent_collectives::{Algorithm, Collective, Datatype, Op, Protocol};

use crate::WorldFailure;
use crate::cuda::CudaError;
use crate::select::{Refusal, SelectError};

/// Why a launch was refused. Nothing ran.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A grid with no block or no thread.
    #[error("a grid of {blocks} blocks of {threads} threads runs nothing; give 1 or more of each")]
    EmptyGrid {
        /// Blocks asked for.
        blocks: u32,
        /// Threads asked for.
        threads: u32,
    },
    /// More blocks than can run at once: kernels that wait need all of them, on a GPU beside those of other streams that are not
    /// idle. It asks nothing of a GPU's kernels that never wait.
    #[error(
        "{asked} blocks cannot run at once{}, {fits} can: launch fewer, or with fewer threads in each, {}",
        if *running > 0 { format!(" beside {running} of this PE's other streams") } else { String::new() },
        if *running > 0 { "or synchronize those streams first" } else { "raise CONGRUENT_MAX_BLOCKS, or let a kernel that never waits say `blocks(independent)`" }
    )]
    NotCoresident {
        /// Blocks asked for.
        asked: u32,
        /// Blocks that fit.
        fits: u32,
        /// Blocks of kernels on other streams of this PE that may still run, and wait for others.
        running: u32,
    },
    /// A kernel that waits, and says that its blocks are independent.
    #[error(
        "kernel {kernel} says that its blocks are independent, and its PTX waits, for another block, a PE or a proxy: take its \
         `blocks(independent)` away, or what waits"
    )]
    Waits {
        /// The kernel.
        kernel: &'static str,
    },
    /// More blocks than a launch on a GPU can have, of a kernel that never waits.
    #[error(
        "{asked} blocks of kernel {kernel} are more than a GPU launches at once, which is up to {fits}: give each block more of the \
         work, or launch several times"
    )]
    TooManyBlocks {
        /// The kernel.
        kernel: &'static str,
        /// Blocks asked for.
        asked: u32,
        /// Blocks that a launch can have.
        fits: u32,
    },
    /// More threads in a block than the kernel runs with.
    #[error(
        "kernel {kernel} runs with up to {fits} threads in a block, not {asked}: a GPU has no room for more; \
         launch {fits} or fewer, and more blocks where the work needs them"
    )]
    TooManyThreads {
        /// The kernel.
        kernel: &'static str,
        /// Threads asked for.
        asked: u32,
        /// Threads that fit.
        fits: u32,
    },
    /// Threads that are not as many warps as the kernel's blocks have.
    #[error("a block of kernel {kernel} has {warps} warps, and was to have {asked} threads; launch it with {} threads", warps * 32)]
    Warps {
        /// The kernel.
        kernel: &'static str,
        /// Threads asked for.
        asked: u32,
        /// Warps that it has.
        warps: u32,
    },
    /// More shared memory of dynamic length than a block can have.
    #[error(
        "a block of kernel {kernel} can have {fits} bytes of shared memory of dynamic length, not {asked}{}",
        if *fits > 0 { ": ask for less, and let more blocks share the work" } else { ": it has no array that takes them" }
    )]
    SharedMemory {
        /// The kernel.
        kernel: &'static str,
        /// Bytes asked for.
        asked: u32,
        /// Bytes that there can be.
        fits: u32,
    },
    /// The GPU, or its driver, refuses.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// An argument that is not of this world.
    #[error("an argument of kernel {kernel} reaches past this world's heap: is it of another world?")]
    ForeignArgument {
        /// The kernel.
        kernel: &'static str,
    },
    /// Buffers of different lengths.
    #[error("the destination has {dst} elements and the source {src}; give buffers of one length")]
    Lengths {
        /// Elements of the destination.
        dst: usize,
        /// Elements of the source.
        src: usize,
    },
    /// Memory that is shorter than a call needs.
    #[error("{what} would be {needs} elements and there are {has}; give memory that is long enough")]
    TooShort {
        /// What would be there.
        what: &'static str,
        /// Elements that it needs.
        needs: usize,
        /// Elements that there are.
        has: usize,
    },
    /// A micro-batch that an exchange of tokens does not have.
    #[error("there is no micro-batch {index} in an exchange of {fits}; make it with more of them")]
    NoSuchMicroBatch {
        /// The micro-batch asked for.
        index: u32,
        /// How many there are.
        fits: u32,
    },
    /// Rows of an exchange of tokens that it was not made for.
    #[error(
        "rows of payload, scales and output of {asked:?} bytes are none of an exchange; give at most {most:?}, some payload, and an \
         output that 8 divides"
    )]
    RowsOfExchange {
        /// Bytes of payload, of scales and of an output.
        asked: [usize; 3],
        /// The most of each.
        most: [usize; 3],
    },
    /// A root that is no member.
    #[error("member {root} cannot be the root of a team of {size}; members are 0..{size}")]
    Root {
        /// The root asked for.
        root: usize,
        /// How many members there are.
        size: usize,
    },
    /// More blocks than the plan has slots for.
    #[error("the plan is for launches of up to {fits} blocks, not {asked}; make one for more, or launch fewer")]
    PlanBlocks {
        /// Blocks asked for.
        asked: u32,
        /// Blocks that the plan has slots for.
        fits: u32,
    },
    /// An operator that the type does not have.
    #[error("{op} is no operator on {datatype}: and, or and xor need integers")]
    Operator {
        /// The operator.
        op: Op,
        /// The elements' type.
        datatype: Datatype,
    },
    /// An algorithm that the collective does not have.
    #[error("{collective} has no {algorithm} algorithm; `congruent perf {collective} --help` lists those that it has")]
    NoSuchKernel {
        /// The collective.
        collective: Collective,
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// What the selector cannot choose.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// What [`Comm::force`](crate::Comm::force) asks for is impossible.
    #[error("{collective} was forced to {algorithm} with {protocol}: {refusal}; Comm::unforce lets it choose")]
    Forced {
        /// The collective.
        collective: Collective,
        /// The algorithm.
        algorithm: Algorithm,
        /// The protocol.
        protocol: Protocol,
        /// Why it is impossible.
        refusal: Refusal,
    },
    /// A premul-sum without its scalar.
    #[error("a premul-sum needs its scalar: give PreMulSum(scalar) in place of Op::PreMulSum")]
    Scalar,
    /// Buffers that overlap.
    #[error("the buffers of {call} overlap; give {instead}, or buffers apart")]
    Overlap {
        /// The call.
        call: &'static str,
        /// What may be given instead.
        instead: &'static str,
    },
    /// Counts or displacements that are not one for each member.
    #[error("{len} {what} for a team of {size}: give one for each member")]
    Counts {
        /// Counts or displacements, of what.
        what: &'static str,
        /// How many there are.
        len: usize,
        /// How many members there are.
        size: usize,
    },
    /// A peer that is no member.
    #[error("there is no member {peer} in a team of {size}; members are 0..{size}")]
    Peer {
        /// The peer asked for.
        peer: usize,
        /// How many members there are.
        size: usize,
    },
    /// Sends to this PE itself that are not received, or the reverse.
    #[error(
        "this PE sends {sends} times to itself and receives {receives} times from itself, in the group's order {sent} and {received} bytes; give both in one group, with the same counts"
    )]
    ToItself {
        /// Sends to itself.
        sends: usize,
        /// Receives from itself.
        receives: usize,
        /// Bytes of the first send that has no match.
        sent: u64,
        /// Bytes of the first receive that has no match.
        received: u64,
    },
    /// More sends and receives of a communicator than a group holds.
    #[error("a group holds {fits} sends and receives of a communicator; make more groups")]
    GroupFull {
        /// How many it holds.
        fits: usize,
    },
    /// A call of a communicator that a group was not given, or one of another world.
    #[error(
        "a group takes calls of the communicators that it was given: give it others of its world by CallGroup::with"
    )]
    ForeignGroup,
    /// A communicator that a group is given a second time, with another stream.
    #[error("the calls of a communicator in a group go to one stream; make a group for each stream")]
    GroupStream,
    /// More streams than a communicator has slots for.
    #[error("a communicator runs on {fits} streams at most; make another one for more")]
    PlanStreams {
        /// How many it runs on.
        fits: u32,
    },
    /// A call that a graph cannot have.
    #[error("{call} cannot be captured: {why}")]
    InCapture {
        /// The call.
        call: &'static str,
        /// Why not, and what to do instead.
        why: &'static str,
    },
    /// A graph on another stream.
    #[error("a graph is launched on the stream that it was captured on; capture one for each stream")]
    GraphStream,
    /// A signal for another PE than the data.
    #[error("the data goes to PE {data} and the signal to PE {signal}; give both one PE, or a put and a notify")]
    SignalElsewhere {
        /// Where the data goes.
        data: u32,
        /// Who is signalled.
        signal: u32,
    },
    /// A stream of CUDA's for a world that runs on the CPU, or such an event.
    #[error(
        "this world runs on the CPU, which has no streams or events of CUDA's: make them with World::stream and Stream::record_event"
    )]
    NoStreamToBorrow,
    /// A stream that is not of this world.
    #[error("the stream belongs to another world; make one with World::stream")]
    ForeignStream,
    /// An event that is not of this world.
    #[error("the event belongs to another world; wait for it on the host with Event::synchronize")]
    ForeignEvent,
    /// A buffer that is not of this world.
    #[error("a buffer given to kernel {kernel} belongs to another world; make one with World::buffer, or copy it")]
    ForeignBuffer {
        /// The kernel.
        kernel: &'static str,
    },
    /// Parts without elements.
    #[error("kernel {kernel} was given memory in parts of 0 elements, rows or columns; give 1 or more")]
    EmptyParts {
        /// The kernel.
        kernel: &'static str,
    },
    /// A table whose last row is not whole.
    #[error(
        "kernel {kernel} was given {len} elements in rows of {columns} for its tiles; give whole rows, a multiple of {columns} elements"
    )]
    PartialRow {
        /// The kernel.
        kernel: &'static str,
        /// How many elements there are.
        len: usize,
        /// Elements of a row.
        columns: usize,
    },
    /// Numbers that are no whole packs.
    #[error(
        "kernel {kernel} was given {len} numbers as packs of {in_one}; give a multiple of {in_one}, from a multiple of 16 bytes on"
    )]
    Packs {
        /// The kernel.
        kernel: &'static str,
        /// How many numbers there are.
        len: usize,
        /// Numbers of a pack.
        in_one: usize,
    },
    /// A slice of CUDA's for a world that runs on the CPU.
    #[error("this world runs on the CPU, whose kernels reach no memory of GPUs: make a buffer with World::buffer")]
    NoSliceToLend,
    /// No thread for a stream.
    #[error("no thread for a stream: {0}")]
    Thread(#[from] std::io::Error),
    /// The world failed before.
    #[error(transparent)]
    World(#[from] WorldFailure),
}
