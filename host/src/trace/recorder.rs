//! What happened, as it is told, up to a bound.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use congruent_device::{Mark, Pe};

use super::Arg;

/// Most events that a process keeps: some hundred megabytes, and as much as a viewer can show.
pub(super) const MOST_EVENTS: usize = 1_000_000;

/// Something that took time.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// The PE that did it.
    pub(crate) pe: u32,
    /// What it ran on, such as `stream 0`.
    pub(crate) track: Cow<'static, str>,
    /// The block; `None` for what concerns the stream as a whole.
    pub(crate) block: Option<u32>,
    /// What it was, such as `all-gather 2/3`.
    pub(crate) name: Cow<'static, str>,
    /// When it began, on the clock of [`now_ns`](super::now_ns).
    pub(crate) begin_ns: u64,
    /// When it ended, likewise. An end before the beginning counts as the beginning.
    pub(crate) end_ns: u64,
    /// Details, each with its name.
    pub(crate) args: Vec<(&'static str, Arg)>,
}

/// What a part of a kernel's work is, without when it was.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// What it does.
    pub(crate) name: Cow<'static, str>,
    /// Which part of how many, from 0; of 0 where it is not one of several.
    pub(crate) part: (u32, u32),
    /// With whom, if with one.
    pub(crate) peer: Option<u32>,
    /// Bytes that it moves or works on.
    pub(crate) bytes: u64,
}

impl Part {
    /// What a block of a PE did on a track.
    pub(crate) fn event(self, pe: u32, track: Cow<'static, str>, block: u32, [begin_ns, end_ns]: [u64; 2]) -> Event {
        let name = match self.part {
            (_, 0) => self.name,
            (part, of) => format!("{} {}/{of}", self.name, part + 1).into(),
        };
        let mut args = if self.bytes > 0 { vec![("bytes", self.bytes.into())] } else { Vec::new() };
        args.extend(self.peer.map(|peer| ("peer", u64::from(peer).into())));
        Event { pe, track, block: Some(block), name, begin_ns, end_ns, args }
    }
}

impl From<Mark> for Part {
    fn from(Mark { name, part, peer, bytes }: Mark) -> Self {
        Self { name: name.into(), part, peer: peer.map(Pe::raw), bytes }
    }
}

/// Events of a process, told by any of its threads.
///
/// On a row, which is a PE's track and block, events nest or follow each other. Of two over the very same time, the one
/// told last holds the other, as its end came last.
#[derive(Debug)]
pub(crate) struct Recorder {
    most: usize,
    kept: Mutex<Kept>,
}

/// What a recorder keeps.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) events: Vec<Event>,
    /// Events that came after the bound was reached, or faster than they were taken.
    pub(super) lost: u64,
}

impl Recorder {
    /// Keeps the first `most` events.
    pub(super) fn new(most: usize) -> Self {
        Self { most, kept: Mutex::default() }
    }

    /// Tells of an event.
    pub(crate) fn add(&self, event: Event) {
        let mut kept = self.kept();
        if kept.events.len() < self.most {
            kept.events.push(event);
        } else {
            kept.lost += 1;
        }
    }

    /// Tells of events that it cannot be told of.
    pub(crate) fn lose(&self, events: u64) {
        self.kept().lost += events;
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, Kept> {
        // Each change of it is one step, so a panic elsewhere left it whole.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_the_bound_is_counted_and_the_beginning_kept() {
        let recorder = Recorder::new(8);
        std::thread::scope(|scope| {
            for pe in 0..4 {
                let recorder = &recorder;
                scope.spawn(move || {
                    for begin_ns in 0..5 {
                        recorder.add(Event {
                            pe,
                            track: "stream 0".into(),
                            block: None,
                            name: "kernel".into(),
                            begin_ns,
                            end_ns: begin_ns + 1,
                            args: Vec::new(),
                        });
                    }
                });
            }
        });
        let kept = recorder.kept();
        assert_eq!((kept.events.len(), kept.lost), (8, 12));
        for pe in 0..4 {
            let begins: Vec<u64> =
                kept.events.iter().filter(|event| event.pe == pe).map(|event| event.begin_ns).collect();
            assert_eq!(begins, Vec::from_iter(0..begins.len() as u64));
        }
    }
}
