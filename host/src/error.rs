//! What can go wrong, one enum for each family of operations, and [`Error`] over all of them.

use std::fmt;

use congruent_heap::AllocError as HeapError;
use congruent_heap::TeamError;
use congruent_transports::{FabricError, TransportError, VerbsError};

use crate::bootstrap::{BootstrapError, ControlError};
use crate::cuda::{CudaError, ImportError};
use crate::select::SelectError;
use crate::shared_memory::ReserveError;
use crate::trace::TraceError;
use crate::tunables::TunableError;
use crate::{LaunchError, MoeError, WorldFailure};

/// Any error of this crate, for `?`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Building a world.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Joining the job.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// A collective call.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// Allocating.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// Importing memory.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// Launching.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Making a team.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// Making a communicator.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Making an exchange of tokens.
    #[error(transparent)]
    Moe(#[from] MoeError),
    /// Reading or writing this PE's copy from the host.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A tunable.
    #[error(transparent)]
    Tunable(#[from] TunableError),
    /// The world failed.
    #[error(transparent)]
    World(#[from] WorldFailure),
    /// The PEs could not talk to each other.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A call of cudarc's, beside those of this crate.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// `fn main() -> Result<(), Error>` prints an error by `Debug`; who reads it wants the sentence.
macro_rules! debug_as_display {
    ($($error:ty)*) => {$(
        impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}
debug_as_display!(Error AccessError ImportError AllocError BootstrapError BuildError CollectiveError CommError);
debug_as_display!(ControlError LaunchError MoeError SplitError TunableError WorldFailure);

impl Error {
    /// The world's failure, where that is what this tells, whichever call was told it.
    pub fn world_failure(&self) -> Option<&WorldFailure> {
        let collective = match self {
            Self::World(failure)
            | Self::Launch(LaunchError::World(failure))
            | Self::Access(AccessError::World(failure)) => return Some(failure),
            Self::Collective(error)
            | Self::Alloc(AllocError::Collective(error))
            | Self::Import(ImportError::Collective(error) | ImportError::Alloc(AllocError::Collective(error)))
            | Self::Moe(MoeError::Collective(error) | MoeError::Alloc(AllocError::Collective(error)))
            | Self::Split(SplitError::Collective(error) | SplitError::Alloc(AllocError::Collective(error)))
            | Self::Comm(
                CommError::Collective(error)
                | CommError::Alloc(AllocError::Collective(error))
                | CommError::Split(SplitError::Collective(error) | SplitError::Alloc(AllocError::Collective(error))),
            ) => error,
            _ => return None,
        };
        if let CollectiveError::World(failure) = collective { Some(failure) } else { None }
    }
}

/// Why there is no world.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Joining the job.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// A tunable.
    #[error(transparent)]
    Tunable(#[from] TunableError),
    /// The PEs could not talk to each other.
    #[error("while building the world: {0}")]
    Control(#[from] ControlError),
    /// PEs on several hosts, and a transport that does not join them.
    #[error(
        "the PEs are on different hosts, which CONGRUENT_TRANSPORT=local does not join: unset it, or set it to fabric or verbs"
    )]
    SeveralHosts,
    /// No libfabric.
    #[error("CONGRUENT_TRANSPORT=fabric: {0}")]
    Fabric(#[from] FabricError),
    /// No RDMA device.
    #[error("CONGRUENT_TRANSPORT=verbs: {0}")]
    Verbs(#[from] VerbsError),
    /// A peer that the transport does not reach.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The heap could not be mapped.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// `CONGRUENT_NVLS_ENABLE` is 1, and the machine has no multicast.
    #[error(
        "CONGRUENT_NVLS_ENABLE=1 asks for multicast, and this machine has none: it needs GPUs that one NVSwitch joins, \
         without CONGRUENT_P2P_DISABLE; set it to 2 to do without"
    )]
    NoMulticast,
    /// No GPU that could be used.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// PEs with different settings.
    #[error("{name} is {mine} here but {theirs} on PE {pe}: give every PE the same value")]
    Mismatch {
        /// The setting.
        name: &'static str,
        /// The other PE.
        pe: u32,
        /// This PE's value.
        mine: u64,
        /// The other's.
        theirs: u64,
    },
    /// The heap is too small for what the library itself keeps there.
    #[error("the heap is too small for the world's own words: {0}")]
    Heap(#[from] HeapError),
    /// What only the CPU machine has, asked of a GPU.
    #[error(
        "{name} is set, which only the CPU machine obeys so far, and PEs have GPUs: unset it, or set CONGRUENT_MACHINE=cpu"
    )]
    OnlyCpu {
        /// The setting.
        name: &'static str,
    },
    /// No thread to look after kernels.
    #[error("no thread that looks after kernels: {0}")]
    Monitor(std::io::Error),
    /// No thread for the proxy.
    #[error("no thread for the proxy: {0}")]
    Proxy(std::io::Error),
    /// No trace file.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// No thread for a PE.
    #[error("no thread for PE {pe}: {error}")]
    Thread {
        /// The PE.
        pe: u32,
        /// Why.
        error: std::io::Error,
    },
}

/// Why PEs did not come together for a collective call.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// The PEs asked for different things.
    #[error(
        "collective call {sequence} differs between PEs: this PE asked for {mine}, PE {pe} for {theirs}; every PE makes the same calls in the same order"
    )]
    Mismatch {
        /// Which collective call of the world this was.
        sequence: u64,
        /// This PE's call.
        mine: String,
        /// The first PE that differs.
        pe: u32,
        /// Its call.
        theirs: String,
    },
    /// The PEs could not talk to each other.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The world has failed.
    #[error(transparent)]
    World(#[from] WorldFailure),
}

/// Why an allocation gave nothing. The world is as it was before.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Zero elements.
    #[error("a symmetric object of 0 elements was asked for; give 1 or more")]
    Zero,
    /// Larger than any address space.
    #[error("{len} elements of {size} bytes do not fit in an address space")]
    TooLarge {
        /// Elements asked for.
        len: usize,
        /// Bytes of one.
        size: usize,
    },
    /// The heap has no room.
    #[error(transparent)]
    Heap(#[from] HeapError),
    /// The process has no room for a buffer.
    #[error(
        "a buffer of {bytes} bytes was asked for, and the process has no room for it; give fewer, or look at ulimit -v"
    )]
    NoMemory {
        /// Bytes asked for.
        bytes: usize,
    },
    /// Memory of somebody else's, and no address of it.
    #[error("a buffer was to be at address 0, where no memory is: give the address that its allocation gave")]
    Null,
    /// The GPU has no room for a buffer, or its driver refuses.
    #[error(transparent)]
    Cuda(CudaError),
    /// The heap has no room and could not grow, which it may by `CONGRUENT_HEAP_MAX`.
    #[error("growing the heaps to {bytes} bytes: {error}")]
    Grow {
        /// What each PE's heap was to have.
        bytes: u64,
        /// Why it has not.
        error: GrowError,
    },
    /// The PEs did not come together.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

/// Why heaps did not grow. All PEs hear of the same cause, and the heaps are as they were.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GrowError {
    /// On the CPU machine.
    #[error(transparent)]
    Memory(#[from] ReserveError),
    /// On a GPU.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Why a team could not be made.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// Members that make no team.
    #[error(transparent)]
    Members(#[from] TeamError),
    /// Its words on the heap.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// A parent of another world.
    #[error("the team is of another world; split it with the world that made it")]
    ForeignWorld,
    /// `CONGRUENT_NVLS_ENABLE` is 1, and it can have no multicast.
    #[error("no multicast for the team, which CONGRUENT_NVLS_ENABLE=1 asks for: {0}; set it to 2 to do without")]
    Multicast(CudaError),
    /// The PEs did not come together.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

/// Why there is no communicator.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// The PEs did not come together.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// Its words on the heap.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// Its team.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// What chooses its algorithms.
    #[error(transparent)]
    Select(#[from] SelectError),
    /// PEs that would choose different algorithms.
    #[error(
        "PE {pe} would choose other algorithms than this PE: give every PE the same CONGRUENT_ALGO, CONGRUENT_PROTO, CONGRUENT_TUNING and CONGRUENT_LL128_ENABLE"
    )]
    Choices {
        /// The first PE that differs.
        pe: u32,
    },
    /// Members with different options.
    #[error(
        "PE {pe} and PE {other} make one communicator with different options; give every member the same, and the same CONGRUENT_BUFFSIZE and CONGRUENT_CHECK"
    )]
    Options {
        /// A member.
        pe: u32,
        /// One that differs from it.
        other: u32,
    },
    /// More blocks than can run at once.
    #[error(
        "launches of {asked} blocks were asked for, and {fits} can run at once: ask for fewer, or raise CONGRUENT_MAX_BLOCKS"
    )]
    Blocks {
        /// Blocks asked for.
        asked: u32,
        /// Blocks that fit.
        fits: u32,
    },
    /// A communicator of another world.
    #[error("the communicator is of another world; split it with the world that made it")]
    ForeignWorld,
}

/// Why the host could not read or write its PE's copy.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// Elements that are not there.
    #[error("elements {start}..{end} of {len} do not exist")]
    OutOfBounds {
        /// The first element asked for.
        start: usize,
        /// One past the last.
        end: usize,
        /// How many there are.
        len: usize,
    },
    /// The machine has failed.
    #[error(transparent)]
    World(#[from] WorldFailure),
}
