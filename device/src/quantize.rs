//! Numbers in 8 bits, with a scale for each group of them: as experts' inputs and gradients travel.
//!
//! A group's scale is what its largest magnitude is divided by to become the largest number of the format. A token of fp8 with a scale for
//! each 128 numbers is what MoE kernels send (DeepSeek-V3, "Fine-Grained Quantization").
//!
//! ```
//! use congruent_device::{Fp8E4M3, Group, Pack, Slice, SliceMut, kernels, quantize};
//!
//! kernels! {
//!     /// Each 128 numbers in 8 bits, with their scale: each warp takes 128 at a time, of which each thread has some.
//!     pub fn to_fp8(block, ctx, from: Slice<f32>, to: SliceMut<Fp8E4M3>, scales: SliceMut<f32>) {
//!         let (to, scales) = (to.as_mut_ptr(), scales.as_mut_ptr());
//!         let warp = block.warp();
//!         let first = block.index() * block.warps() + block.warp_index();
//!         for group in (first..from.len() / 128).step_by(block.count() * block.warps()) {
//!             let numbers = &from[group * 128..][..128];
//!             let largest = warp.strided(128).fold(0.0_f32, |most, i| most.max(numbers[i].abs()));
//!             let scale = quantize::scale::<Fp8E4M3>(&warp, largest);
//!             for i in warp.strided(128) {
//!                 // SAFETY: the host gives as many places as numbers, and a place is one thread's.
//!                 unsafe { to.add(group * 128 + i).write(quantize::narrow(numbers[i], scale)) };
//!             }
//!             if warp.leader() {
//!                 // SAFETY: as above, and a scale is one warp's.
//!                 unsafe { scales.add(group).write(scale) };
//!             }
//!         }
//!     }
//! }
//! ```

use congruent_heap::{Fp8E4M3, Fp8E5M2};

use crate::{Group, Max, SmallFloat};

/// The 8-bit floats.
pub trait Fp8: SmallFloat {
    /// The largest finite number.
    const MAX: f32;
}

impl Fp8 for Fp8E4M3 {
    const MAX: f32 = 448.0;
}

impl Fp8 for Fp8E5M2 {
    const MAX: f32 = 57344.0;
}

/// The scale of the numbers that the threads of a group have, each of which gives the largest magnitude of its own: what the
/// largest of all is divided by to become `F::MAX`. It is never zero. All threads of the group get the same bits.
#[inline(always)]
#[track_caller]
pub fn scale<F: Fp8>(group: &impl Group, largest: f32) -> f32 {
    let scale = group.reduce(largest, Max) / F::MAX;
    if scale > f32::MIN_POSITIVE { scale } else { f32::MIN_POSITIVE }
}

/// The number divided by the scale, to nearest. What is larger than the scale allows becomes the largest number.
///
/// ```
/// use congruent_device::{Fp8E4M3, quantize};
///
/// let scale = 0.5;
/// let narrow: Fp8E4M3 = quantize::narrow(20.0, scale);
/// assert_eq!(quantize::widen(narrow, scale), 20.0);
/// ```
#[inline(always)]
pub fn narrow<F: Fp8>(number: f32, scale: f32) -> F {
    F::narrow(number / scale)
}

/// What was made narrow.
#[inline(always)]
pub fn widen<F: Fp8>(number: F, scale: f32) -> f32 {
    number.widen() * scale
}

/// The next power of two that is no smaller, as its exponent alone: a scale of 8 bits, as OCP's microscaling formats have it (E8M0,
/// also called UE8M0). Scales from 2^-126 to 2^127.
///
/// ```
/// use congruent_device::quantize;
///
/// assert_eq!(quantize::of_ue8m0(quantize::to_ue8m0(0.25)), 0.25);
/// assert_eq!(quantize::of_ue8m0(quantize::to_ue8m0(0.26)), 0.5);
/// ```
#[inline(always)]
pub fn to_ue8m0(scale: f32) -> u8 {
    // A mantissa that is not zero carries into the exponent.
    (scale.to_bits().wrapping_add((1 << 23) - 1) >> 23).min(254) as u8
}

/// The scale of an exponent.
#[inline(always)]
pub fn of_ue8m0(exponent: u8) -> f32 {
    f32::from_bits(u32::from(exponent) << 23)
}
