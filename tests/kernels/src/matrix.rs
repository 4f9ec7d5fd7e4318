//! Matrices of a warp: from memory of every kind, multiplied, changed and stored.

use congruent_device::matrix::{A, Accumulator, B, Multiplicand};
use congruent_device::{Block, Group, Relaxed, Shared, Slice, SmallFloat, Sym, bf16, f16, kernels};

kernels! {
    /// `c` becomes `a * b`, of numbers in `bf16`: `a` has rows of `k`, `b` of `n`. Each warp has tiles of 32 rows and 24 columns.
    pub fn product_of_bf16(block, ctx, a: Slice<bf16>, b: Slice<bf16>, c: Relaxed<f32>, n: u64, k: u64) {
        product(block, a, b, n as usize, k as usize, |i, sum| c.store(i, sum));
    }

    /// The same in `f16`.
    pub fn product_of_f16(block, ctx, a: Slice<f16>, b: Slice<f16>, c: Relaxed<f32>, n: u64, k: u64) {
        product(block, a, b, n as usize, k as usize, |i, sum| c.store(i, sum));
    }

    /// The products of the block's two tiles in shared memory, of 32 rows and 48 columns and 48 rows and 40 columns, in each of the four
    /// ways in which they may lie; each way's product by itself.
    pub fn ways_of_bf16(
        block, ctx, a: Slice<bf16>, b: Slice<bf16>, c: Relaxed<f32>;
        shared: ([bf16; 2688], [bf16; 2688], [f32; 1536])
    ) {
        ways(block, a, b, shared, |i, sum| c.store(i, sum));
    }

    /// The same in `f16`.
    pub fn ways_of_f16(
        block, ctx, a: Slice<f16>, b: Slice<f16>, c: Relaxed<f32>;
        shared: ([f16; 2688], [f16; 2688], [f32; 1536])
    ) {
        ways(block, a, b, shared, |i, sum| c.store(i, sum));
    }

    /// What fragments are made of: counts in `wrong` the elements that are otherwise, and in `seen` how often each sum was seen.
    pub fn fragments(block, ctx, wrong: Sym<u64>, seen: Sym<u32>) {
        // SAFETY: all threads of a block go the same way.
        let (warp, me) = (unsafe { block.warp().whole() }, ctx.world().me());
        let mut wrongs = 0;
        let mut expect = |is: bool| wrongs += u64::from(!is);
        expect(warp.rank() == block.warp().rank() && warp.size() == block.warp().size());
        expect(warp.strided(100).count() == block.warp().strided(100).count());
        let number = |i: usize, j: usize| (100 * i + j) as f32;
        Accumulator::<2, 3>::fill(-2.5).for_each(&warp, |_, _, sum| expect(sum == -2.5));
        let mut sums = Accumulator::<2, 3>::from_fn(&warp, number);
        sums.for_each(&warp, |i, j, sum| expect(i < 32 && j < 24 && sum == number(i, j)));
        sums.map(&warp, |sum| 3.0 - sum);
        sums.for_each(&warp, |i, j, sum| expect(sum == 3.0 - number(i, j)));
        // One row and one column that are not zero: their places and their product.
        let a = A::<_, 2>::from_fn(&warp, |i, k| bf16::narrow(if k == 5 { (i + 1) as f32 } else { 0.0 }));
        let b = B::<_, 3>::from_fn(&warp, |k, j| bf16::narrow(if k == 5 { (j + 1) as f32 } else { 0.0 }));
        sums.mma(&warp, &a, &b);
        sums.for_each(&warp, |i, j, sum| expect(sum == 3.0 - number(i, j) + ((i + 1) * (j + 1)) as f32));
        sums.for_each(&warp, |i, j, _| ctx.add(seen.elem(24 * i + j).at(me), 1));
        ctx.add(wrong.at(me), wrongs);
    }

    /// Reads the last matrix that is all there.
    pub fn last_matrix(block, ctx, told: Sym<f32>, at: u64; shared: ([bf16; 600],)) {
        let (tile,) = shared.sync(block);
        tile.part(block).fill_with(|_| bf16::narrow(1.0));
        let (tile,) = shared.sync(block);
        // SAFETY: all threads of a block go the same way.
        let (warp, tile) = (unsafe { block.warp().whole() }, tile.all());
        let mut sums = Accumulator::<1, 1>::fill(0.5);
        let (a, b) = (A::load(&warp, &tile, at as usize, 24), B::load(&warp, &tile, 0, 24));
        sums.mma(&warp, &a, &b);
        sums.for_each(&warp, |i, j, sum| {
            if (i, j) == (15, 7) {
                ctx.store(told, 0, sum);
            }
        });
    }
}

/// The product of two matrices in global memory.
#[inline(always)]
fn product<T: Multiplicand>(
    block: &Block<'_>,
    a: &[T],
    b: &[T],
    n: usize,
    k: usize,
    mut store: impl FnMut(usize, f32),
) {
    // SAFETY: all threads of a warp go the same way, and none leaves.
    let warp = unsafe { block.warp().whole() };
    let (m, across) = (a.len() / k, n / 24);
    let first = block.index() * block.warps() + block.warp_index();
    for tile in (first..m / 32 * across).step_by(block.count() * block.warps()) {
        let (row, column) = (tile / across * 32, tile % across * 24);
        let mut sums = Accumulator::<2, 3>::fill(0.0);
        for i in (0..k).step_by(16) {
            let left = A::from_slice(&warp, &a[row * k + i..], k);
            let right = B::from_slice(&warp, &b[i * n + column..], n);
            sums.mma(&warp, &left, &right);
        }
        sums.for_each(&warp, |i, j, sum| store((row + i) * n + column + j, sum));
    }
}

/// The product of two matrices in shared memory, each as it is or turned; rows are so far apart that they are in different banks.
#[inline(always)]
fn ways<T: Multiplicand>(
    block: &Block<'_>,
    a: &[T],
    b: &[T],
    shared: &mut Shared<'_, ([T; 2688], [T; 2688], [f32; 1536])>,
    mut store: impl FnMut(usize, f32),
) {
    // SAFETY: all threads of a warp go the same way, and none leaves.
    let warp = unsafe { block.warp().whole() };
    for way in 0..4 {
        let (a_turned, b_turned) = (way & 1 > 0, way & 2 > 0);
        let (x, y, _) = shared.sync(block);
        let (x, y) = (x.cells(), y.cells());
        for i in block.strided(32 * 48) {
            let (row, column) = (i / 48, i % 48);
            x.store(if a_turned { 40 * column + row } else { 56 * row + column }, a[i]);
        }
        for i in block.strided(48 * 40) {
            let (row, column) = (i / 40, i % 40);
            y.store(if b_turned { 56 * column + row } else { 56 * row + column }, b[i]);
        }
        let (x, y, sums) = shared.sync(block);
        let (x, y, sums) = (x.all(), y.all(), sums.cells());
        if block.warp_index() == 0 {
            let mut product = Accumulator::<2, 5>::fill(0.0);
            for k in (0..48).step_by(16) {
                let a = if a_turned { A::load_transposed(&warp, &x, 40 * k, 40) } else { A::load(&warp, &x, k, 56) };
                let b = if b_turned { B::load_transposed(&warp, &y, k, 56) } else { B::load(&warp, &y, 56 * k, 56) };
                product.mma(&warp, &a, &b);
            }
            product.store(&warp, &sums, 8, 48);
        }
        let (_, _, sums) = shared.sync(block);
        let sums = sums.all();
        for i in block.strided(32 * 40) {
            store(way * 32 * 40 + i, sums.get(8 + i / 40 * 48 + i % 40));
        }
    }
}
