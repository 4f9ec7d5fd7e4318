//! What kernels of the CPU machine did: bytes moved from PE to PE, and when each part of their work began and ended.
#![allow(clippy::disallowed_types, reason = "counts what several blocks move")]

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use congruent_device::{Mark, Note, Pe};

use crate::trace::{self, Event, Part, Recorder};

/// Called by a kernel of a PE at each of its notes: tests hold a PE at a point of a protocol by returning late.
pub(crate) type Hold = fn(Pe, Note);

/// Hears the kernels of one PE.
pub(crate) struct Watch {
    pe: u32,
    trace: Option<Arc<Recorder>>,
    hold: Option<Hold>,
    /// By peer: bytes that this PE wrote to it, and bytes that it read from it.
    moved: Vec<[AtomicU64; 2]>,
}

/// Bytes that the kernels of one PE moved, by peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Written to each PE.
    pub put: Vec<u64>,
    /// Read from each PE.
    pub got: Vec<u64>,
}

impl Watch {
    pub(crate) fn new(pe: u32, npes: u32, trace: Option<Arc<Recorder>>, hold: Option<Hold>) -> Self {
        Self { pe, trace, hold, moved: (0..npes).map(|_| Default::default()).collect() }
    }

    /// Everything moved so far.
    pub(crate) fn traffic(&self) -> Traffic {
        let read = |way: usize| self.moved.iter().map(|both| both[way].load(Ordering::Relaxed)).collect();
        Traffic { put: read(0), got: read(1) }
    }

    fn moved(&self, from: u32, to: u32, bytes: u64) {
        let (peer, way) = if from == self.pe { (to, 0) } else { (from, 1) };
        if let Some(both) = self.moved.get(peer as usize) {
            both[way].fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// What one block is doing.
pub(crate) struct BlockWatch {
    watch: Option<Arc<Watch>>,
    /// The stream that the block runs on, as its threads are named.
    stream: String,
    block: u32,
    /// What has begun and not ended, and when.
    open: RefCell<Vec<(Mark, u64)>>,
}

impl BlockWatch {
    /// Of a block of a kernel, which ends when this goes.
    pub(crate) fn new(watch: Option<Arc<Watch>>, kernel: &'static str, block: u32) -> Self {
        let thread = std::thread::current();
        let named = || thread.name().and_then(|name| name.split_once('/')).map_or("kernels", |(stream, _)| stream);
        let stream = if watch.is_some() { named().to_owned() } else { String::new() };
        let open = if watch.is_some() { vec![(Mark::new(kernel), trace::now_ns())] } else { Vec::new() };
        Self { watch, stream, block, open: RefCell::new(open) }
    }

    /// Whether anybody wants to hear.
    pub(crate) fn is_on(&self) -> bool {
        self.watch.is_some()
    }

    pub(crate) fn note(&self, note: Note) {
        let Some(watch) = &self.watch else { return };
        if let Some(hold) = watch.hold {
            hold(Pe::new(watch.pe), note);
        }
        match note {
            Note::Signalled(_) => {}
            Note::Moved { from, to, bytes } => watch.moved(from, to, bytes),
            Note::Begin(mark) => self.open.borrow_mut().push((mark, trace::now_ns())),
            Note::End => self.end(watch),
        }
    }

    /// Ends what began last.
    fn end(&self, watch: &Watch) {
        if let (Some((mark, begin_ns)), Some(trace)) = (self.open.borrow_mut().pop(), &watch.trace) {
            trace.add(self.event(watch.pe, mark, begin_ns));
        }
    }

    fn event(&self, pe: u32, mark: Mark, begin_ns: u64) -> Event {
        Part::from(mark).event(pe, Cow::Owned(self.stream.clone()), self.block, [begin_ns, trace::now_ns()])
    }
}

impl Drop for BlockWatch {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            self.end(watch);
        }
    }
}
