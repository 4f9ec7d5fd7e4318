//! Lists of sends and receives, on the heap or as a kernel argument.

use congruent_device::refuse;
use congruent_device::{Ctx, KernelArg, Pod, Sym};

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

/// Which sends and receives.
pub trait Transfers {
    /// How many sends.
    fn sends(&self) -> usize;
    /// How many receives.
    fn receives(&self) -> usize;
    /// Send `i`.
    fn send(&self, ctx: &Ctx<'_>, i: usize) -> Transfer;
    /// Receive `i`.
    fn receive(&self, ctx: &Ctx<'_>, i: usize) -> Transfer;
}

/// Sends and receives in this PE's own memory, each as peer, offset and count.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// The sends.
    pub sends: Sym<[u64; 3]>,
    /// The receives.
    pub receives: Sym<[u64; 3]>,
}

/// A few sends and receives as a kernel argument.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    sends: u32,
    receives: u32,
    /// Sends from the front, receives from the back.
    entries: [[u64; 3]; Self::MOST],
}

impl KernelArg for Listed {
    fn fits(&self, heap_bytes: u64) -> bool {
        self.sends.fits(heap_bytes) && self.receives.fits(heap_bytes)
    }
}

impl KernelArg for Batch {
    fn fits(&self, _heap_bytes: u64) -> bool {
        true
    }
}

impl Batch {
    /// The most sends and receives together: a send to and a receive from each of 64 members. So its 3 KiB leave room for other
    /// arguments in the 4 KiB that every GPU has for them.
    pub const MOST: usize = 128;

    /// Nothing to send or receive.
    pub const EMPTY: Self = Self { sends: 0, receives: 0, entries: [[0; 3]; Self::MOST] };

    /// Adds a send. False where there is no room for it.
    #[must_use]
    pub const fn add_send(&mut self, transfer: Transfer) -> bool {
        if self.is_full() {
            return false;
        }
        self.entries[self.sends as usize] = transfer.words();
        self.sends += 1;
        true
    }

    /// Adds a receive. False where there is no room for it.
    #[must_use]
    pub const fn add_receive(&mut self, transfer: Transfer) -> bool {
        if self.is_full() {
            return false;
        }
        self.receives += 1;
        self.entries[Self::MOST - self.receives as usize] = transfer.words();
        true
    }

    const fn is_full(&self) -> bool {
        (self.sends + self.receives) as usize == Self::MOST
    }
}

impl Transfer {
    const fn words(self) -> [u64; 3] {
        [self.peer, self.offset, self.count]
    }

    #[inline(always)]
    const fn from_words([peer, offset, count]: [u64; 3]) -> Self {
        Self { peer, offset, count }
    }

    #[inline(always)]
    #[track_caller]
    pub(crate) fn of<T: Pod>(self, whole: Sym<T>) -> Sym<T> {
        match (usize::try_from(self.offset), usize::try_from(self.count)) {
            (Ok(start), Ok(count)) => check::range(whole, start, count),
            _ => refuse!("a count and its displacement reach past the buffer"),
        }
    }
}

impl Transfers for Listed {
    #[inline(always)]
    fn sends(&self) -> usize {
        self.sends.len()
    }
    #[inline(always)]
    fn receives(&self) -> usize {
        self.receives.len()
    }
    #[inline(always)]
    fn send(&self, ctx: &Ctx<'_>, i: usize) -> Transfer {
        Transfer::from_words(ctx.load(self.sends, i))
    }
    #[inline(always)]
    fn receive(&self, ctx: &Ctx<'_>, i: usize) -> Transfer {
        Transfer::from_words(ctx.load(self.receives, i))
    }
}

impl Transfers for Batch {
    #[inline(always)]
    fn sends(&self) -> usize {
        self.sends as usize
    }
    #[inline(always)]
    fn receives(&self) -> usize {
        self.receives as usize
    }
    #[inline(always)]
    fn send(&self, _ctx: &Ctx<'_>, i: usize) -> Transfer {
        Transfer::from_words(self.entries[i])
    }
    #[inline(always)]
    fn receive(&self, _ctx: &Ctx<'_>, i: usize) -> Transfer {
        Transfer::from_words(self.entries[Self::MOST - 1 - i])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_holds_sends_and_receives_until_it_is_full() {
        let transfer = |i: u64| Transfer { peer: i, offset: 2 * i, count: 3 * i };
        let mut batch = Batch::EMPTY;
        for i in 0..100 {
            assert!(batch.add_send(transfer(i)));
        }
        for i in 0..28 {
            assert!(batch.add_receive(transfer(1000 + i)));
        }
        assert!(!batch.add_send(transfer(0)) && !batch.add_receive(transfer(0)));
        assert_eq!((batch.sends(), batch.receives()), (100, 28));
        assert_eq!(Transfer::from_words(batch.entries[99]), transfer(99));
        assert_eq!(Transfer::from_words(batch.entries[Batch::MOST - 28]), transfer(1027));
        assert!(size_of::<Batch>() <= 3200);
    }
}
