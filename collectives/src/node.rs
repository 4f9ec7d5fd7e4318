//! Who is whose parent in the binary trees of a team; `tree.rs` says what for.

use congruent_device::kernel_arg;

/// Hops from the root of a tree to the farthest of `n` members, at most.
#[inline(always)]
pub(crate) fn height(n: usize) -> usize {
    n.next_power_of_two().trailing_zeros() as usize
}

kernel_arg! {
    /// Where a member stands in a tree: the ranks of its neighbours, and how many hops there are to the root.
    ///
    /// Ranks are small numbers, of which one says that there is nobody, because a GPU's compiler gives each of them a register.
    #[derive(Debug, PartialEq, Eq)]
    #[doc(hidden)]
    pub struct Node {
        parent: u32,
        /// The second is nobody where the first is.
        children: [u32; 2],
        depth: u32,
    }
}

const NOBODY: u32 = u32::MAX;

impl Node {
    /// In no tree.
    pub(crate) const NONE: Self = Self { parent: NOBODY, children: [NOBODY; 2], depth: 0 };

    #[inline(always)]
    pub(crate) fn parent(&self) -> Option<usize> {
        somebody(self.parent)
    }

    /// Child `i` of two.
    #[inline(always)]
    pub(crate) fn child(&self, i: usize) -> Option<usize> {
        somebody(if i == 0 { self.children[0] } else { self.children[1] })
    }

    /// How many children it has.
    #[inline(always)]
    pub(crate) fn degree(&self) -> usize {
        usize::from(self.children[0] != NOBODY) + usize::from(self.children[1] != NOBODY)
    }

    #[inline(always)]
    pub(crate) fn depth(&self) -> usize {
        self.depth as usize
    }

    /// In one of the two trees that are used at once: the first, and that one's mirror in a team of even size, itself moved by
    /// one rank in a team of odd size.
    #[inline(always)]
    pub(crate) fn of_two(tree: usize, rank: usize, n: usize) -> Self {
        if tree == 1 && n.is_multiple_of(2) {
            let mirrored = |rank| n as u32 - 1 - rank;
            Self::first(mirrored(rank as u32), n as u32).renamed(mirrored)
        } else {
            Self::rooted(rank, n, tree.min(n - 1))
        }
    }

    /// In the first tree with ranks counted from `root`.
    #[inline(always)]
    pub(crate) fn rooted(rank: usize, n: usize, root: usize) -> Self {
        let (rank, n, root) = (rank as u32, n as u32, root as u32);
        let wrap = |rank| if rank >= n { rank - n } else { rank };
        Self::first(wrap(rank + n - root), n).renamed(|rank| wrap(rank + root))
    }

    /// In the first tree.
    #[inline(always)]
    fn first(rank: u32, n: u32) -> Self {
        // Ranks below a node whose lowest bit is `b` are those at a distance less than `b`; where there is no node in their
        // middle above this one, the next lower middle that is there takes its place.
        if rank == 0 {
            let child = if n > 1 { n.next_power_of_two() / 2 } else { NOBODY };
            return Self { parent: NOBODY, children: [child, NOBODY], depth: 0 };
        }
        let bit = rank & rank.wrapping_neg();
        let higher = (1..=bit.trailing_zeros()).map(|down| rank + (bit >> down)).find(|&child| child < n);
        let lower = if bit > 1 { rank - bit / 2 } else { NOBODY };
        let parent = Self::above(rank, n);
        let (mut depth, mut at) = (1, parent);
        while at != 0 {
            at = Self::above(at, n);
            depth += 1;
        }
        Self { parent, children: [lower, higher.unwrap_or(NOBODY)], depth }
    }

    /// The parent of a rank other than 0 in the first tree.
    #[inline(always)]
    fn above(rank: u32, n: u32) -> u32 {
        let bit = rank & rank.wrapping_neg();
        let (below, above) = (rank ^ bit, (rank ^ bit) | bit << 1);
        if above < n { above } else { below }
    }

    #[inline(always)]
    fn renamed(self, name: impl Fn(u32) -> u32) -> Self {
        let name = |rank| if rank == NOBODY { NOBODY } else { name(rank) };
        let [lower, higher] = self.children;
        Self { parent: name(self.parent), children: [name(lower), name(higher)], depth: self.depth }
    }
}

#[inline(always)]
fn somebody(rank: u32) -> Option<usize> {
    (rank != NOBODY).then_some(rank as usize)
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::{Node, height};

    fn tree(n: usize, node: impl Fn(usize, usize) -> Node) -> Vec<Node> {
        (0..n).map(|rank| node(rank, n)).collect()
    }

    fn of_two(which: usize, n: usize) -> Vec<Node> {
        tree(n, |rank, n| Node::of_two(which, rank, n))
    }

    /// Parents and children agree, everybody is reached once from the root, and depths are hops.
    fn check(tree: &[Node], root: usize) {
        let n = tree.len();
        let mut reached = vec![0; n];
        let mut next = vec![(root, 0)];
        assert_eq!(tree[root].parent(), None);
        while let Some((rank, depth)) = next.pop() {
            reached[rank] += 1;
            assert_eq!(tree[rank].depth(), depth);
            assert!(depth <= height(n), "{rank} of {n}");
            assert!(tree[rank].child(0).is_some() || tree[rank].child(1).is_none());
            for child in (0..tree[rank].degree()).filter_map(|i| tree[rank].child(i)) {
                assert_eq!(tree[child].parent(), Some(rank));
                next.push((child, depth + 1));
            }
        }
        assert!(reached.iter().all(|&times| times == 1), "{n}: {reached:?}");
    }

    #[test]
    fn every_tree_reaches_every_member_once_and_is_low() {
        assert_eq!([1, 2, 3, 4, 5, 8, 9, 64].map(height), [0, 1, 2, 2, 3, 3, 4, 6]);
        for n in 1..=130 {
            check(&of_two(0, n), 0);
            check(&of_two(1, n), if n % 2 == 0 { n - 1 } else { 1 % n });
            for root in [0, n / 3, n - 1] {
                check(&tree(n, |rank, n| Node::rooted(rank, n, root)), root);
            }
        }
    }

    #[test]
    fn who_relays_in_one_tree_is_a_leaf_in_the_other() {
        for n in 2..=130 {
            let relays = |tree, rank| Node::of_two(tree, rank, n).degree() > 0;
            let both = (0..n).filter(|&rank| relays(0, rank) && relays(1, rank)).count();
            assert_eq!(both, n % 2, "{n}");
        }
    }

    #[test]
    fn the_trees_of_eight_and_of_five() {
        let parents = |tree: Vec<Node>| tree.into_iter().map(|node| node.parent()).collect::<Vec<_>>();
        let ranks = |ranks: &[i32]| ranks.iter().map(|&rank| usize::try_from(rank).ok()).collect::<Vec<_>>();
        assert_eq!(parents(of_two(0, 8)), ranks(&[-1, 2, 4, 2, 0, 6, 4, 6]));
        assert_eq!(parents(of_two(1, 8)), ranks(&[1, 3, 1, 7, 5, 3, 5, -1]));
        assert_eq!(parents(of_two(0, 5)), ranks(&[-1, 2, 4, 2, 0]));
        assert_eq!(parents(of_two(1, 5)), ranks(&[1, -1, 3, 0, 3]));
    }
}
