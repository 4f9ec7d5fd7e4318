//! A micro-batch that is on its way is received before it is sent again.
use congruent::collectives::moe::{MoeView, Tokens};
use congruent::device::{Sym, kernels};

kernels! {
    pub fn twice(block, ctx, moe: MoeView) {
        let moe = moe.enter(block, ctx);
        let tokens = Tokens { count: 0, payload: Sym::empty(), scales: Sym::empty(), experts: |_| 0, weights: |_| 0.0 };
        let idle = moe.idle(0);
        let sent = moe.dispatch_send(idle, &tokens);
        let again = moe.dispatch_send(idle, &tokens);
    }
}

fn main() {}
