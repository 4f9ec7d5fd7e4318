//! Rows of a table that is spread over the PEs, fetched where they are.
//!
//! The table is too large for one PE, as are those of embeddings (Naumov et al., "Deep Learning Recommendation Model for Personalization and
//! Recommendation Systems", 2019). A kernel gets a row from the PE that has it; nobody there has to do anything, and no PE needs to know before
//! who asks for what.

use congruent_device::{Block, Ctx, Pack, Place, Sym, World, bf16, kernel_arg, refuse};

/// Eight numbers of a row, which one access moves.
pub type Eight = Pack<bf16, 8>;

kernel_arg! {
    /// A table of rows: row `i` of `n` PEs is on PE `i % n`, at `i / n`.
    pub struct Table {
        /// This PE's rows, one behind the other.
        pub rows: Sym<Eight>,
        /// Room for rows that a block has fetched: `bag` of them for each block of a launch.
        pub fetched: Sym<Eight>,
        /// Eights of a row.
        pub width: u32,
        /// Rows that a block has room for.
        pub bag: u32,
    }
}

impl Table {
    /// Where a row is.
    ///
    /// # Panics
    /// Where the table has none of this number.
    #[inline(always)]
    #[track_caller]
    pub fn row(&self, ctx: &Ctx<'_>, id: u32) -> Place<Eight, World> {
        let (npes, width) = (ctx.npes() as u32, self.width as usize);
        let at = (id / npes) as usize * width;
        self.rows.slice(at..at + width).at(ctx.world().rank((id % npes) as usize))
    }

    /// Where the block has room for row `i` of its bag.
    ///
    /// # Panics
    /// Where there is no such row, or no room for this block.
    #[inline(always)]
    #[track_caller]
    pub fn room(&self, block: &Block<'_>, i: usize) -> Sym<Eight> {
        if i >= self.bag as usize {
            refuse!("a block has room for a bag of rows");
        }
        let width = self.width as usize;
        let at = (block.index() * self.bag as usize + i) * width;
        self.fetched.slice(at..at + width)
    }

    /// Fetches the rows that `ids` names to the block's [room](Table::room), from row `first` of its bag on. All are under way together, so
    /// that they take as long as the slowest. Rows may be named twice, and be this PE's.
    ///
    /// ```
    /// use congruent_device::{Group, Slice, SmallFloat, Sym, kernels};
    /// use congruent_fused::gather_rows::Table;
    ///
    /// kernels! {
    ///     /// For each row that `ids` names its largest number; a bag is one row.
    ///     pub fn largest(block, ctx, table: Table, ids: Slice<u32>, most: Sym<f32>) {
    ///         for i in (block.index()..ids.len()).step_by(block.count()) {
    ///             table.fetch(block, ctx, 0, &ids[i..=i]);
    ///             if block.leader() {
    ///                 let eight = |j| ctx.load(table.room(block, 0), j);
    ///                 let numbers = (0..table.width as usize).flat_map(|j| eight(j).0);
    ///                 ctx.store(most, i, numbers.fold(f32::NEG_INFINITY, |most, x| most.max(x.widen())));
    ///             }
    ///             // The next row goes where this one is.
    ///             block.sync();
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # One-sided
    /// The block shares the work.
    ///
    /// # Ordering
    /// The rows are here on return, for all threads of the block (MM-5). What they had in that room is done with before the call: the block
    /// syncs.
    ///
    /// # Panics
    /// Where the table has no such row, or the block no room.
    #[inline(always)]
    #[track_caller]
    pub fn fetch(&self, block: &Block<'_>, ctx: &Ctx<'_>, first: usize, ids: &[u32]) {
        ctx.nonblocking(block, |nb| {
            for (i, &id) in ids.iter().enumerate() {
                nb.get(self.room(block, first + i), self.row(ctx, id));
            }
        });
    }
}
