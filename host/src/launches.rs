//! Which launch a fault is of: each has a number, which its kernel gets with its context and a fault gives back.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

/// The launches of a world, by their kernel and the line of the program that launched it.
#[derive(Default)]
pub(crate) struct Launches(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// How many launches there were, in 16 bits, and never 0.
    count: u16,
    all: Vec<Launched>,
    /// Where each is in `all`.
    places: HashMap<Launched, u16>,
}

/// What was launched, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Launched {
    pub(crate) kernel: &'static str,
    pub(crate) by: Launcher,
}

/// The line of the program that launches something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Launcher {
    pub(crate) at: &'static Location<'static>,
    /// Whether it makes a call that this crate has a kernel for, and not one of the program's.
    pub(crate) calls: bool,
}

impl Launcher {
    /// The caller, with a kernel of its own.
    #[track_caller]
    pub(crate) fn kernel() -> Self {
        Self { at: Location::caller(), calls: false }
    }

    /// The caller, with a call.
    #[track_caller]
    pub(crate) fn call() -> Self {
        Self { at: Location::caller(), calls: true }
    }
}

impl Launches {
    /// A number for one more launch: which one of those that are known in the lower half, and a count above it, so that launches
    /// that run at the same time have different ones.
    pub(crate) fn number(&self, launched: Launched) -> u32 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { count, all, places } = &mut *known;
        *count = count.wrapping_add(1).max(1);
        // Of a program with more places that launch than fit, the last have the place of the last one that did.
        let place = *places.entry(launched).or_insert_with(|| {
            if all.len() <= usize::from(u16::MAX) {
                all.push(launched);
            }
            (all.len() - 1) as u16
        });
        u32::from(*count) << 16 | u32::from(place)
    }

    /// The launch that was given this number; 0 is nobody's.
    pub(crate) fn of(&self, number: u32) -> Option<Launched> {
        let number = (number >> 16 != 0).then_some(number)?;
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.all.get(usize::from(number as u16)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_tell_launches_apart_and_are_known_again() {
        let launches = Launches::default();
        let here = |kernel| Launched { kernel, by: Launcher::kernel() };
        let (one, other) = (here("one"), here("other"));
        let numbers = [one, other, one, other].map(|launched| launches.number(launched));
        assert_eq!(numbers.map(|number| launches.of(number)), [one, other, one, other].map(Some));
        assert!((1..4).all(|i| !numbers[..i].contains(&numbers[i])));
        assert_eq!([0, 7 << 16 | 9].map(|number| launches.of(number)), [None; 2]);
    }
}
