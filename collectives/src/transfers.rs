//! Lists of sends and receives.

use congruent_device::refuse;
use congruent_device::{Ctx, Pod, Sym, kernel_arg};

use crate::check;

/// One send or one receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The other member's rank.
    pub peer: u64,
    /// The first element of the buffer that is sent, or that is received to.
    pub offset: u64,
    /// How many elements.
    pub count: u64,
}

impl Transfer {
    /// As it stands in a list: peer, offset, count.
    pub const fn words(self) -> [u64; 3] {
        [self.peer, self.offset, self.count]
    }

    /// The part of a buffer that it is about.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn of<T: Pod>(self, whole: Sym<T>) -> Sym<T> {
        match (usize::try_from(self.offset), usize::try_from(self.count)) {
            (Ok(start), Ok(count)) => check::range(whole, start, count),
            _ => refuse!("a count and its displacement reach past the buffer"),
        }
    }
}

kernel_arg! {
    /// Sends and receives in this PE's own memory, each as the [words](Transfer::words) of a transfer.
    #[derive(Debug)]
    pub struct Listed {
        /// The sends.
        pub sends: Sym<[u64; 3]>,
        /// The receives.
        pub receives: Sym<[u64; 3]>,
    }
}

impl Listed {
    /// Send `i`.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn send(&self, ctx: &Ctx<'_>, i: usize) -> Transfer {
        let [peer, offset, count] = ctx.load(self.sends, i);
        Transfer { peer, offset, count }
    }

    /// Receive `i`.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn receive(&self, ctx: &Ctx<'_>, i: usize) -> Transfer {
        let [peer, offset, count] = ctx.load(self.receives, i);
        Transfer { peer, offset, count }
    }
}
