//! Collectives with parts of any length, sends and receives, and the members' meetings. Buffers are bytes.

use congruent_collectives::exchange::Parts;
use congruent_collectives::{Description, Listed, PlanView, agree, exchange, send_recv};
use congruent_device::{Sym, kernels};

kernels! { in crate::PTX;
    /// All-to-all of parts of any length.
    pub fn all_to_all_v_direct(
        block, ctx, dst: Sym<u8>, src: Sym<u8>, receives: Parts, sends: Parts, plan: PlanView, rounds: u32,
    ) {
        plan.repeat(block, ctx, rounds, (dst, src), |coll, dst, src| {
            exchange::all_to_all_v(coll, dst, src, receives, sends);
        });
    }

    /// All-gather of parts of any length.
    pub fn all_gather_v_direct(
        block, ctx, dst: Sym<u8>, src: Sym<u8>, parts: Parts, plan: PlanView, rounds: u32,
    ) {
        plan.repeat(block, ctx, rounds, (dst, src), |coll, dst, src| {
            exchange::all_gather_v(coll, dst, src, parts);
        });
    }

    /// Sends and receives from and to anywhere in `memory`.
    pub fn send_recv_direct(block, ctx, memory: Sym<u8>, transfers: Listed, plan: PlanView, rounds: u32) {
        let mut coll = plan.enter(block, ctx);
        for _ in 0..rounds {
            send_recv(&mut coll, memory, memory, &transfers);
        }
    }

    /// A barrier on a plan's slots.
    pub fn meet(block, ctx, plan: PlanView, rounds: u32) {
        let mut coll = plan.enter(block, ctx);
        for _ in 0..rounds {
            congruent_collectives::barrier(&mut coll);
        }
    }

    /// Compares the members' descriptions of their next call.
    pub fn agree_on(block, ctx, description: Description, plan: PlanView) {
        agree(&mut plan.enter(block, ctx), description);
    }
}
