//! The 8-bit floats by instructions, which convert two at a time: the other one is zero.

use core::arch::asm;

use super::f16_to_f32;

macro_rules! formats {
    ($($format:ident: $two:literal;)*) => {$(
        pub(crate) struct $format;

        impl $format {
            #[inline(always)]
            pub(crate) fn widen(&self, bits: u8) -> f32 {
                let halves: u32;
                // SAFETY: arithmetic on registers.
                unsafe {
                    asm!(
                        concat!("cvt.rn.f16x2.", $two, " {halves}, {bits};"),
                        halves = out(reg32) halves, bits = in(reg16) u16::from(bits), options(pure, nomem, nostack)
                    );
                }
                f16_to_f32(halves as u16)
            }

            #[inline(always)]
            pub(crate) fn narrow(&self, value: f32) -> u8 {
                let bits: u16;
                // SAFETY: arithmetic on registers.
                unsafe {
                    asm!(
                        concat!("cvt.rn.satfinite.", $two, ".f32 {bits}, {zero}, {value};"),
                        bits = out(reg16) bits, zero = in(reg32) 0.0_f32, value = in(reg32) value, options(pure, nomem, nostack)
                    );
                }
                bits as u8
            }
        }
    )*};
}
formats! {
    E4M3: "e4m3x2";
    E5M2: "e5m2x2";
}
