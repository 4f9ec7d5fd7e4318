//! Logic, shifts and bit fields.

use super::integer::Integer;
use super::{Function, low};

/// A function of words for the type of bits with a name.
macro_rules! for_bits {
    ($name:expr, $kind:path, $function:ident) => {
        match $name {
            "b16" => Some($kind($function::<u16>)),
            "b32" => Some($kind($function::<u32>)),
            "b64" => Some($kind($function::<u64>)),
            _ => None,
        }
    };
}

/// The function of an instruction on bits.
pub(super) fn function(opcode: &str, words: &[&str]) -> Option<Function> {
    use super::{four, one, three, two};
    match (opcode, words) {
        ("and", ["pred" | "b16" | "b32" | "b64"]) => Some(two(|a, b| a & b)),
        ("or", ["pred" | "b16" | "b32" | "b64"]) => Some(two(|a, b| a | b)),
        ("xor", ["pred" | "b16" | "b32" | "b64"]) => Some(two(|a, b| a ^ b)),
        ("not", ["pred"]) => Some(one(|a| a ^ 1)),
        ("not", [of]) => for_bits!(*of, one, not),
        ("cnot", ["b16" | "b32" | "b64"]) => Some(one(|a| u64::from(a == 0))),
        ("lop3", ["b32"] | ["and" | "or", "b32"]) => Some(four(lop3)),
        ("shl", [of]) => for_bits!(*of, two, shl),
        ("shr", [of]) => shr(of),
        ("shf", ["l", "clamp", "b32"]) => Some(three(|a, b, c| shf_left(a, b, low(c, 32).min(32)))),
        ("shf", ["l", "wrap", "b32"]) => Some(three(|a, b, c| shf_left(a, b, c & 31))),
        ("shf", ["r", "clamp", "b32"]) => Some(three(|a, b, c| shf_right(a, b, low(c, 32).min(32)))),
        ("shf", ["r", "wrap", "b32"]) => Some(three(|a, b, c| shf_right(a, b, c & 31))),
        ("prmt", ["b32", mode @ ..]) => prmt(mode),
        ("popc", ["b32" | "b64"]) => Some(one(|a| u64::from(a.count_ones()))),
        ("clz", ["b32"]) => Some(one(|a| u64::from((a as u32).leading_zeros()))),
        ("clz", ["b64"]) => Some(one(|a| u64::from(a.leading_zeros()))),
        ("brev", ["b32"]) => Some(one(|a| u64::from((a as u32).reverse_bits()))),
        ("brev", ["b64"]) => Some(one(u64::reverse_bits)),
        ("bfind", _) => bfind(words),
        ("fns", ["b32"]) => Some(three(fns)),
        ("bfe", ["u32"]) => Some(three(bfe::<u32>)),
        ("bfe", ["u64"]) => Some(three(bfe::<u64>)),
        ("bfe", ["s32"]) => Some(three(bfe::<i32>)),
        ("bfe", ["s64"]) => Some(three(bfe::<i64>)),
        ("bfi", ["b32"]) => Some(four(bfi::<u32>)),
        ("bfi", ["b64"]) => Some(four(bfi::<u64>)),
        ("bmsk", ["clamp", "b32"]) => Some(two(|a, b| bmsk(low(a, 32).min(32), low(b, 32).min(32)))),
        ("bmsk", ["wrap", "b32"]) => Some(two(|a, b| bmsk(a & 31, b & 31))),
        ("szext", ["clamp", "u32"]) => Some(two(|a, b| szext::<u32>(a, low(b, 32).min(32)))),
        ("szext", ["clamp", "s32"]) => Some(two(|a, b| szext::<i32>(a, low(b, 32).min(32)))),
        ("szext", ["wrap", "u32"]) => Some(two(|a, b| szext::<u32>(a, b & 31))),
        ("szext", ["wrap", "s32"]) => Some(two(|a, b| szext::<i32>(a, b & 31))),
        _ => None,
    }
}

fn not<T: Integer>(a: u64) -> u64 {
    low(!a, T::BITS)
}

/// Bit `i` of the result is bit `4a + 2b + c` of the table, of the bits `i` of the operands.
fn lop3(a: u64, b: u64, c: u64, table: u64) -> u64 {
    let row = |row: u32| 0u64.wrapping_sub(table >> row & 1);
    let choose = |by: u64, zero: u64, one: u64| zero ^ by & (zero ^ one);
    let of_c = |first: u32| choose(c, row(first), row(first + 1));
    let of_b = |first: u32| choose(b, of_c(first), of_c(first + 2));
    low(choose(a, of_b(0), of_b(4)), 32)
}

/// Zero if all bits go.
fn shl<T: Integer>(a: u64, by: u64) -> u64 {
    if by < u64::from(T::BITS) { low(a << by, T::BITS) } else { 0 }
}

/// Shifts of more than the width shift by the width.
fn shr_by<T: Integer>(a: u64, by: u64) -> u64 {
    T::wrap(T::value(a) >> by.min(u64::from(T::BITS)))
}

fn shr(of: &str) -> Option<Function> {
    match of {
        "b16" | "u16" => Some(super::two(shr_by::<u16>)),
        "b32" | "u32" => Some(super::two(shr_by::<u32>)),
        "b64" | "u64" => Some(super::two(shr_by::<u64>)),
        "s16" => Some(super::two(shr_by::<i16>)),
        "s32" => Some(super::two(shr_by::<i32>)),
        "s64" => Some(super::two(shr_by::<i64>)),
        _ => None,
    }
}

/// The upper word of `b:a` shifted left, `by` at most 32.
fn shf_left(a: u64, b: u64, by: u64) -> u64 {
    low((b << 32 | a) << by >> 32, 32)
}

/// The lower word of `b:a` shifted right, `by` at most 32.
fn shf_right(a: u64, b: u64, by: u64) -> u64 {
    low((b << 32 | a) >> by, 32)
}

fn prmt(mode: &[&str]) -> Option<Function> {
    use super::three;
    match mode {
        [] => Some(three(|a, b, c| {
            permute(a, b, |place| {
                let selector = c >> (4 * place);
                (selector & 7, selector & 8 != 0)
            })
        })),
        ["f4e"] => Some(three(|a, b, c| permute(a, b, |place| ((c & 3) + place, false)))),
        ["b4e"] => Some(three(|a, b, c| permute(a, b, |place| (((c & 3) + 8 - place) & 7, false)))),
        ["rc8"] => Some(three(|a, b, c| permute(a, b, |_| (c & 3, false)))),
        ["ecl"] => Some(three(|a, b, c| permute(a, b, |place| (place.max(c & 3), false)))),
        ["ecr"] => Some(three(|a, b, c| permute(a, b, |place| (place.min(c & 3), false)))),
        ["rc16"] => Some(three(|a, b, c| permute(a, b, |place| ((c & 1) * 2 + (place & 1), false)))),
        _ => None,
    }
}

/// Four bytes of `b:a`; `choose` names one for each place, and whether its sign replaces it.
fn permute(a: u64, b: u64, choose: impl Fn(u64) -> (u64, bool)) -> u64 {
    let all = b << 32 | a;
    (0..4).fold(0, |bits, place| {
        let (byte, sign) = choose(place);
        let byte = (all >> (8 * byte)) as u8;
        let byte = if sign { (byte as i8 >> 7) as u8 } else { byte };
        bits | u64::from(byte) << (8 * place)
    })
}

fn bfind(words: &[&str]) -> Option<Function> {
    use super::one;
    match words {
        ["u32"] => Some(one(|a| most_significant(u64::from(a as u32)))),
        ["u64"] => Some(one(most_significant)),
        ["s32"] => Some(one(|a| most_significant(magnitude(a as i32 as i64)))),
        ["s64"] => Some(one(|a| most_significant(magnitude(a as i64)))),
        ["shiftamt", "u32"] => Some(one(|a| shift_amount(most_significant(u64::from(a as u32)), 31))),
        ["shiftamt", "u64"] => Some(one(|a| shift_amount(most_significant(a), 63))),
        ["shiftamt", "s32"] => Some(one(|a| shift_amount(most_significant(magnitude(a as i32 as i64)), 31))),
        ["shiftamt", "s64"] => Some(one(|a| shift_amount(most_significant(magnitude(a as i64)), 63))),
        _ => None,
    }
}

/// What `bfind` gives where there is no bit to find.
const NOT_FOUND: u64 = 0xffff_ffff;

/// The bits that differ from the sign.
fn magnitude(value: i64) -> u64 {
    (value ^ (value >> 63)) as u64
}

fn most_significant(bits: u64) -> u64 {
    bits.checked_ilog2().map_or(NOT_FOUND, u64::from)
}

/// How far to shift left for the bit found to come to the top.
fn shift_amount(found: u64, top: u64) -> u64 {
    if found == NOT_FOUND { NOT_FOUND } else { top - found }
}

/// The place of the n-th set bit from `base` on, upwards or (negative) downwards; `base` itself for zero, if it is set.
fn fns(mask: u64, base: u64, offset: u64) -> u64 {
    let (offset, base) = (offset as i32, low(base, 32));
    let set = |place: &u64| mask >> place & 1 == 1;
    let nth = offset.unsigned_abs().saturating_sub(1) as usize;
    let found = match offset {
        _ if base > 31 => None,
        0 => Some(base).filter(set),
        1.. => (base..32).filter(set).nth(nth),
        _ => (0..=base).rev().filter(set).nth(nth),
    };
    found.unwrap_or(NOT_FOUND)
}

/// `length` bits from `position` on, of which PTX reads 8 bits each. A signed field that reaches past the top is filled with
/// the sign of the whole.
fn bfe<T: Integer>(a: u64, position: u64, length: u64) -> u64 {
    let (position, length) = ((position & 255) as u32, (length & 255) as u32);
    if length == 0 {
        return 0;
    }
    let field = T::value(a) >> position.min(T::BITS);
    if length >= T::BITS {
        return T::wrap(field);
    }
    let unused = 128 - length;
    let top = field << unused;
    T::wrap(if T::MIN < 0 { top >> unused } else { (top as u128 >> unused) as i128 })
}

/// `b` with `length` bits of `a` at `position`.
fn bfi<T: Integer>(a: u64, b: u64, position: u64, length: u64) -> u64 {
    let (position, length) = ((position & 255) as u32, (length & 255).min(64) as u32);
    if length == 0 || position >= T::BITS {
        return b;
    }
    let mask = low(u64::MAX, length) << position;
    low(b & !mask | a << position & mask, T::BITS)
}

/// `length` ones from `position` on.
fn bmsk(position: u64, length: u64) -> u64 {
    low(((1 << length) - 1) << position, 32)
}

/// The low `length` bits, extended.
fn szext<T: Integer>(a: u64, length: u64) -> u64 {
    bfe::<T>(a, 0, length)
}
