//! What threads of a group see of each other: shuffles, votes, matches, reductions and scans.

use congruent_device::{
    Avg, BitXor, Group, Lanes, Max, Min, MinLoc, SmallFloat, Sum, Sym, Thread, ValueAt, bf16, kernels,
};

kernels! {
    /// Every thread compares what the operations of its warp, of its tiles of each size, of its block and of itself give with what
    /// follows from ranks and sizes. Counts in `wrong` what is otherwise, a word for each kind of group.
    pub fn lane_facts(block, ctx, wrong: Sym<u64>, seed: u64) {
        let (warp, me) = (block.warp(), ctx.world().me());
        let count = |i: usize, wrongs: u64| ctx.add(wrong.elem(i).at(me), wrongs);
        count(0, lanes(&warp, seed) + values(&warp, seed));
        count(1, lanes(&warp.tiled_partition::<1>(), seed) + values(&warp.tiled_partition::<1>(), seed));
        count(2, lanes(&warp.tiled_partition::<4>(), seed) + values(&warp.tiled_partition::<4>(), seed));
        count(3, lanes(&warp.tiled_partition::<16>(), seed) + values(&warp.tiled_partition::<16>(), seed));
        count(4, lanes(&warp.tiled_partition::<32>(), seed) + values(&warp.tiled_partition::<32>(), seed));
        let (tile, smaller) = (warp.tiled_partition::<8>(), warp.tiled_partition::<8>().tiled_partition::<2>());
        // Tiles do not wait for each other.
        for round in 0..tile.meta_group_rank() as u64 + 1 {
            count(5, lanes(&tile, seed + round) + values(&tile, seed));
        }
        count(6, lanes(&smaller, seed) + values(&smaller, seed));
        let tiles = tile.size() * tile.meta_group_rank() <= warp.rank() && tile.meta_group_rank() < tile.meta_group_size();
        count(7, u64::from(!tiles || smaller.meta_group_size() < tile.meta_group_size()));
        let mine = number(block.rank(), seed);
        let not_the_warps = block.uniform(mine) != warp.broadcast(mine);
        count(8, values(block, seed) + values(block, seed + 1) + u64::from(not_the_warps));
        count(9, values(&Thread, seed));
    }

    /// Reductions and scans of a block over numbers of any length: `sums[i]` is the sum of the numbers before `i`, `told` has their
    /// sum, their smallest and its place, and their exclusive or.
    pub fn block_scan(block, ctx, numbers: Sym<u32>, sums: Sym<u32>, told: Sym<u32>) {
        let mut total = 0;
        let (mut least, mut bits) = (ValueAt { value: u32::MAX, at: u32::MAX }, 0);
        // Every thread takes part in every round, whether there is a number for it or not.
        for first in (0..numbers.len()).step_by(block.size()) {
            let i = first + block.rank();
            let number = if i < numbers.len() { ctx.load(numbers, i) } else { 0 };
            let sum = block.exclusive_scan(number, total, Sum);
            if i < numbers.len() {
                ctx.store(sums, i, sum);
                if number < least.value {
                    least = ValueAt { value: number, at: i as u32 };
                }
            }
            bits ^= number;
            total = total.wrapping_add(block.reduce(number, Sum));
        }
        let (least, bits) = (block.reduce(least, MinLoc), block.reduce(bits, BitXor));
        if block.leader() {
            // Not in a loop over an array, which would be in memory.
            ctx.store(told, 0, total);
            ctx.store(told, 1, least.value);
            ctx.store(told, 2, least.at);
            ctx.store(told, 3, bits);
        }
    }
}

/// A number for each rank, which differ.
#[inline(always)]
fn number(rank: usize, seed: u64) -> u64 {
    (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed).rotate_left(17)
}

/// What each rank gives, combined in order.
#[inline(always)]
fn fold<A>(ranks: core::ops::Range<usize>, first: A, combine: impl Fn(A, usize) -> A) -> A {
    ranks.fold(first, combine)
}

/// How many shuffles, ballots and matches of a thread are wrong.
#[inline(always)]
fn lanes(group: &impl Lanes, seed: u64) -> u64 {
    let (rank, size) = (group.rank(), group.size());
    let mine = number(rank, seed);
    let mut wrong = 0;
    let mut expect = |is: bool| wrong += u64::from(!is);
    let of = |other: usize| number(if other < size { other } else { rank }, seed);
    for by in [0, 1, 2, 3, 7, 16, 31, 32, 33, 100] {
        expect(group.shfl(mine, by) == of(by));
        expect(group.shfl_up(mine, by) == of(rank.wrapping_sub(by)));
        expect(group.shfl_down(mine, by) == of(rank + by));
        expect(group.shfl_xor(mine, by) == of(rank ^ by));
    }
    // Each asks another.
    expect(group.shfl(mine, (rank * 5 + 3) % size) == of((rank * 5 + 3) % size));
    // Of every width.
    expect(group.shfl(mine as u8, size - 1) == of(size - 1) as u8);
    expect(group.shfl(mine as u16, size - 1) == of(size - 1) as u16);
    expect(group.shfl(mine as u32 as i32, size - 1) == of(size - 1) as i32);
    expect(group.shfl([mine, !mine], size - 1) == [of(size - 1), !of(size - 1)]);
    // Comparing the whole array would call a function of C.
    let [a, b, c] = group.shfl([mine as u16, 7, rank as u16], size - 1);
    expect(a == of(size - 1) as u16 && b == 7 && usize::from(c) == size - 1);
    let bits = |is: &dyn Fn(usize) -> bool| fold(0..size, 0_u32, |bits, other| bits | u32::from(is(other)) << other);
    expect(group.ballot(rank % 3 == 1) == bits(&|other| other % 3 == 1));
    expect(group.ballot(true) == bits(&|_| true));
    expect(group.match_any((rank % 3) as u32) == bits(&|other| other % 3 == rank % 3));
    expect(
        group.match_any((rank % 2) as u64 * mine) == bits(&|other| other == rank || (other % 2 == 0 && rank % 2 == 0)),
    );
    expect(group.match_any([seed, rank as u64 / 2]) == bits(&|other| other / 2 == rank / 2));
    expect(group.match_all(seed) && group.match_all(rank as u16) == (size == 1));
    expect(group.ballot(group.elect()).count_ones() == 1);
    wrong
}

/// How many votes, broadcasts, reductions and scans of a thread are wrong.
#[inline(always)]
fn values(group: &impl Group, seed: u64) -> u64 {
    let (rank, size) = (group.rank(), group.size());
    let mine = number(rank, seed);
    let mut wrong = 0;
    let mut expect = |is: bool| wrong += u64::from(!is);
    group.sync();
    expect(group.any(rank + 1 == size) && !group.any(false) && group.all(true));
    expect(group.all(rank + 1 < size) == (size == 0));
    expect(group.broadcast(mine) == number(0, seed));
    expect(group.uniform(seed) == seed);
    // By one instruction where the machine has it.
    let signed = |rank: usize| number(rank, seed) as i32;
    expect(group.reduce(mine as u32, Sum) == fold(0..size, 0_u32, |sum, i| sum.wrapping_add(number(i, seed) as u32)));
    expect(group.reduce(signed(rank), Min) == fold(0..size, i32::MAX, |least, i| least.min(signed(i))));
    expect(group.reduce(signed(rank), Max) == fold(0..size, i32::MIN, |most, i| most.max(signed(i))));
    expect(group.reduce(mine as u32, Max) == fold(0..size, 0, |most, i| most.max(number(i, seed) as u32)));
    expect(group.reduce(rank as i32, Avg) == (size as i32 - 1) / 2);
    // By shuffles.
    expect(group.reduce(mine, Sum) == fold(0..size, 0_u64, |sum, i| sum.wrapping_add(number(i, seed))));
    expect(
        group.reduce(rank as f32 - 7.0, Min) == -7.0
            && group.reduce(rank as f64, Sum) == (size * (size - 1) / 2) as f64,
    );
    // Held in f32, and rounded once.
    let ones = group.reduce(bf16::from_bits(0x3f81), Sum).widen();
    expect(ones == bf16::narrow(1.007_812_5 * size as f32).widen());
    let least = group.reduce(ValueAt { value: mine as f64, at: rank as u64 }, MinLoc);
    let expected = fold(0..size, (f64::MAX, 0), |least, i| {
        let value = number(i, seed) as f64;
        if value < least.0 { (value, i as u64) } else { least }
    });
    expect((least.value, least.at) == expected);
    // Maps x -> a*x + b, one after the other: their order counts.
    let then = |[a, b]: [u32; 2], [c, d]: [u32; 2]| [a.wrapping_mul(c), b.wrapping_mul(c).wrapping_add(d)];
    let map = |rank: usize| [number(rank, seed) as u32 | 1, number(rank, seed) as u32];
    let initial = [3, 5];
    expect(group.inclusive_scan(map(rank), then) == fold(1..rank + 1, map(0), |all, i| then(all, map(i))));
    expect(group.exclusive_scan(map(rank), initial, then) == fold(0..rank, initial, |all, i| then(all, map(i))));
    expect(group.inclusive_scan(1_u8, Sum) == (rank + 1) as u8);
    wrong
}
