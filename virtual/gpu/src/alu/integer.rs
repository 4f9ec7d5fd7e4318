//! Integer arithmetic.

use super::{Carry, Function, low};

/// An integer type: what a register holds of it, and its value.
pub(super) trait Integer: Copy {
    /// Its width.
    const BITS: u32;
    /// The least value.
    const MIN: i128;
    /// The greatest value.
    const MAX: i128;

    /// The value in a register.
    fn value(register: u64) -> i128;

    /// The register that holds a value, modulo 2 to the width.
    #[inline(always)]
    fn wrap(value: i128) -> u64 {
        low(value as u64, Self::BITS)
    }

    /// The register that holds the value nearest to a whole number.
    fn saturate(value: f64) -> u64;

    /// The register that holds the nearest value.
    #[inline(always)]
    fn nearest(value: i128) -> u64 {
        Self::wrap(value.clamp(Self::MIN, Self::MAX))
    }
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Integer for $type {
            const BITS: u32 = <$type>::BITS;
            const MIN: i128 = <$type>::MIN as i128;
            const MAX: i128 = <$type>::MAX as i128;

            #[inline(always)]
            fn value(register: u64) -> i128 {
                i128::from(register as $type)
            }

            #[inline(always)]
            fn saturate(value: f64) -> u64 {
                low(value as $type as u64, Self::BITS)
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 i8 i16 i32 i64);

/// A generic function for the integer type with a name.
macro_rules! for_integer {
    ($name:expr, $kind:path, $function:ident) => {
        match $name {
            "u16" => Some($kind($function::<u16>)),
            "u32" => Some($kind($function::<u32>)),
            "u64" => Some($kind($function::<u64>)),
            "s16" => Some($kind($function::<i16>)),
            "s32" => Some($kind($function::<i32>)),
            "s64" => Some($kind($function::<i64>)),
            _ => None,
        }
    };
}

/// The function of an integer instruction.
pub(super) fn function(opcode: &str, words: &[&str]) -> Option<Function> {
    use super::{one, three, two};
    match (opcode, words) {
        ("add", ["sat", "s32"]) => Some(two(|a, b| i32::nearest(i32::value(a) + i32::value(b)))),
        ("sub", ["sat", "s32"]) => Some(two(|a, b| i32::nearest(i32::value(a) - i32::value(b)))),
        ("add", ["u16x2" | "s16x2"]) => Some(two(|a, b| super::both(16, |at| add::<u16>(a >> at, b >> at)))),
        ("add", [of]) => for_integer!(*of, two, add),
        ("sub", [of]) => for_integer!(*of, two, sub),
        ("mul", ["lo", of]) => for_integer!(*of, two, mul_lo),
        ("mul", ["hi", of]) => for_integer!(*of, two, mul_hi),
        ("mul", ["wide", of]) if !of.ends_with("64") => for_integer!(*of, two, mul_wide),
        ("mad", ["hi", "sat", "s32"]) => Some(three(|a, b, c| i32::nearest(high::<i32>(a, b) + i32::value(c)))),
        ("mad", ["lo", of]) => for_integer!(*of, three, mad_lo),
        ("mad", ["hi", of]) => for_integer!(*of, three, mad_hi),
        ("mad", ["wide", of]) if !of.ends_with("64") => for_integer!(*of, three, mad_wide),
        ("mul24", [part, of]) => mul24(part, of),
        ("mad24", parts) => mad24(parts),
        ("sad", [of]) => for_integer!(*of, three, sad),
        ("div", [of]) => for_integer!(*of, two, div),
        ("rem", [of]) => for_integer!(*of, two, rem),
        ("abs", [of]) if of.starts_with('s') => for_integer!(*of, one, abs),
        ("neg", [of]) if of.starts_with('s') => for_integer!(*of, one, neg),
        ("min" | "max", _) => extremum(opcode, words),
        ("dp4a", [a, b]) => dp4a(a, b),
        ("dp2a", [part, a, b]) => dp2a(part, a, b),
        _ => None,
    }
}

/// The arithmetic of an instruction that reads or writes the carry flag.
pub(super) fn carry(opcode: &str, words: &[&str]) -> Option<Carry> {
    let (writes, words) = match words {
        [parts @ .., "cc", of] => (true, [parts, &[*of]].concat()),
        other => (false, other.to_vec()),
    };
    macro_rules! for_width {
        ($name:expr, $function:ident, $($flags:tt),*) => {
            match $name {
                "u32" => Some($function::<u32, $($flags),*> as Carry),
                "s32" => Some($function::<i32, $($flags),*> as Carry),
                "u64" => Some($function::<u64, $($flags),*> as Carry),
                "s64" => Some($function::<i64, $($flags),*> as Carry),
                _ => None,
            }
        };
    }
    match (opcode, words.as_slice(), writes) {
        ("add", [of], true) => for_width!(*of, add_carry, false, true),
        ("addc", [of], true) => for_width!(*of, add_carry, true, true),
        ("addc", [of], false) => for_width!(*of, add_carry, true, false),
        ("sub", [of], true) => for_width!(*of, sub_borrow, false, true),
        ("subc", [of], true) => for_width!(*of, sub_borrow, true, true),
        ("subc", [of], false) => for_width!(*of, sub_borrow, true, false),
        ("mad", ["lo", of], true) => for_width!(*of, mad_carry, false, false, true),
        ("mad", ["hi", of], true) => for_width!(*of, mad_carry, true, false, true),
        ("madc", ["lo", of], true) => for_width!(*of, mad_carry, false, true, true),
        ("madc", ["hi", of], true) => for_width!(*of, mad_carry, true, true, true),
        ("madc", ["lo", of], false) => for_width!(*of, mad_carry, false, true, false),
        ("madc", ["hi", of], false) => for_width!(*of, mad_carry, true, true, false),
        _ => None,
    }
}

fn add_carry<T: Integer, const READS: bool, const WRITES: bool>(a: u64, b: u64, _: u64, flag: bool) -> (u64, bool) {
    let sum = u128::from(a) + u128::from(b) + u128::from(READS && flag);
    (T::wrap(sum as i128), if WRITES { sum >> T::BITS != 0 } else { flag })
}

/// The flag after a subtraction is the borrow.
fn sub_borrow<T: Integer, const READS: bool, const WRITES: bool>(a: u64, b: u64, _: u64, flag: bool) -> (u64, bool) {
    let difference = i128::from(a) - i128::from(b) - i128::from(READS && flag);
    (T::wrap(difference), if WRITES { difference < 0 } else { flag })
}

fn mad_carry<T: Integer, const HIGH: bool, const READS: bool, const WRITES: bool>(
    a: u64,
    b: u64,
    c: u64,
    flag: bool,
) -> (u64, bool) {
    let product = if HIGH { mul_hi::<T>(a, b) } else { mul_lo::<T>(a, b) };
    add_carry::<T, READS, WRITES>(product, c, 0, flag)
}

fn add<T: Integer>(a: u64, b: u64) -> u64 {
    low(a.wrapping_add(b), T::BITS)
}

fn sub<T: Integer>(a: u64, b: u64) -> u64 {
    low(a.wrapping_sub(b), T::BITS)
}

fn mul_lo<T: Integer>(a: u64, b: u64) -> u64 {
    low(a.wrapping_mul(b), T::BITS)
}

/// The product, modulo 2 to the 128.
#[inline(always)]
fn product<T: Integer>(a: u64, b: u64) -> i128 {
    T::value(a).wrapping_mul(T::value(b))
}

fn mul_hi<T: Integer>(a: u64, b: u64) -> u64 {
    T::wrap(product::<T>(a, b) >> T::BITS)
}

/// The upper half of the product as a value.
fn high<T: Integer>(a: u64, b: u64) -> i128 {
    T::value(mul_hi::<T>(a, b))
}

fn mul_wide<T: Integer>(a: u64, b: u64) -> u64 {
    low(product::<T>(a, b) as u64, 2 * T::BITS)
}

fn mad_lo<T: Integer>(a: u64, b: u64, c: u64) -> u64 {
    add::<T>(mul_lo::<T>(a, b), c)
}

fn mad_hi<T: Integer>(a: u64, b: u64, c: u64) -> u64 {
    add::<T>(mul_hi::<T>(a, b), c)
}

fn mad_wide<T: Integer>(a: u64, b: u64, c: u64) -> u64 {
    low(mul_wide::<T>(a, b).wrapping_add(c), 2 * T::BITS)
}

fn sad<T: Integer>(a: u64, b: u64, c: u64) -> u64 {
    T::wrap(T::value(c) + (T::value(a) - T::value(b)).abs())
}

/// All ones where the divisor is zero: PTX leaves the value to the machine.
fn div<T: Integer>(a: u64, b: u64) -> u64 {
    T::wrap(T::value(a).checked_div(T::value(b)).unwrap_or(-1))
}

/// All ones where the divisor is zero: PTX leaves the value to the machine.
fn rem<T: Integer>(a: u64, b: u64) -> u64 {
    T::wrap(T::value(a).checked_rem(T::value(b)).unwrap_or(-1))
}

fn abs<T: Integer>(a: u64) -> u64 {
    T::wrap(T::value(a).abs())
}

fn neg<T: Integer>(a: u64) -> u64 {
    T::wrap(-T::value(a))
}

fn min<T: Integer>(a: u64, b: u64) -> u64 {
    T::wrap(T::value(a).min(T::value(b)))
}

fn max<T: Integer>(a: u64, b: u64) -> u64 {
    T::wrap(T::value(a).max(T::value(b)))
}

fn min_x2<T: Integer>(a: u64, b: u64) -> u64 {
    super::both(16, |at| min::<T>(a >> at, b >> at))
}

fn max_x2<T: Integer>(a: u64, b: u64) -> u64 {
    super::both(16, |at| max::<T>(a >> at, b >> at))
}

/// `min` and `max`; with `relu` the result is at least zero.
fn extremum(opcode: &str, words: &[&str]) -> Option<Function> {
    use super::two;
    match (opcode, words) {
        ("min", ["relu", "s32"]) => Some(two(|a, b| max::<i32>(min::<i32>(a, b), 0))),
        ("max", ["relu", "s32"]) => Some(two(|a, b| max::<i32>(max::<i32>(a, b), 0))),
        ("min", ["relu", "s16x2"]) => Some(two(|a, b| max_x2::<i16>(min_x2::<i16>(a, b), 0))),
        ("max", ["relu", "s16x2"]) => Some(two(|a, b| max_x2::<i16>(max_x2::<i16>(a, b), 0))),
        ("min", ["u16x2"]) => Some(two(min_x2::<u16>)),
        ("min", ["s16x2"]) => Some(two(min_x2::<i16>)),
        ("max", ["u16x2"]) => Some(two(max_x2::<u16>)),
        ("max", ["s16x2"]) => Some(two(max_x2::<i16>)),
        ("min", [of]) => for_integer!(*of, two, min),
        ("max", [of]) => for_integer!(*of, two, max),
        _ => None,
    }
}

/// The product of the low 24 bits, 48 bits wide.
fn product24<const SIGNED: bool>(a: u64, b: u64) -> i64 {
    let value = |register: u64| {
        let top = (register << 40) as i64;
        if SIGNED { top >> 40 } else { (top as u64 >> 40) as i64 }
    };
    value(a) * value(b)
}

fn mul24(part: &str, of: &str) -> Option<Function> {
    match (part, of) {
        ("lo", "u32") => Some(super::two(|a, b| low(product24::<false>(a, b) as u64, 32))),
        ("lo", "s32") => Some(super::two(|a, b| low(product24::<true>(a, b) as u64, 32))),
        ("hi", "u32") => Some(super::two(|a, b| low((product24::<false>(a, b) >> 16) as u64, 32))),
        ("hi", "s32") => Some(super::two(|a, b| low((product24::<true>(a, b) >> 16) as u64, 32))),
        _ => None,
    }
}

fn mad24(parts: &[&str]) -> Option<Function> {
    use super::three;
    fn sum<const SIGNED: bool>(a: u64, b: u64, c: u64, shift: u32) -> u64 {
        u32::wrap(i128::from(product24::<SIGNED>(a, b) >> shift) + u32::value(c))
    }
    match parts {
        ["lo", "u32"] => Some(three(|a, b, c| sum::<false>(a, b, c, 0))),
        ["lo", "s32"] => Some(three(|a, b, c| sum::<true>(a, b, c, 0))),
        ["hi", "u32"] => Some(three(|a, b, c| sum::<false>(a, b, c, 16))),
        ["hi", "s32"] => Some(three(|a, b, c| sum::<true>(a, b, c, 16))),
        ["hi", "sat", "s32"] => {
            Some(three(|a, b, c| i32::nearest(i128::from(product24::<true>(a, b) >> 16) + i32::value(c))))
        }
        _ => None,
    }
}

/// The sum of `c` and the products of elements of `a` with the four bytes of `b` from `first` on.
fn dot<A: Integer, B: Integer>(a: u64, b: u64, c: u64, first: u32, count: u32) -> u64 {
    let products = (0..count).map(|i| A::value(a >> (i * A::BITS)) * B::value(b >> ((first + i) * B::BITS)));
    u32::wrap(u32::value(c) + products.sum::<i128>())
}

fn dp4a(a: &str, b: &str) -> Option<Function> {
    use super::three;
    match (a, b) {
        ("u32", "u32") => Some(three(|a, b, c| dot::<u8, u8>(a, b, c, 0, 4))),
        ("u32", "s32") => Some(three(|a, b, c| dot::<u8, i8>(a, b, c, 0, 4))),
        ("s32", "u32") => Some(three(|a, b, c| dot::<i8, u8>(a, b, c, 0, 4))),
        ("s32", "s32") => Some(three(|a, b, c| dot::<i8, i8>(a, b, c, 0, 4))),
        _ => None,
    }
}

fn dp2a(part: &str, a: &str, b: &str) -> Option<Function> {
    use super::three;
    match (part, a, b) {
        ("lo", "u32", "u32") => Some(three(|a, b, c| dot::<u16, u8>(a, b, c, 0, 2))),
        ("lo", "u32", "s32") => Some(three(|a, b, c| dot::<u16, i8>(a, b, c, 0, 2))),
        ("lo", "s32", "u32") => Some(three(|a, b, c| dot::<i16, u8>(a, b, c, 0, 2))),
        ("lo", "s32", "s32") => Some(three(|a, b, c| dot::<i16, i8>(a, b, c, 0, 2))),
        ("hi", "u32", "u32") => Some(three(|a, b, c| dot::<u16, u8>(a, b, c, 2, 2))),
        ("hi", "u32", "s32") => Some(three(|a, b, c| dot::<u16, i8>(a, b, c, 2, 2))),
        ("hi", "s32", "u32") => Some(three(|a, b, c| dot::<i16, u8>(a, b, c, 2, 2))),
        ("hi", "s32", "s32") => Some(three(|a, b, c| dot::<i16, i8>(a, b, c, 2, 2))),
        _ => None,
    }
}
