//! Remote atomics: what each operation gives and leaves, and sums that stay exact when everybody adds at once.

use std::any::type_name;

use congruent::device::{NicWord, bf16, f16};
use congruent::{Error, Grid, World};
use congruent_test_kernels::atomics::{self as kernels, Counted, FLOAT_STEPS, INTEGER_STEPS};

use super::pattern::{assert_same, neighbours, value, values};

/// Remote atomics.
pub fn atomics(world: &mut World) -> Result<(), Error> {
    integers::<u32>(world)?;
    integers::<i32>(world)?;
    integers::<u64>(world)?;
    integers::<i64>(world)?;
    floats::<f32>(world)?;
    floats::<f64>(world)?;
    floats::<f16>(world)?;
    floats::<bf16>(world)?;
    rounded::<f16>(world, f16::from_f32)?;
    rounded::<bf16>(world, bf16::from_f32)?;
    small_crowd::<f16>(world, f16::from_f32)?;
    small_crowd::<bf16>(world, bf16::from_f32)?;
    crowd::<u32>(world, |count| count as u32)?;
    crowd::<i32>(world, |count| count as i32)?;
    crowd::<u64>(world, |count| count)?;
    crowd::<i64>(world, |count| count as i64)?;
    crowd::<f32>(world, |count| count as f32)?;
    crowd::<f64>(world, |count| count as f64)?;
    nic_words(world)
}

/// Atomics on words of network cards, whoever does them: of tickets each is drawn once.
pub fn nic_words(world: &mut World) -> Result<(), Error> {
    const ROUNDS: u64 = 3;
    const GRID: Grid = Grid::new(2, 64);
    let (stream, words, n) = (world.stream()?, world.alloc::<NicWord>(3)?, world.npes() as u64);
    let (threads, left) = (world.alloc::<u64>(1)?, world.alloc::<u64>(3)?);
    let marks = world.alloc::<u32>((2 * 64 * n * ROUNDS) as usize)?;
    let arguments = (words.view(), marks.view(), threads.view(), ROUNDS);
    world.run(&stream, kernels::nic_words, GRID, arguments)?;
    world.run(&stream, kernels::read_nic_words, Grid::one(64), (words.view(), left.view()))?;
    let drawn = threads.to_vec()?[0] * n * ROUNDS;
    assert_eq!(left.to_vec()?, [drawn, 2 * drawn, 2 * n * ROUNDS]);
    let marks = marks.to_vec()?;
    let (once, never) = marks.split_at(drawn as usize);
    assert!(once.iter().all(|mark| *mark == 1) && never.iter().all(|mark| *mark == 0), "{marks:?}");
    Ok(())
}

trait Integer: Counted {
    /// What every step of the sequence gives, and what it leaves, on a word that starts as `word`.
    fn sequence(word: Self, operands: &[Self]) -> (Vec<Self>, Self);
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Integer for $type {
            fn sequence(mut word: Self, v: &[Self]) -> (Vec<Self>, Self) {
                let mut gave = Vec::new();
                let fetching: [fn(Self, Self) -> Self; 7] =
                    [Self::wrapping_add, |_, b| b, |a, b| a & b, |a, b| a | b, |a, b| a ^ b, Self::min, Self::max];
                for (operation, i) in fetching.iter().zip(0..) {
                    gave.push(word);
                    word = operation(word, v[i]);
                }
                gave.push(word);
                let posting: [fn(Self, Self) -> Self; 6] =
                    [Self::wrapping_add, |a, b| a ^ b, |a, b| a | b, |a, b| a & b, Self::max, Self::min];
                for (operation, i) in posting.iter().zip(7..) {
                    word = operation(word, v[i]);
                    gave.push(word);
                }
                // The first compare-exchange fails and the second does not; both give what was there.
                gave.extend([word, word]);
                (gave, v[14])
            }
        }
    )*};
}
integers! { u32 i32 u64 i64 }

fn integers<T: Integer>(world: &mut World) -> Result<(), Error> {
    let (stream, word, operands) = (world.stream()?, world.alloc::<T>(1)?, world.alloc::<T>(INTEGER_STEPS)?);
    let (gave, stored) = (world.alloc::<T>(INTEGER_STEPS)?, world.alloc::<u64>(2)?);
    let (me, (next, prev)) = (world.pe().index(), neighbours(world));
    for round in 0..8 {
        word.fill(value(round, me, 0))?;
        operands.write(0, &values(round + 8, me, INTEGER_STEPS))?;
        let arguments = (word.view(), operands.view(), gave.view(), stored.view());
        world.run(&stream, T::Sequence::default(), Grid::one(64), arguments)?;
        let what = || format!("{}, round {round}", type_name::<T>());
        let (expected, _) = T::sequence(value(round, next, 0), &values(round + 8, me, INTEGER_STEPS));
        assert_same(&gave.to_vec()?, &expected, what);
        let (_, left) = T::sequence(value(round, me, 0), &values(round + 8, prev, INTEGER_STEPS));
        assert_same(&word.to_vec()?, &[left], what);
        assert_eq!(stored.to_vec()?, [0, 1], "{}", what());
    }
    Ok(())
}

trait Float: Counted {
    /// To add twice, to swap in, and pairs to compare with and to store: a zero of the other sign is not the same, a NaN is the same
    /// as itself.
    fn operands() -> [Self; 9];
    /// What each step gives; the first is what was there.
    fn gave() -> [Self; FLOAT_STEPS];
}

macro_rules! floats {
    ($($type:ty: $number:expr;)*) => {$(
        impl Float for $type {
            fn operands() -> [Self; 9] {
                let [a, b, c, d, e, f, g] = [0.25, -3.5, -0.0, 0.0, 7.0, -0.0, 2.5f32].map($number);
                [a, b, c, d, e, f, Self::NAN, Self::NAN, g]
            }
            fn gave() -> [Self; FLOAT_STEPS] {
                let [a, b, c, d, e] = [1.5, -1.75, -1.75, -0.0, -0.0f32].map($number);
                [a, b, c, d, e, Self::NAN]
            }
        }
    )*};
}
floats! { f32: core::convert::identity; f64: f64::from; f16: f16::from_f32; bf16: bf16::from_f32; }

fn floats<T: Float>(world: &mut World) -> Result<(), Error> {
    let (stream, word, operands) = (world.stream()?, world.alloc::<T>(1)?, world.alloc::<T>(T::operands().len())?);
    let (gave, stored) = (world.alloc::<T>(FLOAT_STEPS)?, world.alloc::<u64>(3)?);
    word.fill(T::gave()[0])?;
    operands.write(0, &T::operands())?;
    let arguments = (word.view(), operands.view(), gave.view(), stored.view());
    world.run(&stream, T::Sequence::default(), Grid::one(64), arguments)?;
    assert_same(&gave.to_vec()?, &T::gave(), || type_name::<T>().into());
    assert_same(&word.to_vec()?, &T::operands()[8..], || type_name::<T>().into());
    assert_eq!(stored.to_vec()?, [0, 1, 1], "{}", type_name::<T>());
    Ok(())
}

/// Sums are rounded to the nearest, ties to even, as the type rounds them: by both ways to add, subnormal ones and those past the largest
/// number too.
fn rounded<T: Float>(world: &mut World, number: impl Fn(f32) -> T) -> Result<(), Error>
where
    f32: From<T>,
{
    let (stream, word, operands) = (world.stream()?, world.alloc::<T>(1)?, world.alloc::<T>(T::operands().len())?);
    let (gave, stored) = (world.alloc::<T>(FLOAT_STEPS)?, world.alloc::<u64>(3)?);
    for (start, first, second) in
        [(2049.0, 1.0, 3.0), (257.0, 1.0, -1.0), (6e-8, 6e-8, -1.2e-7), (1.0, 3e-4, 0.004), (65504.0, 15.0, 17.0)]
    {
        word.fill(number(start))?;
        let mut values = T::operands();
        (values[0], values[1]) = (number(first), number(second));
        operands.write(0, &values)?;
        let arguments = (word.view(), operands.view(), gave.view(), stored.view());
        world.run(&stream, T::Sequence::default(), Grid::one(64), arguments)?;
        let once = number(f32::from(number(start)) + f32::from(values[0]));
        let twice = number(f32::from(once) + f32::from(values[1]));
        assert_same(&gave.to_vec()?[..2], &[number(start), twice], || {
            format!("{start} + {first} + {second}, {}", type_name::<T>())
        });
    }
    Ok(())
}

fn small_crowd<T: Counted>(world: &mut World, number: impl Fn(f32) -> T) -> Result<(), Error> {
    const BLOCKS: u32 = 2;
    // 256 is the most that 8 bits of a number count to.
    let rounds = 256 / (u64::from(BLOCKS) * world.npes() as u64);
    let (stream, sums, leaders) = (world.stream()?, world.alloc::<T>(4)?, world.alloc::<u64>(1)?);
    world.run(&stream, T::Crowd::default(), Grid::new(BLOCKS, 64), (sums.view(), leaders.view(), rounds))?;
    assert_eq!(leaders.to_vec()?, [u64::from(BLOCKS)]);
    let all = number((rounds * u64::from(BLOCKS) * world.npes() as u64) as f32);
    assert_same(&sums.to_vec()?, &[all, all, all, number(0.0)], || type_name::<T>().into());
    Ok(())
}

fn crowd<T: Counted>(world: &mut World, number: impl Fn(u64) -> T) -> Result<(), Error> {
    const ROUNDS: u64 = 20;
    const BLOCKS: u32 = 2;
    let (stream, sums, threads) = (world.stream()?, world.alloc::<T>(3)?, world.alloc::<u64>(1)?);
    world.run(&stream, T::Crowd::default(), Grid::new(BLOCKS, 64), (sums.view(), threads.view(), ROUNDS))?;
    let (threads, n) = (threads.to_vec()?[0], world.npes() as u64);
    assert!(threads >= BLOCKS.into(), "{threads} threads in {BLOCKS} blocks");
    let (all, leaders) = (number(threads * n * ROUNDS), number(u64::from(BLOCKS) * n * ROUNDS));
    assert_same(&sums.to_vec()?, &[all, all, leaders], || {
        format!("{} by {threads} threads of each PE", type_name::<T>())
    });
    Ok(())
}
