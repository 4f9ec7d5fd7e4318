//! A block: its warps, its shared memory and its barriers.

use std::collections::HashMap;
use std::sync::Arc;

use crate::alu::matrix;
use crate::fault::Cause;
use crate::machine::Counts;
use crate::memory::{AddressMap, Segment};
use crate::order::{Meeting, Order};
use crate::program::Program;
use crate::schedule::Chance;
use crate::warp::{Group, LANES, State, Stop, Warp};
use crate::watch::{Watches, Who};

/// What a warp sees of the world while it runs.
pub(crate) struct Surroundings<'a> {
    pub(crate) program: &'a Program,
    pub(crate) map: Arc<AddressMap>,
    /// Addresses of the module's variables.
    pub(crate) globals: &'a [u64],
    pub(crate) shared: &'a Arc<Segment>,
    /// Where the shared variables are.
    pub(crate) shared_places: &'a [u64],
    pub(crate) params: &'a Arc<Segment>,
    pub(crate) dynamic_shared: u32,
    pub(crate) threads: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) blocks: [u32; 3],
    pub(crate) grid: u64,
    pub(crate) sm: u32,
    pub(crate) sms: u32,
    /// In nanoseconds.
    pub(crate) time: u64,
    pub(crate) round: u64,
    pub(crate) who: Who,
    pub(crate) watches: &'a mut Watches,
    pub(crate) chance: &'a mut Chance,
    /// Barriers that lanes have arrived at without waiting, and which lanes.
    pub(crate) arrivals: Vec<(u32, u32)>,
    /// The bit that the next store in the scope of the system inverts.
    pub(crate) flip: Option<u32>,
    /// In which order `mma` adds.
    pub(crate) sums: matrix::Order,
    /// Where the order of accesses is kept.
    pub(crate) order: Option<&'a mut Order>,
    /// Where it is counted what is executed.
    pub(crate) counts: Option<&'a mut Counts>,
}

impl Surroundings<'_> {
    /// Who watches, of this block.
    pub(crate) fn who(&self, warp: u32) -> Who {
        Who { warp, ..self.who }
    }
}

pub(crate) struct Block {
    /// Which block of the launch it is.
    pub(crate) number: u64,
    pub(crate) index: [u32; 3],
    pub(crate) sm: u32,
    pub(crate) shared: Arc<Segment>,
    pub(crate) warps: Vec<Warp>,
    /// Lanes that have arrived without waiting, by barrier, and what they knew.
    arrived: HashMap<u32, (u32, Meeting)>,
}

impl Block {
    pub(crate) fn new(
        number: u64,
        blocks: [u32; 3],
        threads: u32,
        shared: u64,
        sm: u32,
        program: &Program,
        entry: usize,
    ) -> Self {
        let [width, height, _] = blocks.map(u64::from);
        let index = [number % width, number / width % height, number / (width * height)].map(|part| part as u32);
        let warp = |warp: u32| {
            let lanes = (threads - warp * LANES as u32).min(LANES as u32);
            Warp::new(warp, u32::MAX >> (LANES as u32 - lanes), program, entry)
        };
        let mut warps: Vec<Warp> = (0..threads.div_ceil(LANES as u32)).map(warp).collect();
        if program.codes[entry].local_bytes > 0 {
            warps.iter_mut().for_each(Warp::need_local);
        }
        let shared = Segment::zeroed(shared);
        shared.begin_unwritten();
        Self { number, index, sm, shared, warps, arrived: HashMap::new() }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.warps.iter().all(|warp| warp.alive == 0)
    }

    /// Runs one warp, and lets go whom it has released.
    pub(crate) fn run(&mut self, warp: usize, around: &mut Surroundings<'_>, budget: u32) -> Result<u64, Stop> {
        let executed = self.warps[warp].run(around, budget)?;
        for (id, lanes) in around.arrivals.drain(..) {
            // How many threads it needs is said by those who wait.
            let (count, meeting) = self.arrived.entry(id).or_default();
            *count += lanes.count_ones();
            self.warps[warp].past.iter().for_each(|past| meeting.come(past, lanes));
        }
        self.release();
        Ok(executed)
    }

    /// Lets go who is at a barrier that all have reached.
    fn release(&mut self) {
        let waits = self.warps.iter().flat_map(|warp| &warp.groups);
        let mut ids: Vec<u32> = waits
            .filter_map(|group| match group.state {
                State::Barrier { id, .. } => Some(id),
                _ => None,
            })
            .collect();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            self.release_one(id);
        }
    }

    fn release_one(&mut self, id: u32) {
        let alive: u32 = self.warps.iter().map(|warp| warp.alive.count_ones()).sum();
        let (mut here, mut truths, mut needed) = (0, 0, alive);
        for group in self.warps.iter().flat_map(|warp| &warp.groups) {
            let State::Barrier { id: own, count, value, .. } = group.state else { continue };
            if own == id {
                here += group.lanes.count_ones();
                truths += value.count_ones();
                needed = count.unwrap_or(needed);
            }
        }
        let arrived = self.arrived.get(&id).map_or(0, |(lanes, _)| *lanes);
        if here + arrived < needed {
            return;
        }
        let (_, mut meeting) = self.arrived.remove(&id).unwrap_or_default();
        let waits = |group: &Group| matches!(group.state, State::Barrier { id: own, .. } if own == id);
        for warp in &self.warps {
            let lanes = warp.groups.iter().filter(|group| waits(group)).fold(0, |lanes, group| lanes | group.lanes);
            warp.past.iter().for_each(|past| meeting.come(past, lanes));
        }
        let known = meeting.leave();
        for warp in &mut self.warps {
            for group in 0..warp.groups.len() {
                if waits(&warp.groups[group]) {
                    let lanes = warp.groups[group].lanes;
                    warp.past.iter_mut().for_each(|past| past.met(lanes, &known));
                    warp.pass_barrier(group, truths, truths == here, truths > 0);
                }
            }
            warp.join();
        }
    }

    /// Why nobody can go on, if that is so: not for others, but for each other.
    pub(crate) fn stood_still(&self, program: &Program) -> Option<Cause> {
        let stands = |warp: &Warp| !warp.is_ready() && !warp.is_parked();
        if self.has_ended() || !self.warps.iter().all(stands) {
            return None;
        }
        Some(Cause::StoodStill { waiting: self.waiting(program).join("; ") })
    }

    /// Who waits for what.
    pub(crate) fn waiting(&self, program: &Program) -> Vec<String> {
        let mut waiting = Vec::new();
        for warp in &self.warps {
            for group in &warp.groups {
                let (code, at) = warp.place(group);
                let what = match &group.state {
                    State::Barrier { id, count, .. } => {
                        let count = count.map_or("all".to_owned(), |count| count.to_string());
                        format!("for {count} threads at barrier {id}")
                    }
                    State::Aligned => "for the other lanes of the warp".to_owned(),
                    State::Sync { mask } => format!("for the lanes {mask:#010x}"),
                    State::Parked { at } => format!("for the word at {at:#x} to change"),
                    State::Ready => continue,
                };
                // Who polls stands behind the instruction that it polls by.
                let at = at - usize::from(matches!(group.state, State::Parked { .. }));
                let (line, text, source) = program.place(&program.codes[code].instructions[at]);
                let source = source.map_or(String::new(), |source| format!(" ({source})"));
                let (index, lanes) = (warp.index, group.lanes);
                waiting.push(format!("lanes {lanes:#010x} of warp {index} wait {what} in line {line}: {text}{source}"));
            }
        }
        waiting
    }
}
