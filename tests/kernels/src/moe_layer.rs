//! A layer of experts that are trained: forward, and gradients of tokens, weights and experts by the routes that it kept.
//!
//! An expert's answer is `z + z * z / 2`, where `z` is its matrix times the token.

use congruent_collectives::moe::{Added, Moe, MoeView, Row, Tokens};
use congruent_device::{Ctx, Group, Sym, kernel_arg, kernels};

kernel_arg! {
    /// The layer as this PE has it.
    #[derive(Debug)]
    pub struct Layer {
        /// This PE's tokens.
        pub x: Sym<f32>,
        /// Which experts they go to.
        pub experts: Sym<i32>,
        /// With what weights.
        pub weights: Sym<f32>,
        /// The matrices of this PE's experts.
        pub matrices: Sym<f32>,
        /// Tokens that this PE has received, by expert: what the backward pass has of the forward one.
        pub saved: Sym<f32>,
        /// Numbers of a token.
        pub hidden: u32,
        /// Experts of a token.
        pub top_k: u32,
        /// How many tokens.
        pub tokens: u32,
        /// Nothing.
        pub unused: u32,
    }
}

impl Layer {
    /// Numbers of a row of gradients: of the token, and of each of its weights.
    pub const fn columns(hidden: u32, top_k: u32) -> u32 {
        (hidden + top_k).next_multiple_of(2)
    }
}

/// What all of it is computed with.
struct Pass<'k> {
    ctx: &'k Ctx<'k>,
    layer: Layer,
}

impl Pass<'_> {
    #[inline(always)]
    fn hidden(&self) -> usize {
        self.layer.hidden as usize
    }

    /// Number `i` of an expert's matrix times a token.
    #[inline(always)]
    fn product(&self, expert: usize, i: usize, x: Sym<f32>) -> f32 {
        let (hidden, mut sum) = (self.hidden(), 0.0);
        for j in 0..hidden {
            sum += self.ctx.load(self.layer.matrices, (expert * hidden + i) * hidden + j) * self.ctx.load(x, j);
        }
        sum
    }

    /// The token of a received row, as the forward pass has saved it for the expert of choice `k`.
    #[inline(always)]
    fn saved(&self, moe: &Moe<'_>, row: &Row, k: usize) -> Sym<f32> {
        let at = moe.row_by_expert(row, k, 1) * self.hidden();
        self.layer.saved.slice(at..at + self.hidden())
    }

    /// Number `i` of what goes back for choice `k` of a row: the gradient of the token, then of each of its weights.
    #[inline(always)]
    fn gradient(&self, moe: &Moe<'_>, row: &Row, k: usize, i: usize) -> f32 {
        let (hidden, expert) = (self.hidden(), moe.expert(row, k) as usize - moe.experts().start);
        let (dy, x, mut sum) = (row.payload().cast::<f32>(), self.saved(moe, row, k), 0.0);
        if i >= hidden && i != hidden + k {
            return 0.0;
        }
        for r in 0..hidden {
            let (z, dy) = (self.product(expert, r, x), self.ctx.load(dy, r));
            sum += if i < hidden {
                let weight = moe.weight(row, k);
                weight * dy * (1.0 + z) * self.ctx.load(self.layer.matrices, (expert * hidden + r) * hidden + i)
            } else {
                dy * (z + z * z / 2.0)
            };
        }
        sum
    }
}

kernels! {
    /// Tokens to their experts, and the sums of what these answer.
    pub fn moe_forward(block, ctx, moe: MoeView, layer: Layer, y: Sym<f32>) {
        let pass = Pass { ctx, layer };
        let bytes = 4 * pass.hidden();
        let moe = moe.enter(block, ctx).with_rows(bytes, 0, bytes);
        let tokens = Tokens {
            count: layer.tokens as usize,
            payload: layer.x.cast(),
            scales: Sym::empty(),
            experts: |i| ctx.load(layer.experts, i),
            weights: |i| ctx.load(layer.weights, i),
        };
        let sent = moe.dispatch_send(moe.idle(0), &tokens);
        let Ok(received) = moe.dispatch_recv(sent) else { return };
        // The gradients of the backward pass come where these tokens are.
        if moe.by_expert(&received, layer.saved.cast(), 1).is_err() {
            return;
        }
        let combining = moe.combine_send::<f32, _>(received, |row, k| {
            let (expert, x) = (moe.expert(row, k) as usize - moe.experts().start, row.payload().cast());
            let pass = &pass;
            move |i| {
                let z = pass.product(expert, i, x);
                z + z * z / 2.0
            }
        });
        let _idle = moe.combine_recv(combining, y, Added::Nothing);
    }

    /// Gradients of the sums to the experts, and those of tokens and weights back. The experts' own stay in `of_matrices`.
    pub fn moe_backward(
        block, ctx, moe: MoeView, layer: Layer, dy: Sym<f32>, of_matrices: Sym<f32>, of_tokens: Sym<f32>,
    ) {
        let pass = Pass { ctx, layer };
        let (hidden, columns) = (pass.hidden(), Layer::columns(layer.hidden, layer.top_k) as usize);
        let moe = moe.enter(block, ctx).with_rows(4 * hidden, 0, 4 * columns);
        let sent = moe.dispatch_again(moe.idle(0), layer.tokens as usize, dy.cast(), Sym::empty());
        let Ok(received) = moe.dispatch_recv(sent) else { return };
        let experts = moe.experts();
        let mut at = block.index() * block.size() + block.rank();
        while at < experts.len() * hidden * hidden {
            let (expert, r, j) = (at / hidden / hidden, at / hidden % hidden, at % hidden);
            let mut sum = 0.0;
            for i in 0..moe.count_of(&received, expert) {
                let row = moe.row_of(&received, expert, i);
                let chosen = |k: &usize| moe.expert(&row, *k) as usize == experts.start + expert;
                let Some(k) = (0..layer.top_k as usize).find(chosen) else { continue };
                let (x, dy) = (pass.saved(&moe, &row, k), ctx.load(row.payload().cast::<f32>(), r));
                sum += moe.weight(&row, k) * dy * (1.0 + pass.product(expert, r, x)) * ctx.load(x, j);
            }
            ctx.store(of_matrices, at, sum);
            at += block.count() * block.size();
        }
        let combining = moe.combine_send_unweighted::<f32, _>(received, |row, k| {
            let (moe, pass, row) = (&moe, &pass, *row);
            move |i| pass.gradient(moe, &row, k, i)
        });
        let _idle = moe.combine_recv(combining, of_tokens, Added::Nothing);
    }
}
