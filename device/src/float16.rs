//! Floats narrower than `f32`, which compute in `f32`; of them, those of 16 bits.

use congruent_heap::{Pod, bf16, f16};

use crate::arch;
use crate::sealed::Sealed;

/// `f16`, `bf16`, [`Fp8E4M3`](crate::Fp8E4M3) or [`Fp8E5M2`](crate::Fp8E5M2): stored in 16 or 8 bits, widened to compute,
/// narrowed with round to nearest even. Those of 16 bits take one instruction each way where the machine has it; those of
/// 8 bits saturate: no number narrows to an infinity or a NaN.
pub trait SmallFloat: Pod + Sealed {
    /// The same value as an `f32`.
    fn widen(self) -> f32;
    /// The nearest value of this type.
    fn narrow(value: f32) -> Self;
}

impl Sealed for f16 {}
impl Sealed for bf16 {}

impl SmallFloat for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        arch::f16_to_f32(self.to_bits())
    }
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self::from_bits(arch::f16_from_f32(value))
    }
}

impl SmallFloat for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self::from_bits(arch::bf16_from_f32(value))
    }
}
