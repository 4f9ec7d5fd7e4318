//! On which blocks a branch decides.
//!
//! Regions of branches overlap, and behind early exits each reaches to the end of the function. So what has been looked at
//! for one branch is not looked at again for another whose ways meet at the same place, or sooner: everything in a region
//! comes by the meeting place, so what can be reached from a block without coming by a nearer one is only less, and so is what
//! loops.

use super::graph::Graph;

/// The regions of the branches that were added.
pub(crate) struct Regions<'a> {
    graph: &'a Graph,
    /// How far from the exit the farthest-reaching region ends that a block is in. The meeting places of a block's regions
    /// lie on one chain of post-dominators, so that the distance tells them apart.
    reach: Vec<usize>,
    /// During one call: which block it was found as, counted from 1, 0 for not yet, [`COMPLETE`] with its component.
    found: Vec<usize>,
    /// The first that was found of those known to be in its component.
    back: Vec<usize>,
}

const COMPLETE: usize = usize::MAX;

/// A block that a branch decides on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inside {
    /// The block.
    pub(crate) block: usize,
    /// Whether it can be reached from itself without leaving the region.
    pub(crate) loops: bool,
}

impl<'a> Regions<'a> {
    pub(crate) fn new(graph: &'a Graph) -> Self {
        Self { graph, reach: vec![usize::MAX; graph.len()], found: vec![0; graph.len()], back: vec![0; graph.len()] }
    }

    /// The blocks on which the branch at the end of `block` decides, those between it and where its ways meet again, without
    /// those that were given for an earlier branch whose ways meet at the same place or later.
    pub(crate) fn add(&mut self, block: usize) -> Vec<Inside> {
        let mut region = Vec::new();
        if self.graph.ways(block).count() < 2 {
            return region;
        }
        let meeting = self.graph.meeting(block);
        for start in self.graph.ways(block) {
            self.search(meeting, start, &mut region);
        }
        for inside in &region {
            self.found[inside.block] = 0;
        }
        region
    }

    /// Tarjan's search for strongly connected components, from `start` over blocks that are new for `meeting`.
    fn search(&mut self, meeting: usize, start: usize, region: &mut Vec<Inside>) {
        let graph = self.graph;
        // The blocks on the way here, each with the ways on that are left; the blocks whose component is not complete.
        let mut path = Vec::new();
        let mut open = Vec::new();
        let mut next = Some(start);
        loop {
            if let Some(block) = next {
                if block != meeting && block < graph.len() && graph.distance(meeting) < self.reach[block] {
                    self.reach[block] = graph.distance(meeting);
                    let loops = graph.ways(block).any(|way| way == block);
                    region.push(Inside { block, loops });
                    (self.found[block], self.back[block]) = (region.len(), region.len());
                    open.push(block);
                    path.push((block, graph.ways(block)));
                } else if let Some(&(before, _)) = path.last()
                    && !matches!(self.found.get(block), None | Some(&(0 | COMPLETE)))
                {
                    self.back[before] = self.back[before].min(self.found[block]);
                }
            }
            let Some((block, ways)) = path.last_mut() else { return };
            let block = *block;
            next = ways.next();
            if next.is_some() {
                continue;
            }
            path.pop();
            if let Some(&(before, _)) = path.last() {
                self.back[before] = self.back[before].min(self.back[block]);
            }
            if self.back[block] == self.found[block] {
                let first = open.iter().rposition(|&other| other == block).unwrap_or_default();
                let is_loop = open.len() - first > 1;
                for member in open.drain(first..) {
                    region[self.found[member] - 1].loops |= is_loop;
                    self.found[member] = COMPLETE;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::ptx::parse;

    fn graph(text: &str) -> Graph {
        let ptx = format!(".func stop() .noreturn;\n.entry k() {{ .reg .pred %p<9>;\n{text}\n}}");
        let module = parse(&ptx).expect("PTX");
        let body = module.functions[1].body.as_ref().expect("a body");
        Graph::new(body, &HashSet::from(["stop"]))
    }

    /// The blocks that the branch of `block` decides on, in order, each with whether it loops.
    fn region(graph: &Graph, block: usize) -> Vec<(usize, bool)> {
        let mut region: Vec<_> =
            Regions::new(graph).add(block).iter().map(|inside| (inside.block, inside.loops)).collect();
        region.sort_unstable();
        region
    }

    #[test]
    fn an_if_decides_on_its_arms_alone() {
        let graph = graph("@%p1 bra A; trap; bra B; A: bar.sync 0; B: ret;");
        assert_eq!(graph.len(), 5);
        assert!(region(&graph, 0).is_empty(), "one way is doomed, so there is nothing to decide");
        let graph = self::graph("@%p1 bra A; bar.sync 1; bra B; A: bar.sync 0; B: ret;");
        assert_eq!(region(&graph, 0), [(1, false), (2, false)]);
    }

    #[test]
    fn a_loops_end_decides_on_the_whole_loop() {
        assert_eq!(region(&graph("A: bar.sync 0; @%p1 bra A; bar.sync 1; ret;"), 0), [(0, true)]);
    }

    #[test]
    fn an_early_return_decides_on_all_that_follows() {
        assert_eq!(region(&graph("@%p1 ret; bar.sync 0; ret;"), 0), [(1, false)]);
    }

    #[test]
    fn calls_that_never_return_are_doomed() {
        assert!(region(&graph("@%p1 bra A; bar.sync 0; ret; A: call.uni stop, ();"), 0).is_empty());
    }

    #[test]
    fn a_loop_without_an_end_still_has_regions() {
        assert_eq!(region(&graph("A: @%p1 bra B; bar.sync 0; B: bra A;"), 0), [(1, false)]);
    }

    #[test]
    fn what_an_earlier_region_had_is_not_given_again() {
        // Every return ends in the exit; the loop between them is found with the first.
        let graph = graph("@%p1 ret; @%p2 ret; A: bar.sync 0; @%p3 bra A; @%p4 ret; bar.sync 1; ret;");
        let mut regions = Regions::new(&graph);
        let mut first = regions.add(0);
        first.sort_unstable_by_key(|inside| inside.block);
        let expected = [(1, false), (2, true), (3, false), (4, false)].map(|(block, loops)| Inside { block, loops });
        assert_eq!(first, expected);
        assert_eq!(regions.add(1), []);
        // The loop's own ways meet sooner; the other way round, the larger region is news again.
        assert_eq!(regions.add(2), []);
        let mut regions = Regions::new(&graph);
        assert_eq!(regions.add(2), [Inside { block: 2, loops: true }]);
        assert_eq!(regions.add(0).len(), 4);
    }
}
