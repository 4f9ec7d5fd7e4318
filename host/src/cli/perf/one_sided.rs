//! Messages between two PEs: put, get and ping-pong.

use congruent_device::Semaphore;
use congruent_kernels as kernels;

use super::Common;
use super::case::{Case, Labels, Path, Row};
use super::measure::Work;
use super::pattern::{GUARD, Pattern, clear};
use super::sizes::SizeArgs;
use super::sweep::{self, Plan, Swept};
use crate::cli::failure::Failure;
use crate::{Grid, Stream, SymVec, World};

/// How bytes move between PE 0 and PE 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Movement {
    /// PE 0 puts.
    Put,
    /// PE 0 gets.
    Get,
    /// Both put, in turn.
    PingPong,
}

/// Runs the sweep of a movement.
pub(super) fn run(movement: Movement, sizes: &SizeArgs, common: &Common) -> Result<Swept, Failure> {
    let (operation, longest) = match movement {
        Movement::Put => ("put", 64 << 20),
        Movement::Get => ("get", 64 << 20),
        Movement::PingPong => ("ping-pong", 4 << 20),
    };
    let sizes = sizes.sweep(8, longest, 1, 1)?;
    let plan = Plan { fewest_pes: 2, ..Plan::new(operation, common, 2, &sizes) };
    sweep::run(plan, |world, plan| {
        let len = plan.longest() as usize + GUARD;
        let (dst, src) = (world.alloc(len)?, world.alloc(len)?);
        let turn = world.alloc(1)?;
        let (me, grid) = (world.pe().index(), Grid::one(plan.common.threads));
        Ok(Box::new(Move { movement, dst, src, turn, me, grid, patterns: [Pattern::of(0), Pattern::of(1)] }))
    })
}

struct Move {
    movement: Movement,
    dst: SymVec<u8>,
    src: SymVec<u8>,
    turn: SymVec<Semaphore>,
    me: usize,
    grid: Grid,
    /// What PE 0 and PE 1 send.
    patterns: [Pattern<u8>; 2],
}

impl Move {
    /// Who sends to this PE.
    fn sender(&self) -> Option<usize> {
        match (self.movement, self.me) {
            (Movement::Put | Movement::PingPong, 1) => Some(0),
            (Movement::Get | Movement::PingPong, 0) => Some(1),
            _ => None,
        }
    }
}

impl Case for Move {
    fn labels(&self) -> Labels {
        Labels { datatype: "uint8", ..Labels::ONE_SIDED }
    }

    fn path(&self, world: &World, row: Row) -> Path {
        match self.movement {
            Movement::PingPong => Path::one_sided(world, "signal", row.size + size_of::<u64>() as u64),
            Movement::Put | Movement::Get => Path::one_sided(world, "simple", row.size),
        }
    }

    fn prepare(&self, row: Row) -> Result<(), Failure> {
        let len = row.size as usize;
        if let Some(pattern) = self.patterns.get(self.me) {
            pattern.fill(&self.src, len)?;
        }
        Ok(clear(&self.dst, len)?)
    }

    fn launch(&self, world: &World, stream: &Stream, row: Row, rounds: u64) -> Result<(), Failure> {
        let part = ..row.size as usize;
        let (dst, src) = (self.dst.view().slice(part), self.src.view().slice(part));
        match self.movement {
            Movement::Put => world.launch(stream, kernels::perf_put, self.grid, (dst, src, rounds))?,
            Movement::Get => world.launch(stream, kernels::perf_get, self.grid, (dst, src, rounds))?,
            Movement::PingPong => {
                world.launch(stream, kernels::perf_ping_pong, self.grid, (dst, src, self.turn.view(), rounds))?;
            }
        }
        Ok(())
    }

    fn wrong(&self, row: Row, _work: Work) -> Result<Option<u64>, Failure> {
        let len = row.size as usize;
        Ok(Some(match self.sender() {
            Some(pe) => self.patterns[pe].wrong(&self.dst, len)?,
            // Nobody sends here, so nothing may have come.
            None => Pattern::nothing().wrong(&self.dst, len)?,
        }))
    }

    fn messages(&self) -> u64 {
        if self.movement == Movement::PingPong { 2 } else { 1 }
    }
}
