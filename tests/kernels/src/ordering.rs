//! What orders data: put_signal, notify, fence, quiet, and the end of a nonblocking scope.

use core::time::Duration;

use congruent_device::{Ctx, Group, Rank, Semaphore, Sym, kernels};

use crate::By;
use crate::by::as_group;

/// What PE `from` sends at `i` in a round: different for each.
#[inline(always)]
fn stamp(from: Rank, round: u64, i: usize) -> u64 {
    (from.index() as u64) << 56 | round << 32 | i as u64
}

/// Counts in `wrong` the elements of this PE's `inbox` that are not what `from` sent in this round.
#[inline(always)]
fn check(ctx: &Ctx<'_>, group: &impl Group, inbox: Sym<u64>, wrong: Sym<u64>, from: Rank, round: u64) {
    for i in group.strided(inbox.len()) {
        if ctx.load(inbox, i) != stamp(from, round, i) {
            ctx.add(wrong.at(ctx.world().me()), 1);
        }
    }
}

kernels! {
    /// Messages round the ring, `rounds` of them in each block, each in its part of the buffers: data and signal together.
    pub fn messages(
        block, ctx, inbox: Sym<u64>, outbox: Sym<u64>, full: Sym<Semaphore>, free: Sym<Semaphore>, wrong: Sym<u64>,
        rounds: u64, by: By,
    ) {
        let world = ctx.world();
        let (next, prev) = (world.next(), world.prev());
        let (inbox, outbox) = (inbox.chunk(block.index(), block.count()), outbox.chunk(block.index(), block.count()));
        let (full, free) = (full.elem(block.index()), free.elem(block.index()));
        as_group!(by, block, |group| for round in 0..rounds {
            for i in group.strided(outbox.len()) {
                ctx.store(outbox, i, stamp(world.me(), round, i));
            }
            group.sync();
            if round > 0 {
                ctx.wait(group, free.from_rank(next), 1);
            }
            ctx.put_signal(group, inbox.at(next), outbox, full.at(next).post());
            ctx.wait(group, full.from_rank(prev), 1);
            check(ctx, group, inbox, wrong, prev, round);
            ctx.notify(group, free.at(prev).post());
            if round + 1 == rounds {
                ctx.wait(group, free.from_rank(next), 1);
            }
        });
    }

    /// One notify covers what every thread of the group put before, value by value.
    pub fn covered(
        block, ctx, inbox: Sym<u64>, full: Sym<Semaphore>, free: Sym<Semaphore>, wrong: Sym<u64>, rounds: u64, by: By,
    ) {
        let world = ctx.world();
        let (next, prev) = (world.next(), world.prev());
        as_group!(by, block, |group| for round in 0..rounds {
            for i in group.strided(inbox.len()) {
                ctx.put_value(inbox.at(next).elem(i), stamp(world.me(), round, i));
            }
            ctx.notify(group, full.at(next).post());
            ctx.wait(group, full.from_rank(prev), 1);
            check(ctx, group, inbox, wrong, prev, round);
            ctx.notify(group, free.at(prev).post());
            ctx.wait(group, free.from_rank(next), 1);
        });
    }

    /// A baton goes round from PE 0: who gets it sees what PE 0 had stored before it let go, however many hands ago.
    pub fn baton(block, ctx, word: Sym<u64>, turn: Sym<Semaphore>, wrong: Sym<u64>, rounds: u64) {
        let world = ctx.world();
        let origin = world.rank(0);
        for round in 1..=rounds {
            if world.me() == origin {
                if block.leader() {
                    ctx.store(word, 0, round);
                }
            } else {
                ctx.wait(block, turn.from_rank(world.prev()), 1);
                if ctx.get_value(word.at(origin)) != round {
                    ctx.add(wrong.at(world.me()), 1);
                }
            }
            ctx.notify(block, turn.at(world.next()).post());
            if world.me() == origin {
                ctx.wait(block, turn.from_rank(world.prev()), 1);
            }
        }
    }

    /// Data, a fence, then a plain flag that the receiver polls: no signal is involved. `never` is waited for, in short
    /// turns, to leave the core to others.
    pub fn fenced(
        block, ctx, inbox: Sym<u64>, flag: Sym<u64>, never: Sym<Semaphore>, free: Sym<Semaphore>, wrong: Sym<u64>,
        rounds: u64,
    ) {
        let world = ctx.world();
        let (next, prev) = (world.next(), world.prev());
        for round in 1..=rounds {
            for i in block.strided(inbox.len()) {
                ctx.put_value(inbox.at(next).elem(i), stamp(world.me(), round, i));
            }
            ctx.fence(block, next);
            if block.leader() {
                ctx.put_value(flag.at(next), round);
            }
            while !block.any(ctx.load(flag, 0) == round || ctx.aborted()) {
                let _never = ctx.try_wait(block, never, 1, Duration::from_micros(20));
            }
            ctx.fence(block, prev);
            check(ctx, block, inbox, wrong, prev, round);
            ctx.notify(block, free.at(prev).post());
            ctx.wait(block, free.from_rank(next), 1);
        }
    }

    /// Pairs of PEs each put to the other, quiet, and look at what the other put: in no round do both miss it. `missed`
    /// has a word for each round.
    pub fn crossing(block, ctx, word: Sym<u64>, missed: Sym<u64>, wrong: Sym<u64>) {
        let world = ctx.world();
        let me = world.me().index();
        let peer = world.get(me ^ 1);
        for round in 0..missed.len() {
            ctx.sync(block, &world);
            if let Some(peer) = peer {
                if block.leader() {
                    ctx.put_value(word.at(peer), round as u64 + 1);
                }
                ctx.quiet_to(block, peer);
                if block.leader() {
                    ctx.store(missed, round, (ctx.load(word, 0) != round as u64 + 1).into());
                }
            }
        }
        ctx.barrier(block, &world);
        if let Some(peer) = peer {
            for round in block.strided(missed.len()) {
                if ctx.load(missed, round) == 1 && ctx.get_value(missed.at(peer).elem(round)) == 1 {
                    ctx.add(wrong.at(world.me()), 1);
                }
            }
        }
    }

    /// All-to-all by transfers that are all in flight at once: chunk `me` of everybody's `to` is my chunk for them, and
    /// `back` is gathered from everybody's chunk for me. At the end of the scope my puts can be read back.
    pub fn exchange(block, ctx, to: Sym<u32>, back: Sym<u32>, from: Sym<u32>, wrong: Sym<u64>) {
        let world = ctx.world();
        let (n, me) = (world.size(), world.me().index());
        ctx.barrier(block, &world);
        ctx.nonblocking(block, |transfers| {
            for rank in world.ranks() {
                transfers.put(to.chunk(me, n).at(rank), from.chunk(rank.index(), n));
                transfers.get(back.chunk(rank.index(), n), from.chunk(me, n).at(rank));
            }
        });
        for rank in world.ranks() {
            let (there, here) = (to.chunk(me, n).at(rank), from.chunk(rank.index(), n));
            for i in block.strided(here.len()) {
                if ctx.get_value(there.elem(i)) != ctx.load(here, i) {
                    ctx.add(wrong.at(world.me()), 1);
                }
            }
        }
        ctx.barrier(block, &world);
    }
}
