//! What is known of a call when its algorithm is chosen.

use congruent_collectives::{Datatype, Op, Protocol};

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
    /// Whether loads and stores reach every member, without the proxy.
    pub all_direct: bool,
    /// Whether the team has multicast addresses.
    pub multicast: bool,
    /// Whether LL128 may be used.
    pub ll128: Ll128State,
    /// Bytes of a plan's scratch for each block slot: `CONGRUENT_BUFFSIZE`.
    pub buffer: u64,
    /// Blocks that share the call, each with a slot of the scratch.
    pub blocks: u32,
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

/// The bytes that one member can send to each other in one step of a one-shot algorithm, through one block slot.
///
/// The slot holds a part for every member, twice, so that a call does not overwrite what a slow member has yet to read of
/// the call before. LL spends half of it on flags, LL128 at most an eighth (a line of 64 bytes has one flag of 8).
pub const fn one_shot_capacity(protocol: Protocol, members: usize, buffer: u64) -> u64 {
    let part = buffer / (2 * if members == 0 { 1 } else { members as u64 });
    match protocol {
        Protocol::Simple => part,
        Protocol::Ll => part / 2,
        Protocol::Ll128 => part / 8 * 7,
    }
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
            all_direct: true,
            multicast: false,
            ll128: Ll128State::Disabled,
            buffer: 1 << 20,
            blocks: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_two_rounds_of_every_member() {
        assert_eq!(one_shot_capacity(Protocol::Ll, 2, 1 << 20), 128 << 10);
        assert_eq!(one_shot_capacity(Protocol::Ll, 64, 1 << 20), 4 << 10);
        assert_eq!(one_shot_capacity(Protocol::Ll128, 4, 1 << 20), 112 << 10);
        assert_eq!(one_shot_capacity(Protocol::Simple, 1, 1 << 20), 512 << 10);
    }
}
