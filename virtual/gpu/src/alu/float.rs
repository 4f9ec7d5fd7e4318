//! Floating-point arithmetic.

use super::Function;
use super::format::{Bf16, Divides, F16, F32, F64, Format, Round, power_of_two};

/// How an instruction rounds and what it does with its result, in the bits of a constant.
pub(super) mod mode {
    use super::Round;

    /// The bits of the rounding mode.
    const ROUND: u8 = 3;
    /// Subnormal operands and results are zeros.
    pub(in super::super) const FTZ: u8 = 4;
    /// Results are from zero to one; what is not a number is zero.
    pub(in super::super) const SAT: u8 = 8;
    /// Negative results are zero.
    pub(in super::super) const RELU: u8 = 16;

    /// The rounding mode of a mode.
    #[inline(always)]
    pub(in super::super) const fn round(mode: u8) -> Round {
        match mode & ROUND {
            0 => Round::Nearest,
            1 => Round::Zero,
            2 => Round::Down,
            _ => Round::Up,
        }
    }

    /// The bits of a modifier.
    pub(in super::super) fn bit(word: &str) -> Option<u8> {
        match word {
            "rn" => Some(0),
            "rz" => Some(1),
            "rm" => Some(2),
            "rp" => Some(3),
            "ftz" => Some(FTZ),
            "sat" => Some(SAT),
            "relu" => Some(RELU),
            _ => None,
        }
    }

    /// The mode that modifiers are.
    pub(in super::super) fn of(words: &[&str]) -> Option<u8> {
        words.iter().try_fold(0, |mode, word| Some(mode | bit(word)?))
    }
}

/// One or two elements of a format in a register.
pub(super) trait Lanes {
    /// The format.
    type Of: Format;

    /// A result of elements at the same places; the function takes how far to shift them down.
    fn each(function: impl Fn(u32) -> u64) -> u64;
}

/// One element.
pub(super) struct One<F>(F);

impl<F: Format> Lanes for One<F> {
    type Of = F;

    #[inline(always)]
    fn each(function: impl Fn(u32) -> u64) -> u64 {
        function(0)
    }
}

/// Two elements.
pub(super) struct Pair<F>(F);

impl<F: Format> Lanes for Pair<F> {
    type Of = F;

    #[inline(always)]
    fn each(function: impl Fn(u32) -> u64) -> u64 {
        super::both(F::WIDTH, function)
    }
}

/// An operand at a place of a register.
#[inline(always)]
pub(super) fn read<F: Format, const MODE: u8>(register: u64, at: u32) -> u64 {
    flush::<F, MODE>(super::low(register >> at, F::WIDTH))
}

/// Subnormal numbers as zeros of their sign, if the mode says so.
#[inline(always)]
pub(super) fn flush<F: Format, const MODE: u8>(bits: u64) -> u64 {
    if MODE & mode::FTZ != 0 && bits & !F::SIGN < F::LEAST_NORMAL { bits & F::SIGN } else { bits }
}

/// A result as the mode wants it.
#[inline(always)]
pub(super) fn finish<F: Format, const MODE: u8>(bits: u64) -> u64 {
    let bits = flush::<F, MODE>(bits);
    if MODE & (mode::SAT | mode::RELU) == 0 {
        return bits;
    }
    if F::is_nan(bits) {
        return if MODE & mode::SAT != 0 { 0 } else { bits };
    }
    match bits & F::SIGN {
        0 if MODE & mode::SAT != 0 => bits.min(F::ONE),
        0 => bits,
        _ => 0,
    }
}

/// The instance of a generic function for a type and a mode that PTX has.
macro_rules! for_mode {
    ($type:expr, $mode:expr, $kind:path, $function:ident; $($of:literal $lanes:ty: [$($bits:literal)*];)*) => {
        match ($type, $mode) {
            $($(($of, $bits) => Some($kind($function::<$lanes, $bits>)),)*)*
            _ => None,
        }
    };
}

/// Modes of `add`, `sub`, `mul`.
macro_rules! arithmetic {
    ($type:expr, $mode:expr, $function:ident) => {
        for_mode! { $type, $mode, super::two, $function;
            "f32" One<F32>: [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15];
            "f64" One<F64>: [0 1 2 3];
            "f16" One<F16>: [0 4 8 12];
            "bf16" One<Bf16>: [0];
            "f16x2" Pair<F16>: [0 4 8 12];
            "bf16x2" Pair<Bf16>: [0];
            "f32x2" Pair<F32>: [0 1 2 3 4 5 6 7];
        }
    };
}

/// Modes of functions rounded as IEEE 754 says.
macro_rules! rounded {
    ($type:expr, $mode:expr, $kind:path, $function:ident) => {
        for_mode! { $type, $mode, $kind, $function;
            "f32" One<F32>: [0 1 2 3 4 5 6 7];
            "f64" One<F64>: [0 1 2 3];
        }
    };
}

/// Modes of functions that round nothing, or always alike.
macro_rules! unrounded {
    ($type:expr, $mode:expr, $kind:path, $function:ident) => {
        for_mode! { $type, $mode, $kind, $function;
            "f32" One<F32>: [0 4];
            "f64" One<F64>: [0];
            "f16" One<F16>: [0 4];
            "bf16" One<Bf16>: [0];
            "f16x2" Pair<F16>: [0 4];
            "bf16x2" Pair<Bf16>: [0];
        }
    };
}

/// Modes of functions of `f32` alone.
macro_rules! single {
    ($type:expr, $mode:expr, $kind:path, $function:ident) => {
        for_mode! { $type, $mode, $kind, $function; "f32" One<F32>: [0 4]; }
    };
}

/// The function of a floating-point instruction.
pub(super) fn function(opcode: &str, words: &[&str]) -> Option<Function> {
    let (of, words) = words.split_last()?;
    match (opcode, words) {
        ("testp", [test]) => return testp(test, of),
        ("copysign", []) => return copysign(of),
        ("min" | "max", _) => return extremum(opcode, words, of),
        ("div", ["approx", words @ ..]) => return single!(*of, mode::of(words)?, super::two, div_approx),
        ("div", ["full", words @ ..]) => return single!(*of, mode::of(words)?, super::two, div_full),
        (_, ["approx", words @ ..]) => return approximate(opcode, mode::of(words)?, of),
        _ => {}
    }
    let mode = mode::of(words)?;
    let is_rounded = words.iter().any(|word| matches!(*word, "rn" | "rz" | "rm" | "rp"));
    match opcode {
        "add" => arithmetic!(*of, mode, add),
        "sub" => arithmetic!(*of, mode, sub),
        "mul" => arithmetic!(*of, mode, mul),
        "mad" if is_rounded && matches!(*of, "f32" | "f64") => fma_of(of, mode),
        "fma" if is_rounded => fma_of(of, mode),
        "div" if is_rounded => rounded!(*of, mode, super::two, div),
        "rcp" if is_rounded => rounded!(*of, mode, super::one, rcp),
        "sqrt" if is_rounded => rounded!(*of, mode, super::one, sqrt),
        "abs" if !is_rounded => unrounded!(*of, mode, super::one, abs),
        "neg" if !is_rounded => unrounded!(*of, mode, super::one, neg),
        _ => None,
    }
}

fn fma_of(of: &str, mode: u8) -> Option<Function> {
    for_mode! { of, mode, super::three, fma;
        "f32" One<F32>: [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15];
        "f64" One<F64>: [0 1 2 3];
        "f16" One<F16>: [0 4 8 12 16 20];
        "bf16" One<Bf16>: [0 1 2 3 16 17 18 19];
        "f16x2" Pair<F16>: [0 4 8 12 16 20];
        "bf16x2" Pair<Bf16>: [0 1 2 3 16 17 18 19];
        "f32x2" Pair<F32>: [0 1 2 3 4 5 6 7];
    }
}

/// Generic functions of elements, on registers.
macro_rules! elementwise {
    ($bound:path; $($name:ident($($operand:ident),*) = |$round:ident| $result:expr;)*) => {$(
        fn $name<L: Lanes<Of: $bound>, const MODE: u8>($($operand: u64),*) -> u64 {
            let $round = mode::round(MODE);
            L::each(|at| {
                $(let $operand = read::<L::Of, MODE>($operand, at);)*
                finish::<L::Of, MODE>($result)
            })
        }
    )*};
}

elementwise! { Format;
    add(a, b) = |round| L::Of::add(a, b, round);
    sub(a, b) = |round| L::Of::add(a, negated::<L::Of>(b), round);
    mul(a, b) = |round| L::Of::mul(a, b, round);
    fma(a, b, c) = |round| L::Of::fma(a, b, c, round);
    abs(a) = |_round| quiet::<L::Of>(a & !L::Of::SIGN);
    neg(a) = |_round| quiet::<L::Of>(a ^ L::Of::SIGN);
    rcp_approx(a) = |round| L::Of::narrow(1.0 / L::Of::widen(a), round);
    div_full(a, b) = |round| L::Of::narrow(L::Of::widen(a) / L::Of::widen(b), round);
    div_approx(a, b) = |round| L::Of::narrow(L::Of::widen(a) * reciprocal(L::Of::widen(b)), round);
    sqrt_approx(a) = |round| L::Of::narrow(L::Of::widen(a).sqrt(), round);
    rsqrt_approx(a) = |round| L::Of::narrow(1.0 / L::Of::widen(a).sqrt(), round);
    sin(a) = |round| L::Of::narrow(L::Of::widen(a).sin(), round);
    cos(a) = |round| L::Of::narrow(L::Of::widen(a).cos(), round);
    lg2(a) = |round| L::Of::narrow(L::Of::widen(a).log2(), round);
    ex2(a) = |round| L::Of::narrow(L::Of::widen(a).exp2(), round);
    tanh(a) = |round| L::Of::narrow(L::Of::widen(a).tanh(), round);
}

elementwise! { Divides;
    div(a, b) = |round| L::Of::div(a, b, round);
    rcp(a) = |round| L::Of::div(L::Of::ONE, a, round);
    sqrt(a) = |round| L::Of::sqrt(a, round);
}

/// A number as it is, and the result for what is none.
#[inline(always)]
fn quiet<F: Format>(bits: u64) -> u64 {
    if F::is_nan(bits) { F::quiet(bits) } else { bits }
}

/// The negative, but of what is not a number.
#[inline(always)]
fn negated<F: Format>(bits: u64) -> u64 {
    if F::is_nan(bits) { bits } else { bits ^ F::SIGN }
}

/// The reciprocal by which `div.approx` multiplies: zero for divisors beyond 2^126, as documented.
#[inline(always)]
fn reciprocal(divisor: f64) -> f64 {
    if divisor.abs() > power_of_two(126) { 0f64.copysign(divisor) } else { 1.0 / divisor }
}

/// Approximate functions; with `ftz` those of `f64` read and give upper halves alone.
fn approximate(opcode: &str, mode: u8, of: &str) -> Option<Function> {
    use super::one as unary;
    match (opcode, of) {
        ("rcp", "f64") if mode == mode::FTZ => Some(unary(|a| upper(rcp_approx::<One<F64>, 4>(upper(a))))),
        ("rsqrt", "f64") if mode == mode::FTZ => Some(unary(|a| upper(rsqrt_approx::<One<F64>, 4>(upper(a))))),
        ("rsqrt", "f64") if mode == 0 => Some(unary(rsqrt_approx::<One<F64>, 0>)),
        ("rcp", _) => single!(of, mode, unary, rcp_approx),
        ("sqrt", _) => single!(of, mode, unary, sqrt_approx),
        ("rsqrt", _) => single!(of, mode, unary, rsqrt_approx),
        ("sin", _) => single!(of, mode, unary, sin),
        ("cos", _) => single!(of, mode, unary, cos),
        ("lg2", _) => single!(of, mode, unary, lg2),
        ("ex2", _) => for_mode! { of, mode, unary, ex2;
            "f32" One<F32>: [0 4];
            "f16" One<F16>: [0];
            "f16x2" Pair<F16>: [0];
            "bf16" One<Bf16>: [4];
            "bf16x2" Pair<Bf16>: [4];
        },
        ("tanh", _) => for_mode! { of, mode, unary, tanh;
            "f32" One<F32>: [0];
            "f16" One<F16>: [0];
            "f16x2" Pair<F16>: [0];
            "bf16" One<Bf16>: [0];
            "bf16x2" Pair<Bf16>: [0];
        },
        _ => None,
    }
}

/// A double with the lower half zero.
fn upper(bits: u64) -> u64 {
    bits & !0xffff_ffff
}

/// Bits of a mode of `min` and `max`, beside `FTZ`.
const MAX: u8 = 32;
const NAN: u8 = 64;
const XORSIGN_ABS: u8 = 128;

fn extremum(opcode: &str, words: &[&str], of: &str) -> Option<Function> {
    let (mut mode, words) = match words {
        ["ftz", words @ ..] => (mode::FTZ, words),
        words => (0, words),
    };
    mode |= match words {
        [] => 0,
        ["NaN"] => NAN,
        ["xorsign", "abs"] => XORSIGN_ABS,
        ["NaN", "xorsign", "abs"] => NAN | XORSIGN_ABS,
        _ => return None,
    };
    if opcode == "max" {
        mode |= MAX;
    }
    for_mode! { of, mode, super::two, least_or_greatest;
        "f32" One<F32>: [0 4 32 36 64 68 96 100 128 132 160 164 192 196 224 228];
        "f16" One<F16>: [0 4 32 36 64 68 96 100 128 132 160 164 192 196 224 228];
        "f16x2" Pair<F16>: [0 4 32 36 64 68 96 100 128 132 160 164 192 196 224 228];
        "bf16" One<Bf16>: [0 32 64 96 128 160 192 224];
        "bf16x2" Pair<Bf16>: [0 32 64 96 128 160 192 224];
        "f64" One<F64>: [0 32];
    }
}

fn least_or_greatest<L: Lanes, const MODE: u8>(a: u64, b: u64) -> u64 {
    L::each(|at| {
        let (a, b) = (read::<L::Of, MODE>(a, at), read::<L::Of, MODE>(b, at));
        if MODE & XORSIGN_ABS == 0 {
            return choose::<L::Of, MODE>(a, b);
        }
        let sign = L::Of::SIGN;
        let chosen = choose::<L::Of, MODE>(a & !sign, b & !sign);
        if L::Of::is_nan(chosen) { chosen } else { chosen | (a ^ b) & sign }
    })
}

/// The less or the greater; a number rather than what is none, unless the mode says otherwise; -0 is less than 0.
#[inline(always)]
fn choose<F: Format, const MODE: u8>(a: u64, b: u64) -> u64 {
    match (F::is_nan(a), F::is_nan(b)) {
        (false, false) => {}
        (false, true) if MODE & NAN == 0 => return a,
        (true, false) if MODE & NAN == 0 => return b,
        _ => return F::quiet(b),
    }
    // Sign and magnitude as an integer of the same order.
    let order = |bits: u64| if bits & F::SIGN == 0 { i128::from(bits) } else { -1 - i128::from(bits & !F::SIGN) };
    if (order(a) < order(b)) == (MODE & MAX == 0) { a } else { b }
}

fn testp(test: &str, of: &str) -> Option<Function> {
    macro_rules! test {
        ($format:ty) => {
            match test {
                "finite" => Some(super::test(|a| magnitude::<$format>(a) < <$format>::INFINITY)),
                "infinite" => Some(super::test(|a| magnitude::<$format>(a) == <$format>::INFINITY)),
                "number" => Some(super::test(|a| !<$format>::is_nan(a))),
                "notanumber" => Some(super::test(<$format>::is_nan)),
                "normal" => {
                    Some(super::test(|a| !is_subnormal::<$format>(a) && magnitude::<$format>(a) < <$format>::INFINITY))
                }
                "subnormal" => Some(super::test(is_subnormal::<$format>)),
                _ => None,
            }
        };
    }
    match of {
        "f32" => test!(F32),
        "f64" => test!(F64),
        _ => None,
    }
}

fn magnitude<F: Format>(bits: u64) -> u64 {
    bits & !F::SIGN
}

/// Zero is not subnormal, but normal.
fn is_subnormal<F: Format>(bits: u64) -> bool {
    (1..F::LEAST_NORMAL).contains(&magnitude::<F>(bits))
}

/// The second operand with the sign of the first.
fn copysign(of: &str) -> Option<Function> {
    match of {
        "f32" => Some(super::two(|a, b| a & F32::SIGN | b & !F32::SIGN)),
        "f64" => Some(super::two(|a, b| a & F64::SIGN | b & !F64::SIGN)),
        _ => None,
    }
}

pub(super) fn sum_in_f32(type_name: &str) -> Option<fn(&[u64]) -> u64> {
    match type_name {
        "f16" | "f16x2" => Some(sum_of_halves::<F16>),
        "bf16" | "bf16x2" => Some(sum_of_halves::<Bf16>),
        _ => None,
    }
}

/// Of each half of the words by itself; a half that is not there is zero in all.
fn sum_of_halves<T: Format>(words: &[u64]) -> u64 {
    let sum = |at: u32| {
        let widened = words.iter().map(|word| T::widen(word >> at & 0xffff) as f32);
        T::narrow(widened.reduce(|sum, one| sum + one).unwrap_or(0.0).into(), Round::Nearest) << at
    };
    sum(0) | sum(16)
}
