//! The 16-bit floats, which compute in `f32`.

use congruent_heap::{Pod, bf16, f16};

use crate::arch;
use crate::sealed::Sealed;

/// `f16` or `bf16`: stored in 16 bits, widened to compute, narrowed with round to nearest even. One instruction each way
/// where the machine has it.
pub trait Float16: Pod + Sealed {
    /// The same value as an `f32`.
    fn widen(self) -> f32;
    /// The nearest value of this type.
    fn narrow(value: f32) -> Self;
}

impl Sealed for f16 {}
impl Sealed for bf16 {}

impl Float16 for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        arch::f16_to_f32(self.to_bits())
    }
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self::from_bits(arch::f16_from_f32(value))
    }
}

impl Float16 for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        Self::from_bits(arch::bf16_from_f32(value))
    }
}
