//! What the kernels of the examples compute, beside the same in plain Rust: in one run, compiled alike.

use std::hint::black_box;
use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};
use congruent::collectives::Layout;
use congruent::device::{Semaphore, SmallFloat, bf16, math};
use congruent::fused::gemm as tiles;
use congruent::fused::gemm::Eight;
use congruent::{Chunked, Error, Grid, Packed, World};
use congruent_example_kernels::axpy::axpy;
use congruent_example_kernels::gemm;
use congruent_example_kernels::jacobi::{Four, Plate, Rest, fours, jacobi, mean};
use congruent_example_kernels::rows::softmax;

use crate::gathered;
use crate::sample::summary;
use crate::table::{Time, size};

/// Bytes of a buffer, or of the plate.
pub const SIZES: [u64; 2] = [64 << 10, 64 << 20];

/// Bytes of both factors of a product: square ones, and beyond 1 MiB a few rows times many, since a plain loop of square ones takes
/// minutes.
pub const PRODUCTS: [u64; 3] = [64 << 10, 1 << 20, 64 << 20];
const SQUARE: u64 = 1 << 20;
const FEW: usize = 32;

/// Bytes that a repeat goes through, so that a launch weighs little: of what little is done with each, and of what more is.
const TRAFFIC: u64 = 256 << 20;
const SLOW_TRAFFIC: u64 = 64 << 20;

/// Numbers of a row whose softmax is computed.
const ROW: usize = 1024;

/// Threads of a block, of which a CPU makes one.
const THREADS: u32 = 128;

/// Plain Rust: what [`axpy`] does in a round.
#[inline(never)]
fn plain_axpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// The same of [`softmax`].
#[inline(never)]
fn plain_softmax(rows: &mut [f32]) {
    for row in rows.chunks_mut(ROW) {
        let most = row.iter().fold(f32::NEG_INFINITY, |most, x| most.max(*x));
        let mut sum = 0.0;
        for x in row.iter_mut() {
            *x = math::exp(*x - most);
            sum += *x;
        }
        let scale = 1.0 / sum;
        row.iter_mut().for_each(|x| *x *= scale);
    }
}

/// The same of a step of [`jacobi`]: whether a cell has moved by more than `tolerance`.
#[inline(never)]
fn plain_step(old: &[f32], new: &mut [f32], width: usize, tolerance: f32) -> bool {
    let mut moved = false;
    for (rows, next) in old.windows(3 * width).step_by(width).zip(new[width..].chunks_mut(width)) {
        let ((above, rest), next) = (rows.split_at(width), &mut next[..width]);
        let (here, below) = rest.split_at(width);
        for i in 1..width - 1 {
            let after = mean(above[i], here[i - 1], here[i + 1], below[i]);
            moved |= (after - here[i]).abs() > tolerance;
            next[i] = after;
        }
    }
    moved
}

/// The same of [`gemm::gemm`].
#[inline(never)]
fn plain_gemm(a: &[bf16], b: &[bf16], c: &mut [bf16], k: usize) {
    for (x, row) in a.chunks(k).zip(c.chunks_mut(b.len() / k)) {
        for (y, c) in b.chunks(k).zip(row) {
            *c = bf16::narrow(x.iter().zip(y).map(|(x, y)| x.widen() * y.widen()).sum());
        }
    }
}

/// The fastest repeats of one work at one size: both sides do the same each time, so whatever takes longer is a neighbour's doing. On a
/// virtual machine a core may be half of one, and two of them the halves of one, from one launch to the next.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed {
    /// What was done.
    pub work: &'static str,
    /// Bytes of a buffer, of the plate, or of both factors.
    pub bytes: u64,
    /// Beside what.
    pub beside: &'static str,
    /// Nanoseconds that takes.
    pub theirs: f64,
    /// Nanoseconds that the kernel takes.
    pub ours: f64,
    /// What the ratio must be at least, where something is asked.
    pub required: Option<f64>,
}

/// What most kernels are beside.
const PLAIN: &str = "plain Rust";

impl Timed {
    pub(crate) fn new(work: &'static str, bytes: u64, required: Option<f64>, mut times: Times) -> Self {
        let (ours, theirs) = (summary(&mut times.ours).min, summary(&mut times.theirs).min);
        Self { work, bytes, beside: PLAIN, theirs, ours, required }
    }

    /// The same, beside something else.
    pub(crate) fn beside(self, beside: &'static str) -> Self {
        Self { beside, ..self }
    }

    /// Above 1 the kernel is faster.
    pub fn ratio(&self) -> f64 {
        self.theirs / self.ours
    }

    /// Whether it is fast enough.
    pub fn is_kept(&self) -> bool {
        self.required.is_none_or(|required| self.ratio() >= required)
    }
}

/// Nanoseconds of each repeat.
#[derive(Clone, Default)]
pub(crate) struct Times {
    pub(crate) ours: Vec<f64>,
    pub(crate) theirs: Vec<f64>,
}

impl Times {
    /// What the kernel takes.
    pub(crate) fn median(&self) -> f64 {
        summary(&mut self.ours.clone()).median
    }
}

/// Times both, turn by turn, each over so many rounds.
fn turns(
    repeats: u32,
    rounds: u64,
    mut ours: impl FnMut() -> Result<(), Error>,
    mut theirs: impl FnMut(),
) -> Result<Times, Error> {
    let mut times = Times::default();
    // The first repeat warms caches and pages, and does not count.
    for repeat in 0..=repeats {
        let started = Instant::now();
        ours()?;
        let kernel = started.elapsed();
        let started = Instant::now();
        (0..rounds).for_each(|_| theirs());
        let plain = started.elapsed();
        if repeat > 0 {
            times.ours.push(kernel.as_nanos() as f64 / rounds as f64);
            times.theirs.push(plain.as_nanos() as f64 / rounds as f64);
        }
    }
    Ok(times)
}

/// Times everything that is not larger than that.
///
/// # Errors
/// Where a world fails.
pub fn measure(repeats: u32, max_bytes: u64) -> Result<Vec<Timed>, Error> {
    let upto = |sizes: &'static [u64]| sizes.iter().copied().filter(move |&bytes| bytes <= max_bytes);
    let alone = |world: &mut World| {
        let sums = upto(&SIZES).map(|bytes| time_axpy(world, repeats, bytes));
        let norms = upto(&SIZES).map(|bytes| time_softmax(world, repeats, bytes));
        let products = upto(&PRODUCTS).map(|bytes| time_gemm(world, repeats, bytes));
        sums.chain(norms).chain(products).collect::<Result<Vec<_>, Error>>()
    };
    let mut timed = World::builder().width(1).local(1, alone)?.swap_remove(0);
    for bytes in upto(&SIZES) {
        timed.extend(time_jacobi(repeats, bytes)?);
    }
    if max_bytes >= gathered::BYTES {
        timed.extend(gathered::measure(repeats)?);
    }
    Ok(timed)
}

fn time_axpy(world: &World, repeats: u32, bytes: u64) -> Result<Timed, Error> {
    let (len, rounds, a) = (bytes as usize / 4, TRAFFIC / bytes, 1e-3_f32);
    let stream = world.stream()?;
    let (mut x, mut y) = (world.buffer::<f32>(len)?, world.buffer::<f32>(len)?);
    let (mine, mut sums) = (vec![1.0_f32; len], vec![0.0_f32; len]);
    x.fill(1.0)?;
    let ours = || {
        world
            .run(&stream, axpy, Grid::one(THREADS), (a, Packed::new(&x), Packed::new(&mut y), rounds))
            .map_err(Error::from)
    };
    let times = turns(repeats, rounds, ours, || plain_axpy(black_box(a), black_box(&mine), black_box(&mut sums)))?;
    assert_eq!(y.to_vec()?, sums, "the same arithmetic in the same order");
    Ok(Timed::new("a·x + y of f32", bytes, Some(0.9), times))
}

fn time_softmax(world: &World, repeats: u32, bytes: u64) -> Result<Timed, Error> {
    let (len, rounds) = (bytes as usize / 4, SLOW_TRAFFIC / bytes);
    let stream = world.stream()?;
    let mut mine: Vec<f32> = (0..len).map(|i| (i * 7 % 101) as f32 / 10.0).collect();
    let mut rows = world.buffer::<f32>(len)?;
    rows.write(0, &mine)?;
    let ours = || {
        for _ in 0..rounds {
            world.launch(&stream, softmax, Grid::one(THREADS), (Chunked::new(Packed::new(&mut rows), ROW / 4),))?;
        }
        Ok(world.synchronize(&stream)?)
    };
    let times = turns(repeats, rounds, ours, || plain_softmax(black_box(&mut mine)))?;
    let close = |(x, y): (f32, &f32)| (x - y).abs() <= 1e-4 * y;
    assert!(rows.to_vec()?.into_iter().zip(&mine).all(close), "the same but for the order of a sum");
    Ok(Timed::new("softmax of rows of 1,024 f32", bytes, Some(0.8), times))
}

fn time_gemm(world: &World, repeats: u32, bytes: u64) -> Result<Timed, Error> {
    // Factors of numbers of two bytes, whose rows are whole groups of eight.
    let (rows, side) = match (bytes / 4).isqrt() as usize {
        side if bytes <= SQUARE => (side, side),
        _ => (FEW, (bytes / 2).isqrt() as usize / 8 * 8),
    };
    // Multiples of 2^-8 that are less than 2^16 are exact in f32, in whatever order they are summed.
    let number = |i: usize| bf16::narrow((i * 7 % 29) as f32 / 16.0 - 0.875);
    let mine: Vec<_> = (0..side * side).map(number).collect();
    let eights: Vec<_> = (0..side * side / 8).map(|i| Eight::from_fn(|j| number(8 * i + j))).collect();
    let stream = world.stream()?;
    let (mut a, mut b) = (world.buffer::<Eight>(rows * side / 8)?, world.buffer::<Eight>(eights.len())?);
    a.write(0, &eights[..a.len()])?;
    b.write(0, &eights)?;
    let (mut c, mut product) = (world.buffer::<bf16>(rows * side)?, vec![bf16::narrow(0.0); rows * side]);
    let (grid, groups) = (Grid::one(tiles::THREADS as u32).with_shared(tiles::SHARED as u32), side as u32 / 8);
    let ours = || world.run(&stream, gemm::gemm, grid, (&a, &b, &mut c, groups)).map_err(Error::from);
    let theirs = || plain_gemm(black_box(&mine[..rows * side]), black_box(&mine), black_box(&mut product), side);
    let times = turns(repeats, 1, ours, theirs)?;
    assert!(c.to_vec()? == product, "the same product");
    Ok(Timed::new("tiled product of bf16", bytes, None, times))
}

/// One PE beside plain Rust, and two PEs beside one. Each is measured in turn, and those of the small plate, which take some
/// milliseconds, over seconds: as long as two cores may be the halves of one.
fn time_jacobi(repeats: u32, bytes: u64) -> Result<[Timed; 2], Error> {
    let (mut alone, mut together) = (Times::default(), Times::default());
    let times = if bytes == SIZES[0] { 4 } else { 1 };
    for _ in 0..times * repeats {
        let [ours, theirs] =
            World::builder().width(1).heap(heap(bytes)).local(1, |world| relax(world, bytes, true))?[0];
        let two = World::builder().width(1).heap(heap(bytes)).local(2, |world| relax(world, bytes, false))?;
        alone.ours.push(ours);
        alone.theirs.push(theirs);
        together.ours.push(two[0][0].max(two[1][0]));
        together.theirs.push(ours);
    }
    let two = Timed::new("jacobi, two PEs", bytes, Some(1.6), together);
    Ok([Timed::new("jacobi", bytes, Some(0.8), alone), two.beside("one PE")])
}

/// Room for two planes, and what a world needs.
fn heap(bytes: u64) -> u64 {
    3 * bytes + (64 << 20)
}

/// Nanoseconds of a step of a kernel, on this PE, and of one in plain Rust, where that is asked for.
fn relax(world: &mut World, bytes: u64, plain: bool) -> Result<[f64; 2], Error> {
    let (npes, side) = (world.npes(), (bytes / 4).isqrt() as usize);
    let (rows, width, steps) = (side / npes, side + 2, TRAFFIC / bytes);
    let plane = (rows + 2) * fours(side as u32);
    let cells = world.alloc::<Four>(2 * plane)?;
    let (from_above, from_below) = (world.alloc::<Semaphore>(1)?, world.alloc::<Semaphore>(1)?);
    let (result, plan, stream) = (world.alloc::<u32>(2)?, world.plan(Layout::new(world.team(), 1))?, world.stream()?);
    // Between 1 and 2, where no number becomes so small that processors take their time.
    let number = |row: usize, column: usize| 1.0 + ((row * 31 + column * 7) % 101) as f32 / 101.0;
    let row_of = |row| (0..fours(side as u32)).map(move |four| Four::from_fn(|i| number(row, 4 * four + i)));
    let start: Vec<Four> = (0..rows + 2).flat_map(row_of).collect();
    cells.write(0, &start)?;
    cells.write(plane, &start)?;
    let plate = Plate {
        cells: cells.view(),
        from_above: from_above.view(),
        from_below: from_below.view(),
        room: rows as u32,
        rows_above: rows as u32,
        rows: rows as u32,
        columns: side as u32,
    };
    let rest = |limit| Rest { tolerance: 1e-6, every: u32::MAX, limit };
    let grid = Grid::one(THREADS);
    // The first steps warm caches and pages, and do not count. There is an even number of them, so that the last plane is the first.
    let mut took = 0.0;
    for limit in [2, steps as u32] {
        world.barrier()?;
        let started = Instant::now();
        world.run(&stream, jacobi, grid, (plate, result.view(), plan.view(), rest(limit)))?;
        took = started.elapsed().as_nanos() as f64 / f64::from(limit);
    }
    if !plain {
        return Ok([took, f64::NAN]);
    }
    // Here the rim is one cell.
    let mut old: Vec<f32> =
        (0..rows + 2).flat_map(|row| (3..side + 5).map(move |column| number(row, column))).collect();
    let (mut new, mut loops) = (old.clone(), 0.0);
    for limit in [2, steps] {
        let started = Instant::now();
        for _ in 0..limit {
            black_box(plain_step(black_box(&old), black_box(&mut new), width, black_box(1e-6)));
            (old, new) = (new, old);
        }
        loops = started.elapsed().as_nanos() as f64 / limit as f64;
    }
    let found = cells.to_vec()?;
    let found =
        found[..plane].chunks(fours(side as u32)).map(|row| row.iter().flat_map(|four| four.0).skip(3).take(width));
    assert!(found.flatten().eq(old), "the same arithmetic in the same order");
    Ok([took, loops])
}

/// Lays the times out for people to read.
pub fn render(timed: &[Timed]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["work", "size", "beside", "that", "kernel", "that / kernel", "at least"]);
    for one in timed {
        let time = |ns| Time(ns).to_string();
        let required = one.required.map_or("-".to_owned(), |required| format!("{required:.2}"));
        let ratio = format!("{:.2}", one.ratio());
        let words = [one.work.to_owned(), size(one.bytes), one.beside.to_owned()];
        table.add_row(words.into_iter().chain([time(one.theirs), time(one.ours), ratio, required]));
    }
    for column in [1, 3, 4, 5, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_compute_the_same() {
        let timed = measure(1, SIZES[0]).unwrap_or_else(|error| panic!("{error}"));
        assert!(timed.len() == 5 && timed.iter().all(|one| one.bytes == SIZES[0] && one.ours > 0.0), "{timed:?}");
        let one =
            Timed { work: "work", bytes: SIZES[0], beside: PLAIN, theirs: 100.0, ours: 200.0, required: Some(0.9) };
        assert!(!one.is_kept() && Timed { required: None, ..one.clone() }.is_kept());
        let table = render(&[one]).to_string();
        for word in ["work", "64 KiB", "200.0 ns", "100.0 ns", "0.50", "0.90"] {
            assert!(table.contains(word), "{word} is missing in\n{table}");
        }
    }
}
