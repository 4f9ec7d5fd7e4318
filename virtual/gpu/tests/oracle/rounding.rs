//! Rounding on the host, from what a result lacks to be exact, and formats of few bits.

use core::ops::{Add, Sub};

/// A result to nearest, toward zero, up and down, from the nearest one and something of the sign of what it lacks.
pub(crate) fn directions<F: Float>(nearest: F, lacks: F) -> [F; 4] {
    let up = if lacks > F::ZERO { nearest.up() } else { nearest };
    let down = if lacks < F::ZERO { nearest.down() } else { nearest };
    [nearest, if nearest > F::ZERO { down } else { up }, up, down]
}

/// Knuth: a sum, and exactly what it lacks.
fn two_sum<F: Float>(a: F, b: F) -> (F, F) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// A number of 32 or 64 bits.
pub(crate) trait Float: Copy + PartialOrd + Add<Output = Self> + Sub<Output = Self> {
    const ZERO: Self;
    fn up(self) -> Self;
    fn down(self) -> Self;
    /// This and the others are results in the four [`directions`], which are neither zero nor close to the ends of the range.
    fn sum(a: Self, b: Self) -> [Self; 4];
    fn product(a: Self, b: Self) -> [Self; 4];
    fn quotient(a: Self, b: Self) -> [Self; 4];
    fn root(a: Self) -> [Self; 4];
    fn fused(a: Self, b: Self, c: Self) -> [Self; 4];
}

macro_rules! float {
    ($float:ident) => {
        impl Float for $float {
            const ZERO: Self = 0.0;

            fn up(self) -> Self {
                self.next_up()
            }

            fn down(self) -> Self {
                self.next_down()
            }

            fn sum(a: Self, b: Self) -> [Self; 4] {
                let (sum, lacks) = two_sum(a, b);
                directions(sum, lacks)
            }

            fn product(a: Self, b: Self) -> [Self; 4] {
                directions(a * b, a.mul_add(b, -(a * b)))
            }

            fn quotient(a: Self, b: Self) -> [Self; 4] {
                directions(a / b, (-(a / b)).mul_add(b, a) * b.signum())
            }

            fn root(a: Self) -> [Self; 4] {
                directions(a.sqrt(), (-a.sqrt()).mul_add(a.sqrt(), a))
            }

            fn fused(a: Self, b: Self, c: Self) -> [Self; 4] {
                // Boldo and Muller, Exact and approximated error of the FMA: the sign of what is left is right.
                let nearest = a.mul_add(b, c);
                let (product, rest) = (a * b, a.mul_add(b, -(a * b)));
                let (first, left) = two_sum(c, rest);
                let (second, more) = two_sum(product, first);
                directions(nearest, ((second - nearest) + more) + left)
            }
        }
    };
}

float!(f32);
float!(f64);

/// A format of few bits.
#[derive(Clone, Copy)]
pub(crate) struct Format {
    /// Bits of the fraction.
    fraction: i32,
    /// The exponent of the smallest normal number.
    least: i32,
}

pub(crate) const F16: Format = Format { fraction: 10, least: -14 };
pub(crate) const BF16: Format = Format { fraction: 7, least: -126 };
pub(crate) const E4M3: Format = Format { fraction: 3, least: -6 };
pub(crate) const E5M2: Format = Format { fraction: 2, least: -14 };

fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

impl Format {
    /// The bits of a number, without its sign; `whole` makes it a whole number of the format's steps.
    fn magnitude(self, value: f64, whole: impl Fn(f64) -> f64) -> u32 {
        let exponent = ((value.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(self.least);
        let steps = whole(value / power(exponent - self.fraction)).abs() as u32;
        // A carry into the exponent is right as it is, and so is a number without the leading bit.
        steps + (((exponent - self.least) as u32) << self.fraction)
    }

    /// The bits of a finite number, of `sign` bits below the sign.
    pub(crate) fn bits(self, value: f64, sign: u32, whole: impl Fn(f64) -> f64) -> u16 {
        (u32::from(value.is_sign_negative()) << sign | self.magnitude(value, whole)) as u16
    }

    /// The number that bits below the sign stand for.
    pub(crate) fn value(self, bits: u32) -> f64 {
        let (exponent, fraction) = (bits >> self.fraction, bits & ((1 << self.fraction) - 1));
        let leading = if exponent == 0 { 0.0 } else { 1.0 };
        let steps = f64::from(fraction) * power(-self.fraction) + leading;
        steps * power(exponent.max(1) as i32 - 1 + self.least)
    }
}
