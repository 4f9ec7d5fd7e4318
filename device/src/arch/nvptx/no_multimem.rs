//! Multicast on GPUs whose links cannot reduce and replicate: those before sm_90 have no `multimem` instructions.

use congruent_heap::refuse;

use crate::arch::{Replicas, Share};
use crate::multimem::MultimemReduction;

/// Whether kernels that are compiled so have multicast.
pub(crate) const MULTICAST: bool = false;

/// # Safety
/// None: it refuses.
pub(crate) unsafe fn multicast_put(_share: Share, _dst: &impl Replicas, _src: *const u8, _bytes: usize) {
    refuse!("this GPU has no multimem instructions; they need sm_90")
}

/// # Safety
/// None: it refuses.
pub(crate) unsafe fn multicast_reduce(
    _share: Share,
    _dst: *mut u8,
    _src: &impl Replicas,
    _bytes: usize,
    _how: MultimemReduction,
) {
    refuse!("this GPU has no multimem instructions; they need sm_90")
}

/// # Safety
/// None: it refuses.
pub(crate) unsafe fn multicast_all_reduce(
    _share: Share,
    _dst: &impl Replicas,
    _src: &impl Replicas,
    _bytes: usize,
    _how: MultimemReduction,
) {
    refuse!("this GPU has no multimem instructions; they need sm_90")
}
