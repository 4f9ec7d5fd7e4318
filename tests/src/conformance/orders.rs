//! The orders in which the algorithms say that they combine, written from what they say and not from what they do: a result
//! that equals this model bit for bit depends neither on the PE, nor on blocks, widths, protocols or machines.

use congruent::collectives::{Algorithm, Collective, Op};

use super::model::Sample;

/// A reduction of as many values as a team has members.
pub(super) struct Model<T> {
    op: Op,
    scalar: T,
    members: usize,
    /// In the first tree, whose children are who, in the order of their ranks.
    children: Vec<Vec<usize>>,
}

/// Which of the declared orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// `((x[0] + x[1]) + ...) + x[n-1]`, rounded at the end.
    Ranks,
    /// `((x[c+1] + x[c+2]) + ...) + x[c]`, rounded at each member.
    Ring { c: usize },
    /// Up the first tree, ranks counted from the root.
    Tree { root: usize },
    /// Up the first tree's mirror.
    Mirror,
    /// Partners at distance 1 first.
    Neighbours,
    /// Partners at the greatest distance first.
    Halves,
}

/// What a member holds: its contribution, or what was combined before.
#[derive(Clone, Copy)]
enum Part<T> {
    Contribution(T),
    Partial(T),
}

impl<T: Sample> Model<T> {
    pub(super) fn new(op: Op, scalar: T, members: usize) -> Self {
        let children = (0..members).map(|rank| (1..members).filter(|&child| parent(child, members) == rank).collect());
        Self { op, scalar, members, children: children.collect() }
    }

    /// The combination in some order of what each rank gives.
    pub(super) fn reduced(&self, order: Order, x: impl Fn(usize) -> T) -> T {
        let n = self.members;
        let own = |rank: usize| Part::Contribution(x(rank % n));
        match order {
            Order::Ranks => self.result((1..n).fold(self.held(own(0)), |sum, rank| self.join(sum, own(rank)))),
            Order::Ring { c } if n == 1 => self.result(self.held(own(c))),
            Order::Ring { c } => {
                // The first member's sum is one too.
                let first = Part::Partial(T::rounded(self.held(own(c + 1))));
                let arrived = (2..n).fold(first, |sum, step| self.partial(sum, own(c + step)));
                self.result(self.join(self.held(arrived), own(c)))
            }
            Order::Tree { root } => self.result(self.subtree(0, &|rank| own(rank + root))),
            Order::Mirror => self.result(self.subtree(0, &|rank| own(n - 1 - rank))),
            Order::Neighbours => {
                self.halved(self.cores(own), |parts| parts.chunks(2).map(|pair| [pair[0], pair[1]]).collect())
            }
            Order::Halves => self.halved(self.cores(own), |parts| {
                let (low, high) = parts.split_at(parts.len() / 2);
                low.iter().zip(high).map(|(&low, &high)| [low, high]).collect()
            }),
        }
    }

    /// `(x + S(lower)) + S(higher)`, as sums are held.
    fn subtree(&self, rank: usize, own: &impl Fn(usize) -> Part<T>) -> T::Wide {
        self.children[rank].iter().fold(self.held(own(rank)), |sum, &child| {
            self.join(sum, Part::Partial(T::rounded(self.subtree(child, own))))
        })
    }

    /// What takes part in the recursive algorithms: as many as the next lower power of two; the first even ranks do for the
    /// odd ones after them.
    fn cores(&self, own: impl Fn(usize) -> Part<T>) -> Vec<Part<T>> {
        let mut p = 1;
        while 2 * p <= self.members {
            p *= 2;
        }
        let extras = self.members - p;
        let core = |i| if i < extras { self.partial(own(2 * i), own(2 * i + 1)) } else { own(i + extras) };
        (0..p).map(core).collect()
    }

    /// Combines pair by pair until one is left.
    fn halved(&self, mut parts: Vec<Part<T>>, pairs: impl Fn(&[Part<T>]) -> Vec<[Part<T>; 2]>) -> T {
        while parts.len() > 2 {
            parts = pairs(&parts).iter().map(|&[low, high]| self.partial(low, high)).collect();
        }
        match parts[..] {
            [low, high] => self.result(self.join(self.held(low), high)),
            _ => self.result(self.held(parts[0])),
        }
    }

    fn held(&self, part: Part<T>) -> T::Wide {
        match part {
            Part::Contribution(value) if self.op == Op::PreMulSum => T::scaled(value.wide(), self.scalar),
            Part::Contribution(value) | Part::Partial(value) => value.wide(),
        }
    }

    fn join(&self, sum: T::Wide, part: Part<T>) -> T::Wide {
        T::apply(self.op, sum, self.held(part))
    }

    fn partial(&self, a: Part<T>, b: Part<T>) -> Part<T> {
        Part::Partial(T::rounded(self.join(self.held(a), b)))
    }

    fn result(&self, sum: T::Wide) -> T {
        T::rounded(if self.op == Op::Avg { T::averaged(sum, self.members) } else { sum })
    }
}

/// The parent of a rank other than 0 in the first tree, as NCCL has it.
fn parent(rank: usize, members: usize) -> usize {
    let bit = 1 << rank.trailing_zeros();
    let above = (rank ^ bit) | bit << 1;
    if above < members { above } else { rank ^ bit }
}

/// The order in which an algorithm combines element `i` of `len`, for member `member` in a reduce-scatter and for the root
/// in a reduce.
pub(super) fn order_of(
    (collective, algorithm): (Collective, Algorithm),
    (members, member): (usize, usize),
    i: usize,
    len: usize,
    element: usize,
) -> Order {
    let part_of = |parts| i / part(len, parts, element);
    match (collective, algorithm) {
        // Links have an order of their own; machines that emulate them take the ranks'.
        (_, Algorithm::DIRECT | Algorithm::ONE_SHOT | Algorithm::MULTIMEM) => Order::Ranks,
        (Collective::AllReduce, Algorithm::RING) => Order::Ring { c: part_of(members) },
        (_, Algorithm::RING) => Order::Ring { c: member },
        (Collective::AllReduce, Algorithm::TREE) => match part_of(2) {
            0 => Order::Tree { root: 0 },
            _ if members.is_multiple_of(2) => Order::Mirror,
            _ => Order::Tree { root: 1 },
        },
        (_, Algorithm::TREE) => Order::Tree { root: member },
        (Collective::AllReduce, Algorithm::RECURSIVE) => Order::Neighbours,
        (_, Algorithm::RECURSIVE) => Order::Halves,
        _ => panic!("{algorithm} {collective} has no order here"),
    }
}

/// Elements of each part but the last ones: parts start on multiples of 128 bytes.
pub(super) fn part(len: usize, parts: usize, element: usize) -> usize {
    (len.div_ceil(parts) * element).next_multiple_of(128) / element
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of which each sum rounds elsewhere.
    fn x(rank: usize) -> f32 {
        1.0 / ((rank * 5 % 8) as f32 + 0.3)
    }

    fn sum(members: usize, order: Order) -> f32 {
        Model::new(Op::Sum, 0.0, members).reduced(order, x)
    }

    #[test]
    fn the_orders_are_those_of_the_documentation() {
        assert_eq!(sum(4, Order::Ranks), ((x(0) + x(1)) + x(2)) + x(3));
        assert_eq!(sum(4, Order::Ring { c: 1 }), ((x(2) + x(3)) + x(0)) + x(1));
        // Eight in a tree: 0 has 4, that has 2 and 6, and these have the odd ranks beside them.
        let tree = |at: usize| {
            let x = |rank: usize| x((rank + at) % 8);
            x(0) + ((x(4) + ((x(2) + x(1)) + x(3))) + ((x(6) + x(5)) + x(7)))
        };
        assert_eq!([sum(8, Order::Tree { root: 0 }), sum(8, Order::Tree { root: 3 })], [tree(0), tree(3)]);
        let pairs = ((x(0) + x(1)) + (x(2) + x(3))) + ((x(4) + x(5)) + (x(6) + x(7)));
        let halves = ((x(0) + x(4)) + (x(2) + x(6))) + ((x(1) + x(5)) + (x(3) + x(7)));
        assert_eq!([sum(8, Order::Neighbours), sum(8, Order::Halves)], [pairs, halves]);
        assert_eq!(sum(6, Order::Neighbours), ((x(0) + x(1)) + (x(2) + x(3))) + (x(4) + x(5)));
        assert_ne!(pairs, halves);
    }

    #[test]
    fn averages_and_scalars_are_applied_once() {
        for members in 1..9 {
            for order in [Order::Ranks, Order::Ring { c: 0 }, Order::Tree { root: 0 }, Order::Neighbours, Order::Halves]
            {
                let triangle = (members * (members + 1) / 2) as i64;
                let one = |rank: usize| rank as i64 + 1;
                assert_eq!(Model::new(Op::PreMulSum, 3i64, members).reduced(order, one), 3 * triangle);
                assert_eq!(Model::new(Op::Avg, 0i64, members).reduced(order, one), triangle / members as i64);
            }
        }
    }
}
