//! How large the suite's cases are where they take long.

use std::env;

/// With this variable set to a number, no case has more elements than that, and none is repeated more often than a sixteenth of
/// it: for machines that take long for each instruction. All cases are there, the largest ones smaller.
pub const LIMIT: &str = "CONGRUENT_TEST_LIMIT";

fn limit() -> Option<usize> {
    let text = env::var(LIMIT).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{LIMIT}={text} is no number")))
}

/// Whether there is a limit.
pub(super) fn is_limited() -> bool {
    limit().is_some()
}

/// A number of elements, or the limit where that is less.
pub(super) fn at_most(number: usize) -> usize {
    limit().map_or(number, |limit| number.min(limit))
}

/// Numbers of elements in order, each at most the limit and none of them twice.
pub(super) fn limited(numbers: &[usize]) -> Vec<usize> {
    let mut numbers: Vec<usize> = numbers.iter().copied().map(at_most).collect();
    numbers.dedup();
    numbers
}

/// How often a case is repeated.
pub(super) fn times(number: u64) -> u64 {
    limit().map_or(number, |limit| number.min(limit as u64 / 16))
}
