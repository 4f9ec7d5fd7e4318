//! Blocks that have to run at once. A kernel that waits for another PE holds its multiprocessors until that PE's kernel runs; so
//! kernels that wait have to fit on the device together, those of all streams, or none of them may ever go on.
//!
//! A PE has its part of a device that it shares, as the others launch by themselves. Blocks take at most an `n`-th of a
//! multiprocessor of which `n` fit, so as long as there are fewer than `n` for each, one with room for another is left, wherever
//! they are; the largest blocks say what `n` is.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::CudaPe;
use super::module::Entry;
use super::stream_state::StreamState;
use crate::{Grid, LaunchError, Occupancy};

/// The kernels of a PE that wait and may run, by their streams; and what is kept free for kernels that they may wait for.
#[derive(Default)]
pub(super) struct Residents(Mutex<Vec<Resident>>, OnceLock<Need>);

/// What a stream has.
struct Resident {
    state: Weak<StreamState>,
    need: Need,
    launching: Launching,
}

/// Held while a kernel that was admitted is launched: until then its stream is idle, and the kernel counts all the same.
#[derive(Clone, Default)]
#[must_use]
pub(super) struct Launching(Arc<()>);

/// What a kernel holds while it runs, or the most that any of several holds that run one after the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Need {
    pub(super) blocks: u32,
    /// How many of them fit on a multiprocessor.
    pub(super) of_sm: u32,
}

impl Need {
    pub(super) fn and(self, other: Self) -> Self {
        Self { blocks: self.blocks.max(other.blocks), of_sm: self.of_sm.min(other.of_sm) }
    }
}

impl Residents {
    fn lock(&self) -> MutexGuard<'_, Vec<Resident>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps room for a kernel that others may wait for, from now on. Once.
    pub(super) fn keep_free(&self, need: Need) {
        self.1.get_or_init(|| need);
    }

    /// What is kept free.
    pub(super) fn free(&self) -> Option<Need> {
        self.1.get().copied()
    }

    /// Counts what a stream is given until it is launched and the stream is idle, if that fits beside what other streams have, on a
    /// device of `sms` multiprocessors that `sharing` PEs have.
    pub(super) fn admit(
        &self,
        state: &Arc<StreamState>,
        need: Need,
        sms: u32,
        sharing: u32,
    ) -> Result<Launching, LaunchError> {
        let mut all = self.lock();
        all.retain(Resident::counts);
        let own = |one: &Resident| std::ptr::eq(one.state.as_ptr(), Arc::as_ptr(state));
        let others: Vec<Need> = all.iter().filter(|one| !own(one)).map(|one| one.need).chain(self.free()).collect();
        fits(need, &others, sms, sharing)?;
        if let Some(before) = all.iter_mut().find(|one| own(one)) {
            before.need = before.need.and(need);
            return Ok(before.launching.clone());
        }
        let launching = Launching::default();
        all.push(Resident { state: Arc::downgrade(state), need, launching: launching.clone() });
        Ok(launching)
    }
}

impl Resident {
    /// Whether something of it is being launched or may run.
    fn counts(&self) -> bool {
        let launching = Arc::strong_count(&self.launching.0) > 1;
        launching || self.state.upgrade().is_some_and(|state| !state.is_idle())
    }
}

impl CudaPe {
    /// How many blocks of a kernel run at once that are as the grid has them. Those of one that waits have `slots` at most.
    pub(crate) fn occupancy(&self, entry: &Entry, grid: Grid, slots: u32) -> Result<Occupancy, LaunchError> {
        self.device.bind()?;
        let function = self.modules.function(entry)?;
        function.block_fits(entry.name, grid)?;
        let (of_sm, waits) = (function.need(grid)?.of_sm, function.waits());
        let (sms, sharing) = (self.device.properties.sms, self.device.sharing());
        let most = if waits { slots } else { u32::MAX };
        let free = if waits { self.residents.free().map_or(0, |need| need.blocks) } else { 0 };
        let resident_blocks = at_once(of_sm, sms, sharing).saturating_sub(free).min(most);
        Ok(Occupancy { blocks_per_multiprocessor: of_sm, multiprocessors: sms, resident_blocks, waits })
    }
}

/// How many blocks a PE can have at once.
fn at_once(of_sm: u32, sms: u32, sharing: u32) -> u32 {
    of_sm.saturating_mul(sms) / sharing.max(1)
}

/// Whether it fits beside what others have.
pub(super) fn fits(need: Need, others: &[Need], sms: u32, sharing: u32) -> Result<(), LaunchError> {
    let of_sm = others.iter().fold(need.of_sm, |of_sm, other| of_sm.min(other.of_sm));
    let running = others.iter().fold(0_u32, |running, other| running.saturating_add(other.blocks));
    let fits = at_once(of_sm, sms, sharing).saturating_sub(running);
    let asked = need.blocks;
    if asked > fits { Err(LaunchError::NotCoresident { asked, fits, running }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(need: (u32, u32), others: &[(u32, u32)], sharing: u32) -> Option<(u32, u32)> {
        let need_of = |&(blocks, of_sm): &(u32, u32)| Need { blocks, of_sm };
        let others: Vec<_> = others.iter().map(need_of).collect();
        match fits(need_of(&need), &others, 10, sharing) {
            Err(LaunchError::NotCoresident { fits, running, .. }) => Some((fits, running)),
            other => other.map(|()| None).unwrap(),
        }
    }

    #[test]
    fn blocks_fit_beside_those_that_run_and_the_largest_say_how_many() {
        assert_eq!(refused((20, 2), &[], 1), None);
        assert_eq!(refused((21, 2), &[], 1), Some((20, 0)));
        assert_eq!(refused((12, 2), &[(8, 2)], 1), None);
        assert_eq!(refused((13, 2), &[(8, 2)], 1), Some((12, 8)));
        // One on each multiprocessor leaves none whole.
        assert_eq!(refused((1, 1), &[(10, 2)], 1), Some((0, 10)));
        assert_eq!(refused((6, 4), &[(2, 1), (2, 2)], 1), None);
        assert_eq!(refused((7, 4), &[(2, 1), (2, 2)], 1), Some((6, 4)));
    }

    #[test]
    fn pes_that_share_a_device_have_a_part_of_it_each() {
        assert_eq!(refused((5, 2), &[], 4), None);
        assert_eq!(refused((6, 2), &[], 4), Some((5, 0)));
        assert_eq!(refused((3, 2), &[(3, 2)], 4), Some((2, 3)));
    }
}
