//! Memory of a PE's own: read as slices, written in parts that threads have to themselves.

use congruent_device::{
    ChunksMut, Group, Pack, Relaxed, RowsMut, Signal, Slice, SliceMut, Sum, Sym, TilesMut, kernels,
};

use crate::tell;

kernels! {
    /// `y` becomes `a * x + y`.
    pub fn axpy(block, ctx, a: f32, x: Slice<f32>, y: SliceMut<f32>) {
        let x = &x[..y.len()];
        for (i, y) in y.iter_mut(block) {
            *y += a * x[i];
        }
    }

    /// The same four by four, of which a GPU makes one access each.
    pub fn axpy_in_packs(block, ctx, a: f32, x: Slice<Pack<f32, 4>>, y: SliceMut<Pack<f32, 4>>) {
        let x = &x[..y.len()];
        for (i, y) in y.iter_mut(block) {
            let (x, old) = (x[i], *y);
            *y = Pack::from_fn(|j| a * x[j] + old[j]);
        }
    }

    /// The same of several types.
    pub fn axpy_of<T in [f64, u32, i64]>(block, ctx, a: T, x: Slice<T>, y: SliceMut<T>) launch_bounds(128, 2) {
        let x = &x[..y.len()];
        for (i, y) in y.iter_mut(block) {
            *y += a * x[i];
        }
    }

    /// The sum of all numbers, most of them read 16 bytes at a time; then how many packs there were.
    pub fn sum_in_packs(block, ctx, numbers: Slice<u32>, told: Sym<u64>) {
        let (packs, rest) = Pack::<u32, 4>::split(numbers);
        let of_packs = block.strided(packs.len()).fold(0, |sum, i| sum + packs[i].iter().map(|&x| u64::from(x)).sum::<u64>());
        let sum = block.strided(rest.len()).fold(of_packs, |sum, i| sum + u64::from(rest[i]));
        let sum = block.reduce(sum, Sum);
        if block.leader() {
            ctx.store(told, 0, sum);
            ctx.store(told, 1, packs.len() as u64);
        }
    }

    /// Symmetric memory that nobody else uses meanwhile, written as a buffer is: elements become what they were and `by` more, then each
    /// of these chunks is reversed, then each row gets its index in front.
    pub fn settled(block, ctx, numbers: Sym<u32>, by: u32, chunk: u64, row: u64) launch_bounds(128) {
        // SAFETY: one block, which meets between two views; the host waits for the launch.
        let mut elements = unsafe { ctx.settled_mut(numbers) };
        elements.iter_mut(block).for_each(|(_, element)| *element += by);
        block.sync();
        // SAFETY: as above.
        let mut chunks = unsafe { ctx.settled_chunks_mut(numbers, chunk as usize) };
        chunks.iter_mut(block).for_each(|(_, chunk)| chunk.reverse());
        block.sync();
        // SAFETY: as above.
        let mut rows = unsafe { ctx.settled_rows_mut(numbers, row as usize) };
        for (r, mut row) in rows.iter_mut(block) {
            row.iter_mut(block).filter(|(i, _)| *i == 0).for_each(|(_, first)| *first = r as u32);
        }
    }

    /// Element `i, j` of a table becomes `1000 * i + j`, each tile of 4 rows and 8 columns by a block.
    pub fn table(block, ctx, to: Relaxed<u32>, rows: u64, columns: u64) launch_bounds(32) blocks(independent) {
        let (rows, columns) = (rows as usize, columns as usize);
        let [across, down] = block.index_in([columns.div_ceil(8), rows.div_ceil(4)]);
        for place in block.strided(32) {
            let (i, j) = (down * 4 + place / 8, across * 8 + place % 8);
            if i < rows && j < columns {
                to.store(i * columns + j, (1000 * i + j) as u32);
            }
        }
    }

    /// Element `i, j, k` of a volume becomes `10000 * i + 100 * j + k`, each tile of 2 layers, 3 rows and 4 columns by a block.
    pub fn volume(block, ctx, to: Relaxed<u32>, layers: u64, rows: u64, columns: u64) {
        let (layers, rows, columns) = (layers as usize, rows as usize, columns as usize);
        let [across, down, deep] = block.index_in([columns.div_ceil(4), rows.div_ceil(3), layers.div_ceil(2)]);
        for place in block.strided(24) {
            let (i, j, k) = (deep * 2 + place / 12, down * 3 + place / 4 % 3, across * 4 + place % 4);
            if i < layers && j < rows && k < columns {
                to.store((i * rows + j) * columns + k, (10_000 * i + 100 * j + k) as u32);
            }
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

    /// Each element gets where it is in the table, from the tile's place and its own there: a million times the row, and a thousand times
    /// the column, and how many elements the tile has; then the counts of the table's tiles.
    pub fn number_tiles(block, ctx, tiles: TilesMut<u64>, told: Sym<u64>) {
        let ([down, across], [rows, columns]) = (tiles.count(), tiles.extents());
        tell::leader(ctx, block, told, 0, (down * 1000 + across) as u64);
        tell::leader(ctx, block, told, 1, (rows * 1000 + columns) as u64);
        for ([row, column], mut tile) in tiles.iter_mut(block) {
            let [height, width] = tile.extents();
            for ([i, j], element) in tile.iter_mut(block) {
                *element += ((row + i) * 1_000_000 + (column + j) * 1000 + height * width) as u64;
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

    /// Tells where this PE's copy is in its address space, and where that of every other PE is.
    pub fn tell_addresses(block, ctx, of: Sym<u64>, told: Sym<u64>) {
        for rank in ctx.world().ranks() {
            tell::leader(ctx, block, told, rank.pe().index(), ctx.address(of.at(rank)).expose_provenance() as u64);
        }
    }

    /// Reads past the end of what it was lent.
    pub fn past_the_end(block, ctx, from: Slice<u32>, told: Sym<u64>) {
        ctx.store(told, 0, from[from.len() + block.rank()].into());
    }
}
