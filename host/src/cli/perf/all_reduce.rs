//! All-reduce, of every type and operator that the fixed kernels have.

use congruent_collectives::{Layout, Op, Reduction, Typed};
use congruent_device::{bf16, f16};
use congruent_kernels as kernels;

use super::Common;
use super::case::{Case, Labels, Row, is_proxied};
use super::measure::Work;
use super::pattern::{GUARD, Pattern, Sample, clear, number};
use super::sizes::SizeArgs;
use super::sweep::{self, Plan};
use crate::cli::failure::Failure;
use crate::{Grid, LaunchError, Stream, SymVec, World};

/// What to combine, and how.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(in crate::cli) struct Choice {
    /// Type of the elements
    #[arg(short, long, value_name = "TYPE", value_enum, default_value_t = Datatype::Float)]
    datatype: Datatype,
    /// Operator
    #[arg(short = 'o', long = "op", value_name = "OP", value_enum, default_value_t = Operator::Sum)]
    op: Operator,
}

/// Types, by nccl-tests' names.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Datatype {
    Int32,
    Uint32,
    Int64,
    Uint64,
    Half,
    Bfloat16,
    Float,
    Double,
}

/// Operators, by nccl-tests' names.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq)]
enum Operator {
    Sum,
    Prod,
    Min,
    Max,
}

/// Runs the sweep.
pub(super) fn run(choice: Choice, sizes: &SizeArgs, blocks: u32, common: &Common) -> Result<u64, Failure> {
    let sweep = match choice.datatype {
        Datatype::Int32 => run_with::<i32>,
        Datatype::Uint32 => run_with::<u32>,
        Datatype::Int64 => run_with::<i64>,
        Datatype::Uint64 => run_with::<u64>,
        Datatype::Half => run_with::<f16>,
        Datatype::Bfloat16 => run_with::<bf16>,
        Datatype::Float => run_with::<f32>,
        Datatype::Double => run_with::<f64>,
    };
    sweep(choice.op, sizes, blocks, common)
}

fn run_with<T: Typed + Sample>(op: Operator, sizes: &SizeArgs, blocks: u32, common: &Common) -> Result<u64, Failure> {
    let sizes = sizes.sweep(8, 64 << 20, size_of::<T>() as u64)?;
    let plan = Plan { blocks, ..Plan::new("all-reduce", common, 4, &sizes) };
    sweep::run(plan, |world, plan| Ok(Box::new(AllReduce::<T>::new(world, plan, op)?)))
}

struct AllReduce<T> {
    op: Operator,
    reduction: Reduction,
    dst: SymVec<T>,
    src: SymVec<T>,
    plan: crate::Plan,
    grid: Grid,
    npes: usize,
    mine: Pattern<T>,
    expected: Pattern<T>,
}

impl<T: Typed + Sample> AllReduce<T> {
    fn new(world: &mut World, plan: &Plan<'_>, op: Operator) -> Result<Self, Failure> {
        let npes = world.npes();
        if op.most::<T>(npes) == 0 {
            let most = T::EXACT;
            let complaint =
                format!("-d {}: sums of more than {most} PEs round, so they cannot be checked", T::DATATYPE.name());
            return Err(Failure::Usage(complaint));
        }
        if is_proxied(world) && npes > 1 {
            let complaint = "all-reduce: its ring reaches neighbours by load and store; unset CONGRUENT_P2P_DISABLE";
            return Err(Failure::Failed(complaint.to_owned()));
        }
        let len = plan.longest() as usize / size_of::<T>() + GUARD;
        let Some(reduction) = Reduction::new::<T>(op.into(), None) else {
            return Err(Failure::Usage(format!("-o {}: not of {}", op.name(), T::DATATYPE)));
        };
        Ok(Self {
            op,
            reduction,
            dst: world.alloc(len)?,
            src: world.alloc(len)?,
            plan: world.plan(Layout::new(world.team(), plan.blocks))?,
            grid: Grid::new(plan.blocks, plan.common.threads),
            npes,
            mine: Pattern::new(|i| op.number::<T>(world.pe().index(), npes, i)),
            expected: Pattern::new(|i| op.expected::<T>(npes, i)),
        })
    }

    fn len(row: Row) -> usize {
        row.size as usize / size_of::<T>()
    }
}

impl<T: Typed + Sample> Case for AllReduce<T> {
    fn labels(&self, _world: &World) -> Labels {
        Labels {
            element: size_of::<T>() as u64,
            datatype: T::DATATYPE.name(),
            redop: self.op.name(),
            algorithm: "ring",
            protocol: "simple",
            in_place: true,
            one_launch: true,
        }
    }

    fn prepare(&self, row: Row) -> Result<(), Failure> {
        self.mine.fill(&self.src, Self::len(row))?;
        Ok(clear(&self.dst, Self::len(row))?)
    }

    fn launch(&self, world: &World, stream: &Stream, row: Row, rounds: u64) -> Result<(), LaunchError> {
        let src = self.src.view().slice(..Self::len(row));
        let dst = if row.in_place { src } else { self.dst.view().slice(..Self::len(row)) };
        let args = (world.team(), dst.cast(), src.cast(), self.reduction, 0, self.plan.view(), rounds);
        world.launch(stream, kernels::all_reduce_ring, self.grid, args)
    }

    fn wrong(&self, row: Row, _work: Work) -> Result<Option<u64>, Failure> {
        let len = Self::len(row);
        Ok(Some(if row.in_place {
            self.expected.wrong(&self.src, len)? + Pattern::nothing().wrong(&self.dst, len)?
        } else {
            self.expected.wrong(&self.dst, len)? + self.mine.wrong(&self.src, len)?
        }))
    }

    fn bus_factor(&self) -> f64 {
        // What every link of a ring carries, in buffers: each of the two halves moves all but one chunk.
        2.0 * (self.npes as f64 - 1.0) / self.npes as f64
    }
}

/// The most PEs that contribute a 2 to one product: their product is a number in every type.
const DOUBLING: usize = 15;

impl Operator {
    fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
        }
    }

    /// The largest number that a PE contributes, so that the result is exact in whatever order it is combined.
    fn most<T: Sample>(self, npes: usize) -> u64 {
        match self {
            Self::Sum => T::EXACT / npes as u64,
            Self::Prod => 2,
            Self::Min | Self::Max => T::EXACT,
        }
    }

    /// What PE `pe` contributes at `i`.
    fn number<T: Sample>(self, pe: usize, npes: usize, i: usize) -> u64 {
        let number = number(pe, i, self.most::<T>(npes));
        match self {
            Self::Prod if (pe + i) % npes >= DOUBLING => 1,
            _ => number,
        }
    }

    /// What all of them make of it.
    fn expected<T: Sample>(self, npes: usize, i: usize) -> u64 {
        let numbers = (0..npes).map(|pe| self.number::<T>(pe, npes, i));
        let combine = match self {
            Self::Sum => |a: u64, b: u64| a + b,
            Self::Prod => |a: u64, b: u64| a * b,
            Self::Min => |a: u64, b: u64| a.min(b),
            Self::Max => |a: u64, b: u64| a.max(b),
        };
        numbers.reduce(combine).unwrap_or(0)
    }
}

impl From<Operator> for Op {
    fn from(op: Operator) -> Self {
        match op {
            Operator::Sum => Self::Sum,
            Operator::Prod => Self::Prod,
            Operator::Min => Self::Min,
            Operator::Max => Self::Max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Operator; 4] = [Operator::Sum, Operator::Prod, Operator::Min, Operator::Max];

    #[test]
    fn every_result_is_exact_in_the_narrowest_types() {
        for npes in [1, 2, 3, 7, 16, 200] {
            for op in ALL {
                for i in 0..2000 {
                    let expected = op.expected::<bf16>(npes, i);
                    assert_eq!(bf16::sample(expected).to_f64(), expected as f64, "{op:?} of {npes} PEs");
                    let expected = op.expected::<f16>(npes, i);
                    assert_eq!(f16::sample(expected).to_f64(), expected as f64, "{op:?} of {npes} PEs");
                }
            }
        }
    }

    #[test]
    fn a_pe_left_out_changes_the_result() {
        for op in ALL {
            let npes = 4;
            for left_out in 0..npes {
                let differs = (0..1000).filter(|&i| {
                    let others = (0..npes).filter(|&pe| pe != left_out).map(|pe| op.number::<f32>(pe, npes, i));
                    let without: u64 = match op {
                        Operator::Sum => others.sum(),
                        Operator::Prod => others.product(),
                        Operator::Min => others.min().unwrap(),
                        Operator::Max => others.max().unwrap(),
                    };
                    without != op.expected::<f32>(npes, i)
                });
                assert!(differs.count() > 150, "{op:?} without PE {left_out}");
            }
        }
    }
}
