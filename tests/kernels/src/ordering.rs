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

    /// Parts with a signal each, all in flight at once, and then an atomic: a part's signal covers the part and those before it, and at
    /// the end of the scope all are complete.
    pub fn signals_in_flight(
        block, ctx, inbox: Sym<u64>, outbox: Sym<u64>, arrived: Sym<Semaphore>, free: Sym<Semaphore>, count: Sym<u64>,
        wrong: Sym<u64>, rounds: u64, by: By,
    ) {
        let world = ctx.world();
        let (next, prev, parts) = (world.next(), world.prev(), arrived.len());
        as_group!(by, block, |group| for round in 1..=rounds {
            for i in group.strided(outbox.len()) {
                ctx.store(outbox, i, stamp(world.me(), round, i));
            }
            group.sync();
            ctx.nonblocking(group, |nb| {
                for part in 0..parts {
                    let (there, here) = (inbox.chunk(part, parts).at(next), outbox.chunk(part, parts));
                    nb.put_signal(there, here, arrived.elem(part).at(next).post());
                }
                if group.leader() {
                    ctx.add(count.at(next), 1);
                }
            });
            if group.leader() && ctx.get_value(count.at(next)) != round {
                ctx.add(wrong.at(world.me()), 1);
            }
            // The last one first: it covers the others.
            ctx.wait(group, arrived.elem(parts - 1).from_rank(prev), 1);
            check(ctx, group, inbox, wrong, prev, round);
            for part in 0..parts - 1 {
                ctx.wait(group, arrived.elem(part).from_rank(prev), 1);
            }
            ctx.notify(group, free.at(prev).post());
            ctx.wait(group, free.from_rank(next), 1);
        });
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

/// A word that generations are told by.
#[cfg(not(target_arch = "nvptx64"))]
pub trait Generation: bytemuck::Pod + Send + Sync {
    /// The kernel that waits for them: inbox, outbox, flags, free, wrong, the first generation, rounds, by whom.
    type Wait: congruent_device::Kernel<Args = (Sym<u64>, Sym<u64>, Sym<Self>, Sym<Semaphore>, Sym<u64>, u64, u64, By)>;
}

macro_rules! generations {
    ($($kernel:ident: $type:ty;)*) => {$(
        kernels! {
            /// Data, a fence, and then its generation in a word whose neighbours stay as they are: who has waited for the word sees
            /// the data. Generations wrap around.
            pub fn $kernel(
                block, ctx, inbox: Sym<u64>, outbox: Sym<u64>, flags: Sym<$type>, free: Sym<Semaphore>, wrong: Sym<u64>,
                first: u64, rounds: u64, by: By,
            ) {
                let world = ctx.world();
                let (next, prev, flag) = (world.next(), world.prev(), flags.elem(1));
                as_group!(by, block, |group| for round in first..first + rounds {
                    for i in group.strided(outbox.len()) {
                        ctx.store(outbox, i, stamp(world.me(), round, i));
                    }
                    group.sync();
                    ctx.put(group, inbox.at(next), outbox);
                    ctx.fence(group, next);
                    if group.leader() {
                        ctx.put_value(flag.at(next), round as $type);
                    }
                    ctx.wait_equal(group, flag.from_rank(prev), round as $type);
                    check(ctx, group, inbox, wrong, prev, round);
                    if !ctx.test_equal(group, flag, round as $type) || ctx.test_equal(group, flag, (round + 1) as $type) {
                        ctx.add(wrong.at(world.me()), 1);
                    }
                    ctx.notify(group, free.at(prev).post());
                    ctx.wait(group, free.from_rank(next), 1);
                });
            }
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl Generation for $type {
            type Wait = $kernel;
        }
    )*};
}

generations! {
    generations_u8: u8;
    generations_u16: u16;
    generations_u32: u32;
    generations_u64: u64;
}
