//! How many blocks of a kernel run at once, asked before a launch.

use congruent_device::Kernel;

use crate::cuda::Entry;
use crate::machine::Machine;
use crate::{Grid, LaunchError, World, launch};

/// How many blocks of a kernel run at once, each of so many threads and with so much shared memory: what [`World::occupancy`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Occupancy {
    /// Blocks that a multiprocessor holds at once.
    pub blocks_per_multiprocessor: u32,
    /// Multiprocessors of the device, which other PEs may compute on as well. The CPU machine counts as one.
    pub multiprocessors: u32,
    /// Blocks of this PE that run at once while nothing else runs: an even part of the device's where PEs share it, and no more than
    /// `CONGRUENT_MAX_BLOCKS` where the kernel waits.
    pub resident_blocks: u32,
    /// Whether the kernel may wait for other blocks or PEs. Then all blocks of a launch have to run at once, and one of more than
    /// `resident_blocks`, less what this PE's other streams run, is refused. On the CPU machine every kernel counts as one that does not say
    /// `blocks(independent)`.
    pub waits: bool,
}

impl World {
    /// How many blocks of a kernel run at once on this PE's device, if each has `threads` threads and `shared` bytes of shared memory of
    /// dynamic length: for a grid that fills the device, or that fits where the kernel waits.
    ///
    /// ```
    /// use congruent::Grid;
    /// use congruent::device::kernels;
    ///
    /// kernels! {
    ///     /// Every block of every PE is there.
    ///     pub fn meet(block, ctx) {
    ///         ctx.barrier(block, &ctx.world());
    ///     }
    /// }
    ///
    /// congruent::local(2, |world| {
    ///     let stream = world.stream()?;
    ///     let most = world.occupancy(meet, 128, 0)?.resident_blocks;
    ///     world.run(&stream, meet, Grid::new(most.min(4), 128), ())?;
    ///     Ok::<_, congruent::Error>(())
    /// })?;
    /// # Ok::<_, congruent::Error>(())
    /// ```
    ///
    /// # Errors
    /// Where blocks of so many threads and so much shared memory cannot be launched, as of a [`launch`](World::launch); where there is no
    /// PTX of the kernel.
    pub fn occupancy<K: Kernel>(&self, kernel: K, threads: u32, shared: u32) -> Result<Occupancy, LaunchError> {
        let _only_its_type_matters = kernel;
        self.check()?;
        let grid = Grid::one(threads).with_shared(shared);
        launch::block_fits::<K>(grid)?;
        let slots = self.shared().context().block_slots;
        match self.shared().machine() {
            Machine::Cpu(_) => Ok(Occupancy {
                blocks_per_multiprocessor: slots,
                multiprocessors: 1,
                resident_blocks: slots,
                waits: !K::INDEPENDENT,
            }),
            Machine::Cuda(pe) => pe.occupancy(&Entry::of::<K>(), grid, slots),
        }
    }
}
