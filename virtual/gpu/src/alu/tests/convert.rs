//! Conversions, against `rustc_apfloat`, `half` and `float8`.

use super::float::{BF16, F16, F32, F64, Format, ROUNDS};
use super::run;
use proptest::prelude::*;
use rustc_apfloat::ieee::{BFloat, Double, Float8E4M3FN, Float8E5M2, Half, Single};
use rustc_apfloat::{Float, FloatConvert, Round, Status};

fn converted<S: FloatConvert<T>, T: Float>(bits: u64, round: Round) -> u64 {
    S::from_bits(bits.into()).convert_r(round, &mut false).value.to_bits() as u64
}

/// `cvt` from a format to a narrower, in all rounding modes.
fn narrows<S: FloatConvert<T>, T: Float>(from: &Format, to: &Format, bits: u64) {
    for (name, round) in ROUNDS {
        let exact = converted::<S, T>(bits, round);
        let expected = if from.is_nan(bits) { to.nan() } else { exact };
        let form = format!("cvt.{name}.{}.{}", to.name, from.name);
        assert_eq!(run(&form, &[bits]), expected, "{form} {bits:x}");
        if to.name != "bf16" && from.name != "bf16" {
            let form = format!("cvt.{name}.sat.{}.{}", to.name, from.name);
            assert_eq!(run(&form, &[bits]), to.finished(expected, "sat"), "{form} {bits:x}");
        }
    }
}

/// `cvt` from a format to a wider, which holds all of it.
fn widens<S: FloatConvert<T>, T: Float>(from: &Format, to: &Format, bits: u64) {
    let expected = if from.is_nan(bits) { to.nan() } else { converted::<S, T>(bits, Round::NearestTiesToEven) };
    let form = format!("cvt.{}.{}", to.name, from.name);
    assert_eq!(run(&form, &[bits]), expected, "{form} {bits:x}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    #[test]
    fn between_formats(x in F32.values(), y in F64.values()) {
        narrows::<Single, Half>(&F32, &F16, x);
        narrows::<Single, BFloat>(&F32, &BF16, x);
        narrows::<Double, Half>(&F64, &F16, y);
        narrows::<Double, BFloat>(&F64, &BF16, y);
        narrows::<Double, Single>(&F64, &F32, y);
        widens::<Single, Double>(&F32, &F64, x);
        // Where a half ends, ties are.
        let tie = x & !0xfff;
        narrows::<Single, Half>(&F32, &F16, tie);
        narrows::<Single, BFloat>(&F32, &BF16, tie);
        prop_assert_eq!(run("cvt.rn.f16.f32", &[x]), run("cvt.rn.f16x2.f32", &[0, x]));
    }

    #[test]
    fn with_relu_and_satfinite(x in F32.values(), y in F32.values()) {
        for (to, greatest) in [(F16, 0x7bff), (BF16, 0x7f7f)] {
            for (round, mode) in &ROUNDS[..2] {
                let exact = |bits: u64, relu: bool, satfinite: bool| {
                    let result = match to.name {
                        "f16" => converted::<Single, Half>(bits, *mode),
                        _ => converted::<Single, BFloat>(bits, *mode),
                    };
                    let result = if F32.is_nan(bits) { to.nan() } else { result };
                    let is_great = satfinite && !F32.is_nan(bits) && result & 0x7fff > greatest;
                    let result = if is_great { result & 0x8000 | greatest } else { result };
                    if relu { to.finished(result, "relu") } else { result }
                };
                for (modifiers, relu, satfinite) in [("", false, false), (".relu", true, false), (".satfinite", false, true), (".relu.satfinite", true, true)] {
                    let form = format!("cvt.{round}{modifiers}.{}.f32", to.name);
                    if modifiers != ".relu.satfinite" {
                        prop_assert_eq!(run(&form, &[x]), exact(x, relu, satfinite), "{} {:x}", form, x);
                    }
                    let modifiers = if relu && satfinite { ".satfinite.relu" } else { modifiers };
                    let pair = format!("cvt.{round}{modifiers}.{}x2.f32", to.name);
                    let expected = exact(x, relu, satfinite) << 16 | exact(y, relu, satfinite);
                    prop_assert_eq!(run(&pair, &[x, y]), expected, "{} {:x} {:x}", pair, x, y);
                }
            }
        }
    }

    #[test]
    fn to_bytes(x in F32.values(), y in F16.values()) {
        let clamped = |exact: u64, greatest: u64, nan: bool| match nan {
            true => 0x7f,
            false if exact & 0x7f > greatest => exact & 0x80 | greatest,
            false => exact,
        };
        let nearest = Round::NearestTiesToEven;
        // The other implementation makes what is too great something that is not a number, without an error here.
        let e4m3 = clamped(converted::<Single, Float8E4M3FN>(x, nearest), 0x7e, F32.is_nan(x));
        prop_assert_eq!(run("cvt.rn.satfinite.e4m3x2.f32", &[0, x]), e4m3, "{:x}", x);
        prop_assert_eq!(run("cvt.rn.satfinite.e4m3x2.f32", &[x, 0]), e4m3 << 8);
        let relu = if e4m3 >= 0x80 { 0 } else { e4m3 };
        prop_assert_eq!(run("cvt.rn.satfinite.relu.e4m3x2.f32", &[0, x]), relu);
        let e5m2 = clamped(converted::<Single, Float8E5M2>(x, nearest), 0x7b, F32.is_nan(x));
        prop_assert_eq!(run("cvt.rn.satfinite.e5m2x2.f32", &[0, x]), e5m2);
        let e4m3 = clamped(converted::<Half, Float8E4M3FN>(y, nearest), 0x7e, F16.is_nan(y));
        prop_assert_eq!(run("cvt.rn.satfinite.e4m3x2.f16x2", &[y << 16 | y]), e4m3 << 8 | e4m3);
        let e5m2 = clamped(converted::<Half, Float8E5M2>(y, nearest), 0x7b, F16.is_nan(y));
        prop_assert_eq!(run("cvt.rn.satfinite.e5m2x2.f16x2", &[y]), e5m2);
    }

    /// `tf32` has the exponents of `f32`, so that rounding is that of the bits as an integer.
    #[test]
    fn to_tf32(x in F32.values()) {
        let finite = x & 0x7fff_ffff < 0x7f80_0000;
        let masked = |bits: u64| bits & !0x1fff & 0xffff_ffff;
        let (away, even, zero) = if finite { (masked(x + 0x1000), masked(x + 0xfff + (x >> 13 & 1)), masked(x)) } else { (x, x, x) };
        let expected = |bits: u64| if F32.is_nan(x) { 0x7fff_ffff } else { bits };
        prop_assert_eq!(run("cvt.rna.tf32.f32", &[x]), expected(away));
        prop_assert_eq!(run("cvt.rn.tf32.f32", &[x]), expected(even));
        prop_assert_eq!(run("cvt.rz.tf32.f32", &[x]), expected(zero));
        let greatest = |bits: u64| expected(if bits & 0x7fff_ffff == 0x7f80_0000 { bits - 0x2000 } else { bits });
        prop_assert_eq!(run("cvt.rna.satfinite.tf32.f32", &[x]), greatest(away));
        prop_assert_eq!(run("cvt.rn.relu.tf32.f32", &[x]), F32.finished(expected(even), "relu"));
    }

    #[test]
    fn to_integers(x in F32.values(), y in F64.values(), z in any::<u16>()) {
        macro_rules! check {
            ($from:ident $bits:expr, $value:expr; $($to:ident $unsigned:ident $name:literal;)*) => {
                for (round, mode) in [("rni", Round::NearestTiesToEven), ("rzi", Round::TowardZero), ("rmi", Round::TowardNegative), ("rpi", Round::TowardPositive)] {
                    let value: f64 = $value;
                    let whole = match mode {
                        Round::NearestTiesToEven => value.round_ties_even(),
                        Round::TowardZero => value.trunc(),
                        Round::TowardNegative => value.floor(),
                        _ => value.ceil(),
                    };
                    $({
                        let is_wide = $from.name == "f64" || $to::BITS == 64;
                        let expected = match value.is_nan() {
                            true if is_wide => 1 << ($to::BITS - 1),
                            true => 0,
                            // Rust's conversion goes to the nearest value of the type.
                            false => u64::from(whole as $to as $unsigned),
                        };
                        let form = format!("cvt.{round}.{}.{}", $name, $from.name);
                        if !(form.ends_with("8.bf16")) {
                            prop_assert_eq!(run(&form, &[$bits]), expected, "{} {:x}", form, $bits);
                        }
                    })*
                }
            };
        }
        macro_rules! all {
            ($from:ident $bits:expr, $value:expr) => {
                check! { $from $bits, $value;
                    u8 u8 "u8"; u16 u16 "u16"; u32 u32 "u32"; u64 u64 "u64";
                    i8 u8 "s8"; i16 u16 "s16"; i32 u32 "s32"; i64 u64 "s64"; }
            };
        }
        all!(F32 x, f32::from_bits(x as u32).into());
        all!(F64 y, f64::from_bits(y));
        all!(F16 u64::from(z), half::f16::from_bits(z).to_f64());
        all!(BF16 u64::from(z), half::bf16::from_bits(z).to_f64());
    }

    #[test]
    fn from_integers(x in any::<u64>(), shift in 0..64u32) {
        let x = (x as i64 >> shift) as u64;
        for (name, mode) in ROUNDS {
            macro_rules! check {
                ($($from:ident $of:literal;)*) => {$({
                    let value = i128::from(x as $from);
                    let form = |to: &str| format!("cvt.{name}.{to}.{}", $of);
                    prop_assert_eq!(u128::from(run(&form("f16"), &[x])), Half::from_i128_r(value, mode).value.to_bits());
                    prop_assert_eq!(u128::from(run(&form("f32"), &[x])), Single::from_i128_r(value, mode).value.to_bits());
                    prop_assert_eq!(u128::from(run(&form("f64"), &[x])), Double::from_i128_r(value, mode).value.to_bits());
                    if $from::BITS > 8 {
                        prop_assert_eq!(u128::from(run(&form("bf16"), &[x])), BFloat::from_i128_r(value, mode).value.to_bits());
                    }
                })*};
            }
            check! { u8 "u8"; u16 "u16"; u32 "u32"; u64 "u64"; i8 "s8"; i16 "s16"; i32 "s32"; i64 "s64"; }
        }
        let value = x as i64;
        let saturated = f64::clamp(value as f64, 0.0, 1.0) as f32;
        prop_assert_eq!(run("cvt.rn.sat.f32.s64", &[x]), u64::from(saturated.to_bits()));
    }

    #[test]
    fn to_whole_numbers(x in F32.values(), y in F64.values()) {
        let single = f32::from_bits(x as u32);
        let double = f64::from_bits(y);
        let table = [
            ("rni", single.round_ties_even(), double.round_ties_even()),
            ("rzi", single.trunc(), double.trunc()),
            ("rmi", single.floor(), double.floor()),
            ("rpi", single.ceil(), double.ceil()),
        ];
        for (round, single, double) in table {
            let expected = if single.is_nan() { F32.nan() } else { u64::from(single.to_bits()) };
            prop_assert_eq!(run(&format!("cvt.{round}.f32.f32"), &[x]), expected);
            prop_assert_eq!(run(&format!("cvt.{round}.sat.f32.f32"), &[x]), F32.finished(expected, "sat"));
            let expected = if double.is_nan() { F64.nan() } else { double.to_bits() };
            prop_assert_eq!(run(&format!("cvt.{round}.f64.f64"), &[y]), expected);
        }
    }
}

/// Every half and every byte there is.
#[test]
fn all_small_values() {
    for bits in 0..=u16::MAX {
        let (half, brain) = (half::f16::from_bits(bits), half::bf16::from_bits(bits));
        let bits = u64::from(bits);
        let single = |value: f32| if value.is_nan() { 0x7fff_ffff } else { u64::from(value.to_bits()) };
        assert_eq!(run("cvt.f32.f16", &[bits]), single(half.to_f32()));
        assert_eq!(run("cvt.f32.bf16", &[bits]), single(brain.to_f32()));
        widens::<Half, Double>(&F16, &F64, bits);
        widens::<BFloat, Double>(&BF16, &F64, bits);
        narrows::<Half, BFloat>(&F16, &BF16, bits);
        narrows::<BFloat, Half>(&BF16, &F16, bits);
    }
    for bits in 0..=u8::MAX {
        let half = |value: f32| if value.is_nan() { 0x7fff } else { u64::from(half::f16::from_f32(value).to_bits()) };
        let e4m3 = half(float8::F8E4M3::from_bits(bits).to_f32());
        let e5m2 = half(float8::F8E5M2::from_bits(bits).to_f32());
        let bits = u64::from(bits);
        assert_eq!(run("cvt.rn.f16x2.e4m3x2", &[bits << 8 | bits]), e4m3 << 16 | e4m3, "{bits:x}");
        assert_eq!(run("cvt.rn.f16x2.e5m2x2", &[bits]), e5m2, "{bits:x}");
        let relu = if e4m3 & 0x8000 != 0 { 0 } else { e4m3 };
        assert_eq!(run("cvt.rn.relu.f16x2.e4m3x2", &[bits]), relu, "{bits:x}");
    }
}

#[test]
fn flushed_singles() {
    // Half a unit of the least `f16` is a normal `f32`; the least `f16` is so as well.
    assert_eq!(run("cvt.ftz.f32.f16", &[1]), u64::from(2f32.powi(-24).to_bits()));
    assert_eq!(run("cvt.ftz.f32.bf16", &[1]), 0);
    assert_eq!(run("cvt.ftz.f64.f32", &[0x8000_0001]), 1 << 63);
    assert_eq!(run("cvt.rp.ftz.f16.f32", &[1]), 0);
    assert_eq!(run("cvt.rp.f16.f32", &[1]), 1);
    assert_eq!(run("cvt.rn.ftz.f32.f64", &[1e-40f64.to_bits()]), 0);
    assert_eq!(run("cvt.rpi.ftz.s32.f32", &[1]), 0);
    assert_eq!(run("cvt.rpi.s32.f32", &[1]), 1);
}

#[test]
fn overflow_is_rounded_too() {
    let great = u64::from(1e6f32.to_bits());
    for (round, expected) in [("rn", 0x7c00), ("rz", 0x7bff), ("rm", 0x7bff), ("rp", 0x7c00)] {
        assert_eq!(run(&format!("cvt.{round}.f16.f32"), &[great]), expected, "{round}");
    }
    let (exact, status) = {
        let converted =
            <Single as FloatConvert<Half>>::convert_r(Single::from_bits(great.into()), Round::TowardZero, &mut false);
        (converted.value.to_bits(), converted.status)
    };
    assert!(exact == 0x7bff && status.contains(Status::INEXACT), "the other implementation agrees");
}
