//! Integers and bits, against Rust's types of the same and of twice the width.

use super::{run, run_carry};
use proptest::prelude::*;

/// Numbers that are often special.
fn number() -> impl Strategy<Value = u64> {
    let edges =
        [0, 1, 2, 0x7f, 0x80, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 63, !0 >> 1, !0];
    prop_oneof![prop::sample::select(edges.to_vec()), any::<u64>(), 0..64u64]
}

/// Every result of a two-operand instruction of a type, against native arithmetic.
macro_rules! types {
    ($check:ident: $($name:literal $type:ident $unsigned:ident $wide:ident;)*) => {
        $($check!($name $type $unsigned $wide);)*
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arithmetic(x in number(), y in number(), z in number()) {
        macro_rules! check {
            ($name:literal $type:ident $unsigned:ident $wide:ident) => {{
                let (a, b, c) = (x as $type, y as $type, z as $type);
                let bits = |value: $type| u64::from(value as $unsigned);
                let of = |opcode: &str| format!("{opcode}.{}", $name);
                let two = |opcode| run(&of(opcode), &[bits(a), bits(b)]);
                let three = |opcode| run(&of(opcode), &[bits(a), bits(b), bits(c)]);
                let product = $wide::from(a).wrapping_mul($wide::from(b));
                let high = (product >> $type::BITS) as $type;
                prop_assert_eq!(two("add"), bits(a.wrapping_add(b)));
                prop_assert_eq!(two("sub"), bits(a.wrapping_sub(b)));
                prop_assert_eq!(two("mul.lo"), bits(a.wrapping_mul(b)));
                prop_assert_eq!(two("mul.hi"), bits(high));
                prop_assert_eq!(three("mad.lo"), bits(a.wrapping_mul(b).wrapping_add(c)));
                prop_assert_eq!(three("mad.hi"), bits(high.wrapping_add(c)));
                prop_assert_eq!(three("sad"), bits(c.wrapping_add(a.abs_diff(b) as $type)));
                prop_assert_eq!(two("div"), if b == 0 { bits(0 as $type).wrapping_sub(1) & bits(!0) } else { bits(a.wrapping_div(b)) });
                prop_assert_eq!(two("rem"), if b == 0 { bits(!0) } else { bits(a.wrapping_rem(b)) });
                prop_assert_eq!(two("min"), bits(a.min(b)));
                prop_assert_eq!(two("max"), bits(a.max(b)));
                prop_assert_eq!(two("setp.lt"), u64::from(a < b));
                prop_assert_eq!(two("setp.le"), u64::from(a <= b));
                prop_assert_eq!(two("setp.gt"), u64::from(a > b));
                prop_assert_eq!(two("setp.ge"), u64::from(a >= b));
                prop_assert_eq!(two("setp.eq"), u64::from(a == b));
                prop_assert_eq!(two("setp.ne"), u64::from(a != b));
                // Shift amounts beyond the width shift everything out.
                let by = z % 80;
                let shifted = if by < u64::from($type::BITS) { a >> by } else { a >> ($type::BITS - 1) >> 1 };
                prop_assert_eq!(run(&of("shr"), &[bits(a), by]), bits(shifted));
            }};
        }
        types! { check:
            "u16" u16 u16 u32; "u32" u32 u32 u64; "u64" u64 u64 u128;
            "s16" i16 u16 i32; "s32" i32 u32 i64; "s64" i64 u64 i128;
        }
    }

    #[test]
    fn wide_products(x in number(), y in number(), z in number()) {
        macro_rules! check {
            ($name:literal $type:ident $unsigned:ident $wide:ident) => {{
                let (a, b) = (x as $type, y as $type);
                let operands = [u64::from(a as $unsigned), u64::from(b as $unsigned)];
                let product = $wide::from(a) * $wide::from(b);
                let mask = !0 >> (64 - 2 * $type::BITS);
                let sum = product.wrapping_add(z as $wide);
                prop_assert_eq!(run(concat!("mul.wide.", $name), &operands), product as u64 & mask);
                prop_assert_eq!(run(concat!("mad.wide.", $name), &[operands[0], operands[1], z & mask]), sum as u64 & mask);
            }};
        }
        types! { check: "u16" u16 u16 u32; "u32" u32 u32 u64; "s16" i16 u16 i32; "s32" i32 u32 i64; }
    }

    #[test]
    fn signed_and_saturating(x in number(), y in number(), z in number()) {
        let (a, b, c) = (x as i32, y as i32, z as i32);
        let bits = |value: i32| u64::from(value as u32);
        let operands = [bits(a), bits(b), bits(c)];
        prop_assert_eq!(run("add.sat.s32", &operands[..2]), bits(a.saturating_add(b)));
        prop_assert_eq!(run("sub.sat.s32", &operands[..2]), bits(a.saturating_sub(b)));
        let high = ((i64::from(a) * i64::from(b)) >> 32) as i32;
        prop_assert_eq!(run("mad.hi.sat.s32", &operands), bits(high.saturating_add(c)));
        prop_assert_eq!(run("abs.s32", &operands[..1]), bits(a.wrapping_abs()));
        prop_assert_eq!(run("neg.s32", &operands[..1]), bits(a.wrapping_neg()));
        prop_assert_eq!(run("abs.s16", &[x & 0xffff]), u64::from((x as i16).unsigned_abs()));
        prop_assert_eq!(run("neg.s64", &[x]), x.wrapping_neg());
        prop_assert_eq!(run("min.relu.s32", &operands[..2]), bits(a.min(b).max(0)));
        prop_assert_eq!(run("max.relu.s32", &operands[..2]), bits(a.max(b).max(0)));
        // 24 bits.
        let (low_a, low_b) = (a << 8 >> 8, b << 8 >> 8);
        let product = i64::from(low_a) * i64::from(low_b);
        prop_assert_eq!(run("mul24.lo.s32", &operands[..2]), bits(product as i32));
        prop_assert_eq!(run("mul24.hi.s32", &operands[..2]), bits((product >> 16) as i32));
        prop_assert_eq!(run("mad24.hi.sat.s32", &operands), bits(((product >> 16) as i32).saturating_add(c)));
        prop_assert_eq!(run("mad24.lo.s32", &operands), bits((product as i32).wrapping_add(c)));
        let unsigned = (x & 0xff_ffff) * (y & 0xff_ffff);
        prop_assert_eq!(run("mul24.hi.u32", &operands[..2]), unsigned >> 16 & 0xffff_ffff);
        prop_assert_eq!(run("mad24.lo.u32", &operands), u64::from((unsigned as u32).wrapping_add(z as u32)));
    }

    #[test]
    fn pairs_of_halves(x in any::<[u16; 2]>(), y in any::<[u16; 2]>()) {
        let word = |halves: [u16; 2]| u64::from(halves[0]) | u64::from(halves[1]) << 16;
        let both = |f: &dyn Fn(u16, u16) -> u16| word([f(x[0], y[0]), f(x[1], y[1])]);
        let signed = |f: &dyn Fn(i16, i16) -> i16| both(&|a, b| f(a as i16, b as i16) as u16);
        let operands = [word(x), word(y)];
        prop_assert_eq!(run("add.u16x2", &operands), both(&u16::wrapping_add));
        prop_assert_eq!(run("min.u16x2", &operands), both(&Ord::min));
        prop_assert_eq!(run("max.s16x2", &operands), signed(&Ord::max));
        prop_assert_eq!(run("min.relu.s16x2", &operands), signed(&|a, b| a.min(b).max(0)));
    }

    /// Long numbers in words: the carry goes from one to the next.
    #[test]
    fn carries(x in any::<[u64; 2]>(), y in any::<[u64; 2]>()) {
        let wide = |parts: [u64; 2]| u128::from(parts[0]) | u128::from(parts[1]) << 64;
        let (low, flag) = run_carry("add.cc.u64", [x[0], y[0], 0], true);
        let (high, flag) = run_carry("addc.cc.u64", [x[1], y[1], 0], flag);
        let (sum, carried) = wide(x).overflowing_add(wide(y));
        prop_assert_eq!((wide([low, high]), flag), (sum, carried));
        let (low, flag) = run_carry("sub.cc.s64", [x[0], y[0], 0], true);
        let (high, flag) = run_carry("subc.cc.s64", [x[1], y[1], 0], flag);
        let (difference, borrowed) = wide(x).overflowing_sub(wide(y));
        prop_assert_eq!((wide([low, high]), flag), (difference, borrowed));
        // Without `cc` the flag stays.
        prop_assert_eq!(run_carry("addc.u64", [!0, 0, 0], true), (0, true));
        prop_assert_eq!(run_carry("addc.u64", [!0, 1, 0], false), (0, false));
        prop_assert_eq!(run_carry("subc.u64", [0, 0, 0], true), (!0, true));
    }

    /// 64-bit products of 32-bit words, as compilers write them.
    #[test]
    fn carried_products(a in any::<u64>(), b in any::<u64>()) {
        let word = |value: u64, i: u32| value >> (32 * i) & 0xffff_ffff;
        let low = run("mul.lo.u32", &[word(a, 0), word(b, 0)]);
        let first = run("mul.hi.u32", &[word(a, 0), word(b, 0)]);
        let (first, flag) = run_carry("mad.lo.cc.u32", [word(a, 1), word(b, 0), first], false);
        let (second, flag) = run_carry("madc.hi.cc.u32", [word(a, 1), word(b, 0), 0], flag);
        prop_assert!(!flag);
        let (first, flag) = run_carry("mad.lo.cc.u32", [word(a, 0), word(b, 1), first], true);
        let (second, flag) = run_carry("madc.hi.cc.u32", [word(a, 0), word(b, 1), second], flag);
        let (third, _) = run_carry("addc.u32", [0, 0, 0], flag);
        let (second, flag) = run_carry("mad.lo.cc.u32", [word(a, 1), word(b, 1), second], false);
        let (third, _) = run_carry("madc.hi.u32", [word(a, 1), word(b, 1), third], flag);
        let product = u128::from(low) | u128::from(first) << 32 | u128::from(second) << 64 | u128::from(third) << 96;
        prop_assert_eq!(product, u128::from(a) * u128::from(b));
    }

    #[test]
    fn bits_of_words(a in number(), b in number(), c in number(), table in 0..256u64, mode in number()) {
        let word = |value: u64| value as u32;
        let wide = |value: u32| u64::from(value);
        let (x, y, z) = (word(a), word(b), word(c));
        prop_assert_eq!(run("popc.b64", &[a]), wide(a.count_ones()));
        prop_assert_eq!(run("clz.b32", &[wide(x)]), wide(x.leading_zeros()));
        prop_assert_eq!(run("clz.b64", &[a]), wide(a.leading_zeros()));
        prop_assert_eq!(run("brev.b32", &[wide(x)]), wide(x.reverse_bits()));
        prop_assert_eq!(run("not.b16", &[a & 0xffff]), wide(!a as u32 & 0xffff));
        prop_assert_eq!(run("cnot.b32", &[wide(x)]), u64::from(x == 0));
        prop_assert_eq!(run("shl.b16", &[a & 0xffff, mode % 40]), if mode % 40 < 16 { wide(u32::from(a as u16) << (mode % 40)) & 0xffff } else { 0 });
        prop_assert_eq!(run("shl.b64", &[a, mode]), if mode < 64 { a << mode } else { 0 });
        let by_bit = (0..32).fold(0, |bits, i| {
            let row = (x >> i & 1) << 2 | (y >> i & 1) << 1 | z >> i & 1;
            bits | (table >> row & 1) << i
        });
        prop_assert_eq!(run("lop3.b32", &[wide(x), wide(y), wide(z), table]), by_bit);
        let joined = wide(y) << 32 | wide(x);
        prop_assert_eq!(run("shf.l.wrap.b32", &[wide(x), wide(y), mode & 0xffff_ffff]), joined << (mode & 31) >> 32);
        prop_assert_eq!(run("shf.r.wrap.b32", &[wide(x), wide(y), mode & 0xffff_ffff]), joined >> (mode & 31) & 0xffff_ffff);
        let clamped = (mode & 0xffff_ffff).min(32) as u32;
        prop_assert_eq!(run("shf.l.clamp.b32", &[wide(x), wide(y), mode & 0xffff_ffff]), wide((u128::from(joined) << clamped >> 32) as u32));
        prop_assert_eq!(run("shf.r.clamp.b32", &[wide(x), wide(y), mode & 0xffff_ffff]), wide((joined >> clamped) as u32));
    }

    /// Fields bit by bit, as the PTX ISA's pseudocode has them.
    #[test]
    fn bit_fields(a in number(), b in number(), position in 0..300u64, length in 0..300u64) {
        macro_rules! check {
            ($extract:literal, $signed:literal, $width:literal) => {{
                let (pos, len, msb) = (position & 255, length & 255, $width - 1);
                let a = a & (!0 >> (64 - $width));
                let bit = |i: u64| a >> i & 1;
                let sign = if !$signed || len == 0 { 0 } else { bit((pos + len - 1).min(msb)) };
                let expected = (0..$width).fold(0, |bits, i| bits | if i < len && pos + i <= msb { bit(pos + i) } else { sign } << i);
                prop_assert_eq!(run($extract, &[a, position, length]), expected);
            }};
        }
        check!("bfe.u32", false, 32);
        check!("bfe.s32", true, 32);
        check!("bfe.u64", false, 64);
        check!("bfe.s64", true, 64);
        macro_rules! insert {
            ($insert:literal, $width:literal) => {{
                let (pos, len, mask) = (position & 255, length & 255, !0u64 >> (64 - $width));
                let mut expected = b & mask;
                for i in 0..len {
                    if pos + i < $width {
                        expected = expected & !(1 << (pos + i)) | (if i < 64 { a >> i & 1 } else { 0 }) << (pos + i);
                    }
                }
                prop_assert_eq!(run($insert, &[a & mask, b & mask, position, length]), expected);
            }};
        }
        insert!("bfi.b32", 32);
        insert!("bfi.b64", 64);
    }

    #[test]
    fn masks_and_extensions(a in number(), position in number(), length in number()) {
        let (a, position, length) = (a & 0xffff_ffff, position & 0xffff_ffff, length & 0xffff_ffff);
        let ones = |position: u64, length: u64| (0..32).filter(|i| (position..position + length).contains(i)).fold(0, |bits, i| bits | 1 << i);
        prop_assert_eq!(run("bmsk.clamp.b32", &[position, length]), ones(position, length));
        prop_assert_eq!(run("bmsk.wrap.b32", &[position, length]), ones(position & 31, length & 31));
        let extended = |length: u64, signed: bool| match length {
            0 => 0,
            32.. => a,
            _ if signed && a >> (length - 1) & 1 == 1 => (a | !0 << length) & 0xffff_ffff,
            _ => a & !(!0 << length),
        };
        prop_assert_eq!(run("szext.clamp.u32", &[a, length]), extended(length, false));
        prop_assert_eq!(run("szext.clamp.s32", &[a, length]), extended(length, true));
        prop_assert_eq!(run("szext.wrap.s32", &[a, length]), extended(length & 31, true));
        prop_assert_eq!(run("szext.wrap.u32", &[a, length]), extended(length & 31, false));
    }

    #[test]
    fn finding_bits(a in number(), base in 0..32i64, offset in -40..40i64) {
        let found = |word: u64, signed: bool, width: u64| {
            let negative = signed && word >> (width - 1) & 1 == 1;
            (0..width).rev().find(|i| (word >> i & 1 == 1) != negative)
        };
        let word = a & 0xffff_ffff;
        for (name, bits, signed, width) in [("u32", word, false, 32), ("s32", word, true, 32), ("u64", a, false, 64), ("s64", a, true, 64)] {
            let place = found(bits, signed, width);
            prop_assert_eq!(run(&format!("bfind.{name}"), &[bits]), place.unwrap_or(0xffff_ffff));
            let amount = place.map_or(0xffff_ffff, |place| width - 1 - place);
            prop_assert_eq!(run(&format!("bfind.shiftamt.{name}"), &[bits]), amount);
        }
        // The pseudocode of the PTX ISA.
        let mut expected = 0xffff_ffff;
        let set = |place: i64| word >> place & 1 == 1;
        if offset == 0 {
            if set(base) {
                expected = base as u64;
            }
        } else {
            let (mut place, mut count, step) = (base, offset.abs() - 1, offset.signum());
            while (0..32).contains(&place) {
                if set(place) {
                    if count == 0 {
                        expected = place as u64;
                        break;
                    }
                    count -= 1;
                }
                place += step;
            }
        }
        prop_assert_eq!(run("fns.b32", &[word, base as u64, u64::from(offset as i32 as u32)]), expected);
    }

    #[test]
    fn dot_products(a in any::<u32>(), b in any::<u32>(), c in any::<u32>()) {
        let value = |bits: u32, width: u32, i: u32, signed: bool| {
            let field = bits >> (width * i) << (32 - width);
            if signed { i64::from(field as i32 >> (32 - width)) } else { i64::from(field >> (32 - width)) }
        };
        let operands = [a, b, c].map(u64::from);
        for (a_name, a_signed) in [("u32", false), ("s32", true)] {
            for (b_name, b_signed) in [("u32", false), ("s32", true)] {
                let sum = |width: u32, first: u32, count: u32| {
                    let products = (0..count).map(|i| value(a, width, i, a_signed) * value(b, 8, first + i, b_signed));
                    u64::from((i64::from(c) + products.sum::<i64>()) as u32)
                };
                prop_assert_eq!(run(&format!("dp4a.{a_name}.{b_name}"), &operands), sum(8, 0, 4));
                prop_assert_eq!(run(&format!("dp2a.lo.{a_name}.{b_name}"), &operands), sum(16, 0, 2));
                prop_assert_eq!(run(&format!("dp2a.hi.{a_name}.{b_name}"), &operands), sum(16, 2, 2));
            }
        }
    }

    #[test]
    fn conversions_between_integers(x in number()) {
        macro_rules! from {
            ($from:ident $from_name:literal; $($to:ident $unsigned:ident $to_name:literal;)*) => {$(
                let value = x as $from;
                // The register may be wider than the type, and then holds more.
                let plain = run(concat!("cvt.", $to_name, ".", $from_name), &[x]);
                prop_assert_eq!(plain, u64::from(value as $to as $unsigned));
                if i128::from($from::MIN) < i128::from($to::MIN) || i128::from($from::MAX) > i128::from($to::MAX) {
                    let nearest = i128::from(value).clamp($to::MIN.into(), $to::MAX.into());
                    let saturated = run(concat!("cvt.sat.", $to_name, ".", $from_name), &[x]);
                    prop_assert_eq!(saturated, u64::from(nearest as $to as $unsigned));
                }
            )*};
        }
        macro_rules! all {
            ($($from:ident $from_name:literal;)*) => {$(
                from! { $from $from_name;
                    u8 u8 "u8"; u16 u16 "u16"; u32 u32 "u32"; u64 u64 "u64";
                    i8 u8 "s8"; i16 u16 "s16"; i32 u32 "s32"; i64 u64 "s64"; }
            )*};
        }
        all! { u8 "u8"; u16 "u16"; u32 "u32"; u64 "u64"; i8 "s8"; i16 "s16"; i32 "s32"; i64 "s64"; }
    }
}

#[test]
fn permutations() {
    let (a, b) = (0x8382_8180, 0x0706_0504);
    let tables = [
        ("prmt.b32", 0x7654, 0x0706_0504),
        ("prmt.b32", 0x0123, 0x8081_8283),
        ("prmt.b32", 0x8c9f, 0xff00_ff00),
        ("prmt.b32.f4e", 1, 0x0483_8281),
        ("prmt.b32.b4e", 1, 0x0607_8081),
        ("prmt.b32.rc8", 2, 0x8282_8282),
        ("prmt.b32.ecl", 2, 0x8382_8282),
        ("prmt.b32.ecr", 1, 0x8181_8180),
        ("prmt.b32.rc16", 1, 0x8382_8382),
    ];
    for (name, selector, expected) in tables {
        assert_eq!(run(name, &[a, b, selector]), expected, "{name} {selector:x}");
    }
}

#[test]
fn examples_of_the_manual() {
    assert_eq!(run("fns.b32", &[0xaaaa_aaaa, 3, 1]), 3);
    assert_eq!(run("fns.b32", &[0xaaaa_aaaa, 2, 0xffff_ffff]), 1);
    assert_eq!(run("bmsk.wrap.b32", &[1, 2]), 6);
    assert_eq!(run("szext.wrap.u32", &[0xffff_ffff, 0]), 0);
    assert_eq!(run("lop3.b32", &[0xf0, 0xcc, 0xaa, 0xfe]), 0xfe);
    assert_eq!(run("div.s32", &[0x8000_0000, 0xffff_ffff]), 0x8000_0000);
    assert_eq!(run("rem.s64", &[1 << 63, !0]), 0);
    assert_eq!(run("slct.b32.s32", &[1, 2, 0xffff_ffff]), 2);
    assert_eq!(run("slct.b64.s32", &[1, 2, 0]), 1);
    assert_eq!(run("not.pred", &[1]), 0);
    assert_eq!(run("set.eq.u32.u32", &[1, 1]), 1);
}
