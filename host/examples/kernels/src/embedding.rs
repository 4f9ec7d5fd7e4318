//! Rows of a table that is spread over the PEs, fetched and summed.

use core::array::from_fn;

use congruent_device::{Ctx, Group, Pack, Place, RowsMut, Slice, SmallFloat, Sym, World, bf16, kernel_arg, kernels};

/// Eight numbers of a row, which one access moves.
pub type Eight = Pack<bf16, 8>;

kernel_arg! {
    /// A table of rows: row `i` of `n` PEs is on PE `i % n`, at `i / n`.
    pub struct Embedding {
        /// This PE's rows, one behind the other.
        pub rows: Sym<Eight>,
        /// The rows that a block has fetched: `bag` of them for each block.
        pub fetched: Sym<Eight>,
        /// Eights of a row.
        pub width: u32,
        /// Rows that are summed.
        pub bag: u32,
    }
}

impl Embedding {
    /// Where a row is.
    #[inline(always)]
    fn row(&self, ctx: &Ctx<'_>, id: u32) -> Place<Eight, World> {
        let (npes, width) = (ctx.npes() as u32, self.width as usize);
        let at = (id / npes) as usize * width;
        self.rows.slice(at..at + width).at(ctx.world().rank((id % npes) as usize))
    }

    /// Where a block puts row `i` of a bag.
    #[inline(always)]
    fn room(&self, block: usize, i: usize) -> Sym<Eight> {
        let width = self.width as usize;
        let at = (block * self.bag as usize + i) * width;
        self.fetched.slice(at..at + width)
    }
}

kernels! { in crate::PTX;
    /// Row `i` of `sums` becomes the sum of the rows of the table that bag `i` of `ids` names, in their order, in f32 and rounded once; a
    /// block for each bag. All rows of a bag are under way together if `together` is not 0, else one is awaited before the next is asked for.
    pub fn embed(block, ctx, table: Embedding, ids: Slice<u32>, sums: RowsMut<Eight>, together: u32) {
        let bag = table.bag as usize;
        for (i, mut row) in sums.iter_mut(block) {
            let ids = &ids[i * bag..][..bag];
            let room = |i| table.room(block.index(), i);
            if together != 0 {
                ctx.nonblocking(block, |nb| {
                    for (i, &id) in ids.iter().enumerate() {
                        nb.get(room(i), table.row(ctx, id));
                    }
                });
            } else {
                for (i, &id) in ids.iter().enumerate() {
                    ctx.get(block, room(i), table.row(ctx, id));
                }
            }
            for (j, sum) in row.iter_mut(block) {
                let mut total = [0.0_f32; 8];
                for i in 0..bag {
                    // SAFETY: only this block writes what it has fetched, and no get of it is under way.
                    let fetched = unsafe { ctx.settled(room(i)) }[j];
                    total = from_fn(|n| total[n] + fetched[n].widen());
                }
                *sum = Pack::from_fn(|n| bf16::narrow(total[n]));
            }
            // The next bag's rows go where these are.
            block.sync();
        }
    }
}
