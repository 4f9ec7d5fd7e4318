//! A layer of a mixture of experts in four kernels, and its backward pass in one.

use congruent_collectives::moe::{Added, MoeView, Tokens};
use congruent_device::{Group, Slice, Sym, bf16, kernel_arg, kernels};

/// Numbers of a token.
pub const HIDDEN: usize = 64;
/// Experts of a token.
pub const TOP_K: usize = 4;

kernel_arg! {
    /// A micro-batch of this PE.
    pub struct Batch {
        /// Its tokens.
        pub x: Sym<bf16>,
        /// Which experts they chose.
        pub experts: Sym<i32>,
        /// With what weights.
        pub weights: Sym<f32>,
        /// What this PE's experts answer: for each of them a row for each token that it may have.
        pub answers: Sym<f32>,
        /// What comes of the tokens.
        pub y: Sym<bf16>,
        /// Its number.
        pub index: u32,
        /// How many tokens it has.
        pub tokens: u32,
    }
}

impl Batch {
    /// Answer `place` of an expert of this PE.
    fn answer(&self, expert: usize, place: usize, experts: usize) -> Sym<f32> {
        let rows = self.answers.len() / HIDDEN / experts;
        let row = expert * rows + place;
        self.answers.slice(row * HIDDEN..(row + 1) * HIDDEN)
    }
}

/// The choices of a token, by the rows of a router: the experts with the largest scores, of equal ones the first; and their weights.
pub fn choose(router: &[f32], x: impl Fn(usize) -> f32) -> [(i32, f32); TOP_K] {
    let mut best = [(-1, -1.0); TOP_K];
    for (expert, row) in router.chunks_exact(HIDDEN).enumerate() {
        let score = dot(row, &x).abs();
        let mut candidate = (expert as i32, score);
        // No loop, whose turns would pick from an array in memory.
        best = best.map(|place| {
            let (first, second) = if candidate.1 > place.1 { (candidate, place) } else { (place, candidate) };
            candidate = second;
            first
        });
    }
    let all = best.iter().fold(1e-6, |sum, (_, score)| sum + score);
    best.map(|(expert, score)| (expert, score / all))
}

/// Number `i` of the gradient of a token that an expert was given, of which the answer's is `weight` times what `dy` gives: that times a
/// column of the expert's matrix, in order.
pub fn dot_column(matrix: &[f32], i: usize, weight: f32, dy: impl Fn(usize) -> f32) -> f32 {
    (0..HIDDEN).fold(0.0, |sum, row| sum + matrix[row * HIDDEN + i] * (weight * dy(row)))
}

/// A row times a token, in order.
pub fn dot(row: &[f32], x: impl Fn(usize) -> f32) -> f32 {
    row.iter().enumerate().fold(0.0, |sum, (i, weight)| sum + weight * x(i))
}

kernels! { in crate::PTX;
    /// Chooses the experts of each token, a thread for each.
    pub fn choose_experts(block, ctx, batch: Batch, router: Slice<f32>) {
        let all = block.count() * block.size();
        for token in (block.index() * block.size() + block.rank()..batch.tokens as usize).step_by(all) {
            let keep = |k: usize, (expert, weight)| {
                ctx.store(batch.experts, token * TOP_K + k, expert);
                ctx.store(batch.weights, token * TOP_K + k, weight);
            };
            let [first, second, third, fourth] = choose(router, |i| ctx.load(batch.x, token * HIDDEN + i).to_f32());
            keep(0, first);
            keep(1, second);
            keep(2, third);
            keep(3, fourth);
        }
    }

    /// Sends a micro-batch on its way.
    pub fn send_tokens(block, ctx, moe: MoeView, batch: Batch) {
        let moe = moe.enter(block, ctx);
        let tokens = Tokens {
            count: batch.tokens as usize,
            payload: batch.x.cast(),
            scales: Sym::empty(),
            experts: |i| ctx.load(batch.experts, i),
            weights: |i| ctx.load(batch.weights, i),
        };
        let _sent = moe.dispatch_send(moe.idle(batch.index as usize), &tokens);
    }

    /// Waits for the tokens of a micro-batch, and has this PE's experts answer them.
    pub fn compute_answers(block, ctx, moe: MoeView, batch: Batch, matrices: Slice<f32>, served: Sym<u64>) {
        let moe = moe.enter(block, ctx);
        let Ok(sent) = moe.resume(batch.index as usize) else { return };
        let Ok(received) = moe.dispatch_recv(sent) else { return };
        let experts = moe.experts().len();
        let mut dealt = 0;
        for (expert, matrix) in matrices.chunks_exact(HIDDEN * HIDDEN).enumerate() {
            for place in 0..moe.count_of(&received, expert) {
                if dealt % block.count() == block.index() {
                    let x = moe.row_of(&received, expert, place).payload().cast::<bf16>();
                    for i in block.strided(HIDDEN) {
                        let row = &matrix[i * HIDDEN..(i + 1) * HIDDEN];
                        ctx.store(batch.answer(expert, place, experts), i, dot(row, |i| ctx.load(x, i).to_f32()));
                    }
                }
                dealt += 1;
            }
        }
        if block.index() == 0 && block.leader() {
            ctx.store(served, 0, ctx.load(served, 0) + dealt as u64);
        }
    }

    /// Sends the answers back, and adds what comes back to the tokens of this PE.
    pub fn sum_answers(block, ctx, moe: MoeView, batch: Batch) {
        let moe = moe.enter(block, ctx);
        let experts = moe.experts();
        // There is nothing to answer where somebody's tokens were wrong, and every PE has found that.
        let Ok(received) = moe.resume(batch.index as usize) else { return };
        let combining = moe.combine_send::<bf16, _>(received, |row, k| {
            let expert = moe.expert(row, k) as usize - experts.start;
            let answer = batch.answer(expert, moe.place(row, k), experts.len());
            move |i| ctx.load(answer, i)
        });
        let _idle = moe.combine_recv(combining, batch.y, Added::Residual(batch.x));
    }

    /// Behind a layer: gradients of what came of the tokens go to the experts by the routes that are kept, and gradients of the tokens
    /// come back. The backward of a dispatch sums without weights; an answer's gradient has them.
    pub fn send_gradients(block, ctx, moe: MoeView, batch: Batch, matrices: Slice<f32>, dy: Sym<bf16>, dx: Sym<bf16>) {
        let moe = moe.enter(block, ctx);
        let first = moe.experts().start;
        let idle = moe.idle(batch.index as usize);
        let sent = moe.dispatch_again(idle, batch.tokens as usize, dy.cast(), Sym::empty());
        let Ok(received) = moe.dispatch_recv(sent) else { return };
        let combining = moe.combine_send_unweighted::<bf16, _>(received, |row, k| {
            let (expert, weight, dy) = (moe.expert(row, k) as usize - first, moe.weight(row, k), row.payload().cast::<bf16>());
            let matrix = &matrices[expert * HIDDEN * HIDDEN..(expert + 1) * HIDDEN * HIDDEN];
            move |i| dot_column(matrix, i, weight, |row| ctx.load(dy, row).to_f32())
        });
        let _idle = moe.combine_recv(combining, dx, Added::Residual(dy));
    }
}
