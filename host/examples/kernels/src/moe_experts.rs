//! Experts of two layers: in one kernel from the tokens to their sums, and the same by steps in launches of their own.

use congruent_collectives::moe::{Added, Dispatched, MicroBatch, Moe, MoeView, Received, Tokens};
use congruent_device::{Global, Group, Pack, Slice, SmallFloat, Sym, bf16, kernel_arg, kernels, math, opaque_word};
use congruent_fused::experts::{self, Experts, ExpertsView};
use congruent_fused::gemm::{Eight, TiledProduct};

kernel_arg! {
    /// Tokens of this PE, and what comes of them.
    pub struct Routed {
        /// Its tokens.
        pub x: Sym<bf16>,
        /// Which experts they have.
        pub experts: Sym<i32>,
        /// With what weights.
        pub weights: Sym<f32>,
        /// The sums of their answers.
        pub y: Sym<bf16>,
        /// Which micro-batch they are.
        pub index: u32,
        /// How many there are.
        pub count: u32,
    }
}

impl Routed {
    /// Sends the tokens to their experts.
    #[inline(always)]
    fn send(&self, moe: &Moe<'_>) -> MicroBatch<Dispatched> {
        let ctx = moe.ctx();
        let tokens = Tokens {
            count: self.count as usize,
            payload: self.x.cast(),
            scales: Sym::empty(),
            experts: |i| ctx.load(self.experts, i),
            weights: |i| ctx.load(self.weights, i),
        };
        moe.dispatch_send(moe.idle(self.index as usize), &tokens)
    }
}

/// What is between an expert's layers.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + math::exp(-x))
}

/// A product of an expert's rows and its weights, a tile of it, and the row by expert that it begins with: of tile `at` of all experts'.
#[inline(always)]
fn tile_of<'k>(
    moe: &Moe<'k>,
    received: &MicroBatch<Received>,
    rows: Sym<Eight>,
    weights: &'k [Eight],
    k: u32,
    at: u32,
) -> Option<(TiledProduct<'k, 4>, u32, usize)> {
    // A product takes most of the registers: all of this is computed anew behind it.
    let ((moe, received), k, mut tile) = (moe.opaque(received), opaque_word(k), opaque_word(at));
    let (experts, mut start) = (moe.experts().len(), 0);
    for expert in 0..experts {
        let count = moe.block().uniform(moe.count_of(&received, expert) as u64) as usize;
        let of = weights.len() / experts;
        // SAFETY: an earlier launch has stored them, and a later one stores there next.
        let rows = unsafe { moe.ctx().settled(rows.slice(start * k as usize..(start + count) * k as usize)) };
        // SAFETY: as above; the weights are lent to the launch to be read.
        let product =
            unsafe { TiledProduct::new(Global::of(rows), Global::of(&weights[expert * of..(expert + 1) * of]), k) };
        if tile < product.tiles() {
            return Some((product, tile, start));
        }
        (start, tile) = (start + count, tile - product.tiles());
    }
    None
}

kernels! { in crate::PTX;
    /// Tokens travel to their experts, are answered, and their sums come back. Blocks of [`THREADS`](congruent_fused::gemm::THREADS)
    /// threads with [`SHARED_F32`](congruent_fused::gemm::SHARED_F32) bytes of shared memory.
    pub fn answer_by_experts(
        block, ctx, moe: MoeView, tokens: Routed, memory: ExpertsView, up: Slice<Eight>, down: Slice<Eight>;
        shared: ([Eight],)
    ) launch_bounds(384, 1) {
        let moe = moe.enter(block, ctx);
        let sent = tokens.send(&moe);
        // SAFETY: the program has the memory for this kernel and this exchange alone.
        let answered = unsafe { experts::answer(&moe, shared, sent, Experts { memory, up, down }, silu) };
        let Ok(combining) = answered else { return };
        let _idle = moe.combine_recv(combining, tokens.y, Added::Nothing);
    }

    /// Tokens travel to their experts, and are copied by expert.
    pub fn tokens_by_expert(block, ctx, moe: MoeView, tokens: Routed, rows: Sym<Eight>) {
        let moe = moe.enter(block, ctx);
        let Ok(received) = moe.dispatch_recv(tokens.send(&moe)) else { return };
        let _fits = moe.by_expert(&received, rows.cast(), 1);
    }

    /// The first layers, of rows by expert.
    pub fn first_layers(
        block, ctx, moe: MoeView, index: u32, rows: Sym<Eight>, weights: Slice<Eight>, hidden: Sym<bf16>, k: u32;
        shared: ([Eight],)
    ) launch_bounds(384, 1) {
        let moe = moe.enter(block, ctx);
        let Ok(received) = moe.resume(index as usize) else { return };
        let tile_of = |at| tile_of(&moe, &received, rows, weights, k, at);
        let mut at = block.index() as u32;
        while let Some((product, tile, _)) = tile_of(at) {
            product.tile(block, shared, tile, || {
                let place = tile_of(at).map(|(product, _, start)| (start, product.n()));
                move |row, column, sum| {
                    if let Some((start, columns)) = place {
                        ctx.store(hidden, (start + row) * columns + column, bf16::narrow(silu(sum)));
                    }
                }
            });
            at += block.count() as u32;
        }
    }

    /// The second ones.
    pub fn second_layers(
        block, ctx, moe: MoeView, index: u32, hidden: Sym<Eight>, weights: Slice<Eight>, answers: Sym<f32>, k: u32;
        shared: ([Eight],)
    ) launch_bounds(384, 1) {
        let moe = moe.enter(block, ctx);
        let Ok(received) = moe.resume(index as usize) else { return };
        let tile_of = |at| tile_of(&moe, &received, hidden, weights, k, at);
        let mut at = block.index() as u32;
        while let Some((product, tile, _)) = tile_of(at) {
            product.tile(block, shared, tile, || {
                let place = tile_of(at).map(|(product, _, start)| (start, product.n()));
                move |row, column, sum: f32| {
                    if let Some((start, columns)) = place {
                        ctx.store(answers, (start + row) * columns + column, sum);
                    }
                }
            });
            at += block.count() as u32;
        }
    }

    /// The answers go back, and are summed.
    pub fn send_answers(block, ctx, moe: MoeView, tokens: Routed, answers: Sym<Pack<f32, 4>>) {
        let moe = moe.enter(block, ctx);
        let Ok(received) = moe.resume(tokens.index as usize) else { return };
        let each = moe.view().output_bytes() / 8;
        let combining = moe.combine_send_packs::<bf16, 8, _>(received, |row, k| {
            let first = moe.row_by_expert(row, k, 1) * each;
            move |i| {
                let [low, high] = [0, 1].map(|half| ctx.load(answers, first + 2 * i + half));
                core::array::from_fn(|j| if j < 4 { low[j] } else { high[j - 4] })
            }
        });
        let _idle = moe.combine_recv(combining, tokens.y, Added::Nothing);
    }
}
