//! Conversions.

use super::Function;
use super::float::{finish, flush, mode, read};
use super::format::{Bf16, E4m3, E5m2, F16, F32, F64, Format, Round, Tf32, encode, signed};
use super::integer::Integer;

/// Bits of a mode, beside those of arithmetic: results too great are the greatest finite ones; ties go away from zero.
const SATFINITE: u8 = 32;
const AWAY: u8 = 64;

/// The instance of a generic function of a mode, of those that PTX has.
macro_rules! instance {
    ($mode:expr, $kind:path, |$constant:ident| $function:expr; $($bits:literal)*) => {
        match $mode {
            $($bits => {
                const $constant: u8 = $bits;
                Some($kind($function))
            })*
            _ => None,
        }
    };
}

/// The function of `cvt`.
pub(super) fn function(opcode: &str, words: &[&str]) -> Option<Function> {
    let ("cvt", [words @ .., to, from]) = (opcode, words) else { return None };
    match words {
        ["rni" | "rzi" | "rmi" | "rpi", rest @ ..] => to_whole(words[0], rest, to, from),
        _ => {
            let is_rounded = words.first().is_some_and(|word| matches!(*word, "rn" | "rz" | "rm" | "rp" | "rna"));
            let mode = words.iter().try_fold(0, |mode, word| {
                Some(
                    mode | match *word {
                        "satfinite" => SATFINITE,
                        "rna" => AWAY,
                        other => mode::bit(other)?,
                    },
                )
            })?;
            integer_to_integer(is_rounded, mode, to, from)
                .or_else(|| integer_to_float(is_rounded, mode, to, from))
                .or_else(|| float_to_float(is_rounded, mode, to, from))
                .or_else(|| packing(is_rounded, mode, to, from))
        }
    }
}

/// A name for the integer type behind a name.
macro_rules! with_integer {
    ($name:expr, |$type:ident| $result:expr) => {
        with_integer! { @ $name, $type, $result;
            "u8" u8, "u16" u16, "u32" u32, "u64" u64, "s8" i8, "s16" i16, "s32" i32, "s64" i64 }
    };
    (@ $name:expr, $type:ident, $result:expr; $($of:literal $integer:ty),*) => {
        match $name {
            $($of => {
                type $type = $integer;
                $result
            })*
            _ => None,
        }
    };
}

/// A name for the floating-point format behind a name.
macro_rules! with_float {
    ($name:expr, |$type:ident| $result:expr) => {
        with_float! { @ $name, $type, $result; "f16" F16, "bf16" Bf16, "f32" F32, "f64" F64 }
    };
    (@ $name:expr, $type:ident, $result:expr; $($of:literal $format:ty),*) => {
        match $name {
            $($of => {
                type $type = $format;
                $result
            })*
            _ => None,
        }
    };
}

fn integer_to_integer(is_rounded: bool, mode: u8, to: &str, from: &str) -> Option<Function> {
    match (is_rounded, mode) {
        (false, 0) => with_integer!(from, |S| with_integer!(to, |T| Some(super::one(|a| T::wrap(S::value(a)))))),
        (false, mode::SAT) => with_integer!(from, |S| with_integer!(to, |T| saturating::<S, T>())),
        _ => None,
    }
}

/// PTX has it only where there is something to saturate.
fn saturating<S: Integer, T: Integer>() -> Option<Function> {
    (S::MIN < T::MIN || T::MAX < S::MAX).then_some(super::one(|a| T::nearest(S::value(a))))
}

fn integer_to_float(is_rounded: bool, mode: u8, to: &str, from: &str) -> Option<Function> {
    if !is_rounded || !has_pair(to, from, mode) {
        return None;
    }
    // No integer is subnormal.
    let mode = if to == "f32" { mode & !mode::FTZ } else { mode };
    with_integer!(from, |S| with_float!(
        to,
        |T| instance!(mode, super::one, |M| from_integer::<S, T, M>; 0 1 2 3 8 9 10 11)
    ))
}

/// `bf16` goes neither with bytes nor with `sat`.
fn has_pair(to: &str, from: &str, mode: u8) -> bool {
    let bytes = |name| matches!(name, "u8" | "s8");
    (to != "bf16" && from != "bf16") || !(bytes(to) || bytes(from) || mode & mode::SAT != 0)
}

fn from_integer<S: Integer, T: Format, const MODE: u8>(a: u64) -> u64 {
    let (value, round) = (S::value(a), mode::round(MODE));
    let bits = match S::BITS {
        64 => encode::<T>(value < 0, value.unsigned_abs() as u64, 0, round),
        // An `f64` holds all others.
        _ => T::narrow(value as i64 as f64, round),
    };
    finish::<T, MODE>(bits)
}

/// To an integer, or to a whole number of the same format.
fn to_whole(rounding: &str, words: &[&str], to: &str, from: &str) -> Option<Function> {
    let rounding = match rounding {
        "rni" => 0,
        "rzi" => 1,
        "rmi" => 2,
        _ => 3,
    };
    let mode = rounding | mode::of(words)?;
    if mode & mode::FTZ != 0 && from != "f32" || !has_pair(to, from, mode) {
        return None;
    }
    if to == from {
        return with_float!(
            from,
            |S| instance!(mode, super::one, |M| whole::<S, M>; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
        );
    }
    // Results are the nearest of the type with `sat` and without.
    let mode = mode & !mode::SAT;
    with_float!(from, |S| with_integer!(
        to,
        |T| instance!(mode, super::one, |M| to_integer::<S, T, M>; 0 1 2 3 4 5 6 7)
    ))
}

fn whole<S: Format, const MODE: u8>(a: u64) -> u64 {
    let value = rounded(S::widen(read::<S, MODE>(a, 0)), mode::round(MODE));
    finish::<S, MODE>(S::narrow(value, Round::Nearest))
}

/// What is not a number gives zero, or the greatest power of two of the type if one of both has 64 bits.
fn to_integer<S: Format, T: Integer, const MODE: u8>(a: u64) -> u64 {
    let a = read::<S, MODE>(a, 0);
    if S::is_nan(a) {
        return if S::WIDTH == 64 || T::BITS == 64 { 1 << (T::BITS - 1) } else { 0 };
    }
    T::saturate(rounded(S::widen(a), mode::round(MODE)))
}

/// The whole number next to a value.
#[inline(always)]
fn rounded(value: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => value.round_ties_even(),
        Round::Away => value.round(),
        Round::Zero => value.trunc(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
    }
}

fn float_to_float(is_rounded: bool, mode: u8, to: &str, from: &str) -> Option<Function> {
    if mode & mode::FTZ != 0 && to != "f32" && from != "f32" || !has_pair(to, from, mode) {
        return None;
    }
    macro_rules! narrowing {
        ($to:ty, $from:ty) => {
            instance!(mode, super::one, |M| float::<$from, $to, M>; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
        };
    }
    macro_rules! widening {
        ($to:ty, $from:ty) => {
            instance!(mode, super::one, |M| float::<$from, $to, M>; 0 4 8 12)
        };
    }
    match (is_rounded, to, from) {
        (true, "f16", "f32") => {
            instance!(mode, super::one, |M| float::<F32, F16, M>; 16 17 32 33 48 49).or(narrowing!(F16, F32))
        }
        (true, "bf16", "f32") => {
            instance!(mode, super::one, |M| float::<F32, Bf16, M>; 16 17 32 33 48 49).or(narrowing!(Bf16, F32))
        }
        (true, "f16", "f64") => narrowing!(F16, F64),
        (true, "bf16", "f64") => narrowing!(Bf16, F64),
        (true, "f32", "f64") => narrowing!(F32, F64),
        // To nearest if nothing is said.
        (_, "f16", "bf16") => narrowing!(F16, Bf16),
        (_, "bf16", "f16") => narrowing!(Bf16, F16),
        (true, "tf32", "f32") => instance!(mode, super::one, |M| to_tf32::<M>; 0 1 16 17 32 33 48 49 64 96),
        (false, "f16", "f16") => widening!(F16, F16),
        (false, "bf16", "bf16") => widening!(Bf16, Bf16),
        (false, "f32", "f32") => widening!(F32, F32),
        (false, "f64", "f64") => widening!(F64, F64),
        (false, "f32", "f16") => widening!(F32, F16),
        // Any rounding may be said, and none happens.
        (_, "f32", "bf16") => narrowing!(F32, Bf16),
        (_, "f64", "bf16") => narrowing!(F64, Bf16),
        (false, "f64", "f16") => widening!(F64, F16),
        (false, "f64", "f32") => widening!(F64, F32),
        _ => None,
    }
}

/// The mode without `ftz` for formats other than `f32`: in conversions it is for that one alone.
const fn own<F: Format>(mode: u8) -> bool {
    mode & mode::FTZ != 0 && F::WIDTH == 32
}

fn float<S: Format, T: Format, const MODE: u8>(a: u64) -> u64 {
    let a = if own::<S>(MODE) { read::<S, { mode::FTZ }>(a, 0) } else { read::<S, 0>(a, 0) };
    let value = S::widen(a);
    let round = if MODE & AWAY != 0 { Round::Away } else { mode::round(MODE) };
    let mut result = T::narrow(value, round);
    if own::<T>(MODE) {
        result = flush::<T, { mode::FTZ }>(result);
    }
    if MODE & SATFINITE != 0 && !value.is_nan() {
        let negative = result & T::SIGN != 0;
        result = signed::<T>(negative, (result & !T::SIGN).min(T::INFINITY - 1));
    }
    match MODE & (mode::SAT | mode::RELU) {
        0 => result,
        mode::SAT => finish::<T, { mode::SAT }>(result),
        _ => finish::<T, { mode::RELU }>(result),
    }
}

/// `tf32` stands in the upper bits of a register.
fn to_tf32<const MODE: u8>(a: u64) -> u64 {
    if F32::is_nan(super::low(a, 32)) { F32::NAN } else { float::<F32, Tf32, MODE>(a) << (F32::WIDTH - Tf32::WIDTH) }
}

/// Two elements at a time; of two operands the first is the upper.
fn packing(is_rounded: bool, mode: u8, to: &str, from: &str) -> Option<Function> {
    if !is_rounded {
        return None;
    }
    match (to, from) {
        ("f16x2", "f32") => instance!(mode, super::two, |M| packed::<F16, M>; 0 1 16 17 32 33 48 49),
        ("bf16x2", "f32") => instance!(mode, super::two, |M| packed::<Bf16, M>; 0 1 16 17 32 33 48 49),
        ("e4m3x2", "f32") => instance!(mode, super::two, |M| packed::<E4m3, M>; 32 48),
        ("e5m2x2", "f32") => instance!(mode, super::two, |M| packed::<E5m2, M>; 32 48),
        ("e4m3x2", "f16x2") => instance!(mode, super::one, |M| repacked::<F16, E4m3, M>; 32 48),
        ("e5m2x2", "f16x2") => instance!(mode, super::one, |M| repacked::<F16, E5m2, M>; 32 48),
        ("f16x2", "e4m3x2") => instance!(mode, super::one, |M| repacked::<E4m3, F16, M>; 0 16),
        ("f16x2", "e5m2x2") => instance!(mode, super::one, |M| repacked::<E5m2, F16, M>; 0 16),
        _ => None,
    }
}

fn packed<T: Format, const MODE: u8>(a: u64, b: u64) -> u64 {
    float::<F32, T, MODE>(a) << T::WIDTH | float::<F32, T, MODE>(b)
}

fn repacked<S: Format, T: Format, const MODE: u8>(a: u64) -> u64 {
    let element = |at: u32| float::<S, T, MODE>(a >> at);
    element(S::WIDTH) << T::WIDTH | element(0)
}
