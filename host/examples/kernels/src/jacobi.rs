//! Heat that spreads over a plate, with the halo exchanges and the question whether it is at rest in the kernel.

use core::array::from_fn;
use core::ops::Range;

use congruent_collectives::{Max, PlanView, ring};
use congruent_device::{Block, Ctx, Group, Mark, Pack, Semaphore, Sym, kernel_arg, kernels};

/// Cells of a row that lie beside each other, which one access of a thread loads or stores.
pub type Four = Pack<f32, 4>;

kernel_arg! {
    /// One PE's part of the plate: the same on every PE but for the number of its rows.
    pub struct Plate {
        /// Two planes of `room + 2` rows of [`fours`]. The outermost rows and fours, and what the columns leave of the last four
        /// between these, are the rim, or the halo.
        pub cells: Sym<Four>,
        /// Posted by the PE above when its row has arrived in my halo.
        pub from_above: Sym<Semaphore>,
        /// The same of the PE below.
        pub from_below: Sym<Semaphore>,
        /// Rows that every PE has room for.
        pub room: u32,
        /// Rows of the PE above.
        pub rows_above: u32,
        /// Rows of this PE.
        pub rows: u32,
        /// Columns, without the rim.
        pub columns: u32,
    }
}

/// How many fours a row of so many columns has, with one on either side for the rim.
pub const fn fours(columns: u32) -> usize {
    columns.div_ceil(4) as usize + 2
}

kernel_arg! {
    /// When the plate is at rest: no cell moves by more than `tolerance` in a step, which is looked at every `every` steps.
    pub struct Rest {
        /// How far a cell at rest may move.
        pub tolerance: f32,
        /// Steps from one look to the next.
        pub every: u32,
        /// Most steps.
        pub limit: u32,
    }
}

impl Plate {
    /// Rows of a plane; row 0 is the halo above.
    fn rows(&self, plane: u32, rows: Range<u32>) -> Sym<Four> {
        let (first, width) = (plane * (self.room + 2), fours(self.columns));
        self.cells.slice((first + rows.start) as usize * width..(first + rows.end) as usize * width)
    }

    /// The cells of a row that change.
    fn inner(&self, plane: u32, row: u32) -> Sym<Four> {
        self.rows(plane, row..row + 1).slice(1..fours(self.columns) - 1)
    }

    /// Computes rows of `new` from `old`; how far a cell that this thread computed has moved at most.
    ///
    /// # Safety
    /// From the last sync of the block to its next one, no other PE writes these rows of `old` and those above and below, and none accesses
    /// these rows of `new`.
    unsafe fn relax(&self, block: &Block<'_>, ctx: &Ctx<'_>, old: u32, new: u32, rows: Range<u32>) -> f32 {
        let (columns, width) = (self.columns as usize, fours(self.columns));
        // SAFETY: the caller's promise; this block writes no row of `old`.
        let cells = unsafe { ctx.settled(self.rows(old, rows.start - 1..rows.end + 1)) };
        let next = ctx.address(self.rows(new, rows.clone()).at(ctx.world().me()));
        let mut far = [0.0_f32; 4];
        for row in 0..rows.len() {
            let [above, here, below] = from_fn(|i| &cells[(row + i) * width..][..width]);
            // SAFETY: a row inside `new`.
            let next = unsafe { next.add(row * width) };
            // With the length of the loop, so that it has no check of bounds.
            let whole = columns / 4;
            let (ups, downs, lefts) = (&above[1..=whole], &below[1..=whole], &here[..whole]);
            let (middles, rights) = (&here[1..=whole], &here[2..whole + 2]);
            for four in block.strided(whole) {
                let (Pack(up), Pack(before), Pack(down)) = (ups[four], middles[four], downs[four]);
                let left = [lefts[four].0[3], before[0], before[1], before[2]];
                let right = [before[1], before[2], before[3], rights[four].0[0]];
                let cells = from_fn(|i| mean(up[i], left[i], right[i], down[i]));
                far = farther(far, cells, before);
                // SAFETY: inside this row, which this block has for itself, and this thread this four of it.
                unsafe { next.add(four + 1).write(Pack(cells)) };
            }
            // The last four may be the rim's in part.
            let [above, here, below] = [above, here, below].map(bytemuck::cast_slice::<_, f32>);
            for i in block.strided(columns % 4) {
                let at = 4 * whole + 4 + i;
                let cell = mean(above[at], here[at - 1], here[at + 1], below[at]);
                [far[0]] = farther([far[0]], [cell], [here[at]]);
                // SAFETY: as above, of one cell.
                unsafe { next.cast::<f32>().add(at).write(cell) };
            }
        }
        far.into_iter().fold(0.0, f32::max)
    }
}

/// How far cells have moved at most. A comparison that takes `far` where one of both is no number is one instruction on CPUs.
fn farther<const N: usize>(far: [f32; N], after: [f32; N], before: [f32; N]) -> [f32; N] {
    let moved: [f32; N] = from_fn(|i| (after[i] - before[i]).abs());
    from_fn(|i| if moved[i] > far[i] { moved[i] } else { far[i] })
}

/// The new value of a cell. The order of the sum is fixed here, so that every solver gives the same bits.
pub fn mean(above: f32, left: f32, right: f32, below: f32) -> f32 {
    0.25 * ((above + below) + (left + right))
}

kernels! { in crate::PTX;
    /// Relaxes the plate until it is at rest; the number of steps goes to `result[0]`.
    pub fn jacobi(block, ctx, plate: Plate, result: Sym<u32>, plan: PlanView, rest: Rest) {
        let Rest { every, limit, tolerance } = rest;
        let team = ctx.world();
        let above = team.me().index().checked_sub(1).map(|i| team.rank(i));
        let below = team.get(team.me().index() + 1);
        let last = plate.rows;
        let mut steps = 0;
        while steps < limit {
            let (old, new) = (steps % 2, (steps + 1) % 2);
            // SAFETY: a neighbour writes `old`'s halo when it has this step's outermost row, and `new`'s was waited for in the last step;
            // neither accesses other rows of mine, and all that wrote these rows ended before a sync.
            let mut far = unsafe { plate.relax(block, ctx, old, new, 1..2) };
            if last > 1 {
                // SAFETY: as above.
                far = far.max(unsafe { plate.relax(block, ctx, old, new, last..last + 1) });
            }
            block.sync();
            if let Some(above) = above {
                let halo = plate.inner(new, plate.rows_above + 1);
                ctx.put_signal(block, halo.at(above), plate.inner(new, 1), plate.from_below.at(above).post());
            }
            if let Some(below) = below {
                let halo = plate.inner(new, 0);
                ctx.put_signal(block, halo.at(below), plate.inner(new, last), plate.from_above.at(below).post());
            }
            if last > 2 {
                // A trace shows it beside what the halos are on their way.
                let _span = ctx.span(Mark::new("inner rows"));
                // SAFETY: neither these rows nor those above and below are the halo, which is all that a neighbour writes.
                far = far.max(unsafe { plate.relax(block, ctx, old, new, 2..last) });
            }
            if let Some(above) = above {
                ctx.wait(block, plate.from_above.from_rank(above), 1);
            }
            if let Some(below) = below {
                ctx.wait(block, plate.from_below.from_rank(below), 1);
            }
            // What other threads of this block have just written, the next step reads.
            block.sync();
            steps += 1;
            if steps.is_multiple_of(every) {
                let moving = result.slice(1..2);
                let mine = block.any(far > tolerance);
                if block.leader() {
                    ctx.store(moving, 0, u32::from(mine));
                }
                block.sync();
                ring::all_reduce(&mut plan.enter(block, ctx), moving, moving, Max);
                // Every PE reads the same number, so all of them leave after the same step.
                if block.uniform(ctx.load(moving, 0).into()) == 0 {
                    break;
                }
            }
        }
        if block.leader() {
            ctx.store(result, 0, steps);
        }
    }
}
