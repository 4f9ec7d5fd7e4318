//! Teams: who is in one, and its barrier and sync.

use congruent_device::{Group, Sym, TeamView, Thread, kernels};

use crate::{Crew, tell};

kernels! {
    /// Tells size, rank, neighbours' PEs, whether there is a member past the last, then the members' PEs, and then
    /// which rank each PE of the world has, the size for none.
    pub fn team_facts(block, ctx, team: TeamView<Crew>, told: Sym<u64>) {
        let team = ctx.team(team);
        tell::leader(ctx, block, told, 0, team.size() as u64);
        tell::leader(ctx, block, told, 1, team.me().index() as u64);
        tell::leader(ctx, block, told, 2, team.next().pe().index() as u64);
        tell::leader(ctx, block, told, 3, team.prev().pe().index() as u64);
        tell::leader(ctx, block, told, 4, team.get(team.size()).is_some().into());
        for (rank, i) in team.ranks().zip(5..) {
            tell::leader(ctx, block, told, i, rank.pe().index() as u64);
        }
        // Which rank each PE of the world has here, after them.
        let (world, none) = (ctx.world(), team.size() as u64);
        for (rank, i) in world.ranks().zip(5 + team.size()..) {
            let found = team.translate(rank);
            let back = found.is_none_or(|found| world.translate(found) == Some(rank));
            let index = found.map_or(none, |found| found.index() as u64);
            tell::leader(ctx, block, told, i, if back { index } else { none + 1 });
        }
    }

    /// Barriers in every block by itself, of which block `b` does `b` more rounds. In each round a member tells every
    /// member's `board` its round; after the barrier all have told it, and the sync that follows keeps the next round off.
    /// Counts what is otherwise in `wrong`.
    pub fn team_rounds(block, ctx, team: TeamView<Crew>, board: Sym<u64>, wrong: Sym<u64>, rounds: u64) {
        let team = ctx.team(team);
        let board = board.slice(block.index() * team.size()..(block.index() + 1) * team.size());
        let start = ctx.load(board, team.me().index());
        ctx.sync(block, &team);
        for round in start + 1..=start + rounds + block.index() as u64 {
            for i in block.strided(team.size()) {
                ctx.put_value(board.elem(team.me().index()).at(team.rank(i)), round);
            }
            ctx.barrier(block, &team);
            for i in block.strided(team.size()) {
                if ctx.load(board, i) != round {
                    ctx.add(wrong.at(ctx.world().me()), 1);
                }
            }
            ctx.sync(block, &team);
        }
    }

    /// The same barrier by one thread of each block.
    pub fn thread_rounds(block, ctx, team: TeamView<Crew>, board: Sym<u64>, wrong: Sym<u64>, rounds: u64) {
        let team = ctx.team(team);
        if !block.leader() {
            return;
        }
        for round in 1..=rounds {
            for rank in team.ranks() {
                ctx.put_value(board.elem(team.me().index()).at(rank), round);
            }
            ctx.barrier(&Thread, &team);
            for i in 0..team.size() {
                if ctx.load(board, i) != round {
                    ctx.add(wrong.at(ctx.world().me()), 1);
                }
            }
            ctx.sync(&Thread, &team);
        }
    }
}
