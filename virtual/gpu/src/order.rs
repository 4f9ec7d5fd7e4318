//! Data races, as section 8.7.1 of the PTX ISA defines them: two accesses of one place, at least one a write, which causality does
//! not order and which are not morally strong.
//!
//! Causality is kept as vector clocks (FastTrack, Flanagan and Freund 2009). A warp has one clock; what is known of it may differ
//! from lane to lane. Of each four bytes the last write is remembered, and the reads since. A write that is itself unordered
//! beside a morally strong one takes its place, so a race with the older of the two can be missed; none is found that is not
//! there.
//!
//! The same clocks say what loads and stores may do where they may be weak (the views of Kang and others 2017, as Lidbury and
//! Donaldson 2017 use them). The writes of a cell are kept in coherence order (8.9.6). A lane knows a write if it comes before,
//! in base causality order, or if a read that has observed it does (8.9.5). Then
//!
//! - a load sees any write from the last known one on (8.10.6), and parts of several if it is morally strong with none (8.10.3);
//! - a store takes any place behind the last known one (8.10.1), but not between an atomic and what that has read (8.10.3);
//! - an atomic that is not morally strong with the last writes may miss them (8.10.3).
//!
//! What is not shown so is load buffering, which would need stores of the future (8.10.4).

mod clocks;
mod places;
mod views;

use clocks::STREAM;
pub(crate) use clocks::{Knowledge, Meeting};
use places::{Among, Place, Places};
use rustc_hash::FxHashMap as HashMap;
use std::sync::Arc;

use crate::fault::Cause;
use crate::instruction::{Scope, Strength};
use crate::memory::Segment;
use crate::program::Program;
use crate::warp::LANES;

/// What one warp knows.
pub(crate) struct Past {
    id: u32,
    clock: u32,
    lanes: Vec<Lane>,
}

#[derive(Clone, Default)]
struct Lane {
    known: Arc<Knowledge>,
    /// What a fence has gathered that a later write may publish.
    fenced: Option<Published>,
    /// What relaxed reads have seen published, for a later fence.
    seen: Vec<Published>,
    /// What a release of a place has gathered, which later writes of that place publish too (8.8).
    released: HashMap<(u64, u64), Published>,
}

/// What a write has published.
#[derive(Clone)]
struct Published {
    by: u32,
    lane: usize,
    /// When the lane knew it, by its warp's clock.
    at: u32,
    known: Arc<Knowledge>,
    /// The scope of the release, or of the fence.
    scope: Scope,
}

impl Published {
    fn of(past: &Past, lane: usize, scope: Scope) -> Self {
        Self { by: past.id, lane, at: past.clock, known: Order::gathered(past, lane), scope }
    }

    /// Adds it to what was published, of which it may say more, or less: what a lane knows later holds what it knew before, and who knows
    /// that a launch has ended knows all that it knew. Where that was of the same device, whoever is in the scope of the one is in that
    /// of the other, but for its block, of which nobody is left.
    fn add_to(&self, all: &mut Vec<Self>, places: &Places) {
        let holds = |one: &Self, other: &Self| {
            let is_later = (one.by, one.lane) == (other.by, other.lane) && one.at >= other.at;
            let is_over = || {
                let [of_one, of_other] = [one, other].map(|published| places.0[published.by as usize].device);
                let known = [&one.known.all, &one.known.aliased];
                of_one == of_other && known.into_iter().all(|known| places.has_ended(other.by, known))
            };
            one.scope >= other.scope && (is_later || is_over())
        };
        if !all.iter().any(|other| holds(other, self)) {
            all.retain(|other| !holds(self, other));
            all.push(self.clone());
        }
    }
}

/// A strong write, and what those learn who observe it.
#[derive(Clone)]
struct Written {
    mark: Mark,
    published: Vec<Published>,
}

/// An access that is remembered.
#[derive(Clone, Copy, PartialEq)]
struct Mark {
    warp: u32,
    clock: u32,
    instruction: u32,
    lane: u8,
    /// Which of the four bytes.
    bytes: u8,
    /// Its scope, if it is strong.
    strong: Option<Scope>,
    /// How many bytes it had.
    width: u8,
    /// Which of the addresses of its place it used.
    alias: u32,
}

impl Mark {
    /// Whether another one differs by its lane at most.
    fn is_beside(&self, other: &Self) -> bool {
        Self { lane: other.lane, ..*self } == *other
    }

    /// Whether a read is of the same bytes by the same address as an earlier one, and no stronger: what is not ordered behind the
    /// earlier one races with this one too, if who comes behind this one comes behind both.
    fn is_like(&self, earlier: &Self) -> bool {
        let place = |mark: &Self| (mark.alias, mark.bytes, mark.width);
        place(self) == place(earlier) && self.strong <= earlier.strong
    }
}

/// Reads of one instruction by lanes of a warp, who differ in nothing else.
struct Reads {
    mark: Mark,
    lanes: u32,
}

impl Reads {
    fn marks(&self) -> impl Iterator<Item = Mark> {
        crate::warp::lanes_of(self.lanes).map(|lane| Mark { lane: lane as u8, ..self.mark })
    }
}

/// Outside of the one who needs it, whose stack it would take.
#[cold]
#[inline(never)]
fn new_page() -> Box<[Cell]> {
    (0..PAGE).map(|_| Cell::default()).collect()
}

#[derive(Default)]
struct Cell {
    write: Option<Mark>,
    reads: Vec<Reads>,
    /// Which bytes were ever written.
    written: u8,
    /// What was here, in coherence order, where loads may be stale; the last is what is in memory.
    history: Vec<Event>,
}

impl Cell {
    /// Remembers a read, and forgets earlier ones that it stands for: of its lane, and of launches that ended before its own began.
    fn read(&mut self, mark: Mark, places: &Places) {
        let lane = 1 << mark.lane;
        let mut with = None;
        for (at, reads) in self.reads.iter_mut().enumerate() {
            if reads.mark.is_beside(&mark) {
                with = Some(at);
            } else if mark.warp == reads.mark.warp && mark.is_like(&reads.mark) {
                reads.lanes &= !lane;
            }
        }
        if let Some(at) = with {
            self.reads[at].lanes |= lane;
            return;
        }
        self.reads.retain(|reads| {
            reads.lanes != 0 && !(mark.is_like(&reads.mark) && places.is_launched_behind(&mark, &reads.mark))
        });
        self.reads.push(Reads { mark, lanes: lane });
    }

    /// What is in memory is what was written last, unless somebody wrote who is not one of ours.
    fn is_ours(&self, word: u32) -> bool {
        self.history.last().is_some_and(|last| last.word == word)
    }

    /// The write that is seen at a time.
    fn at(&self, time: u64) -> Option<&Event> {
        self.history.iter().rev().find(|event| event.time <= time)
    }
}

/// A write that a load may still see.
struct Event {
    /// Grows along coherence order; 0 is what was there before the first. What is done as one has one time.
    time: u64,
    /// Nobody's, if it was there before.
    mark: Option<Mark>,
    word: u32,
    /// What it publishes, if it begins here and is strong.
    written: Option<Arc<Written>>,
    /// Whether it is an atomic's: nothing comes between it and what that has read.
    is_change: bool,
    /// The first read of each lane that has observed it: that sees it and is morally strong with it.
    observed: Vec<Mark>,
}

/// Stands for the addresses by which `multimem` instructions reach memory.
pub(crate) const MULTICAST: u32 = u32::MAX;

/// How many writes of a place are remembered.
const REMEMBERED: usize = 8;
/// Of so many stores that may come late one does.
const LATE: usize = 3;
/// Times between a write and the next, for stores that come between them.
const STEP: u64 = 1 << 20;

/// Bytes of a cell, and cells of a page.
const CELL: u64 = 4;
const PAGE: usize = 1024;
/// Bytes that hardware may promise to keep in order.
const LINE: u64 = 128;

/// The alias of loads that are not coherent: what they read must not be written while their kernel runs (PTX ISA, `ld.global.nc`).
pub(crate) const NONCOHERENT: u32 = u32::MAX - 1;

/// What kind of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    /// An atomic: both.
    Change,
    /// An atomic that gives nothing back: both, but no read that acquires (8.8).
    Reduce,
}

impl Kind {
    fn is_change(self) -> bool {
        matches!(self, Self::Change | Self::Reduce)
    }
}

/// One access of one lane.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub(crate) kind: Kind,
    pub(crate) strength: Strength,
    pub(crate) lane: usize,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// The instruction's number in its program.
    pub(crate) instruction: u32,
    /// Stands for the addresses of the place that it uses: the same for accesses by the same address.
    pub(crate) alias: u32,
    /// The clock of its warp.
    pub(crate) clock: u32,
}

/// By segment and number.
type Pages = HashMap<(u64, u64), Box<[Cell]>>;

/// What order there is between accesses: finds races, and chooses what loads see that nothing orders.
#[derive(Default)]
pub(crate) struct Order {
    /// Whether races, and reads of what nobody wrote, are errors.
    pub(crate) reports: bool,
    /// Whether loads may be stale, and what they may not be.
    pub(crate) weak: Option<Promises>,
    time: u64,
    /// What fences of sequential consistency have gathered.
    consistent: HashMap<Among, Knowledge>,
    places: Places,
    pages: Pages,
    written: HashMap<(u64, u64), Arc<Written>>,
    /// How many launches have ended.
    ended: u32,
    /// Launches that go on.
    launches: HashMap<u64, Ongoing>,
    /// What all launches knew that have ended, and that they have.
    left: Arc<Knowledge>,
}

/// A launch that goes on.
struct Ongoing {
    stream: u32,
    warps: Vec<u32>,
    /// What it knew as it began.
    began: Arc<Knowledge>,
    /// What its warps knew that have ended.
    leaving: Knowledge,
}

impl Strength {
    fn acquires(self) -> Option<Scope> {
        match self {
            Self::Acquire(scope) | Self::AcquireRelease(scope) => Some(scope),
            _ => None,
        }
    }

    fn releases(self) -> Option<Scope> {
        match self {
            Self::Release(scope) | Self::AcquireRelease(scope) => Some(scope),
            _ => None,
        }
    }
}

/// What is said about a warp when it begins.
pub(crate) struct Begin<'a> {
    pub(crate) program: &'a Arc<Program>,
    pub(crate) kernel: &'a str,
    pub(crate) process: u64,
    pub(crate) pe: Option<u32>,
    pub(crate) device: u32,
    pub(crate) launch: u64,
    pub(crate) block: u64,
    pub(crate) index: [u32; 3],
    pub(crate) warp: u32,
}

impl Order {
    /// Where races are errors if `reports` says so, and loads may be stale where something is said about `weak`.
    pub(crate) fn new(reports: bool, weak: Option<Promises>) -> Self {
        Self { reports, weak, ..Self::default() }
    }

    /// A launch of a stream begins. It knows what the one before it in its stream handed on, the first one what all did.
    pub(crate) fn launch(&mut self, launch: u64, stream: u32, before: Option<Arc<Knowledge>>) {
        let began = before.unwrap_or_else(|| self.left.clone());
        let (warps, leaving) = (Vec::new(), Knowledge::default());
        self.launches.insert(launch, Ongoing { stream: STREAM | stream, warps, began, leaving });
    }

    /// A warp of a launch that goes on begins.
    pub(crate) fn begin(&mut self, begin: &Begin<'_>) -> Option<Past> {
        let Begin { program, kernel, process, pe, device, launch, block, index, warp } = *begin;
        let id = self.places.0.len() as u32;
        let Ongoing { stream, warps, began, .. } = self.launches.get_mut(&launch)?;
        warps.push(id);
        self.places.0.push(Place {
            program: program.clone(),
            kernel: kernel.to_owned(),
            process,
            pe,
            device,
            block: launch << 32 | block,
            index,
            warp,
            stream: *stream,
            ended: None,
            began: began.clone(),
        });
        let lane = Lane { known: began.clone(), ..Lane::default() };
        Some(Past { id, clock: 1, lanes: vec![lane; LANES] })
    }

    /// A warp has ended.
    pub(crate) fn leave(&mut self, launch: u64, past: &Past) {
        let Some(Ongoing { leaving, .. }) = self.launches.get_mut(&launch) else { return };
        let mut last: Option<&Arc<Knowledge>> = None;
        for known in past.lanes.iter().map(|lane| &lane.known) {
            if last.is_none_or(|last| !Arc::ptr_eq(last, known)) {
                leaving.join(known);
            }
            last = Some(known);
        }
    }

    /// A launch has ended. What it hands on: what it did, and all that it came after, by whatever address.
    pub(crate) fn end(&mut self, launch: u64) -> Option<Arc<Knowledge>> {
        let Ongoing { stream, warps, began, leaving: mut known } = self.launches.remove(&launch)?;
        self.ended += 1;
        let ended = self.ended;
        warps.into_iter().for_each(|warp| self.places.0[warp as usize].ended = Some(ended));
        known.join(&began);
        known.all.learn(stream, u32::MAX, ended);
        known.all.forget_ended(&self.places);
        known.aliased = known.all.clone();
        let left = Arc::make_mut(&mut self.left);
        left.join(&known);
        left.forget_ended(&self.places);
        self.consistent.retain(|among, _| !matches!(among, Among::Block(block) if block >> 32 == launch));
        self.consistent.values_mut().for_each(|before| before.forget_ended(&self.places));
        Some(Arc::new(known))
    }

    /// Memory of a block is gone.
    pub(crate) fn forget(&mut self, segment: &Arc<Segment>) {
        let segment = segment.id();
        self.pages.retain(|(other, _), _| *other != segment);
        self.written.retain(|(other, _), _| *other != segment);
    }

    /// Remembers an access that is about to be made.
    ///
    /// # Errors
    /// If it races with an earlier one, or reads what nobody wrote, where that is reported
    pub(crate) fn access(&mut self, past: &mut Past, segment: &Arc<Segment>, access: Access) -> Result<(), Cause> {
        let Access { kind, lane, offset, bytes, alias, .. } = access;
        let is_fresh = self.reports && segment.is_fresh();
        let id = segment.id();
        for cell in access.cells() {
            let mark = past.mark(&access, cell);
            let key = (id, cell / PAGE as u64);
            let places = &self.places;
            let own = &mut self.pages.entry(key).or_insert_with(new_page)[cell as usize % PAGE];
            if self.weak.is_some() && kind != Kind::Read {
                let word = word_of(segment, cell);
                if !own.is_ours(word) {
                    own.history.clear();
                    own.history.push(Event::new(0, None, word));
                }
            }
            let reports = self.reports;
            let races = |other: &&Mark| {
                reports
                    && other.bytes & mark.bytes != 0
                    && !places.is_before(other, past, lane, alias)
                    && !places.are_morally_strong(other, &mark)
            };
            if let Some(other) = own.write.as_ref().filter(races) {
                let other_kind = if other.strong.is_some() && kind.is_change() { Kind::Change } else { Kind::Write };
                return Err(places.race((other, other_kind), (&mark, kind)));
            }
            if kind != Kind::Read
                && let Some(other) = own.reads.iter().flat_map(Reads::marks).find(|other| races(&other))
            {
                return Err(places.race((&other, Kind::Read), (&mark, kind)));
            }
            if is_fresh && kind != Kind::Write && own.written & mark.bytes != mark.bytes {
                let is_new = |byte: &u64| own.written >> byte & 1 == 0 && segment.is_of_host(cell * CELL + byte);
                own.written |= (0..CELL).filter(is_new).fold(0, |bytes, byte| bytes | 1 << byte);
                if own.written & mark.bytes != mark.bytes {
                    return Err(Cause::Unwritten { at: offset, bytes });
                }
            }
            match kind {
                Kind::Read => own.read(mark, places),
                Kind::Write | Kind::Change | Kind::Reduce => {
                    own.write = Some(mark);
                    own.written |= mark.bytes;
                    own.reads.clear();
                }
            }
        }
        // A load that may be stale learns from the write that it sees.
        if kind != Kind::Read || self.weak.is_none() {
            let written = self.written.get(&(id, offset)).cloned();
            self.synchronize(past, segment, &access, written.as_deref());
        }
        Ok(())
    }

    /// What an access publishes, and what it learns from a write that it sees.
    fn synchronize(&mut self, past: &mut Past, segment: &Segment, access: &Access, written: Option<&Written>) {
        let Access { kind, strength, lane, offset, .. } = *access;
        let key = (segment.id(), offset);
        if !strength.is_strong() {
            // A weak write ends what was published here.
            if kind != Kind::Read {
                self.written.remove(&key);
            }
            return;
        }
        let places = &self.places;
        let mark = past.mark(access, offset / CELL);
        let observed = written.filter(|written| kind != Kind::Write && places.are_morally_strong(&written.mark, &mark));
        let chain = observed.map_or(&[][..], |written| &written.published);
        match strength.acquires() {
            _ if kind == Kind::Reduce => {}
            Some(acquired) => chain.iter().for_each(|published| Self::learn(places, past, lane, published, acquired)),
            None => {
                let seen = &mut past.lanes[lane].seen;
                chain.iter().for_each(|published| published.add_to(seen, places));
            }
        }
        if kind == Kind::Read {
            return;
        }
        // An atomic goes on with what the writes before it have published (8.9.2); a plain write does not.
        let mut published = if kind.is_change() { chain.to_vec() } else { Vec::new() };
        if let Some(scope) = strength.releases() {
            let published = Published::of(past, lane, scope);
            past.lanes[lane].released.insert(key, published);
        }
        let own = &past.lanes[lane];
        let fenced = own.fenced.as_ref().filter(|_| strength.releases().is_none());
        let patterns = own.released.get(&key).into_iter().chain(fenced);
        patterns.for_each(|pattern| pattern.add_to(&mut published, places));
        past.clock += u32::from(strength.releases().is_some());
        self.written.insert(key, Arc::new(Written { mark, published }));
    }

    /// All that a lane knows, itself included.
    fn gathered(past: &Past, lane: usize) -> Arc<Knowledge> {
        let mut known = (*past.lanes[lane].known).clone();
        known.all.learn(past.id, 1 << lane, past.clock);
        Arc::new(known)
    }

    fn learn(places: &Places, past: &mut Past, lane: usize, published: &Published, scope: Scope) {
        let (me, by) = (&places.0[past.id as usize], &places.0[published.by as usize]);
        if me.includes(scope, by) && by.includes(published.scope, me) {
            let known = Arc::make_mut(&mut past.lanes[lane].known);
            known.join(&published.known);
            known.forget_ended(places);
        }
    }

    /// A fence of aliases, of some lanes.
    pub(crate) fn fence_aliases(&self, past: &mut Past, lanes: u32) {
        for lane in crate::warp::lanes_of(lanes) {
            let mut known = (*Self::gathered(past, lane)).clone();
            let all = known.all.clone();
            known.aliased.join(&all);
            past.lanes[lane].known = Arc::new(known);
        }
        past.clock += 1;
    }

    /// A fence of some lanes. Those of sequential consistency come one after the other.
    pub(crate) fn fence(&mut self, past: &mut Past, lanes: u32, strength: Strength, is_consistent: bool) {
        for lane in crate::warp::lanes_of(lanes) {
            if let Some(scope) = strength.acquires() {
                for published in core::mem::take(&mut past.lanes[lane].seen) {
                    Self::learn(&self.places, past, lane, &published, scope);
                }
            }
            if let Some(scope) = strength.scope().filter(|_| is_consistent) {
                for among in self.places.among(past, scope) {
                    let before = self.consistent.entry(among).or_default();
                    Arc::make_mut(&mut past.lanes[lane].known).join(before);
                }
                Arc::make_mut(&mut past.lanes[lane].known).forget_ended(&self.places);
                let known = Self::gathered(past, lane);
                for among in self.places.among(past, scope) {
                    self.consistent.entry(among).or_default().join(&known);
                }
            }
            if let Some(scope) = strength.releases() {
                past.lanes[lane].fenced = Some(Published::of(past, lane, scope));
            }
        }
        past.clock += 1;
    }
}

/// What hardware promises beyond the memory model, by the names that NVIDIA's libraries give it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promises {
    /// An aligned vector of 16 bytes is read and written as one.
    pub v4_16b_atomic: bool,
    /// So are 128 bytes that a warp reads or writes by one instruction; and who acquires a word of those has the ones before it.
    pub ll128_128b_ordered: bool,
}

impl Event {
    fn new(time: u64, mark: Option<Mark>, word: u32) -> Self {
        Self { time, mark, word, written: None, is_change: false, observed: Vec::new() }
    }

    /// It is seen by a read.
    fn observe(&mut self, places: &Places, mark: Mark) {
        if places.is_strong_with(self, &mark) {
            self.keep(mark);
        }
    }

    fn keep(&mut self, mark: Mark) {
        let is_same = |other: &Mark| (other.warp, other.lane, other.alias) == (mark.warp, mark.lane, mark.alias);
        if !self.observed.iter().any(is_same) {
            self.observed.push(mark);
        }
    }
}

impl Access {
    fn cells(&self) -> core::ops::RangeInclusive<u64> {
        self.offset / CELL..=(self.offset + self.bytes - 1) / CELL
    }

    /// Its bytes of those of its cells.
    fn part(&self, cells: u128) -> u64 {
        let word = (cells >> (8 * (self.offset % CELL))) as u64;
        if self.bytes == 8 { word } else { word & ((1 << (8 * self.bytes)) - 1) }
    }
}

/// A cell that was accessed.
fn cell_of<'p>(pages: &'p mut Pages, segment: &Segment, cell: u64) -> Option<&'p mut Cell> {
    Some(&mut pages.get_mut(&(segment.id(), cell / PAGE as u64))?[cell as usize % PAGE])
}

/// The four bytes of a cell.
fn word_of(segment: &Segment, cell: u64) -> u32 {
    let at = cell * CELL;
    if at + CELL <= segment.bytes() {
        return segment.load(at, CELL) as u32;
    }
    (at..segment.bytes()).rev().fold(0, |word, at| word << 8 | segment.load(at, 1) as u32)
}

impl Past {
    pub(crate) fn clock(&self) -> u32 {
        self.clock
    }

    /// What stands for the part of an access that is in a cell.
    fn mark(&self, access: &Access, cell: u64) -> Mark {
        let Access { offset, bytes, .. } = *access;
        let from = offset.max(cell * CELL) - cell * CELL;
        let to = (offset + bytes).min((cell + 1) * CELL) - cell * CELL;
        Mark {
            warp: self.id,
            clock: access.clock,
            instruction: access.instruction,
            lane: access.lane as u8,
            bytes: ((1_u16 << to) - (1 << from)) as u8,
            strong: access.strength.scope(),
            width: bytes as u8,
            alias: access.alias,
        }
    }

    /// Lanes leave a barrier with what all of them knew.
    pub(crate) fn met(&mut self, lanes: u32, known: &Arc<Knowledge>) {
        self.clock += 1;
        crate::warp::lanes_of(lanes).for_each(|lane| self.lanes[lane].known = known.clone());
    }
}
