//! Arithmetic that has instructions.

use core::arch::asm;

unsafe extern "unadjusted" {
    #[link_name = "llvm.fma.f32"]
    fn llvm_fma32(a: f32, b: f32, c: f32) -> f32;
    #[link_name = "llvm.fma.f64"]
    fn llvm_fma64(a: f64, b: f64, c: f64) -> f64;
    #[link_name = "llvm.sqrt.f32"]
    fn llvm_sqrt32(x: f32) -> f32;
    #[link_name = "llvm.sqrt.f64"]
    fn llvm_sqrt64(x: f64) -> f64;
}

#[inline(always)]
pub(crate) fn fma32(a: f32, b: f32, c: f32) -> f32 {
    // SAFETY: arithmetic.
    unsafe { llvm_fma32(a, b, c) }
}

#[inline(always)]
pub(crate) fn fma64(a: f64, b: f64, c: f64) -> f64 {
    // SAFETY: arithmetic.
    unsafe { llvm_fma64(a, b, c) }
}

#[inline(always)]
pub(crate) fn sqrt32(x: f32) -> f32 {
    // SAFETY: arithmetic.
    unsafe { llvm_sqrt32(x) }
}

#[inline(always)]
pub(crate) fn sqrt64(x: f64) -> f64 {
    // SAFETY: arithmetic.
    unsafe { llvm_sqrt64(x) }
}

/// `a * b + c`, as the machine does it soonest.
#[inline(always)]
pub(crate) fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    fma32(a, b, c)
}

/// The nearest number from `low` to `high`; NaN stays.
#[inline(always)]
pub(crate) fn between(low: f32, x: f32, high: f32) -> f32 {
    let y: f32;
    // SAFETY: arithmetic on registers.
    unsafe {
        asm!(
            "min.NaN.f32 {y}, {x}, {high}; max.NaN.f32 {y}, {y}, {low};",
            y = out(reg32) y, x = in(reg32) x, low = in(reg32) low, high = in(reg32) high, options(pure, nomem, nostack)
        );
    }
    y
}

/// Approximations.
pub(crate) mod approx {
    use super::asm;

    macro_rules! approximations {
        ($($name:ident: $instruction:literal;)*) => {$(
            #[inline(always)]
            pub(crate) fn $name(x: f32) -> f32 {
                let y: f32;
                // SAFETY: arithmetic on registers.
                unsafe {
                    asm!(
                        concat!($instruction, " {y}, {x};"),
                        x = in(reg32) x, y = out(reg32) y, options(pure, nomem, nostack)
                    );
                }
                y
            }
        )*};
    }
    approximations! {
        exp2: "ex2.approx.f32";
        log2: "lg2.approx.f32";
        sqrt: "sqrt.approx.f32";
        rsqrt: "rsqrt.approx.f32";
        recip: "rcp.approx.f32";
        tanh: "tanh.approx.f32";
        sin: "sin.approx.f32";
        cos: "cos.approx.f32";
    }
}
