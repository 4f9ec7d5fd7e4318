//! The steps of an exchange of tokens, each a launch of its own. Payloads, answers and sums are bytes.
#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use congruent_collectives::moe::{Added, MoeView, Row, Tokens};
use congruent_device::{Datatype, Group, Op, Reduction, Sym, kernels, refuse};

/// The PTX of the kernels here.
#[cfg(not(target_arch = "nvptx64"))]
pub static PTX: congruent_device::Module = congruent_device::Module {
    name: "congruent-moe-kernels",
    images: &[("sm_80", include_str!(concat!(env!("OUT_DIR"), "/congruent_moe_kernels.sm_80.ptx")))],
};

kernels! { in PTX;
    /// Sends a micro-batch's tokens.
    pub fn moe_dispatch_send(
        block, ctx, moe: MoeView, batch: u32,
        count: u64, payload: Sym<u8>, scales: Sym<u8>, experts: Sym<i32>, weights: Sym<f32>,
    ) {
        let moe = moe.enter(block, ctx);
        let (experts, weights) = (|i| ctx.load(experts, i), |i| ctx.load(weights, i));
        let tokens = Tokens { count: count as usize, payload, scales, experts, weights };
        let _sent = moe.dispatch_send(moe.idle(batch as usize), &tokens);
    }

    /// Sends other payloads by the routes that a micro-batch has kept.
    pub fn moe_dispatch_again(
        block, ctx, moe: MoeView, batch: u32, count: u64, payload: Sym<u8>, scales: Sym<u8>,
    ) {
        let moe = moe.enter(block, ctx);
        let _sent = moe.dispatch_again(moe.idle(batch as usize), count as usize, payload, scales);
    }

    /// Waits for a micro-batch's tokens, and copies them by expert. What is refused leaves no rows.
    pub fn moe_dispatch_recv(
        block, ctx, moe: MoeView, batch: u32, payload: Sym<u8>, scales: Sym<u8>, starts: Sym<u32>, align: u32,
    ) {
        let (moe, align) = (moe.enter(block, ctx), align as usize);
        let Ok(sent) = moe.resume(batch as usize) else { return };
        let received = moe.dispatch_recv(sent).ok();
        if block.index() == 0 {
            for expert in block.strided(moe.experts().len() + 1) {
                let start = received.as_ref().map_or(0, |received| moe.start_of(received, expert, align));
                ctx.store(starts, expert, start as u32);
            }
        }
        let Some(received) = received else { return };
        let mut copied = moe.by_expert(&received, payload, align);
        if !scales.is_empty() {
            copied = copied.and(moe.scales_by_expert(&received, scales, align));
        }
        if copied.is_err() {
            refuse!("rows by expert need more room; give what `MoeConfig::most_rows` says");
        }
    }

    /// Sends back what a micro-batch's rows were answered, times weights or not.
    pub fn moe_combine_send(
        block, ctx, moe: MoeView, batch: u32, datatype: u32, answers: Sym<u8>, starts: Sym<u32>, weighted: u32,
    ) {
        let moe = moe.enter(block, ctx);
        let Ok(received) = moe.resume(batch as usize) else { return };
        let first = moe.experts().start;
        let weight = |row: &Row, k| if weighted != 0 { moe.weight(row, k) } else { 1.0 };
        moe.send_rows(&received, Datatype::from_raw(datatype), weight, answers, |row, k| {
            ctx.load(starts, moe.expert(row, k) as usize - first) as usize + moe.place(row, k)
        });
        let _combining = moe.answered(received);
    }

    /// Waits for a micro-batch's answers, and sums them. What is added is a row for all tokens, or one for each.
    pub fn moe_combine_recv(
        block, ctx, moe: MoeView, batch: u32, sum: Reduction, dst: Sym<u8>, added: Sym<u8>, for_each: u32,
    ) {
        if sum.op() != Op::Sum || !matches!(sum.datatype(), Datatype::F32 | Datatype::F16 | Datatype::Bf16) {
            refuse!("what is summed is of f32, f16 or bf16");
        }
        let moe = moe.enter(block, ctx);
        let Ok(combining) = moe.resume(batch as usize) else { return };
        moe.await_answers(&combining);
        let added = match (added.is_empty(), for_each) {
            (true, _) => Added::Nothing,
            (false, 0) => Added::Bias(added),
            (false, _) => Added::Residual(added),
        };
        moe.sum_answers(&combining, dst, &added, sum);
        let _idle = moe.close(combining);
    }
}
