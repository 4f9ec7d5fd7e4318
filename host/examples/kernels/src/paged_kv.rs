//! Keys and values in pages, which the PE that computes them puts where another one needs them, layer by layer.

use congruent_device::{Group, RowsMut, Slice, Sym, kernels};
use congruent_fused::attention::{Arrays, Attention, dot};

use crate::attention::{FOURS, Four, Row, SCALE, WIDTH};

pub use congruent_fused::pages::Pages;

/// Tokens of a page.
pub const PAGE: usize = 16;
/// The keys of a page's tokens, and then their values.
pub type Page = [Row; 2 * PAGE];

kernels! { in crate::PTX;
    /// Computes the keys and values of a prompt for the next PE, and answers the queries of this one. `weights` has the keys' matrix of each
    /// layer and then the values', row by row; a token's key is its product with each row. A row of a table has the pages of a layer:
    /// `theirs` of the next PE, `mine` of this one. Row `i` of `answers` is the answer to query `i`, of layer `i`. `computed` is where each
    /// block computes a page.
    pub fn prefill_and_decode(
        block, ctx, cache: Pages, computed: Sym<Page>, tokens: Slice<Row>, weights: Slice<Row>, theirs: Slice<u32>,
        mine: Slice<u32>, queries: Slice<Row>, answers: RowsMut<Four>; shared: Arrays<FOURS>
    ) launch_bounds(128, 3) {
        let (team, layers, blocks) = (ctx.world(), queries.len(), block.count());
        let (pages, computed) = (theirs.len() / layers, computed.elem(block.index()));
        cache.begin(block, ctx);
        for layer in 0..layers {
            for page in (block.index()..pages).step_by(blocks) {
                let numbers = computed.cast::<f32>();
                for at in block.strided(numbers.len()) {
                    let (row, d) = (at / WIDTH, at % WIDTH);
                    let token = &tokens[page * PAGE + row % PAGE];
                    ctx.store(numbers, at, dot(token, &weights[(2 * layer + row / PAGE) * WIDTH + d]));
                }
                block.sync();
                cache.put(block, ctx, team.next(), layer, theirs[layer * pages + page], computed);
            }
        }
        for (layer, mut row) in answers.iter_mut(block) {
            cache.wait(block, ctx, layer, pages);
            let mut attention = Attention::new(block, shared, SCALE);
            for &page in &mine[layer * pages..][..pages] {
                // SAFETY: a page of this layer, which has come and is not done with.
                let page: &Page = unsafe { cache.page(ctx, page) };
                attention.meet(block, shared, &queries[layer], &page[..PAGE], &page[PAGE..]);
            }
            let answer = attention.answer(block, shared);
            row.iter_mut(block).for_each(|(d, four)| *four = answer(d));
            cache.done(block, ctx, team.prev());
        }
    }
}
