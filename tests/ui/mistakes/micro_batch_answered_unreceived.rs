//! What has not been received is not answered.
use congruent::collectives::moe::{MoeView, Tokens};
use congruent::device::{Sym, kernels};

kernels! {
    pub fn early(block, ctx, moe: MoeView) {
        let moe = moe.enter(block, ctx);
        let tokens = Tokens { count: 0, payload: Sym::empty(), scales: Sym::empty(), experts: |_| 0, weights: |_| 0.0 };
        let sent = moe.dispatch_send(moe.idle(0), &tokens);
        let _combining = moe.combine_send::<f32, _>(sent, |_row, _k| |_i| 0.0);
    }
}

fn main() {}
