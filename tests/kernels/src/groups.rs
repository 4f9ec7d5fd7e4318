//! Groups: who is in a block and in a warp, what they agree on, and warps that act by themselves.

use congruent_device::{Group, Semaphore, Sym, Thread, kernels};

use crate::tell;

kernels! {
    /// Tells what each group says of itself, summed over the block's threads; `marks` counts, for block, warp and thread in
    /// turn, how often each index of a third of it was somebody's.
    pub fn group_facts(block, ctx, told: Sym<u64>, marks: Sym<u32>) {
        let warp = block.warp();
        let whole = block.broadcast(warp.size() as u64);
        let (rank, first) = (block.rank() as u64, block.warp_index() as u64 * whole);
        tell::leader(ctx, block, told, 0, block.size() as u64);
        tell::leader(ctx, block, told, 1, warp.size() as u64);
        tell::leader(ctx, block, told, 2, block.warps() as u64);
        tell::all(ctx, told, 3, rank);
        tell::all(ctx, told, 4, block.leader().into());
        tell::all(ctx, told, 5, warp.leader().into());
        tell::all(ctx, told, 6, (rank == first + warp.rank() as u64).into());
        tell::all(ctx, told, 7, block.any(block.rank() + 1 == block.size()).into());
        tell::all(ctx, told, 8, block.any(false).into());
        tell::all(ctx, told, 9, warp.any(block.leader()).into());
        tell::all(ctx, told, 10, (block.broadcast(rank + 7) == 7).into());
        tell::all(ctx, told, 11, (warp.broadcast(rank) == first).into());
        let alone = Thread.leader() && Thread.size() == 1 && Thread.any(true) && !Thread.any(false);
        tell::all(ctx, told, 12, (alone && Thread.broadcast(rank) == rank).into());
        let mine = ctx.world().me();
        for i in block.strided(marks.len() / 3) {
            ctx.add(marks.chunk(0, 3).elem(i).at(mine), 1);
        }
        for i in warp.strided(marks.len() / 3) {
            ctx.add(marks.chunk(1, 3).elem(i).at(mine), 1);
        }
        for i in Thread.strided(marks.len() / 3) {
            ctx.add(marks.chunk(2, 3).elem(i).at(mine), 1);
        }
    }

    /// A sync lets every thread see what the others stored before it: each thread stores in `row`, which is as long as the
    /// block, and looks at its neighbour's. Counts what is otherwise in `wrong`.
    pub fn group_sync(block, ctx, row: Sym<u64>, wrong: Sym<u64>, rounds: u64) {
        let (rank, size) = (block.rank(), block.size());
        for round in 0..rounds {
            ctx.store(row, rank, round);
            block.sync();
            if ctx.load(row, (rank + 1) % size) != round {
                ctx.add(wrong.at(ctx.world().me()), 1);
            }
            block.sync();
        }
    }

    /// Every warp sends messages of its own to the same warp of the next PE, the second warp twice as many: warps do not
    /// wait for each other. Counts what arrives wrong.
    pub fn warp_messages(
        block, ctx, inbox: Sym<u64>, outbox: Sym<u64>, full: Sym<Semaphore>, free: Sym<Semaphore>, wrong: Sym<u64>,
        rounds: u64,
    ) {
        let (world, warp, w) = (ctx.world(), block.warp(), block.warp_index());
        let (next, prev) = (world.next(), world.prev());
        let (inbox, outbox) = (inbox.chunk(w, block.warps()), outbox.chunk(w, block.warps()));
        let (full, free) = (full.elem(w), free.elem(w));
        for round in 0..rounds * (w as u64 + 1) {
            for i in warp.strided(outbox.len()) {
                ctx.store(outbox, i, round << 32 | (world.me().index() << 16 | i) as u64);
            }
            warp.sync();
            ctx.put_signal(&warp, inbox.at(next), outbox, full.at(next).post());
            ctx.wait(&warp, full.from_rank(prev), 1);
            for i in warp.strided(inbox.len()) {
                if ctx.load(inbox, i) != round << 32 | (prev.index() << 16 | i) as u64 {
                    ctx.add(wrong.at(world.me()), 1);
                }
            }
            ctx.notify(&warp, free.at(prev).post());
            ctx.wait(&warp, free.from_rank(next), 1);
        }
    }
}
