//! Messages between PEs: put, get and ping-pong.

use congruent_device::Semaphore;
use congruent_kernels as kernels;

use super::case::{Case, Labels, Path, Row, Work};
use super::pattern::{GUARD, Pattern, clear};
use super::sizes::SizeArgs;
use super::sweep::{self, Plan, Swept};
use super::{Blocks, Common};
use crate::failure::Failure;
use congruent::{Grid, Stream, SymVec, World};

/// What puts and gets take.
#[derive(clap::Args)]
pub(crate) struct MoveArgs {
    #[command(flatten)]
    sizes: SizeArgs,
    #[command(flatten)]
    blocks: Blocks,
    /// Every PE at once, each with the next one: the time is the slowest PE's, the bytes are those that one PE moves
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    common: Common,
}

/// How bytes move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Movement {
    /// PEs put to the next one.
    Put,
    /// PEs get from the next one.
    Get,
    /// PE 0 and PE 1 put, in turn.
    PingPong,
}

/// Runs the sweep of puts or gets.
pub(super) fn run(movement: Movement, args: &MoveArgs) -> Result<Swept, Failure> {
    let operation = if movement == Movement::Put { "put" } else { "get" };
    let pes = if args.all { 4 } else { 2 };
    let sizes = args.sizes.sweep(8, 64 << 20, 1, 1)?;
    let plan = Plan { blocks: args.blocks.blocks, all: args.all, ..Plan::new(operation, &args.common, pes, &sizes) };
    sweep_of(movement, plan)
}

/// Runs the sweep of messages to and fro.
pub(super) fn run_ping_pong(sizes: &SizeArgs, common: &Common) -> Result<Swept, Failure> {
    let sizes = sizes.sweep(8, 4 << 20, 1, 1)?;
    sweep_of(Movement::PingPong, Plan::new("ping-pong", common, 2, &sizes))
}

fn sweep_of(movement: Movement, plan: Plan<'_>) -> Result<Swept, Failure> {
    let plan = Plan { fewest_pes: 2, ..plan };
    sweep::run(plan, |world, plan| Ok(Box::new(Move::new(world, plan, movement)?)))
}

struct Move {
    movement: Movement,
    /// PEs that put or get, from PE 0 on.
    movers: u32,
    dst: SymVec<u8>,
    src: SymVec<u8>,
    turn: SymVec<Semaphore>,
    grid: Grid,
    sends: Pattern<u8>,
    /// What comes from whoever sends to this PE; where nobody does, nothing may have come.
    receives: Pattern<u8>,
}

impl Move {
    fn new(world: &mut World, plan: &Plan<'_>, movement: Movement) -> Result<Self, Failure> {
        let len = plan.longest() as usize + GUARD;
        let (me, npes) = (world.pe().index(), world.npes());
        let movers = if plan.all { npes } else { 1 };
        let sender = sender(movement, movers, me, npes);
        Ok(Self {
            movement,
            movers: movers as u32,
            dst: world.alloc(len)?,
            src: world.alloc(len)?,
            turn: world.alloc(1)?,
            grid: Grid::new(plan.blocks, plan.common.threads),
            sends: Pattern::of(me),
            receives: sender.map_or_else(Pattern::nothing, Pattern::of),
        })
    }
}

/// Whose bytes come to a PE, where the first `movers` PEs put or get.
fn sender(movement: Movement, movers: usize, me: usize, npes: usize) -> Option<usize> {
    let (prev, next) = ((me + npes - 1) % npes, (me + 1) % npes);
    match movement {
        Movement::Put => (prev < movers).then_some(prev),
        Movement::Get => (me < movers).then_some(next),
        Movement::PingPong => (me < 2).then_some(1 - me % 2),
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
        self.sends.fill(&self.src, len)?;
        Ok(clear(&self.dst, len)?)
    }

    fn launch(&self, world: &World, stream: &Stream, row: Row, rounds: u64) -> Result<(), Failure> {
        let part = ..row.size as usize;
        let (dst, src) = (self.dst.view().slice(part), self.src.view().slice(part));
        let moved = (dst, src, self.movers, rounds);
        match self.movement {
            Movement::Put => world.launch(stream, kernels::perf_put, self.grid, moved)?,
            Movement::Get => world.launch(stream, kernels::perf_get, self.grid, moved)?,
            Movement::PingPong => {
                world.launch(stream, kernels::perf_ping_pong, self.grid, (dst, src, self.turn.view(), rounds))?;
            }
        }
        Ok(())
    }

    fn wrong(&self, row: Row, _work: Work) -> Result<Option<u64>, Failure> {
        Ok(Some(self.receives.wrong(&self.dst, row.size as usize)?))
    }

    fn messages(&self) -> u64 {
        if self.movement == Movement::PingPong { 2 } else { 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::tests::common;
    use crate::perf::ways::Way;
    use congruent::Error;

    /// Bytes that the first `movers` of 3 PEs should move, what was counted at each PE, and what was wrong.
    fn traffic(movement: Movement, all: bool, blocks: u32, size: u64) -> Vec<(u64, u64, u64)> {
        let (common, sizes) = (common(32), [size]);
        let moved = World::builder().watch(true).heap(4 << 20).local(3, |world| {
            let plan = Plan { blocks, all, ..Plan::new("put", &common, 3, &sizes) };
            let case = Move::new(world, &plan, movement).unwrap();
            let (stream, row) = (world.stream()?, Row { size, in_place: false, way: Way::ONLY });
            case.prepare(row).unwrap();
            world.barrier()?;
            case.launch(world, &stream, row, 3).unwrap();
            world.synchronize(&stream)?;
            world.barrier()?;
            let traffic = world.traffic().map(|traffic| traffic.put.iter().chain(&traffic.got).sum());
            let wrong = case.wrong(row, Work { launches: 1, rounds: 3 }).unwrap().unwrap();
            Ok::<_, Error>((3 * case.path(world, row).wire_bytes, traffic.unwrap_or(0), wrong))
        });
        moved.unwrap()
    }

    #[test]
    fn blocks_move_each_byte_once() {
        for movement in [Movement::Put, Movement::Get] {
            for (blocks, size) in [(1, 5000), (3, 5000), (4, 100), (2, 1 << 20)] {
                for (all, movers) in [(false, 1), (true, 3)] {
                    for (pe, (wire, moved, wrong)) in traffic(movement, all, blocks, size).into_iter().enumerate() {
                        let expected = if pe < movers { wire } else { 0 };
                        let what = format!("{movement:?} of {size} by {blocks} blocks of {movers} PEs, at PE {pe}");
                        assert_eq!((moved, wrong), (expected, 0), "{what}");
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_come_from_where_they_should() {
        use Movement::{Get, PingPong, Put};
        let senders = |movement, movers| [0, 1, 2].map(|me| sender(movement, movers, me, 3));
        assert_eq!(senders(Put, 1), [None, Some(0), None]);
        assert_eq!(senders(Put, 3), [Some(2), Some(0), Some(1)]);
        assert_eq!(senders(Get, 1), [Some(1), None, None]);
        assert_eq!(senders(Get, 3), [Some(1), Some(2), Some(0)]);
        assert_eq!(senders(PingPong, 1), [Some(1), Some(0), None]);
    }
}
