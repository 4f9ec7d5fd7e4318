//! Every collective, with every algorithm and protocol, of every type and operator.

use std::cell::OnceCell;

use congruent_collectives::exchange::Parts;
use congruent_collectives::{
    Algorithm, Call, Collective, Datatype, Descriptor, HasDatatype, Layout, Listed, Op, PreMulSum, Protocol, Reduction,
    Transfer,
};
use congruent_device::{Fp8E4M3, Fp8E5M2, Sym, bf16, f16};
use congruent_kernels as kernels;

use super::case::{Case, Labels, Path, Row, Work};
use super::pattern::{GUARD, Pattern, Sample, clear, wrong_guard};
use super::places::{Buffers, Content, Part, Ranges, Seat, has_parts, has_root, reduces};
use super::sweep::Plan;
use super::values::{SCALAR, Values};
use super::ways::{Way, WayArgs, Ways};
use super::wire;
use crate::failure::Failure;
use congruent::{Comm, CommOptions, FixedArgs, FixedKernel, Grid, LaunchError, OpWith, Stream, SymVec, World};

/// What to run.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) collective: Collective,
    pub(super) datatype: Datatype,
    pub(super) op: Op,
    pub(super) root: usize,
    pub(super) ways: &'a WayArgs,
    /// Whether each way is measured by itself.
    pub(super) each: bool,
}

/// Makes the case, of the type that is wanted.
pub(super) fn case(world: &mut World, plan: &Plan<'_>, wanted: &Wanted<'_>) -> Result<Box<dyn Case>, Failure> {
    let make = match wanted.datatype {
        Datatype::I8 => boxed::<i8>,
        Datatype::U8 => boxed::<u8>,
        Datatype::I16 => boxed::<i16>,
        Datatype::U16 => boxed::<u16>,
        Datatype::I32 => boxed::<i32>,
        Datatype::U32 => boxed::<u32>,
        Datatype::I64 => boxed::<i64>,
        Datatype::U64 => boxed::<u64>,
        Datatype::F16 => boxed::<f16>,
        Datatype::Bf16 => boxed::<bf16>,
        Datatype::F32 => boxed::<f32>,
        Datatype::F64 => boxed::<f64>,
        Datatype::F8E4M3 => boxed::<Fp8E4M3>,
        Datatype::F8E5M2 => boxed::<Fp8E5M2>,
    };
    make(world, plan, wanted)
}

fn boxed<T: HasDatatype + Sample>(
    world: &mut World,
    plan: &Plan<'_>,
    wanted: &Wanted<'_>,
) -> Result<Box<dyn Case>, Failure> {
    Ok(Box::new(Timed::<T>::new(world, plan, wanted)?))
}

/// A collective on elements of a type.
struct Timed<T> {
    seat: Seat,
    /// What is reduced, and what PEs contribute.
    reduction: Option<(Op, Reduction, Values)>,
    ways: Ways,
    comm: Comm,
    plan: congruent::Plan,
    grid: Grid,
    dst: SymVec<T>,
    src: SymVec<T>,
    /// Counts and displacements of what is received and sent, or a send and a receive.
    lists: SymVec<u64>,
    nothing: Pattern<T>,
    of_pes: Vec<OnceCell<Pattern<T>>>,
    combined: OnceCell<Pattern<T>>,
}

impl<T: HasDatatype + Sample> Timed<T> {
    fn new(world: &mut World, plan: &Plan<'_>, wanted: &Wanted<'_>) -> Result<Self, Failure> {
        let &Wanted { collective, op, root, .. } = wanted;
        let npes = world.npes();
        if root >= npes {
            return Err(Failure::Usage(format!("-r {root}: there are {npes} PEs, from 0 to {}", npes - 1)));
        }
        let reduction = if reduces(collective) { Some(reduction::<T>(op, npes)?) } else { None };
        let options = CommOptions { blocks: plan.blocks.try_into().ok(), ..CommOptions::default() };
        let mut comm = world.comm_with(world.team(), options).map_err(|error| Failure::Failed(error.to_string()))?;
        if comm.levels().is_some() {
            // What it is called for; all else has a kernel.
            comm.force(Algorithm::TWO_LEVEL, Protocol::Simple);
        }
        let ways = Ways::new(&comm, world.tunables(), collective, wanted.ways, wanted.each)?;
        let scratch = comm.circumstances(0, None).buffer;
        let len = plan.longest() as usize / size_of::<T>() + GUARD;
        Ok(Self {
            seat: Seat { collective, npes, me: world.pe().index(), root },
            reduction,
            ways,
            comm,
            plan: world.plan(Layout::new(world.team(), plan.blocks).buffer(scratch))?,
            grid: Grid::new(plan.blocks, plan.common.threads),
            dst: world.alloc(len)?,
            src: world.alloc(len)?,
            lists: world.alloc((4 * npes).max(6))?,
            nothing: Pattern::nothing(),
            of_pes: (0..npes).map(|_| OnceCell::new()).collect(),
            combined: OnceCell::new(),
        })
    }

    /// Elements of a row, of each part where there are parts.
    fn count(&self, row: Row) -> usize {
        row.size as usize / self.unit()
    }

    /// Bytes of one element, of each part.
    fn unit(&self) -> usize {
        size_of::<T>() * if has_parts(self.seat.collective) { self.seat.npes } else { 1 }
    }

    fn content(&self, content: Content) -> &Pattern<T> {
        let values = self.reduction.map(|(.., values)| values);
        match (content, values) {
            (Content::Of(pe), Some(values)) => self.of_pes[pe].get_or_init(|| Pattern::new(|i| values.of(pe, i))),
            (Content::Of(pe), None) => self.of_pes[pe].get_or_init(|| Pattern::of(pe)),
            (Content::Combined, Some(values)) => self.combined.get_or_init(|| Pattern::new(|i| values.combined(i))),
            (Content::Nothing, _) | (Content::Combined, None) => &self.nothing,
        }
    }

    fn circumstances(&self, size: u64) -> congruent::select::Circumstances {
        self.comm.circumstances(size, self.reduction.map(|(op, ..)| (op, T::DATATYPE)))
    }

    /// Writes the lists for parts of any length, which the kernel reads.
    fn parts(&self, count: usize) -> Result<(Parts, Parts), Failure> {
        let npes = self.seat.npes;
        let mut lists = Vec::with_capacity(4 * npes);
        for part in [Seat::received, Seat::sent] {
            lists.extend((0..npes).map(|pe| part(&self.seat, pe, count).len() as u64));
            lists.extend((0..npes).map(|pe| part(&self.seat, pe, count).start as u64));
        }
        self.lists.write(0, &lists)?;
        let list = |i: usize| self.lists.view().slice(i * npes..(i + 1) * npes);
        let parts = |i| Parts::new(list(i), list(i + 1)).in_units_of(size_of::<T>());
        Ok((parts(0), parts(2)))
    }

    /// A call of the communicator's, which has several launches.
    fn call_in_levels(&self, stream: &Stream, dst: Sym<T>, src: Sym<T>) -> Result<(), Failure> {
        let op = match self.reduction {
            Some((op, ..)) if op != Op::PreMulSum => OpWith::from(op),
            _ => OpWith::from(PreMulSum(T::sample(SCALAR))),
        };
        let put = match self.seat.collective {
            Collective::AllReduce => self.comm.all_reduce(stream, dst, src, op),
            Collective::ReduceScatter => self.comm.reduce_scatter(stream, dst, src, op),
            Collective::AllGather => self.comm.all_gather(stream, dst, src),
            _ => self.comm.all_to_all(stream, dst, src),
        };
        Ok(put?)
    }

    /// A send to the next PE and a receive from the one before, in lists which the kernel reads.
    fn transfers(&self, dst: Sym<u8>, src: Sym<u8>) -> Result<Listed, Failure> {
        let Seat { npes, me, .. } = self.seat;
        let transfer = |peer: usize, bytes: Sym<u8>| {
            Transfer { peer: (peer % npes) as u64, offset: bytes.offset(), count: bytes.len() as u64 }.words()
        };
        self.lists.write(0, &[transfer(me + 1, src), transfer(me + npes - 1, dst)].concat())?;
        let list = |i: usize| self.lists.view().slice(3 * i..3 * i + 3).cast();
        Ok(Listed { sends: list(0), receives: list(1) })
    }

    /// Both buffers with their parts, and where these end.
    fn buffers<'b>(&'b self, parts: &'b Buffers) -> impl Iterator<Item = (&'b SymVec<T>, &'b [Part], usize)> {
        let end = |parts: &[Part]| parts.last().map_or(0, |part| part.range.end);
        [&self.dst, &self.src].into_iter().zip(parts).map(move |(buffer, parts)| (buffer, &**parts, end(parts)))
    }
}

/// An operator on a type, with the values that it is given.
fn reduction<T: HasDatatype + Sample>(op: Op, npes: usize) -> Result<(Op, Reduction, Values), Failure> {
    let datatype = T::DATATYPE;
    let Some(reduction) = Reduction::new::<T>(op, Some(T::sample(SCALAR))) else {
        return Err(Failure::Usage(format!("-o {op}: there is no such operator on {datatype}: give an integer type")));
    };
    let Some(values) = Values::new::<T>(op, npes) else {
        let most = T::EXACT;
        let complaint = format!("-d {datatype}: sums of more than {most} PEs round, so they cannot be checked");
        return Err(Failure::Usage(complaint));
    };
    Ok((op, reduction, values))
}

impl<T: HasDatatype + Sample> Case for Timed<T> {
    fn labels(&self) -> Labels {
        Labels {
            unit: self.unit() as u64,
            datatype: T::DATATYPE.name(),
            redop: self.reduction.map_or("none", |(op, ..)| op.name()),
            root: if has_root(self.seat.collective) { self.seat.root as i64 } else { -1 },
            in_place: self.seat.has_in_place(),
        }
    }

    fn rows(&self, sizes: &[u64]) -> Result<Vec<Row>, Failure> {
        let row = |size, way| Row { size, in_place: false, way };
        let call = |size: &u64| self.circumstances(*size);
        if !self.ways.each {
            return sizes.iter().map(|size| Ok(row(*size, self.ways.choose(&call(size))?))).collect();
        }
        let calls: Vec<_> = sizes.iter().map(call).collect();
        let all = self.ways.all(&calls);
        if let (true, Some(call)) = (all.is_empty(), calls.first()) {
            // It tells why there is none.
            self.ways.choose(call)?;
        }
        let possible = |way| calls.iter().filter_map(move |call| Some(row(call.bytes, self.ways.possible(way, call)?)));
        Ok(all.into_iter().flat_map(possible).collect())
    }

    fn tuning_machine(&self) -> Option<String> {
        Some(self.ways.machine().to_owned())
    }

    fn path(&self, _world: &World, row: Row) -> Path {
        let Way { algorithm, protocol, chosen } = row.way;
        let Seat { collective, root, .. } = self.seat;
        let (bytes, in_place, blocks) = (self.count(row) * self.unit(), row.in_place, self.grid.blocks as usize);
        let call = Call { protocol, root, bytes, in_place, blocks };
        let of = Descriptor::of(collective, algorithm);
        let wire_bytes = of.map_or(0, |of| wire::wire_bytes(self.plan.shape(), of, &call, size_of::<T>()));
        Path { algorithm: algorithm.name(), protocol: protocol.name(), chosen, wire_bytes }
    }

    fn prepare(&self, row: Row) -> Result<(), Failure> {
        for (buffer, parts, end) in self.buffers(&self.seat.before(self.count(row), row.in_place)) {
            clear(buffer, end)?;
            for part in parts.iter().filter(|part| part.content != Content::Nothing) {
                self.content(part.content).fill_part(buffer, part.range.clone(), part.first)?;
            }
        }
        Ok(())
    }

    fn launch(&self, world: &World, stream: &Stream, row: Row, rounds: u64) -> Result<(), Failure> {
        let Way { algorithm, protocol, .. } = row.way;
        let count = self.count(row);
        let Ranges { dst, src } = self.seat.ranges(count, row.in_place);
        let to = if row.in_place { &self.src } else { &self.dst };
        let (dst, src) = (to.slice(dst)?.cast(), self.src.slice(src)?.cast());
        if algorithm == Algorithm::TWO_LEVEL {
            return (0..rounds).try_for_each(|_| self.call_in_levels(stream, dst.cast(), src.cast()));
        }
        let Ok(rounds) = u32::try_from(rounds) else {
            return Err(Failure::Usage(format!("a launch has at most {} iterations", u32::MAX)));
        };
        let (view, root) = (self.plan.view().over(protocol), self.seat.root as u32);
        let reduction = self.reduction.map(|(_, reduction, _)| reduction);
        match (self.seat.collective, reduction) {
            (Collective::AllToAllV, _) => {
                let (receives, sends) = self.parts(count)?;
                world.launch(
                    stream,
                    kernels::all_to_all_v_direct,
                    self.grid,
                    (dst, src, receives, sends, view, rounds),
                )?
            }
            (Collective::AllGatherV, _) => {
                let (parts, _) = self.parts(count)?;
                world.launch(stream, kernels::all_gather_v_direct, self.grid, (dst, src, parts, view, rounds))?
            }
            (Collective::SendRecv, _) => {
                let memory = Sym::from_raw(0, world.memory().heap_bytes);
                let transfers = self.transfers(dst, src)?;
                world.launch(stream, kernels::send_recv_direct, self.grid, (memory, transfers, view, rounds))?
            }
            (collective, reduction) => FixedKernel::of(collective, algorithm)
                .ok_or(LaunchError::NoSuchKernel { collective, algorithm })?
                .launch(world, stream, self.grid, FixedArgs { dst, src, reduction, root, plan: view, rounds })?,
        }
        Ok(())
    }

    fn wrong(&self, row: Row, _work: Work) -> Result<Option<u64>, Failure> {
        let mut wrong = 0;
        for (buffer, parts, end) in self.buffers(&self.seat.after(self.count(row), row.in_place)) {
            for part in parts {
                wrong += self.content(part.content).wrong_part(buffer, part.range.clone(), part.first)?;
            }
            wrong += wrong_guard(buffer, end)?;
        }
        Ok(Some(wrong))
    }

    fn repeats(&self, row: Row) -> bool {
        !row.in_place || self.seat.repeats_in_place()
    }

    fn bus_factor(&self) -> f64 {
        let n = self.seat.npes as f64;
        match self.seat.collective {
            // What every link of a ring carries, in buffers: each of the two halves moves all but one chunk.
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            collective if has_parts(collective) => (n - 1.0) / n,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::tests::common;
    use crate::perf::{Blocks, CallArgs};
    use congruent::Error;

    fn call(threads: u32) -> CallArgs {
        let parsed = <CallOnly as clap::Parser>::parse_from(["perf"]);
        CallArgs { common: common(threads), blocks: Blocks { blocks: 1 }, ..parsed.call }
    }

    #[derive(clap::Parser)]
    struct CallOnly {
        #[command(flatten)]
        call: CallArgs,
    }

    /// Runs one call of each way and size, and gives for each what is wrong, what was counted and what was foretold.
    fn counted(collective: Collective, npes: usize, sizes: &[u64]) -> Vec<(String, u64, u64, u64)> {
        let wanted_ways = call(32);
        let told = World::builder().watch(true).heap(24 << 20).local(npes, |world| {
            let plan = Plan { collective: true, ..Plan::new(collective.name(), &wanted_ways.common, 4, sizes) };
            let ways = &wanted_ways.ways;
            let wanted = Wanted { collective, datatype: Datatype::F32, op: Op::Sum, root: npes - 1, ways, each: true };
            let case = Timed::<f32>::new(world, &plan, &wanted).unwrap();
            let stream = world.stream()?;
            let mut told = Vec::new();
            for row in case.rows(sizes).unwrap() {
                let moved = |world: &World| {
                    world.traffic().map_or(0, |traffic| traffic.put.iter().chain(&traffic.got).sum::<u64>())
                };
                // The first packets in a place take all of it, whatever they carry.
                world.barrier()?;
                case.launch(world, &stream, row, 8).unwrap();
                world.synchronize(&stream)?;
                world.barrier()?;
                case.prepare(row).unwrap();
                world.barrier()?;
                let before = moved(world);
                case.launch(world, &stream, row, 1).unwrap();
                world.synchronize(&stream)?;
                world.barrier()?;
                let wrong = case.wrong(row, Work { launches: 1, rounds: 1 }).unwrap().unwrap();
                let path = case.path(world, row);
                let name = format!("{collective} {} {} of {}", path.algorithm, path.protocol, row.size);
                told.push((name, wrong, moved(world) - before, path.wire_bytes));
                world.barrier()?;
            }
            Ok::<_, Error>(told)
        });
        let mut busiest = Vec::new();
        for of_pe in told.unwrap() {
            busiest.resize(of_pe.len(), (String::new(), 0, 0, 0));
            for (all, (name, wrong, moved, wire)) in busiest.iter_mut().zip(of_pe) {
                *all = (name, all.1 + wrong, moved.max(all.2), wire);
            }
        }
        busiest
    }

    #[test]
    fn what_moves_is_what_was_foretold() {
        for &collective in Collective::ALL.iter().filter(|one| **one != Collective::Barrier) {
            for npes in 1..=8 {
                for (name, wrong, moved, wire) in counted(collective, npes, &[48, 10_004, 96 << 10]) {
                    assert_eq!(wrong, 0, "{name} on {npes} PEs");
                    assert_eq!(moved, wire, "{name} on {npes} PEs");
                }
            }
        }
    }
}
