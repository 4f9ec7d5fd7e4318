//! Width W: the lanes of a block are fibers on one thread, which take turns where lanes meet or wait.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use congruent_device::Note;
use congruent_device::cpu::{At, Lane, Machine, Room};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::{BlockEnd, BlockWatch, Body, CpuMachine, Site, exit_kernel, park, run_lane};

/// Stack of one lane. Only the pages that are touched cost memory.
const STACK: usize = 512 << 10;

/// Stacks that no lane has, for the next ones: to map and unmap them takes longer than most kernels.
static STACKS: Mutex<Vec<DefaultStack>> = Mutex::new(Vec::new());
/// The most of them.
const MOST_STACKS: usize = 256;

/// Runs a block of `lanes` lanes, in warps of the machine's width or what is left, to its end, on this thread.
pub(super) fn run(cpu: &CpuMachine, lanes: u32, site: Site, room: Room, watch: BlockWatch, body: &Body) -> BlockEnd {
    let width = cpu.width();
    let machine = Fibers {
        cpu: cpu.clone(),
        site,
        watch,
        width,
        yielders: (0..lanes).map(|_| Cell::new(std::ptr::null())).collect(),
        block: Meeting::new(Whose::Block, 0..lanes as usize),
        warps: (0..lanes as usize)
            .step_by(width as usize)
            .map(|first| Meeting::new(Whose::Warp, first..(lanes as usize).min(first + width as usize)))
            .collect(),
        tiles: RefCell::default(),
        stands: (0..lanes).map(|_| Cell::new(Stand::Runs)).collect(),
        end: RefCell::new(BlockEnd::Done),
    };
    let watched = machine.watch.is_on();
    let (machine_address, body_address) = (&raw const machine, &raw const *body);
    let mut fibers = Vec::with_capacity(lanes as usize);
    let mut stacks = {
        let mut free = free_stacks();
        let kept = free.len().saturating_sub(lanes as usize);
        free.split_off(kept)
    };
    for thread in 0..lanes {
        let stack = match stacks.pop().map_or_else(|| DefaultStack::new(STACK), Ok) {
            Ok(stack) => stack,
            Err(error) => {
                let message =
                    format!("no stack for lane {thread} of {lanes}: {error}; use a smaller CONGRUENT_CPU_WIDTH");
                return BlockEnd::Panicked { thread, message };
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
                room,
                machine,
            };
            let end = run_lane(lane, site.context, body);
            machine.leave(thread, end);
        }));
    }
    while !fibers.is_empty() {
        let ended = fibers.extract_if(.., |fiber| matches!(fiber.resume(()), CoroutineResult::Return(())));
        stacks.extend(ended.map(Coroutine::into_stack));
        machine.look_for_standstill();
    }
    let mut free = free_stacks();
    stacks.truncate(MOST_STACKS.saturating_sub(free.len()));
    free.append(&mut stacks);
    machine.end.replace(BlockEnd::Done)
}

fn free_stacks() -> MutexGuard<'static, Vec<DefaultStack>> {
    STACKS.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Fibers {
    cpu: CpuMachine,
    site: Site,
    watch: BlockWatch,
    width: u32,
    /// Where each lane suspends itself; null until it has started.
    yielders: Vec<Cell<*const Yielder<(), ()>>>,
    block: Meeting,
    warps: Vec<Meeting>,
    /// Of parts of warps, by their lanes: made when they first meet.
    tiles: RefCell<HashMap<Range<usize>, Rc<Meeting>>>,
    /// What each lane does.
    stands: Vec<Cell<Stand>>,
    /// The first end that was not an orderly one.
    end: RefCell<BlockEnd>,
}

/// What a lane does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stand {
    Runs,
    /// It waits for the other lanes of a group.
    Waits(Whose, At),
    /// It has left the kernel.
    Left,
}

/// The group of lanes that meet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Block,
    Warp,
    Tile,
}

impl fmt::Display for Stand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs => f.write_str("run"),
            Self::Waits(Whose::Block, at) => write!(f, "wait for their block at {at}"),
            Self::Waits(Whose::Warp, at) => write!(f, "wait for their warp at {at}"),
            Self::Waits(Whose::Tile, at) => write!(f, "wait for their tile at {at}"),
            Self::Left => f.write_str("have left"),
        }
    }
}

/// Lanes in rising order, in words: `lanes 0-3, 7`.
fn spans(lanes: &[usize]) -> String {
    let spans = lanes.chunk_by(|a, b| a + 1 == *b).map(|span| match span {
        [first, .., last] => format!("{first}-{last}"),
        one => one.iter().map(ToString::to_string).collect(),
    });
    format!("lanes {}", spans.collect::<Vec<_>>().join(", "))
}

/// Where lanes of a group wait for each other. Lanes that have left are not waited for, as on the GPU.
struct Meeting {
    whose: Whose,
    lanes: Range<usize>,
    present: Cell<u32>,
    arrived: Cell<u32>,
    /// What those who have arrived bring.
    flag: Cell<bool>,
    value: Cell<u64>,
    words: RefCell<Vec<Option<u128>>>,
    /// What the last complete meeting gave, and how many there were. It stays until all lanes meet again, by when all
    /// have read it.
    result: Cell<(bool, u64)>,
    shown: RefCell<Vec<Option<u128>>>,
    count: Cell<u64>,
}

impl Meeting {
    fn new(whose: Whose, lanes: Range<usize>) -> Self {
        Self {
            whose,
            present: Cell::new(lanes.len() as u32),
            lanes,
            arrived: Cell::new(0),
            flag: Cell::new(false),
            value: Cell::new(0),
            words: RefCell::default(),
            result: Cell::new((false, 0)),
            shown: RefCell::default(),
            count: Cell::new(0),
        }
    }
}

impl Fibers {
    fn complete_if_all(&self, meeting: &Meeting) {
        if meeting.arrived.get() < meeting.present.get() || meeting.arrived.get() == 0 {
            return;
        }
        let lanes = &self.stands[meeting.lanes.clone()];
        let waits = |stand: &Cell<Stand>| match stand.get() {
            Stand::Waits(whose, at) if whose == meeting.whose => Some(at),
            _ => None,
        };
        // Of barriers at two places in a warp each is one that only some lanes reach. Warps may differ: they have roles at times.
        let is_torn = |warp: &[Cell<Stand>]| {
            let mut places = warp.iter().filter_map(waits);
            places.next().is_some_and(|first| places.any(|place| place != first))
        };
        if lanes.chunks(self.width as usize).any(is_torn) {
            self.stand_still(meeting.lanes.clone());
        }
        for stand in lanes.iter().filter(|stand| waits(stand).is_some()) {
            stand.set(Stand::Runs);
        }
        meeting.result.set((meeting.flag.replace(false), meeting.value.get()));
        meeting.shown.swap(&meeting.words);
        meeting.words.borrow_mut().fill(None);
        meeting.arrived.set(0);
        meeting.count.set(meeting.count.get() + 1);
    }

    /// Ends the block if every lane that is left waits for others in a meeting: nobody can come any more.
    fn look_for_standstill(&self) {
        let mut left = self.stands.iter().map(Cell::get).filter(|stand| *stand != Stand::Left).peekable();
        if left.peek().is_some() && left.all(|stand| stand != Stand::Runs) {
            self.stand_still(0..self.stands.len());
        }
    }

    /// Ends the block, and says where lanes wait.
    fn stand_still(&self, lanes: Range<usize>) {
        let mut places: Vec<(Stand, Vec<usize>)> = Vec::new();
        for lane in lanes {
            match (self.stands[lane].get(), places.iter_mut().find(|place| place.0 == self.stands[lane].get())) {
                (Stand::Runs | Stand::Left, _) => {}
                (_, Some(place)) => place.1.push(lane),
                (stand, None) => places.push((stand, vec![lane])),
            }
        }
        let told = places.iter().map(|(stand, lanes)| format!("{} {stand}", spans(lanes)));
        if !self.has_failed() {
            self.end.replace(BlockEnd::StoodStill(told.collect::<Vec<_>>().join(", ")));
        }
    }

    fn meet(&self, meeting: &Meeting, lane: u32, flag: bool, value: Option<u64>, at: At) -> (bool, u64) {
        let count = meeting.count.get();
        meeting.arrived.set(meeting.arrived.get() + 1);
        meeting.flag.set(meeting.flag.get() | flag);
        if let Some(value) = value {
            meeting.value.set(value);
        }
        self.stands[lane as usize].set(Stand::Waits(meeting.whose, at));
        self.complete_if_all(meeting);
        while meeting.count.get() == count {
            self.suspend(lane);
        }
        if self.has_failed() {
            exit_kernel();
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

    /// The meeting of these lanes.
    fn tile(&self, lanes: Range<usize>) -> Rc<Meeting> {
        let make = |lanes: &Range<usize>| {
            let meeting = Meeting::new(Whose::Tile, lanes.clone());
            let left = self.stands[lanes.clone()].iter().filter(|stand| stand.get() == Stand::Left).count();
            meeting.present.set(meeting.present.get() - left as u32);
            Rc::new(meeting)
        };
        Rc::clone(self.tiles.borrow_mut().entry(lanes).or_insert_with_key(make))
    }

    fn leave(&self, lane: u32, end: BlockEnd) {
        if end != BlockEnd::Done && !self.has_failed() {
            self.end.replace(end);
        }
        self.stands[lane as usize].set(Stand::Left);
        let tiles: Vec<_> = self.tiles.borrow().values().cloned().collect();
        let tiles = tiles.iter().map(Rc::as_ref).filter(|tile| tile.lanes.contains(&(lane as usize)));
        for meeting in [&self.block, self.warp(lane)].into_iter().chain(tiles) {
            meeting.present.set(meeting.present.get() - 1);
            self.complete_if_all(meeting);
        }
    }
}

impl Machine for Fibers {
    fn block_any(&self, lane: u32, flag: bool, at: At) -> bool {
        self.meet(&self.block, lane, flag, None, at).0
    }
    fn warp_any(&self, lane: u32, flag: bool, at: At) -> bool {
        self.meet(self.warp(lane), lane, flag, None, at).0
    }
    fn block_broadcast(&self, lane: u32, value: u64, at: At) -> u64 {
        self.meet(&self.block, lane, false, (lane == 0).then_some(value), at).1
    }
    fn warp_broadcast(&self, lane: u32, value: u64, at: At) -> u64 {
        let leads = lane.is_multiple_of(self.width);
        self.meet(self.warp(lane), lane, false, leads.then_some(value), at).1
    }
    fn gather(&self, lane: u32, lanes: Range<u32>, word: u128, at: At, see: &mut dyn FnMut(&[Option<u128>])) {
        let lanes = lanes.start as usize..lanes.end as usize;
        let tile;
        let meeting = if lanes == self.block.lanes {
            &self.block
        } else if lanes == self.warp(lane).lanes {
            self.warp(lane)
        } else {
            tile = self.tile(lanes);
            &tile
        };
        {
            let mut words = meeting.words.borrow_mut();
            words.resize(meeting.lanes.len(), None);
            words[lane as usize - meeting.lanes.start] = Some(word);
        }
        self.meet(meeting, lane, false, None, at);
        see(&meeting.shown.borrow());
    }
    unsafe fn pause(&self, lane: u32, turn: u32, word: *const u32, seen: u32) {
        self.suspend(lane);
        // Other lanes have had their turn. Leave the core to other PEs too, ever longer if nothing comes.
        if turn.is_multiple_of(16) {
            // SAFETY: the caller's contract, and the context is that of the launch.
            unsafe { self.cpu.pass(&self.site, turn / 16, word, seen) };
        }
    }
    fn pass(&self, lane: u32) {
        self.suspend(lane);
        std::thread::yield_now();
    }
    unsafe fn wake(&self, word: *const u32) {
        // SAFETY: the caller's contract.
        unsafe { park::wake(word) };
    }
    fn now_ns(&self) -> u64 {
        self.cpu.born.elapsed().as_nanos() as u64
    }
    fn exit(&self) -> ! {
        exit_kernel()
    }
    fn note(&self, note: Note) {
        self.watch.note(note);
    }
}
