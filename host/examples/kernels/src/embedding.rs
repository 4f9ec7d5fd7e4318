//! Rows of a table that is spread over the PEs, fetched and summed.

use core::array::from_fn;

use congruent_device::{Group, Pack, RowsMut, Slice, SmallFloat, bf16, kernels};

pub use congruent_fused::gather_rows::{Eight, Table};

kernels! { in crate::PTX;
    /// Row `i` of `sums` becomes the sum of the rows of the table that bag `i` of `ids` names, in their order, in f32 and rounded once; a
    /// block for each bag. All rows of a bag are under way together if `together` is not 0, else one is awaited before the next is asked for.
    pub fn embed(block, ctx, table: Table, ids: Slice<u32>, sums: RowsMut<Eight>, together: u32) {
        let bag = table.bag as usize;
        for (i, mut row) in sums.iter_mut(block) {
            let ids = &ids[i * bag..][..bag];
            if together != 0 {
                table.fetch(block, ctx, 0, ids);
            } else {
                for i in 0..bag {
                    table.fetch(block, ctx, i, &ids[i..=i]);
                }
            }
            for (j, sum) in row.iter_mut(block) {
                let mut total = [0.0_f32; 8];
                for i in 0..bag {
                    let fetched = ctx.load(table.room(block, i), j);
                    total = from_fn(|n| total[n] + fetched[n].widen());
                }
                *sum = Pack::from_fn(|n| bf16::narrow(total[n]));
            }
            // The next bag's rows go where these are.
            block.sync();
        }
    }
}
