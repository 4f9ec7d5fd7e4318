//! Data races, as section 8.7.1 of the PTX ISA defines them: two accesses of one place, at least one a write, which causality does
//! not order and which are not morally strong.
//!
//! Causality is kept as vector clocks (FastTrack, Flanagan and Freund 2009). A warp has one clock; what is known of it may differ
//! from lane to lane. Of each four bytes the last write is remembered, and the reads since. A write that is itself unordered
//! beside a morally strong one takes its place, so a race with the older of the two can be missed; none is found that is not
//! there.
//!
//! The same clocks say which writes a load may see (the views of Kang and others 2017, as Lidbury and Donaldson 2017 use them):
//! any that the lane does not know to be overwritten, of each scalar by itself. What is not shown so is load buffering.

use std::collections::HashMap;
use std::sync::Arc;

use crate::fault::{Cause, Party};
use crate::memory::Segment;
use crate::program::{Program, Scope, Strength};
use crate::schedule::Chance;
use crate::warp::LANES;

/// What is known of the past: for each warp, up to which clock.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Clocks(Vec<(u32, Known)>);

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
}

/// Where a warp is among all.
#[derive(Clone)]
struct Place {
    program: Arc<Program>,
    kernel: String,
    device: u32,
    /// One number for each block of all launches.
    block: u64,
    index: [u32; 3],
    warp: u32,
    /// When its launch had ended, in launches that have begun.
    ended: Option<u64>,
    began: u64,
    launch: u64,
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
    /// The last write of a place that it has read, where it was not the last of all: it reads no older one any more.
    read: HashMap<(u64, u64), u64>,
}

/// What a write has published.
#[derive(Clone)]
struct Published {
    by: u32,
    known: Arc<Knowledge>,
    /// The scope of the release, or of the fence.
    scope: Scope,
}

/// The last strong write of a place.
#[derive(Clone)]
struct Written {
    by: u32,
    scope: Scope,
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
    /// What was here, where loads may be stale; the last is what is in memory.
    history: Vec<Event>,
}

/// A write that a load may still see.
struct Event {
    /// Writes are numbered in the order in which memory had them; 0 is what was there before the first.
    time: u64,
    /// Nobody's, if it was there before.
    mark: Option<Mark>,
    word: u32,
    /// What it publishes, if it begins here and is strong.
    written: Option<Arc<Written>>,
}

/// How many writes of a place are remembered.
const REMEMBERED: usize = 8;

/// Bytes of a cell, and cells of a page.
const CELL: u64 = 4;
const PAGE: usize = 1024;

/// What kind of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    /// An atomic: both.
    Change,
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
    /// Whether nothing is there before it is written.
    pub(crate) is_fresh: bool,
    /// Stands for the addresses of the place that it uses: the same for accesses by the same address.
    pub(crate) alias: u32,
}

/// What order there is between accesses: finds races, and chooses what loads see that nothing orders.
#[derive(Default)]
pub(crate) struct Order {
    /// Whether races, and reads of what nobody wrote, are errors.
    reports: bool,
    /// Whether loads may be stale, and what they may not be.
    pub(crate) weak: Option<Promises>,
    time: u64,
    /// What fences of sequential consistency have gathered.
    consistent: Knowledge,
    places: Places,
    pages: HashMap<(u64, u64), Box<[Cell; PAGE]>>,
    written: HashMap<(u64, u64), Arc<Written>>,
    /// How many launches have begun or ended.
    events: u64,
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
            device: place.device,
            block: place.index,
            warp: place.warp,
            lane: u32::from(mark.lane),
            what: match kind {
                Kind::Read => "read",
                Kind::Write => "write",
                Kind::Change => "atomic",
            },
        }
    }

    /// Whether what a mark stands for comes before what a lane does now, by addresses of the alias given.
    fn is_before(&self, mark: &Mark, past: &Past, lane: usize, alias: u32) -> bool {
        let known = &past.lanes[lane].known;
        let (known, is_own) = match mark.alias == alias {
            true => (&known.all, mark.warp == past.id && mark.lane as usize == lane),
            false => (&known.aliased, false),
        };
        if is_own || known.knows(mark.warp, mark.lane, mark.clock) {
            return true;
        }
        let ended = self.0[mark.warp as usize].ended;
        ended.is_some_and(|ended| ended < self.0[past.id as usize].began)
    }

    fn are_morally_strong(&self, one: &Mark, other: &Mark) -> bool {
        let (Some(scope), Some(others)) = (one.strong, other.strong) else { return false };
        let (place, others_place) = (&self.0[one.warp as usize], &self.0[other.warp as usize]);
        let overlap_whole = one.width == other.width && one.bytes == other.bytes;
        overlap_whole
            && one.alias == other.alias
            && place.includes(scope, others_place)
            && others_place.includes(others, place)
    }
}

/// What is said about a warp when it begins.
pub(crate) struct Begin<'a> {
    pub(crate) program: &'a Arc<Program>,
    pub(crate) kernel: &'a str,
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

    /// A warp begins. It knows of everything that had ended before.
    pub(crate) fn begin(&mut self, begin: &Begin<'_>) -> Past {
        self.events += 1;
        let Begin { program, kernel, device, launch, block, index, warp } = *begin;
        self.places.0.push(Place {
            program: program.clone(),
            kernel: kernel.to_owned(),
            device,
            block: launch << 32 | block,
            index,
            warp,
            ended: None,
            began: self.events,
            launch,
        });
        Past { id: self.places.0.len() as u32 - 1, clock: 1, lanes: vec![Lane::default(); LANES] }
    }

    /// A launch has ended: what begins later comes after it.
    pub(crate) fn end(&mut self, launch: u64) {
        self.events += 1;
        let events = self.events;
        self.places.0.iter_mut().filter(|place| place.launch == launch).for_each(|place| place.ended = Some(events));
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
        let Access { kind, strength, lane, offset, bytes, instruction, is_fresh, alias } = access;
        let id = segment.id();
        let (first, last) = (offset / CELL, (offset + bytes - 1) / CELL);
        for cell in first..=last {
            let from = offset.max(cell * CELL) - cell * CELL;
            let to = (offset + bytes).min((cell + 1) * CELL) - cell * CELL;
            let mark = Mark {
                warp: past.id,
                clock: past.clock,
                instruction,
                lane: lane as u8,
                bytes: ((1_u16 << to) - (1 << from)) as u8,
                strong: strength.scope(),
                width: bytes as u8,
                alias,
            };
            let key = (id, cell / PAGE as u64);
            let new =
                || Box::new([const { Cell { write: None, reads: Vec::new(), written: 0, history: Vec::new() } }; PAGE]);
            let places = &self.places;
            let own = &mut self.pages.entry(key).or_insert_with(new)[cell as usize % PAGE];
            if self.weak.is_some() && kind != Kind::Read && own.history.is_empty() {
                let word = word_of(segment, cell);
                own.history.push(Event { time: 0, mark: None, word, written: None });
            }
            let reports = self.reports;
            let races = |other: &&Mark| {
                reports
                    && other.bytes & mark.bytes != 0
                    && !places.is_before(other, past, lane, alias)
                    && !places.are_morally_strong(other, &mark)
            };
            if let Some(other) = own.write.as_ref().filter(races) {
                let other_kind =
                    if other.strong.is_some() && kind == Kind::Change { Kind::Change } else { Kind::Write };
                return Err(Cause::Race(Box::new([places.named(other, other_kind), places.named(&mark, kind)])));
            }
            if kind != Kind::Read
                && let Some(other) = own.reads.iter().find(races)
            {
                return Err(Cause::Race(Box::new([places.named(other, Kind::Read), places.named(&mark, kind)])));
            }
            if reports && is_fresh && kind != Kind::Write && own.written & mark.bytes != mark.bytes {
                return Err(Cause::Unwritten { at: offset, bytes });
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
                Kind::Write | Kind::Change => {
                    own.write = Some(mark);
                    own.written |= mark.bytes;
                    own.reads.clear();
                }
            }
        }
        // A load that may be stale learns from the write that it sees.
        if kind != Kind::Read || self.weak.is_none() {
            let written = self.written.get(&(id, offset)).cloned();
            self.synchronize(past, segment, access, written.as_deref());
        }
        Ok(())
    }

    /// What an access publishes, and what it learns from a write that it sees.
    fn synchronize(&mut self, past: &mut Past, segment: &Segment, access: Access, written: Option<&Written>) {
        let Access { kind, strength, lane, offset, .. } = access;
        let key = (segment.id(), offset);
        let Some(scope) = strength.scope() else {
            // A weak write ends what was published here.
            if kind != Kind::Read {
                self.written.remove(&key);
            }
            return;
        };
        let places = &self.places;
        let me = &places.0[past.id as usize];
        let mut chain = Vec::new();
        if kind != Kind::Write
            && let Some(written) = written
        {
            let writer = &places.0[written.by as usize];
            if me.includes(scope, writer) && writer.includes(written.scope, me) {
                chain = written.published.clone();
                match strength.acquires() {
                    Some(acquired) => {
                        for published in &written.published {
                            Self::learn(places, past, lane, published, acquired);
                        }
                    }
                    None => {
                        let seen = &mut past.lanes[lane].seen;
                        for published in &written.published {
                            if !seen.iter().any(|other| Arc::ptr_eq(&other.known, &published.known)) {
                                seen.push(published.clone());
                            }
                        }
                    }
                }
            }
        }
        if kind == Kind::Read {
            return;
        }
        let own = match (strength.releases(), &past.lanes[lane].fenced) {
            (Some(scope), _) => Some((Self::gathered(past, lane), scope)),
            (None, Some((known, scope))) => Some((known.clone(), *scope)),
            (None, None) => None,
        };
        if strength.releases().is_some() {
            past.clock += 1;
        }
        // An atomic goes on with what the writes before it have published; a plain write does not.
        let mut published = if kind == Kind::Change { chain } else { Vec::new() };
        published.extend(own.map(|(known, scope)| Published { by: past.id, known, scope }));
        self.written.insert(key, Arc::new(Written { by: past.id, scope, published }));
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
            Arc::make_mut(&mut past.lanes[lane].known).join(&published.known);
        }
    }

    /// A write was made: later loads may see it, or still what was there before. Writes that are `joined` come with the one before.
    pub(crate) fn made(&mut self, segment: &Segment, offset: u64, bytes: u64, joined: bool) {
        if self.weak.is_none() {
            return;
        }
        self.time += u64::from(!joined);
        let id = segment.id();
        let first = offset / CELL;
        for cell in first..=(offset + bytes - 1) / CELL {
            let Some(page) = self.pages.get_mut(&(id, cell / PAGE as u64)) else { continue };
            let own = &mut page[cell as usize % PAGE];
            let written = self.written.get(&(id, offset)).filter(|_| cell == first).cloned();
            own.history.push(Event { time: self.time, mark: own.write, word: word_of(segment, cell), written });
            if own.history.len() > REMEMBERED {
                own.history.remove(0);
            }
        }
    }

    /// What loads see that are done as one: any write that the lane does not know to be overwritten.
    pub(crate) fn seen(
        &mut self,
        past: &mut Past,
        segment: &Segment,
        accesses: &[Access],
        chance: &mut Chance,
    ) -> Vec<u64> {
        let id = segment.id();
        let cells = |access: &Access| access.offset / CELL..=(access.offset + access.bytes - 1) / CELL;
        let (mut least, mut later) = (0, Vec::new());
        for access in accesses {
            for cell in cells(access) {
                let Some(page) = self.pages.get_mut(&(id, cell / PAGE as u64)) else { continue };
                let own = &mut page[cell as usize % PAGE];
                // Somebody wrote who is not one of ours.
                if own.history.last().is_some_and(|last| last.word != word_of(segment, cell)) {
                    own.history.clear();
                }
                let is_known = |event: &&Event| {
                    event.mark.is_none_or(|mark| self.places.is_before(&mark, past, access.lane, access.alias))
                };
                let known = own.history.iter().rev().find(is_known).map_or(0, |event| event.time);
                let read = past.lanes[access.lane].read.get(&(id, cell)).copied().unwrap_or(0);
                least = known.max(read).max(least);
                later.extend(own.history.iter().map(|event| event.time));
            }
        }
        later.retain(|&time| time > least);
        later.sort_unstable();
        later.dedup();
        // Whoever looks again and again sees the last write in the end.
        let time = match later.len() {
            0 => least,
            count if chance.below(2) == 0 => later[count - 1],
            count => [least].into_iter().chain(later).nth(chance.below(count + 1)).unwrap_or(least),
        };
        let mut words = Vec::with_capacity(accesses.len());
        for access in accesses {
            let mut bytes = 0_u128;
            let mut written = None;
            for (index, cell) in cells(access).enumerate() {
                let own = self.pages.get(&(id, cell / PAGE as u64)).map(|page| &page[cell as usize % PAGE]);
                let event = own.and_then(|own| own.history.iter().rev().find(|event| event.time <= time));
                let word = event.map_or_else(|| word_of(segment, cell), |event| event.word);
                bytes |= u128::from(word) << (32 * index);
                if index == 0 {
                    let last = || self.written.get(&(id, access.offset)).cloned();
                    written = event.map_or_else(last, |event| event.written.clone());
                }
                if own.is_some_and(|own| own.history.len() > 1) {
                    past.lanes[access.lane].read.insert((id, cell), time);
                }
            }
            let word = (bytes >> (8 * (access.offset % CELL))) as u64;
            words.push(if access.bytes == 8 { word } else { word & ((1 << (8 * access.bytes)) - 1) });
            self.synchronize(past, segment, *access, written.as_deref());
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
            if is_consistent {
                Arc::make_mut(&mut past.lanes[lane].known).join(&self.consistent);
                self.consistent.join(&Self::gathered(past, lane));
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
    /// So are 128 bytes that a warp reads or writes by one instruction.
    pub ll128_128b_ordered: bool,
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
    /// Lanes leave a barrier with what all of them knew.
    pub(crate) fn met(&mut self, lanes: u32, known: &Arc<Knowledge>) {
        self.clock += 1;
        crate::warp::lanes_of(lanes).for_each(|lane| self.lanes[lane].known = known.clone());
    }
}
