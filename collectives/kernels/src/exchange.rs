//! Collectives with parts of any length, sends and receives, and the members' meetings. Buffers are bytes.

use congruent_collectives::exchange::Parts;
use congruent_collectives::{Description, Listed, View, agree, exchange, send_recv};
use congruent_device::{Sym, TeamView, kernels};

kernels! { in crate::PTX;
    /// All-to-all of parts of any length.
    pub fn all_to_all_v_direct(
        block, ctx, team: TeamView, dst: Sym<u8>, src: Sym<u8>, receives: Parts, sends: Parts, plan: View, rounds: u64,
    ) {
        let team = ctx.team(team);
        for _ in 0..rounds {
            exchange::all_to_all_v(block, ctx, &team, dst, src, receives, sends, &plan);
        }
    }

    /// All-gather of parts of any length.
    pub fn all_gather_v_direct(
        block, ctx, team: TeamView, dst: Sym<u8>, src: Sym<u8>, parts: Parts, plan: View, rounds: u64,
    ) {
        let team = ctx.team(team);
        for _ in 0..rounds {
            exchange::all_gather_v(block, ctx, &team, dst, src, parts, &plan);
        }
    }

    /// Sends and receives from and to anywhere in `memory`.
    pub fn send_recv_direct(block, ctx, team: TeamView, memory: Sym<u8>, transfers: Listed, plan: View, rounds: u64) {
        let team = ctx.team(team);
        for _ in 0..rounds {
            send_recv(block, ctx, &team, memory, memory, &transfers, &plan);
        }
    }

    /// A barrier on a plan's slots.
    pub fn meet(block, ctx, team: TeamView, plan: View, rounds: u64) {
        let team = ctx.team(team);
        for _ in 0..rounds {
            congruent_collectives::barrier(block, ctx, &team, &plan);
        }
    }

    /// Compares the members' descriptions of their next call.
    pub fn agree_on(block, ctx, team: TeamView, description: Description, plan: View) {
        agree(block, ctx, &ctx.team(team), description, &plan);
    }
}
