//! What instructions compute, against independent arithmetic.

mod convert;
mod float;
mod integer;
mod matrix;

use super::{Function, carry, function};

/// The function with a name as in PTX text.
fn named(name: &str) -> Function {
    let mut parts = name.split('.').map(str::to_owned);
    let opcode = parts.next().unwrap();
    function(&opcode, &parts.collect::<Vec<_>>()).unwrap_or_else(|| panic!("{name} is not known"))
}

/// The result of an instruction by name.
fn run(name: &str, operands: &[u64]) -> u64 {
    match (named(name), operands) {
        (Function::One(f), &[a]) => f.lane([a]),
        (Function::Two(f), &[a, b]) => f.lane([a, b]),
        (Function::Three(f), &[a, b, c]) => f.lane([a, b, c]),
        (Function::Four(f), &[a, b, c, d]) => f.lane([a, b, c, d]),
        (Function::Test(f), &[a]) => f.lane([a]).into(),
        (Function::Compare(f), &[a, b]) => f.lane([a, b]).into(),
        (other, _) => panic!("{name} is {other:?}, of {} operands", operands.len()),
    }
}

/// The result and the flag of an instruction with the carry flag.
fn run_carry(name: &str, [a, b, c]: [u64; 3], flag: bool) -> (u64, bool) {
    let mut parts = name.split('.').map(str::to_owned);
    let opcode = parts.next().unwrap();
    let of = carry(&opcode, &parts.collect::<Vec<_>>()).unwrap_or_else(|| panic!("{name} is not known"));
    of(a, b, c, flag)
}

#[test]
fn one_of_each_kind() {
    let one = u64::from(1f32.to_bits());
    assert_eq!(run("add.s32", &[0xffff_ffff, 1]), 0);
    assert_eq!(run("mul.wide.s32", &[0xffff_ffff, 2]), u64::MAX - 1);
    assert_eq!(run("lop3.b32", &[0xf0, 0xcc, 0xaa, 0x1a]), 0x1a);
    assert_eq!(run("add.rn.f32", &[one, one]), 2f32.to_bits().into());
    assert_eq!(run("add.rp.f32", &[one, 1]), u64::from(1f32.to_bits()) + 1);
    assert_eq!(run("fma.rn.bf16x2", &[0x3f80_4000, 0x3f80_4000, 0x3f80_0000]), 0x4000_4080);
    assert_eq!(run("fma.rn.f64", &[1f64.to_bits(), 2f64.to_bits(), 3f64.to_bits()]), 5f64.to_bits());
    assert_eq!(run("div.rm.f64", &[1f64.to_bits(), 3f64.to_bits()]), (1f64 / 3.0).to_bits());
    assert_eq!(run("setp.gtu.f32", &[u64::from(f32::NAN.to_bits()), one]), 1);
    assert_eq!(run("cvt.rn.bf16.f32", &[one + 0x8000]), 0x3f80);
    assert_eq!(run("cvt.rzi.s32.f32", &[u64::from((-1.5f32).to_bits())]), 0xffff_ffff);
    assert_eq!(run("cvt.rn.satfinite.e4m3x2.f32", &[one, u64::from(1e9f32.to_bits())]), 0x387e);
    assert_eq!(run("cvt.rn.f16x2.e4m3x2", &[0x387e]), 0x3c00_5f00);
    assert_eq!(run("cvt.s32.s8", &[0x80]), 0xffff_ff80);
}
