//! Width W: the lanes of a block are fibers on one thread, which take turns where lanes meet or wait.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use congruent_device::Note;
use congruent_device::cpu::{Lane, Machine};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::{BlockEnd, BlockWatch, Body, Site, exit_kernel, nap, run_lane};

/// Stack of one lane. Only the pages that are touched cost memory.
const STACK: usize = 512 << 10;

/// Runs a block of `lanes` lanes, in warps of `width` or what is left, to its end, on this thread.
pub(super) fn run(born: Instant, width: u32, lanes: u32, site: Site, watch: BlockWatch, body: &Body) -> BlockEnd {
    let machine = Fibers {
        born,
        site,
        watch,
        width,
        yielders: (0..lanes).map(|_| Cell::new(std::ptr::null())).collect(),
        block: Meeting::new(lanes),
        warps: (0..lanes).step_by(width as usize).map(|first| Meeting::new(width.min(lanes - first))).collect(),
        end: RefCell::new(BlockEnd::Done),
    };
    let watched = machine.watch.is_on();
    let (machine_address, body_address) = (&raw const machine, &raw const *body);
    let mut fibers = Vec::with_capacity(lanes as usize);
    for thread in 0..lanes {
        let stack = match DefaultStack::new(STACK) {
            Ok(stack) => stack,
            Err(error) => {
                return BlockEnd::Panicked(format!(
                    "no stack for lane {thread} of {lanes}: {error}; use a smaller CONGRUENT_CPU_WIDTH"
                ));
            }
        };
        fibers.push(Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            // SAFETY: every fiber has ended, in the loop below, before `machine` and `body` go.
            let (machine, body) = unsafe { (&*machine_address, &*body_address) };
            if machine.has_failed() {
                return;
            }
            machine.yielders[thread as usize].set(yielder);
            let lane = Lane {
                thread,
                threads: lanes,
                warp: width,
                block: site.block,
                blocks: site.blocks,
                spins: 1,
                watched,
                machine,
            };
            let end = run_lane(lane, site.context, body);
            machine.leave(thread, end);
        }));
    }
    while !fibers.is_empty() {
        fibers.retain_mut(|fiber| matches!(fiber.resume(()), CoroutineResult::Yield(())));
    }
    machine.end.replace(BlockEnd::Done)
}

struct Fibers {
    born: Instant,
    site: Site,
    watch: BlockWatch,
    width: u32,
    /// Where each lane suspends itself; null until it has started.
    yielders: Vec<Cell<*const Yielder<(), ()>>>,
    block: Meeting,
    warps: Vec<Meeting>,
    /// The first end that was not an orderly one.
    end: RefCell<BlockEnd>,
}

/// Where lanes of a group wait for each other. Lanes that have left are not waited for, as on the GPU.
struct Meeting {
    present: Cell<u32>,
    arrived: Cell<u32>,
    /// What those who have arrived bring.
    flag: Cell<bool>,
    value: Cell<u64>,
    /// What the last complete meeting gave, and how many there were. It stays until all lanes meet again, by when all
    /// have read it.
    result: Cell<(bool, u64)>,
    count: Cell<u64>,
}

impl Meeting {
    fn new(present: u32) -> Self {
        Self {
            present: Cell::new(present),
            arrived: Cell::new(0),
            flag: Cell::new(false),
            value: Cell::new(0),
            result: Cell::new((false, 0)),
            count: Cell::new(0),
        }
    }

    fn complete_if_all(&self) {
        if self.arrived.get() >= self.present.get() && self.arrived.get() > 0 {
            self.result.set((self.flag.replace(false), self.value.get()));
            self.arrived.set(0);
            self.count.set(self.count.get() + 1);
        }
    }
}

impl Fibers {
    fn meet(&self, meeting: &Meeting, lane: u32, flag: bool, value: Option<u64>) -> (bool, u64) {
        let count = meeting.count.get();
        meeting.arrived.set(meeting.arrived.get() + 1);
        meeting.flag.set(meeting.flag.get() | flag);
        if let Some(value) = value {
            meeting.value.set(value);
        }
        meeting.complete_if_all();
        while meeting.count.get() == count {
            self.suspend(lane);
        }
        meeting.result.get()
    }

    fn suspend(&self, lane: u32) {
        // SAFETY: a lane's yielder lives on its stack for as long as the lane runs, and only the lane itself calls this.
        unsafe { &*self.yielders[lane as usize].get() }.suspend(());
        if self.has_failed() {
            exit_kernel();
        }
    }

    /// Whether a lane has panicked. Then the block ends, as it does on the GPU: the others might wait for what that lane
    /// was to do.
    fn has_failed(&self) -> bool {
        *self.end.borrow() != BlockEnd::Done
    }

    fn warp(&self, lane: u32) -> &Meeting {
        &self.warps[(lane / self.width) as usize]
    }

    fn leave(&self, lane: u32, end: BlockEnd) {
        if end != BlockEnd::Done && !self.has_failed() {
            self.end.replace(end);
        }
        for meeting in [&self.block, self.warp(lane)] {
            meeting.present.set(meeting.present.get() - 1);
            meeting.complete_if_all();
        }
    }
}

impl Machine for Fibers {
    fn block_any(&self, lane: u32, flag: bool) -> bool {
        self.meet(&self.block, lane, flag, None).0
    }
    fn warp_any(&self, lane: u32, flag: bool) -> bool {
        self.meet(self.warp(lane), lane, flag, None).0
    }
    fn block_broadcast(&self, lane: u32, value: u64) -> u64 {
        self.meet(&self.block, lane, false, (lane == 0).then_some(value)).1
    }
    fn warp_broadcast(&self, lane: u32, value: u64) -> u64 {
        self.meet(self.warp(lane), lane, false, lane.is_multiple_of(self.width).then_some(value)).1
    }
    unsafe fn pause(&self, lane: u32, turn: u32, word: *const u32, seen: u32) {
        self.suspend(lane);
        // Other lanes have had their turn. Leave the core to other PEs too, ever longer if nothing comes.
        if turn.is_multiple_of(16) {
            // SAFETY: the caller's contract, and the context is that of the launch.
            unsafe { nap::pass(&self.site.context, turn / 16, word, seen) };
        }
    }
    unsafe fn wake(&self, word: *const u32) {
        // SAFETY: the caller's contract.
        unsafe { nap::wake(word) };
    }
    fn now_ns(&self) -> u64 {
        self.born.elapsed().as_nanos() as u64
    }
    fn exit(&self) -> ! {
        exit_kernel()
    }
    fn note(&self, note: Note) {
        self.watch.note(note);
    }
}
