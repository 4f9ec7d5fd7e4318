//! Memory of a PE's own: read as slices, written in parts that threads have to themselves.

use congruent_device::{ChunksMut, Group, Relaxed, RowsMut, Signal, Slice, SliceMut, Sym, kernels};

/// Four numbers where 16 bytes begin.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Four(pub [f32; 4]);

kernels! {
    /// `y` becomes `a * x + y`.
    pub fn axpy(block, ctx, a: f32, x: Slice<f32>, y: SliceMut<f32>) {
        let x = &x[..y.len()];
        for (i, y) in y.iter_mut(block) {
            *y += a * x[i];
        }
    }

    /// The same four by four, of which a GPU makes one access each.
    pub fn axpy_in_fours(block, ctx, a: f32, x: Slice<Four>, y: SliceMut<Four>) {
        let x = &x[..y.len()];
        for (i, y) in y.iter_mut(block) {
            let (Four(x), Four(old)) = (x[i], *y);
            *y = Four([a * x[0] + old[0], a * x[1] + old[1], a * x[2] + old[2], a * x[3] + old[3]]);
        }
    }

    /// Each chunk gets its index and the sum of what it had.
    pub fn sums_of_chunks(block, ctx, chunks: ChunksMut<u64>) {
        for (c, chunk) in chunks.iter_mut(block) {
            let sum = chunk.iter().sum();
            if let [first, .., last] = chunk {
                (*first, *last) = (c as u64, sum);
            }
        }
    }

    /// Each element gets the number of its row in the upper half, and its place there in the lower.
    pub fn number_rows(block, ctx, rows: RowsMut<u64>, told: Sym<u64>) {
        ctx.store(told, 0, rows.count() as u64);
        for (r, mut row) in rows.iter_mut(block) {
            for (i, element) in row.iter_mut(block) {
                *element = (r as u64) << 32 | i as u64;
            }
        }
    }

    /// Element `i` goes to the place that `to` says.
    pub fn scatter(block, ctx, into: Relaxed<u32>, to: Slice<u32>, from: Slice<u32>) {
        for i in block.strided(to.len()) {
            if i % block.count() == block.index() {
                into.store(to[i] as usize, from[i]);
            }
        }
    }

    /// Copies what it was lent, once it is told to.
    pub fn read_late(block, ctx, into: Sym<u64>, from: Slice<u64>, go: Sym<Signal>) {
        ctx.wait_at_least(block, go, 1);
        for i in block.strided(from.len()) {
            ctx.store(into, i, from[i]);
        }
    }

    /// Adds to what it was lent, once it is told to, after so many turns.
    pub fn add_late(block, ctx, into: SliceMut<u64>, value: u64, go: Sym<Signal>, turns: u64) {
        ctx.wait_at_least(block, go, 1);
        for _ in 0..turns {
            ctx.signal_value(go);
        }
        for (_, element) in into.iter_mut(block) {
            *element += value;
        }
    }

    /// Reads past the end of what it was lent.
    pub fn past_the_end(block, ctx, from: Slice<u32>, told: Sym<u64>) {
        ctx.store(told, 0, from[from.len() + block.rank()].into());
    }
}
