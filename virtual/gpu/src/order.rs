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

use rustc_hash::FxHashMap as HashMap;
use std::sync::Arc;

use crate::fault::{Cause, Party};
use crate::memory::Segment;
use crate::program::{Program, Scope, Strength};
use crate::schedule::Chance;
use crate::warp::LANES;

/// What is known of the past: for each warp, up to which clock, and for each stream, which launches have ended.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Clocks(Vec<(u32, Known)>);

/// What a stream's number has beside those of warps, as its clock counts ends of launches.
const STREAM: u32 = 1 << 31;

/// What is known of one warp: up to which clock of all its lanes, and of single ones.
#[derive(Clone, PartialEq)]
struct Known {
    all: u32,
    lanes: Option<Box<[u32; LANES]>>,
}

impl Clocks {
    fn knows(&self, warp: u32, lane: u8, clock: u32) -> bool {
        let Ok(at) = self.0.binary_search_by_key(&warp, |(warp, _)| *warp) else { return false };
        let Known { all, lanes } = &self.0[at].1;
        *all >= clock || lanes.as_ref().is_some_and(|lanes| lanes[lane as usize] >= clock)
    }

    fn of(&mut self, warp: u32) -> &mut Known {
        let at = self.0.binary_search_by_key(&warp, |(warp, _)| *warp).unwrap_or_else(|at| {
            self.0.insert(at, (warp, Known { all: 0, lanes: None }));
            at
        });
        &mut self.0[at].1
    }

    fn learn(&mut self, warp: u32, lanes: u32, clock: u32) {
        let known = self.of(warp);
        if lanes == u32::MAX {
            known.all = known.all.max(clock);
            return;
        }
        let own = known.lanes.get_or_insert_with(|| Box::new([0; LANES]));
        crate::warp::lanes_of(lanes).for_each(|lane| own[lane] = own[lane].max(clock));
    }

    fn join(&mut self, other: &Self) {
        for (warp, theirs) in &other.0 {
            let own = self.of(*warp);
            own.all = own.all.max(theirs.all);
            let Some(theirs) = &theirs.lanes else { continue };
            let lanes = own.lanes.get_or_insert_with(|| Box::new([0; LANES]));
            lanes.iter_mut().zip(theirs.iter()).for_each(|(own, their)| *own = (*own).max(*their));
        }
    }

    /// Leaves out warps whose launches are known to have ended: that says as much of them.
    fn forget_ended(&mut self, places: &Places) {
        let streams = self.0.partition_point(|(warp, _)| warp & STREAM == 0);
        let ends = Self(self.0.split_off(streams));
        self.0.retain(|(warp, _)| !places.has_ended(*warp, &ends));
        self.0.extend(ends.0);
    }
}

/// What a lane knows to have happened, and what of it through a fence of aliases: one location at two addresses is two proxies,
/// and an access by the one is ordered before one by the other only if such a fence lies between (8.6).
#[derive(Clone, Default)]
pub(crate) struct Knowledge {
    all: Clocks,
    aliased: Clocks,
}

impl Knowledge {
    fn join(&mut self, other: &Self) {
        self.all.join(&other.all);
        self.aliased.join(&other.aliased);
    }

    fn forget_ended(&mut self, places: &Places) {
        self.all.forget_ended(places);
        self.aliased.forget_ended(places);
    }
}

/// Where a warp is among all.
#[derive(Clone)]
struct Place {
    program: Arc<Program>,
    kernel: String,
    process: u64,
    pe: Option<u32>,
    device: u32,
    /// One number for each block of all launches.
    block: u64,
    index: [u32; 3],
    warp: u32,
    stream: u32,
    /// When its launch ended, in launches that had.
    ended: Option<u32>,
    /// What its launch knew as it began.
    began: Arc<Knowledge>,
}

impl Place {
    /// Whether a scope of this warp's includes another one.
    fn includes(&self, scope: Scope, other: &Self) -> bool {
        match scope {
            Scope::System => true,
            Scope::Device => self.device == other.device,
            Scope::Block => self.block == other.block,
        }
    }
}

/// What one warp knows.
pub(crate) struct Past {
    id: u32,
    clock: u32,
    lanes: Vec<Lane>,
}

#[derive(Clone, Default)]
struct Lane {
    known: Arc<Knowledge>,
    /// What a fence has gathered that a later write may publish, and its scope.
    fenced: Option<(Arc<Knowledge>, Scope)>,
    /// What relaxed reads have seen published, for a later fence.
    seen: Vec<Published>,
    /// What a release of a place has gathered, which later writes of that place publish too (8.8), and its scope.
    released: HashMap<(u64, u64), (Arc<Knowledge>, Scope)>,
}

/// What a write has published.
#[derive(Clone)]
struct Published {
    by: u32,
    known: Arc<Knowledge>,
    /// The scope of the release, or of the fence.
    scope: Scope,
}

/// A strong write, and what those learn who observe it.
#[derive(Clone)]
struct Written {
    mark: Mark,
    published: Vec<Published>,
}

/// An access that is remembered.
#[derive(Clone, Copy)]
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

#[derive(Default)]
struct Cell {
    write: Option<Mark>,
    reads: Vec<Mark>,
    /// Which bytes were ever written.
    written: u8,
    /// What was here, in coherence order, where loads may be stale; the last is what is in memory.
    history: Vec<Event>,
}

impl Cell {
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
type Pages = HashMap<(u64, u64), Box<[Cell; PAGE]>>;

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

/// Those whose fences of sequential consistency are morally strong with each other (8.9.3): all of a block, those of a device
/// whose scope is at least the device, and all whose scope is the system.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Among {
    Block(u64),
    Device(u32),
    System,
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

/// All warps that there were, by number.
#[derive(Default)]
struct Places(Vec<Place>);

impl Places {
    /// With whom a warp's fences of sequential consistency come one after the other.
    fn among(&self, past: &Past, scope: Scope) -> impl Iterator<Item = Among> + use<> {
        let Place { block, device, .. } = self.0[past.id as usize];
        let all = [
            (Scope::Block, Among::Block(block)),
            (Scope::Device, Among::Device(device)),
            (Scope::System, Among::System),
        ];
        all.into_iter().filter(move |(least, _)| *least <= scope).map(|(_, among)| among)
    }

    fn named(&self, mark: &Mark, kind: Kind) -> Party {
        let place = &self.0[mark.warp as usize];
        let (function, instruction) = place.program.numbered(mark.instruction);
        let (line, text, source) = place.program.place(instruction);
        Party {
            kernel: place.kernel.clone(),
            function: function.to_owned(),
            line,
            instruction: text,
            source,
            pe: place.pe,
            device: place.device,
            block: place.index,
            warp: place.warp,
            lane: u32::from(mark.lane),
            what: match kind {
                Kind::Read => "read",
                Kind::Write => "write",
                Kind::Change | Kind::Reduce => "atomic",
            },
        }
    }

    /// A race of two accesses, the later one last.
    fn race(&self, one: (&Mark, Kind), other: (&Mark, Kind)) -> Cause {
        let parties = [one, other].map(|(mark, kind)| self.named(mark, kind));
        Cause::Race { parties: Box::new(parties), missing: self.missing(one.0, other.0) }
    }

    /// What would order two accesses.
    fn missing(&self, one: &Mark, other: &Mark) -> &'static str {
        let [place, others] = [one, other].map(|mark| &self.0[mark.warp as usize]);
        if [one.alias, other.alias].contains(&NONCOHERENT) {
            "a load that is coherent (.nc reads what nobody writes while its kernel runs)"
        } else if self.are_aliases((one.warp, one.alias), (other.warp, other.alias)) {
            "a fence.proxy.alias, beside a release and an acquire (they use two addresses of the place)"
        } else if one.warp == other.warp {
            "a barrier of the warp (bar.warp.sync) or of the block (bar.sync) between them"
        } else if place.includes(Scope::Block, others) {
            "a barrier of the block (bar.sync) between them, or a release and an acquire of scope cta or wider"
        } else if place.includes(Scope::Device, others) {
            "a release behind the first, seen by an acquire ahead of the second, of scope gpu or wider"
        } else {
            "a release behind the first, seen by an acquire ahead of the second, of scope sys"
        }
    }

    /// Whether what a mark stands for comes before what a lane does now, by addresses of the alias given.
    fn is_before(&self, mark: &Mark, past: &Past, lane: usize, alias: u32) -> bool {
        let known = &past.lanes[lane].known;
        let (known, is_own) = match self.are_aliases((mark.warp, mark.alias), (past.id, alias)) {
            false => (&known.all, mark.warp == past.id && mark.lane as usize == lane),
            true => (&known.aliased, false),
        };
        let is_coherent = ![mark.alias, alias].contains(&NONCOHERENT);
        if is_coherent && (is_own || known.knows(mark.warp, mark.lane, mark.clock)) {
            return true;
        }
        let known = if is_coherent { known } else { &self.0[past.id as usize].began.all };
        self.has_ended(mark.warp, known)
    }

    /// Whether it is known that the launch of a warp has ended.
    fn has_ended(&self, warp: u32, known: &Clocks) -> bool {
        let Place { stream, ended, .. } = self.0[warp as usize];
        ended.is_some_and(|ended| known.knows(stream, 0, ended))
    }

    /// Whether a write comes before what a lane does now, in causality order: by itself, or because a read does that has
    /// observed it (8.9.5).
    fn is_known(&self, event: &Event, past: &Past, access: &Access) -> bool {
        let is_before = |mark: &Mark| self.is_before(mark, past, access.lane, access.alias);
        event.mark.as_ref().is_none_or(is_before) || event.observed.iter().any(is_before)
    }

    /// Whether a write and an access are morally strong; what was there before any write is with nothing.
    fn is_strong_with(&self, event: &Event, mark: &Mark) -> bool {
        event.mark.is_some_and(|other| self.are_morally_strong(&other, mark))
    }

    /// Whether two warps use different addresses for one place. Addresses of different processes do not compare: a device has
    /// caches and page tables for each. Multicast is another way to memory for all of them.
    fn are_aliases(&self, (one, at): (u32, u32), (other, others): (u32, u32)) -> bool {
        let of = |warp: u32| self.0[warp as usize].process;
        at != others && (at == MULTICAST || others == MULTICAST || of(one) == of(other))
    }

    fn are_morally_strong(&self, one: &Mark, other: &Mark) -> bool {
        let (Some(scope), Some(others)) = (one.strong, other.strong) else { return false };
        let (place, others_place) = (&self.0[one.warp as usize], &self.0[other.warp as usize]);
        let overlap_whole = one.width == other.width && one.bytes == other.bytes;
        overlap_whole
            && !self.are_aliases((one.warp, one.alias), (other.warp, other.alias))
            && place.includes(scope, others_place)
            && others_place.includes(others, place)
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
            let new =
                || Box::new([const { Cell { write: None, reads: Vec::new(), written: 0, history: Vec::new() } }; PAGE]);
            let places = &self.places;
            let own = &mut self.pages.entry(key).or_insert_with(new)[cell as usize % PAGE];
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
                && let Some(other) = own.reads.iter().find(races)
            {
                return Err(places.race((other, Kind::Read), (&mark, kind)));
            }
            if is_fresh && kind != Kind::Write && own.written & mark.bytes != mark.bytes {
                let is_new = |byte: &u64| own.written >> byte & 1 == 0 && segment.is_of_host(cell * CELL + byte);
                own.written |= (0..CELL).filter(is_new).fold(0, |bytes, byte| bytes | 1 << byte);
                if own.written & mark.bytes != mark.bytes {
                    return Err(Cause::Unwritten { at: offset, bytes });
                }
            }
            match kind {
                Kind::Read => {
                    let same = own
                        .reads
                        .iter_mut()
                        .find(|read| read.warp == mark.warp && read.lane == mark.lane && read.bytes == mark.bytes);
                    match same {
                        Some(read) => *read = mark,
                        None => own.reads.push(mark),
                    }
                }
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
                for published in chain {
                    if !seen.iter().any(|other| Arc::ptr_eq(&other.known, &published.known)) {
                        seen.push(published.clone());
                    }
                }
            }
        }
        if kind == Kind::Read {
            return;
        }
        // An atomic goes on with what the writes before it have published (8.9.2); a plain write does not.
        let mut published = if kind.is_change() { chain.to_vec() } else { Vec::new() };
        if let Some(scope) = strength.releases() {
            let known = Self::gathered(past, lane);
            past.lanes[lane].released.insert(key, (known, scope));
        }
        let own = &past.lanes[lane];
        let fenced = own.fenced.as_ref().filter(|_| strength.releases().is_none());
        let patterns = own.released.get(&key).into_iter().chain(fenced);
        published.extend(patterns.map(|(known, scope)| Published { by: past.id, known: known.clone(), scope: *scope }));
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

    /// A write was made: later loads may see it, or still what was there before. Writes that are `joined` come with the one before.
    pub(crate) fn made(&mut self, past: &Past, segment: &Segment, access: &Access, joined: bool) {
        if self.weak.is_none() {
            return;
        }
        self.time += if joined { 0 } else { STEP };
        let written = self.written.get(&(segment.id(), access.offset)).cloned();
        for cell in access.cells() {
            let Some(own) = cell_of(&mut self.pages, segment, cell) else { continue };
            own.history.push(Event {
                written: written.clone().filter(|_| cell == access.offset / CELL),
                is_change: access.kind.is_change(),
                ..Event::new(self.time, Some(past.mark(access, cell)), word_of(segment, cell))
            });
            if own.history.len() > REMEMBERED {
                own.history.remove(0);
            }
        }
    }

    /// A compare-and-swap has read what is there, and wrote nothing.
    pub(crate) fn compared(&mut self, past: &Past, segment: &Segment, access: &Access) {
        for cell in access.cells() {
            let last = cell_of(&mut self.pages, segment, cell).and_then(|own| own.history.last_mut());
            last.into_iter().for_each(|last| last.observe(&self.places, past.mark(access, cell)));
        }
    }

    /// Whether a store of whole cells, which is about to be made, comes before a write that is there already, which its lane
    /// does not know. Then memory keeps what it has.
    pub(crate) fn comes_late(
        &mut self,
        past: &Past,
        segment: &Segment,
        access: &Access,
        value: u64,
        chance: &mut Chance,
    ) -> bool {
        if self.weak.is_none() || access.bytes < CELL {
            return false;
        }
        let (mut least, mut most) = (0, u64::MAX);
        let mut times = Vec::new();
        for cell in access.cells() {
            let Some(own) = cell_of(&mut self.pages, segment, cell) else { return false };
            let Some(last) = own.history.last() else { return false };
            if self.places.is_known(last, past, access) {
                return false;
            }
            let known = own.history.iter().rev().find(|event| self.places.is_known(event, past, access));
            least = known.map_or_else(|| own.history[0].time, |event| event.time).max(least);
            most = last.time.min(most);
            times.extend(own.history.iter().map(|event| (event.time, event.is_change)));
        }
        times.sort_unstable();
        // Between two writes, of which the second is no atomic's.
        let fits = |pair: &[(u64, bool)]| {
            let [(before, _), (after, is_change)] = *pair else { return None };
            (least <= before && before + 1 < after && after <= most && !is_change).then(|| before.midpoint(after))
        };
        let places: Vec<u64> = times.windows(2).filter_map(fits).collect();
        if places.is_empty() || !chance.happens(LATE) {
            return false;
        }
        let time = places[chance.below(places.len())];
        let key = (segment.id(), access.offset);
        let written = self.written.remove(&key);
        for (index, cell) in access.cells().enumerate() {
            let Some(own) = cell_of(&mut self.pages, segment, cell) else { continue };
            let at = own.history.partition_point(|event| event.time < time);
            let event = Event::new(time, Some(past.mark(access, cell)), (value >> (32 * index)) as u32);
            own.history.insert(at, Event { written: written.clone().filter(|_| index == 0), ..event });
            if index == 0
                && let Some(last) = own.history.last().and_then(|last| last.written.clone())
            {
                self.written.insert(key, last);
            }
        }
        true
    }

    /// What an atomic sees that misses the last writes, if it does: those that are not morally strong with it do not keep it
    /// from coming between (8.10.3).
    pub(crate) fn missed(
        &mut self,
        past: &Past,
        segment: &Segment,
        access: &Access,
        chance: &mut Chance,
    ) -> Option<u64> {
        self.weak?;
        let (mut least, mut times) = (0, Vec::new());
        for cell in access.cells() {
            let own = cell_of(&mut self.pages, segment, cell)?;
            let mark = past.mark(access, cell);
            let is_apart = |event: &&Event| !self.places.is_strong_with(event, &mark);
            let mut seen = own.history.iter().rev().take_while(is_apart);
            let known = seen.find(|event| self.places.is_known(event, past, access));
            // What is apart reaches back to the last known write, or to the first that is.
            let apart = own.history.iter().rev().take_while(is_apart).last()?;
            least = known.unwrap_or(apart).time.max(least);
            times.extend(own.history.iter().map(|event| event.time));
        }
        let last = times.iter().copied().max();
        times.retain(|&time| time >= least && Some(time) != last);
        if times.is_empty() || !chance.happens(2) {
            return None;
        }
        let time = times[chance.below(times.len())];
        let mut word = 0;
        for (index, cell) in access.cells().enumerate() {
            word |= u64::from(cell_of(&mut self.pages, segment, cell)?.at(time)?.word) << (32 * index);
        }
        Some(access.part(word.into()))
    }

    /// A lane has acquired a word that came at a time: it has observed what came with it before it in its line, too.
    fn line_has_come(&mut self, past: &Past, segment: &Segment, access: &Access, time: u64) {
        for cell in (access.offset - access.offset % LINE) / CELL..access.offset / CELL {
            let history = cell_of(&mut self.pages, segment, cell).into_iter().flat_map(|own| &mut own.history);
            let part = Access { offset: cell * CELL, bytes: CELL, ..*access };
            history.filter(|event| event.time == time).for_each(|event| event.keep(past.mark(&part, cell)));
        }
    }

    /// What loads see that are done as one: of each cell any write that the lane does not know to be overwritten.
    pub(crate) fn seen(
        &mut self,
        past: &mut Past,
        segment: &Segment,
        accesses: &[Access],
        chance: &mut Chance,
    ) -> Vec<u64> {
        let (mut times, mut whole) = (Vec::with_capacity(accesses.len()), 0);
        for access in accesses {
            for cell in access.cells() {
                let Some(own) = cell_of(&mut self.pages, segment, cell) else {
                    times.push(0);
                    continue;
                };
                if !own.is_ours(word_of(segment, cell)) {
                    own.history.clear();
                }
                let known = own.history.iter().rposition(|event| self.places.is_known(event, past, access));
                let known = known.unwrap_or(0);
                let event = match own.history.len() - known.min(own.history.len()) {
                    0 => None,
                    count => own.history.get(known + chance.write(count)),
                };
                times.push(event.map_or(0, |event| event.time));
                let mark = past.mark(access, cell);
                // A write that is morally strong with one of the loads is seen by all of them (8.10.3).
                if let Some(event) = event.filter(|event| self.places.is_strong_with(event, &mark)) {
                    whole = event.time.max(whole);
                }
            }
        }
        let mut times = times.into_iter();
        let mut words = Vec::with_capacity(accesses.len());
        let has_lines = self.weak.is_some_and(|promises| promises.ll128_128b_ordered);
        for access in accesses {
            let (mut bytes, mut written, mut came) = (0_u128, None, 0);
            for (index, cell) in access.cells().enumerate() {
                let time = times.next().unwrap_or(0).max(whole);
                let mark = past.mark(access, cell);
                let own = cell_of(&mut self.pages, segment, cell);
                let event = own.and_then(|own| own.history.iter_mut().rev().find(|event| event.time <= time));
                let Some(event) = event else {
                    bytes |= u128::from(word_of(segment, cell)) << (32 * index);
                    continue;
                };
                bytes |= u128::from(event.word) << (32 * index);
                if index == 0 {
                    (written, came) = (event.written.clone(), event.time);
                }
                event.observe(&self.places, mark);
            }
            if has_lines && came > 0 && access.strength.acquires().is_some() {
                self.line_has_come(past, segment, access, came);
            }
            words.push(access.part(bytes));
            self.synchronize(past, segment, access, written.as_deref());
        }
        words
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
                past.lanes[lane].fenced = Some((Self::gathered(past, lane), scope));
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

/// What lanes know that meet at a barrier: each of them knows it afterwards.
#[derive(Default)]
pub(crate) struct Meeting {
    known: Knowledge,
    joined: Vec<Arc<Knowledge>>,
}

impl Meeting {
    /// Lanes come to the barrier.
    pub(crate) fn come(&mut self, past: &Past, lanes: u32) {
        for lane in crate::warp::lanes_of(lanes) {
            let known = &past.lanes[lane].known;
            if !self.joined.iter().any(|other| Arc::ptr_eq(other, known)) {
                self.known.join(known);
                self.joined.push(known.clone());
            }
        }
        self.known.all.learn(past.id, lanes, past.clock);
    }

    /// Lanes leave it, once all have come.
    pub(crate) fn leave(&self) -> Arc<Knowledge> {
        Arc::new(self.known.clone())
    }
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
