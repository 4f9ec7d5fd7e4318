//! Values that tell where they come from, of any plain type, and their comparison byte by byte (a NaN equals itself).

use bytemuck::{Pod, bytes_of, bytes_of_mut};
use congruent::World;

/// The value that PE `pe` keeps at `i` in the buffer number `buffer`: as many different ones as the type has.
pub(super) fn value<T: Pod>(buffer: u64, pe: usize, i: usize) -> T {
    let mut value = T::zeroed();
    for (bytes, word) in bytes_of_mut(&mut value).chunks_mut(8).zip(0..) {
        // The finalizer of splitmix64 (Steele, Lea and Flood, 2014).
        let mut hash = (buffer << 56 | (pe as u64) << 48 | (i as u64) << 8 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.copy_from_slice(&(hash ^ hash >> 31).to_le_bytes()[..bytes.len()]);
    }
    value
}

/// The first `len` values of a buffer.
pub(super) fn values<T: Pod>(buffer: u64, pe: usize, len: usize) -> Vec<T> {
    (0..len).map(|i| value(buffer, pe, i)).collect()
}

/// The PEs after and before this one, in a ring.
pub(super) fn neighbours(world: &World) -> (usize, usize) {
    let (me, n) = (world.pe().index(), world.npes());
    ((me + 1) % n, (me + n - 1) % n)
}

/// Asserts that both hold the same bytes.
#[track_caller]
pub(super) fn assert_same<T: Pod>(found: &[T], expected: &[T], what: impl Fn() -> String) {
    assert_eq!(found.len(), expected.len(), "{}", what());
    let differs = found.iter().zip(expected).position(|(found, expected)| bytes_of(found) != bytes_of(expected));
    if let Some(i) = differs {
        let (found, expected) = (bytes_of(&found[i]), bytes_of(&expected[i]));
        panic!("{}, element {i}: found {found:02x?}, expected {expected:02x?}", what());
    }
}
