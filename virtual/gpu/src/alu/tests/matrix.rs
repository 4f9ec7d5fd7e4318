//! Matrices: the layouts are written here as the PTX ISA gives them, by index of the element in the lane's fragment.

use crate::alu::matrix::{Mma, Order, TileRow, WarpRegister, mma, tiles, transposed};
use half::{bf16, f16};
use proptest::prelude::*;

/// Shape, types, and what a value from -8 to 7 (0 to 15 for unsigned) looks like in `a`, `b` and `c`.
struct Case {
    name: &'static str,
    rows: usize,
    depth: usize,
    element: fn(i64) -> u64,
    width: usize,
    accumulator: fn(i64) -> u64,
    accumulator_width: usize,
}

const CASES: &[Case] = &[
    case("m16n8k16.row.col.f32.f16.f16.f32", 16, 16, half_bits, 16, single_bits, 32),
    case("m16n8k16.row.col.f16.f16.f16.f16", 16, 16, half_bits, 16, half_bits, 16),
    case("m16n8k8.row.col.f32.f16.f16.f32", 16, 8, half_bits, 16, single_bits, 32),
    case("m16n8k8.row.col.f16.f16.f16.f16", 16, 8, half_bits, 16, half_bits, 16),
    case("m16n8k16.row.col.f32.bf16.bf16.f32", 16, 16, brain_bits, 16, single_bits, 32),
    case("m16n8k8.row.col.f32.bf16.bf16.f32", 16, 8, brain_bits, 16, single_bits, 32),
    case("m16n8k4.row.col.f32.tf32.tf32.f32", 16, 4, single_bits, 32, single_bits, 32),
    case("m16n8k8.row.col.f32.tf32.tf32.f32", 16, 8, single_bits, 32, single_bits, 32),
    case("m16n8k32.row.col.f32.e4m3.e4m3.f32", 16, 32, e4m3_bits, 8, single_bits, 32),
    case("m16n8k32.row.col.f16.e5m2.e5m2.f16", 16, 32, e5m2_bits, 8, half_bits, 16),
    case("m8n8k4.row.col.f64.f64.f64.f64", 8, 4, double_bits, 64, double_bits, 64),
    case("m16n8k4.row.col.f64.f64.f64.f64", 16, 4, double_bits, 64, double_bits, 64),
    case("m16n8k8.row.col.f64.f64.f64.f64", 16, 8, double_bits, 64, double_bits, 64),
    case("m16n8k16.row.col.f64.f64.f64.f64", 16, 16, double_bits, 64, double_bits, 64),
    case("m8n8k16.row.col.s32.s8.s8.s32", 8, 16, byte_bits, 8, word_bits, 32),
    case("m16n8k16.row.col.s32.s8.s8.s32", 16, 16, byte_bits, 8, word_bits, 32),
    case("m16n8k32.row.col.satfinite.s32.s8.s8.s32", 16, 32, byte_bits, 8, word_bits, 32),
    case("m8n8k32.row.col.s32.s4.s4.s32", 8, 32, nibble_bits, 4, word_bits, 32),
    case("m16n8k64.row.col.s32.s4.s4.s32", 16, 64, nibble_bits, 4, word_bits, 32),
];

const fn case(
    name: &'static str,
    rows: usize,
    depth: usize,
    element: fn(i64) -> u64,
    width: usize,
    accumulator: fn(i64) -> u64,
    accumulator_width: usize,
) -> Case {
    Case { name, rows, depth, element, width, accumulator, accumulator_width }
}

fn half_bits(value: i64) -> u64 {
    f16::from_f64(value as f64).to_bits().into()
}

fn brain_bits(value: i64) -> u64 {
    bf16::from_f64(value as f64).to_bits().into()
}

fn single_bits(value: i64) -> u64 {
    (value as f32).to_bits().into()
}

fn double_bits(value: i64) -> u64 {
    (value as f64).to_bits()
}

fn e4m3_bits(value: i64) -> u64 {
    float8::F8E4M3::from_f64(value as f64).to_bits().into()
}

fn e5m2_bits(value: i64) -> u64 {
    // Numbers with more than three bits are none of this format.
    float8::F8E5M2::from_f64(value as f64).to_bits().into()
}

fn byte_bits(value: i64) -> u64 {
    u64::from(value as u8)
}

fn nibble_bits(value: i64) -> u64 {
    value as u64 & 15
}

fn word_bits(value: i64) -> u64 {
    u64::from(value as u32)
}

fn known(name: &str) -> Mma {
    let modifiers: Vec<String> = format!("sync.aligned.{name}").split('.').map(str::to_owned).collect();
    mma(&modifiers).unwrap_or_else(|| panic!("{name} is not known"))
}

/// Registers of fragments: `at` gives the bits of the element with an index of a lane.
fn fragments(registers: usize, width: usize, at: impl Fn(usize, usize) -> u64) -> Vec<WarpRegister> {
    let packed = (32 / width).max(1);
    let register = |r: usize| {
        core::array::from_fn(|lane| (0..packed).fold(0, |bits, i| bits | at(lane, r * packed + i) << (i * width)))
    };
    (0..registers).map(register).collect()
}

/// Row and column of element `i` of a lane's fragment of `a`, as the ISA has it for each width.
fn a_place(rows: usize, width: usize, lane: usize, i: usize) -> (usize, usize) {
    let (group, thread) = (lane >> 2, lane % 4);
    let lower = if rows == 16 { 8 } else { 0 };
    match width {
        64 | 32 => (
            if i & 1 == 0 || rows == 8 { group } else { group + lower },
            thread + if rows == 16 { i / 2 * 4 } else { i * 4 },
        ),
        16 => (
            if matches!(i, 0 | 1 | 4 | 5) { group } else { group + 8 },
            thread * 2 + (i & 1) + if i >= 4 { 8 } else { 0 },
        ),
        8 if rows == 16 => (
            if i < 4 || (8..12).contains(&i) { group } else { group + 8 },
            thread * 4 + (i & 3) + if i >= 8 { 16 } else { 0 },
        ),
        8 => (group, thread * 4 + i),
        _ if rows == 16 => (
            if i < 8 || (16..24).contains(&i) { group } else { group + 8 },
            thread * 8 + (i & 7) + if i >= 16 { 32 } else { 0 },
        ),
        _ => (group, thread * 8 + i),
    }
}

/// Row and column of element `i` of a lane's fragment of `b`.
fn b_place(width: usize, lane: usize, i: usize) -> (usize, usize) {
    let (group, thread) = (lane >> 2, lane % 4);
    let row = match width {
        64 | 32 => thread + i * 4,
        16 => thread * 2 + (i & 1) + if i >= 2 { 8 } else { 0 },
        8 => thread * 4 + (i & 3) + if i >= 4 { 16 } else { 0 },
        _ => thread * 8 + (i & 7) + if i >= 8 { 32 } else { 0 },
    };
    (row, group)
}

/// Row and column of element `i` of a lane's fragment of `c` and `d`.
fn c_place(lane: usize, i: usize) -> (usize, usize) {
    ((lane >> 2) + if i < 2 { 0 } else { 8 }, (lane % 4) * 2 + (i & 1))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Whole numbers small enough that every order gives the exact result.
    #[test]
    fn products_of_whole_numbers(values in prop::collection::vec(-4i64..=4, 64 * 24), start in prop::collection::vec(-8i64..8, 128)) {
        for case in CASES {
            let a = |row: usize, k: usize| values[row * case.depth + k];
            let b = |k: usize, column: usize| values[values.len() - 1 - k * 8 - column];
            let c = |row: usize, column: usize| start[row * 8 + column];
            let expected = |row: usize, column: usize| {
                c(row, column) + (0..case.depth).map(|k| a(row, k) * b(k, column)).sum::<i64>()
            };
            let of = known(case.name);
            let [d_count, a_count, b_count, c_count] = of.registers();
            let a_registers = fragments(a_count, case.width, |lane, i| {
                let (row, k) = a_place(case.rows, case.width, lane, i);
                (case.element)(a(row, k))
            });
            let b_registers = fragments(b_count, case.width, |lane, i| {
                let (k, column) = b_place(case.width, lane, i);
                (case.element)(b(k, column))
            });
            let spread = |count: usize, at: &dyn Fn(usize, usize) -> i64| fragments(count, case.accumulator_width, |lane, i| {
                let (row, column) = c_place(lane, i);
                (case.accumulator)(at(row, column))
            });
            for order in [Order::Ascending, Order::Descending, Order::Pairwise] {
                let d = of.multiply(&a_registers, &b_registers, &spread(c_count, &c), order);
                prop_assert_eq!(d, spread(d_count, &expected), "{} {:?}", case.name, order);
            }
        }
    }

    /// Against `f64`, with the documented bound.
    #[test]
    fn sums_are_inside_the_bound(a in prop::collection::vec(-1f32..1.0, 256), b in prop::collection::vec(-1f32..1.0, 128), c in -1f32..1.0) {
        let of = known("m16n8k16.row.col.f32.bf16.bf16.f32");
        let value = |list: &[f32], i: usize| bf16::from_f32(list[i]);
        let a_registers = fragments(4, 16, |lane, i| {
            let (row, k) = a_place(16, 16, lane, i);
            value(&a, row * 16 + k).to_bits().into()
        });
        let b_registers = fragments(2, 16, |lane, i| {
            let (k, column) = b_place(16, lane, i);
            value(&b, k * 8 + column).to_bits().into()
        });
        let c_registers = vec![[u64::from(c.to_bits()); 32]; 4];
        for order in [Order::Ascending, Order::Descending, Order::Pairwise] {
            let d = of.multiply(&a_registers, &b_registers, &c_registers, order);
            for lane in 0..32 {
                for (i, register) in d.iter().enumerate() {
                    let (row, column) = c_place(lane, i);
                    let products = (0..16).map(|k| value(&a, row * 16 + k).to_f64() * value(&b, k * 8 + column).to_f64());
                    let (exact, magnitude) = products.fold((f64::from(c), f64::from(c.abs())), |(sum, all), product| {
                        (sum + product, all + product.abs())
                    });
                    let result = f64::from(f32::from_bits(register[lane] as u32));
                    prop_assert!((result - exact).abs() <= 16.0 * 2f64.powi(-24) * magnitude, "{result} {exact}");
                }
            }
        }
    }
}

#[test]
fn orders_differ() {
    let of = known("m16n8k8.row.col.f32.tf32.tf32.f32");
    // 2^24 + 1 + 1, in one row: the ones are lost one by one, and kept together.
    let bits = |value: f32| u64::from(value.to_bits());
    let mut a = vec![[0; 32]; 4];
    (a[0][0], a[0][1], a[0][2]) = (bits(16_777_216.0), bits(1.0), bits(1.0));
    let b = vec![[bits(1.0); 32]; 2];
    let c = vec![[0; 32]; 4];
    let first = |order| f32::from_bits(of.multiply(&a, &b, &c, order)[0][0] as u32);
    assert_eq!(first(Order::Ascending), 16_777_216.0);
    assert_eq!(first(Order::Descending), 16_777_218.0);
}

#[test]
fn integers_wrap_or_saturate() {
    let a = vec![[0x7f7f_7f7f; 32]; 4];
    let b = vec![[0x7f7f_7f7f; 32]; 2];
    let c = vec![[0x7fff_ffff; 32]; 4];
    let run = |name| known(name).multiply(&a, &b, &c, Order::Ascending)[0][0];
    assert_eq!(run("m16n8k32.row.col.satfinite.s32.s8.s8.s32"), 0x7fff_ffff);
    assert_eq!(run("m16n8k32.row.col.s32.s8.u8.s32"), u64::from(0x7fff_ffffu32 + 32 * 127 * 127));
    let high = vec![[0xffff_ffff; 32]; 4];
    let zero = vec![[0; 32]; 4];
    let signs = |name| known(name).multiply(&high, &high, &zero, Order::Ascending)[0][0] as i32;
    assert_eq!(signs("m16n8k32.row.col.s32.s8.s8.s32"), 32);
    assert_eq!(signs("m16n8k32.row.col.s32.u8.s8.s32"), -32 * 255);
    assert_eq!(signs("m16n8k32.row.col.s32.u8.u8.s32"), 32 * 255 * 255);
    assert_eq!(signs("m16n8k64.row.col.s32.u4.s4.s32"), -64 * 15);
}

#[test]
fn what_is_not_an_mma_is_not_known() {
    for name in [
        "m16n8k16.row.col.f32.f16.bf16.f32",
        "m16n8k16.col.row.f32.f16.f16.f32",
        "m16n8k16.row.col.satfinite.f32.f16.f16.f32",
        "m8n8k4.row.col.f32.f16.f16.f32",
        "m16n8k16.row.col.f16.bf16.bf16.f16",
        "m16n8k16.row.col.f32.f16.f16.f16",
        "m16n8k16.row.col.s32.s8.s4.s32",
    ] {
        let modifiers: Vec<String> = format!("sync.aligned.{name}").split('.').map(str::to_owned).collect();
        assert_eq!(mma(&modifiers), None, "{name}");
    }
}

/// Element (row, column) of tile `i` is `256 i + 16 row + column`.
fn tile_row(lane: usize) -> TileRow {
    core::array::from_fn(|column| (lane / 8 * 256 + lane % 8 * 16 + column) as u16)
}

#[test]
fn tiles_are_spread_as_documented() {
    for (count, number) in [("x1", 1), ("x2", 2), ("x4", 4)] {
        for turned in [false, true] {
            let trans = if turned { ".trans" } else { "" };
            let name = format!("sync.aligned.m8n8.{count}{trans}.shared.b16");
            let of = tiles(&name.split('.').map(str::to_owned).collect::<Vec<_>>()).unwrap();
            assert_eq!(of.count(), number);
            let registers = of.load(|lane| Ok::<_, ()>(tile_row(lane))).unwrap();
            for (i, register) in registers.iter().enumerate() {
                for (lane, &pair) in register.iter().enumerate() {
                    let element = |place: usize| {
                        let (line, place) = (lane / 4, lane % 4 * 2 + place);
                        let (row, column) = if turned { (place, line) } else { (line, place) };
                        (i * 256 + row * 16 + column) as u64
                    };
                    assert_eq!(pair, element(0) | element(1) << 16, "{name} {i} {lane}");
                }
            }
            assert_eq!(of.store(&registers), (0..8 * number).map(tile_row).collect::<Vec<_>>());
        }
    }
    assert_eq!(tiles(&["sync", "aligned", "m8n8", "x3", "b16"].map(str::to_owned)), None);
}

#[test]
fn a_load_ends_at_the_first_error() {
    let of = tiles(&["sync", "aligned", "m8n8", "x2", "b16"].map(str::to_owned)).unwrap();
    assert_eq!(of.load(|lane| if lane < 9 { Ok([0; 8]) } else { Err(lane) }), Err(9));
}

#[test]
fn movmatrix_transposes() {
    let plain = tiles(&["sync", "aligned", "m8n8", "x1", "b16"].map(str::to_owned)).unwrap();
    let turned = tiles(&["sync", "aligned", "m8n8", "x1", "trans", "b16"].map(str::to_owned)).unwrap();
    let load = |of: crate::alu::matrix::Tiles| of.load(|lane| Ok::<_, ()>(tile_row(lane))).unwrap()[0];
    assert_eq!(transposed(&load(plain)), load(turned));
}
