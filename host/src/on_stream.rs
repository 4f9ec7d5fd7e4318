//! Collectives that the host puts on a stream, without a kernel of the user's own.
//!
//! Each launches a fixed kernel; they are asynchronous, ordered on their stream, and concurrent across streams where each
//! stream has a plan of its own.

use congruent_collectives::{Op, ring};
use congruent_device::{Pod, Tag, TeamView};
use congruent_kernels::{self as kernels, Reducible};

use crate::{Grid, LaunchError, Plan, Stream, SymVec, World};

impl World {
    /// Waits on the stream until every member of the team has reached it.
    ///
    /// # Collective
    /// Over the team.
    ///
    /// # Errors
    /// As [`launch`](World::launch).
    pub fn team_barrier<G: Tag>(&self, stream: &Stream, team: TeamView<G>) -> Result<(), LaunchError> {
        self.launch(stream, kernels::barrier, Grid::one(32), (team.untagged(),))
    }

    /// Combines the members' `src` element by element into every member's `dst`, by the ring; `None` for `src` means `dst`.
    ///
    /// # Collective
    /// Over the team, with the same lengths, operator and grid.
    ///
    /// # Errors
    /// Where the lengths differ, and as [`launch`](World::launch).
    #[expect(clippy::too_many_arguments, reason = "each of them is the caller's to choose")]
    pub fn all_reduce<T: Reducible, G: Tag>(
        &self,
        stream: &Stream,
        grid: Grid,
        team: TeamView<G>,
        dst: &SymVec<T>,
        src: Option<&SymVec<T>>,
        op: Op,
        plan: &Plan<ring::Ring>,
    ) -> Result<(), LaunchError> {
        let src = src.unwrap_or(dst);
        if src.len() != dst.len() {
            return Err(LaunchError::Lengths { dst: dst.len(), src: src.len() });
        }
        self.fits(grid, plan)?;
        self.launch(stream, T::AllReduce::default(), grid, (team.untagged(), dst.view(), src.view(), op, plan.view()))
    }

    /// Combines the members' `buf` element by element, so that member `i` has chunk `i` of the result
    /// ([`Share`](congruent_collectives::Share)); the rest of `buf` is unspecified afterwards.
    ///
    /// # Collective
    /// Over the team, with the same length, operator and grid.
    ///
    /// # Errors
    /// As [`launch`](World::launch).
    pub fn reduce_scatter<T: Reducible, G: Tag>(
        &self,
        stream: &Stream,
        grid: Grid,
        team: TeamView<G>,
        buf: &SymVec<T>,
        op: Op,
        plan: &Plan<ring::Ring>,
    ) -> Result<(), LaunchError> {
        self.fits(grid, plan)?;
        self.launch(stream, T::ReduceScatter::default(), grid, (team.untagged(), buf.view(), op, plan.view()))
    }

    /// Gives every member every member's chunk of `buf` ([`Share`](congruent_collectives::Share)).
    ///
    /// # Collective
    /// Over the team, with the same length and grid.
    ///
    /// # Errors
    /// As [`launch`](World::launch).
    pub fn all_gather<T: Reducible, G: Tag>(
        &self,
        stream: &Stream,
        grid: Grid,
        team: TeamView<G>,
        buf: &SymVec<T>,
        plan: &Plan<ring::Ring>,
    ) -> Result<(), LaunchError> {
        self.fits(grid, plan)?;
        // Chunks start on multiples of 128 bytes, so those of the bytes are those of the elements.
        self.launch(stream, kernels::all_gather, grid, (team.untagged(), buf.view().cast::<u8>(), plan.view()))
    }

    /// Gives every member the `buf` of member `root`.
    ///
    /// # Collective
    /// Over the team, with the same length, root and grid.
    ///
    /// # Errors
    /// Where there is no such member, and as [`launch`](World::launch).
    pub fn broadcast<T: Pod, G: Tag>(
        &self,
        stream: &Stream,
        grid: Grid,
        team: TeamView<G>,
        buf: &SymVec<T>,
        root: usize,
        plan: &Plan<ring::Ring>,
    ) -> Result<(), LaunchError> {
        if root >= team.size() {
            return Err(LaunchError::Root { root, size: team.size() });
        }
        self.fits(grid, plan)?;
        let bytes = buf.view().cast::<u8>();
        self.launch(stream, kernels::broadcast, grid, (team.untagged(), bytes, root as u64, plan.view()))
    }

    fn fits(&self, grid: Grid, plan: &Plan<ring::Ring>) -> Result<(), LaunchError> {
        let fits = plan.shape().blocks();
        if grid.blocks > fits { Err(LaunchError::PlanBlocks { asked: grid.blocks, fits }) } else { Ok(()) }
    }
}
