//! Keys and values in pages, which the PE that computes them puts where another one needs them, layer by layer.
//!
//! The cache of a layer is in pages anywhere in the memory of the PE that reads it, as a table says (Kwon et al., "Efficient Memory Management
//! for Large Language Model Serving with PagedAttention", 2023). A page is put there as soon as it is computed, and counted by the signal of
//! its layer, so that the first layers are read while the last ones are computed and sent (Patel et al., "Splitwise", 2024). One signal goes
//! back, and counts the layers that are done with: a page may be another layer's in the next prompt.
//!
//! | who | does |
//! |---|---|
//! | the PE that computes | [`begin`](Pages::begin), then [`put`](Pages::put) for each page |
//! | the PE that reads | for each layer [`wait`](Pages::wait), [`page`](Pages::page), [`done`](Pages::done) |
//!
//! A PE may do both, for one PE each. What is in a page is the kernel's affair:
//!
//! ```
//! use congruent_device::{Group, RowsMut, Slice, Sym, kernels};
//! use congruent_fused::pages::Pages;
//!
//! /// A page of numbers.
//! type Page = [f32; 256];
//!
//! kernels! {
//!     /// Computes a page of each layer for the next PE, and sums what the PE before has put here. A row of `sums` is a layer's.
//!     pub fn put_and_sum(
//!         block, ctx, pages: Pages, computed: Sym<Page>, theirs: Slice<u32>, mine: Slice<u32>, sums: RowsMut<f32>,
//!     ) {
//!         let (world, computed) = (ctx.world(), computed.elem(block.index()));
//!         pages.begin(block, ctx);
//!         for layer in (block.index()..theirs.len()).step_by(block.count()) {
//!             ctx.fill(block, computed.cast(), layer as f32);
//!             block.sync();
//!             pages.put(block, ctx, world.next(), layer, theirs[layer], computed);
//!         }
//!         for (layer, mut row) in sums.iter_mut(block) {
//!             pages.wait(block, ctx, layer, 1);
//!             // SAFETY: it is a page of this layer, which has come and is not done with.
//!             let page: &Page = unsafe { pages.page(ctx, mine[layer]) };
//!             row.iter_mut(block).for_each(|(_, sum)| *sum = page.iter().sum());
//!             pages.done(block, ctx, world.prev());
//!         }
//!     }
//! }
//! ```

use congruent_device::{Block, Ctx, Pod, Rank, Signal, Sym, World, kernel_arg, refuse};

kernel_arg! {
    /// Where a PE has pages that another one fills, and tells of those that it fills itself.
    pub struct Pages {
        /// This PE's pages, one behind the other, of which a table says which are in use.
        pub pages: Sym<u8>,
        /// Of each layer, how many pages have come since the beginning.
        pub ready: Sym<Signal>,
        /// How many layers the PE that is given pages has done with since the beginning: one signal.
        pub done: Sym<Signal>,
        /// How many prompts there were before this one.
        pub turn: u64,
    }
}

impl Pages {
    /// Waits until the PE that is given pages has done with all layers of the prompt before: then any of its pages may be put.
    ///
    /// # Collective
    /// By every block that puts.
    ///
    /// # Ordering
    /// Acquire (MM-3).
    #[inline(always)]
    #[track_caller]
    pub fn begin(&self, block: &Block<'_>, ctx: &Ctx<'_>) {
        ctx.wait_at_least(block, self.done, self.turn * self.ready.len() as u64);
    }

    /// Puts a page of a layer where `to` has it, and counts it there. It has as many bytes as every page.
    ///
    /// # One-sided
    /// The block shares the work.
    ///
    /// # Ordering
    /// Release (MM-2): who has waited for the layer sees the page, which has been stored by any thread of the block before a sync.
    /// `computed` may be overwritten on return.
    ///
    /// # Panics
    /// Where it is more or less than one page, or there is no such layer or page.
    #[inline(always)]
    #[track_caller]
    pub fn put<T: Pod>(
        &self,
        block: &Block<'_>,
        ctx: &Ctx<'_>,
        to: Rank<World>,
        layer: usize,
        page: u32,
        computed: Sym<T>,
    ) {
        let place = self.pages.cast::<T>().elem(page as usize).at(to);
        ctx.put_signal(block, place, computed, self.ready.elem(layer).at(to).add(1));
    }

    /// Waits until all pages of a layer are here, of which each prompt has so many.
    ///
    /// # Collective
    /// By every block that reads the layer.
    ///
    /// # Ordering
    /// Acquire (MM-3).
    ///
    /// # Panics
    /// Where there is no such layer.
    #[inline(always)]
    #[track_caller]
    pub fn wait(&self, block: &Block<'_>, ctx: &Ctx<'_>, layer: usize, pages: usize) {
        ctx.wait_at_least(block, self.ready.elem(layer), (self.turn + 1) * pages as u64);
    }

    /// A page that is here.
    ///
    /// # Panics
    /// Where there is none of this number.
    ///
    /// # Safety
    /// Nobody writes it while the reference lives: it is of a layer that has been [waited](Pages::wait) for and is not
    /// [done](Pages::done) with, and pages are written by [`put`](Pages::put) alone, behind [`begin`](Pages::begin).
    #[inline(always)]
    #[track_caller]
    pub unsafe fn page<'c, T: Pod>(&self, ctx: &'c Ctx<'_>, page: u32) -> &'c T {
        // SAFETY: the caller's contract.
        match unsafe { ctx.settled(self.pages.cast::<T>().elem(page as usize)) } {
            [page] => page,
            _ => refuse!("an element is one"),
        }
    }

    /// Tells `from`, which has put the pages of a layer, that they are done with. Once for each layer of each prompt.
    ///
    /// # Collective
    /// By the block that has read the layer, behind the last read.
    ///
    /// # Ordering
    /// Release (MM-2).
    #[inline(always)]
    #[track_caller]
    pub fn done(&self, block: &Block<'_>, ctx: &Ctx<'_>, from: Rank<World>) {
        ctx.notify(block, self.done.at(from).add(1));
    }
}
