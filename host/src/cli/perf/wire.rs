//! What really moves between PEs.

use congruent_collectives::{Algorithm, Collective, Layout, Protocol, Share};
use congruent_device::{Sym, packed_words};

/// The call that moves something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) collective: Collective,
    pub(super) algorithm: Algorithm,
    pub(super) protocol: Protocol,
    pub(super) members: usize,
    /// As nccl-tests count: of all parts together where there is one for each member.
    pub(super) bytes: usize,
    /// Bytes of an element.
    pub(super) element: usize,
    /// Blocks that share it, and their scratch.
    pub(super) blocks: u32,
    pub(super) layout: Layout,
}

/// What a member tells each other one before parts of any length go, and before a message goes.
const NOTE: usize = 32;
const ENTRY: usize = 24;

/// Bytes that the busiest member stores to others and loads from them, with the flags of packets and without the signals that
/// go with data. A few more are possible: packets are filled up, piece by piece.
pub(super) fn wire_bytes(call: Call) -> u64 {
    let Call { collective, algorithm, members: n, bytes, .. } = call;
    if n <= 1 {
        return 0;
    }
    let part = bytes / n;
    // The ring's chunks, of which each member sends all but its own, and all but the next one's.
    let chunk = |c: usize| Share::new(c % n, n).of(Sym::<u8>::from_raw(0, bytes as u64)).len();
    let log = |n: usize| n.next_power_of_two().ilog2() as usize;
    let moved = match (collective, algorithm) {
        (Collective::AllReduce, Algorithm::Ring) => {
            let kept = (0..n).map(|c| chunk(c) + chunk(c + 1)).min().unwrap_or(0);
            call.packed(2 * bytes - kept)
        }
        (Collective::AllReduce, Algorithm::OneShot) => (n - 1) * call.packed(bytes),
        (Collective::AllReduce, Algorithm::Direct) => 2 * (n - 1) * chunk(0),
        // What a member loads is combined and what it stores is replicated on the way.
        (Collective::AllReduce, Algorithm::Multimem) => 2 * chunk(0),
        (Collective::ReduceScatter | Collective::AllGather, Algorithm::Multimem) => part,
        (Collective::AllReduce, Algorithm::Recursive) => recursive_all_reduce(&call),
        (Collective::AllReduce, Algorithm::Tree) => two_trees(&call),
        (Collective::Broadcast, Algorithm::Tree) => call.packed(bytes) * if n > 3 { 2 } else { 1 },
        (Collective::Reduce, Algorithm::Direct) => n * chunk(0),
        (Collective::Gather | Collective::Scatter, _) => part,
        (Collective::AllToAll, Algorithm::Bruck) => {
            // A part travels as many hops as its distance has ones.
            let hops: u32 = (1..n).map(|distance| distance.count_ones()).sum();
            hops as usize * part
        }
        // The longest part is half as long again as the mean.
        (Collective::AllGatherV, _) => (n - 1) * (part + call.half(part) + NOTE),
        (Collective::AllToAllV, _) if n.is_multiple_of(2) => bytes - part - call.half(part) + (n - 1) * NOTE,
        (Collective::AllToAllV, _) => (n - 1) * (part + NOTE),
        (Collective::SendRecv, _) => bytes + ENTRY,
        (Collective::AllReduce | Collective::Broadcast | Collective::Reduce, _) => call.packed(bytes),
        (Collective::Barrier, Algorithm::Direct) => 8 * (n - 1),
        (Collective::Barrier, _) => 8 * log(n),
        _ => (n - 1) * call.packed(part),
    };
    moved as u64
}

/// The whole to each partner while a block's share is one piece, else halves; and once more to a member that does not take part.
fn recursive_all_reduce(call: &Call) -> usize {
    let Call { members, bytes, blocks, layout, .. } = *call;
    let steps = members.ilog2() as usize;
    let low = 1 << steps;
    let piece = if call.protocol == Protocol::Simple { layout.piece() } else { layout.piece() / 2 };
    let whole = Share::largest::<u8>(bytes, blocks as usize).min(bytes) <= piece;
    let exchanged = if whole { steps * call.packed(bytes) } else { call.packed(2 * (bytes - bytes / low)) };
    exchanged + if members > low { call.packed(bytes) } else { 0 }
}

/// A member sends its half of a tree to its parent and to each of up to two children, and of the other tree it is a leaf.
fn two_trees(call: &Call) -> usize {
    let larger = Share::largest::<u8>(call.bytes, 2).min(call.bytes);
    let neighbours = (call.members - 1).min(3);
    neighbours * call.packed(larger) + call.packed(call.bytes - larger)
}

impl Call {
    /// Half of a part, in whole elements.
    fn half(&self, part: usize) -> usize {
        part / self.element / 2 * self.element
    }

    /// So much data with its flags.
    fn packed(&self, bytes: usize) -> usize {
        match self.protocol {
            Protocol::Simple => bytes,
            Protocol::Ll => 8 * packed_words(bytes, 0),
            Protocol::Ll128 => 8 * packed_words(bytes, Layout::LINE_BYTES),
        }
    }
}
