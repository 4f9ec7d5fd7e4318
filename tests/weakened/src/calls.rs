//! What is called, so that what our kernels do for order matters: few PEs, blocks and warps, messages of one packet and of
//! more than a queue holds, and several calls behind each other, each of which overwrites what the one before has read.

mod fused;
mod one_sided;
mod parts;
mod tokens;

use core::num::NonZeroU32;
use core::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use congruent::collectives::{Algorithm, Collective, Layout, Op, PlanView, Protocol, Reduction};
use congruent::device::{Semaphore, Sym, World as WorldTag, bf16, f16};
use congruent::{CommOptions, Error, Grid, MachineKind, Plan, Stream, SymVec, Team, World, fixed_kernels};
use congruent_tests::conformance::{Args, Site, Way};
use congruent_virtual_driver as driver;
use congruent_virtual_gpu::Promises;

use crate::recording::{Begun, Copies, Recording};

/// Bytes of each buffer.
const BYTES: usize = 64 << 10;
/// Bytes of the mark by which a PE's heap is found.
const MARK: usize = 64;
/// Blocks of a launch, and threads of a block.
const BLOCKS: u32 = 2;
const THREADS: u32 = 64;
/// Threads that have two vectors of a queue's slot each.
const FEW_THREADS: u32 = 16;
/// Threads that are too few for a line.
const FEWER_THREADS: u32 = 4;
const HEAP: u64 = 2 << 20;
const HEAP_OF_MANY: u64 = 4 << 20;
/// Words of the lists that calls are given.
const LISTS: usize = 128;

/// Which calls are recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// All kernels that are shipped.
    All,
    /// One call for each core of a protocol, of one block.
    Cores,
    /// What a PE does that is alone.
    Alone,
    /// What only many PEs do, of one block.
    Many,
    /// Kernels of the examples that compute and communicate, of blocks as large as they need.
    Fused,
}

/// Records calls of a job of so many PEs.
pub(crate) fn record(pes: usize, which: Which) -> Result<Vec<Recording>, Error> {
    let heap = if which == Which::Many { HEAP_OF_MANY } else { HEAP };
    let recorder = Recorder { begun: Mutex::new(None), outside: Mutex::default(), made: Mutex::default() };
    World::builder().machine(MachineKind::Virtual).heap(heap).local(pes, |world| {
        let mut calls = Calls::new(world, &recorder, which)?;
        match which {
            Which::All => calls.all(),
            Which::Cores => calls.cores(),
            Which::Alone => calls.one_pe(),
            Which::Many => calls.many_pes(),
            Which::Fused => calls.fused(),
        }
    })?;
    Ok(recorder.made.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Where PE 0 keeps what it records.
struct Recorder {
    begun: Mutex<Option<Begun>>,
    /// Where PEs have results of the next recording that are not on the heap.
    outside: Mutex<Vec<(usize, Range<u64>)>>,
    made: Mutex<Vec<Recording>>,
}

/// What a PE makes calls with.
struct Calls<'c> {
    world: &'c mut World,
    recorder: &'c Recorder,
    copies: Arc<Copies>,
    stream: Stream,
    /// All PEs, in their order and in another one, which is looked up in a list.
    teams: [Members; 2],
    /// Each PE alone.
    alone: Members,
    /// Keeps the lists of teams.
    _kept: [Option<Team<WorldTag>>; 2],
    spare: SymVec<u8>,
    /// Of each call the one is the source and the other the destination, by turns.
    buffers: [SymVec<u8>; 2],
    lists: SymVec<u64>,
    turn: SymVec<Semaphore>,
    grid: Grid,
    /// Bytes that are put at a time.
    put: usize,
}

/// Who makes calls together, and where.
struct Members {
    rank: usize,
    plan: Plan,
    layout: Layout,
}

/// The sums that have loops of their own.
fn sums() -> [Reduction; 3] {
    let sum = [Reduction::new::<f32>(Op::Sum, None), Reduction::new::<f16>(Op::Sum, None)];
    let sum = [sum[0], sum[1], Reduction::new::<bf16>(Op::Sum, None)];
    sum.map(|sum| sum.unwrap_or_else(|| unreachable!("floats have sums")))
}

/// All that links may be asked for.
fn all_reductions() -> impl Iterator<Item = Reduction> {
    let of = |op: Op| {
        [
            Reduction::new::<u32>(op, None),
            Reduction::new::<i32>(op, None),
            Reduction::new::<u64>(op, None),
            Reduction::new::<i64>(op, None),
            Reduction::new::<f16>(op, None),
            Reduction::new::<bf16>(op, None),
            Reduction::new::<f32>(op, None),
            Reduction::new::<f64>(op, None),
        ]
    };
    [Op::Sum, Op::Min, Op::Max, Op::And, Op::Or, Op::Xor].into_iter().flat_map(of).flatten()
}

/// A value that is nobody else's. Every other one is a float's sign and exponent, the same for all: of floats that differ much, a sum has
/// nothing of most.
fn byte(pe: usize, buffer: usize, at: usize) -> u8 {
    if at % 2 == 1 {
        return 0x3f;
    }
    let mixed = ((pe * 2 + buffer) * BYTES + at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u8
}

impl<'c> Calls<'c> {
    fn new(world: &'c mut World, recorder: &'c Recorder, which: Which) -> Result<Self, Error> {
        let (grid, put) = match which {
            Which::All | Which::Fused => (Grid::new(BLOCKS, THREADS), 1000),
            Which::Cores => (Grid::one(THREADS), 32),
            Which::Alone | Which::Many => (Grid::one(THREADS / 2), 32),
        };
        let order: Vec<u32> = (1..world.npes() as u32).chain([0]).collect();
        let listed = world.listed_team::<WorldTag>(&order)?;
        let own = world.split::<WorldTag>(Some(world.pe().index() as u32), 0)?;
        let spare = world.alloc(BYTES)?;
        let buffers = [world.alloc(BYTES)?, world.alloc(BYTES)?];
        let stream = world.stream()?;
        let (me, whole) = (world.pe().index(), world.team());
        let mut members = |team, rank| {
            let layout = Layout::new(team, BLOCKS).buffer(0).flag_bits(4);
            world.plan(layout).map(|plan| Members { rank, plan, layout })
        };
        let rank = order.iter().position(|&pe| pe as usize == me).unwrap_or(me);
        let alone = members(own.as_ref().map_or(whole, Team::view), 0)?;
        let teams = [members(whole, me)?, members(listed.as_ref().map_or(whole, Team::view), rank)?];
        let (lists, turn) = (world.alloc(LISTS)?, world.alloc(1)?);
        world.barrier()?;
        let copies = Copies::of(&driver::record());
        Ok(Self {
            world,
            recorder,
            copies,
            stream,
            teams,
            alone,
            _kept: [listed, own],
            spare,
            buffers,
            lists,
            turn,
            grid,
            put,
        })
    }

    /// Takes in the modules' constants: they are loaded with their first kernels.
    fn load(&mut self) -> Result<(), Error> {
        let pes = self.world.npes();
        self.barrier()?;
        // Who is alone has no multicast.
        if let Some(&way) = Way::multimem(pes).iter().find(|way| !way.reduces() && pes > 1) {
            let [dst, src] = self.buffers.each_ref().map(|buffer| buffer.view().slice(..4 * pes));
            let plan = self.teams[0].plan.view();
            let args = Args { dst, src: src.slice(..4), reduction: None, root: 0, plan, rounds: 1 };
            let args = if way.collective == Collective::AllGather { args } else { Args { src, ..args } };
            way.launch(&Site { world: self.world, stream: &self.stream, grid: self.grid }, args)?;
        }
        self.world.synchronize(&self.stream)?;
        self.world.barrier()?;
        self.copies = Copies::of(&driver::record());
        Ok(())
    }

    fn all(&mut self) -> Result<(), Error> {
        let pes = self.world.npes();
        self.load()?;
        Way::all(pes).into_iter().try_for_each(|way| self.way(1, way, 37))?;
        Way::all(pes).into_iter().try_for_each(|way| self.way(0, way, self.long(way)))?;
        Way::multimem(pes).into_iter().try_for_each(|way| self.way(1, way, 48))?;
        Way::multimem(pes).into_iter().try_for_each(|way| self.skewed_links(way, 44))?;
        self.reductions()?;
        self.skewed_sums()?;
        self.of_few_threads()?;
        self.parts()?;
        [(1, 2), (2, 2), (4, 8), (8, 4), (8, 8)].into_iter().try_for_each(|starts| self.moved(600, starts))?;
        self.moved(9_000, (0, 0))?;
        self.checked()?;
        self.exchanges()?;
        self.one_sided()
    }

    /// Sums of floats, which have loops of their own, and kernels by some algorithms; and what the switch reduces.
    fn reductions(&mut self) -> Result<(), Error> {
        for way in Way::all(self.world.npes()).into_iter().filter(Way::reduces) {
            let has_kernels = matches!(way.algorithm, Algorithm::DIRECT | Algorithm::ONE_SHOT | Algorithm::RING)
                && way.collective != Collective::Reduce;
            for sum in sums() {
                self.reduction(way, sum, 1, 37)?;
                self.reduction(way, sum, if has_kernels { 3 } else { 1 }, self.long(way) / 2)?;
            }
        }
        for way in Way::multimem(self.world.npes()).into_iter().filter(Way::reduces) {
            for reduction in all_reductions().filter(|one| way.takes(one.op(), one.datatype())) {
                // Whole vectors, words behind them, and what is no word.
                self.reduction(way, reduction, 1, 53)?;
            }
        }
        Ok(())
    }

    /// Calls of blocks of few threads: of so few, each has two vectors of a slot or of a chunk, or more words of a line than one turn.
    fn of_few_threads(&mut self) -> Result<(), Error> {
        use Protocol::{Ll128, Simple};
        let (grid, n) = (self.grid, self.world.npes());
        let bytes = n * BLOCKS as usize * self.teams[0].layout.slot();
        let way = |collective, algorithm, protocol| Way { collective, algorithm, protocol };
        self.grid = Grid::new(BLOCKS, FEW_THREADS);
        for algorithm in [Algorithm::DIRECT, Algorithm::RING] {
            self.sums(way(Collective::AllReduce, algorithm, Simple), bytes, 1)?;
        }
        self.way_times(0, way(Collective::AllGather, Algorithm::DIRECT, Simple), bytes / n / size_of::<u32>(), 1)?;
        // Links take four vectors of a thread at once.
        let bytes = BLOCKS as usize * (4 + 1) * 16 * FEW_THREADS as usize;
        self.sums(way(Collective::ReduceScatter, Algorithm::MULTIMEM, Simple), bytes, 1)?;
        self.way_times(0, way(Collective::AllGather, Algorithm::MULTIMEM, Simple), bytes / size_of::<u32>(), 1)?;
        self.grid = Grid::new(BLOCKS, FEWER_THREADS);
        for algorithm in [Algorithm::RING, Algorithm::TREE] {
            self.sums(way(Collective::AllReduce, algorithm, Ll128), n * 148, 1)?;
        }
        // Copies take four vectors of a thread at once, through queues too.
        let bytes = n * BLOCKS as usize * (4 + 1) * 16 * FEWER_THREADS as usize;
        for algorithm in [Algorithm::DIRECT, Algorithm::RING] {
            self.way_times(0, way(Collective::AllGather, algorithm, Simple), bytes / n / size_of::<u32>(), 1)?;
        }
        self.way_times(0, way(Collective::Broadcast, Algorithm::RING, Simple), bytes / n / size_of::<u32>(), 1)?;
        self.grid = grid;
        Ok(())
    }

    /// Calls of sums of so many bytes, of the types that have loops of their own and of one that has none.
    fn sums(&mut self, way: Way, bytes: usize, calls: usize) -> Result<(), Error> {
        let any = Reduction::new::<u32>(Op::Sum, None);
        sums().into_iter().chain(any).try_for_each(|sum| self.reduction(way, sum, calls, bytes / sum.datatype().size()))
    }

    /// What one PE does that is alone: it folds what it has. Of so many bytes a thread takes two vectors, one, a word, and what is none.
    fn one_pe(&mut self) -> Result<(), Error> {
        self.load()?;
        let bytes = 2 * 16 * self.grid.threads as usize + 16 + 8 + 4;
        for way in Way::all(1) {
            match way.algorithm {
                Algorithm::DIRECT if way.reduces() => self.sums(way, bytes, 2)?,
                _ => self.way_times(0, way, 37, 2)?,
            }
        }
        self.put_and_barrier()?;
        self.barriers()
    }

    /// What only many PEs do: they meet in several rounds, have more sources than are asked for at once, and two children in a tree.
    fn many_pes(&mut self) -> Result<(), Error> {
        use Protocol::{Ll, Simple};
        self.grid = Grid::one(FEW_THREADS);
        self.load()?;
        let way = |collective, algorithm, protocol| Way { collective, algorithm, protocol };
        self.put_and_barrier()?;
        self.barriers()?;
        self.meetings()?;
        self.checked()?;
        let slot = self.teams[0].layout.slot();
        self.sums(way(Collective::AllReduce, Algorithm::DIRECT, Simple), 128 + 16 + 8 + 4, 1)?;
        // A thread has two vectors of a chunk, one, a word, and what is none.
        let chunk = 2 * 16 * FEW_THREADS as usize + 16 + 8 + 4;
        for collective in [Collective::AllReduce, Collective::Reduce] {
            self.sums(way(collective, Algorithm::DIRECT, Simple), self.world.npes() * chunk, 1)?;
        }
        self.sums(way(Collective::AllReduce, Algorithm::ONE_SHOT, Ll), 44, 1)?;
        for protocol in [Simple, Ll] {
            self.sums(way(Collective::AllReduce, Algorithm::TREE, protocol), 44, 1)?;
        }
        // Of what each of the two trees has, some threads have two vectors, and the others one.
        self.sums(way(Collective::AllReduce, Algorithm::TREE, Simple), 3 * slot / 2, 1)?;
        self.way_times(1, way(Collective::AllGather, Algorithm::RECURSIVE, Simple), 5, 2)?;
        self.way_times(1, way(Collective::AllGather, Algorithm::DIRECT, Simple), 5, 2)?;
        Way::multimem(self.world.npes()).into_iter().try_for_each(|way| self.skewed_links(way, 44))
    }

    /// What the protocols consist of: signals and waits, barriers, calls that take turns, packets, lines, queues with credits, and
    /// multicast.
    fn cores(&mut self) -> Result<(), Error> {
        use Protocol::{Ll, Ll128, Simple};
        let way = |collective, algorithm, protocol| Way { collective, algorithm, protocol };
        self.ping_pong()?;
        self.put_and_barrier()?;
        self.way_times(0, way(Collective::AllReduce, Algorithm::DIRECT, Simple), 9, 2)?;
        // The third call is the first that has the packets of another one.
        self.way_times(0, way(Collective::AllReduce, Algorithm::ONE_SHOT, Ll), 9, 3)?;
        self.way_times(0, way(Collective::AllReduce, Algorithm::ONE_SHOT, Ll128), 9, 3)?;
        // A queue's slots are used again within a call.
        let queue = way(Collective::Broadcast, Algorithm::RING, Simple);
        self.way_times(0, queue, self.long(queue) / BLOCKS as usize, 2)?;
        self.way_times(0, way(Collective::AllReduce, Algorithm::MULTIMEM, Simple), 16, 2)
    }

    /// Records what is called.
    fn record(
        &mut self,
        name: &str,
        promises: Promises,
        is_far: bool,
        call: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let me = self.world.pe().index();
        for (index, buffer) in self.buffers.iter().enumerate() {
            buffer.write(0, &(0..BYTES).map(|at| byte(me, index, at)).collect::<Vec<_>>())?;
        }
        let (pes, copies) = (self.world.npes(), self.copies.clone());
        let lock = |begun: &Mutex<Option<Begun>>, new| {
            core::mem::replace(&mut *begun.lock().unwrap_or_else(PoisonError::into_inner), new)
        };
        self.world.barrier()?;
        if me == 0 {
            driver::record();
            lock(&self.recorder.begun, Some(Begun::new(&copies)));
        }
        self.world.barrier()?;
        call(self)?;
        self.world.synchronize(&self.stream)?;
        self.world.barrier()?;
        if let Some(begun) = (me == 0).then(|| lock(&self.recorder.begun, None)).flatten() {
            let name = format!("{name} of {pes}");
            let marks: Vec<Vec<u8>> = (0..pes).map(|pe| (0..MARK).map(|at| byte(pe, 0, at)).collect()).collect();
            let ranges = self.buffers.each_ref().map(|buffer| {
                let at = buffer.view().offset() as usize;
                at..at + BYTES
            });
            let outside = core::mem::take(&mut *self.recorder.outside.lock().unwrap_or_else(PoisonError::into_inner));
            let recording = begun.end(name, promises, driver::recorded(), &marks, &ranges, &outside);
            let recording = Recording { is_far, ..recording };
            self.recorder.made.lock().unwrap_or_else(PoisonError::into_inner).push(recording);
        }
        Ok(self.world.barrier()?)
    }

    /// Elements of a message that takes more pieces than a queue holds.
    fn long(&self, way: Way) -> usize {
        let bytes = match way.protocol {
            Protocol::Simple => self.teams[0].layout.slot(),
            Protocol::Ll | Protocol::Ll128 => self.teams[0].layout.slot() / 4,
        };
        let parts = if way.reduces() { self.world.npes() } else { 1 };
        let len = (Layout::DEPTH as usize + 1) * bytes * parts * BLOCKS as usize / size_of::<u32>() + 5;
        len.min(BYTES / size_of::<u32>() / self.world.npes())
    }

    /// Calls through links, of so many bytes, from and to where no vector begins. Where these lie differently within words, each element is
    /// loaded from each member or stored to each; where alike, those at the ends are.
    fn skewed_links(&mut self, way: Way, bytes: usize) -> Result<(), Error> {
        let [_, halves @ ..] = sums();
        if way.reduces() {
            halves.into_iter().try_for_each(|sum| self.skewed(1, way, bytes, Some(sum), &[(0, 2), (2, 2), (2, 4)]))
        } else {
            self.skewed(1, way, bytes, None, &[(0, 2), (0, 4), (2, 0), (2, 2), (4, 2)])
        }
    }

    /// Sums from and to where no word begins: of elements of two bytes, and of four.
    fn skewed_sums(&mut self) -> Result<(), Error> {
        let sums: Vec<_> = sums().into_iter().chain(Reduction::new::<u32>(Op::Sum, None)).collect();
        // What is moved in packets begins and ends anywhere.
        for collective in [Collective::AllGather, Collective::AllToAll] {
            let moved = Way { collective, algorithm: Algorithm::ONE_SHOT, protocol: Protocol::Ll };
            self.skewed(0, moved, 37, None, &[(1, 2)])?;
            self.skewed(0, moved, 44, None, &[(4, 4)])?;
            self.skewed(1, moved, 37, None, &[(1, 2)])?;
        }
        for way in Way::all(self.world.npes()) {
            // These have kernels of their own, or share the loops of all other algorithms: of plain sources, and of any.
            let (all, one) = (way.collective == Collective::AllReduce, way.collective == Collective::Reduce);
            if !(all && matches!(way.algorithm, Algorithm::DIRECT | Algorithm::ONE_SHOT | Algorithm::TREE)
                || one && way.algorithm == Algorithm::DIRECT)
            {
                continue;
            }
            for &sum in &sums {
                match sum.datatype().size() {
                    2 => self.skewed(1, way, 42, Some(sum), &[(0, 2), (2, 4), (4, 4)])?,
                    _ => self.skewed(1, way, 44, Some(sum), &[(0, 4), (4, 0)])?,
                }
            }
        }
        Ok(())
    }

    /// Calls of so many bytes, from and to so many bytes behind where a vector begins.
    fn skewed(
        &mut self,
        team: usize,
        way: Way,
        bytes: usize,
        sum: Option<Reduction>,
        skews: &[(usize, usize)],
    ) -> Result<(), Error> {
        let promises = Promises { v4_16b_atomic: false, ll128_128b_ordered: way.protocol == Protocol::Ll128 };
        for &(from_start, to_start) in skews {
            let datatype = sum.map_or(String::new(), |sum| format!(" {}", sum.datatype()));
            let Way { collective, algorithm, protocol } = way;
            let name =
                format!("{collective} {algorithm} {protocol}{datatype} from {from_start} to {to_start} of team {team}");
            self.record(&name, promises, false, |calls| {
                let (to, from) = way.lengths(bytes, calls.world.npes());
                let [src, dst] = calls.buffers.each_ref().map(SymVec::view);
                let (dst, src) = (dst.slice(to_start..to_start + to), src.slice(from_start..from_start + from));
                let plan = calls.teams[team].plan.view().abort_aware();
                let args = Args { dst, src, reduction: sum, root: 0, plan, rounds: 1 };
                way.launch(&Site { world: calls.world, stream: &calls.stream, grid: calls.grid }, args)?;
                calls.go_on(dst, src)
            })?;
        }
        Ok(())
    }

    /// Calls to and fro, and one in place where that has the same length.
    fn way(&mut self, team: usize, way: Way, len: usize) -> Result<(), Error> {
        // In place the root's read and its store through links race, as docs/memory-model.md says (MM-9).
        let (to, from) = way.lengths(len, self.world.npes());
        let in_place = to == from && way.algorithm != Algorithm::MULTIMEM;
        self.way_times(team, way, len, if in_place { 4 } else { 3 })
    }

    /// So many calls, of which the fourth is in place.
    fn way_times(&mut self, team: usize, way: Way, len: usize, calls: usize) -> Result<(), Error> {
        let name = format!("{} {} {} {len}", way.collective, way.algorithm, way.protocol);
        let reduction = Reduction::new::<u32>(Op::Sum, None).filter(|_| way.reduces());
        self.calls(&name, team, way, reduction, len * size_of::<u32>(), calls)
    }

    /// Calls of another reduction, of so many elements.
    fn reduction(&mut self, way: Way, reduction: Reduction, calls: usize, len: usize) -> Result<(), Error> {
        let (op, datatype) = (reduction.op(), reduction.datatype());
        let name = format!("{} {} {} {op} {datatype} {len}", way.collective, way.algorithm, way.protocol);
        self.calls(&name, 1, way, Some(reduction), len * datatype.size(), calls)
    }

    fn calls(
        &mut self,
        name: &str,
        team: usize,
        way: Way,
        reduction: Option<Reduction>,
        bytes: usize,
        count: usize,
    ) -> Result<(), Error> {
        let promises = Promises { v4_16b_atomic: false, ll128_128b_ordered: way.protocol == Protocol::Ll128 };
        let is_bulk = way.reduces() && way.algorithm == Algorithm::DIRECT || way.algorithm == Algorithm::MULTIMEM;
        let is_far = way.protocol == Protocol::Simple && !is_bulk && self.world.npes() > 1;
        self.record(name, promises, is_far, |calls| {
            let (to, from) = way.lengths(bytes, calls.world.npes());
            for call in 0..count {
                let buffer = |of: usize, bytes: usize| calls.buffers[(call + of) % 2].view().slice(..bytes);
                let args = Args {
                    dst: buffer(usize::from(call < 3), to),
                    src: buffer(0, from),
                    reduction,
                    root: (call % calls.world.npes()) as u32,
                    plan: calls.teams[team].plan.view(),
                    // A kernel's next collective begins where the one before has ended.
                    rounds: if call == 1 { 2 } else { 1 },
                };
                let site = Site { world: calls.world, stream: &calls.stream, grid: calls.grid };
                way.launch(&site, args)?;
                calls.go_on(args.dst, args.src)?;
            }
            Ok(())
        })
    }

    /// What a PE may do once a call is over, without the others: it reads the destination, and overwrites the source.
    fn go_on(&self, dst: Sym<u8>, src: Sym<u8>) -> Result<(), Error> {
        let Members { plan, .. } = &self.alone;
        let spare = self.spare.view();
        let overwritten = if dst == src { src.slice(..0) } else { src };
        for (to, from) in [(spare.slice(..dst.len()), dst), (overwritten, spare.slice(..overwritten.len()))] {
            let args = (to, from, 0, plan.view(), 1);
            self.world.launch(&self.stream, fixed_kernels::gather_direct, self.grid, args)?;
        }
        Ok(())
    }

    /// Bytes that begin anywhere, and more of them than one turn of a block moves.
    fn moved(&mut self, bytes: usize, (to_start, from_start): (usize, usize)) -> Result<(), Error> {
        self.back_and_forth(
            0,
            &format!("all-gather and put of {bytes} from {from_start} to {to_start}"),
            |calls, to, from, plan| {
                let (to, from) = (&to.slice(to_start..), &from.slice(from_start..));
                let args = (to.slice(..calls.world.npes() * bytes), from.slice(..bytes), 0, plan, 1);
                calls.world.launch(&calls.stream, fixed_kernels::all_gather_direct, calls.grid, args)?;
                let args = (from.slice(..bytes), to.slice(..bytes), calls.world.npes() as u32, 1);
                calls.world.launch(&calls.stream, fixed_kernels::perf_put, calls.grid, args)?;
                calls.barrier()
            },
        )
    }

    /// Calls that members compare before they make them, and their meetings.
    fn checked(&mut self) -> Result<(), Error> {
        let (blocks, threads) = (NonZeroU32::new(BLOCKS), NonZeroU32::new(THREADS));
        let options = CommOptions { blocks, threads, buffer: Some(0), check: Some(true), ..CommOptions::default() };
        let team = self.teams[1].plan.view().team();
        let (comm, mut ring) = (self.world.comm_with(team, options)?, self.world.comm_with(team, options)?);
        ring.force(Algorithm::RING, Protocol::Simple);
        self.copies = Copies::of(&driver::record());
        self.back_and_forth(1, "checked", |calls, to, from, _| {
            comm.barrier(&calls.stream)?;
            calls.put(to, from)?;
            Ok(comm.barrier(&calls.stream)?)
        })?;
        // Whose root goes on to the next while the last member still compares the one before.
        self.back_and_forth(1, "checked broadcasts", |calls, to, from, _| {
            Ok(ring.broadcast(&calls.stream, to.slice(..64), from.slice(..64), 0)?)
        })
    }

    /// Records three calls, each of which has the destination of the one before as its source. What is read then is not overwritten:
    /// some of them do not say that others may write it.
    fn back_and_forth(
        &mut self,
        team: usize,
        name: &str,
        call: impl Fn(&Self, Sym<u8>, Sym<u8>, PlanView) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.record(name, Promises::default(), true, |calls| {
            let [one, other] = calls.buffers.each_ref().map(SymVec::view);
            let plan = calls.teams[team].plan.view();
            [(other, one), (one, other), (other, one)].into_iter().try_for_each(|(to, from)| {
                call(calls, to, from, plan)?;
                calls.go_on(to.slice(..4096), from.slice(..0))
            })
        })
    }
}
