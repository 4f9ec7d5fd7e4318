//! What a kernel does when PEs contradict each other: it ends, with a record that says who said what.

use congruent_heap::Pe;
use congruent_heap::abi::Cause;

use crate::{Ctx, Group};

/// Two PEs that contradict each other, as one of them saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disagreement {
    /// What one sends is not as long as what the other receives, in bytes.
    Count {
        /// The other PE.
        peer: Pe,
        /// Whether this PE is the one that sends.
        sends: bool,
        /// Bytes here.
        mine: u64,
        /// Bytes there.
        theirs: u64,
    },
    /// They called different collectives.
    Call {
        /// The other PE.
        peer: Pe,
        /// Which call this is.
        number: u64,
        /// What this PE called.
        called: u64,
        /// The first word of the descriptions that differs.
        word: u32,
        /// The word here.
        mine: u64,
        /// The word there.
        theirs: u64,
    },
}

impl Ctx<'_> {
    /// Goes on if no thread of the group found a disagreement. Otherwise records one, as a fault that names both sides, and
    /// ends the kernel of the group, as a wait does that passes its deadline.
    #[inline(always)]
    #[track_caller]
    pub fn end_if(&self, group: &impl Group, found: Option<Disagreement>) {
        if let Some(found) = found {
            self.leave(found.cause());
        }
        self.join(group, found.is_some());
    }
}

impl Disagreement {
    #[inline(always)]
    fn cause(self) -> Cause {
        match self {
            Self::Count { peer, sends, mine, theirs } => Cause::Counts { peer: peer.raw(), sends, mine, theirs },
            Self::Call { peer, number, called, word, mine, theirs } => {
                Cause::Calls { peer: peer.raw(), number, called, word, mine, theirs }
            }
        }
    }
}
