//! Which members are partners in the recursive algorithms, also where they are no power of two.

use congruent_device::{Pod, Sym};

use crate::share::Share;

/// Who takes part: `cores` members, a power of two, of which the first `extras` do so for the next rank too.
#[derive(Clone, Copy)]
pub(crate) struct Pairs {
    pub(crate) cores: usize,
    extras: usize,
}

/// What a member does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It takes part, as this one of the cores, and for that rank too.
    Core(usize, Option<usize>),
    /// The rank before it takes part for it.
    Extra,
}

/// What is done after what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Extras give what they have.
    FoldIn,
    /// Cores reduce, for this time.
    Reduce(usize),
    /// Cores give back what they have reduced, for this time.
    Gather(usize),
    /// Extras get the result.
    FoldOut,
}

impl Step {
    /// Whether a member of this role does something then.
    #[inline(always)]
    fn is_for(self, role: Role) -> bool {
        match self {
            Self::FoldIn | Self::FoldOut => !matches!(role, Role::Core(_, None)),
            Self::Reduce(_) | Self::Gather(_) => matches!(role, Role::Core(..)),
        }
    }
}

impl Pairs {
    /// In a team of `n`, which is not 0.
    #[inline(always)]
    pub(crate) fn new(n: usize) -> Self {
        let cores = (n / 2 + 1).next_power_of_two();
        Self { cores, extras: n - cores }
    }

    /// How often the cores can be halved.
    #[inline(always)]
    pub(crate) fn steps(self) -> usize {
        self.cores.trailing_zeros() as usize
    }

    #[inline(always)]
    pub(crate) fn role(self, rank: usize) -> Role {
        match rank < 2 * self.extras {
            true if rank % 2 == 1 => Role::Extra,
            true => Role::Core(rank / 2, Some(rank + 1)),
            false => Role::Core(rank - self.extras, None),
        }
    }

    /// All steps of a role in their order: as many reductions as there are halvings, and `gathers` times the way back.
    #[inline(always)]
    pub(crate) fn schedule(self, gathers: usize, role: Role) -> impl Iterator<Item = Step> {
        let steps = self.steps();
        let step = move |i| match i {
            0 => Step::FoldIn,
            i if i <= steps => Step::Reduce(i - 1),
            i if i <= steps + gathers => Step::Gather(i - 1 - steps),
            _ => Step::FoldOut,
        };
        (0..steps + gathers + 2).map(step).filter(move |step| step.is_for(role))
    }

    /// The rank of a core; behind the last core, the number of members.
    #[inline(always)]
    pub(crate) fn rank(self, core: usize) -> usize {
        core + core.min(self.extras)
    }

    /// Whether what a core has before step `first` or a later one is a partial result, and not as the members contributed it.
    #[inline(always)]
    pub(crate) fn is_partial(self, core: usize, first: bool) -> bool {
        !first || core < self.extras
    }
}

/// Half of a buffer after half, as the bits of `core` say: what it keeps on with after so many steps.
#[inline(always)]
pub(crate) fn kept<T: Pod>(whole: Sym<T>, core: usize, steps: usize) -> Sym<T> {
    (0..steps).fold(whole, |range, step| Share::new(core >> step & 1, 2).of(range))
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use congruent_device::Sym;

    use super::{Pairs, Role, Step, kept};

    #[test]
    fn cores_and_extras_are_all_members_in_order() {
        for n in 1..=64 {
            let pairs = Pairs::new(n);
            assert!(pairs.cores.is_power_of_two() && pairs.cores <= n && n < 2 * pairs.cores, "{n}");
            assert_eq!(1 << pairs.steps(), pairs.cores);
            assert_eq!(pairs.rank(pairs.cores), n);
            let mut ranks = Vec::new();
            for core in 0..pairs.cores {
                let Role::Core(same, extra) = pairs.role(pairs.rank(core)) else { panic!("core {core} of {n}") };
                assert_eq!(same, core);
                assert!(extra.is_none_or(|extra| pairs.role(extra) == Role::Extra));
                ranks.extend([Some(pairs.rank(core)), extra].into_iter().flatten());
            }
            assert_eq!(ranks, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn contributions_are_lifted_once() {
        let pairs = Pairs::new(6);
        assert_eq!((pairs.cores, pairs.extras), (4, 2));
        // Cores 0 and 1 hold sums of two, 2 and 3 what they contribute.
        assert_eq!([0, 1, 2, 3].map(|core| pairs.is_partial(core, true)), [true, true, false, false]);
        assert_eq!([0, 1, 2, 3].map(|core| pairs.is_partial(core, false)), [true; 4]);
    }

    #[test]
    fn extras_come_first_and_last() {
        let of = |gathers, role| Pairs::new(6).schedule(gathers, role).collect::<Vec<_>>();
        let schedule = |gathers| of(gathers, Role::Core(0, Some(1)));
        let (reduce, gather) = ([Step::Reduce(0), Step::Reduce(1)], [Step::Gather(0), Step::Gather(1)]);
        assert_eq!(schedule(0), [&[Step::FoldIn], &reduce[..], &[Step::FoldOut]].concat());
        assert_eq!(schedule(2), [&[Step::FoldIn], &reduce[..], &gather, &[Step::FoldOut]].concat());
        assert_eq!(of(2, Role::Core(2, None)), [reduce, gather].concat());
        assert_eq!(of(2, Role::Extra), [Step::FoldIn, Step::FoldOut]);
    }

    #[test]
    fn halves_of_halves_are_the_whole_once() {
        for len in [0, 1, 31, 32, 33, 1000, 4096, 100_003] {
            let whole = Sym::<u32>::from_raw(0, len as u64);
            for steps in 0..=6 {
                let mut held = vec![0u32; len];
                for core in 0..1 << steps {
                    let range = kept(whole, core, steps);
                    let start = range.offset() as usize / 4;
                    held[start..start + range.len()].iter_mut().for_each(|times| *times += 1);
                }
                assert!(held.iter().all(|&times| times == 1), "{len} in {steps} steps");
            }
        }
    }
}
