//! What lanes have for themselves: local memory.

use std::sync::Arc;

use super::{LANES, lanes_of};
use crate::fault::Cause;
use crate::memory::Segment;
use crate::order::Kind;

/// Bytes of local memory that a lane has at most.
pub(super) const LOCAL: u64 = 256 << 10;

/// Memory of the lanes, of each for itself.
pub(super) struct Local {
    pub(super) memory: Arc<Segment>,
    /// Which bytes were written, by words of eight.
    written: Vec<u8>,
}

impl Default for Local {
    fn default() -> Self {
        let bytes = LOCAL * LANES as u64;
        Self { memory: Segment::zeroed(bytes), written: vec![0; bytes as usize / 8] }
    }
}

impl Local {
    /// Remembers an access.
    ///
    /// # Errors
    /// If it reads what nobody wrote. Some of its bytes may be so: compilers copy what lies between the fields of a structure
    pub(super) fn access(&mut self, kind: Kind, offset: u64, bytes: u64) -> Result<(), Cause> {
        let (word, mask) = (offset as usize / 8, (((1_u16 << bytes) - 1) << (offset % 8)) as u8);
        if kind != Kind::Write && self.written[word] & mask == 0 {
            return Err(Cause::Unwritten { at: offset % LOCAL, bytes });
        }
        if kind != Kind::Read {
            self.written[word] |= mask;
        }
        Ok(())
    }

    /// Lanes call a function, whose variables are there.
    pub(super) fn forget(&mut self, lanes: u32, at: u64, bytes: u64) {
        for lane in lanes_of(lanes) {
            let start = lane as u64 * LOCAL + at;
            self.written[start as usize / 8..(start + bytes).div_ceil(8) as usize].fill(0);
        }
    }
}
