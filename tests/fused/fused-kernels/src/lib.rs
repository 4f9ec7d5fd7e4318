//! One step of a layer whose weights are spread over the PEs of a group, and whose experts over every other PE: in one launch.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]
use congruent_collectives::exchange::{Parts, all_to_all_v};
use congruent_collectives::{Sum, PlanView, ring};
use congruent_device::{Group, Sym, TeamView, kernels, team_tag};

team_tag! {
    /// The PEs that sum up what they have computed.
    pub Weights
}

team_tag! {
    /// The PEs that exchange tokens.
    pub Experts
}

kernels! {
    /// Multiplies each input by a weight of this PE's own, sums the products over one team, adds the bias, and sends each
    /// member of another team as many of the results as it is to have.
    pub fn step(
        block, ctx, weights: TeamView<Weights>, experts: TeamView<Experts>, inputs: Sym<f32>, sums: Sym<f32>,
        tokens: Sym<f32>, receives: Parts, sends: Parts, scale: [f32; 2], summing: PlanView, exchanging: PlanView,
    ) {
        let [weight, bias] = scale;
        for i in block.strided(inputs.len()) {
            ctx.store(sums, i, ctx.load(inputs, i) * weight);
        }
        block.sync();
        ring::all_reduce(&mut summing.enter(block, ctx), sums, sums, Sum);
        for i in block.strided(sums.len()) {
            ctx.store(sums, i, ctx.load(sums, i) + bias);
        }
        block.sync();
        all_to_all_v(&mut exchanging.enter(block, ctx), tokens, sums, receives, sends);
    }
}
