//! Shares against plain arithmetic: every part of a division is where it must be, and together they are the whole.

use congruent::collectives::Share;
use congruent::device::{Pod, Sym};
use proptest::prelude::*;

fn check<T: Pod>(word: u64, len: usize, count: usize) -> Result<(), TestCaseError> {
    let whole = Sym::<T>::from_raw(word * align_of::<T>() as u64, len as u64);
    let largest = Share::largest::<T>(len, count);
    let mut end = whole.offset();
    for index in 0..count {
        let part = Share::new(index, count).of(whole);
        prop_assert_eq!(part.offset(), end, "part {} begins where the one before ends", index);
        prop_assert!(part.len() <= largest);
        // Only the last part that has any elements may be shorter.
        let rest = (whole.len() * size_of::<T>()) as u64 - (end - whole.offset());
        prop_assert_eq!(part.len(), largest.min(rest as usize / size_of::<T>()));
        if 128 % size_of::<T>() == 0 {
            prop_assert!((part.offset() - whole.offset()).is_multiple_of(128) || part.is_empty());
        }
        end += part.bytes() as u64;
    }
    prop_assert_eq!(end, whole.offset() + whole.bytes() as u64, "the parts end where the whole does");
    // Nobody does more than an equal share and what rounding up adds.
    prop_assert!(largest * size_of::<T>() < len.div_ceil(count) * size_of::<T>() + 128 + size_of::<T>());
    Ok(())
}

proptest! {
    #[test]
    fn parts_cover_the_whole_once(word in 0u64..1 << 30, len in 0usize..100_000, count in 1usize..100) {
        check::<u8>(word, len, count)?;
        check::<u16>(word, len, count)?;
        check::<f32>(word, len, count)?;
        check::<u64>(word, len, count)?;
        check::<[u8; 3]>(word, len, count)?;
        check::<[u32; 5]>(word, len, count)?;
        check::<[u64; 32]>(word, len, count)?;
    }

    #[test]
    fn parts_of_parts_cover_the_whole_once(len in 0usize..50_000, members in 1usize..12, blocks in 1usize..12) {
        let whole = Sym::<f32>::from_raw(0, len as u64);
        let mut end = 0;
        for member in 0..members {
            for block in 0..blocks {
                let part = Share::new(block, blocks).of(Share::new(member, members).of(whole));
                prop_assert_eq!(part.offset(), end);
                end += part.bytes() as u64;
            }
        }
        prop_assert_eq!(end, whole.bytes() as u64);
    }

    /// The host's all-gather moves elements as bytes and relies on it.
    #[test]
    fn a_division_of_bytes_is_that_of_numbers(len in 0usize..100_000, count in 1usize..100, index in 0usize..100) {
        let share = Share::new(index % count, count);
        let numbers = Sym::<f64>::from_raw(0, len as u64);
        prop_assert_eq!(share.of(numbers.cast::<u8>()), share.of(numbers).cast::<u8>());
        let numbers = Sym::<u16>::from_raw(0, len as u64);
        prop_assert_eq!(share.of(numbers.cast::<u8>()), share.of(numbers).cast::<u8>());
    }
}
