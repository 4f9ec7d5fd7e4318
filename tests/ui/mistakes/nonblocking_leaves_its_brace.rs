//! Transfers in flight are complete at the closing brace: what starts them cannot be taken out.
use congruent::device::{Sym, kernels};

kernels! {
    pub fn escape(block, ctx, values: Sym<f32>) {
        let late = ctx.nonblocking(block, |transfers| transfers);
        late.put(values.at(ctx.world().next()), values);
    }
}

fn main() {}
