//! Granules against a fold of one element after the other.

use super::*;

/// One of several folds, each of another width and with sums of another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::arch) enum Some {
    MaxOfBytes,
    SumOfHalves,
    SumOfFloats,
    SumInDoubles,
    XorOfLong,
    Moves,
}

struct Max;
struct Sum<A>(PhantomData<A>);
struct Xor;
struct Move;

impl Fold<u8> for Max {
    type Acc = u8;
    fn first(&self, value: u8) -> u8 {
        value
    }
    fn next(&self, sum: u8, value: u8) -> u8 {
        sum.max(value)
    }
    fn last(&self, sum: u8) -> u8 {
        sum
    }
}

/// `u16` in `u32`, as 16-bit floats are summed; the average of them.
impl Fold<u16> for Sum<u32> {
    type Acc = u32;
    fn first(&self, value: u16) -> u32 {
        value.into()
    }
    fn next(&self, sum: u32, value: u16) -> u32 {
        sum + u32::from(value)
    }
    fn last(&self, sum: u32) -> u16 {
        (sum / 3) as u16
    }
}

impl<A: Copy + From<f32> + core::ops::Add<Output = A> + Into<f64>> Fold<f32> for Sum<A> {
    type Acc = A;
    fn first(&self, value: f32) -> A {
        value.into()
    }
    fn next(&self, sum: A, value: f32) -> A {
        sum + value.into()
    }
    fn last(&self, sum: A) -> f32 {
        let sum: f64 = sum.into();
        sum as f32
    }
}

impl Fold<u64> for Xor {
    type Acc = u64;
    fn first(&self, value: u64) -> u64 {
        value
    }
    fn next(&self, sum: u64, value: u64) -> u64 {
        sum ^ value
    }
    fn last(&self, sum: u64) -> u64 {
        sum
    }
}

impl Fold<u8> for Move {
    const ONLY_MOVES: bool = true;
    type Acc = u8;
    fn first(&self, value: u8) -> u8 {
        value
    }
    fn next(&self, sum: u8, _value: u8) -> u8 {
        sum
    }
    fn last(&self, sum: u8) -> u8 {
        sum
    }
}

pub(in crate::arch) const ALL: [Some; 6] =
    [Some::MaxOfBytes, Some::SumOfHalves, Some::SumOfFloats, Some::SumInDoubles, Some::XorOfLong, Some::Moves];

impl FoldChoice for Some {
    fn run<J: FoldJob>(self, job: J) -> J::Output {
        match self {
            Self::MaxOfBytes => job.run::<u8, _>(&Max),
            Self::SumOfHalves => job.run::<u16, _>(&Sum::<u32>(PhantomData)),
            Self::SumOfFloats => job.run::<f32, _>(&Sum::<f32>(PhantomData)),
            Self::SumInDoubles => job.run::<f32, _>(&Sum::<f64>(PhantomData)),
            Self::XorOfLong => job.run::<u64, _>(&Xor),
            Self::Moves => job.run::<u8, _>(&Move),
        }
    }
    fn encode(self) -> [u64; 3] {
        [self as u64, 0, 0]
    }
    fn decode([first, ..]: [u64; 3]) -> Self {
        ALL[first as usize]
    }
}

/// Folds element by element.
struct Plainly<'s>(&'s [[u8; 32]; 3], usize);
impl Sealed for Plainly<'_> {}
impl FoldJob for Plainly<'_> {
    type Output = [u8; 32];
    fn run<T: Pod, F: Fold<T>>(self, fold: &F) -> [u8; 32] {
        let Self(sources, bytes) = self;
        let mut result = [0; 32];
        for at in (0..bytes).step_by(size_of::<T>()) {
            let value = |source: &[u8; 32]| bytemuck::pod_read_unaligned::<T>(&source[at..at + size_of::<T>()]);
            let sum = fold.next(fold.next(fold.first(value(&sources[0])), value(&sources[1])), value(&sources[2]));
            result[at..at + size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&fold.last(sum)));
        }
        result
    }
}

fn words<const K: usize>(source: &[u8; 32]) -> [u32; K] {
    core::array::from_fn(|i| u32::from_le_bytes(source[4 * i..4 * i + 4].try_into().unwrap()))
}

fn fold<const K: usize>(by: impl Folder, sources: &[[u8; 32]; 3]) -> [u8; 32] {
    let [a, b, c] = [0, 1, 2].map(|i| words::<K>(&sources[i]));
    let result = by.last::<K>(by.next(by.next(by.first(a), b), c));
    let mut bytes = [0; 32];
    for (i, word) in result.iter().enumerate() {
        bytes[4 * i..4 * i + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Small floats and small integers alike.
fn sources() -> [[u8; 32]; 3] {
    let float = |i: usize, j: usize| (1.5 * (1 + i) as f32 - 0.25 * j as f32).to_le_bytes();
    core::array::from_fn(|i| core::array::from_fn(|b| float(i, b / 4)[b % 4]))
}

#[test]
fn granules_of_every_size_are_folded_as_elements_are() {
    let sources = sources();
    for by in ALL {
        let chosen = Chosen::new(by);
        assert_eq!(fold::<2>(chosen, &sources), by.run(Plainly(&sources, 8)), "{by:?}");
        assert_eq!(fold::<4>(chosen, &sources), by.run(Plainly(&sources, 16)), "{by:?}");
        if chosen.element().pairs {
            assert_eq!(fold::<8>(chosen, &sources), by.run(Plainly(&sources, 32)), "{by:?}");
        }
    }
    assert!(ALL.map(|by| Chosen::new(by).element().pairs) == [false, true, true, true, true, true]);
    assert!(ALL.map(|by| Chosen::new(by).element().multiple) == [1, 2, 4, 4, 8, 1]);
}

#[test]
fn a_known_fold_does_the_same_as_a_chosen_one() {
    let sources = sources();
    let typed = Typed::<u16, _>::new(&Sum::<u32>(PhantomData));
    assert_eq!(fold::<8>(typed, &sources), fold::<8>(Chosen::new(Some::SumOfHalves), &sources));
    let typed = Typed::<u8, _>::new(&Max);
    assert_eq!(fold::<4>(typed, &sources), fold::<4>(Chosen::new(Some::MaxOfBytes), &sources));
}
