//! What is called, so that what our kernels do for order matters: few PEs, blocks and warps, messages of one packet and of
//! more than a queue holds, and several calls behind each other, each of which overwrites what the one before has read.

use core::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use congruent::collectives::exchange::Parts;
use congruent::collectives::{Layout, Listed, Op, Protocol, Reduction, View};
use congruent::device::{Semaphore, Sym};
use congruent::{CommOptions, Error, Grid, MachineKind, Plan, Stream, SymVec, World, kernels};
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
const HEAP: u64 = 2 << 20;
/// Jobs of more PEs have short messages, and less of everything.
const FEW: usize = 4;

/// Records all calls of jobs of so many PEs.
pub(crate) fn record(pes: usize) -> Result<Vec<Recording>, Error> {
    let recorder = Recorder { begun: Mutex::new(None), made: Mutex::default() };
    World::builder()
        .machine(MachineKind::Virtual)
        .heap(HEAP)
        .local(pes, |world| Calls::new(world, &recorder)?.all())?;
    Ok(recorder.made.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Where PE 0 keeps what it records.
struct Recorder {
    begun: Mutex<Option<Begun>>,
    made: Mutex<Vec<Recording>>,
}

/// What a PE makes calls with.
struct Calls<'c> {
    world: &'c mut World,
    recorder: &'c Recorder,
    copies: Arc<Copies>,
    stream: Stream,
    plan: Plan,
    layout: Layout,
    /// Of each call the one is the source and the other the destination, by turns.
    buffers: [SymVec<u8>; 2],
    lists: SymVec<u64>,
    turn: SymVec<Semaphore>,
}

/// A value that is nobody else's.
fn byte(pe: usize, buffer: usize, at: usize) -> u8 {
    let mixed = ((pe * 2 + buffer) * BYTES + at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as u8
}

impl<'c> Calls<'c> {
    fn new(world: &'c mut World, recorder: &'c Recorder) -> Result<Self, Error> {
        let layout = Layout::new(world.team(), BLOCKS).buffer(0).flag_bits(4);
        let buffers = [world.alloc(BYTES)?, world.alloc(BYTES)?];
        let (plan, stream) = (world.plan(layout)?, world.stream()?);
        let (lists, turn) = (world.alloc(6 * world.npes())?, world.alloc(1)?);
        world.barrier()?;
        let copies = Copies::of(&driver::record());
        Ok(Self { world, recorder, copies, stream, plan, layout, buffers, lists, turn })
    }

    fn all(&mut self) -> Result<(), Error> {
        let ways = Way::all(self.world.npes());
        ways.iter().try_for_each(|&way| self.way(way, 37))?;
        if self.world.npes() <= FEW {
            ways.iter().try_for_each(|&way| self.way(way, self.long(way)))?;
        }
        self.parts()?;
        self.checked()?;
        self.one_sided()
    }

    /// Records what is called.
    fn record(
        &mut self,
        name: &str,
        promises: Promises,
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
            let recording = begun.end(name, promises, driver::recorded(), &marks, &ranges);
            self.recorder.made.lock().unwrap_or_else(PoisonError::into_inner).push(recording);
        }
        Ok(self.world.barrier()?)
    }

    /// Elements of a message that takes more pieces than a queue holds.
    fn long(&self, way: Way) -> usize {
        let bytes = match way.protocol {
            Protocol::Simple => self.layout.piece(),
            Protocol::Ll | Protocol::Ll128 => self.layout.piece() / 2,
        };
        let parts = if way.reduces() { self.world.npes() } else { 1 };
        let len = (Layout::DEPTH as usize + 1) * bytes * parts * BLOCKS as usize / size_of::<u32>() + 5;
        len.min(BYTES / size_of::<u32>() / self.world.npes())
    }

    /// Calls to and fro.
    fn way(&mut self, way: Way, len: usize) -> Result<(), Error> {
        let promises = Promises { v4_16b_atomic: false, ll128_128b_ordered: way.protocol == Protocol::Ll128 };
        let name = format!("{} {} {} {len}", way.collective, way.algorithm, way.protocol);
        self.record(&name, promises, |calls| {
            let (to, from) = way.lengths(len * size_of::<u32>(), calls.world.npes());
            for call in 0..3 {
                let buffer = |of: usize, bytes: usize| calls.buffers[(call + of) % 2].view().slice(..bytes);
                let args = Args {
                    team: calls.world.team(),
                    dst: buffer(1, to),
                    src: buffer(0, from),
                    reduction: Reduction::new::<u32>(Op::Sum, None).filter(|_| way.reduces()),
                    root: (call % calls.world.npes()) as u32,
                    plan: calls.plan.view(),
                };
                let site = Site { world: calls.world, stream: &calls.stream, grid: calls.grid() };
                way.launch(&site, args)?;
            }
            Ok(())
        })
    }

    /// Calls with parts of any length, none among them, and sends and receives.
    fn parts(&mut self) -> Result<(), Error> {
        let (me, n) = (self.world.pe().index(), self.world.npes());
        for &most in if n <= FEW { &[40, 3000][..] } else { &[40] } {
            let count = |from: usize, to: usize| (from + 2 * to) % 4 * most / 3;
            let starts = |counts: &[usize]| (0..n).map(|i| counts[..i].iter().sum()).collect::<Vec<usize>>();
            let sent: Vec<_> = (0..n).map(|peer| count(me, peer)).collect();
            let received: Vec<_> = (0..n).map(|peer| count(peer, me)).collect();
            let own: Vec<_> = (0..n).map(|peer| count(peer, peer)).collect();
            let lists = [&sent, &starts(&sent), &received, &starts(&received), &own, &starts(&own)];
            let lists: Vec<u64> = lists.into_iter().flatten().map(|&entry| entry as u64).collect();
            self.lists.write(0, &lists)?;
            let list = self.lists.view();
            let pair = |i: usize| Parts::new(list.slice(i * n..(i + 1) * n), list.slice((i + 1) * n..(i + 2) * n));
            self.back_and_forth(&format!("all-to-all-v {most}"), |calls, to, from, view| {
                let args = (calls.world.team(), to, from, pair(2), pair(0), view, 1);
                Ok(calls.world.launch(&calls.stream, kernels::all_to_all_v_direct, calls.grid(), args)?)
            })?;
            self.back_and_forth(&format!("all-gather-v {most}"), |calls, to, from, view| {
                let args = (calls.world.team(), to, from.slice(..own[me]), pair(4), view, 1);
                Ok(calls.world.launch(&calls.stream, kernels::all_gather_v_direct, calls.grid(), args)?)
            })?;
            let half = BYTES as u64 / 2;
            let transfer = |peer: usize, offset: u64| [(peer % n) as u64, offset, most as u64];
            self.lists.write(0, &[transfer(me + 1, 0), transfer(me + n - 1, half)].concat())?;
            let one = |i: usize| list.slice(3 * i..3 * i + 3).cast();
            self.back_and_forth(&format!("send-recv {most}"), |calls, _, memory, view| {
                let args = (calls.world.team(), memory, Listed { sends: one(0), receives: one(1) }, view, 1);
                Ok(calls.world.launch(&calls.stream, kernels::send_recv_direct, calls.grid(), args)?)
            })?;
        }
        Ok(())
    }

    /// Calls that members compare before they make them, and their meetings.
    fn checked(&mut self) -> Result<(), Error> {
        let (blocks, threads) = (NonZeroU32::new(BLOCKS), NonZeroU32::new(THREADS));
        let options = CommOptions { blocks, threads, buffer: Some(0), check: Some(true), ..CommOptions::default() };
        let comm = self.world.comm_with(self.world.team(), options)?;
        self.copies = Copies::of(&driver::record());
        self.back_and_forth("checked", |calls, to, from, _| {
            comm.all_reduce(&calls.stream, to.slice(..160).cast::<u32>(), from.slice(..160).cast(), Op::Sum)?;
            Ok(comm.barrier(&calls.stream)?)
        })
    }

    /// What one PE does to another, with meetings in between, and what was moved moved on.
    fn one_sided(&mut self) -> Result<(), Error> {
        let pes = self.world.npes() as u32;
        let put = |calls: &Self, to: Sym<u8>, from: Sym<u8>, movers| {
            let args = (to.slice(..1000), from.slice(..1000), movers, 2);
            calls.world.launch(&calls.stream, kernels::perf_put, calls.grid(), args)
        };
        let barrier = |calls: &Self| {
            let args = (calls.world.team(), 2);
            calls.world.launch(&calls.stream, kernels::barrier, calls.grid(), args)
        };
        self.back_and_forth("put", |calls, to, from, _| {
            put(calls, to, from, pes)?;
            Ok(barrier(calls)?)
        })?;
        self.back_and_forth("meet", |calls, to, from, view| {
            put(calls, to, from, pes)?;
            Ok(calls.world.launch(&calls.stream, kernels::meet, calls.grid(), (calls.world.team(), view, 2))?)
        })?;
        self.back_and_forth("perf-barrier", |calls, to, from, _| {
            put(calls, to, from, pes)?;
            Ok(calls.world.launch(&calls.stream, kernels::perf_barrier, calls.grid(), (2,))?)
        })?;
        self.back_and_forth("get", |calls, to, from, _| {
            let args = (to.slice(..1000), from.slice(..1000), pes, 2);
            calls.world.launch(&calls.stream, kernels::perf_get, calls.grid(), args)?;
            Ok(barrier(calls)?)
        })?;
        self.back_and_forth("put of values", |calls, to, from, _| {
            calls.world.launch(&calls.stream, kernels::perf_put_value, calls.grid(), (to.slice(..8).cast(), 2))?;
            barrier(calls)?;
            put(calls, from, to, pes)?;
            Ok(barrier(calls)?)
        })?;
        self.back_and_forth("fetch-add", |calls, to, from, _| {
            calls.world.launch(&calls.stream, kernels::perf_fetch_add, calls.grid(), (to.slice(..8).cast(), 2))?;
            barrier(calls)?;
            put(calls, from, to, pes)?;
            Ok(barrier(calls)?)
        })?;
        let turn = self.turn.view();
        self.back_and_forth("ping-pong", |calls, to, from, _| {
            let args = (to.slice(..1000), from.slice(..1000), turn, 3);
            Ok(calls.world.launch(&calls.stream, kernels::perf_ping_pong, Grid::one(THREADS), args)?)
        })
    }

    /// Records three calls, each of which has the destination of the one before as its source.
    fn back_and_forth(
        &mut self,
        name: &str,
        call: impl Fn(&Self, Sym<u8>, Sym<u8>, View) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.record(name, Promises::default(), |calls| {
            let [one, other] = calls.buffers.each_ref().map(SymVec::view);
            let view = calls.plan.view();
            [(other, one), (one, other), (other, one)]
                .into_iter()
                .try_for_each(|(to, from)| call(calls, to, from, view))
        })
    }

    fn grid(&self) -> Grid {
        if self.world.npes() <= FEW { Grid::new(BLOCKS, THREADS) } else { Grid::one(32) }
    }
}
