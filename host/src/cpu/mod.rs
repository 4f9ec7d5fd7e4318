//! The CPU machine: kernels run natively, a block on a thread of its own.
//!
//! At width 1 a block is one thread and a warp one lane: the fast way, which tests the algorithm. At width W a warp is W
//! fibers that take turns at every sync, vote, broadcast and poll: the faithful way, which tests the choreography of lanes.
#![allow(clippy::disallowed_types, reason = "this machine gives waits, sleeps and barriers their meaning")]

mod access;
mod cores;
mod fibers;
mod memory;
pub(crate) mod park;
mod pe;
mod solo;
mod stream;

use std::num::NonZeroU32;
use std::panic::{self, AssertUnwindSafe};
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use congruent_device::cpu::{self, Lane, Room};
use congruent_device::{Block, Ctx, Group, Kernel, abi};

pub(crate) use access::HeapAccess;
pub(crate) use cores::Cores;
pub(crate) use memory::CpuMemory;
pub(crate) use pe::CpuPe;
pub(crate) use stream::{CpuStream, Launch, Mark, Task, Underway};

use crate::watch::{BlockWatch, Watch};

/// One block's work: the kernel with its arguments bound.
pub(crate) type Body = dyn Fn(&Block<'_>, &Ctx<'_>) + Send + Sync;

/// The work of each block of a launch of `K`. It keeps `held` for as long.
pub(crate) fn body<K: Kernel>(args: K::Args, held: impl Send + Sync + 'static) -> Arc<Body> {
    Arc::new(move |block, ctx| {
        let _until_the_end = &held;
        // SAFETY: the machine runs it once for each lane of the launch, which was given these arguments.
        unsafe { K::run(block, ctx, args) };
    })
}

/// The work of a block that copies `bytes` bytes from one address to another. It keeps `held` for as long.
///
/// # Safety
/// While the block runs, both ranges are mapped, and each is symmetric memory or nobody else's.
pub(crate) unsafe fn copy((to, from, bytes): (u64, u64, usize), held: impl Send + Sync + 'static) -> Arc<Body> {
    Arc::new(move |block, _ctx| {
        let _until_the_end = &held;
        if block.leader() {
            let (to, from) = (with_exposed_provenance_mut(to as usize), with_exposed_provenance(from as usize));
            // SAFETY: the caller's promise.
            unsafe { cpu::copy_bytes_for_host(to, from, bytes) };
        }
    })
}

/// Somebody's work that a lane does while it waits: the proxy's.
pub(crate) trait Service: Send + Sync {
    /// Does what there is to do, unless somebody else is at it.
    fn serve(&self) -> Served;
}

/// What there was to do.
pub(crate) enum Served {
    Something,
    /// Nothing, but a network may have something at any time.
    NothingYet,
    /// Nothing before somebody asks.
    Nothing,
}

/// How blocks run on this host.
#[derive(Clone)]
pub(crate) struct CpuMachine {
    width: NonZeroU32,
    cores: u32,
    pes: u32,
    born: Instant,
    watch: Option<Arc<Watch>>,
    service: Arc<OnceLock<Arc<dyn Service>>>,
}

/// Which part of which launch runs here.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    /// The kernel's name.
    pub(crate) kernel: &'static str,
    /// Its first argument.
    pub(crate) context: abi::Context,
    /// This block, and how many there are.
    pub(crate) block: u32,
    pub(crate) blocks: u32,
    /// Threads asked for; the machine gives what its width makes of it.
    pub(crate) threads: u32,
    /// Warps that the kernel counts on; 0 where it takes any number.
    pub(crate) warps: u32,
    /// Whether none of its blocks waits, as the kernel says.
    pub(crate) independent: bool,
    /// Bytes of the block's shared memory: those that the kernel has always, and those that the launch asks for.
    pub(crate) shared: (u32, u32),
}

impl Site {
    /// The one block of what is no kernel of a program.
    pub(crate) const fn one(kernel: &'static str, context: abi::Context, threads: u32) -> Self {
        Self { kernel, context, block: 0, blocks: 1, threads, warps: 0, independent: false, shared: (0, 0) }
    }

    /// How many blocks of the launch run at once: all of those that may wait for each other.
    fn at_once(&self) -> u32 {
        if self.independent { self.blocks.min(self.context.block_slots) } else { self.blocks }
    }
}

/// How a block ended, other than by reaching its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BlockEnd {
    /// It returned, or a wait of it ended the kernel and left its reason in the control block.
    Done,
    /// A thread of it panicked, with this message.
    Panicked { thread: u32, message: String },
    /// Its lanes wait for each other at different places, and says where.
    StoodStill(String),
}

/// What a lane throws to leave its kernel from within a wait.
struct KernelExit;

/// A block never has more warps than this here, whatever a launch asks for: enough to tell a warp from a block.
const MAX_WARPS: u32 = 2;

impl CpuMachine {
    /// A machine of this width for a world with `pes` PEs on this host, which have so many cores together.
    pub(crate) fn new(width: NonZeroU32, pes: u32, cores: u32, watch: Option<Arc<Watch>>) -> Self {
        Self { width, cores, pes, born: Instant::now(), watch, service: Arc::default() }
    }

    /// What waiting lanes serve from now on. Told once.
    pub(crate) fn have_lanes_serve(&self, service: Arc<dyn Service>) {
        let _told_before = self.service.set(service);
    }

    /// Passes time for turn `turn` of a lane's wait for `word`, which held `seen`.
    ///
    /// # Panics
    /// Where the kernel says that it never waits.
    ///
    /// # Safety
    /// As for [`park::pass`].
    unsafe fn pass(&self, site: &Site, turn: u32, word: *const u32, seen: u32) {
        if site.independent {
            panic!(
                "it waits, and says that its blocks are independent; take its `blocks(independent)` away, or the wait"
            );
        }
        let (turn, polls) = match self.service.get().map(|service| service.serve()) {
            Some(Served::Something) => return,
            // Data may land without anybody hearing of it: as long as nobody else wants the core it looks.
            Some(Served::NothingYet) => (0, true),
            Some(Served::Nothing) | None => (turn, false),
        };
        // SAFETY: the caller's contract.
        unsafe { park::pass(&site.context, turn, word, seen, polls) };
    }

    /// The cores that the world's PEs have together.
    pub(crate) fn cores(&self) -> u32 {
        self.cores
    }

    /// Who hears what its kernels do, if anybody does.
    pub(crate) fn watch(&self) -> Option<&Watch> {
        self.watch.as_deref()
    }

    /// Lanes of a warp.
    pub(crate) fn width(&self) -> u32 {
        self.width.get()
    }

    /// Runs one block to its end, on this thread.
    pub(crate) fn run(&self, site: Site, body: &Body) -> BlockEnd {
        let spins = self.spins(site.at_once());
        let mut memory = SharedMemory::new(site.shared);
        let room = memory.room();
        let watch = BlockWatch::new(self.watch.clone(), site.kernel, site.block);
        let end = if self.width.get() == 1 && site.warps <= 1 {
            let machine = solo::Solo::new(self, &site, &watch);
            let lane = Lane {
                thread: 0,
                threads: 1,
                warp: 1,
                block: site.block,
                blocks: site.blocks,
                spins,
                watched: watch.is_on(),
                room,
                machine: &machine,
            };
            run_lane(lane, site.context, body)
        } else {
            let lanes = lanes(self.width.get(), site.threads, site.warps);
            fibers::run(self, lanes, site, room, watch, body)
        };
        if let Some(service) = self.service.get() {
            // What was left to the next time that somebody serves.
            let _whatever_it_was = service.serve();
        }
        end
    }

    /// How long a poll spins: long where every block has a core, briefly where blocks share cores, or lanes have something to serve.
    fn spins(&self, blocks: u32) -> u32 {
        if self.pes * blocks <= self.cores && self.service.get().is_none() { 4000 } else { 40 }
    }
}

/// A block's shared memory. What nobody has written is all ones: no number, where it is read as one.
struct SharedMemory {
    bytes: (usize, usize),
    words: Vec<u128>,
}

impl SharedMemory {
    fn new((known, rest): (u32, u32)) -> Self {
        let bytes = ((known as usize).next_multiple_of(size_of::<u128>()), rest as usize);
        Self { bytes, words: vec![u128::MAX; (bytes.0 + bytes.1).div_ceil(size_of::<u128>())] }
    }

    fn room(&mut self) -> Room {
        // SAFETY: so many bytes are there, aligned as u128 is, which is 16 (asserted below), and `run` holds them until the block ends.
        unsafe { Room::new(self.words.as_mut_ptr().cast(), self.bytes.0, self.bytes.1) }
    }
}

const _: () = assert!(align_of::<u128>() == 16);

/// How many lanes a block of `threads` threads has where warps have `width` instead of 32: its last warp is as full as it would be
/// there, and of the others all but one are left out, where the kernel does not count on `warps`.
fn lanes(width: u32, threads: u32, warps: u32) -> u32 {
    let last = match threads % 32 {
        0 => width,
        rest => (rest * width).div_ceil(32),
    };
    (threads.div_ceil(32).clamp(1, MAX_WARPS.max(warps)) - 1) * width + last
}

/// Runs the kernel as one lane, and says how it ended.
fn run_lane(lane: Lane<'_>, context: abi::Context, body: &Body) -> BlockEnd {
    // SAFETY: the stream that runs this launch holds the world's memory, which the context describes, until the launch
    // is over.
    let ctx = unsafe { Ctx::new(context, lane) };
    // SAFETY: this thread runs that lane.
    let block = unsafe { Block::new(lane) };
    match panic::catch_unwind(AssertUnwindSafe(|| body(&block, &ctx))) {
        Ok(()) => BlockEnd::Done,
        Err(thrown) if thrown.is::<KernelExit>() => BlockEnd::Done,
        Err(thrown) => BlockEnd::Panicked { thread: lane.thread, message: message(&*thrown) },
    }
}

/// Leaves the kernel: unwinds to [`run_lane`] without a word on the terminal.
fn exit_kernel() -> ! {
    panic::resume_unwind(Box::new(KernelExit))
}

fn message(thrown: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = thrown.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = thrown.downcast_ref::<String>() {
        text.clone()
    } else {
        "a value that is not text".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::lanes;

    #[test]
    fn the_last_warp_is_as_full_as_on_a_gpu() {
        let of = |width, threads: [u32; 6]| threads.map(|threads| lanes(width, threads, 0));
        assert_eq!(of(32, [1, 6, 32, 48, 64, 100]), [1, 6, 32, 48, 64, 36]);
        assert_eq!(of(4, [1, 24, 32, 48, 64, 100]), [1, 3, 4, 6, 8, 5]);
        assert_eq!(
            [1, 4, 32].map(|width| lanes(width, 128, 4)),
            [4, 16, 128],
            "a kernel that counts on four warps has them"
        );
    }
}
