//! Launches with the memory that they began with, to run them again and again: without a host, in other orders, and with other
//! code.

use core::fmt;
use core::mem::offset_of;
use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use congruent::device::abi::{Context, Control};
use congruent_virtual_gpu::{
    Backing, Fault, Launch, Machine, Program, Promises, Schedule, Segment, Settings, Space, Window,
};

/// Bytes of memory that are kept together, where any of them is not zero.
const PAGE: usize = 4096;
/// Instructions of warps that a run takes at most; the longest one takes a tenth.
const BUDGET: u64 = 20_000_000;
/// Bytes of a control block that say whether kernels are to end and whether one has a fault.
const UNTOLD: usize = offset_of!(Control, fault);
/// How long all wait until that is in vain: looks of all that wait, one a millisecond. Of loads that may be stale every other one
/// sees the last write.
const PATIENCE: Duration = Duration::from_millis(64);

/// The memory of a job, copied.
pub(crate) struct Copies {
    /// Each segment, and its copy.
    segments: Vec<(Arc<Segment>, Arc<Segment>)>,
    spaces: Vec<Arc<Space>>,
}

/// What a segment holds, without pages of zeros.
#[derive(Clone, Default)]
pub(crate) struct Content(BTreeMap<usize, Vec<u8>>);

/// The launches of each PE, and the memory around them.
#[derive(Clone)]
pub(crate) struct Recording {
    /// What was called.
    pub(crate) name: String,
    /// How many PEs there are.
    pub(crate) pes: usize,
    pub(crate) promises: Promises,
    /// Those of each PE, and then others.
    pub(crate) streams: Vec<Vec<Launch>>,
    pub(crate) spaces: Vec<Arc<Space>>,
    /// What is there before.
    pub(crate) memory: Vec<(Arc<Segment>, Content)>,
    pub(crate) results: Vec<Expected>,
    /// That no PE is told of a fault or of an end.
    pub(crate) untold: Vec<Expected>,
    /// Whether other PEs may be reached by their proxies only.
    pub(crate) is_far: bool,
    /// Whether calls end before their time.
    pub(crate) is_ended: bool,
    /// How long all wait until that is in vain.
    pub(crate) patience: Duration,
}

/// What is in memory afterwards.
#[derive(Clone)]
pub(crate) struct Expected {
    pub(crate) pe: usize,
    pub(crate) segment: Arc<Segment>,
    pub(crate) from: u64,
    pub(crate) bytes: Vec<u8>,
}

/// What is wrong with a run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Wrong {
    #[error("{0}")]
    Fault(Box<Fault>),
    #[error("wrong data of PE {pe}, from byte {at} on")]
    Data { pe: usize, at: usize },
}

impl Copies {
    /// Makes copies of all that the devices have.
    pub(crate) fn of(spaces: &[Arc<Space>]) -> Arc<Self> {
        let mut segments: Vec<(Arc<Segment>, Arc<Segment>)> = Vec::new();
        let mut copy = |one: &Arc<Segment>| match segments.iter().find(|(known, _)| Arc::ptr_eq(known, one)) {
            Some((_, copy)) => copy.clone(),
            None => {
                segments.push((one.clone(), Segment::zeroed(one.bytes())));
                segments[segments.len() - 1].1.clone()
            }
        };
        let spaces = (0..).zip(spaces).map(|(device, space)| {
            let own = Space::new(device);
            for window in space.windows() {
                let backing = match window.backing {
                    Backing::Memory(segment, from) => Backing::Memory(copy(&segment), from),
                    Backing::Multicast(object) => Backing::Multicast(object.with(&mut copy)),
                };
                own.map(Window { backing, ..window });
            }
            own
        });
        let spaces = spaces.collect();
        Arc::new(Self { segments, spaces })
    }

    /// What is in memory now.
    fn content(&self) -> Vec<Content> {
        self.segments.iter().map(|(segment, _)| Content::of(segment)).collect()
    }
}

impl Content {
    pub(crate) fn of(segment: &Segment) -> Self {
        let mut pages = BTreeMap::new();
        let mut page = vec![0; PAGE];
        for from in (0..segment.bytes() as usize).step_by(PAGE) {
            let bytes = &mut page[..PAGE.min(segment.bytes() as usize - from)];
            segment.read(from as u64, bytes);
            if bytes.iter().any(|&byte| byte != 0) {
                pages.insert(from, bytes.to_vec());
            }
        }
        Self(pages)
    }

    /// Puts it into a segment of that size.
    fn restore(&self, segment: &Segment) {
        let (zeros, mut page) = (vec![0; PAGE], vec![0; PAGE]);
        for from in (0..segment.bytes() as usize).step_by(PAGE) {
            let bytes = PAGE.min(segment.bytes() as usize - from);
            let wanted = self.0.get(&from).map_or(&zeros[..bytes], |page| page);
            segment.read(from as u64, &mut page[..bytes]);
            if page[..bytes] != *wanted {
                segment.write(from as u64, wanted);
            }
        }
    }

    /// Whether it has these bytes there.
    fn has(&self, at: usize, bytes: &[u8]) -> bool {
        let byte = |at: usize| self.0.get(&(at / PAGE * PAGE)).and_then(|page| page.get(at % PAGE)).copied();
        bytes.iter().zip(at..).all(|(&wanted, at)| byte(at).unwrap_or(0) == wanted)
    }
}

/// A recording that has begun.
pub(crate) struct Begun {
    copies: Arc<Copies>,
    before: Vec<Content>,
}

impl Begun {
    /// Keeps what memory holds now.
    pub(crate) fn new(copies: &Arc<Copies>) -> Self {
        Self { copies: copies.clone(), before: copies.content() }
    }

    /// What was launched since then. Results are on each PE's heap in these ranges, where the PE's `marks` were before, and at those
    /// addresses of PEs.
    ///
    /// # Panics
    /// If no segment has the marks, or several have, or nothing is at an address
    pub(crate) fn end(
        self,
        name: String,
        promises: Promises,
        launches: Vec<Launch>,
        marks: &[Vec<u8>],
        ranges: &[Range<usize>],
        outside: &[(usize, Range<u64>)],
    ) -> Recording {
        let Self { copies, before } = self;
        let mut streams = vec![Vec::new(); copies.spaces.len()];
        for launch in launches {
            let device = launch.space.device() as usize;
            streams[device].push(Launch { space: copies.spaces[device].clone(), ..launch });
        }
        let heap_of = |mark: &Vec<u8>| {
            let found: Vec<usize> = (0..before.len()).filter(|&heap| before[heap].has(ranges[0].start, mark)).collect();
            assert_eq!(found.len(), 1, "{name}: the memory of so many heaps has what is on one PE's");
            found[0]
        };
        let mut results = Vec::new();
        for (pe, heap) in marks.iter().map(heap_of).enumerate() {
            let (segment, copy) = &copies.segments[heap];
            for range in ranges {
                let mut bytes = vec![0; range.len()];
                segment.read(range.start as u64, &mut bytes);
                results.push(Expected { pe, segment: copy.clone(), from: range.start as u64, bytes });
            }
        }
        for (pe, addresses) in outside {
            let (copy, from) = place(&copies.spaces[*pe], addresses.start)
                .unwrap_or_else(|| panic!("{name}: PE {pe} has no memory at {:#x}", addresses.start));
            let segment =
                copies.segments.iter().find(|(_, known)| Arc::ptr_eq(known, &copy)).map(|(segment, _)| segment);
            let mut bytes = vec![0; (addresses.end - addresses.start) as usize];
            segment.unwrap_or(&copy).read(from, &mut bytes);
            results.push(Expected { pe: *pe, segment: copy, from, bytes });
        }
        let spaces = copies.spaces.clone();
        let untold = (0..).zip(&streams).zip(&spaces).filter_map(|((pe, stream), space)| {
            let (segment, from) = place(space, word(stream.first()?, offset_of!(Context, control)))?;
            Some(Expected { pe, segment, from, bytes: vec![0; UNTOLD] })
        });
        let untold = untold.collect();
        let memory = copies.segments.iter().map(|(_, copy)| copy.clone()).zip(before).collect();
        Recording {
            name,
            pes: marks.len(),
            promises,
            streams,
            spaces,
            memory,
            results,
            untold,
            is_far: false,
            is_ended: false,
            patience: PATIENCE,
        }
    }
}

impl Recording {
    /// The same with memory of its own, so that both can be run at once.
    pub(crate) fn apart(&self) -> Self {
        let copies = Copies::of(&self.spaces);
        let copy = |one: &Arc<Segment>| {
            let known = copies.segments.iter().find(|(known, _)| Arc::ptr_eq(known, one));
            known.map_or_else(|| Segment::zeroed(one.bytes()), |(_, copy)| copy.clone())
        };
        let mut own = Self { spaces: copies.spaces.clone(), ..self.clone() };
        for launch in own.streams.iter_mut().flatten() {
            launch.space = own.spaces[launch.space.device() as usize].clone();
        }
        own.memory.iter_mut().for_each(|(segment, _)| *segment = copy(segment));
        own.results.iter_mut().chain(&mut own.untold).for_each(|result| result.segment = copy(&result.segment));
        own
    }

    /// The kernel that PE 0 launches first.
    pub(crate) fn kernel(&self) -> &str {
        self.streams[0].first().map_or("", |launch| &launch.kernel)
    }

    /// Runs it again, as it was.
    ///
    /// # Errors
    /// What is wrong then
    pub(crate) fn run_unchanged(&self, how: &How) -> Result<(), Wrong> {
        self.run_streams(self.streams.clone(), how)?;
        self.check()
    }

    /// Runs it again, the kernels of these programs by them.
    ///
    /// # Errors
    /// What is wrong then
    pub(crate) fn run(&self, programs: &[Arc<Program>], how: &How) -> Result<(), Wrong> {
        let with_program = |launch: &Launch| {
            let has = |program: &&Arc<Program>| program.entries().any(|name| name == launch.kernel);
            let program = programs.iter().find(has).unwrap_or(&launch.program).clone();
            Launch { program, ..launch.clone() }
        };
        let streams = self.streams.iter().map(|stream| stream.iter().map(with_program).collect()).collect();
        self.run_streams(streams, how)?;
        self.check()
    }

    /// Whether memory has the results, and nothing is told beside that.
    fn check(&self) -> Result<(), Wrong> {
        self.untold.iter().chain(&self.results).find_map(Expected::missed).map_or(Ok(()), Err)
    }

    fn run_streams(&self, streams: Vec<Vec<Launch>>, how: &How) -> Result<(), Wrong> {
        self.memory.iter().for_each(|(segment, content)| content.restore(segment));
        let settings = Settings {
            devices: self.spaces.len() as u32,
            schedule: how.schedule,
            seed: how.seed,
            races: how.is_strict,
            weak: how.is_strict.then_some(self.promises),
            patience: self.patience,
            leap: Some(Duration::ZERO),
            budget: BUDGET,
            alone: true,
            ..Settings::default()
        };
        let machine = Machine::new(settings).unwrap_or_else(|error| panic!("a thread for the machine: {error}"));
        machine.launch_all(streams).map_err(Wrong::Fault)
    }
}

impl Expected {
    /// What is there now.
    pub(crate) fn found(&self) -> Vec<u8> {
        let mut found = vec![0; self.bytes.len()];
        self.segment.read(self.from, &mut found);
        found
    }

    fn missed(&self) -> Option<Wrong> {
        let found = self.found();
        let at = (0..found.len()).find(|&at| found[at] != self.bytes[at])?;
        Some(Wrong::Data { pe: self.pe, at: self.from as usize + at })
    }
}

/// How a recording is run.
#[derive(Clone, Copy)]
pub(crate) struct How {
    pub(crate) schedule: Schedule,
    pub(crate) seed: u64,
    /// Whether races are errors, and loads may be stale.
    pub(crate) is_strict: bool,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, seed {}", self.schedule, self.seed)
    }
}

/// The memory at an address, and where it is in that.
fn place(space: &Space, address: u64) -> Option<(Arc<Segment>, u64)> {
    space.windows().into_iter().find_map(|Window { at, bytes, backing, .. }| match backing {
        Backing::Memory(segment, from) if (at..at + bytes).contains(&address) => Some((segment, from + address - at)),
        _ => None,
    })
}

/// A word of a launch's arguments, the first of which is its context.
pub(crate) fn word(launch: &Launch, at: usize) -> u64 {
    u64::from_le_bytes(launch.params[at..at + 8].try_into().unwrap_or([0; 8]))
}
