//! Registers: how many a thread may use, and how many warps that leaves room for.
//!
//! Nothing is compiled here, so nobody knows what a kernel uses. A test that passes must hold for whatever an assembler makes
//! of the kernel, so it is taken to use the most that it may.

use congruent_verify::ptx::LaunchBounds;

use crate::device::WARP;

/// Of a thread, by the instruction set.
const PER_THREAD: u32 = 255;
/// A multiprocessor's are in four parts, and a warp has its own from one of them (cuda_occupancy.h).
const PARTS: u32 = 4;
/// Of such a part.
const PER_PART: u32 = 65_536 / PARTS;
/// A thread gets this many at a time.
const GRAIN: u32 = 8;

/// Threads of a block at most, if the kernel says so.
pub(crate) fn most_threads(bounds: &LaunchBounds) -> Option<u32> {
    let shape = bounds.max_threads.or(bounds.required_threads)?;
    Some(shape.iter().fold(1, |threads: u32, &part| threads.saturating_mul(part)))
}

/// The most that a thread of a kernel uses: what `.maxnreg` says, or what `.maxntid` leaves each thread of such a block.
pub(crate) fn most(bounds: &LaunchBounds) -> u32 {
    let fit = |threads: u32| {
        let warps = threads.div_ceil(WARP).max(1).div_ceil(PARTS);
        let each = PER_PART / (warps * WARP);
        each - each % GRAIN
    };
    let by_threads = most_threads(bounds).map_or(PER_THREAD, fit);
    bounds.max_registers.unwrap_or(PER_THREAD).min(by_threads).clamp(GRAIN, PER_THREAD)
}

/// How many warps a multiprocessor has room for, with so many registers of each thread.
pub(crate) fn warps(registers: u32) -> u32 {
    PARTS * (PER_PART / (registers.next_multiple_of(GRAIN) * WARP))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(max_threads: Option<u32>, max_registers: Option<u32>) -> (u32, u32) {
        let max_threads = max_threads.map(|threads| [threads, 1, 1]);
        let most = most(&LaunchBounds { max_threads, max_registers, ..LaunchBounds::default() });
        (most, warps(most))
    }

    #[test]
    fn a_kernel_that_says_nothing_uses_all() {
        // 256 threads: 8 warps of 256 registers a thread.
        assert_eq!(of(None, None), (255, 8));
    }

    #[test]
    fn what_a_kernel_says_sets_its_registers() {
        assert_eq!(of(None, Some(64)), (64, 32));
        assert_eq!(of(None, Some(32)), (32, 64));
        // As matrix products of 384 threads have it.
        assert_eq!(of(None, Some(168)), (168, 12));
        assert_eq!(of(Some(384), None), (168, 12));
        assert_eq!(of(Some(128), None), (255, 8));
        assert_eq!(of(Some(256), None), (255, 8));
        assert_eq!(of(Some(1024), None), (64, 32));
        assert_eq!(of(Some(1024), Some(40)), (40, 48));
    }

    #[test]
    fn a_block_of_as_many_threads_as_a_kernel_says_fits() {
        for threads in 1..=1024 {
            let (_, warps) = of(Some(threads), None);
            assert!(warps * WARP >= threads, "{threads}");
        }
    }
}
