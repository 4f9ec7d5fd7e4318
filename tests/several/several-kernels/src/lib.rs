//! Kernels of a user's that call one collective, and eight in one launch.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]
use congruent_collectives::{PlanView, Sum, direct, one_shot, recursive, ring, tree};
use congruent_device::{Sym, kernels};

kernels! {
    /// One collective.
    pub fn one(block, ctx, sums: Sym<f32>, numbers: Sym<f32>, plan: PlanView) {
        ring::all_reduce(&mut plan.enter(block, ctx), sums, numbers, Sum);
    }

    /// Eight, by two plans.
    pub fn eight(block, ctx, sums: Sym<f32>, numbers: Sym<f32>, all: Sym<f32>, plan: PlanView, packets: PlanView) {
        let mut coll = plan.enter(block, ctx);
        ring::all_reduce(&mut coll, sums, numbers, Sum);
        tree::all_reduce(&mut coll, sums, numbers, Sum);
        direct::all_reduce(&mut coll, sums, numbers, Sum);
        recursive::all_reduce(&mut coll, sums, numbers, Sum);
        ring::all_gather(&mut coll, all, numbers);
        ring::reduce_scatter(&mut coll, sums, all, Sum);
        direct::all_to_all(&mut coll, sums, numbers);
        drop(coll);
        one_shot::all_reduce(&mut packets.enter(block, ctx), sums, numbers, Sum);
    }
}
