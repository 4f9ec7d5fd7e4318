//! Two stages of a pipeline: a kernel that computes, and one that sends.

use congruent_device::{Group, Semaphore, Slice, SliceMut, Sym, kernel_arg, kernels};

kernel_arg! {
    /// A micro-batch on its way.
    pub struct Batch {
        /// What the first stage has computed: a slot, which later batches use again.
        pub slot: Sym<f32>,
        /// Where the same batch of the PE before arrives.
        pub inbox: Sym<f32>,
        /// Posted by the PE before when a batch has arrived.
        pub full: Sym<Semaphore>,
    }
}

/// What the first stage makes of a number: some steps towards its square root.
pub fn refine(x: f32) -> f32 {
    (0..20).fold(x, |root, _| 0.5 * (root + x / root))
}

kernels! { in crate::PTX;
    /// The first stage: computes a batch.
    pub fn compute(block, ctx, input: Slice<f32>, slot: Sym<f32>) {
        let all = block.count() * block.size();
        for i in (block.index() * block.size() + block.rank()..slot.len()).step_by(all) {
            ctx.store(slot, i, refine(input[i]));
        }
    }

    /// The second stage: sends the batch to the next PE, and adds what comes from the PE before to `sums`.
    pub fn send_and_sum(block, ctx, batch: Batch, sums: SliceMut<f32>) {
        let team = ctx.world();
        let (next, before) = (team.next(), team.prev());
        ctx.put_signal(block, batch.inbox.at(next), batch.slot, batch.full.at(next).post());
        ctx.wait(block, batch.full.from_rank(before), 1);
        for (i, sum) in sums.iter_mut(block) {
            *sum += ctx.load(batch.inbox, i);
        }
    }
}
