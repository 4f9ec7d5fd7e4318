//! Comparisons, and the selection by one.

use super::Function;
use super::float::{Lanes, Pair, mode, read};
use super::format::{Bf16, F16, F32, F64, Format};
use super::integer::Integer;
use std::cmp::Ordering;

/// The ways in which two values may compare, as bits of a relation.
const LESS: u8 = 1;
const EQUAL: u8 = 2;
const GREATER: u8 = 4;
const UNORDERED: u8 = 8;

/// The function of a comparing instruction.
pub(super) fn function(opcode: &str, words: &[&str]) -> Option<Function> {
    match (opcode, words) {
        ("setp", [comparison, rest @ .., of]) => comparing(comparison, without_boolean(rest), of),
        ("set", [comparison, rest @ .., "f16x2" | "u32" | "s32", "f16x2"]) => {
            let to = words[words.len() - 2];
            set_pair(comparison, rest, to, "f16x2")
        }
        ("set", [comparison, "bf16x2" | "u32" | "s32", "bf16x2"]) => set_pair(comparison, &[], words[1], "bf16x2"),
        ("set", [comparison, rest @ .., to, of]) if is_result(to, of, rest.contains(&"ftz")) => {
            comparing(comparison, without_boolean(rest), of)
        }
        ("slct", [of, "s32"]) if is_value(of) => Some(super::three(|a, b, c| if (c as i32) < 0 { b } else { a })),
        ("slct", [of, "f32"]) if is_value(of) => Some(super::three(slct::<0>)),
        ("slct", ["ftz", of, "f32"]) if is_value(of) => Some(super::three(slct::<{ mode::FTZ }>)),
        _ => None,
    }
}

/// Whether `set` makes a number of type `to` of a comparison of type `of`.
fn is_result(to: &str, of: &str, flushes: bool) -> bool {
    match to {
        "u32" | "s32" => true,
        "u16" | "s16" => matches!(of, "f16" | "bf16"),
        "f32" => is_value(of),
        "f16" => is_value(of) || of == "f16",
        "bf16" => (is_value(of) || matches!(of, "f16" | "bf16")) && !flushes,
        _ => false,
    }
}

/// Whether it is a type of `slct`.
fn is_value(of: &str) -> bool {
    matches!(of, "b16" | "b32" | "b64" | "u16" | "u32" | "u64" | "s16" | "s32" | "s64" | "f32" | "f64")
}

/// Modifiers without the operation that combines the comparison with a predicate.
fn without_boolean<'a, 'b>(words: &'a [&'b str]) -> &'a [&'b str] {
    match words {
        ["and" | "or" | "xor", rest @ ..] => rest,
        _ => words,
    }
}

/// One instance of a function for each relation of numbers that may be unordered.
macro_rules! for_relation {
    ($comparison:expr, $kind:path, |$relation:ident| $function:expr) => {
        for_relation! { @ $comparison, $kind, $relation, $function;
            "eq" EQUAL, "ne" (LESS | GREATER),
            "lt" LESS, "le" (LESS | EQUAL), "gt" GREATER, "ge" (GREATER | EQUAL),
            "equ" (EQUAL | UNORDERED), "neu" (LESS | GREATER | UNORDERED),
            "ltu" (LESS | UNORDERED), "leu" (LESS | EQUAL | UNORDERED),
            "gtu" (GREATER | UNORDERED), "geu" (GREATER | EQUAL | UNORDERED),
            "num" (LESS | EQUAL | GREATER), "nan" UNORDERED,
        }
    };
    (@ $comparison:expr, $kind:path, $relation:ident, $function:expr; $($name:literal $value:expr,)*) => {
        match $comparison {
            $($name => {
                const $relation: u8 = $value;
                Some($kind($function))
            })*
            _ => None,
        }
    };
}

fn comparing(comparison: &str, words: &[&str], of: &str) -> Option<Function> {
    use super::compare;
    match (words, of) {
        ([], "b16" | "b32" | "b64") if !matches!(comparison, "eq" | "ne") => None,
        ([], "b16" | "u16") => integers::<u16>(comparison),
        ([], "b32" | "u32") => integers::<u32>(comparison),
        ([], "b64" | "u64") => integers::<u64>(comparison),
        ([], "s16") => integers::<i16>(comparison),
        ([], "s32") => integers::<i32>(comparison),
        ([], "s64") => integers::<i64>(comparison),
        ([], "f16") => for_relation!(comparison, compare, |R| holds::<F16, 0, R>),
        ([], "bf16") => for_relation!(comparison, compare, |R| holds::<Bf16, 0, R>),
        ([], "f32") => for_relation!(comparison, compare, |R| holds::<F32, 0, R>),
        ([], "f64") => for_relation!(comparison, compare, |R| holds::<F64, 0, R>),
        (["ftz"], "f16") => for_relation!(comparison, compare, |R| holds::<F16, { mode::FTZ }, R>),
        (["ftz"], "f32") => for_relation!(comparison, compare, |R| holds::<F32, { mode::FTZ }, R>),
        _ => None,
    }
}

fn integers<T: Integer>(comparison: &str) -> Option<Function> {
    use super::compare;
    match comparison {
        "eq" => Some(compare(|a, b| a == b)),
        "ne" => Some(compare(|a, b| a != b)),
        "lt" => Some(compare(|a, b| T::value(a) < T::value(b))),
        "le" => Some(compare(|a, b| T::value(a) <= T::value(b))),
        "gt" => Some(compare(|a, b| T::value(a) > T::value(b))),
        "ge" => Some(compare(|a, b| T::value(a) >= T::value(b))),
        "lo" if T::MIN == 0 => Some(compare(|a, b| a < b)),
        "ls" if T::MIN == 0 => Some(compare(|a, b| a <= b)),
        "hi" if T::MIN == 0 => Some(compare(|a, b| a > b)),
        "hs" if T::MIN == 0 => Some(compare(|a, b| a >= b)),
        _ => None,
    }
}

#[inline(always)]
fn relation<F: Format, const MODE: u8>(a: u64, b: u64, at: u32) -> u8 {
    match F::widen(read::<F, MODE>(a, at)).partial_cmp(&F::widen(read::<F, MODE>(b, at))) {
        Some(Ordering::Less) => LESS,
        Some(Ordering::Equal) => EQUAL,
        Some(Ordering::Greater) => GREATER,
        None => UNORDERED,
    }
}

fn holds<F: Format, const MODE: u8, const RELATION: u8>(a: u64, b: u64) -> bool {
    relation::<F, MODE>(a, b, 0) & RELATION != 0
}

/// `set` of two elements: each of the format's one, or of 16 ones.
fn set_pair(comparison: &str, words: &[&str], to: &str, of: &str) -> Option<Function> {
    use super::two;
    const ONES: u64 = 0xffff;
    match (words, to, of) {
        ([], "f16x2", "f16x2") => {
            for_relation!(comparison, two, |R| pair::<F16, 0, R, { F16::ONE }>)
        }
        ([], _, "f16x2") => for_relation!(comparison, two, |R| pair::<F16, 0, R, ONES>),
        (["ftz"], "f16x2", "f16x2") => {
            for_relation!(comparison, two, |R| pair::<F16, { mode::FTZ }, R, { F16::ONE }>)
        }
        (["ftz"], _, "f16x2") => for_relation!(comparison, two, |R| pair::<F16, { mode::FTZ }, R, ONES>),
        ([], "bf16x2", "bf16x2") => for_relation!(comparison, two, |R| pair::<Bf16, 0, R, { Bf16::ONE }>),
        ([], _, "bf16x2") => for_relation!(comparison, two, |R| pair::<Bf16, 0, R, ONES>),
        _ => None,
    }
}

fn pair<F: Format, const MODE: u8, const RELATION: u8, const TRUE: u64>(a: u64, b: u64) -> u64 {
    Pair::<F>::each(|at| if relation::<F, MODE>(a, b, at) & RELATION != 0 { TRUE } else { 0 })
}

/// The first where the third is not negative (-0 is not), else the second; also where the third is not a number.
fn slct<const MODE: u8>(a: u64, b: u64, c: u64) -> u64 {
    if relation::<F32, MODE>(c, 0, 0) & (EQUAL | GREATER) != 0 { a } else { b }
}
