//! Ranges of symmetric objects against plain ranges of indices: what is inside is found, and nothing else ever is.

use std::ops::{Bound, Range};
use std::panic::catch_unwind;

use congruent::device::{KernelArg, Sym};
use proptest::prelude::*;

/// A `Sym<u32>` somewhere on a heap.
fn object() -> impl Strategy<Value = Sym<u32>> {
    (0u64..1 << 40, 0u64..1000).prop_map(|(word, len)| Sym::from_raw(word * 4, len))
}

fn bound() -> impl Strategy<Value = Bound<usize>> {
    let index = prop_oneof![8 => 0usize..1100, 1 => Just(usize::MAX), 1 => Just(usize::MAX - 1)];
    (index, 0..3).prop_map(|(index, kind)| match kind {
        0 => Bound::Included(index),
        1 => Bound::Excluded(index),
        _ => Bound::Unbounded,
    })
}

/// The indices that two bounds mean, where they are all below `len`: the language's own rule for slices.
fn model(start: Bound<usize>, end: Bound<usize>, len: usize) -> Option<Range<usize>> {
    let indices: Vec<usize> = (0..len).collect();
    let part = indices.get((start, end))?;
    let first = match start {
        Bound::Included(first) => first,
        Bound::Excluded(before) => before + 1,
        Bound::Unbounded => 0,
    };
    Some(first..first + part.len())
}

fn part(whole: Sym<u32>, range: Range<usize>) -> Sym<u32> {
    Sym::from_raw(whole.offset() + range.start as u64 * 4, range.len() as u64)
}

proptest! {
    #[test]
    fn get_and_slice_follow_the_languages_rule(whole in object(), start in bound(), end in bound()) {
        let expected = model(start, end, whole.len()).map(|range| part(whole, range));
        prop_assert_eq!(whole.get((start, end)), expected);
        match expected {
            Some(part) => prop_assert_eq!(whole.slice((start, end)), part),
            None => prop_assert!(catch_unwind(|| whole.slice((start, end))).is_err()),
        }
    }

    #[test]
    fn a_part_of_a_part_is_a_part(whole in object(), a in 0usize..1000, b in 0usize..1000, c in 0usize..1000, d in 0usize..1000) {
        if let Some(inner) = whole.get(a..b) {
            let expected = inner.get(c..d).map(|_| part(whole, a + c..a + d));
            prop_assert_eq!(inner.get(c..d), expected);
        }
    }

    #[test]
    fn an_element_is_inside_or_refused(whole in object(), i in 0usize..1100) {
        match i < whole.len() {
            true => prop_assert_eq!(whole.elem(i), part(whole, i..i + 1)),
            false => prop_assert!(catch_unwind(|| whole.elem(i)).is_err()),
        }
    }

    #[test]
    fn chunks_are_in_order_and_cover_everything_once(whole in object(), n in 1usize..40) {
        let mut at = 0;
        for i in 0..n {
            let chunk = whole.chunk(i, n);
            prop_assert_eq!(chunk, part(whole, at..at + chunk.len()));
            prop_assert!(chunk.len() <= whole.len().div_ceil(n));
            at += chunk.len();
        }
        prop_assert_eq!(at, whole.len());
        prop_assert!(catch_unwind(|| whole.chunk(n, n)).is_err());
    }

    #[test]
    fn a_cast_keeps_the_bytes(whole in object()) {
        let bytes = whole.cast::<u8>();
        prop_assert_eq!((bytes.offset(), bytes.len()), (whole.offset(), whole.bytes()));
        prop_assert_eq!(bytes.cast::<u32>(), whole);
        let fits = whole.offset() % 8 == 0 && whole.len() % 2 == 0;
        prop_assert_eq!(catch_unwind(|| whole.cast::<u64>().bytes()).ok(), fits.then_some(whole.bytes()));
    }

    #[test]
    fn an_argument_fits_a_heap_that_reaches_its_end(whole in object()) {
        let end = whole.offset() + whole.bytes() as u64;
        prop_assert!(KernelArg::fits(&whole, end));
        prop_assert_eq!(KernelArg::fits(&whole, end.wrapping_sub(1)), end == 0);
    }

    #[test]
    fn what_no_address_space_holds_is_refused(word in 0u64..=u64::MAX / 4, len in 0u64..=u64::MAX) {
        let offset = word * 4;
        let fits = u128::from(offset) + u128::from(len) * 4 <= i64::MAX as u128;
        prop_assert_eq!(catch_unwind(|| Sym::<u32>::from_raw(offset, len).len()).ok(), fits.then_some(len as usize));
        prop_assert!(catch_unwind(|| Sym::<u32>::from_raw(offset | 1, len)).is_err());
    }
}
