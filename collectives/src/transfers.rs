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

// Of a list's entry `i`. Functions of their own, which kernels ask often.

/// The rank of the other member.
#[cfg_attr(target_arch = "nvptx64", inline(never))]
#[track_caller]
pub(crate) fn peer(ctx: &Ctx<'_>, list: Sym<[u64; 3]>, i: usize) -> u64 {
    ctx.load(list.elem(i).cast::<u64>(), 0)
}

/// The part of a buffer that it is about.
#[cfg_attr(target_arch = "nvptx64", inline(never))]
#[track_caller]
pub(crate) fn part<T: Pod>(ctx: &Ctx<'_>, list: Sym<[u64; 3]>, i: usize, whole: Sym<T>) -> Sym<T> {
    let entry = list.elem(i).cast::<u64>();
    match (usize::try_from(ctx.load(entry, 1)), usize::try_from(ctx.load(entry, 2))) {
        (Ok(start), Ok(count)) => check::range(whole, start, count),
        _ => refuse!("a count and its displacement reach past the buffer"),
    }
}

/// The first entry with a member from entry `i` on.
#[cfg_attr(target_arch = "nvptx64", inline(never))]
pub(crate) fn next_with(ctx: &Ctx<'_>, list: Sym<[u64; 3]>, member: usize, i: usize) -> Option<usize> {
    (i..list.len()).find(|&i| peer(ctx, list, i) == member as u64)
}
