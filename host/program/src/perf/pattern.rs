//! What buffers are filled with, and the check that finds every element that differs.
//!
//! Patterns repeat with a prime period, so data that lands in the wrong place (a chunk, a piece, a vector off) differs
//! almost everywhere, while the expected values of one period serve a buffer of any size.

use std::ops::Range;

use congruent_device::{Fp8E4M3, Fp8E5M2, Pod, SmallFloat, bf16, f16};

use congruent::{AccessError, SymVec};

/// Elements after the end of a buffer that must stay untouched.
pub(super) const GUARD: usize = 64;

/// A prime.
const PERIOD: usize = 8191;

/// A type that whole numbers up to [`EXACT`](Sample::EXACT) convert to without rounding.
pub(super) trait Sample: Pod + PartialEq + Send + Sync {
    /// All whole numbers up to this one are values of the type.
    const EXACT: u64;
    /// So many factors of 2 make a product that is a value of the type, up to 15.
    const DOUBLINGS: usize;

    /// The number as this type; of an integer, its low bits.
    fn sample(number: u64) -> Self;
}

/// One period of values. None of what PEs send is zero: zero marks what nothing was written to.
pub(super) struct Pattern<T>(Vec<T>);

impl<T: Sample> Pattern<T> {
    /// The pattern with `number(i)`, from 1 to [`Sample::EXACT`], at every `i` within a period.
    pub(super) fn new(number: impl Fn(usize) -> u64) -> Self {
        Self((0..PERIOD).map(|i| T::sample(number(i))).collect())
    }

    /// What PE `pe` sends.
    pub(super) fn of(pe: usize) -> Self {
        Self::new(|i| number(pe, i, T::EXACT))
    }

    /// What lies where nothing was sent.
    pub(super) fn nothing() -> Self {
        Self(vec![T::zeroed(); PERIOD])
    }

    /// Writes the pattern to the first `len` elements, and zero to the guard after them.
    pub(super) fn fill(&self, buf: &SymVec<T>, len: usize) -> Result<(), AccessError> {
        self.fill_part(buf, 0..len, 0)?;
        buf.write(len, &[T::zeroed(); GUARD])
    }

    /// Writes the pattern from its element `first` on to a range.
    pub(super) fn fill_part(&self, buf: &SymVec<T>, range: Range<usize>, first: usize) -> Result<(), AccessError> {
        pieces(range, first).try_for_each(|(at, start, len)| buf.write(at, &self.0[start..start + len]))
    }

    /// How many of the first `len` elements differ from the pattern, and of the guard from zero.
    pub(super) fn wrong(&self, buf: &SymVec<T>, len: usize) -> Result<u64, AccessError> {
        Ok(self.wrong_part(buf, 0..len, 0)? + wrong_guard(buf, len)?)
    }

    /// How many elements of a range differ from the pattern from its element `first` on.
    pub(super) fn wrong_part(&self, buf: &SymVec<T>, range: Range<usize>, first: usize) -> Result<u64, AccessError> {
        let mut piece = [T::zeroed(); PERIOD];
        let mut wrong = 0;
        for (at, start, len) in pieces(range, first) {
            buf.read(at, &mut piece[..len])?;
            wrong += differing(&piece[..len], &self.0[start..]);
        }
        Ok(wrong)
    }
}

/// How many elements of the guard after the first `len` elements are not zero.
pub(super) fn wrong_guard<T: Sample>(buf: &SymVec<T>, len: usize) -> Result<u64, AccessError> {
    let mut guard = [T::zeroed(); GUARD];
    buf.read(len, &mut guard)?;
    Ok(differing(&guard, &[T::zeroed(); GUARD]))
}

/// A range in pieces that lie within a period, when `first` is the place of its first element: where each begins, at which
/// place of the period, and how long it is.
fn pieces(range: Range<usize>, first: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = (first + at - range.start) % PERIOD;
        let len = (PERIOD - start).min(range.end - at);
        let piece = (len > 0).then_some((at, start, len));
        at += len;
        piece
    })
}

/// Zeroes the first `len` elements and the guard, so that what nothing writes to is found.
pub(super) fn clear<T: Sample>(buf: &SymVec<T>, len: usize) -> Result<(), AccessError> {
    let zeros = [T::zeroed(); PERIOD];
    for at in (0..len + GUARD).step_by(PERIOD) {
        buf.write(at, &zeros[..PERIOD.min(len + GUARD - at)])?;
    }
    Ok(())
}

/// A number from 1 to `most` that depends on PE and index with all its bits.
pub(super) fn number(pe: usize, i: usize, most: u64) -> u64 {
    // The finalizer of splitmix64 (Steele, Lea and Flood, 2014).
    let mut bits = (pe as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i as u64;
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    1 + (bits ^ (bits >> 31)) % most
}

/// How many values are not what is expected; a NaN never is.
fn differing<T: PartialEq>(values: &[T], expected: &[T]) -> u64 {
    values.iter().zip(expected).map(|(value, expected)| u64::from(value != expected)).sum()
}

macro_rules! samples {
    ($($type:ty: $exact:expr, $doublings:expr, |$number:ident| $sample:expr;)*) => {$(
        impl Sample for $type {
            const EXACT: u64 = $exact;
            const DOUBLINGS: usize = $doublings;
            fn sample($number: u64) -> Self {
                $sample
            }
        }
    )*};
}
samples! {
    i8: i8::MAX as u64, 6, |number| number as i8;
    u8: u8::MAX as u64, 7, |number| number as u8;
    i16: i16::MAX as u64, 14, |number| number as i16;
    u16: u16::MAX as u64, 15, |number| number as u16;
    i32: 1 << 24, 15, |number| number as i32;
    u32: 1 << 24, 15, |number| number as u32;
    i64: 1 << 52, 15, |number| number as i64;
    u64: 1 << 52, 15, |number| number;
    f16: 1 << 11, 15, |number| f16::from_f64(number as f64);
    bf16: 1 << 8, 15, |number| bf16::from_f64(number as f64);
    f32: 1 << 24, 15, |number| number as f32;
    f64: 1 << 52, 15, |number| number as f64;
    Fp8E4M3: 1 << 4, 8, |number| Self::narrow(number as f32);
    Fp8E5M2: 1 << 3, 15, |number| Self::narrow(number as f32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use congruent::Error;

    /// How many elements the check finds wrong after `corrupt` has had the buffer.
    fn found<T: Sample>(len: usize, corrupt: impl Fn(&SymVec<T>) + Sync) -> u64 {
        let found = congruent::local(1, |world| {
            let buf = world.alloc::<T>(len + GUARD)?;
            let pattern = Pattern::of(0);
            pattern.fill(&buf, len)?;
            corrupt(&buf);
            Ok::<_, Error>(pattern.wrong(&buf, len)?)
        });
        found.unwrap()[0]
    }

    #[test]
    fn a_sound_buffer_has_nothing_wrong() {
        assert_eq!(found::<f32>(3 * PERIOD + 5, |_| ()), 0);
        assert_eq!(found::<u8>(1, |_| ()), 0);
        assert_eq!(found::<bf16>(PERIOD, |_| ()), 0);
    }

    #[test]
    fn every_corrupted_element_is_found() {
        let len = 2 * PERIOD + 100;
        for at in [0, 1, PERIOD - 1, PERIOD, len - 1, len, len + GUARD - 1] {
            assert_eq!(found::<f32>(len, |buf| buf.write(at, &[f32::NAN]).unwrap()), 1, "element {at}");
        }
        assert_eq!(found::<f64>(len, |buf| buf.write(7, &[0.5; 20]).unwrap()), 20);
        assert_eq!(found::<u64>(len, |buf| clear(buf, len).unwrap()), len as u64);
    }

    #[test]
    fn data_in_the_wrong_place_or_of_the_wrong_pe_is_found() {
        let len = 4 * PERIOD;
        let shifted = found::<f32>(len, |buf| {
            let values = buf.to_vec().unwrap();
            buf.write(32, &values[..len - 32]).unwrap();
        });
        assert!(shifted > len as u64 * 9 / 10, "{shifted}");
        let foreign = found::<f32>(len, |buf| Pattern::of(1).fill(buf, len).unwrap());
        assert!(foreign > len as u64 * 9 / 10, "{foreign}");
    }

    #[test]
    fn a_part_may_begin_anywhere_in_the_period() {
        let found = congruent::local(1, |world| {
            let buf = world.alloc::<u32>(3 * PERIOD)?;
            let pattern = Pattern::of(3);
            pattern.fill_part(&buf, 10..2 * PERIOD + 5, PERIOD - 7)?;
            let wrong = |range, first| pattern.wrong_part(&buf, range, first);
            assert_eq!(buf.to_vec()?[17], pattern.0[0]);
            Ok::<_, Error>([wrong(10..2 * PERIOD + 5, PERIOD - 7)?, wrong(17..30, 0)?, wrong(9..11, PERIOD - 8)?])
        });
        assert_eq!(found.unwrap(), [[0, 0, 1]]);
    }

    #[test]
    fn numbers_are_exact_and_never_zero() {
        fn exact<T: Sample + Into<f64>>() {
            for number in [1, 2, T::EXACT - 1, T::EXACT] {
                assert_eq!(T::sample(number).into(), number as f64);
            }
        }
        exact::<u8>();
        exact::<i32>();
        exact::<f16>();
        exact::<bf16>();
        exact::<f32>();
        exact::<f64>();
        assert!((0..1000).all(|i| (1..=3).contains(&number(i % 7, i, 3))));
    }
}
