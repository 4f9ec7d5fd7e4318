//! Heat that spreads over a plate, with the halo exchanges and the question whether it is at rest in the kernel.

use congruent_collectives::{Max, PlanView, ring};
use congruent_device::{Block, Ctx, Group, Semaphore, Sym, kernel_arg, kernels};

kernel_arg! {
    /// One PE's part of the plate: the same on every PE but for the number of its rows.
    pub struct Plate {
        /// Two planes of `room + 2` rows of `columns + 2` cells. The outermost cells are the rim, or the halo.
        pub cells: Sym<f32>,
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
    /// Row `row` of a plane; row 0 is the halo above.
    fn row(&self, plane: u32, row: u32) -> Sym<f32> {
        let width = self.columns as usize + 2;
        let start = (plane * (self.room + 2) + row) as usize * width;
        self.cells.slice(start..start + width)
    }

    /// The cells of a row that change.
    fn inner(&self, plane: u32, row: u32) -> Sym<f32> {
        self.row(plane, row).slice(1..=self.columns as usize)
    }

    /// Computes one row of `new` from `old`; whether a cell that this thread computed moved by more than `tolerance`.
    fn relax(&self, block: &Block<'_>, ctx: &Ctx<'_>, old: u32, new: u32, row: u32, tolerance: f32) -> bool {
        let (above, here, below) = (self.row(old, row - 1), self.row(old, row), self.row(old, row + 1));
        let next = self.row(new, row);
        let mut moved = false;
        for i in block.strided(self.columns as usize) {
            let before = ctx.load(here, i + 1);
            let after = mean(ctx.load(above, i + 1), ctx.load(here, i), ctx.load(here, i + 2), ctx.load(below, i + 1));
            ctx.store(next, i + 1, after);
            moved |= (after - before).abs() > tolerance;
        }
        moved
    }
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
            let mut moved = plate.relax(block, ctx, old, new, 1, tolerance);
            if last > 1 {
                moved |= plate.relax(block, ctx, old, new, last, tolerance);
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
            for row in 2..last {
                moved |= plate.relax(block, ctx, old, new, row, tolerance);
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
                let mine = block.any(moved);
                if block.leader() {
                    ctx.store(moving, 0, u32::from(mine));
                }
                block.sync();
                ring::all_reduce(&mut plan.enter(block, ctx), moving, moving, Max);
                // Every PE reads the same number, so all of them leave after the same step.
                if ctx.load(moving, 0) == 0 {
                    break;
                }
            }
        }
        if block.leader() {
            ctx.store(result, 0, steps);
        }
    }
}
