//! Collectives that the host puts on a stream, without a kernel of the user's own.
//!
//! Each launches a fixed kernel; they are asynchronous, ordered on their stream, and concurrent across streams.
//!
//! ```
//! use congruent::collectives::{Op, PreMulSum};
//! # congruent::local(2, |world| {
//! let comm = world.comm(world.team())?;
//! let (stream, mine, sum) = (world.stream()?, world.alloc::<f32>(1000)?, world.alloc::<f32>(1000)?);
//! mine.fill(1.0)?;
//! comm.all_reduce(&stream, sum.view(), mine.view(), Op::Sum)?;
//! comm.all_reduce(&stream, sum.view(), sum.view(), PreMulSum(0.5))?;
//! let next = (comm.rank() + 1) % comm.size();
//! comm.group(&stream, |group| {
//!     comm.send(group, sum.view(), next)?;
//!     comm.recv(group, mine.view(), next)
//! })?;
//! world.synchronize(&stream)?;
//! assert_eq!(mine.to_vec()?, [2.0; 1000]);
//! # Ok::<_, congruent::Error>(())
//! # })?;
//! # Ok::<_, congruent::Error>(())
//! ```
//!
//! # For those who know NCCL
//! | NCCL | here |
//! |---|---|
//! | `ncclCommInitRank` | [`World::comm`](crate::World::comm) of any team: every PE of the world makes the call |
//! | `ncclCommSplit` | [`Comm::split`], which the whole world calls, or [`World::comm_split`](crate::World::comm_split) |
//! | `ncclGroupStart`, `ncclGroupEnd` | [`Comm::group`], with [`CallGroup::with`] for calls of several communicators, each on a stream |
//! | `ncclRedOpCreatePreMulSum` | [`OwnPreMulSum`] in the operator's place; where the scalars are the same, [`PreMulSum`](crate::collectives::PreMulSum) |
//! | no operators of one's own | [`Comm::launch`]: a kernel that calls collectives with any operator |
//! | `ncclCommGetAsyncError` | [`World::check`](crate::World::check); of what one stream did, [`Stream::check`](crate::Stream::check) |
//! | destination after source | destination before source, as everywhere here |
//!
//! - Buffers are symmetric objects, and members give the same ones, but for the parts of them that an in-place form names. In
//!   all-to-all-v, all-gather-v, sends and receives each member gives whatever it likes.
//! - In place is what NCCL calls so, and all-to-all too. Other overlaps are refused.
//! - There are gather, scatter, all-to-all-v and all-gather-v. Their counts lie on the heap, so a kernel before may compute them.
//! - A communicator runs on [`STREAMS`] streams, and members use streams for the first time in the same order.
//! - A wrong call is refused before anything is launched. What only another member can know is a fault that
//!   [`World::synchronize`](crate::World::synchronize) tells: a count that differs between sender and receiver always, anything
//!   else that differs in checked mode, the default of the CPU machine (`CONGRUENT_CHECK=0` turns it off, and 1 turns it on for
//!   GPUs as well). Nothing hangs: waits have deadlines.

mod calls;
pub(crate) mod checked;
mod enqueue;
mod group;
mod kernels;
mod levels;
mod make;
mod self_test;
mod vector;

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use congruent_collectives::{Algorithm, Collective, Datatype, Layout, Op, PlanView, Protocol};
use congruent_device::{Kernel, TeamView, World as WorldTag};

use crate::select::{Choice, Circumstances, Refusal, Selector, Source};
use crate::shared::Shared;
use crate::{Arguments, Grid, LaunchError, Plan, Stream, SymVec, Team, World};

pub use calls::{OpWith, OwnPreMulSum};
pub use checked::CallMismatch;
pub use enqueue::Queue;
pub use group::CallGroup;
pub use kernels::{FixedArgs, FixedKernel};
pub use make::CommOptions;
pub(crate) use make::usual_blocks;

use levels::Levels;
use make::Room;

/// A team with all that its collectives need: what NCCL calls a communicator. Made by [`World::comm`](crate::World::comm).
///
/// Every member makes the same calls in the same order on each stream, and uses streams for the first time in the same order.
pub struct Comm {
    shared: Arc<Shared>,
    team: TeamView,
    /// Those that the program brings.
    algorithms: &'static [FixedKernel],
    /// Keeps the team's words, where it was made for this communicator.
    _own_team: Option<Team<WorldTag>>,
    /// Whether loads and stores reach every member.
    all_direct: bool,
    /// Of a team on several hosts, with as many members on each.
    levels: Option<Levels>,
    plan: Plan<Room>,
    /// What groups send and receive, a list for each stream.
    lists: SymVec<[u64; 3]>,
    selector: Selector,
    options: CommOptions,
    /// Blocks of its largest launches.
    most: u32,
    /// Whether the protocol LL128 has passed its self-test, which is made where the protocol is enabled.
    lines_arrive: bool,
    streams: Mutex<Vec<StreamCalls>>,
    forced: Option<(Algorithm, Protocol)>,
}

/// What is known of a stream. They are kept in the order of their first use: each has slots of its own, so that launches on
/// several run at once.
struct StreamCalls {
    stream: u64,
    /// Collectives so far.
    calls: u64,
}

/// Streams of one [`Comm`] whose collectives may run at once.
pub const STREAMS: u32 = 4;

/// The most sends and receives of a communicator in a group together: a send to and a receive from each of 64 members.
const TRANSFERS: usize = 128;

/// Threads of the smallest blocks: a warp of a GPU.
const WARP: u32 = 32;

impl Comm {
    /// The plan that its collectives run on, which tells what each of them [moves](Layout::moves).
    pub fn layout(&self) -> &Layout {
        &self.plan.shape().layout
    }

    /// This PE's rank.
    pub fn rank(&self) -> usize {
        self.team.me()
    }

    /// How many members.
    pub fn size(&self) -> usize {
        self.team.size()
    }

    /// Blocks and threads of its largest launches. Where [`CommOptions`] give no number of blocks, short messages take fewer.
    pub fn grid(&self) -> Grid {
        Grid::new(self.most, self.options.threads())
    }

    /// Makes every call take this algorithm and protocol; a call that cannot is an error.
    pub fn force(&mut self, algorithm: Algorithm, protocol: Protocol) {
        self.forced = Some((algorithm, protocol));
    }

    /// Lets the selector choose again.
    pub fn unforce(&mut self) {
        self.forced = None;
    }

    /// The communicators of this member's host, and of the members with its place on all hosts: of a team on several hosts, which have as
    /// many members each, two or more, and whose ranks are those of one host after the other. Algorithms of
    /// [two levels](congruent_collectives::two_level) are made of their calls.
    pub fn levels(&self) -> Option<(&Self, &Self)> {
        self.levels.as_ref().map(|levels| (&*levels.host, &*levels.rail))
    }

    /// What chooses algorithms and protocols.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Which algorithm and protocol a call takes whose larger buffer has `bytes` bytes, of all members' parts together where there
    /// are parts. A reduction says of what.
    ///
    /// # Errors
    /// Where what the environment or [`force`](Comm::force) asks for is impossible.
    pub fn chosen(
        &self,
        collective: Collective,
        bytes: u64,
        reduction: Option<(Op, Datatype)>,
    ) -> Result<Choice, LaunchError> {
        self.choose(collective, bytes, reduction, false)
    }

    /// The same, where members may have scalars of their own.
    fn choose(
        &self,
        collective: Collective,
        bytes: u64,
        reduction: Option<(Op, Datatype)>,
        own_scalars: bool,
    ) -> Result<Choice, LaunchError> {
        let mut call = Circumstances { own_scalars, ..self.circumstances(bytes, reduction) };
        let has_room = |levels: &Levels| collective != Collective::ReduceScatter || levels.has_room(bytes);
        if !self.levels.as_ref().is_none_or(has_room) {
            call.hosts = 1;
        }
        let Some((algorithm, protocol)) = self.forced else {
            return Ok(self.selector.choose(collective, &call)?);
        };
        match self.selector.check(collective, algorithm, protocol, &call) {
            Ok(()) => {}
            Err(Refusal::NoAlgorithm { .. }) => return Err(LaunchError::NoSuchKernel { collective, algorithm }),
            Err(refusal) => return Err(LaunchError::Forced { collective, algorithm, protocol, refusal }),
        }
        let predicted_ns = self.selector.predict(collective, algorithm, protocol, &call);
        let [blocks, threads] = self.selector.grid(collective, algorithm, protocol, &call);
        Ok(Choice { algorithm, protocol, blocks, threads, source: Source::Forced, predicted_ns })
    }

    /// What is known of a call: what the selector decides by.
    pub fn circumstances(&self, bytes: u64, reduction: Option<(Op, Datatype)>) -> Circumstances {
        Circumstances {
            members: self.size(),
            bytes,
            // Kernels that reduce nothing move bytes, whatever these are of.
            element: reduction.map_or(1, |(_, datatype)| datatype.size()),
            reduction,
            own_scalars: false,
            hosts: self.levels.as_ref().map_or(1, |levels| levels.rail.size()),
            all_direct: self.all_direct,
            multicast: self.team.window() != 0,
            ll128: self.selector.ll128(self.lines_arrive),
            buffer: self.layout().buffer_bytes(),
            blocks: self.most,
            // As many as a thread keeps in flight. NCCL asks for as many (`NCCL_SIMPLE_THREAD_THRESHOLD`).
            block_bytes: if self.options.blocks.is_some() { 0 } else { u64::from(self.options.threads()) * 64 },
            threads: self.options.threads(),
            fewest_threads: self.options.threads.map_or(WARP, NonZeroU32::get),
        }
    }

    /// Launches a kernel of the program's own that calls collectives, on this communicator's plan: what the calls here have no names for,
    /// such as an operator of the program's, one that accumulates in another type, or a collective with other work before and behind.
    ///
    /// `args` is given the plan, over [`Protocol::Simple`] ([`PlanView::over`] makes it another), and gives the kernel's arguments. The
    /// kernel calls collectives in `plan.enter(block, ctx)`.
    ///
    /// ```
    /// use congruent::collectives::{PlanView, ring};
    /// use congruent::device::{Sym, kernels};
    ///
    /// kernels! {
    ///     /// The members' product, modulo a prime.
    ///     pub fn product(block, ctx, dst: Sym<u64>, src: Sym<u64>, plan: PlanView) {
    ///         ring::all_reduce(&mut plan.enter(block, ctx), dst, src, |a: u64, b: u64| a * b % 7919);
    ///     }
    /// }
    ///
    /// # congruent::local(3, |world| {
    /// let (comm, stream) = (world.comm(world.team())?, world.stream()?);
    /// let (mine, all) = (world.alloc::<u64>(100)?, world.alloc::<u64>(100)?);
    /// mine.fill(1000 + comm.rank() as u64)?;
    /// comm.launch(world, &stream, product, comm.grid(), |plan| (all.view(), mine.view(), plan))?;
    /// world.synchronize(&stream)?;
    /// assert_eq!(all.to_vec()?, [1000 * 1001 * 1002 % 7919; 100]);
    /// # Ok::<_, congruent::Error>(())
    /// # })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Collective
    /// Over the team, with the same kernel and grid, in one order with the members' other calls on the stream. Checked mode does not
    /// compare it.
    ///
    /// # Errors
    /// [`LaunchError::PlanBlocks`] where the grid has more blocks than [`grid`](Comm::grid); and as
    /// [`World::launch`](crate::World::launch).
    #[track_caller]
    pub fn launch<K: Kernel, A: Arguments<K::Args>>(
        &self,
        world: &World,
        stream: &Stream,
        kernel: K,
        grid: Grid,
        args: impl FnOnce(PlanView) -> A,
    ) -> Result<(), LaunchError> {
        self.admit(stream, K::NAME, &[])?;
        if grid.blocks > self.most {
            return Err(LaunchError::PlanBlocks { asked: grid.blocks, fits: self.most });
        }
        let view = self.view(stream, Protocol::Simple)?;
        // Behind a call that members have found to differ it is to do nothing, either.
        let view = if self.options.check == Some(true) { view.abort_aware() } else { view };
        world.launch(stream, kernel, grid, args(view))
    }

    /// The plan over a protocol, with the slots that this stream has for it.
    fn view(&self, stream: &Stream, protocol: Protocol) -> Result<PlanView, LaunchError> {
        let mut streams = self.streams();
        let known = streams.iter().position(|known| known.stream == stream.id());
        let ordinal = known.unwrap_or(streams.len());
        if ordinal >= STREAMS as usize {
            return Err(LaunchError::PlanStreams { fits: STREAMS });
        }
        if known.is_none() {
            streams.push(StreamCalls { stream: stream.id(), calls: 0 });
        }
        Ok(self.plan.view().over(protocol).from_slot(ordinal * self.most as usize))
    }

    /// The number of the next collective on a stream that has slots.
    fn count(&self, stream: &Stream) -> u64 {
        let mut streams = self.streams();
        let known = streams.iter_mut().find(|known| known.stream == stream.id());
        known.map_or(0, |known| {
            known.calls += 1;
            known.calls
        })
    }

    fn streams(&self) -> MutexGuard<'_, Vec<StreamCalls>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
