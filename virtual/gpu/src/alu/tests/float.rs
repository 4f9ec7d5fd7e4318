//! Floating-point arithmetic, against `rustc_apfloat`, and `f64` for what may be approximate.

use super::run;
use proptest::prelude::*;
use rustc_apfloat::ieee::{BFloat, Double, Half, Quad, Single};
use rustc_apfloat::{Float, FloatConvert, Round};

/// The rounding modes of arithmetic.
pub(super) const ROUNDS: [(&str, Round); 4] = [
    ("rn", Round::NearestTiesToEven),
    ("rz", Round::TowardZero),
    ("rm", Round::TowardNegative),
    ("rp", Round::TowardPositive),
];

/// A format: its name, widths, and its arithmetic elsewhere.
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) width: u32,
    pub(super) fraction: u32,
}

pub(super) const F16: Format = Format { name: "f16", width: 16, fraction: 10 };
pub(super) const BF16: Format = Format { name: "bf16", width: 16, fraction: 7 };
pub(super) const F32: Format = Format { name: "f32", width: 32, fraction: 23 };
pub(super) const F64: Format = Format { name: "f64", width: 64, fraction: 52 };

impl Format {
    fn sign(&self) -> u64 {
        1 << (self.width - 1)
    }

    fn infinity(&self) -> u64 {
        self.sign() - (1 << self.fraction)
    }

    pub(super) fn is_nan(&self, bits: u64) -> bool {
        bits & !self.sign() > self.infinity()
    }

    /// The result that is not a number, unless an operand is one.
    pub(super) fn nan(&self) -> u64 {
        if self.width == 64 { 0xfff8 << 48 } else { self.sign() - 1 }
    }

    fn one(&self) -> u64 {
        self.infinity() >> (self.fraction + 1) << self.fraction
    }

    fn flushed(&self, bits: u64) -> u64 {
        if bits & !self.sign() < 1 << self.fraction { bits & self.sign() } else { bits }
    }

    /// What `sat` and `relu` make of a result.
    pub(super) fn finished(&self, bits: u64, modifier: &str) -> u64 {
        let negative = bits & self.sign() != 0;
        match modifier {
            "sat" if self.is_nan(bits) || negative => 0,
            "sat" => bits.min(self.one()),
            "relu" if negative && !self.is_nan(bits) => 0,
            _ => bits,
        }
    }

    /// Values that are often special or close to each other.
    pub(super) fn values(&self) -> BoxedStrategy<u64> {
        let (sign, infinity, one, fraction) = (self.sign(), self.infinity(), self.one(), self.fraction);
        let least = 1u64 << fraction;
        let edges = vec![
            0,
            1,
            least - 1,
            least,
            least + 1,
            one - 1,
            one,
            one + 1,
            infinity - 1,
            infinity,
            infinity + 1,
            sign - 1,
        ];
        let mask = !0 >> (64 - self.width);
        let close = (0..8u64, any::<u64>(), any::<u64>()).prop_map(move |(exponent, bits, thin)| {
            // Fractions of few bits make ties.
            let tail = bits & (least - 1) & thin;
            (one + (exponent << fraction)).wrapping_sub(4 << fraction) & !(least - 1) | tail | bits & sign
        });
        let signed_edges = (prop::sample::select(edges), any::<bool>())
            .prop_map(move |(bits, negative)| bits | if negative { sign } else { 0 });
        let small =
            (0..least * 4, any::<bool>()).prop_map(move |(bits, negative)| bits | if negative { sign } else { 0 });
        prop_oneof![3 => any::<u64>().prop_map(move |bits| bits & mask), 4 => close, 2 => signed_edges, 1 => small]
            .boxed()
    }
}

/// One result of the other implementation.
fn exact<F: Float>(operation: &str, operands: &[u64], round: Round) -> u64 {
    let value = |i: usize| F::from_bits(operands[i].into());
    let result = match operation {
        "add" => value(0).add_r(value(1), round),
        "sub" => value(0).sub_r(value(1), round),
        "mul" => value(0).mul_r(value(1), round),
        "div" => value(0).div_r(value(1), round),
        "rcp" => F::from_u128(1).value.div_r(value(0), round),
        _ => value(0).mul_add_r(value(1), value(2), round),
    };
    result.value.to_bits() as u64
}

/// Compares an operation with the other implementation, in a format with modifiers.
fn check<F: Float>(format: &Format, operation: &str, operands: &[u64], round: (&str, Round), ftz: bool, last: &str) {
    let flushed: Vec<u64> = operands.iter().map(|&bits| if ftz { format.flushed(bits) } else { bits }).collect();
    let mut expected = exact::<F>(operation, &flushed, round.1);
    if format.is_nan(expected) {
        expected = format.nan();
    }
    if ftz {
        expected = format.flushed(expected);
    }
    expected = format.finished(expected, last);
    let flush = if ftz { ".ftz" } else { "" };
    let dot = if last.is_empty() { "" } else { "." };
    let name = format!("{operation}.{}{flush}{dot}{last}.{}", round.0, format.name);
    let result = run(&name, operands);
    assert_eq!(result, expected, "{name} of {operands:x?}: {result:x} instead of {expected:x}");
}

const OPERATIONS: [(&str, usize); 4] = [("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    #[test]
    fn singles(x in F32.values(), y in F32.values(), z in F32.values(), ftz in any::<bool>(), saturates in any::<bool>()) {
        for round in ROUNDS {
            for (operation, count) in OPERATIONS {
                check::<Single>(&F32, operation, &[x, y, z][..count], round, ftz, if saturates { "sat" } else { "" });
            }
            check::<Single>(&F32, "div", &[x, y], round, ftz, "");
            check::<Single>(&F32, "rcp", &[x], round, ftz, "");
        }
    }

    #[test]
    fn halves(x in F16.values(), y in F16.values(), z in F16.values(), ftz in any::<bool>(), last in 0..3usize) {
        for (operation, count) in OPERATIONS {
            let last = ["", "sat", "relu"][if operation == "fma" { last } else { last % 2 }];
            check::<Half>(&F16, operation, &[x, y, z][..count], ROUNDS[0], ftz, last);
        }
    }

    #[test]
    fn brain_floats(x in BF16.values(), y in BF16.values(), z in BF16.values(), clamps in any::<bool>()) {
        for (operation, count) in OPERATIONS {
            check::<BFloat>(&BF16, operation, &[x, y, z][..count], ROUNDS[0], false, if clamps && operation == "fma" { "relu" } else { "" });
        }
        for round in ROUNDS {
            check::<BFloat>(&BF16, "fma", &[x, y, z], round, false, "");
        }
    }

    /// To nearest the other implementation, and around it the values next to the exact result.
    #[test]
    fn doubles(x in F64.values(), y in F64.values(), z in F64.values()) {
        let numbers = [x, y, z].iter().all(|&bits| !F64.is_nan(bits));
        for (operation, count) in [("add", 2), ("sub", 2), ("mul", 2), ("fma", 3), ("div", 2), ("rcp", 1)] {
            let operands = &[x, y, z][..count];
            let to = |round: &str| run(&format!("{operation}.{round}.f64"), operands);
            if operands.iter().all(|&bits| !F64.is_nan(bits)) {
                check::<Double>(&F64, operation, operands, ROUNDS[0], false, "");
                let [nearest, zero, down, up] = ["rn", "rz", "rm", "rp"].map(|round| f64::from_bits(to(round)));
                if nearest.is_nan() {
                    continue;
                }
                assert!(down <= nearest && nearest <= up, "{operation} {operands:x?}");
                assert_eq!(zero.abs(), down.abs().min(up.abs()), "{operation} {operands:x?}");
                assert!(down == up || down.next_up() == up, "{operation} {operands:x?}");
            }
        }
        if numbers {
            // The error of a product is exact in the wider format.
            let wide = |bits: u64| FloatConvert::<Quad>::convert(Double::from_bits(bits.into()), &mut false).value;
            let product = (wide(x) * wide(y)).value;
            if product.is_finite() {
                prop_assert!(wide(run("mul.rm.f64", &[x, y])) <= product);
                prop_assert!(wide(run("mul.rp.f64", &[x, y])) >= product);
            }
        }
    }

    #[test]
    fn roots(x in F32.values(), y in F64.values(), ftz in any::<bool>()) {
        let wide = |bits: u64| FloatConvert::<Quad>::convert(Double::from_bits(bits.into()), &mut false).value;
        let square = |bits: u64| (wide(bits) * wide(bits)).value;
        let y = y & !(1 << 63);
        let [nearest, zero, down, up] = ROUNDS.map(|(round, _)| run(&format!("sqrt.{round}.f64"), &[y]));
        if !F64.is_nan(y) {
            prop_assert_eq!(nearest, f64::from_bits(y).sqrt().to_bits());
            prop_assert_eq!(zero, down);
            prop_assert!(up - down <= 1 && (nearest == up || nearest == down));
            prop_assert!(square(down) <= wide(y) && wide(y) <= square(up));
        }
        let flush = if ftz { ".ftz" } else { "" };
        let of = if ftz { F32.flushed(x) } else { x };
        let [nearest, zero, down, up] = ROUNDS.map(|(round, _)| run(&format!("sqrt.{round}{flush}.f32"), &[x]));
        let value = |bits: u64| f64::from(f32::from_bits(bits as u32));
        if F32.is_nan(of) || value(of) < 0.0 {
            prop_assert_eq!([nearest, zero, down, up], [F32.nan(); 4]);
        } else {
            prop_assert_eq!(nearest, u64::from(f32::from_bits(of as u32).sqrt().to_bits()));
            prop_assert_eq!(zero, down);
            prop_assert!(up - down <= 1 && (nearest == up || nearest == down));
            prop_assert!(value(down) * value(down) <= value(of) && value(of) <= value(up) * value(up));
        }
    }

    /// Elements of pairs are computed each by itself.
    #[test]
    fn pairs(x in any::<[u16; 2]>(), y in any::<[u16; 2]>(), z in any::<[u16; 2]>(), a in any::<[u32; 2]>(), b in any::<[u32; 2]>()) {
        let word = |halves: [u16; 2]| u64::from(halves[0]) | u64::from(halves[1]) << 16;
        for name in ["add", "sub", "mul", "fma.rn", "fma.rn.relu", "min", "max.NaN", "min.xorsign.abs", "abs", "neg", "tanh.approx"] {
            let count = match name.split('.').next() {
                Some("fma") => 3,
                Some("abs" | "neg" | "tanh") => 1,
                _ => 2,
            };
            for of in ["f16", "bf16"] {
                let pair = run(&format!("{name}.{of}x2"), &[word(x), word(y), word(z)][..count]);
                let one = |i: usize| run(&format!("{name}.{of}"), &[x[i], y[i], z[i]].map(u64::from)[..count]) as u16;
                prop_assert_eq!(pair, word([one(0), one(1)]), "{} {}", name, of);
            }
        }
        let long = |words: [u32; 2]| u64::from(words[0]) | u64::from(words[1]) << 32;
        let one = |i: usize| run("mul.rz.ftz.f32", &[a[i].into(), b[i].into()]) as u32;
        prop_assert_eq!(run("mul.rz.ftz.f32x2", &[long(a), long(b)]), long([one(0), one(1)]));
    }

    /// What the PTX ISA bounds, here to a unit in the last place.
    #[test]
    fn approximations(x in F32.values(), y in F32.values()) {
        let value = |bits: u64| f64::from(f32::from_bits(bits as u32));
        let close = |name: &str, operands: &[u64], exact: f64| {
            let result = run(name, operands);
            let nearest = exact as f32;
            if nearest.is_nan() {
                assert_eq!(result, F32.nan(), "{name} {operands:x?}");
                return;
            }
            let apart = (result as i64).abs_diff(i64::from(nearest.to_bits()));
            assert!(apart <= 1, "{name} {operands:x?}: {result:x}, but {:x}", nearest.to_bits());
        };
        close("rcp.approx.f32", &[x], 1.0 / value(x));
        close("sqrt.approx.f32", &[x], value(x).sqrt());
        close("rsqrt.approx.f32", &[x], 1.0 / value(x).sqrt());
        close("lg2.approx.f32", &[x], value(x).log2());
        close("ex2.approx.f32", &[x], value(x).exp2());
        close("sin.approx.f32", &[x], value(x).sin());
        close("cos.approx.f32", &[x], value(x).cos());
        close("tanh.approx.f32", &[x], value(x).tanh());
        close("div.full.f32", &[x, y], value(x) / value(y));
        let beyond = value(y).abs() > 2f64.powi(126);
        close("div.approx.f32", &[x, y], if beyond { value(x) * 0f64.copysign(value(y)) } else { value(x) / value(y) });
        let flushed = F32.flushed(x);
        let result = run("rcp.approx.ftz.f32", &[x]);
        prop_assert_eq!(result, F32.flushed(run("rcp.approx.f32", &[flushed])));
    }

    #[test]
    fn least_and_greatest(x in F32.values(), y in F32.values()) {
        let (a, b) = (f32::from_bits(x as u32), f32::from_bits(y as u32));
        for (name, greater) in [("min", false), ("max", true)] {
            let expected = match (a.is_nan(), b.is_nan()) {
                (true, true) => F32.nan(),
                (true, false) => y,
                (false, true) => x,
                _ if a.total_cmp(&b).is_lt() == greater => y,
                _ => x,
            };
            prop_assert_eq!(run(&format!("{name}.f32"), &[x, y]), expected);
            let expected = if a.is_nan() || b.is_nan() { F32.nan() } else { expected };
            prop_assert_eq!(run(&format!("{name}.NaN.f32"), &[x, y]), expected);
            if !a.is_nan() && !b.is_nan() {
                let magnitude = if greater { a.abs().max(b.abs()) } else { a.abs().min(b.abs()) };
                let signed = u64::from(magnitude.to_bits()) | (x ^ y) & 0x8000_0000;
                prop_assert_eq!(run(&format!("{name}.xorsign.abs.f32"), &[x, y]), signed);
            }
        }
    }

    #[test]
    fn comparisons(x in F32.values(), y in F32.values(), p in F64.values(), q in F64.values()) {
        let check = |suffix: &str, operands: [u64; 2], a: f64, b: f64| {
            let unordered = a.is_nan() || b.is_nan();
            let table = [
                ("eq", a == b), ("ne", a != b && !unordered), ("lt", a < b), ("le", a <= b), ("gt", a > b), ("ge", a >= b),
                ("equ", a == b || unordered), ("neu", a != b), ("ltu", a < b || unordered), ("leu", a <= b || unordered),
                ("gtu", a > b || unordered), ("geu", a >= b || unordered), ("num", !unordered), ("nan", unordered),
            ];
            for (name, holds) in table {
                assert_eq!(run(&format!("setp.{name}.{suffix}"), &operands), u64::from(holds), "{name} {suffix} {operands:x?}");
            }
        };
        let single = |bits: u64| f64::from(f32::from_bits(bits as u32));
        check("f32", [x, y], single(x), single(y));
        check("ftz.f32", [x, y], single(F32.flushed(x)), single(F32.flushed(y)));
        check("f64", [p, q], f64::from_bits(p), f64::from_bits(q));
        let half = |bits: u64| half::f16::from_bits(bits as u16).to_f64();
        check("f16", [x >> 16, y >> 16], half(x >> 16), half(y >> 16));
        let brain = |bits: u64| half::bf16::from_bits(bits as u16).to_f64();
        check("bf16", [x >> 16, y >> 16], brain(x >> 16), brain(y >> 16));
        // Two at a time.
        let each = |x: u64, y: u64, truth: u64| if half(x & 0xffff) < half(y & 0xffff) { truth } else { 0 };
        let both = |truth| each(x, y, truth) | each(x >> 16, y >> 16, truth) << 16;
        prop_assert_eq!(run("set.lt.f16x2.f16x2", &[x, y]), both(0x3c00));
        prop_assert_eq!(run("set.lt.u32.f16x2", &[x, y]), both(0xffff));
    }

    #[test]
    fn properties(x in F32.values(), y in F64.values()) {
        use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal, Zero};
        for (of, bits, category) in [("f32", x, f32::from_bits(x as u32).classify()), ("f64", y, f64::from_bits(y).classify())] {
            let test = |name: &str| run(&format!("testp.{name}.{of}"), &[bits]) == 1;
            prop_assert_eq!(test("finite"), matches!(category, Normal | Subnormal | Zero));
            prop_assert_eq!(test("infinite"), category == Infinite);
            prop_assert_eq!(test("number"), category != Nan);
            prop_assert_eq!(test("notanumber"), category == Nan);
            prop_assert_eq!(test("normal"), matches!(category, Normal | Zero));
            prop_assert_eq!(test("subnormal"), category == Subnormal);
        }
        prop_assert_eq!(run("copysign.f64", &[x << 32, y]), f64::from_bits(y).copysign(f64::from_bits(x << 32)).to_bits());
    }
}

/// Single values and their bits.
fn bits(value: f32) -> u64 {
    value.to_bits().into()
}

#[test]
fn what_is_not_a_number() {
    let (payload, infinity) = (0xff80_0001, bits(f32::INFINITY));
    for (name, operands) in [
        ("add.f32", vec![payload, 0]),
        ("sub.f32", vec![infinity, infinity]),
        ("mul.rz.f32", vec![infinity, 0]),
        ("fma.rn.f32", vec![0, 0, payload]),
        ("div.rn.f32", vec![0, 0]),
        ("sqrt.rn.f32", vec![bits(-1.0)]),
        ("rsqrt.approx.f32", vec![bits(-1.0)]),
        ("lg2.approx.f32", vec![bits(-1.0)]),
        ("sin.approx.f32", vec![infinity]),
        ("abs.f32", vec![payload]),
        ("neg.ftz.f32", vec![payload]),
        ("min.f32", vec![payload, payload]),
        ("max.NaN.f32", vec![payload, 0]),
    ] {
        assert_eq!(run(name, &operands), 0x7fff_ffff, "{name}");
    }
    assert_eq!(run("add.sat.f32", &[payload, 0]), 0);
    assert_eq!(run("fma.rn.relu.f16", &[0x7c01, 0, 0]), 0x7fff);
    assert_eq!(run("mul.bf16", &[0x7f80, 0]), 0x7fff);
    // Doubles keep what they hold beside.
    assert_eq!(run("add.f64", &[0x7ff0_0000_0000_0001, 0]), 0x7ff8_0000_0000_0001);
    assert_eq!(run("mul.rp.f64", &[0, 0xfff0_0000_0000_0002]), 0xfff8_0000_0000_0002);
    assert_eq!(run("add.rz.f64", &[f64::INFINITY.to_bits(), f64::NEG_INFINITY.to_bits()]), 0xfff8_0000_0000_0000);
}

#[test]
fn signs_of_zero() {
    let minus = 0x8000_0000;
    for (round, zero) in [("rn", 0), ("rz", 0), ("rm", minus), ("rp", 0)] {
        assert_eq!(run(&format!("add.{round}.f32"), &[0, minus]), zero, "{round}");
        assert_eq!(run(&format!("sub.{round}.f32"), &[bits(1.5), bits(1.5)]), zero, "{round}");
        assert_eq!(run(&format!("fma.{round}.f32"), &[bits(2.0), bits(3.0), bits(-6.0)]), zero, "{round}");
        assert_eq!(run(&format!("add.{round}.f32"), &[minus, minus]), minus, "{round}");
    }
    assert_eq!(run("min.f32", &[0, minus]), minus);
    assert_eq!(run("max.f32", &[minus, 0]), 0);
    assert_eq!(run("add.sat.f32", &[minus, minus]), 0);
    assert_eq!(run("sqrt.rn.f32", &[minus]), minus);
    assert_eq!(run("rcp.rn.f32", &[minus]), bits(f32::NEG_INFINITY));
    assert_eq!(run("slct.b32.f32", &[1, 2, minus]), 1);
    assert_eq!(run("slct.b32.f32", &[1, 2, bits(f32::NAN)]), 2);
    assert_eq!(run("slct.ftz.b32.f32", &[1, 2, minus | 1]), 1);
    assert_eq!(run("slct.b32.f32", &[1, 2, minus | 1]), 2);
}

#[test]
fn subnormal_results() {
    let least = bits(f32::MIN_POSITIVE);
    assert_eq!(run("mul.f32", &[least, bits(0.5)]), 0x0040_0000);
    assert_eq!(run("mul.ftz.f32", &[least, bits(-0.5)]), 0x8000_0000);
    assert_eq!(run("add.ftz.f32", &[1, 1]), 0);
    // Rounded up to a normal number: no longer flushed.
    assert_eq!(run("mul.ftz.f32", &[least, bits(1.0) - 1]), least);
    assert_eq!(run("ex2.approx.ftz.f32", &[bits(-127.0)]), 0);
    assert_eq!(run("ex2.approx.f32", &[bits(-127.0)]), 0x0040_0000);
}

#[test]
fn upper_halves_of_doubles() {
    for value in [1.0f64, 3.0, -1e300, 1e-300] {
        let result = run("rcp.approx.ftz.f64", &[value.to_bits() | 0xffff]);
        assert_eq!(result & 0xffff_ffff, 0);
        assert!((f64::from_bits(result) * value - 1.0).abs() < 2f64.powi(-19), "{value}");
    }
    assert_eq!(run("rcp.approx.ftz.f64", &[1]), f64::INFINITY.to_bits());
    assert_eq!(run("rsqrt.approx.ftz.f64", &[4f64.to_bits()]), 0.5f64.to_bits());
    assert_eq!(run("rsqrt.approx.f64", &[4f64.to_bits()]), 0.5f64.to_bits());
}

/// A value in another format.
fn nearest<T: Float>(value: f64) -> u64
where
    Double: FloatConvert<T>,
{
    let value: T = Double::from_bits(value.to_bits().into()).convert(&mut false).value;
    value.to_bits() as u64
}

/// Every half there is.
#[test]
fn approximations_of_halves() {
    for bits in 0..=u16::MAX {
        let half = |value: f64| if value.is_nan() { 0x7fff } else { nearest::<Half>(value) };
        let brain = |value: f64| if value.is_nan() { 0x7fff } else { nearest::<BFloat>(value) };
        let value = half::f16::from_bits(bits).to_f64();
        assert_eq!(run("ex2.approx.f16", &[bits.into()]), half(value.exp2()), "{bits:x}");
        assert_eq!(run("tanh.approx.f16", &[bits.into()]), half(value.tanh()), "{bits:x}");
        let value = half::bf16::from_bits(bits).to_f64();
        assert_eq!(run("tanh.approx.bf16", &[bits.into()]), brain(value.tanh()), "{bits:x}");
        let result = run("ex2.approx.ftz.bf16", &[bits.into()]);
        assert_eq!(result, BF16.flushed(brain(value.exp2())), "{bits:x}");
    }
}

/// Half of the last place, twice, is one of it, unless each sum is rounded.
#[test]
fn sums_of_halves_are_rounded_once() {
    let sum = |type_name: &str, words: [u64; 3]| crate::alu::sum_in_f32(type_name).unwrap()(&words);
    assert_eq!(sum("bf16x2", [0x3f80_4000, 0x3b80_3f80, 0x3b80_3f80]), 0x3f81_4080);
    assert_eq!(sum("f16x2", [0x3c00_4000, 0x1000_3c00, 0x1000_3c00]), 0x3c01_4400);
    assert_eq!(sum("f16", [0x3c00, 0x1000, 0x1000]), 0x3c01);
    assert!(crate::alu::sum_in_f32("f32").is_none());
}
