//! Who is whose parent in the binary trees of a team; `tree.rs` says what for.

/// Hops from the root of a tree to the farthest of `n` members, at most.
#[inline(always)]
pub(crate) fn height(n: usize) -> usize {
    n.next_power_of_two().trailing_zeros() as usize
}

/// Where a member stands in a tree: the ranks of its neighbours, and how many hops there are to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) parent: Option<usize>,
    /// The second is `None` where the first is.
    pub(crate) children: [Option<usize>; 2],
    pub(crate) depth: usize,
}

impl Node {
    /// How many children it has.
    #[inline(always)]
    pub(crate) fn degree(&self) -> usize {
        usize::from(self.children[0].is_some()) + usize::from(self.children[1].is_some())
    }

    /// In the first tree.
    #[inline(always)]
    pub(crate) fn first(rank: usize, n: usize) -> Self {
        // Ranks below a node whose lowest bit is `b` are those at a distance less than `b`; where there is no node in their
        // middle above this one, the next lower middle that is there takes its place.
        if rank == 0 {
            let child = (n > 1).then(|| n.next_power_of_two() / 2);
            return Self { parent: None, children: [child, None], depth: 0 };
        }
        let bit = rank & rank.wrapping_neg();
        let higher = (1..=bit.trailing_zeros()).map(|down| rank + (bit >> down)).find(|&child| child < n);
        let lower = (bit > 1).then(|| rank - bit / 2);
        let mut node = Self { parent: Some(Self::above(rank, n)), children: [lower, higher], depth: 1 };
        let mut at = Self::above(rank, n);
        while at != 0 {
            at = Self::above(at, n);
            node.depth += 1;
        }
        node
    }

    /// The parent of a rank other than 0 in the first tree.
    #[inline(always)]
    fn above(rank: usize, n: usize) -> usize {
        let bit = rank & rank.wrapping_neg();
        let (below, above) = (rank ^ bit, (rank ^ bit) | bit << 1);
        if above < n { above } else { below }
    }

    /// In the second tree.
    #[inline(always)]
    pub(crate) fn second(rank: usize, n: usize) -> Self {
        if n.is_multiple_of(2) {
            Self::first(n - 1 - rank, n).renamed(|rank| n - 1 - rank)
        } else {
            Self::rooted(rank, n, 1 % n)
        }
    }

    /// In the first tree with ranks counted from `root`.
    #[inline(always)]
    pub(crate) fn rooted(rank: usize, n: usize, root: usize) -> Self {
        let wrap = |rank| if rank >= n { rank - n } else { rank };
        Self::first(wrap(rank + n - root), n).renamed(|rank| wrap(rank + root))
    }

    #[inline(always)]
    fn renamed(self, name: impl Fn(usize) -> usize) -> Self {
        let [lower, higher] = self.children;
        Self { parent: self.parent.map(&name), children: [lower.map(&name), higher.map(&name)], depth: self.depth }
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::{Node, height};

    fn tree(n: usize, node: impl Fn(usize, usize) -> Node) -> Vec<Node> {
        (0..n).map(|rank| node(rank, n)).collect()
    }

    /// Parents and children agree, everybody is reached once from the root, and depths are hops.
    fn check(tree: &[Node], root: usize) {
        let n = tree.len();
        let mut reached = vec![0; n];
        let mut next = vec![(root, 0)];
        assert_eq!(tree[root].parent, None);
        while let Some((rank, depth)) = next.pop() {
            reached[rank] += 1;
            assert_eq!(tree[rank].depth, depth);
            assert!(depth <= height(n), "{rank} of {n}");
            assert!(tree[rank].children[0].is_some() || tree[rank].children[1].is_none());
            for child in tree[rank].children.into_iter().flatten() {
                assert_eq!(tree[child].parent, Some(rank));
                next.push((child, depth + 1));
            }
        }
        assert!(reached.iter().all(|&times| times == 1), "{n}: {reached:?}");
    }

    #[test]
    fn every_tree_reaches_every_member_once_and_is_low() {
        assert_eq!([1, 2, 3, 4, 5, 8, 9, 64].map(height), [0, 1, 2, 2, 3, 3, 4, 6]);
        for n in 1..=130 {
            check(&tree(n, Node::first), 0);
            check(&tree(n, Node::second), if n % 2 == 0 { n - 1 } else { 1 % n });
            for root in [0, n / 3, n - 1] {
                check(&tree(n, |rank, n| Node::rooted(rank, n, root)), root);
            }
        }
    }

    #[test]
    fn who_relays_in_one_tree_is_a_leaf_in_the_other() {
        for n in 2..=130 {
            let leaf = |node: Node| node.children == [None, None];
            let both = (0..n).filter(|&rank| !leaf(Node::first(rank, n)) && !leaf(Node::second(rank, n))).count();
            assert_eq!(both, n % 2, "{n}");
        }
    }

    #[test]
    fn the_trees_of_eight_and_of_five() {
        let parents = |tree: Vec<Node>| tree.into_iter().map(|node| node.parent).collect::<Vec<_>>();
        let ranks = |ranks: &[i32]| ranks.iter().map(|&rank| usize::try_from(rank).ok()).collect::<Vec<_>>();
        assert_eq!(parents(tree(8, Node::first)), ranks(&[-1, 2, 4, 2, 0, 6, 4, 6]));
        assert_eq!(parents(tree(8, Node::second)), ranks(&[1, 3, 1, 7, 5, 3, 5, -1]));
        assert_eq!(parents(tree(5, Node::first)), ranks(&[-1, 2, 4, 2, 0]));
        assert_eq!(parents(tree(5, Node::second)), ranks(&[1, -1, 3, 0, 3]));
    }
}
