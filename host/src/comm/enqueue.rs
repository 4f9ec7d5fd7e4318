//! How a call that has been checked gets to its stream: at once, or with its group.

use congruent_collectives::exchange::Parts;
use congruent_collectives::{Algorithm, Collective, Datatype, Listed, Op, Protocol, Reduction, Transfer};
use congruent_device::{KernelArg, Sym};
use congruent_kernels as kernels;

use super::checked::Description;
use super::{CallGroup, Comm, FixedArgs, FixedKernel, TRANSFERS, WARP};
use crate::launch::Target;
use crate::launches::Launcher;
use crate::{Grid, LaunchError, Stream, select};

/// Where a [`Comm`]'s calls go: to a [`Stream`], or into a [`CallGroup`].
#[expect(private_bounds, reason = "what a queue does with a call is nobody else's business")]
pub trait Queue: Take {}

impl Queue for Stream {}
impl Queue for CallGroup<'_> {}

/// Takes calls that have been checked.
pub(super) trait Take {
    /// The stream that a communicator's calls go to.
    fn stream(&self, comm: &Comm) -> Result<&Stream, LaunchError>;
    /// A collective.
    fn take(&self, comm: &Comm, call: Call) -> Result<(), LaunchError>;
    /// A send or a receive.
    #[track_caller]
    fn transfer(&self, comm: &Comm, way: Way, transfer: Transfer) -> Result<(), LaunchError>;
}

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Send,
    Receive,
}

/// A collective that may be launched.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub(super) collective: Collective,
    pub(super) algorithm: Algorithm,
    pub(super) protocol: Protocol,
    /// Of its launch; as many blocks on all members.
    pub(super) grid: Grid,
    pub(super) reduction: Option<Reduction>,
    /// Whether its scalar is this member's own.
    pub(super) own_scalars: bool,
    pub(super) dst: Sym<u8>,
    pub(super) src: Sym<u8>,
    pub(super) root: u32,
    /// What is received and sent, where each member says that itself.
    pub(super) parts: Option<(Parts, Parts)>,
    /// Elements of a member's part, and bytes of an element: for checked mode.
    pub(super) count: usize,
    pub(super) element: usize,
    pub(super) by: Launcher,
}

impl Call {
    /// Operator and type of a reduction.
    pub(super) fn operator(&self) -> Option<(Op, Datatype)> {
        self.reduction.map(|reduction| (reduction.op(), reduction.datatype()))
    }
}

impl Take for Stream {
    fn stream(&self, _: &Comm) -> Result<&Stream, LaunchError> {
        Ok(self)
    }

    fn take(&self, comm: &Comm, call: Call) -> Result<(), LaunchError> {
        comm.enqueue(self, &call)
    }

    #[track_caller]
    fn transfer(&self, comm: &Comm, way: Way, transfer: Transfer) -> Result<(), LaunchError> {
        comm.group(self, |group| group.transfer(comm, way, transfer))
    }
}

impl Comm {
    /// Refuses what no launch on the stream may be given.
    pub(super) fn admit(&self, stream: &Stream, kernel: &'static str, fit: &[&dyn Fits]) -> Result<(), LaunchError> {
        self.shared.check_in_full()?;
        if !stream.is_of(&self.shared) {
            return Err(LaunchError::ForeignStream);
        }
        let heap_bytes = self.shared.context().heap_bytes;
        if !fit.iter().all(|one| one.fit(heap_bytes)) {
            return Err(LaunchError::ForeignArgument { kernel });
        }
        Ok(())
    }

    /// Puts a collective at the end of the stream, after the comparison that checked mode wants.
    pub(super) fn enqueue(&self, stream: &Stream, call: &Call) -> Result<(), LaunchError> {
        let target = self.target(stream, call.grid, call.by);
        let mut view = self.view(stream, call.protocol)?;
        let number = self.count(stream);
        let Call { collective, algorithm, protocol, count, element, .. } = *call;
        tracing::trace!(
            pe = self.shared.pe(),
            number,
            "{collective} of {} bytes by {algorithm} over {protocol}",
            count * element
        );
        if self.options.check == Some(true) {
            view = view.abort_aware();
            let Call { own_scalars, root, .. } = *call;
            let description = Description {
                number,
                collective,
                algorithm: self.number(algorithm),
                protocol,
                reduction: call.operator(),
                own_scalars,
                members: self.size(),
                count,
                root,
                element,
            };
            let one = self.target(stream, Grid::one(WARP), call.by);
            let words = description.words();
            let simple = self.view(stream, Protocol::Simple)?.abort_aware();
            one.launch(kernels::agree_on, (congruent_collectives::Description { words }, simple))?;
        }
        if let (Algorithm::TWO_LEVEL, Some(levels)) = (algorithm, &self.levels) {
            return levels.enqueue(self, stream, call);
        }
        let Call { dst, src, root, .. } = *call;
        match (call.collective, call.parts, call.reduction) {
            (Collective::Barrier, ..) => target.launch(kernels::meet, (view, 1)),
            (Collective::AllToAllV, Some((receives, sends)), _) => {
                target.launch(kernels::all_to_all_v_direct, (dst, src, receives, sends, view, 1))
            }
            (Collective::AllGatherV, Some((parts, _)), _) => {
                target.launch(kernels::all_gather_v_direct, (dst, src, parts, view, 1))
            }
            (collective, _, reduction) => {
                let kernel = FixedKernel::find(self.algorithms, collective, algorithm)
                    .ok_or(LaunchError::NoSuchKernel { collective, algorithm })?;
                kernel.launch_on(&target, FixedArgs { dst, src, reduction, root, plan: view, rounds: 1 })
            }
        }
    }

    /// Puts sends and receives at the end of the stream, as one launch. Both together are at most [`TRANSFERS`].
    pub(super) fn exchange(
        &self,
        stream: &Stream,
        sends: &[[u64; 3]],
        receives: &[[u64; 3]],
        by: Launcher,
    ) -> Result<(), LaunchError> {
        let memory = Sym::from_raw(0, self.shared.context().heap_bytes);
        // The stream's first call gives it its place.
        self.view(stream, Protocol::Simple)?;
        let known = self.streams().iter().position(|known| known.stream == stream.id());
        let list = known.unwrap_or(0) * TRANSFERS;
        let full = |_| LaunchError::GroupFull { fits: TRANSFERS };
        let whole = self.lists.slice(list..list + sends.len() + receives.len()).map_err(full)?;
        let (to, from) = (whole.slice(..sends.len()), whole.slice(sends.len()..));
        // The stream writes the list, after the group before has read it, so the host waits for neither; and what a graph of it has
        // captured writes the list anew at each launch.
        stream.runner().write(
            &self.shared,
            Sym::from_raw(whole.offset(), 3 * whole.len() as u64),
            [sends, receives].concat().concat(),
        )?;
        self.launch_transfers(stream, memory, Listed { sends: to, receives: from }, by)
    }

    /// The same of lists that are there.
    pub(super) fn launch_transfers(
        &self,
        stream: &Stream,
        memory: Sym<u8>,
        transfers: Listed,
        by: Launcher,
    ) -> Result<(), LaunchError> {
        let view = self.view(stream, Protocol::Simple)?;
        self.target(stream, self.grid(), by).launch(kernels::send_recv_direct, (memory, transfers, view, 1))
    }

    /// The number by which members compare algorithms.
    fn number(&self, algorithm: Algorithm) -> usize {
        select::known(self.algorithms).iter().position(|one| *one == algorithm).unwrap_or(usize::MAX)
    }

    fn target<'t>(&'t self, stream: &'t Stream, grid: Grid, by: Launcher) -> Target<'t> {
        Target { shared: &self.shared, stream, grid, by }
    }
}

/// An argument, whatever its type.
pub(super) trait Fits {
    fn fit(&self, heap_bytes: u64) -> bool;
}

impl<A: KernelArg> Fits for A {
    fn fit(&self, heap_bytes: u64) -> bool {
        self.fits(heap_bytes)
    }
}
