//! The one place that knows a machine: every intrinsic, every `asm!`, every atomic access to symmetric memory.
//!
//! Two implementations with the same items: `nvptx` (PTX by inline assembly and LLVM intrinsics) and `cpu` (native
//! instructions; blocks and lanes are made by the host's CPU machine through [`Machine`](cpu::Machine)). To add a machine,
//! give these:
//!
//! | item | what it must do |
//! |---|---|
//! | `Lane` | who runs: thread, block, their counts; syncs, votes and broadcasts of block and warp; exit; clock |
//! | `load`, `store` | one relaxed system-scope access of 1, 2, 4 or 8 bytes that never tears |
//! | `load_acquire`, `store_release`, `add_release` | the same for 8 bytes with acquire or release at system scope |
//! | `fence`, `fence_sc` | acquire-release and sequentially consistent fences at system scope |
//! | `Rmw`, `RmwInt` | relaxed system-scope read-modify-write of 4 and 8 bytes |
//! | `copy`, `fill`, `fold`, `fold_chosen` | bulk accesses by a group; bytes may tear, memory may not |
//! | `MULTICAST`, `multicast_put`, `multicast_reduce`, `multicast_all_reduce` | whether kernels have stores to all members of a team and reductions over them; those |
//! | `Backoff` | how a poll passes the time, and when it looks at the clock |
//! | `anew` | the same value, of which the compiler knows nothing, where registers are few (decision 16) |
//! | `recall` | the address of the control block and the launch, where a kernel ends before its time |
//! | `wake` | wakes who sleeps on a word, where waiters sleep at all |

#[cfg(not(target_arch = "nvptx64"))]
pub mod cpu;
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) use cpu::*;

#[cfg(all(test, not(target_arch = "nvptx64")))]
mod like_gpu;
#[cfg(target_arch = "nvptx64")]
mod nvptx;
#[cfg(target_arch = "nvptx64")]
pub(crate) use nvptx::*;

/// An unsigned integer that one instruction moves.
pub(crate) trait Word: Copy + PartialEq + Into<u64> {}
impl Word for u8 {}
impl Word for u16 {}
impl Word for u32 {}
impl Word for u64 {}

/// What part of a bulk operation a thread does: thread `rank` of `size`.
#[derive(Clone, Copy)]
pub(crate) struct Share {
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

/// Relaxed read-modify-write at system scope; the pointers are mapped symmetric memory, aligned.
pub(crate) trait Rmw: Sized {
    unsafe fn fetch_add(pointer: *mut Self, value: Self) -> Self;
    #[inline(always)]
    unsafe fn add(pointer: *mut Self, value: Self) {
        // SAFETY: the same contract.
        unsafe { Self::fetch_add(pointer, value) };
    }
    unsafe fn swap(pointer: *mut Self, value: Self) -> Self;
    unsafe fn compare_exchange(pointer: *mut Self, expected: Self, new: Self) -> Self;
}

/// The same, for integers.
pub(crate) trait RmwInt: Rmw {
    unsafe fn fetch_and(pointer: *mut Self, value: Self) -> Self;
    unsafe fn fetch_or(pointer: *mut Self, value: Self) -> Self;
    unsafe fn fetch_xor(pointer: *mut Self, value: Self) -> Self;
    unsafe fn fetch_min(pointer: *mut Self, value: Self) -> Self;
    unsafe fn fetch_max(pointer: *mut Self, value: Self) -> Self;
}

/// In what form the bytes of a bulk operation's end lie.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Form {
    /// As they are.
    Plain,
    /// 4 bytes in the upper half of each 8-byte word, with this flag in the lower half.
    Packets { flag: u32 },
    /// In lines of so many bytes, of which the last 8 are this flag.
    Lines { flag: u32, bytes: u32 },
}

impl Form {
    /// Instead of how many bytes a line has.
    pub(crate) const PLAIN: u32 = 0;
    pub(crate) const PACKETS: u32 = 1;

    /// `PLAIN`, `PACKETS` or bytes of a line, and the flag, which plain ones do not have.
    #[inline(always)]
    pub(crate) const fn of(form: u32, flag: u32) -> Self {
        match form {
            Self::PLAIN => Self::Plain,
            Self::PACKETS => Self::Packets { flag },
            bytes => Self::Lines { flag, bytes },
        }
    }
}

/// One end of a bulk operation, resolved: mapped symmetric memory.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) start: *mut u8,
    pub(crate) form: Form,
    /// The word with the last flag, for those who sleep until it changes; of a plain end nothing.
    #[cfg_attr(target_arch = "nvptx64", expect(dead_code, reason = "nobody sleeps on a GPU"))]
    pub(crate) last: *mut u64,
    /// Where `start` is on its heap, and the PE that is to send, if it is known: what a fault says.
    pub(crate) offset: u64,
    pub(crate) sender: u32,
}

/// The sources or the destinations of a bulk operation.
pub(crate) trait Ends {
    fn count(&self) -> usize;
    fn end(&self, i: usize) -> End;
}

/// An object on all members of a team at once, resolved: mapped symmetric memory.
pub(crate) trait Replicas {
    /// Its multicast address.
    #[cfg(target_arch = "nvptx64")]
    #[cfg_attr(not(target_feature = "sm_90"), expect(dead_code, reason = "older GPUs have no multicast"))]
    fn address(&self) -> *mut u8;
    /// How many members.
    #[cfg(not(target_arch = "nvptx64"))]
    fn count(&self) -> usize;
    /// Its address on member `i`.
    #[cfg(not(target_arch = "nvptx64"))]
    fn replica(&self, i: usize) -> *mut u8;
}
