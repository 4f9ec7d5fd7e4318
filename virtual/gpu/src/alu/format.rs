//! Floating-point formats: values in registers, and results rounded once.
//!
//! Every value of the formats up to `f32` is an `f64`, so that their arithmetic goes through it. A result that an `f64`
//! cannot hold is rounded to odd: towards zero, the last bit set. From there rounding to a format of two bits less gives
//! what rounding the exact result gives (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).

use rustc_apfloat::ieee::Double;
use rustc_apfloat::{Float, Round as ApRound};

/// How a result between two values is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// To the nearest, of two the even.
    Nearest,
    /// To the nearest, of two the one further from zero.
    Away,
    /// Towards zero.
    Zero,
    /// Towards negative infinity.
    Down,
    /// Towards positive infinity.
    Up,
}

/// A floating-point format, as IEEE 754 lays them out. Bits are those of the format; functions take no others, and give no
/// others.
pub(super) trait Format {
    /// All bits.
    const WIDTH: u32;
    /// Bits behind the point.
    const FRACTION: u32;
    /// Infinity; the first value that is too great in a format without.
    const INFINITY: u64 = ((1 << (Self::WIDTH - 1 - Self::FRACTION)) - 1) << Self::FRACTION;
    /// The result that is not a number.
    const NAN: u64 = Self::SIGN - 1;

    /// The sign bit.
    const SIGN: u64 = 1 << (Self::WIDTH - 1);
    /// The exponent of one, as encoded.
    const BIAS: i32 = (1 << (Self::WIDTH - 2 - Self::FRACTION)) - 1;
    /// The least normal number.
    const LEAST_NORMAL: u64 = 1 << Self::FRACTION;
    /// One.
    const ONE: u64 = (Self::BIAS as u64) << Self::FRACTION;

    /// Whether it is not a number.
    #[inline(always)]
    fn is_nan(bits: u64) -> bool {
        bits & !Self::SIGN > Self::INFINITY
    }

    /// The result for an operand that is not a number.
    #[inline(always)]
    fn quiet(_: u64) -> u64 {
        Self::NAN
    }

    /// The value, which an `f64` holds exactly.
    #[inline(always)]
    fn widen(bits: u64) -> f64 {
        let magnitude = bits & !Self::SIGN;
        let sign = (bits & Self::SIGN) << (64 - Self::WIDTH);
        let value = if magnitude >= Self::INFINITY {
            if magnitude > Self::INFINITY || Self::NAN == Self::INFINITY { f64::NAN } else { f64::INFINITY }
        } else if magnitude < Self::LEAST_NORMAL {
            magnitude as f64 * power_of_two(1 - Self::BIAS - Self::FRACTION as i32)
        } else {
            f64::from_bits((magnitude << (52 - Self::FRACTION)) + ((1023 - Self::BIAS as u64) << 52))
        };
        f64::from_bits(value.to_bits() | sign)
    }

    /// A value, rounded.
    #[inline(always)]
    fn narrow(value: f64, round: Round) -> u64 {
        let negative = value.is_sign_negative();
        let bits = value.abs().to_bits();
        if bits >= F64::INFINITY {
            return if value.is_nan() { Self::NAN } else { signed::<Self>(negative, Self::INFINITY) };
        }
        if Self::WIDTH == F32::WIDTH && round == Round::Nearest {
            return (value as f32).to_bits().into();
        }
        let least_normal = power_of_two(1 - Self::BIAS);
        if value.abs() < least_normal {
            if round == Round::Nearest {
                // The last place of this `f64` is that of subnormal numbers, so that the addition rounds.
                let places = least_normal * power_of_two(52 - Self::FRACTION as i32);
                return signed::<Self>(negative, (value.abs() + places).to_bits() - places.to_bits());
            }
            let (significand, exponent) = split(value);
            return encode::<Self>(negative, significand, exponent, round);
        }
        let dropped = 52 - Self::FRACTION;
        let all = (1 << dropped) - 1;
        let up = match round {
            Round::Nearest => (all >> 1) + (bits >> dropped & 1),
            Round::Away => (all >> 1) + 1,
            Round::Down if negative => all,
            Round::Up if !negative => all,
            _ => 0,
        };
        let magnitude = ((bits + up) >> dropped) - ((1023 - Self::BIAS as u64) << Self::FRACTION);
        if magnitude < Self::INFINITY { signed::<Self>(negative, magnitude) } else { overflow::<Self>(negative, round) }
    }

    /// `a + b`.
    #[inline(always)]
    fn add(a: u64, b: u64, round: Round) -> u64 {
        Self::narrow(sum(Self::widen(a), Self::widen(b), round), round)
    }

    /// `a * b`.
    #[inline(always)]
    fn mul(a: u64, b: u64, round: Round) -> u64 {
        // Of at most 2 * 24 bits, and no exponent is beyond those of `f64`.
        Self::narrow(Self::widen(a) * Self::widen(b), round)
    }

    /// `a * b + c`, rounded once.
    #[inline(always)]
    fn fma(a: u64, b: u64, c: u64, round: Round) -> u64 {
        Self::narrow(sum(Self::widen(a) * Self::widen(b), Self::widen(c), round), round)
    }
}

/// A format with instructions that divide and take roots.
pub(super) trait Divides: Format {
    /// `a / b`.
    fn div(a: u64, b: u64, round: Round) -> u64;

    /// The square root.
    fn sqrt(a: u64, round: Round) -> u64;
}

/// `f16`.
pub(super) enum F16 {}

impl Format for F16 {
    const WIDTH: u32 = 16;
    const FRACTION: u32 = 10;
}

/// `bf16`.
pub(super) enum Bf16 {}

impl Format for Bf16 {
    const WIDTH: u32 = 16;
    const FRACTION: u32 = 7;
}

/// `tf32`, without the 13 zeros that follow in a register.
pub(super) enum Tf32 {}

impl Format for Tf32 {
    const WIDTH: u32 = 19;
    const FRACTION: u32 = 10;
}

/// `e5m2`.
pub(super) enum E5m2 {}

impl Format for E5m2 {
    const WIDTH: u32 = 8;
    const FRACTION: u32 = 2;
}

/// `e4m3`, which has no infinity.
pub(super) enum E4m3 {}

impl Format for E4m3 {
    const WIDTH: u32 = 8;
    const FRACTION: u32 = 3;
    const INFINITY: u64 = 0x7f;

    #[inline(always)]
    fn is_nan(bits: u64) -> bool {
        bits & 0x7f == 0x7f
    }
}

/// `f32`.
pub(super) enum F32 {}

impl F32 {
    #[inline(always)]
    fn of(bits: u64) -> f32 {
        f32::from_bits(bits as u32)
    }

    #[inline(always)]
    fn bits(value: f32) -> u64 {
        if value.is_nan() { Self::NAN } else { value.to_bits().into() }
    }
}

impl Format for F32 {
    const WIDTH: u32 = 32;
    const FRACTION: u32 = 23;

    #[inline(always)]
    fn widen(bits: u64) -> f64 {
        Self::of(bits).into()
    }

    #[inline(always)]
    fn add(a: u64, b: u64, round: Round) -> u64 {
        if round == Round::Nearest {
            return Self::bits(Self::of(a) + Self::of(b));
        }
        Self::narrow(sum(Self::widen(a), Self::widen(b), round), round)
    }

    #[inline(always)]
    fn mul(a: u64, b: u64, round: Round) -> u64 {
        if round == Round::Nearest {
            return Self::bits(Self::of(a) * Self::of(b));
        }
        Self::narrow(Self::widen(a) * Self::widen(b), round)
    }
}

impl Divides for F32 {
    #[inline(always)]
    fn div(a: u64, b: u64, round: Round) -> u64 {
        if round == Round::Nearest {
            return Self::bits(Self::of(a) / Self::of(b));
        }
        let (a, b) = (Self::widen(a), Self::widen(b));
        let quotient = a / b;
        if !quotient.is_finite() || !b.is_finite() {
            return Self::narrow(quotient, round);
        }
        // The remainder is exact, and of the sign of what the quotient lacks if the divisor is positive.
        let remainder = (-quotient).mul_add(b, a);
        Self::narrow(to_odd(quotient, if b < 0.0 { -remainder } else { remainder }), round)
    }

    #[inline(always)]
    fn sqrt(a: u64, round: Round) -> u64 {
        if round == Round::Nearest {
            return Self::bits(Self::of(a).sqrt());
        }
        let a = Self::widen(a);
        let root = a.sqrt();
        if !root.is_finite() {
            return Self::narrow(root, round);
        }
        Self::narrow(to_odd(root, (-root).mul_add(root, a)), round)
    }
}

/// `f64`.
pub(super) enum F64 {}

impl F64 {
    /// `native` for rounding to nearest, `exact` for all other.
    #[inline(always)]
    fn choose(operands: &[u64], round: Round, native: impl Fn() -> f64, exact: impl Fn(ApRound) -> Double) -> u64 {
        if let Some(&nan) = operands.iter().find(|&&operand| Self::is_nan(operand)) {
            return Self::quiet(nan);
        }
        let result = match round {
            Round::Nearest => native().to_bits(),
            Round::Away => exact(ApRound::NearestTiesToAway).to_bits() as u64,
            Round::Zero => exact(ApRound::TowardZero).to_bits() as u64,
            Round::Down => exact(ApRound::TowardNegative).to_bits() as u64,
            Round::Up => exact(ApRound::TowardPositive).to_bits() as u64,
        };
        if Self::is_nan(result) { Self::NAN } else { result }
    }
}

/// The same value elsewhere.
fn double(bits: u64) -> Double {
    Double::from_bits(bits.into())
}

impl Format for F64 {
    const WIDTH: u32 = 64;
    const FRACTION: u32 = 52;
    const NAN: u64 = 0xfff8_0000_0000_0000;

    #[inline(always)]
    fn quiet(nan: u64) -> u64 {
        nan | 1 << 51
    }

    #[inline(always)]
    fn widen(bits: u64) -> f64 {
        f64::from_bits(bits)
    }

    #[inline(always)]
    fn narrow(value: f64, _: Round) -> u64 {
        if value.is_nan() { Self::NAN } else { value.to_bits() }
    }

    fn add(a: u64, b: u64, round: Round) -> u64 {
        let native = || f64::from_bits(a) + f64::from_bits(b);
        Self::choose(&[a, b], round, native, |to| double(a).add_r(double(b), to).value)
    }

    fn mul(a: u64, b: u64, round: Round) -> u64 {
        let native = || f64::from_bits(a) * f64::from_bits(b);
        Self::choose(&[a, b], round, native, |to| double(a).mul_r(double(b), to).value)
    }

    fn fma(a: u64, b: u64, c: u64, round: Round) -> u64 {
        let native = || f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c));
        Self::choose(&[a, b, c], round, native, |to| double(a).mul_add_r(double(b), double(c), to).value)
    }
}

impl Divides for F64 {
    fn div(a: u64, b: u64, round: Round) -> u64 {
        let native = || f64::from_bits(a) / f64::from_bits(b);
        Self::choose(&[a, b], round, native, |to| double(a).div_r(double(b), to).value)
    }

    fn sqrt(a: u64, round: Round) -> u64 {
        let root = f64::from_bits(a).sqrt();
        Self::choose(&[a], round, || root, |to| double(directed_root(a, root, to)))
    }
}

/// `root`, the square root rounded to nearest, rounded otherwise.
fn directed_root(a: u64, root: f64, to: ApRound) -> u64 {
    if !root.is_finite() || root == 0.0 {
        return root.to_bits();
    }
    // The square of a root of a small number has bits below those of `f64`. A power of four changes nothing else.
    let scale = if f64::from_bits(a) < power_of_two(-900) { power_of_two(120) } else { 1.0 };
    let (scaled, root_scaled) = (f64::from_bits(a) * scale * scale, root * scale);
    let lacks = (-root_scaled).mul_add(root_scaled, scaled);
    match to {
        ApRound::TowardPositive if lacks > 0.0 => root.to_bits() + 1,
        ApRound::TowardZero | ApRound::TowardNegative if lacks < 0.0 => root.to_bits() - 1,
        _ => root.to_bits(),
    }
}

/// 2 to the `exponent`, a normal number.
#[inline(always)]
pub(super) const fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// A magnitude with its sign.
#[inline(always)]
pub(super) fn signed<F: Format + ?Sized>(negative: bool, magnitude: u64) -> u64 {
    magnitude | if negative { F::SIGN } else { 0 }
}

/// A finite value's magnitude as `significand * 2^exponent`.
#[inline(always)]
pub(super) fn split(value: f64) -> (u64, i32) {
    let bits = value.to_bits() & !F64::SIGN;
    let fraction = bits & (F64::LEAST_NORMAL - 1);
    match (bits >> 52) as i32 {
        0 => (fraction, -1074),
        biased => (fraction | F64::LEAST_NORMAL, biased - 1075),
    }
}

/// `significand * 2^exponent`, rounded.
#[inline(always)]
pub(super) fn encode<F: Format + ?Sized>(negative: bool, significand: u64, exponent: i32, round: Round) -> u64 {
    if significand == 0 {
        return signed::<F>(negative, 0);
    }
    let least = 1 - F::BIAS;
    let leading = exponent + significand.ilog2() as i32;
    let binade = leading.max(least);
    // Bits that go, beyond 66 all alike: below half of the last place.
    let dropped = (binade - F::FRACTION as i32 - exponent).min(66);
    let kept = if dropped <= 0 {
        significand << -dropped
    } else {
        let significand = u128::from(significand);
        let (kept, rest, half) =
            ((significand >> dropped) as u64, significand & ((1 << dropped) - 1), 1u128 << (dropped - 1));
        let up = match round {
            Round::Nearest => rest > half || rest == half && kept & 1 == 1,
            Round::Away => rest >= half,
            Round::Zero => false,
            Round::Down => negative && rest != 0,
            Round::Up => !negative && rest != 0,
        };
        kept + u64::from(up)
    };
    // The leading bit of `kept` adds one to the exponent, and so does one carried beyond it.
    let magnitude = (((binade - least) as u64) << F::FRACTION) + kept;
    if magnitude < F::INFINITY {
        return signed::<F>(negative, magnitude);
    }
    overflow::<F>(negative, round)
}

/// What is beyond the greatest number.
fn overflow<F: Format + ?Sized>(negative: bool, round: Round) -> u64 {
    let to_infinity = match round {
        Round::Nearest | Round::Away => true,
        Round::Zero => false,
        Round::Down => negative,
        Round::Up => !negative,
    };
    signed::<F>(negative, if to_infinity { F::INFINITY } else { F::INFINITY - 1 })
}

/// `a + b` rounded to odd; of values whose sum is no `f64` beyond the greatest or below the least normal one.
#[inline(always)]
fn sum(a: f64, b: f64, round: Round) -> f64 {
    let sum = a + b;
    if sum == 0.0 {
        let (first, second) = (a.is_sign_negative(), b.is_sign_negative());
        let negative = if first == second { first } else { round == Round::Down };
        return if negative { -0.0 } else { 0.0 };
    }
    if !sum.is_finite() {
        return sum;
    }
    // What the sum lacks, exactly (Knuth's two-sum).
    let b_part = sum - a;
    to_odd(sum, (a - (sum - b_part)) + (b - b_part))
}

/// `value`, the nearest to an exact result that is greater by something of the sign of `lacks`, rounded to odd.
#[inline(always)]
fn to_odd(value: f64, lacks: f64) -> f64 {
    let bits = value.to_bits();
    if lacks == 0.0 || bits & 1 == 1 {
        return value;
    }
    let outwards = (lacks > 0.0) == (value > 0.0);
    f64::from_bits(if outwards { bits + 1 } else { bits - 1 })
}
