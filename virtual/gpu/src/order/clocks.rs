//! What is known of the past: vector clocks, and what lanes hand each other at barriers.

use std::sync::Arc;

use super::places::Places;
use super::{LANES, Past};

/// What is known of the past: for each warp, up to which clock, and for each stream, which launches have ended.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Clocks(Vec<(u32, Known)>);

/// What a stream's number has beside those of warps, as its clock counts ends of launches.
pub(super) const STREAM: u32 = 1 << 31;

/// What is known of one warp: up to which clock of all its lanes, and of single ones.
#[derive(Clone, PartialEq)]
struct Known {
    pub(super) all: u32,
    pub(super) lanes: Option<Box<[u32; LANES]>>,
}

impl Clocks {
    pub(super) fn knows(&self, warp: u32, lane: u8, clock: u32) -> bool {
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

    pub(super) fn learn(&mut self, warp: u32, lanes: u32, clock: u32) {
        let known = self.of(warp);
        if lanes == u32::MAX {
            known.all = known.all.max(clock);
            return;
        }
        let own = known.lanes.get_or_insert_with(|| Box::new([0; LANES]));
        crate::warp::lanes_of(lanes).for_each(|lane| own[lane] = own[lane].max(clock));
    }

    pub(super) fn join(&mut self, other: &Self) {
        for (warp, theirs) in &other.0 {
            let own = self.of(*warp);
            own.all = own.all.max(theirs.all);
            let Some(theirs) = &theirs.lanes else { continue };
            let lanes = own.lanes.get_or_insert_with(|| Box::new([0; LANES]));
            lanes.iter_mut().zip(theirs.iter()).for_each(|(own, their)| *own = (*own).max(*their));
        }
    }

    /// Leaves out warps whose launches are known to have ended: that says as much of them.
    pub(super) fn forget_ended(&mut self, places: &Places) {
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
    pub(super) all: Clocks,
    pub(super) aliased: Clocks,
}

impl Knowledge {
    pub(super) fn join(&mut self, other: &Self) {
        self.all.join(&other.all);
        self.aliased.join(&other.aliased);
    }

    pub(super) fn forget_ended(&mut self, places: &Places) {
        self.all.forget_ended(places);
        self.aliased.forget_ended(places);
    }
}

/// What lanes know that meet at a barrier: each of them knows it afterwards.
#[derive(Default)]
pub(crate) struct Meeting {
    pub(super) known: Knowledge,
    pub(super) joined: Vec<Arc<Knowledge>>,
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
