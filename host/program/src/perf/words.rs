//! Single words: put-value, fetch-add, and the barrier.

use congruent_kernels as kernels;

use super::Common;
use super::case::{Case, Labels, Path, Row, Work};
use super::sweep::{self, Plan, Swept};
use crate::failure::Failure;
use congruent::{Grid, Stream, SymVec, World};

/// What one thread of PE 0 does to a word of PE 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WordOperation {
    /// Stores the round's number.
    Put,
    /// Adds 1 and fetches what was there.
    FetchAdd,
}

/// Runs the one row of an operation on a word.
pub(super) fn run(operation: WordOperation, common: &Common) -> Result<Swept, Failure> {
    let name = match operation {
        WordOperation::Put => "put-value",
        WordOperation::FetchAdd => "fetch-add",
    };
    let plan = Plan { fewest_pes: 2, ..Plan::new(name, common, 2, &[size_of::<u64>() as u64]) };
    sweep::run(plan, |world, plan| {
        let (me, grid) = (world.pe().index(), Grid::one(plan.common.threads));
        Ok(Box::new(WordCase { operation, word: world.alloc(1)?, me, grid }))
    })
}

/// Runs the one row of the world's barrier. Every block has a slot in it, so many blocks make many barriers at once.
pub(super) fn run_barrier(blocks: u32, common: &Common) -> Result<Swept, Failure> {
    let plan = Plan { blocks, ..Plan::new("barrier", common, 4, &[0]) };
    sweep::run(plan, |_, plan| Ok(Box::new(Barrier(Grid::new(plan.blocks, plan.common.threads)))))
}

struct WordCase {
    operation: WordOperation,
    word: SymVec<u64>,
    me: usize,
    grid: Grid,
}

impl WordCase {
    /// What is in the word before the first round: for a put a value that no round stores.
    fn initial(&self) -> u64 {
        match self.operation {
            WordOperation::Put => u64::MAX,
            WordOperation::FetchAdd => 0,
        }
    }

    /// What `work` leaves in PE 1's word.
    fn last(&self, work: Work) -> u64 {
        match self.operation {
            WordOperation::Put => work.rounds - 1,
            WordOperation::FetchAdd => work.total(),
        }
    }
}

impl Case for WordCase {
    fn labels(&self) -> Labels {
        Labels { unit: size_of::<u64>() as u64, datatype: "uint64", ..Labels::ONE_SIDED }
    }

    fn path(&self, world: &World, row: Row) -> Path {
        let protocol = if self.operation == WordOperation::Put { "value" } else { "atomic" };
        Path::one_sided(world, protocol, row.size)
    }

    fn prepare(&self, _row: Row) -> Result<(), Failure> {
        Ok(self.word.write(0, &[self.initial()])?)
    }

    fn launch(&self, world: &World, stream: &Stream, _row: Row, rounds: u64) -> Result<(), Failure> {
        let arguments = (self.word.view(), rounds);
        match self.operation {
            WordOperation::Put => world.launch(stream, kernels::perf_put_value, self.grid, arguments)?,
            WordOperation::FetchAdd => world.launch(stream, kernels::perf_fetch_add, self.grid, arguments)?,
        }
        Ok(())
    }

    fn wrong(&self, _row: Row, work: Work) -> Result<Option<u64>, Failure> {
        let expected = if self.me == 1 { self.last(work) } else { self.initial() };
        Ok(Some(u64::from(self.word.to_vec()? != [expected])))
    }
}

struct Barrier(Grid);

impl Case for Barrier {
    fn labels(&self) -> Labels {
        Labels::ONE_SIDED
    }

    fn path(&self, world: &World, _row: Row) -> Path {
        let n = world.npes();
        // Up to eight tell each other; more disseminate.
        let signals = if n <= 8 { n - 1 } else { n.next_power_of_two().ilog2() as usize };
        let path = Path::one_sided(world, "signal", (signals * size_of::<u64>()) as u64);
        if n <= 8 { path } else { Path { algorithm: "recursive", ..path } }
    }

    fn prepare(&self, _row: Row) -> Result<(), Failure> {
        Ok(())
    }

    fn launch(&self, world: &World, stream: &Stream, _row: Row, rounds: u64) -> Result<(), Failure> {
        Ok(world.launch(stream, kernels::perf_barrier, self.0, (rounds,))?)
    }

    fn wrong(&self, _row: Row, _work: Work) -> Result<Option<u64>, Failure> {
        Ok(None)
    }
}
