//! What `congruent perf` and the benches time: each operation many times in one kernel, with no host step in between.
//!
//! Between PE 0 and PE 1, unless said otherwise; other PEs look on.

use congruent_collectives::Share;
use congruent_device::{Group, Semaphore, Sym, Thread, kernels};

kernels! { in crate::PTX;
    /// The first `movers` PEs put their `src` to the next PE's `dst`, `rounds` times. Each block puts its part of the bytes, and
    /// waits for the completion of that once.
    pub fn perf_put(block, ctx, dst: Sym<u8>, src: Sym<u8>, movers: u32, rounds: u64) {
        let team = ctx.world();
        if team.me().index() < movers as usize {
            let mine = Share::new(block.index(), block.count());
            let (to, src) = (mine.of(dst).at(team.next()), mine.of(src));
            for _ in 0..rounds {
                ctx.put_nbi(block, to, src);
            }
            ctx.quiet(block);
        }
    }

    /// The first `movers` PEs get the next PE's `src` to their `dst`, `rounds` times, each block its part of the bytes.
    pub fn perf_get(block, ctx, dst: Sym<u8>, src: Sym<u8>, movers: u32, rounds: u64) {
        let team = ctx.world();
        if team.me().index() < movers as usize {
            let mine = Share::new(block.index(), block.count());
            let (dst, from) = (mine.of(dst), mine.of(src).at(team.next()));
            for _ in 0..rounds {
                ctx.get(block, dst, from);
            }
        }
    }

    /// One thread of PE 0 puts single 8-byte values to PE 1.
    pub fn perf_put_value(block, ctx, dst: Sym<u64>, rounds: u64) {
        let team = ctx.world();
        if team.me().index() == 0 && block.leader() {
            for round in 0..rounds {
                ctx.put_value(dst.at(team.next()), round);
            }
            ctx.quiet(&Thread);
        }
    }

    /// One thread of PE 0 adds 1 to a counter of PE 1 and fetches what was there.
    pub fn perf_fetch_add(block, ctx, counter: Sym<u64>, rounds: u64) {
        let team = ctx.world();
        if team.me().index() == 0 && block.leader() {
            for _ in 0..rounds {
                ctx.fetch_add(counter.at(team.next()), 1);
            }
        }
    }

    /// PE 0 and PE 1 send a message to and fro with put_signal, `rounds` times.
    pub fn perf_ping_pong(block, ctx, inbox: Sym<u8>, outbox: Sym<u8>, turn: Sym<Semaphore>, rounds: u64) {
        let team = ctx.world();
        if team.me().index() > 1 {
            return;
        }
        let (peer, first) = (team.rank(1 - team.me().index()), team.me().index() == 0);
        for _ in 0..rounds {
            if !first {
                ctx.wait(block, turn.from_rank(peer), 1);
            }
            ctx.put_signal(block, inbox.at(peer), outbox, turn.at(peer).post());
            if first {
                ctx.wait(block, turn.from_rank(peer), 1);
            }
        }
    }

    /// The world's barrier, `rounds` times, on every PE.
    pub fn perf_barrier(block, ctx, rounds: u64) {
        let world = ctx.world();
        for _ in 0..rounds {
            ctx.barrier(block, &world);
        }
    }
}
