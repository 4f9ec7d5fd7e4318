//! Matrices spread over a warp: `mma` and `ldmatrix`.

use super::format::{Bf16, E4m3, E5m2, F16, F32, F64, Format, Round, Tf32};
use super::low;

/// One register of each lane of a warp.
pub type WarpRegister = [u64; 32];

/// The order in which `mma` adds products to a floating-point accumulator; PTX leaves it open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The accumulator, then products from the first to the last.
    #[default]
    Ascending,
    /// The accumulator, then products from the last to the first.
    Descending,
    /// The sums of both halves of the products, each found likewise, and last the accumulator.
    Pairwise,
}

/// The multiplication and addition of matrices `d = a * b + c` by a warp.
///
/// Products are exact. Sums of integers are exact, modulo 2 to the 32 or nearest if `satfinite` asks for it. Those of `f64`
/// are fused. All other sums are of `f32`, to nearest, each of `k` additions: with `k` products the result differs from
/// the exact one by at most `k * 2^-24` of the sum of magnitudes, to first order. An `f16` result is rounded from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mma {
    rows: usize,
    depth: usize,
    a: Element,
    b: Element,
    sums: Accumulator,
    saturates: bool,
}

/// What `a` and `b` are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    F64,
    Integer { bits: u32, signed: bool },
}

/// What `c` and `d` are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accumulator {
    F16,
    F32,
    F64,
    S32,
}

/// Columns of `b`, `c` and `d`.
const COLUMNS: usize = 8;

impl Element {
    fn named(name: &str) -> Option<Self> {
        match name {
            "f16" => Some(Self::F16),
            "bf16" => Some(Self::Bf16),
            "tf32" => Some(Self::Tf32),
            "e4m3" => Some(Self::E4m3),
            "e5m2" => Some(Self::E5m2),
            "f64" => Some(Self::F64),
            "s8" | "u8" => Some(Self::Integer { bits: 8, signed: name == "s8" }),
            "s4" | "u4" => Some(Self::Integer { bits: 4, signed: name == "s4" }),
            _ => None,
        }
    }

    /// The width of an element.
    fn bits(self) -> u32 {
        match self {
            Self::F16 | Self::Bf16 => 16,
            Self::Tf32 => 32,
            Self::E4m3 | Self::E5m2 => 8,
            Self::F64 => 64,
            Self::Integer { bits, .. } => bits,
        }
    }

    /// Elements in a register.
    fn packed(self) -> usize {
        (32 / self.bits()).max(1) as usize
    }

    /// Registers of a lane for `rows` times `depth` elements.
    fn registers(self, rows: usize, depth: usize) -> usize {
        rows * depth / 32 / self.packed()
    }

    /// The value of an element at a place of a register.
    fn value(self, register: u64, place: usize) -> f64 {
        let bits = low(register >> (place as u32 * self.bits()), self.bits());
        match self {
            Self::F16 => F16::widen(bits),
            Self::Bf16 => Bf16::widen(bits),
            // The lower bits of the register are not looked at.
            Self::Tf32 => Tf32::widen(bits >> (F32::WIDTH - Tf32::WIDTH)),
            Self::E4m3 => E4m3::widen(bits),
            Self::E5m2 => E5m2::widen(bits),
            Self::F64 => F64::widen(bits),
            Self::Integer { bits: width, signed } => {
                let unused = 64 - width;
                let top = bits << unused;
                if signed { ((top as i64) >> unused) as f64 } else { bits as f64 }
            }
        }
    }
}

impl Accumulator {
    fn named(name: &str) -> Option<Self> {
        match name {
            "f16" => Some(Self::F16),
            "f32" => Some(Self::F32),
            "f64" => Some(Self::F64),
            "s32" => Some(Self::S32),
            _ => None,
        }
    }

    /// Elements in a register.
    fn packed(self) -> usize {
        if self == Self::F16 { 2 } else { 1 }
    }

    /// The value of an element at a place of a register.
    fn value(self, register: u64, place: usize) -> f64 {
        match self {
            Self::F16 => F16::widen(low(register >> (16 * place), 16)),
            Self::F32 => F32::widen(register),
            Self::F64 => F64::widen(register),
            Self::S32 => (register as i32).into(),
        }
    }
}

/// The multiplication that `mma` with these modifiers is, or `None` if it is not known.
pub fn mma(modifiers: &[String]) -> Option<Mma> {
    let words: Vec<&str> = modifiers.iter().map(String::as_str).collect();
    let (shape, saturates, types) = match words.as_slice() {
        ["sync", "aligned", shape, "row", "col", "satfinite", types @ ..] => (*shape, true, types),
        ["sync", "aligned", shape, "row", "col", types @ ..] => (*shape, false, types),
        _ => return None,
    };
    let &[d, a, b, c] = types else { return None };
    let (a, b, sums) = (Element::named(a)?, Element::named(b)?, Accumulator::named(d)?);
    let (rows, depth) = match shape {
        "m8n8k4" => (8, 4),
        "m8n8k16" => (8, 16),
        "m8n8k32" => (8, 32),
        "m16n8k4" => (16, 4),
        "m16n8k8" => (16, 8),
        "m16n8k16" => (16, 16),
        "m16n8k32" => (16, 32),
        "m16n8k64" => (16, 64),
        _ => return None,
    };
    use Element::{Bf16, E4m3, E5m2, F16, F64, Integer, Tf32};
    let known = match (a, b, sums) {
        (F16, F16, Accumulator::F16 | Accumulator::F32) => matches!((rows, depth), (16, 8 | 16)),
        (Bf16, Bf16, Accumulator::F32) => matches!((rows, depth), (16, 8 | 16)),
        (Tf32, Tf32, Accumulator::F32) => matches!((rows, depth), (16, 4 | 8)),
        (E4m3 | E5m2, E4m3 | E5m2, Accumulator::F16 | Accumulator::F32) => matches!((rows, depth), (16, 16 | 32)),
        (F64, F64, Accumulator::F64) => matches!((rows, depth), (8, 4) | (16, 4 | 8 | 16)),
        (Integer { bits: 8, .. }, Integer { bits: 8, .. }, Accumulator::S32) => {
            matches!((rows, depth), (8, 16) | (16, 16 | 32))
        }
        (Integer { bits: 4, .. }, Integer { bits: 4, .. }, Accumulator::S32) => {
            matches!((rows, depth), (8, 32) | (16, 32 | 64))
        }
        _ => false,
    };
    let known = known && c == d && (!saturates || sums == Accumulator::S32);
    known.then_some(Mma { rows, depth, a, b, sums, saturates })
}

impl Mma {
    /// Registers that a lane holds of `d`, `a`, `b` and `c`.
    pub fn registers(&self) -> [usize; 4] {
        let sums = self.rows * COLUMNS / 32 / self.sums.packed();
        [sums, self.a.registers(self.rows, self.depth), self.b.registers(COLUMNS, self.depth), sums]
    }

    /// The registers of `d`, of all lanes, from those of `a`, `b` and `c`, as many as [`Mma::registers`] says.
    pub fn multiply(
        &self,
        a: &[WarpRegister],
        b: &[WarpRegister],
        c: &[WarpRegister],
        order: Order,
    ) -> Vec<WarpRegister> {
        let elements = |lines: usize, at: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
            (0..lines * self.depth).map(|i| at(i / self.depth, i % self.depth)).collect()
        };
        let rows = elements(self.rows, &|row, k| self.a_at(a, row, k));
        let columns = elements(COLUMNS, &|column, k| self.b_at(b, k, column));
        let mut d = vec![[0; 32]; self.registers()[0]];
        for (row, a) in rows.chunks_exact(self.depth).enumerate() {
            for (column, b) in columns.chunks_exact(self.depth).enumerate() {
                let (lane, register, place) = accumulator_place(row, column, self.sums.packed());
                let result = self.dot(a, b, self.sums.value(c[register][lane], place), order);
                d[register][lane] |= result << (16 * place);
            }
        }
        d
    }

    /// An element of `a`: rows go over groups of four lanes, columns over the four and over registers.
    fn a_at(&self, registers: &[WarpRegister], row: usize, k: usize) -> f64 {
        let packed = self.a.packed();
        let lane = row % 8 * 4 + k / packed % 4;
        let register = k / (4 * packed) * (self.rows / 8) + row / 8;
        self.a.value(registers[register][lane], k % packed)
    }

    /// An element of `b`: columns go over groups of four lanes, rows over the four and over registers.
    fn b_at(&self, registers: &[WarpRegister], k: usize, column: usize) -> f64 {
        let packed = self.b.packed();
        self.b.value(registers[k / (4 * packed)][column * 4 + k / packed % 4], k % packed)
    }

    /// One element of `d`, as its bits.
    fn dot(&self, a: &[f64], b: &[f64], c: f64, order: Order) -> u64 {
        let single = |value: f64| f64::from(value as f32);
        let in_single = || sum(a, b, c, order, |sum, a, b| single(sum + a * b), |a, b| single(a + b));
        match self.sums {
            Accumulator::S32 => {
                // Exact: all sums are far below 2^53.
                let sum = sum(a, b, c, order, |sum, a, b| sum + a * b, |a, b| a + b) as i64;
                let sum = if self.saturates { sum.clamp(i32::MIN.into(), i32::MAX.into()) } else { sum };
                low(sum as u64, 32)
            }
            Accumulator::F64 => {
                F64::narrow(sum(a, b, c, order, |sum, a, b| a.mul_add(b, sum), |a, b| a + b), Round::Nearest)
            }
            Accumulator::F32 => F32::narrow(in_single(), Round::Nearest),
            Accumulator::F16 => F16::narrow(in_single(), Round::Nearest),
        }
    }
}

/// `c` and the products of `a` and `b`, added in an order.
fn sum(
    a: &[f64],
    b: &[f64],
    c: f64,
    order: Order,
    fused: impl Fn(f64, f64, f64) -> f64,
    add: impl Fn(f64, f64) -> f64,
) -> f64 {
    let pairs = a.iter().zip(b);
    match order {
        Order::Ascending => pairs.fold(c, |sum, (&a, &b)| fused(sum, a, b)),
        Order::Descending => pairs.rev().fold(c, |sum, (&a, &b)| fused(sum, a, b)),
        Order::Pairwise => {
            let mut sums: Vec<f64> = pairs.map(|(&a, &b)| fused(-0.0, a, b)).collect();
            // The depth is a power of two.
            while sums.len() > 1 {
                sums = sums.chunks_exact(2).map(|pair| add(pair[0], pair[1])).collect();
            }
            sums.into_iter().fold(c, add)
        }
    }
}

/// The lane, the register and the place in it of an element of `c` or `d`.
fn accumulator_place(row: usize, column: usize, packed: usize) -> (usize, usize, usize) {
    let element = row / 8 * 2 + column % 2;
    (row % 8 * 4 + column / 2, element / packed, element % packed)
}

/// One, two or four matrices of 8 times 8 elements of 16 bits: what `ldmatrix` and `stmatrix` move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    count: usize,
    transposed: bool,
}

/// A row of a tile.
pub type TileRow = [u16; 8];

/// The matrices that `ldmatrix` or `stmatrix` with these modifiers moves, or `None` if it is not known.
pub fn tiles(modifiers: &[String]) -> Option<Tiles> {
    let words: Vec<&str> = modifiers.iter().map(String::as_str).collect();
    let ["sync", "aligned", "m8n8", count, rest @ .., "b16"] = words.as_slice() else { return None };
    let count = match *count {
        "x1" => 1,
        "x2" => 2,
        "x4" => 4,
        _ => return None,
    };
    let (transposed, space) = match rest {
        ["trans", space @ ..] => (true, space),
        space => (false, space),
    };
    matches!(space, [] | ["shared" | "shared::cta"]).then_some(Tiles { count, transposed })
}

impl Tiles {
    /// How many matrices: registers of a lane.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The registers of all lanes after a load. `read` gives the 16 bytes at the address that a lane holds; lanes from 0 to
    /// 8 times [`Tiles::count`] are asked, in order.
    ///
    /// # Errors
    ///
    /// The first that `read` gives.
    pub fn load<E>(&self, read: impl FnMut(usize) -> Result<TileRow, E>) -> Result<Vec<WarpRegister>, E> {
        let rows = (0..8 * self.count).map(read).collect::<Result<Vec<_>, E>>()?;
        let spread = |tile: &[TileRow]| core::array::from_fn(|lane| self.pair(lane, |row, column| tile[row][column]));
        Ok(rows.chunks_exact(8).map(spread).collect())
    }

    /// What a store writes: row by row, the row at the address that the lane of the same index holds.
    pub fn store(&self, registers: &[WarpRegister]) -> Vec<TileRow> {
        let element = |register: &WarpRegister, row: usize, column: usize| {
            let (row, column) = if self.transposed { (column, row) } else { (row, column) };
            (register[row * 4 + column / 2] >> (16 * (column % 2))) as u16
        };
        let row = |i: usize| core::array::from_fn(|column| element(&registers[i / 8], i % 8, column));
        (0..8 * self.count).map(row).collect()
    }

    /// The two elements that a lane holds of a matrix.
    fn pair(&self, lane: usize, element: impl Fn(usize, usize) -> u16) -> u64 {
        let (line, place) = (lane / 4, lane % 4 * 2);
        let at = |place| if self.transposed { element(place, line) } else { element(line, place) };
        u64::from(at(place)) | u64::from(at(place + 1)) << 16
    }
}

/// What `movmatrix` makes of a matrix of 8 times 8 elements of 16 bits: the transposed one.
pub fn transposed(matrix: &WarpRegister) -> WarpRegister {
    let tiles = Tiles { count: 1, transposed: true };
    let rows = Tiles { count: 1, transposed: false }.store(&[*matrix]);
    core::array::from_fn(|lane| tiles.pair(lane, |row, column| rows[row][column]))
}
