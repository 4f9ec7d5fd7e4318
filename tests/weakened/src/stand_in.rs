//! What was not recorded: the same calls over proxies, calls that a peer never comes to, and calls that are refused. What a host does
//! in these is done by kernels of a device of its own (`host.ptx`), which are programs of the same memory model.

use core::mem::offset_of;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use congruent::device::abi::{Context, Control, FaultState, NO_DEADLINE, Reply, Ring, RingLayout, Route};
use congruent_virtual_gpu::{Access, Backing, Launch, LoadError, Program, Segment, Space, Window};

use crate::recording::{Content, Expected, How, Recording, Wrong, word};

/// Each PE has a page for what is added, from this address on. Nothing of a process on Linux is there.
const AT: u64 = 1 << 44;
const PAGE: u64 = 8192;
/// What is in it.
const ROUTES: u64 = 2048;
const STOP: u64 = 4096;
const KEPT: u64 = 6144;
/// Slots of a ring: few, so that all come again. And so many that all requests of a call have one.
pub(crate) const FEW_SLOTS: u32 = 1;
pub(crate) const MANY_SLOTS: u32 = 4;
/// How long kernels wait for a peer that never comes, in nanoseconds.
const DEADLINE: u64 = 2_000_000;
/// They look at the clock once in a thousand turns, and a turn of those that wait for one of many words takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(40);
/// The head of a plan's channel says what is done with it: this, and the number of the operation more.
const BUSY: u64 = 1 << 63;
const OPERATIONS: u64 = 1 << 8;

/// Bytes of a control block that a fault is in: shipped kernels print nothing.
const WATCHED: u64 = offset_of!(Control, prints) as u64;

/// What the host does.
pub(crate) struct Host(Arc<Program>);

/// Why calls end before their time.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// This PE does not come to them.
    Without(usize),
    /// The last PE makes only so many launches, and the others so many.
    Leaves(usize, usize),
    /// PE 0 gives something else than the others: a word of its arguments, behind so many bytes of them, is so much more.
    Differs(usize, u64),
    /// Their first argument, the destination, is not as long as it has to be.
    Refused,
    /// Nobody serves the rings, which have two to this power of slots.
    Unserved(u32),
    /// The same, and they have no deadline: the host ends them.
    UnservedAborted(u32),
    /// This PE does not come to them, and they have no deadline: the host ends them.
    Aborted(usize),
}

impl End {
    fn is_aborted(self) -> bool {
        matches!(self, Self::Aborted(_) | Self::UnservedAborted(_))
    }
}

const _: () = {
    assert!(PAGE >= KEPT + WATCHED);
    assert!(
        offset_of!(Control, abort) == 0
            && offset_of!(Control, fault_state) == 4
            && offset_of!(Control, fault) == 8
            && FaultState::Complete as u32 == 3
    );
    assert!(offset_of!(Ring, reserved) == 0 && offset_of!(Ring, taken) == 64 && offset_of!(Ring, complete) == 128);
    assert!(offset_of!(Reply, value) == 0 && offset_of!(Reply, read) == 8);
    assert!(offset_of!(Context, log2_slots) == offset_of!(Context, rings) + 4);
    assert!(RingLayout::new(MANY_SLOTS, 32).bytes() <= ROUTES);
};

impl Host {
    /// Takes in its kernels.
    ///
    /// # Errors
    /// What is wrong with them
    pub(crate) fn new() -> Result<Self, LoadError> {
        Program::new(include_str!("host.ptx")).map(Self)
    }

    /// The same calls where every other PE is reached through the proxy.
    pub(crate) fn proxied(&self, recording: &Recording) -> Recording {
        self.served(recording, "over proxies", |_, _| Route::Proxied)
    }

    /// The same calls where only the last PE is, by the others, and reaches others only so.
    pub(crate) fn partly_proxied(&self, recording: &Recording) -> Recording {
        let last = recording.pes - 1;
        let route = |pe, peer| if pe == last || peer == last { Route::Proxied } else { Route::Direct };
        self.served(recording, "over proxies from and to the last", route)
    }

    fn served(&self, recording: &Recording, what: &str, route: impl Fn(usize, usize) -> Route) -> Recording {
        let mut own = Added::to(recording, self, what);
        own.use_rings(FEW_SLOTS, route);
        for pe in 0..recording.pes {
            own.end_stream(pe);
            let Place { heaps, stride, .. } = own.places[pe];
            let (at, layout) = (own.page(pe), own.layout());
            let [requests, replies, through, local] =
                [layout.request(0), layout.reply(0), layout.through(0), layout.local(0)].map(|to| at + to);
            let log2 = FEW_SLOTS.into();
            let words = [at, requests, replies, through, local, log2, heaps, stride, pe as u64, at + STOP];
            own.add_host("serve", &words);
        }
        own.recording
    }

    /// Each PE's first call, and that again once it has ended; the results are what is told of the end, the same in all these ways.
    ///
    /// # Errors
    /// If it does not come to that
    pub(crate) fn ended(&self, recording: &Recording, end: End, ways: &[How]) -> Result<Recording, Wrong> {
        let what = match end {
            End::Without(pe) => format!("without PE {pe}"),
            End::Leaves(last, others) => format!("{others} launches, and {last} of the last PE"),
            End::Differs(..) => "with something else from PE 0".to_owned(),
            End::Refused => "refused".to_owned(),
            End::Unserved(log2) => format!("over proxies, unserved, with {} slots", 1 << log2),
            End::UnservedAborted(log2) => format!("over proxies, unserved, with {} slots, and aborted", 1 << log2),
            End::Aborted(pe) => format!("without PE {pe}, and aborted"),
        };
        let mut own = Added::to(recording, self, &what);
        let mut heaps: Vec<Arc<Segment>> = recording.results.iter().map(|result| result.segment.clone()).collect();
        heaps.dedup_by(|one, other| Arc::ptr_eq(one, other));
        own.recording.patience = PATIENCE;
        own.recording.is_ended = true;
        own.recording.results.clear();
        own.recording.untold.clear();
        if let End::Unserved(log2) | End::UnservedAborted(log2) = end {
            own.use_rings(log2, |_, _| Route::Proxied);
        }
        for pe in 0..recording.pes {
            let stream = &mut own.recording.streams[pe];
            if let End::Leaves(last, others) = end {
                stream.truncate(if pe + 1 == recording.pes { last } else { others });
            } else {
                stream.truncate(1);
                stream.extend(stream.first().cloned());
            }
            for launch in stream.iter_mut() {
                let deadline = if end.is_aborted() { NO_DEADLINE } else { DEADLINE };
                patch(launch, offset_of!(Context, deadline_ns), deadline);
                match end {
                    End::Refused => patch(launch, size_of::<Context>() + size_of::<u64>(), 1),
                    End::Differs(behind, more) if pe == 0 => {
                        let at = size_of::<Context>() + behind;
                        patch(launch, at, word(launch, at).wrapping_add(more));
                    }
                    _ => {}
                }
            }
            if matches!(end, End::Without(gone) | End::Aborted(gone) if gone == pe) {
                stream.clear();
                continue;
            }
            if end.is_aborted() {
                let abort = own.places[pe].control + offset_of!(Control, abort) as u64;
                let launch = own.launch("abort", own.recording.spaces[pe].clone(), &[abort]);
                own.recording.streams[pe].insert(0, launch);
            }
            own.end_stream(pe);
            let bytes = WATCHED;
            let page = own.page(pe);
            own.add_host("watch", &[own.places[pe].control, page + KEPT, bytes, page + STOP]);
            let segment = own.pages[pe].clone();
            own.recording.results.push(Expected { pe, segment, from: KEPT, bytes: vec![0; bytes as usize] });
        }
        let mut ended = own.recording;
        ended.expect(&heaps, ways)?;
        Ok(ended)
    }
}

/// Where a PE has what.
#[derive(Clone, Copy)]
struct Place {
    heaps: u64,
    stride: u64,
    control: u64,
}

/// A recording with a page for each PE, and a device for the host.
struct Added<'h> {
    recording: Recording,
    host: &'h Host,
    space: Arc<Space>,
    places: Vec<Place>,
    pages: Vec<Arc<Segment>>,
}

impl<'h> Added<'h> {
    fn to(recording: &Recording, host: &'h Host, what: &str) -> Self {
        let mut recording = Recording { name: format!("{} {what}", recording.name), ..recording.clone() };
        let space = Space::new(recording.spaces.len() as u32);
        let spaces = recording.spaces.iter().map(|old| {
            let new = Space::new(old.device());
            for window in old.windows() {
                space.map(window.clone());
                new.map(window);
            }
            new
        });
        recording.spaces = spaces.collect();
        let mut places = Vec::new();
        for (stream, own) in recording.streams.iter_mut().zip(&recording.spaces) {
            stream.iter_mut().for_each(|launch| launch.space = own.clone());
            let at = |offset| stream.first().map_or(0, |launch| word(launch, offset));
            places.push(Place {
                heaps: at(offset_of!(Context, base)),
                stride: at(offset_of!(Context, stride)),
                control: at(offset_of!(Context, control)),
            });
        }
        let pages: Vec<_> = places.iter().map(|_| Segment::zeroed(PAGE)).collect();
        for (pe, page) in pages.iter().enumerate() {
            let backing = Backing::Memory(page.clone(), 0);
            let window = Window { at: AT + pe as u64 * PAGE, bytes: PAGE, backing, access: Access::ReadWrite };
            recording.spaces[pe].map(window.clone());
            space.map(window);
            recording.memory.push((page.clone(), Content::of(page)));
        }
        recording.spaces.push(space.clone());
        Self { recording, host, space, places, pages }
    }

    fn layout(&self) -> RingLayout {
        RingLayout::new(FEW_SLOTS, self.recording.pes as u32)
    }

    fn page(&self, pe: usize) -> u64 {
        AT + pe as u64 * PAGE
    }

    /// Each PE reaches others on these routes, and itself; its ring has two to this power of slots.
    fn use_rings(&mut self, log2_slots: u32, route: impl Fn(usize, usize) -> Route) {
        for pe in 0..self.pages.len() {
            let at = self.page(pe);
            let route = |peer| if peer == pe { Route::Direct } else { route(pe, peer) };
            let routes: Vec<u8> = (0..self.pages.len()).flat_map(|peer| (route(peer) as u32).to_le_bytes()).collect();
            self.pages[pe].write(ROUTES, &routes);
            for launch in &mut self.recording.streams[pe] {
                patch(launch, offset_of!(Context, ring), at);
                patch(launch, offset_of!(Context, routes), at + ROUTES);
                // One ring, and its slots.
                patch(launch, offset_of!(Context, rings), 1 | u64::from(log2_slots) << 32);
            }
            let content = Content::of(&self.pages[pe]);
            let pages = &mut self.recording.memory;
            pages
                .iter_mut()
                .filter(|(page, _)| Arc::ptr_eq(page, &self.pages[pe]))
                .for_each(|own| own.1 = content.clone());
        }
    }

    /// Behind all of a PE's launches it is said that they are over.
    fn end_stream(&mut self, pe: usize) {
        let launch = self.launch("stop", self.recording.spaces[pe].clone(), &[self.page(pe) + STOP]);
        self.recording.streams[pe].push(launch);
    }

    fn add_host(&mut self, kernel: &str, params: &[u64]) {
        let launch = self.launch(kernel, self.space.clone(), params);
        self.recording.streams.push(vec![launch]);
    }

    fn launch(&self, kernel: &str, space: Arc<Space>, params: &[u64]) -> Launch {
        Launch {
            program: self.host.0.clone(),
            globals: [].into(),
            kernel: kernel.to_owned(),
            space,
            pe: None,
            blocks: [1; 3],
            threads: [1; 3],
            shared: 0,
            registers: 64,
            params: params.iter().flat_map(|param| param.to_le_bytes()).collect(),
        }
    }
}

/// Sets a word of a launch's arguments.
fn patch(launch: &mut Launch, at: usize, value: u64) {
    launch.params[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

impl Recording {
    /// Has what is the same in runs in these ways as results, and beside that what blocks say that they do with their plans.
    fn expect(&mut self, heaps: &[Arc<Segment>], ways: &[How]) -> Result<(), Wrong> {
        let mut same: Option<BTreeMap<(usize, u64), u8>> = None;
        for how in ways {
            let looked = core::mem::take(&mut self.results);
            let outcome = self.run_unchanged(how);
            self.results = looked;
            outcome?;
            let told = self.results.iter().enumerate().flat_map(|(index, result)| {
                let found = result.found();
                found.into_iter().zip(result.from..).map(move |(byte, at)| ((index, at), byte))
            });
            let mut now: BTreeMap<(usize, u64), u8> = told.collect();
            for (heap, segment) in heaps.iter().enumerate() {
                let mut bytes = vec![0; segment.bytes() as usize];
                segment.read(0, &mut bytes);
                for (word, at) in bytes.chunks_exact(8).zip((0..).step_by(8)) {
                    let value = u64::from_le_bytes(word.try_into().unwrap_or([0; 8]));
                    if (BUSY + 1..BUSY + OPERATIONS).contains(&value) {
                        now.extend(word.iter().zip(at..).map(|(&byte, at)| ((self.results.len() + heap, at), byte)));
                    }
                }
            }
            match &mut same {
                None => same = Some(now),
                Some(same) => same.retain(|place, byte| now.get(place) == Some(byte)),
            }
        }
        let segments: Vec<(usize, Arc<Segment>)> =
            self.results.iter().map(|one| (one.pe, one.segment.clone())).collect();
        let segments: Vec<_> = segments.into_iter().chain(heaps.iter().cloned().map(|heap| (0, heap))).collect();
        self.results.clear();
        for ((index, at), byte) in same.unwrap_or_default() {
            let (pe, segment) = &segments[index];
            match self.results.last_mut() {
                Some(Expected { segment: last, from, bytes, .. })
                    if Arc::ptr_eq(last, segment) && *from + bytes.len() as u64 == at =>
                {
                    bytes.push(byte);
                }
                _ => self.results.push(Expected { pe: *pe, segment: segment.clone(), from: at, bytes: vec![byte] }),
            }
        }
        Ok(())
    }
}
