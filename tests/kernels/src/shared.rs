//! Shared memory of a block.

use congruent_device::{Global, Group, Pack, SharedArray, Slice, Sum, Sym, kernels};

/// Packs of a stage.
pub const STAGE: usize = 24;

kernels! {
    /// Counts how often each byte occurs: every block in its own shared memory, then all together.
    pub fn histogram(block, ctx, bytes: Sym<u8>, counts: Sym<u32>; shared: ([u32; 256],)) {
        let (bins,) = shared.sync(block);
        bins.part(block).fill_with(|_| 0);
        let (bins,) = shared.sync(block);
        let bins = bins.cells();
        let mine = bytes.chunk(block.index(), block.count());
        for i in block.strided(mine.len()) {
            bins.add(ctx.load(mine, i).into(), 1);
        }
        let (bins,) = shared.sync(block);
        let bins = bins.all();
        for i in block.strided(bins.len()) {
            ctx.add(counts.elem(i).at(ctx.world().me()), bins.get(i));
        }
    }

    /// Reverses `numbers`, as many at a time as the launch gives shared memory for, by way of there; `told` has how many those are.
    pub fn reverse(block, ctx, numbers: Sym<f32>, reversed: Sym<f32>, told: Sym<u64>; shared: ([u8; 3], [f32])) {
        let (_, room) = shared.sync(block);
        let room = room.len();
        let len = numbers.len();
        for first in (0..len).step_by(room.max(1)) {
            let (_, tile) = shared.sync(block);
            let some = room.min(len - first);
            tile.part(block).fill_with(|i| if i < some { ctx.load(numbers, first + i) } else { 0.0 });
            let (_, tile) = shared.sync(block);
            let tile = tile.all();
            for i in block.strided(some) {
                ctx.store(reversed, len - first - some + i, tile.get(some - 1 - i));
            }
        }
        if block.leader() {
            ctx.store(told, 0, room as u64);
        }
    }

    /// Numbers 16 bytes at a time by way of shared memory, in three stages: while one is read, the next two are fetched.
    pub fn staged(block, ctx, from: Slice<Pack<u32, 4>>, to: Sym<Pack<u32, 4>>; shared: ([Pack<u32, 4>; 3 * STAGE],)) {
        // SAFETY: the launch is lent it to be read.
        let from = unsafe { Global::of(from) };
        let fetch = |stage: usize, to: SharedArray<'_, Pack<u32, 4>>| {
            let to = to.cells();
            for i in block.strided(STAGE) {
                to.copy_async(stage % 3 * STAGE + i, from, stage * STAGE + i);
            }
        };
        let stages = from.len().div_ceil(STAGE);
        let (all,) = shared.sync(block);
        fetch(0, all);
        let (all,) = shared.sync_stage::<1>(block);
        fetch(1, all);
        for stage in 0..stages {
            let (all,) = shared.sync_stage::<1>(block);
            let cells = all.cells();
            for i in block.strided(STAGE.min(from.len() - stage * STAGE)) {
                ctx.store(to, stage * STAGE + i, cells.load(stage % 3 * STAGE + i));
            }
            let (all,) = shared.sync_stage::<1>(block);
            fetch(stage + 2, all);
        }
    }

    /// Three warps, each with work of its own: the first one makes numbers, the second one their squares, the third one adds these up.
    pub fn in_turn(block, ctx, told: Sym<u64>; shared: ([u64; 40], [u64; 40])) warps(3) {
        let (warp, mut sum) = (block.warp(), 0);
        for round in 0..5 {
            let (numbers, _) = shared.sync(block);
            if block.warp_index() == 0 {
                let numbers = numbers.cells();
                warp.strided(40).for_each(|i| numbers.store(i, round * 40 + i as u64));
            }
            let (numbers, squares) = shared.sync(block);
            if block.warp_index() == 1 {
                let (numbers, squares) = (numbers.all(), squares.cells());
                warp.strided(40).for_each(|i| squares.store(i, numbers.get(i).pow(2)));
            }
            let (_, squares) = shared.sync(block);
            if block.warp_index() == 2 {
                let squares = squares.all();
                sum += warp.reduce(warp.strided(40).fold(0, |sum, i| sum + squares.get(i)), Sum);
            }
        }
        if block.warp_index() == 2 && warp.leader() {
            ctx.store(told, 0, sum);
            ctx.store(told, 1, block.warps() as u64);
        }
    }

    /// Elements of each size, at places that no other array reaches: each thread writes its own, then looks at all. Counts in `wrong`
    /// what is otherwise; `sums` has what was added, atomically.
    pub fn elements(
        block, ctx, wrong: Sym<u64>, sums: Sym<f32>;
        shared: ([u8; 33], [u16; 65], [[u16; 3]; 40], [u64; 50], [[f32; 4]; 30], [[u32; 3]])
    ) {
        let (bytes, halves, threes, longs, fours, rest) = shared.sync(block);
        let threads = block.size() as f32;
        let lengths = bytes.len() == 33 && halves.len() == 65 && threes.len() == 40 && longs.len() == 50 && fours.len() == 30;
        let mut wrongs = u64::from(!lengths || rest.is_empty());
        bytes.part(block).fill_with(|i| i as u8);
        halves.part(block).fill_with(|i| 1000 + i as u16);
        threes.part(block).fill_with(|i| [i as u16, 7, 2 * i as u16]);
        longs.part(block).fill_with(|i| (i as u64) << 33 | 1);
        fours.part(block).fill_with(|i| [i as f32, 0.5, -1.0, 2.0]);
        rest.part(block).fill_with(|i| [i as u32, !(i as u32), 3]);
        let (bytes, halves, threes, longs, fours, rest) = shared.sync(block);
        let (bytes, halves, threes, longs, fours, rest) =
            (bytes.all(), halves.all(), threes.all(), longs.all(), fours.all(), rest.all());
        let mut expect = |is: bool| wrongs += u64::from(!is);
        (0..33).for_each(|i| expect(bytes.get(i) == i as u8));
        (0..65).for_each(|i| expect(halves.get(i) == 1000 + i as u16));
        // Comparing whole arrays would call a function of C.
        (0..40).for_each(|i| {
            let [a, b, c] = threes.get(i);
            expect(a == i as u16 && b == 7 && c == 2 * i as u16);
        });
        (0..50).for_each(|i| expect(longs.get(i) == (i as u64) << 33 | 1));
        (0..30).for_each(|i| expect(fours.get(i) == [i as f32, 0.5, -1.0, 2.0]));
        (0..rest.len()).for_each(|i| {
            let [a, b, c] = rest.get(i);
            expect(a == i as u32 && b == !a && c == 3);
        });
        let (_, _, _, longs, fours, _) = shared.sync(block);
        longs.part(block).update(|i, old| old - ((i as u64) << 33));
        // Whichever thread it is, the last one has another's.
        let fours = fours.cells();
        if block.leader() {
            fours.store(29, [1.0; 4]);
        }
        let (_, _, _, longs, fours, _) = shared.sync(block);
        let longs = longs.cells();
        longs.add(3, 2);
        expect(fours.all().get(29) == [1.0; 4]);
        let (_, _, _, longs, _, _) = shared.sync(block);
        let longs = longs.cells();
        expect(longs.load(3) == 1 + 2 * block.size() as u64 && longs.load(4) == 1);
        ctx.add(wrong.at(ctx.world().me()), wrongs);
        let sum = block.reduce(0.25_f32, Sum);
        if block.leader() {
            ctx.store(sums, 0, sum / threads);
        }
    }

    /// Reads past its shared memory.
    pub fn beyond(block, ctx, told: Sym<u32>, i: u64; shared: ([u32; 8],)) {
        let (words,) = shared.sync(block);
        words.part(block).fill_with(|i| i as u32);
        let (words,) = shared.sync(block);
        let word = words.all().get(i as usize);
        if block.leader() {
            ctx.store(told, 0, word);
        }
    }
}
