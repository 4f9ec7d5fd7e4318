//! Collectives that the host puts on a stream, without a kernel of the user's own.
//!
//! Each launches a fixed kernel; they are asynchronous, ordered on their stream, and concurrent across streams.

mod calls;
pub(crate) mod kernels;

use std::sync::{Arc, Mutex, PoisonError};

use congruent_collectives::{Algorithm, Collective, Layout, Protocol, View};
use congruent_device::{Tag, TeamView};

use crate::shared::Shared;
use crate::{AllocError, Grid, LaunchError, Plan, Stream, World};

/// A team with all that its collectives need: what NCCL calls a communicator. Made by [`World::comm`].
///
/// Every member makes the same calls in the same order on each stream, and uses streams for the first time in the same order.
pub struct Comm {
    shared: Arc<Shared>,
    team: TeamView,
    plan: Plan<Layout>,
    grid: Grid,
    /// Streams in the order of their first use: each has slots of its own, so that launches on several run at once.
    streams: Mutex<Vec<u64>>,
    forced: Option<(Algorithm, Protocol)>,
}

/// Streams of one [`Comm`] whose collectives may run at once.
pub const STREAMS: u32 = 4;

impl World {
    /// Makes a communicator of a team.
    ///
    /// # Collective
    /// Over the world, also where the team is smaller: the heaps stay alike. Teams of one call are of one size, or one PE
    /// gives the largest: use [`World::team`]'s size for PEs that are in none.
    ///
    /// # Errors
    /// See [`AllocError`].
    pub fn comm<G: Tag>(&mut self, team: TeamView<G>) -> Result<Comm, AllocError> {
        let grid = Grid::one(256);
        let plan = self.plan(Layout::new(team, grid.blocks * STREAMS))?;
        let shared = Arc::clone(self.shared());
        Ok(Comm { shared, team: team.untagged(), plan, grid, streams: Mutex::default(), forced: None })
    }
}

impl Comm {
    /// This PE's rank.
    pub fn rank(&self) -> usize {
        self.team.me()
    }

    /// How many members.
    pub fn size(&self) -> usize {
        self.team.size()
    }

    /// Makes every call take this algorithm and protocol.
    pub fn force(&mut self, algorithm: Algorithm, protocol: Protocol) {
        self.forced = Some((algorithm, protocol));
    }

    /// Which algorithm and protocol a call takes, of `bytes` bytes.
    fn choose(&self, collective: Collective, _bytes: u64) -> (Algorithm, Protocol) {
        let _by = collective;
        self.forced.unwrap_or((Algorithm::Direct, Protocol::Simple))
    }

    /// The plan, with the slots of this stream.
    fn view(&self, stream: &Stream) -> Result<View, LaunchError> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let known = streams.iter().position(|&id| id == stream.id());
        let ordinal = known.unwrap_or(streams.len());
        if ordinal >= STREAMS as usize {
            return Err(LaunchError::PlanStreams { fits: STREAMS });
        }
        if known.is_none() {
            streams.push(stream.id());
        }
        Ok(self.plan.view().from_slot(ordinal * self.grid.blocks as usize))
    }
}
