//! What every collective asks of its buffers, before anything is sent.

use congruent_device::refuse;
use congruent_device::{Pod, Sym};

/// Destination and source of one length: the same buffer, or two that do not overlap.
#[inline(always)]
#[track_caller]
pub(crate) fn same<T: Pod>(dst: Sym<T>, src: Sym<T>) {
    if dst.len() != src.len() {
        refuse!("destination and source have different lengths");
    }
    if dst != src {
        apart(dst, src);
    }
}

/// `parts` is `n` times as long as `part`, which is part `me` of it or does not overlap it. Gives whether it is in it.
#[inline(always)]
#[track_caller]
pub(crate) fn part_of<T: Pod>(parts: Sym<T>, part: Sym<T>, n: usize, me: usize) -> bool {
    if parts.len() != n * part.len() {
        refuse!("the longer buffer has room for one part of each member, and no more");
    }
    let inside = !part.is_empty() && part.offset() == parts.elem(me * part.len()).offset();
    if !inside {
        apart(parts, part);
    }
    inside
}

/// Both buffers have a part of the same length for each member; they are the same, or do not overlap.
#[inline(always)]
#[track_caller]
pub(crate) fn parted<T: Pod>(dst: Sym<T>, src: Sym<T>, n: usize) {
    same(dst, src);
    if !dst.len().is_multiple_of(n) {
        refuse!("the buffers have one part of the same length for each member");
    }
}

#[inline(always)]
#[track_caller]
pub(crate) fn apart<T: Pod>(a: Sym<T>, b: Sym<T>) {
    let ends = |sym: Sym<T>| (sym.offset(), sym.offset() + sym.bytes() as u64);
    let ((a, a_end), (b, b_end)) = (ends(a), ends(b));
    if a < b_end && b < a_end && a != a_end && b != b_end {
        refuse!("destination and source overlap; give the same buffer, the documented part of it, or one apart");
    }
}

/// `count` elements of a buffer from `start` on.
#[inline(always)]
#[track_caller]
pub(crate) fn range<T: Pod>(whole: Sym<T>, start: usize, count: usize) -> Sym<T> {
    match start.checked_add(count).and_then(|end| whole.get(start..end)) {
        Some(part) => part,
        None => refuse!("a count and its displacement reach past the buffer"),
    }
}

/// `root` is a member.
#[inline(always)]
#[track_caller]
pub(crate) fn root(root: usize, n: usize) {
    if root >= n {
        refuse!("there is no such root in the team");
    }
}
