//! What lies where in the buffers of a collective, before and after: for every PE, out of place and in place.

use std::ops::Range;

use congruent_collectives::Collective;

/// A collective as one PE sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    pub(super) collective: Collective,
    pub(super) npes: usize,
    pub(super) me: usize,
    pub(super) root: usize,
}

/// Elements of the two buffers that a call is given; in place, both are of the second buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ranges {
    pub(super) dst: Range<usize>,
    pub(super) src: Range<usize>,
}

/// Elements of a buffer, and what they hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) range: Range<usize>,
    pub(super) content: Content,
    /// Which element of the content is the first.
    pub(super) first: usize,
}

/// Where elements come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Nobody wrote them.
    Nothing,
    /// The source of this PE.
    Of(usize),
    /// The combination of all PEs' sources.
    Combined,
}

/// What the destination buffer holds, and the source buffer.
pub(super) type Buffers = [Vec<Part>; 2];

/// Whether the size is that of one part for each PE, as nccl-tests count it.
pub(super) const fn has_parts(collective: Collective) -> bool {
    !matches!(collective, Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::SendRecv)
}

/// Whether an operator combines elements.
pub(super) const fn reduces(collective: Collective) -> bool {
    matches!(collective, Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter)
}

/// Whether one PE gives or gets all.
pub(super) const fn has_root(collective: Collective) -> bool {
    matches!(collective, Collective::Broadcast | Collective::Reduce | Collective::Gather | Collective::Scatter)
}

impl Seat {
    /// What a call with `count` elements (of each part, where there are parts) is given.
    pub(super) fn ranges(&self, count: usize, in_place: bool) -> Ranges {
        let all = if has_parts(self.collective) { 0..self.npes * count } else { 0..count };
        let own = self.received(self.me, count);
        let part = if in_place { own } else { 0..own.len() };
        match self.collective {
            Collective::AllGather | Collective::AllGatherV | Collective::Gather => Ranges { dst: all, src: part },
            Collective::ReduceScatter | Collective::Scatter => Ranges { dst: part, src: all },
            _ => Ranges { dst: all.clone(), src: all },
        }
    }

    /// How much PE `from` has for PE `to`, where `count` is the mean.
    fn length(&self, from: usize, to: usize, count: usize) -> usize {
        // Of a pair of PEs one has half as much again and the other half as much, so that the sum is that of equal parts.
        let more = |pe: usize| if pe % 2 == 1 { -1 } else { i32::from(pe + 1 < self.npes) };
        let sign = match self.collective {
            Collective::AllGatherV => more(from),
            Collective::AllToAllV => more(from) * more(to),
            _ => 0,
        };
        match sign {
            0 => count,
            1 => count + count / 2,
            _ => count - count / 2,
        }
    }

    /// Where the part that PE `from` has for this one lies in a buffer of such parts.
    pub(super) fn received(&self, from: usize, count: usize) -> Range<usize> {
        let start = (0..from).map(|pe| self.length(pe, self.me, count)).sum();
        start..start + self.length(from, self.me, count)
    }

    /// Where the part that this PE has for PE `to` lies in a buffer of such parts.
    pub(super) fn sent(&self, to: usize, count: usize) -> Range<usize> {
        let start = (0..to).map(|pe| self.length(self.me, pe, count)).sum();
        start..start + self.length(self.me, to, count)
    }

    /// What the buffers hold before the call.
    pub(super) fn before(&self, count: usize, in_place: bool) -> Buffers {
        let Ranges { dst, src } = self.ranges(count, in_place);
        let used = if in_place { 0..dst.end.max(src.end) } else { 0..src.end };
        let given = Part { range: src, content: Content::Of(self.me), first: 0 };
        [vec![nothing(0..dst.end)], overlay(vec![nothing(used)], given)]
    }

    /// What they hold after it.
    pub(super) fn after(&self, count: usize, in_place: bool) -> Buffers {
        let start = self.ranges(count, in_place).dst.start;
        let mut buffers = self.before(count, in_place);
        let written = &mut buffers[usize::from(in_place)];
        for Part { range, content, first } in self.result(count) {
            let part = Part { range: start + range.start..start + range.end, content, first };
            *written = overlay(std::mem::take(written), part);
        }
        buffers
    }

    /// What the call writes, from the start of its destination.
    fn result(&self, count: usize) -> Vec<Part> {
        let own = self.me * count;
        let whole = |content, first| vec![Part { range: 0..count, content, first }];
        let from_all = |first: &dyn Fn(usize) -> usize| {
            let part = |pe| Part { range: self.received(pe, count), content: Content::Of(pe), first: first(pe) };
            (0..self.npes).map(part).collect()
        };
        match self.collective {
            Collective::AllReduce => whole(Content::Combined, 0),
            Collective::Reduce | Collective::Gather if self.me != self.root => Vec::new(),
            Collective::Reduce => whole(Content::Combined, 0),
            Collective::Broadcast => whole(Content::Of(self.root), 0),
            Collective::Scatter => whole(Content::Of(self.root), own),
            Collective::ReduceScatter => whole(Content::Combined, own),
            Collective::Gather | Collective::AllGather | Collective::AllGatherV => from_all(&|_| 0),
            Collective::SendRecv => whole(Content::Of((self.me + self.npes - 1) % self.npes), 0),
            Collective::AllToAll | Collective::AllToAllV | Collective::Barrier => {
                from_all(&|pe| Self { me: pe, ..*self }.sent(self.me, count).start)
            }
        }
    }

    /// Whether there is an in-place form.
    pub(super) const fn has_in_place(&self) -> bool {
        !matches!(self.collective, Collective::AllToAllV | Collective::SendRecv)
    }

    /// Whether many calls in place leave what one leaves.
    pub(super) const fn repeats_in_place(&self) -> bool {
        !reduces(self.collective) && !matches!(self.collective, Collective::AllToAll)
    }
}

fn nothing(range: Range<usize>) -> Part {
    Part { range, content: Content::Nothing, first: 0 }
}

/// The parts with one laid over them.
fn overlay(parts: Vec<Part>, over: Part) -> Vec<Part> {
    let Range { start, end } = over.range;
    let cut = |Part { range, content, first }: Part, to: Range<usize>| Part {
        first: first + (to.start - range.start.min(to.start)),
        range: to,
        content,
    };
    let left = parts.iter().cloned().map(|part| {
        let to = part.range.start.min(start)..part.range.end.min(start);
        cut(part, to)
    });
    let right = parts.iter().cloned().map(|part| {
        let to = part.range.start.max(end)..part.range.end.max(end);
        cut(part, to)
    });
    left.chain([over.clone()]).chain(right).filter(|part| !part.range.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(range: Range<usize>, content: Content, first: usize) -> Part {
        Part { range, content, first }
    }

    #[test]
    fn what_is_laid_over_hides_what_was_there() {
        let parts = vec![part(0..10, Content::Of(1), 5), part(10..20, Content::Nothing, 0)];
        let laid = overlay(parts, part(4..12, Content::Combined, 1));
        let expected =
            [part(0..4, Content::Of(1), 5), part(4..12, Content::Combined, 1), part(12..20, Content::Nothing, 2)];
        assert_eq!(laid, expected);
    }

    #[test]
    fn a_reduce_scatter_in_place_leaves_the_other_parts() {
        let seat = Seat { collective: Collective::ReduceScatter, npes: 3, me: 1, root: 0 };
        assert_eq!(seat.ranges(4, true), Ranges { dst: 4..8, src: 0..12 });
        let [dst, src] = seat.after(4, true);
        assert_eq!(dst, [part(0..8, Content::Nothing, 0)]);
        let expected =
            [part(0..4, Content::Of(1), 0), part(4..8, Content::Combined, 4), part(8..12, Content::Of(1), 8)];
        assert_eq!(src, expected);
    }

    #[test]
    fn who_is_not_the_root_keeps_what_it_had() {
        let seat = Seat { collective: Collective::Gather, npes: 2, me: 1, root: 0 };
        for in_place in [false, true] {
            assert_eq!(seat.after(5, in_place), seat.before(5, in_place));
        }
        let root = Seat { me: 0, ..seat };
        let gathered = [part(0..5, Content::Of(0), 0), part(5..10, Content::Of(1), 0)];
        assert_eq!(root.after(5, false)[0], gathered);
        assert_eq!(root.after(5, true)[1], gathered);
    }

    #[test]
    fn parts_of_any_length_have_the_sum_of_equal_ones() {
        for (npes, count) in [(1, 7), (4, 10), (5, 3)] {
            for collective in [Collective::AllToAllV, Collective::AllGatherV, Collective::AllToAll] {
                for me in 0..npes {
                    let seat = Seat { collective, npes, me, root: 0 };
                    assert_eq!(seat.received(npes - 1, count).end, npes * count, "{collective}");
                    for to in 0..npes {
                        let there = Seat { me: to, ..seat };
                        assert_eq!(seat.sent(to, count).len(), there.received(me, count).len());
                    }
                }
            }
        }
        let seat = Seat { collective: Collective::AllToAllV, npes: 4, me: 0, root: 0 };
        assert_eq!([0, 1, 2, 3].map(|pe| seat.sent(pe, 10).len()), [15, 5, 15, 5]);
    }

    #[test]
    fn every_buffer_is_covered_once() {
        for &collective in Collective::ALL.iter().filter(|one| **one != Collective::Barrier) {
            for in_place in [false, true] {
                for me in 0..4 {
                    let seat = Seat { collective, npes: 4, me, root: 2 };
                    for parts in seat.before(7, in_place).iter().chain(&seat.after(7, in_place)) {
                        let mut end = 0;
                        for part in parts {
                            assert_eq!(part.range.start, end, "{collective} {parts:?}");
                            end = part.range.end;
                        }
                    }
                }
            }
        }
    }
}
