//! Semaphores and signal words: posts, sets, adds, and every way to wait for them.

use core::time::Duration;

use congruent_device::{Group, Semaphore, Signal, Sym, kernels};

use crate::by::as_group;
use crate::{By, tell};

/// What [`signal_words`] tells for "none of them".
pub const NONE: u64 = 1 << 32;

/// Far enough that a third step wraps around, near enough that counts compare by their distance.
pub const LEAP: u64 = i64::MAX as u64;

kernels! {
    /// Each PE posts to the next 1 and then `n`, which waits for 1 and then `n`. Tells, by the leader, how many posts were
    /// available before, between and after the waits.
    pub fn posts(block, ctx, turn: Sym<Semaphore>, told: Sym<u64>, n: u64, by: By) {
        let world = ctx.world();
        as_group!(by, block, |group| {
            ctx.notify(group, turn.at(world.next()).post());
            ctx.notify(group, turn.at(world.next()).post_n(n));
        });
        ctx.barrier(block, &world);
        as_group!(by, block, |group| {
            tell::leader(ctx, group, told, 0, ctx.available(turn));
            ctx.wait(group, turn.from_rank(world.prev()), 1);
            tell::leader(ctx, group, told, 1, ctx.available(turn));
            ctx.wait(group, turn, n);
            tell::leader(ctx, group, told, 2, ctx.available(turn));
        });
        ctx.barrier(block, &world);
    }

    /// Every thread of every block of every PE posts once to every PE, whose first block waits for all of them. Tells how
    /// many threads a PE has, and how many posts were left.
    pub fn many_posters(block, ctx, all: Sym<Semaphore>, told: Sym<u64>) {
        let world = ctx.world();
        for rank in world.ranks() {
            ctx.notify(&congruent_device::Thread, all.at(rank).post());
        }
        tell::all(ctx, told, 0, 1);
        if block.index() == 0 {
            let threads = (world.size() * block.count() * block.size()) as u64;
            ctx.wait(block, all, threads);
            tell::leader(ctx, block, told, 1, ctx.available(all));
        }
        // Nobody's next launch posts before everybody has looked.
        ctx.barrier(block, &world);
    }

    /// Bounded waits: for a post that does not come, for one more than have come, and for what then comes. Tells the size
    /// of the group, how many of its threads saw each wait time out, and, by the leader, what was available after each.
    pub fn bounded_waits(block, ctx, turn: Sym<Semaphore>, told: Sym<u64>, n: u64, by: By) {
        let world = ctx.world();
        let (soon, late) = (Duration::from_micros(200), Duration::from_secs(60));
        as_group!(by, block, |group| {
            tell::leader(ctx, group, told, 0, group.size() as u64);
            tell::all(ctx, told, 1, ctx.try_wait(group, turn, 1, soon).is_err().into());
            tell::leader(ctx, group, told, 2, ctx.available(turn));
        });
        ctx.barrier(block, &world);
        as_group!(by, block, |group| ctx.notify(group, turn.at(world.next()).post_n(n - 1)));
        ctx.barrier(block, &world);
        as_group!(by, block, |group| {
            tell::all(ctx, told, 3, ctx.try_wait(group, turn, n, soon).is_err().into());
            tell::leader(ctx, group, told, 4, ctx.available(turn));
        });
        ctx.barrier(block, &world);
        as_group!(by, block, |group| {
            ctx.notify(group, turn.at(world.next()).post());
            tell::all(ctx, told, 5, ctx.try_wait(group, turn.from_rank(world.prev()), n, late).is_err().into());
            tell::leader(ctx, group, told, 6, ctx.available(turn));
        });
        ctx.barrier(block, &world);
    }

    /// PE `round % npes` first, then all PEs set their word of `from` to `round` on every PE, and add `round` to `sum`.
    /// Tells what the tests and waits say before, between and after: the size of the group first, then one word for each.
    pub fn signal_words(block, ctx, from: Sym<Signal>, sum: Sym<Signal>, told: Sym<u64>, round: u64, by: By) {
        let world = ctx.world();
        let (n, me) = (world.size(), world.me().index());
        let first = round as usize % n;
        let mine = from.elem(me);
        as_group!(by, block, |group| {
            tell::leader(ctx, group, told, 0, group.size() as u64);
            tell::all(ctx, told, 1, ctx.test(group, mine, round).into());
            tell::all(ctx, told, 2, ctx.test_any(group, from, round).map_or(NONE, |i| i as u64));
            tell::all(ctx, told, 3, ctx.test_all(group, from, round).into());
        });
        ctx.barrier(block, &world);
        as_group!(by, block, |group| {
            if me == first {
                for rank in world.ranks() {
                    ctx.notify(group, mine.at(rank).set(round));
                    ctx.notify(group, sum.at(rank).add(round));
                }
            }
            tell::all(ctx, told, 4, ctx.wait_any(group, from, round) as u64);
            tell::all(ctx, told, 5, ctx.test_any(group, from, round).map_or(NONE, |i| i as u64));
            tell::all(ctx, told, 6, ctx.test_all(group, from, round).into());
        });
        ctx.barrier(block, &world);
        as_group!(by, block, |group| {
            if me != first {
                for rank in world.ranks() {
                    ctx.notify(group, mine.at(rank).set(round));
                    ctx.notify(group, sum.at(rank).add(round));
                }
            }
            ctx.wait_all(group, from, round);
            tell::all(ctx, told, 7, ctx.test_all(group, from, round).into());
            for rank in world.ranks() {
                ctx.wait_at_least(group, from.elem(rank.index()).from_rank(rank), round);
            }
            tell::all(ctx, told, 8, ctx.test(group, mine, round).into());
            tell::all(ctx, told, 9, ctx.test(group, mine, round + 1).into());
            ctx.wait_at_least(group, sum, n as u64 * round * (round + 1) / 2);
        });
        ctx.barrier(block, &world);
        as_group!(by, block, |group| {
            tell::leader(ctx, group, told, 10, ctx.signal_value(sum));
            tell::leader(ctx, group, told, 11, ctx.signal_value(from.elem(world.next().index())));
        });
        ctx.barrier(block, &world);
    }

    /// Sets of signals, each with a value of its own, of which PE `p` sets number `p` to `round * (p + 1)` everywhere: those of even PEs
    /// first. Tells the size of the group, what is there before, how many came first, whether those were the even ones in order, how many
    /// there are at the end, and that none has gone further.
    pub fn signal_sets(block, ctx, from: Sym<Signal>, told: Sym<u64>, round: u64, by: By) {
        let world = ctx.world();
        let (n, me) = (world.size(), world.me().index());
        let value = |i: usize| round * (i as u64 + 1);
        let at = |i: usize| from.elem(i).from_rank(world.rank(i));
        as_group!(by, block, |group| {
            tell::leader(ctx, group, told, 0, group.size() as u64);
            tell::all(ctx, told, 1, ctx.test_some(group, n, |i| Some((at(i), value(i))), |_| {}) as u64);
        });
        ctx.barrier(block, &world);
        as_group!(by, block, |group| {
            if me.is_multiple_of(2) {
                for rank in world.ranks() {
                    ctx.notify(group, from.elem(me).at(rank).set(value(me)));
                }
            }
            // Each once: those that have been seen are not awaited again.
            let (mut next, mut ordered, mut count) = (0, true, 0);
            let evens = n.div_ceil(2);
            let mut seen = 0u64;
            while count < evens {
                let before = seen;
                let mut last = None;
                let awaited = |i: usize| (i.is_multiple_of(2) && before >> i & 1 == 0).then(|| (at(i), value(i)));
                count += ctx.wait_some(group, n, awaited, |i| {
                    ordered &= before >> i & 1 == 0 && i % 2 == 0 && last.is_none_or(|last| last < i);
                    last = Some(i);
                    seen |= 1 << i;
                    next += 1;
                });
            }
            tell::all(ctx, told, 2, next);
            tell::all(ctx, told, 3, ordered.into());
        });
        ctx.barrier(block, &world);
        as_group!(by, block, |group| {
            tell::all(ctx, told, 4, ctx.test_some(group, n, |i| Some((at(i), value(i))), |_| {}) as u64);
        });
        ctx.barrier(block, &world);
        as_group!(by, block, |group| {
            if me % 2 == 1 {
                for rank in world.ranks() {
                    ctx.notify(group, from.elem(me).at(rank).set(value(me)));
                }
            }
            ctx.wait_each(group, n, |i| (i % 2 == 1).then(|| (at(i), value(i))));
            tell::all(ctx, told, 5, ctx.test_some(group, n, |i| Some((at(i), value(i))), |_| {}) as u64);
            tell::all(ctx, told, 6, ctx.test_some(group, n, |i| Some((at(i), value(i) + 1)), |_| {}) as u64);
            ctx.wait_equal(group, from.elem(n - 1), value(n - 1));
        });
        ctx.barrier(block, &world);
    }

    /// Looks and bounded waits: for a post that has not come and then has, and for a signal of `round` likewise. Tells the size of the
    /// group, how many of its threads missed it each time, and what is left of the semaphore.
    pub fn looks(block, ctx, turn: Sym<Semaphore>, sum: Sym<Signal>, told: Sym<u64>, round: u64, by: By) {
        let world = ctx.world();
        let (now, soon, late) = (Duration::ZERO, Duration::from_micros(200), Duration::from_secs(60));
        as_group!(by, block, |group| {
            tell::leader(ctx, group, told, 0, group.size() as u64);
            tell::all(ctx, told, 1, ctx.try_wait(group, turn, 1, now).is_err().into());
            tell::all(ctx, told, 2, ctx.try_wait_at_least(group, sum, round, now).is_err().into());
            tell::all(ctx, told, 3, ctx.try_wait_at_least(group, sum, round, soon).is_err().into());
        });
        ctx.barrier(block, &world);
        as_group!(by, block, |group| {
            ctx.notify(group, turn.at(world.next()).post());
            ctx.notify(group, sum.at(world.next()).set(round));
            tell::all(ctx, told, 4, ctx.try_wait_at_least(group, sum.from_rank(world.prev()), round, late).is_err().into());
            // The post came before the signal.
            tell::all(ctx, told, 5, ctx.try_wait(group, turn, 1, now).is_err().into());
            tell::all(ctx, told, 6, ctx.try_wait(group, turn, 1, now).is_err().into());
            tell::leader(ctx, group, told, 7, ctx.available(turn));
        });
        ctx.barrier(block, &world);
    }

    /// Counts that wrap around: each PE adds [`LEAP`] to the next PE's signal and semaphore, `rounds` times, and waits each
    /// time for its own. Tells what is left of the semaphore.
    pub fn leaps(block, ctx, far: Sym<Signal>, turn: Sym<Semaphore>, told: Sym<u64>, rounds: u64) {
        let world = ctx.world();
        for round in 1..=rounds {
            ctx.notify(block, far.at(world.next()).add(LEAP));
            ctx.notify(block, turn.at(world.next()).post_n(LEAP));
            ctx.wait_at_least(block, far.from_rank(world.prev()), LEAP.wrapping_mul(round));
            ctx.wait(block, turn, LEAP);
            ctx.barrier(block, &world);
        }
        tell::leader(ctx, block, told, 0, ctx.available(turn));
    }
}
