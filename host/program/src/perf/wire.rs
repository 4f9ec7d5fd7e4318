//! What really moves between PEs.

use congruent_collectives::{Call, Collective, Descriptor, Layout, Share};
use congruent_device::Sym;

/// What a member tells each other one before parts of any length go, and before a message goes.
const NOTE: usize = 24;

/// Bytes that the busiest member stores to others and loads from them, with the flags of packets and without the signals that
/// go with data. `element` is bytes of an element.
pub(super) fn wire_bytes(layout: &Layout, of: &Descriptor, call: &Call, element: usize) -> u64 {
    let (n, part) = (layout.members(), call.bytes / layout.members());
    if n <= 1 {
        return 0;
    }
    // Half of a part, in whole elements.
    let half = part / element / 2 * element;
    let moved = match of.collective {
        // The longest part is half as long again as the mean.
        Collective::AllGatherV => (n - 1) * (part + half + NOTE),
        Collective::AllToAllV if n.is_multiple_of(2) => call.bytes - part - half + (n - 1) * NOTE,
        Collective::AllToAllV => (n - 1) * (part + NOTE),
        Collective::SendRecv => call.bytes + NOTE,
        Collective::Barrier if n <= 8 => 8 * (n - 1),
        Collective::Barrier => 8 * n.next_power_of_two().ilog2() as usize,
        // What a member loads is combined, and what it stores is replicated, on the way.
        collective if of.multicast => match collective {
            Collective::AllReduce => 2 * Share::new(0, n).of(Sym::<u8>::from_raw(0, call.bytes as u64)).len(),
            Collective::Broadcast => call.bytes,
            _ => part,
        },
        _ => (0..n).map(|member| by(layout, of, call, member)).max().unwrap_or(0),
    };
    moved as u64
}

/// Bytes that one member moves.
fn by(layout: &Layout, of: &Descriptor, call: &Call, member: usize) -> usize {
    let mut bytes = 0;
    layout.moves(of, call, member, |one| bytes += one.wire);
    bytes
}
