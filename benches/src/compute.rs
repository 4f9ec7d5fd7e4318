//! What a kernel computes on memory of its own, beside the same loop in plain Rust: one PE, one thread, one run.

use std::hint::black_box;
use std::time::Instant;

use comfy_table::{Table, presets};
use congruent::device::{Slice, SliceMut, kernels};
use congruent::{Error, Grid, World};

use crate::sample::summary;
use crate::table::{Time, size, to_the_right};

/// Bytes of each of the two buffers.
pub const SIZES: [u64; 2] = [64 << 10, 64 << 20];

/// What plain Rust's time divided by ours must be at least.
pub const REQUIRED: f64 = 0.9;

/// Bytes that a repeat goes through, so that a launch weighs nothing.
const TRAFFIC: u64 = 256 << 20;

kernels! {
    /// `y` becomes `a * x + y`, so many times.
    pub fn axpy(block, ctx, a: f32, x: Slice<f32>, y: SliceMut<f32>, rounds: u64) {
        let x = &x[..y.len()];
        for _ in 0..rounds {
            for (i, y) in y.iter_mut(block) {
                *y += a * x[i];
            }
        }
    }
}

/// The same.
#[inline(never)]
fn plain(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// Medians at one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// Bytes of each buffer.
    pub bytes: u64,
    /// Nanoseconds of the kernel's loop.
    pub ours: f64,
    /// Nanoseconds of plain Rust's.
    pub plain: f64,
}

impl Timed {
    /// Above 1 the kernel is faster.
    pub fn ratio(&self) -> f64 {
        self.plain / self.ours
    }

    /// Whether it is fast enough.
    pub fn is_kept(&self) -> bool {
        self.ratio() >= REQUIRED
    }
}

/// Times both, turn by turn.
///
/// # Errors
/// Where the world fails.
pub fn measure(repeats: u32, max_bytes: u64) -> Result<Vec<Timed>, Error> {
    let sizes = SIZES.into_iter().filter(|&bytes| bytes <= max_bytes);
    let program = |world: &mut World| sizes.clone().map(|bytes| timed(world, repeats, bytes)).collect::<Result<_, _>>();
    Ok(World::builder().width(1).local(1, program)?.swap_remove(0))
}

fn timed(world: &World, repeats: u32, bytes: u64) -> Result<Timed, Error> {
    let (len, rounds, a) = (bytes as usize / 4, TRAFFIC / bytes, 1e-3_f32);
    let stream = world.stream()?;
    let (mut x, mut y) = (world.buffer::<f32>(len)?, world.buffer::<f32>(len)?);
    let (mine, mut sums) = (vec![1.0_f32; len], vec![0.0_f32; len]);
    x.fill(1.0)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    // The first repeat warms caches and pages, and does not count.
    for repeat in 0..=repeats {
        let started = Instant::now();
        world.run(&stream, axpy, Grid::one(32), (a, &x, &mut y, rounds))?;
        let kernel = started.elapsed();
        let started = Instant::now();
        for _ in 0..rounds {
            plain(black_box(a), black_box(&mine), black_box(&mut sums));
        }
        let loops = started.elapsed();
        if repeat > 0 {
            ours.push(kernel.as_nanos() as f64 / rounds as f64);
            theirs.push(loops.as_nanos() as f64 / rounds as f64);
        }
    }
    assert_eq!(y.to_vec()?, sums, "the same arithmetic in the same order");
    Ok(Timed { bytes, ours: summary(&mut ours).median, plain: summary(&mut theirs).median })
}

/// Lays the times out for people to read.
pub fn render(timed: &[Timed]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["a·x + y of f32, one PE", "plain Rust", "kernel", "plain / kernel", "at least"]);
    for one in timed {
        let time = |ns| Time(ns).to_string();
        let (ratio, required) = (format!("{:.2}", one.ratio()), format!("{REQUIRED:.2}"));
        table.add_row([size(one.bytes), time(one.plain), time(one.ours), ratio, required]);
    }
    to_the_right(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_compute_the_same() {
        let timed = measure(1, SIZES[0]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(timed.iter().map(|one| one.bytes).collect::<Vec<_>>(), [SIZES[0]]);
        let table = render(&[Timed { bytes: SIZES[0], ours: 200.0, plain: 100.0 }]).to_string();
        for word in ["64 KiB", "200.0 ns", "100.0 ns", "0.50", "0.90"] {
            assert!(table.contains(word), "{word} is missing in\n{table}");
        }
    }
}
