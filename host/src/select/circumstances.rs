//! What is known of a call when its algorithm is chosen.

use congruent_collectives::{Datatype, Op};

/// What is known of a call when its algorithm is chosen. The same on every member of the team.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Circumstances {
    /// Members of the team.
    pub members: usize,
    /// Bytes of the larger of a member's two buffers: of the whole for all-reduce, broadcast and reduce, of all members'
    /// parts together for gather, scatter, all-gather, reduce-scatter and all-to-all, of one message for send and receive.
    /// This is the `size` of nccl-tests.
    pub bytes: u64,
    /// Bytes of one element.
    pub element: usize,
    /// Operator and type of a reduction. `None` where nothing is reduced, and for a program's own operators.
    pub reduction: Option<(Op, Datatype)>,
    /// Whether each member multiplies what it contributes by a scalar of its own.
    pub own_scalars: bool,
    /// On how many hosts the members are, where several hosts have as many each, two or more, in the order of ranks; or else one.
    pub hosts: usize,
    /// Whether loads and stores reach every member, without the proxy.
    pub all_direct: bool,
    /// Whether the team has multicast addresses.
    pub multicast: bool,
    /// Whether LL128 may be used.
    pub ll128: Ll128State,
    /// Bytes of a plan's scratch for each block slot: of `CONGRUENT_BUFFSIZE`, the part that a block has.
    pub buffer: u64,
    /// The most blocks that share the call, each with a slot of the scratch.
    pub blocks: u32,
    /// Bytes of a call that are left to one block, where fewer may share it. 0 where all do.
    pub block_bytes: u64,
    /// The most threads of a block, and the fewest: a launch has as many as have something to do.
    pub threads: u32,
    /// As many as [`threads`](Self::threads) where somebody has said how many.
    pub fewest_threads: u32,
}

/// Whether LL128 may be used. Where the stores of a line may become visible out of order it corrupts data, so it is off
/// until asked for, and then tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ll128State {
    /// `CONGRUENT_LL128_ENABLE` is 0.
    Disabled,
    /// Its self-test saw a flag before the data of its line.
    Failed,
    /// It is enabled and has passed its self-test.
    Works,
}

#[cfg(test)]
impl Circumstances {
    /// Members on one CPU machine, and a sum of floats.
    pub(crate) fn plain(members: usize, bytes: u64) -> Self {
        Self {
            members,
            bytes,
            element: 4,
            reduction: Some((Op::Sum, Datatype::F32)),
            own_scalars: false,
            hosts: 1,
            all_direct: true,
            multicast: false,
            ll128: Ll128State::Disabled,
            buffer: 1 << 20,
            blocks: 1,
            block_bytes: 0,
            threads: 256,
            fewest_threads: 32,
        }
    }
}
