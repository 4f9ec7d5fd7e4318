//! The words that network cards count with.

/// A word of 8 bytes for atomics by network cards: counters and locks of PEs on several hosts.
///
/// A card's atomics are atomic with those of the same card and with nothing else: not with a GPU's, nor a CPU's. So that nobody mixes
/// them, a `NicWord` is not plain data, nothing but `Ctx::nic_fetch_add`, `Ctx::nic_add` and `Ctx::nic_compare_exchange` touches it,
/// and these go by one way in a world:
///
/// - Where every PE's card does atomics on its heap (RDMA; `World::machine` says "NIC atomics"), by the card of the PE whose word it
///   is, whoever asks: a peer on another host, one of the same host, or that PE itself. No thread of the peer takes part.
/// - Else as all atomics go: by the processors where loads and stores reach, and by the peer's proxy where they do not.
///
/// It begins as 0, and is read by adding 0.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct NicWord(u64);

const _: () = assert!(size_of::<NicWord>() == 8 && align_of::<NicWord>() == 8);
