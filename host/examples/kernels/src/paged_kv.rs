//! Keys and values in pages, which the PE that computes them puts where another one needs them, layer by layer.

use congruent_device::{Group, Pack, RowsMut, Signal, Slice, Sym, kernel_arg, kernels};

use crate::attention::{FOURS, Four, Row, WIDTH};
use crate::flash_decode::{Attention, CHUNK, PARTS, dot};

/// Tokens of a page.
pub const PAGE: usize = 16;
/// The keys of a page's tokens, and then their values.
pub type Page = [Row; 2 * PAGE];

kernel_arg! {
    /// What a PE has for the prompt that the PE before it computes.
    pub struct Cache {
        /// Pages, of which a table says which are in use.
        pub pages: Sym<Page>,
        /// Where a block computes a page.
        pub computed: Sym<Page>,
        /// Of each layer, how many pages have come since the beginning.
        pub ready: Sym<Signal>,
        /// How many layers the next PE has done with since the beginning.
        pub done: Sym<Signal>,
        /// How many prompts there were before this one.
        pub turn: u64,
    }
}

kernels! { in crate::PTX;
    /// Computes the keys and values of a prompt for the next PE, and answers the queries of this one. `weights` has the keys' matrix of each
    /// layer and then the values', row by row; a token's key is its product with each row. A row of a table has the pages of a layer:
    /// `theirs` of the next PE, `mine` of this one. Row `i` of `answers` is the answer to query `i`, of layer `i`.
    ///
    /// Every launch has as many blocks as any other, on every PE.
    pub fn prefill_and_decode(
        block, ctx, cache: Cache, tokens: Slice<Row>, weights: Slice<Row>, theirs: Slice<u32>, mine: Slice<u32>,
        queries: Slice<Row>, answers: RowsMut<Four>; shared: ([f32; CHUNK], [Four; PARTS * FOURS])
    ) launch_bounds(128, 3) {
        let (team, layers, blocks) = (ctx.world(), queries.len(), block.count());
        let (pages, next) = (theirs.len() / layers, team.next());
        let computed = cache.computed.elem(block.index());
        // Nobody reads the pages of the prompt before, of whatever layer: a page may be another one's now.
        ctx.wait_at_least(block, cache.done, cache.turn * layers as u64);
        for layer in 0..layers {
            for page in (block.index()..pages).step_by(blocks) {
                let numbers = computed.cast::<f32>();
                for at in block.strided(numbers.len()) {
                    let (row, d) = (at / WIDTH, at % WIDTH);
                    let token = &tokens[page * PAGE + row % PAGE];
                    ctx.store(numbers, at, dot(token, &weights[(2 * layer + row / PAGE) * WIDTH + d]));
                }
                block.sync();
                let place = cache.pages.elem(theirs[layer * pages + page] as usize).at(next);
                ctx.put_signal(block, place, computed, cache.ready.elem(layer).at(next).add(1));
            }
        }
        for (layer, mut row) in answers.iter_mut(block) {
            ctx.wait_at_least(block, cache.ready.elem(layer), (cache.turn + 1) * pages as u64);
            let mut attention = Attention::new(block, shared);
            for &page in &mine[layer * pages..][..pages] {
                // SAFETY: the PE before writes pages again when it knows that all layers are done with.
                let page = unsafe { ctx.settled(cache.pages.elem(page as usize)) }.as_flattened();
                attention.meet(block, shared, &queries[layer], &page[..PAGE], &page[PAGE..]);
            }
            let sums = attention.sums(block, shared);
            for (d, four) in row.iter_mut(block) {
                let sum = sums(d);
                *four = Pack::from_fn(|j| sum[j] / attention.total);
            }
            ctx.notify(block, cache.done.at(team.prev()).add(1));
        }
    }
}
